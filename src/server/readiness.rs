//! Readiness of a server: whether recovery has finished and the store can commit. `transport/health.rs` reports it.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{sync::watch, time::timeout};

use crate::{
    base::dependency::Dependency,
    engine::journal::Journal,
    transport::{NotReady, ReadinessCheck},
};

/// Timeout of the store check: a hanging disk may never respond, and probes have short timeouts.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which an agent lacks a dependency before the server is not ready.
const AGENT_DOWN: Duration = Duration::from_secs(30);

/// Readiness check of a server that is not ready either while every agent lacks a dependency. `agents` has those of each agent.
pub(crate) fn with_agents(check: ReadinessCheck, agents: Vec<Arc<[Dependency]>>) -> ReadinessCheck {
    let agents: Arc<[_]> = agents.into();
    Arc::new(move || {
        let lacks = |agent: &Arc<[Dependency]>| agent.iter().any(|needed| needed.state().is_down_for(AGENT_DOWN));
        let (check, all_lack) = (check(), agents.iter().all(lacks));
        Box::pin(async move { check.await.and(if all_lack { Err(NotReady::AgentsDown) } else { Ok(()) }) })
    })
}

/// Readiness check of a service and of the agents that are mounted on its server.
pub(crate) fn with_mounted(own: ReadinessCheck, mounted: Vec<ReadinessCheck>) -> ReadinessCheck {
    let checks: Arc<[_]> = std::iter::once(own).chain(mounted).collect();
    Arc::new(move || {
        let checks = Arc::clone(&checks);
        Box::pin(async move { join_all(checks.iter().map(|check| check())).await.into_iter().collect() })
    })
}

/// Readiness check: recovery has finished and the store is available.
pub(crate) fn readiness_check(journal: Arc<Journal>, recovered: watch::Receiver<bool>) -> ReadinessCheck {
    Arc::new(move || {
        let (journal, is_recovered) = (Arc::clone(&journal), *recovered.borrow());
        Box::pin(async move {
            if !is_recovered {
                tracing::warn!("not ready: recovery of tasks from the last run has not finished");
                return Err(NotReady::Recovering);
            }
            match timeout(CHECK_TIMEOUT, journal.store().check()).await {
                Ok(Ok(())) if journal.is_store_unavailable() => Err(NotReady::CommitsDelayed),
                Ok(Ok(())) => Ok(()),
                Ok(Err(cause)) => {
                    tracing::warn!(error.cause = %cause, "not ready: store unavailable");
                    Err(NotReady::StoreUnavailable)
                }
                Err(_) => {
                    tracing::warn!(timeout = ?CHECK_TIMEOUT, "not ready: store check timed out");
                    Err(NotReady::StoreUnavailable)
                }
            }
        })
    })
}
