//! Reads of a store for its operators: tasks of all owners, and counts.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Millis, PushConfig, Seq, Task, TaskState, Unavailable, page::cut_page};

/// Maximum number of [listed owners](Counts::owners).
pub const MAX_OWNERS: usize = 20;

/// Read access of an operator to the tasks of all owners.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// Returns a page of at most `limit` tasks, the latest created first, of those that the filter selects.
    async fn tasks(&self, filter: &TaskFilter, limit: usize) -> Result<TaskPage, Unavailable>;

    /// Returns a task with its push configurations, by its [number](TaskSummary::number). `None` if it does not exist.
    async fn task(&self, number: u64) -> Result<Option<(Task, Vec<Arc<PushConfig>>)>, Unavailable>;

    /// Counts what the store has.
    async fn counts(&self) -> Result<Counts, Unavailable>;
}

/// Selection of tasks. `None` selects all.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// Only tasks with this id, which is unique for an owner in a tenant.
    pub id: Option<String>,
    /// Only tasks of this owner.
    pub owner: Option<String>,
    /// Only tasks of this tenant.
    pub tenant: Option<String>,
    /// Only tasks in this state.
    pub state: Option<TaskState>,
    /// Only tasks that were created before the one with this number: [`TaskPage::next`] of the previous page.
    pub before: Option<u64>,
}

/// Page of tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskPage {
    /// Tasks on the page.
    pub tasks: Vec<TaskSummary>,
    /// Start of the next page, if there is one.
    pub next: Option<u64>,
}

impl TaskPage {
    /// Creates a page of tasks, one of which may exceed the limit.
    pub(super) fn new(tasks: Vec<TaskSummary>, limit: usize) -> Self {
        let (tasks, next) = cut_page(tasks.into_iter().map(|task| (task.number, task)).collect(), limit);
        Self { tasks, next }
    }
}

/// Task without its contents. Invalid UTF-8 is replaced.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskSummary {
    /// Number of the task in the store, in the order of creation.
    pub number: u64,
    /// Id of the task.
    pub id: String,
    /// Owner of the task.
    pub owner: String,
    /// Tenant of the task.
    pub tenant: String,
    /// Context of the task.
    pub context: String,
    /// State of the task.
    pub state: TaskState,
    /// Time of the last change of the state.
    pub time: Millis,
    /// Number of events, including those of a deleted log.
    pub events: Seq,
    /// True if the log exists.
    pub has_log: bool,
    /// Size of the log and the checkpoint in bytes.
    pub bytes: u64,
}

/// Numbers of tasks, and of what belongs to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Numbers of tasks by state, for states with tasks.
    pub tasks: Vec<(TaskState, u64)>,
    /// Owners with the most tasks, at most [`MAX_OWNERS`]: owner, tenant, and number of tasks.
    pub owners: Vec<(String, String, u64)>,
    /// Number of owners, counted per tenant.
    pub owner_count: u64,
    /// Number of tasks in a terminal state whose log was deleted.
    pub without_log: u64,
    /// Number of push configurations.
    pub push_configs: u64,
    /// Number of idempotency keys.
    pub idempotency_keys: u64,
}
