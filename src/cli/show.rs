//! Output of the commands that call a remote agent, as text and as JSON.

use std::fmt::Write as _;

use clap::ValueEnum;
use serde::Serialize;

use crate::{
    client::StreamEvent,
    clock,
    pb::v1::{
        AgentCard, Artifact, ListTasksResponse, Message, Part, Role, Task, TaskPushNotificationConfig, TaskState,
        TaskStatus,
    },
    report::write_escaped,
    v03::json::EnumNames as _,
};

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
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

fn json(value: &impl Serialize, format: Format) -> anyhow::Result<String> {
    let json =
        if format == Format::Jsonl { serde_json::to_string(value)? } else { serde_json::to_string_pretty(value)? };
    Ok(format!("{json}\n"))
}

/// Formats a task.
pub(super) fn task(task: &Task, format: Format) -> anyhow::Result<String> {
    if format != Format::Text {
        return json(task, format);
    }
    let mut text = head(task);
    if !task.artifacts.is_empty() {
        text.push_str("Artifacts:\n");
        task.artifacts.iter().for_each(|artifact| text.push_str(&artifact_line(artifact)));
    }
    if !task.history.is_empty() {
        text.push_str("History:\n");
        for message in &task.history {
            _ = writeln!(text, "  [{}] {}", role(message), safe(&parts(&message.parts)));
        }
    }
    Ok(text)
}

fn head(task: &Task) -> String {
    let time = task.status.as_ref().and_then(|status| status.timestamp.as_ref()).map(clock::millis);
    let time = time.and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    let time = time.map(|time| format!(" ({time})")).unwrap_or_default();
    let mut text = format!("Task:     {}\nContext:  {}\n", safe(&task.id), safe(&task.context_id));
    _ = writeln!(text, "Status:   {}{time}", state(task.state()));
    let message = task.status.as_ref().and_then(|status| status.message.as_ref());
    if let Some(message) = message {
        _ = writeln!(text, "Message:  {}", safe(&parts(&message.parts)));
    }
    text
}

/// Formats a message of an agent that keeps no task.
pub(super) fn message(message: &Message, format: Format) -> anyhow::Result<String> {
    if format != Format::Text {
        return json(message, format);
    }
    Ok(format!("{}\n", safe(&parts(&message.parts))))
}

/// Formats an event of a stream.
pub(super) fn event(event: &StreamEvent, format: Format) -> anyhow::Result<String> {
    match (format, event.to_response()) {
        (Format::Json | Format::Jsonl, Some(response)) => return json(&response, format),
        (Format::Json | Format::Jsonl, None) => return Ok(String::new()),
        (Format::Text, _) => {}
    }
    Ok(match event {
        StreamEvent::Task(found) => task(found, format)?,
        StreamEvent::Status(update) => status_line(update.status.as_ref()),
        StreamEvent::Artifact(update) => update.artifact.as_ref().map(artifact_line).unwrap_or_default(),
        StreamEvent::Message(found) => message(found, format)?,
        StreamEvent::Gap => "[connection lost: events may be missing here]\n".to_owned(),
    })
}

/// Formats an event of a conversation: the text of the agent, and states that the user has to know of.
pub(super) fn answer(event: &StreamEvent, format: Format) -> anyhow::Result<String> {
    if format != Format::Text {
        return self::event(event, format);
    }
    let status = |status: Option<&TaskStatus>| {
        let state = status.map_or(TaskState::Unspecified, TaskStatus::state);
        let message = status.and_then(|status| status.message.as_ref());
        match (state, message) {
            (TaskState::Submitted | TaskState::Working | TaskState::Completed, None) => String::new(),
            (_, Some(message)) => format!("{}\n", safe(&parts(&message.parts))),
            (state, None) => format!("[{}]\n", self::state(state)),
        }
    };
    Ok(match event {
        StreamEvent::Task(task) => status(task.status.as_ref()),
        StreamEvent::Status(update) => status(update.status.as_ref()),
        StreamEvent::Artifact(update) => {
            let shown = update.artifact.as_ref().map(|artifact| safe(&parts(&artifact.parts)));
            shown.map(|text| if text.ends_with('\n') { text } else { format!("{text}\n") }).unwrap_or_default()
        }
        StreamEvent::Message(_) | StreamEvent::Gap => self::event(event, format)?,
    })
}

fn status_line(status: Option<&TaskStatus>) -> String {
    let name = state(status.map_or(TaskState::Unspecified, TaskStatus::state));
    let message = status.and_then(|status| status.message.as_ref());
    let text = message.map(|message| format!(": {}", safe(&parts(&message.parts)))).unwrap_or_default();
    format!("[status] {name}{text}\n")
}

fn artifact_line(artifact: &Artifact) -> String {
    let name = if artifact.name.is_empty() { &artifact.artifact_id } else { &artifact.name };
    let text = parts(&artifact.parts);
    format!("  [{}] {}\n", safe(name), safe(text.trim_end_matches('\n')))
}

/// Formats a page of tasks as a table, the first one with a head.
pub(super) fn page(page: &ListTasksResponse, format: Format, is_first: bool) -> anyhow::Result<String> {
    if format != Format::Text {
        return json(page, format);
    }
    let mut text = if is_first { format!("{:<36}  {:<14}  CONTEXT\n", "ID", "STATUS") } else { String::new() };
    for task in &page.tasks {
        _ = writeln!(text, "{:<36}  {:<14}  {}", safe(&task.id), state(task.state()), safe(&task.context_id));
    }
    if !page.next_page_token.is_empty() {
        _ = writeln!(text, "More tasks: --page-token {}", safe(&page.next_page_token));
    }
    Ok(text)
}

/// Formats an agent card.
pub(super) fn card(card: &AgentCard, format: Format) -> anyhow::Result<String> {
    if format != Format::Text {
        return json(card, format);
    }
    let streaming = card.capabilities.as_ref().and_then(|capabilities| capabilities.streaming).unwrap_or_default();
    let mut text = String::new();
    _ = writeln!(text, "Name:         {}", safe(&card.name));
    _ = writeln!(text, "Description:  {}", safe(&card.description));
    _ = writeln!(text, "Version:      {}", safe(&card.version));
    text.push_str("Interfaces:\n");
    for interface in &card.supported_interfaces {
        let (binding, version) = (safe(&interface.protocol_binding), safe(&interface.protocol_version));
        _ = writeln!(text, "  {binding} {version} {}", safe(&interface.url));
    }
    _ = writeln!(text, "Streaming:    {}", if streaming { "yes" } else { "no" });
    if !card.skills.is_empty() {
        text.push_str("Skills:\n");
        for skill in &card.skills {
            _ = writeln!(text, "  [{}] {}", safe(&skill.id), safe(&skill.description));
        }
    }
    Ok(text)
}

/// Formats push notification configurations.
pub(super) fn configs(configs: &[TaskPushNotificationConfig], format: Format) -> anyhow::Result<String> {
    let mut text = String::new();
    for config in configs {
        match format {
            Format::Text => _ = writeln!(text, "{}  {}", safe(&config.id), safe(&config.url)),
            Format::Json | Format::Jsonl => text.push_str(&json(config, format)?),
        }
    }
    Ok(text)
}

fn role(message: &Message) -> &'static str {
    match message.role() {
        Role::User => "user",
        Role::Agent => "agent",
        Role::Unspecified => "unspecified",
    }
}

fn parts(parts: &[Part]) -> String {
    parts.iter().map(|part| part.to_text().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Escapes control characters other than line feeds, so that the text of an agent does not control the terminal.
fn safe(text: &str) -> String {
    let mut lines = text.split('\n').map(|line| {
        let mut escaped = String::new();
        _ = write_escaped(&mut escaped, line, false);
        escaped
    });
    let first = lines.next().unwrap_or_default();
    lines.fold(first, |text, line| format!("{text}\n{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_states_are_accepted_in_all_forms() {
        for text in ["input-required", "INPUT_REQUIRED", "TASK_STATE_INPUT_REQUIRED"] {
            assert_eq!(parse_state(text), Ok(TaskState::InputRequired), "{text}");
        }
        assert!(parse_state("done").is_err());
        assert_eq!(state(TaskState::AuthRequired), "auth-required");
    }

    #[test]
    fn text_of_an_agent_does_not_control_the_terminal() {
        assert_eq!(safe("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\nc");
    }
}
