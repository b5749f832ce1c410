//! What a user of the library writes: an agent. It is given a turn, says what it does, and returns how the turn ends.
//!
//! An agent speaks to its task and never to a connection: what it says is in the log before anybody sees it, whoever
//! listens, and it goes on when nobody does.

use std::{error::Error as StdError, fmt, iter, sync::Arc};

pub use self::{
    about::About,
    test::{Outcome, Probe, test},
    turn::Turn,
    updates::{ArtifactWriter, Updates},
};
pub(crate) use self::{turn::TurnContext, updates::status_update};
use crate::pb::v1::Message;

mod about;
pub mod demo;
mod test;
mod turn;
pub(crate) mod updates;

/// An agent.
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
/// assert_eq!(a2a_service::agent::test(Shout).send("hello").await?.text(), "HELLO");
/// # Ok(()) }
/// ```
pub trait Agent: Send + Sync + 'static {
    /// Runs one turn. Its end is what this returns: so an agent can't end twice, say something after its end, or end
    /// in silence.
    ///
    /// # Errors
    /// Any error ends the task as FAILED. The caller sees that it failed, and an id; the log has the cause under it.
    /// [`Error::say`] is for words that are meant for the caller.
    fn run(&self, turn: Turn, out: Updates) -> impl Future<Output = Result<End, Error>> + Send;

    /// What the agent card says of it, unless the server is told otherwise.
    fn about(&self) -> About {
        About::default()
    }

    /// Returns true if a turn that was cut by the end of its process may be run again: after each graceful stop of the
    /// server, and after at most two crashes. [`Turn::attempt`] is then greater than 1. The new attempt has the
    /// messages of the turn, the artifacts so far, and the state that the agent has [saved](Updates::save). Metadata of
    /// the request and other data outside the messages is lost. Otherwise the task fails.
    fn resumable(&self) -> bool {
        false
    }
}

/// How a turn ends.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The task is done, perhaps with a last word. Results belong into artifacts, which other clients look for (3.7).
    Completed(Option<Message>),
    /// The agent needs an answer; the next message to the task is the next turn.
    InputRequired(Message),
    /// The agent needs an authorisation that its caller gives elsewhere; the next message is the next turn.
    AuthRequired(Message),
    /// The agent will not do it.
    Rejected(Message),
    /// An answer without a task. Only while there is none: before the agent's first update and within the first
    /// 100 ms; after that it completes the task, with this as its last word.
    Reply(Message),
}

/// Why a turn fails. Any error becomes one, by `?`.
pub struct Error {
    said: Option<String>,
    stopped: bool,
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

/// The turn is over, whoever ended it: there is nothing more to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the turn is over")]
pub struct Stopped;

impl Error {
    /// A failure in words that are meant for the caller.
    pub fn say(text: impl Into<String>) -> Self {
        Self { said: Some(text.into()), stopped: false, cause: None }
    }

    /// A failure in words that are meant for the log.
    pub fn msg(text: impl Into<String>) -> Self {
        Self { said: None, stopped: false, cause: Some(text.into().into()) }
    }

    /// The same failure, and what is behind it, for the log.
    #[must_use]
    pub fn caused_by(self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { cause: Some(cause.into()), ..self }
    }

    /// The agent was stopped, and only says so.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The words for the caller.
    pub(crate) fn said(&self) -> Option<&str> {
        self.said.as_deref()
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Error {
    fn from(error: E) -> Self {
        // However it is wrapped: an agent that was canceled and says so in its own words has not failed.
        let mut causes = iter::successors(Some::<&dyn StdError>(&error), |&it| it.source());
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

/// An agent that is a function.
///
/// ```
/// use a2a_service::agent::{self, End};
///
/// let greeter = agent::from_fn(|turn, out| async move {
///     let mut answer = out.artifact("greeting");
///     for word in ["Hello, ", turn.text(), "!"] {
///         answer.text(word).await?;
///     }
///     Ok(End::Completed(None))
/// });
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// assert_eq!(agent::test(greeter).send("Ada").await.unwrap().text(), "Hello, Ada!");
/// # });
/// ```
pub fn from_fn<F, Fut>(run: F) -> FromFn<F>
where
    F: Fn(Turn, Updates) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<End, Error>> + Send,
{
    FromFn { run, about: About::default() }
}

/// What [`from_fn`] makes.
#[derive(Clone, Debug)]
pub struct FromFn<F> {
    run: F,
    about: About,
}

impl<F> FromFn<F> {
    /// The same agent, with this to say of itself.
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
    fn any_error_is_a_failure_and_being_stopped_is_known() {
        let failure: Error = std::io::Error::other("disk").into();
        assert_eq!((failure.to_string().as_str(), failure.said(), failure.is_stopped()), ("disk", None, false));
        assert!(Error::from(Stopped).is_stopped());
        assert!(Error::from(Wrapped(Stopped)).is_stopped());
        let said = Error::say("the city is unknown").caused_by("no row");
        assert_eq!(
            (said.said(), said.to_string().as_str()),
            (Some("the city is unknown"), "the city is unknown: no row")
        );
    }
}
