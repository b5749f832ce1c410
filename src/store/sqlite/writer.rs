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
use rusqlite::{CachedStatement, Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::{
    Health,
    checkpoint::{SHORT, SOME},
    fault,
    room::{Room, Seats},
    thread::{Jobs, Threads},
    totals::{Crowds, Totals},
};
use crate::store::{Scope, Unavailable};

/// How many jobs go into a transaction at most.
const TOGETHER: usize = 256;

/// How many jobs may wait for it.
const WAITING: usize = 1024;

/// So many owners are known by heart.
const SCOPES: usize = 16_384;

/// Where whatever writes goes.
pub(super) struct Writer(Threads<Box<dyn Work>>);

/// What a transaction does, as a part of it.
trait Work: Send {
    /// Does it. When this fails, all of the transaction does.
    fn run(&mut self, pass: &mut Pass<'_>) -> rusqlite::Result<()>;
    /// What came of it, once that is durable.
    fn answer(self: Box<Self>, outcome: Result<(), Unavailable>);
}

struct Asked<T, F> {
    work: Option<F>,
    done: Option<T>,
    reply: oneshot::Sender<Result<T, Unavailable>>,
}

impl<T: Send, F: FnOnce(&mut Pass<'_>) -> rusqlite::Result<T> + Send> Work for Asked<T, F> {
    fn run(&mut self, pass: &mut Pass<'_>) -> rusqlite::Result<()> {
        self.done = self.work.take().map(|it| it(pass)).transpose()?;
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), Unavailable>) {
        let Self { done, reply, .. } = *self;
        let outcome = outcome.and_then(|()| done.ok_or_else(|| Unavailable("nothing came of it".into())));
        // Who asked may have gone; it is written all the same.
        drop(reply.send(outcome));
    }
}

/// A transaction that goes on, and what is known of what is there.
pub(super) struct Pass<'a> {
    pub(super) db: &'a Connection,
    pub(super) scopes: &'a mut HashMap<Arc<Scope>, i64>,
    pub(super) room: Seats,
    pub(super) crowds: &'a mut Crowds,
    pub(super) totals: Totals,
    pub(super) new_task: Held<'a>,
    pub(super) new_piece: Held<'a>,
}

/// A statement that many commits of a transaction need: it is looked for once.
#[derive(Default)]
pub(super) struct Held<'a>(Option<CachedStatement<'a>>);

impl<'a> Held<'a> {
    pub(super) fn get(&mut self, db: &'a Connection, sql: &str) -> rusqlite::Result<&mut CachedStatement<'a>> {
        match &mut self.0 {
            Some(it) => Ok(it),
            none => Ok(none.insert(db.prepare_cached(sql)?)),
        }
    }
}

impl Pass<'_> {
    /// Nothing more is done; what is left of it is the room.
    fn over(self) -> Seats {
        self.room
    }
}

/// What the thread has.
struct State {
    db: Connection,
    scopes: HashMap<Arc<Scope>, i64>,
    crowds: Crowds,
    room: Arc<Mutex<Room>>,
    health: Arc<Health>,
    /// The log is long, and almost all of it is in the file: the rest is to be put there between two transactions,
    /// so that it can begin anew. While transactions follow each other, nobody else ever comes to the end of it.
    behind: Arc<AtomicBool>,
}

impl Writer {
    pub(super) fn new(
        mut db: Connection,
        room: Arc<Mutex<Room>>,
        health: Arc<Health>,
        behind: Arc<AtomicBool>,
        checkpoint: SyncSender<()>,
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
        let state = State { db, scopes: HashMap::new(), crowds: None, room, health, behind };
        let threads = Threads::new("sqlite-write", WAITING, [move |jobs| state.run(&jobs)])?;
        Ok(Self(threads))
    }

    /// Does this as a part of a transaction. Returns when that is durable.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Pass<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, done) = oneshot::channel();
        self.0.give(Box::new(Asked { work: Some(work), done: None, reply })).await?;
        done.await.unwrap_or_else(|_| Err(Unavailable("its thread has ended".into())))
    }
}

impl State {
    fn run(mut self, jobs: &Jobs<Box<dyn Work>>) {
        let mut all: Vec<Box<dyn Work>> = Vec::new();
        while let Some(first) = jobs.next() {
            all.push(first);
            while all.len() < TOGETHER
                && let Some(next) = jobs.waiting()
            {
                all.push(next);
            }
            let outcome = self.write(&mut all).map_err(|it| self.health.failed(&it));
            self.health.tried(&outcome);
            all.drain(..).for_each(|it| it.answer(outcome.clone()));
            if self.behind.swap(false, Ordering::Relaxed) {
                self.catch_up();
            }
        }
    }

    /// All of it or, where anything fails, nothing.
    fn write(&mut self, all: &mut [Box<dyn Work>]) -> rusqlite::Result<()> {
        fault::at("batch.begin")?;
        let transaction = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut pass = Pass {
            db: &transaction,
            scopes: &mut self.scopes,
            crowds: &mut self.crowds,
            room: Seats::new(&self.room),
            totals: Totals::default(),
            new_task: Held::default(),
            new_piece: Held::default(),
        };
        if pass.scopes.len() >= SCOPES {
            pass.scopes.clear();
        }
        let done = all.iter_mut().try_for_each(|it| it.run(&mut pass)).and_then(|()| pass.count());
        let room = pass.over();
        let done = done.and_then(|()| fault::at("batch.commit")).and_then(|()| transaction.commit());
        match done {
            Ok(()) => {
                room.show();
                fault::at("batch.answer")
            }
            Err(error) => {
                // The numbers of owners that were new are not true.
                self.scopes.clear();
                self.crowds = None;
                Err(error)
            }
        }
    }

    fn catch_up(&self) {
        let sql = "PRAGMA wal_checkpoint(PASSIVE)";
        let done = fault::at("log.rest").and_then(|()| self.db.query_row(sql, [], |_| Ok(())));
        if let Err(error) = done {
            drop(self.health.failed(&error));
        }
    }
}

const _: () = assert!(SHORT > SOME, "a log is long only after it was put into the file");
