//! The one thread that writes: whatever waits, from all tasks, goes into one transaction.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::SyncSender,
    },
};

use parking_lot::Mutex;
use rusqlite::{CachedStatement, Connection, ErrorCode, TransactionBehavior};
use tokio::sync::oneshot;

use super::{
    Health, PROBE,
    checkpoint::{SHORT, SOME},
    counters::{Counters, LargeContexts},
    failpoint,
    insert_batch::InsertBatch,
    is_damage,
    quota::{PendingQuota, Quota},
    said,
    sweep::Unreadable,
    worker::{Jobs, WorkerThreads},
    write::refused,
};
use crate::store::{Change, Refused, Rejected, Scope, Unavailable};

/// How many jobs go into a transaction at most.
const TOGETHER: usize = 256;

/// How many jobs may wait for it.
const WAITING: usize = 1024;

/// So many owners are known by heart.
const SCOPES: usize = 16_384;

/// Where whatever writes goes.
pub(super) struct Writer(WorkerThreads<Box<dyn WriteJob>>);

/// A job of the writer. The parts of a job can be written independently of each other.
trait WriteJob: Send {
    /// Writes all of it. If this fails, the transaction is rolled back.
    fn run(&mut self, pass: &mut Transaction<'_>) -> rusqlite::Result<()>;
    /// Number of parts that can be written again, each for itself, after a rollback. `None` if the job can run only once.
    fn parts(&self) -> Option<usize>;
    /// Writes one part, the result of which replaces that of an earlier run.
    fn run_part(&mut self, part: usize, pass: &mut Transaction<'_>) -> rusqlite::Result<()>;
    /// Records that a part can't be written, whatever the other parts are: `why`, or `cause` if the caller has no
    /// result for that.
    fn reject(&mut self, part: usize, why: Rejected, cause: Unavailable);
    /// Sends the result, once that is durable.
    fn answer(self: Box<Self>, outcome: Result<(), Unavailable>);
}

/// A job with one result.
struct ClosureJob<T, F> {
    work: F,
    /// It can be written again after a rollback.
    repeatable: bool,
    done: Option<T>,
    failed: Option<Unavailable>,
    reply: oneshot::Sender<Result<T, Unavailable>>,
}

impl<T: Send, F: FnMut(&mut Transaction<'_>) -> rusqlite::Result<T> + Send> WriteJob for ClosureJob<T, F> {
    fn run(&mut self, pass: &mut Transaction<'_>) -> rusqlite::Result<()> {
        // A result of a transaction that was rolled back is void.
        self.done = None;
        self.done = Some((self.work)(pass)?);
        Ok(())
    }

    fn parts(&self) -> Option<usize> {
        self.repeatable.then_some(1)
    }

    fn run_part(&mut self, _: usize, pass: &mut Transaction<'_>) -> rusqlite::Result<()> {
        self.run(pass)
    }

    fn reject(&mut self, _: usize, _: Rejected, cause: Unavailable) {
        self.failed = Some(cause);
    }

    fn answer(self: Box<Self>, outcome: Result<(), Unavailable>) {
        let Self { done, failed, reply, .. } = *self;
        let nothing = || failed.unwrap_or_else(|| Unavailable("its transaction was rolled back; try again".into()));
        let outcome = outcome.and_then(|()| done.ok_or_else(nothing));
        // Who asked may have gone; it is written all the same.
        drop(reply.send(outcome));
    }
}

/// Outcomes of the changes of a batch, in their order.
type Outcomes = Vec<Result<(), Refused>>;

/// A batch of changes: each of them is a part.
struct Changes {
    batch: InsertBatch,
    outcomes: Outcomes,
    reply: oneshot::Sender<Result<Outcomes, Unavailable>>,
}

impl WriteJob for Changes {
    fn run(&mut self, pass: &mut Transaction<'_>) -> rusqlite::Result<()> {
        self.outcomes = pass.change(&self.batch, 0..self.batch.len())?;
        Ok(())
    }

    fn parts(&self) -> Option<usize> {
        Some(self.batch.len())
    }

    fn run_part(&mut self, part: usize, pass: &mut Transaction<'_>) -> rusqlite::Result<()> {
        self.outcomes.resize(self.batch.len(), Ok(()));
        for (it, outcome) in self.outcomes.iter_mut().skip(part).zip(pass.change(&self.batch, part..part + 1)?) {
            *it = outcome;
        }
        Ok(())
    }

    fn reject(&mut self, part: usize, why: Rejected, _: Unavailable) {
        self.outcomes.resize(self.batch.len(), Ok(()));
        if let Some(it) = self.outcomes.get_mut(part) {
            *it = Err(Refused::Rejected(why));
        }
    }

    fn answer(self: Box<Self>, outcome: Result<(), Unavailable>) {
        let Self { outcomes, reply, .. } = *self;
        drop(reply.send(outcome.map(|()| outcomes)));
    }
}

/// A transaction that goes on, and what is known of what is there.
pub(super) struct Transaction<'a> {
    pub(super) db: &'a Connection,
    pub(super) scopes: &'a mut HashMap<Arc<Scope>, i64>,
    pub(super) room: PendingQuota,
    pub(super) crowds: &'a mut LargeContexts,
    pub(super) unreadable: &'a mut Unreadable,
    pub(super) totals: Counters,
    pub(super) new_task: CachedInsert<'a>,
    pub(super) new_piece: CachedInsert<'a>,
}

/// A statement that many commits of a transaction need: it is looked for once.
#[derive(Default)]
pub(super) struct CachedInsert<'a>(Option<CachedStatement<'a>>);

impl<'a> CachedInsert<'a> {
    pub(super) fn get(&mut self, db: &'a Connection, sql: &str) -> rusqlite::Result<&mut CachedStatement<'a>> {
        match &mut self.0 {
            Some(it) => Ok(it),
            none => Ok(none.insert(db.prepare_cached(sql)?)),
        }
    }
}

impl Transaction<'_> {
    /// Nothing more is done; what is left of it is the room.
    fn over(self) -> PendingQuota {
        self.room
    }
}

/// What the thread has.
struct State {
    db: Connection,
    scopes: HashMap<Arc<Scope>, i64>,
    crowds: LargeContexts,
    unreadable: Unreadable,
    room: Arc<Mutex<Quota>>,
    health: Arc<Health>,
    /// The log is long, and almost all of it is in the file: the rest is to be put there between two transactions,
    /// so that it can begin anew. While transactions follow each other, nobody else ever comes to the end of it.
    behind: Arc<AtomicBool>,
    /// Maximum size of the file in bytes.
    max_bytes: Option<u64>,
}

/// Why some parts of jobs were not written: all of them, or because of the one at this index.
struct Failed {
    error: rusqlite::Error,
    at: Option<usize>,
}

impl Writer {
    pub(super) fn new(
        mut db: Connection,
        room: Arc<Mutex<Quota>>,
        health: Arc<Health>,
        behind: Arc<AtomicBool>,
        checkpoint: SyncSender<()>,
        max_bytes: Option<u64>,
    ) -> Result<Self, super::Fault> {
        let mut told = 0;
        let hook = move |_: &mut rusqlite::hooks::Wal, pages: std::ffi::c_int| {
            // It has begun anew.
            told = if pages < told { 0 } else { told };
            if pages - told >= SOME {
                told = pages;
                // If it is at it already, it looks again.
                _ = checkpoint.try_send(());
            }
            Ok(())
        };
        db.wal_hook(Some(hook))?;
        let (scopes, unreadable) = (HashMap::new(), Unreadable::default());
        let state = State { db, scopes, crowds: None, unreadable, room, health, behind, max_bytes };
        let threads = WorkerThreads::new("sqlite-write", WAITING, [move |jobs| state.run(&jobs)])?;
        Ok(Self(threads))
    }

    /// Does this as a part of a transaction. Returns when that is durable. If the transaction is rolled back because of
    /// another job, `work` runs again.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.ask(true, work).await
    }

    /// Does this as a part of a transaction, once. Returns when that is durable. Fails if the transaction is rolled back,
    /// whatever the cause.
    pub(super) async fn run_once<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let mut work = Some(work);
        let once = move |pass: &mut Transaction<'_>| {
            let work = work.take().ok_or_else(|| refused("its transaction was rolled back; try again"))?;
            work(pass)
        };
        self.ask(false, once).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        repeatable: bool,
        work: impl FnMut(&mut Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, done) = oneshot::channel();
        self.0.give(Box::new(ClosureJob { work, repeatable, done: None, failed: None, reply })).await?;
        done.await.unwrap_or_else(|_| Err(Unavailable("its thread has ended".into())))
    }

    /// Writes changes. Returns when that is durable, with the outcome of each.
    pub(super) async fn change(&self, changes: Arc<[Change]>) -> Result<Outcomes, Unavailable> {
        let (reply, done) = oneshot::channel();
        self.0.give(Box::new(Changes { batch: InsertBatch::new(changes), outcomes: Vec::new(), reply })).await?;
        done.await.unwrap_or_else(|_| Err(Unavailable("its thread has ended".into())))
    }
}

impl State {
    fn run(mut self, jobs: &Jobs<Box<dyn WriteJob>>) {
        let mut all: Vec<Box<dyn WriteJob>> = Vec::new();
        while let Some(first) = jobs.next() {
            all.push(first);
            while all.len() < TOGETHER
                && let Some(next) = jobs.waiting()
            {
                all.push(next);
            }
            if let Err(gone) = self.health.look() {
                all.drain(..).for_each(|it| it.answer(Err(gone.clone())));
                continue;
            }
            // Jobs that can be written again come first: when one of them fails, none of the others has run.
            all.sort_by_key(|it| it.parts().is_none());
            let mut failed = None;
            let done = self.write(|pass| {
                all.iter_mut().enumerate().try_for_each(|(n, it)| it.run(pass).inspect_err(|_| failed = Some(n)))
            });
            let (written, outcome) = match done {
                Ok(()) => (all.len(), Ok(())),
                Err(error) if self.may_be_apart(&error, failed.map(|n| &*all[n])) => self.write_apart(&mut all),
                Err(error) => (0, Err(error)),
            };
            let outcome = outcome.map_err(|it| self.health.failed(&it));
            self.health.tried(&outcome);
            for (n, it) in all.drain(..).enumerate() {
                it.answer(if n < written { Ok(()) } else { outcome.clone() });
            }
            if self.behind.swap(false, Ordering::Relaxed) {
                self.catch_up();
            }
        }
    }

    /// Runs a transaction, which is rolled back if anything fails.
    fn write(&mut self, run: impl FnOnce(&mut Transaction<'_>) -> rusqlite::Result<()>) -> rusqlite::Result<()> {
        failpoint::at("batch.begin")?;
        let transaction = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut pass = Transaction {
            db: &transaction,
            scopes: &mut self.scopes,
            crowds: &mut self.crowds,
            unreadable: &mut self.unreadable,
            room: PendingQuota::new(&self.room),
            totals: Counters::default(),
            new_task: CachedInsert::default(),
            new_piece: CachedInsert::default(),
        };
        if pass.scopes.len() >= SCOPES {
            pass.scopes.clear();
        }
        let done = run(&mut pass).and_then(|()| pass.count());
        let room = pass.over();
        let done = done.and_then(|()| failpoint::at("batch.commit")).and_then(|()| transaction.commit());
        match done {
            Ok(()) => {
                room.show();
                failpoint::at("batch.answer")
            }
            Err(error) => {
                // The numbers of owners that were new are not true.
                self.scopes.clear();
                self.crowds = None;
                Err(error)
            }
        }
    }

    /// Returns whether a transaction may succeed without a part of the job that failed. A job that can run only once fails
    /// with the error that it has now.
    fn may_be_apart(&self, error: &rusqlite::Error, failed: Option<&dyn WriteJob>) -> bool {
        failed.is_some_and(|work| work.parts().is_some()) && self.rejected(error).is_some()
    }

    /// Writes jobs part by part, so that one that can't be written does not affect the others. Returns how many jobs were
    /// written, those with rejected parts included, and why the others were not.
    ///
    /// `SQLITE_FULL` rolls back the whole transaction, and with it every savepoint. So a transaction ends at the first
    /// part that fails, what came before it is written again, and the next transaction begins behind it.
    fn write_apart(&mut self, all: &mut [Box<dyn WriteJob>]) -> (usize, rusqlite::Result<()>) {
        let counts = all.iter().map(|work| work.parts().unwrap_or(1)).enumerate();
        let parts: Vec<(usize, usize)> = counts.flat_map(|(job, n)| (0..n).map(move |part| (job, part))).collect();
        let mut written = 0;
        // Without spills, nothing goes to the disk before the commit. A statement is then out of space because of the
        // maximum size of the file, and a commit because of the disk.
        let mut outcome = self.db.pragma_update(None, "cache_spill", false);
        while outcome.is_ok() && written < parts.len() {
            outcome = self.write_until_rejected(all, &parts, &mut written);
        }
        let restored = self.db.pragma_update(None, "cache_spill", true);
        let outcome = outcome.and(restored);
        (parts.get(written).map_or(all.len(), |it| it.0), outcome)
    }

    /// Writes the parts from `written` on, up to the first one that is rejected, and counts them.
    fn write_until_rejected(
        &mut self,
        all: &mut [Box<dyn WriteJob>],
        parts: &[(usize, usize)],
        written: &mut usize,
    ) -> rusqlite::Result<()> {
        let rest = &parts[*written..];
        let Err(Failed { error, at }) = self.write_parts(all, rest) else {
            *written = parts.len();
            return Ok(());
        };
        let (Some(at), Some(why)) = (at, self.rejected(&error)) else { return Err(error) };
        if at > 0 {
            self.write_parts(all, &rest[..at]).map_err(|it| it.error)?;
            *written += at;
        }
        if error.sqlite_error_code() == Some(ErrorCode::DiskFull) {
            // Where not even this fits, the store is full, and the size of the part is not to blame.
            self.probe()?;
        }
        let (job, part) = rest[at];
        all[job].reject(part, why, self.health.failed(&error));
        *written += 1;
        Ok(())
    }

    fn write_parts(&mut self, all: &mut [Box<dyn WriteJob>], parts: &[(usize, usize)]) -> Result<(), Failed> {
        let mut at = None;
        let written = self.write(|pass| {
            parts
                .iter()
                .enumerate()
                .try_for_each(|(n, (job, part))| all[*job].run_part(*part, pass).inspect_err(|_| at = Some(n)))
        });
        written.map_err(|error| Failed { error, at })
    }

    /// Writes as much as a commit of some size takes, and rolls that back. Fails if the store is full.
    fn probe(&mut self) -> rusqlite::Result<()> {
        let transaction = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(PROBE)?;
        transaction.rollback()
    }

    /// Why one part of a transaction may be what made it fail, whenever it is tried. `None` if the store failed.
    fn rejected(&self, error: &rusqlite::Error) -> Option<Rejected> {
        let invalid = || Rejected::Invalid(said(error).into());
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => self.max_bytes.map(|max| Rejected::Size { limit: "store.max_size", max }),
            Some(ErrorCode::TooBig | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch) => Some(invalid()),
            _ if is_damage(error) || matches!(error, rusqlite::Error::ToSqlConversionFailure(_)) => Some(invalid()),
            _ => None,
        }
    }

    fn catch_up(&self) {
        let sql = "PRAGMA wal_checkpoint(PASSIVE)";
        let done = failpoint::at("log.rest").and_then(|()| self.db.query_row(sql, [], |_| Ok(())));
        if let Err(error) = done {
            drop(self.health.failed(&error));
        }
    }
}

const _: () = assert!(SHORT > SOME, "a log is long only after it was put into the file");
