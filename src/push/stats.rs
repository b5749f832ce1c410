//! Counters of the delivery, for operators.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

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

/// Counters of a delivery service.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) attempts: AtomicU64,
    pub(super) successes: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) dead_letters: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stats(&self, lag: Duration) -> PushStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (attempts, successes) = (read(&self.attempts), read(&self.successes));
        let (failures, dead_letters) = (read(&self.failures), read(&self.dead_letters));
        PushStats { attempts, successes, failures, dead_letters, lag }
    }
}
