//! Where the stores of the suite are, so that they can be opened again: after a clean end, and after none.

use std::{ops::Deref, path::Path, sync::Arc};

use a2a_service::store::{
    Store,
    memory::Memory,
    sqlite::{Options, Sqlite},
};
use tempfile::TempDir;

/// A store that is open, and where it is.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Memory,
    File(Arc<TempDir>, Options),
}

const FILE: &str = "a2a.db";

impl Opened {
    /// A store of so many tasks at most, that is gone when it is closed.
    pub(crate) fn memory(max_tasks: usize) -> Self {
        Self::of(Arc::new(Memory::with_max_tasks(max_tasks)))
    }

    /// A store that is not to be opened again.
    pub(crate) fn of(store: Arc<dyn Store>) -> Self {
        Self { store, place: Place::Memory }
    }

    /// A store in a directory of its own.
    pub(crate) fn sqlite(options: Options) -> Self {
        Self::file(tempfile::tempdir().unwrap(), options)
    }

    fn file(directory: TempDir, options: Options) -> Self {
        let store = Arc::new(Sqlite::open(&directory.path().join(FILE), options).unwrap());
        Self { store, place: Place::File(Arc::new(directory), options) }
    }

    /// Whether there is anything in it when it is opened again.
    pub(crate) fn lasts(&self) -> bool {
        matches!(self.place, Place::File(..))
    }

    /// Closes it, which nobody else may have, and opens it again.
    pub(crate) fn again(self) -> Self {
        match self.place {
            Place::Memory => self,
            Place::File(directory, options) => {
                drop(self.store);
                Self::file(Arc::into_inner(directory).unwrap(), options)
            }
        }
    }

    /// Waits until a server has let go of the store, closes it, and opens it again.
    pub(crate) async fn closed(self) -> Self {
        while Arc::strong_count(&self.store) > 1 {
            tokio::task::yield_now().await;
        }
        self.again()
    }

    /// Closes a store in a file, and opens it again with these options.
    pub(crate) fn again_with(mut self, options: Options) -> Self {
        if let Place::File(_, old) = &mut self.place {
            *old = options;
        }
        self.again()
    }

    /// Opens what would be there if its process had been killed now.
    pub(crate) fn killed(self) -> Self {
        match &self.place {
            Place::Memory => self,
            Place::File(directory, options) => {
                let left = tempfile::tempdir().unwrap();
                copy(directory.path(), left.path());
                Self::file(left, *options)
            }
        }
    }

    /// The file, where it is one.
    pub(crate) fn path(&self) -> Option<std::path::PathBuf> {
        match &self.place {
            Place::Memory => None,
            Place::File(directory, _) => Some(directory.path().join(FILE)),
        }
    }
}

/// All that is in one directory, to another.
pub(crate) fn copy(from: &Path, to: &Path) {
    for it in std::fs::read_dir(from).unwrap() {
        let it = it.unwrap();
        std::fs::copy(it.path(), to.join(it.file_name())).unwrap();
    }
}

impl Deref for Opened {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}
