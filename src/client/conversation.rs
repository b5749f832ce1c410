//! Messages of one context.

use tokio_stream::StreamExt as _;

use super::{Client, Error, EventStream, Outcome, SendMessageRequest, StreamEvent, TaskState};

/// Messages that share a context, and continue a task that waits for input or authorization.
///
/// ```
/// # use a2a_service::{agent::{self, End}, client::Client, server::Server};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let greeter = agent::from_fn(|turn, out| async move {
/// #     if turn.text() == "Hello" {
/// #         return Ok(End::input_required("Your name?"));
/// #     }
/// #     out.artifact("greeting").text(format!("Hello, {}!", turn.text())).await?;
/// #     Ok(End::Completed(None))
/// # });
/// # let server = Server::new(greeter).bind("127.0.0.1:0").await?;
/// # let url = format!("http://{}", server.addr());
/// # tokio::spawn(server.run_until(std::future::pending()));
/// let mut conversation = Client::connect(&url).await?.conversation();
/// assert_eq!(conversation.send("Hello").await?.text(), "Your name?");
/// assert_eq!(conversation.send("Ada").await?.text(), "Hello, Ada!");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Conversation {
    pub(super) client: Client,
    pub(super) context_id: String,
    pub(super) task_id: String,
}

setters! {
    Conversation:
    /// Continues an existing context.
    #[must_use]
    pub with_context => context_id: impl Into<String>;

    /// Continues an existing task.
    #[must_use]
    pub with_task => task_id: impl Into<String>;
}

impl Conversation {
    /// Id of the context. Empty before the first answer.
    pub fn context_id(&self) -> &str {
        &self.context_id
    }

    /// Id of the task that the next message continues. Empty if it begins a new one.
    pub fn task_id(&self) -> &str {
        &self.task_id
    }

    /// Sends the next message, and waits for the end of the turn.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn send(&mut self, message: impl Into<SendMessageRequest>) -> Result<Outcome, Error> {
        let outcome = self.client.send(self.next(message.into())).await?;
        if let Some(task) = outcome.task() {
            self.follow(&task.context_id, &task.id, task.state());
        } else if let Some(message) = outcome.message() {
            self.set_context(&message.context_id);
        }
        Ok(outcome)
    }

    /// Sends the next message, and returns the events of the turn.
    ///
    /// [`record`](Self::record) has to be called with each event, so that the next message continues the task.
    ///
    /// # Errors
    /// As [`Client::stream`].
    pub async fn stream(&mut self, message: impl Into<SendMessageRequest>) -> Result<EventStream, Error> {
        self.client.stream(self.next(message.into())).await
    }

    /// Sends the next message, and calls a function with each event.
    ///
    /// # Errors
    /// As [`Client::stream`].
    pub async fn stream_with(
        &mut self,
        message: impl Into<SendMessageRequest>,
        mut on_event: impl FnMut(&StreamEvent),
    ) -> Result<(), Error> {
        let mut events = self.stream(message).await?;
        while let Some(event) = events.next().await {
            let event = event?;
            self.record(&event);
            on_event(&event);
        }
        Ok(())
    }

    /// Takes context and task from an event of [`stream`](Self::stream).
    pub fn record(&mut self, event: &StreamEvent) {
        if let Some((context_id, task_id)) = event.ids() {
            self.follow(context_id, task_id, event.state().unwrap_or_default());
        } else if let StreamEvent::Message(message) = event {
            self.set_context(&message.context_id);
        }
    }

    fn follow(&mut self, context_id: &str, task_id: &str, state: TaskState) {
        self.set_context(context_id);
        // A terminal task takes no messages: the next one begins a new task.
        if state.is_terminal() { self.task_id.clear() } else { task_id.clone_into(&mut self.task_id) }
    }

    /// Sets the context, unless an answer has none.
    fn set_context(&mut self, id: &str) {
        if !id.is_empty() {
            id.clone_into(&mut self.context_id);
        }
    }

    fn next(&self, mut request: SendMessageRequest) -> SendMessageRequest {
        let message = request.message.get_or_insert_default();
        if message.task_id.is_empty() {
            message.task_id.clone_from(&self.task_id);
        }
        // The context of a task is known to the agent, and another one is an error.
        if message.context_id.is_empty() {
            message.context_id.clone_from(&self.context_id);
        }
        request
    }
}
