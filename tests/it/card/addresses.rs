//! Each URL that a card names can be called, however its server is reached.

use a2a_service::{
    call::Call,
    card::Network,
    client,
    pb::{v1::ListTasksRequest, v03},
};
use axum::{Router, body::Bytes, extract::State};
use http::{HeaderMap, Method, StatusCode, Uri, header};
use reqwest::Client;
use serde_json::{Value, json};
use tonic::Code;

use super::{card, card_with};
use crate::bindings::{program, serve, server};

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

async fn post(url: &str, body: Value) -> Value {
    let asked = Client::new().post(url).header("content-type", "application/json").body(body.to_string());
    serde_json::from_slice(&asked.send().await.unwrap().bytes().await.unwrap()).unwrap()
}

/// Calls a server as a client of 0.3 does, and is answered as one.
async fn call_classic(binding: &str, url: &str) {
    match binding {
        "JSONRPC" => {
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "t-9"}});
            let error = &post(url, call).await["error"];
            assert_eq!((&error["code"], error.get("data")), (&json!(-32001), None), "{error}");
        }
        "HTTP+JSON" => {
            let message = json!({"messageId": "m", "role": "ROLE_USER", "content": [{"text": "hello"}]});
            let task = &post(&format!("{url}/v1/message:send"), json!({"message": message})).await["task"];
            assert_eq!(task["history"][0]["content"], json!([{"text": "hello"}]), "{task}");
        }
        "GRPC" => {
            let mut agent =
                a2a_service::v03::pb::a2a_service_client::A2aServiceClient::connect(format!("http://{url}"))
                    .await
                    .unwrap();
            let get = v03::GetTaskRequest { name: "tasks/t-9".into(), ..Default::default() };
            assert_eq!(agent.get_task(get).await.unwrap_err().code(), Code::NotFound);
        }
        _ => panic!("{binding}"),
    }
}

#[tokio::test]
async fn every_url_works() {
    let url = serve(server()).await;
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
    // By another name of the same host, the card has that one.
    let named = url.replace("127.0.0.1", "localhost");
    assert_eq!(call_every_interface(&named).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
    assert!(interfaces(&card(&named).await).iter().all(|it| it.1.contains("localhost")));
    let named = serve(server().allowed_hosts(["b.example".parse().unwrap()])).await;
    let other = card_with(&named, &[("host", "b.example:81")]).await;
    assert_eq!(interfaces(&other)[1], ("HTTP+JSON", "http://b.example:81"));
    // What is no host is as if nothing had been said, and where hosts are checked it is refused.
    let bound = server().insecure(true).bind("0.0.0.0:0").await.unwrap();
    let any = format!("http://127.0.0.1:{}", bound.addr().port());
    tokio::spawn(bound.run_until(std::future::pending()));
    for host in ["user@evil.example", "evil.example/", "a:0"] {
        let card = card_with(&any, &[("host", host)]).await;
        assert_eq!(interfaces(&card)[1], ("HTTP+JSON", any.as_str()), "{host}");
        assert_eq!(card_with(&url, &[("host", host)]).await["error"]["code"], 421, "{host}");
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

/// All is served below the base path and at the root, and the card of each names its own URLs.
#[tokio::test]
async fn every_url_works_below_the_base_path() {
    let url = serve(server().base_path("/a2a/v1")).await;
    let below = format!("{url}/a2a/v1");
    assert_eq!(call_every_interface(&below).await, ["JSONRPC", "HTTP+JSON"], "gRPC has no path");
    assert_eq!(interfaces(&card(&below).await)[0].1, format!("{below}/rpc"));
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
    // In a program that mounts the router below a path of its own.
    let url = program(Router::new().nest("/agents", server().base_path("/geo").router())).await;
    assert_eq!(call_every_interface(&format!("{url}/agents/geo")).await, ["JSONRPC", "HTTP+JSON"]);
}

/// The path of the public URL needs no proxy that takes it off.
#[tokio::test]
async fn the_path_of_the_public_url_is_served() {
    let url = serve(server().url("https://agent.example/a2a/v1")).await;
    for base in [url.clone(), format!("{url}/a2a/v1")] {
        let card = card(&base).await;
        assert_eq!(interfaces(&card)[0], ("JSONRPC", "https://agent.example/a2a/v1/rpc"));
        for rpc in ["/rpc", "", "/"] {
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}});
            assert_eq!(post(&format!("{base}{rpc}"), call).await["result"]["pageSize"], 50, "{base}{rpc}");
        }
        let tasks = client::rest(&base).unwrap().list_tasks(Call::default().request(ListTasksRequest::default())).await;
        assert_eq!(tasks.unwrap().into_inner().page_size, 50);
        call_classic("HTTP+JSON", &base).await;
    }
    // An operator whose proxy takes it off can say so.
    let url = serve(server().url("https://agent.example/a2a/v1").base_path("/")).await;
    assert_eq!(Client::new().get(format!("{url}/a2a/v1/tasks")).send().await.unwrap().status(), 404);
}

#[tokio::test]
async fn json_rpc_has_the_path_that_is_configured() {
    let url = serve(server().rpc_path("/agents/geo").base_path("/base")).await;
    for base in [url.clone(), format!("{url}/base")] {
        assert_eq!(interfaces(&card(&base).await)[0], ("JSONRPC", &*format!("{base}/agents/geo")));
        assert_eq!(call_every_interface(&base).await[..2], ["JSONRPC", "HTTP+JSON"]);
        call_classic("JSONRPC", &format!("{base}/rpc")).await;
    }
    let url = serve(server().rpc_path("/")).await;
    assert_eq!(interfaces(&card(&url).await)[0], ("JSONRPC", &*format!("{url}/")));
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
}

/// Some clients look for the card below the URL of an interface.
#[tokio::test]
async fn the_card_is_found_below_the_url_of_json_rpc() {
    let url = serve(server().rpc_path("/agents/geo").base_path("/base")).await;
    for (base, ways) in [(url.clone(), 3), (format!("{url}/base"), 2)] {
        let card = card(&base).await;
        assert_eq!(interfaces(&card).len(), ways);
        for way in ["/rpc", "/a2a", "/agents/geo"] {
            for path in ["/.well-known/agent-card.json", "/.well-known/agent.json", "/.well-known/agent-card.json/"] {
                let reply = Client::new().get(format!("{base}{way}{path}")).send().await.unwrap();
                assert_eq!(reply.status(), 200, "{way}{path}");
                assert_eq!(serde_json::from_slice::<Value>(&reply.bytes().await.unwrap()).unwrap(), card);
            }
        }
    }
}

/// A server that listens everywhere is called at an address, and not at "any".
#[tokio::test]
async fn any_address_is_no_address() {
    let bound = server().insecure(true).bind("0.0.0.0:0").await.unwrap();
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
