//! Wall clock, timestamps, and arithmetic with instants. All reads of the time go through this module, so that a run can be
//! repeated.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::json::wkt::Timestamp;

/// Milliseconds since the Unix epoch, the resolution of the protocol's timestamps (5.6.1).
pub type Millis = i64;

/// Wall clock. Follows the system time with its steps, and through a suspend of the machine. Intervals are measured
/// with tokio's monotonic clock instead.
///
/// In a test that has paused tokio's clock, wall time advances with that clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Source);

#[derive(Clone, Copy, Debug)]
enum Source {
    System,
    /// Tokio's clock was paused at `start`, when the system's time was `base`.
    Paused {
        start: Instant,
        base: Duration,
    },
}

impl Clock {
    /// Creates a clock of the system time, or of tokio's clock if that is paused.
    pub fn new() -> Self {
        if is_paused() {
            Self(Source::Paused { start: Instant::now(), base: since_epoch(SystemTime::now()) })
        } else {
            Self(Source::System)
        }
    }

    /// Returns the current time.
    pub fn millis(&self) -> Millis {
        self.read(SystemTime::now)
    }

    fn read(&self, system: impl FnOnce() -> SystemTime) -> Millis {
        let now = match self.0 {
            Source::System => since_epoch(system()),
            Source::Paused { start, base } => base.saturating_add(start.elapsed()),
        };
        Millis::try_from(now.as_millis()).unwrap_or(Millis::MAX)
    }
}

/// Returns whether tokio's clock is paused: only then its time is not between two readings of the system's clock.
#[expect(clippy::disallowed_methods, reason = "the clock that can't be paused is compared with the one that can")]
fn is_paused() -> bool {
    let before = std::time::Instant::now();
    let now = Instant::now().into_std();
    now < before || std::time::Instant::now() < now
}

/// Returns the time since the Unix epoch, or zero for an earlier time.
pub(crate) fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the instant `delay` after `start`. A delay over 30 years is reduced to that, because an `Instant` may not be
/// able to represent more.
pub(crate) fn after(start: Instant, delay: Duration) -> Instant {
    const MAX_DELAY: Duration = Duration::from_hours(30 * 365 * 24);
    start.checked_add(delay.min(MAX_DELAY)).unwrap_or(start)
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Converts to a protobuf timestamp.
pub fn timestamp(millis: Millis) -> Timestamp {
    let nanos = i32::try_from(millis.rem_euclid(1000) * 1_000_000).unwrap_or(0);
    Timestamp { seconds: millis.div_euclid(1000), nanos }
}

/// Converts a protobuf timestamp to milliseconds. Truncates finer fractions.
pub fn millis(time: &Timestamp) -> Millis {
    time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch_plus(secs: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(secs)
    }

    #[tokio::test]
    async fn clock_follows_steps_of_system_time() {
        let clock = Clock::new();
        let readings = [100, 90_000, 50].map(|secs| clock.read(|| epoch_plus(secs)));
        assert_eq!(readings, [100_000, 90_000_000, 50_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn clock_moves_with_a_paused_tokio_clock() {
        let clock = Clock::new();
        let before = clock.millis();
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(clock.millis() - before, 3_600_000);
        assert_eq!(clock.read(|| epoch_plus(0)), clock.millis());
    }
}
