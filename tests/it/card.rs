//! The card tells the truth: what an operator says is on it, each URL that it names can be called, what it does not
//! offer is refused, and a client that has it already is told so (8.2, 8.3, 8.6).

mod shapes;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use a2a_service::{
    agent::{About, Agent, End, Error, Turn, Updates},
    call::Call,
    card::{CardConfig, Network},
    client,
    error::{Error as CallError, ErrorKind},
    pb::{
        v1::{
            ListTasksRequest, Message, OpenIdConnectSecurityScheme, SecurityRequirement, SecurityScheme,
            SendMessageRequest, StringList, a2a_service_server::A2aService, security_scheme::Scheme,
        },
        v03,
    },
    server::Server,
};
use axum::{Router, body::Bytes, extract::State};
use http::{HeaderMap, Method, StatusCode, Uri, header};
use reqwest::Client;
use serde_json::{Value, json};
use tonic::Code;

use crate::{
    scenarios::{get, is, request, send, subscribe, text},
    ways::{Actor, each_way, serve, server},
};

const PATH: &str = "/.well-known/agent-card.json";

async fn card_with(url: &str, headers: &[(&'static str, &str)]) -> Value {
    let mut asked = Client::new().get(format!("{url}{PATH}"));
    for (name, value) in headers {
        asked = asked.header(*name, *value);
    }
    serde_json::from_slice(&asked.send().await.unwrap().bytes().await.unwrap()).unwrap()
}

async fn card(url: &str) -> Value {
    card_with(url, &[]).await
}

/// The interfaces of 1.0, which are those of 0.3 too.
fn interfaces(card: &Value) -> Vec<(&str, &str)> {
    let of = |version: &str| {
        let members = card["supportedInterfaces"].as_array().unwrap().iter();
        let members = members.filter(|it| it["protocolVersion"] == version);
        members.map(|it| (it["protocolBinding"].as_str().unwrap(), it["url"].as_str().unwrap())).collect::<Vec<_>>()
    };
    let additional = card["additionalInterfaces"].as_array().unwrap().iter();
    let additional = additional.map(|it| (it["transport"].as_str().unwrap(), it["url"].as_str().unwrap()));
    assert_eq!((of("0.3"), additional.collect()), (of("1.0"), of("1.0")));
    of("1.0")
}

/// Calls the server at every URL that its card names, in each version, and says over which bindings that was.
async fn call_every_interface(url: &str) -> Vec<String> {
    let card = card(url).await;
    let mut called = Vec::new();
    for (binding, url) in interfaces(&card) {
        let agent = match binding {
            "JSONRPC" => client::json_rpc(url),
            "HTTP+JSON" => client::rest(url),
            "GRPC" => client::grpc(&format!("http://{url}")),
            _ => panic!("{binding}"),
        };
        let list = agent.unwrap().list_tasks(Call::default().request(ListTasksRequest::default())).await;
        assert_eq!(list.unwrap_or_else(|it| panic!("{binding} {url}: {it}")).into_inner().page_size, 50);
        call_classic(binding, url).await;
        called.push(binding.to_owned());
    }
    called
}

/// Calls a server as a client of 0.3 does, and is answered as one.
async fn call_classic(binding: &str, url: &str) {
    let post = async |url: &str, body: Value| {
        let asked = Client::new().post(url).header("content-type", "application/json").body(body.to_string());
        serde_json::from_slice::<Value>(&asked.send().await.unwrap().bytes().await.unwrap()).unwrap()
    };
    match binding {
        "JSONRPC" => {}
        "HTTP+JSON" => {
            let message = json!({"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hello"}]});
            let task = &post(&format!("{url}/v1/message:send"), json!({"message": message})).await["task"];
            assert_eq!(task["history"][0]["content"], json!([{"text": "hello"}]), "{task}");
        }
        "GRPC" => {
            let mut agent = v03::a2a_service_client::A2aServiceClient::connect(format!("http://{url}")).await.unwrap();
            let get = v03::GetTaskRequest { name: "tasks/t-9".into(), ..Default::default() };
            assert_eq!(agent.get_task(get).await.unwrap_err().code(), Code::NotFound);
        }
        _ => panic!("{binding}"),
    }
}

async fn program(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

#[tokio::test]
async fn every_url_works() {
    let url = serve(server()).await;
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
    // By another name of the same host, the card has that one.
    let named = url.replace("127.0.0.1", "localhost");
    assert_eq!(call_every_interface(&named).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
    assert!(interfaces(&card(&named).await).iter().all(|it| it.1.contains("localhost")));
    let other = card_with(&url, &[("host", "b.example:81")]).await;
    assert_eq!(interfaces(&other)[1], ("HTTP+JSON", "http://b.example:81"));
    // What is no host is as if nothing had been said.
    for host in ["user@evil.example", "evil.example/", "a:0"] {
        let card = card_with(&url, &[("host", host)]).await;
        assert_eq!(interfaces(&card)[1], ("HTTP+JSON", url.as_str()), "{host}");
    }
}

#[tokio::test]
async fn every_url_works_below_a_path() {
    let url = program(Router::new().nest("/agents/geo", server().router()).fallback_service(server().router())).await;
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
    let below = format!("{url}/agents/geo");
    assert_eq!(call_every_interface(&below).await, ["JSONRPC", "HTTP+JSON"], "gRPC has no path");
    assert_eq!(interfaces(&card(&below).await)[0].1, format!("{below}/rpc"));
}

/// A server that listens everywhere is called at an address, and not at "any".
#[tokio::test]
async fn any_address_is_no_address() {
    let bound = server().bind("0.0.0.0:0").await.unwrap();
    let port = bound.addr().port();
    tokio::spawn(bound.run_until(std::future::pending()));
    for host in ["no host".to_owned(), format!("0.0.0.0:{port}")] {
        let card = card_with(&format!("http://127.0.0.1:{port}"), &[("host", &host)]).await;
        assert_eq!(interfaces(&card)[1].1, format!("http://127.0.0.1:{port}"));
    }
}

/// A proxy as they are: it takes its prefix off the path, speaks HTTP/1.1, and says what it was asked for.
async fn proxy(upstream: &str) -> String {
    async fn forward(
        State(upstream): State<String>,
        method: Method,
        uri: Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> (StatusCode, Bytes) {
        let path = uri.path_and_query().unwrap().as_str().strip_prefix("/proxied").unwrap();
        let mut upward = Client::new().request(method, format!("{upstream}{path}")).body(body);
        for name in [header::CONTENT_TYPE, "a2a-version".parse().unwrap()] {
            if let Some(value) = headers.get(&name) {
                upward = upward.header(name, value);
            }
        }
        let host = headers[header::HOST].clone();
        let reply = upward.header("x-forwarded-host", host).header("x-forwarded-prefix", "/proxied").send();
        let reply = reply.await.unwrap();
        (reply.status(), reply.bytes().await.unwrap())
    }
    program(Router::new().fallback(forward).with_state(upstream.to_owned())).await + "/proxied"
}

#[tokio::test]
async fn every_url_works_behind_a_proxy() {
    let here: Network = "127.0.0.0/8".parse().unwrap();
    let url = proxy(&serve(server().trusted_proxies([here])).await).await;
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON"]);
    assert_eq!(interfaces(&card(&url).await)[0].1, format!("{url}/rpc"));
    // Where gRPC is let through elsewhere, the operator says so.
    let direct = server().bind("127.0.0.1:0").await.unwrap();
    let grpc = direct.addr().to_string();
    tokio::spawn(direct.run_until(std::future::pending()));
    let url = proxy(&serve(server().trusted_proxies([here]).map_card(|it| it.grpc(grpc))).await).await;
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
}

#[tokio::test]
async fn who_is_believed() {
    let tls = [
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "a.example"),
        ("x-forwarded-port", "443"),
        ("x-forwarded-prefix", "/geo"),
    ];
    let standard = [("forwarded", "for=192.0.2.1;proto=https;host=\"a.example:8443\"")];
    let trusting = serve(server().trusted_proxies(["127.0.0.1".parse().unwrap()])).await;
    let trusted = card_with(&trusting, &tls).await;
    assert_eq!(
        interfaces(&trusted),
        [("JSONRPC", "https://a.example/geo/rpc"), ("HTTP+JSON", "https://a.example/geo")]
    );
    let trusted = card_with(&trusting, &standard).await;
    assert_eq!(interfaces(&trusted)[1..], [("HTTP+JSON", "https://a.example:8443"), ("GRPC", "a.example:8443")]);
    // Those who are not on the list are nobody, and where there is no list nobody is.
    for url in [serve(server().trusted_proxies(["10.0.0.0/8".parse().unwrap()])).await, serve(server()).await] {
        assert_eq!(card_with(&url, &tls).await, card(&url).await);
        assert_eq!(card_with(&url, &standard).await, card(&url).await);
        assert_eq!(interfaces(&card(&url).await)[1].1, url);
    }
    // What the operator says is not asked of a request.
    let named = serve(server().url("https://public.example/x").trusted_proxies(["127.0.0.1".parse().unwrap()])).await;
    assert_eq!(interfaces(&card_with(&named, &tls).await)[0].1, "https://public.example/x/rpc");
}

/// The sample card of the protocol's documentation, as its operator would configure it.
#[tokio::test]
async fn a_card_is_served_as_it_is_configured() {
    let config: CardConfig = serde_json::from_str(include_str!("card/geo.config.json")).unwrap();
    let sample: Value = serde_json::from_str(include_str!("card/geo.json")).unwrap();
    let open_id = sample["securitySchemes"]["google"]["openIdConnectUrl"].as_str().unwrap().to_owned();
    let open_id = OpenIdConnectSecurityScheme { open_id_connect_url: open_id, ..Default::default() };
    let scheme = SecurityScheme { scheme: Some(Scheme::OpenIdConnectSecurityScheme(open_id)) };
    let scopes = StringList { list: ["openid", "profile", "email"].map(Into::into).into() };
    let requirement = SecurityRequirement { schemes: [("google".to_owned(), scopes)].into() };
    let server = Server::new(Actor)
        .card(config)
        .url(sample["url"].as_str().unwrap())
        .map_card(|it| it.security([("google".to_owned(), scheme)], [requirement]));
    let mut card = card_with(&serve(server).await, &[("a2a-version", "1.0")]).await;

    let moved = |card: &mut Value, member: &str| card.as_object_mut().unwrap().remove(member).unwrap();
    let interface = |url: &str, binding: &str, version: &str| json!({"url": url, "protocolBinding": binding, "protocolVersion": version});
    let url = "https://georoute-agent.example.com/a2a/v1";
    let of = |version| [interface(&format!("{url}/rpc"), "JSONRPC", version), interface(url, "HTTP+JSON", version)];
    let expected = json!([of("1.0"), of("0.3")].concat());
    assert_eq!(moved(&mut card, "supportedInterfaces"), expected);
    // The sample's agent delivers to webhooks and has a second card; this server says that it does not.
    let expected = json!({"streaming": true, "pushNotifications": false, "extendedAgentCard": false});
    assert_eq!(moved(&mut card, "capabilities"), expected);
    let url = &sample["securitySchemes"]["google"]["openIdConnectUrl"];
    let expected = json!({"google": {"openIdConnectSecurityScheme": {"openIdConnectUrl": url}}});
    assert_eq!(moved(&mut card, "securitySchemes"), expected);
    let scopes = &sample["security"][0]["google"];
    assert_eq!(moved(&mut card, "securityRequirements"), json!([{"schemes": {"google": {"list": scopes}}}]));
    // All else is as it was, member by member.
    let mut sample = sample.clone();
    for member in ["url", "capabilities", "securitySchemes", "security", "supportsAuthenticatedExtendedCard"] {
        moved(&mut sample, member);
    }
    assert_eq!(card, sample);
}

#[tokio::test]
async fn a_configuration_says_more_than_the_agent() {
    struct Plain;
    impl Agent for Plain {
        async fn run(&self, _: Turn, _: Updates) -> Result<End, Error> {
            Ok(End::Completed(None))
        }

        fn about(&self) -> About {
            About::new("Plain").describe("From the agent").skill("a", "A", ["x"]).provider("Org", "https://org.example")
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
fn a_configuration_is_read_strictly() {
    for (config, blamed) in [
        (json!({"nmae": "x"}), "nmae"),
        (json!({"iconUrl": "x"}), "iconUrl"),
        (json!({"provider": {"organization": "x"}}), "url"),
        (json!({"skills": [{"id": "a", "name": "A", "description": "", "tag": []}]}), "tag"),
        (json!({"capabilities": {"pushNotifications": true}}), "pushNotifications"),
        (json!({"interfaces": [{"url": "x"}]}), "binding"),
    ] {
        let error = serde_json::from_value::<CardConfig>(config).unwrap_err().to_string();
        assert!(error.contains(&format!("`{blamed}`")), "{error}");
    }
    assert_eq!(serde_json::from_str::<CardConfig>("{}").unwrap(), CardConfig::default());
}

/// A client that has the card is told that it holds, by name or by date (8.6.1).
#[tokio::test]
async fn a_card_that_holds_is_not_sent_again() {
    let url = serve(server()).await;
    let http = Client::new();
    for path in [PATH, "/.well-known/agent.json"] {
        let url = format!("{url}{path}");
        let first = http.get(&url).send().await.unwrap();
        let header = |name: &str| first.headers()[name].to_str().unwrap().to_owned();
        let (tag, modified, vary) = (header("etag"), header("last-modified"), header("vary"));
        assert!(tag.starts_with('"') && header("cache-control").contains("max-age="), "{tag}");
        for name in ["host", "forwarded", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix", "a2a-version"]
        {
            assert!(vary.split(", ").any(|it| it == name), "{name}: {vary}");
        }
        let asked = async |method: &Method, name: &'static str, value: &str| {
            let reply = http.request(method.clone(), &url).header(name, value).send().await.unwrap();
            assert_eq!(reply.headers()["etag"], tag[..]);
            assert_eq!(reply.headers()["vary"], vary[..]);
            (reply.status().as_u16(), reply.bytes().await.unwrap().len())
        };
        let length = usize::try_from(first.content_length().unwrap()).unwrap();
        for method in [Method::GET, Method::HEAD] {
            let whole = (200, if method == Method::GET { length } else { 0 });
            for list in [tag.clone(), format!("W/{tag}"), format!("\"x\", {tag}"), "*".to_owned()] {
                assert_eq!(asked(&method, "if-none-match", &list).await, (304, 0), "{list}");
            }
            for list in ["\"x\"", "x", ""] {
                assert_eq!(asked(&method, "if-none-match", list).await, whole, "{list}");
            }
            for date in [&modified, "Fri, 31 Dec 2100 23:59:59 GMT"] {
                assert_eq!(asked(&method, "if-modified-since", date).await, (304, 0), "{date}");
            }
            for date in ["Sun, 06 Nov 1994 08:49:37 GMT", "yesterday"] {
                assert_eq!(asked(&method, "if-modified-since", date).await, whole, "{date}");
            }
        }
        // The name is the better of the two.
        let both = http.get(&url).header("if-none-match", "\"x\"").header("if-modified-since", &modified);
        assert_eq!(both.send().await.unwrap().status(), 200);
        // Another host has another card, and so another name for it.
        let other = http.get(&url).header("host", "b.example").header("if-none-match", &tag).send().await.unwrap();
        assert_eq!(other.status(), 200);
        assert_ne!(other.headers()["etag"], tag[..]);
    }
}

/// A page in a browser may read the card, wherever the page is from, and nothing else.
#[tokio::test]
async fn the_card_is_for_pages_of_other_origins_too() {
    let url = serve(server()).await;
    let http = Client::new();
    let allowed = async |method: Method, path: &str| {
        let asked = http.request(method, format!("{url}{path}")).header("origin", "https://inspector.example");
        let reply = asked.header("access-control-request-method", "GET").send().await.unwrap();
        let header = |name: &str| reply.headers().get(name).map(|it| it.to_str().unwrap().to_owned());
        let cors = ["origin", "methods", "headers"].map(|it| header(&format!("access-control-allow-{it}")));
        (reply.status().as_u16(), cors.map(Option::unwrap_or_default).join("; "))
    };
    assert_eq!(allowed(Method::GET, PATH).await, (200, "*; ; ".to_owned()));
    assert_eq!(allowed(Method::OPTIONS, PATH).await, (204, "*; GET, HEAD; *".to_owned()));
    assert_eq!(allowed(Method::OPTIONS, "/message:send").await, (204, "; ; ".to_owned()));
    assert_eq!(allowed(Method::GET, "/tasks").await, (200, "; ; ".to_owned()));
}

/// Counts its turns.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Agent for Counting {
    async fn run(&self, _: Turn, _: Updates) -> Result<End, Error> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(End::InputRequired(Message::agent("more?")))
    }
}

async fn streaming_that_is_off_is_refused(serve: impl AsyncFn(Server<Counting>) -> Arc<dyn A2aService>) {
    let counting = Counting::default();
    let config: CardConfig = serde_json::from_value(json!({"capabilities": {"streaming": false}})).unwrap();
    let agent = serve(Server::new(counting.clone()).card(config)).await;
    let reason = |it: CallError| it.wire().reason;
    let expected = reason(ErrorKind::StreamingNotSupported.error());
    let refused = agent.send_streaming_message(request(text("", "hello"))).await.err().unwrap();
    assert_eq!(reason(refused.into()), expected);
    assert_eq!(counting.0.load(Ordering::SeqCst), 0, "the agent was not asked");
    // All else works as ever.
    let task = send(&*agent, text("", "hello")).await;
    assert_eq!(reason(subscribe(&*agent, &task.id).await.err().unwrap()), expected);
    assert_eq!(get(&*agent, &task.id).await.unwrap(), task);
}
each_way!(streaming_that_is_off_is_refused);

#[tokio::test]
async fn streaming_that_is_off_is_not_on_the_card() {
    let config: CardConfig = serde_json::from_value(json!({"capabilities": {"streaming": false}})).unwrap();
    let off = card(&serve(server().card(config)).await).await;
    assert_eq!(off["capabilities"]["streaming"], false);
    assert_eq!(card(&serve(server()).await).await["capabilities"]["streaming"], true);
}

async fn an_extension_that_is_required_is_asked_for(serve: impl AsyncFn(Server<Counting>) -> Arc<dyn A2aService>) {
    let counting = Counting::default();
    let config = json!({"extensions": [{"uri": "urn:a"}, {"uri": "urn:b", "required": true}]});
    let config: CardConfig = serde_json::from_value(config).unwrap();
    let agent = serve(Server::new(counting.clone()).card(config)).await;
    let with = |extensions: &[&str]| {
        let extensions = extensions.iter().map(|it| (*it).to_owned()).collect();
        let message = text("", "hello");
        Call { extensions, ..Call::default() }.request::<SendMessageRequest>(message)
    };
    for named in [&[][..], &["urn:a"]] {
        let refused: CallError = agent.send_message(with(named)).await.unwrap_err().into();
        is(&refused, ErrorKind::ExtensionSupportRequired);
        let refused: CallError = agent.send_streaming_message(with(named)).await.err().unwrap().into();
        is(&refused, ErrorKind::ExtensionSupportRequired);
    }
    assert_eq!(counting.0.load(Ordering::SeqCst), 0, "the agent was not asked");
    agent.send_message(with(&["urn:c", "urn:b"])).await.unwrap();
}
each_way!(
    an_extension_that_is_required_is_asked_for,
    not_at_0_3 = "it has no error for a required extension, and does not insist"
);
