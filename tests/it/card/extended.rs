//! Extended agent card and protected agent card: who gets them over which binding, and their content.

use a2a_service::{
    agent::demo::Demo,
    auth::{AuthRequest, Authenticator, Principal, Scopes},
    call::Call,
    card::{ExtendedCardAccess, ScopedSkills, signature},
    client::Client,
    error::{Error, ErrorKind},
    jose::{Algorithm, PublicKeys, SigningKey},
    pb::v1::{AgentCard, AgentSkill, GetExtendedAgentCardRequest},
    server::Server,
};
use serde_json::{Value, json};

use crate::{
    bindings::serve,
    program::{a2a, output},
};

const CARD: &str = "/.well-known/agent-card.json";

/// Tokens are names of principals; anonymous callers are permitted.
struct Names;

#[async_trait::async_trait]
impl Authenticator for Names {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let header = request.headers.get("authorization").and_then(|value| value.to_str().ok());
        match header.and_then(|value| value.strip_prefix("Bearer ")) {
            None => Ok(None),
            Some("reader") => Ok(Some(Principal::new("reader").scopes(Scopes::only(["tasks:read"])))),
            Some("partner") => Ok(Some(Principal::new("partner").scopes(Scopes::only(["card:extended"])))),
            Some("staff") => Ok(Some(Principal::new("staff"))),
            Some(_) => Err(ErrorKind::Unauthenticated.because("unknown token").challenge("Bearer")),
        }
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        card.bearer()
    }
}

fn skills() -> ScopedSkills {
    let skill = |id: &str| AgentSkill { id: id.to_owned(), name: id.to_owned(), ..AgentSkill::default() };
    ScopedSkills::new([(None, skill("partners")), (Some("internal".to_owned()), skill("internal"))])
}

async fn get(url: &str, token: Option<&str>, version: &str) -> (u16, reqwest::header::HeaderMap, Value) {
    let mut request = crate::bindings::http().get(url);
    if !version.is_empty() {
        request = request.header("a2a-version", version);
    }
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let reply = request.send().await.unwrap();
    let (status, headers) = (reply.status().as_u16(), reply.headers().clone());
    (status, headers, serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap_or_default())
}

async fn rpc(url: &str, token: Option<&str>, method: &str) -> Value {
    let mut request = crate::bindings::http().post(format!("{url}/rpc"));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": {} });
    let request = request.header("content-type", "application/json").body(call.to_string());
    serde_json::from_slice(&request.send().await.unwrap().bytes().await.unwrap()).unwrap()
}

fn ids(card: &Value) -> Vec<&str> {
    card["skills"].as_array().into_iter().flatten().filter_map(|skill| skill["id"].as_str()).collect()
}

#[tokio::test]
async fn guarded_card_needs_credentials_with_its_scope_over_every_binding() {
    let url = serve(Server::new(Demo).authenticator(Names).extended_card(skills())).await;
    assert_eq!(get(&format!("{url}{CARD}"), None, "1.0").await.2["capabilities"]["extendedAgentCard"], true);
    for (token, expected) in [
        (None, Err(ErrorKind::Unauthenticated)),
        (Some("reader"), Err(ErrorKind::PermissionDenied)),
        (Some("partner"), Ok(1)),
        (Some("staff"), Ok(2)),
    ] {
        let client = Client::builder();
        let client = token.map_or_else(Client::builder, |token| client.bearer(token).unwrap());
        for agent in [client.rest(&url), client.json_rpc(&format!("{url}/rpc")), client.grpc(&url)] {
            let request = Call::default().request(GetExtendedAgentCardRequest::default());
            let result = agent.unwrap().get_extended_agent_card(request).await;
            let found = result.map(tonic::Response::into_inner).map_err(|status| Error::from(status).kind());
            let extended = found.map(|card| {
                assert!(card.supported_interfaces[0].url.starts_with(&url), "{card:?}");
                card.skills.iter().filter(|skill| matches!(&*skill.id, "partners" | "internal")).count()
            });
            assert_eq!(extended, expected, "{token:?}");
        }
        let status = match expected {
            Ok(_) => 200,
            Err(ErrorKind::Unauthenticated) => 401,
            Err(_) => 403,
        };
        for (path, version) in
            [("/extendedAgentCard", "1.0"), ("/v1/card", "0.3"), ("/agent/authenticatedExtendedCard", "0.3")]
        {
            let (found, headers, body) = get(&format!("{url}{path}"), token, version).await;
            assert_eq!((found, headers.contains_key("www-authenticate")), (status, status != 200), "{path} {body}");
            if status == 200 {
                assert!(ids(&body).contains(&"partners"), "{path} {body}");
                assert_eq!(body.get("supportsAuthenticatedExtendedCard").is_some(), version == "0.3", "{path}");
            }
        }
        for method in ["GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard"] {
            let reply = rpc(&url, token, method).await;
            assert_eq!(ids(&reply["result"]).contains(&"partners"), status == 200, "{method} {reply}");
            assert_eq!(reply.get("error").is_none(), status == 200, "{method} {reply}");
        }
    }
}

#[tokio::test]
async fn card_is_guarded_also_where_nothing_else_is_protected() {
    let url = serve(Server::new(Demo).extended_card(skills())).await;
    assert_eq!(get(&format!("{url}/extendedAgentCard"), None, "1.0").await.0, 401);
    assert_eq!(get(&format!("{url}/tasks"), None, "1.0").await.0, 200);
    let open = Server::new(Demo).extended_card(skills()).extended_card_access(ExtendedCardAccess::Open);
    let (status, _, card) = get(&format!("{}/extendedAgentCard", serve(open).await), None, "1.0").await;
    assert_eq!(status, 200);
    assert!(ids(&card).contains(&"partners") && !ids(&card).contains(&"internal"), "{card}");
}

/// A card without a source is not declared, whoever could get it.
#[tokio::test]
async fn missing_card_is_not_declared_and_the_error_of_the_protocol() {
    let off = serve(Server::new(Demo)).await;
    let empty = serve(Server::new(Demo).extended_card_access(ExtendedCardAccess::Open)).await;
    let guarded = serve(Server::new(Demo).extended_card_access(ExtendedCardAccess::Guarded)).await;
    for url in [&off, &empty, &guarded] {
        let (_, _, card) = get(&format!("{url}{CARD}"), None, "1.0").await;
        assert_eq!(card["capabilities"]["extendedAgentCard"], false, "{card}");
        assert_eq!(rpc(url, None, "GetExtendedAgentCard").await["error"]["code"], -32004);
        assert_eq!(rpc(url, None, "agent/getAuthenticatedExtendedCard").await["error"]["code"], -32007);
        let (status, _, body) = get(&format!("{url}/extendedAgentCard"), None, "1.0").await;
        assert_eq!((status, &body["error"]["details"][0]["reason"]), (400, &json!("UNSUPPORTED_OPERATION")), "{body}");
    }
}

#[tokio::test]
async fn extended_card_is_signed_in_the_form_of_its_version() {
    let key = SigningKey::generate(Algorithm::Es256).unwrap();
    let keys = PublicKeys::from_iter([&key]);
    let server = Server::new(Demo).extended_card(skills()).extended_card_access(ExtendedCardAccess::Open);
    let url = serve(server.sign_card(key)).await;
    for (path, version) in [("/extendedAgentCard", "1.0"), ("/v1/card", "0.3")] {
        let (_, _, card) = get(&format!("{url}{path}"), None, version).await;
        let verified = signature::verify(card.to_string().as_bytes(), &keys).unwrap();
        assert_eq!((verified.v1, verified.v03), (version == "1.0", version == "0.3"), "{card}");
    }
}

#[tokio::test]
async fn protected_card_needs_credentials_and_is_private() {
    for server in [Server::new(Demo).authenticator(Names), Server::new(Demo)] {
        let url = serve(server.protect_card(true)).await;
        for path in [CARD, "/.well-known/agent.json", "/agent-card", "/rpc/.well-known/agent-card.json"] {
            let (status, headers, body) = get(&format!("{url}{path}"), None, "").await;
            assert_eq!((status, headers.contains_key("www-authenticate")), (401, true), "{path}");
            assert!(
                body.get("error").is_some() && !headers.contains_key("access-control-allow-origin"),
                "{path} {body}"
            );
        }
    }
    let url = serve(Server::new(Demo).authenticator(Names).protect_card(true)).await;
    assert_eq!(get(&format!("{url}{CARD}"), Some("unknown"), "").await.0, 401);
    let (status, headers, card) = get(&format!("{url}{CARD}"), Some("reader"), "").await;
    assert_eq!((status, headers["cache-control"].to_str().unwrap()), (200, "private, no-cache"));
    assert!(card.get("supportedInterfaces").is_some() && !headers.contains_key("access-control-allow-origin"));
    let refused = output({
        let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
        command.env("A2A_CARD_PROTECTED", "true");
        command
    });
    let refused = refused.await;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && text.contains("card.protected"), "{text}");
}
