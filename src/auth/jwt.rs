//! JSON Web Tokens as bearer tokens (RFC 7519, RFC 9068), verified with the public keys of their issuer.

use std::{collections::BTreeSet, fmt, str::FromStr, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use http::uri::Uri;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header, errors::ErrorKind as JwtError, jwk};
use parking_lot::Mutex;
use reqwest::{Client, redirect};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::{sync::Semaphore, time::Instant};

use super::{AuthRequest, Authenticator, CREDENTIALS, MISSING, Principal, Scopes, bearer::bearer_token};
use crate::{
    error::{BEARER, Error, ErrorKind, INVALID_TOKEN},
    pb::v1::{
        AgentCard, HttpAuthSecurityScheme, OpenIdConnectSecurityScheme, SecurityRequirement, SecurityScheme,
        StringList, security_scheme::Scheme,
    },
};

/// Path of the discovery document below an issuer (OpenID Connect Discovery 1.0, 4).
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Maximum length of a token, in bytes.
const MAX_TOKEN: usize = 16 << 10;

/// Maximum size of a key set or a discovery document in bytes, and maximum number of keys.
const MAX_DOCUMENT: usize = 256 << 10;
const MAX_KEYS: usize = 64;

/// Timeout of a request for a document.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum interval between two requests of the keys.
const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// Age after which the keys are requested again, so that withdrawn ones are no longer accepted.
const MAX_AGE: Duration = Duration::from_hours(1);

/// Age up to which keys are used that could not be requested again.
const MAX_STALE_AGE: Duration = Duration::from_hours(24);

/// Signing algorithm of tokens (RFC 7518, 3.1). Algorithms with shared secrets, and `none`, are never accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SigningAlgorithm {
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PKCS1-v1_5 with SHA-384.
    Rs384,
    /// RSASSA-PKCS1-v1_5 with SHA-512.
    Rs512,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// RSASSA-PSS with SHA-384.
    Ps384,
    /// RSASSA-PSS with SHA-512.
    Ps512,
    /// ECDSA with P-256 and SHA-256.
    Es256,
    /// ECDSA with P-384 and SHA-384.
    Es384,
    /// `EdDSA` with Ed25519.
    EdDsa,
}

impl SigningAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 9] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
    ];

    fn algorithm(self) -> Algorithm {
        match self {
            Self::Rs256 => Algorithm::RS256,
            Self::Rs384 => Algorithm::RS384,
            Self::Rs512 => Algorithm::RS512,
            Self::Ps256 => Algorithm::PS256,
            Self::Ps384 => Algorithm::PS384,
            Self::Ps512 => Algorithm::PS512,
            Self::Es256 => Algorithm::ES256,
            Self::Es384 => Algorithm::ES384,
            Self::EdDsa => Algorithm::EdDSA,
        }
    }

    /// Name in the header of a token.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }
}

impl fmt::Display for SigningAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SigningAlgorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|algorithm| algorithm.name() == text);
        let all = || Self::ALL.map(Self::name).join(", ");
        named.ok_or_else(|| format!("{text} is not an accepted algorithm; use one of {}", all()))
    }
}

/// Requirements for JSON Web Tokens, and the meaning of their claims.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JwtOptions {
    issuer: String,
    audience: Vec<String>,
    algorithms: Vec<SigningAlgorithm>,
    leeway: Duration,
    keys: KeySource,
    owner_claim: String,
    tenant_claim: Option<String>,
    scope_claim: Option<String>,
}

/// Source of the public keys.
#[derive(Clone, Debug)]
enum KeySource {
    /// The discovery document of the issuer names the URL.
    Discovery,
    Url(String),
    Set(Bytes),
}

impl JwtOptions {
    /// Requires this issuer (`iss`), and one of these audiences (`aud`): names of this server at the issuer. By default, the keys
    /// are those that the issuer publishes by OpenID Connect Discovery, all algorithms are accepted, the owner of the tasks is
    /// the subject (`sub`), and the scopes are in the claim `scope` or `scp`.
    pub fn new<T: Into<String>>(issuer: impl Into<String>, audience: impl IntoIterator<Item = T>) -> Self {
        Self {
            issuer: issuer.into(),
            audience: audience.into_iter().map(Into::into).collect(),
            algorithms: SigningAlgorithm::ALL.to_vec(),
            leeway: Duration::from_mins(1),
            keys: KeySource::Discovery,
            owner_claim: "sub".to_owned(),
            tenant_claim: None,
            scope_claim: Some("scope".to_owned()),
        }
    }

    /// Requests the keys from this URL of a JSON Web Key Set, instead of by discovery.
    #[must_use]
    pub fn jwks_url(self, url: impl Into<String>) -> Self {
        Self { keys: KeySource::Url(url.into()), ..self }
    }

    /// Uses the keys of this JSON Web Key Set, and makes no requests.
    #[must_use]
    pub fn jwks(self, set: impl Into<Bytes>) -> Self {
        Self { keys: KeySource::Set(set.into()), ..self }
    }

    /// Accepts only these algorithms.
    #[must_use]
    pub fn algorithms(self, algorithms: impl IntoIterator<Item = SigningAlgorithm>) -> Self {
        Self { algorithms: algorithms.into_iter().collect(), ..self }
    }

    /// Maximum difference between the clocks of issuer and server. 1 minute by default.
    #[must_use]
    pub fn leeway(self, leeway: Duration) -> Self {
        Self { leeway, ..self }
    }

    /// Claim with the owner of the tasks, a text. `sub` by default.
    #[must_use]
    pub fn owner_claim(self, name: impl Into<String>) -> Self {
        Self { owner_claim: name.into(), ..self }
    }

    /// Claim with the tenant to which the caller is bound. Tokens without it are rejected. None by default.
    #[must_use]
    pub fn tenant_claim(self, name: Option<String>) -> Self {
        Self { tenant_claim: name, ..self }
    }

    /// Claim with the scopes: a text with spaces, or a list. A token without it has no scopes. With `None`, every valid token
    /// has all scopes. `scope` by default, and `scp` if that is missing.
    #[must_use]
    pub fn scope_claim(self, name: Option<String>) -> Self {
        Self { scope_claim: name, ..self }
    }
}

/// Authentication with JSON Web Tokens in `Authorization: Bearer`.
///
/// A token must have `iss`, `aud`, `sub` and `exp`, and be signed by a key of its issuer. The keys are requested when they are
/// needed first, after an hour, and for a token with an unknown key, but at most every 30 s.
///
/// ```
/// use a2a_service::{agent::demo::Demo, auth::{Jwt, JwtOptions}, server::Server};
///
/// let options = JwtOptions::new("https://login.example", ["https://agent.example"]);
/// let server = Server::new(Demo).authenticator(Jwt::new(options)?);
/// # Ok::<_, a2a_service::error::Error>(())
/// ```
#[derive(Clone)]
pub struct Jwt(Arc<State>);

struct State {
    options: JwtOptions,
    http: Client,
    cached: Mutex<Cached>,
    /// One request of the keys at a time.
    fetching: Semaphore,
}

/// Keys of the issuer.
#[derive(Default)]
struct Cached {
    keys: Option<Arc<[Key]>>,
    fetched: Option<Instant>,
    attempted: Option<Instant>,
    /// The last attempt has failed, or goes on.
    has_failed: bool,
}

/// Public key with its id.
struct Key {
    id: Option<String>,
    /// The only algorithm for which the key is meant (RFC 7517, 4.4).
    algorithm: Option<jwk::KeyAlgorithm>,
    decoding: DecodingKey,
}

/// Reason why a token is rejected.
enum Rejection {
    UnknownKey,
    Invalid(&'static str),
}

impl Jwt {
    /// Creates the scheme. Makes no requests yet.
    ///
    /// # Errors
    /// `InvalidParams` if the issuer or the URL of the keys is not https (or http to a loopback address), the audience or the
    /// algorithms are empty, the key set is malformed, or the HTTP client can't be created.
    pub fn new(options: JwtOptions) -> Result<Self, Error> {
        let is_remote = matches!(options.keys, KeySource::Discovery);
        if options.issuer.is_empty() || is_remote && !is_secure(&options.issuer) {
            return Err(Error::invalid_field("issuer", "must be an https URL, or http with a loopback address"));
        }
        if let KeySource::Url(url) = &options.keys
            && !is_secure(url)
        {
            return Err(Error::invalid_field("jwks", "must be an https URL, or http with a loopback address"));
        }
        if options.audience.is_empty() {
            return Err(Error::invalid_field("audience", "is required: tokens for other servers must be rejected"));
        }
        if options.algorithms.is_empty() {
            return Err(Error::invalid_field("algorithms", "must not be empty"));
        }
        let mut cached = Cached::default();
        if let KeySource::Set(set) = &options.keys {
            let malformed = || Error::invalid_field("jwks", "is not a JSON Web Key Set with a usable key");
            cached.keys = Some(keys(set).filter(|keys| !keys.is_empty()).ok_or_else(malformed)?);
        }
        let http = Client::builder().timeout(TIMEOUT).redirect(redirect::Policy::none()).build();
        let http = http.map_err(|error| ErrorKind::InvalidParams.because(error.to_string()))?;
        let (cached, fetching) = (Mutex::new(cached), Semaphore::new(1));
        Ok(Self(Arc::new(State { options, http, cached, fetching })))
    }

    /// Issuer of the tokens.
    pub fn issuer(&self) -> &str {
        &self.0.options.issuer
    }
}

/// Returns true for https, and for http to a loopback address.
fn is_secure(url: &str) -> bool {
    let Ok(url) = url.parse::<Uri>() else { return false };
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|addr| addr.is_loopback());
    match url.scheme_str() {
        Some("https") => !host.is_empty(),
        Some("http") => is_loopback,
        _ => false,
    }
}

/// Decodes a JSON Web Key Set. Keys of unknown types, and those for other purposes, are ignored.
fn keys(set: &[u8]) -> Option<Arc<[Key]>> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<Value>,
    }
    let Set { keys } = serde_json::from_slice(set).ok()?;
    let key = |value: Value| {
        let jwk: jwk::Jwk = serde_json::from_value(value).ok()?;
        let is_for_signatures =
            jwk.common.public_key_use.as_ref().is_none_or(|usage| *usage == jwk::PublicKeyUse::Signature);
        let verifies = |operations: &Vec<_>| operations.contains(&jwk::KeyOperations::Verify);
        let is_for_signatures = is_for_signatures && jwk.common.key_operations.as_ref().is_none_or(verifies);
        let is_public = !matches!(jwk.algorithm, jwk::AlgorithmParameters::OctetKey(_));
        let decoding = DecodingKey::from_jwk(&jwk).ok().filter(|_| is_for_signatures && is_public)?;
        Some(Key { id: jwk.common.key_id, algorithm: jwk.common.key_algorithm, decoding })
    };
    Some(keys.into_iter().take(MAX_KEYS).filter_map(key).collect())
}

impl State {
    /// Verifies a token and returns its claims.
    async fn verify(self: &Arc<Self>, token: &str) -> Result<Map<String, Value>, Error> {
        let malformed = "the token is not a JSON Web Token";
        if token.len() > MAX_TOKEN {
            return Err(rejected(malformed));
        }
        let (cached, age) = {
            let cached = self.cached.lock();
            (cached.keys.clone(), cached.fetched.map(|fetched| fetched.elapsed()).unwrap_or_default())
        };
        let keys = match cached {
            Some(keys) if age <= MAX_AGE => keys,
            // Callers do not wait for the issuer as long as it was available not long ago.
            Some(keys) if age <= MAX_STALE_AGE => {
                let state = Arc::clone(self);
                tokio::spawn(async move { drop(state.fetch().await) });
                keys
            }
            Some(_) | None => self.fetch().await.ok_or_else(unavailable)?,
        };
        match self.verify_with(&keys, token) {
            Ok(claims) => Ok(claims),
            Err(Rejection::Invalid(why)) => Err(rejected(why)),
            Err(Rejection::UnknownKey) => {
                let unknown = "the token is signed with an unknown key";
                let keys = self.fetch().await.ok_or_else(unavailable)?;
                self.verify_with(&keys, token).map_err(|rejection| match rejection {
                    Rejection::UnknownKey => rejected(unknown),
                    Rejection::Invalid(why) => rejected(why),
                })
            }
        }
    }

    fn verify_with(&self, keys: &[Key], token: &str) -> Result<Map<String, Value>, Rejection> {
        let JwtOptions { issuer, audience, algorithms, leeway, .. } = &self.options;
        let header = decode_header(token).map_err(|_| Rejection::Invalid("the token is not a JSON Web Token"))?;
        if !algorithms.iter().any(|accepted| accepted.algorithm() == header.alg) {
            return Err(Rejection::Invalid("the token is signed with an algorithm that is not accepted"));
        }
        if header.crit.is_some() {
            return Err(Rejection::Invalid("the token has a critical header parameter"));
        }
        let mut validation = Validation::new(header.alg);
        validation.set_audience(audience);
        validation.set_issuer(&[issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.leeway = leeway.as_secs();
        validation.validate_nbf = true;
        let mut rejection = Rejection::UnknownKey;
        for key in keys {
            let is_named = match (&key.id, &header.kid) {
                (Some(own), Some(id)) if own != id => continue,
                (Some(_), Some(_)) => true,
                _ => false,
            };
            let is_meant = key.algorithm.is_none_or(|algorithm| algorithm == header.alg.into());
            let verified = if is_meant {
                decode::<Map<String, Value>>(token, &key.decoding, &validation)
            } else {
                Err(JwtError::InvalidAlgorithm.into())
            };
            match verified {
                Ok(data) => return Ok(data.claims),
                // Without key ids, another key may fit: one of the set, or a new one of the issuer.
                Err(error) if !is_named && is_other_key(error.kind()) => {}
                Err(error) => rejection = Rejection::Invalid(reason(error.kind())),
            }
        }
        Err(rejection)
    }

    /// Requests the keys, unless that was attempted a short time ago: then returns those of that time. `None` if the attempt
    /// failed.
    async fn fetch(&self) -> Option<Arc<[Key]>> {
        // The semaphore is never closed.
        let _permit = self.fetching.acquire().await.ok()?;
        {
            let mut cached = self.cached.lock();
            if matches!(self.options.keys, KeySource::Set(_)) {
                return cached.keys.clone();
            }
            if cached.attempted.is_some_and(|attempted| attempted.elapsed() < MIN_INTERVAL) {
                return cached.keys.clone().filter(|_| !cached.has_failed);
            }
            (cached.attempted, cached.has_failed) = (Some(Instant::now()), true);
        }
        match self.request().await {
            Ok(keys) => {
                let mut cached = self.cached.lock();
                (cached.keys, cached.fetched) = (Some(Arc::clone(&keys)), Some(Instant::now()));
                cached.has_failed = false;
                Some(keys)
            }
            Err(cause) => {
                tracing::warn!(issuer = self.options.issuer, error.cause = cause, "keys of the issuer not available");
                None
            }
        }
    }

    /// Requests the keys: for discovery, first the document that names their URL.
    async fn request(&self) -> Result<Arc<[Key]>, String> {
        let url = match &self.options.keys {
            KeySource::Url(url) => url.clone(),
            KeySource::Discovery | KeySource::Set(_) => {
                #[derive(Deserialize)]
                struct Configuration {
                    issuer: String,
                    jwks_uri: String,
                }
                let issuer = &self.options.issuer;
                let document = self.get(&format!("{}{DISCOVERY}", issuer.trim_end_matches('/'))).await?;
                let malformed = |_| "the discovery document is malformed".to_owned();
                let configuration: Configuration = serde_json::from_slice(&document).map_err(malformed)?;
                if configuration.issuer != *issuer {
                    return Err(format!("the discovery document is of another issuer, {:?}", configuration.issuer));
                }
                if !is_secure(&configuration.jwks_uri) {
                    return Err("jwks_uri of the discovery document is not https".to_owned());
                }
                configuration.jwks_uri
            }
        };
        let keys = keys(&self.get(&url).await?).ok_or("the key set is malformed")?;
        if keys.is_empty() { Err("the key set has no usable key".to_owned()) } else { Ok(keys) }
    }

    async fn get(&self, url: &str) -> Result<Bytes, String> {
        let response = self.http.get(url).send().await.map_err(|error| error.without_url().to_string())?;
        let mut response = response.error_for_status().map_err(|error| error.without_url().to_string())?;
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| error.without_url().to_string())? {
            if body.len() + chunk.len() > MAX_DOCUMENT {
                return Err(format!("{url} has more than {MAX_DOCUMENT} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    /// Creates the principal from the claims of a verified token.
    fn principal(&self, claims: Map<String, Value>) -> Result<Principal, Error> {
        let JwtOptions { owner_claim, tenant_claim, scope_claim, .. } = &self.options;
        let text = |name: &str| {
            let value = claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
            value.ok_or_else(|| rejected_because(format!("the token lacks the claim {name}")))
        };
        let principal = Principal::new(text("sub")?).owner(text(owner_claim)?);
        let principal = match tenant_claim {
            Some(name) => principal.tenant(text(name)?),
            None => principal,
        };
        let scopes = match scope_claim {
            Some(name) => {
                let claim = claims.get(name).or_else(|| claims.get("scp").filter(|_| name == "scope"));
                Scopes::Only(match claim {
                    Some(Value::String(text)) => text.split_ascii_whitespace().map(str::to_owned).collect(),
                    Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
                    _ => BTreeSet::new(),
                })
            }
            None => Scopes::All,
        };
        Ok(principal.scopes(scopes).claims(claims))
    }
}

/// Returns true for the errors of a token that another key has signed.
fn is_other_key(error: &JwtError) -> bool {
    matches!(error, JwtError::InvalidSignature | JwtError::InvalidAlgorithm)
}

/// Returns the reason for a client. The details of a malformed token tell a client nothing that it could change.
#[expect(clippy::wildcard_enum_match_arm, reason = "the other kinds are malformed tokens and keys")]
fn reason(error: &JwtError) -> &'static str {
    match error {
        JwtError::ExpiredSignature => "the token has expired",
        JwtError::ImmatureSignature => "the token is not valid yet",
        JwtError::InvalidIssuer => "the token has another issuer",
        JwtError::InvalidAudience => "the token has another audience",
        JwtError::InvalidSignature => "the signature of the token is wrong",
        JwtError::InvalidAlgorithm => "the algorithm of the token is not that of its key",
        JwtError::MissingRequiredClaim(_) => "the token lacks one of the claims exp, iss, aud and sub",
        _ => "the token is not a JSON Web Token",
    }
}

fn rejected(why: &'static str) -> Error {
    ErrorKind::Unauthenticated.because(why).challenge(INVALID_TOKEN)
}

fn rejected_because(why: String) -> Error {
    ErrorKind::Unauthenticated.because(why).challenge(INVALID_TOKEN)
}

fn unavailable() -> Error {
    let why = "the keys of the token issuer are not available; retry later";
    ErrorKind::Unavailable.because(why).retry_after(MIN_INTERVAL)
}

#[async_trait]
impl Authenticator for Jwt {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let Some(token) = bearer_token(request.headers) else {
            let missing = ErrorKind::Unauthenticated.because("a bearer token is required");
            return Err(missing.with(CREDENTIALS, MISSING).challenge(BEARER));
        };
        let token = str::from_utf8(token).map_err(|_| rejected("the token is not a JSON Web Token"))?;
        self.0.principal(self.0.verify(token).await?).map(Some)
    }

    fn issuers(&self) -> Vec<String> {
        vec![self.0.options.issuer.clone()]
    }

    /// Declares OpenID Connect, or a bearer token if the keys are not found by discovery.
    fn describe(&self, card: AgentCard) -> AgentCard {
        let JwtOptions { issuer, keys, .. } = &self.0.options;
        let (name, scheme) = match keys {
            KeySource::Discovery => {
                let open_id_connect_url = format!("{}{DISCOVERY}", issuer.trim_end_matches('/'));
                let description = String::new();
                let scheme = OpenIdConnectSecurityScheme { description, open_id_connect_url };
                ("openIdConnect", Scheme::OpenIdConnectSecurityScheme(scheme))
            }
            KeySource::Url(_) | KeySource::Set(_) => {
                let (scheme, bearer_format) = ("bearer".to_owned(), "JWT".to_owned());
                let scheme = HttpAuthSecurityScheme { scheme, bearer_format, ..HttpAuthSecurityScheme::default() };
                ("jwt", Scheme::HttpAuthSecurityScheme(scheme))
            }
        };
        let requirement = SecurityRequirement { schemes: [(name.to_owned(), StringList::default())].into() };
        card.security([(name.to_owned(), SecurityScheme { scheme: Some(scheme) })], [requirement])
    }
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Jwt").field(&self.0.options).finish()
    }
}
