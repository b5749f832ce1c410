//! A turn: what an agent is given to do, and by whom.

use std::{
    fmt,
    future::poll_fn,
    sync::{Arc, OnceLock},
    task::Poll,
};

use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::{
    event::Event,
    journal::{LiveRef, Phase, live::Inner, waiters::WakerRegistration},
    pb::{
        v1::{Message, Part, Task, part::Content, stream_response::Payload},
        wkt::Struct,
    },
};

/// What came with a message beside it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnContext {
    pub(crate) principal: Option<Arc<str>>,
    pub(crate) extensions: Vec<String>,
    pub(crate) accepted_output_modes: Vec<String>,
    pub(crate) metadata: Option<Struct>,
    pub(crate) referenced: Vec<Task>,
}

/// One turn of a task: the messages that it answers, and what is known of them.
pub struct Turn {
    pub(crate) held: LiveRef,
    pub(crate) task: Arc<Task>,
    /// The follow-ups that it answers; the first turn answers the message that the task began with.
    pub(crate) messages: Vec<Event>,
    pub(crate) asked: TurnContext,
    pub(crate) attempt: u32,
    pub(crate) deadline: Instant,
    pub(crate) text: OnceLock<String>,
}

impl Turn {
    /// Its messages as text, for agents that read nothing else: a single part of text as it is, and of several parts
    /// one line each. Data is its JSON, and a file a line that names it, such as
    /// `[file map.png, image/png, https://example.com/map.png]`.
    pub fn text(&self) -> &str {
        let mut parts = self.messages().flat_map(|it| &it.parts);
        match (parts.next(), parts.next()) {
            (None, _) => "",
            (Some(Part { content: Some(Content::Text(it)), .. }), None) => it,
            _ => self.text.get_or_init(|| {
                let parts = self.messages().flat_map(|it| &it.parts).map(Part::to_text);
                parts.filter(|it| !it.is_empty()).collect::<Vec<_>>().join("\n")
            }),
        }
    }

    /// The message that it answers: the last, where several came while the agent was busy.
    pub fn message(&self) -> &Message {
        static NONE: OnceLock<Message> = OnceLock::new();
        self.messages().last().unwrap_or_else(|| NONE.get_or_init(Message::default))
    }

    /// All the messages that it answers, at most 16.
    pub fn messages(&self) -> impl Iterator<Item = &Message> {
        // The first and not the last: a follow-up may have come before the turn began.
        let first = if self.messages.is_empty() { self.task.history.first() } else { None };
        first.into_iter().chain(self.messages.iter().filter_map(message))
    }

    /// The task as it was when the turn began. In a turn that answers a question it is still `INPUT_REQUIRED` or
    /// `AUTH_REQUIRED` here, while clients are shown `WORKING` from the moment that the answer was accepted.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// The id of the task.
    pub fn task_id(&self) -> &str {
        self.held.key.id()
    }

    /// The id of the conversation that the task is part of.
    pub fn context_id(&self) -> &str {
        &self.held.context
    }

    /// What was said in this task, without the messages that this turn answers.
    pub fn history(&self) -> impl Iterator<Item = &Message> {
        let new = |it: &Message| self.messages().any(|new| new.message_id == it.message_id && new.role == it.role);
        // What it said last is still its status.
        let said = self.task.status.iter().flat_map(|it| &it.message);
        self.task.history.iter().chain(said).filter(move |it| !new(it))
    }

    /// The tasks that the message refers to, as far as the caller may see them.
    pub fn referenced(&self) -> &[Task] {
        &self.asked.referenced
    }

    /// What an earlier turn of this task has saved ([`Updates::save`](super::Updates::save)). None too where it can't
    /// be read as this.
    pub fn saved<T: DeserializeOwned>(&self) -> Option<T> {
        let saved = self.held.lock().saved()?;
        serde_json::from_slice(&saved).ok()
    }

    /// The media types that the caller takes; any, where there are none.
    pub fn accepted_output_modes(&self) -> &[String] {
        &self.asked.accepted_output_modes
    }

    /// Whose task it is; empty for a caller that nobody has named.
    pub fn owner(&self) -> &str {
        &self.held.key.scope().owner
    }

    /// Who sent the message, as the server's authentication named them.
    pub fn principal(&self) -> Option<&str> {
        self.asked.principal.as_deref()
    }

    /// The tenant that the message was sent to; empty where none was named.
    pub fn tenant(&self) -> &str {
        &self.held.key.scope().tenant
    }

    /// The extensions that are active, by URI: those that the caller asks for and the server has (4.6).
    pub fn extensions(&self) -> &[String] {
        &self.asked.extensions
    }

    /// What the caller sent along with the request.
    pub fn metadata(&self) -> Option<&Struct> {
        self.asked.metadata.as_ref()
    }

    /// How often this turn has been begun, this time included.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the turn is taken from the agent.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns when somebody has canceled the task. The agent then has a moment to end by itself.
    pub async fn canceled(&self) {
        self.until(|inner| inner.cancel || inner.lost).await;
    }

    /// Returns when the server is about to stop. A turn that is not over when it does is left as it is, for the next
    /// start to take up.
    pub async fn draining(&self) {
        self.until(|inner| inner.lost || self.held.journal().phase() > Phase::Open).await;
    }

    async fn until(&self, over: impl Fn(&Inner) -> bool) {
        let mut waits = WakerRegistration::new(&self.held, |it| &mut it.control);
        poll_fn(|cx| {
            let mut inner = self.held.lock();
            if over(&inner) {
                return Poll::Ready(());
            }
            waits.register(&mut inner, cx);
            Poll::Pending
        })
        .await;
    }
}

fn message(event: &Event) -> Option<&Message> {
    match event.payload() {
        Some(Payload::Message(it)) => Some(it),
        Some(Payload::Task(_) | Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_)) | None => None,
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Turn");
        f.field("task", &self.held.key).field("text", &self.text()).field("attempt", &self.attempt);
        f.finish_non_exhaustive()
    }
}
