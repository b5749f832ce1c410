//! Threads of a store: worker threads with bounded job queues, the pool of reader threads with one connection each, and the
//! checkpoint thread. In WAL mode, readers and the writer do not block each other.

use std::{
    ffi::c_int,
    fs::File,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::Mutex;
use rusqlite::{Connection, Transaction};
use tokio::sync::{mpsc, oneshot};

use super::{Health, OpenFailure, failpoint, write::other_error};
use crate::store::Unavailable;

/// Capacity of the job queue of the readers.
const QUEUE: usize = 1024;

/// Group of threads with a shared job queue. Dropping it completes the queued jobs and joins the threads.
pub(super) struct WorkerThreads<J> {
    jobs: Option<mpsc::Sender<J>>,
    threads: Vec<JoinHandle<()>>,
}

/// Receiving end of the job queue.
pub(super) struct Jobs<J>(Arc<Mutex<mpsc::Receiver<J>>>);

impl<J: Send + 'static> WorkerThreads<J> {
    /// Spawns a thread for each closure. The queue holds up to `capacity` jobs.
    pub(super) fn spawn<R: FnOnce(Jobs<J>) + Send + 'static>(
        name: &str,
        capacity: usize,
        closures: impl IntoIterator<Item = R>,
    ) -> io::Result<Self> {
        let (jobs, receiver) = mpsc::channel(capacity);
        let receiver = Arc::new(Mutex::new(receiver));
        let start = |run: R| {
            let jobs = Jobs(Arc::clone(&receiver));
            thread::Builder::new().name(name.to_owned()).spawn(move || run(jobs))
        };
        let threads = closures.into_iter().map(start).collect::<io::Result<_>>()?;
        Ok(Self { jobs: Some(jobs), threads })
    }

    /// Queues a job. Waits while the queue is full.
    pub(super) async fn submit(&self, job: J) -> Result<(), Unavailable> {
        let stopped = || Unavailable("the store's threads have stopped".into());
        self.jobs.as_ref().ok_or_else(stopped)?.send(job).await.map_err(|_| stopped())
    }
}

impl<J> Jobs<J> {
    /// Waits for the next job. Returns `None` after the queue was closed.
    pub(super) fn next(&self) -> Option<J> {
        self.0.lock().blocking_recv()
    }

    /// Returns the next job without waiting.
    pub(super) fn try_next(&self) -> Option<J> {
        self.0.lock().try_recv().ok()
    }
}

impl<J> Drop for WorkerThreads<J> {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A panic was reported by the panic hook.
            drop(thread.join());
        }
    }
}

type ReadJob = Box<dyn FnOnce(&mut Connection) + Send>;

/// Pool of reader threads.
pub(super) struct Readers {
    threads: WorkerThreads<ReadJob>,
    health: Arc<Health>,
}

impl Readers {
    /// Spawns a thread for each connection.
    pub(super) fn new(connections: Vec<Connection>, health: Arc<Health>) -> Result<Self, OpenFailure> {
        let run = |mut db: Connection| {
            move |jobs: Jobs<ReadJob>| {
                while let Some(job) = jobs.next() {
                    job(&mut db);
                }
            }
        };
        let threads = WorkerThreads::spawn("sqlite-read", QUEUE, connections.into_iter().map(run))?;
        Ok(Self { threads, health })
    }

    /// Runs a query in a read transaction, which provides a consistent snapshot.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (reply, result) = oneshot::channel();
        let job = move |db: &mut Connection| {
            // The caller may have been dropped while the job was queued.
            if !reply.is_closed() {
                drop(reply.send(db.transaction().and_then(|transaction| query(&transaction))));
            }
        };
        self.threads.submit(Box::new(job)).await?;
        let result = result.await.map_err(|_| Unavailable("a reader thread has stopped".into()))?;
        result.map_err(|error| self.health.unavailable(&error))
    }
}

/// Number of new WAL pages that triggers a checkpoint: 16 MiB.
pub(super) const CHECKPOINT_PAGES: c_int = 4096;

/// Number of pages above which the WAL should restart: 48 MiB. The pages that are written until it does then leave it
/// shorter than [`WAL_SIZE_LIMIT`](super::file::WAL_SIZE_LIMIT), and SQLite need not truncate it.
pub(super) const LONG_WAL_PAGES: c_int = 12_288;

/// Number of checkpoints of a long WAL before the writer completes it. Each one leaves fewer new pages.
const ROUNDS: usize = 3;

/// Interval between two checks of the file's identity while the writer is idle.
const FILE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Handle of the checkpoint thread, which transfers SQLite's write-ahead log (WAL) to the database on its own connection, so
/// that commits do not wait for it. It also checks regularly that the database file still exists. The thread ends when its
/// channel is disconnected. Dropping the handle joins it.
pub(super) struct Checkpoints(Option<JoinHandle<()>>);

impl Checkpoints {
    pub(super) fn new(
        db: Connection,
        file: File,
        wake: Receiver<()>,
        wal_is_long: Arc<AtomicBool>,
        health: Arc<Health>,
    ) -> io::Result<Self> {
        let run = move || {
            let checkpoint = || {
                let sql = "PRAGMA wal_checkpoint(PASSIVE)";
                let pages =
                    failpoint::at("log.before").and_then(|()| db.query_row(sql, [], |row| row.get::<_, c_int>(1)))?;
                // SQLite syncs the database only in a complete checkpoint. Syncing it here keeps the sync in the writer's
                // checkpoint short.
                file.sync_data().map_err(other_error)?;
                failpoint::at("log.after").map(|()| pages)
            };
            let checkpoint_all = || {
                if checkpoint()? <= LONG_WAL_PAGES {
                    return Ok(false);
                }
                (1..ROUNDS).try_for_each(|_| checkpoint().map(drop)).map(|()| true)
            };
            loop {
                match wake.recv_timeout(FILE_CHECK_INTERVAL) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Timeout) => {
                        // The check reports a fault itself. This finds faults on a server that writes nothing.
                        drop(health.check_files());
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                match checkpoint_all() {
                    Ok(true) => wal_is_long.store(true, Ordering::Relaxed),
                    Ok(false) => {}
                    Err(error) => drop(health.unavailable(&error)),
                }
            }
            // Last: under POSIX, closing a file releases all locks of the process on it.
            drop(db);
            drop(file);
        };
        thread::Builder::new().name("sqlite-log".into()).spawn(run).map(|thread| Self(Some(thread)))
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            drop(thread.join());
        }
    }
}
