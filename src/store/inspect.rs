//! Reads of a store for its operators: tasks of all owners, and counts.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Event, Millis, PushConfig, Seq, Task, TaskState, TurnRecord, Unavailable, page::cut_page};
use crate::protocol::{
    event::Ends,
    pb::{v1::TaskStatus, wkt::timestamp},
};

/// Maximum number of [listed owners](Counts::owners).
pub const MAX_OWNERS: usize = 20;

/// Maximum length of [`TaskSummary::status_text`] in characters.
pub const MAX_STATUS_TEXT: usize = 200;

/// Read access of an operator to the tasks of all owners.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// Returns a page of at most `limit` tasks, the latest created first, of those that the filter selects.
    async fn tasks(&self, filter: &TaskFilter, limit: usize) -> Result<TaskPage, Unavailable>;

    /// Returns a task by its [number](TaskSummary::number). `None` if it does not exist.
    async fn task(&self, number: u64) -> Result<Option<InspectedTask>, Unavailable>;

    /// Returns at most `limit` events of a task after the sequence number `after`. The event with which they have 1 MiB
    /// ([`Event::approximate_size`]) is the last one. None if the task does not exist, or its log was deleted.
    async fn events(&self, number: u64, after: Seq, limit: usize) -> Result<Vec<LoggedEvent>, Unavailable>;

    /// Counts what the store has.
    async fn counts(&self) -> Result<Counts, Unavailable>;
}

/// Selection of tasks. `None` selects all.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// Only tasks with this id, which is unique for an owner in a tenant.
    pub id: Option<String>,
    /// Only tasks whose id begins with this.
    pub id_prefix: Option<String>,
    /// Only tasks of this owner.
    pub owner: Option<String>,
    /// Only tasks of this tenant.
    pub tenant: Option<String>,
    /// Only tasks of this context.
    pub context: Option<String>,
    /// Only tasks in one of these states. Empty: in any state.
    pub states: Vec<TaskState>,
    /// Only the task whose turn failed with this error id.
    pub error_id: Option<String>,
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

/// Task with what belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct InspectedTask {
    /// The task without its contents.
    pub summary: TaskSummary,
    /// The task.
    pub task: Task,
    /// Push configurations, with their secrets.
    pub push_configs: Vec<Arc<PushConfig>>,
    /// Stored records of its turns, by number and attempt. A short task that ended with its first commit has none, unless there
    /// is something to tell; neither has a task of a store of before. At most [`MAX_TURNS`](super::turn_record::MAX_TURNS) once
    /// the log is deleted.
    pub turns: Vec<TurnRecord>,
}

/// Event in the log of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedEvent {
    /// The event with its position, and its mark, which says whether it is hidden.
    pub event: Event,
    /// Time of its commit. `None` if that is not known.
    pub time: Option<Millis>,
    /// Number that it has in common with the other events of its commit only. `None` if that is not known.
    pub commit: Option<u64>,
}

impl LoggedEvent {
    /// Returns what is known of the event as JSON, without the event itself.
    pub(crate) fn to_json(&self) -> Value {
        let Self { event, time, .. } = self;
        let ends = match event.ends() {
            Ends::Nothing => None,
            Ends::Turn => Some("turn"),
            Ends::Task => Some("task"),
        };
        json!({
            "seq": event.seq(), "fence": event.position().fence, "time": time.map(timestamp),
            "hidden": event.mark().hidden, "ends": ends, "bytes": event.proto_len(),
        })
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
    /// Time of the creation, if the id has it.
    pub created: Option<Millis>,
    /// Time of the last change of the state.
    pub time: Millis,
    /// Number of attempts at the newest turn. 0 while it waits to begin.
    pub attempt: u32,
    /// Error id of the turn that failed.
    pub error_id: Option<String>,
    /// Beginning of the text of the status, at most [`MAX_STATUS_TEXT`] characters. `None` without a text, and
    /// perhaps if the last event has no status.
    pub status_text: Option<String>,
    /// Number of push configurations.
    pub push_configs: u64,
    /// Number of events, including those of a deleted log.
    pub events: Seq,
    /// True if the log exists.
    pub has_log: bool,
    /// Size of the log and the checkpoint in bytes.
    pub bytes: u64,
}

impl TaskSummary {
    /// Returns the summary as JSON, with times as texts.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "id": self.id, "owner": self.owner, "tenant": self.tenant, "context": self.context,
            "state": self.state.as_str_name(), "created": self.created.map(timestamp), "updated": timestamp(self.time),
            "events": self.events, "bytes": self.bytes, "has_log": self.has_log, "attempt": self.attempt,
            "error_id": self.error_id, "message": self.status_text, "push_configs": self.push_configs,
        })
    }
}

/// Returns the beginning of the text of a status.
pub(super) fn status_text(status: Option<&TaskStatus>) -> Option<String> {
    let text = status?.message.as_ref()?.text();
    Some(text.chars().take(MAX_STATUS_TEXT).collect()).filter(|text: &String| !text.is_empty())
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
