//! Request context of a message as its turn sees it, and the events that the engine makes for a task.

use std::sync::Arc;

use super::LiveRef;
use crate::{
    clock,
    env::Ids,
    event::Event,
    pb::{
        v1::{Message, Role, Task, TaskState, TaskStatus, TaskStatusUpdateEvent, stream_response::Payload},
        wkt::Struct,
    },
};

/// Request context of a message: caller, extensions, output media types, metadata and referenced tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnContext {
    pub(crate) principal: Option<Arc<str>>,
    pub(crate) extensions: Vec<String>,
    pub(crate) accepted_output_modes: Vec<String>,
    pub(crate) metadata: Option<Struct>,
    pub(crate) referenced: Vec<Task>,
}

/// Creates a status update with the current time. Completes its message as one of the agent in this task.
pub(crate) fn status_update(live: &LiveRef, state: TaskState, message: Option<Message>) -> Event {
    let env = live.journal().env();
    let (task_id, context_id) = (live.key.id().to_owned(), (*live.context).to_owned());
    let message = message.map(|message| complete_message(&env.ids, message, &task_id, &context_id));
    let timestamp = Some(clock::timestamp(env.clock.millis()));
    let status = Some(TaskStatus { state: state.into(), message, timestamp });
    Event::pending(Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status, metadata: None }))
}

/// Completes a message of the agent: sets its task and context, and its id and role if they are missing.
pub(crate) fn complete_message(ids: &Ids, mut message: Message, task_id: &str, context_id: &str) -> Message {
    if message.message_id.is_empty() {
        message.message_id = ids.time_ordered();
    }
    if message.role == 0 {
        message.role = Role::Agent.into();
    }
    (message.task_id, message.context_id) = (task_id.to_owned(), context_id.to_owned());
    message
}
