//! `HttpService` nested in an axum router, the agent card response, and errors of a layer around the service.

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
use crate::conformance::{Exemption, allow_undocumented};

async fn get_task_of(
    agent: Result<Arc<dyn a2a_service::pb::v1::a2a_service_server::A2aService>, a2a_service::error::Error>,
) {
    let request = GetTaskRequest { id: "t".into(), ..Default::default() };
    assert_eq!(agent.unwrap().get_task(Request::new(request)).await.unwrap().into_inner().into_task().unwrap().id, "t");
}

#[tokio::test]
async fn service_can_be_nested_in_a_router() {
    let service = HttpService::new(checked(&Arc::default()), settings());
    let router = Router::new()
        .route("/health", routing::get(async || "fine"))
        .nest_service("/agents/echo", service.clone())
        .nest("/agents/router", service.clone().into_router())
        .fallback_service(service);
    let url = program(router).await;
    assert_eq!(crate::bindings::fetch(format!("{url}/health")).await.unwrap().text().await.unwrap(), "fine");
    get_task_of(client::grpc(&url)).await;
    for base in [url.clone(), format!("{url}/agents/echo"), format!("{url}/agents/router")] {
        get_task_of(client::rest(&base)).await;
        get_task_of(client::json_rpc(&base)).await;
        get_task_of(client::json_rpc(&format!("{base}/rpc"))).await;
        let card = crate::bindings::fetch(format!("{base}/.well-known/agent-card.json")).await.unwrap();
        assert_eq!(card.text().await.unwrap(), CARD, "{base}");
    }
}

#[tokio::test]
async fn card_is_served_at_both_paths() {
    allow_undocumented(Exemption::Parameters);
    allow_undocumented(Exemption::Responses);
    let card = |request: &a2a_service::card::RequestOrigin<'_>| {
        assert_eq!(request.headers["x-test"], "1");
        format!("{} {:?}", request.path, request.query).into()
    };
    let server = Server::with(Settings::new(Arc::new(card)), listener::ListenerSettings::default()).await;
    let http = crate::bindings::http();
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

/// The base path of a nested service is taken from the request, in HTTP/1.1 and HTTP/2.
#[tokio::test]
async fn card_has_the_base_path_of_the_nested_service() {
    let settings = Settings::new(Arc::new(|request| request.url().unwrap_or_default().into()));
    let service = HttpService::new(checked(&Arc::default()), settings);
    let url = program(Router::new().nest_service("/agents/echo", service.clone()).fallback_service(service)).await;
    let http2 = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    for http in [crate::bindings::http(), http2] {
        for base in [url.clone(), format!("{url}/agents/echo")] {
            let card = http.get(format!("{base}/.well-known/agent-card.json")).send().await.unwrap();
            assert_eq!(card.text().await.unwrap(), base);
        }
    }
}

/// A layer around the service rejects requests in the form of the binding.
#[tokio::test]
async fn layer_rejects_in_the_form_of_the_binding() {
    let error = || ErrorKind::Unauthenticated.error().challenge("Bearer");
    let layer = move |request: axum::extract::Request| async move {
        let (parts, _) = request.into_parts();
        error_response(&parts, error())
    };
    let url = program(Router::new().fallback(layer)).await;
    let http = crate::bindings::http();
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
fn body_of_one_piece_has_an_exact_size() {
    let body = Body::from(Bytes::from_static(b"abc"));
    assert_eq!(http_body::Body::size_hint(&body).exact(), Some(3));
    assert!(http_body::Body::is_end_stream(&Body::default()));
}
