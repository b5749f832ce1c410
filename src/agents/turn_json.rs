//! JSON lines between the server and an agent outside of it: the turn that the agent gets, and the events that it sends.
//!
//! `docs/agents.md` describes both for authors of agents.

use std::{collections::HashMap, fmt, io, path::Path};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Value, value::RawValue};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

use super::{ArtifactWriter, End, Error, Message, Part, Role, Task, Turn, Updates};
use crate::{
    base::{decoding, stderr::escaped},
    protocol::{
        json::check_json,
        pb::{
            v1::part,
            wkt::{self, Struct},
        },
    },
};

/// Name of an artifact that has none.
pub(super) const OUTPUT: &str = "output";

/// Maximum length of a line of an agent that is logged, or quoted in an error.
const MAX_QUOTED: usize = 200;

/// Maximum length of a line of stderr, or of a log event, in the log, in bytes.
const MAX_LOG_LINE: usize = 4 << 10;

/// Maximum size in the log of the stderr of a command, or of the log events of a turn, in bytes.
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
    data: Option<wkt::Value>,
    #[serde(default)]
    parts: Vec<Part>,
    append: Option<bool>,
    #[serde(default)]
    last: bool,
    metadata: Option<Struct>,
    state: Option<Box<RawValue>>,
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
#[derive(Debug)]
struct Content(Message);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a Message")
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content(Message::agent(text)))
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Content, A::Error> {
                let message = Message::deserialize(MapAccessDeserializer::new(members))?;
                Ok(Content(Message { role: Role::Agent.into(), ..message }))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl AgentEvent {
    /// Decodes a line, which may be large.
    ///
    /// # Errors
    /// The line is no JSON, or not an event. The text quotes the line, and is for the log.
    pub(super) async fn decode(line: impl AsRef<[u8]> + Send + 'static) -> Result<Self, Error> {
        decoding::decode(line.as_ref().len(), move || Self::parse(line.as_ref())).await
    }

    fn parse(line: &[u8]) -> Result<Self, Error> {
        check_json(line).map_err(|cause| Error::public(format!("An event of the agent {cause}.")))?;
        serde_json::from_slice(line).map_err(|cause| {
            // A character has up to four bytes.
            let text = String::from_utf8_lossy(line.get(..4 * MAX_QUOTED).unwrap_or(line));
            let quoted: String = text.chars().take(MAX_QUOTED).collect();
            Error::internal(format!("a line of the agent is not an event ({cause}): {quoted}"))
        })
    }

    fn content(&mut self) -> Result<Message, Error> {
        let message = self.message.take().map(|content| content.0);
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
    log_limit: LogLimit,
}

impl<'a> EventSink<'a> {
    pub(super) fn new(out: &'a Updates, task_id: &'a str) -> Self {
        Self { out, task_id, artifacts: HashMap::new(), log_limit: LogLimit::default() }
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
            Kind::Save => self.out.save(&event.state).await?,
            Kind::Log => {
                let (task_id, level, text) = (self.task_id, event.level, event.content()?.text());
                let warn = |why: String| tracing::warn!(task.id = task_id, "{why}");
                self.log_limit.log(&text, |line| log(task_id, level, line), warn);
            }
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
        parts.extend(event.data.map(|data| part::Content::Data(data).into()));
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

/// Size of what is still logged of an agent.
struct LogLimit(usize);

impl Default for LogLimit {
    fn default() -> Self {
        Self(MAX_LOG)
    }
}

impl LogLimit {
    /// Passes a line to a log, up to the limit, and then the sentence that the rest is not logged.
    fn log(&mut self, line: &str, log: impl FnOnce(&str), warn: impl FnOnce(String)) {
        if self.0 == 0 {
            return;
        }
        let line = &line[..line.floor_char_boundary(MAX_LOG_LINE)];
        self.0 = self.0.saturating_sub(line.len() + 1);
        log(line);
        if self.0 == 0 {
            warn(format!("the log of the agent exceeds {MAX_LOG} bytes; the rest is not logged"));
        }
    }
}

/// Passes the lines of stderr to a log, up to a limit. Reads until the end, so that the command does not wait.
pub(super) async fn each_log_line(stderr: &mut (impl AsyncBufRead + Unpin), log: impl Fn(&str), warn: impl Fn(String)) {
    let mut limit = LogLimit::default();
    while let Ok(Some(line)) = read_line(stderr, MAX_LOG_LINE).await {
        let (Line::Whole(line) | Line::Cut(line)) = line;
        limit.log(String::from_utf8_lossy(&line).trim_end(), &log, &warn);
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

    #[test]
    fn log_of_an_agent_is_limited() {
        for line in ["", "x", &"ä".repeat(10_000)] {
            let (mut limit, mut lines, mut bytes, mut warnings) = (LogLimit::default(), 0, 0, 0);
            for _ in 0..300_000 {
                let log = |line: &str| (lines, bytes) = (lines + 1, bytes + line.len());
                limit.log(line, log, |_| warnings += 1);
            }
            assert!(bytes <= MAX_LOG && lines <= MAX_LOG && lines > 60, "{lines}, {bytes}");
            assert_eq!(warnings, 1);
        }
    }

    #[test]
    fn decoded_size_of_an_event_is_limited() {
        let parts = vec!["{}"; 20_000].join(",");
        for content in [format!(r#""data":[{}]"#, vec!["0"; 200_000].join(",")), format!(r#""parts":[{parts}]"#)] {
            let error = AgentEvent::parse(format!(r#"{{"type":"artifact",{content}}}"#).as_bytes()).unwrap_err();
            let text = error.message().unwrap().text();
            assert!(text.contains("takes more than 8388608 bytes once decoded"), "{text}");
        }
    }
}
