use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::Router;
use serde_json::json;
use tokio::net::TcpListener;
use tower_service::Service as _;

use super::*;
use crate::{
    base::{clock::Clock, webhook_signature::sign},
    protocol::pb::v1::TaskState,
    service::push::{Algorithm, SigningKeys},
};

const NOW: Millis = 1_700_000_000_000;
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ISSUER: &str = "https://agent.example";
const HOOK: &str = "https://hooks.example/hook";
const BODY: &[u8] = br#"{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}"#;

/// Receiver whose clock shows `NOW`.
fn receiver() -> Receiver {
    Receiver::new().sources(Sources { clock: Clock::simulated(NOW), ..Sources::default() })
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
}

fn signature(secret: &str, id: &str, seconds: i64, body: &[u8]) -> String {
    sign(secret, id, &seconds.to_string(), body)
}

/// Headers of a delivery with a token and a signature made with it.
fn signed(token: &str, id: &str, seconds: i64) -> HeaderMap {
    headers(&[
        ("a2a-delivery-id", id),
        ("a2a-notification-token", token),
        ("x-a2a-notification-token", token),
        ("webhook-id", id),
        ("webhook-timestamp", &seconds.to_string()),
        ("webhook-signature", &signature(token, id, seconds, BODY)),
    ])
}

fn bearer(keys: &SigningKeys, id: &str) -> HeaderMap {
    let token = keys.token(ISSUER, &Url::parse(HOOK).unwrap(), id, BODY, NOW).unwrap();
    headers(&[("authorization", &format!("Bearer {token}"))])
}

async fn accept(receiver: &Receiver, headers: &HeaderMap) -> VerifiedNotification {
    match receiver.receive(headers, BODY).await.unwrap() {
        Received::New(notification) => notification,
        Received::Duplicate => panic!("duplicate"),
    }
}

async fn reject(receiver: &Receiver, headers: &HeaderMap) -> (u16, String) {
    let rejection = receiver.receive(headers, BODY).await.unwrap_err();
    (rejection.status().as_u16(), rejection.to_string())
}

/// Header sets of an independent implementation are accepted, and ours by it.
#[tokio::test]
async fn standard_webhooks_are_verified() {
    let webhook = standardwebhooks::Webhook::new(SECRET).unwrap();
    let theirs = webhook.sign("msg_1", NOW / 1000, BODY).unwrap();
    assert_eq!(theirs, signature(SECRET, "msg_1", NOW / 1000, BODY));
    let standard = |signature: &str| {
        let timestamp = (NOW / 1000).to_string();
        headers(&[("webhook-id", "msg_1"), ("webhook-timestamp", &timestamp), ("webhook-signature", signature)])
    };
    // Without the header of the token, and with a second signature of another secret.
    let delivery = accept(&receiver().token(SECRET), &standard(&theirs)).await;
    assert_eq!(delivery.id.as_deref(), Some("msg_1"));
    accept(&receiver().token(SECRET), &standard(&format!("v1,AAAA v2,x {theirs}"))).await;
    accept(&receiver().token("old").token(SECRET), &standard(&theirs)).await;
    // Another id, another time, another body or secret.
    for (id, seconds, body, secret) in [
        ("msg_2", NOW / 1000, BODY, SECRET),
        ("msg_1", NOW / 1000 + 1, BODY, SECRET),
        ("msg_1", NOW / 1000, &b"{}"[..], SECRET),
        ("msg_1", NOW / 1000, BODY, "whsec_AAAA"),
    ] {
        let rejected = reject(&receiver().token(SECRET), &standard(&signature(secret, id, seconds, body))).await;
        assert_eq!(rejected, (401, "the signature is wrong".to_owned()));
    }
}

#[tokio::test]
async fn token_is_required_and_compared() {
    let own = || receiver().token("secret");
    for name in ["a2a-notification-token", "x-a2a-notification-token"] {
        let delivery = accept(&own(), &headers(&[(name, "secret")])).await;
        assert_eq!((delivery.id, delivery.version), (None, Version::V1_0));
    }
    accept(&own(), &signed("secret", "1", NOW / 1000)).await;
    accept(&receiver().unauthenticated(), &HeaderMap::new()).await;
    let mut two = headers(&[("a2a-notification-token", "secret")]);
    two.append("a2a-notification-token", "other".parse().unwrap());
    for (receiver, headers, expected) in [
        (receiver(), signed("secret", "1", NOW / 1000), (401, "the receiver has neither a token nor keys")),
        (own(), HeaderMap::new(), (401, "the notification has no token")),
        (own(), headers(&[("a2a-notification-token", "secret ")]), (401, "the token is wrong")),
        (own(), headers(&[("a2a-notification-token", "secre")]), (401, "the token is wrong")),
        (own(), headers(&[("a2a-notification-token", "")]), (401, "the token is wrong")),
        (own(), two, (400, "the header a2a-notification-token is not one text")),
        (
            receiver().token(SECRET),
            headers(&[("a2a-notification-token", SECRET)]),
            (401, "the notification has no signature"),
        ),
        (
            own(),
            headers(&[("a2a-notification-token", "secret"), ("webhook-signature", "v1,AAAA")]),
            (401, "the signature has no `webhook-id` or `webhook-timestamp`"),
        ),
        (
            own(),
            headers(&[("webhook-id", "1"), ("a2a-delivery-id", "2"), ("a2a-notification-token", "secret")]),
            (400, "the headers have two delivery ids"),
        ),
    ] {
        let rejected = reject(&receiver, &headers).await;
        assert_eq!((rejected.0, &*rejected.1), expected);
    }
}

#[tokio::test]
async fn old_and_future_deliveries_are_rejected() {
    for (seconds, accepted) in
        [(-301, false), (-300, true), (0, true), (300, true), (301, false), (i64::MIN / 2, false)]
    {
        let headers = signed(SECRET, "1", NOW / 1000 + seconds);
        let result = receiver().token(SECRET).receive(&headers, BODY).await;
        assert_eq!(result.is_ok(), accepted, "{seconds}");
    }
    let mut malformed = signed(SECRET, "1", NOW / 1000);
    malformed.insert("webhook-timestamp", "soon".parse().unwrap());
    assert_eq!(reject(&receiver().token(SECRET), &malformed).await.1, "the timestamp is malformed");
    let late = signed(SECRET, "1", NOW / 1000 - 301);
    accept(&receiver().token(SECRET).tolerance(Duration::from_mins(10)), &late).await;
}

#[tokio::test]
async fn jwt_is_required_and_verified() {
    let keys = SigningKeys::generate(Algorithm::Es256).unwrap();
    let own = || receiver().public_keys(PublicKeys::from(&keys)).issuer(ISSUER).audience("https://hooks.example");
    assert_eq!(accept(&own(), &bearer(&keys, "1")).await.id.as_deref(), Some("1"));
    let other = SigningKeys::generate(Algorithm::Es256).unwrap();
    let mut other_delivery = bearer(&keys, "1");
    other_delivery.insert(WEBHOOK_ID, "2".parse().unwrap());
    for (receiver, headers, expected) in [
        (own(), HeaderMap::new(), "the notification has no bearer token"),
        (own(), headers(&[("authorization", "Basic dTpw")]), "the notification has no bearer token"),
        (own(), headers(&[("authorization", "Bearer x")]), "the token is not a JSON Web Token"),
        (own(), bearer(&other, "1"), "the key of the token is unknown"),
        (own(), other_delivery, "the token belongs to another delivery"),
        (own().audience("https://other.example"), bearer(&keys, "1"), "the token has another audience"),
        (own().issuer("https://other.example"), bearer(&keys, "1"), "the token has another issuer"),
        // A receiver with both wants both.
        (own().token("secret"), bearer(&keys, "1"), "the notification has no token"),
    ] {
        assert_eq!(reject(&receiver, &headers).await, (401, expected.to_owned()));
    }
    let rejection = own().receive(&bearer(&keys, "1"), b"{}").await.unwrap_err();
    assert_eq!(rejection.to_string(), "the token belongs to another body");
}

#[tokio::test]
async fn duplicates_are_recognized_in_bounded_memory() {
    let receiver = receiver().token("secret").remembered_deliveries(3);
    let send = async |id: &str| receiver.receive(&signed("secret", id, NOW / 1000), BODY).await.unwrap();
    for id in ["1", "2", "3"] {
        assert!(matches!(send(id).await, Received::New(_)));
        assert!(matches!(send(id).await, Received::Duplicate));
    }
    receiver.forget("2");
    assert!(matches!(send("2").await, Received::New(_)));
    assert!(matches!(send("4").await, Received::New(_)));
    assert!(matches!(send("1").await, Received::New(_)), "the oldest is forgotten");
    assert!(matches!(send("4").await, Received::Duplicate));
    let ids = receiver.seen.ids.lock();
    assert_eq!((ids.state.len(), ids.order.len()), (3, 3));
}

#[tokio::test]
async fn bodies_of_both_versions_are_decoded() {
    let receiver = receiver().unauthenticated();
    let part = json!({ "text": "x" });
    let old_part = json!({ "kind": "text", "text": "x" });
    for (body, version, kind) in [
        (
            json!({ "task": { "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" } } }),
            Version::V1_0,
            "task",
        ),
        (json!({ "message": { "messageId": "m", "role": "ROLE_AGENT", "parts": [part] } }), Version::V1_0, "message"),
        (json!({ "statusUpdate": { "taskId": "t", "contextId": "c", "status": {} } }), Version::V1_0, "status"),
        (
            json!({ "artifactUpdate": { "taskId": "t", "contextId": "c", "artifact": { "artifactId": "a", "parts": [part] } } }),
            Version::V1_0,
            "artifact",
        ),
        (
            json!({ "kind": "task", "id": "t", "contextId": "c", "status": { "state": "completed" } }),
            Version::V0_3,
            "task",
        ),
        (json!({ "id": "t", "contextId": "c", "status": { "state": "completed" } }), Version::V0_3, "task"),
        (
            json!({ "kind": "status-update", "taskId": "t", "contextId": "c", "status": { "state": "working" }, "final": false }),
            Version::V0_3,
            "status",
        ),
        (
            json!({ "kind": "artifact-update", "taskId": "t", "artifact": { "artifactId": "a", "parts": [old_part] } }),
            Version::V0_3,
            "artifact",
        ),
        (
            json!({ "kind": "message", "messageId": "m", "role": "agent", "parts": [old_part] }),
            Version::V0_3,
            "message",
        ),
    ] {
        let Received::New(delivery) = receiver.receive(&HeaderMap::new(), body.to_string().as_bytes()).await.unwrap()
        else {
            panic!("{body}");
        };
        let found = match delivery.event.payload().unwrap() {
            Payload::Task(_) => "task",
            Payload::Message(_) => "message",
            Payload::StatusUpdate(_) => "status",
            Payload::ArtifactUpdate(_) => "artifact",
        };
        assert_eq!((delivery.version, found), (version, kind), "{body}");
    }
    for body in
        ["", "{}", "[]", "null", "{\"task\":7}", "{\"task\":{}}", "{\"kind\":\"other\"}", "{\"jsonrpc\":\"2.0\"}", "{"]
    {
        let rejection = receiver.receive(&HeaderMap::new(), body.as_bytes()).await.unwrap_err();
        assert_eq!(rejection.status(), StatusCode::BAD_REQUEST, "{body}: {rejection}");
    }
    let large = receiver.max_body(BODY.len() - 1);
    assert_eq!(reject(&large, &HeaderMap::new()).await.0, 413);
}

/// Posts a body to a route.
async fn post_to(route: &mut MethodRouter, headers: &HeaderMap, body: Body) -> (StatusCode, HeaderMap) {
    let mut request = Request::post("/").body(body).unwrap();
    *request.headers_mut() = headers.clone();
    let response = route.call(request).await.unwrap();
    (response.status(), response.headers().clone())
}

#[tokio::test]
async fn route_repeats_what_was_not_processed() {
    let (calls, fails) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(true)));
    let (counted, failing) = (Arc::clone(&calls), Arc::clone(&fails));
    let mut route: MethodRouter = receiver().token(SECRET).into_route(move |delivery| {
        assert_eq!(delivery.event.status_update().unwrap().status.as_ref().unwrap().state(), TaskState::Completed);
        counted.fetch_add(1, Ordering::Relaxed);
        let failed = failing.load(Ordering::Relaxed);
        async move { if failed { Err("database down") } else { Ok(()) } }
    });
    let headers = signed(SECRET, "1", NOW / 1000);
    let mut send = async || post_to(&mut route, &headers, Body::from(BODY)).await.0;
    assert_eq!(send().await, StatusCode::INTERNAL_SERVER_ERROR);
    fails.store(false, Ordering::Relaxed);
    assert_eq!(send().await, StatusCode::NO_CONTENT);
    assert_eq!(send().await, StatusCode::NO_CONTENT, "a duplicate");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let get = route.call(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(get.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn repetition_during_processing_is_retried_later() {
    let started = Arc::new(tokio::sync::Notify::new());
    let starting = Arc::clone(&started);
    let route: MethodRouter = receiver().token(SECRET).into_route(move |_| {
        starting.notify_one();
        std::future::pending::<Result<(), String>>()
    });
    let headers = signed(SECRET, "1", NOW / 1000);
    let first = {
        let (mut route, headers) = (route.clone(), headers.clone());
        tokio::spawn(async move { post_to(&mut route, &headers, Body::from(BODY)).await })
    };
    started.notified().await;
    let (status, response) = post_to(&mut route.clone(), &headers, Body::from(BODY)).await;
    assert_eq!((status, response[header::RETRY_AFTER].to_str().unwrap()), (StatusCode::SERVICE_UNAVAILABLE, "5"));
    // The connection of the first one breaks: it was not processed.
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let again = tokio::spawn(async move { post_to(&mut route.clone(), &headers, Body::from(BODY)).await });
    started.notified().await;
    again.abort();
}

#[tokio::test(start_paused = true)]
async fn route_limits_the_body_in_size_and_time() {
    let mut route: MethodRouter =
        receiver().token(SECRET).max_body(100).into_route(|_| std::future::ready(Ok::<_, String>(())));
    let headers = signed(SECRET, "1", NOW / 1000);
    let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b' '; 64])));
    assert_eq!(post_to(&mut route, &headers, Body::from_stream(endless)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let hanging = futures::stream::pending::<Result<Bytes, std::io::Error>>();
    assert_eq!(post_to(&mut route, &headers, Body::from_stream(hanging)).await.0, StatusCode::REQUEST_TIMEOUT);
    let broken = futures::stream::iter([Err::<Bytes, _>(std::io::Error::other("broken"))]);
    assert_eq!(post_to(&mut route, &headers, Body::from_stream(broken)).await.0, StatusCode::BAD_REQUEST);
}

/// Server of a key set, which counts the requests for it.
struct KeyServer {
    url: String,
    served: Arc<Mutex<Result<String, StatusCode>>>,
    requests: Arc<AtomicUsize>,
}

impl KeyServer {
    async fn start(keys: &SigningKeys) -> Self {
        let served = Arc::new(Mutex::new(Ok::<_, StatusCode>(keys.jwks().to_string())));
        let requests = Arc::new(AtomicUsize::new(0));
        let (document, count) = (Arc::clone(&served), Arc::clone(&requests));
        let router = Router::new().fallback(move || {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(match &*document.lock() {
                Ok(text) => text.clone().into_response(),
                Err(status) => status.into_response(),
            })
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/.well-known/jwks.json", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, served, requests }
    }

    fn serve(&self, keys: &SigningKeys) {
        *self.served.lock() = Ok(keys.jwks().to_string());
    }

    fn count(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Lets time pass, for the server of the keys as well.
async fn advance(duration: Duration) {
    tokio::time::pause();
    tokio::time::advance(duration).await;
    tokio::time::resume();
}

/// Ends the interval in which the keys are not requested again.
async fn end_interval() {
    advance(Duration::from_secs(30)).await;
}

/// Makes the known keys old.
async fn expire() {
    advance(Duration::from_secs(3601)).await;
}

#[tokio::test]
async fn keys_are_requested_once_and_after_a_rotation() {
    let keys = SigningKeys::generate(Algorithm::Es256).unwrap();
    let server = KeyServer::start(&keys).await;
    let receiver = receiver().tolerance(Duration::from_hours(24)).jwks_url(&server.url).unwrap();
    let first = futures::future::join_all((0..20).map(|n| {
        let (receiver, headers) = (receiver.clone(), bearer(&keys, &n.to_string()));
        async move { receiver.receive(&headers, BODY).await.is_ok() }
    }));
    assert!(first.await.into_iter().all(|accepted| accepted));
    assert_eq!(server.count(), 1, "concurrent deliveries share a request");
    // Unknown keys soon after that cause no request; the sender retries.
    let rotated = keys.clone().rotated(crate::service::push::SigningKey::generate(Algorithm::EdDsa).unwrap());
    server.serve(&rotated);
    for n in 0..20 {
        let rejected = reject(&receiver, &bearer(&rotated, &format!("r{n}"))).await;
        assert_eq!(rejected, (503, "the key of the token is not known yet".to_owned()));
    }
    assert_eq!(server.count(), 1);
    end_interval().await;
    accept(&receiver, &bearer(&rotated, "r")).await;
    accept(&receiver, &bearer(&keys, "old")).await;
    assert_eq!(server.count(), 2);
    // A forged token costs at most one request per interval.
    let forged = SigningKeys::generate(Algorithm::Es256).unwrap();
    end_interval().await;
    assert_eq!(reject(&receiver, &bearer(&forged, "f")).await, (401, "the key of the token is unknown".to_owned()));
    assert_eq!(reject(&receiver, &bearer(&forged, "f")).await.0, 503);
    assert_eq!(server.count(), 3);
    // A withdrawn key is no longer accepted after an hour.
    let next = SigningKeys::generate(Algorithm::Es256).unwrap();
    server.serve(&next);
    accept(&receiver, &bearer(&keys, "still")).await;
    expire().await;
    assert_eq!(reject(&receiver, &bearer(&keys, "no longer")).await.0, 401);
    assert_eq!(server.count(), 4);
}

#[tokio::test]
async fn keys_that_are_not_available_delay_deliveries() {
    let keys = SigningKeys::generate(Algorithm::Es256).unwrap();
    let server = KeyServer::start(&keys).await;
    let large = format!("{{\"keys\":[],\"pad\":\"{}\"}}", "x".repeat(256 << 10));
    for document in
        [Err(StatusCode::INTERNAL_SERVER_ERROR), Err(StatusCode::FOUND), Ok("no JSON".to_owned()), Ok(large)]
    {
        *server.served.lock() = document;
        let receiver = receiver().tolerance(Duration::from_hours(24)).jwks_url(&server.url).unwrap();
        assert_eq!(reject(&receiver, &bearer(&keys, "1")).await.0, 503);
        server.serve(&keys);
        end_interval().await;
        accept(&receiver, &bearer(&keys, "1")).await;
        // Known keys are accepted while their server is down.
        *server.served.lock() = Err(StatusCode::BAD_GATEWAY);
        expire().await;
        accept(&receiver, &bearer(&keys, "2")).await;
    }
    for url in ["", "/jwks.json", "ftp://agent.example/jwks.json"] {
        assert!(receiver().jwks_url(url).is_err());
    }
}

#[test]
fn debug_output_has_no_secret() {
    assert!(!format!("{:?}", Receiver::new().token(SECRET)).contains(SECRET));
}
