//! Secrets of a push configuration that a request clears: JSON can give them explicitly as empty or null.

use std::collections::HashMap;

use serde_json::value::RawValue;

/// Secrets of a push configuration that its JSON gives as empty or null, which clears stored ones. An extension of the
/// request. Protobuf can't tell an empty value from a missing one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each member can be cleared for itself")]
pub(crate) struct ClearedSecrets {
    pub(crate) token: bool,
    pub(crate) authentication: bool,
    pub(crate) credentials: bool,
    pub(crate) headers: bool,
}

/// Members, in any version, that contain a push configuration.
const CONTAINERS: &[&str] = &[
    "configuration",
    "taskPushNotificationConfig",
    "task_push_notification_config",
    "pushNotificationConfig",
    "push_notification_config",
    "pushNotification",
    "push_notification",
    "config",
];

/// Maximum depth of containers: the authentication of the configuration of a send is in the fourth object.
const MAX_DEPTH: usize = 4;

/// Members of an object with their JSON.
type Members<'a> = HashMap<String, &'a RawValue>;

impl ClearedSecrets {
    /// Finds the members in the JSON text of a message with this name. Returns `None` if the message can't have a push
    /// configuration, or clears none of its secrets.
    pub(super) fn of(message: &str, text: &str) -> Option<Self> {
        let has_config = match message {
            "TaskPushNotificationConfig" | "CreateTaskPushNotificationConfigRequest" => true,
            // Most sends have none, and are not read twice.
            "SendMessageRequest" | "MessageSendParams" => text.contains("otification"),
            _ => false,
        };
        let mut cleared = Self::default();
        if has_config {
            cleared.find_in(text, MAX_DEPTH);
        }
        Some(cleared).filter(|cleared| *cleared != Self::default())
    }

    /// Finds the members of an object, and of the containers in it up to this depth.
    fn find_in(&mut self, object: &str, depth: usize) {
        // The message itself is parsed later, with the error that the client gets.
        let (Ok(members), Some(depth)) = (serde_json::from_str::<Members<'_>>(object), depth.checked_sub(1)) else {
            return;
        };
        for (name, value) in members {
            match (name.as_str(), value.get()) {
                ("token", value) => self.token |= is_empty(value),
                ("credentials", value) => self.credentials |= is_empty(value),
                ("headers", value) => self.headers |= is_empty(value),
                ("authentication", value) => {
                    self.authentication |= is_empty(value);
                    self.find_in(value, depth);
                }
                (name, value) if CONTAINERS.contains(&name) => self.find_in(value, depth),
                _ => {}
            }
        }
    }
}

/// Returns whether a value is null, or an empty string or object.
fn is_empty(value: &str) -> bool {
    matches!(value, "null" | "\"\"") || serde_json::from_str::<Members<'_>>(value).is_ok_and(|it| it.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleared_secrets_are_found_in_each_form_of_a_configuration() {
        let no = ClearedSecrets::default();
        for (text, cleared) in [
            (r#"{"token":""}"#, ClearedSecrets { token: true, ..no }),
            (r#"{"token":null,"url":"u"}"#, ClearedSecrets { token: true, ..no }),
            (r#"{"tok\u0065n":null}"#, ClearedSecrets { token: true, ..no }),
            (r#"{"authentication":null}"#, ClearedSecrets { authentication: true, ..no }),
            (r#"{"authentication":{"schemes":["a"],"credentials":""}}"#, ClearedSecrets { credentials: true, ..no }),
            (r#"{"config":{"pushNotificationConfig":{"headers":{}}}}"#, ClearedSecrets { headers: true, ..no }),
            (r#"{"configuration":{"pushNotification":{"headers":null}}}"#, ClearedSecrets { headers: true, ..no }),
            (
                r#"{"configuration":{"taskPushNotificationConfig":{"authentication":{"credentials":""}}}}"#,
                ClearedSecrets { credentials: true, ..no },
            ),
            (r#"{"token":"a","headers":{"token":""},"authentication":{"credentials":"c"}}"#, no),
            (r#"{"message":{"token":"","parts":[1,-1,0.5,true,[null]]},"metadata":{"token":null}}"#, no),
            ("{", no),
            ("[]", no),
        ] {
            let found = ClearedSecrets::of("TaskPushNotificationConfig", text);
            assert_eq!(found.unwrap_or_default(), cleared, "{text}");
        }
        let send = r#"{"configuration":{"taskPushNotificationConfig":{"token":""}}}"#;
        let cleared = Some(ClearedSecrets { token: true, ..no });
        assert_eq!(ClearedSecrets::of("SendMessageRequest", send), cleared);
        assert_eq!(ClearedSecrets::of("MessageSendParams", send), cleared);
        assert_eq!(ClearedSecrets::of("SendMessageRequest", "{}"), None);
        assert_eq!(ClearedSecrets::of("GetTaskRequest", send), None);
    }
}
