//! Retry policy: attempts, exponential backoff with jitter, `Retry-After`, and the budget of a client.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

use super::{Call, Error, ErrorKind};
#[cfg(feature = "server")]
use crate::base::dependency::MAX_WAIT;
use crate::base::{clock, retry::Backoff, sources::Rng};

/// Longest `Retry-After` that is honored, unless [`Retry::longest`] is longer. Beyond it the error is returned.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);

options! {
    /// Retry policy: exponential backoff with jitter.
    ///
    /// ```
    /// use a2a_service::client::Retry;
    /// use std::time::Duration;
    ///
    /// let retry = Retry::default().attempts(3).longest(Duration::from_secs(1));
    /// # assert_eq!(retry.attempts, 3);
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Retry {
        /// Maximum number of consecutive retries. A stream that made progress after a reconnect starts at 0 again. 8 by
        /// default.
        pub attempts: u32 = 8,
        /// Backoff before the first retry; it doubles with each further one. The actual delay is a random share of it
        /// between one half and the whole. 100 ms by default.
        pub first: Duration = Duration::from_millis(100),
        /// Maximum backoff. 10 s by default. A longer `Retry-After` of the server is honored up to 1 min, or up to this
        /// value if it is longer.
        pub longest: Duration = Duration::from_secs(10),
        /// Adds an `Idempotency-Key` to sends that have none. A server that supports keys then creates a task for each
        /// send, even if the agent responds with a message. On by default.
        pub keys: bool = true,
        /// Retry budget: maximum number of retries of all calls of a client together, until successful calls earn further
        /// ones. Without budget, a call returns its error. This limits the load on a server that fails many calls. Streams
        /// that reconnect do not use it. 100 by default.
        pub budget: u32 = 100,
        /// Retries that 100 successful calls earn, up to the budget. 10 by default.
        pub budget_percent: u32 = 10,
    }
}

impl Retry {
    /// Disables retries and generated idempotency keys.
    pub fn never() -> Self {
        Self { attempts: 0, keys: false, ..Self::default() }
    }
}

/// Retries that the calls of a client have left together: a token bucket.
#[derive(Debug)]
pub(super) struct RetryBudget {
    /// In hundredths of a retry.
    left: AtomicU64,
    full: u64,
    /// Earned by a successful call.
    earned: u64,
}

impl RetryBudget {
    pub(super) fn new(retry: &Retry) -> Self {
        let full = u64::from(retry.budget) * 100;
        Self { left: AtomicU64::new(full), full, earned: retry.budget_percent.into() }
    }

    /// Takes a retry. Returns false if there is none.
    fn take(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(100)).is_ok()
    }

    /// Records a successful call.
    pub(super) fn earn(&self) {
        let earn = |left: u64| (left < self.full).then(|| self.full.min(left.saturating_add(self.earned)));
        _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earn);
    }
}

/// Consecutive retries of one call or stream, and the delay before the next one.
#[derive(Clone, Debug, Default)]
pub(super) struct Retries {
    retry: Retry,
    count: u32,
    budget: Option<Arc<RetryBudget>>,
    /// Time of the first of the last attempts in a row that found no connection.
    #[cfg(feature = "server")]
    unreachable_since: Option<Instant>,
}

impl Retries {
    pub(super) fn new(retry: &Retry) -> Self {
        Self { retry: retry.clone(), ..Self::default() }
    }

    /// Takes retries from a budget.
    pub(super) fn with_budget(self, budget: &Arc<RetryBudget>) -> Self {
        Self { budget: Some(Arc::clone(budget)), ..self }
    }

    /// Starts over after progress.
    pub(super) fn reset(&mut self) {
        self.count = 0;
    }

    /// Waits before the next retry. Returns false at once if the attempts or the budget are exhausted, `Retry-After` is too
    /// long, or the deadline of the call would pass.
    pub(super) async fn wait(&mut self, error: &Error, call: &Call) -> bool {
        let start = Instant::now();
        let retries = self.wait_for_delay(error, call).await;
        if let (true, Some(trace)) = (retries, call.record.as_ref().and_then(|record| record.trace.as_ref())) {
            trace.with(|span| span.retry(self.count, error.kind().wire().reason, start.elapsed()));
        }
        retries
    }

    async fn wait_for_delay(&mut self, error: &Error, call: &Call) -> bool {
        #[cfg(feature = "server")]
        if let Some(attempts) = &call.attempts {
            if attempts.is_probe {
                return false;
            }
            self.unreachable_since = self.unreachable_since.filter(|_| error.is_unsent());
            if error.is_unsent() && self.retry.attempts > 0 {
                let since = *self.unreachable_since.get_or_insert_with(Instant::now);
                self.count = self.count.saturating_add(1);
                return attempts.wait(self.count - 1, since + MAX_WAIT).await;
            }
        }
        let Some(delay) = self.delay(error, Rng::default().next_u64()) else { return false };
        if call.time_left().is_some_and(|left| left <= delay) {
            return false;
        }
        if self.budget.as_ref().is_some_and(|budget| !budget.take()) {
            return false;
        }
        self.count += 1;
        sleep_until(clock::after(Instant::now(), delay)).await;
        true
    }

    fn delay(&self, error: &Error, random: u64) -> Option<Duration> {
        let Retry { attempts, first, longest, .. } = self.retry;
        let retry_after = error.retry_after_seconds().map(Duration::from_secs);
        let backoff = Backoff { first, longest };
        if self.count < attempts {
            backoff.delay_after(retry_after, MAX_RETRY_AFTER.max(longest), self.count, random)
        } else {
            None
        }
    }
}

/// Returns true for a transient error: `Unavailable`, or `ResourceExhausted` with a retry delay.
pub(super) fn is_transient(error: &Error) -> bool {
    let has_delay = error.kind() == ErrorKind::ResourceExhausted && error.retry_after_seconds().is_some();
    has_delay || error.kind() == ErrorKind::Unavailable
}

/// Returns true for an error that says nothing about the task of a stream: its connection or its time has ended.
pub(super) fn is_interruption(error: &Error) -> bool {
    is_transient(error) || error.kind() == ErrorKind::DeadlineExceeded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable() -> Error {
        ErrorKind::Unavailable.error()
    }

    #[test]
    fn attempts_are_counted_until_progress() {
        let mut retries = Retries::new(&Retry::default());
        for millis in [100, 200, 400, 800, 1600, 3200, 6400, 10_000] {
            assert_eq!(retries.delay(&unavailable(), 0), Some(Duration::from_millis(millis) / 2));
            retries.count += 1;
        }
        assert_eq!(retries.delay(&unavailable(), 0), None);
        retries.reset();
        assert!(retries.delay(&unavailable(), 0).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn budget_is_shared_and_earned_by_successes() {
        let retry = Retry::default().budget(2).budget_percent(50);
        let budget = Arc::new(RetryBudget::new(&retry));
        let wait = async || {
            let mut retries = Retries::new(&retry).with_budget(&budget);
            retries.wait(&unavailable(), &Call::default()).await
        };
        assert_eq!([wait().await, wait().await, wait().await], [true, true, false]);
        budget.earn();
        assert!(!wait().await, "half a retry");
        (0..10).for_each(|_| budget.earn());
        assert_eq!([wait().await, wait().await, wait().await], [true, true, false]);
        assert!(Retries::new(&retry).wait(&unavailable(), &Call::default()).await, "reconnects have no budget");
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_is_honored_up_to_the_limit_and_the_deadline() {
        let mut retries = Retries::new(&Retry::default());
        let after = |seconds| unavailable().retry_after(Duration::from_secs(seconds));
        let start = Instant::now();
        assert!(retries.wait(&after(30), &Call::default()).await);
        assert!((30..31).contains(&start.elapsed().as_secs()));
        assert!(!retries.wait(&after(3600), &Call::default()).await, "an hour exceeds the limit");
        let with_deadline = Call { deadline: Some(Instant::now() + Duration::from_secs(10)), ..Call::default() };
        assert!(!retries.wait(&after(30), &with_deadline).await, "the deadline would pass");
        assert!(retries.wait(&after(5), &with_deadline).await);
        assert!(!Retries::new(&Retry::never()).wait(&unavailable(), &Call::default()).await);
    }

    #[test]
    fn only_transient_errors_are_retried() {
        for kind in ErrorKind::ALL {
            assert_eq!(is_transient(&kind.error()), kind == ErrorKind::Unavailable, "{kind:?}");
        }
        assert!(is_transient(&ErrorKind::ResourceExhausted.error().retry_after(Duration::from_secs(1))));
    }
}
