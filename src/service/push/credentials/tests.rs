use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use axum::{Router, response::Response, routing::post};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::base::oauth::sensitive;

type Respond = Arc<dyn Fn(usize) -> Response + Send + Sync>;

/// Token endpoint on loopback, and the number of its requests.
struct Endpoint {
    url: String,
    count: Arc<AtomicUsize>,
}

impl Endpoint {
    /// Starts a token endpoint. `respond` gets the number of earlier requests.
    async fn start(respond: impl Fn(usize) -> Response + Send + Sync + 'static) -> Self {
        let (count, respond): (Arc<AtomicUsize>, Respond) = (Arc::default(), Arc::new(respond));
        let counted = Arc::clone(&count);
        let route = post(move || {
            let response = respond(counted.fetch_add(1, Ordering::SeqCst));
            async move { response }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/token", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/token", route)).await.unwrap() });
        Self { url, count }
    }

    fn client(&self) -> ClientCredentials {
        ClientCredentials::new(&self.url, "a2a", "hunter2").unwrap()
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

fn json_response(status: u16, body: &Value) -> Response {
    Response::builder().status(status).body(body.to_string().into()).unwrap()
}

fn token_response(token: &str, seconds: u64) -> Response {
    json_response(200, &json!({ "access_token": token, "token_type": "bearer", "expires_in": seconds }))
}

async fn ask(source: &impl WebhookCredentials, url: &str) -> Result<Option<String>, String> {
    let url = Url::parse(url).unwrap();
    let request = WebhookRequest { url: &url, version: Version::V1_0, tenant: "", task_id: "t", config_id: "c" };
    let value = source.authorization(&request).await.map_err(|error| error.to_string())?;
    Ok(value.map(|value| {
        assert!(value.is_sensitive());
        value.to_str().unwrap().to_owned()
    }))
}

const HOOK: &str = "https://hooks.example/hook";

/// Advances the clock while connections of the test are idle.
async fn advance(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn token_is_cached_until_shortly_before_it_expires() {
    for (seconds, used) in [(3600, 3540), (20, 18), (86_400 * 400, 86_340)] {
        let endpoint = Endpoint::start(move |n| token_response(&format!("t{n}"), seconds)).await;
        let client = endpoint.client();
        for _ in 0..3 {
            assert_eq!(ask(&client, HOOK).await.unwrap().unwrap(), "Bearer t0");
        }
        advance(Duration::from_secs(used - 1)).await;
        assert_eq!(ask(&client, HOOK).await.unwrap().unwrap(), "Bearer t0");
        advance(Duration::from_secs(1)).await;
        assert_eq!((ask(&client, HOOK).await.unwrap().unwrap(), endpoint.count()), ("Bearer t1".to_owned(), 2));
    }
}

/// Deliveries that need a token at the same time share a request, and also its failure.
#[tokio::test]
async fn one_request_at_a_time() {
    let endpoint =
        Endpoint::start(|n| if n == 0 { json_response(500, &json!({})) } else { token_response("t", 60) }).await;
    let client = endpoint.client();
    let all = futures::future::join_all((0..20).map(|_| ask(&client, HOOK))).await;
    let error = "no access token: the token endpoint returned 500";
    assert!(all.iter().all(|one| one.as_ref().unwrap_err() == error), "{all:?}");
    assert_eq!(endpoint.count(), 1);
    let all = futures::future::join_all((0..20).map(|_| ask(&client, HOOK))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    assert_eq!(endpoint.count(), 2);
}

#[tokio::test]
async fn rejected_token_is_not_used_again() {
    let endpoint = Endpoint::start(|n| token_response(&format!("t{n}"), 60)).await;
    let client = endpoint.client();
    let url = Url::parse(HOOK).unwrap();
    let request = WebhookRequest { url: &url, version: Version::V1_0, tenant: "", task_id: "t", config_id: "c" };
    let first = client.authorization(&request).await.unwrap().unwrap();
    for _ in 0..3 {
        // The later ones are of deliveries that were sent with the first token too.
        assert!(client.rejected(&request, &first).await);
        assert_eq!(client.authorization(&request).await.unwrap().unwrap(), "Bearer t1");
    }
    assert_eq!(endpoint.count(), 2);
}

#[tokio::test]
async fn responses_are_checked_and_bounded() {
    let token = |members: Value| json_response(200, &members);
    let redirect = || Response::builder().status(302).header("location", "/token").body("".into()).unwrap();
    let large = || json_response(200, &json!({ "access_token": "a".repeat(MAX_RESPONSE) }));
    let responses: Vec<(Response, &str)> = vec![
        (json_response(401, &json!({ "error": "invalid_client" })), "the token endpoint returned 401: invalid_client"),
        (
            json_response(400, &json!({ "error": "hunter2", "error_description": "hunter2" })),
            "the token endpoint returned 400",
        ),
        (redirect(), "the token endpoint returned 302"),
        (large(), "the response of the token endpoint is larger than 65536 bytes"),
        (token(json!({ "token_type": "bearer" })), "the response of the token endpoint has no valid access token"),
        (token(json!({ "access_token": "" })), "the response of the token endpoint has no valid access token"),
        (token(json!({ "access_token": "a\nb" })), "the response of the token endpoint has no valid access token"),
        (token(json!({ "access_token": "a", "token_type": "mac" })), "the access token is not a bearer token"),
    ];
    for (response, expected) in responses {
        let response = Mutex::new(Some(response));
        let endpoint =
            Endpoint::start(move |_| response.lock().take().unwrap_or_else(|| json_response(401, &json!({})))).await;
        assert_eq!(ask(&endpoint.client(), HOOK).await.unwrap_err(), format!("no access token: {expected}"));
    }
    // An endpoint that is down.
    let down = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = ClientCredentials::new(&format!("http://{}/", down.local_addr().unwrap()), "a", "hunter2").unwrap();
    drop(down);
    let error = ask(&client, HOOK).await.unwrap_err();
    assert!(error.starts_with("no access token: connecting failed") && !error.contains("hunter"), "{error}");
    assert!(!format!("{client:?}").contains("hunter"));
}

/// Some token endpoints reject HTTP Basic, although RFC 6749 requires it (2.3.1).
#[tokio::test]
async fn secret_is_sent_in_the_body_if_basic_is_rejected() {
    let rejected = || json_response(401, &json!({ "error": "invalid_client" }));
    let endpoint =
        Endpoint::start(move |n| if n == 0 { rejected() } else { token_response(&format!("t{n}"), 60) }).await;
    let client = endpoint.client();
    for (token, count) in [("Bearer t1", 2), ("Bearer t2", 3)] {
        let value = ask(&client, HOOK).await.unwrap().unwrap();
        assert_eq!((value.as_str(), endpoint.count()), (token, count));
        client.tokens.reject(&value.parse().unwrap());
    }
}

#[test]
fn token_endpoints_have_tls_or_are_on_this_machine() {
    for url in ["https://login.example/token", "http://127.0.0.1:1/", "http://[::1]:1/", "http://localhost:8080/t"] {
        assert!(ClientCredentials::new(url, "a", "b").is_ok(), "{url}");
    }
    for url in [
        "",
        "login.example",
        "http://login.example/",
        "ftp://127.0.0.1/",
        "https://u:p@login.example/",
        "http://10.0.0.1/",
    ] {
        let error = ClientCredentials::new(url, "a", "b").unwrap_err().to_string();
        assert!(error.starts_with("token_url: "), "{url}: {error}");
    }
}

#[tokio::test]
async fn credentials_are_for_one_host_and_port() {
    struct Fixed;

    #[async_trait]
    impl WebhookCredentials for Fixed {
        async fn authorization(&self, _: &WebhookRequest<'_>) -> Result<Option<HeaderValue>, CredentialsError> {
            Ok(Some(sensitive("Bearer t").unwrap()))
        }
    }

    for (host, given, refused) in [
        (
            "Hooks.Example",
            &["https://hooks.example/a", "https://HOOKS.example.:443/"][..],
            &["https://hooks.example:8443/", "http://hooks.example/", "https://a.hooks.example/", "https://example/"][..],
        ),
        (
            "hooks.example:8443",
            &["https://hooks.example:8443/"],
            &["https://hooks.example/", "http://hooks.example:8443/"],
        ),
        ("127.0.0.1:81", &["http://127.0.0.1:81/", "https://127.0.0.1:81/"], &["http://127.0.0.1/"]),
        ("[::1]:81", &["http://[::1]:81/"], &["http://127.0.0.1:81/"]),
    ] {
        let hosts = HostCredentials::default().host(host, Fixed).unwrap();
        for (urls, is_given) in [(given, true), (refused, false)] {
            for url in urls {
                assert_eq!(ask(&hosts, url).await.unwrap().is_some(), is_given, "{host} {url}");
            }
        }
    }
    for host in ["", "a/b", "https://a", "a b", "u@a", "a?b", "a:99999"] {
        assert!(HostCredentials::default().host(host, Fixed).is_err(), "{host}");
    }
}
