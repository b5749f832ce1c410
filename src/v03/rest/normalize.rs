//! Bodies of HTTP+JSON as clients of 0.3 write them, made into what the proto file says.
//!
//! That version asked for "structurally equivalent" JSON and printed examples of JSON-RPC (0.3, 3.2.3 and 9), so its
//! clients differ: in the names of members, between `content` and `parts`, and in whether a part says its `kind`. Only
//! what is written otherwise is touched here; the spellings that ProtoJSON has by itself are left to it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use crate::{
    error::Error,
    v03::{
        file_part::FileEncoding,
        json::{BYTES_AND_URI, SCALAR},
    },
};

type Object = Map<String, Value>;

/// Normalizes the parameters of a send: the message and the members beside it.
///
/// # Errors
/// Values that JSON-RPC rejects too, and that the proto decoder would accept.
pub(super) fn send(body: &mut Object, files: FileEncoding) -> Result<(), Error> {
    one(body, "message", &["request", "msg"]);
    if let Some(Value::Object(it)) = body.get_mut("message") {
        message(it, files)?;
    }
    if let Some(Value::Object(it)) = body.get_mut("configuration") {
        one(it, "pushNotification", &["push_notification", "pushNotificationConfig", "push_notification_config"]);
    }
    Ok(())
}

/// A push configuration: the whole request, its one member, that which is in this, or what JSON-RPC has.
pub(super) fn push(body: &mut Object) {
    const INNER: &str = "pushNotificationConfig";
    let mut config = match body.remove("config") {
        Some(Value::Object(it)) => it,
        _ => body.clone(),
    };
    one(&mut config, INNER, &["push_notification_config"]);
    if !config.contains_key(INNER) {
        let inner = std::mem::take(&mut config);
        config.insert(INNER.to_owned(), inner.into());
    }
    body.retain(|name, _| matches!(name.as_str(), "configId" | "config_id" | "parent"));
    body.insert("config".to_owned(), config.into());
}

fn message(it: &mut Object, files: FileEncoding) -> Result<(), Error> {
    if it.get("kind").is_some_and(|kind| !kind.is_null() && kind != "message") {
        return Err(Error::invalid_field("message.kind", "is not `message`"));
    }
    one(it, "content", &["parts"]);
    if let Some(role) = it.get_mut("role") {
        let name = match role.as_str() {
            Some("user") => "ROLE_USER",
            Some("agent") => "ROLE_AGENT",
            _ => "",
        };
        if !name.is_empty() {
            *role = name.into();
        }
    }
    if let Some(Value::Array(parts)) = it.get_mut("content") {
        for (n, it) in parts.iter_mut().enumerate() {
            if let Value::Object(it) = it {
                part(it, files)
                    .map_err(|(path, why)| Error::invalid_field(format!("message.parts[{n}]{path}"), why))?;
            }
        }
    }
    Ok(())
}

/// Path below a part, and what is wrong there.
type Wrong = (&'static str, &'static str);

/// A part that says its `kind` is one of JSON-RPC; 0.2 also had `type`.
fn part(it: &mut Object, files: FileEncoding) -> Result<(), Wrong> {
    let kind = ["kind", "type"].into_iter().find_map(|name| it.get(name)?.as_str().map(str::to_owned));
    match kind.as_deref() {
        Some(kind @ ("text" | "file" | "data")) => {
            it.retain(|name, _| !MEMBERS.contains(&name.as_str()) || name == kind);
        }
        _ => silent(it, &MEMBERS),
    }
    if let Some(Value::Object(it)) = it.get_mut("file") {
        file(it, files)?;
    }
    // Its data is not wrapped once more.
    if kind.is_some()
        && let Some(data) = it.remove("data")
    {
        let data = if data.is_object() {
            data
        } else if !data.is_array() {
            return Err(("", SCALAR));
        } else {
            let marked = it.entry("metadata").or_insert(Value::Null);
            if marked.is_null() {
                *marked = json!({});
            }
            if let Value::Object(marked) = marked {
                marked.insert("data_part_compat".to_owned(), true.into());
            }
            json!({"value": data})
        };
        it.insert("data".to_owned(), json!({"data": data}));
    }
    Ok(())
}

/// The members of a part of which it has one.
const MEMBERS: [&str; 3] = ["text", "file", "data"];

/// The file of a part: JSON-RPC has other names in it, and bytes that are encoded just once.
fn file(it: &mut Object, files: FileEncoding) -> Result<(), Wrong> {
    const BYTES: &str = "fileWithBytes";
    one(it, BYTES, &["file_with_bytes"]);
    one(it, "fileWithUri", &["file_with_uri", "uri"]);
    for name in ["bytes", "data"] {
        let Some(bytes) = it.remove(name) else { continue };
        if it.get(BYTES).is_none_or(says_nothing) {
            // Encoded twice, it can't be mistaken for what it is not.
            let once = bytes.as_str().filter(|it| files == FileEncoding::Encoded && STANDARD.decode(it).is_ok());
            let twice = once.map(|it| STANDARD.encode(it).into());
            it.insert(BYTES.to_owned(), twice.unwrap_or(bytes));
        }
    }
    if [BYTES, "fileWithUri"].iter().all(|name| it.get(*name).is_some_and(|value| !says_nothing(value))) {
        return Err((".file", BYTES_AND_URI));
    }
    only_one(it, &[BYTES, "fileWithUri"]);
    Ok(())
}

/// Puts a member under the name that it should have. Of several the first that says something is taken.
fn one(it: &mut Object, name: &str, others: &[&str]) {
    for other in others {
        let Some(value) = it.remove(*other) else { continue };
        if it.get(name).is_none_or(says_nothing) {
            it.insert(name.to_owned(), value);
        }
    }
}

/// Leaves out those of several members that say nothing, where another does. Two that do are not for us to choose from.
fn silent(it: &mut Object, names: &[&str]) {
    if names.iter().any(|name| it.get(*name).is_some_and(|it| !says_nothing(it))) {
        it.retain(|name, value| !names.contains(&name.as_str()) || !says_nothing(value));
    } else {
        only_one(it, names);
    }
}

/// Leaves one of several members, of which some clients write all: the first that says something.
fn only_one(it: &mut Object, names: &[&str]) {
    let said = |name: &&&str| it.get(**name).is_some_and(|it| !says_nothing(it));
    let there = |name: &&&str| it.contains_key(**name);
    if let Some(kept) = names.iter().find(said).or_else(|| names.iter().find(there)) {
        it.retain(|name, _| !names.contains(&name.as_str()) || name == kept);
    }
}

fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(it) => it.is_empty(),
        Value::Array(it) => it.is_empty(),
        Value::Object(it) => it.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests;
