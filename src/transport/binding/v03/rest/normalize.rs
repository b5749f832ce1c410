//! Normalization of 0.3 HTTP+JSON request bodies to the ProtoJSON of `a2a.v1`.
//!
//! 0.3 asks for "structurally equivalent" JSON and has examples of JSON-RPC only (0.3, 3.2.3 and 9). Clients therefore differ
//! in member names, in `content` or `parts`, and in whether a part has a `kind`. Only these differences are changed here; the
//! decoder accepts both camel case and snake case.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use crate::protocol::{
    Error,
    json::is_empty,
    v03::{
        file_encoding::FileEncoding,
        json::{BYTES_AND_URI, SCALAR},
        message::{WRAPPED_MARK, WRAPPED_VALUE},
    },
};

type Object = Map<String, Value>;

/// Normalizes the body of a send: the message and its configuration.
///
/// # Errors
/// `InvalidParams` for values that the JSON-RPC binding rejects but the proto decoder would accept.
pub(crate) fn send(body: &mut Object, files: FileEncoding) -> Result<(), Error> {
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
pub(crate) fn push(body: &mut Object) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(body: Value, normalize: impl FnOnce(&mut Object)) -> Value {
        let Value::Object(mut body) = body else { panic!("{body}") };
        normalize(&mut body);
        body.into()
    }

    fn normalized_send(body: Value) -> Value {
        normalized(body, |body| send(body, FileEncoding::Encoded).unwrap())
    }

    fn normalized_push(body: Value) -> Value {
        normalized(body, push)
    }

    fn normalized_part(part: &Value) -> Value {
        let body = json!({"message": {"content": [part]}});
        normalized_send(body)["message"]["content"][0].take()
    }

    #[test]
    fn valid_proto_json_is_unchanged() {
        let body = json!({
            "message": {"messageId": "m", "role": "ROLE_USER", "content": [
                {"text": "hi", "metadata": {"k": 1}},
                {"file": {"fileWithBytes": "YUdWc2JHOD0=", "name": "a.txt", "mimeType": "text/plain"}},
                {"file": {"fileWithUri": "https://x/y.png"}},
                {"data": {"data": {"a": 1}}},
            ]},
            "configuration": {"blocking": false, "pushNotification": {"url": "u"}},
            "metadata": {"message": {"parts": []}},
        });
        assert_eq!(normalized_send(body.clone()), body);
        let body = json!({"configId": "c", "config": {"name": "n", "pushNotificationConfig": {"url": "u"}}});
        assert_eq!(normalized_push(body.clone()), body);
        for body in [json!({}), json!({"message": null}), json!({"message": 1, "configuration": "x"})] {
            assert_eq!(normalized_send(body.clone()), body);
        }
    }

    #[test]
    fn message_is_found_under_each_of_its_names() {
        let message = json!({"messageId": "m", "content": [{"text": "hi"}]});
        for body in [
            json!({"message": message}),
            json!({"request": message}),
            json!({"msg": message}),
            json!({"message": null, "request": message}),
            json!({"message": message, "msg": {"messageId": "other"}}),
            json!({"message": {"kind": "message", "messageId": "m", "parts": [{"text": "hi"}]}}),
            json!({"message": {"messageId": "m", "content": [], "parts": [{"text": "hi"}]}}),
        ] {
            let mut found = normalized_send(body.clone());
            found["message"].as_object_mut().unwrap().remove("kind");
            assert_eq!(found, json!({"message": message}), "{body}");
        }
        for (name, role) in [("user", "ROLE_USER"), ("agent", "ROLE_AGENT"), ("ROLE_USER", "ROLE_USER"), ("x", "x")] {
            assert_eq!(normalized_send(json!({"message": {"role": name}}))["message"]["role"], role);
        }
        assert_eq!(normalized_send(json!({"message": {"role": 1}}))["message"]["role"], 1);
    }

    /// The decoder reads an unset `blocking` as false.
    #[test]
    fn blocking_is_unchanged() {
        for configuration in [json!({}), json!({"blocking": null, "historyLength": 1}), json!({"blocking": true})] {
            let body = json!({"configuration": configuration});
            assert_eq!(normalized_send(body.clone()), body);
        }
        for name in ["pushNotification", "push_notification", "pushNotificationConfig", "push_notification_config"] {
            let body = normalized_send(json!({"configuration": {name: {"url": "u"}}}));
            assert_eq!(body, json!({"configuration": {"pushNotification": {"url": "u"}}}), "{name}");
        }
    }

    #[test]
    fn messages_that_json_rpc_rejects_are_rejected() {
        let part = |part: Value| json!({"message": {"parts": [{"text": "a"}, part]}});
        for (body, field) in [
            (json!({"message": {"kind": "task", "parts": [{"text": "a"}]}}), "message.kind"),
            (json!({"request": {"kind": 7, "content": []}}), "message.kind"),
            (part(json!({"file": {"uri": "u", "bytes": "aGk="}})), "message.parts[1].file"),
            (
                part(json!({"kind": "file", "file": {"fileWithUri": "u", "fileWithBytes": "aGk="}})),
                "message.parts[1].file",
            ),
            (part(json!({"kind": "data", "data": 7})), "message.parts[1]"),
            (part(json!({"kind": "data", "data": "text"})), "message.parts[1]"),
            (part(json!({"kind": "data", "data": false})), "message.parts[1]"),
        ] {
            let Value::Object(mut object) = body.clone() else { panic!("{body}") };
            let error = send(&mut object, FileEncoding::Encoded).unwrap_err();
            assert_eq!(error.violations()[0].field, field, "{body}");
        }
    }

    #[test]
    fn parts_of_other_formats_are_normalized() {
        let encoded_twice = "YUdWc2JHOD0=";
        for (part, expected) in [
            (json!({"kind": "text", "text": "hi"}), json!({"kind": "text", "text": "hi"})),
            (json!({"type": "text", "text": "hi", "file": null}), json!({"type": "text", "text": "hi"})),
            (
                json!({"kind": "data", "data": {"data": {"a": 1}}}),
                json!({"kind": "data", "data": {"data": {"data": {"a": 1}}}}),
            ),
            (
                json!({"kind": "data", "data": [1], "metadata": null}),
                json!({"kind": "data", "data": {"data": {"value": [1]}}, "metadata": {"data_part_compat": true}}),
            ),
            // Encoded once, as in JSON-RPC and in 0.2.
            (
                json!({"file": {"bytes": "aGVsbG8=", "mimeType": "a/b"}}),
                json!({"file": {"fileWithBytes": encoded_twice, "mimeType": "a/b"}}),
            ),
            (
                json!({"kind": "file", "file": {"data": "aGVsbG8="}}),
                json!({"kind": "file", "file": {"fileWithBytes": encoded_twice}}),
            ),
            (json!({"file": {"bytes": "_-8"}}), json!({"file": {"fileWithBytes": "_-8"}})),
            (json!({"file": {"uri": "u", "name": "n"}}), json!({"file": {"fileWithUri": "u", "name": "n"}})),
            // Both members, one of them empty.
            (
                json!({"file": {"file_with_uri": "", "file_with_bytes": "aGk="}}),
                json!({"file": {"fileWithBytes": "aGk="}}),
            ),
            (json!({"file": {"file_with_uri": "u", "file_with_bytes": ""}}), json!({"file": {"fileWithUri": "u"}})),
            (json!({"file": {"fileWithUri": "", "fileWithBytes": ""}}), json!({"file": {"fileWithBytes": ""}})),
            (json!({"text": "", "file": {"uri": "u"}}), json!({"file": {"fileWithUri": "u"}})),
            (json!({"text": "", "data": null}), json!({"text": ""})),
            (json!("text"), json!("text")),
        ] {
            assert_eq!(normalized_part(&part), expected, "{part}");
        }
    }

    #[test]
    fn push_configuration_is_found_in_each_form_of_the_body() {
        let inner = json!({"id": "p", "url": "u"});
        for body in [
            json!({"pushNotificationConfig": inner}),
            json!({"push_notification_config": inner}),
            json!({"parent": "tasks/t", "config": {"push_notification_config": inner}}),
            json!({"config": {"pushNotificationConfig": inner}, "pushNotificationConfig": {"url": "other"}}),
            json!({"config": inner}),
            json!({"taskId": "t", "pushNotificationConfig": inner}),
            inner.clone(),
        ] {
            let normalized = normalized_push(body.clone());
            assert_eq!(normalized["config"]["pushNotificationConfig"], inner, "{body}");
        }
        let named = normalized_push(json!({"name": "n", "pushNotificationConfig": inner, "config_id": "c"}));
        assert_eq!((&named["config"]["name"], &named["config_id"]), (&json!("n"), &json!("c")));
    }
}
