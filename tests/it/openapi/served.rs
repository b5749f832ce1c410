//! Documents of a running server.

use std::collections::BTreeSet;

use a2a_service::{
    auth::{Bearer, Token},
    protocol::Version,
};
use reqwest::{Client, Response, StatusCode, header};
use serde_json::{Value, json};

use crate::bindings;

async fn get(url: &str, path: &str) -> Response {
    bindings::fetch(format!("{url}{path}")).await.unwrap()
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
    let yaml = yaml.bytes().await.unwrap();
    assert_eq!(yaml, get(&url, "/openapi.json").await.bytes().await.unwrap());
    assert_eq!(yaml_serde::from_slice::<Value>(&yaml).unwrap(), document);
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

/// Replaced members keep their place, and all others their text.
#[tokio::test]
async fn documents_have_the_text_of_the_files() {
    let bearer = Bearer::new(Token::new("sesame").unwrap());
    let server = bindings::server().name("A2A agent").description("Agent that other agents and programs can call.");
    let url = bindings::serve(server.authenticator(bearer)).await;
    for (path, file) in [
        ("/openapi.json", include_str!("../../../openapi/a2a-v1.json")),
        ("/openapi/v0.3.json", include_str!("../../../openapi/a2a-v0.3.json")),
        ("/openapi/openrpc.json", include_str!("../../../openapi/a2a-jsonrpc.json")),
    ] {
        // The server requires a token.
        let required = "  \"security\": [\n    {\n      \"bearer\": []\n    }\n  ]";
        let optional = "  \"security\": [\n    {\n      \"bearer\": []\n    },\n    {}\n  ]";
        let description = ",\n        \"description\": \"Token, if the server requires one.\"";
        let expected = file.replace(optional, required).replace(description, "");
        let text = get(&url, path).await.text().await.unwrap().replace(&url, "http://127.0.0.1:8080");
        assert!(text == expected, "{path} differs in other members: {text}");
    }
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
    let server = bindings::server().url("https://agent.example/base/");
    let url = bindings::serve(server).await;
    for prefix in ["", "/base"] {
        let document = json(get(&url, &format!("{prefix}/openapi.json")).await).await;
        assert_eq!(document["servers"][0]["url"], "https://agent.example/base");
        let openrpc = json(get(&url, &format!("{prefix}/openapi/openrpc.json")).await).await;
        assert_eq!(openrpc["servers"][0]["url"], "https://agent.example/base/rpc");
    }
}

/// Returns the names in the references of a value to a kind of component.
fn references(value: &Value, kind: &str) -> BTreeSet<String> {
    let prefix = format!("#/components/{kind}/");
    let (mut found, mut values) = (BTreeSet::new(), vec![value]);
    while let Some(value) = values.pop() {
        match value {
            Value::Object(members) => values.extend(members.values()),
            Value::Array(items) => values.extend(items),
            Value::String(text) => found.extend(text.strip_prefix(&prefix).map(str::to_owned)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    found
}

#[tokio::test]
async fn documents_are_those_of_the_served_versions() {
    let url = bindings::serve(bindings::server().protocols([Version::V1_0].into_iter().collect())).await;
    assert_eq!(get(&url, "/openapi/v0.3.json").await.status(), StatusCode::NOT_FOUND);

    let url = bindings::serve(bindings::server().protocols([Version::V0_3].into_iter().collect())).await;
    let document = json(get(&url, "/openapi.json").await).await;
    assert_eq!(document["info"]["version"], "0.3");
}

/// The methods are those of the served versions, and the components are those that the methods use.
#[tokio::test]
async fn methods_and_components_are_those_of_the_served_versions() {
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    for versions in [&[Version::V1_0, Version::V0_3][..], &[Version::V1_0], &[Version::V0_3]] {
        let url = bindings::serve(bindings::server().protocols(versions.iter().copied().collect())).await;
        let openrpc = json(get(&url, "/openapi/openrpc.json").await).await;
        let methods = openrpc["methods"].as_array().unwrap();
        let has = |version: Version| {
            let is_v03 = |method: &Value| method["name"].as_str().unwrap().contains('/');
            methods.iter().any(|method| is_v03(method) == (version == Version::V0_3))
        };
        for version in [Version::V1_0, Version::V0_3] {
            assert_eq!(has(version), versions.contains(&version), "{versions:?}");
        }
        let components = &openrpc["components"];
        assert_eq!(references(&openrpc, "errors"), names(&components["errors"]), "{versions:?}");
        let mut schemas = references(&openrpc, "schemas");
        // The schema of the `data` of an error, which only 1.0 has.
        schemas.extend(versions.contains(&Version::V1_0).then(|| "ErrorDetails".to_owned()));
        // Parameters of 0.3 are also members of the method itself.
        let (params, others): (BTreeSet<_>, _) =
            names(&components["schemas"]).into_iter().partition(|name| name.ends_with("Params"));
        assert_eq!(schemas, others, "{versions:?}");
        assert_eq!(!params.is_empty(), versions.contains(&Version::V0_3), "{versions:?}: {params:?}");
    }
}

#[tokio::test]
async fn tenants_with_reserved_names_are_rejected() {
    let url = bindings::serve(bindings::server()).await;
    for tenant in ["agents", "console", "docs", "metrics", "openapi", "operator"] {
        let reply = get(&url, &format!("/tasks?tenant={tenant}")).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{tenant}");
        let error: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        assert_eq!(error["error"]["details"][1]["fieldViolations"][0]["field"], "tenant", "{error}");
        let status = get(&url, &format!("/{tenant}/tasks")).await.status();
        let expected = match tenant {
            "openapi" | "console" => StatusCode::NOT_FOUND,
            "docs" if cfg!(feature = "docs") => StatusCode::NOT_FOUND,
            "operator" => StatusCode::UNAUTHORIZED,
            _ => StatusCode::BAD_REQUEST,
        };
        assert_eq!(status, expected, "{tenant}");
    }
}

#[cfg(feature = "docs")]
mod pages {
    use super::*;

    #[tokio::test]
    async fn docs_load_only_files_of_the_server() {
        let url = bindings::serve(bindings::server()).await;
        let reply = get(&url, "/docs").await;
        assert_eq!(reply.url().as_str(), format!("{url}/docs/"));
        assert!(reply.headers().contains_key(header::CONTENT_SECURITY_POLICY));
        let text = reply.text().await.unwrap();
        let links =
            text.split(['"', '\'']).filter(|part| [".js", ".css", ".png"].iter().any(|end| part.ends_with(end)));
        let links: Vec<_> = links.collect();
        assert!(links.len() >= 5, "{text}");
        for link in links {
            let reply = get(&url, &format!("/docs/{}", link.trim_start_matches("./"))).await;
            assert_eq!(reply.status(), StatusCode::OK, "{link}");
        }
        let script = get(&url, "/docs/swagger-initializer.js").await;
        assert_eq!(script.headers()[header::CONTENT_TYPE], "text/javascript; charset=utf-8");
        let script = script.text().await.unwrap();
        for part in ["\"v1.0.json\"", "\"v0.3.json\"", "\"validatorUrl\": \"none\""] {
            assert!(script.contains(part), "{part}: {script}");
        }
        assert!(!script.contains("petstore"), "{script}");
    }

    /// Each route once, in a group with the name of the version. The published document has the forms with a tenant too.
    #[tokio::test]
    async fn docs_list_each_route_once() {
        let url = bindings::serve(bindings::server()).await;
        let read =
            async |path: &str| -> Value { serde_json::from_str(&get(&url, path).await.text().await.unwrap()).unwrap() };
        for (version, complete) in [("1.0", "/openapi.json"), ("0.3", "/openapi/v0.3.json")] {
            let (shown, complete) = (read(&format!("/docs/v{version}.json")).await, read(complete).await);
            let is_shown = |path: &&String| !path.starts_with("/{tenant}/");
            let [paths, all] = [&shown, &complete].map(|document| document["paths"].as_object().unwrap());
            assert_eq!(paths.keys().collect::<Vec<_>>(), all.keys().filter(is_shown).collect::<Vec<_>>());
            assert!(paths.len() > 8 && shown["servers"][0]["url"].as_str().unwrap().starts_with(&url), "{shown}");
            let group = format!("Protocol {version}");
            assert_eq!(shown["tags"][0]["name"], *group);
            let members = paths.values().flat_map(|methods| methods.as_object().unwrap().values());
            let operations = members.filter(|member| member.is_object());
            assert!(operations.map(|operation| &operation["tags"][0]).all(|tag| *tag == *group), "{shown}");
        }
    }

    #[tokio::test]
    async fn docs_can_be_disabled_and_are_off_for_routers() {
        let url = bindings::serve(bindings::server().docs(false)).await;
        for path in ["/docs", "/docs/", "/docs/swagger-ui.css"] {
            assert_eq!(get(&url, path).await.status(), StatusCode::NOT_FOUND, "{path}");
        }
        let off = get(&url, "/docs/").await.text().await.unwrap();
        assert!(off.contains("enables it with `docs` (--docs)"), "{off}");
        assert_eq!(get(&url, "/openapi.json").await.status(), StatusCode::OK);

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, bindings::server().router()).into_future());
        assert_eq!(get(&url, "/docs/").await.status(), StatusCode::NOT_FOUND);
        assert_eq!(get(&url, "/openapi.json").await.status(), StatusCode::OK);
    }
}
