//! Negotiation of the protocol version: header, query parameter, gRPC metadata, or none.

use a2a_service::{
    call::Call,
    client,
    error::{Error, ErrorKind},
    pb::v1::GetTaskRequest,
    protocol::Version,
    transport::{Settings, listener},
};
use serde_json::{Value, json};
use tonic::{Request, Status};
use tonic_types::StatusExt as _;

use super::support::*;
use crate::conformance::{Exemption, allow_undocumented};

const GET: &str = r#"{"jsonrpc":"2.0","id":"a","method":"GetTask","params":{"id":"t"}}"#;

/// `ErrorInfo` of the REST and JSON-RPC responses to a version, or null.
async fn error_infos(url: &str, query: &str, headers: &[&str]) -> [Value; 2] {
    let http = crate::bindings::http();
    let with = |request: reqwest::RequestBuilder| {
        headers.iter().fold(request, |request, value| request.header("a2a-version", *value))
    };
    let reply = with(http.get(format!("{url}/tasks/t{query}"))).send().await.unwrap();
    let status = reply.status();
    let rest = json(reply).await;
    assert_eq!(status, if rest["error"].is_null() { 200 } else { 400 }, "{rest}");
    let reply = with(http.post(format!("{url}/rpc{query}"))).json_body(GET).send().await.unwrap();
    assert_eq!(reply.status(), 200);
    let rpc = json(reply).await;
    assert_eq!(rpc["id"], "a");
    if !rpc["error"].is_null() {
        assert_eq!((&rpc["error"]["code"], &rest["error"]["status"]), (&json!(-32009), &json!("FAILED_PRECONDITION")));
    }
    assert_eq!(rpc["error"]["message"], rest["error"]["message"]);
    [rest["error"]["details"][0].clone(), rpc["error"]["data"][0].clone()]
}

async fn get_over_grpc(url: &str, version: Option<&str>) -> Result<(), Status> {
    let channel = tonic::transport::Channel::from_shared(url.to_owned()).unwrap().connect_lazy();
    let mut agent = a2a_service::pb::v1::a2a_service_client::A2aServiceClient::new(channel);
    let mut request = Request::new(GetTaskRequest { id: "t".into(), ..GetTaskRequest::default() });
    if let Some(version) = version {
        request.metadata_mut().insert("a2a-version", version.parse().unwrap());
    }
    agent.get_task(request).await.map(|_| ())
}

#[tokio::test]
async fn version_1_0_is_accepted_however_it_is_stated() {
    allow_undocumented(Exemption::Parameters);
    let Server { url, .. } = &Server::start().await;
    for (query, headers) in [
        ("", &[][..]),
        ("", &[""]),
        ("", &["1.0"]),
        ("", &["1.0.3"]),
        ("", &["", " 1.0 "]),
        ("?A2A-Version=1.0", &[]),
        ("?a2a-version=1.0.0", &[""]),
        ("?x=y&A2A-Version=1%2E0", &[]),
        ("?A2A-Version=", &[]),
        // The header takes precedence over the query, which a proxy or a copied link may have set.
        ("?A2A-Version=0.3", &["1.0"]),
    ] {
        assert_eq!(error_infos(url, query, headers).await, [Value::Null, Value::Null], "{query} {headers:?}");
    }
    for version in [None, Some("1.0"), Some("1.0.3")] {
        get_over_grpc(url, version).await.unwrap();
    }
}

#[tokio::test]
async fn unsupported_version_is_rejected_with_the_supported_ones() {
    let server = Server::start().await;
    for version in ["0.3", "0.3.0", "0.2", "1.1", "2.0", "9.9", "99.0", "1", "one", "1.0, 1.0"] {
        let info = json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "VERSION_NOT_SUPPORTED",
            "domain": "a2a-protocol.org",
            "metadata": {"requestedVersion": version, "supportedVersions": "1.0, 0.3"},
        });
        assert_eq!(error_infos(&server.url, "", &[version]).await, [info.clone(), info.clone()], "{version}");
        let query = format!("?A2A-Version={version}");
        assert_eq!(error_infos(&server.url, &query, &[]).await, [info.clone(), info], "{query}");
        let error = get_over_grpc(&server.url, Some(version)).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::FailedPrecondition);
        let details = error.get_error_details();
        let info = details.error_info().unwrap();
        assert_eq!(
            (info.reason.as_str(), info.metadata["supportedVersions"].as_str()),
            ("VERSION_NOT_SUPPORTED", "1.0, 0.3")
        );
        assert!(error.message().contains(version), "{error}");
        assert!(error.message().ends_with("this server supports 1.0, 0.3"), "{error}");
        let is_served = version.starts_with("0.3");
        assert_eq!(error.message().contains("the request has the form of 1.0"), is_served, "{error}");
    }
    assert!(server.echo.calls.lock().is_empty());
}

#[tokio::test]
async fn strict_server_takes_a_missing_version_for_0_3() {
    let server =
        Server::with(Settings { strict_version: true, ..settings() }, listener::ListenerSettings::default()).await;
    let url = &server.url;
    for info in error_infos(url, "", &[]).await {
        assert_eq!(
            (&info["reason"], &info["metadata"]),
            (&json!("VERSION_NOT_SUPPORTED"), &json!({"supportedVersions": "1.0, 0.3"}))
        );
    }
    assert_eq!(get_over_grpc(url, None).await.unwrap_err().code(), tonic::Code::FailedPrecondition);
    assert_eq!(error_infos(url, "", &["1.0"]).await, [Value::Null, Value::Null]);
    get_over_grpc(url, Some("1.0")).await.unwrap();
}

/// The card and health checks need no version: clients cannot know the supported versions yet, and some send theirs always.
#[tokio::test]
async fn card_and_health_checks_need_no_version() {
    allow_undocumented(Exemption::Parameters);
    // The card of this server is the same for every version.
    allow_undocumented(Exemption::Responses);
    let server =
        Server::with(Settings { strict_version: true, ..settings() }, listener::ListenerSettings::default()).await;
    for path in ["/.well-known/agent-card.json", "/.well-known/agent.json", "/healthz", "/readyz"] {
        for version in ["", "0.3", "9.9"] {
            let http = crate::bindings::http().get(format!("{}{path}", server.url)).header("a2a-version", version);
            assert_eq!(http.send().await.unwrap().status(), 200, "{path} {version}");
        }
    }
    let reply = crate::bindings::http().get(format!("{}/nothing", server.url)).send().await.unwrap();
    assert_eq!(reply.status(), 404);
}

/// Clients of this crate send their version.
#[tokio::test]
async fn clients_send_their_version() {
    let server =
        Server::with(Settings { strict_version: true, ..settings() }, listener::ListenerSettings::default()).await;
    for agent in
        [client::grpc(&server.url), client::rest(&server.url), client::json_rpc(&format!("{}/rpc", server.url))]
    {
        let agent = agent.unwrap();
        let request = |version| {
            let request = GetTaskRequest { id: "t".into(), ..GetTaskRequest::default() };
            Call { version, ..Call::default() }.request(request)
        };
        agent.get_task(request(Version::V1_0)).await.unwrap();
        let error = agent.get_task(request(Version::V0_3)).await.unwrap_err();
        assert_eq!(Error::from(error).kind(), ErrorKind::VersionNotSupported);
    }
}

/// If 0.3 is not served, errors do not have its form, also before the body is read.
#[tokio::test]
async fn errors_before_the_body_follow_the_served_versions() {
    use a2a_service::{agent::demo::Demo, auth, server};

    allow_undocumented(Exemption::Responses);
    for (versions, has_v03_form) in [(&[Version::V1_0][..], false), (&[Version::V1_0, Version::V0_3], true)] {
        let server = server::Server::new(Demo).protocols(versions.iter().copied().collect());
        let server = server.authenticator(auth::Bearer::new(auth::Token::new("secret").unwrap()));
        let url = crate::bindings::serve(server).await;
        let http = crate::bindings::http();
        let reply = http.post(format!("{url}/rpc")).json_body(GET).send().await.unwrap();
        assert_eq!(reply.status(), 401);
        let error = json(reply).await["error"].take();
        assert_eq!(error["data"][0]["reason"].is_null(), has_v03_form, "{error}");
        let reply = http.get(format!("{url}/v1/tasks/t")).send().await.unwrap();
        assert_eq!(reply.status(), 401);
        let problem = json(reply).await;
        assert_eq!(problem["type"].is_string(), has_v03_form, "{problem}");
        assert_eq!(problem["error"]["details"][0]["reason"], "UNAUTHENTICATED");
    }
}
