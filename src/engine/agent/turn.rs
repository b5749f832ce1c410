//! Turn of a task: the input of [`Agent::run`](super::Agent::run), with its messages, the task and the request context.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use http::HeaderMap;
use prost::Message as _;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::Error;
use crate::{
    engine::journal::{LiveRef, Phase, TurnContext},
    protocol::{
        call::Principal,
        event::{Event, Fence},
        message::hops,
        pb::{
            v1::{Message, Part, Task, part::Content},
            wkt::Struct,
        },
    },
    store::ListQuery,
};

/// Turn of a task: one run of the agent, which processes one or more messages.
pub struct Turn {
    pub(crate) live: LiveRef,
    pub(crate) task: Arc<Task>,
    /// Messages of the turn. Empty for the first turn, which processes the message that created the task.
    pub(crate) messages: Vec<Event>,
    /// Messages with secret parts as they were sent, by their position.
    pub(crate) originals: Vec<(usize, Message)>,
    pub(crate) context: Box<TurnContext>,
    /// Number of the turn since the task was loaded.
    pub(crate) number: u32,
    pub(crate) attempt: u32,
    pub(crate) fence: Fence,
    pub(crate) deadline: Instant,
    pub(crate) text: OnceLock<String>,
}

impl Turn {
    /// Returns the messages of the turn as text: a single text part unchanged, or several parts on one line each. A data part
    /// is its JSON, and a file is a line with its name, such as `[file map.png, image/png, https://example.com/map.png]`.
    pub fn text(&self) -> &str {
        let mut parts = self.messages().flat_map(|message| &message.parts);
        match (parts.next(), parts.next()) {
            (None, _) => "",
            (Some(Part { content: Some(Content::Text(text)), .. }), None) => text,
            _ => self.text.get_or_init(|| {
                let parts = self.messages().flat_map(|message| &message.parts).map(Part::to_text);
                parts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n")
            }),
        }
    }

    /// Returns the last message of the turn. There are several if more than one arrived while the agent was busy.
    pub fn message(&self) -> &Message {
        static NONE: OnceLock<Message> = OnceLock::new();
        self.messages().last().unwrap_or_else(|| NONE.get_or_init(Message::default))
    }

    /// Iterates over the messages of the turn, at most 16. Their [secret parts](crate::protocol::message::secret) are not redacted.
    pub fn messages(&self) -> impl Iterator<Item = &Message> {
        let original = |position| self.originals.iter().find(|(own, _)| *own == position).map(|(_, message)| message);
        self.stored_messages().enumerate().map(move |(position, message)| original(position).unwrap_or(message))
    }

    /// Iterates over the messages of the turn as they are stored: without secrets.
    pub(crate) fn stored_messages(&self) -> impl Iterator<Item = &Message> {
        // The first message of the history, not the last: a follow-up may have arrived before the turn began.
        let first = if self.messages.is_empty() { self.task.history.first() } else { None };
        first.into_iter().chain(self.messages.iter().filter_map(Event::message))
    }

    /// Returns the task at the start of the turn. After an interruption it is still in state `INPUT_REQUIRED` or
    /// `AUTH_REQUIRED` here, although clients see `WORKING` as soon as the message is accepted.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// Returns the id of the task.
    pub fn task_id(&self) -> &str {
        self.live.key.id()
    }

    /// Returns the id of the context (conversation) of the task.
    pub fn context_id(&self) -> &str {
        &self.live.context
    }

    /// Iterates over earlier messages of the client and the agent in this task, without the messages of this turn.
    pub fn history(&self) -> impl Iterator<Item = &Message> {
        let is_new = |earlier: &Message| {
            self.messages().any(|new| new.message_id == earlier.message_id && new.role == earlier.role)
        };
        // The agent's last message is in the status, and not in the history yet.
        let status = self.task.status.iter().flat_map(|status| &status.message);
        self.task.history.iter().chain(status).filter(move |earlier| !is_new(earlier))
    }

    /// Returns the tasks that the message references and the caller may read.
    pub fn referenced(&self) -> &[Task] {
        &self.context.referenced
    }

    /// Returns other tasks of the context that the owner of this one has, oldest first: those that changed last, with their
    /// history and artifacts. At most `limit` tasks, with a total size of about `max_bytes` in protobuf.
    ///
    /// # Errors
    /// The store is not available.
    pub async fn context_tasks(&self, limit: usize, max_bytes: usize) -> Result<Vec<Task>, Error> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        // This task is among the tasks of the context.
        let own = self.task.encoded_len() + self.messages().map(Message::encoded_len).sum::<usize>();
        let query = ListQuery {
            scope: Arc::clone(self.live.key.scope()),
            context: Some((*self.live.context).into()),
            limit: limit.saturating_add(1),
            max_bytes: Some(max_bytes.saturating_add(own)),
            history_bytes: Some(max_bytes),
            include_artifacts: true,
            ..ListQuery::default()
        };
        let mut tasks = self.live.journal().store().list(&query).await?.tasks;
        tasks.retain(|task| task.id != self.task_id());
        tasks.truncate(limit);
        tasks.reverse();
        Ok(tasks)
    }

    /// Returns the state that an earlier turn or attempt has saved ([`Updates::save`](super::Updates::save)). `None` without
    /// one, and if it can't be deserialized to this type.
    pub fn saved<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.live.agent_state()?).ok()
    }

    /// Returns the output media types that the caller accepts. Empty: all.
    pub fn accepted_output_modes(&self) -> &[String] {
        &self.context.accepted_output_modes
    }

    /// Returns the owner of the task. Empty for anonymous callers.
    pub fn owner(&self) -> &str {
        &self.live.key.scope().owner
    }

    /// Returns the authenticated principal that sent the last message, with its claims. `None` for anonymous callers.
    pub fn principal(&self) -> Option<&Principal> {
        self.context.principal.as_deref()
    }

    /// Returns the tenant of the request. Empty if it names none.
    pub fn tenant(&self) -> &str {
        &self.live.key.scope().tenant
    }

    /// Returns the URIs of the active extensions: those that the caller requests and the server supports (4.6).
    pub fn extensions(&self) -> &[String] {
        &self.context.extensions
    }

    /// Returns the metadata of the request.
    pub fn metadata(&self) -> Option<&Struct> {
        self.context.metadata.as_ref()
    }

    /// Returns the `traceparent` to be sent with calls of the agent (W3C Trace Context): that of the span of the turn, or else that
    /// of the request. `None` if there is neither.
    pub fn trace(&self) -> Option<&str> {
        self.context.trace.as_deref()
    }

    /// Returns the `tracestate` of [`trace`](Self::trace). `None` if it has none.
    pub fn trace_state(&self) -> Option<&str> {
        self.context.traced.as_ref()?.state.as_deref()
    }

    /// Returns the number of agents that have passed on the messages of the turn: the highest count of any. Messages that the
    /// agent sends have one more, see [`hops`].
    pub fn hops(&self) -> u32 {
        self.stored_messages().map(hops::of).max().unwrap_or_default()
    }

    /// Returns the headers of the request that the server is configured to pass on, such as the credentials of the caller
    /// ([`Server::forward_headers`](crate::server::Server::forward_headers)). `None` if the request has none of them, and after a
    /// restart of the server: they are in memory only.
    pub fn forwarded_headers(&self) -> Option<&Arc<HeaderMap>> {
        self.context.forwarded.as_ref()
    }

    /// Returns the number of this attempt to run the turn, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the fencing token of this attempt. If a server takes a turn over from another one that it can't reach, both may run
    /// it for some seconds. The attempt that was taken over has a smaller token than the new one, and its events are refused. A
    /// system that an agent changes can refuse it likewise, if it keeps the greatest token that it has seen for a task.
    ///
    /// A [resumable](super::Agent::resumable) agent passes on two values: one that all attempts share, so that the change is made
    /// once, and the token, so that a superseded attempt changes nothing more.
    ///
    /// ```
    /// # use a2a_service::agent::{self, End, Turn, Updates};
    /// # async fn place_order(_: &str, _: u64) -> Result<(), agent::Error> { Ok(()) }
    /// async fn run(turn: Turn, _: Updates) -> Result<End, agent::Error> {
    ///     let idempotency_key = format!("{}/{}", turn.task_id(), turn.message().message_id);
    ///     place_order(&idempotency_key, turn.fence()).await?;
    ///     Ok(End::completed("ordered"))
    /// }
    /// # agent::from_fn(run);
    /// ```
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// Adds tokens that a model has read and written for the turn to its record.
    #[cfg(feature = "openai")]
    pub(crate) fn record_tokens(&self, input: u64, output: u64) {
        self.live.record(self.number, |record| {
            record.tokens_in = record.tokens_in.saturating_add(input);
            record.tokens_out = record.tokens_out.saturating_add(output);
        });
    }

    /// Adds the exit code of the command of the agent to the record of the turn.
    #[cfg(all(feature = "exec", unix))]
    pub(crate) fn record_exit(&self, code: i32) {
        self.live.record(self.number, |record| record.exit_code = Some(code));
    }

    /// Returns the time at which the turn is stopped, and fails.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Waits until the task is canceled. The agent then has a grace period to return by itself
    /// ([`Limits::cancel_grace`](crate::engine::execution::Limits::cancel_grace)).
    pub async fn canceled(&self) {
        self.wait_until(|| self.live.is_cancel_requested() || self.live.is_lost()).await;
    }

    /// Returns true if the task is canceled.
    pub fn is_canceled(&self) -> bool {
        self.live.is_cancel_requested()
    }

    /// Returns the metadata of the cancel request: of the first that has any, if there were several. It is lost if the
    /// server restarts.
    pub fn cancel_metadata(&self) -> Option<Struct> {
        self.live.cancel_metadata()
    }

    /// Waits until the server begins to stop. A turn that does not end in its grace period is interrupted, and recovered at
    /// the next start.
    pub async fn draining(&self) {
        self.wait_until(|| self.live.is_lost() || self.live.journal().phase() > Phase::Open).await;
    }

    async fn wait_until(&self, condition: impl Fn() -> bool) {
        loop {
            let control = self.live.control.notified();
            if condition() {
                return;
            }
            control.await;
        }
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Turn");
        f.field("task", &self.live.key).field("text", &self.text()).field("attempt", &self.attempt);
        f.finish_non_exhaustive()
    }
}
