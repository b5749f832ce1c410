//! Size of a store, for its metrics and for operators.

use super::TaskState;
use crate::base::metric::LimitUse;

/// Size of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreUsage {
    /// Numbers of tasks by state, for states with tasks.
    pub tasks: Vec<(TaskState, u64)>,
    /// Maximum number of tasks. `None`: no limit.
    pub max_tasks: Option<u64>,
    /// Sizes of the files. `None` for a store without files.
    pub files: Option<FileUsage>,
    /// Number of open connections to the database. `None` for a store without connections.
    pub connections: Option<usize>,
}

/// Sizes of the files of a store in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileUsage {
    /// Database.
    pub database: u64,
    /// Part of the database that is free.
    pub free: u64,
    /// Write-ahead log.
    pub log: u64,
    /// Maximum size of the database. `None`: no limit.
    pub max: Option<u64>,
}

impl StoreUsage {
    /// Returns the use of the limits of the store.
    pub(crate) fn limits_in_use(&self) -> impl Iterator<Item = LimitUse> + use<> {
        let tasks = self.tasks.iter().map(|(_, count)| count).sum();
        let tasks = LimitUse { name: "tasks", used: tasks, max: self.max_tasks };
        let files = self.files.map(|FileUsage { database, free, max, .. }| LimitUse {
            name: "store.max_size",
            used: database.saturating_sub(free),
            max,
        });
        std::iter::once(tasks).chain(files)
    }
}
