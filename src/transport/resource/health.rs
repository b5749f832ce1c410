//! Health checks: `/healthz` (liveness), `/readyz` (readiness) and `grpc.health.v1.Health`.

use std::{sync::Arc, time::Duration};

use futures_util::stream;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Uri};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server};

use crate::{
    base::dependency::Dependency,
    protocol::{Error, ErrorKind, rpc::BoxStream},
    transport::{
        NotReady, ReadinessCheck, Settings,
        body::{Body, response::respond},
        classify::READY,
        version::grpc_service_name,
    },
};

/// Interval at which a health watch polls the readiness.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Delay after which a client may retry a rejected `Watch`.
const WATCH_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Checks of `/readyz?verbose`, in the order in which they are made.
/// A store that one process uses has no lease.
const CHECKS: [&str; 6] = ["drain", "recovery", "store", "lease", "commits", "agents"];

/// Responds to a liveness or readiness check.
pub(in crate::transport) async fn respond_with_health(
    uri: &Uri,
    Settings { drain, readiness, is_replica, .. }: &Settings,
) -> Response<Body> {
    let is_readiness = uri.path().starts_with(READY);
    let result = match is_readiness {
        true if drain.is_cancelled() => Err(NotReady::Draining),
        true => readiness().await,
        false => Ok(()),
    };
    let is_verbose = is_readiness && uri.query().is_some_and(|query| query.split('&').any(|name| name == "verbose"));
    let mut text = if is_verbose { describe_checks(result.err(), *is_replica) } else { String::new() };
    let status = match result {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    text.push_str(&result.map_or_else(|reason| format!("{reason}\n"), |()| "ok\n".to_owned()));
    respond(status, HeaderMap::new(), HeaderValue::from_static("text/plain; charset=utf-8"), text.into())
}

/// Returns a line for each readiness check. Those after the one that has failed were not made.
fn describe_checks(failed: Option<NotReady>, is_replica: bool) -> String {
    let failed = failed.map(|reason| match reason {
        NotReady::Draining => 0,
        NotReady::Recovering => 1,
        NotReady::StoreUnavailable => 2,
        NotReady::LeaseLost => 3,
        NotReady::CommitsDelayed => 4,
        NotReady::AgentsDown => 5,
    });
    let line = |(position, name)| match failed {
        Some(failed) if position == failed => format!("{name} failed\n"),
        Some(failed) if position > failed => format!("{name} not checked\n"),
        Some(_) | None => format!("{name} ok\n"),
    };
    CHECKS.into_iter().enumerate().filter(|(_, name)| is_replica || *name != "lease").map(line).collect()
}

/// Beginning of the name of the service of an agent.
const AGENT: &str = "a2a.agent/";

/// Names of agents, and what each needs for its turns.
type Agents = Arc<[(Box<str>, Arc<[Dependency]>)]>;

/// `grpc.health.v1.Health` for the server as a whole, and for its services and agents by name.
#[derive(Clone)]
pub(in crate::transport) struct Health {
    drain: CancellationToken,
    ready: ReadinessCheck,
    agents: Agents,
    pub(in crate::transport) services: Arc<[&'static str]>,
    watches: Arc<Semaphore>,
    max_watches: usize,
}

impl Health {
    /// Creates the health service of a server, with at most `health_watches` streams of all clients together.
    pub(in crate::transport) fn new(settings: &Settings) -> Self {
        let Settings { drain, readiness: ready, agents, protocols, health_watches: max_watches, .. } = settings.clone();
        let services = protocols.iter().map(grpc_service_name).collect();
        let watches = Arc::new(Semaphore::new(max_watches.min(Semaphore::MAX_PERMITS)));
        Self { drain, ready, agents, services, watches, max_watches }
    }

    /// Returns the status of a service. An agent does not serve while new work for it is refused.
    async fn status(&self, service: &str) -> ServingStatus {
        let agent = service.strip_prefix(AGENT).and_then(|name| self.agents.iter().find(|(known, _)| **known == *name));
        if agent.is_none() && !service.is_empty() && !self.services.contains(&service) {
            return ServingStatus::ServiceUnknown;
        }
        let is_refused = agent.is_some_and(|(_, needed)| needed.iter().any(|needed| needed.refusal().is_some()));
        if !is_refused && !self.drain.is_cancelled() && (self.ready)().await.is_ok() {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        }
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
        match self.status(&request.get_ref().service).await {
            ServingStatus::ServiceUnknown => Err(Status::not_found(
                "service: unknown name; use a name from reflection, `a2a.agent/NAME`, or an empty one for the server",
            )),
            status @ (ServingStatus::Unknown | ServingStatus::Serving | ServingStatus::NotServing) => {
                Ok(tonic::Response::new(reply(status)))
            }
        }
    }

    type WatchStream = BoxStream<HealthCheckResponse>;

    /// Sends each change of readiness. Ends on drain, which otherwise would wait for the streams.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<tonic::Response<Self::WatchStream>, Status> {
        // Unlike for `check`, an unknown service is not an error: the protocol allows that it is added later.
        let start = (None, self.clone(), request.into_inner().service, self.watch_permit()?);
        let changes = stream::unfold(start, move |(sent, health, service, permit)| async move {
            loop {
                let is_draining = health.drain.is_cancelled();
                let status = health.status(&service).await;
                if sent != Some(status) {
                    return Some((Ok(reply(status)), (Some(status), health, service, permit)));
                }
                if is_draining {
                    return None;
                }
                drop(timeout(WATCH_INTERVAL, health.drain.cancelled()).await);
            }
        });
        Ok(tonic::Response::new(Box::pin(changes)))
    }
}
