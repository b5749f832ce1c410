//! Agents elsewhere, over each binding of protocol 1.0, as the same trait that a service here implements.
//!
//! [`Client`] makes what one calls: it comes back where a connection breaks. [`rest`], [`json_rpc`] and [`grpc`] are the
//! bindings as they are, for who wants to see each call and each end.

pub mod http;
mod resume;
mod retry;
mod retrying;
mod tls;

use std::{sync::Arc, time::Duration};

use ::http::{HeaderMap, HeaderValue, header};
use tonic::{Request, Status, transport::Endpoint};

pub use self::retry::Retry;
use self::{
    http::{JsonRpc, Rest},
    retrying::Retrying,
    tls::RootCertificates,
};
use crate::{
    contract::Remote,
    error::{Error, ErrorKind},
    pb::v1::{a2a_service_client::A2aServiceClient, a2a_service_server::A2aService},
};

/// How long a connection may take to be there.
const CONNECT: Duration = Duration::from_secs(10);

const PING: Duration = Duration::from_secs(20);

/// What an agent may answer at once, in bytes: a message, or an event of a stream.
pub const MAX_REPLY: usize = 16 << 20;

/// How an agent elsewhere is called. At `https://` it is with the feature `tls` of this crate, which is not on by itself.
///
/// - A stream goes on where its connection broke, behind the event that it gave last, without a gap and without anything
///   twice. Where the agent does not have the place any more, or has no places at all, the next event says that others may
///   be missing before it ([`is_gap`](crate::extension::resume::is_gap)), and it is mostly the task as it is. A stream that
///   can't go on ends with an error: one that ends without has seen the end of its task, or of its turn.
/// - A send that found no connection is made again. One of which nobody knows what became is made again where the agent
///   knows what an `Idempotency-Key` is: it is asked for that by a call that changes nothing, and sends the key back. Any
///   other agent might do twice what it is told twice, and the error is given.
/// - What changes nothing is asked again.
///
/// A server that says when to come again (`Retry-After`) is heeded, and a deadline ([`Call`](crate::call::Call)) is kept.
///
/// Over gRPC an agent of this crate says the places of its events to who asks for it, where that is switched on
/// (`stream.resume`); this asks.
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
///         println!("something is missing before this:");
///     }
///     println!("{:?}", event.payload());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a client calls nobody before it is told whom"]
pub struct Client {
    retry: Retry,
    /// `Authorization`, which is never printed.
    credentials: Option<HeaderValue>,
    roots: RootCertificates,
}

impl Client {
    /// One that comes back, and says nothing of who calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// When what failed is tried again; [`Retry::never`] is as the bindings are.
    pub fn retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// With a bearer token in every call. It is for whoever is called, and is not sent on to where that one redirects. Who
    /// listens on the way can read it, at `http://`.
    ///
    /// # Errors
    /// It is empty, or has characters that a header can't carry.
    pub fn bearer(self, token: &str) -> Result<Self, Error> {
        let invalid = || Error::invalid_field("token", "must be text that a header can carry");
        if token.trim().is_empty() {
            return Err(invalid());
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| invalid())?;
        value.set_sensitive(true);
        Ok(Self { credentials: Some(value), ..self })
    }

    /// At `https://`, agents are believed too whose certificate comes from one of these: any number, in PEM. What the system
    /// trusts is believed anyway.
    ///
    /// # Errors
    /// It is no PEM, or has no certificate in it.
    #[cfg(feature = "tls")]
    pub fn roots(mut self, pem: &[u8]) -> Result<Self, Error> {
        self.roots.add(pem)?;
        Ok(self)
    }

    /// An agent that speaks HTTP+JSON. `url` is what its routes begin with.
    ///
    /// # Errors
    /// The URL is none.
    pub fn rest(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        Ok(self.wrap(Arc::new(Remote(Rest::new(self.http(url)?, url)?)), false, true))
    }

    /// An agent that speaks JSON-RPC at `url`.
    ///
    /// # Errors
    /// The URL is none.
    pub fn json_rpc(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        Ok(self.wrap(Arc::new(Remote(JsonRpc::new(self.http(url)?, url)?)), false, true))
    }

    /// An agent that speaks gRPC. It is connected to when it is first called, on the runtime that this is called on.
    ///
    /// # Errors
    /// The URL is none.
    pub fn grpc(&self, url: &str) -> Result<Arc<dyn A2aService>, Error> {
        let invalid = |e| ErrorKind::InvalidParams.because(format!("`{url}` is no address of an agent: {e}"));
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(invalid)?.connect_timeout(CONNECT);
        let endpoint = self.roots.grpc(endpoint, url)?;
        // A stream may be silent for long; whether the other end is still there, only a ping can tell.
        let channel = endpoint.http2_keep_alive_interval(PING).keep_alive_timeout(PING).connect_lazy();
        let agent: Arc<dyn A2aService> = match self.credentials.clone() {
            None => Arc::new(A2aServiceClient::new(channel).max_decoding_message_size(MAX_REPLY)),
            Some(it) => {
                let it = credentials(it);
                let authorize = move |mut request: Request<()>| {
                    request.metadata_mut().as_mut().extend(it.clone());
                    Ok::<_, Status>(request)
                };
                let agent = A2aServiceClient::with_interceptor(channel, authorize);
                Arc::new(agent.max_decoding_message_size(MAX_REPLY))
            }
        };
        Ok(self.wrap(agent, true, true))
    }

    /// Comes back in the same way to an agent that is called otherwise.
    pub fn around(&self, agent: Arc<dyn A2aService>) -> Arc<dyn A2aService> {
        self.wrap(agent, true, false)
    }

    /// With `marks`, it asks where events stand: there may be no other way to know. Where subscriptions are known to last, one
    /// that ends while its task waits was cut.
    fn wrap(&self, agent: Arc<dyn A2aService>, marks: bool, lasts: bool) -> Arc<dyn A2aService> {
        if self.retry == Retry::never() {
            return agent;
        }
        Arc::new(Retrying { agent, retry: self.retry.clone(), marks, lasts })
    }

    fn http(&self, url: &str) -> Result<reqwest::Client, Error> {
        let builder = http::builder().default_headers(self.credentials.clone().map(credentials).unwrap_or_default());
        self.roots.http(builder, url)?.build().map_err(Error::internal)
    }
}

fn credentials(value: HeaderValue) -> HeaderMap {
    HeaderMap::from_iter([(header::AUTHORIZATION, value)])
}

fn plain() -> Client {
    Client::new().retry(Retry::never())
}

/// An agent that speaks HTTP+JSON. `url` is what its routes begin with.
///
/// # Errors
/// The URL is none.
pub fn rest(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    plain().rest(url)
}

/// An agent that speaks JSON-RPC at `url`.
///
/// # Errors
/// The URL is none.
pub fn json_rpc(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    plain().json_rpc(url)
}

/// An agent that speaks gRPC. It is connected to when it is first called, on the runtime that this is called on.
///
/// # Errors
/// The URL is none.
pub fn grpc(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    plain().grpc(url)
}
