//! Who is calling: before the door stands a guard, who asks an [`Authenticator`] and lets in only whom that one knows.

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use async_trait::async_trait;
use http::{HeaderMap, Request, Response, header};
use subtle::ConstantTimeEq as _;
use tower_service::Service;

use crate::{
    card::Card,
    error::{Error, ErrorKind},
    transport::{Body, RequestBody, ResponseFuture, is_public, refuse},
};

/// Whoever calls, as the authentication names them.
///
/// What stands before a [door](crate::transport::Door) puts it into the extensions of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal(Arc<str>);

impl Principal {
    /// A caller of this name, which owns the tasks that it makes.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// What the caller is called.
    pub fn name(&self) -> &Arc<str> {
        &self.0
    }
}

/// Finds out who is calling.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// The caller, by what came with the request.
    ///
    /// # Errors
    /// [`ErrorKind::Unauthenticated`] with a [challenge](Error::challenge) where nobody is known by the credentials.
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Principal, Error>;

    /// Says in the card what callers have to bring.
    fn describe(&self, card: Card) -> Card;
}

/// A secret that callers show. It is never printed.
#[derive(Clone)]
pub struct Token(Box<[u8]>);

impl Token {
    /// A token of this text.
    ///
    /// # Errors
    /// It is empty, or has characters that a header can't carry; the error says so, and not what it was.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            Err("it is empty")
        } else if text.bytes().all(|it| it.is_ascii_graphic()) {
            Ok(Self(text.as_bytes().into()))
        } else {
            Err("only ASCII letters, digits and signs can be in it, and no spaces")
        }
    }

    /// Takes the same time wherever the first difference is.
    fn is(&self, other: &[u8]) -> bool {
        self.0.ct_eq(other).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// One token for all callers, who are one principal then.
#[derive(Clone, Debug)]
pub struct Bearer {
    token: Token,
    principal: Principal,
}

impl Bearer {
    /// Lets in who brings this token.
    pub fn new(token: Token) -> Self {
        Self { token, principal: Principal::new("token") }
    }
}

#[async_trait]
impl Authenticator for Bearer {
    async fn authenticate(&self, headers: &HeaderMap) -> Result<Principal, Error> {
        match bearer(headers) {
            Some(it) if self.token.is(it) => Ok(self.principal.clone()),
            // RFC 6750, 3.1: who brought nothing is told no error.
            None => {
                Err(ErrorKind::Unauthenticated.because("a bearer token is needed").challenge("Bearer realm=\"a2a\""))
            }
            Some(_) => {
                let challenge = "Bearer realm=\"a2a\", error=\"invalid_token\"";
                Err(ErrorKind::Unauthenticated.because("the bearer token is not valid").challenge(challenge))
            }
        }
    }

    fn describe(&self, card: Card) -> Card {
        card.bearer()
    }
}

/// What follows `Bearer`, in whichever case that is written.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

/// A tower service that asks who is calling, before another. With nobody to ask, it is as if it were not there.
#[derive(Clone)]
pub struct Guard<S> {
    inner: S,
    authenticator: Option<Arc<dyn Authenticator>>,
}

impl<S> Guard<S> {
    /// Stands before a service.
    pub fn new(inner: S, authenticator: Option<Arc<dyn Authenticator>>) -> Self {
        Self { inner, authenticator }
    }
}

impl<S, B> Service<Request<B>> for Guard<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible, Future = ResponseFuture>
        + Clone
        + Send
        + 'static,
    B: RequestBody,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let Some(authenticator) = self.authenticator.as_ref().filter(|_| !is_public(&request)).map(Arc::clone) else {
            return self.inner.call(request);
        };
        // The one that was asked whether it is ready is the one to be called.
        let other = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, other);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            match authenticator.authenticate(&parts.headers).await {
                Ok(principal) => {
                    parts.extensions.insert(principal);
                    inner.call(Request::from_parts(parts, body)).await
                }
                Err(error) => Ok(refuse(&parts, error)),
            }
        })
    }
}

impl<S> fmt::Debug for Guard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("guarded", &self.authenticator.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_a_header_can_carry() {
        for text in ["", "a b", "a\n", "é"] {
            assert!(Token::new(text).is_err(), "{text:?}");
        }
        let bearer = Bearer::new(Token::new("s3cret-._~+/=").unwrap());
        assert!(!format!("{bearer:?}").contains("s3cret"));
    }

    #[test]
    fn the_scheme_is_read_in_any_case() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            bearer(&headers).map(<[u8]>::to_vec)
        };
        for text in ["Bearer t", "bearer t", "BEARER  t"] {
            assert_eq!(of(text).as_deref(), Some(&b"t"[..]), "{text}");
        }
        for text in ["Bearer", "Bearer  ", "Basic t", "Bearert", ""] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn nothing_but_the_card_and_health_is_public() {
        let public = |method: &str, path: &str, content_type: &str| {
            let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content_type);
            is_public(&request.body(()).unwrap())
        };
        for path in ["/.well-known/agent-card.json", "/healthz", "/readyz", "/healthz/"] {
            assert!(public("GET", path, "") && public("HEAD", path, ""), "{path}");
        }
        let health = "/grpc.health.v1.Health/Check";
        assert!(public("POST", health, "application/grpc") && !public("POST", health, "application/json"));
        for path in ["/.well-known/tasks", "/healthz/tasks", "/tasks", "/rpc", "/.well-known/agent-card.json/tasks"] {
            assert!(!public("GET", path, ""), "{path}");
        }
    }
}
