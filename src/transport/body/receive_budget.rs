//! Limits of request bodies in receipt: total bytes of all connections, a quarter of `limits.memory`, and time per body.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use crate::{
    base::{clock, metric::LimitUse},
    protocol::error::{Error, ErrorKind},
    transport::{RequestBody, body::BodyLimits},
};

/// Maximum size of a small body in bytes. Small bodies may use the whole budget, and larger ones seven eighths of it, so that
/// large slow bodies do not block small requests.
const SMALL: usize = 16 << 10;

/// Budget for requests of gRPC's health service in bytes. Its clients are not authenticated, so they must not exhaust the
/// budget of other requests.
const HEALTH_BYTES: usize = 4 << 20;

/// Maximum size of a gRPC request of the health service in bytes. It contains only the name of a service.
pub(in crate::transport) const HEALTH_MESSAGE: usize = 1 << 10;

/// Maximum size of a small request of the health service in bytes. Nearly all are small.
const SMALL_HEALTH: usize = 64;

/// Delay after which a client that exceeded the budget may retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Maximum age of a request that is a stream of messages. Only reflection has such requests.
const MAX_STREAM_AGE: Duration = Duration::from_mins(10);

/// Budget for the incomplete request bodies of all connections.
#[derive(Debug)]
pub(in crate::transport) struct ReceiveBudget {
    limit: usize,
    /// Maximum size of a body that may use the last eighth of the budget.
    small: usize,
    /// Names of the bodies, of the limit, and of the key that sets it, in errors.
    names: [&'static str; 3],
    used: AtomicUsize,
}

impl ReceiveBudget {
    /// Creates a budget of `limit` bytes; zero is no limit.
    pub(in crate::transport) fn new(limit: usize) -> Arc<Self> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        let names = ["request", "incoming_bytes", "limits.memory"];
        Arc::new(Self { limit, small: SMALL, names, used: AtomicUsize::new(0) })
    }

    /// Creates a budget for requests of gRPC's health service.
    pub(in crate::transport) fn of_health() -> Arc<Self> {
        let names = ["health check", "health_bytes", "fixed limit"];
        Arc::new(Self { limit: HEALTH_BYTES, small: SMALL_HEALTH, names, used: AtomicUsize::new(0) })
    }

    /// Returns the use of the budget.
    pub(in crate::transport) fn in_use(&self) -> LimitUse {
        let [_, name, _] = self.names;
        LimitUse::new(name, self.used.load(Relaxed), self.limit)
    }

    /// Creates an empty reservation for a body.
    pub(in crate::transport) fn reservation(self: &Arc<Self>) -> ReceiveReservation {
        ReceiveReservation { budget: Arc::clone(self), bytes: 0 }
    }
}

/// Reservation for the received bytes of a body, released on drop.
#[derive(Debug)]
pub(in crate::transport) struct ReceiveReservation {
    budget: Arc<ReceiveBudget>,
    bytes: usize,
}

impl ReceiveReservation {
    /// Reserves further bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if they exceed the budget.
    pub(in crate::transport) fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        let ReceiveBudget { limit, small, names: [bodies, name, key], .. } = *self.budget;
        let total = self.bytes.saturating_add(bytes);
        let share = if total <= small { limit } else { limit - limit / 8 };
        let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= share);
        if self.budget.used.fetch_update(Relaxed, Relaxed, fits).is_err() {
            let why = format!("more than {limit} {bodies} bytes are being received; retry later ({key})");
            return Err(ErrorKind::Unavailable.because(why).limit(name).retry_after(RETRY_AFTER));
        }
        self.bytes = total;
        Ok(())
    }

    /// Releases all bytes.
    pub(in crate::transport) fn release(&mut self) {
        self.budget.used.fetch_sub(std::mem::take(&mut self.bytes), Relaxed);
    }
}

impl Drop for ReceiveReservation {
    fn drop(&mut self) {
        self.release();
    }
}

/// Returns the error for a body that is not complete after the timeout.
pub(in crate::transport) fn too_slow(timeout: Duration) -> Error {
    ErrorKind::RequestTimeout.because(format!("the body was not received within {timeout:?}"))
}

/// Body of a gRPC request with a stream of messages. tonic has no timeout for the receipt of a message, and buffers an
/// incomplete one. The timeout applies between two frames, and the stream has a maximum age.
pub(in crate::transport) fn message_stream<B: RequestBody>(body: B, limits: &BodyLimits) -> tonic::body::Body {
    let (timeout, end) = (limits.body_timeout, clock::after(Instant::now(), MAX_STREAM_AGE));
    let start = (Box::pin(body), limits.receiving.reservation());
    let frames = stream::unfold(start, move |(mut body, mut reserved)| async move {
        let due = clock::after(Instant::now(), timeout).min(end);
        let frame = match timeout_at(due, body.frame()).await {
            Ok(frame) => frame?.map_err(|error| Status::from_error(error.into())),
            Err(_) => Err(too_slow(timeout).into()),
        };
        // Earlier frames were decoded, except for at most one incomplete message.
        reserved.release();
        let frame = frame.and_then(|frame| {
            reserved.grow(frame.data_ref().map_or(0, Bytes::len))?;
            Ok(frame)
        });
        Some((frame, (body, reserved)))
    });
    tonic::body::Body::new(StreamBody::new(frames))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_leave_a_share_of_the_budget_to_small_ones() {
        let budget = ReceiveBudget::new(8 * SMALL);
        let mut large = budget.reservation();
        assert!(large.grow(7 * SMALL).is_ok());
        let error = large.grow(1).unwrap_err();
        assert_eq!((error.kind(), error.retry_after_seconds()), (ErrorKind::Unavailable, Some(1)));
        assert!(
            error.to_string().contains("more than 131072") && error.to_string().contains("(limits.memory)"),
            "{error}"
        );

        let mut small = budget.reservation();
        assert!(small.grow(SMALL).is_ok() && budget.reservation().grow(1).is_err());
        drop(large);
        assert!(small.grow(6 * SMALL).is_ok());
        drop(small);
        assert_eq!(budget.used.load(Relaxed), 0);
    }

    #[test]
    fn health_checks_have_a_budget_with_a_share_for_small_ones() {
        let budget = ReceiveBudget::of_health();
        let large: Vec<_> = (0..HEALTH_BYTES / 1000).map(|_| budget.reservation()).collect();
        let admitted = large.into_iter().map_while(|mut body| body.grow(1000).ok().map(|()| body)).collect::<Vec<_>>();
        assert_eq!(admitted.len(), (HEALTH_BYTES - HEALTH_BYTES / 8) / 1000);
        let error = budget.reservation().grow(1000).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("health check bytes"), "{error}");
        assert!(budget.reservation().grow(SMALL_HEALTH).is_ok());
    }

    #[test]
    fn zero_is_no_limit() {
        let budget = ReceiveBudget::new(0);
        assert!(budget.reservation().grow(usize::MAX / 2).is_ok());
    }
}
