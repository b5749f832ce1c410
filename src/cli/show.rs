//! Output of the commands that call a remote agent, as text and as JSON.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt::{Display, Write as _},
};

use clap::ValueEnum;
use serde::Serialize;

use super::terminal::{DIM, YELLOW, paint, state_style};
pub(super) use crate::base::stderr::{safe, shell_command};
use crate::{
    base::stderr::{escaped, write_escaped},
    client::{CatalogEntry, StreamEvent},
    protocol::{
        pb::v1::{
            AgentCard, Artifact, ListTasksResponse, Message, Part, Task, TaskArtifactUpdateEvent,
            TaskPushNotificationConfig, TaskState, TaskStatus,
        },
        v03::json::EnumNames as _,
    },
};

/// Maximum width of tables and texts in columns, except for words that are longer.
pub(super) const WIDTH: usize = 80;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// For people.
    Text,
    /// Indented JSON of the protocol.
    Json,
    /// JSON of the protocol, on one line for each value.
    Jsonl,
}

/// Returns the name of a state as it is written in 0.3, such as `input-required`.
pub(super) fn state(state: TaskState) -> &'static str {
    TaskState::v03_name(state.into())
}

/// Parses the name of a state: `working`, `input-required` or `TASK_STATE_WORKING`.
pub(super) fn parse_state(text: &str) -> Result<TaskState, &'static str> {
    let known = |state: &TaskState| *state != TaskState::Unspecified;
    TaskState::from_any_name(text).filter(known).ok_or("unknown state; for example `working`")
}

/// Formats a value as JSON, without characters that control a terminal.
pub(super) fn json(value: &impl Serialize, format: OutputFormat) -> anyhow::Result<String> {
    let json = if format == OutputFormat::Jsonl {
        serde_json::to_string(value)?
    } else {
        serde_json::to_string_pretty(value)?
    };
    let mut text = String::new();
    // Writing to a string does not fail.
    _ = write_escaped(&mut text, &json, true);
    Ok(text + "\n")
}

/// Formats a value as JSON or as this text.
pub(super) fn formatted(
    value: &impl Serialize,
    format: OutputFormat,
    text: impl FnOnce() -> String,
) -> anyhow::Result<String> {
    if format == OutputFormat::Text { Ok(text()) } else { json(value, format) }
}

/// Formats a line with a label, which is padded to a width.
fn field(label: &str, width: usize, value: impl Display) -> String {
    format!("{}{:width$}{value}\n", paint(DIM, label), "", width = width.saturating_sub(label.len()))
}

/// Breaks a text into lines, each of which begins at the column `indent`.
pub(super) fn wrapped(text: &str, indent: usize) -> String {
    let (mut lines, mut column) = (String::new(), indent);
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > indent && column + 1 + width > WIDTH {
            _ = write!(lines, "\n{:indent$}", "");
            column = indent;
        } else if column > indent {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += width;
    }
    lines
}

/// Returns the name of a state with its style.
fn styled_state(state: TaskState) -> String {
    paint(state_style(state), self::state(state))
}

/// Formats a task.
pub(super) fn task(task: &Task, format: OutputFormat) -> anyhow::Result<String> {
    if format != OutputFormat::Text {
        return json(task, format);
    }
    let mut text = head(task);
    if !task.artifacts.is_empty() {
        text.push_str(&heading("Artifacts:"));
        task.artifacts.iter().for_each(|artifact| text.push_str(&artifact_line(artifact)));
    }
    if !task.history.is_empty() {
        text.push_str(&heading("History:"));
        for message in &task.history {
            let role = message.role().as_str_name().trim_start_matches("ROLE_").to_ascii_lowercase();
            _ = writeln!(text, "  {} {}", label(&role), indented(&parts(&message.parts), 4));
        }
    }
    Ok(text)
}

fn label(text: &str) -> String {
    paint(DIM, format_args!("[{text}]"))
}

fn heading(text: &str) -> String {
    format!("{}\n", paint(DIM, text))
}

fn head(task: &Task) -> String {
    let time = task.status.as_ref().and_then(|status| status.timestamp.as_ref()).map(crate::protocol::pb::wkt::millis);
    let time = time.and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    let time = time.map(|time| format!(" ({time})")).unwrap_or_default();
    let status = styled_state(task.state()) + &paint(DIM, time);
    let fields = [("Task:", escaped(&task.id)), ("Context:", escaped(&task.context_id)), ("Status:", status)];
    let message = task.status.as_ref().and_then(|status| status.message.as_ref());
    let message = message.map(|message| parts(&message.parts)).filter(|message| !message.is_empty());
    let message = message.map(|message| ("Message:", indented(&message, 10)));
    fields.into_iter().chain(message).map(|(label, value)| field(label, 10, value)).collect()
}

/// Formats a message of an agent that keeps no task.
pub(super) fn message(message: &Message, format: OutputFormat) -> anyhow::Result<String> {
    formatted(message, format, || format!("{}\n", safe(&parts(&message.parts))))
}

/// Formats an event of a stream.
fn event(event: &StreamEvent, format: OutputFormat) -> anyhow::Result<String> {
    if format != OutputFormat::Text {
        return event.to_response().map_or_else(|| Ok(String::new()), |response| json(&response, format));
    }
    Ok(match event {
        StreamEvent::Task(found) => task(found, format)?,
        StreamEvent::Status(update) => status_line(update.status.as_ref()),
        // Formatted as chunks.
        StreamEvent::Artifact(_) => String::new(),
        StreamEvent::Message(found) => message(found, format)?,
        StreamEvent::Gap => {
            format!("{}\n", paint(YELLOW, "[connection lost: events may be missing here]"))
        }
    })
}

/// Chunks of artifacts as text: those that follow each other in an artifact are one text.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// Id of the artifact whose chunks are being formatted.
    artifact: String,
    /// The text so far does not end with a line feed.
    is_open: bool,
    /// The last part is a text, which the next one continues.
    ends_with_text: bool,
}

impl Chunks {
    /// Formats a chunk. Each line begins with a label.
    fn chunk(&mut self, artifact: &Artifact, update: &TaskArtifactUpdateEvent, label: &str) -> String {
        let is_text = |part: Option<&Part>| part.is_some_and(|part| part.as_text().is_some());
        let follows = update.append && self.artifact == artifact.artifact_id;
        let is_continued = follows && self.ends_with_text && is_text(artifact.parts.first());
        let mut text = if is_continued || artifact.parts.is_empty() { String::new() } else { self.end().to_owned() };
        for line in safe(&artifact_text(artifact)).split_inclusive('\n') {
            if !self.is_open {
                text.push_str(label);
            }
            text.push_str(line);
            self.is_open = !line.ends_with('\n');
        }
        self.artifact.clone_from(&artifact.artifact_id);
        self.ends_with_text = is_text(artifact.parts.last());
        if update.last_chunk {
            text.push_str(self.end());
        }
        text
    }

    /// Returns the end of the text: a line feed, unless it has one.
    pub(super) fn end(&mut self) -> &'static str {
        if std::mem::take(&mut self.is_open) { "\n" } else { "" }
    }

    /// Puts a text on lines of its own.
    fn line(&mut self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        self.artifact.clear();
        self.end().to_owned() + text
    }
}

/// Text of the events of a stream. A line of an artifact begins with its name.
#[derive(Debug, Default)]
pub(super) struct EventLines {
    pub(super) chunks: Chunks,
    /// Names of artifacts by their ids: only the first chunk of an artifact has to have its name.
    names: HashMap<String, String>,
}

impl EventLines {
    /// Creates the text of a stream whose first events have been printed: these artifacts are known from them.
    pub(super) fn after(known: &[Artifact]) -> Self {
        let mut lines = Self::default();
        lines.record(known);
        lines
    }

    fn record(&mut self, artifacts: &[Artifact]) {
        let name_of = |artifact: &Artifact| (artifact.artifact_id.clone(), artifact_name(artifact).to_owned());
        self.names.extend(artifacts.iter().map(name_of));
    }

    /// Formats the next event.
    pub(super) fn event(&mut self, event: &StreamEvent, format: OutputFormat) -> anyhow::Result<String> {
        if let (StreamEvent::Artifact(update), OutputFormat::Text) = (event, format) {
            let Some(artifact) = &update.artifact else { return Ok(String::new()) };
            let name = self.names.entry(artifact.artifact_id.clone());
            let name = name.or_insert_with(|| artifact_name(artifact).to_owned());
            return Ok(self.chunks.chunk(artifact, update, &artifact_label(name)));
        }
        if let StreamEvent::Task(task) = event {
            self.record(&task.artifacts);
        }
        Ok(self.chunks.line(&self::event(event, format)?))
    }
}

/// Text of a turn of a conversation: what the agent says, and states that the user has to know of.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) chunks: Chunks,
    /// Lengths of the texts of artifacts that need not be printed: those of earlier turns, and what is printed.
    known: HashMap<String, usize>,
}

impl Answer {
    /// Formats the next event.
    pub(super) fn event(&mut self, event: &StreamEvent, format: OutputFormat) -> anyhow::Result<String> {
        if format != OutputFormat::Text {
            return self::event(event, format);
        }
        let answer = match event {
            StreamEvent::Artifact(update) => {
                let Some(artifact) = &update.artifact else { return Ok(String::new()) };
                let length = artifact_text(artifact).len();
                let known = self.known.entry(artifact.artifact_id.clone()).or_default();
                *known = if update.append { *known + length } else { length };
                return Ok(self.chunks.chunk(artifact, update, ""));
            }
            StreamEvent::Task(task) => self.artifacts(task) + &notice(task.status.as_ref()),
            StreamEvent::Status(update) => notice(update.status.as_ref()),
            StreamEvent::Message(_) | StreamEvent::Gap => self::event(event, format)?,
        };
        Ok(self.chunks.line(&answer))
    }

    /// Formats those artifacts of a task that are not printed yet: all of a task that was not streamed, or what is new after a
    /// gap. Those at the beginning of a turn are of earlier ones.
    fn artifacts(&mut self, task: &Task) -> String {
        let is_working = matches!(task.state(), TaskState::Submitted | TaskState::Working);
        let mut texts = String::new();
        for artifact in &task.artifacts {
            let text = artifact_text(artifact);
            let known = self.known.insert(artifact.artifact_id.clone(), text.len());
            let is_earlier = known.is_none() && is_working;
            let new = text.get(known.unwrap_or_default()..).filter(|new| !new.is_empty() && !is_earlier);
            if let Some(new) = new {
                _ = writeln!(texts, "{}", safe(new.trim_end_matches('\n')));
            }
        }
        texts
    }
}

/// Formats a status in a conversation: its message, or its state if the user has to know of it.
fn notice(status: Option<&TaskStatus>) -> String {
    let state = status.map_or(TaskState::Unspecified, TaskStatus::state);
    let message = status.and_then(|status| status.message.as_ref());
    let text = message.map(|message| safe(&parts(&message.parts))).unwrap_or_default();
    let label = || paint(state_style(state), format_args!("[{}]", self::state(state)));
    let is_expected = matches!(state, TaskState::Submitted | TaskState::Working | TaskState::Completed);
    match text.as_str() {
        "" if is_expected => String::new(),
        "" => format!("{}\n", label()),
        // The message of a task that waits for input is a question.
        text if is_expected || state == TaskState::InputRequired => format!("{text}\n"),
        text => format!("{} {}\n", label(), text.replace('\n', "\n  ")),
    }
}

fn status_line(status: Option<&TaskStatus>) -> String {
    let name = styled_state(status.map_or(TaskState::Unspecified, TaskStatus::state));
    let message = status.and_then(|status| status.message.as_ref());
    let text = message.map(|message| indented(&parts(&message.parts), 9)).filter(|text| !text.is_empty());
    let text = text.map(|text| format!(": {text}")).unwrap_or_default();
    format!("{} {name}{text}\n", label("status"))
}

fn artifact_line(artifact: &Artifact) -> String {
    let text = artifact_text(artifact);
    format!("{}{}\n", artifact_label(artifact_name(artifact)), indented(text.trim_end_matches('\n'), 4))
}

/// Returns what is shown as the name of an artifact: its id if it has none.
fn artifact_name(artifact: &Artifact) -> &str {
    if artifact.name.is_empty() { &artifact.artifact_id } else { &artifact.name }
}

fn artifact_label(name: &str) -> String {
    format!("  {} ", label(&escaped(name)))
}

/// Formats a page of tasks as a table, the first one with a head. If the others follow, the token of the next one is not shown.
pub(super) fn page(
    page: &ListTasksResponse,
    format: OutputFormat,
    is_first: bool,
    others_follow: bool,
) -> anyhow::Result<String> {
    if format != OutputFormat::Text {
        return json(page, format);
    }
    let head = || heading(&format!("{:<36}  {:<14}  CONTEXT", "ID", "STATUS"));
    let mut text = if is_first { head() } else { String::new() };
    for task in &page.tasks {
        let context = escaped(&task.context_id);
        _ = writeln!(text, "{:<36}  {}  {}", escaped(&task.id), state_cell(task.state()), cut(&context, WIDTH - 54));
    }
    if !page.next_page_token.is_empty() && !others_follow {
        _ = writeln!(text, "More tasks: --page-token {}", escaped(&page.next_page_token));
    }
    Ok(text)
}

/// Formats a number with its noun.
pub(super) fn count(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats a size in bytes, with at least two digits of a unit.
pub(super) fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let (shift, unit) = units.into_iter().find(|(shift, _)| bytes >> shift >= 10).unwrap_or((0, "B"));
    format!("{} {unit}", bytes >> shift)
}

/// Shortens a text to a number of columns.
pub(super) fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if text.chars().count() <= columns {
        return text.into();
    }
    text.chars().take(columns.saturating_sub(1)).chain(['…']).collect::<String>().into()
}

/// Returns the name of a state in a column of tables.
pub(super) fn state_cell(state: TaskState) -> String {
    paint(state_style(state), format_args!("{:<14}", self::state(state)))
}

/// Formats an agent card.
pub(super) fn card(card: &AgentCard, format: OutputFormat) -> anyhow::Result<String> {
    if format != OutputFormat::Text {
        return json(card, format);
    }
    let streaming = card.capabilities.as_ref().and_then(|capabilities| capabilities.streaming).unwrap_or_default();
    let mut text = String::new();
    for (name, value) in [("Name:", &card.name), ("Description:", &card.description), ("Version:", &card.version)] {
        text.push_str(&field(name, 14, wrapped(&safe(value), 14)));
    }
    text.push_str(&heading("Interfaces:"));
    for interface in &card.supported_interfaces {
        let (binding, version) = (escaped(&interface.protocol_binding), escaped(&interface.protocol_version));
        _ = writeln!(text, "  {binding} {version} {}", escaped(&interface.url));
    }
    text.push_str(&field("Streaming:", 14, if streaming { "yes" } else { "no" }));
    if !card.skills.is_empty() {
        text.push_str(&heading("Skills:"));
        for skill in &card.skills {
            let id = escaped(&skill.id);
            _ = writeln!(text, "  {} {}", label(&id), wrapped(&safe(&skill.description), id.chars().count() + 5));
        }
    }
    Ok(text)
}

/// Formats the agents of a catalog: as text, a line each, with the description below it; as JSON, objects with `name`,
/// `description`, `cardUrl` and `card`.
pub(super) fn catalog(entries: &[CatalogEntry], format: OutputFormat) -> anyhow::Result<String> {
    if format == OutputFormat::Text {
        let line = |entry: &CatalogEntry| {
            let url = entry.card_url.as_deref().or_else(|| {
                let card = entry.card.as_ref()?;
                card.supported_interfaces.first().map(|interface| interface.url.as_str())
            });
            let url = format!("{:<24}  {}\n", cut(&escaped(&entry.name), 24), escaped(url.unwrap_or_default()));
            if entry.description.is_empty() {
                url
            } else {
                format!("{url}    {}\n", wrapped(&safe(&entry.description), 4))
            }
        };
        return Ok(entries.iter().map(line).collect());
    }
    match format {
        OutputFormat::Jsonl => entries.iter().map(|entry| json(entry, format)).collect(),
        OutputFormat::Json | OutputFormat::Text => json(&entries, format),
    }
}

/// Formats push notification configurations.
pub(super) fn configs(configs: &[TaskPushNotificationConfig], format: OutputFormat) -> anyhow::Result<String> {
    let line = |config: &TaskPushNotificationConfig| format!("{}  {}\n", escaped(&config.id), escaped(&config.url));
    configs.iter().map(|config| formatted(config, format, || line(config))).collect()
}

/// Returns the content of an artifact. Consecutive texts are joined without a separator: they are usually chunks of one text, such
/// as the words of a model.
fn artifact_text(artifact: &Artifact) -> String {
    let mut text = String::new();
    let mut follows_text = false;
    for part in &artifact.parts {
        let is_chunk = follows_text && part.as_text().is_some();
        if !text.is_empty() && !is_chunk {
            text.push(' ');
        }
        text.push_str(&part.to_text());
        follows_text = part.as_text().is_some();
    }
    text
}

fn parts(parts: &[Part]) -> String {
    parts.iter().map(|part| part.to_text().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Formats a text with its further lines indented, so that they are not taken for lines of this program.
fn indented(text: &str, columns: usize) -> String {
    safe(text).replace('\n', &format!("\n{:columns$}", ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::pb::v1::TaskStatusUpdateEvent;

    /// An agent controls neither the terminal nor the lines that look like those of the program.
    #[test]
    fn text_of_agents_is_escaped_and_indented() {
        let text = "a\u{9b}31m\u{202e}b\n-> c";
        let artifact = Artifact { name: text.into(), ..Artifact::default() };
        let status = TaskStatus {
            state: TaskState::Failed.into(),
            message: Some(Message { parts: vec![Part::text(text)], ..Message::default() }),
            ..TaskStatus::default()
        };
        let task = Task { id: text.into(), status: Some(status), artifacts: vec![artifact], ..Task::default() };
        for format in [OutputFormat::Text, OutputFormat::Json, OutputFormat::Jsonl] {
            let shown = super::task(&task, format).unwrap();
            assert!(!shown.contains(['\u{9b}', '\u{202e}']) && !shown.contains("\n-> "), "{shown}");
            assert_eq!(shown.lines().count() == 1, format == OutputFormat::Jsonl, "{shown}");
            if format != OutputFormat::Text {
                let read: Task = serde_json::from_str(&shown).unwrap();
                assert_eq!(read.id, text);
            }
        }
        assert!(!status_line(task.status.as_ref()).contains("\n-> "));
    }

    #[test]
    fn names_of_states_are_accepted_in_all_forms() {
        for text in ["input-required", "INPUT_REQUIRED", "TASK_STATE_INPUT_REQUIRED"] {
            assert_eq!(parse_state(text), Ok(TaskState::InputRequired), "{text}");
        }
        assert!(parse_state("done").is_err());
        assert_eq!(state(TaskState::AuthRequired), "auth-required");
    }

    /// Chunk of an artifact with texts.
    fn chunk(id: &str, texts: &[&str], append: bool, last_chunk: bool) -> StreamEvent {
        let parts = texts.iter().copied().map(Part::text).collect();
        let artifact = Artifact { artifact_id: id.to_owned(), parts, ..Artifact::default() };
        let artifact = Some(artifact);
        let update = TaskArtifactUpdateEvent { artifact, append, last_chunk, ..TaskArtifactUpdateEvent::default() };
        StreamEvent::Artifact(Box::new(update))
    }

    fn status(state: TaskState, text: Option<&str>) -> StreamEvent {
        let status = TaskStatus { message: text.map(Message::agent), state: state.into(), ..TaskStatus::default() };
        let update = TaskStatusUpdateEvent { status: Some(status), ..TaskStatusUpdateEvent::default() };
        StreamEvent::Status(Box::new(update))
    }

    #[test]
    fn chunks_of_an_artifact_are_one_text() {
        let mut answer = Answer::default();
        let mut text = |event: &StreamEvent| answer.event(event, OutputFormat::Text).unwrap();
        assert_eq!(text(&status(TaskState::Working, None)), "");
        assert_eq!(text(&chunk("a", &["Hel"], false, false)), "Hel");
        assert_eq!(text(&chunk("a", &["lo ", "wor"], true, false)), "lo wor");
        assert_eq!(text(&status(TaskState::Working, Some(""))), "", "the text goes on");
        assert_eq!(text(&chunk("a", &["ld"], true, true)), "ld\n");
        assert_eq!(text(&chunk("b", &["1"], false, false)), "1");
        assert_eq!(text(&chunk("c", &["2\n"], false, false)), "\n2\n");
        assert_eq!(text(&chunk("c", &["3"], true, false)), "3");
        assert_eq!(text(&status(TaskState::Working, Some("busy"))), "\nbusy\n");
        assert_eq!(text(&chunk("c", &["4"], true, false)), "4");
        assert_eq!(text(&status(TaskState::Completed, Some(""))), "");
        assert_eq!((answer.chunks.end(), answer.chunks.end()), ("\n", ""));
        let mut notice = |state: TaskState, text: Option<&str>| {
            let text = answer.event(&status(state, text), OutputFormat::Text).unwrap();
            anstream::adapter::strip_str(&text).to_string()
        };
        assert_eq!(notice(TaskState::Failed, None), "[failed]\n");
        assert_eq!(notice(TaskState::Failed, Some("No.")), "[failed] No.\n");
        assert_eq!(notice(TaskState::AuthRequired, Some("Log in.")), "[auth-required] Log in.\n");
        assert_eq!(notice(TaskState::InputRequired, Some("City?")), "City?\n");
    }

    #[test]
    fn lines_of_artifacts_have_a_label() {
        let mut lines = EventLines::default();
        let mut text = |event: &StreamEvent| {
            anstream::adapter::strip_str(&lines.event(event, OutputFormat::Text).unwrap()).to_string()
        };
        assert_eq!(text(&status(TaskState::Working, None)), "[status] working\n");
        assert_eq!(text(&chunk("a", &["Hel"], false, false)), "  [a] Hel");
        assert_eq!(text(&chunk("a", &["lo\n"], true, false)), "lo\n");
        assert_eq!(text(&chunk("a", &["world"], true, false)), "  [a] world");
        assert_eq!(text(&chunk("b", &["1\n2"], false, true)), "\n  [b] 1\n  [b] 2\n");
        assert_eq!(text(&chunk("b", &[""], true, true)), "");
        // Values are no texts that can be joined.
        let data = || {
            let StreamEvent::Artifact(mut update) = chunk("c", &[], true, false) else { unreachable!() };
            update.artifact.as_mut().unwrap().parts = vec![Part::data(&1).unwrap()];
            StreamEvent::Artifact(update)
        };
        assert_eq!(text(&chunk("c", &["a"], false, false)), "  [c] a");
        assert_eq!(text(&data()), "\n  [c] 1");
        assert_eq!(text(&data()), "\n  [c] 1");
        assert_eq!(text(&status(TaskState::Completed, None)), "\n[status] completed\n");
        assert_eq!(lines.chunks.end(), "");
        let artifact = Artifact { artifact_id: "a".to_owned(), name: "answer".to_owned(), ..Artifact::default() };
        let mut lines = EventLines::after(&[artifact]);
        assert!(lines.event(&chunk("a", &["x"], true, false), OutputFormat::Text).unwrap().contains("[answer]"));
        assert_eq!(lines.chunks.end(), "\n");
    }

    #[test]
    fn task_that_was_not_streamed_is_an_answer() {
        let task = |state: TaskState, texts: &[&str]| {
            let artifact = Artifact {
                artifact_id: "a".to_owned(),
                parts: texts.iter().copied().map(Part::text).collect(),
                ..Artifact::default()
            };
            let status = Some(TaskStatus { state: state.into(), ..TaskStatus::default() });
            StreamEvent::Task(Box::new(Task { artifacts: vec![artifact], status, ..Task::default() }))
        };
        let text = |events: &[StreamEvent]| {
            let mut answer = Answer::default();
            events.iter().map(|event| answer.event(event, OutputFormat::Text).unwrap()).collect::<String>()
        };
        assert_eq!(text(&[task(TaskState::Completed, &["4", "2"])]), "42\n");
        // An artifact of an earlier turn is not printed again.
        let events = [task(TaskState::Working, &["Let me see."]), chunk("a", &[" Rome"], true, true)];
        assert_eq!(text(&events), " Rome\n");
        // After a gap.
        let events = [chunk("a", &["4"], false, false), task(TaskState::Completed, &["4", "2"])];
        assert_eq!(text(&events), "4\n2\n");
    }

    #[test]
    fn words_of_commands_are_quoted() {
        assert_eq!(shell_command(&["a2a", "send", "localhost:8080/geo"]), "a2a send localhost:8080/geo");
        assert_eq!(shell_command(&["a2a", "x; touch y", "a\u{1b}b"]), "a2a 'x; touch y' 'a\\u{1b}b'");
    }

    #[test]
    fn text_of_an_agent_does_not_control_the_terminal() {
        assert_eq!(safe("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\nc");
    }
}
