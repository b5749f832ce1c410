//! Wall clock, and arithmetic with instants.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Milliseconds since the Unix epoch, the resolution of the protocol's timestamps (5.6.1).
pub type Millis = i64;

/// Wall clock. By default it follows the system time with its steps, and through a suspend of the machine. Intervals are
/// measured with tokio's monotonic clock instead.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock(Option<Simulated>);

/// Wall clock of a simulation: `time` at `start`.
#[derive(Clone, Copy, Debug)]
struct Simulated {
    start: Instant,
    time: Millis,
}

impl Clock {
    /// Creates a clock that shows `time` now and advances with tokio's clock.
    pub fn simulated(time: Millis) -> Self {
        Self(Some(Simulated { start: Instant::now(), time }))
    }

    /// Returns the current time.
    pub fn millis(&self) -> Millis {
        match &self.0 {
            None => whole_millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
            Some(Simulated { start, time }) => time.saturating_add(whole_millis(start.elapsed())),
        }
    }
}

/// Converts a duration to milliseconds. Truncates finer fractions.
pub(crate) fn whole_millis(time: Duration) -> Millis {
    let seconds = Millis::try_from(time.as_secs()).unwrap_or(Millis::MAX);
    seconds.saturating_mul(1000).saturating_add(time.subsec_millis().into())
}

/// Returns the instant `delay` after `start`. A delay over 30 years is reduced to that, because an `Instant` may not be
/// able to represent more.
pub(crate) fn after(start: Instant, delay: Duration) -> Instant {
    const MAX_DELAY: Duration = Duration::from_hours(30 * 365 * 24);
    start.checked_add(delay.min(MAX_DELAY)).unwrap_or(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn simulated_clock_moves_with_the_clock_of_tokio() {
        let clock = Clock::simulated(5000);
        tokio::time::advance(Duration::from_hours(1)).await;
        assert_eq!(clock.millis(), 3_605_000);
    }
}
