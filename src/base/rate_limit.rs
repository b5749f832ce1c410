//! Limits on the rate of calls, by owner or by client address.

use std::{hash::Hash, num::NonZeroU32, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, ReasonablyRealtime},
    middleware::NoOpMiddleware,
    state::keyed::HashMapStateStore,
};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Number of keys above which the keys without recent calls are removed, at most once per second.
const SWEPT_KEYS: usize = 10_000;

/// Minimum interval between two sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Clock of the runtime.
#[derive(Clone, Debug, Default)]
struct RuntimeClock;

impl Clock for RuntimeClock {
    type Instant = std::time::Instant;

    fn now(&self) -> Self::Instant {
        Instant::now().into_std()
    }
}

impl ReasonablyRealtime for RuntimeClock {}

/// Limiter by key, without information about calls within the limit.
type Limiter<K> = RateLimiter<K, HashMapStateStore<K>, RuntimeClock, NoOpMiddleware<std::time::Instant>>;

/// Maximum number of calls per second and key, with a burst of as many.
///
/// A key has state for one second after its last call, so the number of keys is bounded by those that call within a second.
#[derive(Debug)]
pub(crate) struct RateLimit<K: Hash + Eq + Clone> {
    /// `None`: no limit.
    limiter: Option<Limiter<K>>,
    swept: Mutex<Option<Instant>>,
}

impl<K: Hash + Eq + Clone> RateLimit<K> {
    /// Creates a limit of this many calls per second. Zero: no limit.
    pub(crate) fn new(per_second: u32) -> Self {
        let limiter = |rate| RateLimiter::hashmap_with_clock(Quota::per_second(rate), RuntimeClock);
        Self { limiter: NonZeroU32::new(per_second).map(limiter), swept: Mutex::default() }
    }

    /// Returns true if there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.limiter.is_some()
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The time after which the next call is within the limit.
    pub(crate) fn count(&self, key: &K) -> Result<(), Duration> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        if limiter.len() > SWEPT_KEYS {
            let mut swept = self.swept.lock();
            if swept.is_none_or(|swept| swept.elapsed() >= SWEEP_INTERVAL) {
                *swept = Some(Instant::now());
                limiter.retain_recent();
                limiter.shrink_to_fit();
            }
        }
        limiter.check_key(key).map_err(|exceeded| exceeded.wait_time_from(RuntimeClock.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn burst_of_a_second_is_within_the_limit_of_each_key() {
        let limit = RateLimit::new(5);
        for key in ["a", "b"] {
            for _ in 0..5 {
                limit.count(&key).unwrap();
            }
            let wait = limit.count(&key).unwrap_err();
            assert_eq!(wait, Duration::from_millis(200));
        }
        tokio::time::advance(Duration::from_millis(200)).await;
        limit.count(&"a").unwrap();
        limit.count(&"a").unwrap_err();
        let unlimited = RateLimit::new(0);
        assert!(!unlimited.is_limited());
        (0..1000).for_each(|_| unlimited.count(&"a").unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn keys_without_recent_calls_are_removed() {
        let limit = RateLimit::new(1);
        for key in 0..=SWEPT_KEYS {
            limit.count(&key).unwrap();
        }
        tokio::time::advance(Duration::from_secs(2)).await;
        limit.count(&0).unwrap();
        assert_eq!(limit.limiter.unwrap().len(), 1);
    }
}
