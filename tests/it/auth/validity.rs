//! End of streams and waiting sends whose credentials become invalid, over each binding and version.

use std::time::{Duration, SystemTime};

use a2a_service::{
    auth::{Jwt, TokenFile, TokenSource, revoke_token, rotate_token},
    call::{Binding, Call},
    client::{EventStream, Retry, StreamEvent},
    pb::v1::send_message_response::Payload,
    protocol::Version,
};
use tokio_stream::StreamExt as _;

use super::{
    schemes::{Issuer, Tokens, serve_with},
    *,
};

/// Maximum time until a stream or a send ends after its credentials have become invalid.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Reads a stream to its end, and returns its error.
async fn error_of(mut events: EventStream) -> (ErrorKind, String) {
    loop {
        if let Err(error) = events.next().await.expect("the stream ends with an error") {
            return (error.kind(), error.to_string());
        }
    }
}

/// A rotation ends the streams of the old secret when its grace period ends, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_an_old_secret_end_with_its_grace_period() {
    let tokens = Tokens::new();
    let secret = tokens.add_with("ada", TokenSource::Bearer, |_| ());
    let url = serve_with(TokenFile::open(&tokens.path).unwrap()).await;
    let agent = Client::builder().retry(Retry::never()).bearer(&secret).unwrap().connect(&url).await.unwrap();
    let mut events = agent.stream("/slow 60").await.unwrap();
    let Some(Ok(StreamEvent::Task(_))) = events.next().await else { panic!("no task") };
    let grace = Duration::from_secs(6);
    let end = SystemTime::now() + grace;
    rotate_token(&tokens.path, "ada", end.try_into().unwrap()).unwrap();
    let (kind, text) = tokio::time::timeout(TIMEOUT, error_of(events)).await.unwrap();
    assert!(kind == ErrorKind::Unauthenticated && SystemTime::now() >= end, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_waiting_sends_end_when_their_token_is_revoked() {
    let tokens = Tokens::new();
    let token = |name: &str| tokens.add_with(name, TokenSource::Bearer, |token| token.owner = Some("ada".to_owned()));
    let (old, new) = (token("old"), token("new"));
    let url = serve_with(TokenFile::open(&tokens.path).unwrap()).await;
    let (mut running, mut sends) = (Vec::new(), Vec::new());
    for version in [Version::V1_0, Version::V0_3] {
        for binding in [Binding::Grpc, Binding::Rest, Binding::JsonRpc] {
            let client = |token: &str| {
                Client::builder().retry(Retry::never()).version(version).binding(binding).bearer(token).unwrap()
            };
            let agent = client(&old).connect(&url).await.unwrap();
            let mut events = agent.stream("/slow 60").await.unwrap();
            let Some(Ok(StreamEvent::Task(task))) = events.next().await else { panic!("no task") };
            sends.push(tokio::spawn(async move { agent.send("/slow 60").await }));
            running.push((events, task.id, client(&new).connect(&url).await.unwrap()));
        }
    }
    let reader = running[0].2.clone();
    let begun = async {
        while reader.list(ListTasksRequest::default()).collect::<Vec<_>>().await.len() < 12 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, begun).await.unwrap();
    revoke_token(&tokens.path, "old").unwrap();
    let ended = async {
        for (events, id, other) in running {
            let (kind, text) = error_of(events).await;
            assert_eq!(kind, ErrorKind::Unauthenticated);
            assert!(text.contains("were revoked"), "{text}");
            // The work goes on, and another token can follow it.
            let mut resumed = other.subscribe(&id).await.unwrap();
            assert_eq!(other.get(&id).await.unwrap().state(), TaskState::Working);
            let canceled = tokio::spawn(async move {
                while let Some(event) = resumed.next().await {
                    event.unwrap();
                }
            });
            assert_eq!(other.cancel(&id).await.unwrap().state(), TaskState::Canceled);
            canceled.await.unwrap();
        }
        for send in sends {
            assert_eq!(send.await.unwrap().unwrap_err().kind(), ErrorKind::Unauthenticated);
        }
    };
    tokio::time::timeout(TIMEOUT, ended).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_when_their_token_expires_and_waiting_sends_return_the_task() {
    let issuer = Issuer::start().await;
    let url = serve_with(Jwt::new(issuer.options()).unwrap()).await;
    // The clocks of issuer and server may differ by a minute.
    let token = issuer.token(&json!({ "exp": -54, "scope": "tasks:read tasks:write" }));
    let client = || Client::builder().retry(Retry::never()).bearer(&token).unwrap();
    let agents = [client().grpc(&url), client().rest(&url), client().json_rpc(&format!("{url}/rpc"))];
    let ends = agents.map(|agent| async {
        let agent = Client::from_service(agent.unwrap());
        let events = agent.stream("/slow 60").await.unwrap();
        let sent = agent.service().send_message(Call::default().request("/slow 60".into())).await.unwrap();
        let Some(Payload::Task(task)) = sent.into_inner().payload else { panic!("no task") };
        assert_eq!(task.state(), TaskState::Working);
        let (kind, text) = error_of(events).await;
        assert_eq!(kind, ErrorKind::Unauthenticated);
        assert!(text.contains("have expired"), "{text}");
    });
    tokio::time::timeout(TIMEOUT, futures::future::join_all(ends)).await.unwrap();
}
