//! Keys of the server: signed tokens in notifications, and the key set with which receivers verify them.

use std::path::Path;

use a2a_service::{
    auth::{Bearer, Token},
    push::{self, Algorithm, PublicKeys, SigningKey, SigningKeys},
};
use axum::extract::Request;
use http::Method;
use tokio::io::AsyncReadExt as _;
use tower_service::Service as _;

use super::*;

const ISSUER: &str = "https://agent.example";
const JWKS: &str = "/.well-known/jwks.json";

fn keys() -> SigningKeys {
    SigningKeys::generate(Algorithm::Es256).unwrap()
}

/// Configuration that asks for a signed token.
fn signed(url: &str) -> TaskPushNotificationConfig {
    let authentication = Some(AuthenticationInfo { scheme: "bearer".into(), ..Default::default() });
    TaskPushNotificationConfig { authentication, token: String::new(), ..hook(url) }
}

/// Header or claims of the token of a notification.
fn token_part(received: &Received, index: usize) -> Value {
    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
    let token = received.header("authorization").strip_prefix("Bearer ").unwrap();
    let part = token.split('.').nth(index).unwrap();
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

#[tokio::test]
async fn bearer_without_credentials_is_a_signed_token() {
    for algorithm in [Algorithm::Es256, Algorithm::EdDsa] {
        let keys = SigningKeys::generate(algorithm).unwrap();
        let published = PublicKeys::from_jwks(keys.jwks().to_string().as_bytes()).unwrap();
        let options = options().keys(Some(keys)).issuer(Some(ISSUER.to_owned()));
        let agent = Server::new(Writer).push(true).push_options(options).into_service();
        let receiver = Receiver::accepting().await;
        send(&*agent, "2", signed(&receiver.url())).await.unwrap();
        let origin = receiver.url().strip_suffix("/hook").unwrap().to_owned();
        let verifier = || push::Receiver::new().public_keys(published.clone()).issuer(ISSUER);
        let (here, elsewhere) = (verifier().audience(origin), verifier().audience("http://127.0.0.1:1"));
        for one in receiver.wait_for_end().await {
            let result = here.receive(&one.headers, &one.bytes).await.unwrap();
            let push::Received::New(delivery) = result else { panic!("{one:?}") };
            assert_eq!(delivery.id.as_deref(), Some(one.header("webhook-id")));
            assert!(matches!(here.receive(&one.headers, &one.bytes).await, Ok(push::Received::Duplicate)));
            assert!(elsewhere.receive(&one.headers, &one.bytes).await.is_err(), "of another receiver");
            let tampered = [&one.bytes[..], b" "].concat();
            assert!(verifier().receive(&one.headers, &tampered).await.is_err());
        }
    }
}

/// Credentials of a configuration are sent as they are, and other schemes have no token.
#[tokio::test]
async fn other_authentication_is_not_replaced_by_a_token() {
    let agent = Server::new(Writer).push(true).push_options(options().keys(Some(keys()))).into_service();
    for (scheme, credentials, expected) in [("Bearer", "own", "Bearer own"), ("Basic", "", ""), ("", "", "")] {
        let receiver = Receiver::accepting().await;
        let authentication = Some(AuthenticationInfo { scheme: scheme.into(), credentials: credentials.into() });
        let authentication = authentication.filter(|info| !info.scheme.is_empty());
        send(&*agent, "1", TaskPushNotificationConfig { authentication, ..hook(&receiver.url()) }).await.unwrap();
        assert_eq!(receiver.wait_for_end().await[0].header("authorization"), expected, "{scheme}");
    }
}

#[tokio::test]
async fn issuer_is_the_origin_of_the_server() {
    let server = || Server::new(Writer).push(true).push_options(options().keys(Some(keys())));
    let listening = server().bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listening.addr());
    tokio::spawn(listening.run_until(std::future::pending()));
    let receiver = Receiver::accepting().await;
    send(&*client::rest(&address).unwrap(), "1", signed(&receiver.url())).await.unwrap();
    assert_eq!(token_part(&receiver.wait_for_end().await[0], 1)["iss"], address);
    for (server, issuer) in [
        (server().url("https://Agent.Example:443/below"), ISSUER),
        (server(), "a2a-service"),
        (server().push_options(options().keys(Some(keys())).issuer(Some("me".into()))).url(ISSUER), "me"),
    ] {
        let (receiver, agent) = (Receiver::accepting().await, server.into_service());
        send(&*agent, "1", signed(&receiver.url())).await.unwrap();
        assert_eq!(token_part(&receiver.wait_for_end().await[0], 1)["iss"], issuer);
    }
}

/// Like the agent card: without authentication, for pages of every origin, and with revalidation.
#[tokio::test]
async fn key_set_is_public_and_cacheable() {
    let keys = keys().rotated(SigningKey::generate(Algorithm::EdDsa).unwrap());
    let (expected, secret) = (keys.jwks(), Bearer::new(Token::new("sesame").unwrap()));
    let server = Server::new(Writer).authenticator(secret).push(true).base_path("/below");
    let base = crate::bindings::serve(server.push_options(options().keys(Some(keys)))).await;
    let http = crate::bindings::http();
    let url = format!("{base}{JWKS}");
    let mut tag = String::new();
    for url in [&url, &format!("{url}/"), &format!("{base}/below{JWKS}")] {
        let reply = http.get(url).header("origin", "https://evil.example").send().await.unwrap();
        assert_eq!(reply.status(), 200, "{url}");
        let header = |name: &str| reply.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(header("content-type").as_deref(), Some("application/json"));
        assert_eq!(header("cache-control").as_deref(), Some("public, max-age=300"));
        assert_eq!(header("access-control-allow-origin").as_deref(), Some("*"));
        assert_eq!(header("vary"), None, "the keys do not depend on the request");
        tag = header("etag").unwrap();
        let found: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        assert_eq!(found, expected);
        assert!(found["keys"].as_array().unwrap().iter().all(|key| key.get("d").is_none()), "no private key");
    }
    let known = http.get(&url).header("if-none-match", &tag).send().await.unwrap();
    assert_eq!((known.status(), known.headers()["etag"].to_str().unwrap()), (StatusCode::NOT_MODIFIED, &*tag));
    let head = http.head(&url).send().await.unwrap();
    let length = head.headers()["content-length"].to_str().unwrap().to_owned();
    assert_eq!((head.status(), length), (StatusCode::OK, expected.to_string().len().to_string()));
    let preflight = http.request(Method::OPTIONS, &url).header("origin", "https://evil.example");
    let preflight = preflight.header("access-control-request-method", "GET").send().await.unwrap();
    assert_eq!(
        (preflight.status(), &preflight.headers()["access-control-allow-origin"]),
        (StatusCode::NO_CONTENT, &"*".parse().unwrap())
    );
    let post = http.post(&url).send().await.unwrap();
    assert_eq!(
        (post.status(), post.headers()["allow"].to_str().unwrap()),
        (StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD")
    );
}

#[tokio::test]
async fn server_without_keys_has_no_key_set() {
    let without_delivery = Server::new(Writer).push_options(options().keys(Some(keys())));
    for server in [Server::new(Writer), Server::new(Writer).push(true).push_options(options()), without_delivery] {
        let base = crate::bindings::serve(server).await;
        for (method, version) in [(Method::GET, "1.0"), (Method::HEAD, "1.0"), (Method::GET, "0.3")] {
            let request = crate::bindings::http().request(method, format!("{base}{JWKS}"));
            assert_eq!(request.header("a2a-version", version).send().await.unwrap().status(), 404);
        }
    }
}

/// A receiver with the URL of the key set follows a rotation, also one that it was not told of before.
#[tokio::test]
async fn receiver_follows_a_rotation() {
    // A server at a URL that is restarted with other keys.
    let current = Arc::new(Mutex::new(axum::Router::new()));
    let serving = Arc::clone(&current);
    let restart = |keys: &SigningKeys| {
        let options = options().keys(Some(keys.clone()));
        *current.lock() = Server::new(Writer).push(true).push_options(options).url(ISSUER).router();
    };
    let forward = move |request: Request| {
        let mut router = serving.lock().clone();
        async move { router.call(request).await }
    };
    let url = crate::bindings::program(axum::Router::new().fallback(forward)).await;
    let verifier = push::Receiver::new().jwks_url(&format!("{url}{JWKS}")).unwrap().issuer(ISSUER);
    let agent = client::rest(&url).unwrap();
    let notify = async || {
        let receiver = Receiver::accepting().await;
        send(&*agent, "1", signed(&receiver.url())).await.unwrap();
        receiver.wait_for_end().await.remove(0)
    };
    let verify = async |one: &Received| verifier.receive(&one.headers, &one.bytes).await;
    let key_id = |one: &Received| token_part(one, 0)["kid"].as_str().unwrap().to_owned();

    let old = keys();
    restart(&old);
    let first = notify().await;
    assert!(matches!(verify(&first).await, Ok(push::Received::New(_))));
    // The new key is published before it signs.
    let new = keys();
    let read =
        |keys: [&SigningKeys; 2]| SigningKeys::from_pem(&keys.map(|keys| keys.to_pem().unwrap()).concat()).unwrap();
    restart(&read([&old, &new]));
    let second = notify().await;
    assert_eq!(key_id(&second), key_id(&first));
    assert!(matches!(verify(&second).await, Ok(push::Received::New(_))));
    restart(&read([&new, &old]));
    let third = notify().await;
    assert_ne!(key_id(&third), key_id(&first));
    // The receiver has requested the keys recently: the server delivers later.
    assert_eq!(verify(&third).await.unwrap_err().status(), StatusCode::SERVICE_UNAVAILABLE);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    assert!(matches!(verify(&third).await, Ok(push::Received::New(_))));
    // The old key is withdrawn.
    restart(&new);
    assert!(matches!(verify(&notify().await).await, Ok(push::Received::New(_))));
}

/// Starts the program in a directory, and returns its key set and what it logs until it is stopped.
async fn key_set_of_program(directory: &Path, variables: &[(&str, &str)]) -> (Option<Value>, String) {
    let mut command = crate::program::a2a(&["serve", "--listen", "127.0.0.1:0"]);
    command.env_remove("A2A_STORE").envs(variables.iter().copied()).current_dir(directory);
    let (mut child, url) = crate::program::started(command).await;
    let mut errors = child.stderr.take().unwrap();
    let reply = crate::bindings::fetch(format!("{url}{JWKS}")).await.unwrap();
    let is_found = reply.status() == StatusCode::OK;
    let keys = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
    crate::program::signal(&child, "-TERM");
    let mut log = String::new();
    timeout(SOON, errors.read_to_string(&mut log)).await.unwrap().unwrap();
    timeout(SOON, child.wait()).await.unwrap().unwrap();
    assert!(!log.contains("PRIVATE"), "{log}");
    (is_found.then_some(keys), log)
}

#[tokio::test]
async fn program_generates_a_key_at_the_first_start() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a2a.db.keys.pem");
    let enabled = ("A2A_PUSH_ENABLED", "true");
    assert_eq!(key_set_of_program(directory.path(), &[]).await.0, None);
    assert!(!file.exists(), "notifications are off");
    let (first, log) = key_set_of_program(directory.path(), &[enabled]).await;
    assert!(first.is_some() && log.contains("signing key generated"), "{log}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let (second, log) = key_set_of_program(directory.path(), &[enabled]).await;
    assert_eq!((second, log.contains("signing key")), (first.clone(), false), "{log}");
    // Tasks in memory: the key is as short-lived as they are.
    let memory = [enabled, ("A2A_STORE", "memory")];
    let (third, fourth) =
        (key_set_of_program(directory.path(), &memory), key_set_of_program(directory.path(), &memory));
    let keys = [first, third.await.0, fourth.await.0].map(|set| set.unwrap()["keys"][0]["kid"].clone());
    assert!(keys[0] != keys[1] && keys[1] != keys[2], "{keys:?}");
}

#[tokio::test]
async fn program_reads_the_configured_keys() {
    let directory = tempfile::tempdir().unwrap();
    let keys = keys().rotated(SigningKey::generate(Algorithm::EdDsa).unwrap());
    let path = directory.path().join("own.pem");
    std::fs::write(&path, keys.to_pem().unwrap()).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    }
    let variables = [("A2A_PUSH_ENABLED", "true"), ("A2A_SIGNING_KEYS", "own.pem")];
    let (read, log) = key_set_of_program(directory.path(), &variables).await;
    assert_eq!(read, Some(keys.jwks()));
    assert_eq!(log.contains("chmod 600") && log.contains("own.pem"), cfg!(unix), "{log}");
    assert!(!directory.path().join("a2a.db.keys.pem").exists());
    for (file, content, expected) in [("missing.pem", None, "missing.pem"), ("bad.pem", Some("x"), "PKCS#8 PEM")] {
        if let Some(content) = content {
            std::fs::write(directory.path().join(file), content).unwrap();
        }
        let mut command = crate::program::a2a(&["serve", "--listen", "127.0.0.1:0", "--push-enabled"]);
        command.env("A2A_SIGNING_KEYS", file).current_dir(directory.path());
        let output = crate::program::output(command).await;
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains("signing_keys") && errors.contains(expected), "{errors}");
    }
}
