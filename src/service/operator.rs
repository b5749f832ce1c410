//! Operator API: the state of a server and its agents, for the people who run it. `transport/resource/operator.rs` serves it over
//! HTTP.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use http::HeaderMap;
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq as _;
use tokio::sync::{Semaphore, SemaphorePermit, broadcast};

use super::Service;
use crate::{
    base::{
        clock::{Clock, Millis},
        sources::Sources,
    },
    protocol::{
        call::{ADMIN, Principal, Scopes},
        error::{BEARER, Error, ErrorKind, INVALID_TOKEN},
        pb::wkt,
    },
    service::auth::{Token, audit, bearer::bearer_token, require_scope},
    store::{Inspect, Store, TaskKey, TaskSummary},
};

mod deliveries;
mod feed;
mod tasks;

pub(crate) use self::{
    deliveries::{DeliveryQuery, Retry},
    feed::FeedEvent,
    tasks::{EventQuery, TaskQuery, TaskScope},
};

/// Maximum number of elements of a page, and that without a limit in the query.
const MAX_PAGE: usize = 1000;
const PAGE: usize = 100;

/// Maximum number of requests that read from the stores at once. Commits do not wait for them, but share the processor.
const READS: usize = 2;

/// What a caller of the operator API may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// Numbers without names.
    Counts,
    /// The state of the server, and no task of another owner.
    Status,
    /// Everything.
    Full,
}

impl Access {
    fn name(self) -> &'static str {
        match self {
            Self::Counts => "counts",
            Self::Status => "status",
            Self::Full => "full",
        }
    }

    /// Checks that the caller may read the tasks of all owners.
    ///
    /// # Errors
    /// `Unauthenticated` without credentials, or `PermissionDenied`.
    pub(crate) fn require_full(self) -> Result<(), Error> {
        match self {
            Self::Full => Ok(()),
            Self::Status => {
                let why = "the credentials must name the scope admin, since this shows the tasks of all owners";
                Err(ErrorKind::PermissionDenied.because(why).with("scope", ADMIN))
            }
            Self::Counts => Err(missing()),
        }
    }
}

/// Returns the error for a request without credentials.
fn missing() -> Error {
    let why = "the operator API needs credentials with the scope admin, or the operator token of this start";
    ErrorKind::Unauthenticated.because(why).challenge(BEARER)
}

/// Agent of a server, as its operator sees it.
#[derive(Clone)]
pub(crate) struct OperatedAgent {
    /// Name in the catalog.
    pub(crate) name: Box<str>,
    /// Kind of the agent, such as `exec`.
    pub(crate) kind: &'static str,
    pub(crate) service: Arc<Service>,
}

/// Operator API of a server.
pub(crate) struct Operator {
    /// Agents of the server, that of the root first.
    agents: Vec<OperatedAgent>,
    /// Operator token of this start.
    token: Option<Token>,
    clock: Clock,
    started: Millis,
    reads: Semaphore,
    /// Permits of open feeds.
    feeds: Arc<Semaphore>,
    /// Commits of all agents, by their positions, from the first feed on.
    changes: OnceLock<broadcast::Sender<(usize, TaskKey)>>,
}

impl Operator {
    /// Creates the operator API of a server that starts now.
    pub(crate) fn new(agents: Vec<OperatedAgent>, token: Option<Token>, sources: Sources) -> Self {
        let clock = sources.clock;
        Self {
            agents,
            token,
            started: clock.millis(),
            clock,
            reads: Semaphore::new(READS),
            feeds: Arc::new(Semaphore::new(feed::MAX_FEEDS)),
            changes: OnceLock::new(),
        }
    }

    /// Returns true if these headers have the operator token of this start.
    pub(crate) fn has_token(&self, headers: &HeaderMap) -> bool {
        // In constant time.
        let is_token = |token: &Token, sent: &[u8]| bool::from(token.as_bytes().ct_eq(sent));
        self.token.as_ref().zip(bearer_token(headers)).is_some_and(|(token, sent)| is_token(token, sent))
    }

    /// Returns what a caller may read. `is_local`: a client on this machine, of a server without authentication.
    ///
    /// All scopes are those of a caller who was given no other ones, which is not enough for the tasks of other owners.
    ///
    /// # Errors
    /// `Unauthenticated` or `PermissionDenied`.
    pub(crate) fn access(
        &self,
        headers: &HeaderMap,
        principal: Option<&Principal>,
        is_local: bool,
    ) -> Result<Access, Error> {
        if self.has_token(headers) {
            return Ok(Access::Full);
        }
        match principal {
            Some(Principal { scopes: Scopes::All, .. }) => Ok(Access::Status),
            Some(principal) => require_scope(principal, ADMIN).map(|()| Access::Full),
            None if bearer_token(headers).is_some() => {
                let why = "the token is not the operator token of this start";
                Err(ErrorKind::Unauthenticated.because(why).challenge(INVALID_TOKEN))
            }
            None if is_local => Ok(Access::Counts),
            None => Err(missing()),
        }
    }

    /// Returns the state of the server. `not_ready` is the reason why it is not ready.
    pub(crate) async fn status(&self, access: Access, is_draining: bool, not_ready: Option<String>) -> Value {
        let mut agents = Vec::new();
        let (mut turns, mut queued, mut tasks) = (0, 0, Map::new());
        for agent in &self.agents {
            let gauges = agent.service.gauges();
            (turns, queued) = (turns + gauges.turns, queued + gauges.queued_turns);
            for (state, count) in gauges.live_tasks.iter().filter(|(_, count)| *count > 0) {
                let sum = tasks.entry(*state).or_insert(0.into());
                *sum = (sum.as_u64().unwrap_or_default() + u64::try_from(*count).unwrap_or_default()).into();
            }
            agents.push(json!({
                "name": agent.name,
                "kind": agent.kind,
                "turns": gauges.turns,
                "queued": gauges.queued_turns,
            }));
        }
        let totals = json!({ "agents": agents.len(), "turns": turns, "queued": queued, "tasks": tasks });
        let uptime = self.clock.millis().saturating_sub(self.started) / 1000;
        let mut status = json!({
            "access": access.name(),
            "ready": not_ready.is_none(),
            "reason": not_ready,
            "draining": is_draining,
            "uptime_seconds": uptime,
            "totals": totals,
        });
        if access >= Access::Status {
            status["build"] = json!({ "version": env!("CARGO_PKG_VERSION"), "commit": option_env!("A2A_COMMIT") });
            status["started"] = time(self.started);
            status["agents"] = agents.into();
        }
        status
    }

    /// Returns the agents with this name, or all, with their positions.
    ///
    /// # Errors
    /// `InvalidParams` if there is no such agent.
    fn agents(&self, name: Option<&str>) -> Result<Vec<(usize, &OperatedAgent)>, Error> {
        let all = self.agents.iter().enumerate();
        let found: Vec<_> = all.filter(|(_, agent)| name.is_none_or(|name| *agent.name == *name)).collect();
        let why = "no agent has this name; operator/status lists them";
        if found.is_empty() { Err(Error::invalid_field("agent", why)) } else { Ok(found) }
    }

    /// Waits until few others read.
    async fn read_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.reads.acquire().await.ok()
    }
}

debug_fields!(Operator {});

/// Request of an operator.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) access: Access,
    /// `None` with the operator token.
    pub(crate) principal: Option<&'a Principal>,
    pub(crate) peer: Option<IpAddr>,
    pub(crate) request_id: Option<&'a str>,
}

impl Reader<'_> {
    /// Writes a line of the audit log if the task is one of another owner.
    fn audit_task(&self, operation: &str, task: &TaskSummary) {
        if !self.owns(&task.owner) {
            let (task, source) = ((Some(&*task.id), Some(&*task.owner)), (self.peer, self.request_id));
            audit::operator_access(operation, self.principal, task, 1, source);
        }
    }

    /// Writes a line of the audit log about this many tasks of other owners, or deliveries, unless there are none.
    fn audit(&self, operation: &str, count: usize) {
        if count > 0 {
            audit::operator_access(operation, self.principal, (None, None), count, (self.peer, self.request_id));
        }
    }

    fn owns(&self, owner: &str) -> bool {
        self.principal.is_some_and(|principal| *principal.owner == *owner)
    }
}

impl OperatedAgent {
    fn store(&self) -> &Arc<dyn Store> {
        self.service.journal().store()
    }

    fn inspect(&self) -> Result<&dyn Inspect, Error> {
        let why = "the store of this agent shows no tasks of all owners";
        self.store().inspect().ok_or_else(|| ErrorKind::UnsupportedOperation.because(why))
    }
}

/// Formats a time as text (RFC 3339).
fn time(millis: Millis) -> Value {
    serde_json::to_value(wkt::timestamp(millis)).unwrap_or_default()
}
