//! Versions of the agent card: merged, 1.0 or 0.3, selected by request, host and path; extended cards (specification 3.6;
//! 0.3, 5.5).

use std::sync::Arc;

use a2a_service::{
    auth::{Bearer, Token},
    card::CardConfig,
    pb::{
        DESCRIPTORS,
        v1::{AgentCard, GetExtendedAgentCardRequest, a2a_service_server::A2aService},
        v03,
    },
    protocol::Version,
    server::Server,
    transport::{HttpService, Settings},
    v03::card::CardVersion,
};
use axum::body::Bytes;
use http::{Method, StatusCode};
use prost_reflect::{DescriptorPool, DynamicMessage};
use reqwest::Client;
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use super::{PATH, card, card_with};
use crate::{
    bindings::{Actor, program, serve, server},
    conformance::{Exemption, allow_undocumented},
};

/// Members that only a card of 0.3 has, for a server without special features.
const V03_MEMBERS: [&str; 5] =
    ["protocolVersion", "url", "preferredTransport", "additionalInterfaces", "supportsAuthenticatedExtendedCard"];

fn only(version: Version) -> Server {
    server().protocols([version].into_iter().collect())
}

async fn at(url: &str) -> Value {
    serde_json::from_slice(&Client::new().get(url).send().await.unwrap().bytes().await.unwrap()).unwrap()
}

/// Parses the card as a strict client of 1.0, which rejects unknown members.
fn strict(card: &Value) -> Result<(), String> {
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let message = pool.get_message_by_name("lf.a2a.v1.AgentCard").unwrap();
    let read = DynamicMessage::deserialize(message, card).map_err(|error| error.to_string())?;
    for required in ["name", "description", "version", "supported_interfaces", "skills"] {
        assert!(read.has_field_by_name(required), "{required}");
    }
    Ok(())
}

fn card_version(card: &Value) -> CardVersion {
    match (card.get("supportedInterfaces").is_some(), card.get("url").is_some()) {
        (true, true) => CardVersion::Merged,
        (true, false) => CardVersion::V1_0,
        (false, _) => CardVersion::V0_3,
    }
}

#[tokio::test]
async fn merged_card_is_readable_in_both_versions() {
    let url = serve(server()).await;
    let merged = card(&url).await;
    let interface = |url: String, binding: &str, version: &str| json!({"url": url, "protocolBinding": binding, "protocolVersion": version});
    let grpc = url.strip_prefix("http://").unwrap();
    let interfaces = |version| {
        [
            interface(format!("{url}/rpc"), "JSONRPC", version),
            interface(url.clone(), "HTTP+JSON", version),
            interface(grpc.to_owned(), "GRPC", version),
        ]
    };
    // A client that takes the first interface of a binding gets the newest version.
    assert_eq!(merged["supportedInterfaces"], json!([interfaces("1.0"), interfaces("0.3")].concat()));
    assert_eq!(merged["protocolVersion"], "0.3.0");
    assert_eq!((&merged["url"], &merged["preferredTransport"]), (&json!(format!("{url}/rpc")), &json!("JSONRPC")));
    let additional = json!([
        {"url": format!("{url}/rpc"), "transport": "JSONRPC"},
        {"url": url, "transport": "HTTP+JSON"},
        {"url": grpc, "transport": "GRPC"},
    ]);
    assert_eq!(merged["additionalInterfaces"], additional);
    assert_eq!(merged["supportsAuthenticatedExtendedCard"], false);
    let capabilities = json!({
        "streaming": true, "pushNotifications": false, "extendedAgentCard": false, "stateTransitionHistory": false,
    });
    assert_eq!(merged["capabilities"], capabilities);
    assert!(strict(&merged).is_err(), "a strict client cannot read the merged card");

    let v1 = card_with(&url, &[("a2a-version", "1.0")]).await;
    strict(&v1).unwrap();
    assert_eq!(v1["supportedInterfaces"], merged["supportedInterfaces"]);
    let old = card_with(&url, &[("a2a-version", "0.3")]).await;
    for member in V03_MEMBERS.iter().chain(&[
        "name",
        "description",
        "version",
        "capabilities",
        "defaultInputModes",
        "defaultOutputModes",
        "skills",
    ]) {
        assert_eq!(
            old[*member],
            if *member == "capabilities" { old["capabilities"].clone() } else { merged[*member].clone() },
            "{member}"
        );
        assert!(!old[*member].is_null(), "{member}");
    }
    assert_eq!(old.as_object().unwrap().len(), 12, "no further members");
    let capabilities = json!({"streaming": true, "pushNotifications": false, "stateTransitionHistory": false});
    assert_eq!(old["capabilities"], capabilities);
}

#[tokio::test]
async fn card_version_is_selected_by_request() {
    allow_undocumented(Exemption::Parameters);
    let url = serve(server()).await;
    for path in [PATH, "/.well-known/agent.json", "/agent-card"] {
        for (headers, query, expected) in [
            (&[][..], "", CardVersion::Merged),
            (&[("a2a-version", "1.0")], "", CardVersion::V1_0),
            (&[("a2a-version", "1.0")], "?A2A-Version=0.3", CardVersion::V1_0),
            (&[("a2a-version", "0.2.5")], "", CardVersion::V0_3),
            (&[("a2a-version", "9.9")], "", CardVersion::Merged),
            (&[("a2a-version", "0.5")], "", CardVersion::Merged),
            (&[], "?A2A-Version=1.0", CardVersion::V1_0),
            (&[], "?a2a-version=0.3", CardVersion::V0_3),
        ] {
            let mut request = Client::new().get(format!("{url}{path}{query}"));
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let card = serde_json::from_slice(&request.send().await.unwrap().bytes().await.unwrap()).unwrap();
            assert_eq!(card_version(&card), expected, "{path}{query} {headers:?}");
        }
    }
}

#[tokio::test]
async fn disabled_protocol_versions_are_not_on_the_card() {
    let url = serve(only(Version::V1_0)).await;
    for path in [PATH, "/.well-known/agent.json", "/agent-card", "/agent-card?A2A-Version=0.3"] {
        let card = at(&format!("{url}{path}")).await;
        strict(&card).unwrap();
        assert!(
            card["supportedInterfaces"]
                .as_array()
                .unwrap()
                .iter()
                .all(|interface| interface["protocolVersion"] == "1.0")
        );
    }
    let url = serve(only(Version::V0_3)).await;
    for path in [PATH, "/.well-known/agent.json"] {
        let card = at(&format!("{url}{path}")).await;
        assert_eq!(card_version(&card), CardVersion::V0_3, "{path}");
        assert_eq!(card["protocolVersion"], "0.3.0");
    }
}

#[tokio::test]
async fn each_card_version_has_its_own_etag() {
    let url = serve(server()).await;
    let http = Client::new();
    let get = async |method: Method, version: Option<&str>, tag: Option<&str>| {
        let mut request = http.request(method, format!("{url}{PATH}"));
        for (name, value) in [("a2a-version", version), ("if-none-match", tag)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let reply = request.send().await.unwrap();
        assert!(reply.headers()["vary"].to_str().unwrap().contains("a2a-version"));
        (reply.status().as_u16(), reply.headers()["etag"].to_str().unwrap().to_owned())
    };
    let versions = [None, Some("1.0"), Some("0.3")];
    let mut tags = Vec::new();
    for version in versions {
        tags.push(get(Method::GET, version, None).await.1);
    }
    for (n, version) in versions.into_iter().enumerate() {
        for (m, tag) in tags.iter().enumerate() {
            for method in [Method::GET, Method::HEAD] {
                let expected = if n == m { 304 } else { 200 };
                assert_eq!(get(method, version, Some(tag)).await, (expected, tags[n].clone()));
            }
        }
    }
}

/// The sample card of the documentation of 0.3 can be configured.
#[tokio::test]
async fn v03_sample_card_can_be_configured() {
    let mut config: Value = serde_json::from_str(include_str!("geo.config.json")).unwrap();
    let mut sample: Value = serde_json::from_str(include_str!("geo.json")).unwrap();
    config["security_schemes"] = sample["securitySchemes"].clone();
    config["security"] = sample["security"].clone();
    let config: CardConfig = serde_json::from_value(config).unwrap();
    let url = sample["url"].as_str().unwrap().to_owned();
    let server = Server::new(Actor::new()).card(config).push(true).push_options(crate::bindings::no_names()).url(&*url);
    let mut card = card_with(&serve(server).await, &[("a2a-version", "0.3")]).await;
    // Members that the server determines itself; it has no extended card.
    for (member, expected) in [
        ("url", json!(format!("{url}/rpc"))),
        ("preferredTransport", json!("JSONRPC")),
        ("protocolVersion", json!("0.3.0")),
        ("supportsAuthenticatedExtendedCard", json!(false)),
        (
            "additionalInterfaces",
            json!([
                {"url": format!("{url}/rpc"), "transport": "JSONRPC"}, {"url": url, "transport": "HTTP+JSON"},
            ]),
        ),
    ] {
        assert_eq!(card.as_object_mut().unwrap().remove(member), Some(expected), "{member}");
        sample.as_object_mut().unwrap().remove(member);
    }
    assert_eq!(card, sample);
}

#[tokio::test]
async fn v03_card_has_several_oauth_flows() {
    let flows = json!({
        "authorizationCode": {"authorizationUrl": "https://h/a", "tokenUrl": "https://h/t", "scopes": {"r": "Reads"}},
        "clientCredentials": {"tokenUrl": "https://h/t", "scopes": {}},
    });
    let config = json!({
        "security_schemes": {"o": {"type": "oauth2", "flows": flows.clone()}},
        "security": [{"o": ["r"]}],
        "capabilities": {"state_transition_history": true},
    });
    let config: CardConfig = serde_json::from_value(config).unwrap();
    let url = serve(server().card(config.clone())).await;
    let merged = card(&url).await;
    assert_eq!(merged["securitySchemes"]["o"]["flows"], flows);
    assert_eq!(merged["security"], json!([{"o": ["r"]}]));
    assert_eq!(merged["capabilities"]["stateTransitionHistory"], true);
    let new = card_with(&url, &[("a2a-version", "1.0")]).await;
    strict(&new).unwrap();
    let first = json!({"authorizationCode": flows["authorizationCode"]});
    assert_eq!(new["securitySchemes"]["o"]["oauth2SecurityScheme"]["flows"], first);
    assert_eq!(new["securityRequirements"], json!([{"schemes": {"o": {"list": ["r"]}}}]));
    // A server with authentication declares its scheme.
    let guarded = server().card(config).authenticator(Bearer::new(Token::new("t").unwrap()));
    let guarded = card(&serve(guarded).await).await;
    let scheme =
        json!({"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}, "type": "http", "scheme": "bearer"}});
    assert_eq!((&guarded["securitySchemes"], &guarded["security"]), (&scheme, &json!([{"bearer": []}])));
    let unknown = json!({"security_schemes": {"o": {"type": "oauth3"}}});
    let error = serde_json::from_value::<CardConfig>(unknown).unwrap_err().to_string();
    assert!(error.contains("o: unknown type"), "{error}");
}

/// `{url}/../agent/authenticatedExtendedCard`, for each URL of JSON-RPC (0.2, 7.10).
#[tokio::test]
async fn extended_card_of_0_2_is_requested_relative_to_json_rpc() {
    let below = axum::Router::new().nest("/below", server().router());
    let (open, below) = (serve(server()).await, program(below).await + "/below");
    let guarded = serve(server().authenticator(Bearer::new(Token::new("t").unwrap()))).await;
    let http = Client::new();
    for url in [&open, &below, &guarded] {
        for rpc in ["/rpc", "/rpc/", "/a2a", "/a2a/", "/"] {
            // As the URL parser of the client resolves it.
            let base = format!("{url}{rpc}/../agent/authenticatedExtendedCard");
            if base.contains("below//..") {
                continue;
            }
            let get = async |token: Option<&str>| {
                let mut request = http.get(&base);
                if let Some(token) = token {
                    request = request.bearer_auth(token);
                }
                let reply = request.send().await.unwrap();
                let challenged = reply.headers().contains_key("www-authenticate");
                let status = reply.status();
                let body: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
                assert_eq!(body["error"]["code"], status.as_u16(), "{body}");
                (status, challenged)
            };
            if *url == guarded {
                for wrong in [None, Some("x")] {
                    assert_eq!(get(wrong).await, (StatusCode::UNAUTHORIZED, true), "{base}");
                }
            }
            assert_eq!(get(Some("t")).await, (StatusCode::NOT_FOUND, false), "{base}");
        }
    }
    let path = "/agent/authenticatedExtendedCard";
    assert_eq!(http.post(format!("{open}{path}")).send().await.unwrap().status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(http.get(format!("{open}/other{path}")).send().await.unwrap().status(), StatusCode::NOT_FOUND);
}

/// Service with an extended card, which this server does not have.
struct ExtendedCardService;

#[tonic::async_trait]
impl A2aService for ExtendedCardService {
    async fn get_extended_agent_card(
        &self,
        _: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        let interface = json!({"url": "h:1", "protocolBinding": "GRPC", "protocolVersion": "0.3"});
        let skill = json!({"id": "s", "name": "S", "description": "D", "tags": ["t"]});
        let card = json!({"name": "Second", "supportedInterfaces": [interface], "skills": [skill]});
        Ok(Response::new(serde_json::from_value(card).unwrap()))
    }
}

/// Each endpoint returns the form of its version.
#[tokio::test]
async fn extended_card_has_the_form_of_the_request() {
    let service = HttpService::new(Arc::new(ExtendedCardService), Settings::new(Arc::new(|_| Bytes::new())));
    let url = program(service.into_router()).await;
    let new = at(&format!("{url}/extendedAgentCard")).await;
    assert_eq!(card_version(&new), CardVersion::V1_0);
    for path in ["/v1/card", "/agent/authenticatedExtendedCard"] {
        let old = at(&format!("{url}{path}")).await;
        assert_eq!(card_version(&old), CardVersion::V0_3);
        assert_eq!(
            (&old["name"], &old["url"], &old["preferredTransport"]),
            (&json!("Second"), &json!("h:1"), &json!("GRPC"))
        );
        assert_eq!(old["skills"], new["skills"]);
    }
    let mut grpc = a2a_service::v03::pb::a2a_service_client::A2aServiceClient::connect(url).await.unwrap();
    let proto = grpc.get_agent_card(v03::GetAgentCardRequest {}).await.unwrap().into_inner();
    assert_eq!((proto.name.as_str(), proto.url.as_str(), proto.skills.len()), ("Second", "h:1", 1));
}

/// The Python SDK of 0.3 reads the card over gRPC, where the extended card has no name of its own. Elsewhere there is none.
#[tokio::test]
async fn public_card_is_the_card_over_grpc_of_0_3() {
    for (server, base) in
        [(server(), None), (server().url("https://agent.example/a2a"), Some("https://agent.example/a2a"))]
    {
        let url = serve(server.name("Geo")).await;
        let base = base.unwrap_or(&url);
        let mut grpc = a2a_service::v03::pb::a2a_service_client::A2aServiceClient::connect(url.clone()).await.unwrap();
        let proto = grpc.get_agent_card(v03::GetAgentCardRequest {}).await.unwrap().into_inner();
        assert_eq!((proto.name.as_str(), proto.supports_authenticated_extended_card), ("Geo", false));
        assert_eq!(proto.url, format!("{base}/rpc"));
        assert_eq!(crate::bindings::fetch(format!("{url}/v1/card")).await.unwrap().status(), 404);
        let current = a2a_service::pb::v1::a2a_service_client::A2aServiceClient::connect(url).await.unwrap();
        let error =
            current.get_extended_agent_card(Request::new(GetExtendedAgentCardRequest::default())).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::FailedPrecondition);
    }
}
