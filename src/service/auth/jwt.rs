//! JSON Web Tokens as bearer tokens (RFC 7519, RFC 9068), verified with the public keys of their issuer.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use jsonwebtoken::{AlgorithmFamily, Validation, decode, decode_header, errors::ErrorKind as JwtError};
use serde_json::{Map, Value};

use super::{AuthRequest, Authenticator, CREDENTIALS, MISSING, Principal, Scopes, bearer::bearer_token};
use crate::{
    base::{
        clock::{Clock, whole_millis},
        dependency::Dependency,
        jwks::{KeySet, KeySource, MIN_INTERVAL, TokenError, discovery_url, is_secure, read_keys},
        jws::{MAX_TOKEN, PublicKeys},
    },
    protocol::{
        call::Validity,
        error::{BEARER, Error, ErrorKind, INVALID_TOKEN},
        pb::v1::{AgentCard, HttpAuthSecurityScheme, OpenIdConnectSecurityScheme, security_scheme::Scheme},
    },
};

/// Maximum difference between the clocks of issuer and server.
const LEEWAY: Duration = Duration::from_mins(1);

/// Requirements for JSON Web Tokens, and the meaning of their claims.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JwtOptions {
    issuer: String,
    audience: Vec<String>,
    keys: Keys,
    owner_claim: String,
    tenant_claim: Option<String>,
    scope_claim: Option<String>,
}

/// Source of the public keys.
#[derive(Clone, Debug)]
enum Keys {
    /// The discovery document of the issuer names the URL.
    Discovery,
    Url(String),
    File(String),
    Set(Bytes),
}

impl JwtOptions {
    /// Requires this issuer (`iss`), and one of these audiences (`aud`): names of this server at the issuer. By default, the keys
    /// are those that the issuer publishes by OpenID Connect Discovery, all algorithms except those with shared secrets are accepted, the owner of the tasks is
    /// the subject (`sub`), and the scopes are in the claim `scope` or `scp`.
    pub fn new<T: Into<String>>(issuer: impl Into<String>, audience: impl IntoIterator<Item = T>) -> Self {
        Self {
            issuer: issuer.into(),
            audience: audience.into_iter().map(Into::into).collect(),
            keys: Keys::Discovery,
            owner_claim: "sub".to_owned(),
            tenant_claim: None,
            scope_claim: Some("scope".to_owned()),
        }
    }

    /// Requests the keys from this URL of a JSON Web Key Set, instead of by discovery.
    #[must_use]
    pub fn jwks_url(self, url: impl Into<String>) -> Self {
        Self { keys: Keys::Url(url.into()), ..self }
    }

    /// Reads the keys from this file with a JSON Web Key Set, when they would be requested from a URL.
    #[must_use]
    pub fn jwks_file(self, path: impl Into<String>) -> Self {
        Self { keys: Keys::File(path.into()), ..self }
    }

    /// Uses the keys of this JSON Web Key Set, and makes no requests.
    #[must_use]
    pub fn jwks(self, set: impl Into<Bytes>) -> Self {
        Self { keys: Keys::Set(set.into()), ..self }
    }
}

setters! {
    JwtOptions:
    /// Claim with the owner of the tasks, a text. `sub` by default.
    #[must_use]
    pub owner_claim => owner_claim: impl Into<String>;

    /// Claim with the tenant to which the caller is bound. Tokens without it are rejected. None by default.
    #[must_use]
    pub tenant_claim => tenant_claim: Option<String>;

    /// Claim with the scopes: a text with spaces, or a list. A token without it has no scopes. With `None`, every valid token
    /// has all scopes. `scope` by default, and `scp` if that is missing.
    #[must_use]
    pub scope_claim => scope_claim: Option<String>;
}

/// Authentication with JSON Web Tokens in `Authorization: Bearer`.
///
/// A token must have `iss`, `aud`, `sub` and `exp`, and be signed by a key of its issuer. The clocks of issuer and server may differ
/// by 1 minute. The keys are requested when they are
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
pub struct Jwt {
    options: JwtOptions,
    keys: Arc<KeySet>,
}

debug_fields!(Jwt { options });

impl Jwt {
    /// Creates the scheme. Makes no requests yet.
    ///
    /// # Errors
    /// `InvalidParams` if the issuer or the URL of the keys is not https (or http to a loopback address), the audience is empty,
    /// the key set is malformed, or the HTTP client can't be created.
    pub fn new(options: JwtOptions) -> Result<Self, Error> {
        let is_remote = matches!(options.keys, Keys::Discovery);
        if options.issuer.is_empty() || is_remote && !is_secure(&options.issuer) {
            return Err(Error::invalid_field("issuer", "must be an https URL, or http with a loopback address"));
        }
        if options.audience.is_empty() {
            return Err(Error::invalid_field("audience", "is required: tokens for other servers must be rejected"));
        }
        let keys = match &options.keys {
            Keys::Discovery => KeySet::remote(KeySource::Issuer(options.issuer.clone())),
            Keys::Url(url) if is_secure(url) => KeySet::remote(KeySource::Url(url.clone())),
            Keys::File(path) => {
                read_keys(path).map_err(|why| Error::invalid_field("jwks", why))?;
                KeySet::remote(KeySource::File(path.clone()))
            }
            Keys::Url(_) => {
                return Err(Error::invalid_field("jwks", "must be an https URL, or http with a loopback address"));
            }
            Keys::Set(set) => {
                let keys = PublicKeys::from_jwks(set).ok().filter(|keys| !keys.is_empty());
                let malformed = || Error::invalid_field("jwks", "is not a JSON Web Key Set with a usable key");
                Ok(KeySet::fixed(keys.ok_or_else(malformed)?))
            }
        };
        let keys = keys.map_err(|error| ErrorKind::InvalidParams.because(error.to_string()))?;
        Ok(Self { options, keys: Arc::new(keys.without_waiting()) })
    }

    /// Issuer of the tokens.
    pub fn issuer(&self) -> &str {
        &self.options.issuer
    }

    /// Verifies a token and returns its claims.
    async fn verify(&self, token: &str) -> Result<Map<String, Value>, Error> {
        let verified = self.keys.verify(|keys| self.verify_with(keys, token)).await;
        verified.map_err(|error| match error {
            TokenError::UnknownKey | TokenError::UnknownForNow => rejected("the token is signed with an unknown key"),
            TokenError::Invalid(why) => rejected(why),
            TokenError::Unavailable => {
                let why = if self.keys.has_succeeded() {
                    "the keys of the token issuer are not available; retry later"
                } else {
                    "the server could never get the keys of the token issuer; its log has the cause"
                };
                ErrorKind::Unavailable.because(why).retry_after(MIN_INTERVAL)
            }
        })
    }

    fn verify_with(&self, keys: &PublicKeys, token: &str) -> Result<Map<String, Value>, TokenError> {
        let JwtOptions { issuer, audience, .. } = &self.options;
        let header = Some(token).filter(|token| token.len() <= MAX_TOKEN).and_then(|token| decode_header(token).ok());
        let header = header.ok_or(TokenError::Invalid("the token is not a JSON Web Token"))?;
        if header.alg.family() == AlgorithmFamily::Hmac {
            return Err(TokenError::Invalid("the token is signed with an algorithm that is not accepted"));
        }
        if header.typ.as_deref().is_some_and(|kind| !is_access_token(kind)) {
            return Err(TokenError::Invalid("the type of the token is not JWT or at+jwt"));
        }
        if header.crit.is_some() {
            return Err(TokenError::Invalid("the token has a critical header parameter"));
        }
        let mut validation = Validation::new(header.alg);
        validation.set_audience(audience);
        validation.set_issuer(&[issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        validation.leeway = LEEWAY.as_secs();
        validation.validate_nbf = true;
        let mut rejection = TokenError::UnknownKey;
        for key in keys.candidates(header.kid.as_deref()) {
            let is_named = key.has_id() && header.kid.is_some();
            let verified = if key.is_for(header.alg) {
                decode::<Map<String, Value>>(token, &key.key, &validation)
            } else {
                Err(JwtError::InvalidAlgorithm.into())
            };
            match verified {
                // A list would also satisfy the validation (RFC 7519, 4.1.1 has one issuer).
                Ok(data) if data.claims.get("iss").is_some_and(Value::is_string) => return Ok(data.claims),
                Ok(_) => rejection = TokenError::Invalid(reason(&JwtError::InvalidIssuer)),
                // Without key ids, another key may fit: one of the set, or a new one of the issuer.
                Err(error) if !is_named && is_other_key(error.kind()) => {}
                Err(error) => rejection = TokenError::Invalid(reason(error.kind())),
            }
        }
        Err(rejection)
    }

    /// Creates the principal from the claims of a verified token.
    fn principal(&self, claims: Map<String, Value>) -> Result<Principal, Error> {
        let JwtOptions { owner_claim, tenant_claim, scope_claim, .. } = &self.options;
        let text = |name: &str| {
            let value = claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
            value.ok_or_else(|| rejected(format!("the token lacks the claim {name}")))
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
        let expires = claims.get("exp").and_then(Value::as_f64).and_then(|exp| Duration::try_from_secs_f64(exp).ok());
        let expires = expires.map(|expires| whole_millis(expires.saturating_add(LEEWAY)));
        let validity = Validity::new(expires, Clock::default().millis(), None);
        Ok(Principal { validity, ..principal.scopes(scopes).claims(claims) })
    }
}

/// Returns true for the types of access tokens (RFC 7519, 5.1; RFC 9068, 2.1). Tokens of other types, such as `logout+jwt`, have
/// the same issuer but another purpose (RFC 8725, 3.11).
fn is_access_token(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    matches!(kind.strip_prefix("application/").unwrap_or(&kind), "jwt" | "at+jwt")
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

fn rejected(why: impl Into<Cow<'static, str>>) -> Error {
    ErrorKind::Unauthenticated.because(why).challenge(INVALID_TOKEN)
}

#[async_trait]
impl Authenticator for Jwt {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let Some(token) = bearer_token(request.headers) else {
            let missing = ErrorKind::Unauthenticated.because("a bearer token is required");
            return Err(missing.with(CREDENTIALS, MISSING).challenge(BEARER));
        };
        let token = str::from_utf8(token).map_err(|_| rejected("the token is not a JSON Web Token"))?;
        self.principal(self.verify(token).await?).map(Some)
    }

    fn issuers(&self) -> Vec<String> {
        vec![self.options.issuer.clone()]
    }

    fn dependencies(&self) -> Vec<Dependency> {
        self.keys.dependency().into_iter().cloned().collect()
    }

    /// Declares OpenID Connect, or a bearer token if the keys are not found by discovery.
    fn describe(&self, card: AgentCard) -> AgentCard {
        let JwtOptions { issuer, keys, .. } = &self.options;
        card.any_scheme([match keys {
            Keys::Discovery => {
                let open_id_connect_url = discovery_url(issuer);
                let description = String::new();
                let scheme = OpenIdConnectSecurityScheme { description, open_id_connect_url };
                ("openIdConnect", Scheme::OpenIdConnectSecurityScheme(scheme))
            }
            Keys::Url(_) | Keys::File(_) | Keys::Set(_) => {
                let (scheme, bearer_format) = ("bearer".to_owned(), "JWT".to_owned());
                let scheme = HttpAuthSecurityScheme { scheme, bearer_format, ..HttpAuthSecurityScheme::default() };
                ("jwt", Scheme::HttpAuthSecurityScheme(scheme))
            }
        }])
    }
}
