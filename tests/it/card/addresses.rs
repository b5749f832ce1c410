//! URLs on the agent card: every one can be called, on any host, below base paths and behind proxies.

use a2a_service::{
    call::Call,
    card::{CardConfig, Network},
    client,
    pb::{v1::ListTasksRequest, v03},
};
use axum::{Router, body::Bytes, extract::State};
use http::{HeaderMap, Method, StatusCode, Uri, header};
use reqwest::Client;
use serde_json::{Value, json};
use tonic::Code;

use super::{card, card_with};
use crate::{
    bindings::{program, serve, server},
    conformance::CheckLayer,
};

/// Returns the interfaces of 1.0, after checking that those of 0.3 are equal.
fn interfaces(card: &Value) -> Vec<(&str, &str)> {
    let interfaces_of = |version: &str| {
        let members = card["supportedInterfaces"].as_array().unwrap().iter();
        let members = members.filter(|interface| interface["protocolVersion"] == version);
        members
            .map(|interface| (interface["protocolBinding"].as_str().unwrap(), interface["url"].as_str().unwrap()))
            .collect::<Vec<_>>()
    };
    let additional = card["additionalInterfaces"].as_array().unwrap().iter();
    let additional =
        additional.map(|interface| (interface["transport"].as_str().unwrap(), interface["url"].as_str().unwrap()));
    assert_eq!((interfaces_of("0.3"), additional.collect()), (interfaces_of("1.0"), interfaces_of("1.0")));
    interfaces_of("1.0")
}

/// Calls every URL of the card in each protocol version, and returns the bindings.
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
        assert_eq!(list.unwrap_or_else(|error| panic!("{binding} {url}: {error}")).into_inner().page_size, 50);
        call_v03(binding, url).await;
        called.push(binding.to_owned());
    }
    called
}

async fn post(url: &str, body: Value) -> Value {
    let request = Client::new().post(url).header("content-type", "application/json").body(body.to_string());
    serde_json::from_slice(&request.send().await.unwrap().bytes().await.unwrap()).unwrap()
}

/// Calls the server as a client of 0.3, and checks the form of the response.
async fn call_v03(binding: &str, url: &str) {
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
async fn every_url_on_the_card_can_be_called() {
    let url = serve(server()).await;
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
    // The card has the host name of the request.
    let other_name = url.replace("127.0.0.1", "localhost");
    assert_eq!(call_every_interface(&other_name).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
    assert!(interfaces(&card(&other_name).await).iter().all(|interface| interface.1.contains("localhost")));
    let other_name = serve(server().allowed_hosts(["b.example".parse().unwrap()])).await;
    let other = card_with(&other_name, &[("host", "b.example:81")]).await;
    assert_eq!(interfaces(&other)[1], ("HTTP+JSON", "http://b.example:81"));
    // An invalid host is ignored, or rejected if hosts are checked.
    let bound = server().insecure(true).layer(CheckLayer).bind("0.0.0.0:0").await.unwrap();
    let any = format!("http://127.0.0.1:{}", bound.addr().port());
    tokio::spawn(bound.run_until(std::future::pending()));
    for host in ["user@evil.example", "evil.example/", "a:0"] {
        let card = card_with(&any, &[("host", host)]).await;
        assert_eq!(interfaces(&card)[1], ("HTTP+JSON", any.as_str()), "{host}");
        assert_eq!(card_with(&url, &[("host", host)]).await["error"]["code"], 421, "{host}");
    }
}

#[tokio::test]
async fn every_url_can_be_called_below_a_nested_path() {
    let url = program(Router::new().nest("/agents/geo", server().router()).fallback_service(server().router())).await;
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
    let below = format!("{url}/agents/geo");
    assert_eq!(call_every_interface(&below).await, ["JSONRPC", "HTTP+JSON"], "gRPC has no path");
    assert_eq!(interfaces(&card(&below).await)[0].1, format!("{below}/rpc"));
}

/// Every endpoint is served below the base path and at the root, and each card has its own URLs.
#[tokio::test]
async fn every_url_can_be_called_below_the_base_path() {
    let url = serve(server().base_path("/a2a/v1")).await;
    let below = format!("{url}/a2a/v1");
    assert_eq!(call_every_interface(&below).await, ["JSONRPC", "HTTP+JSON"], "gRPC has no path");
    assert_eq!(interfaces(&card(&below).await)[0].1, format!("{below}/rpc"));
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
    // With the router nested below a path.
    let url = program(Router::new().nest("/agents", server().base_path("/geo").router())).await;
    assert_eq!(call_every_interface(&format!("{url}/agents/geo")).await, ["JSONRPC", "HTTP+JSON"]);
}

/// The path of the public URL is served, so that no proxy has to remove it.
#[tokio::test]
async fn path_of_the_public_url_is_served() {
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
        call_v03("HTTP+JSON", &base).await;
    }
    // For a proxy that removes it, the base path can be set.
    let url = serve(server().url("https://agent.example/a2a/v1").base_path("/")).await;
    assert_eq!(Client::new().get(format!("{url}/a2a/v1/tasks")).send().await.unwrap().status(), 404);
}

/// Some clients request the card below the URL of an interface.
#[tokio::test]
async fn card_is_served_below_the_json_rpc_path() {
    let url = serve(server().base_path("/base")).await;
    for (base, interface_count) in [(url.clone(), 3), (format!("{url}/base"), 2)] {
        let card = card(&base).await;
        assert_eq!(interfaces(&card).len(), interface_count);
        for rpc_path in ["/rpc", "/a2a"] {
            for path in ["/.well-known/agent-card.json", "/.well-known/agent.json", "/.well-known/agent-card.json/"] {
                let reply = Client::new().get(format!("{base}{rpc_path}{path}")).send().await.unwrap();
                assert_eq!(reply.status(), 200, "{rpc_path}{path}");
                assert_eq!(serde_json::from_slice::<Value>(&reply.bytes().await.unwrap()).unwrap(), card);
            }
        }
    }
}

/// The card of a server that listens on every address has the address of the request, not the wildcard.
#[tokio::test]
async fn wildcard_address_is_not_on_the_card() {
    let bound = server().insecure(true).layer(CheckLayer).bind("0.0.0.0:0").await.unwrap();
    let port = bound.addr().port();
    tokio::spawn(bound.run_until(std::future::pending()));
    for host in ["no host".to_owned(), format!("0.0.0.0:{port}")] {
        let card = card_with(&format!("http://127.0.0.1:{port}"), &[("host", &host)]).await;
        assert_eq!(interfaces(&card)[1].1, format!("http://127.0.0.1:{port}"));
    }
}

/// Proxy that removes its prefix from the path, uses HTTP/1.1, and sends `X-Forwarded-*` headers.
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
async fn every_url_can_be_called_behind_a_proxy() {
    let here: Network = "127.0.0.0/8".parse().unwrap();
    let url = proxy(&serve(server().trusted_proxies([here])).await).await;
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON"]);
    assert_eq!(interfaces(&card(&url).await)[0].1, format!("{url}/rpc"));
    // The operator can advertise another address for gRPC.
    let direct = server().layer(CheckLayer).bind("127.0.0.1:0").await.unwrap();
    let grpc = direct.addr().to_string();
    tokio::spawn(direct.run_until(std::future::pending()));
    let url =
        proxy(&serve(server().trusted_proxies([here]).card(CardConfig::default().grpc_url(Some(grpc)))).await).await;
    assert_eq!(call_every_interface(&url).await, ["JSONRPC", "HTTP+JSON", "GRPC"]);
}

#[tokio::test]
async fn forwarded_headers_are_trusted_only_from_trusted_proxies() {
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
    // Headers of other peers are ignored, and without a list those of all.
    for url in [serve(server().trusted_proxies(["10.0.0.0/8".parse().unwrap()])).await, serve(server()).await] {
        assert_eq!(card_with(&url, &tls).await, card(&url).await);
        assert_eq!(card_with(&url, &standard).await, card(&url).await);
        assert_eq!(interfaces(&card(&url).await)[1].1, url);
    }
    // The configured URL takes precedence over the request.
    let other_name =
        serve(server().url("https://public.example/x").trusted_proxies(["127.0.0.1".parse().unwrap()])).await;
    assert_eq!(interfaces(&card_with(&other_name, &tls).await)[0].1, "https://public.example/x/rpc");
}
