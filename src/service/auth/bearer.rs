//! Bearer tokens: the configured [`Token`], and the [`Bearer`] authenticator that compares it with that of a request.

use async_trait::async_trait;
use http::{HeaderMap, header};
use subtle::ConstantTimeEq as _;

use super::{AuthRequest, Authenticator, CREDENTIALS, MISSING, Principal};
use crate::{
    base::credential::Credential,
    protocol::{
        error::{BEARER, Error, ErrorKind, INVALID_TOKEN},
        pb::v1::AgentCard,
    },
};

/// Secret bearer token. `Debug` does not show it.
#[derive(Clone)]
pub struct Token(Box<str>);

impl Token {
    /// Creates a token.
    ///
    /// # Errors
    /// The text is empty or has characters other than visible ASCII. The error does not contain the text.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            Err("the token must not be empty")
        } else if text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text.into()))
        } else {
            Err("the token must consist of visible ASCII characters without spaces")
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns the token for the headers of a client.
    #[cfg(feature = "cli")]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

debug_fields!(Token {});

/// Authentication with one bearer token. All callers are the same principal.
#[derive(Clone, Debug)]
pub struct Bearer {
    token: Credential,
    principal: Principal,
}

impl Bearer {
    /// Accepts requests with this token.
    pub fn new(token: Token) -> Self {
        Self::of(String::from(token.0).into())
    }

    /// Accepts requests with this token, which is a [`Token`].
    pub(crate) fn of(token: Credential) -> Self {
        Self { token, principal: Principal::new("token") }
    }
}

#[async_trait]
impl Authenticator for Bearer {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let expected = self.token.current().await;
        match bearer_token(request.headers) {
            // In constant time.
            Some(token) if expected.as_bytes().ct_eq(token).into() => Ok(Some(self.principal.clone())),
            // RFC 6750, 3.1: no error code if the request has no credentials.
            None => {
                let error = ErrorKind::Unauthenticated.because("a bearer token is required");
                Err(error.with(CREDENTIALS, MISSING).challenge(BEARER))
            }
            Some(_) => {
                let error = ErrorKind::Unauthenticated.because("the bearer token is not valid");
                Err(error.challenge(INVALID_TOKEN))
            }
        }
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        card.bearer()
    }
}

/// Returns the bearer token of a request. The scheme is case-insensitive (RFC 9110, 11.1).
pub(crate) fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
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
