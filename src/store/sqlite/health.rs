//! Health of a database: whether its files are those that were opened, corruption, and the outcome of recent transactions.

use std::{
    io,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::{
    Unavailable, file,
    values::{describe, is_corruption},
};

/// Observed state of the database file.
pub(super) struct Health {
    path: PathBuf,
    /// The database and its write-ahead log, with their identities when the store was opened.
    files: Vec<(PathBuf, file::FileId)>,
    /// Set while one of the paths is missing or is another file, and after corruption was found.
    pub(super) fault: watch::Sender<Option<Unavailable>>,
    /// Corruption that was found. Permanent.
    damaged: Mutex<Option<Unavailable>>,
    /// Something was not written since the last sweep because the file has its maximum size.
    pub(super) is_out_of_space: AtomicBool,
    /// Time and outcome of the last transaction.
    last: Mutex<Option<(Instant, Result<(), Unavailable>)>>,
}

impl Health {
    /// Records the identities of the files at these paths.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let mut files = vec![(path.to_owned(), file::file_id(path)?)];
        let wal = file::wal_path(path);
        // If SQLite has not created the write-ahead log yet, it is not checked.
        files.extend(file::file_id(&wal).ok().map(|id| (wal, id)));
        let (damaged, last, fault) = (Mutex::default(), Mutex::default(), watch::Sender::new(None));
        Ok(Self { path: path.to_owned(), files, fault, damaged, is_out_of_space: AtomicBool::new(false), last })
    }

    /// Checks that the files are still those that were opened. Writes to a file that was deleted or replaced do not
    /// fail, but are lost with the process. Takes two system calls.
    pub(super) fn check_files(&self) -> Result<(), Unavailable> {
        let lost = self.files.iter().find(|(path, opened)| file::file_id(path).ok().as_ref() != Some(opened));
        match lost {
            // Corruption is permanent.
            None if self.fault.borrow().is_none() || self.damaged.lock().is_some() => Ok(()),
            None => {
                tracing::info!(store.path = %self.path.display(), "database file found again");
                self.fault.send_replace(None);
                Ok(())
            }
            Some((path, _)) => {
                let lost = Unavailable(format!("{}: the file is missing or is another file", path.display()));
                self.fault.send_if_modified(|fault| {
                    let is_new = fault.is_none();
                    if is_new {
                        tracing::error!(
                            store.path = %path.display(),
                            "database file deleted, moved or replaced: no new work is accepted; move the original file \
                             back, or restart the server, which then opens the file at this path"
                        );
                        *fault = Some(lost.clone());
                    }
                    is_new
                });
                Err(lost)
            }
        }
    }

    /// Returns the outcome of a recent transaction, so that frequent health checks write no more than rare ones: a success
    /// is valid for 1 s. A failure is valid for 5 s, because the small trial write may succeed where commits fail.
    pub(super) fn recent_outcome(&self) -> Option<Result<(), Unavailable>> {
        if let Some(damaged) = &*self.damaged.lock() {
            return Some(Err(damaged.clone()));
        }
        let last = self.last.lock();
        let (time, outcome) = last.as_ref()?;
        let valid_for = Duration::from_secs(if outcome.is_ok() { 1 } else { 5 });
        (time.elapsed() < valid_for).then(|| outcome.clone())
    }

    /// Records the outcome of a transaction.
    pub(super) fn record(&self, outcome: &Result<(), Unavailable>) {
        *self.last.lock() = Some((Instant::now(), outcome.clone()));
    }

    /// Converts an error for the caller. Corruption of the file is recorded; an unreadable value concerns only its
    /// task.
    pub(super) fn unavailable(&self, error: &rusqlite::Error) -> Unavailable {
        let unavailable = Unavailable(format!("{}: {}", self.path.display(), describe(error)));
        if is_corruption(error) {
            self.damaged.lock().get_or_insert_with(|| unavailable.clone());
            // New work is rejected from the moment that the store is not ready.
            self.fault.send_if_modified(|fault| fault.is_none() && fault.replace(unavailable.clone()).is_none());
        }
        unavailable
    }
}
