//! Comparison of a reply with a printed example, with ids and times as placeholders.

use std::collections::HashMap;

use serde_json::Value;

/// Members with ids, which differ in each run.
const ID_MEMBERS: [&str; 5] = ["id", "taskId", "contextId", "messageId", "artifactId"];

/// Members that a reply may have in addition, because the printed examples omit what 0.3 requires or allows.
const OPTIONAL_MEMBERS: [&str; 9] =
    ["kind", "role", "messageId", "taskId", "contextId", "timestamp", "history", "artifacts", "pushNotificationConfig"];

/// Printed ids, with the ids of this run.
#[derive(Default)]
pub(super) struct IdMap(HashMap<String, String>);

impl IdMap {
    /// Replaces printed ids in a request by the ids of earlier replies.
    pub(super) fn substitute(&self, request: &mut Value) {
        match request {
            Value::Object(members) => {
                for (name, value) in members {
                    match value.as_str().filter(|_| ID_MEMBERS.contains(&name.as_str())).and_then(|id| self.0.get(id)) {
                        Some(known) => *value = known.as_str().into(),
                        None => self.substitute(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.substitute(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Returns the first difference between a reply and the printed one. Equal printed ids stand for equal ids, times for
    /// times, `"..."` for anything, and an empty optional member may be missing.
    pub(super) fn compare(&mut self, path: &str, printed: &Value, actual: &Value) -> Result<(), String> {
        let difference = || Err(format!("{path}: {actual} is not {printed}"));
        match (printed, actual) {
            (Value::String(text), _) if text == "..." => Ok(()),
            (Value::Object(printed), Value::Object(actual)) => {
                for (name, printed) in printed {
                    let path = format!("{path}/{name}");
                    match actual.get(name) {
                        Some(actual) if ID_MEMBERS.contains(&name.as_str()) && !is_envelope(&path) => {
                            self.compare_id(&path, printed, actual)?;
                        }
                        Some(Value::String(time)) if name == "timestamp" => {
                            if !(time.ends_with('Z') && time.len() == "2026-01-01T00:00:00.000Z".len()) {
                                return Err(format!("{path}: {time} is not a UTC time with milliseconds"));
                            }
                        }
                        Some(actual) => self.compare(&path, printed, actual)?,
                        None if is_empty(printed) => {}
                        None => return Err(format!("{path}: {printed} is missing")),
                    }
                }
                match actual
                    .keys()
                    .find(|name| !printed.contains_key(*name) && !OPTIONAL_MEMBERS.contains(&name.as_str()))
                {
                    Some(name) => Err(format!("{path}/{name}: {} is not printed", actual[name])),
                    None => Ok(()),
                }
            }
            (Value::Array(printed), Value::Array(actual)) if printed.len() == actual.len() => {
                let mut pairs = printed.iter().zip(actual).enumerate();
                pairs.try_for_each(|(n, (printed, actual))| self.compare(&format!("{path}/{n}"), printed, actual))
            }
            (Value::Number(printed), Value::Number(actual)) if printed.as_f64() == actual.as_f64() => Ok(()),
            (printed, actual) if printed == actual => Ok(()),
            _ => difference(),
        }
    }

    fn compare_id(&mut self, path: &str, printed: &Value, actual: &Value) -> Result<(), String> {
        let (Some(printed), Some(actual)) = (printed.as_str(), actual.as_str()) else {
            return Err(format!("{path}: {actual} is not an id"));
        };
        if printed == "..." && !actual.is_empty() {
            return Ok(());
        }
        let known = self.0.entry(printed.to_owned()).or_insert_with(|| actual.to_owned());
        if known == actual { Ok(()) } else { Err(format!("{path}: {actual} was {known} before")) }
    }
}

/// Returns whether the path is that of a JSON-RPC id: of a reply, or of an event in a list.
fn is_envelope(path: &str) -> bool {
    path == "/id" || path.strip_suffix("/id").is_some_and(|index| index[1..].bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_empty(printed: &Value) -> bool {
    match printed {
        Value::Object(members) => members.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(value) => !value,
        Value::Null | Value::Number(_) | Value::String(_) => false,
    }
}

#[test]
fn differences_are_reported_with_their_path() {
    use serde_json::json;
    let printed = json!({"id": 1, "result": {"id": "a", "list": [{"taskId": "a"}], "metadata": {}}});
    let compare = |actual: Value| IdMap::default().compare("", &printed, &actual);
    assert_eq!(compare(json!({"id": 1, "result": {"id": "x", "list": [{"taskId": "x"}], "kind": "k"}})), Ok(()));
    for (actual, difference) in [
        (json!({"id": 2, "result": {"id": "x", "list": [{"taskId": "x"}]}}), "/id: 2 is not 1"),
        (json!({"id": 1, "result": {"id": "x", "list": [{"taskId": "y"}]}}), "/result/list/0/taskId: y was x before"),
        (json!({"id": 1, "result": {"id": "x", "list": []}}), "/result/list: [] is not [{\"taskId\":\"a\"}]"),
        (json!({"id": 1, "result": {"id": "x", "list": [{"taskId": "x"}], "n": 1}}), "/result/n: 1 is not printed"),
        (json!({"id": 1}), "/result: {\"id\":\"a\",\"list\":[{\"taskId\":\"a\"}],\"metadata\":{}} is missing"),
    ] {
        assert_eq!(compare(actual), Err(difference.to_owned()));
    }
}
