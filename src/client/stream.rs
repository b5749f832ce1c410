//! Typed events of a stream.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::Once,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::time::timeout;
use tokio_stream::Stream;

use super::{
    BoxStream, Client, Cursor, Error, ErrorKind, Event, Outcome, StreamResponse, Task, TaskState,
    retry_policy::is_transient,
};
use crate::protocol::{
    event::resume,
    pb::v1::{
        Artifact, Message, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent, send_message_response,
        stream_response::Payload,
    },
};

/// Event of a [stream](EventStream).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum StreamEvent {
    /// The task as it is: at the start of a stream, or after a gap.
    Task(Box<Task>),
    /// New status of the task.
    Status(Box<TaskStatusUpdateEvent>),
    /// Artifact, or a part of one.
    Artifact(Box<TaskArtifactUpdateEvent>),
    /// Message of an agent that keeps no task. The only event of its stream.
    Message(Box<Message>),
    /// The connection was lost, and events may be missing before the next one.
    Gap,
}

impl StreamEvent {
    /// State of the task, if the event has one.
    pub fn state(&self) -> Option<TaskState> {
        if let Self::Task(task) = self { Some(task.state()) } else { self.status().map(TaskStatus::state) }
    }

    /// Returns the status of the task, if the event has one.
    pub(crate) fn status(&self) -> Option<&TaskStatus> {
        match self {
            Self::Task(task) => task.status.as_ref(),
            Self::Status(update) => update.status.as_ref(),
            Self::Artifact(_) | Self::Message(_) | Self::Gap => None,
        }
    }

    /// Returns the ids of the context and of the task, if the event is of a task.
    pub(crate) fn ids(&self) -> Option<(&str, &str)> {
        match self {
            Self::Task(task) => Some((&task.context_id, &task.id)),
            Self::Status(update) => Some((&update.context_id, &update.task_id)),
            Self::Artifact(update) => Some((&update.context_id, &update.task_id)),
            Self::Message(_) | Self::Gap => None,
        }
    }

    /// The event as the protocol defines it. `None` for a gap.
    pub fn to_response(&self) -> Option<StreamResponse> {
        let payload = match self {
            Self::Task(task) => Payload::Task(Task::clone(task)),
            Self::Status(update) => Payload::StatusUpdate(TaskStatusUpdateEvent::clone(update)),
            Self::Artifact(update) => Payload::ArtifactUpdate(TaskArtifactUpdateEvent::clone(update)),
            Self::Message(message) => Payload::Message(Message::clone(message)),
            Self::Gap => return None,
        };
        Some(StreamResponse { payload: Some(payload) })
    }
}

impl From<Payload> for StreamEvent {
    fn from(payload: Payload) -> Self {
        match payload {
            Payload::Task(task) => Self::Task(Box::new(task)),
            Payload::StatusUpdate(update) => Self::Status(Box::new(update)),
            Payload::ArtifactUpdate(update) => Self::Artifact(Box::new(update)),
            Payload::Message(message) => Self::Message(Box::new(message)),
        }
    }
}

/// Maximum number of events without content in a row. Later versions of the protocol may have contents that this one ignores.
const MAX_EMPTY: usize = 1000;

/// Maximum time to read the stored task at the end of a stream without artifacts.
const STORED: Duration = Duration::from_secs(10);

/// Events of a turn or of a task, in order and without duplicates. An interrupted connection is resumed; if events may be
/// missing then, there is a [`StreamEvent::Gap`]. An event of another task or context, or of a task without an id, ends the stream
/// with an error.
///
/// Some agents store artifacts that they do not stream. If a task ends, and its stream had no artifacts, the stored task is read
/// once, and its artifacts precede the end, except for those of earlier turns, with which the stream began.
pub struct EventStream {
    events: BoxStream<Event>,
    pending: VecDeque<StreamEvent>,
    cursor: Option<Cursor>,
    /// Id of the task. Empty until it is known.
    task_id: String,
    /// Id of the context. Empty until it is known.
    context_id: String,
    /// Number of events without content since the last one that has some.
    empty: usize,
    /// Client that reads the stored task, unless the stream had artifacts.
    client: Option<Client>,
    /// Artifacts of earlier turns: those of the task that was sent before its end.
    earlier: Vec<Artifact>,
    /// Artifacts of the stored task were added: later ones are the same.
    has_stored: bool,
    /// End of the task, to which the artifacts of the stored task are added.
    end: Option<BoxFuture<'static, Result<Vec<StreamEvent>, Error>>>,
}

debug_fields!(EventStream { pending });

impl EventStream {
    /// Creates the stream of a task with this id, or of a new task if it is empty.
    pub(super) fn new(events: BoxStream<Event>, task_id: String) -> Self {
        let (pending, context_id, earlier) = (VecDeque::new(), String::new(), Vec::new());
        let (cursor, empty, client, has_stored, end) = (None, 0, None, false, None);
        Self { events, pending, cursor, task_id, context_id, empty, client, earlier, has_stored, end }
    }

    /// Adds the artifacts of the stored task to a stream that ends a task without any.
    pub(super) fn completed_by(self, client: Client) -> Self {
        Self { client: Some(client), ..self }
    }

    /// Queues an event. The end of a task without artifacts waits for those of the stored task.
    fn push(&mut self, event: StreamEvent) {
        check_state(event.status());
        if self.has_stored && matches!(event, StreamEvent::Artifact(_)) {
            return;
        }
        let is_end = event.state().is_some_and(TaskState::is_terminal);
        let has_artifacts = match &event {
            StreamEvent::Artifact(update) => {
                update.artifact.as_ref().is_some_and(|artifact| !artifact.parts.is_empty())
            }
            StreamEvent::Task(task) if self.client.is_some() && !is_end => {
                self.earlier.clone_from(&task.artifacts);
                false
            }
            StreamEvent::Task(task) => task.artifacts.iter().any(|artifact| !artifact.parts.is_empty()),
            StreamEvent::Status(_) | StreamEvent::Message(_) | StreamEvent::Gap => false,
        };
        match self.client.take_if(|_| has_artifacts || is_end) {
            Some(client) if !has_artifacts => {
                let (id, earlier) = (self.task_id.clone(), mem::take(&mut self.earlier));
                self.end = Some(Box::pin(with_stored_artifacts(client, id, earlier, event)));
            }
            Some(_) | None => self.pending.push_back(event),
        }
    }

    /// Cursor of the last event that was returned, if the agent gives its events ids. [`Client::subscribe_after`] continues
    /// there.
    ///
    /// [`Client::subscribe_after`]: super::Client::subscribe_after
    pub fn cursor(&self) -> Option<&str> {
        self.cursor.as_ref().map(Cursor::as_str)
    }

    /// Returns a stream with the result of a send.
    pub(super) fn of_outcome(outcome: Outcome) -> Self {
        let event = outcome.into_raw().payload.map(|payload| match payload {
            send_message_response::Payload::Task(task) => StreamEvent::Task(Box::new(task)),
            send_message_response::Payload::Message(message) => StreamEvent::Message(Box::new(message)),
        });
        let pending = event.into_iter().collect();
        Self { pending, ..Self::new(Box::pin(tokio_stream::empty()), String::new()) }
    }
}

/// Adds the artifacts of the stored task to its last event: before it, or to the task that it is.
///
/// # Errors
/// The agent did not answer: the artifacts may be missing. One that refuses to show the task has none.
async fn with_stored_artifacts(
    client: Client,
    id: String,
    earlier: Vec<Artifact>,
    mut end: StreamEvent,
) -> Result<Vec<StreamEvent>, Error> {
    let read = timeout(STORED, client.get(&id)).await;
    let task = match read.unwrap_or_else(|_| Err(ErrorKind::DeadlineExceeded.error())) {
        Ok(task) => task,
        Err(error) if is_transient(&error) || error.kind() == ErrorKind::DeadlineExceeded => return Err(error),
        Err(error) => {
            tracing::warn!("a stream had no artifacts, and the stored task can't be read: {error}");
            return Ok(vec![end]);
        }
    };
    if let StreamEvent::Task(last) = &mut end {
        last.artifacts = task.artifacts;
        return Ok(vec![end]);
    }
    let (task_id, context_id) = (task.id, task.context_id);
    let update = |artifact| {
        let (task_id, context_id) = (task_id.clone(), context_id.clone());
        let artifact = Some(artifact);
        let update = TaskArtifactUpdateEvent { task_id, context_id, artifact, last_chunk: true, ..Default::default() };
        StreamEvent::Artifact(Box::new(update))
    };
    let new = task.artifacts.into_iter().filter(|artifact| !earlier.contains(artifact));
    Ok(new.map(update).chain([end]).collect())
}

/// Compares an id with the known one, which it becomes if there is none. Some agents leave ids out of updates.
fn is_same(known: &mut String, id: &str) -> bool {
    if known.is_empty() {
        id.clone_into(known);
    }
    id.is_empty() || known == id
}

/// Warns once of a state by a number that is unknown, as over gRPC.
pub(super) fn check_state(status: Option<&TaskStatus>) {
    static WARNED: Once = Once::new();
    if let Some(number) = status.map(|status| status.state).filter(|number| TaskState::try_from(*number).is_err()) {
        WARNED.call_once(|| tracing::warn!("the agent sent a state that is unknown, and so unspecified: {number}"));
    }
}

/// Returns the error for a task, or an event of one, without an id.
pub(super) fn without_id() -> Error {
    ErrorKind::InvalidAgentResponse.because("the agent responded with a task that has no id")
}

/// Returns the error for a response with another task than that of the call.
pub(super) fn another_task() -> Error {
    ErrorKind::InvalidAgentResponse.because("the agent responded with another task or context")
}

impl Stream for EventStream {
    type Item = Result<StreamEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(end) = &mut self.end {
                let events = ready!(end.as_mut().poll(cx));
                self.end = None;
                match events {
                    Ok(events) => {
                        self.has_stored = events.len() > 1;
                        self.pending.extend(events);
                    }
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
                continue;
            }
            let event = match ready!(self.events.as_mut().poll_next(cx)) {
                Some(Ok(event)) => event,
                Some(Err(status)) => return Poll::Ready(Some(Err(status.into()))),
                None => return Poll::Ready(None),
            };
            self.cursor = event.cursor().cloned();
            let Some(payload) = event.into_response().payload else {
                self.empty += 1;
                if self.empty > MAX_EMPTY {
                    self.events = Box::pin(tokio_stream::empty());
                    let why = format!("the stream has more than {MAX_EMPTY} events without content in a row");
                    return Poll::Ready(Some(Err(ErrorKind::InvalidAgentResponse.because(why))));
                }
                continue;
            };
            self.empty = 0;
            if resume::is_gap(&payload) {
                self.pending.push_back(StreamEvent::Gap);
            }
            let event = StreamEvent::from(payload);
            let Self { task_id, context_id, .. } = &mut *self;
            if let Some((context, task)) = event.ids() {
                let is_own = is_same(task_id, task) && is_same(context_id, context);
                // Updates may leave out an id that is known, a task may not.
                let needs_id = task_id.is_empty() || matches!(event, StreamEvent::Task(_));
                let has_id = !task.is_empty() || !needs_id;
                if !is_own || !has_id {
                    self.events = Box::pin(tokio_stream::empty());
                    return Poll::Ready(Some(Err(if is_own { without_id() } else { another_task() })));
                }
            }
            self.push(event);
        }
    }
}
