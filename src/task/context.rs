//! Size of a context: of the events of all its tasks together.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{sync::Mutex, time::Instant};

/// Minimum interval between two reads of the size of a context from the store.
const INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of the events of all tasks of a context, which the live tasks of the context share.
///
/// The sum as of the last read from the store, and what was accepted since. Events that are pending during a read may be
/// left out, and bytes of tasks that were deleted since are included: the next read corrects both.
#[derive(Debug, Default)]
pub struct ContextBytes {
    bytes: AtomicUsize,
    /// The sum is not known: it has not been read, or accepted events were dropped.
    stale: AtomicBool,
    /// Time of the last read. Locked during a read.
    read: Mutex<Option<Instant>>,
}

impl ContextBytes {
    /// Creates the size of a context whose tasks, if any, are only in the store.
    pub fn unread() -> Self {
        Self { stale: AtomicBool::new(true), ..Self::default() }
    }

    /// Returns the bytes so far.
    pub fn get(&self) -> usize {
        self.bytes.load(Ordering::Acquire)
    }

    /// Adds bytes, or returns `false` if the sum would exceed `most`.
    pub fn try_add(&self, bytes: usize, most: usize) -> bool {
        let add = |sum: usize| sum.checked_add(bytes).filter(|sum| *sum <= most);
        self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_ok()
    }

    /// Adds bytes without a limit.
    pub fn add(&self, bytes: usize) {
        self.update(|sum| sum.saturating_add(bytes));
    }

    /// Subtracts bytes that were added.
    pub fn subtract(&self, bytes: usize) {
        self.update(|sum| sum.saturating_sub(bytes));
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
        let before = self.get();
        match sum.await {
            Ok(sum) => {
                self.update(|now| sum.saturating_add(now.saturating_sub(before)));
                *read = Some(Instant::now());
                Ok(())
            }
            Err(error) => {
                self.invalidate();
                Err(error)
            }
        }
    }

    fn update(&self, change: impl Fn(usize) -> usize) {
        // It always returns a value.
        _ = self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, |sum| Some(change(sum)));
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::ready};

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
        // Added before the read: the store has it, or will have it.
        context.refresh(async { sum(700).await.inspect(|_| context.add(5)) }).await.unwrap();
        assert_eq!(context.get(), 705);
        assert!(!context.try_add(296, 1000) && context.try_add(295, 1000));
        context.subtract(300);
        assert_eq!(context.get(), 700);
    }

    #[tokio::test(start_paused = true)]
    async fn sum_is_read_again_only_where_it_matters_and_not_too_often() {
        let context = ContextBytes::default();
        context.add(500);
        assert!(!context.is_due(1000), "half of the limit");
        context.add(1);
        assert!(context.is_due(1000));
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
    async fn failed_read_is_repeated() {
        let context = ContextBytes::unread();
        assert_eq!(context.refresh(ready(Err("away"))).await, Err("away"));
        assert!(context.is_due(1000));
        let mut pending = Box::pin(context.refresh(std::future::pending::<Result<usize, Infallible>>()));
        assert!((&mut pending).now_or_never().is_none());
        assert!(!context.is_due(1000), "a read is in progress");
    }
}
