//! Puts what is in SQLite's log into the file, on a connection of its own, so that nobody waits for it who writes.

use std::{
    ffi::c_int,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    thread::{self, JoinHandle},
};

use rusqlite::Connection;

use super::{Health, fault};

/// After so many pages of the log it is time: 16 MiB.
pub(super) const SOME: c_int = 4096;

/// A log of more pages than this is to begin anew: 64 MiB.
pub(super) const SHORT: c_int = 16_384;

/// A thread that ends when nobody can wake it any more. Who drops this waits for that.
pub(super) struct Checkpoints(Option<JoinHandle<()>>);

impl Checkpoints {
    pub(super) fn new(
        db: Connection,
        wake: Receiver<()>,
        behind: Arc<AtomicBool>,
        health: Arc<Health>,
    ) -> io::Result<Self> {
        let run = move || {
            for () in wake {
                let pages = fault::at("log.before")
                    .and_then(|()| db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |it| it.get::<_, c_int>(1)));
                match pages.and_then(|it| fault::at("log.after").map(|()| it)) {
                    Ok(pages) if pages > SHORT => behind.store(true, Ordering::Relaxed),
                    Ok(_) => {}
                    Err(error) => drop(health.failed(&error)),
                }
            }
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
