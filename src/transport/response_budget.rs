//! Bytes of answers that were made and wait for slow readers, counted over all connections.
//!
//! A frame counts from when it is made until hyper or HTTP/2 has sent or dropped it. Frames of up to [`SMALL`] bytes do not
//! count: they are bounded by the number of connections and streams.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use super::write_timeout::SMALL;
use crate::error::{Error, ErrorKind};

/// Delay after which a client may retry a call that was rejected for lack of memory.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The bytes that wait, and how many there may be.
#[derive(Clone, Debug)]
pub(super) struct ResponseBudget(Arc<Counter>);

#[derive(Debug)]
struct Counter {
    waiting: AtomicUsize,
    max: usize,
}

impl ResponseBudget {
    pub(super) fn new(max: usize) -> Self {
        Self(Arc::new(Counter { waiting: AtomicUsize::new(0), max }))
    }

    /// Rejects an answer of this many bytes if the unsent bytes would exceed their maximum.
    pub(super) fn admit(&self, bytes: usize) -> Result<(), Error> {
        let Counter { waiting, max } = &*self.0;
        if waiting.load(Ordering::Relaxed).saturating_add(bytes) <= *max {
            return Ok(());
        }
        let why = format!("answers that wait for slow readers have more than {max} bytes (limits.unsent_bytes)");
        Err(ErrorKind::Unavailable.because(why).with("limit", "unsent_bytes").retry_after(RETRY_AFTER))
    }

    /// Counts a frame until it is dropped.
    pub(super) fn count(&self, data: Bytes) -> Bytes {
        if data.len() <= SMALL {
            return data;
        }
        self.0.waiting.fetch_add(data.len(), Ordering::Relaxed);
        Bytes::from_owner(Counted { data, counter: Arc::clone(&self.0) })
    }
}

/// Data that is counted.
struct Counted {
    data: Bytes,
    counter: Arc<Counter>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.counter.waiting.fetch_sub(self.data.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_until_their_last_slice_is_dropped() {
        let unsent = ResponseBudget::new(10_000);
        let mut frame = unsent.count(Bytes::from(vec![0; 10_000]));
        assert!(unsent.admit(1).is_err());
        let piece = frame.split_to(1);
        drop(frame);
        assert!(unsent.admit(1).is_err());
        drop(piece);
        assert!(unsent.admit(10_000).is_ok());
        let small = unsent.count(Bytes::from(vec![0; SMALL]));
        assert!(unsent.admit(10_000).is_ok());
        drop(small);
    }
}
