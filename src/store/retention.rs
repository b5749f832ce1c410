//! How long things are kept, and what has gone since.

use std::time::Duration;

use crate::seam::Millis;

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// How long things are kept. Where nothing is said of one, for as long as the task that it belongs to; and a task for
/// ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retention {
    /// A task that has ended, after its end. Seven days.
    pub finished: Option<Duration>,
    /// A task that waits for its client, after it asked for something. Then it is not deleted: it ends, as one that was
    /// canceled, for all who have it to see. 30 days.
    pub idle: Option<Duration>,
    /// The log of a task that has ended, after its end: from then on there is only the task as it was in the end, and a
    /// stream that is taken up again begins with that. An hour. Memory keeps it with its task.
    pub logs: Option<Duration>,
    /// The push configurations of a task that has ended, after its end. A day. Memory keeps them with their task.
    pub push: Option<Duration>,
    /// The key of a send, after that was taken. A day. Memory keeps it with its task.
    pub sends: Option<Duration>,
    /// How often it is seen to: each second at most. Each minute.
    pub every: Duration,
}

impl Retention {
    /// All of it, for ever.
    pub const FOREVER: Self =
        Self { finished: None, idle: None, logs: None, push: None, sends: None, every: Duration::from_mins(1) };

    /// What is older than this has been kept for long enough; nothing is, where it is kept for ever.
    pub fn before(window: Option<Duration>, now: Millis) -> Option<Millis> {
        let window = Millis::try_from(window?.as_millis()).unwrap_or(Millis::MAX);
        Some(now.saturating_sub(window))
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            finished: Some(7 * DAY),
            idle: Some(30 * DAY),
            logs: Some(HOUR),
            push: Some(DAY),
            sends: Some(DAY),
            ..Self::FOREVER
        }
    }
}

/// What a sweep has deleted, or would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Tasks that have ended.
    pub tasks: u64,
    /// Logs of tasks that have ended, and stay.
    pub logs: u64,
    /// Push configurations of tasks that stay.
    pub pushes: u64,
    /// Keys of sends whose tasks stay.
    pub sends: u64,
}
