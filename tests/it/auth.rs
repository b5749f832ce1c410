//! Authentication: bearer tokens over each binding, challenges, and tasks per principal.

use std::time::Duration;

use a2a_service::{
    auth::{AuthRequest, Authenticator, Bearer, Principal, Token},
    client::{self, Client},
    error::{Error, ErrorKind},
    pb::v1::{AgentCard, ListTasksRequest, TaskState, a2a_service_client::A2aServiceClient},
    server::Server,
    service::Limits,
};
use reqwest::{Response, header::HeaderValue};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tonic::{Code, Request, Status, metadata::MetadataMap, transport::Endpoint};

use crate::{
    bindings::{self},
    scenarios::{request, send, text},
};

#[cfg(feature = "auth")]
mod schemes;
#[cfg(feature = "auth")]
mod validity;

fn server_with_token() -> Server {
    bindings::server().authenticator(Bearer::new(Token::new("sesame").unwrap()))
}

async fn json(response: Response) -> Value {
    serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
}

/// Lists tasks over HTTP+JSON and over JSON-RPC.
async fn list(url: &str, authorization: Option<&str>) -> [Response; 2] {
    let client = bindings::http();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}).to_string();
    let rpc = client.post(format!("{url}/rpc")).header("content-type", "application/json").body(body);
    let requests = [client.get(format!("{url}/tasks")), rpc].map(|request| match authorization {
        Some(value) => request.header("authorization", value),
        None => request,
    });
    let [rest, rpc] = requests.map(reqwest::RequestBuilder::send);
    [rest.await.unwrap(), rpc.await.unwrap()]
}

/// Lists tasks over gRPC.
async fn list_grpc(url: &str, authorization: Option<&str>) -> Result<(), Status> {
    let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy();
    let mut request = Request::new(ListTasksRequest::default());
    if let Some(value) = authorization {
        request.metadata_mut().insert("authorization", value.parse().unwrap());
    }
    A2aServiceClient::new(channel).list_tasks(request).await.map(drop)
}

#[tokio::test]
async fn requests_without_the_token_are_rejected() {
    let url = bindings::serve(server_with_token()).await;
    for (authorization, challenge) in [
        (None, r#"Bearer realm="a2a""#),
        (Some("Basic sesame"), r#"Bearer realm="a2a""#),
        (Some("Bearer sesam"), r#"Bearer realm="a2a", error="invalid_token""#),
        (Some("Bearer "), r#"Bearer realm="a2a""#),
        (Some("Bearer sesame2"), r#"Bearer realm="a2a", error="invalid_token""#),
    ] {
        let [rest, rpc] = list(&url, authorization).await;
        for response in [&rest, &rpc] {
            assert_eq!(response.status(), 401, "{authorization:?}");
            assert_eq!(response.headers()["www-authenticate"], challenge, "{authorization:?}");
        }
        assert_eq!(json(rest).await["error"]["status"], "UNAUTHENTICATED");
        assert_eq!(json(rpc).await["error"]["code"], ErrorKind::Unauthenticated.wire().json_rpc);
        let status = list_grpc(&url, authorization).await.unwrap_err();
        let challenge_in =
            |metadata: &MetadataMap| metadata.get("www-authenticate").unwrap().to_str().unwrap().to_owned();
        assert_eq!((status.code(), challenge_in(status.metadata())), (Code::Unauthenticated, challenge.to_owned()));
    }
}

/// A proxy may check another header than the server.
#[tokio::test]
async fn two_authorization_headers_are_rejected() {
    let url = bindings::serve(server_with_token()).await;
    for (path, body) in [("/message:send", "{}"), ("/rpc", r#"{"jsonrpc":"2.0","id":1,"method":"ListTasks"}"#)] {
        for pair in
            [["Bearer sesame", "Bearer other"], ["Basic x", "Bearer sesame"], ["Bearer sesame", "Bearer sesame"]]
        {
            let request = bindings::http().post(format!("{url}{path}")).header("content-type", "application/json");
            let request = pair.iter().fold(request, |request, value| request.header("authorization", *value));
            let response = request.body(body).send().await.unwrap();
            assert_eq!(response.status(), 400, "{path} {pair:?}");
            let text = response.text().await.unwrap();
            assert!(text.contains("Authorization: given more than once"), "{text}");
        }
    }
}

#[tokio::test]
async fn requests_with_the_token_are_accepted() {
    let url = bindings::serve(server_with_token()).await;
    for authorization in ["Bearer sesame", "bearer sesame"] {
        for response in list(&url, Some(authorization)).await {
            assert_eq!(response.status(), 200);
            assert!(json(response).await.get("error").is_none());
        }
        list_grpc(&url, Some(authorization)).await.unwrap();
    }
}

/// Repeats a request until it is rejected. Two within a second exceed the limit of the tests.
async fn until_rejected<T>(mut request: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..100 {
        if let Some(rejected) = request().await {
            return rejected;
        }
    }
    panic!("no request was rejected");
}

/// Asserts that requests over each binding are rejected at this limit of one per second.
async fn assert_one_per_second(server: Server, limit: &str) {
    let url = bindings::serve(server).await;
    let authorization = Some("Bearer sesame");
    for (binding, name) in ["HTTP+JSON", "JSON-RPC"].into_iter().enumerate() {
        let rejected = until_rejected(async || {
            let mut responses: Vec<_> = list(&url, authorization).await.into();
            let response = responses.swap_remove(binding);
            let status = response.status().as_u16();
            let retry_after = response.headers().get("retry-after").cloned();
            let text = response.text().await.unwrap();
            text.contains("error").then_some((status, retry_after, text))
        });
        let (status, retry_after, text) = rejected.await;
        assert!(text.contains(limit), "{name}: {text}");
        assert_eq!(retry_after, Some(HeaderValue::from_static("1")), "{name}");
        assert!(status == 429 || name == "JSON-RPC" && status == 200, "{name}: {status}");
    }
    let status = until_rejected(async || list_grpc(&url, authorization).await.err()).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains(limit), "{status}");
}

#[tokio::test]
async fn calls_of_an_owner_per_second_are_limited() {
    let mut limits = Limits::default();
    limits.call_rate_per_owner = 1;
    assert_one_per_second(server_with_token().limits(limits), "limits.call_rate_per_owner").await;
}

#[tokio::test]
async fn requests_of_an_address_per_second_are_limited() {
    assert_one_per_second(server_with_token().request_rate_per_peer(1), "limits.request_rate_per_peer").await;
}

#[tokio::test]
async fn card_is_public_and_lists_the_security_scheme() {
    let url = bindings::serve(server_with_token()).await;
    for path in ["/.well-known/agent-card.json", "/.well-known/agent.json"] {
        let response = bindings::fetch(format!("{url}{path}")).await.unwrap();
        assert_eq!(response.status(), 200);
        let text = response.text().await.unwrap();
        assert!(!text.contains("sesame"));
        let card: Value = serde_json::from_str(&text).unwrap();
        // Contains the members of both protocol versions.
        let scheme = json!({"httpAuthSecurityScheme": {"scheme": "bearer"}, "type": "http", "scheme": "bearer"});
        assert_eq!(card["securitySchemes"], json!({"bearer": scheme}));
        assert_eq!(card["securityRequirements"], json!([{"schemes": {"bearer": {}}}]));
        assert_eq!(card["security"], json!([{"bearer": []}]));
    }
    // A tenant cannot be named like the prefix of the card.
    let inside = bindings::fetch(format!("{url}/.well-known/tasks")).await.unwrap();
    assert_eq!(inside.status(), 401);

    let open = bindings::fetch(format!("{}/.well-known/agent-card.json", bindings::serve(bindings::server()).await));
    let card = json(open.await.unwrap()).await;
    assert!(card.get("securitySchemes").is_none() && card.get("securityRequirements").is_none());
}

/// Authenticator that trusts the name in a request header, which clients of every binding can send.
pub(crate) struct TrustNameHeader;

#[tonic::async_trait]
impl Authenticator for TrustNameHeader {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let name = request.headers.get("x-name").and_then(|value| value.to_str().ok());
        name.map(|name| Some(Principal::new(name))).ok_or_else(|| ErrorKind::Unauthenticated.error().challenge("Name"))
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        card
    }
}

#[tokio::test]
async fn each_principal_sees_only_its_own_tasks() {
    let url = bindings::serve(bindings::server().authenticator(TrustNameHeader)).await;
    let client = bindings::http();
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
async fn client_sends_its_token_and_hides_it_in_debug_output() {
    let url = bindings::serve(server_with_token()).await;
    let client = Client::builder().bearer("sesame").unwrap();
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
        let error = Client::builder().bearer(wrong).unwrap_err();
        assert!(!error.to_string().contains("lines"), "{error}");
    }
}

/// Without that, HTTP/2 resets the stream while the client sends, and curl reports the reset instead of the response.
#[tokio::test]
async fn body_of_a_rejected_request_is_read_before_the_response() {
    let url = bindings::serve(server_with_token()).await;
    let io = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
    let (client, connection) = h2::client::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let mut rejected = || {
        let request = http::Request::post(format!("{url}/message:send")).header("content-type", "application/json");
        client.send_request(request.body(()).unwrap(), false).unwrap()
    };
    let (mut response, mut body) = rejected();
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut response).await.is_err());
    body.send_data("{}".into(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 401);
    // A body that does not arrive delays the response for a second.
    let (response, _body) = rejected();
    assert_eq!(tokio::time::timeout(Duration::from_secs(20), response).await.unwrap().unwrap().status(), 401);
}
