//! Extension `secret`: marked parts reach the agent once, and are redacted everywhere else.

use std::{fs, sync::Arc};

use a2a_service::{
    A2aService,
    agent::{self, Agent, End},
    call::Call,
    error::{Error, ErrorKind},
    extension::secret,
    pb::v1::{Message, Part, SendMessageRequest, TaskState},
    server::Server,
    store::sqlite::{Options, Sqlite},
};

use crate::{
    bindings, program,
    scenarios::{get, output, remaining, send, stream, text},
};

const SECRET: &str = "correct-horse-battery";

/// Tells whether the messages of its turn, or the rest of the task, have the secret.
fn vault() -> impl Agent {
    agent::from_fn(|turn, out| async move {
        let is_seen = turn.messages().any(|message| message.text().contains(SECRET));
        let rest = format!("{:?} {:?}", turn.task(), turn.history().collect::<Vec<_>>());
        let in_text = turn.text().contains(SECRET);
        out.artifact("seen").text(format!("[{is_seen} {in_text} {}]", rest.contains(SECRET))).await?;
        Ok(if turn.text().starts_with("end") { End::Completed(None) } else { End::input_required("more?") })
    })
}

fn with_secret(task: &str, words: &str) -> SendMessageRequest {
    let mut sent = text(task, words);
    sent.message = sent.message.map(|message| message.and(secret::mark(Part::text(SECRET))));
    sent
}

fn redacted(message: &Message) -> bool {
    message.parts.iter().any(|part| part.as_text() == Some(secret::REDACTED) && part.metadata.is_some())
}

/// Sends a secret in the first message, in none, and in a streamed follow-up.
async fn agent_gets_secrets_once(agent: Arc<dyn A2aService>) {
    let task = send(&*agent, with_secret("", "begin")).await;
    assert_eq!((task.state(), output(&task)), (TaskState::InputRequired, "[true true false]".to_owned()));
    assert!(redacted(&task.history[0]), "{task:?}");
    let later = send(&*agent, text(&task.id, "again")).await;
    assert!(output(&later).ends_with("[false false false]"), "{later:?}");
    let events = remaining(stream(&*agent, with_secret(&task.id, "end")).await).await;
    let ended = get(&*agent, &task.id).await.unwrap();
    assert!(output(&ended).ends_with("[true true false]"), "{ended:?}");
    assert_eq!(ended.history.iter().filter(|message| redacted(message)).count(), 2, "{ended:?}");
    let visible = format!("{task:?} {later:?} {events:?} {ended:?}");
    assert!(!visible.contains(SECRET), "{visible}");
}

#[tokio::test]
async fn secret_parts_reach_the_agent_once_over_every_binding() {
    let server = || Server::new(vault()).secret_parts(true);
    agent_gets_secrets_once(bindings::in_process(server()).await).await;
    agent_gets_secrets_once(bindings::in_file(server()).await).await;
    agent_gets_secrets_once(bindings::grpc(server()).await).await;
    agent_gets_secrets_once(bindings::rest(server()).await).await;
    agent_gets_secrets_once(bindings::json_rpc(server()).await).await;
    agent_gets_secrets_once(bindings::v03_grpc(server()).await).await;
    agent_gets_secrets_once(bindings::v03_rest(server()).await).await;
    agent_gets_secrets_once(bindings::v03_rpc(server()).await).await;
}

#[tokio::test]
async fn store_has_no_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&directory.path().join("tasks.db"), Options::default()).unwrap();
    let agent = Server::new(vault()).store(Arc::new(store)).into_service();
    agent_gets_secrets_once(Arc::clone(&agent)).await;
    drop(agent);
    let has = |needle: &str| {
        fs::read_dir(directory.path()).unwrap().any(|entry| {
            let content = fs::read(entry.unwrap().path()).unwrap();
            content.windows(needle.len()).any(|window| window == needle.as_bytes())
        })
    };
    assert!(has(secret::REDACTED), "the messages are stored");
    assert!(!has(SECRET));
    let path = directory.path().join("tasks.db");
    let store = format!("sqlite:{}", path.display());
    let export = ["admin", "--store", &store, "export"];
    let exported = program::output(program::a2a(&export)).await;
    let text = String::from_utf8(exported.stdout).unwrap();
    assert!(exported.status.success() && text.lines().count() > 1, "{text}");
    assert!(!text.contains(SECRET), "{text}");
}

#[tokio::test]
async fn repeated_send_with_a_secret_is_recognised() {
    let agent = Server::new(vault()).into_service();
    let keyed = |sent: SendMessageRequest| {
        let call = Call { idempotency_key: Some("k".to_owned()), ..Call::default() };
        let agent = Arc::clone(&agent);
        async move { agent.send_message(call.request(sent)).await.map_err(Error::from) }
    };
    let sent = with_secret("", "begin");
    let first = keyed(sent.clone()).await.unwrap().into_inner();
    assert_eq!(keyed(sent.clone()).await.unwrap().into_inner(), first);
    let mut other = sent;
    other.message.as_mut().unwrap().parts[1] = secret::mark(Part::text("another"));
    assert_eq!(keyed(other).await.unwrap_err().kind(), ErrorKind::IdempotencyConflict);
}

#[tokio::test]
async fn card_declares_the_extension_when_it_is_offered() {
    for offered in [true, false] {
        let url = bindings::serve(Server::new(vault()).secret_parts(offered)).await;
        let card = bindings::fetch(format!("{url}/.well-known/agent-card.json")).await.unwrap().text().await.unwrap();
        assert_eq!(card.contains(secret::URI), offered, "{card}");
    }
}
