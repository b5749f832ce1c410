//! Authentication and authorization: the [`Authenticator`] trait and bearer tokens, [`Principal`]s with their [`Scopes`], and
//! the [`Policy`] trait.

use std::{fmt, net::IpAddr};

use async_trait::async_trait;
use http::{HeaderMap, Method, Uri, header};
use subtle::ConstantTimeEq as _;

pub(crate) mod audit;
mod authorization;
mod combination;
#[cfg(feature = "auth")]
mod jwt;
mod mutual_tls;
mod slow_down;
#[cfg(feature = "auth")]
mod token_file;

pub(crate) use self::authorization::{AuthorizedService, require_scope};
pub(crate) use self::slow_down::{FAILURES, FailureLimit};
pub use self::{
    authorization::{Operation, Policy},
    combination::{AllOf, AnyOf, all, any},
    mutual_tls::{CertificateName, MutualTls},
};
#[cfg(feature = "auth")]
pub use self::{
    jwt::{Jwt, JwtOptions, SigningAlgorithm},
    token_file::{NewToken, TokenEntry, TokenFile, TokenFileError, TokenSource, add_token, list_tokens, revoke_token},
};
pub use crate::call::{ClientCertificate, Principal, Scopes};
use crate::{
    error::{Error, ErrorKind},
    pb::v1::AgentCard,
};

/// Metadata of an error that says whether the request has credentials.
pub(crate) const CREDENTIALS: &str = "credentials";
/// Value of [`CREDENTIALS`] for a request without credentials. Failures with it are not counted as guesses.
pub(crate) const MISSING: &str = "missing";

/// Metadata of an error with the name of the security scheme whose credentials were rejected, as on the card.
pub(crate) const SCHEME: &str = "scheme";

/// Request that is to be authenticated, before its body is read.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AuthRequest<'a> {
    /// HTTP method.
    pub method: &'a Method,
    /// URI, without the [base path](crate::server::Server::base_path).
    pub uri: &'a Uri,
    /// Headers, or gRPC metadata.
    pub headers: &'a HeaderMap,
    /// Address of the client, as forwarded by [trusted proxies](crate::server::Server::trusted_proxies). `None` if unknown.
    pub peer: Option<IpAddr>,
    /// Certificate of the client, which TLS has verified. `None` without one, and behind a proxy that ends TLS.
    pub certificate: Option<&'a ClientCertificate>,
    /// Name of the RPC, such as `SendMessage`. `None` for JSON-RPC, whose method is in the body, and for requests that are no
    /// calls.
    pub operation: Option<&'static str>,
}

/// Authentication scheme: identifies the caller of a request.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// Returns the caller of a request, or `None` for an anonymous one.
    ///
    /// # Errors
    /// [`ErrorKind::Unauthenticated`] with a [challenge](Error::challenge) if credentials are missing or invalid, or
    /// [`ErrorKind::Unavailable`] if they can't be checked.
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error>;

    /// Declares the required credentials on the agent card.
    fn describe(&self, card: AgentCard) -> AgentCard;

    /// Issuers of the accepted OAuth 2.0 tokens, as URLs. The server names them in
    /// `/.well-known/oauth-protected-resource` (RFC 9728). None by default.
    fn issuers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Secret bearer token. `Debug` does not show it, and the comparison takes constant time.
#[derive(Clone)]
pub struct Token(Box<[u8]>);

impl Token {
    /// Creates a token.
    ///
    /// # Errors
    /// The text is empty or has characters other than visible ASCII. The error does not contain the text.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            Err("the token must not be empty")
        } else if text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text.as_bytes().into()))
        } else {
            Err("the token must consist of visible ASCII characters without spaces")
        }
    }

    /// Returns the token for the headers of a client.
    #[cfg(feature = "cli")]
    pub(crate) fn expose(&self) -> &str {
        // `new` accepts ASCII only.
        str::from_utf8(&self.0).unwrap_or_default()
    }

    /// Compares in constant time.
    fn matches(&self, other: &[u8]) -> bool {
        self.0.ct_eq(other).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// Authentication with one bearer token. All callers are the same principal.
#[derive(Clone, Debug)]
pub struct Bearer {
    token: Token,
    principal: Principal,
}

impl Bearer {
    /// Accepts requests with this token.
    pub fn new(token: Token) -> Self {
        Self { token, principal: Principal::new("token") }
    }
}

#[async_trait]
impl Authenticator for Bearer {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        match bearer_token(request.headers) {
            Some(token) if self.token.matches(token) => Ok(Some(self.principal.clone())),
            // RFC 6750, 3.1: no error code if the request has no credentials.
            None => {
                let challenge = "Bearer realm=\"a2a\"";
                Err(ErrorKind::Unauthenticated
                    .because("a bearer token is required")
                    .with(CREDENTIALS, MISSING)
                    .challenge(challenge))
            }
            Some(_) => {
                let challenge = "Bearer realm=\"a2a\", error=\"invalid_token\"";
                Err(ErrorKind::Unauthenticated.because("the bearer token is not valid").challenge(challenge))
            }
        }
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        card.bearer()
    }
}

/// Returns the bearer token of a request. The scheme is case-insensitive (RFC 9110, 11.1).
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_must_be_a_valid_header_value() {
        for text in ["", "a b", "a\n", "é"] {
            assert!(Token::new(text).is_err(), "{text:?}");
        }
        let bearer = Bearer::new(Token::new("s3cret-._~+/=").unwrap());
        assert!(!format!("{bearer:?}").contains("s3cret"));
    }

    #[test]
    fn bearer_scheme_is_case_insensitive() {
        let token = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            bearer_token(&headers).map(<[u8]>::to_vec)
        };
        for text in ["Bearer t", "bearer t", "BEARER  t"] {
            assert_eq!(token(text).as_deref(), Some(&b"t"[..]), "{text}");
        }
        for text in ["Bearer", "Bearer  ", "Basic t", "Bearert", ""] {
            assert_eq!(token(text), None, "{text}");
        }
    }
}
