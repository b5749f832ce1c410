//! Layers around the HTTP service, which each request passes before it is dispatched.

pub(crate) mod base_path;
pub(crate) mod browser_headers;
pub(crate) mod framing;
pub(crate) mod origin;
pub(crate) mod peer_limit;
pub(crate) mod request_log;
pub(crate) mod wire_log;

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
};

use axum::Router;
use http::{HeaderMap, Request, Response, StatusCode, header, request::Parts};
use tower::service_fn;
use tower_service::Service;

use crate::{
    base::{
        network::is_public,
        sources::Ids,
        trace::{RequestTrace, Tracing},
    },
    protocol::{
        call::{ADMIN, REQUEST_ID},
        error::{BEARER, Error, ErrorKind},
    },
    service::auth::{AuthRequest, Authenticator, ClientCertificate, FailureLimit, Principal, audit, require_scope},
    transport::{
        Body, BrowserHeaders, HttpService, OriginPolicy, Paths, PeerLimit, RequestBody, RequestClass, RequestKind,
        ResponseFuture, below,
        body::discard_unread,
        now, peer,
        pipeline::{
            framing::RequestHead,
            request_log::{LoggedBody, LoggedResponse, logged},
            wire_log::recorded,
        },
        preflight,
        resource::operator::{LocalOperator, is_from_this_machine},
    },
};

/// Adds a layer of the program to a router.
pub(crate) type AddLayer = Arc<dyn Fn(Router) -> Router + Send + Sync>;

/// Settings of the layers, which all addresses of a server share.
pub(crate) struct PipelineSettings {
    pub(crate) authenticator: Option<Arc<dyn Authenticator>>,
    pub(crate) failures: Arc<FailureLimit>,
    pub(crate) insecure: bool,
    pub(crate) log_wire: bool,
    pub(crate) is_metered: bool,
    pub(crate) origins: OriginPolicy,
    pub(crate) peers: PeerLimit,
    /// Maximum size of the head of a request in bytes.
    pub(crate) header_bytes: usize,
    pub(crate) paths: Paths,
    /// Ids of requests.
    pub(crate) ids: Ids,
    pub(crate) tracing: Tracing,
    /// Layers of the program, the innermost first.
    pub(crate) added: Vec<AddLayer>,
}

/// HTTP service with all layers: base path, request log, wire log, layers of the program, checks and authentication.
#[derive(Clone)]
pub(crate) struct LayeredService {
    checked: CheckedService,
    /// The checked service within the layers of the program, if there are any.
    router: Option<Router>,
    /// Agents below paths of their own.
    mounted: Arc<[MountedHttp]>,
}

/// HTTP service of an agent below a path.
#[derive(Clone)]
pub(crate) struct MountedHttp {
    /// Path with a slash at the beginning, and without one at the end.
    pub(crate) path: Box<str>,
    pub(crate) http: LayeredService,
}

impl MountedHttp {
    /// Returns true for a path of this agent.
    fn serves(&self, path: &str) -> bool {
        below(path, &self.path).is_some()
    }
}

/// HTTP service with the checks of each request and authentication.
#[derive(Clone)]
struct CheckedService {
    http: HttpService,
    layers: Arc<PipelineSettings>,
    /// Listen address. `None` for a router in another server.
    bound: Option<SocketAddr>,
}

impl LayeredService {
    /// Wraps the service for the connections of an address, or for a router whose address is unknown.
    pub(crate) fn new(
        http: HttpService,
        layers: Arc<PipelineSettings>,
        bound: Option<SocketAddr>,
        mounted: Arc<[MountedHttp]>,
    ) -> Self {
        let checked = CheckedService { http, layers, bound };
        let added = &checked.layers.added;
        let router = (!added.is_empty()).then(|| {
            let inner = checked.clone();
            let respond = move |request: Request<axum::body::Body>| {
                // A layer of the program may have changed the request.
                let (parts, body) = request.into_parts();
                inner.respond(inner.layers.paths.classify(&parts), parts, body)
            };
            added.iter().fold(Router::new().fallback_service(service_fn(respond)), |router, add| add(router))
        });
        Self { checked, router, mounted }
    }

    fn respond<B: RequestBody>(&self, class: RequestClass, mut parts: Parts, body: B) -> ResponseFuture {
        let Some(router) = &self.router else { return self.checked.respond(class, parts, body) };
        // For errors of the layers.
        parts.extensions.insert(class);
        let response = router.clone().call(Request::from_parts(parts, body));
        Box::pin(async move {
            let mut response = response.await?;
            // The router adds a length where HTTP has none (RFC 9110, 8.6).
            if class.is_grpc() || matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
                response.headers_mut().remove(header::CONTENT_LENGTH);
            }
            Ok(response.map(Body::from_axum))
        })
    }
}

impl CheckedService {
    fn respond<B: RequestBody>(&self, class: RequestClass, mut parts: Parts, body: B) -> ResponseFuture {
        let Self { http, layers, bound } = self;
        let head = RequestHead::of(&parts);
        // A server that the router is mounted in has checked the framing.
        let framing = if bound.is_some() { head.check_framing(&parts) } else { Ok(()) };
        if let Err(error) = framing.and_then(|()| head.check_credentials()) {
            // The request is invalid HTTP, so the status is 400 whatever the binding uses for its errors.
            let mut response = class.error_response(error);
            *response.status_mut() = StatusCode::BAD_REQUEST;
            return reject(response, parts.headers, body);
        }
        if let Err(error) = head.check_size(layers.header_bytes) {
            let mut response = class.error_response(error);
            if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
                *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            }
            return reject(response, parts.headers, body);
        }
        let peer = peer(&parts);
        let permit = match layers.peers.request(peer, &parts.headers) {
            Ok(permit) => permit,
            Err(error) => return reject(class.error_response(error), parts.headers, body),
        };
        if let Err(error) = layers.origins.check(class, &parts, &head, *bound) {
            return reject(class.error_response(error), parts.headers, body);
        }
        let is_allowed = || !class.is_operator() && layers.origins.allowed_origin(&parts.headers).is_some();
        if let Some(response) = preflight(&parts, is_allowed) {
            return now(response);
        }
        // Also without an authenticator.
        let needs_principal = class.protected_document();
        let is_loopback = bound.is_some_and(|addr| !is_public(addr));
        // A separate address for metrics and health checks that only this machine can reach is open too, and the operator API has a
        // token of its own.
        let is_open = class.is_public(&parts)
            || http.is_operations() && is_loopback
            || class.is_operator() && http.has_operator_token(&parts.headers);
        if layers.authenticator.is_none() {
            // The address of a router is unknown.
            if class.kind == RequestKind::Metrics && bound.is_none() && !is_from_this_machine(&parts) {
                return reject(class.error_response(metrics_need_credentials()), parts.headers, body);
            }
            if class.is_operator() && is_loopback && is_from_this_machine(&parts) {
                parts.extensions.insert(LocalOperator);
            }
        }
        let authenticator = layers.authenticator.clone().filter(|_| !is_open);
        if authenticator.is_none() && permit.is_none() && needs_principal.is_none() {
            return http.dispatch(class, parts, body);
        }
        let (http, layers) = (http.clone(), Arc::clone(layers));
        Box::pin(async move {
            let authenticated = match authenticator {
                Some(authenticator) => {
                    let authenticated = authenticate(&*authenticator, &layers, class, &parts).await;
                    authenticated.map_err(|error| http.with_resource_metadata(error, &parts))
                }
                None => Ok(None),
            };
            let response = match authenticated {
                Err(error) => {
                    discard_unread(&parts.headers, body).await;
                    class.error_response(error)
                }
                Ok(None) if let Some(document) = needs_principal => {
                    let error = ErrorKind::Unauthenticated.because(format!("the {document} requires credentials"));
                    class.error_response(error.challenge(BEARER))
                }
                Ok(principal) => {
                    if let Some(principal) = principal {
                        parts.extensions.insert(principal);
                    }
                    http.dispatch(class, parts, body).await?
                }
            };
            Ok(match permit {
                Some(permit) => response.map(|body| body.with_permit(permit)),
                None => response,
            })
        })
    }
}

fn metrics_need_credentials() -> Error {
    ErrorKind::Unauthenticated.because("metrics require credentials with the scope admin").challenge(BEARER)
}

/// Rejects a request for its head.
fn reject(response: Response<Body>, headers: HeaderMap, body: impl RequestBody) -> ResponseFuture {
    Box::pin(async move {
        discard_unread(&headers, body).await;
        Ok(response)
    })
}

/// Authenticates a request, and logs a failure in the audit log. Metrics require the scope `admin`.
async fn authenticate(
    authenticator: &dyn Authenticator,
    layers: &PipelineSettings,
    class: RequestClass,
    parts: &Parts,
) -> Result<Option<Principal>, Error> {
    let peer = peer(parts);
    let peer = layers.peers.client(peer, &parts.headers);
    let Parts { method, uri, headers, extensions, .. } = parts;
    let certificate = extensions.get::<ClientCertificate>();
    let request = AuthRequest { method, uri, headers, peer, certificate, operation: class.operation(parts) };
    let principal = authenticator.authenticate(&request).await.map_err(|error| {
        let request_id = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        let error = layers.failures.count(error, peer);
        audit::authentication_failed(&error, headers, request.operation, peer, request_id.unwrap_or_default());
        error
    })?;
    if class.kind == RequestKind::Metrics {
        let permitted = match &principal {
            Some(principal) => require_scope(principal, ADMIN),
            None => Err(metrics_need_credentials()),
        };
        if let Err(error) = permitted {
            audit::permission_denied(principal.as_ref(), None, "metrics", &error);
            return Err(error);
        }
    }
    Ok(principal)
}

impl<B: RequestBody> Service<Request<B>> for LayeredService {
    type Response = Response<LoggedBody>;
    type Error = Infallible;
    type Future = LoggedResponse;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> LoggedResponse {
        let PipelineSettings { paths, ids, log_wire, is_metered, origins, tracing, peers, .. } = &*self.checked.layers;
        paths.apply(&mut request);
        if let Some(agent) = self.mounted.iter().find(|agent| agent.serves(request.uri().path())) {
            return agent.http.clone().call(request);
        }
        let (parts, body) = request.into_parts();
        let class = paths.classify(&parts);
        let browser = BrowserHeaders {
            allowed_origin: origins.allowed_origin(&parts.headers).filter(|_| !class.is_operator()),
            varies_by_origin: origins.varies_by_origin(),
            is_grpc: class.is_grpc(),
        };
        let trace = (tracing.is_on() && class.is_traced(&parts)).then(|| {
            let client = peers.client(peer(&parts), &parts.headers);
            let is_near = is_from_this_machine(&parts) || peer(&parts).is_some_and(|peer| peers.trusts(peer.ip()));
            RequestTrace::new(tracing, is_near, client)
        });
        logged(parts, class, ids, *is_metered, browser, trace, |parts| match log_wire {
            true => recorded(parts, body, |parts, body| self.respond(class, parts, body)),
            false => self.respond(class, parts, body),
        })
    }
}
