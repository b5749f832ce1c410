//! Messages from the command line: text, files, data, and whole messages in JSON.

use std::{
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;

use super::{Usage, read_file, read_limited};
use crate::protocol::{
    message::file_name::media_type_of,
    pb::v1::{Message, Part, Role, SendMessageConfiguration, SendMessageRequest},
};

/// Maximum size of an attached file or of a message from a file, in bytes.
const MAX_FILE: usize = 64 << 20;

/// Flags with the content of a message.
#[derive(Debug, Args)]
#[command(next_help_heading = "Message")]
pub(super) struct MessageFlags {
    /// Text of the message: `@FILE` reads a file, `-` reads stdin, also without any message.
    #[arg(help_heading = None::<&'static str>)]
    message: Option<String>,
    /// Context to continue.
    #[arg(long, value_name = "ID")]
    context: Option<String>,
    /// Task to continue.
    #[arg(long, value_name = "ID")]
    task: Option<String>,
    /// File to send as a part of the message. May be repeated.
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,
    /// Data to send as a part of the message: JSON, or `@FILE`. May be repeated.
    #[arg(long, value_name = "JSON", hide_short_help = true)]
    data: Vec<String>,
    /// File with a Message in JSON.
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["message", "json", "parts"], hide_short_help = true)]
    file: Option<PathBuf>,
    /// Message in JSON, for scripts of the official command line. Without a message, `--json` is `-o json`.
    #[arg(long, value_name = "MESSAGE", conflicts_with_all = ["message", "parts"], hide_short_help = true)]
    json: Option<String>,
    /// Array of parts in JSON.
    #[arg(long, value_name = "ARRAY", conflicts_with = "message", hide_short_help = true)]
    parts: Option<String>,
}

impl MessageFlags {
    /// Returns true if the flags give no message.
    pub(super) fn is_empty(&self) -> bool {
        let Self { message, context, task, attach, data, file, json, parts } = self;
        let texts = [message, context, task, json, parts];
        texts.iter().all(|text| text.is_none()) && file.is_none() && attach.is_empty() && data.is_empty()
    }

    /// Returns the request that sends the message.
    ///
    /// # Errors
    /// A file can't be read, JSON is invalid, or the message is empty.
    pub(super) fn request(&self, configuration: SendMessageConfiguration) -> anyhow::Result<SendMessageRequest> {
        let mut message = if let Some(path) = &self.file {
            parse_message(&read_text(path)?, &path.display().to_string())?
        } else if let Some(json) = &self.json {
            parse_message(json, "--json")?
        } else if let Some(parts) = &self.parts {
            let parts = serde_json::from_str(parts).map_err(|e| Usage(format!("--parts: {e}")))?;
            Message { parts, role: Role::User.into(), ..Message::default() }
        } else {
            let has_other_parts = !self.attach.is_empty() || !self.data.is_empty();
            let stdin = || (!has_other_parts && !io::stdin().is_terminal()).then_some("-");
            let text = self.message.as_deref().or_else(stdin).map(text_argument).transpose()?;
            // An empty text that is an argument is meant.
            let text = text.filter(|text| !text.is_empty() || self.message.as_ref().is_some_and(String::is_empty));
            let parts = text.map(Part::text).into_iter().collect();
            Message { parts, role: Role::User.into(), ..Message::default() }
        };
        for path in &self.attach {
            message.parts.push(attachment(path)?);
        }
        for data in &self.data {
            let data: Value = serde_json::from_str(&text_argument(data)?).map_err(|e| Usage(format!("--data: {e}")))?;
            message.parts.push(Part::data(&data)?);
        }
        if message.parts.is_empty() {
            bail!(Usage("the message is empty: give a text, --attach, --data, --parts or --file".to_owned()));
        }
        for (id, field) in [(&self.context, &mut message.context_id), (&self.task, &mut message.task_id)] {
            if let Some(id) = id {
                field.clone_from(id);
            }
        }
        let mut request = SendMessageRequest::from(message);
        request.configuration = Some(configuration);
        Ok(request)
    }
}

fn parse_message(json: &str, origin: &str) -> anyhow::Result<Message> {
    let mut message: Message = serde_json::from_str(json).map_err(|e| Usage(format!("{origin}: {e}")))?;
    if message.role() == Role::Unspecified {
        message.role = Role::User.into();
    }
    Ok(message)
}

/// Returns the text of an argument: itself, the contents of a file (`@FILE`), or stdin (`-`).
fn text_argument(argument: &str) -> anyhow::Result<String> {
    if argument == "-" {
        let text = read_limited(io::stdin().lock(), MAX_FILE, "stdin")?;
        let text = String::from_utf8(text).context("stdin is not UTF-8")?;
        return Ok(text.trim_end_matches(['\r', '\n']).to_owned());
    }
    match argument.strip_prefix('@') {
        Some(path) => read_text(Path::new(path)),
        None => Ok(argument.to_owned()),
    }
}

fn read_text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(read_file(path, MAX_FILE)?).with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Returns a file as a part, with a media type for its extension.
pub(super) fn attachment(path: &Path) -> anyhow::Result<Part> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Part::bytes(read_file(path, MAX_FILE)?, media_type_of(path)).named(name))
}
