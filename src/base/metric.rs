//! Metrics of a server: names and descriptions, and recording through the facade of the crate `metrics`.
//!
//! Recording has no effect until the program installs a recorder, such as the one that exports to Prometheus. No label is an
//! owner, a tenant or an id: the number of time series is bounded by the API and the number of agents.

use std::{sync::Arc, time::Duration};

use metrics::{Label, Unit};

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Description of a metric.
#[derive(Debug)]
pub(crate) struct Metric {
    /// Name, with its unit as the ending.
    pub(crate) name: &'static str,
    kind: Kind,
    unit: Unit,
    description: &'static str,
}

/// Upper bounds of durations in seconds.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];

/// Upper bounds of numbers of tasks and events.
const COUNTS: [f64; 10] = [0.0, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 65536.0];

/// Upper bounds of sizes in bytes.
const BYTES: [f64; 8] = [256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 16_777_216.0];

impl Metric {
    /// Returns the upper bounds of the buckets of a histogram.
    pub(crate) fn buckets(&self) -> Option<&'static [f64]> {
        let buckets: &[f64] = if self.unit == Unit::Seconds {
            &SECONDS
        } else if self.unit == Unit::Bytes {
            &BYTES
        } else {
            &COUNTS
        };
        (self.kind == Kind::Histogram).then_some(buckets)
    }
}

/// Declares the metrics, one per line: constant, kind, unit, name, description.
macro_rules! metrics {
    ($($constant:ident: $kind:ident $unit:ident = $name:literal, $description:literal;)*) => {
        $(const $constant: &str = $name;)*

        /// All metrics.
        pub(crate) static METRICS: &[Metric] =
            &[$(Metric { name: $name, kind: Kind::$kind, unit: Unit::$unit, description: $description }),*];
    };
}

metrics! {
    RESPONSES: Counter Count = "a2a_http_responses_total", "HTTP responses, by `binding` (`grpc`, `http`, `jsonrpc`) and `status`. Includes those to requests that were rejected before they became a call.";
    CALLS: Counter Count = "a2a_calls_total", "Calls that have ended, by `operation`, `binding`, `version` of the protocol and `code`, the gRPC code of the result. `CANCELLED`: the client has gone.";
    CALL_DURATION: Histogram Seconds = "a2a_call_duration_seconds", "Duration of calls, by `operation` and `binding`. The duration of a stream is not included.";
    FIRST_EVENT: Histogram Seconds = "a2a_stream_first_event_seconds", "Time from a streaming call to its first event, by `operation` and `binding`.";
    STREAMS: Gauge Count = "a2a_streams", "Open streams, by `operation` and `binding`.";
    STREAM_EVENTS: Counter Count = "a2a_stream_events_total", "Events sent on streams, by `operation` and `binding`.";
    READER_LAG: Histogram Count = "a2a_stream_lag_events", "Committed events that a stream has not sent yet, each time it continues to read.";
    COMMIT_DURATION: Histogram Seconds = "a2a_commit_duration_seconds", "Duration of the commits to the store that succeeded. Each has the changes of one or more tasks.";
    COMMIT_TASKS: Histogram Count = "a2a_commit_tasks", "Tasks that changed in a commit.";
    COMMIT_BYTES: Histogram Bytes = "a2a_commit_bytes", "Size of the events of a commit, encoded in protobuf.";
    TURNS: Gauge Count = "a2a_turns", "Running turns.";
    QUEUED_TURNS: Gauge Count = "a2a_queued_turns", "New turns that wait for a running one to end.";
    QUEUED_MESSAGES: Gauge Count = "a2a_queued_messages", "Messages that wait for the next turn of their task.";
    UNCOMMITTED_TASKS: Gauge Count = "a2a_uncommitted_tasks", "Tasks with changes that wait for a commit.";
    LIVE_TASKS: Gauge Count = "a2a_live_tasks", "Tasks in memory, because they run or are read, by `state`.";
    CONNECTIONS: Gauge Count = "a2a_connections", "Open connections.";
    READY: Gauge Count = "a2a_ready", "1 if the server accepts work, as `/readyz` reports, else 0.";
    PUSH_ATTEMPTS: Counter Count = "a2a_push_attempts_total", "Attempts to send a push notification, by `outcome` (`success`, `failure`).";
    PUSH_DEAD_LETTERS: Counter Count = "a2a_push_dead_letters_total", "Push notifications that were given up.";
    PUSH_LAG: Gauge Seconds = "a2a_push_lag_seconds", "Age of the oldest push notification that is due.";
}

/// Describes all metrics to the recorder.
pub(crate) fn describe() {
    for Metric { name, kind, unit, description } in METRICS {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *unit, *description),
            Kind::Gauge => metrics::describe_gauge!(*name, *unit, *description),
            Kind::Histogram => metrics::describe_histogram!(*name, *unit, *description),
        }
    }
}

/// Counts an HTTP response.
pub(crate) fn count_response(binding: &'static str, status: http::StatusCode) {
    // A status has three digits: as text it is one of a bounded number of labels.
    metrics::counter!(RESPONSES, "binding" => binding, "status" => status.as_str().to_owned()).increment(1);
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
    /// Returns labels with these and the agent.
    fn labels_with_agent<const N: usize>(&self, labels: [(&'static str, &'static str); N]) -> Vec<Label> {
        let labels = labels.into_iter().map(|(name, value)| Label::from_static_parts(name, value));
        let agent = self.agent.iter().map(|agent| Label::new("agent", Arc::clone(agent)));
        labels.chain(agent).collect()
    }

    /// Returns the labels of most metrics.
    fn labels(&self) -> Vec<Label> {
        self.labels_with_agent([("operation", self.operation), ("binding", self.binding)])
    }

    /// Counts a call with its result. `code` is the name of a gRPC code.
    pub(crate) fn ended(&self, code: &'static str) {
        let Self { operation, binding, version, .. } = *self;
        let labels = self.labels_with_agent([
            ("operation", operation),
            ("binding", binding),
            ("version", version),
            ("code", code),
        ]);
        metrics::counter!(CALLS, labels).increment(1);
    }

    /// Records the duration of a call.
    pub(crate) fn replied(&self, duration: Duration) {
        metrics::histogram!(CALL_DURATION, self.labels()).record(duration);
    }

    /// Counts an event of a stream. `first` is the time since the call for the first event.
    pub(crate) fn sent_event(&self, first: Option<Duration>) {
        metrics::counter!(STREAM_EVENTS, self.labels()).increment(1);
        if let Some(duration) = first {
            metrics::histogram!(FIRST_EVENT, self.labels()).record(duration);
        }
    }

    /// Adds to the number of open streams.
    pub(crate) fn add_streams(&self, count: i8) {
        metrics::gauge!(STREAMS, self.labels()).increment(count);
    }
}

/// Records how many committed events a reader has not read yet.
pub(crate) fn record_reader_lag(events: u64) {
    // Exact up to 2^32, and nothing needs to distinguish more.
    metrics::histogram!(READER_LAG).record(f64::from(u32::try_from(events).unwrap_or(u32::MAX)));
}

/// Records a successful commit of this many tasks, with events of this size.
pub(crate) fn record_commit(duration: Duration, tasks: usize, bytes: usize) {
    metrics::histogram!(COMMIT_DURATION).record(duration);
    metrics::histogram!(COMMIT_TASKS).record(number(tasks));
    metrics::histogram!(COMMIT_BYTES).record(number(bytes));
}

/// Adds to the number of open connections.
pub(crate) fn add_connections(count: i8) {
    metrics::gauge!(CONNECTIONS).increment(count);
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
    /// Adds those of another agent.
    pub(crate) fn add(&mut self, other: Self) {
        self.turns += other.turns;
        self.queued_turns += other.queued_turns;
        self.queued_messages += other.queued_messages;
        self.uncommitted_tasks += other.uncommitted_tasks;
        for (state, count) in other.live_tasks {
            match self.live_tasks.iter_mut().find(|(known, _)| *known == state) {
                Some((_, sum)) => *sum += count,
                None => self.live_tasks.push((state, count)),
            }
        }
    }

    /// Records the gauges.
    pub(crate) fn record(&self) {
        metrics::gauge!(TURNS).set(number(self.turns));
        metrics::gauge!(QUEUED_TURNS).set(number(self.queued_turns));
        metrics::gauge!(QUEUED_MESSAGES).set(number(self.queued_messages));
        metrics::gauge!(UNCOMMITTED_TASKS).set(number(self.uncommitted_tasks));
        for (state, count) in &self.live_tasks {
            metrics::gauge!(LIVE_TASKS, "state" => *state).set(number(*count));
        }
    }
}

/// Records whether the server accepts work.
pub(crate) fn record_readiness(is_ready: bool) {
    metrics::gauge!(READY).set(f64::from(u8::from(is_ready)));
}

/// Records the counters of the delivery of push notifications since the start, and its lag.
#[cfg(feature = "push")]
pub(crate) fn record_push((successes, failures, dead_letters): (u64, u64, u64), lag: Duration) {
    metrics::counter!(PUSH_ATTEMPTS, "outcome" => "success").absolute(successes);
    metrics::counter!(PUSH_ATTEMPTS, "outcome" => "failure").absolute(failures);
    metrics::counter!(PUSH_DEAD_LETTERS).absolute(dead_letters);
    metrics::gauge!(PUSH_LAG).set(lag.as_secs_f64());
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_with_their_unit_and_are_documented() {
        let document = include_str!("../../docs/operations.md");
        for Metric { name, kind, unit, description } in METRICS {
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert_eq!(name.ends_with("_seconds"), *unit == Unit::Seconds, "{name}");
            assert_eq!(name.ends_with("_bytes"), *unit == Unit::Bytes, "{name}");
            let row = format!("| `{name}` | {description} |");
            assert!(document.contains(&row), "docs/operations.md lacks the row:\n{row}");
        }
    }
}
