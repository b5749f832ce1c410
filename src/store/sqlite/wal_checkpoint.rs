//! Checkpoints: transfer of SQLite's write-ahead log (WAL) to the database, by a thread of its own.

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

use rusqlite::Connection;
use tokio::time::Instant;

use super::{failpoint, health::Health, values::other_error};
use crate::base::metric;

/// Number of new WAL pages that triggers a checkpoint: 16 MiB.
pub(super) const CHECKPOINT_PAGES: c_int = 4096;

/// Number of pages above which the WAL should restart: 48 MiB. The pages that are written until it does then leave it
/// shorter than [`WAL_SIZE_LIMIT`](super::file::WAL_SIZE_LIMIT), and SQLite need not truncate it.
pub(super) const LONG_WAL_PAGES: c_int = 12_288;

/// Number of checkpoints of a long WAL before the writer completes it. Each one leaves fewer new pages.
const ROUNDS: usize = 3;

/// Interval between two checks of the file's identity while the writer is idle.
const FILE_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Handle of the checkpoint thread. It has its own connection, so that commits do not wait for checkpoints. It also checks
/// regularly that the database file still exists. The thread ends when its channel is disconnected. Dropping the handle joins
/// it.
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
                let started = Instant::now();
                match checkpoint_all().inspect(|_| metric::CHECKPOINT_DURATION.observe(None, &[], started.elapsed())) {
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
