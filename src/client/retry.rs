//! How often a call is made again, and how long is waited before that.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{
    call::Call,
    error::{Error, ErrorKind},
    seam,
};

/// A server that asks for more than this is not waited for: its error is given, and says so.
const PATIENCE: Duration = Duration::from_mins(1);

/// When what failed is tried again.
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
    /// How often in a row. A stream that has gone on has none behind it.
    pub attempts: u32,
    /// How long is waited before the first one. Then it is twice as long each time. What is waited is some of that, from a
    /// half on, so that not all who lost the same server come back together.
    pub first: Duration,
    /// How long is waited at most, where the server says no time of its own (`Retry-After`).
    pub longest: Duration,
    /// A send that comes without an `Idempotency-Key` gets one. An agent that knows keys then makes a task of each send, also
    /// where it answers with a message.
    pub keys: bool,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 8, first: Duration::from_millis(100), longest: Duration::from_secs(10), keys: true }
    }
}

impl Retry {
    /// Nothing is tried again.
    pub fn never() -> Self {
        Self { attempts: 0, keys: false, ..Self::default() }
    }
}

/// The attempts in a row of one call.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    retry: Retry,
    tried: u32,
}

impl Backoff {
    pub(super) fn new(retry: &Retry) -> Self {
        Self { retry: retry.clone(), tried: 0 }
    }

    /// It went on: what comes is another failure.
    pub(super) fn reset(&mut self) {
        self.tried = 0;
    }

    /// What has lasted for so long was no failure.
    pub(super) fn longest(&self) -> Duration {
        self.retry.longest
    }

    /// Waits before the next attempt. Says no where there is none: there were enough, or the time of the call would be over.
    pub(super) async fn wait(&mut self, error: &Error, call: &Call) -> bool {
        let Some(delay) = self.delay(error, seam::random()) else { return false };
        if call.time_left().is_some_and(|it| it <= delay) {
            return false;
        }
        self.tried += 1;
        sleep_until(seam::after(Instant::now(), delay)).await;
        true
    }

    fn delay(&self, error: &Error, random: u64) -> Option<Duration> {
        if self.tried >= self.retry.attempts {
            return None;
        }
        let most = self.retry.first.saturating_mul(1_u32.checked_shl(self.tried).unwrap_or(u32::MAX));
        let most = most.min(self.retry.longest);
        let part = u32::try_from(random >> 32).unwrap_or(0);
        let delay = most / 2 + Duration::from_nanos(share(most / 2, part));
        match error.retry_after_seconds().map(Duration::from_secs) {
            Some(told) if told > PATIENCE.max(self.retry.longest) => None,
            Some(told) => Some(told.saturating_add(delay)),
            None => Some(delay),
        }
    }
}

/// So much of a time, in nanoseconds.
fn share(whole: Duration, part: u32) -> u64 {
    let share = (whole.as_nanos() * u128::from(part)) >> 32;
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// What fails like this may succeed later.
pub(super) fn passes(error: &Error) -> bool {
    let says_when = error.kind() == ErrorKind::ResourceExhausted && error.retry_after_seconds().is_some();
    says_when || error.kind() == ErrorKind::Unavailable
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> Error {
        ErrorKind::Unavailable.error()
    }

    #[test]
    fn each_time_is_longer_up_to_a_longest() {
        let mut backoff = Backoff::new(&Retry::default());
        let millis = [100, 200, 400, 800, 1600, 3200, 6400, 10_000];
        for most in millis.map(Duration::from_millis) {
            let least = backoff.delay(&broken(), 0).unwrap();
            let longest = backoff.delay(&broken(), u64::MAX).unwrap();
            assert_eq!(least, most / 2);
            assert!(longest <= most && longest + Duration::from_micros(1) > most, "{longest:?}");
            backoff.tried += 1;
        }
        assert_eq!(backoff.delay(&broken(), 0), None);
        backoff.reset();
        assert!(backoff.delay(&broken(), 0).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_says_when() {
        let mut backoff = Backoff::new(&Retry::default());
        let told = |seconds| broken().retry_after(Duration::from_secs(seconds));
        let begun = Instant::now();
        assert!(backoff.wait(&told(30), &Call::default()).await);
        assert!((30..31).contains(&begun.elapsed().as_secs()));
        assert!(!backoff.wait(&told(3600), &Call::default()).await, "nobody waits for an hour");
        let hasty = Call { deadline: Some(Instant::now() + Duration::from_secs(10)), ..Call::default() };
        assert!(!backoff.wait(&told(30), &hasty).await, "it would be too late");
        assert!(backoff.wait(&told(5), &hasty).await);
        assert!(!Backoff::new(&Retry::never()).wait(&broken(), &Call::default()).await);
    }

    #[test]
    fn what_is_refused_is_not_tried_again() {
        for kind in ErrorKind::ALL {
            assert_eq!(passes(&kind.error()), kind == ErrorKind::Unavailable, "{kind:?}");
        }
        assert!(passes(&ErrorKind::ResourceExhausted.error().retry_after(Duration::from_secs(1))));
    }
}
