//! Stores for tests that can be reopened: after a clean shutdown, or as a crash left them.

use std::{ops::Deref, path::Path, sync::Arc};

use a2a_service::store::{
    Store,
    memory::Memory,
    sqlite::{Options, Problem, Sqlite},
};
use tempfile::TempDir;

use crate::power_loss::memory_directory;

/// Open store, and its location.
#[derive(Clone)]
pub(crate) struct OpenedStore {
    pub(crate) store: Arc<dyn Store>,
    location: Location,
}

#[derive(Clone)]
enum Location {
    Database,
    Memory,
    File(Arc<TempDir>, Options),
}

const FILE: &str = "a2a.db";

impl OpenedStore {
    /// Memory store with a maximum number of tasks.
    pub(crate) fn memory(max_tasks: usize) -> Self {
        Self::of(Arc::new(Memory::with_max_tasks(max_tasks)))
    }

    /// Wraps a store that is never reopened.
    pub(crate) fn of(store: Arc<dyn Store>) -> Self {
        Self { store, location: Location::Memory }
    }

    /// Store in a database, which stays open.
    #[cfg(feature = "postgres")]
    pub(crate) fn database(store: Arc<dyn Store>) -> Self {
        Self { store, location: Location::Database }
    }

    /// SQLite store in a temporary directory of its own, in memory if possible.
    pub(crate) fn sqlite(options: Options) -> Self {
        Self::file(memory_directory(), options)
    }

    fn file(directory: TempDir, options: Options) -> Self {
        let store = Arc::new(open_file(&directory.path().join(FILE), options));
        Self { store, location: Location::File(Arc::new(directory), options) }
    }

    /// Returns whether the store keeps its tasks when reopened.
    pub(crate) fn is_persistent(&self) -> bool {
        matches!(self.location, Location::File(..))
    }

    /// Returns whether the logs of tasks are deleted before the tasks.
    pub(crate) fn deletes_logs(&self) -> bool {
        !matches!(self.location, Location::Memory)
    }

    /// Closes the store, of which this is the only reference, and reopens it.
    pub(crate) fn reopen(self) -> Self {
        match self.location {
            Location::Memory | Location::Database => self,
            Location::File(directory, options) => {
                drop(self.store);
                Self::file(Arc::into_inner(directory).unwrap(), options)
            }
        }
    }

    /// Waits until a server has released the store, closes it, and reopens it.
    pub(crate) async fn closed(self) -> Self {
        while Arc::strong_count(&self.store) > 1 {
            tokio::task::yield_now().await;
        }
        self.reopen()
    }

    /// Closes a store in a file, and reopens it with other options.
    pub(crate) fn reopen_with(mut self, options: Options) -> Self {
        if let Location::File(_, old) = &mut self.location {
            *old = options;
        }
        self.reopen()
    }

    /// Opens a copy of the files as a crash of the process at this moment would leave them.
    pub(crate) fn killed(self) -> Self {
        match &self.location {
            Location::Memory | Location::Database => self,
            Location::File(directory, options) => {
                let copied = tempfile::tempdir().unwrap();
                copy(directory.path(), copied.path());
                Self::file(copied, *options)
            }
        }
    }

    /// Path of the database file, if there is one.
    pub(crate) fn path(&self) -> Option<std::path::PathBuf> {
        match &self.location {
            Location::Memory | Location::Database => None,
            Location::File(directory, _) => Some(directory.path().join(FILE)),
        }
    }
}

/// Opens a SQLite store.
pub(crate) fn open_file(path: &Path, options: Options) -> Sqlite {
    let mut attempts = 0;
    loop {
        match Sqlite::open(path, options) {
            // A process that another test starts at this moment has the lock until it executes its program.
            Err(error) if matches!(error.problem, Problem::InUse(_)) && attempts < 20_000 => {
                attempts += 1;
                std::thread::yield_now();
            }
            opened => return opened.unwrap(),
        }
    }
}

/// Copies the files of a directory to another.
pub(crate) fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

impl Deref for OpenedStore {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}
