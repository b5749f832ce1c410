//! Options of a client: binding, version, credentials, retries, TLS and limits.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::Mutex;
use reqwest::Url;

use super::{
    Binding, Error, Version,
    http::{self as http_client, Http, HttpTransport, Network, SizeLimits, complete_url},
    retry_policy::Retry,
    tls::TlsOptions,
};
#[cfg(feature = "signing")]
use crate::base::jws::PublicKeys;
use crate::base::{
    oauth::{OAuthClient, is_token_endpoint},
    trace::Tracing,
};

/// Maximum number of cards in the cache of a builder.
const MAX_CACHED: usize = 64;

/// Options of a [`Client`](super::Client), and constructors of single bindings.
///
/// [`connect`](Self::connect) reads the agent card. [`rest`](Self::rest), [`json_rpc`](Self::json_rpc) and
/// [`grpc`](Self::grpc) return the service trait for a URL that is known without a card.
///
/// - An interrupted stream is resumed after its last event, without gaps or duplicates. If the agent no longer has that
///   position, or does not support resumption, the next event is marked: events may be missing before it
///   ([`is_gap`](crate::protocol::event::resume::is_gap)). It is usually a snapshot of the task. A stream that can't be resumed
///   ends with an error; a stream that ends without one has reached the end of its task or turn.
/// - A send whose connection could not be established is retried. If the outcome of a send is unknown, it is retried only
///   when the server supports `Idempotency-Key`. The client finds that out with a read-only call: the server returns the
///   key. Otherwise the error is returned, because a second send could be executed twice.
/// - Read-only calls are retried.
///
/// Retries honor `Retry-After` and the deadline of the [`Call`](crate::protocol::call::Call).
///
/// Over gRPC, events have no ids of their own. The client therefore requests the extension
/// [`resume`](crate::protocol::event::resume), which servers of this crate offer if `extensions` has `resume`.
///
/// ```
/// use std::time::Duration;
///
/// use a2a_service::{call::Binding, client::Client};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let options = Client::builder().bearer("secret")?.binding(Binding::Grpc).timeout(Duration::from_secs(30));
/// # Ok(()) }
/// # // `options.connect("https://agent.example").await` reads the card.
/// ```
#[derive(Clone, Default)]
#[must_use = "a builder makes no calls before it is given a URL"]
pub struct ClientBuilder {
    pub(super) retry: Retry,
    /// Headers of all requests, such as credentials. Their values are marked as sensitive.
    pub(super) headers: HeaderMap,
    pub(super) credentials: Credentials,
    pub(super) tls: TlsOptions,
    transport: Option<Arc<dyn HttpTransport>>,
    #[cfg(feature = "cli")]
    pub(super) observer: Option<http_client::Observer>,
    trusted_origins: Vec<Url>,
    pub(super) call_credentials: bool,
    pub(super) cache: CardCache,
    pub(super) binding: Option<Binding>,
    pub(super) version: Option<Version>,
    pub(super) tenant: Option<String>,
    pub(super) timeout: Option<Duration>,
    pub(super) extended_card: bool,
    pub(super) limits: SizeLimits,
    pub(super) tracing: Tracing,
    #[cfg(feature = "signing")]
    pub(super) signatures: SignaturePolicy,
}

/// Credentials that are sent as the card declares.
#[derive(Clone, Default)]
pub(super) struct Credentials {
    /// API key for all schemes that have none of their own.
    pub(super) api_key: Option<String>,
    /// API keys by the name of their scheme.
    pub(super) api_keys: BTreeMap<String, String>,
    pub(super) client: Option<OAuthClient>,
    /// Scopes of access tokens, separated by spaces.
    pub(super) scopes: Option<String>,
    pub(super) token_url: Option<Url>,
}

impl Credentials {
    pub(super) fn is_empty(&self) -> bool {
        self.api_key.is_none() && self.api_keys.is_empty() && self.client.is_none()
    }

    pub(super) fn api_key(&self, scheme: &str) -> Option<&str> {
        self.api_keys.get(scheme).or(self.api_key.as_ref()).map(String::as_str)
    }
}

/// Cards that were downloaded with an entity tag, by URL. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct CardCache(pub(super) Arc<Mutex<HashMap<String, (HeaderValue, Bytes)>>>);

impl CardCache {
    pub(super) fn insert(&self, url: &Url, headers: &HeaderMap, json: &Bytes) {
        let Some(tag) = headers.get(header::ETAG) else { return };
        let mut cached = self.0.lock();
        if cached.len() >= MAX_CACHED {
            cached.clear();
        }
        cached.insert(url.to_string(), (tag.clone(), json.clone()));
    }
}

/// Requirement for the signatures of a card (8.4).
#[cfg(feature = "signing")]
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum SignaturePolicy {
    /// Signatures are ignored.
    #[default]
    Off,
    /// A card without signatures is accepted. One with signatures needs a valid one of these keys.
    IfPresent(PublicKeys),
    /// A card needs a valid signature of one of these keys.
    Required(PublicKeys),
}

debug_fields!(ClientBuilder { retry, headers, binding, version, tenant, timeout, limits });

setters! {
    ClientBuilder:
    /// Sets the retry policy. [`Retry::never`] disables retries and the resumption of streams.
    pub retry => retry: Retry;

    /// Restricts calls to the origin of the card, as for credentials of the client, because
    /// [`Call::headers`](crate::protocol::call::Call::headers) has credentials. Off by default.
    pub call_credentials => call_credentials: bool;

    /// Calls agents over this binding only. By default, the first interface of the card is used.
    pub binding => binding: Binding;

    /// Calls agents with this version of the protocol only. By default, the version of the first interface of the card is
    /// used; [`rest`](Self::rest), [`json_rpc`](Self::json_rpc) and [`grpc`](Self::grpc) use 1.0.
    pub version => version: Version;

    /// Sets the deadline of a call of [`Client`](super::Client), with its retries and with all events of its stream. None by
    /// default.
    pub timeout => timeout: Duration;

    /// Replaces the card by the extended card (3.1.11) when the client connects, if the card declares one and there are
    /// credentials. The interface remains that of the first card. Off by default:
    /// [`Client::extended_card`](super::Client::extended_card) downloads it when it is needed.
    pub extended_card => extended_card: bool;

    /// Sets the maximum sizes of what is received.
    pub limits => limits: SizeLimits;

    /// Sets the requirement for signatures of the card. By default, signatures are ignored.
    #[cfg(feature = "signing")]
    pub signatures => signatures: SignaturePolicy;

    /// Accepts any TLS certificate, also one that is expired, for another host, or issued by anybody: an attacker in the
    /// network can read and change all calls and take the credentials. For tests only. gRPC interfaces with TLS are not used,
    /// because tonic always verifies the certificate.
    #[cfg(feature = "tls")]
    pub danger_accept_invalid_certs => tls.accepts_invalid_certs: bool;

    /// Tracer for spans of calls.
    pub(crate) tracing => tracing: Tracing;

    /// Shows the requests to an observer.
    #[cfg(feature = "cli")]
    pub(crate) observer => observer: http_client::Observer;
}

impl ClientBuilder {
    /// Creates a client with the default [retry policy](Retry) and without credentials.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends a bearer token with every call. Redirects are followed within the origin of the configured URL
    /// only, so the token reaches no other one.
    /// Over `http://` it is not encrypted.
    ///
    /// # Errors
    /// The token is empty or is not a valid header value.
    pub fn bearer(self, token: &str) -> Result<Self, Error> {
        if token.trim().is_empty() {
            return Err(Error::invalid_field("token", "must not be empty and must be a valid header value"));
        }
        self.authorization(&format!("Bearer {token}"))
    }

    /// Sends a user name and a password with every call (HTTP Basic, RFC 7617).
    ///
    /// # Errors
    /// The user name contains a colon.
    pub fn basic(self, user: &str, password: &str) -> Result<Self, Error> {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        if user.contains(':') {
            return Err(Error::invalid_field("user", "must not contain a colon"));
        }
        self.authorization(&format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}"))))
    }

    /// Sends this value of `Authorization` with every call, such as `Bearer TOKEN`.
    ///
    /// # Errors
    /// The value is not a valid header value.
    pub fn authorization(self, value: &str) -> Result<Self, Error> {
        self.header(header::AUTHORIZATION.as_str(), value)
            .map_err(|_| Error::invalid_field("token", "must not be empty and must be a valid header value"))
    }

    /// Sends a header with every call: an API key, or a service parameter (3.2.6). Its value is treated as a secret.
    /// Replaces an earlier value.
    ///
    /// # Errors
    /// The name or the value is not valid in a header.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, Error> {
        let invalid = |what: &str| Error::invalid_field("header", format!("`{name}` has no valid {what}"));
        let header = HeaderName::try_from(name).map_err(|_| invalid("name"))?;
        let mut value = HeaderValue::from_str(value).map_err(|_| invalid("value"))?;
        value.set_sensitive(true);
        self.headers.insert(header, value);
        // A card may depend on the caller.
        self.cache = CardCache::default();
        Ok(self)
    }

    /// Sends an API key with every call, in the header, query parameter or cookie that the card declares. If the card declares
    /// several API keys, all of them have this value, except those of [`api_key_for`](Self::api_key_for). If it declares none,
    /// or if there is no card, the key is sent in the header `X-API-Key`.
    ///
    /// A key in the query is not sent over gRPC, which has none. Requests for the card have no key.
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.credentials.api_key = Some(key.into());
        self
    }

    /// Sends an API key for the security scheme with this name on the card (4.5), and for no other. Without such a scheme, it is
    /// not sent.
    pub fn api_key_for(mut self, scheme: impl Into<String>, key: impl Into<String>) -> Self {
        self.credentials.api_keys.insert(scheme.into(), key.into());
        self
    }

    /// Requests access tokens with the client credentials grant of OAuth 2.0 (RFC 6749, 4.4), and sends them as bearer tokens.
    ///
    /// The token endpoint is that of the card's OAuth 2.0 scheme, or of the metadata that its OAuth 2.0 or OpenID Connect scheme
    /// refers to, unless [`token_url`](Self::token_url) sets it. One that the card names has to be of the origin of the card,
    /// or of a [trusted one](Self::trust_origin): it receives the secret. It needs `https`, except on this machine.
    ///
    /// A token is requested with the first call, and replaced shortly before it expires, or once if the agent rejects it
    /// (401). There is one request at a time, of at most 10 s and 64 KiB. If the client authenticates in another way
    /// ([`bearer`](Self::bearer)), no token is requested.
    ///
    /// ```
    /// use a2a_service::client::Client;
    ///
    /// let options = Client::builder()
    ///     .client_credentials("my-agent", "a secret")?
    ///     .token_url("https://login.example.com/token")?
    ///     .scopes("agent.call");
    /// # Ok::<(), a2a_service::error::Error>(())
    /// // `options.connect("https://agent.example").await` reads the card.
    /// ```
    ///
    /// # Errors
    /// The id and the secret can't be sent in a header.
    pub fn client_credentials(mut self, id: &str, secret: &str) -> Result<Self, Error> {
        let client = OAuthClient::new(id, secret);
        let client = client.map_err(|_| Error::invalid_field("client_credentials", "must fit a header value"))?;
        self.credentials.client = Some(client);
        Ok(self)
    }

    /// Sets the token endpoint for [`client_credentials`](Self::client_credentials).
    ///
    /// # Errors
    /// The URL is invalid, or has neither `https` nor a host of this machine.
    pub fn token_url(mut self, url: &str) -> Result<Self, Error> {
        let parsed = Url::parse(url).ok().filter(is_token_endpoint);
        let invalid = || Error::invalid_field("token_url", "must be a URL with https, or with http on this machine");
        self.credentials.token_url = Some(parsed.ok_or_else(invalid)?);
        Ok(self)
    }

    /// Sets the scopes of access tokens, separated by spaces. By default, those that the card requires.
    pub fn scopes(mut self, scopes: impl Into<String>) -> Self {
        self.credentials.scopes = Some(scopes.into());
        self
    }

    /// Sends credentials to interfaces of this origin too. By default, they are sent only to the origin (scheme, host and
    /// port) of the URL that the client connects to, even if the card names others.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn trust_origin(mut self, url: &str) -> Result<Self, Error> {
        self.trusted_origins.push(complete_url(url)?);
        Ok(self)
    }

    /// Sets the tenant of all requests. By default, it is that of the interface on the card (4.4.6).
    pub fn tenant(self, tenant: impl Into<String>) -> Self {
        Self { tenant: Some(tenant.into()), ..self }
    }

    /// Makes a span of each call with a tracer of OpenTelemetry, and sends its context in `traceparent`. Its parent is
    /// [`Call::trace`](crate::protocol::call::Call::trace), or else the turn in which the call is made. It includes the retries of the
    /// call, and all events of its stream.
    #[cfg(feature = "trace")]
    pub fn tracer(self, tracer: opentelemetry::global::BoxedTracer) -> Self {
        self.tracing(Tracing::of(tracer))
    }

    /// Replaces the network below the JSON bindings and the agent card. gRPC has connections of its own.
    pub fn transport(self, transport: impl HttpTransport) -> Self {
        Self { transport: Some(Arc::new(transport)), ..self }
    }

    /// Adds TLS root certificates for `https://` URLs: one or more, in PEM. The system's root certificates stay trusted.
    ///
    /// # Errors
    /// The text is not valid PEM, or contains no certificate.
    #[cfg(feature = "tls")]
    pub fn roots(mut self, pem: &[u8]) -> Result<Self, Error> {
        self.tls.add_roots(pem)?;
        Ok(self)
    }

    /// Authenticates to agents at `https://` URLs with a certificate (mutual TLS), over each binding. `certificate` may
    /// contain intermediate certificates too. Both are in PEM.
    ///
    /// # Errors
    /// There is no certificate, or no private key.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, certificate: &[u8], private_key: &[u8]) -> Result<Self, Error> {
        self.tls.set_certificate(certificate, private_key)?;
        // A card may depend on the caller.
        self.cache = CardCache::default();
        Ok(self)
    }

    /// Returns true if requests have credentials.
    pub(crate) fn has_credentials(&self) -> bool {
        !self.headers.is_empty() || !self.credentials.is_empty() || self.has_certificate()
    }

    pub(super) fn has_certificate(&self) -> bool {
        self.tls.has_certificate()
    }

    /// Returns URLs of the origins that may receive credentials. `None` if they may be sent anywhere, because the URL of the
    /// card is unknown.
    pub(super) fn trusted_origins(&self, base: Option<&Url>) -> Option<Vec<Url>> {
        base.map(|base| [base].into_iter().chain(&self.trusted_origins).cloned().collect())
    }

    /// Returns true if credentials for an agent may be sent to a URL. `base` is the URL of its card.
    pub(super) fn trusts(&self, url: &Url, base: &Url) -> bool {
        [base].into_iter().chain(&self.trusted_origins).any(|trusted| trusted.origin() == url.origin())
    }

    /// Headers of all requests, such as credentials.
    #[cfg(feature = "cli")]
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Removes the headers of all requests, and all other credentials.
    #[cfg(feature = "cli")]
    pub(crate) fn without_credentials(self) -> Self {
        let tls = self.tls.without_certificate();
        Self { headers: HeaderMap::new(), credentials: Credentials::default(), tls, ..self }
    }

    /// Returns an HTTP client for requests to a URL that are no calls. Its responses have the certificate of the server. It adds
    /// no headers.
    #[cfg(feature = "cli")]
    pub(crate) fn diagnostic_http(&self, url: &str) -> Result<reqwest::Client, Error> {
        self.tls.http(http_client::builder().tls_info(true), url)?.build().map_err(Error::internal)
    }

    /// Returns the HTTP client for a URL. The certificate of the client is only for a URL that is trusted.
    pub(super) fn http(&self, url: &str, is_trusted: bool) -> Result<Http, Error> {
        let tls = if is_trusted { self.tls.clone() } else { self.tls.without_certificate() };
        let transport = match &self.transport {
            Some(transport) => Arc::clone(transport),
            None => Arc::new(Network(tls.http(http_client::builder(), url)?.build().map_err(Error::internal)?)),
        };
        #[cfg(feature = "cli")]
        let transport = match &self.observer {
            Some(observer) => (observer.http)(transport),
            None => transport,
        };
        Ok(Http { transport, limits: self.limits, query: Arc::default() })
    }

    /// Checks the signatures of a card as the policy says.
    #[cfg(feature = "signing")]
    pub(super) fn check_signatures(&self, json: &[u8]) -> Result<(), Error> {
        use crate::protocol::card_signature::{VerifyError, verify};

        let (keys, may_be_unsigned) = match &self.signatures {
            SignaturePolicy::Off => return Ok(()),
            SignaturePolicy::IfPresent(keys) => (keys, true),
            SignaturePolicy::Required(keys) => (keys, false),
        };
        match verify(json, keys) {
            Ok(_) => Ok(()),
            Err(VerifyError::Unsigned) if may_be_unsigned => Ok(()),
            Err(error) => Err(crate::protocol::error::ErrorKind::InvalidAgentResponse.because(error.to_string())),
        }
    }
}
