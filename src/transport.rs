//! HTTP server of the A2A protocol: JSON-RPC, HTTP+JSON (REST), gRPC and the agent card, served as one tower service.
//!
//! [`HttpService`] classifies a request once by binding and protocol version, builds its [`Call`] and dispatches it:
//!
//! | module | subject |
//! | --- | --- |
//! | `listener`, `tls`, `connection`, `http2_floods`, `write_timeout` | connections: limits, TLS, idle and write timeouts, drain |
//! | `framing`, `peer_limit`, `origin`, `base_path` | checks in front of the service, and path rewriting |
//! | `browser_headers` | CORS and security headers of all responses |
//! | `classify`, `version`, `context` | kind of a request, protocol version rules, request context |
//! | `jsonrpc`, `rest`, `grpc`, `grpc_web`, `card`, `catalog`, `protected_resource`, `documents`, `console`, `health`, `metrics`, `operator` | bindings and resources |
//! | `body`, `receive_budget`, `response`, `sse` | request and response bodies |

pub(crate) mod binding;
pub(crate) mod body;
mod classify;
pub(crate) mod connection;
mod context;
mod media_type;
mod method;
pub(crate) mod pipeline;
pub(crate) mod resource;
mod settings;
mod version;

use std::{
    convert::Infallible,
    error::Error as StdError,
    future,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, request::Parts};
use http_body_util::Full;
use tokio_util::sync::CancellationToken;
use tonic::{Status, service::Routes};
use tower_service::Service;

#[cfg(feature = "server-tls")]
pub use self::connection::tls::{ClientAuth, Tls, TlsError};
pub(crate) use self::{
    binding::grpc_web::trailers as grpc_web_trailers,
    body::response::{CallOutcome, REQUEST_LOG},
    classify::{AI_CATALOG, RequestClass},
    context::{hide_credentials, request_id},
    pipeline::{
        base_path::{Paths, below},
        browser_headers::{BrowserHeaders, preflight},
        origin::OriginPolicy,
        peer_limit::CONNECTIONS_PER_PEER,
    },
    settings::{BODY_BYTES, MEMORY, MemoryBudgets},
};
use self::{
    binding::v03::{
        grpc::{GrpcService, to_v03_status},
        jsonrpc::V03Methods,
        rest::V03Rest,
    },
    body::{
        BodyLimits,
        receive_budget::message_stream,
        response::{not_found, status, status_response},
    },
    classify::RequestKind,
    connection::write_timeout::WriteDeadline,
    resource::health::Health,
};
pub use self::{
    body::Body,
    connection::listener,
    pipeline::{
        origin::{AllowedHost, AllowedOrigin},
        peer_limit::PeerLimit,
    },
    settings::{
        BaseUrlSource, CardSource, CatalogSource, DocumentSource, FileBytes, MetricsSource, NotReady,
        ProtectedResource, ReadinessCheck, Settings,
    },
};
use crate::{
    protocol::{
        Error, ErrorKind, Protocols, Version,
        call::{self, Call},
        pb::v1::{
            a2a_service_server::{A2aService, A2aServiceServer},
            bindings::ServiceHandle,
        },
        response_budget::{Reservation, ResponseBudget},
        rpc::RpcTraits,
        v03::pb::bindings::ServiceHandle as V03ServiceHandle,
    },
    service::{operator::Operator, wrappers::v03::V03Service},
};

/// Request body: an [`http_body::Body`] of [`Bytes`].
pub trait RequestBody: http_body::Body<Data = Bytes, Error = Self::Cause> + Send + 'static {
    /// Error of the body.
    type Cause: Into<Box<dyn StdError + Send + Sync>> + Send + 'static;
}

impl<B> RequestBody for B
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>> + Send + 'static,
{
    type Cause = B::Error;
}

/// Tower service that serves every binding of an A2A service, for [`listener`] or for an axum program that has other
/// routes too.
///
/// Content type and path of a request decide its binding, in the order of [`RequestKind`].
#[derive(Clone)]
pub struct HttpService {
    inner: Arc<Inner>,
    /// Requests that the listen address serves.
    scope: ServiceScope,
}

/// Requests that a listen address serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServiceScope {
    All,
    /// All but metrics.
    WithoutMetrics,
    /// Metrics and health checks.
    Operations,
}

struct Inner {
    service: ServiceHandle,
    grpc: A2aServiceServer<ServiceHandle>,
    json_rpc: binding::jsonrpc::Methods,
    v03_rest: V03Rest,
    v03_service: V03ServiceHandle,
    v03_grpc: V03Server,
    /// gRPC health and reflection, built on first use.
    auxiliary: OnceLock<Routes>,
    settings: Settings,
    limits: BodyLimits,
    health_limits: BodyLimits,
    last_modified: Option<HeaderValue>,
    unsent: ResponseBudget,
    /// Operator API. `None`: the resource does not exist.
    operator: Option<Arc<Operator>>,
}

/// gRPC service of 0.3.
type V03Server = crate::protocol::v03::pb::a2a_service_server::A2aServiceServer<V03ServiceHandle>;

/// Future of a response.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl HttpService {
    /// Creates the HTTP service of an A2A service. Requests are not validated here: see `ValidatedService`.
    pub fn new(service: Arc<dyn A2aService>, settings: Settings) -> Self {
        let budgets = settings.budgets();
        Self::with_parts(service, settings, budgets, None)
    }

    /// Creates the HTTP service with budgets that it shares with others, and the operator API.
    pub(crate) fn with_parts(
        service: Arc<dyn A2aService>,
        settings: Settings,
        budgets: MemoryBudgets,
        operator: Option<Arc<Operator>>,
    ) -> Self {
        let semantics: Arc<dyn A2aService> = Arc::new(V03Service::new(Arc::clone(&service)));
        let v03_service = V03ServiceHandle(Arc::new(GrpcService(Arc::clone(&semantics))));
        let v03_grpc = V03Server::new(v03_service.clone()).max_decoding_message_size(settings.body_bytes);
        let service = ServiceHandle(service);
        let json_rpc = binding::jsonrpc::Methods {
            v1: service.clone(),
            v03: V03Methods::new(Arc::clone(&semantics)),
            v03_without_id: V03Methods::without_id(),
        };
        let grpc = A2aServiceServer::new(service.clone()).max_decoding_message_size(settings.body_bytes);
        let limits = settings.limits(budgets.receiving);
        let inner = Inner {
            service,
            grpc,
            json_rpc,
            v03_rest: V03Rest::new(v03_service.clone(), semantics),
            v03_service,
            v03_grpc,
            auxiliary: OnceLock::new(),
            unsent: budgets.unsent,
            health_limits: limits.of_health(),
            limits,
            last_modified: resource::card::last_modified(settings.sources.clock),
            settings,
            operator,
        };
        Self { inner: Arc::new(inner), scope: ServiceScope::All }
    }

    /// Returns a handle to this service without metrics.
    #[must_use]
    pub(crate) fn without_metrics(&self) -> Self {
        Self { scope: ServiceScope::WithoutMetrics, ..self.clone() }
    }

    /// Returns a handle to this service that accepts only requests for metrics and health checks, for a separate listen
    /// address.
    #[must_use]
    pub fn operations(&self) -> Self {
        Self { scope: ServiceScope::Operations, ..self.clone() }
    }

    /// Returns the source of the metrics, if there are any.
    #[cfg(feature = "cli")]
    pub(crate) fn metrics_source(&self) -> Option<MetricsSource> {
        self.inner.settings.metrics.clone()
    }

    /// Returns true for a service of [metrics and health checks](Self::operations) only.
    pub(crate) fn is_operations(&self) -> bool {
        self.scope == ServiceScope::Operations
    }

    /// Returns true if these headers have the operator token of this start.
    pub(crate) fn has_operator_token(&self, headers: &HeaderMap) -> bool {
        self.inner.operator.as_ref().is_some_and(|operator| operator.has_token(headers))
    }

    /// Token that is canceled when the server begins to drain: [`Settings::drain`].
    pub fn drain(&self) -> &CancellationToken {
        &self.inner.settings.drain
    }

    /// Converts the service to an axum router, to be nested or used as a fallback.
    pub fn into_router(self) -> axum::Router {
        axum::Router::new().fallback_service(self)
    }
}

debug_fields!(HttpService { settings: inner.settings });

impl<B: RequestBody> Service<Request<B>> for HttpService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let (parts, body) = request.into_parts();
        let Settings { protocols, protects_card, protects_catalog, .. } = self.inner.settings;
        let class = RequestClass { protects_card, protects_catalog, ..RequestClass::new(&parts, protocols) };
        self.dispatch(class, parts, body)
    }
}

impl HttpService {
    /// Adds the URL of the metadata about the issuers of tokens, if there are any, to a challenge.
    pub(crate) fn with_resource_metadata(&self, error: Error, parts: &Parts) -> Error {
        match &self.inner.settings.protected_resource {
            Some(resource) => resource.challenge(error, parts),
            None => error,
        }
    }

    /// Serves a classified request.
    pub(crate) fn dispatch<B: RequestBody>(&self, class: RequestClass, parts: Parts, body: B) -> ResponseFuture {
        let convert = match parts.method {
            Method::HEAD => method::to_head,
            Method::OPTIONS if class.is_public_document() => return now(resource::card::preflight()),
            Method::OPTIONS => method::to_options,
            _ => return self.dispatch_method(class, parts, body),
        };
        let response = self.dispatch_method(class, parts, body);
        Box::pin(async move { response.await.map(convert) })
    }

    /// Serves a request whose response is sent as it is. Each branch boxes its future, so that none is as large as the largest.
    fn dispatch_method<B: RequestBody>(&self, class: RequestClass, mut parts: Parts, body: B) -> ResponseFuture {
        let Inner { service, settings, last_modified, .. } = &*self.inner;
        let RequestClass { kind, version, .. } = class;
        let is_served = match self.scope {
            ServiceScope::All => true,
            ServiceScope::WithoutMetrics => kind != RequestKind::Metrics,
            ServiceScope::Operations => matches!(kind, RequestKind::Metrics | RequestKind::Health),
        };
        if !is_served {
            return now(status(StatusCode::NOT_FOUND));
        }
        let method = parts.method.as_str();
        if let Some(allowed) = kind
            .allowed_methods()
            .filter(|allowed| *allowed != method && !allowed.split(", ").any(|name| name == method))
        {
            return now(method::not_allowed(class, &parts, allowed));
        }
        let unsent = self.inner.unsent.for_peer(peer(&parts));
        if !class.is_public(&parts)
            && let Err(error) = unsent.admit()
        {
            return now(class.overloaded(error));
        }
        let is_call = matches!(kind, RequestKind::GrpcWeb(_) | RequestKind::JsonRpc | RequestKind::Rest);
        if is_call
            && !parts.method.is_safe()
            && let Err(error) = media_type::check_encoding(&parts.headers)
        {
            return now(class.unsupported(error));
        }
        let binding = match kind {
            RequestKind::Card => {
                return now(resource::card::respond_with_card(settings, last_modified.as_ref(), &parts));
            }
            RequestKind::Catalog => {
                return now(resource::catalog::respond_with_catalog(settings.catalog.as_ref(), settings, &parts));
            }
            RequestKind::KeySet => {
                let Some(key_set) = settings.key_set.clone() else { return now(not_found(&parts)) };
                let headers = HeaderMap::new();
                return now(resource::card::respond_with_public(key_set, "application/json", &parts, headers));
            }
            RequestKind::ProtectedResource => {
                let resource = settings.protected_resource.as_ref();
                return now(resource::protected_resource::respond_with_metadata(resource, &parts));
            }
            RequestKind::Document => {
                let document = resource::documents::respond_with_document(settings.documents.clone(), parts);
                return Box::pin(async move { Ok(document.await) });
            }
            RequestKind::CardReview => return now(resource::console::respond_with_review(settings, &parts)),
            RequestKind::Console => {
                return now(match &settings.console {
                    Some(facts) => resource::console::respond_with_file(facts, &parts),
                    None if parts.uri.path() == "/" => {
                        method::not_allowed(RequestClass { kind: RequestKind::JsonRpc, ..class }, &parts, "POST")
                    }
                    None => not_found(&parts),
                });
            }
            RequestKind::Metrics => return resource::metrics::respond_with_metrics(settings.metrics.as_ref(), &parts),
            RequestKind::Operator { .. } => {
                let Some(operator) = self.inner.operator.clone() else { return now(not_found(&parts)) };
                let (settings, limits) = (settings.clone(), self.inner.limits.clone());
                let response = resource::operator::respond(operator, settings, parts, body, limits);
                return Box::pin(async move { Ok(response.await.map(|body| body.counted(&unsent))) });
            }
            RequestKind::Health => {
                let inner = Arc::clone(&self.inner);
                return Box::pin(async move {
                    Ok(resource::health::respond_with_health(&parts.uri, &inner.settings).await)
                });
            }
            RequestKind::Grpc if parts.version < http::Version::HTTP_2 => {
                let error = ErrorKind::InvalidRequest.because("gRPC needs HTTP/2; over HTTP/1.1, use gRPC-Web");
                return now(class.unsupported(error));
            }
            RequestKind::Grpc => return self.dispatch_grpc(class, parts, body, unsent),
            RequestKind::GrpcWeb(format) => {
                let class = RequestClass { kind: RequestKind::Grpc, ..class };
                let serve_grpc = |parts, body| self.dispatch_grpc(class, parts, body, unsent.clone());
                return binding::grpc_web::serve(format, parts, body, &unsent, serve_grpc);
            }
            RequestKind::JsonRpc => call::Binding::JsonRpc,
            RequestKind::Rest | RequestKind::ExtendedCard => call::Binding::Rest,
        };
        let mut call = Call::from_headers(&parts.headers, binding);
        let checks = context::complete_call(&mut call, &mut parts, settings, &unsent);
        let (service, limits) = (service.clone(), self.inner.limits.clone());
        let mut accounting = ResponseAccounting { unsent, reserved: None, class };
        let echoed = EchoedHeaders::of(&call, &parts.headers, settings);
        let response: ResponseFuture = match (kind, version) {
            // Checks complete once the body is read: an error has the id of its request.
            (RequestKind::JsonRpc, _) => {
                let methods = self.inner.json_rpc.clone();
                call.replace_extensions(&mut parts.extensions);
                Box::pin(binding::jsonrpc::serve(methods, parts, body, limits, checks, accounting))
            }
            (RequestKind::ExtendedCard, _) => {
                let checked = checks.complete(version, &mut call);
                call.replace_extensions(&mut parts.extensions);
                Box::pin(async move { Ok(resource::card::respond_with_extended_card(&service, &parts, checked).await) })
            }
            _ => {
                let checked = checks.complete(version, &mut call);
                let is_read = parts.method.is_safe();
                if is_read {
                    accounting.reserve(&mut call);
                }
                call.replace_extensions(&mut parts.extensions);
                let finish = move |served: Result<_, _>| served.map(|response| accounting.finish(response, is_read));
                match version {
                    Version::V1_0 => {
                        Box::pin(binding::rest::serve(service, parts, body, limits, checked, version).map(finish))
                    }
                    Version::V0_3 => {
                        let v03 = self.inner.v03_rest.clone();
                        Box::pin(binding::rest::serve(v03, parts, body, limits, checked, version).map(finish))
                    }
                }
            }
        };
        echoed.add_to(response)
    }

    /// Serves a gRPC request.
    fn dispatch_grpc<B: RequestBody>(
        &self,
        class: RequestClass,
        mut parts: Parts,
        body: B,
        unsent: ResponseBudget,
    ) -> ResponseFuture {
        let Inner { service, grpc, settings, limits, health_limits, .. } = &*self.inner;
        let (RequestClass { kind, version, .. }, path) = (class, parts.uri.path());
        if version::a2a_grpc_method(path, version, settings.protocols).is_none() {
            let (mut services, is_health) = (self.auxiliary(), kind.is_health(path));
            let limits = if is_health { health_limits } else { limits }.clone();
            return Box::pin(async move {
                let body = if is_health {
                    match binding::grpc::read_frame(&parts.headers, body, &limits).await {
                        Ok(frame) => tonic::body::Body::new(Full::new(frame)),
                        Err(error) => return Ok(class.error_response(error)),
                    }
                } else {
                    message_stream(body, &limits)
                };
                let response = services.call(Request::from_parts(parts, body)).await?;
                Ok(binding::grpc::complete_unimplemented(response).map(|body| body.counted(&unsent)))
            });
        }
        let mut call = Call::from_headers(&parts.headers, call::Binding::Grpc);
        let checks = context::complete_call(&mut call, &mut parts, settings, &unsent);
        let echoed = EchoedHeaders::of(&call, &parts.headers, settings);
        if let Err(error) = checks.complete(version, &mut call) {
            return now(class.error_response(error));
        }
        let accounting = ResponseAccounting { unsent, reserved: None, class };
        call.replace_extensions(&mut parts.extensions);
        let limits = limits.clone();
        echoed.add_to(match version {
            Version::V1_0 => {
                Box::pin(binding::grpc::serve(service.clone(), grpc.clone(), parts, body, limits, accounting))
            }
            Version::V0_3 => {
                let (service, grpc) = (self.inner.v03_service.clone(), self.inner.v03_grpc.clone());
                Box::pin(binding::grpc::serve(service, grpc, parts, body, limits, accounting))
            }
        })
    }

    /// Returns the gRPC services other than A2A: health and reflection.
    fn auxiliary(&self) -> Routes {
        let health = || Health::new(&self.inner.settings);
        self.inner.auxiliary.get_or_init(|| binding::grpc::auxiliary_services(health())).clone()
    }
}

/// Headers of a request that its response repeats.
struct EchoedHeaders {
    idempotency_key: Option<HeaderValue>,
    /// Name of the header for extensions, which has two names.
    spelling: Option<HeaderName>,
}

impl EchoedHeaders {
    fn of(call: &Call, headers: &HeaderMap, settings: &Settings) -> Self {
        let key = call.idempotency_key.as_ref().filter(|_| settings.idempotency_keys);
        Self {
            idempotency_key: key.and_then(|key| HeaderValue::from_str(key).ok()),
            spelling: if call.extensions.is_empty() { None } else { call::extensions_spelling(headers) },
        }
    }

    fn add_to(self, response: ResponseFuture) -> ResponseFuture {
        let Self { idempotency_key, spelling } = self;
        if idempotency_key.is_none() && spelling.is_none() {
            return response;
        }
        Box::pin(async move {
            let mut response = response.await?;
            let headers = response.headers_mut();
            if let Some(key) = idempotency_key {
                headers.insert(call::IDEMPOTENCY_KEY, key);
            }
            if let Some(spelling) = spelling {
                call::spell_extensions(headers, spelling);
            }
            Ok(response)
        })
    }
}

impl RequestClass {
    /// Builds an error response in the form of binding and version.
    pub(crate) fn error_response(self, error: impl Into<Status>) -> Response<Body> {
        let Self { kind, version, .. } = self;
        let status = error.into();
        match (kind, version) {
            (RequestKind::Grpc, Version::V1_0) => status.into_http(),
            (RequestKind::Grpc, Version::V0_3) => to_v03_status(status).into_http(),
            (RequestKind::GrpcWeb(format), _) => {
                format.convert_headers(Self { kind: RequestKind::Grpc, ..self }.error_response(status))
            }
            // The id is in the body, which is not read.
            (RequestKind::JsonRpc, _) => binding::jsonrpc::status_response("null", version, status),
            _ => status_response(status, version),
        }
    }

    /// Rejects a body that is not supported. Over HTTP the status is 415 for every binding.
    fn unsupported(self, error: Error) -> Response<Body> {
        let mut response = self.error_response(error);
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        response
    }

    /// Rejects a call for lack of memory. Over HTTP the status is 503 for every binding, so that proxies understand it.
    fn overloaded(self, error: Error) -> Response<Body> {
        if self.kind != RequestKind::JsonRpc {
            return self.error_response(error);
        }
        // Clients of 1.0 can read the form of 0.3 too.
        let mut response = Self { version: Version::V0_3, ..self }.error_response(error);
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    }
}

/// Accounts for the memory of a response in the budget `limits.outgoing_bytes`, and rejects a read that exceeds it.
struct ResponseAccounting {
    unsent: ResponseBudget,
    /// Memory of the response to a read, until it is encoded.
    reserved: Option<Arc<Reservation>>,
    class: RequestClass,
}

impl ResponseAccounting {
    /// Returns true if the RPC changes nothing. If it is unary, its call gets a reservation for the response.
    fn reserve_for(&mut self, traits: Option<RpcTraits>, extensions: &mut Extensions) -> bool {
        let Some(RpcTraits { is_read: true, is_streaming, .. }) = traits else { return false };
        if !is_streaming && let Some(call) = extensions.get_mut() {
            self.reserve(call);
        }
        true
    }

    /// Gives a call that changes nothing a reservation for its response.
    fn reserve(&mut self, call: &mut Call) {
        call.memory = Some(Arc::clone(self.reserved.insert(Arc::new(self.unsent.reservation()))));
    }

    /// Counts a response until it is sent. `is_read`: the call has changed nothing, so the response may be replaced by an
    /// error. Responses to other calls are always sent, since their clients would repeat the calls.
    fn finish(&mut self, response: Response<Body>, is_read: bool) -> Response<Body> {
        let encoded = response.body().encoded_len();
        let fits = match self.reserved.take() {
            Some(reserved) => {
                let fits = reserved.resize(encoded);
                // The frames of the response count from now on.
                reserved.release();
                fits
            }
            None if is_read && encoded > 0 => self.unsent.reservation().resize(encoded),
            None => Ok(()),
        };
        if let Err(error) = fits {
            return self.class.overloaded(error);
        }
        response.map(|body| body.counted(&self.unsent))
    }
}

/// Returns the future of a response that is ready.
pub(crate) fn now(response: Response<Body>) -> ResponseFuture {
    Box::pin(future::ready(Ok(response)))
}

/// Builds an error response to a request in the form of its binding and version, for a program's layers around
/// [`HttpService`].
pub fn error_response(parts: &Parts, error: impl Into<Status>) -> Response<Body> {
    let class = parts.extensions.get().copied().unwrap_or_else(|| RequestClass::new(parts, Protocols::default()));
    class.error_response(error)
}

/// Returns the address of the client. `None` if the program that mounts the router does not provide it.
fn peer(parts: &Parts) -> Option<SocketAddr> {
    parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0)
}

/// Returns true if the client resumes a stream: the call has a cursor.
fn is_resumption(extensions: &Extensions) -> bool {
    extensions.get::<Call>().is_some_and(|call| call.cursor.is_some())
}

/// Shortens a text of a client to 200 characters, for error messages and logs.
fn brief(text: &str) -> String {
    const LENGTH: usize = 200;
    text.char_indices().nth(LENGTH).map_or_else(|| text.to_owned(), |(end, _)| format!("{}…", &text[..end]))
}
