//! Agent card: configuration, advertised interfaces, capabilities that are off, conditional requests and CORS (8.2, 8.3,
//! 8.6).

mod addresses;
mod extended;
mod shapes;
mod signed;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates},
    call::Call,
    card::CardConfig,
    error::{Error as CallError, ErrorKind},
    pb::v1::{
        AgentCard, OpenIdConnectSecurityScheme, SecurityRequirement, SecurityScheme, SendMessageRequest, StringList,
        security_scheme::Scheme,
    },
    server::Server,
};
use http::Method;
use reqwest::Client;
use serde_json::{Value, json};

use crate::{
    bindings::{Actor, Binding, each_binding, serve, server},
    scenarios::{assert_error_kind, get, request, send, subscribe, text},
};

const PATH: &str = "/.well-known/agent-card.json";

async fn card_with(url: &str, headers: &[(&'static str, &str)]) -> Value {
    let mut request = Client::new().get(format!("{url}{PATH}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    serde_json::from_slice(&request.send().await.unwrap().bytes().await.unwrap()).unwrap()
}

async fn card(url: &str) -> Value {
    card_with(url, &[]).await
}

/// The sample card of the specification, expressed as a configuration.
#[tokio::test]
async fn card_is_served_as_configured() {
    let config: CardConfig = serde_json::from_str(include_str!("card/geo.config.json")).unwrap();
    let sample: Value = serde_json::from_str(include_str!("card/geo.json")).unwrap();
    let open_id = sample["securitySchemes"]["google"]["openIdConnectUrl"].as_str().unwrap().to_owned();
    let open_id = OpenIdConnectSecurityScheme { open_id_connect_url: open_id, ..Default::default() };
    let scheme = SecurityScheme { scheme: Some(Scheme::OpenIdConnectSecurityScheme(open_id)) };
    let scopes = StringList { list: ["openid", "profile", "email"].map(Into::into).into() };
    let requirement = SecurityRequirement { schemes: [("google".to_owned(), scopes)].into() };
    let server = Server::new(Actor::new())
        .card(config)
        .url(sample["url"].as_str().unwrap())
        .map_card(|card| card.security([("google".to_owned(), scheme)], [requirement]));
    let mut card = card_with(&serve(server).await, &[("a2a-version", "1.0")]).await;

    let take = |card: &mut Value, member: &str| card.as_object_mut().unwrap().remove(member).unwrap();
    let interface = |url: &str, binding: &str, version: &str| json!({"url": url, "protocolBinding": binding, "protocolVersion": version});
    let url = "https://georoute-agent.example.com/a2a/v1";
    let interfaces =
        |version| [interface(&format!("{url}/rpc"), "JSONRPC", version), interface(url, "HTTP+JSON", version)];
    let expected = json!([interfaces("1.0"), interfaces("0.3")].concat());
    assert_eq!(take(&mut card, "supportedInterfaces"), expected);
    // The agent of the sample has push notifications and an extended card; this server has neither.
    let expected = json!({"streaming": true, "pushNotifications": false, "extendedAgentCard": false});
    assert_eq!(take(&mut card, "capabilities"), expected);
    let url = &sample["securitySchemes"]["google"]["openIdConnectUrl"];
    let expected = json!({"google": {"openIdConnectSecurityScheme": {"openIdConnectUrl": url}}});
    assert_eq!(take(&mut card, "securitySchemes"), expected);
    let scopes = &sample["security"][0]["google"];
    assert_eq!(take(&mut card, "securityRequirements"), json!([{"schemes": {"google": {"list": scopes}}}]));
    // All other members are equal.
    let mut sample = sample.clone();
    for member in ["url", "capabilities", "securitySchemes", "security", "supportsAuthenticatedExtendedCard"] {
        take(&mut sample, member);
    }
    assert_eq!(card, sample);
}

#[tokio::test]
async fn configuration_overrides_and_extends_the_agent_description() {
    struct Plain;
    impl Agent for Plain {
        async fn run(&self, _: Turn, _: Updates) -> Result<End, Error> {
            Ok(End::Completed(None))
        }

        fn card(&self) -> AgentCard {
            AgentCard::new("Plain")
                .describe("From the agent")
                .skill("a", "A", ["x"])
                .provider("Org", "https://org.example")
        }
    }
    let config = json!({
        "name": "Configured",
        "skills": [{"id": "b", "name": "B", "description": "Does b"}],
        "extensions": [{"uri": "urn:e", "description": "d", "params": {"n": 1, "list": ["x", null]}}],
        "interfaces": [{"url": "https://old.example/rpc", "binding": "JSONRPC", "tenant": "acme", "version": "0.3"}],
    });
    let config: CardConfig = serde_json::from_value(config).unwrap();
    let card = card_with(&serve(Server::new(Plain).card(config)).await, &[("a2a-version", "1.0")]).await;
    assert_eq!((&card["name"], &card["description"]), (&json!("Configured"), &json!("From the agent")));
    assert_eq!(card["provider"], json!({"organization": "Org", "url": "https://org.example"}));
    assert_eq!(card["skills"], json!([{"id": "b", "name": "B", "description": "Does b", "tags": []}]));
    let extensions = json!([{"uri": "urn:e", "description": "d", "params": {"n": 1, "list": ["x", null]}}]);
    assert_eq!(card["capabilities"]["extensions"], extensions);
    let url = "https://old.example/rpc";
    let further = json!({"url": url, "protocolBinding": "JSONRPC", "tenant": "acme", "protocolVersion": "0.3"});
    assert_eq!(card["supportedInterfaces"][6], further);
}

#[test]
fn unknown_or_incomplete_card_configuration_is_rejected() {
    for (config, field) in [
        (json!({"nmae": "x"}), "nmae"),
        (json!({"iconUrl": "x"}), "iconUrl"),
        (json!({"provider": {"organization": "x"}}), "url"),
        (json!({"skills": [{"id": "a", "name": "A", "description": "", "tag": []}]}), "tag"),
        (json!({"capabilities": {"pushNotifications": true}}), "pushNotifications"),
        (json!({"interfaces": [{"url": "x"}]}), "binding"),
    ] {
        let error = serde_json::from_value::<CardConfig>(config).unwrap_err().to_string();
        assert!(error.contains(&format!("`{field}`")), "{error}");
    }
    assert_eq!(serde_json::from_str::<CardConfig>("{}").unwrap(), CardConfig::default());
}

/// A conditional request with a current entity tag or date gets 304 (8.6.1).
#[tokio::test]
async fn unchanged_card_is_answered_with_304() {
    let url = serve(server().allowed_hosts(["b.example".parse().unwrap()])).await;
    let http = Client::new();
    for path in [PATH, "/.well-known/agent.json"] {
        let url = format!("{url}{path}");
        let first = http.get(&url).send().await.unwrap();
        let header = |name: &str| first.headers()[name].to_str().unwrap().to_owned();
        let (tag, modified, vary) = (header("etag"), header("last-modified"), header("vary"));
        assert!(tag.starts_with('"') && header("cache-control").contains("max-age="), "{tag}");
        for name in ["host", "forwarded", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix", "a2a-version"]
        {
            assert!(vary.split(", ").any(|field| field == name), "{name}: {vary}");
        }
        let conditional = async |method: &Method, name: &'static str, value: &str| {
            let reply = http.request(method.clone(), &url).header(name, value).send().await.unwrap();
            assert_eq!(reply.headers()["etag"], tag[..]);
            assert_eq!(reply.headers()["vary"], vary[..]);
            (reply.status().as_u16(), reply.bytes().await.unwrap().len())
        };
        let length = usize::try_from(first.content_length().unwrap()).unwrap();
        for method in [Method::GET, Method::HEAD] {
            let whole = (200, if method == Method::GET { length } else { 0 });
            for list in [tag.clone(), format!("W/{tag}"), format!("\"x\", {tag}"), "*".to_owned()] {
                assert_eq!(conditional(&method, "if-none-match", &list).await, (304, 0), "{list}");
            }
            for list in ["\"x\"", "x", ""] {
                assert_eq!(conditional(&method, "if-none-match", list).await, whole, "{list}");
            }
            for date in [&modified, "Fri, 31 Dec 2100 23:59:59 GMT"] {
                assert_eq!(conditional(&method, "if-modified-since", date).await, (304, 0), "{date}");
            }
            for date in ["Sun, 06 Nov 1994 08:49:37 GMT", "yesterday"] {
                assert_eq!(conditional(&method, "if-modified-since", date).await, whole, "{date}");
            }
        }
        // `If-None-Match` takes precedence over `If-Modified-Since`.
        let both = http.get(&url).header("if-none-match", "\"x\"").header("if-modified-since", &modified);
        assert_eq!(both.send().await.unwrap().status(), 200);
        // A card for another host has another entity tag.
        let other = http.get(&url).header("host", "b.example").header("if-none-match", &tag).send().await.unwrap();
        assert_eq!(other.status(), 200);
        assert_ne!(other.headers()["etag"], tag[..]);
    }
}

/// Browsers may read the card from any origin, and nothing else.
#[tokio::test]
async fn card_may_be_read_across_origins() {
    let url = serve(server()).await;
    let http = Client::new();
    let allowed = async |method: Method, path: &str| {
        let request = http.request(method, format!("{url}{path}")).header("origin", "https://inspector.example");
        let reply = request.header("access-control-request-method", "GET").send().await.unwrap();
        let header = |name: &str| reply.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let cors = ["origin", "methods", "headers"].map(|suffix| header(&format!("access-control-allow-{suffix}")));
        (reply.status().as_u16(), cors.map(Option::unwrap_or_default).join("; "))
    };
    assert_eq!(allowed(Method::GET, PATH).await, (200, "*; ; ".to_owned()));
    assert_eq!(allowed(Method::OPTIONS, PATH).await, (204, "*; GET, HEAD; *".to_owned()));
    assert_eq!(allowed(Method::OPTIONS, "/message:send").await, (403, "; ; ".to_owned()));
    assert_eq!(allowed(Method::GET, "/tasks").await, (403, "; ; ".to_owned()));
}

/// Agent that counts its turns.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Agent for Counting {
    async fn run(&self, _: Turn, _: Updates) -> Result<End, Error> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(End::input_required("more?"))
    }
}

async fn disabled_streaming_is_rejected(serve: Binding) {
    let counting = Counting::default();
    let config: CardConfig = serde_json::from_value(json!({"capabilities": {"streaming": false}})).unwrap();
    let agent = serve(Server::new(counting.clone()).card(config)).await;
    let reason = |error: CallError| error.wire().reason;
    let expected = reason(ErrorKind::StreamingNotSupported.error());
    let refused = agent.send_streaming_message(request(text("", "hello"))).await.err().unwrap();
    assert_eq!(reason(refused.into()), expected);
    assert_eq!(counting.0.load(Ordering::SeqCst), 0, "no turn was started");
    // All other operations work.
    let task = send(&*agent, text("", "hello")).await;
    assert_eq!(reason(subscribe(&*agent, &task.id).await.err().unwrap()), expected);
    assert_eq!(get(&*agent, &task.id).await.unwrap(), task);
}
each_binding!(disabled_streaming_is_rejected);

#[tokio::test]
async fn disabled_streaming_is_not_on_the_card() {
    let config: CardConfig = serde_json::from_value(json!({"capabilities": {"streaming": false}})).unwrap();
    let off = card(&serve(server().card(config)).await).await;
    assert_eq!(off["capabilities"]["streaming"], false);
    assert_eq!(card(&serve(server()).await).await["capabilities"]["streaming"], true);
}

async fn missing_required_extension_is_rejected(serve: Binding) {
    let counting = Counting::default();
    let config = json!({"extensions": [{"uri": "urn:a"}, {"uri": "urn:b", "required": true}]});
    let config: CardConfig = serde_json::from_value(config).unwrap();
    let agent = serve(Server::new(counting.clone()).card(config)).await;
    let with = |extensions: &[&str]| {
        let extensions = extensions.iter().map(|uri| (*uri).to_owned()).collect();
        let message = text("", "hello");
        Call { extensions, ..Call::default() }.request::<SendMessageRequest>(message)
    };
    for named in [&[][..], &["urn:a"]] {
        let refused: CallError = agent.send_message(with(named)).await.unwrap_err().into();
        assert_error_kind(&refused, ErrorKind::ExtensionSupportRequired);
        let refused: CallError = agent.send_streaming_message(with(named)).await.err().unwrap().into();
        assert_error_kind(&refused, ErrorKind::ExtensionSupportRequired);
    }
    assert_eq!(counting.0.load(Ordering::SeqCst), 0, "no turn was started");
    agent.send_message(with(&["urn:c", "urn:b"])).await.unwrap();
}
each_binding!(missing_required_extension_is_rejected, not_at_0_3 = "it has no error for a missing required extension");
