//! Identifiers and random numbers. All of them come from one source, which a simulation can seed.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::SystemTime,
};

use uuid::Uuid;

use crate::clock::since_epoch;

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
