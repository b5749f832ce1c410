//! Size of a context: of the events of all its tasks together.

use std::{
    mem,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync, time::Instant};

/// Minimum interval between two reads of the size of a context from the store.
const INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of the events of all tasks of a context, which the live tasks of the context share.
///
/// The sum as of the last read from the store, and what was accepted since or is not committed. Events that are committed
/// during a read may be left out or counted twice, and bytes of tasks that were deleted since are included: the next read
/// corrects both.
#[derive(Debug, Default)]
pub struct ContextBytes {
    totals: Mutex<Totals>,
    /// The sum is not known: it has not been read, or accepted events were dropped.
    stale: AtomicBool,
    /// Time of the last read. Locked during a read.
    read: sync::Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Totals {
    sum: usize,
    /// Bytes of accepted events that are not committed: a read from the store does not include them.
    uncommitted: usize,
}

impl ContextBytes {
    /// Creates the size of a context whose tasks, if any, are only in the store.
    pub fn unread() -> Self {
        Self { stale: AtomicBool::new(true), ..Self::default() }
    }

    /// Returns the bytes so far.
    pub fn get(&self) -> usize {
        self.totals.lock().sum
    }

    /// Adds bytes of an accepted event, or returns `false` if the sum would exceed `most`.
    pub fn try_add(&self, bytes: usize, most: usize) -> bool {
        let mut totals = self.totals.lock();
        let Some(sum) = totals.sum.checked_add(bytes).filter(|sum| *sum <= most) else { return false };
        (totals.sum, totals.uncommitted) = (sum, totals.uncommitted.saturating_add(bytes));
        true
    }

    /// Adds bytes of an accepted event without a limit.
    pub fn add(&self, bytes: usize) {
        let mut totals = self.totals.lock();
        (totals.sum, totals.uncommitted) = (totals.sum.saturating_add(bytes), totals.uncommitted.saturating_add(bytes));
    }

    /// Subtracts bytes that were added, and are not committed.
    pub fn subtract(&self, bytes: usize) {
        let mut totals = self.totals.lock();
        (totals.sum, totals.uncommitted) = (totals.sum.saturating_sub(bytes), totals.uncommitted.saturating_sub(bytes));
    }

    /// Records that bytes that were added are committed, or not going to be stored.
    pub fn commit(&self, bytes: usize) {
        let mut totals = self.totals.lock();
        totals.uncommitted = totals.uncommitted.saturating_sub(bytes);
    }

    /// Requires another read, because events that were added are not going to be stored.
    pub fn invalidate(&self) {
        self.stale.store(true, Ordering::Release);
    }

    /// Returns true if the sum should be read from the store: it is not known, or is more than half of `most` and may have
    /// become less. False during a read.
    pub fn is_due(&self, most: usize) -> bool {
        let matters = self.stale.load(Ordering::Acquire) || self.get() > most / 2;
        matters && self.read.try_lock().is_ok_and(|read| self.is_stale_at(*read))
    }

    fn is_stale_at(&self, read: Option<Instant>) -> bool {
        self.stale.load(Ordering::Acquire) || read.is_none_or(|read| read.elapsed() >= INTERVAL)
    }

    /// Reads the sum from the store, unless it was read within the last `INTERVAL`. Waits for a read that is in progress.
    pub async fn refresh<E>(&self, sum: impl Future<Output = Result<usize, E>>) -> Result<(), E> {
        let mut read = self.read.lock().await;
        if !self.is_stale_at(*read) {
            return Ok(());
        }
        self.stale.store(false, Ordering::Release);
        let unfinished = UnfinishedRead(self);
        let before = self.get();
        let sum = sum.await?;
        mem::forget(unfinished);
        let mut totals = self.totals.lock();
        let added = totals.sum.saturating_sub(before);
        totals.sum = sum.saturating_add(added.max(totals.uncommitted));
        *read = Some(Instant::now());
        Ok(())
    }
}

/// Read of a sum. Requires another one if it fails, or if its caller does not wait for its end.
struct UnfinishedRead<'a>(&'a ContextBytes);

impl Drop for UnfinishedRead<'_> {
    fn drop(&mut self) {
        self.0.invalidate();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::{pending, ready},
    };

    use futures_util::FutureExt as _;

    use super::*;

    fn sum(bytes: usize) -> impl Future<Output = Result<usize, Infallible>> {
        ready(Ok(bytes))
    }

    #[tokio::test(start_paused = true)]
    async fn sum_is_what_was_read_and_what_was_added_since() {
        let context = ContextBytes::unread();
        context.add(10);
        assert!(context.is_due(1000));
        // Committed before the read: the store has it.
        context.commit(10);
        context.refresh(async { sum(700).await.inspect(|_| context.add(5)) }).await.unwrap();
        assert_eq!(context.get(), 705);
        assert!(!context.try_add(296, 1000) && context.try_add(295, 1000));
        context.subtract(300);
        assert_eq!(context.get(), 700);
    }

    #[tokio::test(start_paused = true)]
    async fn read_keeps_what_is_not_committed() {
        let context = ContextBytes::unread();
        context.add(10);
        context.add(20);
        context.commit(10);
        context.refresh(sum(700)).await.unwrap();
        assert_eq!(context.get(), 720);
        context.invalidate();
        let during = async {
            context.add(5);
            context.commit(20);
            sum(720).await
        };
        context.refresh(during).await.unwrap();
        assert_eq!(context.get(), 725);
        context.invalidate();
        context.subtract(5);
        context.refresh(sum(720)).await.unwrap();
        assert_eq!(context.get(), 720);
    }

    #[tokio::test(start_paused = true)]
    async fn sum_is_read_again_only_where_it_matters_and_not_too_often() {
        let context = ContextBytes::default();
        context.add(500);
        assert!(!context.is_due(1000), "half of the limit");
        context.add(1);
        assert!(context.is_due(1000));
        context.commit(501);
        context.refresh(sum(900)).await.unwrap();
        assert!(!context.is_due(1000), "it was read just now");
        context.refresh(sum(0)).await.unwrap();
        assert_eq!(context.get(), 900);
        tokio::time::advance(INTERVAL).await;
        assert!(context.is_due(1000));
        context.refresh(sum(100)).await.unwrap();
        assert_eq!(context.get(), 100);
        context.invalidate();
        assert!(context.is_due(1000), "events were dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn abandoned_read_is_repeated() {
        let context = ContextBytes::unread();
        assert!(context.refresh(pending::<Result<usize, Infallible>>()).now_or_never().is_none());
        assert!(context.is_due(1000));
        context.refresh(sum(700)).await.unwrap();
        assert_eq!((context.get(), context.is_due(1000)), (700, false));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_read_is_repeated() {
        let context = ContextBytes::unread();
        assert_eq!(context.refresh(ready(Err("away"))).await, Err("away"));
        assert!(context.is_due(1000));
        let mut pending = Box::pin(context.refresh(pending::<Result<usize, Infallible>>()));
        assert!((&mut pending).now_or_never().is_none());
        assert!(!context.is_due(1000), "a read is in progress");
    }
}
