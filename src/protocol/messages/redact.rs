//! Redacted `Debug` output of messages with credentials. URLs are left out too: a part of one may be a credential.

use super::{v1, v03};

debug_fields!(v1::TaskPushNotificationConfig { tenant, id, task_id, authentication });
debug_fields!(v1::AuthenticationInfo { scheme });
debug_fields!(v03::PushNotificationConfig { id, authentication });
debug_fields!(v03::AuthenticationInfo { schemes });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_printed() {
        let secret = || "swordfish".to_owned();
        let authentication = v1::AuthenticationInfo { scheme: "Bearer".to_owned(), credentials: secret() };
        let config = v1::TaskPushNotificationConfig {
            id: "c".to_owned(),
            url: format!("https://h/{}", secret()),
            token: secret(),
            authentication: Some(authentication),
            ..v1::TaskPushNotificationConfig::default()
        };
        let sent = v1::SendMessageConfiguration { task_push_notification_config: Some(config), ..Default::default() };
        let authentication = v03::AuthenticationInfo { schemes: vec!["Bearer".to_owned()], credentials: secret() };
        let push = v03::PushNotificationConfig {
            token: secret(),
            authentication: Some(authentication),
            ..v03::PushNotificationConfig::default()
        };
        let printed = format!("{sent:?} {push:?}");
        assert!(printed.contains("Some(TaskPushNotificationConfig {"), "{printed}");
        assert!(!printed.contains("swordfish") && printed.contains("Bearer") && printed.contains("\"c\""), "{printed}");
    }
}
