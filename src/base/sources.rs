//! Sources of a server: wall clock, ids and random numbers. A simulation replaces all three, so that two runs with
//! one seed have equal results.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use uuid::{Uuid, fmt::Hyphenated};

use crate::base::{
    clock::{Clock, Millis},
    trace::Tracing,
};

/// Sources of time, ids and randomness, which a server passes to its journal, its service and its transport.
///
/// The default is that of the system. Intervals are measured with tokio's clock, which tests can pause.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Wall clock.
    pub clock: Clock,
    /// Ids of tasks, contexts, messages, artifacts, push configurations and requests.
    pub ids: Ids,
    /// Random numbers.
    pub rng: Rng,
    /// Tracer. Set by the server.
    #[doc(hidden)]
    pub tracing: Tracing,
}

impl Sources {
    /// Creates the sources of a simulation, whose ids and random numbers depend only on `seed`. The wall clock starts
    /// at `start` and advances with tokio's clock, which should be paused. The runtime must be single-threaded.
    ///
    /// Not for production: the ids can be guessed.
    pub fn simulated(seed: u64, start: Millis) -> Self {
        let (clock, rng) = (Clock::simulated(start), Rng(Some(Arc::new(AtomicU64::new(seed)))));
        let ids = Ids { clock, rng: rng.clone(), newest: Some(Arc::default()) };
        Self { clock, ids, rng, tracing: Tracing::default() }
    }
}

/// Source of ids: UUIDs in text form.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    clock: Clock,
    rng: Rng,
    /// Time and number of the newest time-ordered id of a simulation. `None`: that of the process.
    newest: Option<Arc<AtomicU64>>,
}

impl Ids {
    /// Returns a new UUID of version 7. Ids sort by time, and within a millisecond by the order of their creation.
    pub fn time_ordered(&self) -> String {
        text(self.next())
    }

    /// Returns a new UUID as [`time_ordered`](Self::time_ordered) does, without an allocation.
    pub(crate) fn time_ordered_ascii(&self) -> [u8; Hyphenated::LENGTH] {
        let mut text = [0; _];
        self.next().hyphenated().encode_lower(&mut text);
        text
    }

    fn next(&self) -> Uuid {
        /// Bits of the number of an id within its millisecond. More ids get the time of the next millisecond (RFC 9562, 6.2).
        const NUMBER_BITS: u32 = 12;
        const VERSION: u64 = 7 << NUMBER_BITS;
        const VARIANT: u64 = 0b10 << 62;
        static NEWEST: AtomicU64 = AtomicU64::new(0);
        let now = u64::try_from(self.clock.millis()).unwrap_or(0) << NUMBER_BITS;
        let newest = self.newest.as_deref().unwrap_or(&NEWEST);
        let next = |newest: u64| now.max(newest + 1);
        let before = newest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |newest| Some(next(newest)));
        let (Ok(before) | Err(before)) = before;
        let time = next(before);
        let (millis, number) = (time >> NUMBER_BITS, time & ((1 << NUMBER_BITS) - 1));
        Uuid::from_u64_pair(millis << 16 | VERSION | number, VARIANT | self.rng.next_u64() >> 2)
    }

    /// Returns a new random UUID of version 4, for objects that are never sorted by time.
    pub fn random(&self) -> String {
        if self.rng.0.is_none() {
            return text(Uuid::new_v4());
        }
        let (high, low) = (self.rng.next_u64(), self.rng.next_u64());
        text(uuid::Builder::from_random_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes()).into_uuid())
    }
}

fn text(id: Uuid) -> String {
    id.hyphenated().encode_lower(&mut Uuid::encode_buffer()).to_owned()
}

/// Source of random numbers: unpredictable ones, unless they are simulated.
#[derive(Clone, Debug, Default)]
pub struct Rng(Option<Arc<AtomicU64>>);

impl Rng {
    /// Returns a random number.
    pub fn next_u64(&self) -> u64 {
        if let Some(state) = &self.0 {
            return mix(state.fetch_add(1, Ordering::Relaxed));
        }
        let (high, low) = Uuid::new_v4().as_u64_pair();
        // Mixed because some bits of a UUID are constant: version and variant.
        mix(high) ^ mix(!low)
    }
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

    #[tokio::test(start_paused = true)]
    async fn simulated_ids_depend_on_the_seed_and_sort_by_creation() {
        let ids = |seed| {
            let sources = Sources::simulated(seed, 1_700_000_000_000);
            let ordered: Vec<String> = (0..1000).map(|_| sources.ids.time_ordered()).collect();
            assert!(ordered.is_sorted());
            (ordered, sources.ids.random(), sources.rng.next_u64())
        };
        assert!(ids(1) == ids(1));
        assert!(ids(1) != ids(2));
    }

    #[test]
    fn ids_are_uuids_that_sort_by_creation() {
        for sources in [Sources::default(), Sources::simulated(7, 1_700_000_000_000)] {
            let ids: Vec<String> = (0..1000).map(|_| sources.ids.time_ordered()).collect();
            assert!(ids.is_sorted());
            let versions = [&ids[0], &sources.ids.random()].map(|id| Uuid::parse_str(id).unwrap().get_version_num());
            assert_eq!(versions, [7, 4]);
        }
    }
}
