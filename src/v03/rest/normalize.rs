//! Normalization of 0.3 HTTP+JSON request bodies to the ProtoJSON of `a2a.v1`.
//!
//! 0.3 asks for "structurally equivalent" JSON and has examples of JSON-RPC only (0.3, 3.2.3 and 9). Clients therefore differ
//! in member names, in `content` or `parts`, and in whether a part has a `kind`. Only these differences are changed here; the
//! decoder accepts both camel case and snake case.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use crate::{
    error::Error,
    v03::{
        file_part::FileEncoding,
        json::{BYTES_AND_URI, SCALAR},
        message::{WRAPPED_MARK, WRAPPED_VALUE},
    },
};

type Object = Map<String, Value>;

/// Normalizes the body of a send: the message and its configuration.
///
/// # Errors
/// `InvalidParams` for values that the JSON-RPC binding rejects but the proto decoder would accept.
pub(super) fn send(body: &mut Object, files: FileEncoding) -> Result<(), Error> {
    rename(body, "message", &["request", "msg"]);
    if let Some(Value::Object(message)) = body.get_mut("message") {
        normalize_message(message, files)?;
    }
    if let Some(Value::Object(configuration)) = body.get_mut("configuration") {
        let other_names = ["push_notification", "pushNotificationConfig", "push_notification_config"];
        rename(configuration, "pushNotification", &other_names);
    }
    Ok(())
}

/// Normalizes the body of a request that registers a push configuration.
///
/// Accepts the whole request, its `config` member alone, the `pushNotificationConfig` in that alone, and the parameters of
/// the JSON-RPC method.
pub(super) fn push(body: &mut Object) {
    const INNER: &str = "pushNotificationConfig";
    let mut config = match body.remove("config") {
        Some(Value::Object(config)) => config,
        _ => body.clone(),
    };
    rename(&mut config, INNER, &["push_notification_config"]);
    if !config.contains_key(INNER) {
        let inner = std::mem::take(&mut config);
        config.insert(INNER.to_owned(), inner.into());
    }
    body.retain(|name, _| matches!(name.as_str(), "configId" | "config_id" | "parent"));
    body.insert("config".to_owned(), config.into());
}

fn normalize_message(message: &mut Object, files: FileEncoding) -> Result<(), Error> {
    if message.get("kind").is_some_and(|kind| !kind.is_null() && kind != "message") {
        return Err(Error::invalid_field("message.kind", "must be `message`"));
    }
    rename(message, "content", &["parts"]);
    if let Some(role) = message.get_mut("role") {
        let name = match role.as_str() {
            Some("user") => "ROLE_USER",
            Some("agent") => "ROLE_AGENT",
            _ => "",
        };
        if !name.is_empty() {
            *role = name.into();
        }
    }
    if let Some(Value::Array(parts)) = message.get_mut("content") {
        for (index, part) in parts.iter_mut().enumerate() {
            if let Value::Object(part) = part {
                normalize_part(part, files).map_err(|(path, problem)| {
                    Error::invalid_field(format!("message.parts[{index}]{path}"), problem)
                })?;
            }
        }
    }
    Ok(())
}

/// Field path relative to the part, and the problem of the field.
type PartProblem = (&'static str, &'static str);

/// Normalizes a part. A part with a `kind`, or a `type` as in 0.2, has the form of JSON-RPC.
fn normalize_part(part: &mut Object, files: FileEncoding) -> Result<(), PartProblem> {
    let kind = ["kind", "type"].into_iter().find_map(|name| part.get(name)?.as_str().map(str::to_owned));
    match kind.as_deref() {
        Some(kind @ ("text" | "file" | "data")) => {
            part.retain(|name, _| !CONTENT_MEMBERS.contains(&name.as_str()) || name == kind);
        }
        _ => drop_empty(part, &CONTENT_MEMBERS),
    }
    if let Some(Value::Object(file)) = part.get_mut("file") {
        normalize_file(file, files)?;
    }
    // Only JSON-RPC has the data without a `DataPart` object around it.
    if kind.is_some()
        && let Some(data) = part.remove("data")
    {
        let data = if data.is_object() {
            data
        } else if !data.is_array() {
            return Err(("", SCALAR));
        } else {
            let metadata = part.entry("metadata").or_insert(Value::Null);
            if metadata.is_null() {
                *metadata = json!({});
            }
            if let Value::Object(metadata) = metadata {
                metadata.insert(WRAPPED_MARK.to_owned(), true.into());
            }
            json!({WRAPPED_VALUE: data})
        };
        part.insert("data".to_owned(), json!({"data": data}));
    }
    Ok(())
}

/// Members of a part that exclude each other.
const CONTENT_MEMBERS: [&str; 3] = ["text", "file", "data"];

/// Normalizes the file of a part: JSON-RPC has other member names, and base64 text that is encoded once.
fn normalize_file(file: &mut Object, files: FileEncoding) -> Result<(), PartProblem> {
    const BYTES: &str = "fileWithBytes";
    const URI: &str = "fileWithUri";
    rename(file, BYTES, &["file_with_bytes"]);
    rename(file, URI, &["file_with_uri", "uri"]);
    for name in ["bytes", "data"] {
        let Some(bytes) = file.remove(name) else { continue };
        if file.get(BYTES).is_none_or(is_empty) {
            // Encoded a second time, since the conversion to 1.0 decodes contents that look like base64.
            let encoded = bytes.as_str().filter(|text| files == FileEncoding::Encoded && STANDARD.decode(text).is_ok());
            let encoded_twice = encoded.map(|text| STANDARD.encode(text).into());
            file.insert(BYTES.to_owned(), encoded_twice.unwrap_or(bytes));
        }
    }
    if [BYTES, URI].iter().all(|name| file.get(*name).is_some_and(|value| !is_empty(value))) {
        return Err((".file", BYTES_AND_URI));
    }
    keep_one(file, &[BYTES, URI]);
    Ok(())
}

/// Moves the value of the other names to `name`. The first value that is not empty is kept.
fn rename(object: &mut Object, name: &str, other_names: &[&str]) {
    for other_name in other_names {
        let Some(value) = object.remove(*other_name) else { continue };
        if object.get(name).is_none_or(is_empty) {
            object.insert(name.to_owned(), value);
        }
    }
}

/// Removes the empty ones of `names` if any is not empty, else all but one. Several that are not empty are left for the
/// decoder to reject.
fn drop_empty(object: &mut Object, names: &[&str]) {
    if names.iter().any(|name| object.get(*name).is_some_and(|value| !is_empty(value))) {
        object.retain(|name, value| !names.contains(&name.as_str()) || !is_empty(value));
    } else {
        keep_one(object, names);
    }
}

/// Keeps one of `names`, since some clients send all of them: the first that is not empty, else the first.
fn keep_one(object: &mut Object, names: &[&str]) {
    let is_set = |name: &&&str| object.get(**name).is_some_and(|value| !is_empty(value));
    let is_present = |name: &&&str| object.contains_key(**name);
    if let Some(kept) = names.iter().find(is_set).or_else(|| names.iter().find(is_present)) {
        object.retain(|name, _| !names.contains(&name.as_str()) || name == kept);
    }
}

/// Returns whether the value is null, or an empty string, array or object.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests;
