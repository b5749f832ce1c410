//! Writer thread and group commit: waiting jobs of all tasks are combined into one transaction. If a job can't be written,
//! the transaction is repeated so that only the failing part is rejected.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
};

use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tokio::sync::oneshot;

use super::{
    Commit, Committed, Quota, Refused, Scope, Unavailable,
    error::Error,
    failpoint,
    health::Health,
    threads::{Jobs, WorkerThreads},
    transaction::{Counters, EvictionStarts, LargeContexts, UnreadableTasks, WriteTransaction},
    values::{describe, is_damage, other_error},
    wal_checkpoint::{CHECKPOINT_PAGES, LONG_WAL_PAGES},
    write::CommitBatch,
};
use crate::store::Rejected;

/// Maximum number of jobs in a transaction.
const MAX_BATCH: usize = 256;

/// Capacity of the job queue.
const QUEUE: usize = 1024;

/// Trial write of the size of a typical commit, which detects a full or read-only disk.
pub(super) const PROBE: &str = "INSERT INTO probe VALUES(zeroblob(16384)); DELETE FROM probe";

/// Maximum number of scopes whose row ids are cached.
const MAX_CACHED_SCOPES: usize = 16_384;

/// Handle of the writer thread.
pub(super) struct Writer(WorkerThreads<Box<dyn WriteJob>>);

/// Job of the writer. Its parts can be written independently of each other.
trait WriteJob: Send {
    /// Number of parts.
    fn parts(&self) -> usize;
    /// The parts can be written again, each for itself, after a rollback.
    fn is_repeatable(&self) -> bool;
    /// Writes one part, the result of which replaces that of an earlier run. If this fails, the transaction is rolled back.
    fn run(&mut self, part: usize, transaction: &mut WriteTransaction<'_>) -> rusqlite::Result<()>;
    /// Records that a part can't be written, whatever the other parts are: `reason`, or `cause` if the caller has no
    /// result for that.
    fn reject(&mut self, part: usize, reason: Rejected, cause: Unavailable);
    /// Sends the result, once that is durable.
    fn respond(self: Box<Self>, outcome: Result<(), Unavailable>);
}

/// Job with a closure and one result.
struct ClosureJob<T, F> {
    work: F,
    /// The closure can run again after a rollback.
    is_repeatable: bool,
    result: Option<T>,
    failure: Option<Unavailable>,
    reply: oneshot::Sender<Result<T, Unavailable>>,
}

impl<T: Send, F: FnMut(&mut WriteTransaction<'_>) -> rusqlite::Result<T> + Send> WriteJob for ClosureJob<T, F> {
    fn parts(&self) -> usize {
        1
    }

    fn is_repeatable(&self) -> bool {
        self.is_repeatable
    }

    fn run(&mut self, _: usize, transaction: &mut WriteTransaction<'_>) -> rusqlite::Result<()> {
        // The result of a transaction that was rolled back is void.
        self.result = None;
        self.result = Some((self.work)(transaction)?);
        Ok(())
    }

    fn reject(&mut self, _: usize, _: Rejected, cause: Unavailable) {
        self.failure = Some(cause);
    }

    fn respond(self: Box<Self>, outcome: Result<(), Unavailable>) {
        let Self { result, failure, reply, .. } = *self;
        let rolled_back =
            || failure.unwrap_or_else(|| Unavailable("the transaction was rolled back; try again".into()));
        let outcome = outcome.and_then(|()| result.ok_or_else(rolled_back));
        // The caller may have been dropped.
        drop(reply.send(outcome));
    }
}

/// Outcomes of the changes of a batch, in order.
type Outcomes = Vec<Result<Committed, Refused>>;

/// Job that writes a batch of changes, each of which is a part.
struct CommitJob {
    batch: CommitBatch,
    outcomes: Outcomes,
    reply: oneshot::Sender<Result<Outcomes, Unavailable>>,
}

impl WriteJob for CommitJob {
    fn parts(&self) -> usize {
        self.outcomes.len()
    }

    fn is_repeatable(&self) -> bool {
        true
    }

    fn run(&mut self, part: usize, transaction: &mut WriteTransaction<'_>) -> rusqlite::Result<()> {
        self.outcomes[part] = transaction.commit(&self.batch, part)?.map(|()| Committed::default());
        Ok(())
    }

    fn reject(&mut self, part: usize, reason: Rejected, _: Unavailable) {
        self.outcomes[part] = Err(Refused::Rejected(reason));
    }

    fn respond(self: Box<Self>, outcome: Result<(), Unavailable>) {
        let Self { outcomes, reply, .. } = *self;
        drop(reply.send(outcome.map(|()| outcomes)));
    }
}

/// State of the writer thread.
struct State {
    db: Connection,
    scopes: HashMap<Arc<Scope>, i64>,
    large_contexts: LargeContexts,
    unreadable: UnreadableTasks,
    eviction_starts: EvictionStarts,
    quota: Arc<Mutex<Quota>>,
    health: Arc<Health>,
    /// Set by the checkpoint thread: the write-ahead log is long, and almost all of it is in the database. The writer then
    /// completes the checkpoint between two transactions, so that SQLite restarts the log. Under continuous load, no other
    /// thread ever reaches the end of the log.
    wal_is_long: Arc<AtomicBool>,
    /// Maximum size of the database in bytes.
    max_bytes: Option<u64>,
}

/// Failure of a transaction, with the index of the part that caused it, if one did.
type Failure = (rusqlite::Error, Option<usize>);

impl Writer {
    pub(super) fn new(
        mut db: Connection,
        quota: Arc<Mutex<Quota>>,
        health: Arc<Health>,
        wal_is_long: Arc<AtomicBool>,
        checkpoint: SyncSender<()>,
        max_bytes: Option<u64>,
    ) -> Result<Self, Error> {
        let mut reported = 0;
        let hook = move |_: &mut rusqlite::hooks::Wal, pages: std::ffi::c_int| {
            // Fewer pages than before: SQLite has restarted the log.
            reported = if pages < reported { 0 } else { reported };
            if pages - reported >= CHECKPOINT_PAGES {
                reported = pages;
                // A full channel means that the checkpoint thread will run again anyway.
                _ = checkpoint.try_send(());
            }
            Ok(())
        };
        db.wal_hook(Some(hook))?;
        let state = State {
            db,
            scopes: HashMap::new(),
            large_contexts: None,
            unreadable: UnreadableTasks::default(),
            eviction_starts: EvictionStarts::default(),
            quota,
            health,
            wal_is_long,
            max_bytes,
        };
        let threads = WorkerThreads::spawn("sqlite-write", QUEUE, [move |jobs| state.run(&jobs)])?;
        Ok(Self(threads))
    }

    /// Runs `work` in a transaction. Returns when it is durable. If the transaction is rolled back because of another job,
    /// `work` runs again.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut WriteTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.submit(true, work).await
    }

    /// Runs `work` in a transaction, once. Returns when it is durable. Fails if the transaction is rolled back, whatever
    /// the cause.
    pub(super) async fn run_once<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut WriteTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let mut work = Some(work);
        let once = move |transaction: &mut WriteTransaction<'_>| {
            let work = work.take().ok_or_else(|| other_error("the transaction was rolled back; try again"))?;
            work(transaction)
        };
        self.submit(false, once).await
    }

    async fn submit<T: Send + 'static>(
        &self,
        is_repeatable: bool,
        work: impl FnMut(&mut WriteTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, result) = oneshot::channel();
        self.0.submit(Box::new(ClosureJob { work, is_repeatable, result: None, failure: None, reply })).await?;
        result.await.unwrap_or_else(|_| Err(Unavailable("the writer thread has stopped".into())))
    }

    /// Commits changes. Returns when they are durable, with the outcome of each.
    pub(super) async fn commit(&self, commits: Arc<[Commit]>) -> Result<Outcomes, Unavailable> {
        let (reply, result) = oneshot::channel();
        let (outcomes, batch) = (vec![Ok(Committed::default()); commits.len()], CommitBatch::new(commits));
        self.0.submit(Box::new(CommitJob { batch, outcomes, reply })).await?;
        result.await.unwrap_or_else(|_| Err(Unavailable("the writer thread has stopped".into())))
    }
}

impl State {
    fn run(mut self, queue: &Jobs<Box<dyn WriteJob>>) {
        let mut jobs: Vec<Box<dyn WriteJob>> = Vec::new();
        while let Some(first) = queue.next() {
            jobs.push(first);
            while jobs.len() < MAX_BATCH
                && let Some(next) = queue.try_next()
            {
                jobs.push(next);
            }
            if let Err(lost) = self.health.check_files() {
                jobs.drain(..).for_each(|job| job.respond(Err(lost.clone())));
                continue;
            }
            // Repeatable jobs come first: when one of them fails, none of the others has run.
            jobs.sort_by_key(|job| !job.is_repeatable());
            let mut failed = None;
            let done = self.write(|transaction| {
                let mut numbered = jobs.iter_mut().enumerate();
                numbered.try_for_each(|(n, job)| {
                    (0..job.parts()).try_for_each(|part| job.run(part, transaction)).inspect_err(|_| failed = Some(n))
                })
            });
            let (written, outcome) = match done {
                Ok(()) => (jobs.len(), Ok(())),
                // The transaction may succeed without a part of the job that failed. One that can run only once fails now.
                Err(error) if failed.is_some_and(|n| jobs[n].is_repeatable()) && self.rejection(&error).is_some() => {
                    self.write_by_parts(&mut jobs)
                }
                Err(error) => (0, Err(error)),
            };
            let outcome = outcome.map_err(|error| self.health.unavailable(&error));
            self.health.record(&outcome);
            for (n, job) in jobs.drain(..).enumerate() {
                job.respond(if n < written { Ok(()) } else { outcome.clone() });
            }
            if self.wal_is_long.swap(false, Ordering::Relaxed) {
                self.complete_checkpoint();
            }
        }
    }

    /// Runs a transaction, which is rolled back if anything fails.
    fn write(&mut self, run: impl FnOnce(&mut WriteTransaction<'_>) -> rusqlite::Result<()>) -> rusqlite::Result<()> {
        failpoint::at("batch.begin")?;
        let sql_transaction = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut transaction = WriteTransaction {
            db: &sql_transaction,
            scopes: &mut self.scopes,
            large_contexts: &mut self.large_contexts,
            unreadable: &mut self.unreadable,
            eviction_starts: &mut self.eviction_starts,
            quota: &self.quota,
            quota_changes: Vec::new(),
            counters: Counters::default(),
        };
        if transaction.scopes.len() >= MAX_CACHED_SCOPES {
            transaction.scopes.clear();
        }
        let done = run(&mut transaction).and_then(|()| transaction.write_counters());
        let quota_changes = transaction.quota_changes;
        let done = done.and_then(|()| failpoint::at("batch.commit")).and_then(|()| sql_transaction.commit());
        match done {
            Ok(()) => failpoint::at("batch.answer"),
            Err(error) => {
                let mut quota = self.quota.lock();
                for (owner, was_terminal, is_terminal) in quota_changes.into_iter().rev() {
                    quota.count(&owner, is_terminal, was_terminal);
                }
                drop(quota);
                // The caches may contain rows that were rolled back.
                self.scopes.clear();
                self.large_contexts = None;
                self.eviction_starts = EvictionStarts::default();
                Err(error)
            }
        }
    }

    /// Writes jobs part by part, so that one that can't be written does not affect the others. Returns how many jobs were
    /// written, those with rejected parts included, and the error that prevented the others.
    ///
    /// `SQLITE_FULL` rolls back the whole transaction, and with it every savepoint. So a transaction ends at the first
    /// part that fails, the parts before it are written again, and the next transaction begins behind it.
    fn write_by_parts(&mut self, jobs: &mut [Box<dyn WriteJob>]) -> (usize, rusqlite::Result<()>) {
        let counts = jobs.iter().map(|job| job.parts()).enumerate();
        let parts: Vec<(usize, usize)> = counts.flat_map(|(job, n)| (0..n).map(move |part| (job, part))).collect();
        let mut written = 0;
        // Without cache spills, nothing is written to the disk before the commit. A statement that runs out of space then
        // exceeds the maximum size of the file, and a commit that does exceeds the disk.
        let mut outcome = self.db.pragma_update(None, "cache_spill", false);
        while outcome.is_ok() && written < parts.len() {
            outcome = self.write_until_rejected(jobs, &parts, &mut written);
        }
        let restored = self.db.pragma_update(None, "cache_spill", true);
        let outcome = outcome.and(restored);
        (parts.get(written).map_or(jobs.len(), |(job, _)| *job), outcome)
    }

    /// Writes the parts from `written` on, up to the first one that is rejected, and counts them.
    fn write_until_rejected(
        &mut self,
        jobs: &mut [Box<dyn WriteJob>],
        parts: &[(usize, usize)],
        written: &mut usize,
    ) -> rusqlite::Result<()> {
        let rest = &parts[*written..];
        let Err((error, at)) = self.write_parts(jobs, rest) else {
            *written = parts.len();
            return Ok(());
        };
        let (Some(at), Some(reason)) = (at, self.rejection(&error)) else { return Err(error) };
        if at > 0 {
            self.write_parts(jobs, &rest[..at]).map_err(|(error, _)| error)?;
            *written += at;
        }
        if error.sqlite_error_code() == Some(ErrorCode::DiskFull) {
            // If the trial write fails too, the store is full, and the size of the part is not the cause.
            self.probe()?;
        }
        let (job, part) = rest[at];
        jobs[job].reject(part, reason, self.health.unavailable(&error));
        *written += 1;
        Ok(())
    }

    fn write_parts(&mut self, jobs: &mut [Box<dyn WriteJob>], parts: &[(usize, usize)]) -> Result<(), Failure> {
        let mut at = None;
        let written = self.write(|transaction| {
            let mut numbered = parts.iter().enumerate();
            numbered.try_for_each(|(n, (job, part))| jobs[*job].run(*part, transaction).inspect_err(|_| at = Some(n)))
        });
        written.map_err(|error| (error, at))
    }

    /// Makes a trial write and rolls it back. Fails if the store is full.
    fn probe(&mut self) -> rusqlite::Result<()> {
        let transaction = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(PROBE)?;
        transaction.rollback()
    }

    /// Returns why a part of a transaction may have caused this error, and would on each attempt. `None` if the store
    /// failed.
    fn rejection(&self, error: &rusqlite::Error) -> Option<Rejected> {
        let invalid = || Rejected::Invalid(describe(error).into());
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => {
                let max = self.max_bytes?;
                self.health.is_out_of_space.store(true, Ordering::Relaxed);
                Some(Rejected::Size { limit: "store.max_size", max })
            }
            Some(ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch) => Some(invalid()),
            _ if is_damage(error) || matches!(error, rusqlite::Error::ToSqlConversionFailure(_)) => Some(invalid()),
            _ => None,
        }
    }

    fn complete_checkpoint(&self) {
        let sql = "PRAGMA wal_checkpoint(PASSIVE)";
        let done = failpoint::at("log.rest").and_then(|()| self.db.query_row(sql, [], |_| Ok(())));
        if let Err(error) = done {
            drop(self.health.unavailable(&error));
        }
    }
}

const _: () = assert!(LONG_WAL_PAGES > CHECKPOINT_PAGES, "the log is long only after a checkpoint");
