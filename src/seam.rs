//! Sources of nondeterminism: wall clock, ids and random numbers. All code uses these, so that a simulation with a seed
//! can be repeated.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;
use uuid::Uuid;

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
fn since_epoch(time: SystemTime) -> Duration {
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

/// State of the id generator of a simulation; zero if ids are random.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Makes the ids and random numbers of this process a function of `seed`, which must not be zero. For simulations only:
/// the ids can be guessed.
pub fn seed(seed: u64) {
    SEED.store(seed, Ordering::SeqCst);
}

/// Last time-ordered id: milliseconds since the Unix epoch, and in the low 12 bits a counter within the millisecond.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns a new UUID of version 7. Ids sort by time, and within a millisecond by the order in which this process
/// created them (RFC 9562, 6.2, method 1).
pub fn fresh_id() -> String {
    const COUNTER: u32 = 12;
    if let Some(id) = seeded() {
        return text(id);
    }
    let now = since_epoch(SystemTime::now());
    let now = u64::try_from(now.as_millis()).unwrap_or(0) << COUNTER;
    let is_first = LAST.fetch_max(now, Ordering::Relaxed) < now;
    let at = if is_first { now } else { LAST.fetch_add(1, Ordering::Relaxed) + 1 };
    // The last ten bytes of version 4 are random, except the variant bits, which version 7 shares.
    let mut random = [0; 10];
    random.copy_from_slice(&Uuid::new_v4().as_bytes()[6..]);
    let [.., high, low] = at.to_be_bytes();
    (random[0], random[1]) = (high, low);
    text(uuid::Builder::from_unix_timestamp_millis(at >> COUNTER, &random).into_uuid())
}

/// Returns a new random UUID of version 4, for objects that are never sorted by time.
pub fn random_id() -> String {
    text(seeded().unwrap_or_else(Uuid::new_v4))
}

/// Returns an unpredictable random number.
pub(crate) fn random() -> u64 {
    let (high, low) = seeded().unwrap_or_else(Uuid::new_v4).as_u64_pair();
    // Mixed because some bits of a UUID are constant: version and variant.
    mix(high) ^ mix(!low)
}

/// Returns the next id of a simulation, or `None` if ids are random.
fn seeded() -> Option<Uuid> {
    (SEED.load(Ordering::Relaxed) != 0).then(|| {
        let n = SEED.fetch_add(1, Ordering::SeqCst);
        Uuid::from_u64_pair(mix(n), mix(!n))
    })
}

fn text(id: Uuid) -> String {
    id.hyphenated().encode_lower(&mut Uuid::encode_buffer()).to_owned()
}

/// Splitmix64: one round, which distributes neighbouring numbers over the whole range.
pub(crate) const fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
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
