//! Messages of a conversation in the form of a chat completions API.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::protocol::pb::v1::{Message, Part, Role, Task, part::Content};

/// Metadata key of messages of the agent with a tool call that awaits its approval.
pub(super) const TOOL_CALL: &str = "toolCall";

/// Metadata key of messages of the agent with a question of the model.
pub(super) const QUESTION: &str = "question";

/// Returns the metadata of a tool call or a question, if a message of the agent has one.
pub(super) fn prompt(message: &Message) -> Option<Value> {
    let fields = &message.metadata.as_ref()?.fields;
    let value = fields.get(TOOL_CALL).or_else(|| fields.get(QUESTION))?;
    serde_json::to_value(value).ok()
}

/// Error for a part that the model does not support. Its text is sent to the client, as the reason why the message is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unsupported(pub(super) String);

/// Returns a message of the user with the parts of several messages.
///
/// # Errors
/// A part is neither text, data nor an image.
pub(super) fn user_message<'m>(messages: impl Iterator<Item = &'m Message>) -> Result<Value, Unsupported> {
    let parts = messages.flat_map(|message| &message.parts);
    let pieces: Vec<Value> = parts.map(piece).collect::<Result<_, _>>()?;
    Ok(json!({ "role": "user", "content": content(pieces) }))
}

/// Checks that messages have no images at URLs.
pub(super) fn reject_image_urls<'m>(mut messages: impl Iterator<Item = &'m Message>) -> Result<(), Unsupported> {
    let is_image_url = |part: &Part| {
        matches!(part.content, Some(Content::Url(_))) && part.media_type.to_ascii_lowercase().starts_with("image/")
    };
    if messages.any(|message| message.parts.iter().any(is_image_url)) {
        return Err(Unsupported("The agent does not load images from URLs; send their content.".to_owned()));
    }
    Ok(())
}

/// Returns a message of the user with those parts that a model can get.
fn earlier_user_message<'m>(messages: impl Iterator<Item = &'m Message>) -> Value {
    let pieces = messages.flat_map(|message| &message.parts).filter_map(|part| piece(part).ok()).collect();
    json!({ "role": "user", "content": content(pieces) })
}

/// Returns an answer of the model.
pub(super) fn assistant_message(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

/// Joins text to one string, which all endpoints accept. Content with images is a list.
fn content(pieces: Vec<Value>) -> Value {
    let texts: Option<Vec<&str>> = pieces.iter().map(|piece| piece["text"].as_str()).collect();
    if let Some(texts) = texts { texts.join("\n").into() } else { Value::Array(pieces) }
}

/// Returns the content of a part in the form of the API: a text or an image.
fn piece(part: &Part) -> Result<Value, Unsupported> {
    let text = |text: &str| Ok(json!({ "type": "text", "text": text }));
    let image = |url: &str| Ok(json!({ "type": "image_url", "image_url": { "url": url } }));
    let media_type = part.media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_image = media_type.starts_with("image/");
    match &part.content {
        None => text(""),
        Some(Content::Text(content)) => text(content),
        Some(Content::Data(_)) => text(&part.to_text()),
        Some(Content::Raw(bytes)) if is_image => image(&format!("data:{media_type};base64,{}", STANDARD.encode(bytes))),
        Some(Content::Raw(bytes)) if is_text(&media_type) => {
            let file = std::str::from_utf8(bytes);
            let file = file.map_err(|_| Unsupported(format!("A file of type {media_type} is not UTF-8.")))?;
            let name = part.filename.replace(char::is_control, " ");
            let heading = if name.is_empty() { String::new() } else { format!("File {name}:\n") };
            text(&(heading + file))
        }
        // An endpoint on this machine could read other URLs for the client, such as those of files.
        Some(Content::Url(url)) if is_image && (url.starts_with("https://") || url.starts_with("http://")) => {
            image(url)
        }
        Some(Content::Url(_)) if is_image => {
            Err(Unsupported("The URL of an image must begin with https:// or http://.".to_owned()))
        }
        Some(Content::Url(_)) => Err(Unsupported(format!(
            "The agent does not read URLs of files{}; send the content. Images can have a URL.",
            named(&media_type)
        ))),
        Some(Content::Raw(_)) => Err(Unsupported(format!(
            "The agent does not support files{}; send text, JSON data, text files or images.",
            named(&media_type)
        ))),
    }
}

fn named(media_type: &str) -> String {
    let is_control = |c: char| c.is_control();
    match media_type {
        "" => " without a media type".to_owned(),
        media_type => format!(" of type {}", media_type.replace(is_control, " ")),
    }
}

/// Media types besides `text/…` whose files are text.
const TEXT_TYPES: [&str; 9] = [
    "application/json",
    "application/jsonl",
    "application/x-ndjson",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/javascript",
    "application/sql",
];

fn is_text(media_type: &str) -> bool {
    let is_structured = media_type.ends_with("+json") || media_type.ends_with("+xml") || media_type.ends_with("+yaml");
    media_type.starts_with("text/") || is_structured || TEXT_TYPES.contains(&media_type)
}

/// Returns the conversation in a task: its messages, and its artifacts as the last answer.
pub(super) fn task_messages(task: &Task) -> Vec<Value> {
    let status = task.status.iter().flat_map(|status| &status.message);
    with_answer(history_messages(task.history.iter().chain(status)), task)
}

/// Adds the artifacts of a task to its messages.
pub(super) fn with_answer(mut messages: Vec<Value>, task: &Task) -> Vec<Value> {
    let texts = task.artifacts.iter().flat_map(|artifact| &artifact.parts).filter_map(Part::as_text);
    let answer: String = texts.collect();
    if !answer.is_empty() {
        messages.push(assistant_message(&answer));
    }
    messages
}

/// Returns messages of the client, and those of the agent that are part of the conversation. Consecutive messages of the
/// client are joined, because some models require alternating roles.
pub(super) fn history_messages<'m>(messages: impl Iterator<Item = &'m Message>) -> Vec<Value> {
    let mut found = Vec::new();
    let mut pending: Vec<&Message> = Vec::new();
    for message in messages {
        if message.role() == Role::User {
            pending.push(message);
        } else if prompt(message).is_some() {
            if !pending.is_empty() {
                found.push(earlier_user_message(pending.drain(..)));
            }
            found.push(assistant_message(&message.text()));
        }
    }
    if !pending.is_empty() {
        found.push(earlier_user_message(pending.into_iter()));
    }
    found
}

/// Selects the newest tasks of a conversation that have at most this number of messages and this size, given their messages from
/// the oldest to the newest. Tasks that have no answer are omitted.
pub(super) fn select(tasks: Vec<Vec<Value>>, max_messages: usize, max_bytes: usize) -> Vec<Value> {
    let (mut count, mut bytes) = (0, 0);
    let is_answered = |messages: &Vec<Value>| messages.last().is_some_and(|message| message["role"] == "assistant");
    let fits = |messages: &Vec<Value>| {
        count += messages.len();
        bytes += messages.iter().map(|message| message.to_string().len()).sum::<usize>();
        count <= max_messages && bytes <= max_bytes
    };
    let mut selected: Vec<_> = tasks.into_iter().rev().filter(is_answered).take_while(fits).collect();
    selected.reverse();
    selected.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::pb::v1::{Artifact, TaskStatus};

    fn message(parts: Vec<Part>) -> Message {
        Message { parts, ..Message::user("") }
    }

    fn sent(parts: Vec<Part>) -> Result<Value, Unsupported> {
        Ok(user_message([message(parts)].iter())?["content"].take())
    }

    #[test]
    fn parts_become_text_and_images() {
        let data = Part::data(&json!({ "a": 1 })).unwrap();
        let file = Part::bytes("x,y", "text/csv; charset=utf-8").named("a.csv");
        assert_eq!(sent(vec![Part::text("Hi"), data, file]).unwrap(), "Hi\n{\"a\":1}\nFile a.csv:\nx,y");
        let images = vec![Part::bytes("\x01", "IMAGE/PNG"), Part::url("https://e.example/a", "image/jpeg")];
        assert_eq!(
            sent(images).unwrap(),
            json!([
                { "type": "image_url", "image_url": { "url": "data:image/png;base64,AQ==" } },
                { "type": "image_url", "image_url": { "url": "https://e.example/a" } },
            ])
        );
        for (part, expected) in [
            (Part::bytes("%PDF", "application/pdf"), "files of type application/pdf;"),
            (Part::bytes("x", ""), "files without a media type;"),
            (Part::bytes(b"\xff".to_vec(), "text/plain"), "type text/plain is not UTF-8"),
            (Part::url("https://e.example/a", "text/plain"), "URLs of files of type text/plain;"),
            (Part::url("file:///etc/passwd", "image/png"), "must begin with https://"),
        ] {
            let Unsupported(text) = sent(vec![Part::text("Read"), part]).unwrap_err();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn tasks_are_conversations() {
        let asked = Message::agent("May I?").with_detail(TOOL_CALL, "x");
        let status = TaskStatus { message: Some(Message::agent("Running")), ..TaskStatus::default() };
        let artifact = Artifact { parts: vec![Part::text("4"), Part::text("2")], ..Artifact::default() };
        let task = Task {
            history: vec![
                Message::user("a"),
                Message::user("b"),
                Message::agent("Running"),
                asked,
                Message::user("yes"),
            ],
            status: Some(status),
            artifacts: vec![artifact],
            ..Task::default()
        };
        let roles = ["user", "assistant", "user", "assistant"];
        let texts = ["a\nb", "May I?", "yes", "42"];
        let expected: Vec<_> =
            roles.iter().zip(texts).map(|(role, text)| json!({ "role": role, "content": text })).collect();
        assert_eq!(task_messages(&task), expected);
    }

    #[test]
    fn newest_answered_tasks_are_selected() {
        let task = |text: &str| vec![json!({ "role": "user", "content": text }), assistant_message(text)];
        let tasks = || vec![task("1"), task("2"), vec![json!({ "role": "user", "content": "?" })], task("3")];
        let select = |messages, bytes| select(tasks(), messages, bytes);
        assert_eq!(select(50, 10_000), [task("1"), task("2"), task("3")].concat());
        assert_eq!(select(5, 10_000), [task("2"), task("3")].concat());
        assert_eq!(select(50, 100), task("3"));
        assert!(select(0, 100).is_empty());
    }
}
