//! Whether an answer has the members that were printed.

use std::collections::HashMap;

use serde_json::Value;

/// Members that name something which a server has to find a name for, or somebody else did.
const NAMES: [&str; 5] = ["id", "taskId", "contextId", "messageId", "artifactId"];

/// What an answer may have beyond what is printed, since the printed examples leave out what 0.3 requires or allows.
const MORE: [&str; 9] =
    ["kind", "role", "messageId", "taskId", "contextId", "timestamp", "history", "artifacts", "pushNotificationConfig"];

/// What the names that are printed are in this run.
#[derive(Default)]
pub(super) struct Names(HashMap<String, String>);

impl Names {
    /// What is printed of a request, with the names that came in the answers before.
    pub(super) fn put_into(&self, request: &mut Value) {
        match request {
            Value::Object(members) => {
                for (name, value) in members {
                    match value.as_str().filter(|_| NAMES.contains(&name.as_str())).and_then(|it| self.0.get(it)) {
                        Some(known) => *value = known.as_str().into(),
                        None => self.put_into(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|it| self.put_into(it)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Says where an answer is not what is printed. Names are the same where they are printed as the same, times are times,
    /// `"..."` is anything, and an optional member that has nothing in it is as good as none.
    pub(super) fn compare(&mut self, at: &str, printed: &Value, answered: &Value) -> Result<(), String> {
        let differs = || Err(format!("{at}: {answered} is not {printed}"));
        match (printed, answered) {
            (Value::String(it), _) if it == "..." => Ok(()),
            (Value::Object(printed), Value::Object(answered)) => {
                for (name, printed) in printed {
                    let at = format!("{at}/{name}");
                    match answered.get(name) {
                        Some(answered) if NAMES.contains(&name.as_str()) && !is_envelope(&at) => {
                            self.name(&at, printed, answered)?;
                        }
                        Some(Value::String(time)) if name == "timestamp" => {
                            if !(time.ends_with('Z') && time.len() == "2026-01-01T00:00:00.000Z".len()) {
                                return Err(format!("{at}: {time} is no time in UTC with milliseconds"));
                            }
                        }
                        Some(answered) => self.compare(&at, printed, answered)?,
                        None if is_nothing(printed) => {}
                        None => return Err(format!("{at}: {printed} is missing")),
                    }
                }
                match answered.keys().find(|it| !printed.contains_key(*it) && !MORE.contains(&it.as_str())) {
                    Some(more) => Err(format!("{at}/{more}: {} is not printed", answered[more])),
                    None => Ok(()),
                }
            }
            (Value::Array(printed), Value::Array(answered)) if printed.len() == answered.len() => {
                let mut pairs = printed.iter().zip(answered).enumerate();
                pairs.try_for_each(|(n, (printed, answered))| self.compare(&format!("{at}/{n}"), printed, answered))
            }
            (Value::Number(printed), Value::Number(answered)) if printed.as_f64() == answered.as_f64() => Ok(()),
            (printed, answered) if printed == answered => Ok(()),
            _ => differs(),
        }
    }

    fn name(&mut self, at: &str, printed: &Value, answered: &Value) -> Result<(), String> {
        let (Some(printed), Some(answered)) = (printed.as_str(), answered.as_str()) else {
            return Err(format!("{at}: {answered} is no name"));
        };
        if printed == "..." && !answered.is_empty() {
            return Ok(());
        }
        let known = self.0.entry(printed.to_owned()).or_insert_with(|| answered.to_owned());
        if known == answered { Ok(()) } else { Err(format!("{at}: {answered} was {known} before")) }
    }
}

/// The `id` of a request, which its answer repeats: of an answer, or of one event of several.
fn is_envelope(at: &str) -> bool {
    at == "/id" || at.strip_suffix("/id").is_some_and(|it| it[1..].bytes().all(|it| it.is_ascii_digit()))
}

fn is_nothing(printed: &Value) -> bool {
    match printed {
        Value::Object(it) => it.is_empty(),
        Value::Array(it) => it.is_empty(),
        Value::Bool(it) => !it,
        Value::Null | Value::Number(_) | Value::String(_) => false,
    }
}

#[test]
fn what_is_not_the_same_is_said() {
    use serde_json::json;
    let printed = json!({"id": 1, "result": {"id": "a", "list": [{"taskId": "a"}], "metadata": {}}});
    let compare = |answered: Value| Names::default().compare("", &printed, &answered);
    assert_eq!(compare(json!({"id": 1, "result": {"id": "x", "list": [{"taskId": "x"}], "kind": "k"}})), Ok(()));
    for (answered, why) in [
        (json!({"id": 2, "result": {"id": "x", "list": [{"taskId": "x"}]}}), "/id: 2 is not 1"),
        (json!({"id": 1, "result": {"id": "x", "list": [{"taskId": "y"}]}}), "/result/list/0/taskId: y was x before"),
        (json!({"id": 1, "result": {"id": "x", "list": []}}), "/result/list: [] is not [{\"taskId\":\"a\"}]"),
        (json!({"id": 1, "result": {"id": "x", "list": [{"taskId": "x"}], "n": 1}}), "/result/n: 1 is not printed"),
        (json!({"id": 1}), "/result: {\"id\":\"a\",\"list\":[{\"taskId\":\"a\"}],\"metadata\":{}} is missing"),
    ] {
        assert_eq!(compare(answered), Err(why.to_owned()));
    }
}
