//! Conversion of cards between 1.0 and 0.3.

use std::{future::ready, sync::Arc};

use prost_reflect::{DescriptorPool, Kind, MessageDescriptor};
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use super::*;
use crate::protocol::pb::{self, v03};

/// A 1.0 card with every member that 0.3 has too.
fn full_card() -> AgentCard {
    let scopes = json!({"read": "Reads"});
    let card = json!({
        "name": "Geo", "description": "Plans routes", "version": "1.2.0",
        "supportedInterfaces": [
            {"url": "https://h/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
            {"url": "https://h", "protocolBinding": "HTTP+JSON", "protocolVersion": "0.3"},
            {"url": "h:443", "protocolBinding": "GRPC", "protocolVersion": "0.3"},
        ],
        "provider": {"organization": "Org", "url": "https://org.example"},
        "documentationUrl": "https://h/docs", "iconUrl": "https://h/icon.png",
        "capabilities": {"streaming": true, "pushNotifications": true, "extendedAgentCard": true, "extensions": [
            {"uri": "urn:e", "description": "E", "required": true, "params": {"n": null, "list": [1, {"x": null}]}},
        ]},
        "securitySchemes": {
            "key": {"apiKeySecurityScheme": {"description": "K", "location": "header", "name": "X-Key"}},
            "http": {"httpAuthSecurityScheme": {"scheme": "bearer", "bearerFormat": "JWT"}},
            "oauth": {"oauth2SecurityScheme": {"oauth2MetadataUrl": "https://h/o", "flows": {"authorizationCode":
                {"authorizationUrl": "https://h/a", "tokenUrl": "https://h/t", "refreshUrl": "https://h/r", "scopes": scopes}}}},
            "client": {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": "https://h/t", "scopes": scopes}}}},
            "implicit": {"oauth2SecurityScheme": {"flows": {"implicit": {"authorizationUrl": "https://h/a", "scopes": scopes}}}},
            "password": {"oauth2SecurityScheme": {"flows": {"password": {"tokenUrl": "https://h/t", "scopes": scopes}}}},
            "open": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://h/i"}},
            "tls": {"mtlsSecurityScheme": {"description": "T"}},
        },
        "securityRequirements": [{"schemes": {"oauth": {"list": ["read"]}, "key": {"list": []}}}, {"schemes": {"tls": {}}}],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain", "image/png"],
        "skills": [{"id": "s", "name": "S", "description": "D", "tags": ["t"], "examples": ["e"], "inputModes": ["a/b"],
            "outputModes": ["c/d"], "securityRequirements": [{"schemes": {"oauth": {"list": ["read"]}}}]}],
        "signatures": [{"protected": "p", "signature": "s", "header": {"kid": "k", "none": null}}],
    });
    serde_json::from_value(card).unwrap()
}

fn members(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn card_survives_a_round_trip() {
    let card = full_card();
    let v03_card = v03_card(&card);
    assert_eq!(AgentCard::from(v03_card.clone()), card);
    let json = serde_json::to_vec(&v03_card).unwrap();
    assert_eq!(from_json(&json).unwrap(), card);
    // The merged card is the 1.0 card for a client of 1.0.
    assert_eq!(from_json(&to_json(&card, &V03CardFields::default(), CardVersion::Merged).unwrap()).unwrap(), card);
}

/// The members are those of the type definitions of 0.3.
#[test]
fn converted_card_has_the_members_of_0_3() {
    let json = serde_json::to_value(v03_card(&full_card())).unwrap();
    let expected = json!({
        "protocolVersion": "0.3.0", "name": "Geo", "description": "Plans routes", "version": "1.2.0",
        "url": "https://h/rpc", "preferredTransport": "JSONRPC",
        "additionalInterfaces": [
            {"url": "https://h/rpc", "transport": "JSONRPC"},
            {"url": "https://h", "transport": "HTTP+JSON"},
            {"url": "h:443", "transport": "GRPC"},
        ],
        "provider": {"organization": "Org", "url": "https://org.example"},
        "documentationUrl": "https://h/docs", "iconUrl": "https://h/icon.png",
        "capabilities": {"streaming": true, "pushNotifications": true, "stateTransitionHistory": false, "extensions": [
            {"uri": "urn:e", "description": "E", "required": true, "params": {"n": null, "list": [1, {"x": null}]}},
        ]},
        "securitySchemes": {
            "key": {"type": "apiKey", "description": "K", "in": "header", "name": "X-Key"},
            "http": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            "oauth": {"type": "oauth2", "oauth2MetadataUrl": "https://h/o", "flows": {"authorizationCode": {
                "authorizationUrl": "https://h/a", "tokenUrl": "https://h/t", "refreshUrl": "https://h/r",
                "scopes": {"read": "Reads"}}}},
            "client": {"type": "oauth2", "flows": {"clientCredentials": {"tokenUrl": "https://h/t", "scopes": {"read": "Reads"}}}},
            "implicit": {"type": "oauth2", "flows": {"implicit": {"authorizationUrl": "https://h/a", "scopes": {"read": "Reads"}}}},
            "password": {"type": "oauth2", "flows": {"password": {"tokenUrl": "https://h/t", "scopes": {"read": "Reads"}}}},
            "open": {"type": "openIdConnect", "openIdConnectUrl": "https://h/i"},
            "tls": {"type": "mutualTLS", "description": "T"},
        },
        "security": [{"oauth": ["read"], "key": []}, {"tls": []}],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain", "image/png"],
        "skills": [{"id": "s", "name": "S", "description": "D", "tags": ["t"], "examples": ["e"], "inputModes": ["a/b"],
            "outputModes": ["c/d"], "security": [{"oauth": ["read"]}]}],
        "supportsAuthenticatedExtendedCard": true,
        "signatures": [{"protected": "p", "signature": "s", "header": {"kid": "k", "none": null}}],
    });
    assert_eq!(json, expected);
    // An empty card has the members that 0.3 requires.
    let empty = serde_json::to_value(v03_card(&AgentCard::default())).unwrap();
    for member in [
        "protocolVersion",
        "name",
        "description",
        "url",
        "version",
        "capabilities",
        "defaultInputModes",
        "defaultOutputModes",
        "skills",
    ] {
        assert!(empty.get(member).is_some(), "{member}");
    }
}

/// Asserts that every member of `part` is in `whole`, recursively.
fn assert_contains(whole: &Value, part: &Value) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().for_each(|(name, value)| assert_contains(&whole[name], value));
        }
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => {
            whole.iter().zip(part).for_each(|(whole, part)| assert_contains(whole, part));
        }
        _ => assert_eq!(whole, part),
    }
}

#[test]
fn merged_card_has_the_members_of_both_versions() {
    let card = full_card();
    let json: Value =
        serde_json::from_slice(&to_json(&card, &V03CardFields::default(), CardVersion::Merged).unwrap()).unwrap();
    let (new, old) = (serde_json::to_value(&card).unwrap(), serde_json::to_value(v03_card(&card)).unwrap());
    assert_contains(&json, &new);
    assert_contains(&json, &old);
    let all = members(&new).into_iter().chain(members(&old)).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(members(&json).len(), all.len(), "no other members");
    assert_eq!(
        json["securitySchemes"]["key"],
        json!({
            "apiKeySecurityScheme": {"description": "K", "location": "header", "name": "X-Key"},
            "type": "apiKey", "description": "K", "in": "header", "name": "X-Key",
        })
    );
}

#[test]
fn members_of_0_3_require_an_interface_of_0_3() {
    let mut card = full_card();
    let keys = |card: &AgentCard, version| {
        let json: Value = serde_json::from_slice(&to_json(card, &V03CardFields::default(), version).unwrap()).unwrap();
        (json.get("supportedInterfaces").is_some(), json.get("url").is_some())
    };
    assert_eq!(keys(&card, CardVersion::Merged), (true, true));
    assert_eq!(keys(&card, CardVersion::V1_0), (true, false));
    assert_eq!(keys(&card, CardVersion::V0_3), (false, true));
    card.supported_interfaces.iter_mut().for_each(|interface| interface.protocol_version = "1.0".to_owned());
    for version in [CardVersion::Merged, CardVersion::V1_0, CardVersion::V0_3] {
        assert_eq!(keys(&card, version), (true, false), "no interface of 0.3");
    }
    // An interface without a version is of 0.3 or earlier. JSON-RPC is preferred.
    card.supported_interfaces[1].protocol_version.clear();
    assert_eq!(v03_card(&card).url, "https://h");
    card.supported_interfaces[0].protocol_version = "0.2.6".to_owned();
    assert_eq!(v03_card(&card).additional_interfaces.len(), 2);
    assert_eq!(v03_card(&card).url, "https://h/rpc");
}

#[test]
fn members_that_1_0_lacks_are_on_the_0_3_card() {
    let original = json!({"type": "oauth2", "flows": {
        "authorizationCode": {"authorizationUrl": "https://h/a", "tokenUrl": "https://h/t", "scopes": {}},
        "clientCredentials": {"tokenUrl": "https://h/t", "scopes": {"read": "Reads"}},
        "password": {"tokenUrl": "https://h/t", "scopes": {}},
    }});
    let schemes: BTreeMap<String, Scheme> = serde_json::from_value(json!({"o": original.clone()})).unwrap();
    let mut card = full_card();
    card.security_schemes = to_v1(schemes.clone());
    let flows = &serde_json::to_value(&card).unwrap()["securitySchemes"]["o"]["oauth2SecurityScheme"]["flows"];
    assert_eq!(members(flows), ["authorizationCode"]);
    let fields = V03CardFields { schemes, state_transition_history: true };
    for version in [CardVersion::V0_3, CardVersion::Merged] {
        let json: Value = serde_json::from_slice(&to_json(&card, &fields, version).unwrap()).unwrap();
        assert_eq!(json["securitySchemes"]["o"]["flows"], original["flows"]);
        assert_eq!(json["capabilities"]["stateTransitionHistory"], true);
    }
    // The flow of the 1.0 scheme is the first one in this order.
    let all = ["authorizationCode", "clientCredentials", "deviceCode", "implicit", "password"];
    for (index, first) in all.iter().enumerate() {
        let flows: serde_json::Map<String, Value> =
            all[index..].iter().map(|name| ((*name).to_owned(), json!({}))).collect();
        let schemes = json!({"o": {"type": "oauth2", "flows": flows}});
        let v1 = to_v1(serde_json::from_value(schemes).unwrap());
        let v1 = serde_json::to_value(&v1["o"]).unwrap();
        assert_eq!(members(&v1["oauth2SecurityScheme"]["flows"]), [*first]);
    }
}

/// A scheme of the message of 1.0 has one flow. Members may have the names of the fields.
#[test]
fn several_oauth_flows_of_a_1_0_card_become_one() {
    let camel = json!({
        "supportedInterfaces": [{"url": "https://h", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}],
        "securitySchemes": {"a/b": {"oauth2SecurityScheme": {"flows": {
            "clientCredentials": {"tokenUrl": "https://h/c", "scopes": {}},
            "authorizationCode": {"authorizationUrl": "https://h/a", "tokenUrl": "https://h/t", "scopes": {"r": "R"}},
        }}}},
    });
    let mut snake = camel.to_string();
    for (name, other) in [
        ("supportedInterfaces", "supported_interfaces"),
        ("protocolBinding", "protocol_binding"),
        ("protocolVersion", "protocol_version"),
        ("securitySchemes", "security_schemes"),
        ("oauth2SecurityScheme", "oauth2_security_scheme"),
        ("clientCredentials", "client_credentials"),
        ("authorizationCode", "authorization_code"),
        ("authorizationUrl", "authorization_url"),
        ("tokenUrl", "token_url"),
    ] {
        snake = snake.replace(name, other);
    }
    let mixed = camel.to_string().replace("oauth2SecurityScheme", "oauth2_security_scheme");
    for card in [camel.to_string(), snake, mixed] {
        let read = serde_json::to_value(from_json(card.as_bytes()).unwrap()).unwrap();
        let flows = &read["securitySchemes"]["a/b"]["oauth2SecurityScheme"]["flows"];
        let expected = json!({"authorizationUrl": "https://h/a", "tokenUrl": "https://h/t", "scopes": {"r": "R"}});
        assert_eq!(*flows, json!({ "authorizationCode": expected }), "{card}");
    }
}

#[test]
fn card_of_0_2_with_missing_and_unknown_members_is_read() {
    let card = json!({
        "name": "researcher", "url": "https://h/a2a", "provider": {"organization": "O"}, "iconUrl": null,
        "capabilities": {"streaming": true, "pushNotifications": null}, "skills": [{"id": "s", "name": "S", "tags": null}],
        "securitySchemes": {"new": {"type": "later", "x": 1}, "k": {"type": "apiKey", "in": "query", "name": "q"}},
        "authentication": {"schemes": ["x"]},
    });
    let card = from_json(card.to_string().as_bytes()).unwrap();
    let interface = &card.supported_interfaces[..];
    let expected = json!([{"url": "https://h/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"}]);
    assert_eq!(serde_json::to_value(interface).unwrap(), expected);
    assert_eq!((card.name.as_str(), card.skills.len(), card.provider), ("researcher", 1, None));
    assert_eq!(card.security_schemes.len(), 1);
    let old = from_json(br#"{"protocolVersion": "0.2.6", "url": "", "additionalInterfaces": []}"#).unwrap();
    assert_eq!(old.supported_interfaces, []);
}

#[test]
fn protobuf_card_has_the_members_of_the_card() {
    let card = full_card();
    let proto = v03::AgentCard::from(card.clone());
    assert_eq!((proto.protocol_version.as_str(), proto.url.as_str()), ("0.3.0", "https://h/rpc"));
    assert_eq!((proto.additional_interfaces.len(), proto.signatures.len()), (3, 1));
    assert!(proto.supports_authenticated_extended_card);
    let json = serde_json::to_value(&proto).unwrap();
    let v1 = serde_json::to_value(&card).unwrap();
    for member in
        ["name", "description", "version", "provider", "documentationUrl", "iconUrl", "securitySchemes", "signatures"]
    {
        assert_eq!(json[member], v1[member], "{member}");
    }
    assert_eq!(json["security"], v1["securityRequirements"]);
    assert_eq!(json["skills"][0]["security"], v1["skills"][0]["securityRequirements"]);
    assert_eq!(json["capabilities"]["extensions"], v1["capabilities"]["extensions"]);
    let _: v03::AgentCard = serde_json::from_value(json).unwrap();
}

/// `reencode` relies on this.
#[test]
fn messages_in_a_card_have_equal_field_numbers_in_both_versions() {
    fn compare(old: &MessageDescriptor, new: &MessageDescriptor) {
        for field in old.fields() {
            // Of the card itself, only these are in both versions.
            if old.name() == "AgentCard" && !matches!(field.number(), 1 | 2 | 4..=12) {
                continue;
            }
            let other = new.get_field(field.number());
            let other = other.unwrap_or_else(|| panic!("{} is not in 1.0", field.full_name()));
            assert_eq!((field.is_list(), field.is_map()), (other.is_list(), other.is_map()), "{}", field.full_name());
            match (field.kind(), other.kind()) {
                (Kind::Message(old), Kind::Message(new)) if old.package_name() == "a2a.v1" => compare(&old, &new),
                (old, new) => assert_eq!(format!("{old:?}"), format!("{new:?}"), "{}", field.full_name()),
            }
        }
    }
    let pool = DescriptorPool::decode(pb::DESCRIPTORS).unwrap();
    let message = |name: String| pool.get_message_by_name(&name).unwrap();
    for (old, new) in [
        ("AgentCard", "AgentCard"),
        ("AgentProvider", "AgentProvider"),
        ("AgentCapabilities", "AgentCapabilities"),
        ("SecurityScheme", "SecurityScheme"),
        ("Security", "SecurityRequirement"),
        ("AgentSkill", "AgentSkill"),
        ("AgentCardSignature", "AgentCardSignature"),
    ] {
        compare(&message(format!("a2a.v1.{old}")), &message(format!("lf.a2a.v1.{new}")));
    }
}

/// Service with a given result of `get_extended_agent_card`.
struct CardService(CardResult);

type CardResult = fn(&Call) -> Result<AgentCard, Error>;

#[tonic::async_trait]
impl A2aService for CardService {
    async fn get_extended_agent_card(
        &self,
        request: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        Ok(ready((self.0)(Call::of(&request)?)).await.map(Response::new)?)
    }
}

#[tokio::test]
async fn extended_card_is_a_0_3_card_or_an_http_status() {
    let card = |call: &Call| {
        let name = format!("{:?} {}", call.version, call.owner);
        Ok(AgentCard { name, ..AgentCard::default() })
    };
    let service: Arc<dyn A2aService> = Arc::new(CardService(card));
    let json: serde_json::Value = serde_json::from_slice(&extended(&*service, Call::by("ada")).await.unwrap()).unwrap();
    assert_eq!((json["name"].as_str(), json["protocolVersion"].as_str()), (Some("V0_3 ada"), Some("0.3.0")));
    let errors: [(CardResult, u16); 4] = [
        (|_| Err(ErrorKind::ExtendedCardNotSupported.error()), 404),
        (|_| Err(ErrorKind::ExtendedAgentCardNotConfigured.error()), 404),
        (|_| Err(ErrorKind::PermissionDenied.error()), 403),
        (|_| Err(ErrorKind::Unauthenticated.error()), 401),
    ];
    for (result, status) in errors {
        let error = extended(&CardService(result), Call::default()).await.unwrap_err();
        assert_eq!(error.wire().http, status, "{error}");
    }
}
