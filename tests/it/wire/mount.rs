//! A door in a program of somebody else, and the card.

use std::sync::Arc;

use a2a_service::{
    client,
    error::ErrorKind,
    pb::v1::GetTaskRequest,
    transport::{Body, HttpService, Settings, error_response, listener},
};
use axum::{Router, routing};
use bytes::Bytes;
use http::header;
use serde_json::{Value, json};
use tonic::Request;

use super::support::*;
use crate::bindings::program;

async fn task_of(
    agent: Result<Arc<dyn a2a_service::pb::v1::a2a_service_server::A2aService>, a2a_service::error::Error>,
) {
    let request = GetTaskRequest { id: "t".into(), ..Default::default() };
    assert_eq!(agent.unwrap().get_task(Request::new(request)).await.unwrap().into_inner().into_task().unwrap().id, "t");
}

#[tokio::test]
async fn beside_other_routes() {
    let door = HttpService::new(checked(&Arc::default()), settings());
    let router = Router::new()
        .route("/health", routing::get(async || "fine"))
        .nest_service("/agents/echo", door.clone())
        .nest("/agents/router", door.clone().into_router())
        .fallback_service(door);
    let url = program(router).await;
    assert_eq!(reqwest::get(format!("{url}/health")).await.unwrap().text().await.unwrap(), "fine");
    task_of(client::grpc(&url)).await;
    for base in [url.clone(), format!("{url}/agents/echo"), format!("{url}/agents/router")] {
        task_of(client::rest(&base)).await;
        task_of(client::json_rpc(&base)).await;
        task_of(client::json_rpc(&format!("{base}/rpc"))).await;
        let card = reqwest::get(format!("{base}/.well-known/agent-card.json")).await.unwrap();
        assert_eq!(card.text().await.unwrap(), CARD, "{base}");
    }
}

#[tokio::test]
async fn the_card() {
    let card = |it: &a2a_service::card::CardRequest<'_>| {
        assert_eq!(it.headers["x-test"], "1");
        format!("{} {:?}", it.path, it.query).into()
    };
    let server = Server::with(Settings::new(Arc::new(card)), listener::Settings::default()).await;
    let http = reqwest::Client::new();
    for path in ["/.well-known/agent-card.json", "/.well-known/agent.json"] {
        let url = format!("{}{path}?a=b", server.url);
        let card = http.get(&url).header("x-test", "1").send().await.unwrap();
        assert_eq!(card.headers()[header::CONTENT_TYPE], "application/json");
        let (length, text) = (card.headers()[header::CONTENT_LENGTH].clone(), card.text().await.unwrap());
        assert_eq!(text, format!("{path} Some(\"a=b\")"));
        let head = http.head(&url).header("x-test", "1").send().await.unwrap();
        assert_eq!((head.status().as_u16(), &head.headers()[header::CONTENT_LENGTH]), (200, &length));
        assert_eq!(head.text().await.unwrap(), "");
    }
    let reply = http.post(format!("{}/.well-known/agent-card.json", server.url)).send().await.unwrap();
    assert_eq!((reply.status().as_u16(), &reply.headers()[header::ALLOW]), (405, &"GET, HEAD".parse().unwrap()));
}

/// A mounted door knows where it is by the request, in either version of HTTP.
#[tokio::test]
async fn the_address_in_the_card() {
    let settings = Settings::new(Arc::new(|it| it.url().unwrap_or_default().into()));
    let door = HttpService::new(checked(&Arc::default()), settings);
    let url = program(Router::new().nest_service("/agents/echo", door.clone()).fallback_service(door)).await;
    let http2 = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    for http in [reqwest::Client::new(), http2] {
        for base in [url.clone(), format!("{url}/agents/echo")] {
            let card = http.get(format!("{base}/.well-known/agent-card.json")).send().await.unwrap();
            assert_eq!(card.text().await.unwrap(), base);
        }
    }
}

/// What a layer before the door refuses, it refuses in the terms of the caller.
#[tokio::test]
async fn refusals() {
    let error = || ErrorKind::Unauthenticated.error().challenge("Bearer");
    let layer = move |request: axum::extract::Request| async move {
        let (parts, _) = request.into_parts();
        error_response(&parts, error())
    };
    let url = program(Router::new().fallback(layer)).await;
    let http = reqwest::Client::new();
    for (path, reason) in [("/tasks/t", "/error/details/0/reason"), ("/rpc", "/error/data/0/reason")] {
        let reply = http.post(format!("{url}{path}")).header("a2a-version", "1.0").body("{}").send().await.unwrap();
        assert_eq!(
            (reply.status().as_u16(), &reply.headers()[header::WWW_AUTHENTICATE]),
            (401, &"Bearer".parse().unwrap())
        );
        let reply: Value = json(reply).await;
        assert_eq!(reply.pointer(reason), Some(&json!("UNAUTHENTICATED")), "{reply}");
    }
    let request = GetTaskRequest { id: "t".into(), ..Default::default() };
    let status = client::grpc(&url).unwrap().get_task(Request::new(request)).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unauthenticated);
    assert_eq!(status.metadata().get("www-authenticate").unwrap(), "Bearer");
}

#[test]
fn an_answer_of_one_piece_has_a_length() {
    let body = Body::from(Bytes::from_static(b"abc"));
    assert_eq!(http_body::Body::size_hint(&body).exact(), Some(3));
    assert!(http_body::Body::is_end_stream(&Body::default()));
}
