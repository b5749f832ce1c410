//! Credentials by the security schemes of the card: API keys, OAuth 2.0 client credentials, and errors that name what is missing.

use std::collections::VecDeque;

use a2a_service::{
    auth::{AuthRequest, Authenticator, Principal},
    card::ScopedSkills,
    pb::v1::{
        AgentSkill, ApiKeySecurityScheme, ClientCredentialsOAuthFlow, OAuth2SecurityScheme, OAuthFlows,
        OpenIdConnectSecurityScheme, SecurityRequirement, SecurityScheme, StringList, o_auth_flows::Flow,
        security_scheme::Scheme,
    },
};
use axum::body::to_bytes;

use super::*;

/// Accepts requests that a function accepts, and declares a scheme.
struct Guard<F> {
    scheme: Scheme,
    accepts: F,
}

#[async_trait::async_trait]
impl<F: Fn(&AuthRequest<'_>) -> bool + Send + Sync + 'static> Authenticator for Guard<F> {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let denied = || ErrorKind::Unauthenticated.because("not with these credentials").challenge("Bearer");
        (self.accepts)(request).then(|| Some(Principal::new("ada"))).ok_or_else(denied)
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        let scopes = StringList { list: vec!["agent.call".to_owned()] };
        let requirement = SecurityRequirement { schemes: [("main".to_owned(), scopes)].into() };
        card.security([("main".to_owned(), SecurityScheme { scheme: Some(self.scheme.clone()) })], [requirement])
    }
}

async fn guarded(scheme: Scheme, accepts: impl Fn(&AuthRequest<'_>) -> bool + Send + Sync + 'static) -> String {
    let server = Server::new(Demo).name("Demo").authenticator(Guard { scheme, accepts }).failed_authentications(0);
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", server.addr());
    tokio::spawn(server.run_until(std::future::pending()));
    url
}

fn api_key(location: &str, name: &str) -> Scheme {
    let (location, name) = (location.to_owned(), name.to_owned());
    Scheme::ApiKeySecurityScheme(ApiKeySecurityScheme { location, name, ..ApiKeySecurityScheme::default() })
}

#[tokio::test]
async fn api_key_is_sent_where_the_card_says() {
    for (location, name) in [("header", "x-secret"), ("query", "k y"), ("cookie", "session")] {
        let accepts = move |request: &AuthRequest<'_>| match location {
            "header" => request.headers.get("x-secret").is_some_and(|value| value == "s&same"),
            "query" => request.uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "k+y=s%26same")),
            _ => request.headers.get("cookie").is_some_and(|value| value == "session=s&same"),
        };
        let url = guarded(api_key(location, name), accepts).await;
        for (binding, version) in ALL {
            if (location, binding) == ("query", Binding::Grpc) {
                continue;
            }
            let builder = quick().binding(binding).version(version);
            let agent = builder.clone().api_key_for("main", "s&same").connect(&url).await.unwrap();
            assert_eq!(agent.send("Hello").await.unwrap().text(), "Hello", "{location} {binding:?} {version:?}");
            let streamed = read(agent.stream("/stream 2 1").await.unwrap()).await;
            assert_eq!(streamed.1, TaskState::Completed);
            assert!(!format!("{agent:?} {builder:?}").contains("s&same"));

            let without = builder.connect(&url).await.unwrap().send("Hello").await.unwrap_err();
            assert_eq!(without.kind(), ErrorKind::Unauthenticated);
            let hint = format!("requires `main` (API key in {location} `{name}`: api_key)");
            assert!(without.to_string().contains(&hint), "{without}");
            let wrong = quick().binding(binding).version(version).api_key("wrong").connect(&url).await.unwrap();
            let error = wrong.send("Hello").await.unwrap_err();
            assert!(error.kind() == ErrorKind::Unauthenticated && !error.to_string().contains("requires"), "{error}");
        }
    }
}

/// Authorization server.
struct Issuer {
    url: String,
    /// Tokens that are valid, and all requests of tokens: authorization and body.
    valid: Arc<Mutex<Vec<String>>>,
    requests: Arc<Mutex<Vec<(String, String)>>>,
}

impl Issuer {
    /// Starts a server whose tokens have this lifetime in seconds. Responds to the first requests with these statuses.
    async fn start(lifetime: u64, failures: &[u16], accepts_basic: bool) -> Self {
        let (valid, requests) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<Mutex<Vec<(String, String)>>>::default());
        let failures = Arc::new(Mutex::new(failures.iter().copied().collect::<VecDeque<_>>()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let metadata = json!({"token_endpoint": format!("{url}/token")}).to_string();
        let (tokens, seen) = (Arc::clone(&valid), Arc::clone(&requests));
        let token = axum::routing::post(move |request: Request<axum::body::Body>| async move {
            let authorization = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
            let body = to_bytes(request.into_body(), 10_000).await.unwrap();
            let count = {
                let mut seen = seen.lock();
                seen.push((authorization.clone().unwrap_or_default(), String::from_utf8(body.to_vec()).unwrap()));
                seen.len()
            };
            if let Some(status) = failures.lock().pop_front() {
                return (StatusCode::from_u16(status).unwrap(), json!({"error": "invalid_scope"}).to_string());
            }
            if authorization.is_some() && !accepts_basic {
                return (StatusCode::UNAUTHORIZED, json!({"error": "invalid_client"}).to_string());
            }
            tokens.lock().push(format!("token{count}"));
            let token =
                json!({"access_token": format!("token{count}"), "token_type": "Bearer", "expires_in": lifetime});
            (StatusCode::OK, token.to_string())
        });
        let routes = Router::new().route("/token", token).route("/metadata", get(async move || metadata));
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Self { url, valid, requests }
    }

    /// Serves an agent that accepts the tokens of this server.
    async fn agent(&self, scheme: Scheme) -> String {
        let valid = Arc::clone(&self.valid);
        guarded(scheme, move |request| {
            let token =
                request.headers.get("authorization").and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
            token.is_some_and(|token| valid.lock().iter().any(|one| one == token))
        })
        .await
    }

    fn flow(&self) -> Scheme {
        let flow = ClientCredentialsOAuthFlow {
            token_url: format!("{}/token", self.url),
            ..ClientCredentialsOAuthFlow::default()
        };
        let flows = Some(OAuthFlows { flow: Some(Flow::ClientCredentials(flow)) });
        Scheme::Oauth2SecurityScheme(OAuth2SecurityScheme { flows, ..OAuth2SecurityScheme::default() })
    }

    fn discovery(&self) -> Scheme {
        let open_id_connect_url = format!("{}/metadata", self.url);
        let scheme = OpenIdConnectSecurityScheme { open_id_connect_url, ..OpenIdConnectSecurityScheme::default() };
        Scheme::OpenIdConnectSecurityScheme(scheme)
    }

    fn count(&self) -> usize {
        self.requests.lock().len()
    }
}

fn with_client() -> ClientBuilder {
    quick().client_credentials("me", "hunter2").unwrap()
}

#[tokio::test]
async fn access_tokens_are_requested_once_and_again_after_a_rejection() {
    for discovers in [false, true] {
        let issuer = Issuer::start(3600, &[], true).await;
        let url = issuer.agent(if discovers { issuer.discovery() } else { issuer.flow() }).await;
        let builder = with_client().trust_origin(&issuer.url).unwrap();
        for (n, (binding, version)) in ALL.into_iter().enumerate() {
            let agent = builder.clone().binding(binding).version(version).connect(&url).await.unwrap();
            let all = futures::future::join_all((0..10).map(|_| agent.send("Hello"))).await;
            assert!(all.iter().all(Result::is_ok), "{all:?}");
            assert_eq!(issuer.count(), 2 * n + 1, "calls share a token");
            issuer.valid.lock().clear();
            let streamed = read(agent.stream("/stream 2 1").await.unwrap()).await;
            assert_eq!((streamed.1, issuer.count()), (TaskState::Completed, 2 * n + 2));
            assert!(!format!("{agent:?} {builder:?}").contains("hunter2"));
        }
        let requests = issuer.requests.lock();
        let expected =
            ("Basic bWU6aHVudGVyMg==".to_owned(), "grant_type=client_credentials&scope=agent.call".to_owned());
        assert!(requests.iter().all(|request| *request == expected), "{requests:?}");
    }
}

#[tokio::test]
async fn access_tokens_are_replaced_before_they_expire() {
    let issuer = Issuer::start(0, &[], true).await;
    let url = issuer.agent(issuer.flow()).await;
    let agent =
        with_client().token_url(&format!("{}/token", issuer.url)).unwrap().scopes("a b").connect(&url).await.unwrap();
    for n in 1..4 {
        assert_eq!(agent.send("Hello").await.unwrap().text(), "Hello");
        assert_eq!(issuer.count(), n);
    }
    assert!(issuer.requests.lock()[0].1.ends_with("scope=a+b"));
}

#[tokio::test]
async fn failures_of_the_token_endpoint_are_typed_and_bounded() {
    // Unavailable for a moment.
    let issuer = Issuer::start(60, &[503, 429], true).await;
    let url = issuer.agent(issuer.flow()).await;
    let trusting = |issuer: &Issuer| with_client().trust_origin(&issuer.url).unwrap();
    let agent = trusting(&issuer).connect(&url).await.unwrap();
    assert_eq!(agent.send("Hello").await.unwrap().text(), "Hello");
    assert_eq!(issuer.count(), 3);
    // Refused.
    let issuer = Issuer::start(60, &[400], true).await;
    let url = issuer.agent(issuer.flow()).await;
    let agent = trusting(&issuer).connect(&url).await.unwrap();
    let error = agent.send("Hello").await.unwrap_err();
    assert_eq!((error.kind(), issuer.count()), (ErrorKind::Unauthenticated, 1));
    assert!(error.to_string().contains("the token endpoint returned 400: invalid_scope"), "{error}");
    // The secret only in the body.
    let issuer = Issuer::start(60, &[], false).await;
    let url = issuer.agent(issuer.flow()).await;
    let agent = trusting(&issuer).connect(&url).await.unwrap();
    assert_eq!(agent.send("Hello").await.unwrap().text(), "Hello");
    issuer.valid.lock().clear();
    assert_eq!(agent.send("Hello").await.unwrap().text(), "Hello");
    let requests: Vec<_> = issuer.requests.lock().iter().map(|(basic, _)| basic.is_empty()).collect();
    assert_eq!(requests, [false, true, true]);
    assert!(issuer.requests.lock()[2].1.ends_with("client_id=me&client_secret=hunter2"));
    // An endpoint that rejects the client with another code.
    let issuer = Issuer::start(60, &[401], false).await;
    let url = issuer.agent(issuer.flow()).await;
    let agent = trusting(&issuer).connect(&url).await.unwrap();
    assert_eq!(agent.send("Hello").await.unwrap().text(), "Hello");
    assert_eq!(issuer.count(), 2);
    // An agent that rejects each token, and a client without tokens.
    let issuer = Issuer::start(60, &[], true).await;
    let deaf = guarded(issuer.flow(), |_| false).await;
    let agent = trusting(&issuer).connect(&deaf).await.unwrap();
    assert_eq!(agent.send("Hello").await.unwrap_err().kind(), ErrorKind::Unauthenticated);
    assert_eq!(issuer.count(), 2, "one more request after a rejection");
    let error = quick().connect(&deaf).await.unwrap().send("Hello").await.unwrap_err();
    assert!(error.to_string().contains("`main` (OAuth 2.0: client_credentials or bearer)"), "{error}");
}

#[tokio::test]
async fn secret_of_a_client_is_sent_to_trusted_token_endpoints_only() {
    let issuer = Issuer::start(60, &[], true).await;
    let url = issuer.agent(issuer.flow()).await;
    let error = with_client().connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(error.to_string().contains("another origin") && error.to_string().contains(&issuer.url), "{error}");

    // The metadata is of the origin of the card, and names another one.
    let (other, seen) = documents(vec![]).await;
    let metadata = json!({"token_endpoint": format!("{other}/token")}).to_string();
    let card = json!({"name": "A", "url": "/rpc", "skills": [], "capabilities": {}, "security": [{"o": []}],
        "securitySchemes": {"o": {"type": "openIdConnect", "openIdConnectUrl": "/metadata"}}});
    let (url, _) = documents(vec![("/.well-known/agent-card.json", card.to_string()), ("/metadata", metadata)]).await;
    let error = with_client().connect(&url).await.unwrap().send("Hello").await.unwrap_err();
    assert!(error.to_string().contains("another origin"), "{error}");
    // A token endpoint that redirects to another origin.
    let to = format!("{other}/token");
    let redirect = move || async move { (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let redirecting = format!("http://{}/token", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(redirect)).await.unwrap() });
    let agent = with_client().token_url(&redirecting).unwrap().connect(&url).await.unwrap();
    let error = agent.send("Hello").await.unwrap_err();
    assert!(error.to_string().contains("the token endpoint returned 307"), "{error}");
    assert!(seen.lock().is_empty());
}

#[tokio::test]
async fn keys_do_not_leave_their_origin() {
    let (other, seen) = documents(vec![]).await;
    let foreign = json!({"name": "A", "url": format!("{other}/rpc"), "skills": [], "capabilities": {},
        "securitySchemes": {"k": {"type": "apiKey", "in": "query", "name": "key"}}});
    let (url, _) = documents(vec![("/.well-known/agent-card.json", foreign.to_string())]).await;
    for builder in [quick().api_key("sesame"), quick().api_key_for("k", "sesame"), with_client()] {
        let error = builder.connect(&url).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Unauthenticated && error.to_string().contains(&other), "{error}");
    }
    assert!(seen.lock().is_empty());
    // The error of an unreachable agent does not contain the URL with the key.
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let foreign = foreign.to_string().replace(&other, &format!("http://{closed}"));
    let card = a2a_service::v03::card::from_json(foreign.as_bytes()).unwrap();
    let agent = quick().retry(Retry::never()).api_key("sesame").with_card(card, None).unwrap();
    let error = agent.send("Hello").await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
}

#[tokio::test]
async fn extended_card_replaces_the_card_on_request() {
    let extended = |builder: ClientBuilder| builder.extended_card(true);
    let accepts = |request: &AuthRequest<'_>| request.headers.get("x-key").is_some_and(|value| value == "1");
    let guard = Guard { scheme: api_key("header", "x-key"), accepts };
    let server = Server::new(Demo).name("Demo").authenticator(guard).failed_authentications(0);
    let skill = AgentSkill { id: "secret".to_owned(), name: "secret".to_owned(), ..AgentSkill::default() };
    let server = server.extended_card(ScopedSkills::new([(None, skill)])).bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", server.addr());
    tokio::spawn(server.run_until(std::future::pending()));
    let has_skill = |agent: &Client| agent.card().skills.iter().any(|skill| skill.id == "secret");
    for (binding, version) in ALL {
        let builder = quick().binding(binding).version(version);
        assert!(!has_skill(&builder.clone().api_key("1").connect(&url).await.unwrap()));
        assert!(
            has_skill(&extended(builder.clone().api_key("1")).connect(&url).await.unwrap()),
            "{binding:?} {version:?}"
        );
        assert!(!has_skill(&extended(builder.clone()).connect(&url).await.unwrap()), "without credentials");
        let error = extended(builder.api_key("2")).connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    }
}
