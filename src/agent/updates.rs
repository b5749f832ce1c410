//! What an agent says before the end of its turn. Each word waits where the store is behind, and fails once the turn is
//! over, so that `?` stops an agent that was canceled.

use std::{
    fmt,
    future::poll_fn,
    mem,
    task::{Poll, ready},
    time::Duration,
};

use serde::Serialize;
use tokio::task::coop::poll_proceed;

use super::{Error, Stopped};
use crate::{
    event::{Event, Mark},
    journal::{
        LiveRef, Phase,
        live::{Inner, LimitExceeded},
        waiters::WakerRegistration,
    },
    message::json_value,
    pb::{
        v1::{
            Artifact, Message, Part, Role, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
            stream_response::Payload,
        },
        wkt::value::Kind,
    },
    seam,
};

/// How long what is said without a pause may wait for one before it goes to the store.
const LINGER: Duration = Duration::from_millis(1);

/// What an agent says before the end of its turn.
pub struct Updates {
    pub(crate) held: LiveRef,
    pub(crate) turn: u32,
}

impl Updates {
    /// The agent works.
    ///
    /// # Errors
    /// The turn is over, here and in all that follows: canceled, past its deadline, or left behind by a server that
    /// stopped.
    pub fn working(&self) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.status(TaskState::Working, None)
    }

    /// The agent works, and says what on.
    pub fn progress(&self, text: impl Into<String>) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.status(TaskState::Working, Some(Message::agent(text)))
    }

    /// The agent goes on while its caller authorises something elsewhere. To stop until then, end the turn with
    /// [`End::AuthRequired`](super::End::AuthRequired).
    pub fn auth_required(&self, message: Message) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.status(TaskState::AuthRequired, Some(message))
    }

    /// An artifact of this name, to be written in chunks. Several may be written side by side.
    pub fn artifact(&self, name: impl Into<String>) -> ArtifactWriter<'_> {
        let artifact = Artifact { artifact_id: seam::random_id(), name: name.into(), ..Artifact::default() };
        ArtifactWriter { out: self, artifact, append: false, begun: false, last: false }
    }

    /// Keeps something for the next turn of this task, or for the next attempt at this one
    /// ([`Turn::saved`](super::Turn::saved)). It goes to the store with what is said next, or when the agent pauses.
    ///
    /// # Errors
    /// The state can't be serialized to JSON or exceeds the maximum size of an event, or the turn has ended.
    pub async fn save(&self, state: &impl Serialize) -> Result<(), Error> {
        let bytes = serde_json::to_vec(state)?;
        let most = self.held.lock().ahead.max_event_bytes();
        if bytes.len() > most {
            return Err(Error::msg(format!(
                "the state to keep has {} bytes, of at most {most} (limit event_bytes)",
                bytes.len()
            )));
        }
        self.ready(|inner| {
            inner.save(bytes.clone().into());
            Ok(())
        })
        .await?;
        Ok(())
    }

    fn status(&self, state: TaskState, message: Option<Message>) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.push(status_update(&self.held, state, message))
    }

    /// What is said is made before this, and so are the futures of all that says something: an `async fn` would keep what
    /// it is given twice, in the future of each agent.
    fn push(&self, event: Event) -> impl Future<Output = Result<(), Stopped>> + Send {
        let mut event = Some(event);
        self.ready(move |inner| match event.take() {
            Some(it) if inner.repeats_working(&it) => Ok(()),
            Some(it) => inner.push(it, Mark::NOTHING).map(drop).map_err(|why| {
                inner.exceeded = why.limit().map(|_| LimitExceeded::Task(why));
                Stopped
            }),
            None => Ok(()),
        })
    }

    /// Does something to the task as soon as the store is near enough, unless the turn is over.
    async fn ready(&self, mut act: impl FnMut(&mut Inner) -> Result<(), Stopped>) -> Result<(), Stopped> {
        let mut waits = WakerRegistration::new(&self.held, |it| &mut it.wakers);
        let journal = self.held.journal();
        poll_fn(|cx| {
            // A store that never makes it wait must not let it keep its thread for ever.
            let budget = ready!(poll_proceed(cx));
            loop {
                let mut inner = self.held.lock();
                let stopped = journal.phase() == Phase::Stopped;
                let exceeded = inner.exceeded.is_some();
                if stopped || exceeded || inner.lost || inner.cancel || !inner.running || inner.turn != self.turn {
                    inner.late += 1;
                    return Poll::Ready(Err(Stopped));
                }
                inner.real = true;
                if inner.is_full() {
                    if journal.store().immediate().is_none() {
                        waits.register(&mut inner, cx);
                        journal.flush(&self.held, inner);
                        return Poll::Pending;
                    }
                    journal.flush(&self.held, inner);
                    continue;
                }
                let said = act(&mut inner);
                inner.words = inner.words.wrapping_add(1);
                if inner.exceeded.is_some() {
                    // The turn ends for that, wherever this is called.
                    let wake = inner.fire_control();
                    drop(inner);
                    self.held.fire(wake);
                    return Poll::Ready(said);
                }
                // While its agent runs, the runner takes all to the store when it pauses. But not for ever: where
                // something waits behind what has just been said, it is looked at since when.
                if !inner.polled || inner.lingers(LINGER) {
                    journal.flush(&self.held, inner);
                }
                budget.made_progress();
                return Poll::Ready(said);
            }
        })
        .await
    }
}

/// An artifact that is being written. Each call is a chunk: the first creates it, the others are appended.
#[must_use = "an artifact without a chunk is none"]
pub struct ArtifactWriter<'a> {
    out: &'a Updates,
    artifact: Artifact,
    append: bool,
    begun: bool,
    last: bool,
}

impl ArtifactWriter<'_> {
    /// Under an id of your own: with that of an artifact of an earlier turn, chunks take its place.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.artifact.artifact_id = id.into();
        self
    }

    /// Goes on with the artifact of this id where there is one, and does not take its place.
    pub fn appending(mut self) -> Self {
        self.append = true;
        self
    }

    /// With a description.
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.artifact.description = description.into();
        self
    }

    /// With metadata, which has to be an object.
    ///
    /// # Errors
    /// What is none.
    pub fn metadata(mut self, metadata: &impl Serialize) -> Result<Self, Error> {
        match json_value(metadata)?.kind {
            Some(Kind::StructValue(it)) => self.artifact.metadata = Some(it),
            _ => return Err(Error::msg("metadata of an artifact is an object")),
        }
        Ok(self)
    }

    /// The next chunk is the last one.
    pub fn last(mut self) -> Self {
        self.last = true;
        self
    }

    /// Text.
    ///
    /// # Errors
    /// The turn is over, here and in all that follows.
    pub fn text(&mut self, text: impl Into<String>) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.part(Part::text(text))
    }

    /// Anything that JSON can hold.
    ///
    /// # Errors
    /// What can't be JSON, and the end of the turn.
    pub async fn data(&mut self, data: &impl Serialize) -> Result<(), Error> {
        let part = Part::data(data)?;
        Ok(self.part(part).await?)
    }

    /// A file that comes along.
    pub fn bytes(
        &mut self,
        bytes: impl Into<Vec<u8>>,
        media_type: impl Into<String>,
    ) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.part(Part::bytes(bytes, media_type))
    }

    /// A file that is elsewhere.
    pub fn file(
        &mut self,
        url: impl Into<String>,
        media_type: impl Into<String>,
    ) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.part(Part::url(url, media_type))
    }

    /// Any part.
    pub fn part(&mut self, part: Part) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.parts(vec![part])
    }

    /// Several parts as one chunk.
    pub fn parts(&mut self, parts: Vec<Part>) -> impl Future<Output = Result<(), Stopped>> + Send {
        let mut artifact = Artifact { artifact_id: self.artifact.artifact_id.clone(), parts, ..Artifact::default() };
        if !self.begun {
            // With the first chunk alone, also where that goes behind others: what it says is not said again.
            artifact.name = mem::take(&mut self.artifact.name);
            artifact.description = mem::take(&mut self.artifact.description);
            artifact.metadata = self.artifact.metadata.take();
        }
        let held = &self.out.held;
        let update = TaskArtifactUpdateEvent {
            task_id: held.key.id().to_owned(),
            context_id: (*held.context).to_owned(),
            artifact: Some(artifact),
            append: self.append,
            last_chunk: self.last,
            metadata: None,
        };
        (self.append, self.begun) = (true, true);
        self.out.push(Event::said(Payload::ArtifactUpdate(update)))
    }
}

/// A status of this moment. A message in it is the agent's, of this task, and has an id.
pub(crate) fn status_update(held: &LiveRef, state: TaskState, message: Option<Message>) -> Event {
    let (task_id, context_id) = (held.key.id().to_owned(), (*held.context).to_owned());
    let message = message.map(|it| own(it, &task_id, &context_id));
    let timestamp = Some(seam::timestamp(held.journal().clock().millis()));
    let status = Some(TaskStatus { state: state.into(), message, timestamp });
    Event::said(Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status, metadata: None }))
}

/// Fills in what an agent need not know of its own message.
pub(crate) fn own(mut message: Message, task_id: &str, context_id: &str) -> Message {
    if message.message_id.is_empty() {
        message.message_id = seam::fresh_id();
    }
    if message.role == 0 {
        message.role = Role::Agent.into();
    }
    (message.task_id, message.context_id) = (task_id.to_owned(), context_id.to_owned());
    message
}

impl fmt::Debug for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Updates").field("task", &self.held.key).field("turn", &self.turn).finish_non_exhaustive()
    }
}

impl fmt::Debug for ArtifactWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArtifactWriter").field("artifact", &self.artifact).finish_non_exhaustive()
    }
}
