//! Recording: a function for each event of a server that changes metrics. `agent` is the name of the agent in a server with several.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

#[cfg(feature = "cli")]
use super::BUILD_INFO;
use super::{
    AUTH_FAILURES, CALL_DURATION, CALLS, CHECKPOINT_DURATION, COMMIT_BYTES, COMMIT_DURATION, COMMIT_FAILURES,
    COMMIT_TASKS, CONNECTIONS, DEPENDENCY_BREAKER, DEPENDENCY_SUCCESS, DEPENDENCY_UP, DRAINING, EXEC_EXITS,
    EXEC_PROCESSES, FIRST_EVENT, LIMIT_MAX, LIMIT_REJECTIONS, LIMIT_USED, LIVE_TASKS, MODEL_FINISHED,
    MODEL_FIRST_CHUNK, MODEL_TOKENS, OTLP_QUEUE, OTLP_SPANS, OUTBOUND, OUTBOUND_DURATION, OUTBOUND_RETRIES,
    QUEUED_MESSAGES, QUEUED_TURNS, READER_LAG, READY, RESPONSES, STORE_BYTES, STORE_EVICTED, STORE_TASKS,
    STREAM_DURATION, STREAM_EVENTS, STREAMS, SWEEP_DELETED, SWEEP_DURATION, TASK_DURATION, TASKS_CREATED, TASKS_ENDED,
    TOOL_CALLS, TOOL_DURATION, TURN_DURATION, TURN_WAIT, TURNS, TURNS_ENDED, TURNS_STARTED, UNCOMMITTED_TASKS,
};
#[cfg(feature = "push")]
use super::{PUSH_ATTEMPTS, PUSH_DEAD_LETTERS, PUSH_DUE, PUSH_LAG};

/// Name of the agent in a server with several.
type Agent<'a> = Option<&'a Arc<str>>;

/// Counts an HTTP response.
pub(crate) fn count_response(binding: &'static str, status: http::StatusCode) {
    RESPONSES.add(None, &[binding, status.as_str()], 1);
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
        CALLS.add(self.agent.as_ref(), &[self.operation, self.binding, self.version, code], 1);
    }

    /// Records the duration of a call.
    pub(crate) fn replied(&self, duration: Duration) {
        CALL_DURATION.observe(self.agent.as_ref(), &self.labels(), duration.as_secs_f64());
    }

    /// Counts an event of a stream. `first` is the time since the call for the first event.
    pub(crate) fn sent_event(&self, first: Option<Duration>) {
        STREAM_EVENTS.add(self.agent.as_ref(), &self.labels(), 1);
        if let Some(duration) = first {
            FIRST_EVENT.observe(self.agent.as_ref(), &self.labels(), duration.as_secs_f64());
        }
    }

    /// Adds to the number of open streams.
    pub(crate) fn add_streams(&self, count: i8) {
        STREAMS.change(self.agent.as_ref(), &self.labels(), count);
    }

    /// Records the end of a stream: `completed`, `client_gone`, `max_age`, `slow` or `drain`.
    pub(crate) fn stream_ended(&self, end: &'static str, duration: Duration) {
        STREAM_DURATION.observe(self.agent.as_ref(), &[end], duration.as_secs_f64());
    }
}

/// Records how many committed events a reader has not read yet.
pub(crate) fn record_reader_lag(events: u64) {
    READER_LAG.observe(None, &[], number(events));
}

/// Counts an accepted turn: `new`, `follow_up` or `recovered`.
pub(crate) fn turn_started(agent: Agent<'_>, kind: &'static str) {
    TURNS_STARTED.add(agent, &[kind], 1);
}

/// Records the end of a turn. `reason` is `none` unless it failed.
pub(crate) fn turn_ended(agent: Agent<'_>, outcome: &'static str, reason: &'static str, duration: Duration) {
    TURNS_ENDED.add(agent, &[outcome, reason], 1);
    TURN_DURATION.observe(agent, &[outcome], duration.as_secs_f64());
}

/// Records that accepted work has waited: a `turn` for `limits.turns`, a `message` for a busy agent, or a turn for a process (`exec`).
pub(crate) fn turn_waited(agent: Agent<'_>, queue: &'static str, duration: Duration) {
    TURN_WAIT.observe(agent, &[queue], duration.as_secs_f64());
}

/// Counts a new task.
pub(crate) fn task_created(agent: Agent<'_>) {
    TASKS_CREATED.add(agent, &[], 1);
}

/// Records that a task has reached a terminal state, by its name in the protocol, such as `TASK_STATE_COMPLETED`. `duration`: since
/// its creation.
pub(crate) fn task_ended(agent: Agent<'_>, state: &'static str, duration: Duration) {
    TASKS_ENDED.add(agent, &[state], 1);
    TASK_DURATION.observe(agent, &[state], duration.as_secs_f64());
}

/// Records a successful commit of this many tasks, with events of this size.
pub(crate) fn record_commit(duration: Duration, tasks: usize, bytes: usize) {
    COMMIT_DURATION.observe(None, &[], duration.as_secs_f64());
    COMMIT_TASKS.observe(None, &[], size(tasks));
    COMMIT_BYTES.observe(None, &[], size(bytes));
}

/// Counts a commit that failed: `unavailable`, `rejected`, `stale` or `fault`.
pub(crate) fn commit_failed(kind: &'static str) {
    COMMIT_FAILURES.add(None, &[kind], 1);
}

/// Records a transfer of the write-ahead log to the database.
pub(crate) fn checkpoint_ended(duration: Duration) {
    CHECKPOINT_DURATION.observe(None, &[], duration.as_secs_f64());
}

/// Records a sweep, and the numbers of tasks, logs, push configurations and idempotency keys that it deleted.
pub(crate) fn sweep_ended(duration: Duration, deleted: [u64; 4]) {
    SWEEP_DURATION.observe(None, &[], duration.as_secs_f64());
    for (what, count) in ["tasks", "logs", "push", "keys"].into_iter().zip(deleted) {
        SWEEP_DELETED.add(None, &[what], count);
    }
}

/// Counts a task that was deleted for a new one, because of `tasks` or `tasks_per_owner`.
pub(crate) fn task_evicted(limit: &'static str) {
    STORE_EVICTED.add(None, &[limit], 1);
}

/// Records the sizes of the database, its write-ahead log and its free part in bytes, if the store has a file.
pub(crate) fn store_bytes(agent: Agent<'_>, [database, log, free]: [u64; 3]) {
    for (file, bytes) in [("db", database), ("wal", log), ("free", free)] {
        STORE_BYTES.set(agent, &[file], number(bytes));
    }
}

/// Records the number of stored tasks in a state, by its name in the protocol.
pub(crate) fn store_tasks(agent: Agent<'_>, state: &'static str, count: u64) {
    STORE_TASKS.set(agent, &[state], number(count));
}

/// Records the state of something that an agent needs. `last_success`: time of the last call that succeeded, if there was one.
pub(crate) fn dependency(agent: Agent<'_>, peer: &str, is_up: bool, last_success: Option<SystemTime>) {
    DEPENDENCY_UP.set(agent, &[peer], f64::from(u8::from(is_up)));
    if let Some(since) = last_success.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()) {
        DEPENDENCY_SUCCESS.set(agent, &[peer], since.as_secs_f64());
    }
}

/// Records the state of a breaker: `closed`, `open` or `half_open`.
pub(crate) fn breaker(agent: Agent<'_>, peer: &str, state: &'static str) {
    for known in ["closed", "open", "half_open"] {
        DEPENDENCY_BREAKER.set(agent, &[known, peer], f64::from(u8::from(known == state)));
    }
}

/// Records a call of a peer with all its retries. The results are those in the table.
pub(crate) fn outbound(agent: Agent<'_>, peer: &str, result: &'static str, duration: Duration, retries: u64) {
    OUTBOUND.add(agent, &[result, peer], 1);
    OUTBOUND_DURATION.observe(agent, &[peer], duration.as_secs_f64());
    OUTBOUND_RETRIES.add(agent, &[peer], retries);
}

/// Counts tokens that a model reports. `direction`: `input` or `output`; `detail`: `all`, `cache_read` or `reasoning`.
pub(crate) fn model_tokens(agent: Agent<'_>, direction: &'static str, detail: &'static str, count: u64) {
    MODEL_TOKENS.add(agent, &[direction, detail], count);
}

/// Records the time from a request to the model to the first chunk of its answer.
pub(crate) fn model_first_chunk(agent: Agent<'_>, duration: Duration) {
    MODEL_FIRST_CHUNK.observe(agent, &[], duration.as_secs_f64());
}

/// Counts an answer of a model by the reason that it reports for its end.
pub(crate) fn model_finished(agent: Agent<'_>, reason: &str) {
    let known = ["stop", "length", "tool_calls", "content_filter"].into_iter().find(|known| *known == reason);
    MODEL_FINISHED.add(agent, &[known.unwrap_or("other")], 1);
}

/// Records the call of a tool of a server: `ok`, `tool_error`, `error`, `timeout` or `denied`.
pub(crate) fn tool_called(agent: Agent<'_>, server: &str, result: &'static str, duration: Duration) {
    TOOL_CALLS.add(agent, &[result, server], 1);
    TOOL_DURATION.observe(agent, &[result, server], duration.as_secs_f64());
}

/// Adds to the number of running processes of an agent.
pub(crate) fn exec_processes(agent: Agent<'_>, count: i8) {
    EXEC_PROCESSES.change(agent, &[], count);
}

/// Counts a process of an agent that has ended. `None`: by a signal.
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
    EXEC_EXITS.add(agent, &[code], 1);
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
        LIMIT_USED.set(agent, &[self.name], number(self.used));
        if let Some(max) = self.max {
            LIMIT_MAX.set(agent, &[self.name], number(max));
        }
    }
}

/// Counts a request or a change that is rejected for a limit.
pub(crate) fn limit_rejected(limit: &'static str) {
    LIMIT_REJECTIONS.add(None, &[limit], 1);
}

/// Counts a request that was not authenticated.
pub(crate) fn authentication_failed(method: &'static str, reason: &'static str) {
    AUTH_FAILURES.add(None, &[method, reason], 1);
}

/// Adds to the number of open connections.
pub(crate) fn add_connections(count: i8) {
    CONNECTIONS.change(None, &[], count);
    LIMIT_USED.change(None, &["connections"], count);
}

/// Records the maximum number of open connections, over all listen addresses.
pub(crate) fn max_connections(count: usize) {
    LIMIT_MAX.set(None, &["connections"], size(count));
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
        TURNS.set(agent, &[], size(self.turns));
        QUEUED_TURNS.set(agent, &[], size(self.queued_turns));
        QUEUED_MESSAGES.set(agent, &[], size(self.queued_messages));
        UNCOMMITTED_TASKS.set(agent, &[], size(self.uncommitted_tasks));
        for (state, count) in &self.live_tasks {
            LIVE_TASKS.set(agent, &[state], size(*count));
        }
    }
}

/// Records the version, the revision, the compiler and the features of the program.
#[cfg(feature = "cli")]
pub(crate) fn record_build(build: [&str; 4]) {
    BUILD_INFO.set(None, &build, 1.0);
}

/// Records whether the server accepts work, and whether it stops.
pub(crate) fn record_readiness(is_ready: bool, is_draining: bool) {
    READY.set(None, &[], f64::from(u8::from(is_ready)));
    DRAINING.set(None, &[], f64::from(u8::from(is_draining)));
}

/// Records the counters of the delivery of push notifications since the start, and its lag.
#[cfg(feature = "push")]
pub(crate) fn record_push((successes, failures, dead_letters): (u64, u64, u64), lag: Duration) {
    PUSH_ATTEMPTS.set_count(None, &["success"], successes);
    PUSH_ATTEMPTS.set_count(None, &["failure"], failures);
    PUSH_DEAD_LETTERS.set_count(None, &[], dead_letters);
    PUSH_LAG.set(None, &[], lag.as_secs_f64());
}

/// Records the number of deliveries that are due or in progress.
#[cfg(feature = "push")]
pub(crate) fn push_due(count: usize) {
    PUSH_DUE.set(None, &[], size(count));
}

/// Counts spans by what became of them: `exported`, `dropped` or `failed`.
pub(crate) fn otlp_spans(result: &'static str, count: u64) {
    OTLP_SPANS.add(None, &[result], count);
}

/// Records the number of spans that wait to be sent.
pub(crate) fn otlp_queue(count: usize) {
    OTLP_QUEUE.set(None, &[], size(count));
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
