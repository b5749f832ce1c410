//! Agent that is a model with a chat completions API, which `OpenAI`, Ollama, vLLM and llama.cpp have.
//!
//! Each turn is a request with the conversation so far: the earlier tasks of the context, from the store, and the messages of the
//! task. The answer is streamed into an artifact. With tools, a turn is a loop of requests and tool calls. `docs/agents.md`
//! describes both for operators.

use std::{fmt, io, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use self::{
    completion::{Completion, Endpoint, Finish, ToolCall, Usage},
    conversation::{QUESTION, TOOL_CALL, Unsupported},
    tools::{Tool, Tools},
};
use super::{
    Agent, AgentCard, Content, End, Error, Message, Part, Role, Turn, Updates,
    endpoint::{self, client_builder, parse_url, until_canceled},
    wait_for,
};
use crate::base::{credential::Credential, dependency::Dependency, metric, stderr::escaped, trace};

mod completion;
mod conversation;
mod tools;

#[cfg(feature = "mcp")]
pub use self::tools::mcp::{Approval, McpServer, McpTransport};

/// Name and id of the artifact with the answer.
const OUTPUT: &str = "output";

/// Media types of parts that a model can read.
const INPUT_MODES: [&str; 4] = ["text/plain", "text/*", "application/json", "image/*"];

/// Members of the request that the parameters can't set.
const RESERVED: [&str; 4] = ["model", "messages", "tools", "n"];

options! {
    /// Options of an [`Openai`] agent.
    #[derive(Clone)]
    #[non_exhaustive]
    pub struct OpenaiOptions {
        /// Key of the endpoint, which is sent as a bearer token.
        pub key: Option<Credential>,
        /// System prompt. It is not on the agent card.
        pub system: Option<String>,
        /// Further members of the requests, such as `temperature` and `max_tokens`. With `stream` false, answers are not
        /// streamed.
        pub parameters: Map<String, Value>,
        /// Maximum time in which the endpoint sends nothing. 2 minutes by default.
        pub idle_timeout: Duration = Duration::from_mins(2),
        /// Maximum size of a response in bytes. 16 MiB by default.
        pub output_bytes: usize = 16 << 20,
        /// Maximum number of messages of earlier tasks of the context in a request. 50 by default.
        pub history: usize = 50,
        /// Maximum size of these messages in bytes. 4 MiB by default.
        pub history_bytes: usize = 4 << 20,
        /// Passes URLs of images on to the endpoint, which loads them: a client could then send it to internal addresses. Off by
        /// default.
        pub image_urls: bool,
        /// Offers the model a tool, `ask_user`, with which it asks the client. The task is then `INPUT_REQUIRED`. Off by
        /// default: some endpoints and models do not support tools.
        pub ask: bool,
        /// Maximum number of times that the model can call tools in a turn. 25 by default.
        pub tool_rounds: usize = 25,
        /// Agent card. By default, it has the name of the model.
        pub card: AgentCard,
    }
}

debug_fields!(OpenaiOptions { idle_timeout, history });

/// Agent that sends its conversations to a model.
///
/// ```no_run
/// use a2a_service::{adapter::{Openai, OpenaiOptions}, server::Server};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// let options = OpenaiOptions::default().system(Some("Answer in one sentence.".to_owned()));
/// let agent = Openai::new("http://localhost:11434/v1", "llama3.2", options)?;
/// Server::new(agent).serve("127.0.0.1:8080").await
/// # }
/// ```
#[derive(Clone)]
pub struct Openai {
    endpoint: Endpoint,
    model: String,
    tools: Tools,
    options: OpenaiOptions,
}

impl fmt::Debug for Openai {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The path and the query may be secrets.
        let origin = self.endpoint.url.origin().ascii_serialization();
        let mut f = f.debug_struct("Openai");
        f.field("origin", &origin).field("model", &self.model).field("options", &self.options).finish_non_exhaustive()
    }
}

impl Openai {
    /// Creates the agent of a model. `url` is the base URL of the API, such as `http://localhost:11434/v1`: requests go to
    /// `/chat/completions` below it. Redirects are followed within its origin, with status 307 or 308. `https` needs the crate
    /// feature `tls`.
    ///
    /// # Errors
    /// `InvalidInput` if the URL is not one of `http` or `https`, or a parameter is a member of the request that the agent sets;
    /// other errors if the HTTP client can't be created.
    pub fn new(url: &str, model: impl Into<String>, options: OpenaiOptions) -> io::Result<Self> {
        let mut url = parse_url(url)?;
        if let Some(name) = RESERVED.into_iter().find(|name| options.parameters.contains_key(*name)) {
            let why = format!("parameters: `{name}` is set by the agent; remove it");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let base = url.path().trim_end_matches('/').to_owned();
        let mut models = url.clone();
        models.set_path(&format!("{base}/models"));
        url.set_path(&format!("{base}/chat/completions"));
        let client = client_builder().user_agent(concat!("a2a-service/", env!("CARGO_PKG_VERSION")));
        let client = client.build().map_err(io::Error::other)?;
        let (probed, key) = (client.clone(), options.key.clone());
        let dependency = Dependency::new("model", "the model endpoint").at(url.as_str()).with_probe(false, move || {
            let (request, key) = (probed.get(models.clone()), key.clone());
            async move {
                endpoint::probe(match key {
                    Some(key) => request.bearer_auth(key.current().await),
                    None => request,
                })
                .await
            }
        });
        let model = model.into();
        let endpoint = Endpoint {
            client,
            url,
            key: options.key.clone(),
            dependency,
            span_name: format!("chat {model}").into(),
            idle_timeout: options.idle_timeout,
            output_bytes: options.output_bytes,
        };
        Ok(Self { endpoint, model, tools: Tools::new(options.ask), options })
    }

    /// Starts MCP servers, and offers their tools to the model. Those of the servers that respond within 5 s become skills of the
    /// card, unless it has some. Other servers are retried with backoff; until they have listed their tools, all turns fail.
    ///
    /// # Errors
    /// The options of a server are invalid, its program does not exist, or its tools exceed a limit. The error names the server.
    #[cfg(feature = "mcp")]
    pub async fn with_mcp(mut self, servers: Vec<McpServer>) -> io::Result<Self> {
        self.tools = self.tools.connect(servers).await?;
        Ok(self)
    }

    /// Returns the name of each MCP server, and the number of its tools or why it has listed none yet.
    #[cfg(feature = "mcp")]
    pub fn mcp_states(&self) -> Vec<(String, Result<usize, String>)> {
        self.tools.states()
    }

    /// Returns the body of a request with the messages of a conversation.
    fn request(&self, conversation: &[Value], further: &[Value]) -> Result<Bytes, Error> {
        let system = self.options.system.iter().map(|text| json!({ "role": "system", "content": text }));
        let messages: Vec<Value> = system.chain(conversation.iter().cloned()).chain(further.iter().cloned()).collect();
        let mut body = json!({ "model": self.model, "messages": messages, "stream": true });
        if self.options.parameters.get("stream").is_none_or(|stream| *stream == true) {
            body["stream_options"] = json!({ "include_usage": true });
        }
        if !self.tools.is_empty() {
            body["tools"] = self.tools.definitions();
        }
        for (name, value) in &self.options.parameters {
            body[name] = value.clone();
        }
        Ok(serde_json::to_vec(&body)?.into())
    }

    async fn turn(&self, turn: &Turn, out: &Updates) -> Result<End, Error> {
        let state: TurnState = turn.saved().unwrap_or_default();
        if turn.attempt() > 1 && state.begun == turn.message().message_id {
            // The answer may be in the artifact in part, and tools may have been called.
            return Err(Error::public("The server stopped while the model answered. Send the message again."));
        }
        let pending = state.pending.first().cloned();
        let OpenaiOptions { history, history_bytes, .. } = self.options;
        let tasks = turn.context_tasks(history / 2, history_bytes).await?;
        let tasks = tasks.iter().filter(|task| task.state().is_terminal()).map(conversation::task_messages).collect();
        match Run::new(self, turn, out, state, conversation::select(tasks, history, history_bytes)) {
            Ok(mut run) => run.run().await,
            Err(unsupported) => self.unsupported(unsupported, pending),
        }
    }

    /// Ends a turn whose message has an unsupported part. A pending tool call asks again.
    fn unsupported(&self, Unsupported(why): Unsupported, pending: Option<ToolCall>) -> Result<End, Error> {
        let asked = pending.and_then(|call| {
            let tool = self.tools.find(&call.name)?;
            Some((tool, tool.prompt(&call).ok()??, call))
        });
        match asked {
            Some((tool, text, call)) => {
                Ok(End::input_required(prompt_message(tool, format!("{why}\n\n{text}"), &call)?))
            }
            None => Ok(End::rejected(why)),
        }
    }
}

impl Agent for Openai {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        // Boxed, because the future is large.
        let work = Box::pin(async {
            for dependency in self.tools.dependencies() {
                wait_for(&dependency, &turn, &out).await?;
            }
            match self.tools.completed().await? {
                Some(tools) => Self { tools, ..self.clone() }.turn(&turn, &out).await,
                None => self.turn(&turn, &out).await,
            }
        });
        until_canceled(&turn, work).await
    }

    fn card(&self) -> AgentCard {
        let mut card = self.options.card.clone();
        if card.name.is_empty() {
            card.name.clone_from(&self.model);
        }
        if card.default_input_modes.is_empty() {
            card.default_input_modes = INPUT_MODES.map(str::to_owned).to_vec();
        }
        if card.skills.is_empty() {
            card.skills = self.tools.skills();
        }
        card
    }

    /// A turn runs again if the model had not begun to answer. Otherwise it fails.
    fn resumable(&self) -> bool {
        true
    }

    fn dependencies(&self) -> Vec<Dependency> {
        let mut dependencies = vec![self.endpoint.dependency.clone()];
        dependencies.extend(self.tools.dependencies());
        dependencies
    }
}

/// State of a task between its turns, and between attempts of a turn.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct TurnState {
    /// Id of the message of the turn whose answer has begun.
    begun: String,
    /// Ids of the messages of the turn that called the tools.
    base: Vec<String>,
    /// Messages with tool calls, and their results.
    messages: Vec<Value>,
    /// Tool calls that are not done. The first one waits for the client.
    pending: Vec<ToolCall>,
    /// Number of times that the model has called tools.
    rounds: usize,
    /// Contents of messages of the client that the model gets after the results, because they are no replies to a tool call, or
    /// can't be the result of one.
    notes: Vec<Value>,
    /// The client has sent something else than a decision: further calls are not made without asking.
    is_declined: bool,
    usage: Option<Usage>,
}

/// Reply of the client to a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reply {
    Approved,
    Declined,
    /// Answer to a question.
    Answer(String),
}

/// Turn in progress.
struct Run<'a> {
    agent: &'a Openai,
    turn: &'a Turn,
    out: &'a Updates,
    /// Earlier messages, and those of the client.
    conversation: Vec<Value>,
    state: TurnState,
    /// Reply to the first pending tool call.
    reply: Option<Reply>,
    writer: Option<crate::engine::agent::ArtifactWriter<'a>>,
    /// The artifact has text of an earlier response, from which further text is separated.
    has_earlier_text: bool,
    /// Size of the tool calls of this turn and their results, in bytes.
    tool_bytes: usize,
}

impl<'a> Run<'a> {
    /// Prepares a turn: adds the task to the `messages` of earlier ones, and reads the reply to a tool call that waits for it.
    fn new(
        agent: &'a Openai,
        turn: &'a Turn,
        out: &'a Updates,
        mut state: TurnState,
        mut messages: Vec<Value>,
    ) -> Result<Self, Unsupported> {
        if !agent.options.image_urls {
            conversation::reject_image_urls(turn.messages())?;
        }
        let is_current = |message: &&Message| turn.messages().any(|current| current.message_id == message.message_id);
        let earlier: Vec<&Message> = turn.history().filter(|message| !is_current(message)).collect();
        let mut reply = None;
        if state.pending.is_empty() {
            messages
                .extend(conversation::with_answer(conversation::history_messages(earlier.into_iter()), turn.task()));
            messages.push(conversation::user_message(turn.messages())?);
            let base = turn.messages().map(|message| message.message_id.clone()).collect();
            state = TurnState { base, ..TurnState::default() };
        } else {
            let is_base =
                |message: &&&Message| message.role() == Role::User && state.base.contains(&message.message_id);
            let first = earlier.iter().position(|message| is_base(&message)).unwrap_or(earlier.len());
            messages.extend(conversation::history_messages(earlier.iter().take(first).copied()));
            let base = earlier.iter().filter(is_base).copied();
            messages.push(conversation::user_message(base)?);
            state.rounds = 0;
            reply = reply_of(agent, turn, &mut state)?;
        }
        Ok(Self {
            agent,
            turn,
            out,
            conversation: messages,
            state,
            reply,
            writer: None,
            has_earlier_text: turn.task().artifacts.iter().any(|artifact| artifact.artifact_id == OUTPUT),
            tool_bytes: 0,
        })
    }

    async fn run(&mut self) -> Result<End, Error> {
        self.out.working().await?;
        loop {
            if let Some(end) = self.call_tools().await? {
                return Ok(end);
            }
            let completion = self.complete().await?;
            let agent = self.agent.endpoint.dependency.agent();
            metric::MODEL_FINISHED.add(agent, &[completion.finish.as_ref().map_or("other", Finish::label)], 1);
            if let Some(usage) = completion.usage {
                usage.count(agent, self.turn);
                self.state.usage.get_or_insert_default().add(usage);
            }
            if !completion.refusal.is_empty() {
                return Ok(End::rejected(completion.refusal));
            }
            let no_answer = |why: &str| Error::public(format!("The model gave no answer{why}."));
            match completion.finish {
                Some(Finish::Filtered) => {
                    return Ok(End::rejected("The content filter of the model endpoint stopped the answer."));
                }
                Some(Finish::Length) if completion.has_text => {
                    let text = "The answer is truncated: it has the maximum number of tokens.";
                    return self.completed(text, true);
                }
                Some(Finish::Length) => return Err(no_answer(" within the maximum number of tokens")),
                Some(Finish::Failed(reason)) => {
                    let cause = format!("finish_reason {}", escaped(&reason));
                    return Err(Error::public("The model endpoint did not complete the answer.").caused_by(cause));
                }
                Some(Finish::Calls) if completion.calls.is_empty() => {
                    return Err(Error::public("The model announced tool calls, but sent none."));
                }
                _ if !completion.calls.is_empty() => {}
                _ if completion.has_text => return self.completed("", false),
                _ if completion.has_reasoning => return Err(no_answer(", only reasoning")),
                _ => return Err(no_answer("")),
            }
            if self.state.rounds >= self.agent.options.tool_rounds {
                let max = self.agent.options.tool_rounds;
                let text = format!("The model called tools more than {max} times in this turn.");
                return Err(Error::public(text).because_of("tool_rounds"));
            }
            self.state.rounds += 1;
            self.state.pending = completion.calls;
        }
    }

    /// Sends the conversation, and passes the text of the answer on.
    async fn complete(&mut self) -> Result<Completion, Error> {
        let body = self.agent.request(&self.conversation, &self.state.messages)?;
        let mut stream = self.agent.endpoint.open((self.turn, self.out), &body, self.agent.tools.names()).await?;
        let mut answer = String::new();
        while let Some(text) = stream.next().await? {
            self.begin().await?;
            let separator = if answer.is_empty() && self.has_earlier_text { "\n\n" } else { "" };
            answer.push_str(&text);
            self.write(format!("{separator}{text}")).await?;
        }
        self.has_earlier_text |= !answer.is_empty();
        let mut completion = stream.into_completion(&answer)?;
        if !completion.calls.is_empty() {
            let message = completion.message.take();
            self.tool_bytes += message.to_string().len();
            self.state.messages.push(message);
        }
        Ok(completion)
    }

    /// Marks that the answer has begun, so that another attempt does not repeat it.
    async fn begin(&mut self) -> Result<(), Error> {
        let message = &self.turn.message().message_id;
        if self.state.begun != *message {
            self.state.begun.clone_from(message);
            self.out.save(&self.state).await?;
        }
        Ok(())
    }

    async fn write(&mut self, text: String) -> Result<(), Error> {
        let writer = self.writer.get_or_insert_with(|| {
            let writer = self.out.artifact(OUTPUT).id(OUTPUT);
            // Of an earlier turn of the task.
            let exists = self.turn.task().artifacts.iter().any(|artifact| artifact.artifact_id == OUTPUT);
            if exists { writer.appending() } else { writer }
        });
        Ok(writer.text(text).await?)
    }

    /// Calls the pending tools. Returns the end of the turn if one of them waits for the client.
    async fn call_tools(&mut self) -> Result<Option<End>, Error> {
        while let Some(call) = self.state.pending.first().cloned() {
            let result = match (self.agent.tools.find(&call.name), self.reply.take()) {
                (None, _) => format!("Error: there is no tool {}.", call.name),
                (Some(tool), Some(Reply::Declined)) => self.agent.tools.decline(tool),
                (Some(_), Some(Reply::Answer(answer))) => answer,
                (Some(tool), Some(Reply::Approved)) => self.call(tool, &call).await?,
                (Some(tool), None) => match tool.prompt(&call) {
                    Ok(Some(_)) if self.state.is_declined => self.agent.tools.decline(tool),
                    Ok(Some(text)) => {
                        if tool.is_question() {
                            let scope = trace::TraceScope::current();
                            let mut span =
                                scope.start(trace::SpanKind::Internal, format!("execute_tool {}", call.name));
                            span.set("gen_ai.operation.name", "execute_tool");
                            span.set("gen_ai.tool.name", &*call.name);
                            span.set("gen_ai.tool.call.id", &*call.id);
                        }
                        self.out.save(&self.state).await?;
                        return Ok(Some(End::input_required(prompt_message(tool, text, &call)?)));
                    }
                    Ok(None) => self.call(tool, &call).await?,
                    Err(result) => result,
                },
            };
            self.tool_bytes += result.len();
            let max = self.agent.options.output_bytes;
            if self.tool_bytes > max {
                let text =
                    format!("The tool calls of this turn and their results exceed {max} bytes (limits.task_bytes).");
                return Err(Error::public(text));
            }
            self.state.messages.push(json!({ "role": "tool", "tool_call_id": call.id, "content": result }));
            self.state.pending.remove(0);
        }
        self.state.is_declined = false;
        let notes = std::mem::take(&mut self.state.notes);
        self.state.messages.extend(notes.into_iter().map(|note| json!({ "role": "user", "content": note })));
        Ok(None)
    }

    /// Calls a tool. Returns the result for the model.
    async fn call(&mut self, tool: &Tool, call: &ToolCall) -> Result<String, Error> {
        self.begin().await?;
        self.out.progress(format!("Running {}", call.name)).await?;
        // Clients see the call before it has effects.
        self.out.flush().await?;
        Ok(self.agent.tools.call(tool, &call.arguments).await)
    }

    /// Completes the task, with the usage of the model in the metadata of its status message.
    fn completed(&self, text: &str, is_truncated: bool) -> Result<End, Error> {
        let mut metadata = Map::new();
        if let Some(usage) = self.state.usage {
            metadata.insert("usage".to_owned(), serde_json::to_value(usage)?);
        }
        if is_truncated {
            metadata.insert("truncated".to_owned(), true.into());
        }
        if metadata.is_empty() {
            return Ok(End::Completed(None));
        }
        Ok(End::completed(Message::agent(text).with_metadata(&metadata)?))
    }
}

/// Returns the message with which a tool call asks the client. Its metadata has the call.
fn prompt_message(tool: &Tool, text: String, call: &ToolCall) -> Result<Message, Error> {
    let metadata = if tool.is_question() {
        json!({ QUESTION: { "id": call.id } })
    } else {
        json!({ TOOL_CALL: { "id": call.id, "name": call.name, "arguments": call.arguments() } })
    };
    Ok(Message::agent(text).with_metadata(&metadata)?)
}

/// Returns the reply to the first pending tool call. `None`: it has to ask again, because all messages of the turn were sent before
/// it asked.
fn reply_of(agent: &Openai, turn: &Turn, state: &mut TurnState) -> Result<Option<Reply>, Unsupported> {
    let Some(call) = state.pending.first() else { return Ok(None) };
    let task = turn.task();
    let is_prompt = |message: &Message| {
        message.role() == Role::Agent && conversation::prompt(message).is_some_and(|prompt| prompt["id"] == *call.id)
    };
    let in_status = task.status.iter().filter_map(|status| status.message.as_ref()).any(&is_prompt);
    // The newest one, since ids of calls may be repeated.
    let in_history = task.history.iter().rposition(is_prompt);
    let asked_at = if in_status { Some(task.history.len()) } else { in_history };
    let is_reply = |message: &&Message| {
        let sent_at = task.history.iter().position(|earlier| earlier.message_id == message.message_id);
        asked_at.is_some_and(|asked_at| sent_at.is_none_or(|sent_at| sent_at > asked_at))
    };
    let content = |message: &Message| Ok(conversation::user_message([message].into_iter())?["content"].take());
    let (replies, earlier): (Vec<&Message>, Vec<&Message>) = turn.messages().partition(is_reply);
    let earlier = earlier.into_iter().filter(|message| !state.base.contains(&message.message_id));
    let notes = earlier.map(content).collect::<Result<Vec<_>, _>>()?;
    let is_question = agent.tools.find(&call.name).is_some_and(Tool::is_question);
    if replies.is_empty() {
        state.notes.extend(notes);
        return Ok(None);
    }
    let reply = conversation::user_message(replies.iter().copied())?["content"].take();
    state.notes.extend(notes);
    if !is_question {
        let decision = decision_of(replies.iter().flat_map(|message| &message.parts));
        return Ok(Some(decision.unwrap_or_else(|| {
            state.notes.push(reply);
            state.is_declined = true;
            Reply::Declined
        })));
    }
    if let Some(answer) = reply.as_str() {
        return Ok(Some(Reply::Answer(answer.to_owned())));
    }
    // The result of a call is text.
    state.notes.push(reply);
    Ok(Some(Reply::Answer("The answer is in the next message of the user.".to_owned())))
}

/// Returns the decision of the client about a tool call: yes or no as text, or `{"approve": …}` as data.
fn decision_of<'p>(parts: impl Iterator<Item = &'p Part>) -> Option<Reply> {
    let of = |approved| if approved { Reply::Approved } else { Reply::Declined };
    let mut decision = None;
    for part in parts {
        let found = match &part.content {
            Some(Content::Data(value)) => serde_json::to_value(value).ok()?.get("approve")?.as_bool().map(of),
            Some(Content::Text(text)) => match text.trim().trim_end_matches(['.', '!']).to_lowercase().as_str() {
                "yes" | "y" | "ok" | "approve" => Some(Reply::Approved),
                "no" | "n" | "decline" | "deny" => Some(Reply::Declined),
                _ => None,
            },
            Some(Content::Raw(_) | Content::Url(_)) | None => None,
        };
        // Contradictory or other parts are no decision.
        if found.is_none() || (decision.is_some() && decision != found) {
            return None;
        }
        decision = found;
    }
    decision
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_unambiguous() {
        let data = |value: Value| Part::data(&value).unwrap();
        for (parts, expected) in [
            (vec![Part::text("yes")], Some(Reply::Approved)),
            (vec![Part::text(" Yes.\n")], Some(Reply::Approved)),
            (vec![Part::text("no")], Some(Reply::Declined)),
            (vec![data(json!({ "approve": true }))], Some(Reply::Approved)),
            (vec![data(json!({ "approve": false })), Part::text("no")], Some(Reply::Declined)),
            (vec![data(json!({ "approve": "yes" }))], None),
            (vec![data(json!({}))], None),
            (vec![Part::text("yes"), Part::text("no")], None),
            (vec![Part::text("yes, but")], None),
            (vec![Part::url("https://e.example", "")], None),
            (vec![], None),
        ] {
            assert_eq!(decision_of(parts.iter()), expected, "{parts:?}");
        }
    }

    #[test]
    fn parameters_are_part_of_the_request_unless_reserved() {
        let parameters = |value: Value| OpenaiOptions::default().parameters(value.as_object().unwrap().clone());
        let agent = Openai::new("http://127.0.0.1:1/v1/", "m", parameters(json!({ "temperature": 0.5 }))).unwrap();
        assert_eq!(agent.endpoint.url.as_str(), "http://127.0.0.1:1/v1/chat/completions");
        let body: Value = serde_json::from_slice(&agent.request(&[], &[]).unwrap()).unwrap();
        let streamed = json!({ "model": "m", "messages": [], "stream": true, "stream_options": { "include_usage": true },
            "temperature": 0.5 });
        assert_eq!(body, streamed);
        let agent = Openai::new("http://127.0.0.1:1/v1", "m", parameters(json!({ "stream": false }))).unwrap();
        let body: Value = serde_json::from_slice(&agent.request(&[], &[]).unwrap()).unwrap();
        assert_eq!(body, json!({ "model": "m", "messages": [], "stream": false }));
        let error = Openai::new("http://127.0.0.1:1", "m", parameters(json!({ "model": "x" }))).unwrap_err();
        assert!(error.to_string().contains("`model`"), "{error}");
        for url in ["ftp://e.example/", "nothing"] {
            assert!(Openai::new(url, "m", OpenaiOptions::default()).is_err(), "{url}");
        }
    }
}
