//! Protocol extensions: activation by the client, hooks on requests and events, required extensions, the agent card
//! (specification 3.2.6, 4.6).

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
use crate::bindings::{Binding, each_binding, serve};

const NOTES: &str = "https://example.com/ext/notes/v1";
const OTHER: &str = "https://example.com/ext/other/v1";

/// Extension that adds notes to everything it sees, and rejects messages that end with `!` and artifacts that are secret.
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
        assert!(call.extensions.iter().any(|uri| uri == NOTES));
        let message = request.message.as_ref().unwrap();
        if message.text().ends_with('!') {
            return Err(Error::invalid_field("message.parts", "is too loud"));
        }
        request.metadata.get_or_insert_default().fields.extend(note("asked").fields);
        Ok(())
    }

    fn response_metadata(&self, said: &Payload, _: &Call) -> Result<Option<Struct>, Error> {
        Ok(match said {
            Payload::Task(task) => Some(note(&format!("{} artifacts", task.artifacts.len()))),
            Payload::Message(_) => Some(note("message")),
            Payload::StatusUpdate(_) => None,
            Payload::ArtifactUpdate(update) => {
                let parts = update.artifact.iter().flat_map(|artifact| &artifact.parts);
                if parts.clone().any(|part| part.content == Some(Content::Text("secret".into()))) {
                    return Err(ErrorKind::PermissionDenied.because("that is a secret"));
                }
                Some(note("artifact"))
            }
        })
    }
}

/// Agent that outputs the active extensions and the number of metadata fields that it received.
#[derive(Clone, Copy)]
struct ExtensionReporter;

impl Agent for ExtensionReporter {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Failure> {
        let metadata = turn.metadata().map(|metadata| metadata.fields.len()).unwrap_or_default();
        match turn.text() {
            "reply" => return Ok(End::reply("hi")),
            "secret" => out.artifact("secret").text("secret").await?,
            _ => {
                out.working().await?;
                out.artifact("seen").text(format!("{:?} {metadata}", turn.extensions())).await?;
            }
        }
        Ok(End::Completed(None))
    }
}

fn extended_server(required: bool) -> Server {
    let other = AgentExtension { uri: OTHER.into(), ..AgentExtension::default() };
    Server::new(ExtensionReporter).extension(Notes { required }).extension(other)
}

fn request_with<T>(extensions: &[&str], message: T) -> Request<T> {
    let extensions = extensions.iter().map(|uri| (*uri).to_owned()).collect();
    Call { extensions, ..Call::default() }.request(message)
}

fn active_extensions<T>(response: &tonic::Response<T>) -> Option<&str> {
    response.metadata().get("a2a-extensions").map(|value| value.to_str().unwrap())
}

fn note_of(metadata: Option<&Struct>) -> Option<&str> {
    let note = metadata?.fields.get("note")?.kind.as_ref()?;
    let Kind::StringValue(note) = note else { panic!("{note:?}") };
    Some(note)
}

async fn supported_extensions_are_activated_on_request(binding: Binding) {
    let agent = binding(extended_server(false)).await;
    for (requested, seen, note) in [
        (&[][..], "[] 0", None),
        (&["urn:unheard-of"], "[] 0", None),
        (&[OTHER], r#"["https://example.com/ext/other/v1"] 0"#, None),
        (&["urn:unheard-of", NOTES], r#"["https://example.com/ext/notes/v1"] 1"#, Some("1 artifacts")),
    ] {
        let answer = agent.send_message(request_with(requested, text("", "hi"))).await.unwrap();
        let active: Vec<_> = requested.iter().filter(|uri| uri.starts_with("https")).copied().collect();
        assert_eq!(active_extensions(&answer).unwrap_or_default(), active.join(", "));
        let Some(Answer::Task(task)) = answer.into_inner().payload else { panic!("no task") };
        assert_eq!((output(&task).as_str(), note_of(task.metadata.as_ref())), (seen, note), "{requested:?}");
    }
    // Both extensions, in the client's order, for every method.
    let both = [OTHER, NOTES];
    let names = Some(format!("{OTHER}, {NOTES}"));
    let reply = agent.send_message(request_with(&both, text("", "reply"))).await.unwrap();
    assert_eq!(active_extensions(&reply).map(str::to_owned), names);
    let Some(Answer::Message(message)) = reply.into_inner().payload else { panic!("no message") };
    assert_eq!(note_of(message.metadata.as_ref()), Some("message"));
    let page = agent.list_tasks(request_with(&both, ListTasksRequest::default())).await.unwrap();
    assert_eq!((active_extensions(&page).map(str::to_owned), page.get_ref().tasks.len()), (names.clone(), 4));
    assert!(page.get_ref().tasks.iter().all(|task| note_of(task.metadata.as_ref()) == Some("0 artifacts")));
    let id = page.get_ref().tasks[0].id.clone();
    let task =
        agent.get_task(request_with(&both, GetTaskRequest { id: id.clone(), ..Default::default() })).await.unwrap();
    assert_eq!(
        (active_extensions(&task).map(str::to_owned), note_of(task.get_ref().task().unwrap().metadata.as_ref())),
        (names, Some("1 artifacts"))
    );
    assert_eq!(get(&*agent, &id).await.unwrap().metadata, None, "clients without the extension get no notes");
}

each_binding!(supported_extensions_are_activated_on_request, not_in_v03_proto = "its proto file has no lists of tasks");

async fn extension_sees_each_event(binding: Binding) {
    let agent = binding(extended_server(false)).await;
    let events = agent.send_streaming_message(request_with(&[NOTES], text("", "hi"))).await.unwrap();
    assert_eq!(active_extensions(&events), Some(NOTES));
    let events = remaining(events.into_inner()).await;
    let notes = events.iter().map(|event| match event.payload().unwrap() {
        Payload::Task(task) => note_of(task.metadata.as_ref()),
        Payload::Message(message) => note_of(message.metadata.as_ref()),
        Payload::StatusUpdate(update) => note_of(update.metadata.as_ref()),
        Payload::ArtifactUpdate(update) => note_of(update.metadata.as_ref()),
    });
    assert_eq!(notes.collect::<Vec<_>>(), [Some("0 artifacts"), None, Some("artifact"), None]);
    // An event that the extension rejects ends the stream, but not the task.
    let mut events =
        agent.send_streaming_message(request_with(&[NOTES], text("", "secret"))).await.unwrap().into_inner();
    let id = task_of(&next(&mut events).await).id.clone();
    let error: Error = events.next().await.unwrap().err().unwrap().into();
    assert_error_kind(&error, ErrorKind::PermissionDenied);
    assert!(events.next().await.is_none());
    while get(&*agent, &id).await.unwrap().state() != TaskState::Completed {
        tokio::task::yield_now().await;
    }
    // The agent does not receive rejected messages.
    let error: Error = agent.send_message(request_with(&[NOTES], text("", "hi!"))).await.err().unwrap().into();
    assert_eq!(fields(&error), ["message.parts"]);
    assert_eq!(send(&*agent, text("", "hi!")).await.state(), TaskState::Completed);
}

each_binding!(extension_sees_each_event);

async fn required_extension_must_be_requested(binding: Binding) {
    let agent = binding(extended_server(true)).await;
    for requested in [&[][..], &[OTHER], &["https://example.com/ext/notes/v2"]] {
        let error: Error = agent.send_message(request_with(requested, text("", "hi"))).await.err().unwrap().into();
        assert_error_kind(&error, ErrorKind::ExtensionSupportRequired);
        assert!(error.to_string().contains(NOTES), "{error}");
        assert_eq!(error.metadata("extension"), Some(NOTES));
        let error: Error =
            agent.send_streaming_message(request_with(requested, text("", "hi"))).await.err().unwrap().into();
        assert_error_kind(&error, ErrorKind::ExtensionSupportRequired);
        let get = GetTaskRequest { id: "t".into(), ..Default::default() };
        let error: Error = agent.get_task(request_with(requested, get)).await.err().unwrap().into();
        assert_error_kind(&error, ErrorKind::ExtensionSupportRequired);
    }
    assert!(agent.send_message(request_with(&[NOTES], text("", "hi"))).await.is_ok());
}

each_binding!(
    required_extension_must_be_requested,
    not_at_0_3 = "0.3 has no error for a required extension, so it is not enforced"
);

async fn strict_server_requires_the_extension_of_every_version(binding: Binding) {
    let agent = binding(extended_server(true).strict_extensions(true)).await;
    for requested in [&[][..], &[OTHER]] {
        let error: Error = agent.send_message(request_with(requested, text("", "hi"))).await.err().unwrap().into();
        assert!(error.to_string().contains(&format!("name {NOTES} in the header ")), "{error}");
        let streamed: Error =
            agent.send_streaming_message(request_with(requested, text("", "hi"))).await.err().unwrap().into();
        assert_eq!((streamed.kind(), streamed.to_string()), (error.kind(), error.to_string()));
        assert_eq!(error.wire().json_rpc, if error.to_string().contains(" X-A2A") { -32004 } else { -32008 });
    }
    assert!(agent.send_message(request_with(&[NOTES], text("", "hi"))).await.is_ok());
}

each_binding!(strict_server_requires_the_extension_of_every_version);

#[tokio::test]
async fn card_lists_the_extensions() {
    let url = serve(extended_server(true)).await;
    let card =
        crate::bindings::fetch(format!("{url}/.well-known/agent-card.json")).await.unwrap().bytes().await.unwrap();
    let card: serde_json::Value = serde_json::from_slice(&card).unwrap();
    let notes = serde_json::json!({
        "uri": NOTES, "description": "Notes on everything", "required": true, "params": {"note": "short"}
    });
    assert_eq!(card["capabilities"]["extensions"][0], notes);
    assert_eq!(card["capabilities"]["extensions"][1]["uri"], OTHER);
}
