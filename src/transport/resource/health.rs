//! Health checks: `/healthz` (liveness), `/readyz` (readiness) and `grpc.health.v1.Health`.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server};

use crate::{
    protocol::{Error, ErrorKind, rpc::BoxStream},
    transport::{
        NotReady, ReadinessCheck,
        body::{Body, response::respond},
        classify::READY,
    },
};

/// Interval at which a health watch polls the readiness.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Delay after which a client may retry a rejected `Watch`.
const WATCH_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Responds to a liveness or readiness check.
pub(in crate::transport) async fn respond_with_health(
    path: &str,
    drain: &CancellationToken,
    ready: &ReadinessCheck,
) -> Response<Body> {
    let result = match path.starts_with(READY) {
        true if drain.is_cancelled() => Err(NotReady::Draining),
        true => ready().await,
        false => Ok(()),
    };
    let (status, text) = match result {
        Ok(()) => (StatusCode::OK, Bytes::from_static(b"ok\n")),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n").into()),
    };
    respond(status, HeaderMap::new(), HeaderValue::from_static("text/plain; charset=utf-8"), text)
}

/// `grpc.health.v1.Health` for the server as a whole and for its services by name.
pub(in crate::transport) struct Health {
    drain: CancellationToken,
    ready: ReadinessCheck,
    pub(in crate::transport) services: Vec<&'static str>,
    watches: Arc<Semaphore>,
    max_watches: usize,
}

impl Health {
    /// Creates the health service for these service names, with at most `max_watches` streams of all clients together.
    pub(in crate::transport) fn new(
        drain: CancellationToken,
        ready: ReadinessCheck,
        services: Vec<&'static str>,
        max_watches: usize,
    ) -> Self {
        let watches = Arc::new(Semaphore::new(max_watches.min(Semaphore::MAX_PERMITS)));
        Self { drain, ready, services, watches, max_watches }
    }

    /// Counts a `Watch` stream until the permit is dropped.
    fn watch_permit(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.watches).try_acquire_owned().map_err(|_| {
            let max = self.max_watches;
            let error = ErrorKind::ResourceExhausted
                .because(format!("more than {max} open Watch streams; use Check or retry later"));
            error.limit("health_watches").retry_after(WATCH_RETRY_AFTER)
        })
    }

    fn is_known(&self, service: &str) -> bool {
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
        if !self.is_known(&request.get_ref().service) {
            return Err(Status::not_found(
                "service: unknown name; use a name from reflection, or an empty one for the server",
            ));
        }
        let is_serving = !self.drain.is_cancelled() && (self.ready)().await.is_ok();
        Ok(tonic::Response::new(reply(if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing })))
    }

    type WatchStream = BoxStream<HealthCheckResponse>;

    /// Sends each change of readiness. Ends on drain, which otherwise would wait for the streams.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let (drain, ready) = (self.drain.clone(), Arc::clone(&self.ready));
        // Unlike for `check`, an unknown service is not an error: the protocol allows that it is added later.
        let is_known = self.is_known(&request.get_ref().service);
        let start = (None, drain, ready, self.watch_permit()?);
        let changes = stream::unfold(start, move |(sent, drain, ready, permit)| async move {
            loop {
                let is_draining = drain.is_cancelled();
                let status = if !is_known {
                    ServingStatus::ServiceUnknown
                } else if !is_draining && ready().await.is_ok() {
                    ServingStatus::Serving
                } else {
                    ServingStatus::NotServing
                };
                if sent != Some(status) {
                    return Some((Ok(reply(status)), (Some(status), drain, ready, permit)));
                }
                if is_draining {
                    return None;
                }
                drop(timeout(WATCH_INTERVAL, drain.cancelled()).await);
            }
        });
        Ok(tonic::Response::new(Box::pin(changes)))
    }
}
