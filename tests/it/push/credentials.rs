//! Credentials that the server presents to webhooks, requested from a token endpoint.

use a2a_service::push::{Algorithm, ClientCredentials, HostCredentials, SigningKeys};
use axum::extract::RawForm;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;

use super::*;

const CLIENT_SECRET: &str = "hunter2 +/%";

/// Token endpoint that returns `t1`, `t2` and so on.
#[derive(Clone)]
struct TokenEndpoint {
    /// Requests: `Authorization` and form.
    requests: Arc<Mutex<Vec<(String, String)>>>,
    url: String,
}

impl TokenEndpoint {
    /// Starts a token endpoint whose first requests fail.
    async fn start(failures: usize) -> Self {
        let requests = Arc::<Mutex<Vec<(String, String)>>>::default();
        let seen = Arc::clone(&requests);
        let respond = move |headers: HeaderMap, RawForm(form): RawForm| async move {
            let authorization = headers["authorization"].to_str().unwrap().to_owned();
            let mut seen = seen.lock();
            seen.push((authorization, String::from_utf8(form.to_vec()).unwrap()));
            match seen.len().checked_sub(failures) {
                None | Some(0) => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
                Some(n) => {
                    let token = json!({ "access_token": format!("t{n}"), "token_type": "Bearer", "expires_in": 3600 });
                    (StatusCode::OK, token.to_string())
                }
            }
        };
        let url = crate::bindings::program(axum::Router::new().route("/token", axum::routing::post(respond))).await;
        Self { requests, url: format!("{url}/token") }
    }

    /// Options with credentials for a receiver.
    fn options_for(&self, receiver: &Receiver) -> PushOptions {
        let client = ClientCredentials::new(&self.url, "a2a client", CLIENT_SECRET).unwrap();
        let client = client.scope("notify send").audience("https://hooks.example").resource("urn:hooks");
        let credentials = HostCredentials::default().host(&receiver.addr.to_string(), client).unwrap();
        assert!(!format!("{credentials:?}").contains("hunter"));
        options().credentials(Some(Arc::new(credentials)))
    }

    fn count(&self) -> usize {
        self.requests.lock().len()
    }
}

fn agent(options: PushOptions) -> Arc<dyn A2aService> {
    Server::new(Writer).push(true).push_options(options).into_service()
}

fn unauthorized(requires: &'static str) -> impl Fn(&HeaderMap) -> StatusCode {
    move |headers| if headers["authorization"] == requires { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

#[tokio::test]
async fn token_is_requested_once_and_used_for_its_host() {
    let (receiver, other) = (Receiver::accepting().await, Receiver::accepting().await);
    let endpoint = TokenEndpoint::start(0).await;
    let agent = agent(endpoint.options_for(&receiver));
    assert_eq!(endpoint.count(), 0, "not before it is needed");
    for _ in 0..3 {
        send(&*agent, "2", hook(&receiver.url())).await.unwrap();
    }
    send(&*agent, "2", hook(&other.url())).await.unwrap();
    let is_end = |one: &Received| state(&one.body).is_some_and(|state| state.ends_with("COMPLETED"));
    let notifications = receiver.wait(|all| all.iter().filter(|one| is_end(one)).count() == 3).await;
    assert!(notifications.iter().all(|one| one.header("authorization") == "Bearer t1"), "{notifications:?}");
    assert!(notifications.iter().all(|one| one.header("a2a-notification-token") == SECRET), "{notifications:?}");
    assert!(other.wait_for_end().await.iter().all(|one| one.header("authorization").is_empty()));
    let requests = endpoint.requests.lock().clone();
    let [(client, form)] = &requests[..] else { panic!("{requests:?}") };
    let client = BASE64_STANDARD.decode(client.strip_prefix("Basic ").unwrap()).unwrap();
    assert_eq!(String::from_utf8(client).unwrap(), "a2a+client:hunter2+%2B%2F%25");
    let audience = "audience=https%3A%2F%2Fhooks.example&resource=urn%3Ahooks";
    assert_eq!(*form, format!("grant_type=client_credentials&scope=notify+send&{audience}"));
}

/// What the client asks for comes first; a signed token is the last resort.
#[tokio::test]
async fn credentials_of_the_configuration_take_precedence() {
    let endpoint = TokenEndpoint::start(0).await;
    for (scheme, credentials, expected) in
        [("Bearer", "own", "Bearer own"), ("ApiKey", "key", ""), ("Bearer", "", "Bearer t1"), ("", "", "Bearer t2")]
    {
        let receiver = Receiver::accepting().await;
        let keys = SigningKeys::generate(Algorithm::EdDsa).unwrap();
        let agent = agent(endpoint.options_for(&receiver).keys(Some(keys)));
        let authentication = Some(AuthenticationInfo { scheme: scheme.into(), credentials: credentials.into() });
        let authentication = authentication.filter(|info| !info.scheme.is_empty());
        send(&*agent, "1", TaskPushNotificationConfig { authentication, ..hook(&receiver.url()) }).await.unwrap();
        assert_eq!(receiver.wait_for_end().await[0].header("authorization"), expected, "{scheme} {credentials}");
    }
    assert_eq!(endpoint.count(), 2);
}

#[tokio::test]
async fn rejected_token_is_replaced_once() {
    let is_accepted = unauthorized("Bearer t2");
    let receiver = Receiver::answering(move |_, headers| status(is_accepted(headers))).await;
    let endpoint = TokenEndpoint::start(0).await;
    let agent = agent(endpoint.options_for(&receiver));
    let start = Instant::now();
    send(&*agent, "2", hook(&receiver.url())).await.unwrap();
    let notifications = receiver.wait_for_end().await;
    let tokens: Vec<&str> = notifications.iter().map(|one| one.header("authorization")).collect();
    assert_eq!((tokens[0], tokens[1], endpoint.count()), ("Bearer t1", "Bearer t2", 2));
    assert!(tokens[2..].iter().all(|token| *token == "Bearer t2"), "{tokens:?}");
    assert_eq!(notifications[0].header("webhook-id"), notifications[1].header("webhook-id"));
    assert!(start.elapsed() < Duration::from_secs(1), "in the same attempt");
    // A receiver that rejects the new token too.
    let rejecting = Receiver::answering(|_, _| status(StatusCode::UNAUTHORIZED)).await;
    let store = Arc::new(Memory::default());
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let server = Server::new(Writer).store(shared).push(true).push_options(endpoint.options_for(&rejecting));
    let agent = server.into_service();
    let task = send(&*agent, "1", hook(&rejecting.url())).await.unwrap();
    assert_eq!(dead_letter(&*store, &task.id).await, "the receiver returned 401");
    let tokens: Vec<_> = rejecting.requests.lock().iter().map(|one| one.header("authorization").to_owned()).collect();
    assert_eq!(tokens, ["Bearer t3", "Bearer t4"]);
}

/// Without credentials of the server, 401 ends the delivery.
#[tokio::test]
async fn rejected_credentials_of_the_configuration_are_final() {
    let rejecting = Receiver::answering(|_, _| status(StatusCode::UNAUTHORIZED)).await;
    let store = Arc::new(Memory::default());
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let endpoint = TokenEndpoint::start(0).await;
    let server = Server::new(Writer).store(shared).push(true).push_options(endpoint.options_for(&rejecting));
    let agent = server.into_service();
    let authentication = Some(AuthenticationInfo { scheme: "Bearer".into(), credentials: "own".into() });
    let config = TaskPushNotificationConfig { authentication, ..hook(&rejecting.url()) };
    let task = send(&*agent, "1", config).await.unwrap();
    assert_eq!(dead_letter(&*store, &task.id).await, "the receiver returned 401");
    assert_eq!((rejecting.requests.lock().len(), endpoint.count()), (1, 0));
}

#[tokio::test]
async fn delivery_is_retried_while_the_token_endpoint_fails() {
    let receiver = Receiver::accepting().await;
    let endpoint = TokenEndpoint::start(2).await;
    let agent = agent(endpoint.options_for(&receiver));
    send(&*agent, "1", hook(&receiver.url())).await.unwrap();
    let notifications = receiver.wait_for_end().await;
    assert!(notifications.iter().all(|one| one.header("authorization") == "Bearer t1"), "{notifications:?}");
    assert_eq!(endpoint.count(), 3);
}
