//! The door: what stands between a connection and the service. It tells by a request which binding it speaks, makes the
//! `Call`, and answers in the caller's own terms.

mod base_path;
mod body;
mod card;
mod classify;
mod connection;
mod context;
mod control_frames;
pub mod grpc;
mod health;
mod jsonrpc;
pub mod listener;
mod methods;
mod origin;
mod peer_limit;
mod request_budget;
mod request_checks;
mod response;
mod rest;
mod settings;
pub mod sse;
mod version;
mod write_timeout;

use std::{
    convert::Infallible,
    error::Error as StdError,
    fmt, future,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, header, request::Parts};
use tokio_util::sync::CancellationToken;
use tonic::{Status, service::Routes};
use tower_service::Service;

pub(crate) use self::{
    base_path::{BasePath, Paths},
    origin::{OriginGuard, OriginPolicy},
    peer_limit::CONNECTIONS_PER_PEER,
    request_budget::RECEIVING_BYTES,
    request_checks::RequestChecks,
    response::{CallOutcome, REQUEST_LOG},
    settings::{BATCH_BYTES, BODY_TIMEOUT, HEALTH_WATCHES, KEEP_ALIVE, MAX_BODY, UNSENT_BYTES},
};
pub use self::{
    body::Body,
    health::Ready,
    origin::{AllowedHost, AllowedOrigin},
    peer_limit::PeerLimit,
    settings::{Card, FileBytes, Settings},
};
use self::{
    classify::{RequestKind, is_of, name},
    health::Health,
    request_budget::{LimitedBody, Messages},
    response::status,
    settings::Limits,
    write_timeout::WriteDeadline,
};
use crate::{
    call::{self, Call},
    contract::Dispatch,
    error::{Error, ErrorKind},
    pb::v1::{
        a2a_service_server::{A2aService, A2aServiceServer},
        bindings::ServiceHandle,
    },
    protocol::Version,
    response_budget::{Reservation, ResponseBudget},
    v03::{
        grpc::{GrpcService, refusal},
        jsonrpc::Methods,
        rest::Rest as ClassicRest,
        semantics::Semantics,
    },
};

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

/// Every binding of a service, as one tower service: for our own listener, and for any axum program beside its own
/// routes.
///
/// What a request speaks is decided by its content type and its path, in the order of [`RequestKind`].
#[derive(Clone)]
pub struct HttpService {
    inner: Arc<Inner>,
    /// Nothing but gRPC comes in.
    grpc_only: bool,
}

struct Inner {
    service: ServiceHandle,
    grpc: A2aServiceServer<ServiceHandle>,
    classic_rpc: Methods,
    classic_rpc_without_id: Methods,
    classic_rest: ClassicRest,
    classic_grpc: V03Server,
    /// Health and reflection, made when somebody first asks for them.
    beside: OnceLock<Routes>,
    settings: Settings,
    limits: Limits,
    health_limits: Limits,
    started: card::CardDates,
    unsent: ResponseBudget,
}

/// The service of 0.3 in gRPC.
type V03Server = crate::v03::pb::a2a_service_server::A2aServiceServer<crate::v03::pb::bindings::ServiceHandle>;

/// The answer to a request, as it is made.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl HttpService {
    /// A door to a service, which checks what it is asked: see `Checked`.
    pub fn new(service: Arc<dyn A2aService>, settings: Settings) -> Self {
        let semantics: Arc<dyn A2aService> = Arc::new(Semantics::new(Arc::clone(&service)));
        let classic = crate::v03::pb::bindings::ServiceHandle(Arc::new(GrpcService(Arc::clone(&semantics))));
        let classic_grpc = V03Server::new(classic.clone()).max_decoding_message_size(settings.max_body);
        let service = ServiceHandle(service);
        let grpc = A2aServiceServer::new(service.clone()).max_decoding_message_size(settings.max_body);
        let limits = settings.limits();
        let inner = Inner {
            service,
            grpc,
            classic_rpc: Methods(Arc::clone(&semantics)),
            classic_rpc_without_id: Methods::without_id(),
            classic_rest: ClassicRest::new(classic, semantics),
            classic_grpc,
            beside: OnceLock::new(),
            unsent: ResponseBudget::new(settings.unsent_bytes),
            health_limits: limits.of_health(),
            limits,
            settings,
            started: card::CardDates::now(),
        };
        Self { inner: Arc::new(inner), grpc_only: false }
    }

    /// The same door, and only gRPC comes in by it: for an address of its own.
    #[must_use]
    pub fn grpc(&self) -> Self {
        Self { grpc_only: true, ..self.clone() }
    }

    /// What is canceled when the server begins to end: [`Settings::drain`].
    pub fn drain(&self) -> &CancellationToken {
        &self.inner.settings.drain
    }

    /// As a router, which another can nest or fall back to.
    pub fn into_router(self) -> axum::Router {
        axum::Router::new().fallback_service(self)
    }
}

impl fmt::Debug for HttpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Door").field(&self.inner.settings).finish()
    }
}

impl<B: RequestBody> Service<Request<B>> for HttpService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let finish = match *request.method() {
            Method::HEAD => methods::without_body,
            Method::OPTIONS if of_card(&request) => return now(card::preflight()),
            Method::OPTIONS => methods::only_allow,
            _ => return self.answer(request),
        };
        let answering = self.answer(request);
        Box::pin(async move { answering.await.map(finish) })
    }
}

impl HttpService {
    /// A box for each way, so that none is as large as the largest.
    fn answer<B: RequestBody>(&self, request: Request<B>) -> ResponseFuture {
        let (mut parts, body) = request.into_parts();
        let Inner { service, settings, started, .. } = &*self.inner;
        version::store_protocols(settings.protocols, &mut parts.extensions);
        let entrance = RequestKind::of(&parts);
        let version = entrance.version(&parts);
        if self.grpc_only && entrance != RequestKind::Grpc {
            // What a server of gRPC has for whatever is none.
            return now(status(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        if let Some(verbs) = entrance.verbs().filter(|it| it.split(", ").all(|it| parts.method != *it)) {
            return now(methods::not_allowed(&parts, verbs));
        }
        let unsent = self.inner.unsent.on(parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0));
        if !entrance.is_public(parts.uri.path())
            && let Err(error) = unsent.admit()
        {
            return now(overloaded(entrance, version, error));
        }
        let door = match entrance {
            RequestKind::Card => return now(card::answer(&settings.card, started, &parts)),
            RequestKind::Health => {
                let (drain, ready) = (settings.drain.clone(), Arc::clone(&settings.ready));
                return Box::pin(async move { Ok(health::answer(parts.uri.path(), &drain, &ready).await) });
            }
            RequestKind::Grpc if !is_of(parts.uri.path(), version) || !self.has_form(version) => {
                let path = parts.uri.path();
                let messages = if grpc::is_reflection(path) { Messages::Many } else { Messages::One };
                let Inner { limits, health_limits, .. } = &*self.inner;
                let limits = if entrance.is_health(path) { health_limits } else { limits };
                let body = LimitedBody::new(body, messages, limits);
                let answer = self.beside().call(Request::from_parts(parts, body));
                let counted = move |response| grpc::complete_unknown(response).map(|body| body.counted(&unsent));
                return Box::pin(async move { answer.await.map(counted) });
            }
            RequestKind::Grpc => call::Binding::Grpc,
            RequestKind::JsonRpc => call::Binding::JsonRpc,
            RequestKind::Rest | RequestKind::ExtendedCard => call::Binding::Rest,
        };
        let admitted = context::admit(&mut parts, door, settings);
        let (service, limits) = (service.clone(), self.inner.limits.clone());
        let mut made = Made { unsent, reserved: None, entrance, version };
        let key = if settings.keys { context::key(&parts.extensions) } else { None };
        let spelling = call::extensions_spelling(&parts.headers);
        let answering: ResponseFuture = match entrance {
            RequestKind::Grpc => {
                if let Err(error) = admitted.enter(version, &mut parts.extensions) {
                    return now(refuse(&parts, error));
                }
                let form = Form::of(version, parts.uri.path());
                if form.is_read && !form.is_streaming {
                    made.reserve(&mut parts.extensions);
                }
                let request = Request::from_parts(parts, LimitedBody::new(body, Messages::One, &limits));
                let answer = match version {
                    Version::V1_0 => self.inner.grpc.clone().call(request),
                    Version::V0_3 => self.inner.classic_grpc.clone().call(request),
                };
                Box::pin(async move {
                    let mut response = grpc::complete(answer.await?, limits.max_body, version);
                    match WriteDeadline::after(limits.stream_age) {
                        Some(until) if form.is_streaming => drop(response.extensions_mut().insert(until)),
                        _ if form.is_streaming => {}
                        _ => future::poll_fn(|cx| response.body_mut().poll_begin(cx)).await,
                    }
                    Ok(made.finish(response, form.is_read))
                })
            }
            // A refusal names the call that it is for, and what is no call at all is refused as such.
            RequestKind::JsonRpc => {
                let (classic, without_id) = (&self.inner.classic_rpc, &self.inner.classic_rpc_without_id);
                let methods = jsonrpc::Methods {
                    current: service,
                    classic: classic.clone(),
                    classic_without_id: without_id.clone(),
                };
                Box::pin(jsonrpc::answer(methods, parts, body, limits, admitted, made))
            }
            RequestKind::ExtendedCard => {
                let admitted = admitted.enter(version, &mut parts.extensions);
                Box::pin(async move { Ok(card::extended(&service, &parts, admitted).await) })
            }
            RequestKind::Rest | RequestKind::Card | RequestKind::Health => {
                let admitted = admitted.enter(version, &mut parts.extensions);
                let is_read = parts.method.is_safe();
                if is_read {
                    made.reserve(&mut parts.extensions);
                }
                let finish = move |it: Result<_, _>| it.map(|response| made.finish(response, is_read));
                match version {
                    Version::V1_0 => {
                        Box::pin(rest::answer(service, parts, body, limits, admitted, version).map(finish))
                    }
                    Version::V0_3 => {
                        let classic = self.inner.classic_rest.clone();
                        Box::pin(rest::answer(classic, parts, body, limits, admitted, version).map(finish))
                    }
                }
            }
        };
        if key.is_none() && spelling.is_none() {
            return answering;
        }
        Box::pin(async move {
            let mut response = answering.await?;
            let headers = response.headers_mut();
            if let Some(key) = key {
                headers.insert(call::IDEMPOTENCY_KEY, key);
            }
            if let Some(spelling) = spelling {
                call::spell_extensions(headers, spelling);
            }
            Ok(response)
        })
    }

    /// What tools look for on every server of gRPC.
    fn beside(&self) -> Routes {
        let drain = self.drain().clone();
        let services = || self.inner.settings.protocols.iter().map(name).collect::<Vec<_>>();
        let ready = Arc::clone(&self.inner.settings.ready);
        let watches = self.inner.settings.health_watches;
        let health = || Health::new(drain, ready, services(), watches);
        self.inner.beside.get_or_init(|| grpc::beside(health())).clone()
    }

    /// A version that is not served says so itself, where it has a word for that.
    fn has_form(&self, version: Version) -> bool {
        version == Version::V1_0 || self.inner.settings.protocols.has(version)
    }
}

/// Reply form of an RPC over gRPC.
#[derive(Clone, Copy)]
struct Form {
    is_streaming: bool,
    /// The RPC changes nothing.
    is_read: bool,
}

impl Form {
    fn of(version: Version, path: &str) -> Self {
        fn form<T: Dispatch>(name: &str) -> Form {
            let rpc = T::rpc(name);
            Form { is_streaming: rpc.is_some_and(T::is_streaming), is_read: rpc.is_some_and(T::is_read) }
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        match version {
            Version::V1_0 => form::<ServiceHandle>(name),
            Version::V0_3 => form::<crate::v03::pb::bindings::ServiceHandle>(name),
        }
    }
}

/// Counts an answer until it is sent, and rejects it if it exceeds the budget.
struct Made {
    unsent: ResponseBudget,
    /// Memory of the answer to a read, until it is made.
    reserved: Option<Arc<Reservation>>,
    entrance: RequestKind,
    version: Version,
}

impl Made {
    /// Gives a call that changes nothing a reservation for its answer.
    fn reserve(&mut self, extensions: &mut Extensions) {
        if let Some(call) = extensions.get_mut::<Call>() {
            call.memory = Some(Arc::clone(self.reserved.insert(Arc::new(self.unsent.reservation()))));
        }
    }

    /// `is_read`: the call has changed nothing, and may be rejected. Answers to other calls are always sent, since
    /// their callers would repeat the calls.
    fn finish(&mut self, response: Response<Body>, is_read: bool) -> Response<Body> {
        let made = response.body().made();
        let fits = match self.reserved.take() {
            Some(reserved) => {
                let fits = reserved.resize(made);
                // From here on its frames count.
                reserved.release();
                fits
            }
            None if is_read && made > 0 => self.unsent.reservation().resize(made),
            None => Ok(()),
        };
        if let Err(error) = fits {
            return overloaded(self.entrance, self.version, error);
        }
        response.map(|body| body.counted(&self.unsent))
    }
}

/// Rejects a call for lack of memory. Over HTTP the status is 503 for every binding, so that proxies understand it.
fn overloaded(entrance: RequestKind, version: Version, error: Error) -> Response<Body> {
    if entrance != RequestKind::JsonRpc {
        return refused(entrance, version, error.into());
    }
    // Clients of 1.0 can read the form of 0.3 too.
    let mut response = refused(entrance, Version::V0_3, error.into());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

fn now(response: Response<Body>) -> ResponseFuture {
    Box::pin(future::ready(Ok(response)))
}

/// What a request speaks, for the log.
pub(crate) fn binding<B>(request: &Request<B>) -> &'static str {
    match RequestKind::at(request.method(), request.uri().path(), request.headers()) {
        RequestKind::Grpc => "grpc",
        RequestKind::JsonRpc => "jsonrpc",
        RequestKind::Rest | RequestKind::Card | RequestKind::ExtendedCard | RequestKind::Health => "http",
    }
}

/// Returns true if a request needs no authentication: see [`RequestKind::is_public`].
pub(crate) fn is_public<B>(request: &Request<B>) -> bool {
    let path = request.uri().path();
    RequestKind::at(request.method(), path, request.headers()).is_public(path)
}

/// Whether a GET would get the card.
fn of_card<B>(request: &Request<B>) -> bool {
    RequestKind::at(&Method::GET, request.uri().path(), request.headers()) == RequestKind::Card
}

/// Answers a request with an error, in the terms that its sender understands. For whatever stands before the door.
pub fn refuse(parts: &Parts, error: impl Into<Status>) -> Response<Body> {
    let entrance = RequestKind::of(parts);
    let version = if entrance == RequestKind::JsonRpc { context::presumed_of(parts) } else { entrance.version(parts) };
    refused(entrance, version, error.into())
}

fn refused(entrance: RequestKind, version: Version, status: Status) -> Response<Body> {
    match (entrance, version) {
        (RequestKind::Grpc, Version::V1_0) => status.into_http(),
        (RequestKind::Grpc, Version::V0_3) => refusal(status).into_http(),
        // What the id is stands in a body that nobody has read.
        (RequestKind::JsonRpc, _) => jsonrpc::failure("null", version, status),
        (RequestKind::Rest | RequestKind::Card | RequestKind::ExtendedCard | RequestKind::Health, _) => {
            rest::failure(status, version)
        }
    }
}

/// What the content type of a request names, without its parameters. One that can't be read has a name that nobody
/// knows.
fn media_type(headers: &HeaderMap) -> Option<&str> {
    const USUAL: &str = "application/json";
    let value = headers.get(header::CONTENT_TYPE)?;
    if value == USUAL {
        return Some(USUAL);
    }
    Some(value.to_str().unwrap_or("?").split(';').next().unwrap_or_default().trim())
}

/// A body without a `Content-Type`. Browsers let every page send one without a preflight.
fn no_media_type() -> Error {
    const HINT: &str = "the body has no content type; add `-H 'content-type: application/json'`";
    ErrorKind::ContentTypeNotSupported.because(HINT)
}

/// Whether a caller comes back for a stream of which they have had events.
fn resumes(extensions: &Extensions) -> bool {
    extensions.get::<Call>().is_some_and(|it| it.cursor.is_some())
}

/// The beginning of what a caller said, which may be long.
fn brief(text: &str) -> String {
    const LENGTH: usize = 200;
    text.char_indices().nth(LENGTH).map_or_else(|| text.to_owned(), |(end, _)| format!("{}…", &text[..end]))
}
