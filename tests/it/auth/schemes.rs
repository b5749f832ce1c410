//! Matrix of authentication schemes: valid, missing and wrong credentials of each, over each binding, and an OpenID Connect issuer
//! with keys of its own.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use a2a_service::{
    auth::{
        self, AllOf, Authenticator, Bearer, Jwt, JwtOptions, NewToken, Token, TokenFile, TokenSource, add_token,
        list_tokens, revoke_token, rotate_token,
    },
    axum::{Router, http::StatusCode, routing::get},
};
use aws_lc_rs::{
    encoding::AsDer,
    rsa::{KeyPair, KeySize},
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair},
};
use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use http::{HeaderMap, HeaderName, HeaderValue};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode, jwk::Jwk};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::{
    bindings::serve,
    conformance::{Exemption, allow_undocumented},
};

/// Headers and query of a request.
#[derive(Clone, Default)]
struct Credentials {
    headers: HeaderMap,
    query: String,
}

impl Credentials {
    fn header(name: &'static str, value: &str) -> Self {
        let headers = [(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())].into_iter().collect();
        Self { headers, query: String::new() }
    }

    fn bearer(token: &str) -> Self {
        Self::header("authorization", &format!("Bearer {token}"))
    }

    fn query(name: &str, value: &str) -> Self {
        Self { query: format!("?{name}={value}"), ..Self::default() }
    }

    fn and(mut self, other: Self) -> Self {
        self.headers.extend(other.headers);
        self
    }
}

/// Lists tasks over HTTP+JSON, JSON-RPC and gRPC, and returns the messages of the errors. gRPC has no query, so it is left out for
/// credentials in one.
async fn answers(url: &str, credentials: &Credentials) -> Vec<Result<(), String>> {
    let Credentials { headers, query } = credentials;
    let client = bindings::http();
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}).to_string();
    let rest = client.get(format!("{url}/tasks{query}")).headers(headers.clone()).send().await.unwrap();
    let rpc = client.post(format!("{url}/rpc{query}")).header("content-type", "application/json");
    let rpc = rpc.headers(headers.clone()).body(body).send().await.unwrap();
    let mut answers = Vec::new();
    for response in [rest, rpc] {
        let has_challenge = response.headers().contains_key("www-authenticate");
        let status = response.status().as_u16();
        let error = json(response).await["error"]["message"].as_str().map(str::to_owned);
        assert_eq!(matches!(status, 401 | 403), has_challenge && error.is_some(), "{status} {error:?}");
        answers.push(error.map_or(Ok(()), |message| Err(format!("{status} {message}"))));
    }
    if query.is_empty() {
        let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect_lazy();
        let mut request = Request::new(ListTasksRequest::default());
        *request.metadata_mut() = MetadataMap::from_headers(headers.clone());
        let result = A2aServiceClient::new(channel).list_tasks(request).await;
        answers.push(result.map(drop).map_err(|status| {
            let number = if status.code() == Code::Unauthenticated { 401 } else { 403 };
            format!("{number} {}", status.message())
        }));
    }
    answers
}

async fn assert_accepted(url: &str, case: &str, credentials: &Credentials) {
    for answer in answers(url, credentials).await {
        assert_eq!(answer, Ok(()), "{case}");
    }
}

/// Asserts that credentials are rejected on each binding with a status and a message.
async fn assert_rejected(url: &str, case: &str, credentials: &Credentials, why: &str) {
    for answer in answers(url, credentials).await {
        let error = answer.expect_err(case);
        assert!(error.starts_with("401") && error.contains(why), "{case}: {error}");
    }
}

/// Serves an agent with an authenticator, and returns the URL.
pub(super) async fn serve_with(authenticator: impl Authenticator) -> String {
    serve(bindings::server().authenticator(authenticator).failed_authentications(0)).await
}

/// Directory with a token file.
pub(super) struct Tokens {
    _directory: TempDir,
    pub(super) path: PathBuf,
}

impl Tokens {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { path: directory.path().join("tokens.json"), _directory: directory }
    }

    fn add(&self, name: &str, source: TokenSource) -> String {
        self.add_with(name, source, |_| ())
    }

    pub(super) fn add_with(&self, name: &str, source: TokenSource, change: impl FnOnce(&mut NewToken)) -> String {
        let mut token = NewToken::new(name);
        token.source = source;
        change(&mut token);
        add_token(&self.path, token, SystemTime::now()).unwrap()
    }
}

fn basic(user: &str, password: &str) -> Credentials {
    Credentials::header("authorization", &format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
}

#[tokio::test]
async fn tokens_of_a_file_are_accepted_in_their_place_only() {
    // The query parameter of the API key is not in the documents.
    allow_undocumented(Exemption::Requests);
    let tokens = Tokens::new();
    let [bearer, password, key, query, cookie] = [
        ("ada", TokenSource::Bearer),
        ("bob", TokenSource::Basic),
        ("key", TokenSource::Header("x-api-key".into())),
        ("query", TokenSource::Query("api_key".into())),
        ("cookie", TokenSource::Cookie("session".into())),
    ]
    .map(|(name, source)| tokens.add(name, source));
    let url = serve_with(TokenFile::open(&tokens.path).unwrap()).await;
    let in_cookie = |secret: &str| Credentials::header("cookie", &format!("a=b; session={secret}"));
    for (case, valid, wrong) in [
        ("bearer", Credentials::bearer(&bearer), Credentials::bearer(&key)),
        ("basic", basic("bob", &password), basic("ada", &password)),
        ("header", Credentials::header("x-api-key", &key), Credentials::header("x-api-key", &bearer)),
        ("query", Credentials::query("api_key", &query), Credentials::query("api_key", "a2a_wrong")),
        ("cookie", in_cookie(&cookie), in_cookie(&query)),
    ] {
        assert_accepted(&url, case, &valid).await;
        assert_rejected(&url, case, &wrong, "the token is not valid").await;
    }
    for (case, malformed) in [
        ("no credentials", Credentials::default()),
        ("other scheme", Credentials::header("authorization", "Digest x")),
        ("no base64", Credentials::header("authorization", "Basic ***")),
        ("no colon", Credentials::header("authorization", &format!("Basic {}", BASE64_STANDARD.encode("bob")))),
        ("empty", Credentials::header("authorization", "Bearer ")),
    ] {
        assert_rejected(&url, case, &malformed, "credentials are required: bearer token, or user and password, or")
            .await;
    }
    assert_rejected(&url, "long", &Credentials::bearer(&"x".repeat(5000)), "the token is not valid").await;
    let file = std::fs::read_to_string(&tokens.path).unwrap();
    for secret in [bearer, password, key, query, cookie] {
        assert!(secret.starts_with("a2a_") && secret.len() == 47 && !file.contains(&secret));
    }
}

#[cfg(unix)]
#[tokio::test]
async fn token_file_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let tokens = Tokens::new();
    tokens.add("ada", TokenSource::Bearer);
    assert_eq!(std::fs::metadata(&tokens.path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn tokens_expire_and_are_revoked_while_the_server_runs() {
    let tokens = Tokens::new();
    let valid = tokens.add("valid", TokenSource::Bearer);
    let past = UNIX_EPOCH + Duration::from_hours(1);
    let expired = tokens.add_with("old", TokenSource::Bearer, |token| token.expires = Some(past.try_into().unwrap()));
    let url = serve_with(TokenFile::open(&tokens.path).unwrap()).await;
    assert_accepted(&url, "valid", &Credentials::bearer(&valid)).await;
    assert_rejected(&url, "expired", &Credentials::bearer(&expired), "the token has expired").await;
    revoke_token(&tokens.path, "valid").unwrap();
    let new = tokens.add("new", TokenSource::Bearer);
    let changed = async {
        while answers(&url, &Credentials::bearer(&new)).await.contains(&Ok(())).eq(&false) {
            tokio::time::interval(Duration::from_millis(50)).tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), changed).await.unwrap();
    assert_rejected(&url, "revoked", &Credentials::bearer(&valid), "the token is not valid").await;
    let names: Vec<_> = list_tokens(&tokens.path).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["old", "new"]);
    for (name, why) in
        [("new", "a token has the name new"), ("a b", "visible ASCII"), ("a:b", "without `:`"), ("", "1 to 128")]
    {
        let error = add_token(&tokens.path, NewToken::new(name), SystemTime::now()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    for source in
        [TokenSource::Header("x-auth".into()), TokenSource::Header("X-Api-Key".into()), TokenSource::Query("k".into())]
    {
        let mut token = NewToken::new("hidden");
        token.source = source;
        let error = add_token(&tokens.path, token, SystemTime::now()).unwrap_err().to_string();
        assert!(error.contains("token"), "logs could show the secret: {error}");
    }
    assert!(revoke_token(&tokens.path, "nobody").unwrap_err().to_string().contains("no token has the name nobody"));
}

/// A rotation replaces the secret of a token, not its name, owner and scopes. The one before is accepted for a while.
#[tokio::test]
async fn rotated_token_is_accepted_until_its_end() {
    let tokens = Tokens::new();
    let first = tokens.add("ada", TokenSource::Bearer);
    let hour = Duration::from_hours(1);
    let [past, future] = [SystemTime::now() - hour, SystemTime::now() + hour].map(|time| time.try_into().unwrap());
    let second = rotate_token(&tokens.path, "ada", future).unwrap();
    let url = serve_with(TokenFile::open(&tokens.path).unwrap()).await;
    for secret in [&first, &second] {
        assert_accepted(&url, "within the time", &Credentials::bearer(secret)).await;
    }
    let error = rotate_token(&tokens.path, "ada", future).unwrap_err().to_string();
    assert!(error.contains("before the last rotation is accepted until ") && error.contains("--grace 0s"), "{error}");
    assert_accepted(&url, "after a rejected rotation", &Credentials::bearer(&second)).await;
    let third = rotate_token(&tokens.path, "ada", past).unwrap();
    let url = serve_with(TokenFile::open(&tokens.path).unwrap()).await;
    assert_accepted(&url, "newest", &Credentials::bearer(&third)).await;
    assert_rejected(&url, "after the time", &Credentials::bearer(&second), "the token has expired").await;
    assert_rejected(&url, "the one before", &Credentials::bearer(&first), "the token is not valid").await;
    let entries = list_tokens(&tokens.path).unwrap();
    assert_eq!((entries.len(), &*entries[0].name, entries[0].expires), (1, "ada", None));
    revoke_token(&tokens.path, "ada").unwrap();
    let error = rotate_token(&tokens.path, "ada", future).unwrap_err().to_string();
    assert!(error.ends_with("no token has the name ada"), "{error}");
}

#[tokio::test]
async fn card_declares_the_schemes_of_the_configuration_in_both_versions() {
    let tokens = Tokens::new();
    tokens.add("ada", TokenSource::Basic);
    tokens.add("key", TokenSource::Header("x-api-key".into()));
    let jwt = Jwt::new(JwtOptions::new("https://login.invalid", ["agent"])).unwrap();
    let schemes = auth::any().or(TokenFile::open(&tokens.path).unwrap()).or(jwt);
    let card = |url: String| async move {
        json(bindings::fetch(format!("{url}/.well-known/agent-card.json")).await.unwrap()).await
    };
    let any = card(serve_with(schemes.clone()).await).await;
    let api_key = json!({
        "apiKeySecurityScheme": {"location": "header", "name": "x-api-key"},
        "type": "apiKey", "in": "header", "name": "x-api-key",
    });
    assert_eq!(any["securitySchemes"]["x-api-key"], api_key);
    assert_eq!(any["securitySchemes"]["basic"]["httpAuthSecurityScheme"]["scheme"], "basic");
    let discovery = "https://login.invalid/.well-known/openid-configuration";
    assert_eq!(any["securitySchemes"]["openIdConnect"]["openIdConnectUrl"], discovery);
    assert_eq!(any["security"], json!([{"basic": []}, {"x-api-key": []}, {"openIdConnect": []}]));
    let all = card(serve_with(AllOf::from(schemes)).await).await;
    assert_eq!(all["security"], json!([{"basic": [], "openIdConnect": []}, {"openIdConnect": [], "x-api-key": []}]));
}

#[tokio::test]
async fn several_schemes_compose() {
    let tokens = Tokens::new();
    let key = tokens.add_with("key", TokenSource::Header("x-api-key".into()), |token| {
        token.scopes = Some(["tasks:write".to_owned()].into());
    });
    let file = || TokenFile::open(&tokens.path).unwrap();
    let bearer = || Bearer::new(Token::new("sesame").unwrap());
    let (token, with_key) = (Credentials::bearer("sesame"), Credentials::header("x-api-key", &key));
    let any = serve_with(auth::any().or(bearer()).or(file())).await;
    assert_accepted(&any, "first", &token).await;
    for answer in answers(&any, &with_key).await {
        let error = answer.unwrap_err();
        assert!(error.contains("the credentials lack the scope tasks:read"), "second, without the scope: {error}");
    }
    assert_rejected(&any, "neither", &Credentials::default(), "required").await;
    assert_rejected(&any, "wrong", &Credentials::bearer("x"), "the bearer token is not valid").await;
    let challenge = bindings::fetch(format!("{any}/tasks")).await.unwrap().headers()["www-authenticate"].clone();
    assert_eq!(challenge, r#"Bearer realm="a2a", ApiKey realm="a2a", header="x-api-key""#);

    let all = serve_with(auth::all().and(bearer()).and(file())).await;
    assert_rejected(&all, "only one", &token, "API key in the header x-api-key").await;
    assert_rejected(&all, "only the other", &with_key, "a bearer token is required").await;
    // The scopes are those that both have.
    for answer in answers(&all, &token.and(with_key)).await {
        assert!(answer.unwrap_err().contains("lack the scope tasks:read"));
    }
    assert_rejected(&serve_with(auth::any()).await, "no scheme", &Credentials::default(), "no authentication scheme")
        .await;
}

/// OpenID Connect issuer with keys of its own.
pub(super) struct Issuer {
    url: String,
    keys: Vec<(Algorithm, &'static str, EncodingKey)>,
    published: Arc<Mutex<Value>>,
    requests: Arc<AtomicUsize>,
    is_down: Arc<AtomicBool>,
}

impl Issuer {
    pub(super) async fn start() -> Self {
        let es = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &aws_lc_rs::rand::SystemRandom::new());
        let ed = Ed25519KeyPair::generate_pkcs8v1(&aws_lc_rs::rand::SystemRandom::new()).unwrap();
        let rsa = KeyPair::generate(KeySize::Rsa2048).unwrap();
        let pkcs8 = AsDer::<aws_lc_rs::encoding::Pkcs8V1Der<'_>>::as_der(&rsa).unwrap();
        // PKCS #1 follows a header of 26 bytes.
        let rsa = EncodingKey::from_rsa_der(&pkcs8.as_ref()[26..]);
        let keys = vec![
            (Algorithm::ES256, "es", EncodingKey::from_ec_der(es.unwrap().as_ref())),
            (Algorithm::EdDSA, "ed", EncodingKey::from_ed_der(ed.as_ref())),
            (Algorithm::RS256, "rs", rsa.clone()),
            (Algorithm::PS256, "ps", rsa),
        ];
        let set: Vec<Value> = keys.iter().map(|(algorithm, id, key)| Self::jwk(*algorithm, id, key)).collect();
        let (published, requests, is_down) =
            (Arc::new(Mutex::new(json!({"keys": set}))), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let document = json!({"issuer": url, "jwks_uri": format!("{url}/keys")}).to_string();
        let key_set = {
            let (published, requests, is_down) = (Arc::clone(&published), Arc::clone(&requests), Arc::clone(&is_down));
            async move || {
                requests.fetch_add(1, Ordering::SeqCst);
                if is_down.load(Ordering::SeqCst) {
                    Err(StatusCode::BAD_GATEWAY)
                } else {
                    Ok(published.lock().to_string())
                }
            }
        };
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(async move || document.clone()))
            .route("/keys", get(key_set));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, keys, published, requests, is_down }
    }

    fn jwk(algorithm: Algorithm, id: &str, key: &EncodingKey) -> Value {
        let mut jwk = Jwk::from_encoding_key(key, algorithm).unwrap();
        jwk.common.key_id = Some(id.to_owned());
        serde_json::to_value(jwk).unwrap()
    }

    /// Claims of a valid token, changed by `change`.
    fn claims(&self, change: &Value) -> Value {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({
            "iss": self.url, "aud": ["other", "agent"], "sub": "ada", "exp": now + 600, "nbf": now, "scope": "tasks:read openid",
        });
        for (name, value) in change.as_object().unwrap() {
            if value.is_null() {
                claims.as_object_mut().unwrap().remove(name);
            } else if let Some(offset) = value.as_i64() {
                claims[name] = (i64::try_from(now).unwrap() + offset).into();
            } else {
                claims[name] = value.clone();
            }
        }
        claims
    }

    /// Signs a token with the first key.
    pub(super) fn token(&self, change: &Value) -> String {
        self.signed_by(0, change)
    }

    fn signed_by(&self, index: usize, change: &Value) -> String {
        let (algorithm, id, key) = &self.keys[index];
        let header = Header { kid: Some((*id).to_owned()), ..Header::new(*algorithm) };
        encode(&header, &self.claims(change), key).unwrap()
    }

    pub(super) fn options(&self) -> JwtOptions {
        JwtOptions::new(&self.url, ["agent", "https://agent.invalid"])
    }
}

#[tokio::test]
async fn tokens_of_an_issuer_are_verified() {
    let issuer = Issuer::start().await;
    let url = serve_with(Jwt::new(issuer.options()).unwrap()).await;
    for (index, (algorithm, ..)) in issuer.keys.iter().enumerate() {
        let token = issuer.signed_by(index, &json!({}));
        assert_accepted(&url, &format!("{algorithm:?}"), &Credentials::bearer(&token)).await;
    }
    assert_accepted(&url, "scp", &Credentials::bearer(&issuer.token(&json!({"scope": null, "scp": ["tasks:read"]}))))
        .await;
    assert_eq!(issuer.requests.load(Ordering::SeqCst), 1, "the keys are requested once");
    for (case, change, why) in [
        ("expired", json!({"exp": -120}), "the token has expired"),
        ("not yet valid", json!({"nbf": 120}), "the token is not valid yet"),
        ("wrong audience", json!({"aud": "other"}), "the token has another audience"),
        ("wrong issuer", json!({"iss": "https://evil.invalid"}), "the token has another issuer"),
        ("no expiry", json!({"exp": null}), "lacks one of the claims"),
        ("no audience", json!({"aud": null}), "lacks one of the claims"),
        ("no subject", json!({"sub": null}), "lacks one of the claims"),
        ("list of issuers", json!({"iss": [issuer.url]}), "the token has another issuer"),
    ] {
        assert_rejected(&url, case, &Credentials::bearer(&issuer.token(&change)), why).await;
    }
    // Within the leeway.
    assert_accepted(&url, "leeway", &Credentials::bearer(&issuer.token(&json!({"exp": -30, "nbf": 30})))).await;
    for answer in answers(&url, &Credentials::bearer(&issuer.token(&json!({"scope": "openid"})))).await {
        assert!(answer.unwrap_err().contains("lack the scope tasks:read"));
    }
    assert_rejected(&url, "missing", &Credentials::default(), "a bearer token is required").await;

    let valid = issuer.token(&json!({}));
    let (input, signature) = valid.rsplit_once('.').unwrap();
    let (_, claims) = input.split_once('.').unwrap();
    let header = |header: &Value| BASE64_URL_SAFE_NO_PAD.encode(header.to_string());
    let secret = Issuer::jwk(Algorithm::ES256, "es", &issuer.keys[0].2).to_string();
    let hmac = encode(
        &Header { kid: Some("es".to_owned()), ..Header::new(Algorithm::HS256) },
        &issuer.claims(&json!({})),
        &EncodingKey::from_secret(secret.as_bytes()),
    );
    let other = Issuer::start().await;
    let typed = |name: &str| {
        let (algorithm, id, key) = &issuer.keys[0];
        let (kid, typ) = (Some((*id).to_owned()), Some(name.to_owned()));
        encode(&Header { kid, typ, ..Header::new(*algorithm) }, &issuer.claims(&json!({})), key).unwrap()
    };
    for name in ["at+jwt", "application/at+JWT", "jwt"] {
        assert_accepted(&url, name, &Credentials::bearer(&typed(name))).await;
    }
    for (case, token, why) in [
        ("logout token", typed("logout+jwt"), "the type of the token is not JWT or at+jwt"),
        ("proof of possession", typed("dpop+jwt"), "the type of the token is not JWT or at+jwt"),
        ("none", format!("{}.{claims}.", header(&json!({"alg": "none"}))), "not a JSON Web Token"),
        ("public key as secret", hmac.unwrap(), "an algorithm that is not accepted"),
        ("other key", other.token(&json!({"iss": issuer.url})), "the signature of the token is wrong"),
        (
            "unknown key",
            format!("{}.{claims}.{signature}", header(&json!({"alg": "ES256", "kid": "x"}))),
            "unknown key",
        ),
        ("other algorithm", format!("{}.{claims}.{signature}", header(&json!({"alg": "RS256", "kid": "es"}))), "token"),
        (
            "critical",
            format!("{}.{claims}.{signature}", header(&json!({"alg": "ES256", "kid": "es", "crit": ["x"]}))),
            "critical",
        ),
        (
            "tampered",
            format!("{}.{}.{signature}", &input.split('.').next().unwrap(), claims.replace('e', "f")),
            "token",
        ),
        ("malformed", "a.b".to_owned(), "not a JSON Web Token"),
        ("opaque", "a2a_secret".to_owned(), "not a JSON Web Token"),
        ("too long", format!("{valid}{}", "A".repeat(17 << 10)), "not a JSON Web Token"),
    ] {
        assert_rejected(&url, case, &Credentials::bearer(&token), why).await;
    }
    // Of all tokens with unknown keys, only the first could have had the keys requested again.
    assert!(issuer.requests.load(Ordering::SeqCst) <= 2);
}

#[tokio::test]
async fn only_configured_claims_and_keys_are_used() {
    let issuer = Issuer::start().await;
    let set = issuer.published.lock().to_string();
    let options = issuer.options().jwks(set).owner_claim("org").scope_claim(None);
    let url = serve_with(Jwt::new(options.tenant_claim(Some("tid".to_owned()))).unwrap()).await;
    let change = json!({"org": "acme", "tid": "north", "scope": null});
    assert_accepted(&url, "EdDSA", &Credentials::bearer(&issuer.signed_by(1, &change))).await;
    for missing in ["org", "tid"] {
        let mut change = change.clone();
        change[missing] = Value::Null;
        let token = issuer.signed_by(1, &change);
        assert_rejected(&url, missing, &Credentials::bearer(&token), &format!("lacks the claim {missing}")).await;
    }
    // The tenant of the token is that of the call.
    let http = bindings::http();
    let list = |tenant: &str| http.get(format!("{url}/{tenant}/tasks")).bearer_auth(issuer.signed_by(1, &change));
    assert_eq!(list("north").send().await.unwrap().status(), 200);
    assert_eq!(list("south").send().await.unwrap().status(), 403);
    assert_eq!(issuer.requests.load(Ordering::SeqCst), 0, "a given key set needs no requests");
}

/// The challenge leads to the issuer (RFC 9728).
#[tokio::test]
async fn challenge_names_the_metadata_about_the_issuer() {
    allow_undocumented(Exemption::Requests);
    let issuer = Issuer::start().await;
    let url = serve_with(auth::any().or(Jwt::new(issuer.options()).unwrap())).await;
    let http = bindings::http();
    let metadata = format!("{url}/.well-known/oauth-protected-resource");
    for token in ["", "a.b"] {
        let response = http.get(format!("{url}/tasks")).header("authorization", format!("Bearer {token}"));
        let response = response.send().await.unwrap();
        let challenge = response.headers()["www-authenticate"].to_str().unwrap();
        assert!(
            challenge.starts_with(&format!("Bearer realm=\"a2a\", resource_metadata=\"{metadata}\"")),
            "{challenge}"
        );
        assert_eq!(challenge.contains("invalid_token"), !token.is_empty(), "{challenge}");
    }
    let document = http.get(&metadata).send().await.unwrap();
    assert_eq!(document.status(), 200);
    let document: Value = serde_json::from_slice(&document.bytes().await.unwrap()).unwrap();
    assert_eq!((&document["resource"], &document["authorization_servers"]), (&json!(url), &json!([issuer.url])));
    assert!(document["scopes_supported"].as_array().unwrap().contains(&json!("tasks:read")));
    // Without an issuer, there is no document.
    let url = serve_with(Bearer::new(Token::new("sesame").unwrap())).await;
    let response = http.get(format!("{url}/.well-known/oauth-protected-resource")).send().await.unwrap();
    assert_eq!(response.status(), 404);
}

#[tokio::test]
async fn keys_are_used_for_what_they_are_published() {
    let issuer = Issuer::start().await;
    let token = issuer.token(&json!({}));
    for (case, change, why) in [
        ("no restriction", json!({"alg": null}), None),
        ("for ES256", json!({"alg": "ES256", "use": "sig", "key_ops": ["verify"]}), None),
        ("for another algorithm", json!({"alg": "ES384"}), Some("the algorithm of the token is not that of its key")),
        ("for encryption", json!({"use": "enc"}), Some("unknown key")),
        ("to derive keys", json!({"key_ops": ["deriveKey"]}), Some("unknown key")),
    ] {
        let mut set = issuer.published.lock().clone();
        for (name, value) in change.as_object().unwrap() {
            set["keys"][0][name] = value.clone();
        }
        set["keys"][0].as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let url = serve_with(Jwt::new(issuer.options().jwks(set.to_string())).unwrap()).await;
        match why {
            Some(why) => assert_rejected(&url, case, &Credentials::bearer(&token), why).await,
            None => assert_accepted(&url, case, &Credentials::bearer(&token)).await,
        }
    }
}

/// The keys are requested again for a token without a key id that no known key has signed.
#[tokio::test]
async fn tokens_without_a_key_id_are_verified_with_new_keys_too() {
    let issuer = Issuer::start().await;
    let url = serve_with(Jwt::new(issuer.options()).unwrap()).await;
    let token = |index: usize| {
        let (algorithm, _, key) = &issuer.keys[index];
        Credentials::bearer(&encode(&Header::new(*algorithm), &issuer.claims(&json!({})), key).unwrap())
    };
    let all = issuer.published.lock().clone();
    issuer.published.lock()["keys"].as_array_mut().unwrap().remove(0);
    assert_accepted(&url, "known", &token(1)).await;
    *issuer.published.lock() = all;
    assert_rejected(&url, "within the minimum interval", &token(0), "unknown key").await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    assert_accepted(&url, "new", &token(0)).await;
    assert_eq!(issuer.requests.load(Ordering::SeqCst), 2);
}

/// A key set in a file is read again, as one at a URL.
#[tokio::test]
async fn changed_key_set_in_a_file_is_used() {
    let issuer = Issuer::start().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    assert!(Jwt::new(issuer.options().jwks_file(path)).unwrap_err().to_string().contains(path), "an empty file");
    let all = issuer.published.lock().clone();
    let some = json!({"keys": all["keys"].as_array().unwrap()[1..]});
    std::fs::write(path, some.to_string()).unwrap();
    let url = serve_with(Jwt::new(issuer.options().jwks_file(path)).unwrap()).await;
    let token = |index| Credentials::bearer(&issuer.signed_by(index, &json!({})));
    assert_accepted(&url, "known", &token(1)).await;
    assert_rejected(&url, "not in the file", &token(0), "unknown key").await;
    std::fs::write(path, all.to_string()).unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    assert_accepted(&url, "new", &token(0)).await;
    assert_eq!(issuer.requests.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn issuer_that_is_down_is_no_reason_to_reject_a_token() {
    let issuer = Issuer::start().await;
    issuer.is_down.store(true, Ordering::SeqCst);
    let url = serve_with(Jwt::new(issuer.options()).unwrap()).await;
    let response = bindings::http().get(format!("{url}/tasks")).bearer_auth(issuer.token(&json!({})));
    let response = response.send().await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (503, &HeaderValue::from_static("30"))
    );
    // Nothing says that it will pass.
    let why = json(response).await["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(why, "Unavailable: the server could never get the keys of the token issuer; its log has the cause");
    for (options, field) in [
        (JwtOptions::new("http://login.example", ["a"]), "issuer"),
        (JwtOptions::new("https://login.example", [""; 0]), "audience"),
        (JwtOptions::new("https://login.example", ["a"]).jwks_url("http://login.example/keys"), "jwks"),
        (JwtOptions::new("https://login.example", ["a"]).jwks("{}"), "jwks"),
    ] {
        let error = Jwt::new(options).unwrap_err();
        assert!(error.violations().iter().any(|violation| violation.field == field), "{field}: {error:?}");
    }
}

#[tokio::test]
async fn guesses_from_one_address_are_slowed_down() {
    let url = serve(server_with_token()).await;
    let http = bindings::http();
    let status = async |token: &str| {
        let response = http.get(format!("{url}/tasks")).bearer_auth(token).send().await.unwrap();
        (response.status().as_u16(), response.headers().contains_key("retry-after"))
    };
    for _ in 0..20 {
        assert_eq!(status("guess").await, (401, false));
    }
    assert_eq!(status("guess").await, (429, true));
    assert_eq!(status("sesame").await, (200, false), "valid credentials pass");
}
