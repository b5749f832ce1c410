//! JSON lines between the server and an agent outside of it: the turn that the agent gets, and the events that it sends.
//!
//! `docs/agents.md` describes both for authors of agents.

use std::{collections::HashMap, io, path::Path};

use serde::{Deserialize, Serialize, de::Error as _};
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

use super::{ArtifactWriter, End, Error, Message, Part, Role, Task, Turn, Updates};
use crate::{base::stderr::escaped, protocol::pb::wkt::Struct};

/// Name of an artifact that has none.
pub(super) const OUTPUT: &str = "output";

/// Maximum length of a line of an agent that is logged, or quoted in an error.
const MAX_QUOTED: usize = 200;

/// Maximum length of a line of stderr in the log, in bytes.
const MAX_LOG_LINE: usize = 4 << 10;

/// Maximum size of the stderr of a command in the log, in bytes.
const MAX_LOG: usize = 256 << 10;

/// Turn as the agent gets it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnLine<'a> {
    r#type: &'static str,
    /// Id of the turn, which the events of a persistent command have too.
    turn: &'a str,
    attempt: u32,
    /// Messages of the turn as text.
    text: &'a str,
    messages: Vec<&'a Message>,
    /// The task at the start of the turn, with its history and artifacts.
    task: &'a Task,
    /// State that the agent has saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a Struct>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    accepted_output_modes: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    extensions: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    tenant: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<Caller<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    files: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    output_dir: Option<&'a Path>,
}

/// Authenticated caller of a turn.
#[derive(Serialize)]
struct Caller<'a> {
    id: &'a str,
    owner: &'a str,
    claims: &'a serde_json::Map<String, Value>,
}

impl<'a> TurnLine<'a> {
    /// Describes a turn. `files` are the paths of the files of its messages.
    pub(super) fn new(turn: &'a Turn, id: &'a str, files: &'a [String], output_dir: Option<&'a Path>) -> Self {
        let caller = turn.principal().map(|principal| Caller {
            id: &principal.id,
            owner: &principal.owner,
            claims: &principal.claims,
        });
        Self {
            r#type: "turn",
            turn: id,
            attempt: turn.attempt(),
            text: turn.text(),
            messages: turn.messages().collect(),
            task: turn.task(),
            state: turn.saved(),
            metadata: turn.metadata(),
            accepted_output_modes: turn.accepted_output_modes(),
            extensions: turn.extensions(),
            tenant: turn.tenant(),
            caller,
            traceparent: turn.trace(),
            files,
            output_dir,
        }
    }

    /// Encodes the turn as a line.
    pub(super) fn to_line(&self) -> Result<Vec<u8>, Error> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Status,
    Artifact,
    Ask,
    Auth,
    Message,
    Complete,
    Reject,
    Fail,
    Save,
    Log,
}

/// Event of an agent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentEvent {
    r#type: Kind,
    /// Id of the turn, for a persistent command.
    pub(super) turn: Option<String>,
    message: Option<Content>,
    id: Option<String>,
    name: Option<String>,
    description: Option<String>,
    text: Option<String>,
    data: Option<Value>,
    #[serde(default)]
    parts: Vec<Part>,
    append: Option<bool>,
    #[serde(default)]
    last: bool,
    metadata: Option<Value>,
    state: Option<Value>,
    #[serde(default)]
    level: Level,
}

/// Level of a log line.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Debug,
    #[default]
    Info,
    Warn,
    Error,
}

/// Message of an event: a text, or a whole Message.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Message(Box<Message>),
}

impl Content {
    fn into_message(self) -> Message {
        match self {
            Self::Text(text) => Message::agent(text),
            Self::Message(message) => Message { role: Role::Agent.into(), ..*message },
        }
    }
}

impl AgentEvent {
    /// Parses a line.
    ///
    /// # Errors
    /// The line is no JSON, or not an event. The text quotes the line, and is for the log.
    pub(super) fn parse(line: &[u8]) -> Result<Self, Error> {
        // By way of a value, because a message is one of two types.
        let event = serde_json::from_slice::<Value>(line).and_then(Self::deserialize);
        event.map_err(|cause| {
            let text = String::from_utf8_lossy(line);
            let quoted: String = text.chars().take(MAX_QUOTED).collect();
            Error::internal(format!("a line of the agent is not an event ({cause}): {quoted}"))
        })
    }

    fn content(&mut self) -> Result<Message, Error> {
        let message = self.message.take().map(Content::into_message);
        let text = self.text.take().map(Message::agent);
        message.or(text).ok_or_else(|| serde_json::Error::missing_field("message").into())
    }

    /// Returns true if the event ends its turn.
    pub(super) fn ends_turn(&self) -> bool {
        match self.r#type {
            Kind::Ask | Kind::Auth | Kind::Message | Kind::Complete | Kind::Reject | Kind::Fail => true,
            Kind::Status | Kind::Artifact | Kind::Save | Kind::Log => false,
        }
    }

    fn optional_content(&mut self) -> Option<Message> {
        self.content().ok()
    }
}

/// End of a turn by an event.
pub(super) type TurnEnd = Result<End, Error>;

/// Receiver of the events of a turn, which sends them as updates of the task.
pub(super) struct EventSink<'a> {
    out: &'a Updates,
    task_id: &'a str,
    /// Artifacts of this turn by their id, or else their name.
    artifacts: HashMap<String, ArtifactWriter<'a>>,
}

impl<'a> EventSink<'a> {
    pub(super) fn new(out: &'a Updates, task_id: &'a str) -> Self {
        Self { out, task_id, artifacts: HashMap::new() }
    }

    /// Applies an event. Returns the end of the turn for an event that ends it.
    ///
    /// # Errors
    /// The turn has ended, or the event lacks a member.
    pub(super) async fn apply(&mut self, mut event: AgentEvent) -> Result<Option<TurnEnd>, Error> {
        match event.r#type {
            Kind::Status => {
                let message = event.optional_content();
                match (&event.metadata, message) {
                    (Some(metadata), Some(message)) => self.out.with_metadata(metadata)?.progress(message).await?,
                    (Some(metadata), None) => self.out.with_metadata(metadata)?.working().await?,
                    (None, Some(message)) => self.out.progress(message).await?,
                    (None, None) => self.out.working().await?,
                }
            }
            Kind::Artifact => self.artifact(event).await?,
            Kind::Save => self.out.save(&event.state.unwrap_or_default()).await?,
            Kind::Log => log(self.task_id, event.level, &event.content()?.text()),
            Kind::Ask => return Ok(Some(Ok(End::input_required(event.content()?)))),
            Kind::Auth => return Ok(Some(Ok(End::auth_required(event.content()?)))),
            Kind::Message => return Ok(Some(Ok(End::reply(event.content()?)))),
            Kind::Reject => return Ok(Some(Ok(End::rejected(event.content()?)))),
            Kind::Complete => return Ok(Some(Ok(End::Completed(event.optional_content())))),
            Kind::Fail => return Ok(Some(Err(Error::public(event.content()?)))),
        }
        Ok(None)
    }

    async fn artifact(&mut self, event: AgentEvent) -> Result<(), Error> {
        let name = event.name.unwrap_or_else(|| event.id.clone().unwrap_or_else(|| OUTPUT.to_owned()));
        let key = event.id.clone().unwrap_or_else(|| name.clone());
        let known = self.artifacts.remove(&key).filter(|_| event.append != Some(false));
        let mut writer = if let Some(writer) = known {
            writer
        } else {
            let mut writer = self.out.artifact(name);
            if let Some(id) = event.id {
                writer = writer.id(id);
            }
            if event.append == Some(true) {
                writer = writer.appending();
            }
            if let Some(description) = event.description {
                writer = writer.describe(description);
            }
            if let Some(metadata) = &event.metadata {
                writer = writer.metadata(metadata)?;
            }
            writer
        };
        if event.last {
            writer = writer.last();
        }
        let mut parts = event.parts;
        parts.extend(event.text.map(Part::text));
        if let Some(data) = &event.data {
            parts.push(Part::data(data)?);
        }
        if parts.is_empty() {
            return Err(Error::internal("an artifact of the agent has neither text, data nor parts"));
        }
        writer.parts(parts).await?;
        self.artifacts.insert(key, writer);
        Ok(())
    }
}

/// Logs a line of an agent, without control characters.
pub(super) fn log(task_id: &str, level: Level, text: &str) {
    let line = escaped(text);
    match level {
        Level::Debug => tracing::debug!(task.id = task_id, "agent: {line}"),
        Level::Info => tracing::info!(task.id = task_id, "agent: {line}"),
        Level::Warn => tracing::warn!(task.id = task_id, "agent: {line}"),
        Level::Error => tracing::error!(task.id = task_id, "agent: {line}"),
    }
}

/// Line of a stream.
pub(super) enum Line {
    Whole(Vec<u8>),
    /// Beginning of a line that is longer than the limit.
    Cut(Vec<u8>),
}

/// Reads a line of at most `max` bytes, with its line feed. Returns `None` at the end.
pub(super) async fn read_line(stream: &mut (impl AsyncBufRead + Unpin), max: usize) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    let mut limited = stream.take(u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1));
    limited.read_until(b'\n', &mut line).await?;
    Ok(match line.len() {
        0 => None,
        length if length > max => Some(Line::Cut(line)),
        _ => Some(Line::Whole(line)),
    })
}

/// Passes the lines of stderr to a log, up to a limit, and then the sentence that the rest is not logged. Reads until the end, so
/// that the command does not wait.
pub(super) async fn each_log_line(stderr: &mut (impl AsyncBufRead + Unpin), log: impl Fn(&str), warn: impl Fn(String)) {
    let mut left = MAX_LOG;
    while let Ok(Some(line)) = read_line(stderr, MAX_LOG_LINE).await {
        let (Line::Whole(line) | Line::Cut(line)) = line;
        if left == 0 {
            continue;
        }
        left = left.saturating_sub(line.len());
        log(String::from_utf8_lossy(&line).trim_end());
        if left == 0 {
            warn(format!("stderr of the command exceeds {MAX_LOG} bytes; the rest is not logged"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_texts_or_messages() {
        let message = |line: &str| AgentEvent::parse(line.as_bytes()).unwrap().content().unwrap();
        let expected = Message::agent("Which city?");
        for line in [
            r#"{"type":"ask","message":"Which city?"}"#,
            r#"{"type":"ask","text":"Which city?"}"#,
            r#"{"type":"ask","message":{"parts":[{"text":"Which city?"}]}}"#,
        ] {
            let found = message(line);
            assert_eq!((found.parts, found.role), (expected.parts.clone(), expected.role), "{line}");
        }
    }

    #[test]
    fn invalid_lines_are_quoted_for_the_log() {
        for line in ["Loading model…", "{}", r#"{"type":"dance"}"#, r#"{"type":"ask","message":7}"#, "[]"] {
            let error = AgentEvent::parse(line.as_bytes()).unwrap_err();
            assert!(error.message().is_none() && error.to_string().contains(line), "{error}");
        }
        let error = AgentEvent::parse(&b"x".repeat(100_000)).unwrap_err();
        assert!(error.to_string().len() < 1000);
    }
}
