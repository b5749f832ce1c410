//! A2A client for remote agents over gRPC, HTTP+JSON and JSON-RPC, with retries and resumed streams.
//!
//! A remote agent implements [`A2aService`], the trait that a local service implements too. A [`Client`] retries failed
//! calls and resumes interrupted streams. [`rest`], [`json_rpc`] and [`grpc`] are the bindings without either: each call
//! is one request, and every failure is returned.

pub mod http;
mod resume;
mod retry;
pub mod sse;
mod tls;

use std::{sync::Arc, time::Duration};

use ::http::{HeaderMap, HeaderValue, header};
use tonic::{Request, Status, transport::Endpoint};

pub use self::retry::Retry;
use self::{
    http::{JsonRpc, Rest},
    retry::Retrying,
    tls::RootCertificates,
};
use crate::{
    contract::Remote,
    error::{Error, ErrorKind},
    pb::v1::{a2a_service_client::A2aServiceClient, a2a_service_server::A2aService},
};

/// Timeout for establishing a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Interval between HTTP/2 keep-alive pings over gRPC, and the timeout for their acknowledgement.
const PING: Duration = Duration::from_secs(20);

/// Maximum size of a response, or of one event of a stream, in bytes.
pub const MAX_REPLY: usize = 16 << 20;

/// Configuration of calls to remote agents: retries, credentials and TLS root certificates. `https://` URLs need the
/// crate feature `tls`, which is off by default.
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
/// use a2a_service::{
///     agent::demo::Demo,
///     call::Call,
///     client::Client,
///     extension::resume,
///     pb::v1::{Message, SendMessageRequest},
///     server::Server,
/// };
/// use tokio_stream::StreamExt as _;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::new(Demo).bind("127.0.0.1:0").await?;
/// let url = format!("http://{}", server.addr());
/// tokio::spawn(server.run_until(std::future::pending()));
///
/// let agent = Client::new().rest(&url)?;
/// let message = Some(Message::user("/stream 3 1"));
/// let sent = SendMessageRequest { message, ..SendMessageRequest::default() };
/// let mut events = agent.send_streaming_message(Call::default().request(sent)).await?.into_inner();
/// while let Some(event) = events.next().await {
///     let event = event?;
///     if event.payload().is_some_and(resume::is_gap) {
///         println!("events may be missing before this one:");
///     }
///     println!("{:?}", event.payload());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a client makes no calls before it is given a URL"]
pub struct Client {
    retry: Retry,
    /// Value of `Authorization`, marked as sensitive.
    credentials: Option<HeaderValue>,
    roots: RootCertificates,
}

impl Client {
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
        let invalid = || Error::invalid_field("token", "must not be empty and must be a valid header value");
        if token.trim().is_empty() {
            return Err(invalid());
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| invalid())?;
        value.set_sensitive(true);
        Ok(Self { credentials: Some(value), ..self })
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

    /// Returns a remote agent that is called over HTTP+JSON. `url` is the base URL of its routes.
    ///
    /// # Errors
    /// The URL is invalid, or its scheme is not `http` or `https`.
    pub fn rest(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        Ok(self.wrap(Arc::new(Remote(Rest::new(self.http(url)?, url)?)), false, true))
    }

    /// Returns a remote agent that is called over JSON-RPC at `url`.
    ///
    /// # Errors
    /// The URL is invalid, or its scheme is not `http` or `https`.
    pub fn json_rpc(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        Ok(self.wrap(Arc::new(Remote(JsonRpc::new(self.http(url)?, url)?)), false, true))
    }

    /// Returns a remote agent that is called over gRPC. The connection is established at the first call, by the tokio
    /// runtime in which this function is called.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn grpc(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        let invalid = |e| ErrorKind::InvalidParams.because(format!("`{url}` is not a valid agent URL: {e}"));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(invalid)?.connect_timeout(CONNECT);
        let endpoint = self.roots.grpc(endpoint, url)?;
        // A stream may be idle for a long time; only a ping detects a lost peer.
        let channel = endpoint.http2_keep_alive_interval(PING).keep_alive_timeout(PING).connect_lazy();
        let agent: Arc<dyn A2aService> = match self.credentials.clone() {
            None => Arc::new(A2aServiceClient::new(channel).max_decoding_message_size(MAX_REPLY)),
            Some(value) => {
                let headers = credentials(value);
                let authorize = move |mut request: Request<()>| {
                    request.metadata_mut().as_mut().extend(headers.clone());
                    Ok::<_, Status>(request)
                };
                let agent = A2aServiceClient::with_interceptor(channel, authorize);
                Arc::new(agent.max_decoding_message_size(MAX_REPLY))
            }
        };
        Ok(self.wrap(agent, true, true))
    }

    /// Adds retries and resumed streams to another implementation of the service.
    pub fn around(&self, agent: Arc<dyn A2aService>) -> Arc<dyn A2aService> {
        self.wrap(agent, true, false)
    }

    /// Adds retries and resumed streams. `requests_cursors` adds the extension `resume`, for bindings without event ids. `outlasts_turns`
    /// states that subscriptions end with their task, so that one that ends while its task waits was interrupted.
    fn wrap(&self, agent: Arc<dyn A2aService>, requests_cursors: bool, outlasts_turns: bool) -> Arc<dyn A2aService> {
        if self.retry == Retry::never() {
            return agent;
        }
        Arc::new(Retrying { agent, retry: self.retry.clone(), requests_cursors, outlasts_turns })
    }

    fn http(&self, url: &str) -> Result<reqwest::Client, Error> {
        let builder = http::builder().default_headers(self.credentials.clone().map(credentials).unwrap_or_default());
        self.roots.http(builder, url)?.build().map_err(Error::internal)
    }
}

fn credentials(value: HeaderValue) -> HeaderMap {
    HeaderMap::from_iter([(header::AUTHORIZATION, value)])
}

fn without_retries() -> Client {
    Client::new().retry(Retry::never())
}

/// Returns a remote agent that is called over HTTP+JSON, without retries. `url` is the base URL of its routes.
///
/// # Errors
/// The URL is invalid, or its scheme is not `http` or `https`.
pub fn rest(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    without_retries().rest(url)
}

/// Returns a remote agent that is called over JSON-RPC at `url`, without retries.
///
/// # Errors
/// The URL is invalid, or its scheme is not `http` or `https`.
pub fn json_rpc(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    without_retries().json_rpc(url)
}

/// Returns a remote agent that is called over gRPC, without retries. The connection is established at the first call, by
/// the tokio runtime in which this function is called.
///
/// # Errors
/// The URL is invalid.
pub fn grpc(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    without_retries().grpc(url)
}
