//! Memory budget of responses (three eighths of `limits.memory`): responses in preparation, and those that wait for slow readers. At the
//! limit, calls are rejected, and streams wait with their next large event.
//!
//! The budget covers all connections. A read reserves memory before it loads data from the store. A frame of a response
//! counts from when it is encoded until hyper or h2 has sent or dropped it. Until then it counts with its full length,
//! because its bytes are one allocation, and a quarter more for what the allocator needs beside it. Frames of up to [`SMALL`]
//! bytes do not count: the number of connections and streams bounds them.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

#[cfg(feature = "server")]
use crate::base::metric::LimitUse;
use crate::protocol::error::{Error, ErrorKind};

/// Maximum size of a frame that does not count, in bytes. The state of its stream has about that size.
pub(crate) const SMALL: usize = 1 << 10;

/// Divisor of a frame's length that gives the memory for fragmentation, as measured with glibc.
const ALLOCATOR_SHARE: usize = 4;

/// Delay after which a client may retry a call that was rejected for lack of memory.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Divisor of the budget that gives the share of a connection, and the maximum reservation of a read of unknown size.
const SHARES: usize = 8;

/// Handle to the response budget of a service, for the requests of one connection.
#[derive(Clone, Debug)]
pub struct ResponseBudget {
    budget: Arc<Budget>,
    /// Remote address of the connection. Without it, the share of the connection is not enforced.
    peer: Option<SocketAddr>,
}

#[derive(Debug)]
struct Budget {
    max: usize,
    used: Mutex<Used>,
    /// Wakes streams that wait for memory.
    released: Notify,
}

#[derive(Debug, Default)]
struct Used {
    bytes: usize,
    /// Number of the `bytes` that are in frames of streams.
    of_streams: usize,
    /// Bytes of each connection that has any. A counter in the extensions of each request would cost an allocation.
    connections: foldhash::HashMap<SocketAddr, usize>,
}

impl Used {
    /// Adds bytes, or subtracts them.
    fn change(&mut self, peer: Option<SocketAddr>, is_stream: bool, bytes: usize, change: fn(usize, usize) -> usize) {
        self.bytes = change(self.bytes, bytes);
        if is_stream {
            self.of_streams = change(self.of_streams, bytes);
        }
        if let Some(peer) = peer.filter(|_| bytes > 0) {
            let held = self.connections.entry(peer).or_default();
            *held = change(*held, bytes);
            if *held == 0 {
                self.connections.remove(&peer);
            }
        }
    }
}

impl ResponseBudget {
    /// Creates a budget of `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self { budget: Arc::new(Budget { max, used: Mutex::default(), released: Notify::new() }), peer: None }
    }

    /// Returns the use of the budget.
    #[cfg(feature = "server")]
    pub(crate) fn in_use(&self) -> LimitUse {
        LimitUse::new("outgoing_bytes", self.budget.used.lock().bytes, self.budget.max)
    }

    /// Returns a handle to this budget for a connection.
    pub(crate) fn for_peer(&self, peer: Option<SocketAddr>) -> Self {
        Self { budget: Arc::clone(&self.budget), peer }
    }

    /// Checks that the budget is not exceeded, before a new call.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with the name of the limit.
    pub(crate) fn admit(&self) -> Result<(), Error> {
        self.take(0)
    }

    /// Creates an empty reservation.
    pub(crate) fn reservation(&self) -> Reservation {
        Reservation { unsent: self.clone(), bytes: AtomicUsize::new(0), is_stream: false }
    }

    /// Counts a response, or a frame of a stream, until it is dropped. It may exceed the budget; that of a stream does not use the
    /// half that is left to calls.
    pub(crate) fn count(&self, data: Bytes, is_stream: bool) -> Bytes {
        if data.len() <= SMALL {
            return data;
        }
        let reserved = Reservation { unsent: self.clone(), bytes: AtomicUsize::new(0), is_stream };
        reserved.add_unchecked(data.len() + data.len() / ALLOCATOR_SHARE);
        Bytes::from_owner(Counted { data, _reserved: reserved })
    }

    /// Waits until [`has_room`](Self::has_room). Nothing is reserved: the caller counts the event at once. Several may pass
    /// together, as many as there are threads.
    pub(crate) async fn wait_for_room(&self, bytes: usize) {
        loop {
            let mut released = pin!(self.budget.released.notified());
            // Before the check, so that no release is missed.
            released.as_mut().enable();
            if self.has_room(bytes) {
                return;
            }
            released.await;
        }
    }

    /// Returns true if half of the budget has room for an event of this many bytes of a stream, or for an eighth of the budget
    /// if that is less. The other half is left to calls, which do not wait.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let max = self.budget.max;
        bytes <= SMALL || self.budget.used.lock().bytes.saturating_add(bytes.min(max / SHARES)) <= max / 2
    }

    /// Takes bytes from the budget. Once half of the budget is used, a connection may not exceed its share while other
    /// connections use the budget too.
    fn take(&self, bytes: usize) -> Result<(), Error> {
        let max = self.budget.max;
        let mut used = self.budget.used.lock();
        // A large event, or several that passed together, exceed the half of streams only.
        let total = used.bytes.saturating_add(bytes).saturating_sub(used.of_streams.saturating_sub(max / 2));
        if total <= max - max / 2 {
            used.change(self.peer, false, bytes, usize::saturating_add);
            return Ok(());
        }
        let held = self.peer.and_then(|peer| used.connections.get(&peer)).copied().unwrap_or(0);
        let exceeds_share = self.peer.is_some() && held.saturating_add(bytes) > max / SHARES;
        let reason = if total > max {
            format!("responses in preparation or not yet read exceed {max} bytes; retry later")
        } else if exceeds_share && used.bytes > held {
            format!(
                "{held} bytes of responses on this connection are unread, too large a share of {max} bytes; read them first"
            )
        } else {
            used.change(self.peer, false, bytes, usize::saturating_add);
            return Ok(());
        };
        let error = ErrorKind::Unavailable.because(format!("{reason} (limits.memory)"));
        Err(error.limit("outgoing_bytes").retry_after(RETRY_AFTER))
    }

    fn release_bytes(&self, bytes: usize, is_stream: bool) {
        if bytes > 0 {
            self.budget.used.lock().change(self.peer, is_stream, bytes, usize::saturating_sub);
            self.budget.released.notify_waiters();
        }
    }
}

/// Memory that is reserved in the budget for a response in preparation. Released on drop.
#[derive(Debug)]
pub struct Reservation {
    unsent: ResponseBudget,
    bytes: AtomicUsize,
    is_stream: bool,
}

impl Reservation {
    /// Changes the size of the reservation, in bytes. A size of up to 1024 bytes does not count, as that of a frame.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if it grows and exceeds the budget. The reservation is then unchanged.
    pub fn resize(&self, bytes: usize) -> Result<(), Error> {
        let bytes = if bytes <= SMALL { 0 } else { bytes };
        let before = self.bytes.load(Relaxed);
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => self.unsent.take(more)?,
            None => self.unsent.release_bytes(before - bytes, self.is_stream),
        }
        self.bytes.store(bytes, Relaxed);
        Ok(())
    }

    /// Releases the whole reservation.
    pub fn release(&self) {
        self.unsent.release_bytes(self.bytes.swap(0, Relaxed), self.is_stream);
    }

    /// Reserves memory for a read of unknown size: `bytes`, or an eighth of the budget if that is less, so that a small budget
    /// does not reject every read.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the budget is exceeded.
    pub fn reserve_for_read(&self, bytes: usize) -> Result<(), Error> {
        self.resize(bytes.min(self.unsent.budget.max / SHARES))
    }

    /// Adds bytes that are already allocated. They may exceed the budget.
    pub(crate) fn add_unchecked(&self, bytes: usize) {
        let mut used = self.unsent.budget.used.lock();
        used.change(self.unsent.peer, self.is_stream, bytes, usize::saturating_add);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

/// Frame data with its reservation.
struct Counted {
    data: Bytes,
    _reserved: Reservation,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unit of the sizes below. One unit counts.
    const K: usize = SMALL + 1;

    fn data(bytes: usize) -> Bytes {
        vec![0; bytes].into()
    }

    fn used(unsent: &ResponseBudget) -> (usize, usize) {
        let used = unsent.budget.used.lock();
        (used.bytes, used.connections.len())
    }

    #[test]
    fn frame_counts_until_its_last_slice_is_dropped() {
        let unsent = ResponseBudget::new(10_000 * K);
        let mut frame = unsent.count(data(10_001 * K), false);
        assert!(unsent.admit().is_err());
        let piece = frame.split_to(1);
        drop(frame);
        assert!(unsent.admit().is_err());
        drop(piece);
        let small = unsent.count(data(SMALL), false);
        assert!(unsent.reservation().resize(10_000 * K).is_ok());
        drop(small);
        assert_eq!(used(&unsent), (0, 0));
    }

    #[test]
    fn reservations_count_with_frames() {
        let unsent = ResponseBudget::new(16_000 * K);
        // Counts as 10 000 units.
        let frame = unsent.count(data(8000 * K), false);
        let read = unsent.reservation();
        assert!(read.reserve_for_read(1 << 30).is_ok(), "an eighth of the budget");
        assert_eq!(read.bytes.load(Relaxed), 2000 * K);
        let error = read.resize(6001 * K).unwrap_err();
        assert_eq!((error.kind(), error.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
        assert!(error.to_string().contains("limits.memory"), "{error}");
        assert!(read.resize(6000 * K).is_ok() && unsent.reservation().reserve_for_read(K).is_err());
        assert!(read.resize(1000 * K).is_ok() && unsent.reservation().reserve_for_read(K).is_ok());
        drop((frame, read));
        assert_eq!(used(&unsent), (0, 0));
    }

    #[test]
    fn streams_leave_half_of_the_budget_to_calls() {
        let unsent = ResponseBudget::new(8000 * K);
        let frames = [(); 2].map(|()| unsent.count(data(8000 * K), true));
        let call = unsent.reservation();
        assert!(call.resize(4001 * K).is_err() && call.resize(4000 * K).is_ok() && unsent.admit().is_ok());
        assert!(!unsent.has_room(2 * K) && unsent.reservation().resize(K).is_err());
        drop(frames);
        assert!(call.resize(8000 * K).is_ok());
        drop(call);
        assert_eq!(used(&unsent), (0, 0));
    }

    #[tokio::test]
    async fn streams_wait_for_room() {
        let unsent = ResponseBudget::new(8000 * K);
        let held = unsent.reservation();
        held.add_unchecked(3900 * K);
        assert!(unsent.has_room(SMALL) && unsent.has_room(100 * K) && !unsent.has_room(101 * K));
        let mut waiting = pin!(unsent.wait_for_room(1 << 30));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        held.resize(3001 * K).unwrap();
        assert!(futures_util::poll!(waiting.as_mut()).is_pending(), "an eighth of the budget is not free");
        held.resize(3000 * K).unwrap();
        waiting.await;
    }

    #[test]
    fn connection_over_its_share_may_use_half_of_the_budget() {
        let unsent = ResponseBudget::new(16_000 * K);
        let [first, second, third] = [1, 2, 3].map(|port| unsent.for_peer(Some(([127, 0, 0, 1], port).into())));
        let large = first.reservation();
        assert!(large.resize(16_000 * K).is_ok(), "the budget is not used otherwise");
        assert!(large.resize(6000 * K).is_ok());
        let other = second.reservation();
        assert!(other.resize(2000 * K).is_ok());
        let error = first.reservation().resize(K).unwrap_err();
        assert!(error.to_string().contains("on this connection") && error.to_string().contains("limits.memory"));
        assert!(other.resize(1000 * K).is_ok() && first.reservation().resize(K).is_ok());
        let shares: Vec<_> = [&third, &third, &second].map(ResponseBudget::reservation).into();
        assert!(shares.iter().all(|share| share.resize(1000 * K).is_ok()));
        drop((large, other, shares));
        assert_eq!(used(&unsent), (0, 0));
    }
}
