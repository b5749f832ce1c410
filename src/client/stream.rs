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
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_stream::Stream;

use super::{
    BoxStream, Client, Cursor, Error, ErrorKind, Event, Outcome, StreamResponse, Task, TaskState,
    retry_policy::{is_interruption, is_transient},
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

    /// Checks that each part of the event has a content.
    fn check(&self) -> Result<(), Error> {
        match self {
            Self::Task(task) => check_task(task),
            Self::Artifact(update) => check_parts(update.artifact.as_slice(), None),
            Self::Message(message) => check_message(message),
            Self::Status(_) | Self::Gap => check_parts(&[], self.status().and_then(|status| status.message.as_ref())),
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

/// Maximum time after the end of a task in which its stream may have further artifacts.
const LATE: Duration = Duration::from_secs(1);

/// Events of a turn or of a task, in order and without duplicates. An interrupted connection is resumed; if events may be
/// missing then, there is a [`StreamEvent::Gap`]. An event of another task or context, or of a task without an id, ends the stream
/// with an error.
///
/// The end of a task is the last event. Some agents send artifacts after it, so that it waits for the end of the stream, for at most a
/// second. An error in this time is that of the stream, unless only the connection has ended.
///
/// Some agents store artifacts that they do not stream. If a task ends, and its stream had no artifacts, the stored task is read once.
/// Its artifacts precede the end, except for those of earlier turns, with which the stream began. If the task is completed without an
/// answer in its stream, and the stored task can't be read or is not completed, the stream ends with an error.
pub struct EventStream {
    events: BoxStream<Event>,
    pending: VecDeque<StreamEvent>,
    cursor: Option<Cursor>,
    /// Id of the task. Empty until it is known.
    task_id: String,
    /// Id of the context. Empty until it is known.
    context_id: String,
    empty: EmptyEvents,
    /// Client that reads the stored task if the stream has no artifacts.
    client: Option<Client>,
    has_artifacts: bool,
    /// Artifacts of earlier turns: those of the task that was sent before its end.
    earlier: Vec<Artifact>,
    /// End of the task with its cursor, and the time for which it waits for the end of the stream.
    end: Option<(StreamEvent, Option<Cursor>, Pin<Box<Sleep>>)>,
    /// End of the task with the artifacts of the stored task.
    completed: Option<BoxFuture<'static, Result<Vec<StreamEvent>, Error>>>,
}

debug_fields!(EventStream { pending });

/// Numbers of events that have no content, or an unknown one.
#[derive(Default)]
struct EmptyEvents {
    /// Since the last event with content.
    in_a_row: usize,
    all: usize,
}

/// Logs that events were ignored.
impl Drop for EmptyEvents {
    fn drop(&mut self) {
        if self.all > 0 {
            tracing::warn!(events = self.all, "events of the agent ignored: they have no content that is known");
        }
    }
}

impl EventStream {
    /// Creates the stream of a task with this id, or of a new task if it is empty. If the stream ends a task without any artifacts,
    /// the client reads those of the stored task.
    pub(super) fn new(events: BoxStream<Event>, task_id: String, client: Option<Client>) -> Self {
        let (pending, context_id, earlier) = (VecDeque::new(), String::new(), Vec::new());
        let (cursor, empty, has_artifacts, end, completed) = (None, EmptyEvents::default(), false, None, None);
        Self { events, pending, cursor, task_id, context_id, empty, client, has_artifacts, earlier, end, completed }
    }

    /// Queues an event with its cursor. The end of the task waits for the end of the stream.
    fn push(&mut self, event: StreamEvent, cursor: Option<Cursor>) {
        check_state(event.status());
        let is_end = event.state().is_some_and(TaskState::is_terminal);
        let has_parts = |artifact: &Artifact| !artifact.parts.is_empty();
        match &event {
            StreamEvent::Artifact(update) => self.has_artifacts |= update.artifact.as_ref().is_some_and(has_parts),
            StreamEvent::Task(task) if is_end => self.has_artifacts |= task.artifacts.iter().any(has_parts),
            StreamEvent::Task(task) if self.client.is_some() => self.earlier.clone_from(&task.artifacts),
            StreamEvent::Task(_) | StreamEvent::Status(_) | StreamEvent::Message(_) | StreamEvent::Gap => {}
        }
        let is_task = |event: &StreamEvent| matches!(event, StreamEvent::Task(_));
        match &mut self.end {
            _ if !is_end => {
                self.cursor = cursor;
                self.pending.push_back(event);
            }
            None => {
                let time = Box::pin(sleep_until(Instant::now() + LATE));
                self.end = Some((event, cursor, time));
            }
            // The first state is final, but the whole task, or a message, is more than a status.
            Some((end, ..))
                if end.state() == event.state() && !is_task(end) && (is_task(&event) || !has_message(end)) =>
            {
                *end = event;
            }
            Some(_) => {}
        }
    }

    /// Ends the stream with an error.
    fn fail(&mut self, error: Error) -> Poll<Option<Result<StreamEvent, Error>>> {
        (self.events, self.end) = (Box::pin(tokio_stream::empty()), None);
        Poll::Ready(Some(Err(error)))
    }

    /// Queues the end of the task, to which the artifacts of the stored task are added if there are no others.
    fn finish(&mut self, end: StreamEvent) {
        self.events = Box::pin(tokio_stream::empty());
        match self.client.take().filter(|_| !self.has_artifacts) {
            Some(client) => {
                let (id, earlier) = (self.task_id.clone(), mem::take(&mut self.earlier));
                self.completed = Some(Box::pin(with_stored_artifacts(client, id, earlier, end)));
            }
            None => self.pending.push_back(end),
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
        Self { pending, ..Self::new(Box::pin(tokio_stream::empty()), String::new(), None) }
    }
}

/// Adds the artifacts of the stored task to its last event: before it, or to the task that it is.
///
/// # Errors
/// The task is completed without an answer, and the stored one can't be read or is not completed: artifacts may be missing.
async fn with_stored_artifacts(
    client: Client,
    id: String,
    earlier: Vec<Artifact>,
    mut end: StreamEvent,
) -> Result<Vec<StreamEvent>, Error> {
    let read = timeout(STORED, client.get(&id)).await;
    let has_answer = end.state() != Some(TaskState::Completed) || has_message(&end);
    let missing =
        |why: String| ErrorKind::InvalidAgentResponse.because(format!("the stream has no artifact, and {why}"));
    let task = match read.unwrap_or_else(|_| Err(ErrorKind::DeadlineExceeded.error())) {
        Ok(task) if has_answer || Some(task.state()) == end.state() => task,
        Ok(task) => return Err(missing(format!("the stored task has the state {}", task.state().as_str_name()))),
        Err(error) if has_answer => {
            tracing::warn!("a stream had no artifacts, and the stored task can't be read: {error}");
            return Ok(vec![end]);
        }
        Err(error) if is_transient(&error) || error.kind() == ErrorKind::DeadlineExceeded => return Err(error),
        Err(error) => return Err(missing(format!("the stored task can't be read: {error}"))),
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

fn has_message(end: &StreamEvent) -> bool {
    end.status().is_some_and(|status| status.message.is_some())
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

/// Checks that each part of the artifacts and of the message of a response has a content.
///
/// # Errors
/// `InvalidAgentResponse` for a part without one, such as one of a kind that a later version of the protocol has.
fn check_parts(artifacts: &[Artifact], message: Option<&Message>) -> Result<(), Error> {
    let parts = artifacts.iter().flat_map(|artifact| &artifact.parts).chain(message.iter().flat_map(|it| &it.parts));
    if parts.into_iter().all(|part| part.content.is_some()) {
        return Ok(());
    }
    Err(ErrorKind::InvalidAgentResponse.because("the response has a part without content, or of an unknown kind"))
}

/// Checks the parts of a message that is the answer.
pub(super) fn check_message(message: &Message) -> Result<(), Error> {
    if message.parts.is_empty() {
        return Err(ErrorKind::InvalidAgentResponse.because("message.parts: the message of the agent has no parts"));
    }
    check_parts(&[], Some(message))
}

/// Checks the parts of a task.
pub(super) fn check_task(task: &Task) -> Result<(), Error> {
    check_parts(&task.artifacts, task.status.as_ref().and_then(|status| status.message.as_ref()))
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
            if let Some(completed) = &mut self.completed {
                let events = ready!(completed.as_mut().poll(cx));
                self.completed = None;
                match events {
                    Ok(events) => self.pending.extend(events),
                    Err(error) => return Poll::Ready(Some(Err(error))),
                }
                continue;
            }
            let is_over = self.end.as_mut().is_some_and(|(.., time)| time.as_mut().poll(cx).is_ready());
            let next = if is_over { None } else { ready!(self.events.as_mut().poll_next(cx)) };
            let event = match next {
                Some(Ok(event)) => event,
                next => match (self.end.take(), next) {
                    (Some(_), Some(Err(status))) if !is_interruption(&status.clone().into()) => {
                        return self.fail(status.into());
                    }
                    // The end is known, so that an interruption of the stream is of no account.
                    (Some((end, cursor, _)), _) => {
                        self.cursor = cursor;
                        self.finish(end);
                        continue;
                    }
                    (None, Some(Err(status))) => return Poll::Ready(Some(Err(status.into()))),
                    (None, _) => return Poll::Ready(None),
                },
            };
            let cursor = event.cursor().cloned();
            let Some(payload) = event.into_response().payload else {
                let EmptyEvents { in_a_row, all } = self.empty;
                (self.empty.in_a_row, self.empty.all, self.cursor) = (in_a_row + 1, all + 1, cursor);
                if in_a_row == MAX_EMPTY {
                    let why = format!("the stream has more than {MAX_EMPTY} events without content in a row");
                    return self.fail(ErrorKind::InvalidAgentResponse.because(why));
                }
                continue;
            };
            self.empty.in_a_row = 0;
            if resume::is_gap(&payload) {
                self.pending.push_back(StreamEvent::Gap);
            }
            let event = StreamEvent::from(payload);
            if let Err(error) = event.check() {
                return self.fail(error);
            }
            let Self { task_id, context_id, .. } = &mut *self;
            if let Some((context, task)) = event.ids() {
                let is_own = is_same(task_id, task) && is_same(context_id, context);
                // Updates may leave out an id that is known, a task may not.
                let needs_id = task_id.is_empty() || matches!(event, StreamEvent::Task(_));
                let has_id = !task.is_empty() || !needs_id;
                if !is_own || !has_id {
                    return self.fail(if is_own { without_id() } else { another_task() });
                }
            }
            self.push(event, cursor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream::{self, StreamExt as _};

    #[expect(clippy::unnecessary_wraps, reason = "an item of a stream")]
    fn received(event: &StreamEvent) -> Result<Event, tonic::Status> {
        Ok(Event::from_remote(None, event.to_response().unwrap()))
    }

    /// The end of a task waits for the end of its stream, but not for long.
    #[tokio::test(start_paused = true)]
    async fn end_of_a_task_is_the_last_event() {
        let status = |state: TaskState| {
            let status = Some(TaskStatus { state: state.into(), ..TaskStatus::default() });
            StreamEvent::Status(Box::new(TaskStatusUpdateEvent { task_id: "t".into(), status, ..Default::default() }))
        };
        let artifact = Some(Artifact { parts: vec![crate::protocol::pb::v1::Part::text("a")], ..Artifact::default() });
        let artifact = TaskArtifactUpdateEvent { task_id: "t".into(), artifact, ..TaskArtifactUpdateEvent::default() };
        let artifact = StreamEvent::Artifact(Box::new(artifact));
        let (end, failed) = (status(TaskState::Completed), status(TaskState::Failed));
        let late = artifact.clone();
        let slow = stream::once(async move {
            sleep_until(Instant::now() + Duration::from_millis(900)).await;
            received(&late)
        });
        let of = |events: &[&StreamEvent]| stream::iter(events.iter().map(|event| received(event)).collect::<Vec<_>>());
        let streams: [(BoxStream<Event>, Vec<&StreamEvent>, u64); 5] = [
            (Box::pin(of(&[&end]).chain(stream::pending())), vec![&end], 1000),
            (Box::pin(of(&[&end]).chain(slow).chain(stream::pending())), vec![&artifact, &end], 1000),
            (Box::pin(of(&[&artifact, &end]).chain(stream::pending())), vec![&artifact, &end], 1000),
            (Box::pin(of(&[&artifact, &end, &failed])), vec![&artifact, &end], 0),
            (Box::pin(of(&[&end]).chain(stream::iter([Err(tonic::Status::unavailable("cut"))]))), vec![&end], 0),
        ];
        for (events, expected, millis) in streams {
            let started = Instant::now();
            let found: Vec<_> = EventStream::new(events, String::new(), None).map(Result::unwrap).collect().await;
            assert_eq!(found.iter().collect::<Vec<_>>(), expected);
            assert_eq!(started.elapsed().as_millis() / 10, u128::from(millis) / 10, "{expected:?}");
        }
        // What is invalid after the end is an error.
        let invalid = stream::iter([Err(ErrorKind::InvalidAgentResponse.because("cut").into())]);
        let events = EventStream::new(Box::pin(of(&[&artifact, &end]).chain(invalid)), String::new(), None);
        let found: Vec<_> = events.map(|event| event.map_err(|error| error.kind())).collect().await;
        assert_eq!(found, [Ok(artifact.clone()), Err(ErrorKind::InvalidAgentResponse)]);
        // Events without an end do not keep it away.
        let flood = of(&[&end]).chain(stream::repeat_with(move || received(&artifact)).then(async |event| {
            tokio::time::advance(Duration::from_millis(10)).await;
            event
        }));
        let found: Vec<_> = EventStream::new(Box::pin(flood), String::new(), None).map(Result::unwrap).collect().await;
        assert!(found.len() < 120 && found.last() == Some(&end), "{}", found.len());
    }
}
