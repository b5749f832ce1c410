//! Options of an SQLite store.

use crate::store::quota::DEFAULT_MAX_PUSH_CONFIGS_PER_OWNER;

/// Default of [`Options::max_tasks`].
pub const DEFAULT_MAX_TASKS: usize = 1_000_000;

options! {
    /// Options of an SQLite store.
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct Options {
        /// Failures that a commit survives. [`Durability::Process`] by default.
        pub durability: Durability,
        /// Maximum number of tasks. At the limit, a new task evicts the task that reached its terminal state first.
        pub max_tasks: usize = DEFAULT_MAX_TASKS,
        /// Maximum number of tasks of one owner, over all tenants. At the limit, a new task evicts the owner's task
        /// that reached its terminal state first. `max_tasks` by default.
        pub max_tasks_per_owner: Option<usize>,
        /// Maximum number of push configurations of the tasks of one owner, over all tenants. 10 000 by default.
        pub max_push_configs_per_owner: usize = DEFAULT_MAX_PUSH_CONFIGS_PER_OWNER,
        /// Maximum size of the file in bytes. Only the disk limits it by default.
        pub max_bytes: Option<u64>,
    }
}

/// Failures that a commit survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process for any reason. A crash of the machine may lose the last commits of all tasks, which leaves a
    /// consistent earlier state.
    #[default]
    Process,
    /// Also a power failure: each commit waits until it is on the disk.
    Power,
}
