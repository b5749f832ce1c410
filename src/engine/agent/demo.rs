//! Demo agent, the default of `a2a serve`: echoes text, and produces every task state on command for authors of clients.

use std::time::Duration;

use serde_json::json;

use super::{Agent, End, Error, Stopped, Turn, Updates};
use crate::protocol::pb::v1::{AgentCard, Message, Part, Role, TaskState, part::Content};

/// Reply to `/help`: the commands, one per line.
pub const HELP: &str = "\
Send any text to get it back as an artifact, or provoke a state:
/help               this text
/stream N [MS [B]]  an artifact in N chunks, one every MS milliseconds (100), each of at least B bytes (0)
/slow SECONDS       work for this long; cancel it if you like
/ask QUESTION       INPUT_REQUIRED; your next message completes the task
/approve NAME       INPUT_REQUIRED: may the agent call a tool? Answer yes or no
/form               INPUT_REQUIRED: a question with a JSON Schema of the answer
/auth               AUTH_REQUIRED; your next message completes the task
/fail REASON        FAILED, with the reason
/reject REASON      REJECTED, with the reason
/message TEXT       a plain message without a task
/parts              an artifact with a text, a raw, a url and a data part
/panic              the agent panics
/hang               the agent never returns; its deadline or a cancel ends it
";

/// Maximum number of chunks of `/stream`.
const MAX_CHUNKS: u32 = 100_000;

/// Maximum length of a chunk of `/stream`, in bytes.
const MAX_CHUNK_BYTES: usize = 1 << 20;

/// Maximum duration of `/slow`, and of the pause between two chunks of `/stream`.
const MAX_WAIT: Duration = Duration::from_hours(1);

/// Metadata of the question whether a tool may be called: its name and arguments.
const TOOL_CALL: &str = "toolCall";

/// Metadata of a question: the JSON Schema of its answer.
const REQUESTED_SCHEMA: &str = "requestedSchema";

/// The demo agent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demo;

impl Agent for Demo {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        let text = turn.text();
        if turn.task().state().is_interrupted() {
            return answered(&turn, &out).await;
        }
        let (command, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        let rest_or = |default: &str| if rest.is_empty() { default.to_owned() } else { rest.to_owned() };
        match command {
            "/help" => echo(&out, "help", HELP).await,
            "/stream" => stream(&out, rest).await,
            "/slow" => slow(&turn, &out, rest).await,
            "/ask" => Ok(End::input_required(rest_or("What do you mean?"))),
            "/approve" => approval(&rest_or("write_file")),
            "/form" => form(),
            "/auth" => Ok(End::auth_required("Authorise this elsewhere, then send any message.")),
            "/fail" => Err(Error::public(rest_or("You asked for it."))),
            "/reject" => Ok(End::rejected(rest_or("This is not for me."))),
            "/message" => Ok(End::reply(rest_or("Hello."))),
            "/parts" => parts(&out).await,
            "/panic" => panic(),
            "/hang" => {
                out.working().await?;
                std::future::pending().await
            }
            _ if command.starts_with('/') => {
                Err(Error::public(format!("There is no command {command}. /help tells which there are.")))
            }
            _ => echo(&out, "echo", text).await,
        }
    }

    fn card(&self) -> AgentCard {
        let card = AgentCard::new("Demo").version(env!("CARGO_PKG_VERSION")).modes(["text/plain"], ["text/plain"]);
        let card = card.describe("Echoes what it is sent, and provokes every state of a task on command.");
        let card = card.skill("echo", "Sends back the text that it is sent.", ["demo", "echo"]);
        card.skill("provoke", "Brings a task into the state that a command names; /help lists them.", ["demo", "test"])
    }
}

#[expect(clippy::panic, reason = "/panic requests it")]
fn panic() -> Result<End, Error> {
    panic!("asked to panic")
}

async fn echo(out: &Updates, name: &str, text: &str) -> Result<End, Error> {
    out.artifact(name).last().text(text).await?;
    Ok(End::Completed(None))
}

/// Asks whether a tool may be called.
fn approval(name: &str) -> Result<End, Error> {
    let arguments = json!({ "path": "notes/a.txt", "text": "Hello from the demo agent." });
    let question = format!("The agent wants to call {name} with {arguments}. Answer yes or no.");
    let call = json!({ TOOL_CALL: { "id": "1", "name": name, "arguments": arguments } });
    Ok(End::input_required(Message::agent(question).with_metadata(&call)?))
}

/// Asks for data with a property of each simple type.
fn form() -> Result<End, Error> {
    let schema = json!({
        "type": "object",
        "title": "Booking",
        "properties": {
            "city": { "type": "string", "title": "City", "minLength": 1 },
            "arrival": { "type": "string", "title": "Arrival", "format": "date" },
            "guests": { "type": "integer", "title": "Guests", "minimum": 1, "maximum": 20 },
            "room": { "type": "string", "title": "Room", "enum": ["single", "double", "suite"] },
            "breakfast": { "type": "boolean", "title": "Breakfast" },
        },
        "required": ["city", "arrival"],
    });
    let question = Message::agent("Which room do you want?").with_metadata(&json!({ REQUESTED_SCHEMA: schema }))?;
    Ok(End::input_required(question))
}

/// Completes a task with the answer that the agent requested.
async fn answered(turn: &Turn, out: &Updates) -> Result<End, Error> {
    out.working().await?;
    // The question may be in the history already.
    let task = turn.task();
    let messages = task.history.iter().chain(task.status.iter().filter_map(|status| status.message.as_ref()));
    let question = messages.rev().find(|message| message.role() == Role::Agent);
    let question = serde_json::to_value(question.and_then(|question| question.metadata.as_ref()))?;
    if let Some(name) = question[TOOL_CALL]["name"].as_str() {
        let result = if is_approved(turn.message()) { "was called" } else { "was not called" };
        return echo(out, "result", &format!("{name} {result}.")).await;
    }
    if question.get(REQUESTED_SCHEMA).is_some() {
        out.artifact("booking").last().parts(turn.message().parts.clone()).await?;
        return Ok(End::Completed(None));
    }
    let name = if turn.task().state() == TaskState::AuthRequired { "authorised" } else { "answer" };
    echo(out, name, turn.text()).await
}

/// Returns true for the data `{"approve": true}`, or the text `yes`.
fn is_approved(answer: &Message) -> bool {
    answer.parts.iter().any(|part| match &part.content {
        Some(Content::Data(value)) => serde_json::to_value(value).is_ok_and(|value| value["approve"] == true),
        Some(Content::Text(text)) => text.trim().eq_ignore_ascii_case("yes"),
        Some(Content::Raw(_) | Content::Url(_)) | None => false,
    })
}

async fn stream(out: &Updates, rest: &str) -> Result<End, Error> {
    let usage = || {
        Error::public(format!(
            "/stream takes a number of chunks up to {MAX_CHUNKS}, milliseconds between two, and a length in bytes up to \
             {MAX_CHUNK_BYTES}."
        ))
    };
    let mut words = rest.split_whitespace();
    let chunks: u32 = words.next().unwrap_or("10").parse().map_err(|_| usage())?;
    let pause: u64 = words.next().unwrap_or("100").parse().map_err(|_| usage())?;
    let length: usize = words.next().unwrap_or("0").parse().map_err(|_| usage())?;
    let pause = Duration::from_millis(pause);
    if !(1..=MAX_CHUNKS).contains(&chunks) || pause > MAX_WAIT || length > MAX_CHUNK_BYTES || words.next().is_some() {
        return Err(usage());
    }
    out.working().await?;
    let mut artifact = out.artifact("stream");
    for n in 1..=chunks {
        if n > 1 {
            wait(pause).await;
        }
        if n == chunks {
            artifact = artifact.last();
        }
        let mut text = format!("chunk {n} of {chunks}");
        text.push_str(&".".repeat(length.saturating_sub(text.len())));
        text.push('\n');
        artifact.text(text).await?;
    }
    Ok(End::Completed(None))
}

async fn slow(turn: &Turn, out: &Updates, rest: &str) -> Result<End, Error> {
    let seconds: f64 = rest.parse().unwrap_or(10.0);
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| *time <= MAX_WAIT);
    let time = time.ok_or_else(|| Error::public(format!("/slow takes seconds, up to {}.", MAX_WAIT.as_secs())))?;
    out.progress(format!("Working for {seconds} s.")).await?;
    tokio::select! {
        () = wait(time) => echo(out, "slow", &format!("Worked for {seconds} s.")).await,
        () = turn.canceled() => Err(Stopped.into()),
    }
}

async fn parts(out: &Updates) -> Result<End, Error> {
    let parts = vec![
        Part::text("A text part."),
        Part::bytes("A raw part.\n", "text/plain").named("raw.txt"),
        Part::url("https://example.com/map.png", "image/png").named("map.png"),
        Part::data(&json!({"a": "data part", "numbers": [1, 2.5], "nothing": null}))?,
    ];
    out.artifact("parts").last().parts(parts).await?;
    Ok(End::Completed(None))
}

async fn wait(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the demo agent waits in real time")]
    tokio::time::sleep(time).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ProbeOutcome, probe as test};

    #[tokio::test(start_paused = true)]
    async fn each_command_produces_its_state() {
        let demo = test(Demo);
        for (text, state, expected) in [
            ("hello there", TaskState::Completed, "hello there"),
            ("/help", TaskState::Completed, HELP),
            ("/stream 2 50", TaskState::Completed, "chunk 1 of 2\nchunk 2 of 2\n"),
            ("/stream 1 0 20", TaskState::Completed, "chunk 1 of 1........\n"),
            ("/slow 30", TaskState::Completed, "Worked for 30 s."),
            ("/ask Which city?", TaskState::InputRequired, "Which city?"),
            ("/auth", TaskState::AuthRequired, "Authorise this elsewhere, then send any message."),
            ("/fail no such city", TaskState::Failed, "no such city"),
            ("/reject not my job", TaskState::Rejected, "not my job"),
            ("/message hi", TaskState::Unspecified, "hi"),
            ("/nothing", TaskState::Failed, "There is no command /nothing. /help tells which there are."),
            (
                "/stream x",
                TaskState::Failed,
                "/stream takes a number of chunks up to 100000, milliseconds between two, and a length in bytes up to 1048576.",
            ),
        ] {
            let outcome = demo.send(text).await.unwrap();
            assert_eq!(outcome.state(), state, "{text}");
            assert!(outcome.text() == expected || outcome.status_text() == expected, "{text}: {outcome:?}");
        }
        for (text, kind) in [("/panic", "panic"), ("/hang", "deadline")] {
            let outcome = demo.send(text).await.unwrap();
            let failure = format!("Agent execution failed ({kind}): error id ");
            assert!(outcome.status_text().starts_with(&failure), "{outcome:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requested_answer_completes_the_task() {
        let demo = test(Demo);
        for (text, artifact) in [("/ask Which city?", "answer"), ("/auth", "authorised")] {
            let asked = demo.send(text).await.unwrap();
            let done = demo.reply(&asked, "/Rome").await.unwrap();
            assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, "/Rome"));
            assert!(done.artifact(artifact).is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_decide_about_a_tool_and_fill_in_a_form() {
        let demo = test(Demo);
        let answered = async |asked: &ProbeOutcome, part: Part| {
            let task_id = asked.task.as_ref().unwrap().id.clone();
            let message = Message { task_id, parts: vec![part], ..Message::user("") };
            demo.send_message(message).await.unwrap()
        };
        let approve = |approve| Part::data(&json!({ "approve": approve })).unwrap();
        for (part, result) in [
            (approve(true), "write_file was called."),
            (approve(false), "write_file was not called."),
            (Part::text("Yes"), "write_file was called."),
            (Part::text("later"), "write_file was not called."),
        ] {
            let asked = demo.send("/approve write_file").await.unwrap();
            let call = &metadata(&asked)["toolCall"];
            assert_eq!((&call["name"], &call["arguments"]["path"]), (&json!("write_file"), &json!("notes/a.txt")));
            let done = answered(&asked, part).await;
            assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, result));
        }
        let asked = demo.send("/form").await.unwrap();
        assert_eq!(metadata(&asked)["requestedSchema"]["required"], json!(["city", "arrival"]));
        let data = json!({ "city": "Rome", "arrival": "2030-01-02", "guests": 2 });
        let done = answered(&asked, Part::data(&data).unwrap()).await;
        assert_eq!(done.state(), TaskState::Completed);
        let parts = serde_json::to_value(&done.artifact("booking").unwrap().parts).unwrap();
        assert_eq!(parts[0]["data"], data);
    }

    /// Returns the metadata of the question of a task.
    fn metadata(asked: &ProbeOutcome) -> serde_json::Value {
        let status = asked.task.as_ref().unwrap().status.as_ref().unwrap();
        serde_json::to_value(status.message.as_ref().unwrap().metadata.as_ref().unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn parts_command_sends_every_kind_of_part() {
        let parts = test(Demo).send("/parts").await.unwrap();
        let json = serde_json::to_value(&parts.artifact("parts").unwrap().parts).unwrap();
        let kinds: Vec<_> =
            ["text", "raw", "url", "data"].iter().enumerate().map(|(n, kind)| json[n].get(kind)).collect();
        assert!(kinds.iter().all(Option::is_some), "{json}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_work_stops_when_it_is_canceled() {
        let started = tokio::time::Instant::now();
        let canceled = test(Demo).cancel("/slow 100").await.unwrap();
        assert_eq!(canceled.state(), TaskState::Canceled);
        assert!(started.elapsed() < Duration::from_secs(1));
    }
}
