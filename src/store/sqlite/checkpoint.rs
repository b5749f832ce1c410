//! Puts what is in SQLite's log into the file, on a connection of its own, so that nobody waits for it who writes.

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

use super::{Health, failpoint, write::refused};

/// After so many pages of the log it is time: 16 MiB.
pub(super) const SOME: c_int = 4096;

/// A log of more pages than this is to begin anew: 48 MiB, so that what comes until it does leaves it shorter than
/// [`LOG`](super::file::LOG), and nothing of it has to be cut.
pub(super) const SHORT: c_int = 12_288;

/// So often what is in a long log is put into the file before who writes is asked for the rest: each time less has come
/// meanwhile.
const ROUNDS: usize = 3;

/// Interval between two checks of the file's identity while the writer is idle.
const LOOK: Duration = Duration::from_millis(500);

/// A thread that ends when nobody can wake it any more. Who drops this waits for that.
pub(super) struct Checkpoints(Option<JoinHandle<()>>);

impl Checkpoints {
    pub(super) fn new(
        db: Connection,
        file: File,
        wake: Receiver<()>,
        behind: Arc<AtomicBool>,
        health: Arc<Health>,
    ) -> io::Result<Self> {
        let run = move || {
            let put = || {
                let sql = "PRAGMA wal_checkpoint(PASSIVE)";
                let pages =
                    failpoint::at("log.before").and_then(|()| db.query_row(sql, [], |it| it.get::<_, c_int>(1)))?;
                // SQLite has the file on the disk only once nothing is left of the log. Until then there is so much of it
                // that whoever writes the rest would wait for that.
                file.sync_data().map_err(refused)?;
                failpoint::at("log.after").map(|()| pages)
            };
            let begins_anew = || {
                if put()? <= SHORT {
                    return Ok(false);
                }
                (1..ROUNDS).try_for_each(|_| put().map(drop)).map(|()| true)
            };
            loop {
                match wake.recv_timeout(LOOK) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Timeout) => {
                        // The check reports a fault itself. This finds faults on a server that writes nothing.
                        drop(health.look());
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                match begins_anew() {
                    Ok(true) => behind.store(true, Ordering::Relaxed),
                    Ok(false) => {}
                    Err(error) => drop(health.failed(&error)),
                }
            }
            // Last: a process that closes a file loses its locks there, also those that others took (POSIX).
            drop(db);
            drop(file);
        };
        thread::Builder::new().name("sqlite-log".into()).spawn(run).map(|it| Self(Some(it)))
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Some(it) = self.0.take() {
            drop(it.join());
        }
    }
}
