//! Operator API: the state of a server and its agents, for the people who run it. `transport/resource/operator.rs` serves it over
//! HTTP.

use std::sync::Arc;

use http::HeaderMap;
use serde_json::{Map, Value, json};
use subtle::ConstantTimeEq as _;

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
    service::auth::{Token, bearer::bearer_token, require_scope},
};

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
}

impl Operator {
    /// Creates the operator API of a server that starts now.
    pub(crate) fn new(agents: Vec<OperatedAgent>, token: Option<Token>, sources: Sources) -> Self {
        let clock = sources.clock;
        Self { agents, token, started: clock.millis(), clock }
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
}

debug_fields!(Operator {});

/// Formats a time as text (RFC 3339).
fn time(millis: Millis) -> Value {
    serde_json::to_value(wkt::timestamp(millis)).unwrap_or_default()
}
