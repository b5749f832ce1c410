//! Delays before retries: exponential backoff with jitter, and `Retry-After`.

use std::time::Duration;

#[cfg(any(feature = "client", feature = "push"))]
use http::{HeaderMap, header};

#[cfg(any(feature = "client", feature = "push"))]
use crate::base::clock::Millis;

/// Exponential backoff.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    /// Delay before the first retry. It doubles with each further one.
    pub(crate) first: Duration,
    /// Maximum delay.
    pub(crate) longest: Duration,
}

impl Backoff {
    /// Returns the delay after this number of earlier retries, without jitter.
    pub(crate) fn without_jitter(self, retries: u32) -> Duration {
        self.first.saturating_mul(1_u32.checked_shl(retries).unwrap_or(u32::MAX)).min(self.longest)
    }

    /// Returns the delay after this number of earlier retries, with jitter.
    pub(crate) fn delay(self, retries: u32, random: u64) -> Duration {
        jittered(self.without_jitter(retries), random)
    }

    /// Returns the delay after this number of earlier retries, which begins after the time that the server asks for. `None` if
    /// it asks for more than `max`.
    pub(crate) fn delay_after(
        self,
        retry_after: Option<Duration>,
        max: Duration,
        retries: u32,
        random: u64,
    ) -> Option<Duration> {
        let retry_after = retry_after.unwrap_or_default();
        (retry_after <= max).then(|| retry_after.saturating_add(self.delay(retries, random)))
    }
}

/// Returns a random share of a delay between one half and the whole, so that callers that failed together do not retry together.
pub(crate) fn jittered(delay: Duration, random: u64) -> Duration {
    let nanos = ((delay / 2).as_nanos() * u128::from(random >> 32)) >> 32;
    delay / 2 + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Returns the time that a server asks for before a retry: seconds, or a date (RFC 9110, 10.2.3). Zero for a date in the past.
#[cfg(any(feature = "client", feature = "push"))]
pub(crate) fn retry_after(headers: &HeaderMap, now: Millis) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let now = std::time::SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(now).ok()?);
    Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_the_maximum() {
        let backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10) };
        let millis = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
        for (retries, expected) in (0..).zip(millis.map(Duration::from_millis)) {
            let (shortest, longest) = (backoff.delay(retries, 0), backoff.delay(retries, u64::MAX));
            assert_eq!((backoff.without_jitter(retries), shortest), (expected, expected / 2));
            assert!(longest <= expected && longest + Duration::from_micros(1) > expected, "{longest:?}");
        }
        assert_eq!(backoff.without_jitter(u32::MAX), Duration::from_secs(10));
        let unbounded = Backoff { longest: Duration::MAX, ..backoff };
        assert!(unbounded.delay(u32::MAX, u64::MAX) >= Duration::from_hours(1));
    }

    #[test]
    fn delay_begins_after_the_time_that_the_server_asks_for() {
        let backoff = Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(10) };
        let (second, max) = (Duration::from_secs(1), Duration::from_secs(30));
        let delay = |after| backoff.delay_after(after, max, 1, 0);
        assert_eq!(delay(None), Some(2 * second));
        assert_eq!(delay(Some(max)), Some(32 * second));
        assert_eq!(delay(Some(max + second)), None);
    }

    #[cfg(feature = "client")]
    #[test]
    fn retry_after_has_seconds_or_a_date() {
        // Fri, 31 Dec 1999 23:59:00 GMT.
        let now = 946_684_740_000;
        for (text, expected) in [
            ("2", Some(2)),
            (" 120 ", Some(120)),
            ("Fri, 31 Dec 1999 23:59:59 GMT", Some(59)),
            ("Friday, 31-Dec-99 23:59:59 GMT", Some(59)),
            ("Fri Dec 31 23:59:59 1999", Some(59)),
            ("Fri, 31 Dec 1999 23:58:00 GMT", Some(0)),
            ("-1", None),
            ("soon", None),
        ] {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, text.parse().unwrap())]);
            assert_eq!(retry_after(&headers, now), expected.map(Duration::from_secs), "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }
}
