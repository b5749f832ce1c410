//! Forms of the results of agents: a task, a message or an event is the result itself, or its only member.
//!
//! `SendMessage` and streams of 1.0, and the protobuf of 0.3, have `{"task": …}`. JSON-RPC of 0.3, and `GetTask` of both versions, have
//! the task itself. Agents mix these forms up, so that each result is converted to that which its reader expects. A task is recognized
//! by its status, a message by its parts. One with a `kind`, which only 0.3 has, and with names of 0.3, is read as 0.3.

use bytes::Bytes;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

use super::{Error, StreamResponse, Version};
use crate::protocol::{pb::v1::stream_response::Payload, rpc::from_json, v03::json::Read};

/// Form that the reader of a result expects.
#[derive(Clone, Copy)]
pub(super) struct ResultForm {
    /// The result has the task, message or event as a member.
    is_wrapped: bool,
    version: Version,
}

/// Members by which a result is recognized.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Members<'a> {
    #[serde(borrow)]
    task: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow, alias = "status_update")]
    status_update: Option<&'a RawValue>,
    #[serde(borrow, alias = "artifact_update")]
    artifact_update: Option<&'a RawValue>,
    #[serde(borrow)]
    kind: Option<&'a RawValue>,
    id: Option<IgnoredAny>,
    #[serde(borrow)]
    role: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    /// State in a status.
    #[serde(borrow)]
    state: Option<&'a RawValue>,
    /// Parts of a message, and their name in the protobuf of 0.3.
    #[serde(alias = "content")]
    parts: Option<IgnoredAny>,
    artifact: Option<IgnoredAny>,
}

impl<'a> Members<'a> {
    /// Returns the member that has the task, message or event.
    fn wrapped(&self) -> Option<&'a RawValue> {
        let members = [self.task, self.message, self.status_update, self.artifact_update];
        members.into_iter().flatten().find(|member| member.get().starts_with('{'))
    }

    /// Returns the name of the member for a result that is itself a task, a message or an event.
    fn own_name(&self) -> Option<&'static str> {
        Some(match self.kind.map(RawValue::get) {
            Some("\"task\"") => "task",
            Some("\"message\"") => "message",
            Some("\"status-update\"") => "statusUpdate",
            Some("\"artifact-update\"") => "artifactUpdate",
            _ if self.artifact.is_some() => "artifactUpdate",
            _ if self.parts.is_some() => "message",
            _ if self.status.is_some() && self.id.is_some() => "task",
            _ if self.status.is_some() => "statusUpdate",
            _ => return None,
        })
    }
}

/// Returns true for a task, a message or an event of 0.3: it has a `kind`, and no name of an enum value of 1.0.
fn is_of_v03(json: &[u8]) -> bool {
    let begins = |value: Option<&RawValue>, prefix: &str| value.is_some_and(|value| value.get().starts_with(prefix));
    serde_json::from_slice::<Members<'_>>(json).is_ok_and(|members| {
        let status = members.status.and_then(|status| serde_json::from_str::<Members<'_>>(status.get()).ok());
        let is_of_v1 =
            begins(members.role, "\"ROLE_") || begins(status.and_then(|status| status.state), "\"TASK_STATE_");
        members.kind.is_some() && !is_of_v1
    })
}

impl ResultForm {
    /// Returns the form of the results of a method, by its name in the proto file or in JSON-RPC of 0.3. `None` for a method whose
    /// results have neither tasks nor messages.
    pub(super) fn of(method: &str, version: Version) -> Option<Self> {
        let is_wrapped = match method {
            "SendMessage" | "SendStreamingMessage" | "SubscribeToTask" | "TaskSubscription" => true,
            "GetTask" | "CancelTask" | "message/send" | "message/stream" | "tasks/resubscribe" | "tasks/get"
            | "tasks/cancel" => false,
            _ => return None,
        };
        Some(Self { is_wrapped, version })
    }

    /// Converts a result to this form. Returns `None` for one that has neither a task nor a message nor an event.
    ///
    /// # Errors
    /// `InvalidAgentResponse` if a result of 0.3 can't be read.
    pub(super) fn convert(self, result: &Bytes) -> Result<Option<Bytes>, Error> {
        // The reader rejects invalid JSON and duplicate members, with the reason.
        let is_object = result.trim_ascii_start().starts_with(b"{");
        let members = serde_json::from_slice::<Members<'_>>(result).ok().filter(|_| is_object);
        let Some(members) = members else { return Ok(Some(result.clone())) };
        let own_name = members.own_name();
        let inner = match (own_name, members.wrapped()) {
            (None, None) => return Ok(None),
            (None, Some(wrapped)) => result.slice_ref(wrapped.get().as_bytes()),
            (Some(_), _) => result.clone(),
        };
        if self.version == Version::V1_0 && is_of_v03(&inner) {
            let Read(response) = from_json::<Read<StreamResponse>>(&inner)?;
            let json = match (self.is_wrapped, &response.payload) {
                (false, Some(Payload::Task(task))) => serde_json::to_vec(task),
                _ => serde_json::to_vec(&response),
            };
            return Ok(Some(json.map_err(Error::internal)?.into()));
        }
        Ok(Some(match own_name {
            Some(name) if self.is_wrapped => [format!("{{\"{name}\":").as_bytes(), &inner, b"}"].concat().into(),
            None if self.is_wrapped => result.clone(),
            _ => inner,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(method: &str, version: Version, result: &str) -> Option<String> {
        let converted = ResultForm::of(method, version)?.convert(&Bytes::copy_from_slice(result.as_bytes())).unwrap();
        converted.map(|json| String::from_utf8(json.to_vec()).unwrap())
    }

    #[test]
    fn results_get_the_form_of_their_reader() {
        const TASK: &str = r#"{"id":"t","status":{"state":"working"}}"#;
        const MESSAGE: &str = r#"{"role":"ROLE_AGENT","parts":[{"text":"hi"}]}"#;
        const STATUS: &str = r#"{"taskId":"t","status":{}}"#;
        const ARTIFACT: &str = r#"{"taskId":"t","artifact":{}}"#;
        for (name, own) in
            [("task", TASK), ("message", MESSAGE), ("statusUpdate", STATUS), ("artifactUpdate", ARTIFACT)]
        {
            let wrapped = format!("{{\"{name}\":{own}}}");
            for result in [own, &wrapped] {
                for version in [Version::V1_0, Version::V0_3] {
                    assert_eq!(converted("SendMessage", version, result).as_ref(), Some(&wrapped), "{result}");
                    assert_eq!(converted("TaskSubscription", version, result).as_ref(), Some(&wrapped), "{result}");
                }
                assert_eq!(converted("message/stream", Version::V0_3, result).as_deref(), Some(own), "{result}");
                assert_eq!(converted("GetTask", Version::V1_0, result).as_deref(), Some(own), "{result}");
            }
        }
        let old = r#"{"kind":"task","id":"t","status":{"state":"completed"},"history":[{"role":"user","parts":[{"kind":"text","text":"a"}]}]}"#;
        // A member that 1.0 does not know.
        let named = r#"{"kind":"task","id":"t","status":{"state":"TASK_STATE_WORKING"}}"#;
        assert_eq!(converted("GetTask", Version::V1_0, named).as_deref(), Some(named));
        for result in [old, &format!(r#"{{"task":{old}}}"#)] {
            for method in ["SendMessage", "GetTask"] {
                let converted = converted(method, Version::V1_0, result).unwrap();
                assert!(converted.contains("TASK_STATE_COMPLETED") && converted.contains("ROLE_USER"), "{converted}");
                assert_eq!(converted.starts_with(r#"{"task":{"#), method == "SendMessage", "{converted}");
            }
        }
    }

    #[test]
    fn other_results_are_not_recognized() {
        for result in ["{}", r#"{"task":null}"#, r#"{"task":"t"}"#, r#"{"id":"t"}"#, r#"{"other":{"id":"t"}}"#] {
            assert_eq!(converted("SendMessage", Version::V1_0, result), None, "{result}");
            assert_eq!(converted("tasks/get", Version::V0_3, result), None, "{result}");
        }
        // Not changed, so that the reader rejects it.
        for result in ["[]", "5", "<html>", r#"{"task":{},"task":{}}"#, r#"{"id":1,"id":2,"status":{}}"#] {
            assert_eq!(converted("SendMessage", Version::V1_0, result).as_deref(), Some(result), "{result}");
        }
        assert!(ResultForm::of("ListTasks", Version::V1_0).is_none());
    }
}
