//! Whether a server is there, and whether it takes work: for whoever starts, watches and balances servers, over HTTP and
//! as gRPC's own health service.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{future::BoxFuture, stream};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server};

use super::{body::Body, response::respond};
use crate::contract::BoxStream;
use crate::error::{Error, ErrorKind};

/// The process answers: for who would start it anew if it didn't.
pub(super) const LIVE: &str = "/healthz";

/// The server takes work: for who sends it some. It no longer does when it drains.
pub(super) const READY: &str = "/readyz";

/// Maximum size of a request in bytes. It has the name of a service and nothing else.
pub(super) const MAX_MESSAGE: usize = 1 << 10;

/// Interval at which a health watch polls the readiness.
const WATCH: Duration = Duration::from_secs(1);

/// When a client may retry a `Watch` that was refused.
const WATCH_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Finds out whether what the server works with is there. Anybody may ask, and as often as they like.
pub type ReadinessCheck = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// Answers at one of the paths above.
pub(super) async fn respond_with_health(
    path: &str,
    drain: &CancellationToken,
    ready: &ReadinessCheck,
) -> Response<Body> {
    let (status, text) = match path.starts_with(READY) {
        true if drain.is_cancelled() => (StatusCode::SERVICE_UNAVAILABLE, "draining\n"),
        // Why not is for the log.
        true if !ready().await => (StatusCode::SERVICE_UNAVAILABLE, "the store does not answer\n"),
        _ => (StatusCode::OK, "ok\n"),
    };
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    respond(status, HeaderMap::new(), plain, Bytes::from_static(text.as_bytes()))
}

/// `grpc.health.v1.Health`, of the server as a whole and of the services that it names.
pub(super) struct Health {
    drain: CancellationToken,
    ready: ReadinessCheck,
    pub(super) services: Vec<&'static str>,
    watches: Arc<Semaphore>,
    max_watches: usize,
}

impl Health {
    /// The health of these services, with up to `max_watches` streams of all clients together.
    pub(super) fn new(
        drain: CancellationToken,
        ready: ReadinessCheck,
        services: Vec<&'static str>,
        max_watches: usize,
    ) -> Self {
        let watches = Arc::new(Semaphore::new(max_watches.min(Semaphore::MAX_PERMITS)));
        Self { drain, ready, services, watches, max_watches }
    }

    /// Counts a `Watch` stream, until the permit is dropped.
    fn watch_permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.watches).try_acquire_owned().map_err(|_| {
            let max = self.max_watches;
            let error = ErrorKind::ResourceExhausted.because(format!(
                "too many open Watch streams; use Check or retry later (limits.health_watches = {max})"
            ));
            error.with("limit", "limits.health_watches").retry_after(WATCH_RETRY_AFTER)
        })
    }

    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.services.contains(&service)
    }
}

fn reply(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, Status> {
        if !self.knows(&request.get_ref().service) {
            return Err(Status::not_found("no service of this name is served here"));
        }
        let serves = !self.drain.is_cancelled() && (self.ready)().await;
        Ok(tonic::Response::new(reply(if serves { ServingStatus::Serving } else { ServingStatus::NotServing })))
    }

    type WatchStream = BoxStream<HealthCheckResponse>;

    /// Sends each change of readiness, and ends with the drain, which would otherwise wait for the watchers.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let (drain, ready) = (self.drain.clone(), Arc::clone(&self.ready));
        // An unknown service may be added later, so that it is not an error here, unlike above.
        let is_known = self.knows(&request.get_ref().service);
        let start = (None, drain, ready, self.watch_permit()?);
        let changes = stream::unfold(start, move |(told, drain, ready, permit)| async move {
            loop {
                let draining = drain.is_cancelled();
                let status = if !is_known {
                    ServingStatus::ServiceUnknown
                } else if !draining && ready().await {
                    ServingStatus::Serving
                } else {
                    ServingStatus::NotServing
                };
                if told != Some(status) {
                    return Some((Ok(reply(status)), (Some(status), drain, ready, permit)));
                }
                if draining {
                    return None;
                }
                drop(timeout(WATCH, drain.cancelled()).await);
            }
        });
        Ok(tonic::Response::new(Box::pin(changes)))
    }
}
