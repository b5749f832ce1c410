//! Agent interface: the trait [`Agent`] that users of the library implement, with its input ([`Turn`]), its output
//! ([`Updates`]) and its result ([`End`], [`Error`]).
//!
//! An agent writes to its task and not to a connection. Updates are committed to the task's log before clients see them, and
//! the agent keeps running when all clients have disconnected.

use std::{error::Error as StdError, fmt, iter, sync::Arc};

pub use self::{
    about::About,
    turn::Turn,
    updates::{ArtifactWriter, Updates},
};
use crate::pb::v1::Message;

mod about;
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
    /// Any error ends the task as FAILED. The caller gets an error id, under which the log has the cause. [`Error::say`]
    /// creates an error whose text is sent to the caller.
    fn run(&self, turn: Turn, out: Updates) -> impl Future<Output = Result<End, Error>> + Send;

    /// Describes the agent for the agent card. The server's configuration may override it.
    fn about(&self) -> About {
        About::default()
    }

    /// Returns true if a turn that was interrupted by the end of its process may be run again: after each graceful stop of the
    /// server, and after at most two crashes. [`Turn::attempt`] is then greater than 1. The new attempt has the messages of the
    /// turn with their request context, the artifacts so far, and the state that the agent has [saved](Updates::save). Request
    /// metadata is lost if the context of a message exceeds 64 KiB. If false, the task fails.
    fn resumable(&self) -> bool {
        false
    }
}

/// Result of a turn.
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
    /// ([`Limits::task_delay`](crate::service::Limits::task_delay)): after that, it completes the task as its status message.
    Reply(Message),
}

/// Failure of a turn. The `?` operator converts any error.
pub struct Error {
    /// Text for the caller.
    said: Option<String>,
    /// The error is [`Stopped`], or was caused by it.
    stopped: bool,
    /// Cause for the log.
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

/// The turn has ended, for example by a cancel or at its deadline, and accepts no more updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the turn has ended")]
pub struct Stopped;

impl Error {
    /// Creates an error whose text is sent to the caller.
    pub fn say(text: impl Into<String>) -> Self {
        Self { said: Some(text.into()), stopped: false, cause: None }
    }

    /// Creates an error whose text is written to the log only.
    pub fn msg(text: impl Into<String>) -> Self {
        Self { said: None, stopped: false, cause: Some(text.into().into()) }
    }

    /// Adds a cause, which is written to the log only.
    #[must_use]
    pub fn caused_by(self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { cause: Some(cause.into()), ..self }
    }

    /// Returns true if the agent returned because its turn had ended.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the text for the caller.
    pub(crate) fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        // `Stopped` may be wrapped: an agent that returns its own error because of a cancel has not failed.
        let mut causes = iter::successors(Some::<&dyn StdError>(&error), |&error| error.source());
        let stopped = causes.any(<dyn StdError>::is::<Stopped>);
        Self { said: None, stopped, cause: Some(Box::new(error)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.said, &self.cause) {
            (Some(said), None) => f.write_str(said),
            (Some(said), Some(cause)) => write!(f, "{said}: {}", crate::error::chain(&**cause)),
            (None, Some(cause)) => f.write_str(&crate::error::chain(&**cause)),
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
    FromFn { run, about: About::default() }
}

/// Agent created by [`from_fn`].
#[derive(Clone, Debug)]
pub struct FromFn<F> {
    run: F,
    about: About,
}

impl<F> FromFn<F> {
    /// Sets the description for the agent card.
    #[must_use]
    pub fn about(self, about: About) -> Self {
        Self { about, ..self }
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

    fn about(&self) -> About {
        self.about.clone()
    }
}

impl<T: Agent> Agent for Arc<T> {
    fn run(&self, turn: Turn, out: Updates) -> impl Future<Output = Result<End, Error>> + Send {
        (**self).run(turn, out)
    }

    fn about(&self) -> About {
        (**self).about()
    }

    fn resumable(&self) -> bool {
        (**self).resumable()
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
        assert_eq!((failure.to_string().as_str(), failure.said(), failure.is_stopped()), ("disk", None, false));
        assert!(Error::from(Stopped).is_stopped());
        assert!(Error::from(Wrapped(Stopped)).is_stopped());
        let failure = Error::say("the city is unknown").caused_by("no row");
        assert_eq!(
            (failure.said(), failure.to_string().as_str()),
            (Some("the city is unknown"), "the city is unknown: no row")
        );
    }
}
