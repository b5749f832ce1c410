//! JSON lines between the server and an agent outside of it: the turn that the agent gets, and the events that it sends.
//!
//! `docs/agents.md` describes both for authors of agents.

use std::{collections::HashMap, io, mem, path::Path, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Value, json, value::RawValue};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

use super::{ArtifactWriter, End, Error, Message, Part, Role, Task, Turn, Updates};
use crate::{
    base::{
        decoding::{self, BYTE_ORDER_MARK},
        redaction::Secrets,
        stderr::escaped,
        surrogates::{self, TextPieces, repaired},
    },
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
pub(super) const MAX_LOG_LINE: usize = 4 << 10;

/// Maximum size in the log of the stderr of a command, or of the log events and other lines of a turn, in bytes.
const MAX_LOG: usize = 256 << 10;

/// Turn as the agent gets it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TurnLine<'a> {
    r#type: &'static str,
    /// Id of the turn, which the events of a persistent command have too.
    turn: &'a str,
    attempt: u32,
    hops: u32,
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
    /// Authenticated caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    files: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    output_dir: Option<&'a Path>,
}

impl<'a> TurnLine<'a> {
    /// Describes a turn. `files` are the paths of the files of its messages.
    pub(super) fn new(turn: &'a Turn, id: &'a str, files: &'a [String], output_dir: Option<&'a Path>) -> Self {
        let caller = turn.principal();
        Self {
            r#type: "turn",
            turn: id,
            attempt: turn.attempt(),
            hops: turn.hops(),
            text: turn.text(),
            messages: turn.messages().collect(),
            task: turn.task(),
            state: turn.saved(),
            metadata: turn.metadata(),
            accepted_output_modes: turn.accepted_output_modes(),
            extensions: turn.extensions(),
            tenant: turn.tenant(),
            caller: caller.map(|it| json!({ "id": &*it.id, "owner": &*it.owner, "claims": it.claims })),
            traceparent: turn.trace(),
            files,
            output_dir,
        }
    }

    /// Replaces the `traceparent`, unless there is none.
    pub(super) fn traced(self, trace: Option<&'a str>) -> Self {
        Self { traceparent: trace.or(self.traceparent), ..self }
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
    text: Option<Text>,
    data: Option<wkt::Value>,
    #[serde(default, deserialize_with = "or_default")]
    parts: Vec<Part>,
    append: Option<bool>,
    #[serde(default, deserialize_with = "or_default")]
    last: bool,
    metadata: Option<Struct>,
    #[serde(default, deserialize_with = "or_default")]
    extensions: Vec<String>,
    state: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "or_default")]
    level: Level,
}

/// Deserializes a member whose value null stands for its default.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
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

/// Text of an event, still encoded, since it may be cut within a character.
#[derive(Debug)]
struct Text(Box<RawValue>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        if json.get().starts_with('"') { Ok(Self(json)) } else { Err(D::Error::custom("`text` is not a text")) }
    }
}

impl Text {
    /// Returns the content of the JSON string.
    fn content(&self) -> &str {
        let json = self.0.get();
        json.get(1..json.len() - 1).unwrap_or_default()
    }
}

/// Message of an event: a text, or a whole Message.
#[derive(Debug)]
struct Content(Message);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Box::<RawValue>::deserialize(deserializer)?;
        let message = if json.get().starts_with('"') {
            serde_json::from_str::<String>(json.get()).map(Message::agent)
        } else {
            serde_json::from_str::<Message>(json.get())
        };
        message.map(|message| Self(Message { role: Role::Agent.into(), ..message })).map_err(D::Error::custom)
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
        let mut parsed = serde_json::from_slice(line);
        // A state is not decoded yet.
        if parsed.as_ref().ok().is_none_or(|event: &Self| event.state.is_some())
            && let Some(repaired) = repaired(line)
        {
            parsed = serde_json::from_slice(&repaired);
        }
        parsed.map_err(|cause| {
            Error::internal(format!("a line of the agent is not an event ({cause}): {}", quoted(line)))
        })
    }

    fn content(&mut self) -> Result<Message, Error> {
        let message = self.message.take().map(|content| content.0);
        let text = self.text.take().map(|text| surrogates::decode(text.content())).transpose()?;
        message.or(text.map(Message::agent)).ok_or_else(|| serde_json::Error::missing_field("message").into())
    }

    /// Returns true if the event ends its turn.
    pub(super) fn ends_turn(&self) -> bool {
        match self.r#type {
            Kind::Ask | Kind::Auth | Kind::Message | Kind::Complete | Kind::Reject | Kind::Fail => true,
            Kind::Status | Kind::Artifact | Kind::Save | Kind::Log => false,
        }
    }
}

/// Returns the beginning of a line as text.
pub(super) fn quoted(line: &[u8]) -> String {
    // A character has up to four bytes.
    let text = String::from_utf8_lossy(line.get(..4 * MAX_QUOTED).unwrap_or(line));
    text.chars().take(MAX_QUOTED).collect()
}

/// Line of a stream of events.
#[derive(Debug)]
pub(super) enum Received {
    /// Event, or a list of events. None in a blank line.
    Events(Vec<AgentEvent>),
    /// Line that has no event, such as that of a library: output for the log, and whether the line has an end.
    Output(String, bool),
}

impl Received {
    /// Decodes a line with its end, which may be large.
    ///
    /// # Errors
    /// The line is a JSON object in part, or none that is an event, or has an event behind other output. The text quotes the line, and
    /// is for the log.
    pub(super) async fn decode(line: impl AsRef<[u8]> + Send + 'static) -> Result<Self, Error> {
        decoding::decode(line.as_ref().len(), move || Self::parse(line.as_ref())).await
    }

    fn parse(line: &[u8]) -> Result<Self, Error> {
        /// Number of objects in a line of output that are looked at.
        const MAX_OBJECTS: usize = 8;
        let text = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line).trim_ascii();
        // As in an event stream.
        let text =
            text.strip_prefix(b"data:").map(<[u8]>::trim_ascii).filter(|data| data.starts_with(b"{")).unwrap_or(text);
        match text.first() {
            None => Ok(Self::Events(Vec::new())),
            Some(b'{') => Ok(Self::Events(vec![AgentEvent::parse(text)?])),
            Some(first) => {
                if *first == b'['
                    && check_json(text).is_ok()
                    && let Ok(items) = serde_json::from_slice::<Vec<&RawValue>>(text)
                    && items.iter().any(|item| AgentEvent::parse(item.get().as_bytes()).is_ok())
                {
                    let events = items.iter().map(|item| AgentEvent::parse(item.get().as_bytes()));
                    return events.collect::<Result<_, _>>().map(Self::Events);
                }
                // Such as a list over several lines.
                let end = text.iter().rposition(|byte| *byte == b'}').map_or(0, |end| end + 1);
                let inner = text.get(..end).unwrap_or_default();
                let mut objects = inner.iter().enumerate().filter(|(_, byte)| **byte == b'{').take(MAX_OBJECTS);
                if text.get(end..).is_some_and(|rest| rest.iter().all(|byte| b",] \t".contains(byte)))
                    && objects.any(|(at, _)| AgentEvent::parse(inner.get(at..).unwrap_or_default()).is_ok())
                {
                    let why = "an event of the agent does not begin its line";
                    return Err(Error::internal(format!("{why}: {}", quoted(line))));
                }
                let text = text.get(..MAX_LOG_LINE).unwrap_or(text);
                Ok(Self::Output(
                    String::from_utf8_lossy(text).into_owned(),
                    line.ends_with(b"\n") || line.ends_with(b"\r"),
                ))
            }
        }
    }
}

/// Returns the error of a line without secrets.
pub(super) fn redacted(error: Error, secrets: &Secrets) -> Error {
    if error.message().is_some() { error } else { Error::internal(secrets.redact(&error.to_string())) }
}

/// End of a turn by an event.
pub(super) type TurnEnd = Result<End, Error>;

/// Receiver of the events of a turn, which sends them as updates of the task.
pub(super) struct EventSink<'a> {
    out: &'a Updates,
    task_id: &'a str,
    /// Artifacts of this turn by their id, or else their name.
    artifacts: HashMap<String, (ArtifactWriter<'a>, TextPieces)>,
    log_limit: LogLimit,
    /// Secrets of the sender, which are not logged.
    secrets: Arc<Secrets>,
    has_events: bool,
    /// Beginning of the first line that is no event.
    first_output: Option<String>,
}

impl<'a> EventSink<'a> {
    pub(super) fn new(out: &'a Updates, task_id: &'a str, secrets: Arc<Secrets>) -> Self {
        let (artifacts, log_limit) = (HashMap::new(), LogLimit::default());
        Self { out, task_id, artifacts, log_limit, secrets, has_events: false, first_output: None }
    }

    /// Applies a line of a stream of events, with its end. A line that is no JSON object is logged.
    ///
    /// # Errors
    /// The turn has ended, or the line is a broken event, or the beginning of another line: a part of the answer is missing.
    pub(super) async fn apply_line(
        &mut self,
        line: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<Option<TurnEnd>, Error> {
        match Received::decode(line).await.map_err(|error| redacted(error, &self.secrets))? {
            Received::Events(events) => {
                for event in events {
                    let end = self.apply(event).await?;
                    if end.is_some() {
                        return Ok(end);
                    }
                }
            }
            Received::Output(text, is_whole) => {
                let (task_id, text) = (self.task_id, self.secrets.redact(&text));
                let warn = |why: String| tracing::warn!(task.id = task_id, "{why}");
                self.log_limit.log(&text, |line| log(task_id, Level::Info, line), warn);
                if self.has_events && !is_whole {
                    let text = quoted(text.as_bytes());
                    return Err(Error::internal(format!("the last line of the agent is not an event: {text}")));
                }
                self.first_output.get_or_insert_with(|| quoted(text.as_bytes()));
            }
        }
        Ok(None)
    }

    /// Returns the failure of a turn whose stream ended without an event. `sender` has sent the stream.
    pub(super) fn failure(&self, sender: &str) -> Option<Error> {
        let output = self.first_output.iter().map(|line| format!(" Its output begins with: {}", escaped(line)));
        (!self.has_events).then(|| Error::public(format!("The {sender} sent no event.{}", output.collect::<String>())))
    }

    /// Applies an event. Returns the end of the turn for an event that ends it.
    ///
    /// # Errors
    /// The turn has ended, or the event lacks a member.
    pub(super) async fn apply(&mut self, mut event: AgentEvent) -> Result<Option<TurnEnd>, Error> {
        self.has_events = true;
        if event.ends_turn() {
            self.flush().await?;
            // An answer without a task has no other metadata than its own.
            if let (Some(metadata), true) = (&event.metadata, event.r#type != Kind::Message) {
                self.out.with_metadata(metadata)?.working().await?;
            }
        }
        match event.r#type {
            Kind::Status => {
                let with_metadata = event.metadata.as_ref().map(|it| self.out.with_metadata(it)).transpose()?;
                let out = with_metadata.as_ref().unwrap_or(self.out);
                match event.content() {
                    Ok(message) => out.progress(message).await?,
                    Err(_) => out.working().await?,
                }
            }
            Kind::Artifact => self.artifact(event).await?,
            Kind::Save => self.out.save(&event.state).await?,
            Kind::Log => {
                let (task_id, level, text) = (self.task_id, event.level, event.content()?.text());
                let text = self.secrets.redact(&text[..text.floor_char_boundary(MAX_LOG_LINE)]);
                let warn = |why: String| tracing::warn!(task.id = task_id, "{why}");
                self.log_limit.log(&text, |line| log(task_id, level, line), warn);
            }
            Kind::Ask => return Ok(Some(Ok(End::input_required(event.content()?)))),
            Kind::Auth => return Ok(Some(Ok(End::auth_required(event.content()?)))),
            Kind::Message => return Ok(Some(Ok(End::reply(event.content()?)))),
            Kind::Reject => return Ok(Some(Ok(End::rejected(event.content()?)))),
            Kind::Complete => return Ok(Some(Ok(End::Completed(event.content().ok())))),
            Kind::Fail => return Ok(Some(Err(Error::public(event.content()?)))),
        }
        Ok(None)
    }

    /// Sends what remains of the texts of artifacts at the end of the turn.
    pub(super) async fn flush(&mut self) -> Result<(), Error> {
        for (writer, pieces) in self.artifacts.values_mut() {
            match pieces.finish() {
                "" => {}
                rest => writer.text(rest).await?,
            }
        }
        Ok(())
    }

    async fn artifact(&mut self, event: AgentEvent) -> Result<(), Error> {
        let name = event.name.unwrap_or_else(|| event.id.clone().unwrap_or_else(|| OUTPUT.to_owned()));
        let key = event.id.clone().unwrap_or_else(|| name.clone());
        let known = self.artifacts.remove(&key).filter(|_| event.append != Some(false));
        let (mut writer, mut pieces) = known.unwrap_or_else(|| {
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
            (writer, TextPieces::default())
        });
        if let Some(metadata) = &event.metadata {
            writer = writer.metadata(metadata)?;
        }
        writer = writer.extensions(event.extensions);
        if event.last {
            writer = writer.last();
        }
        let mut parts = event.parts;
        if let Some(text) = &event.text {
            let mut whole = pieces.next(text.content())?;
            if event.last {
                whole.push_str(pieces.finish());
            }
            // Half a character waits for the other half.
            if !whole.is_empty() || text.content().is_empty() {
                parts.push(Part::text(whole));
            }
        }
        parts.extend(event.data.map(|data| part::Content::Data(data).into()));
        if !parts.is_empty() {
            writer.parts(parts).await?;
        } else if event.text.is_none() {
            return Err(Error::internal("an artifact of the agent has neither text, data nor parts"));
        }
        self.artifacts.insert(key, (writer, pieces));
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

/// Reads a line of at most `max` bytes, with its end: LF or CR. Of CRLF, the LF is a blank line. Returns `None` at the end.
pub(super) async fn read_line(stream: &mut (impl AsyncBufRead + Unpin), max: usize) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    while line.len() <= max {
        let bytes = stream.fill_buf().await?;
        let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let length = end.map_or(bytes.len(), |end| end + 1).min(max.saturating_add(1) - line.len());
        line.extend_from_slice(bytes.get(..length).unwrap_or_default());
        stream.consume(length);
        if length == 0 || line.ends_with(b"\n") || line.ends_with(b"\r") {
            break;
        }
    }
    Ok(match line.len() {
        0 => None,
        length if length > max => Some(Line::Cut(line)),
        _ => Some(Line::Whole(line)),
    })
}

/// Size of what was logged of an agent.
#[derive(Default)]
pub(super) struct LogLimit(usize);

impl LogLimit {
    /// Passes a line to a log, up to the limit, and then the sentence that the rest is not logged.
    pub(super) fn log(&mut self, line: &str, log: impl FnOnce(&str), warn: impl FnOnce(String)) {
        if self.0 >= MAX_LOG {
            return;
        }
        let line = &line[..line.floor_char_boundary(MAX_LOG_LINE)];
        self.0 += line.len() + 1;
        log(line);
        if self.0 >= MAX_LOG {
            warn(format!("the log of the agent exceeds {MAX_LOG} bytes; the rest is not logged"));
        }
    }
}

/// Passes the lines of stderr to a log, as `redact` returns them, without blank ones and up to a limit: the rest of a long line could have
/// a part of a secret. Reads until the end, so that the command does not wait.
pub(super) async fn each_log_line(
    stderr: &mut (impl AsyncBufRead + Unpin),
    mut redact: impl FnMut(&str) -> String,
    log: impl Fn(&str),
    warn: impl Fn(String),
) {
    let (mut limit, mut is_cut) = (LogLimit::default(), false);
    while let Ok(Some(line)) = read_line(stderr, MAX_LOG_LINE).await {
        let is_rest = mem::replace(&mut is_cut, matches!(line, Line::Cut(_)));
        let (Line::Whole(line) | Line::Cut(line)) = line;
        let line = line.trim_ascii_end();
        // Such as the LF of CRLF.
        if !line.is_empty() && !is_rest {
            limit.log(&redact(&String::from_utf8_lossy(line)), &log, &warn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures_util::FutureExt as _;
    use proptest::{collection::vec, prelude::*, sample::Index};
    use tokio::io::{AsyncReadExt as _, BufReader};

    use super::*;

    /// Returns the texts of the events of a stream, and its output in brackets, which arrive in two parts.
    fn read(stream: &[u8], cut: usize) -> Result<Vec<String>, Error> {
        let (first, second) = stream.split_at(cut);
        let mut stream = BufReader::new(first.chain(second));
        let all = async {
            let mut found = Vec::new();
            while let Some(Line::Whole(line)) = read_line(&mut stream, 1 << 20).await? {
                match Received::decode(line).await? {
                    Received::Events(events) => found.extend(events.into_iter().map(|event| {
                        event.text.map(|text| surrogates::decode(text.content()).unwrap()).unwrap_or_default()
                    })),
                    Received::Output(text, true) => found.push(format!("[{text}]")),
                    Received::Output(text, false) => found.push(format!("[{text}")),
                }
            }
            Ok(found)
        };
        all.now_or_never().unwrap()
    }

    #[test]
    fn streams_of_others_are_read() {
        const A: &str = r#"{"type":"artifact","text":"a"}"#;
        const B: &str = r#"{"type":"status","text":"b"}"#;
        let text = |content: &str| format!(r#"{{"type":"artifact","text":"{content}"}}"#);
        let with = |members: &str| format!(r#"{{"type":"artifact","text":"a",{members}}}"#);
        for (name, stream, expected) in [
            ("LF", format!("{A}\n{B}\n"), &["a", "b"][..]),
            ("CRLF", format!("{A}\r\n{B}\r\n"), &["a", "b"]),
            ("CR", format!("{A}\r{B}\r"), &["a", "b"]),
            ("mixed line ends", format!("{A}\r{B}\r\n{A}\n\r{B}\n"), &["a", "b", "a", "b"]),
            ("no last line end", format!("{A}\n{B}"), &["a", "b"]),
            ("mark and LF", format!("\u{feff}{A}\n{B}\n"), &["a", "b"]),
            ("mark and CRLF", format!("\u{feff}{A}\r\n"), &["a"]),
            ("mark and CR", format!("\u{feff}{A}\r"), &["a"]),
            ("mark on each line", format!("\u{feff}{A}\n\u{feff}{B}\n"), &["a", "b"]),
            ("mark alone", format!("\u{feff}\n{A}\n"), &["a"]),
            ("mark and no line end", format!("\u{feff}{A}"), &["a"]),
            ("blank lines", format!("\n\n{A}\n \t\n\r\n{B}\n\n"), &["a", "b"]),
            ("space around", format!("  {A}\n\t{B}  \r\n"), &["a", "b"]),
            ("nothing", String::new(), &[]),
            ("only line ends", "\r\n\r\r\n\n".to_owned(), &[]),
            ("unknown members", with(r#""x":{"y":[1,null,"\\ud83d"]},"seq":1.5e300"#), &["a"]),
            (
                "nulls",
                with(r#""parts":null,"last":null,"level":null,"extensions":null,"append":null,"id":null"#),
                &["a"],
            ),
            (
                "null data and state",
                with(r#""metadata":null,"data":null,"state":null,"message":null,"turn":null"#),
                &["a"],
            ),
            ("lone high surrogate", text(r"a\ud83d"), &["a\u{fffd}"]),
            ("lone low surrogate", text(r"\ude00a"), &["\u{fffd}a"]),
            ("swapped surrogates", text(r"\ude00\ud83d"), &["\u{fffd}\u{fffd}"]),
            ("pair of surrogates", text(r"\uD83D\uDE00"), &["😀"]),
            ("escaped backslash", text(r"\\ud83d"), &[r"\ud83d"]),
            ("lone surrogate in a member's name", with(r#""\udead":1"#), &["a"]),
            ("UTF-8 and escapes", text(r"ä€😀\u00e4\/\n"), &["ä€😀ä/\n"]),
            ("NUL in a text", text(r"\u0000"), &["\0"]),
            ("line of a library", format!("Loading model\n{A}\n"), &["[Loading model]", "a"]),
            ("progress with CR", format!("10%\r20%\r{A}\n"), &["[10%]", "[20%]", "a"]),
            ("data of SSE", format!("data: {A}\n\ndata:{B}\n\n"), &["a", "b"]),
            ("other data", "data: [DONE]\ndata: x\n".to_owned(), &["[data: [DONE]]", "[data: x]"]),
            ("list of an event", format!("[{A}]\n"), &["a"]),
            ("list of events", format!("[{A}, {B}]\n{A}\n"), &["a", "b", "a"]),
            (
                "lists without events",
                format!("[]\n[{{\"level\":\"info\"}}]\n{A}\n"),
                &["[[]]", "[[{\"level\":\"info\"}]]", "a"],
            ),
            ("objects in output", format!("x {{\"a\":1}}\ny {{}}\n{A}\n"), &["[x {\"a\":1}]", "[y {}]", "a"]),
            ("event within a line", format!("sent {A} to you\n{A}\n"), &[&format!("[sent {A} to you]"), "a"]),
            ("end of SSE", format!("{A}\n[DONE]\n"), &["a", "[[DONE]]"]),
            ("comment of SSE", format!(": ping\r\n{A}\r\n"), &["[: ping]", "a"]),
            ("other JSON", format!("[1]\n\"x\"\nnull\n7\n{A}\n"), &["[[1]]", "[\"x\"]", "[null]", "[7]", "a"]),
            ("output without line end", format!("{A}\nBye"), &["a", "[Bye"]),
            ("control characters", format!("\u{1b}[1mINFO\u{1b}[0m\n{A}\n"), &["[\u{1b}[1mINFO\u{1b}[0m]", "a"]),
        ] {
            for cut in 0..=stream.len() {
                assert_eq!(read(stream.as_bytes(), cut).unwrap(), expected, "{name}, cut at {cut}");
            }
        }
        assert_eq!(read(b"caf\xe9\n", 4).unwrap(), ["[caf\u{fffd}]"]);
        for (name, stream) in [
            ("cut event", &br#"{"type":"artifact","te"#[..]),
            ("cut event with a line end", b"{\"type\":\"artifact\",\"te\n"),
            ("broken event", b"{type: artifact}\n"),
            ("two events on a line", br#"{"type":"status"}{"type":"status"}"#),
            ("more after an event", b"{\"type\":\"status\"},\n"),
            ("event over several lines", b"{\n\"type\":\"status\"}\n"),
            ("no UTF-8", b"{\"type\":\"artifact\",\"text\":\"caf\xe9\"}\n"),
            ("cut character", b"{\"type\":\"artifact\",\"text\":\"\xf0\x9f\"}\n"),
            ("member given twice", br#"{"type":"artifact","text":"a","text":"b"}"#),
            ("unknown type", br#"{"type":"dance"}"#),
            ("no type", br#"{"level":"info","msg":"ready"}"#),
            ("null type", br#"{"type":null}"#),
            ("wrong type of a member", br#"{"type":"artifact","text":7}"#),
            ("NaN", br#"{"type":"artifact","data":NaN}"#),
            ("cut escape", br#"{"type":"artifact","text":"\ud8"}"#),
            ("output before an event", "Loading\u{2026} {\"type\":\"status\"}\n".as_bytes()),
            ("escape before an event", b"\x1b[0m{\"type\":\"status\"}\n"),
            ("objects before an event", br#"{x} {"type":"status"}"#),
            ("object in output before an event", br#"INFO {x: {}} {"type":"status"}"#),
            ("list over several lines", b"[{\"type\":\"status\"},\n{\"type\":\"status\"}\n]\n"),
            ("list of an event and another object", br#"[{"type":"status"},{"level":"info"}]"#),
            ("broken event as data", br#"data: {"type":"sta"#),
            ("member of data given twice", br#"{"type":"artifact","data":{"a":1,"a":2}}"#),
            ("member of metadata given twice", br#"{"type":"artifact","text":"a","metadata":{"a":[{"b":1,"b":1}]}}"#),
        ] {
            for cut in 0..=stream.len() {
                assert!(read(stream, cut).is_err(), "{name}, cut at {cut}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// A stream has the same events and output, wherever it is cut.
        #[test]
        fn cut_streams_have_the_same_events(
            has_mark in any::<bool>(),
            lines in vec((any::<String>(), any::<bool>(), 0..4_usize, "[ \t]{0,2}"), 0..8),
            is_ended in any::<bool>(),
            cut in any::<Index>(),
        ) {
            let mut stream = if has_mark { "\u{feff}".to_owned() } else { String::new() };
            let mut expected = Vec::new();
            for (text, is_event, end, space) in &lines {
                let line = if *is_event {
                    expected.push(text.clone());
                    serde_json::json!({ "type": "artifact", "text": text, "unknown": [text] }).to_string()
                } else {
                    let text: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
                    expected.push(format!("[x{text}]"));
                    format!("x{text}")
                };
                let end = ["\n", "\r\n", "\r", "\n\r\n"][*end];
                stream.push_str(&[space, &*line, space, end].concat());
            }
            if !is_ended && lines.last().is_some_and(|line| line.1) {
                stream.truncate(stream.trim_ascii_end().len());
            }
            prop_assert_eq!(read(stream.as_bytes(), cut.index(stream.len() + 1)).unwrap(), expected);
        }
    }

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
    fn lines_of_stderr_are_logged_without_blank_ones() {
        let logged = RefCell::new(Vec::new());
        let mut stderr = &b"first\r\n  second\r10%\n\r\n\n \t\nlast \xff"[..];
        let log = |line: &str| logged.borrow_mut().push(line.to_owned());
        each_log_line(&mut stderr, str::to_owned, log, |why| panic!("{why}")).now_or_never().unwrap();
        assert_eq!(*logged.borrow(), ["first", "  second", "10%", "last \u{fffd}"]);
        logged.borrow_mut().clear();
        let cut = format!("{}cut\nnext\n", "x".repeat(2 * MAX_LOG_LINE));
        each_log_line(&mut cut.as_bytes(), str::to_owned, log, |why| panic!("{why}")).now_or_never().unwrap();
        assert_eq!(
            *logged.borrow(),
            ["x".repeat(MAX_LOG_LINE), "next".to_owned()],
            "the rest may be a part of a secret"
        );
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
