//! Client credentials grant of OAuth 2.0 (RFC 6749, 4.4): form of the request, response, and the cache of an access token.
//!
//! Clients use it for agents, and servers for webhooks. Both send the requests themselves.

use std::{net::IpAddr, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderValue, StatusCode, header::InvalidHeaderValue};
use parking_lot::Mutex;
use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;
use tokio::{sync::Semaphore, time::Instant};

/// Maximum time of a request to a token endpoint.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of the response of a token endpoint, in bytes.
pub(crate) const MAX_RESPONSE: usize = 64 << 10;

/// Media type of a token request.
pub(crate) const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");

/// Lifetime of an access token if the token endpoint names none, and the longest one that is used.
pub(crate) const LIFETIME: (Duration, Duration) = (Duration::from_mins(5), Duration::from_hours(24));

/// Longest time before the end of its lifetime at which an access token is replaced. At most a tenth of the lifetime.
const MARGIN: Duration = Duration::from_mins(1);

/// Value of `Authorization` with an access token, and the lifetime of the token.
pub(crate) type AccessToken = (HeaderValue, Duration);

/// Access token that is requested when it is needed, by one request at a time.
pub(crate) struct TokenCache<E> {
    state: Mutex<State<E>>,
    /// Admits one request at a time.
    request: Semaphore,
}

struct State<E> {
    /// Value of `Authorization`, and the time at which it is replaced.
    token: Option<(HeaderValue, Instant)>,
    /// Time and result of the last failed request.
    failure: Option<(Instant, E)>,
}

impl<E> Default for TokenCache<E> {
    fn default() -> Self {
        Self { state: Mutex::new(State { token: None, failure: None }), request: Semaphore::new(1) }
    }
}

impl<E> State<E> {
    fn token(&self) -> Option<HeaderValue> {
        self.token.as_ref().filter(|(_, end)| Instant::now() < *end).map(|(token, _)| token.clone())
    }
}

impl<E: Clone> TokenCache<E> {
    /// Returns the token, from the cache if possible, else from `request`.
    ///
    /// # Errors
    /// Those of the request. Callers that waited for a request share its error.
    pub(crate) async fn token(&self, request: impl Future<Output = Result<AccessToken, E>>) -> Result<HeaderValue, E> {
        let started = Instant::now();
        if let Some(token) = self.state.lock().token() {
            return Ok(token);
        }
        let _permit = self.request.acquire().await;
        {
            let state = self.state.lock();
            if let Some(token) = state.token() {
                return Ok(token);
            }
            if let Some((_, error)) = state.failure.as_ref().filter(|(at, _)| *at >= started) {
                return Err(error.clone());
            }
        }
        let requested = Instant::now();
        let result = request.await;
        let mut state = self.state.lock();
        match result {
            Ok((token, lifetime)) => {
                let end = requested + lifetime - MARGIN.min(lifetime / 10);
                *state = State { token: Some((token.clone(), end)), failure: None };
                Ok(token)
            }
            Err(error) => {
                state.failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Removes a token that was rejected, unless another caller has replaced it already.
    pub(crate) fn reject(&self, authorization: &HeaderValue) {
        let mut state = self.state.lock();
        if state.token.as_ref().is_some_and(|(token, _)| token == authorization) {
            state.token = None;
        }
    }
}

/// Returns the value of `Authorization` of a client of a token endpoint (RFC 6749, 2.3.1).
pub(crate) fn basic(client_id: &str, client_secret: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let encode = |text: &str| form(&[("", text)]).trim_start_matches('=').to_owned();
    sensitive(&format!("Basic {}", STANDARD.encode(format!("{}:{}", encode(client_id), encode(client_secret)))))
}

/// Encodes parameters as a form.
pub(crate) fn form(parameters: &[(&str, &str)]) -> String {
    serde_html_form::to_string(parameters).unwrap_or_default()
}

/// Returns a header value that is not printed.
pub(crate) fn sensitive(text: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    let mut value = HeaderValue::from_bytes(text.as_bytes())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Returns true for a URL to which client credentials may be sent: with `https`, or of this machine, and without user
/// information.
pub(crate) fn is_token_endpoint(url: &Url) -> bool {
    let is_encrypted = url.scheme() == "https" || (url.scheme() == "http" && is_loopback(url));
    is_encrypted && url.username().is_empty() && url.password().is_none()
}

/// Returns true for a URL of this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Reads a token response (RFC 6749, 5.1).
///
/// # Errors
/// A description of the failure. It contains no text of the response except the code of an error.
pub(crate) fn read_response(status: StatusCode, body: &[u8]) -> Result<AccessToken, String> {
    #[derive(Deserialize)]
    struct TokenResponse {
        access_token: String,
        token_type: Option<String>,
        expires_in: Option<Value>,
    }
    if status != StatusCode::OK {
        let code = error_code(body).map(|code| format!(": {code}")).unwrap_or_default();
        return Err(format!("the token endpoint returned {}{code}", status.as_u16()));
    }
    let malformed = || "the response of the token endpoint has no valid access token".to_owned();
    let response: TokenResponse = serde_json::from_slice(body).map_err(|_| malformed())?;
    if response.token_type.is_some_and(|name| !name.eq_ignore_ascii_case("bearer")) {
        return Err("the access token is not a bearer token".to_owned());
    }
    if response.access_token.is_empty() || !response.access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(malformed());
    }
    // Some token endpoints return a string.
    let seconds = response.expires_in.and_then(|value| value.as_f64().or_else(|| value.as_str()?.parse().ok()));
    let lifetime = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let token = sensitive(&format!("Bearer {}", response.access_token)).map_err(|_| malformed())?;
    Ok((token, lifetime.unwrap_or(LIFETIME.0).min(LIFETIME.1)))
}

/// Returns the code of an error response (RFC 6749, 5.2) if it is a known one. Its other texts may contain secrets.
pub(crate) fn error_code(body: &[u8]) -> Option<&'static str> {
    const CODES: [&str; 6] = [
        "invalid_request",
        "invalid_client",
        "invalid_grant",
        "unauthorized_client",
        "unsupported_grant_type",
        "invalid_scope",
    ];
    #[derive(Deserialize)]
    struct ErrorResponse {
        error: String,
    }
    let ErrorResponse { error } = serde_json::from_slice(body).ok()?;
    CODES.into_iter().find(|code| *code == error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_encoded_before_base64() {
        assert_eq!(basic("a b", "ü:&=").unwrap(), format!("Basic {}", STANDARD.encode("a+b:%C3%BC%3A%26%3D")));
        assert_eq!(
            form(&[("grant_type", "client_credentials"), ("scope", "a b")]),
            "grant_type=client_credentials&scope=a+b"
        );
    }

    #[test]
    fn token_endpoints_are_encrypted_or_on_this_machine() {
        for (url, expected) in [
            ("https://login.example/token", true),
            ("http://login.example/token", false),
            ("http://127.0.0.1:1/token", true),
            ("http://[::1]:1/token", true),
            ("http://[::ffff:127.0.0.1]/token", true),
            ("http://localhost/token", true),
            ("http://localhost.example/token", false),
            ("https://user@login.example/token", false),
            ("ftp://localhost/token", false),
        ] {
            assert_eq!(is_token_endpoint(&Url::parse(url).unwrap()), expected, "{url}");
        }
    }
}
