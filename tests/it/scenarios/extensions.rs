//! Extensions of the protocol: asked for, active, and told (3.2.6, 4.6).

use std::sync::Arc;

use a2a_service::{
    agent::{Agent, End, Error as Failure, Turn, Updates},
    call::Call,
    extension::Extension,
    pb::{
        v1::{AgentExtension, ListTasksRequest, part::Content},
        wkt::{Struct, Value, value::Kind},
    },
    server::Server,
};

use super::*;
use crate::bindings::{each_binding, serve};

const NOTES: &str = "https://example.com/ext/notes/v1";
const OTHER: &str = "https://example.com/ext/other/v1";

/// Puts notes on whatever passes, and refuses what is too loud.
struct Notes {
    required: bool,
}

fn note(text: &str) -> Struct {
    Struct { fields: [("note".to_owned(), Value { kind: Some(Kind::StringValue(text.to_owned())) })].into() }
}

impl Extension for Notes {
    fn uri(&self) -> &'static str {
        NOTES
    }

    fn description(&self) -> &'static str {
        "Notes on everything"
    }

    fn required(&self) -> bool {
        self.required
    }

    fn params(&self) -> Option<Struct> {
        Some(note("short"))
    }

    fn request(&self, request: &mut SendMessageRequest, call: &Call) -> Result<(), Error> {
        assert!(call.extensions.iter().any(|it| it == NOTES));
        let message = request.message.as_ref().unwrap();
        if message.text().ends_with('!') {
            return Err(Error::invalid_field("message.parts", "is too loud"));
        }
        request.metadata.get_or_insert_default().fields.extend(note("asked").fields);
        Ok(())
    }

    fn said(&self, said: &Payload, _: &Call) -> Result<Option<Struct>, Error> {
        Ok(match said {
            Payload::Task(it) => Some(note(&format!("{} artifacts", it.artifacts.len()))),
            Payload::Message(_) => Some(note("message")),
            Payload::StatusUpdate(_) => None,
            Payload::ArtifactUpdate(it) => {
                let parts = it.artifact.iter().flat_map(|it| &it.parts);
                if parts.clone().any(|it| it.content == Some(Content::Text("secret".into()))) {
                    return Err(ErrorKind::PermissionDenied.because("that is a secret"));
                }
                Some(note("artifact"))
            }
        })
    }
}

/// Tells which extensions it sees, and what came along.
#[derive(Clone, Copy)]
struct Witness;

impl Agent for Witness {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Failure> {
        let metadata = turn.metadata().map(|it| it.fields.len()).unwrap_or_default();
        match turn.text() {
            "reply" => return Ok(End::Reply(Message::agent("hi"))),
            "secret" => out.artifact("secret").text("secret").await?,
            _ => {
                out.working().await?;
                out.artifact("seen").text(format!("{:?} {metadata}", turn.extensions())).await?;
            }
        }
        Ok(End::Completed(None))
    }
}

fn witness(required: bool) -> Server<Witness> {
    let other = AgentExtension { uri: OTHER.into(), ..AgentExtension::default() };
    Server::new(Witness).extension(Notes { required }).extension(other)
}

fn asking<T>(extensions: &[&str], message: T) -> Request<T> {
    let extensions = extensions.iter().map(|it| (*it).to_owned()).collect();
    Call { extensions, ..Call::default() }.request(message)
}

fn told<T>(response: &tonic::Response<T>) -> Option<&str> {
    response.metadata().get("a2a-extensions").map(|it| it.to_str().unwrap())
}

fn noted(metadata: Option<&Struct>) -> Option<&str> {
    let note = metadata?.fields.get("note")?.kind.as_ref()?;
    let Kind::StringValue(note) = note else { panic!("{note:?}") };
    Some(note)
}

async fn what_both_have_is_active(way: impl AsyncFn(Server<Witness>) -> Arc<dyn A2aService>) {
    let agent = way(witness(false)).await;
    for (asked, seen, note) in [
        (&[][..], "[] 0", None),
        (&["urn:unheard-of"], "[] 0", None),
        (&[OTHER], r#"["https://example.com/ext/other/v1"] 0"#, None),
        (&["urn:unheard-of", NOTES], r#"["https://example.com/ext/notes/v1"] 1"#, Some("1 artifacts")),
    ] {
        let answer = agent.send_message(asking(asked, text("", "hi"))).await.unwrap();
        let known: Vec<_> = asked.iter().filter(|it| it.starts_with("https")).copied().collect();
        assert_eq!(told(&answer).unwrap_or_default(), known.join(", "));
        let Some(Answer::Task(task)) = answer.into_inner().payload else { panic!("no task") };
        assert_eq!((output(&task).as_str(), noted(task.metadata.as_ref())), (seen, note), "{asked:?}");
    }
    // Both, in the caller's order, whatever is called.
    let both = [OTHER, NOTES];
    let names = Some(format!("{OTHER}, {NOTES}"));
    let reply = agent.send_message(asking(&both, text("", "reply"))).await.unwrap();
    assert_eq!(told(&reply).map(str::to_owned), names);
    let Some(Answer::Message(message)) = reply.into_inner().payload else { panic!("no message") };
    assert_eq!(noted(message.metadata.as_ref()), Some("message"));
    let page = agent.list_tasks(asking(&both, ListTasksRequest::default())).await.unwrap();
    assert_eq!((told(&page).map(str::to_owned), page.get_ref().tasks.len()), (names.clone(), 4));
    assert!(page.get_ref().tasks.iter().all(|it| noted(it.metadata.as_ref()) == Some("0 artifacts")));
    let id = page.get_ref().tasks[0].id.clone();
    let task = agent.get_task(asking(&both, GetTaskRequest { id: id.clone(), ..Default::default() })).await.unwrap();
    assert_eq!(
        (told(&task).map(str::to_owned), noted(task.get_ref().task().unwrap().metadata.as_ref())),
        (names, Some("1 artifacts"))
    );
    assert_eq!(get(&*agent, &id).await.unwrap().metadata, None, "who did not ask sees nothing of it");
}

each_binding!(what_both_have_is_active, not_in_v03_proto = "its proto file has no lists of tasks");

async fn events_are_seen_one_by_one(way: impl AsyncFn(Server<Witness>) -> Arc<dyn A2aService>) {
    let agent = way(witness(false)).await;
    let events = agent.send_streaming_message(asking(&[NOTES], text("", "hi"))).await.unwrap();
    assert_eq!(told(&events), Some(NOTES));
    let events = remaining(events.into_inner()).await;
    let notes = events.iter().map(|it| match it.payload().unwrap() {
        Payload::Task(it) => noted(it.metadata.as_ref()),
        Payload::Message(it) => noted(it.metadata.as_ref()),
        Payload::StatusUpdate(it) => noted(it.metadata.as_ref()),
        Payload::ArtifactUpdate(it) => noted(it.metadata.as_ref()),
    });
    assert_eq!(notes.collect::<Vec<_>>(), [Some("0 artifacts"), None, Some("artifact"), None]);
    // What may not be said ends the stream, and not the task.
    let mut events = agent.send_streaming_message(asking(&[NOTES], text("", "secret"))).await.unwrap().into_inner();
    let id = task_of(&next(&mut events).await).id.clone();
    let error: Error = events.next().await.unwrap().err().unwrap().into();
    assert_error_kind(&error, ErrorKind::PermissionDenied);
    assert!(events.next().await.is_none());
    while get(&*agent, &id).await.unwrap().state() != TaskState::Completed {
        tokio::task::yield_now().await;
    }
    // Nor does the agent see what is refused.
    let error: Error = agent.send_message(asking(&[NOTES], text("", "hi!"))).await.err().unwrap().into();
    assert_eq!(fields(&error), ["message.parts"]);
    assert_eq!(send(&*agent, text("", "hi!")).await.state(), TaskState::Completed);
}

each_binding!(events_are_seen_one_by_one);

async fn what_is_required_has_to_be_asked_for(way: impl AsyncFn(Server<Witness>) -> Arc<dyn A2aService>) {
    let agent = way(witness(true)).await;
    for asked in [&[][..], &[OTHER], &["https://example.com/ext/notes/v2"]] {
        let error: Error = agent.send_message(asking(asked, text("", "hi"))).await.err().unwrap().into();
        assert_error_kind(&error, ErrorKind::ExtensionSupportRequired);
        assert!(error.to_string().contains(NOTES), "{error}");
        assert_eq!(error.metadata("extension"), Some(NOTES));
        let error: Error = agent.send_streaming_message(asking(asked, text("", "hi"))).await.err().unwrap().into();
        assert_error_kind(&error, ErrorKind::ExtensionSupportRequired);
        let get = GetTaskRequest { id: "t".into(), ..Default::default() };
        let error: Error = agent.get_task(asking(asked, get)).await.err().unwrap().into();
        assert_error_kind(&error, ErrorKind::ExtensionSupportRequired);
    }
    assert!(agent.send_message(asking(&[NOTES], text("", "hi"))).await.is_ok());
}

each_binding!(
    what_is_required_has_to_be_asked_for,
    not_at_0_3 = "it has no error for a required extension, and does not insist"
);

async fn a_strict_server_requires_it_of_every_version(way: impl AsyncFn(Server<Witness>) -> Arc<dyn A2aService>) {
    let agent = way(witness(true).strict_extensions(true)).await;
    for asked in [&[][..], &[OTHER]] {
        let error: Error = agent.send_message(asking(asked, text("", "hi"))).await.err().unwrap().into();
        assert!(error.to_string().contains(&format!("name {NOTES} in the header ")), "{error}");
        let streamed: Error = agent.send_streaming_message(asking(asked, text("", "hi"))).await.err().unwrap().into();
        assert_eq!((streamed.kind(), streamed.to_string()), (error.kind(), error.to_string()));
        assert_eq!(error.wire().json_rpc, if error.to_string().contains(" X-A2A") { -32004 } else { -32008 });
    }
    assert!(agent.send_message(asking(&[NOTES], text("", "hi"))).await.is_ok());
}

each_binding!(a_strict_server_requires_it_of_every_version);

#[tokio::test]
async fn the_card_names_them() {
    let url = serve(witness(true)).await;
    let card = reqwest::get(format!("{url}/.well-known/agent-card.json")).await.unwrap().bytes().await.unwrap();
    let card: serde_json::Value = serde_json::from_slice(&card).unwrap();
    let notes = serde_json::json!({
        "uri": NOTES, "description": "Notes on everything", "required": true, "params": {"note": "short"}
    });
    assert_eq!(card["capabilities"]["extensions"][0], notes);
    assert_eq!(card["capabilities"]["extensions"][1]["uri"], OTHER);
}
