//! Options of a client: binding, version, credentials, retries, TLS root certificates and limits.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
    time::Duration,
};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use reqwest::Url;
use tonic::transport::Endpoint;

use super::{
    Client,
    card::{self, CardCache, Interface, ReceivedCard, complete_url},
    http::{self as http_client, Http, HttpTransport, JsonRpc, Network, Rest},
    retry::{Interfaces, Retry, Retrying},
    sse,
    tls::{RootCertificates, is_secure},
    v03::{self, V03Client, V03RpcClient},
};
use crate::{
    call::Binding,
    contract::Remote,
    error::{Error, ErrorKind},
    pb::v1::{AgentCard, a2a_service_client::A2aServiceClient, a2a_service_server::A2aService},
    protocol::Version,
    v03::pb::a2a_service_client::A2aServiceClient as V03ServiceClient,
};

/// Timeout for establishing a connection.
pub(super) const CONNECT: Duration = Duration::from_secs(10);

/// Interval between HTTP/2 keep-alive pings over gRPC, and the timeout for their acknowledgement.
const PING: Duration = Duration::from_secs(20);

options! {
    /// Maximum sizes of what a client receives. A response beyond its limit fails with `InvalidAgentResponse`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct SizeLimits {
        /// Maximum size of an agent card or of a catalog in bytes. 4 MiB by default.
        pub card: usize,
        /// Maximum size of a response in bytes. 16 MiB by default.
        pub response: usize,
        /// Maximum size of an event of a stream in bytes. 16 MiB by default. Over gRPC, the limit of responses applies.
        pub event: usize,
        /// Maximum number of bytes of a stream on one connection; a resumed stream starts at 0 again. 1 GiB by default.
        /// Not applied over gRPC.
        pub stream: u64,
    }
}

impl Default for SizeLimits {
    fn default() -> Self {
        Self { card: 4 << 20, response: 16 << 20, event: sse::MAX_EVENT, stream: 1 << 30 }
    }
}

/// Options of a [`Client`], and constructors of single bindings.
///
/// [`connect`](Self::connect) reads the agent card. [`rest`](Self::rest), [`json_rpc`](Self::json_rpc) and
/// [`grpc`](Self::grpc) return the service trait for a URL that is known without a card.
///
/// - An interrupted stream is resumed after its last event, without gaps or duplicates. If the agent no longer has that
///   position, or does not support resumption, the next event is marked: events may be missing before it
///   ([`is_gap`](crate::event::resume::is_gap)). It is usually a snapshot of the task. A stream that can't be resumed
///   ends with an error; a stream that ends without one has reached the end of its task or turn.
/// - A send whose connection could not be established is retried. If the outcome of a send is unknown, it is retried only
///   when the server supports `Idempotency-Key`. The client finds that out with a read-only call: the server returns the
///   key. Otherwise the error is returned, because a second send could be executed twice.
/// - Read-only calls are retried.
///
/// Retries honor `Retry-After` and the deadline of the [`Call`](crate::call::Call).
///
/// Over gRPC, events have no ids of their own. The client therefore requests the extension
/// [`resume`](crate::event::resume), which servers of this crate offer if `stream.resume` is set.
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
    retry: Retry,
    /// Headers of all requests, such as credentials. Their values are marked as sensitive.
    pub(super) headers: HeaderMap,
    roots: RootCertificates,
    transport: Option<Arc<dyn HttpTransport>>,
    trusted_origins: Vec<Url>,
    pub(super) cache: CardCache,
    pub(super) binding: Option<Binding>,
    pub(super) version: Option<Version>,
    pub(super) tenant: Option<String>,
    pub(super) timeout: Option<Duration>,
    pub(super) limits: SizeLimits,
    #[cfg(feature = "signing")]
    pub(super) signatures: super::SignaturePolicy,
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { retry, headers, binding, version, tenant, timeout, limits, .. } = self;
        let mut f = f.debug_struct("ClientBuilder");
        f.field("retry", retry).field("headers", headers).field("binding", binding).field("version", version);
        f.field("tenant", tenant).field("timeout", timeout).field("limits", limits).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Creates a client with the default [retry policy](Retry) and without credentials.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the retry policy. [`Retry::never`] disables retries and the resumption of streams.
    pub fn retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// Sends a bearer token with every call. Redirects are not followed, so the token reaches only the configured URL.
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

    /// Sends credentials to interfaces of this origin too. By default, they are sent only to the origin (scheme, host and
    /// port) of the URL that the client connects to, even if the card names others.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn trust_origin(mut self, url: &str) -> Result<Self, Error> {
        self.trusted_origins.push(complete_url(url)?);
        Ok(self)
    }

    /// Calls agents over this binding only. By default, the first interface of the card is used.
    pub fn binding(self, binding: Binding) -> Self {
        Self { binding: Some(binding), ..self }
    }

    /// Calls agents with this version of the protocol only. By default, the version of the first interface of the card is
    /// used; [`rest`](Self::rest), [`json_rpc`](Self::json_rpc) and [`grpc`](Self::grpc) use 1.0.
    pub fn version(self, version: Version) -> Self {
        Self { version: Some(version), ..self }
    }

    /// Sets the tenant of all requests. By default, it is that of the interface on the card (4.4.6).
    pub fn tenant(self, tenant: impl Into<String>) -> Self {
        Self { tenant: Some(tenant.into()), ..self }
    }

    /// Sets the deadline of a call of [`Client`], with its retries and with all events of its stream. None by default.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Sets the maximum sizes of what is received.
    pub fn limits(self, limits: SizeLimits) -> Self {
        Self { limits, ..self }
    }

    /// Sets the requirement for signatures of the card. By default, signatures are ignored.
    #[cfg(feature = "signing")]
    pub fn signatures(self, policy: super::SignaturePolicy) -> Self {
        Self { signatures: policy, ..self }
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
        self.roots.add(pem)?;
        Ok(self)
    }

    /// Reads the card of the agent at a URL, and selects one of its interfaces. See [`Client::connect`].
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect(&self, url: &str) -> Result<Client, Error> {
        let ReceivedCard { card, url } = card::fetch(self, url).await?;
        self.client(card, Some(&url))
    }

    /// Returns a remote agent that is called over HTTP+JSON. `url` is the base URL of its routes.
    ///
    /// # Errors
    /// The URL is invalid, or its scheme is not `http` or `https`.
    pub fn rest(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        self.service(&[(Binding::Rest, self.version.unwrap_or_default(), url)])
    }

    /// Returns a remote agent that is called over JSON-RPC at `url`.
    ///
    /// # Errors
    /// The URL is invalid, or its scheme is not `http` or `https`.
    pub fn json_rpc(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        self.service(&[(Binding::JsonRpc, self.version.unwrap_or_default(), url)])
    }

    /// Returns a remote agent that is called over gRPC. The connection is established at the first call, by the tokio
    /// runtime in which this function is called.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn grpc(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        self.service(&[(Binding::Grpc, self.version.unwrap_or_default(), url)])
    }

    /// Adds retries and resumed streams to another implementation of the service.
    pub fn around(&self, agent: Arc<dyn A2aService>) -> Arc<dyn A2aService> {
        self.wrap(vec![agent], true, false)
    }

    /// Returns a remote agent that is called over the first of these interfaces to which a connection can be established.
    pub(super) fn service(&self, interfaces: &[(Binding, Version, &str)]) -> Result<Arc<dyn A2aService>, Error> {
        // Each HTTP client reads the root certificates of the system, so one serves all interfaces of a scheme.
        let mut clients: HashMap<bool, Http> = HashMap::new();
        let mut http = |url: &str| match clients.entry(is_secure(url)) {
            Entry::Occupied(client) => Ok(client.get().clone()),
            Entry::Vacant(client) => Ok(client.insert(self.http(url)?).clone()),
        };
        let agents =
            interfaces.iter().map(|(binding, version, url)| self.interface(*binding, *version, url, &mut http));
        let requests_cursors = interfaces.iter().any(|(binding, ..)| *binding == Binding::Grpc);
        let outlasts_turns = interfaces.iter().all(|(_, version, _)| *version == Version::V1_0);
        Ok(self.wrap(agents.collect::<Result<_, _>>()?, requests_cursors, outlasts_turns))
    }

    /// Returns the interfaces that may be used, in the order of the card.
    ///
    /// # Errors
    /// `UnsupportedOperation` if there is none, `Unauthenticated` if credentials would be sent to another origin.
    pub(super) fn select<'a>(
        &self,
        card: &AgentCard,
        all: &'a [Interface],
        base: Option<&Url>,
    ) -> Result<Vec<&'a Interface>, Error> {
        let unsupported = |reason: String| ErrorKind::UnsupportedOperation.because(reason);
        let has = |interface: &&Interface| {
            self.binding.is_none_or(|binding| interface.binding == binding)
                && self.version.is_none_or(|version| interface.version == version)
        };
        let matching: Vec<_> = all.iter().filter(has).collect();
        if matching.is_empty() {
            let offered = card.supported_interfaces.iter().map(|interface| {
                format!("{} {} at `{}`", interface.protocol_binding, interface.protocol_version, interface.url)
            });
            let offered = offered.collect::<Vec<_>>().join(", ");
            let wanted = match (self.binding, self.version) {
                (None, None) => "that this client supports".to_owned(),
                (binding, version) => {
                    let binding = binding.map(|binding| format!("{binding:?}"));
                    let version = version.map(|version| version.as_str().to_owned());
                    format!("for {}", [binding, version].into_iter().flatten().collect::<Vec<_>>().join(" "))
                }
            };
            return Err(unsupported(format!("the agent's card has no interface {wanted}; it has: {offered}")));
        }
        // Credentials for the origin of the card are not for another origin that it names.
        let Some(base) = base.filter(|_| !self.headers.is_empty()) else { return Ok(matching) };
        let origins: Vec<_> = [base].into_iter().chain(&self.trusted_origins).map(Url::origin).collect();
        let is_trusted =
            |interface: &&Interface| Url::parse(&interface.url).is_ok_and(|url| origins.contains(&url.origin()));
        let (trusted, foreign): (Vec<_>, Vec<_>) = matching.into_iter().partition(is_trusted);
        let Some(first) = foreign.first().filter(|_| trusted.is_empty()) else { return Ok(trusted) };
        let reason = format!(
            "credentials are for {}, but the card names `{}`; connect to that origin, or allow it (trust_origin)",
            base.origin().ascii_serialization(),
            first.url,
        );
        Err(ErrorKind::Unauthenticated.because(reason))
    }

    fn interface(
        &self,
        binding: Binding,
        version: Version,
        url: &str,
        mut http: impl FnMut(&str) -> Result<Http, Error>,
    ) -> Result<Arc<dyn A2aService>, Error> {
        Ok(match (binding, version) {
            (Binding::Rest, Version::V1_0) => Arc::new(Remote(Rest::new(http(url)?, url)?)),
            (Binding::Rest, Version::V0_3) => v03::rest(Rest::new(http(url)?, url)?),
            (Binding::JsonRpc, Version::V1_0) => Arc::new(Remote(JsonRpc::new(http(url)?, url)?)),
            (Binding::JsonRpc, Version::V0_3) => Arc::new(V03RpcClient(JsonRpc::new(http(url)?, url)?)),
            (Binding::Grpc, version) => {
                let invalid = |e| ErrorKind::InvalidParams.because(format!("`{url}` is not a valid agent URL: {e}"));
                let endpoint = Endpoint::from_shared(url.to_owned()).map_err(invalid)?.connect_timeout(CONNECT);
                let endpoint = self.roots.grpc(endpoint, url)?;
                // A stream may be idle for a long time; only a ping detects a lost peer.
                let endpoint = endpoint.http2_keep_alive_interval(PING).keep_alive_timeout(PING);
                let (channel, limit) = (endpoint.connect_lazy(), self.limits.response);
                match version {
                    Version::V1_0 => Arc::new(A2aServiceClient::new(channel).max_decoding_message_size(limit)),
                    Version::V0_3 => {
                        let client = V03ServiceClient::new(channel).max_decoding_message_size(limit);
                        Arc::new(V03Client(Arc::new(client)))
                    }
                }
            }
            (Binding::InProcess, _) => {
                return Err(Error::invalid_field("binding", "must be gRPC, HTTP+JSON or JSON-RPC"));
            }
        })
    }

    /// Adds retries and resumed streams. `requests_cursors` adds the extension `resume`, for bindings without event ids. `outlasts_turns`
    /// states that subscriptions end with their task, so that one that ends while its task waits was interrupted.
    fn wrap(
        &self,
        mut agents: Vec<Arc<dyn A2aService>>,
        requests_cursors: bool,
        outlasts_turns: bool,
    ) -> Arc<dyn A2aService> {
        let is_plain = self.retry == Retry::never() && self.headers.is_empty() && agents.len() == 1;
        if let Some(agent) = agents.pop_if(|_| is_plain) {
            return agent;
        }
        let (retry, headers) = (self.retry.clone(), self.headers.clone());
        let interfaces = Arc::new(Interfaces::new(agents));
        Arc::new(Retrying { interfaces, retry, headers, requests_cursors, outlasts_turns })
    }

    /// Returns the HTTP client for a URL.
    pub(super) fn http(&self, url: &str) -> Result<Http, Error> {
        let transport = match &self.transport {
            Some(transport) => Arc::clone(transport),
            None => Arc::new(Network(self.roots.http(http_client::builder(), url)?.build().map_err(Error::internal)?)),
        };
        Ok(Http { transport, limits: self.limits })
    }
}
