//! Agent interface: the trait [`Agent`] that users of the library implement, with its input ([`Turn`]), its output
//! ([`Updates`]) and its result ([`End`], [`Error`]).
//!
//! An agent writes to its task and not to a connection. Updates are committed to the task's log before clients see them, and
//! the agent keeps running when all clients have disconnected.

use std::{error::Error as StdError, fmt, pin::Pin, sync::Arc};

pub use self::{
    turn::Turn,
    updates::{ArtifactWriter, Updates},
};
use crate::{
    base::dependency::Dependency,
    protocol::{
        error::{Error as CallError, chain, sources},
        pb::v1::{AgentCard, Message},
    },
};

pub mod demo;
mod turn;
pub(crate) mod updates;

/// Agent that processes the messages of tasks.
///
/// ```
/// use a2a_service::agent::{Agent, End, Error, Turn, Updates};
///
/// struct Shout;
///
/// impl Agent for Shout {
///     async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
///         out.artifact("shout").last().text(turn.text().to_uppercase()).await?;
///         Ok(End::Completed(None))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// assert_eq!(a2a_service::testing::probe(Shout).send("hello").await?.text(), "HELLO");
/// # Ok(()) }
/// ```
pub trait Agent: Send + Sync + 'static {
    /// Runs one turn. The result ends it: an agent can't end a turn twice, send updates after its end, or leave it open.
    ///
    /// # Errors
    /// Any error ends the task as FAILED. The client gets an error id, under which the log has the cause. [`Error::public`]
    /// creates an error with a status message for the client.
    fn run(&self, turn: Turn, out: Updates) -> impl Future<Output = Result<End, Error>> + Send;

    /// Returns the agent card without the fields of the server: its interfaces, except for additional ones; capabilities,
    /// except for `streaming`, which is true by default, and `extensions`; and signatures. The server fills in required
    /// fields that are empty, and its configuration may override the others.
    fn card(&self) -> AgentCard {
        AgentCard::default()
    }

    /// Returns true if a turn that was interrupted by the end of its process may be run again: after each graceful stop of the
    /// server, and after at most two crashes. [`Turn::attempt`] is then greater than 1. The new attempt has the messages of the
    /// turn with their request context, the artifacts so far, and the state that the agent has [saved](Updates::save). Request
    /// metadata is lost if the context of a message exceeds 64 KiB. If false, the task fails.
    fn resumable(&self) -> bool {
        false
    }

    /// Returns what the agent needs for its turns. While the breaker of one is open, new messages are rejected as unavailable.
    #[doc(hidden)]
    fn dependencies(&self) -> Vec<Dependency> {
        Vec::new()
    }
}

/// Result of a turn.
///
/// Messages can be given as text or as a [`Message`]:
///
/// ```
/// use a2a_service::{agent::End, pb::v1::{Message, Part}};
///
/// let end = End::input_required("Which city?");
/// let other = End::rejected(Message::agent("Not this file:").and(Part::url("https://example.com/a", "text/plain")));
/// # assert_eq!(end, End::InputRequired(Message::agent("Which city?")));
/// # assert!(matches!(other, End::Rejected(message) if message.parts.len() == 2));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The task is completed, optionally with a status message. Results belong in artifacts (3.7).
    Completed(Option<Message>),
    /// The agent needs input. The next message to the task starts the next turn.
    InputRequired(Message),
    /// The agent needs an authorization, which the caller gives outside of the protocol. The next message to the task starts
    /// the next turn.
    AuthRequired(Message),
    /// The agent rejects the task.
    Rejected(Message),
    /// A message without a task. Only before the agent's first update and within the first 100 ms
    /// ([`Limits::task_delay`](crate::engine::execution::Limits::task_delay)): after that, it completes the task as its status
    /// message.
    Reply(Message),
}

impl End {
    /// Completes the task with a status message. Without one, use `End::Completed(None)`.
    pub fn completed(message: impl Into<Message>) -> Self {
        Self::Completed(Some(message.into()))
    }

    /// Requests input from the client.
    pub fn input_required(message: impl Into<Message>) -> Self {
        Self::InputRequired(message.into())
    }

    /// Requests an authorization from the client.
    pub fn auth_required(message: impl Into<Message>) -> Self {
        Self::AuthRequired(message.into())
    }

    /// Rejects the task.
    pub fn rejected(message: impl Into<Message>) -> Self {
        Self::Rejected(message.into())
    }

    /// Replies with a message instead of a task (see [`End::Reply`]).
    pub fn reply(message: impl Into<Message>) -> Self {
        Self::Reply(message.into())
    }
}

/// Failure of a turn, which ends the task as FAILED.
///
/// The `?` operator converts any error, including `anyhow::Error`, `Box<dyn Error + Send + Sync>` and text. Such an error is
/// written to the log only, and the status message has an id that identifies it there. [`Error::public`] creates an error
/// with a status message of the agent.
///
/// ```
/// use a2a_service::{agent::{self, End, Error}, testing};
///
/// let agent = agent::from_fn(|turn, _| async move {
///     let number: u32 = turn.text().parse().map_err(|cause| Error::public("Send a number.").caused_by(cause))?;
///     std::fs::read(format!("/nonexistent/{number}"))?;
///     Ok(End::Completed(None))
/// });
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let probe = testing::probe(agent);
/// assert_eq!(probe.send("two").await.unwrap().status_text(), "Send a number.");
/// assert!(probe.send("2").await.unwrap().status_text().starts_with("Agent execution failed: error id "));
/// # });
/// ```
pub struct Error {
    /// Status message for the client.
    message: Option<Box<Message>>,
    /// Set if the error is [`Stopped`], or was caused by it.
    stopped: bool,
    /// Cause for the log.
    cause: Option<Box<dyn StdError + Send + Sync>>,
    /// Error of the call, if there is no task yet.
    refusal: Option<CallError>,
    /// Reason in the log, the metrics and the record of the turn.
    reason: Option<&'static str>,
}

/// Error of an update after the end of the turn, for example by a cancel or at its deadline. An agent returns it, or an error
/// that it has caused, to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

/// Source of [`Stopped`]. Identifies it also in errors that hide the type of the error they wrap, such as `anyhow::Error`.
#[derive(Debug, thiserror::Error)]
#[error("the turn has ended")]
struct TurnEnded;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the agent was stopped")
    }
}

impl StdError for Stopped {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&TurnEnded)
    }
}

impl Error {
    /// Creates an error with a status message for the client: a text, or a message with parts and metadata.
    pub fn public(message: impl Into<Message>) -> Self {
        Self { message: Some(Box::new(message.into())), stopped: false, cause: None, refusal: None, reason: None }
    }

    /// Creates an error whose text is written to the log only.
    pub fn internal(text: impl Into<String>) -> Self {
        text.into().into()
    }

    /// Adds a cause, which is written to the log only.
    #[must_use]
    pub fn caused_by(self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { cause: Some(cause.into()), ..self }
    }

    /// Fails the call with an error instead of its task, while there is none: as for [`End::Reply`].
    #[cfg(feature = "client")]
    pub(crate) fn refusing(self, refusal: CallError) -> Self {
        Self { refusal: Some(refusal), ..self }
    }

    /// Sets the reason in the log, the metrics and the record of the turn: one of the
    /// [reasons](crate::store::turn_record::REASONS).
    #[cfg(any(feature = "client", feature = "exec"))]
    pub(crate) fn because_of(self, reason: &'static str) -> Self {
        Self { reason: Some(reason), ..self }
    }

    /// Returns the reason.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// Takes the error of the call.
    pub(crate) fn take_refusal(&mut self) -> Option<CallError> {
        self.refusal.take()
    }

    /// Returns true if the agent returned because its turn had ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the status message for the client.
    pub(crate) fn message(&self) -> Option<&Message> {
        self.message.as_deref()
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for Error {
    fn from(error: E) -> Self {
        let cause: Box<dyn StdError + Send + Sync> = error.into();
        // The error may be wrapped: an agent that returns its own error because of a cancel has not failed.
        let stopped = sources(&*cause).any(<dyn StdError>::is::<TurnEnded>);
        Self { message: None, stopped, cause: Some(cause), refusal: None, reason: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.message, &self.cause) {
            (Some(message), None) => f.write_str(&message.text()),
            (Some(message), Some(cause)) => {
                write!(f, "{}: {}", message.text().trim_end_matches('.'), chain(&**cause))
            }
            (None, Some(cause)) => f.write_str(&chain(&**cause)),
            (None, None) => f.write_str("failed"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Creates an agent from a function.
///
/// ```
/// use a2a_service::{agent::{self, End}, testing};
///
/// let greeter = agent::from_fn(|turn, out| async move {
///     let mut answer = out.artifact("greeting");
///     for word in ["Hello, ", turn.text(), "!"] {
///         answer.text(word).await?;
///     }
///     Ok(End::Completed(None))
/// });
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// assert_eq!(testing::probe(greeter).send("Ada").await.unwrap().text(), "Hello, Ada!");
/// # });
/// ```
pub fn from_fn<F, Fut>(run: F) -> FromFn<F>
where
    F: Fn(Turn, Updates) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<End, Error>> + Send,
{
    FromFn { run, card: AgentCard::default(), resumable: false }
}

/// Agent created by [`from_fn`].
#[derive(Clone, Debug)]
pub struct FromFn<F> {
    run: F,
    card: AgentCard,
    resumable: bool,
}

impl<F> FromFn<F> {
    /// Sets the agent card ([`Agent::card`]).
    #[must_use]
    pub fn card(self, card: AgentCard) -> Self {
        Self { card, ..self }
    }

    /// Sets whether interrupted turns may be run again ([`Agent::resumable`]). Off by default.
    #[must_use]
    pub fn resumable(self, resumable: bool) -> Self {
        Self { resumable, ..self }
    }
}

impl<F, Fut> Agent for FromFn<F>
where
    F: Fn(Turn, Updates) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<End, Error>> + Send,
{
    fn run(&self, turn: Turn, out: Updates) -> impl Future<Output = Result<End, Error>> + Send {
        (self.run)(turn, out)
    }

    fn card(&self) -> AgentCard {
        self.card.clone()
    }

    fn resumable(&self) -> bool {
        self.resumable
    }
}

impl<T: Agent + ?Sized> Agent for Arc<T> {
    fn run(&self, turn: Turn, out: Updates) -> impl Future<Output = Result<End, Error>> + Send {
        (**self).run(turn, out)
    }

    fn card(&self) -> AgentCard {
        (**self).card()
    }

    fn resumable(&self) -> bool {
        (**self).resumable()
    }

    fn dependencies(&self) -> Vec<Dependency> {
        (**self).dependencies()
    }
}

/// Object-safe form of [`Agent`], which every agent implements. `Arc<dyn DynAgent>` is an agent that is selected at run time.
///
/// ```
/// use std::sync::Arc;
///
/// use a2a_service::{agent::{self, DynAgent, End, demo::Demo}, testing};
///
/// fn select(name: &str) -> Arc<dyn DynAgent> {
///     match name {
///         "demo" => Arc::new(Demo),
///         _ => Arc::new(agent::from_fn(|_, _| async { Ok(End::rejected("No such agent.")) })),
///     }
/// }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// assert_eq!(testing::probe(select("demo")).send("hello").await.unwrap().text(), "hello");
/// assert_eq!(testing::probe(select("other")).send("hello").await.unwrap().status_text(), "No such agent.");
/// # });
/// ```
pub trait DynAgent: Send + Sync + 'static {
    /// Calls [`Agent::run`].
    fn dyn_run(&self, turn: Turn, out: Updates) -> Pin<Box<dyn Future<Output = Result<End, Error>> + Send + '_>>;

    /// Calls [`Agent::card`].
    fn dyn_card(&self) -> AgentCard;

    /// Calls [`Agent::resumable`].
    fn dyn_resumable(&self) -> bool;

    #[doc(hidden)]
    fn dyn_dependencies(&self) -> Vec<Dependency>;
}

impl<A: Agent> DynAgent for A {
    fn dyn_run(&self, turn: Turn, out: Updates) -> Pin<Box<dyn Future<Output = Result<End, Error>> + Send + '_>> {
        Box::pin(self.run(turn, out))
    }

    fn dyn_card(&self) -> AgentCard {
        self.card()
    }

    fn dyn_resumable(&self) -> bool {
        self.resumable()
    }

    fn dyn_dependencies(&self) -> Vec<Dependency> {
        self.dependencies()
    }
}

impl Agent for dyn DynAgent {
    fn run(&self, turn: Turn, out: Updates) -> impl Future<Output = Result<End, Error>> + Send {
        self.dyn_run(turn, out)
    }

    fn card(&self) -> AgentCard {
        self.dyn_card()
    }

    fn resumable(&self) -> bool {
        self.dyn_resumable()
    }

    fn dependencies(&self) -> Vec<Dependency> {
        self.dyn_dependencies()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("while it counted")]
    struct Wrapped(#[source] Stopped);

    #[test]
    fn errors_caused_by_stopped_are_recognized() {
        let failure: Error = std::io::Error::other("disk").into();
        assert_eq!((failure.to_string().as_str(), failure.message(), failure.is_stopped()), ("disk", None, false));
        assert!(Error::from(Stopped).is_stopped());
        assert!(Error::from(Wrapped(Stopped)).is_stopped());
        let failure = Error::public("the city is unknown").caused_by("no row");
        assert_eq!(failure.message(), Some(&Message::agent("the city is unknown")));
        assert_eq!(failure.to_string(), "the city is unknown: no row");
    }

    #[test]
    fn question_mark_converts_type_erased_errors() {
        type Boxed = Box<dyn StdError + Send + Sync>;
        fn fail<E: Into<Boxed>>(error: E) -> Result<End, Error> {
            Err(error)?
        }
        for failure in [fail("disk"), fail("disk".to_owned()), fail(Boxed::from("disk")), fail(anyhow::anyhow!("disk"))]
        {
            let failure = failure.unwrap_err();
            assert_eq!((failure.to_string().as_str(), failure.message(), failure.is_stopped()), ("disk", None, false));
        }
        assert!(fail(Boxed::from(Stopped)).unwrap_err().is_stopped());
        assert!(fail(anyhow::Error::from(Stopped)).unwrap_err().is_stopped());
        let wrapped = fail(anyhow::Error::from(Stopped).context("while it counted")).unwrap_err();
        assert!(wrapped.is_stopped() && wrapped.to_string().starts_with("while it counted: "), "{wrapped}");
    }
}
