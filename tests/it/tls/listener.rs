//! TLS of the server's listeners: bindings, card, client certificates, and certificates that change.

use std::{fs, path::PathBuf, time::Duration};

use a2a_service::{
    auth::{self, Bearer, CertificateName, MutualTls, Scopes, Token},
    call::Binding,
    client::Client,
    error::ErrorKind,
    pb::v1::{AgentCard, TaskState},
    server::{ClientAuth, Server, Tls},
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, SanType,
    date_time_ymd,
};
use reqwest::{Certificate, Identity};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{CERTIFICATE, KEY, ROOT};
use crate::{
    bindings::{self},
    scenarios::{remaining, send, state, stream, text},
};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Directory with the files of a server.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        fs::write(files.path("server.pem"), CERTIFICATE).unwrap();
        fs::write(files.path("server.key"), KEY).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn tls(&self) -> Tls {
        Tls::from_files(self.path("server.pem"), self.path("server.key")).unwrap()
    }
}

/// Serves with TLS, and returns the URL.
async fn serve(server: Server) -> String {
    let bound = server.bind("127.0.0.1:0").await.unwrap();
    let url = bound.url();
    tokio::spawn(bound.run_until(std::future::pending()));
    url
}

fn http(root: &[u8]) -> reqwest::ClientBuilder {
    reqwest::Client::builder().tls_certs_only([Certificate::from_pem(root).unwrap()])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_bindings_are_served_over_tls_and_the_card_says_https() {
    let files = Files::new();
    let url = serve(bindings::server().tls(files.tls())).await;
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let client = Client::builder().roots(ROOT).unwrap();
    for agent in [client.rest(&url), client.json_rpc(&format!("{url}/rpc")), client.grpc(&url)] {
        let agent = agent.unwrap();
        assert_eq!(send(&*agent, text("", "hello")).await.state(), TaskState::Completed);
        let events = remaining(stream(&*agent, text("", "/stream 3 1")).await).await;
        assert_eq!(events.last().and_then(state), Some(TaskState::Completed));
    }
    let http = http(ROOT).build().unwrap();
    let response = http.get(format!("{url}/.well-known/agent-card.json")).send().await.unwrap();
    assert_eq!(response.version(), http::Version::HTTP_2);
    let card: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    let urls: Vec<_> =
        card["supportedInterfaces"].as_array().unwrap().iter().map(|one| one["url"].as_str().unwrap()).collect();
    assert!(urls.contains(&url.as_str()) && urls.iter().all(|url| !url.starts_with("http:")), "{urls:?}");
    // A page of the server's own origin is one with https.
    let get = |origin: String| http.get(format!("{url}/tasks")).header("origin", origin).send();
    assert_eq!(get(url.clone()).await.unwrap().status(), 200);
    assert_eq!(get(url.replace("https", "http")).await.unwrap().status(), 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_and_origin_are_checked_over_tls() {
    let files = Files::new();
    let own = serve(bindings::server().tls(files.tls())).await;
    let public = serve(bindings::server().tls(files.tls()).url("https://agent.example")).await;
    for http in [http(ROOT).build().unwrap(), http(ROOT).http1_only().build().unwrap()] {
        let status = async |url: &str, name: &'static str, value: &str| {
            let send = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}});
            let request = http.post(format!("{url}/message:send")).header("content-type", "application/json");
            request.header(name, value).body(send.to_string()).send().await.unwrap().status().as_u16()
        };
        assert_eq!(status(&own, "origin", &own).await, 200);
        assert_eq!(status(&own, "sec-fetch-site", "same-origin").await, 200);
        assert_eq!(status(&public, "origin", "https://agent.example").await, 200);
        for (name, value) in [
            ("origin", "https://evil.example"),
            ("origin", "http://agent.example"),
            ("origin", "https://127.0.0.1"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
        ] {
            assert_eq!(status(&own, name, value).await, 403, "{name}: {value}");
            assert_eq!(status(&public, name, value).await, 403, "{name}: {value}");
        }
    }
    // Over HTTP/1.1, since a client of HTTP/2 sends the authority of the URL.
    let http = http(ROOT).http1_only().build().unwrap();
    let named = async |url: &str, host: &str| {
        http.get(format!("{url}/tasks")).header("host", host).send().await.unwrap().status().as_u16()
    };
    assert_eq!([named(&own, "localhost").await, named(&own, "agent.example").await], [200, 421]);
    assert_eq!([named(&public, "agent.example").await, named(&public, "evil.example").await], [200, 421]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_tls_are_closed_and_silent_ones_delay_nobody() {
    let files = Files::new();
    let url = serve(bindings::server().tls(files.tls())).await;
    let address = url.strip_prefix("https://").unwrap();
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    drop(timeout(TIMEOUT, plain.read_to_end(&mut answer)).await.unwrap());
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    let response = http(ROOT).build().unwrap().get(format!("{url}/healthz")).send();
    assert_eq!(timeout(TIMEOUT, response).await.unwrap().unwrap().status(), 200);
}

/// Authority with a certificate of its own.
fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key of a client.
fn identity(authority: &CertifiedIssuer<'static, KeyPair>) -> Identity {
    identity_with(authority, "client.invalid", |_| {})
}

fn identity_with(
    authority: &CertifiedIssuer<'static, KeyPair>,
    name: &str,
    change: impl FnOnce(&mut CertificateParams),
) -> Identity {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    change(&mut params);
    let certificate = params.signed_by(&key, authority).unwrap();
    Identity::from_pem(format!("{}{}", certificate.pem(), key.serialize_pem()).as_bytes()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificates_are_optional_or_required() {
    let (files, own, other) = (Files::new(), authority(), authority());
    fs::write(files.path("ca.pem"), own.pem()).unwrap();
    for (use_of, without, with_wrong) in
        [(ClientAuth::Off, true, true), (ClientAuth::Optional, true, false), (ClientAuth::Required, false, false)]
    {
        let tls = files.tls().client_auth(files.path("ca.pem"), use_of).unwrap();
        let url = serve(bindings::server().tls(tls)).await;
        let get = async |identity: Option<Identity>| {
            let client = match identity {
                Some(identity) => http(ROOT).identity(identity),
                None => http(ROOT),
            };
            client.build().unwrap().get(format!("{url}/healthz")).send().await.is_ok()
        };
        assert!(get(Some(identity(&own))).await, "{use_of:?}");
        assert_eq!(get(None).await, without, "{use_of:?}");
        assert_eq!(get(Some(identity(&other))).await, with_wrong, "{use_of:?}");
    }
}

/// Statuses of a list over HTTP+JSON, JSON-RPC and gRPC; `None` if there is no connection.
async fn lists(url: &str, identity: Option<Identity>) -> [Option<(u16, String)>; 3] {
    let client = match identity {
        Some(identity) => http(ROOT).identity(identity),
        None => http(ROOT),
    };
    let client = client.build().unwrap();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}).to_string();
    let rpc = client.post(format!("{url}/rpc")).header("content-type", "application/json").body(body);
    let grpc = client.post(format!("{url}/lf.a2a.v1.A2AService/ListTasks")).header("te", "trailers");
    let grpc = grpc.header("content-type", "application/grpc").body(vec![0_u8; 5]);
    let mut all = [None, None, None];
    for (answer, request) in all.iter_mut().zip([client.get(format!("{url}/tasks")), rpc, grpc]) {
        let Ok(response) = request.send().await else { continue };
        let (status, grpc) = (response.status().as_u16(), response.headers().get("grpc-status").cloned());
        let status = grpc.map_or(status, |code| code.to_str().unwrap().parse().unwrap());
        let message = response.headers().get("grpc-message").map(|text| text.to_str().unwrap().to_owned());
        let text = String::from_utf8_lossy(&response.bytes().await.unwrap()).into_owned();
        *answer = Some((status, message.unwrap_or(text)));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificates_identify_callers_over_every_binding() {
    let (files, own, other) = (Files::new(), authority(), authority());
    fs::write(files.path("ca.pem"), own.pem()).unwrap();
    let tls = || files.tls().client_auth(files.path("ca.pem"), ClientAuth::Optional).unwrap();
    let names = MutualTls::new(CertificateName::Dns).names(["ada.invalid", "bob.invalid"]);
    let url = serve(bindings::server().tls(tls()).authenticator(names)).await;
    let [ada, bob, eve] = ["ada", "bob", "eve"].map(|name| identity_with(&own, &format!("{name}.invalid"), |_| {}));

    for (identity, why) in [
        (None, "a client certificate is required"),
        (Some(eve), "the name of the client certificate is not accepted"),
        (
            Some(identity_with(&own, "x.invalid", |params| {
                params.subject_alt_names = vec![SanType::URI("spiffe://x.invalid/a".try_into().unwrap())];
            })),
            "no subject alternative name of type dns",
        ),
    ] {
        let [rest, rpc, grpc] = lists(&url, identity).await.map(Option::unwrap);
        assert_eq!((rest.0, rpc.0, grpc.0), (401, 401, 16), "{why}");
        for (_, text) in [rest, rpc, grpc] {
            assert!(text.replace("%20", " ").contains(why), "{text}");
        }
    }
    let expired = identity_with(&own, "ada.invalid", |params| {
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    });
    for identity in [identity_with(&other, "ada.invalid", |_| {}), expired] {
        assert_eq!(lists(&url, Some(identity)).await, [None, None, None], "the handshake fails");
    }

    // The name is the owner of the tasks.
    let body = json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "of ada"}]}}).to_string();
    let sender = http(ROOT).identity(ada.clone()).build().unwrap();
    let sent = sender.post(format!("{url}/message:send")).header("content-type", "application/json").body(body);
    assert_eq!(sent.send().await.unwrap().status(), 200);
    for (identity, count) in [(ada, 1), (bob, 0)] {
        let [rest, rpc, grpc] = lists(&url, Some(identity)).await.map(Option::unwrap);
        assert_eq!((rest.0, rpc.0), (200, 200));
        assert!(grpc.0 == 200 && grpc.1.contains("of ada") == (count == 1), "{grpc:?}");
        for text in [rest.1, rpc.1] {
            assert!(text.contains(&format!("\"totalSize\":{count}")), "{text}");
        }
    }
    let card = http(ROOT).build().unwrap().get(format!("{url}/.well-known/agent-card.json")).send().await.unwrap();
    let card: Value = serde_json::from_slice(&card.bytes().await.unwrap()).unwrap();
    assert_eq!(card["securitySchemes"]["mutualTls"]["type"], "mutualTLS");
    assert!(card["securitySchemes"]["mutualTls"]["mtlsSecurityScheme"].is_object(), "{card}");
    assert_eq!(card["security"], json!([{"mutualTls": []}]));

    // The Rust client presents its certificate over each binding, and to no other origin.
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["ada.invalid".to_owned()]).unwrap().signed_by(&key, &own).unwrap();
    let client = Client::builder().roots(ROOT).unwrap();
    let with = client.clone().client_certificate(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    for binding in [Binding::Rest, Binding::JsonRpc, Binding::Grpc] {
        let agent = with.clone().binding(binding).connect(&url).await.unwrap();
        assert_eq!(agent.send("hello").await.unwrap().state(), TaskState::Completed, "{binding:?}");
        let error = client.clone().binding(binding).connect(&url).await.unwrap().send("hello").await.unwrap_err();
        assert!(error.to_string().contains("`mutualTls` (mutual TLS: client_certificate)"), "{error}");
    }
    let card = Client::builder().roots(ROOT).unwrap().connect(&url).await.unwrap().card();
    let foreign = with.with_card(AgentCard::clone(&card), Some("https://other.invalid")).unwrap_err();
    assert_eq!(foreign.kind(), ErrorKind::Unauthenticated);
    assert!(!format!("{with:?}").contains("PRIVATE KEY"));
    for (certificate, key) in [(CERTIFICATE, &b""[..]), (&b""[..], KEY), (&b"x"[..], b"y")] {
        assert!(client.clone().client_certificate(certificate, key).is_err());
    }

    // The subject as the name.
    let ada = "CN=Ada,O=Example\\, Inc.";
    let names = MutualTls::new(CertificateName::Subject).names([ada]);
    let subjects = serve(bindings::server().tls(tls()).authenticator(names)).await;
    for (name, status) in [(Some("Ada"), (200, 200, 200)), (Some("Bob"), (401, 401, 16)), (None, (401, 401, 16))] {
        let identity = identity_with(&own, "x.invalid", |params| {
            params.distinguished_name = DistinguishedName::new();
            if let Some(name) = name {
                params.distinguished_name.push(DnType::OrganizationName, "Example, Inc.");
                params.distinguished_name.push(DnType::CommonName, name);
            }
        });
        let [rest, rpc, grpc] = lists(&subjects, Some(identity)).await.map(Option::unwrap);
        assert_eq!((rest.0, rpc.0, grpc.0), status, "{rest:?}");
    }

    // A URI as the name, with scopes, beside a token.
    let schemes = MutualTls::new(CertificateName::Uri).scopes(Scopes::Only(["tasks:write".to_owned()].into()));
    let schemes = auth::any().or(schemes).or(Bearer::new(Token::new("sesame").unwrap()));
    let url = serve(bindings::server().tls(tls()).authenticator(schemes)).await;
    let spiffe = identity_with(&own, "x.invalid", |params| {
        params.subject_alt_names.push(SanType::URI("spiffe://x.invalid/a".try_into().unwrap()));
    });
    let [rest, rpc, grpc] = lists(&url, Some(spiffe)).await.map(Option::unwrap);
    assert_eq!((rest.0, rpc.0, grpc.0), (403, 403, 7));
    assert!(rest.1.contains("lack the scope tasks:read"), "{}", rest.1);
    let with_token =
        http(ROOT).build().unwrap().get(format!("{url}/tasks")).bearer_auth("sesame").send().await.unwrap();
    assert_eq!(with_token.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_certificate_is_used_and_an_unusable_one_is_not() {
    let files = Files::new();
    let url = serve(bindings::server().tls(files.tls())).await;
    let (authority, key) = (authority(), KeyPair::generate().unwrap());
    let new = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let is_trusted = async |root: &[u8]| {
        // A connection of its own.
        http(root).build().unwrap().get(format!("{url}/healthz")).send().await.is_ok()
    };
    assert!(is_trusted(ROOT).await && !is_trusted(authority.pem().as_bytes()).await);
    // The key of another certificate: the old pair stays in use.
    fs::write(files.path("server.key"), key.serialize_pem()).unwrap();
    let checked = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        for _ in 0..15 {
            ticks.tick().await;
            assert!(is_trusted(ROOT).await);
        }
        fs::write(files.path("server.pem"), new.pem()).unwrap();
        while !is_trusted(authority.pem().as_bytes()).await {
            ticks.tick().await;
        }
    };
    timeout(TIMEOUT, checked).await.unwrap();
    assert!(!is_trusted(ROOT).await);
}

#[tokio::test]
async fn unusable_files_are_errors_that_name_them() {
    let files = Files::new();
    fs::write(files.path("empty"), "").unwrap();
    for (cert, key, named) in
        [("missing", "server.key", "missing"), ("empty", "server.key", "empty"), ("server.pem", "empty", "empty")]
    {
        let error = Tls::from_files(files.path(cert), files.path(key)).unwrap_err().to_string();
        assert!(error.contains(named) && !error.contains("BEGIN"), "{error}");
    }
    let self_signed = Tls::self_signed(["agent.invalid".to_owned()]).unwrap();
    let url = serve(bindings::server().tls(self_signed)).await;
    let client = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
    assert_eq!(client.get(format!("{url}/healthz")).send().await.unwrap().status(), 200);
}
