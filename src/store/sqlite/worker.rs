//! Threads that do what they are given, one thing after the other, until nobody can give them anything.

use std::{sync::Arc, thread::JoinHandle};

use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::store::Unavailable;

/// Some threads, and the way to them. Who drops this waits for them: what was begun is done.
pub(super) struct WorkerThreads<J> {
    jobs: Option<mpsc::Sender<J>>,
    threads: Vec<JoinHandle<()>>,
}

/// Where a thread gets its jobs. Several threads share them.
pub(super) struct Jobs<J>(Arc<Mutex<mpsc::Receiver<J>>>);

impl<J: Send + 'static> WorkerThreads<J> {
    /// A thread for each of these, which run it. `waiting` jobs may be on their way; who has more, waits.
    pub(super) fn new<R: FnOnce(Jobs<J>) + Send + 'static>(
        name: &str,
        waiting: usize,
        run: impl IntoIterator<Item = R>,
    ) -> std::io::Result<Self> {
        let (jobs, receiver) = mpsc::channel(waiting);
        let receiver = Arc::new(Mutex::new(receiver));
        let start = |run: R| {
            let jobs = Jobs(Arc::clone(&receiver));
            std::thread::Builder::new().name(name.to_owned()).spawn(move || run(jobs))
        };
        let threads = run.into_iter().map(start).collect::<std::io::Result<_>>()?;
        Ok(Self { jobs: Some(jobs), threads })
    }

    /// Gives them a job, when there is room for one.
    pub(super) async fn give(&self, job: J) -> Result<(), Unavailable> {
        let gone = || Unavailable("its threads have ended".into());
        self.jobs.as_ref().ok_or_else(gone)?.send(job).await.map_err(|_| gone())
    }
}

impl<J> Jobs<J> {
    /// The next job, when there is one; none where there will be none.
    pub(super) fn next(&self) -> Option<J> {
        self.0.lock().blocking_recv()
    }

    /// The next job, if there is one.
    pub(super) fn waiting(&self) -> Option<J> {
        self.0.lock().try_recv().ok()
    }
}

impl<J> Drop for WorkerThreads<J> {
    fn drop(&mut self) {
        self.jobs = None;
        for it in self.threads.drain(..) {
            // One that has panicked has said so.
            drop(it.join());
        }
    }
}
