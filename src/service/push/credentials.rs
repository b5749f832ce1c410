//! Credentials of the server for webhooks: their source, and the client credentials grant of OAuth 2.0 (RFC 6749, 4.4).

use std::{collections::HashMap, fmt, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use reqwest::{Client, redirect};
use url::Url;

use super::response::describe;
use crate::{
    base::{
        bounded_body::{BodyError, ResponseBody},
        credential::Credential,
        name_lookup::http_client,
        network::is_secure,
        oauth::{self, MAX_RESPONSE, OAuthClient, TokenError, TokenSource},
    },
    protocol::version::Version,
};

/// Notification for which credentials are needed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WebhookRequest<'a> {
    /// URL of the webhook. The client has chosen it, within the permitted targets ([`allow`](super::PushOptions::allow)).
    pub url: &'a Url,
    /// Protocol version in which the configuration was registered.
    pub version: Version,
    /// Tenant of the configuration; empty for none.
    pub tenant: &'a str,
    /// Task whose event is delivered.
    pub task_id: &'a str,
    /// Id of the configuration.
    pub config_id: &'a str,
}

/// Reason why there are no credentials at present. Must not contain a secret: it is logged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsError(String);

impl CredentialsError {
    /// Creates an error with a reason for the operator.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// Source of the credentials that the server presents to webhooks.
///
/// Consulted for notifications whose configuration has no credentials of its own: those of the client take precedence.
///
/// ```
/// use a2a_service::{
///     http::HeaderValue,
///     push::{CredentialsError, WebhookCredentials, WebhookRequest},
/// };
///
/// /// Gives a password to the webhooks of one host.
/// struct Password(HeaderValue);
///
/// #[async_trait::async_trait]
/// impl WebhookCredentials for Password {
///     async fn authorization(&self, request: &WebhookRequest<'_>) -> Result<Option<HeaderValue>, CredentialsError> {
///         Ok((request.url.host_str() == Some("hooks.example.com")).then(|| self.0.clone()))
///     }
/// }
/// ```
#[async_trait]
pub trait WebhookCredentials: Send + Sync + 'static {
    /// Returns the value of `Authorization` for a notification. `None`: the source has no credentials for this webhook.
    /// Counts toward the timeout of the attempt.
    ///
    /// # Errors
    /// Credentials are not available at present. The delivery is retried.
    async fn authorization(&self, request: &WebhookRequest<'_>) -> Result<Option<HeaderValue>, CredentialsError>;

    /// Called if the webhook has rejected these credentials with 401. Returns true if there may be other ones: then the
    /// notification is sent once more at once. By default, there are none, and the delivery ends.
    async fn rejected(&self, request: &WebhookRequest<'_>, authorization: &HeaderValue) -> bool {
        let _ = (request, authorization);
        false
    }
}

/// Credentials for each of several hosts. Other hosts get none, and neither do requests without TLS to other machines.
#[derive(Clone, Default)]
pub struct HostCredentials {
    /// By host and port.
    hosts: HashMap<(String, u16), Arc<dyn WebhookCredentials>>,
}

impl HostCredentials {
    /// Adds the credentials for a host, such as `hooks.example.com` or `hooks.example.com:8443`. Without a port, they are for
    /// port 443. They replace earlier ones for this host.
    ///
    /// # Errors
    /// The text is not a host.
    pub fn host(mut self, host: &str, credentials: impl WebhookCredentials) -> Result<Self, CredentialsError> {
        self.hosts.insert(host_key(host)?, Arc::new(credentials));
        Ok(self)
    }

    fn find(&self, url: &Url) -> Option<&dyn WebhookCredentials> {
        let is_secure = is_secure(url.scheme(), url.host_str()?);
        self.hosts.get(&key_of(url)?).filter(|_| is_secure).map(|credentials| &**credentials)
    }
}

/// Returns host and port of a text such as `hooks.example.com:8443`.
///
/// # Errors
/// The text is not a host.
pub(crate) fn host_key(host: &str) -> Result<(String, u16), CredentialsError> {
    let url = Url::parse(&format!("https://{host}")).ok();
    let is_host = !host.contains(['/', '\\', '?', '#', '@']);
    let key = url.filter(|_| is_host).and_then(|url| key_of(&url));
    key.ok_or_else(|| {
        CredentialsError::new(format!("`{host}` is not a host; write hooks.example.com or hooks.example.com:8443"))
    })
}

fn key_of(url: &Url) -> Option<(String, u16)> {
    let host = url.host_str()?;
    Some((host.strip_suffix('.').unwrap_or(host).to_owned(), url.port_or_known_default()?))
}

#[async_trait]
impl WebhookCredentials for HostCredentials {
    async fn authorization(&self, request: &WebhookRequest<'_>) -> Result<Option<HeaderValue>, CredentialsError> {
        let Some(credentials) = self.find(request.url) else { return Ok(None) };
        credentials.authorization(request).await
    }

    async fn rejected(&self, request: &WebhookRequest<'_>, authorization: &HeaderValue) -> bool {
        let Some(credentials) = self.find(request.url) else { return false };
        credentials.rejected(request, authorization).await
    }
}

impl fmt::Debug for HostCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.hosts.keys()).finish()
    }
}

/// Access tokens of a token endpoint, requested with the client credentials grant of OAuth 2.0 (RFC 6749, 4.4). The client
/// authenticates with HTTP Basic (2.3.1), or with its secret in the body if the token endpoint rejects that.
///
/// A token is used until shortly before it expires, or until a webhook rejects it. The token endpoint is called directly,
/// without a proxy; redirects are not followed. It gets one request at a time, of at most 10 s, and at most 64 KiB of its
/// response are read. All webhooks get the token: use it within [`HostCredentials`].
///
/// ```
/// use a2a_service::push::{ClientCredentials, HostCredentials, PushOptions};
/// use std::sync::Arc;
///
/// let token = ClientCredentials::new("https://login.example.com/token", "a2a", "a secret")?.scope("notify");
/// let credentials = HostCredentials::default().host("hooks.example.com", token)?;
/// let options = PushOptions::default().credentials(Some(Arc::new(credentials)));
/// # Ok::<(), a2a_service::push::CredentialsError>(())
/// ```
pub struct ClientCredentials {
    endpoint: Url,
    http: Client,
    tokens: TokenSource,
}

impl ClientCredentials {
    /// Creates the credentials of a client of a token endpoint, which must have `https` unless it is on this machine.
    ///
    /// # Errors
    /// The URL of the token endpoint is invalid, or the HTTP client can't be created.
    pub fn new(
        token_url: &str,
        client_id: &str,
        client_secret: impl Into<Credential>,
    ) -> Result<Self, CredentialsError> {
        let endpoint = token_endpoint(token_url)?;
        let client = OAuthClient::new(client_id, client_secret);
        let client = client.map_err(|error| CredentialsError::new(error.to_string()))?;
        let http = http_client()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("a2a-service/", env!("CARGO_PKG_VERSION")))
            .build();
        let http = http.map_err(|error| CredentialsError::new(error.to_string()))?;
        Ok(Self { endpoint, http, tokens: TokenSource::new(client) })
    }

    /// Requests this scope: names separated by spaces. By default, that of the token endpoint.
    #[must_use]
    pub fn scope(self, scope: impl Into<String>) -> Self {
        self.parameter("scope", scope.into())
    }

    /// Requests a token for this audience, an extension of several token endpoints. None by default.
    #[must_use]
    pub fn audience(self, audience: impl Into<String>) -> Self {
        self.parameter("audience", audience.into())
    }

    /// Requests a token for the resource with this URI (RFC 8707). None by default.
    #[must_use]
    pub fn resource(self, resource: impl Into<String>) -> Self {
        self.parameter("resource", resource.into())
    }

    pub(crate) fn parameter(self, name: &'static str, value: String) -> Self {
        Self { tokens: self.tokens.parameter(name, value), ..self }
    }

    /// Sends a request to the token endpoint. Returns status and body of the response.
    async fn send(&self, request: http::Request<Bytes>) -> Result<(StatusCode, Bytes), TokenError> {
        let (head, body) = request.into_parts();
        let request = self.http.request(head.method, self.endpoint.clone()).headers(head.headers).body(body);
        let failed = |error: &reqwest::Error| TokenError::transient(describe(error, "the token endpoint"));
        let response = request.send().await.map_err(|error| failed(&error))?;
        let status = response.status();
        let body = ResponseBody::of(response, MAX_RESPONSE).all().await;
        let body = body.map_err(|error| match error {
            BodyError::Interrupted(error) => failed(&error),
            BodyError::TooLarge(_) | BodyError::TimedOut | BodyError::WithoutEvent(_) => TokenError::too_large(),
            BodyError::Encoded => TokenError::permanent(format!("the token endpoint: {error}")),
        });
        Ok((status, body?))
    }
}

/// Returns the URL of a token endpoint.
///
/// # Errors
/// The URL is invalid, or has neither `https` nor a loopback host.
pub(crate) fn token_endpoint(url: &str) -> Result<Url, CredentialsError> {
    let parsed = Url::parse(url).ok().filter(oauth::is_token_endpoint);
    parsed.ok_or_else(|| CredentialsError::new("token_url: must be a URL with https, or with http on this machine"))
}

#[async_trait]
impl WebhookCredentials for ClientCredentials {
    async fn authorization(&self, _: &WebhookRequest<'_>) -> Result<Option<HeaderValue>, CredentialsError> {
        let token = self.tokens.authorization(|request| self.send(request)).await;
        token.map(Some).map_err(|error| CredentialsError::new(error.to_string()))
    }

    async fn rejected(&self, _: &WebhookRequest<'_>, authorization: &HeaderValue) -> bool {
        self.tokens.reject(authorization);
        true
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCredentials").field("host", &self.endpoint.host_str()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
