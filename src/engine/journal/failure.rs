//! Reasons why the changes of a task are not committed, or end its turn.

use std::sync::Arc;

use crate::{
    base::stderr::escaped,
    protocol::{pb::v1::Message, task::LimitViolation},
    store::{Full, Rejected},
};

/// Name of the limit of [`LiveMemory`](super::LiveMemory).
pub(crate) const LIVE_BYTES: &str = "live_bytes";

/// Member of the metadata of a status message: id of the line in the log.
pub(super) const ERROR_ID: &str = "errorId";

/// Reports of failed turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct FailureReports {
    /// Name of the agent in the log, if the server has several.
    pub(crate) agent: Option<Arc<str>>,
    /// Adds the causes to the status messages, which clients see.
    pub(crate) exposes_causes: bool,
}

impl FailureReports {
    /// Maximum size of a cause in a status message, in bytes.
    const CAUSE: usize = 4 << 10;

    /// Returns the beginning of a cause for a status message, if that has causes. Control characters are escaped, except for line feeds.
    pub(super) fn exposed(&self, cause: &str) -> Option<String> {
        let cause = &cause[..cause.floor_char_boundary(Self::CAUSE)];
        self.exposes_causes.then(|| cause.lines().map(escaped).collect::<Vec<_>>().join("\n"))
    }
}

/// Reason why the last change of a task was not committed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommitFailure {
    /// The maximum number of tasks is reached.
    Full(Full),
    /// Another process has committed a message with the same idempotency key.
    Duplicate,
    /// The store was unavailable for too long.
    Unavailable,
    /// The store rejected the change, due to the limit with this configuration key if any.
    Rejected(Option<&'static str>),
}

/// Exceeded limit that ends a turn.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LimitExceeded {
    /// A limit of the task.
    #[error(transparent)]
    Task(LimitViolation),
    /// The store rejected the changes of the turn.
    #[error("a part of its result can't be stored: {0}")]
    Store(Rejected),
    /// There was no memory for an update in time. The tasks of an owner have so many bytes of it at most.
    #[error(
        "the live tasks of all callers, or yours (at most {max} bytes), fill the memory; retry later (limits.memory)"
    )]
    Memory {
        /// Maximum number of bytes.
        max: usize,
    },
}

impl LimitExceeded {
    /// Returns the name of the limit.
    fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Task(violation) => violation.limit(),
            Self::Store(rejection) => rejection.limit(),
            Self::Memory { .. } => Some(LIVE_BYTES),
        }
    }

    /// Returns the status message of a task that fails for this, with the id of the line in the log.
    pub(super) fn message(&self, error_id: &str) -> Message {
        let message = match self.limit() {
            Some(limit) => {
                Message::agent(format!("Agent execution failed (limit {limit}): {self}")).with_detail("limit", limit)
            }
            None => Message::agent(format!("Agent execution failed: {self}")),
        };
        message.with_detail(ERROR_ID, error_id)
    }
}
