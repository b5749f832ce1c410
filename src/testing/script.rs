//! Agent that follows a script.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    engine::agent::{Agent, End, Error, Stopped, Turn, Updates},
    protocol::pb::v1::{AgentCard, Message},
};

/// Name and id of the artifact that [`Script::text`] extends.
const ANSWER: &str = "answer";

/// Maximum number of messages that a script keeps.
const MAX_RECEIVED: usize = 10_000;

/// Agent that follows a list of steps, for tests of clients, and of agents that call other agents.
///
/// The steps of a task are executed in their order. [`ask`](Self::ask) and [`authorize`](Self::authorize) end the turn: the next
/// message to the task continues with the step after them. Each update is committed before the next step, so that clients
/// receive it as an event of its own. After the last step, the task is completed. Clones share the messages that they
/// [received](Self::received).
///
/// ```
/// use a2a_service::{pb::v1::TaskState, testing::{self, Script}};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let script = Script::new().working().text("Sunny").ask("Which city?").text(" in ").echo().artifact("map", "…");
/// let probe = testing::probe(script.clone());
/// let asked = probe.send("Weather?").await.unwrap();
/// assert_eq!((asked.state(), asked.status_text().as_str()), (TaskState::InputRequired, "Which city?"));
/// let done = probe.reply(&asked, "Rome").await.unwrap();
/// assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, "Sunny in Rome…"));
/// assert_eq!(script.received().len(), 2);
/// # });
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a script does nothing until it is served"]
pub struct Script {
    steps: Vec<Step>,
    card: AgentCard,
    received: Arc<Mutex<VecDeque<Message>>>,
}

#[derive(Clone, Debug)]
enum Step {
    Working,
    Progress(Message),
    /// Chunk of the artifact with this name.
    Chunk(String, String),
    /// Chunk with the text of the turn.
    Echo,
    Pause(Duration),
    AwaitCancel,
    /// Ends the turn. The next message continues after this step.
    Interrupt(End),
    /// Ends the task.
    Finish(End),
    Fail(String),
}

/// Declares methods that add a step: name, parameters, and the step.
macro_rules! steps {
    ($($(#[$attribute:meta])* $name:ident($($parameter:ident: $type:ty),*) => $step:expr;)+) => {
        /// Steps.
        impl Script { $(
            $(#[$attribute])*
            pub fn $name(mut self, $($parameter: $type),*) -> Self {
                self.steps.push($step);
                self
            }
        )+ }
    };
}

steps! {
    /// Sets the status to WORKING.
    working() => Step::Working;

    /// Sets the status to WORKING, with a message.
    progress(message: impl Into<Message>) => Step::Progress(message.into());

    /// Appends a chunk to the artifact `answer`.
    text(text: impl Into<String>) => Step::Chunk(ANSWER.to_owned(), text.into());

    /// Appends the text of the turn's messages to the artifact `answer`.
    echo() => Step::Echo;

    /// Appends a chunk to the artifact with a name.
    artifact(name: impl Into<String>, text: impl Into<String>) => Step::Chunk(name.into(), text.into());

    /// Waits. A cancel of the task ends the wait and the turn. With tokio's paused clock, the wait takes no real time.
    pause(time: Duration) => Step::Pause(time);

    /// Waits until the task is canceled.
    await_cancel() => Step::AwaitCancel;

    /// Ends the turn with `INPUT_REQUIRED`.
    ask(question: impl Into<Message>) => Step::Interrupt(End::input_required(question));

    /// Ends the turn with `AUTH_REQUIRED`.
    authorize(message: impl Into<Message>) => Step::Interrupt(End::auth_required(message));

    /// Completes the task, with a status message.
    complete(message: impl Into<Message>) => Step::Finish(End::completed(message));

    /// Rejects the task.
    reject(message: impl Into<Message>) => Step::Finish(End::rejected(message));

    /// Replies with a message instead of a task. Only as the first step.
    reply(message: impl Into<Message>) => Step::Finish(End::reply(message));

    /// Fails the task, with this text as its status message.
    fail(reason: impl Into<String>) => Step::Fail(reason.into());
}

impl Script {
    /// Creates a script without steps, which completes each task.
    pub fn new() -> Self {
        Self { card: AgentCard::new("Script"), ..Self::default() }
    }

    /// Sets the agent card.
    pub fn card(self, card: AgentCard) -> Self {
        Self { card, ..self }
    }

    /// Returns the messages that this script and its clones received, the oldest first. At most the last 10 000.
    pub fn received(&self) -> Vec<Message> {
        self.received.lock().iter().cloned().collect()
    }
}

impl Agent for Script {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        {
            let mut received = self.received.lock();
            received.extend(turn.messages().cloned());
            let excess = received.len().saturating_sub(MAX_RECEIVED);
            received.drain(..excess);
        }
        let done: usize = turn.saved().unwrap_or_default();
        for (position, step) in self.steps.iter().enumerate().skip(done) {
            let chunk = async |name: &str, text: &str| out.artifact(name).id(name).appending().text(text).await;
            match step {
                Step::Working => out.working().await?,
                Step::Progress(message) => out.progress(message.clone()).await?,
                Step::Chunk(name, text) => chunk(name, text).await?,
                Step::Echo => chunk(ANSWER, turn.text()).await?,
                Step::Pause(time) => tokio::select! {
                    () = pause(*time) => {}
                    () = turn.canceled() => return Err(Stopped.into()),
                },
                Step::AwaitCancel => {
                    turn.canceled().await;
                    return Err(Stopped.into());
                }
                Step::Interrupt(end) => {
                    out.save(&(position + 1)).await?;
                    return Ok(end.clone());
                }
                Step::Finish(end) => return Ok(end.clone()),
                Step::Fail(reason) => return Err(Error::public(reason.as_str())),
            }
            out.flush().await?;
        }
        Ok(End::Completed(None))
    }

    fn card(&self) -> AgentCard {
        self.card.clone()
    }
}

async fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the script asks for a wait")]
    tokio::time::sleep(time).await;
}
