//! Memory of answers: of those that are being made, and of those that were made and wait for slow readers.
//!
//! One budget covers all connections. A read reserves memory before it loads what it answers with. A frame of an answer
//! counts from when it is encoded until hyper or HTTP/2 has sent or dropped it, and counts whole until then: its bytes are
//! one allocation. Frames of up to [`SMALL`] bytes do not count: they are bounded by the number of connections and streams.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::error::{Error, ErrorKind};

/// Frames of up to this many bytes do not count. The state of their stream takes as much.
pub(crate) const SMALL: usize = 1 << 10;

/// Delay after which a client may retry a call that was rejected for lack of memory.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Divisor of the budget: the share of a connection, and the maximum of a reservation for a read whose size is unknown.
const SHARES: usize = 8;

/// Budget of the answers of a service, as the requests of one connection see it.
#[derive(Clone, Debug)]
pub(crate) struct ResponseBudget {
    budget: Arc<Budget>,
    /// The other end of the connection. Without one there is no share.
    peer: Option<SocketAddr>,
}

#[derive(Debug)]
struct Budget {
    max: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    bytes: usize,
    /// Bytes of each connection that has any. Kept here, and not in an extension of each request, which costs a heap call.
    connections: HashMap<SocketAddr, usize>,
}

impl Used {
    fn add(&mut self, peer: Option<SocketAddr>, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if let Some(peer) = peer.filter(|_| bytes > 0) {
            let held = self.connections.entry(peer).or_default();
            *held = held.saturating_add(bytes);
        }
    }

    fn subtract(&mut self, peer: Option<SocketAddr>, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(Entry::Occupied(mut held)) = peer.map(|peer| self.connections.entry(peer)) {
            *held.get_mut() = held.get().saturating_sub(bytes);
            if *held.get() == 0 {
                held.remove();
            }
        }
    }
}

impl ResponseBudget {
    /// A budget of `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self { budget: Arc::new(Budget { max, used: Mutex::default() }), peer: None }
    }

    /// Returns the same budget for a request on the connection from this peer.
    pub(crate) fn on(&self, peer: Option<SocketAddr>) -> Self {
        Self { budget: Arc::clone(&self.budget), peer }
    }

    /// Rejects a new call if the budget is exceeded.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with the name of the limit.
    pub(crate) fn admit(&self) -> Result<(), Error> {
        self.take(0)
    }

    /// Reserves nothing yet.
    pub(crate) fn reservation(&self) -> Reservation {
        Reservation { unsent: self.clone(), bytes: AtomicUsize::new(0) }
    }

    /// Counts a frame until it is dropped, also beyond the budget.
    pub(crate) fn count(&self, data: Bytes) -> Bytes {
        if data.len() <= SMALL {
            return data;
        }
        let reserved = self.reservation();
        reserved.force(data.len());
        Bytes::from_owner(Counted { data, _reserved: reserved })
    }

    /// Takes bytes from the budget. A connection with more than its share may not take the second half of the budget from
    /// others.
    fn take(&self, bytes: usize) -> Result<(), Error> {
        let max = self.budget.max;
        let mut used = self.budget.used.lock();
        let total = used.bytes.saturating_add(bytes);
        if total <= max - max / 2 {
            used.add(self.peer, bytes);
            return Ok(());
        }
        let held = self.peer.and_then(|peer| used.connections.get(&peer)).copied().unwrap_or(0);
        let exceeds_share = self.peer.is_some() && held.saturating_add(bytes) > max / SHARES;
        let why = if total > max {
            format!("answers that are being made or wait for slow readers would have more than {max} bytes")
        } else if exceeds_share && used.bytes > held {
            format!("unread answers on this connection have {held} bytes, more than its share of {max}; read them")
        } else {
            used.add(self.peer, bytes);
            return Ok(());
        };
        let error = ErrorKind::Unavailable.because(format!("{why} (limits.unsent_bytes)"));
        Err(error.with("limit", "unsent_bytes").retry_after(RETRY_AFTER))
    }

    fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.budget.used.lock().subtract(self.peer, bytes);
        }
    }
}

/// Memory that is reserved for an answer while it is made, in the budget `limits.unsent_bytes`. Given back on drop.
#[derive(Debug)]
pub struct Reservation {
    unsent: ResponseBudget,
    bytes: AtomicUsize,
}

impl Reservation {
    /// Changes the reservation to this many bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if it grows and exceeds the budget; it then stays as it was.
    pub fn resize(&self, bytes: usize) -> Result<(), Error> {
        let before = self.bytes.load(Relaxed);
        match bytes.checked_sub(before) {
            Some(more) => self.unsent.take(more)?,
            None => self.unsent.give_back(before - bytes),
        }
        self.bytes.store(bytes, Relaxed);
        Ok(())
    }

    /// Gives all of it back.
    pub fn release(&self) {
        self.unsent.give_back(self.bytes.swap(0, Relaxed));
    }

    /// Reserves memory for a read whose size is unknown: `bytes`, or an eighth of the budget if that is less, so that a
    /// small budget does not reject every read.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the budget is exceeded.
    pub fn expect(&self, bytes: usize) -> Result<(), Error> {
        self.resize(bytes.min(self.unsent.budget.max / SHARES))
    }

    /// Adds bytes that exist already, also beyond the budget.
    pub(crate) fn force(&self, bytes: usize) {
        self.unsent.budget.used.lock().add(self.unsent.peer, bytes);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

/// Data that is counted.
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

    fn data(bytes: usize) -> Bytes {
        vec![0; bytes].into()
    }

    fn used(unsent: &ResponseBudget) -> (usize, usize) {
        let used = unsent.budget.used.lock();
        (used.bytes, used.connections.len())
    }

    #[test]
    fn bytes_count_until_their_last_slice_is_dropped() {
        let unsent = ResponseBudget::new(10_000);
        let mut frame = unsent.count(data(10_001));
        assert!(unsent.admit().is_err());
        let piece = frame.split_to(1);
        drop(frame);
        assert!(unsent.admit().is_err());
        drop(piece);
        let small = unsent.count(data(SMALL));
        assert!(unsent.reservation().resize(10_000).is_ok());
        drop(small);
        assert_eq!(used(&unsent), (0, 0));
    }

    #[test]
    fn reservations_count_with_frames() {
        let unsent = ResponseBudget::new(16_000);
        let frame = unsent.count(data(10_000));
        let read = unsent.reservation();
        assert!(read.expect(1 << 30).is_ok(), "an eighth of the budget");
        assert_eq!(read.bytes.load(Relaxed), 2000);
        let error = read.resize(6001).unwrap_err();
        assert_eq!((error.kind(), error.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
        assert!(error.to_string().contains("limits.unsent_bytes"), "{error}");
        assert!(read.resize(6000).is_ok() && unsent.reservation().expect(1).is_err());
        assert!(read.resize(1000).is_ok() && unsent.reservation().expect(1).is_ok());
        drop((frame, read));
        assert_eq!(used(&unsent), (0, 0));
    }

    #[test]
    fn a_connection_leaves_half_of_the_budget_to_others() {
        let unsent = ResponseBudget::new(16_000);
        let [first, second, third] = [1, 2, 3].map(|port| unsent.on(Some(([127, 0, 0, 1], port).into())));
        let large = first.reservation();
        assert!(large.resize(16_000).is_ok(), "nothing else counts");
        assert!(large.resize(6000).is_ok());
        let other = second.reservation();
        assert!(other.resize(2000).is_ok());
        let error = first.reservation().resize(1).unwrap_err();
        assert!(error.to_string().contains("on this connection") && error.to_string().contains("limits.unsent_bytes"));
        assert!(other.resize(1000).is_ok() && first.reservation().resize(1).is_ok());
        let shares: Vec<_> = [&third, &third, &second].map(ResponseBudget::reservation).into();
        assert!(shares.iter().all(|share| share.resize(1000).is_ok()));
        drop((large, other, shares));
        assert_eq!(used(&unsent), (0, 0));
    }
}
