//! Retention policy: how long tasks and their data are stored, and the result of a retention sweep.

use std::time::Duration;

use super::Millis;
use crate::base::clock::whole_millis;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

options! {
    /// Retention times of tasks and of the data that belongs to them. `None` keeps data as long as its task, and tasks
    /// without a limit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Retention {
        /// Retention of a task after it has reached a terminal state. 7 days by default.
        pub finished: Option<Duration> = Some(7 * DAY),
        /// Maximum time that a task waits for input or authorization from its client. Then it is canceled, not deleted,
        /// so that clients can still read it. 30 days by default.
        pub idle: Option<Duration> = Some(30 * DAY),
        /// Retention of the event log of a task after it has reached a terminal state. A stream that is resumed later
        /// begins with the final task. 1 h by default. The store in memory keeps the log as long as the task.
        pub logs: Option<Duration> = Some(HOUR),
        /// Retention of push notification configurations of a task after it has reached a terminal state. 24 h by
        /// default. The store in memory keeps them as long as the task.
        pub push: Option<Duration> = Some(DAY),
        /// Maximum time that sweeps keep a task, its log and its push configurations beyond their retention because push
        /// notifications of the task are still to be delivered. Counts from the time at which they became due. 24 h by
        /// default.
        pub undelivered: Option<Duration> = Some(DAY),
        /// Retention of idempotency keys after the send. 24 h by default. The store in memory keeps them as long as the
        /// task.
        pub idempotency_keys: Option<Duration> = Some(DAY),
        /// Interval between retention sweeps (minimum 1 s). 1 min by default.
        pub interval: Duration = Duration::from_mins(1),
    }
}

impl Retention {
    /// Unlimited retention.
    pub const FOREVER: Self = Self {
        finished: None,
        idle: None,
        logs: None,
        push: None,
        undelivered: None,
        idempotency_keys: None,
        interval: Duration::from_mins(1),
    };

    /// Returns the time before which data is expired, or `None` if the retention is unlimited.
    pub fn cutoff(retention: Option<Duration>, now: Millis) -> Option<Millis> {
        Some(now.saturating_sub(whole_millis(retention?)))
    }
}

/// Numbers of items that a retention sweep deleted, or would delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepResult {
    /// Tasks in a terminal state.
    pub tasks: u64,
    /// Event logs of remaining tasks.
    pub logs: u64,
    /// Push configurations of remaining tasks.
    pub push_configs: u64,
    /// Idempotency keys of remaining tasks.
    pub idempotency_keys: u64,
}
