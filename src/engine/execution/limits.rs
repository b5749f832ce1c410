//! Limits of the execution, and the errors for exceeded limits.

use std::time::Duration;

use crate::{
    engine::journal::{LIVE_BYTES, LimitExceeded, LiveMemory},
    protocol::{
        error::{Error, ErrorKind},
        json::wkt::MAX_DEPTH,
        task::TaskLimits,
    },
    store::Full,
};

/// Retry delay of an error for a limit on what is in progress.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Lower bound of the maximum size of an event: the status of a failed turn has to fit.
const MIN_EVENT_BYTES: usize = 1024;

options! {
    /// Limits of the execution of turns: times, numbers and sizes. An error at a limit names it.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    pub struct Limits {
        /// Time after which a turn has a task, even if its agent has not sent an update. 100 ms by default.
        pub task_delay: Duration = Duration::from_millis(100),
        /// Minimum interval between two commits of a running turn; updates in between are batched. Zero commits at each
        /// pause of the agent. 1 ms by default.
        pub commit_interval: Duration = Duration::from_millis(1),
        /// Maximum duration of one turn. A turn that exceeds it fails. 1 h by default.
        pub turn_deadline: Duration = Duration::from_hours(1),
        /// Idle timeout of an agent: a turn without an update for this long fails. Waiting for authorization or for the
        /// store does not count. Zero, the default, disables it.
        pub turn_idle_timeout: Duration,
        /// Grace period in which a canceled agent can return by itself. 3 s by default: the HTTP clients of SDKs have a
        /// timeout of 5 s.
        pub cancel_grace: Duration = Duration::from_secs(3),
        /// Timeout of a blocking send; the client then gets the current task, which is not terminal and may be
        /// SUBMITTED or WORKING. Unlimited by default: the send waits until the task is terminal or interrupted
        /// (3.2.2), and `turn_deadline` bounds that. Zero answers as soon as the message is stored.
        pub send_timeout: Option<Duration>,
        /// Maximum age of a stream. Then it ends, and its client can resume it. Zero: no limit. 24 h by default.
        pub stream_max_age: Duration = Duration::from_hours(24),
        /// Maximum number of messages that wait for a task whose agent is busy. 256 by default.
        pub queued_messages: usize = 256,
        /// Maximum number of parts in a message. 1000 by default.
        pub parts: usize = 1000,
        /// Maximum number of tasks that a message may reference. 16 by default.
        pub references: usize = 16,
        /// Maximum hop count of a message: the number of agents that have passed it on. Zero rejects the messages of agents. 8
        /// by default.
        pub hops: u32 = 8,
        /// Maximum nesting of lists and objects in `data` and `metadata` of a request. 28 by default, which is also the
        /// upper bound: decoders of protobuf read no deeper messages.
        pub json_depth: usize = MAX_DEPTH,
        /// Maximum number of events of a task, including its client's messages. A turn that exceeds it fails. 200 000
        /// by default.
        pub events: u64 = 200_000,
        /// Maximum number of artifacts of a task. A turn that exceeds it fails. 1000 by default.
        pub artifacts: usize = 1000,
        /// Maximum size of an event in bytes, encoded in protobuf: of an artifact chunk, of a status with its message,
        /// of a client's message. A turn that exceeds it fails. Clients of gRPC accept 4 MiB unless configured
        /// otherwise. 16 MiB by default; minimum 1 KiB.
        pub event_bytes: usize = 16 << 20,
        /// Maximum size of an artifact in bytes. A turn that exceeds it fails. 64 MiB by default.
        pub artifact_bytes: usize = 64 << 20,
        /// Maximum total size in bytes of all events of a task, including its client's messages. A turn that exceeds it
        /// fails, and further messages are rejected. The memory that parts and values occupy beyond their encoding counts
        /// too, here and in the limits of events and artifacts, except for the first 64 KiB of a task. 128 MiB by default.
        pub task_bytes: usize = 128 << 20,
        /// Maximum total size in bytes of the events of all tasks of a context. A turn that exceeds it fails, and
        /// further messages are rejected. The size of a context without live tasks is read from the store with its next
        /// message, and limits new tasks from then on. It is read again before a message is rejected, once a second at
        /// most: deleted, evicted and expired tasks do not count. Events that end a turn are accepted beyond it. Zero
        /// rejects all messages, `usize::MAX` disables it. 1 GiB by default.
        pub context_bytes: usize = 1 << 30,
        /// Memory of the tasks that run or are read, over all services that share it: the size of their events. An agent
        /// whose update does not fit waits; its turn fails if none is released for 30 s. Messages and subscriptions that do
        /// not fit are rejected. Tasks of up to 16 KiB do not count. 192 MiB by default, of which one owner can have three
        /// quarters.
        pub live_memory: LiveMemory,
        /// Maximum number of running turns, over all tasks. 10 000 by default.
        pub turns: usize = 10_000,
        /// Maximum number of running turns of one task owner, over all tenants. Callers without a name share one owner.
        /// 5000 by default.
        pub turns_per_owner: usize = 5000,
        /// Maximum number of new turns that wait for a running one to end, over all owners. Their tasks are SUBMITTED. Zero
        /// rejects messages that need another turn at `turns` or `turns_per_owner`. 1000 by default.
        pub queued_turns: usize = 1000,
        /// Maximum number of new turns of one task owner that wait. Zero, as `queued_turns`. 500 by default.
        pub queued_turns_per_owner: usize = 500,
        /// Maximum number of open streams, over all tasks. 10 000 by default.
        pub streams: usize = 10_000,
        /// Maximum number of open streams of one owner, over all tenants. Callers without a name share one owner. 5000 by
        /// default.
        pub streams_per_owner: usize = 5000,
        /// Maximum number of open streams of one task. Further subscriptions are rejected; streaming sends are not.
        /// 1000 by default.
        pub streams_per_task: usize = 1000,
        /// Maximum number of calls in progress that are not streams, over all owners. A blocking send is in progress until
        /// its turn ends. 20 000 by default.
        pub calls: usize = 20_000,
        /// Maximum number of calls in progress of one owner, over all tenants. Callers without a name share one owner.
        /// 10 000 by default.
        pub calls_per_owner: usize = 10_000,
        /// Maximum number of calls per second of one owner, over all tenants, with a burst of as many. Each call of a
        /// JSON-RPC batch counts. Callers without a name are not limited. Zero, the default: no limit.
        pub call_rate_per_owner: u32,
        /// Maximum number of push notification configurations per task. 32 by default.
        pub push_configs: usize = 32,
        /// Maximum size of a page of `ListTasks` in bytes, encoded in protobuf. A page that reaches it ends early, with
        /// a token for the next page. A larger task gets a page of its own. 8 MiB by default.
        pub page_bytes: usize = 8 << 20,
        /// Maximum size of the history of a task in a response, in bytes, encoded in protobuf: the newest messages that
        /// fit, whatever `historyLength` requests. The newest message is always included; zero leaves that alone. 8 MiB
        /// by default.
        pub history_bytes: usize = 8 << 20,
    }
}

impl Limits {
    /// Sets the limits that follow from others, by the ratios of the defaults. Errors name the key of the limit that they follow
    /// from.
    #[must_use]
    pub(crate) fn derived(self) -> Self {
        let Self { queued_turns, streams, task_bytes, .. } = self;
        let calls = streams.saturating_mul(2);
        Self {
            queued_turns_per_owner: queued_turns / 2,
            streams_per_owner: (streams / 2).max(1),
            streams_per_task: (streams / 10).max(1),
            calls,
            calls_per_owner: calls / 2,
            event_bytes: (task_bytes / 8).max(MIN_EVENT_BYTES),
            artifact_bytes: task_bytes / 2,
            context_bytes: task_bytes.saturating_mul(8),
            ..self
        }
    }

    /// Limits of a single task.
    pub(crate) fn task_limits(&self) -> TaskLimits {
        let Self { events, artifacts, artifact_bytes, task_bytes, context_bytes, .. } = *self;
        let event_bytes = self.event_bytes.max(MIN_EVENT_BYTES);
        TaskLimits { events, artifacts, event_bytes, artifact_bytes, task_bytes, context_bytes }
    }
}

/// Returns the error for an exceeded limit, by its name.
pub(crate) fn limit_error(name: &'static str, why: String) -> Error {
    ErrorKind::ResourceExhausted.because(why).limit(name)
}

/// Returns the error for a message or a task for which there is no memory.
pub(crate) fn memory_full(memory: &LiveMemory) -> Error {
    let why = LimitExceeded::Memory { max: memory.max_per_owner() }.to_string();
    limit_error(LIVE_BYTES, why).retry_after(RETRY_AFTER)
}

/// Returns the error for a store at its maximum number of tasks, none of which can be evicted.
pub(crate) fn store_full(full: Full) -> Error {
    let Full { limit: name, max, .. } = full;
    if full.is_push() {
        let why = format!("your tasks have {max} push notification configurations; delete some first");
        return limit_error(name, why);
    }
    let whose = if name == Full::per_owner(max).limit { " of your" } else { "" };
    let why = format!("{max}{whose} tasks are stored, and none has ended; retry later (limits.{name})");
    limit_error(name, why).retry_after(RETRY_AFTER)
}
