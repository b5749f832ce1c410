//! Counters of the delivery, for operators.

use std::time::Duration;

/// Counters of a delivery service since the start of the server, and its lag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PushStats {
    /// Number of attempts to send a notification.
    pub attempts: u64,
    /// Number of attempts that succeeded.
    pub successes: u64,
    /// Number of attempts that failed.
    pub failures: u64,
    /// Number of deliveries that were given up.
    pub dead_letters: u64,
    /// Age of the oldest undelivered event that is known to be due. Zero if nothing is undelivered.
    pub lag: Duration,
}

impl PushStats {
    /// Adds those of another delivery service.
    pub(crate) fn add(&mut self, other: Self) {
        self.attempts += other.attempts;
        self.successes += other.successes;
        self.failures += other.failures;
        self.dead_letters += other.dead_letters;
        self.lag = self.lag.max(other.lag);
    }
}
