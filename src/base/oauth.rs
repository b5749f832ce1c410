//! Client credentials grant of OAuth 2.0 (RFC 6749, 4.4): requests for access tokens, and the cache of a token.
//!
//! Clients use it for agents, and servers for webhooks.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, StatusCode,
    header::{self, InvalidHeaderValue},
};
use parking_lot::Mutex;
use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::{credential::Credential, network::is_secure};

/// Maximum time of the requests for an access token.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of the response of a token endpoint, in bytes.
pub(crate) const MAX_RESPONSE: usize = 64 << 10;

/// Media type of a token request.
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");

/// Lifetime of an access token if the token endpoint names none, and the longest one that is used.
const LIFETIME: (Duration, Duration) = (Duration::from_mins(5), Duration::from_hours(24));

/// Longest time before the end of its lifetime at which an access token is replaced. At most a tenth of the lifetime.
const MARGIN: Duration = Duration::from_mins(1);

/// Reason why there is no access token. Contains no text of the response except the code of an error.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no access token: {reason}")]
pub(crate) struct TokenError {
    pub(crate) reason: String,
    /// A later request may succeed.
    pub(crate) is_transient: bool,
}

impl TokenError {
    pub(crate) fn permanent(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_transient: false }
    }

    pub(crate) fn transient(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_transient: true }
    }

    /// Creates the error for a response that does not have what was asked for.
    pub(crate) fn of_response(status: StatusCode, reason: impl Into<String>) -> Self {
        let is_transient = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        Self { reason: reason.into(), is_transient }
    }

    pub(crate) fn too_large() -> Self {
        Self::permanent(format!("the response of the token endpoint is larger than {MAX_RESPONSE} bytes"))
    }
}

/// Client of an authorization server.
#[derive(Clone)]
pub(crate) struct OAuthClient {
    id: String,
    secret: Credential,
}

impl OAuthClient {
    /// Creates a client.
    ///
    /// # Errors
    /// The id and the secret can't be sent in a header.
    pub(crate) fn new(id: &str, secret: impl Into<Credential>) -> Result<Self, InvalidHeaderValue> {
        let secret = secret.into();
        basic(id, &secret.latest())?;
        Ok(Self { id: id.to_owned(), secret })
    }
}

/// Access token that is requested when it is needed, by one request at a time.
pub(crate) struct TokenSource {
    client: OAuthClient,
    /// Parameters of the request besides those of the grant and the client.
    pub(crate) parameters: Vec<(&'static str, String)>,
    /// The token endpoint accepts the secret only in the body.
    in_body: AtomicBool,
    state: Mutex<State>,
    /// Admits one request at a time.
    request: Semaphore,
}

#[derive(Default)]
struct State {
    /// Value of `Authorization`, and the time at which it is replaced.
    token: Option<(HeaderValue, Instant)>,
    /// Time and result of the last failed request.
    failure: Option<(Instant, TokenError)>,
}

impl State {
    fn token(&self) -> Option<HeaderValue> {
        self.token.as_ref().filter(|(_, end)| Instant::now() < *end).map(|(token, _)| token.clone())
    }
}

impl TokenSource {
    pub(crate) fn new(client: OAuthClient) -> Self {
        let (state, request) = (Mutex::default(), Semaphore::new(1));
        Self { client, parameters: Vec::new(), in_body: AtomicBool::new(false), state, request }
    }

    /// Adds a parameter to the requests.
    pub(crate) fn parameter(mut self, name: &'static str, value: String) -> Self {
        self.parameters.push((name, value));
        self
    }

    /// Returns the value of `Authorization`, from the cache if possible. `send` sends a request to the token endpoint, whose URL it
    /// adds, and returns status and body of the response.
    ///
    /// # Errors
    /// Those of the request. Callers that waited for a request share its error.
    pub(crate) async fn authorization<F>(&self, send: impl Fn(Request<Bytes>) -> F) -> Result<HeaderValue, TokenError>
    where
        F: Future<Output = Result<(StatusCode, Bytes), TokenError>>,
    {
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
        let late = |_| Err(TokenError::transient("the token endpoint did not answer in time"));
        let result = timeout(TIMEOUT, self.request_token(send)).await.unwrap_or_else(late);
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

    /// Requests a token. Returns the value of `Authorization`, and the lifetime of the token.
    async fn request_token<F>(&self, send: impl Fn(Request<Bytes>) -> F) -> Result<(HeaderValue, Duration), TokenError>
    where
        F: Future<Output = Result<(StatusCode, Bytes), TokenError>>,
    {
        let (in_body, secret) = (self.in_body.load(Ordering::Relaxed), self.client.secret.current().await);
        let (mut status, mut body) = send(self.token_request(in_body, &secret)).await?;
        let rejects_client = matches!(error_code(&body), Some("invalid_client" | "invalid_request"));
        if !in_body && (rejects_client || status == StatusCode::UNAUTHORIZED) && status.is_client_error() {
            // Some authorization servers don't accept HTTP Basic, although RFC 6749 requires it (2.3.1).
            let second = send(self.token_request(true, &secret)).await?;
            if second.0.is_success() {
                self.in_body.store(true, Ordering::Relaxed);
                (status, body) = second;
            }
        }
        read_response(status, &body).map_err(|reason| TokenError::of_response(status, reason))
    }

    fn token_request(&self, in_body: bool, secret: &str) -> Request<Bytes> {
        let id = &self.client.id;
        let mut parameters = vec![("grant_type", "client_credentials")];
        parameters.extend(self.parameters.iter().map(|(name, value)| (*name, value.as_str())));
        if in_body {
            parameters.extend([("client_id", id.as_str()), ("client_secret", secret)]);
        }
        let mut request = Request::new(Bytes::from(form(&parameters)));
        *request.method_mut() = Method::POST;
        let headers = request.headers_mut();
        headers.insert(header::CONTENT_TYPE, FORM);
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        // A secret that can't be sent in a header is rejected by the endpoint.
        if let (false, Ok(basic)) = (in_body, basic(id, secret)) {
            headers.insert(header::AUTHORIZATION, basic);
        }
        request
    }
}

/// Returns the value of `Authorization` of a client of a token endpoint (RFC 6749, 2.3.1).
fn basic(client_id: &str, client_secret: &str) -> Result<HeaderValue, InvalidHeaderValue> {
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
    is_secure(url.scheme(), url.host_str().unwrap_or_default()) && url.username().is_empty() && url.password().is_none()
}

/// Reads a token response (RFC 6749, 5.1).
///
/// # Errors
/// A description of the failure. It contains no text of the response except the code of an error.
fn read_response(status: StatusCode, body: &[u8]) -> Result<(HeaderValue, Duration), String> {
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
fn error_code(body: &[u8]) -> Option<&'static str> {
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
    use serde_json::json;

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
    fn lifetime_of_a_token_is_limited() {
        for (expires_in, lifetime) in [
            (json!(null), LIFETIME.0),
            (json!("120"), Duration::from_mins(2)),
            (json!(1.5), Duration::from_millis(1500)),
            (json!(-1), LIFETIME.0),
            (json!(1e300), LIFETIME.0),
            (json!("soon"), LIFETIME.0),
        ] {
            let body = json!({ "access_token": "a", "expires_in": expires_in }).to_string();
            assert_eq!(read_response(StatusCode::OK, body.as_bytes()).unwrap().1, lifetime, "{body}");
        }
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
