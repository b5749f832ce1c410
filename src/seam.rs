//! What would make a run differ from the last one: time, ids and chance. All go through here, so that a run can be repeated.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;
use uuid::Uuid;

use crate::pb::wkt::Timestamp;

/// Milliseconds since 1970: what the protocol's timestamps tell apart (5.6.1), and so all that is kept of a time.
pub type Millis = i64;

/// Wall time that moves with tokio's clock, so that a test that pauses one has paused both.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    base: Duration,
}

impl Clock {
    /// A clock that starts at the system's time.
    pub fn new() -> Self {
        Self { start: Instant::now(), base: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() }
    }

    /// Now.
    pub fn millis(&self) -> Millis {
        Millis::try_from((self.base + self.start.elapsed()).as_millis()).unwrap_or(Millis::MAX)
    }
}

/// The instant `delay` after `start`. A delay of more than 30 years, which an instant may not be able to represent, is cut to
/// that: it is as good as for ever.
pub(crate) fn after(start: Instant, delay: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_hours(30 * 365 * 24);
    start.checked_add(delay.min(LONGEST)).unwrap_or(start)
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// A time as the messages have it.
pub fn timestamp(millis: Millis) -> Timestamp {
    let nanos = i32::try_from(millis.rem_euclid(1000) * 1_000_000).unwrap_or(0);
    Timestamp { seconds: millis.div_euclid(1000), nanos }
}

/// A time as the messages have it, in milliseconds; what is finer is cut off.
pub fn millis(time: &Timestamp) -> Millis {
    time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos / 1_000_000))
}

/// Zero: ids are random. Else the state of the generator that a simulation has seeded.
static SEED: AtomicU64 = AtomicU64::new(0);

/// From here on the ids of this process follow from `seed`, which is not zero. For simulations, which want the same run
/// twice; ids that others could guess are not for servers.
pub fn seed(seed: u64) {
    SEED.store(seed, Ordering::SeqCst);
}

/// Milliseconds since 1970, and in the last twelve bits how many ids there have been in them.
static LAST: AtomicU64 = AtomicU64::new(0);

/// An id that nobody had before: a UUID of version 7, so that ids sort by their time, and those of a millisecond by the
/// order in which this process made them (RFC 9562, 6.2, method 1).
pub fn fresh_id() -> String {
    const COUNTER: u32 = 12;
    if let Some(id) = seeded() {
        return text(id);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(0) << COUNTER;
    let is_first = LAST.fetch_max(now, Ordering::Relaxed) < now;
    let at = if is_first { now } else { LAST.fetch_add(1, Ordering::Relaxed) + 1 };
    // What of a random UUID is random stands where one of version 7 has it too.
    let mut random = [0; 10];
    random.copy_from_slice(&Uuid::new_v4().as_bytes()[6..]);
    let [.., high, low] = at.to_be_bytes();
    (random[0], random[1]) = (high, low);
    text(uuid::Builder::from_unix_timestamp_millis(at >> COUNTER, &random).into_uuid())
}

/// An id that nobody had before, of something that is never looked for by its time.
pub fn random_id() -> String {
    text(seeded().unwrap_or_else(Uuid::new_v4))
}

/// A number that nobody can foresee, of all that there are.
pub(crate) fn random() -> u64 {
    let (high, low) = seeded().unwrap_or_else(Uuid::new_v4).as_u64_pair();
    // Some bits of an id say what kind of id it is.
    mix(high) ^ mix(!low)
}

/// The next id of a simulation.
fn seeded() -> Option<Uuid> {
    (SEED.load(Ordering::Relaxed) != 0).then(|| {
        let n = SEED.fetch_add(1, Ordering::SeqCst);
        Uuid::from_u64_pair(mix(n), mix(!n))
    })
}

fn text(id: Uuid) -> String {
    id.hyphenated().encode_lower(&mut Uuid::encode_buffer()).to_owned()
}

/// Splitmix64: one round spreads neighbouring numbers over all.
pub(crate) const fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
