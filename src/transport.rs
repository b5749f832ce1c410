//! The door: what stands between a connection and the service. It tells by a request which binding it speaks, makes the
//! `Call`, and answers in the caller's own terms.

mod body;
mod card;
pub mod grpc;
mod jsonrpc;
pub mod listener;
mod rest;
pub mod sse;
pub mod transcode;

use std::{
    borrow::Cow,
    convert::Infallible,
    error::Error as StdError,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use percent_encoding::percent_decode_str;
use tonic::{Status, metadata::MetadataMap};
use tower_service::Service;

pub use self::{body::Body, card::CardRequest};
use crate::{
    auth::Principal,
    call::{self, Call},
    card::{JSON_RPC, WELL_KNOWN, WELL_KNOWN_BEFORE},
    error::Error,
    event::Cursor,
    pb::v1::{
        a2a_service_server::{A2aService, A2aServiceServer},
        bindings::Bound,
    },
};

/// How large a request may be, where nothing else is said.
pub(crate) const MAX_BODY: usize = 1 << 20;

/// How long a stream is silent before it has a sign of life, where nothing else is said.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The body of a request.
pub trait RequestBody: http_body::Body<Data = Bytes, Error = Self::Cause> + Send + 'static {
    /// Why it broke off.
    type Cause: Into<Box<dyn StdError + Send + Sync>> + Send + 'static;
}

impl<B> RequestBody for B
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>> + Send + 'static,
{
    type Cause = B::Error;
}

/// Makes the card that a request is for, in JSON.
pub type Card = Arc<dyn Fn(&CardRequest<'_>) -> Bytes + Send + Sync>;

/// What can be set of a door.
#[derive(Clone)]
pub struct Settings {
    /// A request may have a body, or a message, of so many bytes.
    pub max_body: usize,
    /// How long a body may take to come in.
    pub patience: Duration,
    /// How long a stream of server-sent events is silent before it has a comment. Zero: for ever.
    pub keep_alive: Duration,
    /// What `/.well-known/agent-card.json` is.
    pub card: Card,
}

impl Settings {
    /// The defaults.
    pub fn new(card: Card) -> Self {
        Self { max_body: MAX_BODY, patience: Duration::from_mins(1), keep_alive: KEEP_ALIVE, card }
    }

    fn limits(&self) -> Limits {
        Limits { max_body: self.max_body, patience: self.patience, keep_alive: self.keep_alive }
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Settings");
        f.field("max_body", &self.max_body).field("patience", &self.patience);
        f.field("keep_alive", &self.keep_alive).finish_non_exhaustive()
    }
}

/// What the bindings need of the settings.
#[derive(Clone, Copy)]
struct Limits {
    max_body: usize,
    patience: Duration,
    keep_alive: Duration,
}

/// Every binding of a service, as one tower service: for our own listener, and for any axum program beside its own
/// routes.
///
/// What a request speaks is decided by its content type and its path, in the order of [`Entrance`].
#[derive(Clone)]
pub struct Door(Arc<Inner>);

struct Inner {
    service: Bound,
    grpc: A2aServiceServer<Bound>,
    settings: Settings,
    started: card::Started,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entrance {
    /// `application/grpc`, whatever the path.
    Grpc,
    /// The well-known paths, and what they were called before 0.3.
    Card,
    /// The path that the card names, the one that others take for granted, and the root.
    JsonRpc,
    /// All else.
    Rest,
}

/// The answer to a request, as it is made.
pub type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Door {
    /// A door to a service, which checks what it is asked: see `Checked`.
    pub fn new(service: Arc<dyn A2aService>, settings: Settings) -> Self {
        let service = Bound(service);
        let grpc = A2aServiceServer::new(service.clone()).max_decoding_message_size(settings.max_body);
        Self(Arc::new(Inner { service, grpc, settings, started: card::Started::now() }))
    }

    /// As a router, which another can nest or fall back to.
    pub fn into_router(self) -> axum::Router {
        axum::Router::new().fallback_service(self)
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Door").field(&self.0.settings).finish()
    }
}

impl<B: RequestBody> Service<Request<B>> for Door {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    /// A box for each way, so that none is as large as the largest.
    fn call(&mut self, request: Request<B>) -> Answering {
        let (mut parts, body) = request.into_parts();
        let entrance = Entrance::of(&parts);
        if entrance == Entrance::Card {
            let card = card::answer(&self.0.settings.card, &self.0.started, &parts);
            return Box::pin(std::future::ready(Ok(card)));
        }
        if let Err(error) = edge(&mut parts, entrance) {
            return Box::pin(std::future::ready(Ok(refuse(&parts, error))));
        }
        let Inner { service, grpc, settings, .. } = &*self.0;
        let (service, limits) = (service.clone(), settings.limits());
        match entrance {
            Entrance::Grpc => {
                let answer = grpc.clone().call(Request::from_parts(parts, body));
                Box::pin(async move { answer.await.map(|it| grpc::complete(it, limits.max_body)) })
            }
            Entrance::JsonRpc => Box::pin(async move { Ok(jsonrpc::answer(service, parts, body, limits).await) }),
            Entrance::Rest | Entrance::Card => {
                Box::pin(async move { Ok(rest::answer(service, parts, body, limits).await) })
            }
        }
    }
}

impl Entrance {
    fn of(parts: &Parts) -> Self {
        Self::at(&parts.method, parts.uri.path(), &parts.headers)
    }

    fn at(method: &Method, path: &str, headers: &HeaderMap) -> Self {
        if is_grpc(headers) {
            return Self::Grpc;
        }
        match (method, path) {
            (&Method::GET | &Method::HEAD, WELL_KNOWN | WELL_KNOWN_BEFORE) => Self::Card,
            (&Method::POST, JSON_RPC | "/" | "/a2a") => Self::JsonRpc,
            _ => Self::Rest,
        }
    }
}

/// Whether a request speaks gRPC.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let rest = media_type(headers).and_then(|it| it.strip_prefix("application/grpc"));
    rest.is_some_and(|it| it.is_empty() || it.starts_with('+'))
}

/// What a request speaks, for the log.
pub(crate) fn binding<B>(request: &Request<B>) -> &'static str {
    match Entrance::at(request.method(), request.uri().path(), request.headers()) {
        Entrance::Grpc => "grpc",
        Entrance::JsonRpc => "jsonrpc",
        Entrance::Rest | Entrance::Card => "http",
    }
}

/// Where a request becomes a call, or is refused: all that is known of the caller is found out here, and only here.
fn edge(parts: &mut Parts, entrance: Entrance) -> Result<(), Error> {
    let door = match entrance {
        Entrance::Grpc => call::Door::Grpc,
        Entrance::JsonRpc => call::Door::JsonRpc,
        Entrance::Rest | Entrance::Card => call::Door::Rest,
    };
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|it| it.0);
    let principal = parts.extensions.get().map(|it: &Principal| Arc::clone(it.name()));
    let mut call = Call { peer, ..Call::from_headers(&parts.headers, door) };
    if let Some(principal) = principal {
        call.owner = Arc::clone(&principal);
        call.principal = Some(principal);
    }
    call.in_time()?;
    if call.cursor.is_none() {
        // Those who can't set a header, such as the first request of an `EventSource`, have the query.
        call.cursor = parameter(parts, "lastEventId").and_then(|it| Cursor::from_text(&it));
    }
    call.alone(&mut parts.extensions);
    Ok(())
}

/// Answers a request with an error, in the terms that its sender understands. For whatever stands before the door.
pub fn refuse(parts: &Parts, error: impl Into<Status>) -> Response<Body> {
    match Entrance::of(parts) {
        Entrance::Grpc => error.into().into_http(),
        // What the id is stands in a body that nobody has read.
        Entrance::JsonRpc => jsonrpc::failure("null", error.into()),
        Entrance::Rest | Entrance::Card => rest::failure(error.into()),
    }
}

/// A parameter of the query.
fn parameter<'a>(parts: &'a Parts, name: &str) -> Option<Cow<'a, str>> {
    let mut pairs = parts.uri.query()?.split('&').filter_map(|it| it.split_once('='));
    let value = pairs.find(|it| it.0 == name)?.1;
    percent_decode_str(value).decode_utf8().ok()
}

/// What the content type of a request names, without its parameters. One that can't be read has a name that nobody
/// knows.
fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().unwrap_or("?");
    Some(value.split(';').next().unwrap_or_default().trim())
}

/// What a service sends along becomes headers.
fn headers(metadata: MetadataMap) -> HeaderMap {
    let mut headers = metadata.into_headers();
    if !headers.is_empty() {
        keep_framing(&mut headers);
        for name in [header::CONTENT_TYPE, Status::GRPC_STATUS, Status::GRPC_MESSAGE, Status::GRPC_STATUS_DETAILS] {
            headers.remove(name);
        }
    }
    headers
}

/// How an answer is to be read is for HTTP to say, and for no service: another length than it has would break it.
fn keep_framing(headers: &mut HeaderMap) {
    const FRAMING: [HeaderName; 9] = [
        header::CONTENT_LENGTH,
        header::CONTENT_ENCODING,
        header::TRANSFER_ENCODING,
        header::CONNECTION,
        header::UPGRADE,
        header::TRAILER,
        header::TE,
        header::DATE,
        HeaderName::from_static("keep-alive"),
    ];
    for name in FRAMING {
        headers.remove(name);
    }
}

/// The error in a status, and what goes beside it.
fn explain(mut status: Status) -> (Error, HeaderMap) {
    let mut headers = headers(std::mem::take(status.metadata_mut()));
    let error = Error::from(status);
    if let Some(seconds) = error.retry_after_seconds() {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if let Some(challenge) = error.challenge_text().and_then(|it| HeaderValue::from_str(it).ok()) {
        headers.insert(header::WWW_AUTHENTICATE, challenge);
    }
    (error, headers)
}

/// An answer of one piece.
fn respond(status: StatusCode, mut headers: HeaderMap, content_type: HeaderValue, data: Bytes) -> Response<Body> {
    headers.insert(header::CONTENT_TYPE, content_type);
    let mut response = Response::new(Body::from(data));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The beginning of what a caller said, which may be long.
fn brief(text: &str) -> String {
    const LENGTH: usize = 200;
    text.char_indices().nth(LENGTH).map_or_else(|| text.to_owned(), |(end, _)| format!("{}…", &text[..end]))
}
