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

/// Timeout of the check of a shared store, after which other processes are better off with new work.
const SHARED_CHECK_TIMEOUT: Duration = Duration::from_secs(1);

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
            let replica = journal.shared().map(|(_, replica)| replica);
            let limit = if replica.is_some() { SHARED_CHECK_TIMEOUT } else { CHECK_TIMEOUT };
            match timeout(limit, journal.store().check()).await {
                Ok(Ok(())) if replica.is_some_and(|replica| !replica.has_lease()) => Err(NotReady::LeaseLost),
                Ok(Ok(())) if journal.is_store_unavailable() => Err(NotReady::CommitsDelayed),
                Ok(Ok(())) => Ok(()),
                Ok(Err(cause)) => {
                    tracing::warn!(error.cause = %cause, "not ready: store unavailable");
                    Err(NotReady::StoreUnavailable)
                }
                Err(_) => {
                    tracing::warn!(timeout = ?limit, "not ready: store check timed out");
                    Err(NotReady::StoreUnavailable)
                }
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        base::sources::Sources,
        engine::journal::LiveMemory,
        store::memory::{Cluster, Memory},
    };

    #[tokio::test]
    async fn replica_without_lease_is_not_ready() {
        let store = Cluster::new(Memory::default(), || 0).replica();
        let journal = Journal::new(Arc::new(store), Sources::default(), LiveMemory::new(usize::MAX));
        let ready = readiness_check(Arc::clone(&journal), watch::channel(true).1);
        assert_eq!(ready().await, Ok(()));
        journal.shared().unwrap().1.set_renewed(None);
        assert_eq!(ready().await, Err(NotReady::LeaseLost));
    }
}
