//! Secrets of a push configuration that a request clears: JSON can give them explicitly as empty or null.

use std::{borrow::Cow, fmt};

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

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

impl ClearedSecrets {
    /// Finds the members in the JSON text of a message with this name. Returns `None` if the message can't have a push
    /// configuration, or clears none of its secrets.
    pub(super) fn of(message: &str, text: &[u8]) -> Option<Self> {
        let has_config = match message {
            "TaskPushNotificationConfig" | "CreateTaskPushNotificationConfigRequest" => true,
            // Most sends have none, and are not read twice.
            "SendMessageRequest" | "MessageSendParams" => {
                std::str::from_utf8(text).is_ok_and(|text| text.contains("otification"))
            }
            _ => false,
        };
        let mut cleared = Self::default();
        let member = Member { cleared: &mut cleared, is_container: true };
        // The message itself is parsed later, with the error that the client gets.
        _ = has_config.then(|| member.deserialize(&mut serde_json::Deserializer::from_slice(text)));
        Some(cleared).filter(|cleared| *cleared != Self::default())
    }
}

/// Members, in any version, that contain a push configuration or are part of one.
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

/// Value of a member. Read into whether it is null, or an empty string or object.
struct Member<'a> {
    cleared: &'a mut ClearedSecrets,
    /// Set for an object whose members are read too.
    is_container: bool,
}

impl<'de> DeserializeSeed<'de> for Member<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Member<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(true)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<bool, E> {
        Ok(text.is_empty())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<bool, A::Error> {
        let Self { cleared, is_container } = self;
        let mut is_empty = true;
        while let Some(name) = members.next_key::<Cow<'de, str>>()? {
            is_empty = false;
            let is_authentication = name == "authentication";
            let is_inner = is_container && (is_authentication || CONTAINERS.contains(&&*name));
            let is_secret = is_container && matches!(&*name, "token" | "credentials" | "headers");
            if !is_inner && !is_secret {
                members.next_value::<IgnoredAny>()?;
                continue;
            }
            let is_cleared = members.next_value_seed(Member { cleared: &mut *cleared, is_container: is_inner })?;
            match &*name {
                "token" => cleared.token |= is_cleared,
                "credentials" => cleared.credentials |= is_cleared,
                "headers" => cleared.headers |= is_cleared,
                _ => cleared.authentication |= is_authentication && is_cleared,
            }
        }
        Ok(is_empty)
    }
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
            (r#"{"token":"a","headers":{"token":""},"authentication":{"credentials":"c"}}"#, no),
            (r#"{"message":{"token":"","parts":[1,-1,0.5,true,[null]]},"metadata":{"token":null}}"#, no),
            ("{", no),
            ("[]", no),
        ] {
            let found = ClearedSecrets::of("TaskPushNotificationConfig", text.as_bytes());
            assert_eq!(found.unwrap_or_default(), cleared, "{text}");
        }
        let send = r#"{"configuration":{"taskPushNotificationConfig":{"token":""}}}"#.as_bytes();
        let cleared = Some(ClearedSecrets { token: true, ..no });
        assert_eq!(ClearedSecrets::of("SendMessageRequest", send), cleared);
        assert_eq!(ClearedSecrets::of("MessageSendParams", send), cleared);
        assert_eq!(ClearedSecrets::of("SendMessageRequest", b"{}"), None);
        assert_eq!(ClearedSecrets::of("GetTaskRequest", send), None);
    }
}
