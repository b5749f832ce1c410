//! The threads that read, each on a connection of its own: no reader waits for the writer, nor the writer for one.

use std::sync::Arc;

use rusqlite::{Connection, Transaction};
use tokio::sync::oneshot;

use super::{
    Fault, Health,
    worker::{Jobs, WorkerThreads},
};
use crate::store::Unavailable;

/// How many jobs may wait for them.
const WAITING: usize = 1024;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// Where whatever reads goes.
pub(super) struct Readers {
    threads: WorkerThreads<Job>,
    health: Arc<Health>,
}

impl Readers {
    /// A thread for each connection.
    pub(super) fn new(all: Vec<Connection>, health: Arc<Health>) -> Result<Self, Fault> {
        let run = |mut db: Connection| {
            move |jobs: Jobs<Job>| {
                while let Some(job) = jobs.next() {
                    job(&mut db);
                }
            }
        };
        Ok(Self { threads: WorkerThreads::new("sqlite-read", WAITING, all.into_iter().map(run))?, health })
    }

    /// Reads: all that this asks for is of one moment.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, found) = oneshot::channel();
        let job = move |db: &mut Connection| {
            // Who asked may have gone while this waited.
            if !reply.is_closed() {
                drop(reply.send(db.transaction().and_then(|it| read(&it))));
            }
        };
        self.threads.give(Box::new(job)).await?;
        let found = found.await.map_err(|_| Unavailable("its thread has ended".into()))?;
        found.map_err(|it| self.health.failed(&it))
    }
}
