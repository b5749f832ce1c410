//! Recording of what changes several metrics.

use std::time::{Duration, SystemTime};

use super::{self as table, Agent};

/// Records the state of something that an agent needs. `last_success`: time of the last call that succeeded, if there was one.
pub(crate) fn dependency(agent: Agent<'_>, peer: &str, is_up: bool, last_success: Option<SystemTime>) {
    table::DEPENDENCY_UP.set(agent, &[peer], u8::from(is_up));
    if let Some(since) = last_success.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()) {
        table::DEPENDENCY_SUCCESS.set(agent, &[peer], since);
    }
}

/// Records the state of a breaker: `closed`, `open` or `half_open`.
pub(crate) fn breaker(agent: Agent<'_>, peer: &str, state: &'static str) {
    for known in ["closed", "open", "half_open"] {
        table::DEPENDENCY_BREAKER.set(agent, &[known, peer], u8::from(known == state));
    }
}

/// Records a call of a peer with all its retries. The results are those in the table.
pub(crate) fn outbound(agent: Agent<'_>, peer: &str, result: &'static str, duration: Duration, retries: u64) {
    table::OUTBOUND.add(agent, &[result, peer], 1);
    table::OUTBOUND_DURATION.observe(agent, &[peer], duration);
    table::OUTBOUND_RETRIES.add(agent, &[peer], retries);
}

/// Use of a limit at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitUse {
    /// Name of the limit, as in errors.
    pub(crate) name: &'static str,
    /// Number of items or bytes in use.
    pub(crate) used: u64,
    /// Maximum of it. `None`: no limit.
    pub(crate) max: Option<u64>,
}

impl LimitUse {
    /// Creates the use of a limit. No maximum: `usize::MAX`.
    pub(crate) fn new(name: &'static str, used: usize, max: usize) -> Self {
        let [used, max] = [used, max].map(|count| u64::try_from(count).unwrap_or(u64::MAX));
        Self { name, used, max: Some(max).filter(|max| *max != u64::MAX) }
    }

    /// Records the use, and the maximum.
    pub(crate) fn record(&self, agent: Agent<'_>) {
        table::LIMIT_USED.set(agent, &[self.name], number(self.used));
        if let Some(max) = self.max {
            table::LIMIT_MAX.set(agent, &[self.name], number(max));
        }
    }
}

/// Adds to the number of open connections.
pub(crate) fn add_connections(count: i8) {
    table::CONNECTIONS.adjust(None, &[], count);
    table::LIMIT_USED.adjust(None, &["connections"], count);
}

/// State of the engine at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineGauges {
    /// Running turns.
    pub(crate) turns: usize,
    /// New turns that wait for a running one to end.
    pub(crate) queued_turns: usize,
    /// Messages that wait for the next turn.
    pub(crate) queued_messages: usize,
    /// Tasks with uncommitted changes.
    pub(crate) uncommitted_tasks: usize,
    /// Tasks in memory, by the name of their state.
    pub(crate) live_tasks: Vec<(&'static str, usize)>,
}

impl EngineGauges {
    /// Records the gauges.
    pub(crate) fn record(&self, agent: Agent<'_>) {
        table::TURNS.set(agent, &[], number(self.turns));
        table::QUEUED_TURNS.set(agent, &[], number(self.queued_turns));
        table::QUEUED_MESSAGES.set(agent, &[], number(self.queued_messages));
        table::UNCOMMITTED_TASKS.set(agent, &[], number(self.uncommitted_tasks));
        for (state, count) in &self.live_tasks {
            table::LIVE_TASKS.set(agent, &[state], number(*count));
        }
    }
}

/// Records the counters of the delivery of push notifications since the start, its lag, and the number of deliveries that are due.
#[cfg(feature = "push")]
pub(crate) fn record_push((successes, failures, dead_letters): (u64, u64, u64), lag: Duration, due: u64) {
    table::PUSH_ATTEMPTS.count(None, &["success"], successes);
    table::PUSH_ATTEMPTS.count(None, &["failure"], failures);
    table::PUSH_DEAD_LETTERS.count(None, &[], dead_letters);
    table::PUSH_LAG.set(None, &[], lag);
    table::PUSH_DUE.set(None, &[], number(due));
}

/// Converts a number of items or bytes. Exact up to 2^53.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "nothing needs to distinguish more")]
pub(crate) fn number(count: impl TryInto<u64>) -> f64 {
    count.try_into().unwrap_or(u64::MAX) as f64
}
