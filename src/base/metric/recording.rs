//! Recording: a function for each event of a server that changes metrics. `agent` is the name of the agent in a server with several.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    self as table,
    Change::{Add, Count, Move, Observe, Set},
};

/// Name of the agent in a server with several.
type Agent<'a> = Option<&'a Arc<str>>;

/// Counts an HTTP response.
pub(crate) fn count_response(binding: &'static str, status: http::StatusCode) {
    table::RESPONSES.record(None, &[binding, status.as_str()], Add(1));
}

/// Labels of the metrics of a call.
#[derive(Clone, Debug)]
pub(crate) struct CallLabels {
    /// Name of the agent, in a server with several.
    pub(crate) agent: Option<Arc<str>>,
    /// Name of the RPC.
    pub(crate) operation: &'static str,
    /// `grpc`, `http`, `jsonrpc` or `in-process`.
    pub(crate) binding: &'static str,
    /// Protocol version.
    pub(crate) version: &'static str,
}

impl CallLabels {
    /// Returns the labels of most metrics.
    fn labels(&self) -> [&'static str; 2] {
        [self.operation, self.binding]
    }

    /// Counts a call with its result. `code` is the name of a gRPC code.
    pub(crate) fn ended(&self, code: &'static str) {
        table::CALLS.record(self.agent.as_ref(), &[self.operation, self.binding, self.version, code], Add(1));
    }

    /// Records the duration of a call.
    pub(crate) fn replied(&self, duration: Duration) {
        table::CALL_DURATION.record(self.agent.as_ref(), &self.labels(), Observe(duration.as_secs_f64()));
    }

    /// Counts an event of a stream. `first` is the time since the call for the first event.
    pub(crate) fn sent_event(&self, first: Option<Duration>) {
        table::STREAM_EVENTS.record(self.agent.as_ref(), &self.labels(), Add(1));
        if let Some(duration) = first {
            table::FIRST_EVENT.record(self.agent.as_ref(), &self.labels(), Observe(duration.as_secs_f64()));
        }
    }

    /// Adds to the number of open streams.
    pub(crate) fn add_streams(&self, count: i8) {
        table::STREAMS.record(self.agent.as_ref(), &self.labels(), Move(count));
    }

    /// Records the end of a stream: `completed`, `client_gone`, `max_age`, `slow` or `drain`.
    pub(crate) fn stream_ended(&self, end: &'static str, duration: Duration) {
        table::STREAM_DURATION.record(self.agent.as_ref(), &[end], Observe(duration.as_secs_f64()));
    }
}

/// Records how many committed events a reader has not read yet.
pub(crate) fn record_reader_lag(events: u64) {
    table::READER_LAG.record(None, &[], Observe(number(events)));
}

/// Counts an accepted turn: `new`, `follow_up` or `recovered`.
pub(crate) fn turn_started(agent: Agent<'_>, kind: &'static str) {
    table::TURNS_STARTED.record(agent, &[kind], Add(1));
}

/// Records the end of a turn. `reason` is `none` unless it failed.
pub(crate) fn turn_ended(agent: Agent<'_>, outcome: &'static str, reason: &'static str, duration: Duration) {
    table::TURNS_ENDED.record(agent, &[outcome, reason], Add(1));
    table::TURN_DURATION.record(agent, &[outcome], Observe(duration.as_secs_f64()));
}

/// Records that accepted work has waited: a `turn` for `limits.turns`, a `message` for a busy agent, or a turn for a process (`exec`).
pub(crate) fn turn_waited(agent: Agent<'_>, queue: &'static str, duration: Duration) {
    table::TURN_WAIT.record(agent, &[queue], Observe(duration.as_secs_f64()));
}

/// Counts a new task.
pub(crate) fn task_created(agent: Agent<'_>) {
    table::TASKS_CREATED.record(agent, &[], Add(1));
}

/// Records that a task has reached a terminal state, by its name in the protocol, such as `TASK_STATE_COMPLETED`. `duration`: since
/// its creation.
pub(crate) fn task_ended(agent: Agent<'_>, state: &'static str, duration: Duration) {
    table::TASKS_ENDED.record(agent, &[state], Add(1));
    table::TASK_DURATION.record(agent, &[state], Observe(duration.as_secs_f64()));
}

/// Records a successful commit of this many tasks, with events of this size.
pub(crate) fn record_commit(duration: Duration, tasks: usize, bytes: usize) {
    table::COMMIT_DURATION.record(None, &[], Observe(duration.as_secs_f64()));
    table::COMMIT_TASKS.record(None, &[], Observe(size(tasks)));
    table::COMMIT_BYTES.record(None, &[], Observe(size(bytes)));
}

/// Counts a commit that failed: `unavailable`, `rejected`, `stale` or `fault`.
pub(crate) fn commit_failed(kind: &'static str) {
    table::COMMIT_FAILURES.record(None, &[kind], Add(1));
}

/// Records a transfer of the write-ahead log to the database.
#[cfg(feature = "sqlite")]
pub(crate) fn checkpoint_ended(duration: Duration) {
    table::CHECKPOINT_DURATION.record(None, &[], Observe(duration.as_secs_f64()));
}

/// Records a sweep, and the numbers of tasks, logs, push configurations and idempotency keys that it deleted.
pub(crate) fn sweep_ended(duration: Duration, deleted: [u64; 4]) {
    table::SWEEP_DURATION.record(None, &[], Observe(duration.as_secs_f64()));
    for (what, count) in ["tasks", "logs", "push", "keys"].into_iter().zip(deleted) {
        table::SWEEP_DELETED.record(None, &[what], Add(count));
    }
}

/// Counts a task that was deleted for a new one, because of `tasks` or `tasks_per_owner`.
pub(crate) fn task_evicted(limit: &'static str) {
    table::STORE_EVICTED.record(None, &[limit], Add(1));
}

/// Records the sizes of the database, its write-ahead log and its free part in bytes, if the store has a file.
pub(crate) fn store_bytes(agent: Agent<'_>, [database, log, free]: [u64; 3]) {
    for (file, bytes) in [("db", database), ("wal", log), ("free", free)] {
        table::STORE_BYTES.record(agent, &[file], Set(number(bytes)));
    }
}

/// Records the number of stored tasks in a state, by its name in the protocol.
pub(crate) fn store_tasks(agent: Agent<'_>, state: &'static str, count: u64) {
    table::STORE_TASKS.record(agent, &[state], Set(number(count)));
}

/// Records the state of something that an agent needs. `last_success`: time of the last call that succeeded, if there was one.
pub(crate) fn dependency(agent: Agent<'_>, peer: &str, is_up: bool, last_success: Option<SystemTime>) {
    table::DEPENDENCY_UP.record(agent, &[peer], Set(f64::from(u8::from(is_up))));
    if let Some(since) = last_success.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()) {
        table::DEPENDENCY_SUCCESS.record(agent, &[peer], Set(since.as_secs_f64()));
    }
}

/// Records the state of a breaker: `closed`, `open` or `half_open`.
pub(crate) fn breaker(agent: Agent<'_>, peer: &str, state: &'static str) {
    for known in ["closed", "open", "half_open"] {
        table::DEPENDENCY_BREAKER.record(agent, &[known, peer], Set(f64::from(u8::from(known == state))));
    }
}

/// Records a call of a peer with all its retries. The results are those in the table.
pub(crate) fn outbound(agent: Agent<'_>, peer: &str, result: &'static str, duration: Duration, retries: u64) {
    table::OUTBOUND.record(agent, &[result, peer], Add(1));
    table::OUTBOUND_DURATION.record(agent, &[peer], Observe(duration.as_secs_f64()));
    table::OUTBOUND_RETRIES.record(agent, &[peer], Add(retries));
}

/// Counts tokens that a model reports. `direction`: `input` or `output`; `detail`: `all`, `cache_read` or `reasoning`.
#[cfg(feature = "openai")]
pub(crate) fn model_tokens(agent: Agent<'_>, direction: &'static str, detail: &'static str, count: u64) {
    table::MODEL_TOKENS.record(agent, &[direction, detail], Add(count));
}

/// Records the time from a request to the model to the first chunk of its answer.
#[cfg(feature = "openai")]
pub(crate) fn model_first_chunk(agent: Agent<'_>, duration: Duration) {
    table::MODEL_FIRST_CHUNK.record(agent, &[], Observe(duration.as_secs_f64()));
}

/// Counts an answer of a model by the reason that it reports for its end.
#[cfg(feature = "openai")]
pub(crate) fn model_finished(agent: Agent<'_>, reason: &str) {
    let known = ["stop", "length", "tool_calls", "content_filter"].into_iter().find(|known| *known == reason);
    table::MODEL_FINISHED.record(agent, &[known.unwrap_or("other")], Add(1));
}

/// Records the call of a tool of a server: `ok`, `tool_error`, `error`, `timeout` or `denied`.
#[cfg(feature = "mcp")]
pub(crate) fn tool_called(agent: Agent<'_>, server: &str, result: &'static str, duration: Duration) {
    table::TOOL_CALLS.record(agent, &[result, server], Add(1));
    table::TOOL_DURATION.record(agent, &[result, server], Observe(duration.as_secs_f64()));
}

/// Adds to the number of running processes of an agent.
#[cfg(all(feature = "exec", unix))]
pub(crate) fn exec_processes(agent: Agent<'_>, count: i8) {
    table::EXEC_PROCESSES.record(agent, &[], Move(count));
}

/// Counts a process of an agent that has ended. `None`: by a signal.
#[cfg(all(feature = "exec", unix))]
pub(crate) fn exec_exited(agent: Agent<'_>, code: Option<i32>) {
    let code = match code {
        None => "signal",
        Some(0) => "0",
        Some(1) => "1",
        Some(2) => "2",
        Some(126) => "126",
        Some(127) => "127",
        Some(_) => "other",
    };
    table::EXEC_EXITS.record(agent, &[code], Add(1));
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
        table::LIMIT_USED.record(agent, &[self.name], Set(number(self.used)));
        if let Some(max) = self.max {
            table::LIMIT_MAX.record(agent, &[self.name], Set(number(max)));
        }
    }
}

/// Counts a request or a change that is rejected for a limit.
pub(crate) fn limit_rejected(limit: &'static str) {
    table::LIMIT_REJECTIONS.record(None, &[limit], Add(1));
}

/// Counts a request that was not authenticated.
pub(crate) fn authentication_failed(method: &'static str, reason: &'static str) {
    table::AUTH_FAILURES.record(None, &[method, reason], Add(1));
}

/// Adds to the number of open connections.
pub(crate) fn add_connections(count: i8) {
    table::CONNECTIONS.record(None, &[], Move(count));
    table::LIMIT_USED.record(None, &["connections"], Move(count));
}

/// Records the maximum number of open connections, over all listen addresses.
pub(crate) fn max_connections(count: usize) {
    table::LIMIT_MAX.record(None, &["connections"], Set(size(count)));
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
        table::TURNS.record(agent, &[], Set(size(self.turns)));
        table::QUEUED_TURNS.record(agent, &[], Set(size(self.queued_turns)));
        table::QUEUED_MESSAGES.record(agent, &[], Set(size(self.queued_messages)));
        table::UNCOMMITTED_TASKS.record(agent, &[], Set(size(self.uncommitted_tasks)));
        for (state, count) in &self.live_tasks {
            table::LIVE_TASKS.record(agent, &[state], Set(size(*count)));
        }
    }
}

/// Records the version, the revision, the compiler and the features of the program.
#[cfg(feature = "cli")]
pub(crate) fn record_build(build: [&str; 4]) {
    table::BUILD_INFO.record(None, &build, Set(1.0));
}

/// Records whether the server accepts work, and whether it stops.
pub(crate) fn record_readiness(is_ready: bool, is_draining: bool) {
    table::READY.record(None, &[], Set(f64::from(u8::from(is_ready))));
    table::DRAINING.record(None, &[], Set(f64::from(u8::from(is_draining))));
}

/// Records the counters of the delivery of push notifications since the start, its lag, and the number of deliveries that are due.
#[cfg(feature = "push")]
pub(crate) fn record_push((successes, failures, dead_letters): (u64, u64, u64), lag: Duration, due: u64) {
    table::PUSH_ATTEMPTS.record(None, &["success"], Count(successes));
    table::PUSH_ATTEMPTS.record(None, &["failure"], Count(failures));
    table::PUSH_DEAD_LETTERS.record(None, &[], Count(dead_letters));
    table::PUSH_LAG.record(None, &[], Set(lag.as_secs_f64()));
    table::PUSH_DUE.record(None, &[], Set(number(due)));
}

/// Counts spans by what became of them: `exported`, `dropped` or `failed`.
#[cfg(feature = "otlp")]
pub(crate) fn otlp_spans(result: &'static str, count: u64) {
    table::OTLP_SPANS.record(None, &[result], Add(count));
}

/// Records the number of spans that wait to be sent.
#[cfg(feature = "otlp")]
pub(crate) fn otlp_queue(count: usize) {
    table::OTLP_QUEUE.record(None, &[], Set(size(count)));
}

/// Converts a number of items or bytes. Exact up to 2^53.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "nothing needs to distinguish more")]
pub(super) fn number(count: u64) -> f64 {
    count as f64
}

/// Converts a size in this process.
fn size(count: usize) -> f64 {
    number(u64::try_from(count).unwrap_or(u64::MAX))
}
