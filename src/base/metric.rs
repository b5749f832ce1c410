//! Metrics of a server: the table of all metrics, and recording through the facade of the crate `metrics`. The table is the source
//! of the descriptions, of the table in `docs/operations.md`, and of the names and labels that dashboard and alerts may use.
//!
//! Nothing is recorded until a server has [metrics](crate::server::Server::metrics). No label is an owner, a tenant or an id: the
//! number of time series is bounded by the API, the configuration and the number of agents.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, IntoF64, Key, Label, Unit};

pub(crate) use self::process::record_process;

mod process;

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A number that grows.
    Counter,
    /// A number that changes.
    Gauge,
    /// A distribution, with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// Values of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    /// Values from this list. Another value becomes `other`, if the list has it.
    OneOf(&'static [&'static str]),
    /// Numbers or configured names, at most this many for an agent.
    AtMost(usize),
}

/// Description of a metric, and its series that have no configured label.
#[derive(Debug)]
pub(crate) struct Metric {
    /// Name in Prometheus, with its unit as the ending.
    pub(crate) name: &'static str,
    /// Name in OpenTelemetry.
    #[cfg_attr(not(any(test, feature = "otlp")), expect(dead_code, reason = "only the export over OTLP uses it"))]
    pub(crate) otlp: &'static str,
    /// Kind of the metric.
    pub(crate) kind: Kind,
    /// Unit of its values.
    pub(crate) unit: Unit,
    /// The series have the label `agent` too, in a server with several agents.
    pub(crate) has_agent: bool,
    /// Labels with their values.
    pub(crate) labels: &'static [(&'static str, Values)],
    /// Description, in Markdown.
    pub(crate) description: &'static str,
    /// Series by the index of their label values.
    series: OnceLock<Box<[OnceLock<Series>]>>,
}

/// Registered series. Only the handle for its kind has an effect.
#[derive(Debug)]
struct Series {
    counter: Counter,
    gauge: Gauge,
    histogram: Histogram,
}

/// Name of the agent in a server with several.
pub(crate) type Agent<'a> = Option<&'a Arc<str>>;

/// Set once a server has metrics.
static IS_ENABLED: AtomicBool = AtomicBool::new(false);

/// Number of agents of the largest server.
static AGENTS: AtomicUsize = AtomicUsize::new(1);

/// Maximum number of agents that the series of histograms distinguish.
const MAX_AGENTS_OF_HISTOGRAMS: usize = 20;

/// Describes all metrics to the recorder of the process, and starts to record.
pub(crate) fn enable() {
    for Metric { name, kind, unit, description, .. } in METRICS {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *unit, *description),
            Kind::Gauge => metrics::describe_gauge!(*name, *unit, *description),
            Kind::Histogram(_) => metrics::describe_histogram!(*name, *unit, *description),
        }
    }
    IS_ENABLED.store(true, Relaxed);
    // The first failure is then an increase, and not a new series.
    for metric in METRICS.iter().filter(|metric| metric.kind == Kind::Counter && !metric.has_agent) {
        metric.fixed_values().iter().for_each(|values| metric.add(None, values, 0));
    }
}

/// Returns true once a server has metrics.
pub(crate) fn is_enabled() -> bool {
    IS_ENABLED.load(Relaxed)
}

/// Sets the number of agents of a server. Above 20, histograms do not distinguish them.
pub(crate) fn set_agents(count: usize) {
    AGENTS.fetch_max(count, Relaxed);
}

impl Metric {
    /// Adds to a counter. `values` are those of the labels, in order.
    pub(crate) fn add(&'static self, agent: Agent<'_>, values: &[&str], count: u64) {
        self.record(agent, values, |series| series.counter.increment(count));
    }

    /// Sets a counter that is counted elsewhere.
    pub(crate) fn count(&'static self, agent: Agent<'_>, values: &[&str], count: u64) {
        self.record(agent, values, |series| series.counter.absolute(count));
    }

    /// Sets a gauge.
    pub(crate) fn set(&'static self, agent: Agent<'_>, values: &[&str], value: impl IntoF64) {
        self.record(agent, values, |series| series.gauge.set(value));
    }

    /// Adds to a gauge.
    pub(crate) fn adjust(&'static self, agent: Agent<'_>, values: &[&str], by: i8) {
        self.record(agent, values, |series| series.gauge.increment(by));
    }

    /// Adds a value to a histogram. Durations are in seconds.
    pub(crate) fn observe(&'static self, agent: Agent<'_>, values: &[&str], value: impl IntoF64) {
        self.record(agent, values, |series| series.histogram.record(value));
    }

    /// Records a change.
    fn record(&'static self, agent: Agent<'_>, values: &[&str], change: impl FnOnce(&Series)) {
        if !is_enabled() {
            return;
        }
        debug_assert!(self.has_agent || agent.is_none(), "{}: agent", self.name);
        let agent = agent
            .filter(|_| !matches!(self.kind, Kind::Histogram(_)) || AGENTS.load(Relaxed) <= MAX_AGENTS_OF_HISTOGRAMS);
        if let (None, Some(at)) = (agent, self.index(values)) {
            let all = self.series.get_or_init(|| self.fixed_values().iter().map(|_| OnceLock::new()).collect());
            if let Some(series) = all.get(at) {
                return change(series.get_or_init(|| self.register(None, values)));
            }
        }
        change(&self.register(agent, values));
    }

    /// Values of the labels of all series of labels with fixed values.
    fn fixed_values(&self) -> Vec<Vec<&'static str>> {
        self.labels.iter().fold(vec![Vec::new()], |before, (_, values)| {
            let all: &[&str] = if let Values::OneOf(all) = values { all } else { &[] };
            before.iter().flat_map(|before| all.iter().map(|value| [&before[..], &[*value]].concat())).collect()
        })
    }

    /// Returns the number of the series with these values. `None` if a label has no fixed values.
    fn index(&self, values: &[&str]) -> Option<usize> {
        debug_assert_eq!(self.labels.len(), values.len(), "{}: labels", self.name);
        self.labels.iter().zip(values).try_fold(0, |before, ((label, allowed), value)| {
            let Values::OneOf(all) = allowed else { return None };
            let at = [*value, "other"].iter().find_map(|value| all.iter().position(|allowed| allowed == value));
            debug_assert!(at.is_some(), "{}: `{label}` is {value}", self.name);
            Some(before * all.len() + at?)
        })
    }

    fn register(&self, agent: Agent<'_>, values: &[&str]) -> Series {
        let label = |((name, allowed), value): (&(&'static str, Values), &&str)| match allowed {
            Values::OneOf(all) => {
                let known = all.iter().find(|known| *known == value);
                Label::from_static_parts(name, known.copied().unwrap_or("other"))
            }
            Values::AtMost(_) => Label::new(*name, (*value).to_owned()),
        };
        let agent = agent.map(|agent| Label::new("agent", Arc::clone(agent)));
        let labels: Vec<_> = self.labels.iter().zip(values).map(label).chain(agent).collect();
        let key = Key::from_parts(self.name, labels);
        let none = Series { counter: Counter::noop(), gauge: Gauge::noop(), histogram: Histogram::noop() };
        metrics::with_recorder(|to| match self.kind {
            Kind::Counter => Series { counter: to.register_counter(&key, &METADATA), ..none },
            Kind::Gauge => Series { gauge: to.register_gauge(&key, &METADATA), ..none },
            Kind::Histogram(_) => Series { histogram: to.register_histogram(&key, &METADATA), ..none },
        })
    }
}

/// Records a call of a peer with all its retries. The results are those in the table.
pub(crate) fn outbound(agent: Agent<'_>, peer: &str, result: &'static str, duration: Duration, retries: u64) {
    OUTBOUND.add(agent, &[result, peer], 1);
    OUTBOUND_DURATION.observe(agent, &[peer], duration);
    OUTBOUND_RETRIES.add(agent, &[peer], retries);
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

/// Adds to the number of open connections.
pub(crate) fn add_connections(count: i8) {
    CONNECTIONS.adjust(None, &[], count);
    LIMIT_USED.adjust(None, &["connections"], count);
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
    /// Time since the last renewal of the lease, in a shared store.
    pub(crate) lease_age: Option<Duration>,
}

impl EngineGauges {
    /// Records the gauges.
    pub(crate) fn record(&self, agent: Agent<'_>) {
        TURNS.set(agent, &[], number(self.turns));
        QUEUED_TURNS.set(agent, &[], number(self.queued_turns));
        QUEUED_MESSAGES.set(agent, &[], number(self.queued_messages));
        UNCOMMITTED_TASKS.set(agent, &[], number(self.uncommitted_tasks));
        for (state, count) in &self.live_tasks {
            LIVE_TASKS.set(agent, &[state], number(*count));
        }
        if let Some(age) = self.lease_age {
            LEASE_AGE.set(agent, &[], age);
            // The first one is an increase from zero.
            CLAIMED_TASKS.add(agent, &[], 0);
            DEAD_REPLICAS.add(agent, &[], 0);
        }
    }
}

/// Converts a number of items or bytes. Exact up to 2^53.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "nothing needs to distinguish more")]
pub(crate) fn number(count: impl TryInto<u64>) -> f64 {
    count.try_into().unwrap_or(u64::MAX) as f64
}

/// Origin of the metrics.
static METADATA: metrics::Metadata<'_> =
    metrics::Metadata::new(module_path!(), metrics::Level::INFO, Some(module_path!()));

/// Upper bounds of durations of calls, commits and the like, in seconds.
pub(crate) const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];

/// Upper bounds of durations of turns, streams and calls of others, in seconds.
const LONG_SECONDS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0];

/// Upper bounds of durations of tasks, in seconds.
const TASK_SECONDS: [f64; 10] = [0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0];

/// Upper bounds of numbers of tasks and events.
const COUNTS: [f64; 10] = [0.0, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 65536.0];

/// Upper bounds of sizes in bytes.
const BYTES: [f64; 8] = [256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 16_777_216.0];

/// Writes the values of a label: words without commas, which rustfmt leaves in a few lines.
macro_rules! words {
    ($($word:literal)*) => { Values::OneOf(&[$($word),*]) };
}

/// Names of the RPCs.
const OPERATION: Values = words![
    "SendMessage" "SendStreamingMessage" "GetTask" "ListTasks" "CancelTask" "SubscribeToTask"
    "CreateTaskPushNotificationConfig" "GetTaskPushNotificationConfig" "ListTaskPushNotificationConfigs"
    "GetExtendedAgentCard" "DeleteTaskPushNotificationConfig"
];

const BINDING: Values = words!["grpc" "http" "jsonrpc" "in-process"];
const VERSION: Values = words!["1.0" "0.3"];

/// Names of gRPC codes.
const CODE: Values = words![
    "OK" "CANCELLED" "UNKNOWN" "INVALID_ARGUMENT" "DEADLINE_EXCEEDED" "NOT_FOUND" "ALREADY_EXISTS" "PERMISSION_DENIED"
    "RESOURCE_EXHAUSTED" "FAILED_PRECONDITION" "ABORTED" "OUT_OF_RANGE" "UNIMPLEMENTED" "INTERNAL" "UNAVAILABLE"
    "DATA_LOSS" "UNAUTHENTICATED"
];

const STATE: Values = words![
    "TASK_STATE_SUBMITTED" "TASK_STATE_WORKING" "TASK_STATE_COMPLETED" "TASK_STATE_FAILED" "TASK_STATE_CANCELED"
    "TASK_STATE_INPUT_REQUIRED" "TASK_STATE_REJECTED" "TASK_STATE_AUTH_REQUIRED"
];

const TERMINAL_STATE: Values = words![
    "TASK_STATE_COMPLETED" "TASK_STATE_FAILED" "TASK_STATE_CANCELED" "TASK_STATE_REJECTED"
];

/// Ends of turns.
const OUTCOME: Values = words![
    "completed" "failed" "canceled" "rejected" "input_required" "auth_required" "reply" "abandoned"
];

/// Why turns fail.
const REASON: Values = words![
    "none" "agent" "error" "panic" "deadline" "idle" "limit" "unavailable" "breaker_open" "credentials" "tool_rounds"
    "exit_code"
];

/// Something that an agent needs: a configured name, never a host of a caller.
const PEER: Values = Values::AtMost(24);

/// Results of calls of a peer.
const OUTBOUND_RESULT: Values = words![
    "ok" "connect" "timeout" "status_4xx" "status_5xx" "protocol" "canceled" "rejected"
];

/// Limits whose use is recorded: names of configuration keys.
const USED_LIMIT: Values = words![
    "turns" "queued_turns" "streams" "calls" "connections" "incoming_bytes" "outgoing_bytes" "live_bytes" "tasks"
    "store.max_size" "open_files"
];

/// Names of limits in errors.
const LIMIT: Values = words![
    "artifact_bytes" "artifacts" "batch_bytes" "batch_calls" "body_bytes" "call_rate_per_owner" "calls"
    "calls_per_owner" "connections_per_peer" "context_bytes" "decoded_bytes" "event_bytes" "events"
    "failed_authentications" "header_bytes" "health_bytes" "health_watches" "hops" "id_bytes" "incoming_bytes"
    "json_depth" "live_bytes" "outgoing_bytes" "parts" "push_configs" "push_configs_per_owner" "queued_messages"
    "queued_turns" "queued_turns_per_owner" "references" "request_rate_per_peer" "store.max_size" "stream_max_age"
    "streams" "streams_per_owner" "streams_per_task" "task_bytes" "tasks" "tasks_per_owner" "turns" "turns_per_owner"
    "uri_bytes" "webhook_lookups" "webhook_lookups_per_owner"
];

/// Declares the metrics, one per line: constant, kind, unit, name, name in OpenTelemetry, labels, description. `agent` is the label
/// of a server with several agents.
macro_rules! metrics {
    ($($constant:ident: $kind:expr, $unit:ident = $name:literal $otlp:literal
        [$($label:ident $(= $values:expr)?),*], $description:literal;)*) => {
        $(pub(crate) static $constant: Metric = Metric {
            name: $name,
            otlp: $otlp,
            kind: $kind,
            unit: Unit::$unit,
            has_agent: false $(|| matches!(stringify!($label).as_bytes(), b"agent"))*,
            labels: &[$($((stringify!($label), $values),)?)*],
            description: $description,
            series: OnceLock::new(),
        };)*

        /// All metrics.
        pub(crate) static METRICS: &[&Metric] = &[$(&$constant),*];
    };
}

metrics! {
    RESPONSES: Kind::Counter, Count = "a2a_http_responses_total" "a2a.http.responses" [binding = words!["grpc" "http" "jsonrpc"], status = Values::AtMost(20)], "HTTP responses. Includes those to requests that were rejected before they became a call.";
    CALLS: Kind::Counter, Count = "a2a_calls_total" "a2a.server.calls" [operation = OPERATION, binding = BINDING, version = VERSION, code = CODE, agent], "Calls that have ended, with the gRPC code of the result. `CANCELLED`: the client has gone.";
    CALL_DURATION: Kind::Histogram(&SECONDS), Seconds = "a2a_call_duration_seconds" "a2a.server.call.duration" [operation = OPERATION, binding = BINDING, agent], "Duration of calls. The duration of a stream is not included.";
    FIRST_EVENT: Kind::Histogram(&SECONDS), Seconds = "a2a_stream_first_event_seconds" "a2a.stream.first_event" [operation = OPERATION, binding = BINDING, agent], "Time from a streaming call to its first event.";
    STREAMS: Kind::Gauge, Count = "a2a_streams" "a2a.stream.open" [operation = OPERATION, binding = BINDING, agent], "Open streams.";
    STREAM_EVENTS: Kind::Counter, Count = "a2a_stream_events_total" "a2a.stream.events" [operation = OPERATION, binding = BINDING, agent], "Events sent on streams.";
    READER_LAG: Kind::Histogram(&COUNTS), Count = "a2a_stream_lag_events" "a2a.stream.lag" [], "Committed events that a stream has not sent yet, each time it continues to read.";
    STREAM_DURATION: Kind::Histogram(&LONG_SECONDS), Seconds = "a2a_stream_duration_seconds" "a2a.stream.duration" [end = words!["completed" "client_gone" "slow" "max_age" "drain" "error"], agent], "Duration of streams. `client_gone`: the client has closed it, and `slow`: it had not taken an event for 30 s. `drain`: the server stops, or another one has the task.";
    TURNS_STARTED: Kind::Counter, Count = "a2a_turns_started_total" "a2a.turns.started" [kind = words!["new" "follow_up" "recovered"], agent], "Turns that were accepted: of a new task, of a further message, or of an earlier process.";
    TURNS_ENDED: Kind::Counter, Count = "a2a_turns_ended_total" "a2a.turns.ended" [outcome = OUTCOME, reason = REASON, agent], "Turns that have ended. `agent`: the agent reported the failure itself. `abandoned`: the server stopped, or another one has the task.";
    TURN_DURATION: Kind::Histogram(&LONG_SECONDS), Seconds = "a2a_turn_duration_seconds" "gen_ai.invoke_agent.duration" [outcome = OUTCOME, agent], "Duration of turns, from their begin to their end.";
    TURN_WAIT: Kind::Histogram(&LONG_SECONDS), Seconds = "a2a_turn_wait_seconds" "a2a.turn.wait" [queue = words!["turn" "message" "exec"], agent], "Time that accepted work has waited: a turn for `limits.turns`, a message for a busy agent, a turn for a process.";
    TASKS_CREATED: Kind::Counter, Count = "a2a_tasks_created_total" "a2a.tasks.created" [agent], "Tasks that were created.";
    TASKS_ENDED: Kind::Counter, Count = "a2a_tasks_ended_total" "a2a.tasks.ended" [state = TERMINAL_STATE, agent], "Tasks that have reached a terminal state.";
    TASK_DURATION: Kind::Histogram(&TASK_SECONDS), Seconds = "a2a_task_duration_seconds" "a2a.task.duration" [state = TERMINAL_STATE, agent], "Time from the creation of a task to its terminal state, including the time that it waited for its client.";
    TURNS: Kind::Gauge, Count = "a2a_turns" "a2a.turns" [agent], "Running turns.";
    QUEUED_TURNS: Kind::Gauge, Count = "a2a_queued_turns" "a2a.turns.queued" [agent], "New turns that wait for a running one to end.";
    QUEUED_MESSAGES: Kind::Gauge, Count = "a2a_queued_messages" "a2a.messages.queued" [agent], "Messages that wait for the next turn of their task.";
    UNCOMMITTED_TASKS: Kind::Gauge, Count = "a2a_uncommitted_tasks" "a2a.tasks.uncommitted" [agent], "Tasks with changes that wait for a commit.";
    LIVE_TASKS: Kind::Gauge, Count = "a2a_live_tasks" "a2a.tasks.live" [state = STATE, agent], "Tasks in memory, because they run or are read.";
    COMMIT_DURATION: Kind::Histogram(&SECONDS), Seconds = "a2a_commit_duration_seconds" "a2a.store.commit.duration" [], "Duration of the commits to the store that succeeded. Each has the changes of one or more tasks.";
    COMMIT_TASKS: Kind::Histogram(&COUNTS), Count = "a2a_commit_tasks" "a2a.store.commit.tasks" [], "Tasks that changed in a commit.";
    COMMIT_BYTES: Kind::Histogram(&BYTES), Bytes = "a2a_commit_bytes" "a2a.store.commit.size" [], "Size of the events of a commit, encoded in protobuf.";
    COMMIT_FAILURES: Kind::Counter, Count = "a2a_commit_failures_total" "a2a.store.commit.failures" [kind = words!["unavailable" "rejected" "stale" "fault"]], "Commits that failed: the store did not respond and they are retried, it rejected a change, another server has the task, or the store has a fault.";
    STORE_BYTES: Kind::Gauge, Bytes = "a2a_store_bytes" "a2a.store.size" [file = words!["db" "wal" "free"], agent], "Size of the database, of its write-ahead log, and of the part of the database that is free.";
    STORE_TASKS: Kind::Gauge, Count = "a2a_store_tasks" "a2a.store.tasks" [state = STATE, agent], "Stored tasks.";
    CHECKPOINT_DURATION: Kind::Histogram(&SECONDS), Seconds = "a2a_store_checkpoint_seconds" "a2a.store.checkpoint.duration" [], "Duration of the transfers of the write-ahead log to the database.";
    SWEEP_DURATION: Kind::Histogram(&SECONDS), Seconds = "a2a_sweep_seconds" "a2a.store.sweep.duration" [], "Duration of the sweeps that delete expired data.";
    SWEEP_DELETED: Kind::Counter, Count = "a2a_sweep_deleted_total" "a2a.store.sweep.deleted" [what = words!["tasks" "logs" "push" "keys"]], "Expired tasks, logs, push configurations and idempotency keys that were deleted.";
    STORE_EVICTED: Kind::Counter, Count = "a2a_store_evicted_total" "a2a.store.evicted" [limit = words!["tasks" "tasks_per_owner"]], "Tasks that were deleted for a new one, by the limit that was reached.";
    STORE_CONNECTIONS: Kind::Gauge, Count = "a2a_store_connections" "a2a.store.connections" [agent], "Open connections to a PostgreSQL database: six, and one for notifications. Fewer: the database is not reached.";
    STATEMENT_DURATION: Kind::Histogram(&SECONDS), Seconds = "a2a_statement_seconds" "a2a.store.statement.duration" [], "Duration of the short statements of a PostgreSQL database: commits, reads, and those of replicas.";
    LEASE_AGE: Kind::Gauge, Seconds = "a2a_lease_age_seconds" "a2a.cluster.lease.age" [agent], "Time since the server has renewed its lease, if servers share a database. From `cluster.lease` on, it is not ready, and others may take over its tasks.";
    CLAIMED_TASKS: Kind::Counter, Count = "a2a_claimed_tasks_total" "a2a.cluster.tasks.claimed" [agent], "Tasks that the server has taken over: those of servers that stopped or died, and turns without one.";
    DEAD_REPLICAS: Kind::Counter, Count = "a2a_dead_replicas_total" "a2a.cluster.replicas.dead" [agent], "Other servers that this one has declared dead, because their leases had expired.";
    FOLLOW_LAG: Kind::Histogram(&SECONDS), Seconds = "a2a_follow_lag_seconds" "a2a.cluster.follow.lag" [agent], "Age of a status of a task that another server runs, when streams here get it. Includes the difference between the clocks of the servers.";
    MAIL_WAIT: Kind::Histogram(&SECONDS), Seconds = "a2a_mail_wait_seconds" "a2a.cluster.mail.wait" [agent], "Time until another server has accepted a message for a task that it runs.";
    WAKE_NOTES: Kind::Histogram(&COUNTS), Count = "a2a_wake_notes" "a2a.cluster.wake.notes" [], "Notes to other servers in a `NOTIFY` statement.";
    DEPENDENCY_UP: Kind::Gauge, Count = "a2a_dependency_up" "a2a.dependency.up" [peer = PEER, agent], "1 if something that the agent needs responds, else 0. `peer`: `upstream`, `http`, `model`, `mcp:` with the name of the server, `exec`, `jwks`.";
    DEPENDENCY_SUCCESS: Kind::Gauge, Seconds = "a2a_dependency_last_success_timestamp_seconds" "a2a.dependency.last_success" [peer = PEER, agent], "Time of the last call that succeeded, in seconds since 1970.";
    DEPENDENCY_BREAKER: Kind::Gauge, Count = "a2a_dependency_breaker" "a2a.dependency.breaker" [state = words!["closed" "open" "half_open"], peer = PEER, agent], "1 for the state of the breaker, 0 for the others. While it is open, new work for the peer is rejected.";
    OUTBOUND: Kind::Counter, Count = "a2a_outbound_total" "a2a.outbound.calls" [result = OUTBOUND_RESULT, peer = PEER, agent], "Calls of a peer, with all retries. `rejected`: by the breaker, or by a limit of the peer.";
    OUTBOUND_DURATION: Kind::Histogram(&LONG_SECONDS), Seconds = "a2a_outbound_duration_seconds" "a2a.outbound.duration" [peer = PEER, agent], "Duration of these calls.";
    OUTBOUND_RETRIES: Kind::Counter, Count = "a2a_outbound_retries_total" "a2a.outbound.retries" [peer = PEER, agent], "Retries within these calls.";
    MODEL_TOKENS: Kind::Counter, Count = "a2a_model_tokens_total" "gen_ai.client.inference.usage" [direction = words!["input" "output"], detail = words!["all" "cache_read" "reasoning"], agent], "Tokens that the model reports. `cache_read` and `reasoning` are part of `all`.";
    MODEL_FIRST_CHUNK: Kind::Histogram(&SECONDS), Seconds = "a2a_model_first_chunk_seconds" "gen_ai.client.operation.time_to_first_chunk" [agent], "Time from a request to the model to the first chunk of its answer.";
    MODEL_FINISHED: Kind::Counter, Count = "a2a_model_finish_total" "a2a.model.finish" [reason = words!["stop" "length" "tool_calls" "content_filter" "other"], agent], "Answers of the model, by the reason that it reports for their end.";
    TOOL_CALLS: Kind::Counter, Count = "a2a_tool_calls_total" "a2a.tool.calls" [result = words!["ok" "tool_error" "error" "timeout" "denied"], server = Values::AtMost(16), agent], "Calls of tools, by the server in `openai.mcp`. `tool_error`: the tool reports an error. `denied`: the client declined it.";
    TOOL_DURATION: Kind::Histogram(&SECONDS), Seconds = "a2a_tool_duration_seconds" "mcp.client.operation.duration" [result = words!["ok" "tool_error" "error" "timeout" "denied"], server = Values::AtMost(16), agent], "Duration of these calls.";
    EXEC_PROCESSES: Kind::Gauge, Count = "a2a_exec_processes" "a2a.exec.processes" [agent], "Running processes of the agent.";
    EXEC_EXITS: Kind::Counter, Count = "a2a_exec_exits_total" "a2a.exec.exits" [code = words!["0" "1" "2" "126" "127" "signal" "other"], agent], "Processes of the agent that have ended, by their exit code.";
    PUSH_ATTEMPTS: Kind::Counter, Count = "a2a_push_attempts_total" "a2a.push.attempts" [outcome = words!["success" "failure"]], "Attempts to send a push notification.";
    PUSH_DEAD_LETTERS: Kind::Counter, Count = "a2a_push_dead_letters_total" "a2a.push.dead_letters" [], "Push notifications that were given up.";
    PUSH_LAG: Kind::Gauge, Seconds = "a2a_push_lag_seconds" "a2a.push.lag" [], "Age of the oldest push notification that is due.";
    PUSH_DUE: Kind::Gauge, Count = "a2a_push_due" "a2a.push.due" [], "Deliveries that are due or in progress.";
    LIMIT_USED: Kind::Gauge, Count = "a2a_limit_used" "a2a.limit.usage" [limit = USED_LIMIT, agent], "Use of a limit, in its unit.";
    LIMIT_MAX: Kind::Gauge, Count = "a2a_limit_max" "a2a.limit.max" [limit = USED_LIMIT, agent], "Maximum of a limit. Limits without a maximum have no series.";
    LIMIT_REJECTIONS: Kind::Counter, Count = "a2a_limit_rejections_total" "a2a.limit.rejections" [limit = LIMIT], "Requests and changes that were rejected for a limit, by its name in the error.";
    AUTH_FAILURES: Kind::Counter, Count = "a2a_auth_failures_total" "a2a.auth.failures" [method = words!["bearer" "basic" "certificate" "other"], reason = words!["missing" "invalid" "forbidden" "limited" "unavailable" "other"]], "Requests that were not authenticated. `limited`: too many failures of a client address. `unavailable`: the keys of an issuer can't be read.";
    READY: Kind::Gauge, Count = "a2a_ready" "a2a.ready" [], "1 if the server accepts work, as `/readyz` reports, else 0.";
    DRAINING: Kind::Gauge, Count = "a2a_draining" "a2a.draining" [], "1 while the server stops, else 0.";
    CONNECTIONS: Kind::Gauge, Count = "a2a_connections" "a2a.connections" [], "Open connections.";
    BUILD_INFO: Kind::Gauge, Count = "a2a_build_info" "a2a.build_info" [version = Values::AtMost(1), revision = Values::AtMost(1), rustc = Values::AtMost(1), features = Values::AtMost(1)], "1, with the build of the program in the labels.";
    START_TIME: Kind::Gauge, Seconds = "process_start_time_seconds" "process.start_time" [], "Start of the process, in seconds since 1970.";
    CPU_TIME: Kind::Counter, Seconds = "process_cpu_seconds_total" "process.cpu.time" [], "Processor time of the process.";
    RESIDENT_MEMORY: Kind::Gauge, Bytes = "process_resident_memory_bytes" "process.memory.usage" [], "Memory of the process.";
    OPEN_FILES: Kind::Gauge, Count = "process_open_fds" "process.unix.file_descriptor.count" [], "Open files and connections of the process.";
    MAX_FILES: Kind::Gauge, Count = "process_max_fds" "process.unix.file_descriptor.max" [], "Maximum number of these.";
    OTLP_SPANS: Kind::Counter, Count = "a2a_otlp_spans_total" "a2a.otlp.spans" [result = words!["exported" "dropped" "failed"]], "Spans that were sent to `otlp.endpoint`, dropped because the queue was full, or lost because the endpoint failed.";
    OTLP_QUEUE: Kind::Gauge, Count = "a2a_otlp_queue" "a2a.otlp.queue" [], "Spans that wait to be sent.";
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::{
        protocol::{
            error::code_name,
            pb::v1::{
                TaskState,
                bindings::{Rpc, each_rpc},
            },
        },
        store::turn_record::{OUTCOMES, REASONS},
    };

    /// Maximum length of the values of a label that the documents list.
    const LISTED: usize = 110;

    #[test]
    fn names_end_with_their_unit() {
        for Metric { name, otlp, kind, unit, labels, .. } in METRICS {
            let base = name.strip_suffix("_total").unwrap_or(name);
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert_eq!(base.ends_with("_seconds"), *unit == Unit::Seconds, "{name}");
            assert_eq!(base.ends_with("_bytes"), *unit == Unit::Bytes, "{name}");
            assert!(
                otlp.contains('.') && otlp.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_')),
                "{otlp}"
            );
            assert!(labels.iter().all(|(label, _)| *label != "agent"), "{name}: `agent` has no values");
        }
        let mut names: Vec<_> = METRICS.iter().flat_map(|metric| [metric.name, metric.otlp]).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 2 * METRICS.len(), "names are unique");
    }

    #[test]
    fn labels_have_the_values_of_the_code() {
        assert_eq!((OUTCOME, REASON), (Values::OneOf(&OUTCOMES), Values::OneOf(&REASONS)));
        let codes: Vec<_> = (0..17).map(|code| code_name(code.into())).collect();
        assert_eq!(CODE, Values::OneOf(codes.leak()));
        let states = (1..).map_while(|number| TaskState::try_from(number).ok());
        assert_eq!(STATE, Values::OneOf(states.map(|state| state.as_str_name()).collect::<Vec<_>>().leak()));
        macro_rules! names {
            ($($kind:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => { vec![$(Rpc::$rpc.name()),*] };
        }
        assert_eq!(OPERATION, Values::OneOf(each_rpc!(names).leak()));
    }

    #[test]
    fn metrics_are_documented() {
        let mut table = "| Metric | In OpenTelemetry | Labels | Meaning |\n| --- | --- | --- | --- |\n".to_owned();
        for Metric { name, otlp, has_agent, labels, description, .. } in METRICS {
            let label = |(name, values): &(&str, Values)| match values {
                Values::OneOf(all) if all.concat().len() <= LISTED => format!("`{name}`: `{}`", all.join("`, `")),
                Values::OneOf(_) | Values::AtMost(_) => format!("`{name}`"),
            };
            let mut labels: Vec<_> = labels.iter().map(label).collect();
            labels.extend(has_agent.then(|| "`agent`".to_owned()));
            _ = writeln!(table, "| `{name}` | `{otlp}` | {} | {description} |", labels.join("; "));
        }
        let document = include_str!("../../docs/operations.md");
        assert!(document.contains(&table), "docs/operations.md lacks this table:\n{table}");
    }
}
