//! Documents of a running server.

use a2a_service::{
    auth::{Bearer, Token},
    protocol::Version,
};
use reqwest::{Client, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::bindings;

async fn get(url: &str, path: &str) -> Response {
    reqwest::get(format!("{url}{path}")).await.unwrap()
}

async fn json(reply: Response) -> Value {
    assert_eq!(reply.status(), StatusCode::OK);
    serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap()
}

#[tokio::test]
async fn documents_have_the_name_and_the_url_of_the_server() {
    let url = bindings::serve(bindings::server().name("Geo").description("Plans routes.")).await;
    let document = json(get(&url, "/openapi.json").await).await;
    assert_eq!(document["info"]["title"], "Geo");
    assert!(document["info"]["description"].as_str().unwrap().starts_with("Plans routes."), "{}", document["info"]);
    assert_eq!(document["info"]["version"], "1.0");
    assert_eq!(document["servers"], json!([{"url": url}]));
    assert_eq!((&document["security"], &document["components"]["securitySchemes"]), (&json!([]), &Value::Null));
    assert!(document["paths"]["/tasks/{id}"].is_object());

    let v03 = json(get(&url, "/openapi/v0.3.json").await).await;
    assert_eq!((&v03["servers"][0]["url"], &v03["info"]["version"]), (&json!(url), &json!("0.3")));
    let openrpc = json(get(&url, "/openapi/openrpc.json").await).await;
    assert_eq!(openrpc["servers"][0]["url"], format!("{url}/rpc"));
    let schema = json(get(&url, "/openapi/schemas/lf.a2a.v1.Task.json").await).await;
    assert_eq!(schema["properties"]["status"]["$ref"], "lf.a2a.v1.TaskStatus.json");

    let yaml = get(&url, "/openapi.yaml").await;
    assert_eq!(yaml.headers()[header::CONTENT_TYPE], "application/yaml");
    let yaml = yaml.text().await.unwrap();
    assert!(yaml.starts_with("openapi: 3.1.0\n") && yaml.contains(&format!("- url: {url}\n")), "{}", &yaml[..400]);
    let proto = get(&url, "/openapi/proto/lf/a2a/v1/a2a.proto").await;
    assert_eq!(proto.headers()[header::CONTENT_TYPE], "text/plain; charset=utf-8");
    assert_eq!(proto.text().await.unwrap(), include_str!("../../../proto/lf/a2a/v1/a2a.proto"));

    for path in ["/openapi", "/openapi/", "/openapi/tasks", "/openapi/proto/", "/openapi/schemas/Task.json"] {
        assert_eq!(get(&url, path).await.status(), StatusCode::NOT_FOUND, "{path}");
    }
    let post = Client::new().post(format!("{url}/openapi.json")).send().await.unwrap();
    assert_eq!(
        (post.status(), &post.headers()[header::ALLOW]),
        (StatusCode::METHOD_NOT_ALLOWED, &"GET, HEAD".parse().unwrap())
    );
}

#[tokio::test]
async fn documents_are_cached_and_public_like_the_card() {
    let server = bindings::server().authenticator(Bearer::new(Token::new("sesame").unwrap()));
    let url = bindings::serve(server).await;
    let reply = get(&url, "/openapi.json").await;
    let tag = reply.headers()[header::ETAG].clone();
    assert_eq!(reply.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "*");
    let length = reply.bytes().await.unwrap().len();
    let client = Client::new();
    let known = client.get(format!("{url}/openapi.json")).header(header::IF_NONE_MATCH, &tag).send().await.unwrap();
    assert_eq!((known.status(), known.headers()[header::ETAG].clone()), (StatusCode::NOT_MODIFIED, tag));
    let head = client.head(format!("{url}/openapi.json")).send().await.unwrap();
    assert_eq!(head.headers()[header::CONTENT_LENGTH], length.to_string());

    let document = json(get(&url, "/openapi.json").await).await;
    assert_eq!(document["security"], json!([{"bearer": []}]));
    let schemes = json!({"bearer": {"type": "http", "scheme": "bearer"}});
    assert_eq!(document["components"]["securitySchemes"], schemes);
}

#[tokio::test]
async fn urls_are_those_that_the_client_uses() {
    let server = bindings::server().url("https://agent.example/base/").rpc_path("/json-rpc");
    let url = bindings::serve(server).await;
    for prefix in ["", "/base"] {
        let document = json(get(&url, &format!("{prefix}/openapi.json")).await).await;
        assert_eq!(document["servers"][0]["url"], "https://agent.example/base");
        let openrpc = json(get(&url, &format!("{prefix}/openapi/openrpc.json")).await).await;
        assert_eq!(openrpc["servers"][0]["url"], "https://agent.example/base/json-rpc");
    }
}

#[tokio::test]
async fn documents_are_those_of_the_served_versions() {
    let url = bindings::serve(bindings::server().protocols([Version::V1_0].into_iter().collect())).await;
    assert_eq!(get(&url, "/openapi/v0.3.json").await.status(), StatusCode::NOT_FOUND);
    let openrpc = json(get(&url, "/openapi/openrpc.json").await).await;
    let methods = openrpc["methods"].as_array().unwrap();
    assert!(!methods.is_empty() && methods.iter().all(|method| !method["name"].as_str().unwrap().contains('/')));

    let url = bindings::serve(bindings::server().protocols([Version::V0_3].into_iter().collect())).await;
    let document = json(get(&url, "/openapi.json").await).await;
    assert_eq!(document["info"]["version"], "0.3");
}

#[tokio::test]
async fn tenants_with_reserved_names_are_rejected() {
    let url = bindings::serve(bindings::server()).await;
    for tenant in ["agents", "docs", "metrics", "openapi"] {
        let reply = get(&url, &format!("/tasks?tenant={tenant}")).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{tenant}");
        let error: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        assert_eq!(error["error"]["details"][1]["fieldViolations"][0]["field"], "tenant", "{error}");
        let status = get(&url, &format!("/{tenant}/tasks")).await.status();
        let expected = if tenant == "openapi" { StatusCode::NOT_FOUND } else { StatusCode::BAD_REQUEST };
        assert_eq!(status, expected, "{tenant}");
    }
}
