//! Who is let in, over each binding, and whose tasks they then see.

use a2a_service::{
    auth::{Authenticator, Bearer, Principal, Token},
    card::Card,
    client::{self, Client},
    error::{Error, ErrorKind},
    pb::v1::{ListTasksRequest, TaskState, a2a_service_client::A2aServiceClient},
    server::Server,
};
use http::HeaderMap;
use reqwest::Response;
use serde_json::{Value, json};
use tonic::{Code, Request, Status, metadata::MetadataMap, transport::Endpoint};

use crate::{
    scenarios::{request, send, text},
    ways::{self, Actor},
};

fn guarded() -> Server<Actor> {
    ways::server().authenticator(Bearer::new(Token::new("sesame").unwrap()))
}

async fn json(response: Response) -> Value {
    serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
}

/// Asks for the tasks over HTTP+JSON, and over JSON-RPC.
async fn list(url: &str, authorization: Option<&str>) -> [Response; 2] {
    let client = reqwest::Client::new();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}).to_string();
    let rpc = client.post(format!("{url}/rpc")).header("content-type", "application/json").body(body);
    let requests = [client.get(format!("{url}/tasks")), rpc].map(|it| match authorization {
        Some(value) => it.header("authorization", value),
        None => it,
    });
    let [rest, rpc] = requests.map(reqwest::RequestBuilder::send);
    [rest.await.unwrap(), rpc.await.unwrap()]
}

/// Asks for them over gRPC.
async fn list_grpc(url: &str, authorization: Option<&str>) -> Result<(), Status> {
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy();
    let mut request = Request::new(ListTasksRequest::default());
    if let Some(it) = authorization {
        request.metadata_mut().insert("authorization", it.parse().unwrap());
    }
    A2aServiceClient::new(channel).list_tasks(request).await.map(drop)
}

#[tokio::test]
async fn without_the_token_nobody_gets_in() {
    let url = ways::serve(guarded()).await;
    for (brought, challenge) in [
        (None, r#"Bearer realm="a2a""#),
        (Some("Basic sesame"), r#"Bearer realm="a2a""#),
        (Some("Bearer sesam"), r#"Bearer realm="a2a", error="invalid_token""#),
        (Some("Bearer "), r#"Bearer realm="a2a""#),
        (Some("Bearer sesame2"), r#"Bearer realm="a2a", error="invalid_token""#),
    ] {
        let [rest, rpc] = list(&url, brought).await;
        for it in [&rest, &rpc] {
            assert_eq!(it.status(), 401, "{brought:?}");
            assert_eq!(it.headers()["www-authenticate"], challenge, "{brought:?}");
        }
        assert_eq!(json(rest).await["error"]["status"], "UNAUTHENTICATED");
        assert_eq!(json(rpc).await["error"]["code"], ErrorKind::Unauthenticated.wire().json_rpc);
        let status = list_grpc(&url, brought).await.unwrap_err();
        let said = |it: &MetadataMap| it.get("www-authenticate").unwrap().to_str().unwrap().to_owned();
        assert_eq!((status.code(), said(status.metadata())), (Code::Unauthenticated, challenge.to_owned()));
    }
}

#[tokio::test]
async fn who_brings_the_token_gets_in() {
    let url = ways::serve(guarded()).await;
    for brought in ["Bearer sesame", "bearer sesame"] {
        for it in list(&url, Some(brought)).await {
            assert_eq!(it.status(), 200);
            assert!(json(it).await.get("error").is_none());
        }
        list_grpc(&url, Some(brought)).await.unwrap();
    }
}

#[tokio::test]
async fn the_card_is_for_everybody_and_says_what_to_bring() {
    let url = ways::serve(guarded()).await;
    for path in ["/.well-known/agent-card.json", "/.well-known/agent.json"] {
        let response = reqwest::get(format!("{url}{path}")).await.unwrap();
        assert_eq!(response.status(), 200);
        let text = response.text().await.unwrap();
        assert!(!text.contains("sesame"));
        let card: Value = serde_json::from_str(&text).unwrap();
        // In the words of either generation.
        let scheme = json!({"httpAuthSecurityScheme": {"scheme": "bearer"}, "type": "http", "scheme": "bearer"});
        assert_eq!(card["securitySchemes"], json!({"bearer": scheme}));
        assert_eq!(card["securityRequirements"], json!([{"schemes": {"bearer": {}}}]));
        assert_eq!(card["security"], json!([{"bearer": []}]));
    }
    // As a tenant would be named.
    let inside = reqwest::get(format!("{url}/.well-known/tasks")).await.unwrap();
    assert_eq!(inside.status(), 401);

    let open = reqwest::get(format!("{}/.well-known/agent-card.json", ways::serve(ways::server()).await));
    let card = json(open.await.unwrap()).await;
    assert!(card.get("securitySchemes").is_none() && card.get("securityRequirements").is_none());
}

/// Believes who anybody says they are, in the header that a client of any binding can send.
pub(crate) struct Gullible;

#[tonic::async_trait]
impl Authenticator for Gullible {
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Principal, Error> {
        let name = headers.get("x-name").and_then(|it| it.to_str().ok());
        name.map(Principal::new).ok_or_else(|| ErrorKind::Unauthenticated.error().challenge("Name"))
    }

    fn describe(&self, card: Card) -> Card {
        card
    }
}

#[tokio::test]
async fn each_principal_has_tasks_of_their_own() {
    let url = ways::serve(ways::server().authenticator(Gullible)).await;
    let client = reqwest::Client::new();
    let message = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}});
    let request = client.post(format!("{url}/message:send")).header("content-type", "application/json");
    let sent = json(request.header("x-name", "ada").body(message.to_string()).send().await.unwrap()).await;
    let task = format!("{url}/tasks/{}", sent["task"]["id"].as_str().unwrap());
    for (name, status) in [("ada", 200), ("bob", 404)] {
        let seen = client.get(&task).header("x-name", name).send().await.unwrap();
        assert_eq!(seen.status(), status, "{name}");
    }
    assert_eq!(client.get(&task).send().await.unwrap().status(), 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_shown_to_the_agent_alone() {
    let url = ways::serve(guarded()).await;
    let client = Client::new().bearer("sesame").unwrap();
    for agent in [client.rest(&url), client.json_rpc(&format!("{url}/rpc")), client.grpc(&url)] {
        let task = send(&*agent.unwrap(), text("", "hello")).await;
        assert_eq!(task.state(), TaskState::Completed);
    }
    for agent in [client::rest(&url), client::json_rpc(&format!("{url}/rpc")), client::grpc(&url)] {
        let status = agent.unwrap().send_message(request(text("", "hello"))).await.unwrap_err();
        assert_eq!(Error::from(status).kind(), ErrorKind::Unauthenticated);
    }
    assert!(!format!("{client:?}").contains("sesame"));
    for wrong in ["", " ", "two\nlines"] {
        let error = Client::new().bearer(wrong).unwrap_err();
        assert!(!error.to_string().contains("lines"), "{error}");
    }
}
