//! Retry policy of the client: number of attempts, exponential backoff with jitter, and `Retry-After`.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{
    call::Call,
    clock,
    env::Rng,
    error::{Error, ErrorKind},
};

/// Longest `Retry-After` that is honored, unless [`Retry::longest`] is longer. Beyond it the error is returned.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);

/// Retry policy: exponential backoff with jitter.
///
/// ```
/// use a2a_service::client::Retry;
/// use std::time::Duration;
///
/// let mut retry = Retry::default();
/// retry.attempts = 3;
/// retry.longest = Duration::from_secs(1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// Maximum number of consecutive retries. A stream that made progress after a reconnect starts at 0 again. 8 by
    /// default.
    pub attempts: u32,
    /// Backoff before the first retry; it doubles with each further one. The actual delay is a random share of it between
    /// one half and the whole. 100 ms by default.
    pub first: Duration,
    /// Maximum backoff. 10 s by default. A longer `Retry-After` of the server is honored up to 1 min, or up to this value
    /// if it is longer.
    pub longest: Duration,
    /// Adds an `Idempotency-Key` to sends that have none. A server that supports keys then creates a task for each send,
    /// even if the agent responds with a message. On by default.
    pub keys: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 8, first: Duration::from_millis(100), longest: Duration::from_secs(10), keys: true }
    }
}

impl Retry {
    /// Disables retries and generated idempotency keys.
    pub fn never() -> Self {
        Self { attempts: 0, keys: false, ..Self::default() }
    }
}

/// Consecutive retries of one call or stream, and the delay before the next one.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    retry: Retry,
    retries: u32,
}

impl Backoff {
    pub(super) fn new(retry: &Retry) -> Self {
        Self { retry: retry.clone(), retries: 0 }
    }

    /// Starts over after progress.
    pub(super) fn reset(&mut self) {
        self.retries = 0;
    }

    /// Maximum backoff. A connection that lasted at least this long counts as progress.
    pub(super) fn longest(&self) -> Duration {
        self.retry.longest
    }

    /// Waits before the next retry. Returns false at once if the attempts are exhausted, `Retry-After` is too long, or the
    /// deadline of the call would pass.
    pub(super) async fn wait(&mut self, error: &Error, call: &Call) -> bool {
        let Some(delay) = self.delay(error, Rng::default().next_u64()) else { return false };
        if call.time_left().is_some_and(|left| left <= delay) {
            return false;
        }
        self.retries += 1;
        sleep_until(clock::after(Instant::now(), delay)).await;
        true
    }

    fn delay(&self, error: &Error, random: u64) -> Option<Duration> {
        if self.retries >= self.retry.attempts {
            return None;
        }
        let backoff = self.retry.first.saturating_mul(1_u32.checked_shl(self.retries).unwrap_or(u32::MAX));
        let backoff = backoff.min(self.retry.longest);
        let fraction = u32::try_from(random >> 32).unwrap_or(0);
        let delay = backoff / 2 + Duration::from_nanos(scale(backoff / 2, fraction));
        match error.retry_after_seconds().map(Duration::from_secs) {
            Some(retry_after) if retry_after > MAX_RETRY_AFTER.max(self.retry.longest) => None,
            Some(retry_after) => Some(retry_after.saturating_add(delay)),
            None => Some(delay),
        }
    }
}

/// Multiplies a duration by `fraction` / 2³². Returns nanoseconds.
fn scale(duration: Duration, fraction: u32) -> u64 {
    let nanos = (duration.as_nanos() * u128::from(fraction)) >> 32;
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// Returns true for a transient error: `Unavailable`, or `ResourceExhausted` with a retry delay.
pub(super) fn passes(error: &Error) -> bool {
    let has_delay = error.kind() == ErrorKind::ResourceExhausted && error.retry_after_seconds().is_some();
    has_delay || error.kind() == ErrorKind::Unavailable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable() -> Error {
        ErrorKind::Unavailable.error()
    }

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let mut backoff = Backoff::new(&Retry::default());
        let millis = [100, 200, 400, 800, 1600, 3200, 6400, 10_000];
        for expected in millis.map(Duration::from_millis) {
            let shortest = backoff.delay(&unavailable(), 0).unwrap();
            let longest = backoff.delay(&unavailable(), u64::MAX).unwrap();
            assert_eq!(shortest, expected / 2);
            assert!(longest <= expected && longest + Duration::from_micros(1) > expected, "{longest:?}");
            backoff.retries += 1;
        }
        assert_eq!(backoff.delay(&unavailable(), 0), None);
        backoff.reset();
        assert!(backoff.delay(&unavailable(), 0).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_is_honored_up_to_the_limit_and_the_deadline() {
        let mut backoff = Backoff::new(&Retry::default());
        let after = |seconds| unavailable().retry_after(Duration::from_secs(seconds));
        let start = Instant::now();
        assert!(backoff.wait(&after(30), &Call::default()).await);
        assert!((30..31).contains(&start.elapsed().as_secs()));
        assert!(!backoff.wait(&after(3600), &Call::default()).await, "an hour exceeds the limit");
        let with_deadline = Call { deadline: Some(Instant::now() + Duration::from_secs(10)), ..Call::default() };
        assert!(!backoff.wait(&after(30), &with_deadline).await, "the deadline would pass");
        assert!(backoff.wait(&after(5), &with_deadline).await);
        assert!(!Backoff::new(&Retry::never()).wait(&unavailable(), &Call::default()).await);
    }

    #[test]
    fn only_transient_errors_are_retried() {
        for kind in ErrorKind::ALL {
            assert_eq!(passes(&kind.error()), kind == ErrorKind::Unavailable, "{kind:?}");
        }
        assert!(passes(&ErrorKind::ResourceExhausted.error().retry_after(Duration::from_secs(1))));
    }
}
