//! Threads of a store: worker threads with bounded job queues, and the pool of reader threads with one connection each. In
//! WAL mode, readers and the writer do not block each other.

use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use rusqlite::{Connection, Transaction};
use tokio::sync::{mpsc, oneshot};

use super::{Unavailable, error::Error, health::Health};

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
    pub(super) fn new(connections: Vec<Connection>, health: Arc<Health>) -> Result<Self, Error> {
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
