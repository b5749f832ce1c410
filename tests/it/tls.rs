//! Clients with TLS: root certificates, and credentials that are withheld from untrusted servers.
//!
//! The certificates in `tls` are for `127.0.0.1`; their keys are public.

use std::time::Duration;

use a2a_service::{
    auth::{Bearer, Token},
    client::{Client, Retry},
    error::{Error, ErrorKind},
    pb::v1::TaskState,
};
use tokio::net::TcpListener;
use tonic::{
    service::Routes,
    transport::{Identity, ServerTlsConfig, server::TcpIncoming},
};

mod listener;

use crate::{
    bindings::server,
    scenarios::{remaining, request, send, state, stream, text},
};

const ROOT: &[u8] = include_bytes!("tls/root.pem");
const CERTIFICATE: &[u8] = include_bytes!("tls/server.pem");
const KEY: &[u8] = include_bytes!("tls/server.key");

/// Serves behind TLS, as behind a reverse proxy.
async fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let routes = Routes::from(server().authenticator(Bearer::new(Token::new("sesame").unwrap())).router());
    let identity = ServerTlsConfig::new().identity(Identity::from_pem(CERTIFICATE, KEY));
    let mut tls = tonic::transport::Server::builder().accept_http1(true).tls_config(identity).unwrap();
    tokio::spawn(tls.add_routes(routes).serve_with_incoming(TcpIncoming::from(listener)));
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_verify_the_server_certificate() {
    let url = serve().await;
    let mut retry = Retry::default();
    (retry.attempts, retry.first) = (1, Duration::from_millis(1));
    let without_roots = Client::builder().bearer("sesame").unwrap().retry(retry);
    let client = without_roots.clone().roots(ROOT).unwrap();
    let rpc = format!("{url}/rpc");
    for agent in [client.rest(&url), client.json_rpc(&rpc), client.grpc(&url)] {
        let agent = agent.unwrap();
        assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
        let events = remaining(stream(&*agent, text("", "/stream 3 1")).await).await;
        assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
    }
    // Without the root certificate, the client sends nothing.
    for agent in [without_roots.rest(&url), without_roots.json_rpc(&rpc), without_roots.grpc(&url)] {
        let error = Error::from(agent.unwrap().send_message(request(text("", "hello"))).await.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.is_unsent(), "{error:?}");
    }
    for wrong in [&b""[..], b"-----BEGIN CERTIFICATE-----", KEY] {
        assert!(Client::builder().roots(wrong).is_err());
    }
}
