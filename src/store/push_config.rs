//! Push configuration as it is stored, and its secrets: which of them a replacement keeps, and the form without them.

#[cfg(feature = "push")]
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};
use url::Url;

use super::key::TaskKey;
use crate::protocol::{
    pb::v1::{AuthenticationInfo, TaskPushNotificationConfig},
    rpc::ClearedSecrets,
    version::Version,
};

/// Members of [`PushConfig::extra`] of 0.2 and 0.3. The headers may be secrets.
const HEADERS: &str = "headers";
const SCHEMES: &str = "schemes";

/// Registered webhook for updates of a task (4.3).
#[derive(Clone, PartialEq)]
pub struct PushConfig {
    /// Configuration, with its own id and that of its task.
    pub config: TaskPushNotificationConfig,
    /// Protocol version of the registration. Notifications have the format of this version.
    pub version: Version,
    /// Fields of that version that `config` can't represent, in an encoding private to the version's implementation.
    pub extra: Bytes,
}

impl PushConfig {
    /// Sets the task and tenant, whatever the client sent.
    pub(crate) fn for_task(mut self, key: &TaskKey) -> Arc<Self> {
        key.id().clone_into(&mut self.config.task_id);
        key.scope().tenant.as_ref().clone_into(&mut self.config.tenant);
        Arc::new(self)
    }

    /// Returns the HTTP headers that a configuration of 0.2 or 0.3 asks for.
    #[cfg(feature = "push")]
    pub(crate) fn headers(&self) -> BTreeMap<String, String> {
        #[derive(serde::Deserialize)]
        struct Extra {
            #[serde(default)]
            headers: BTreeMap<String, String>,
        }
        serde_json::from_slice(&self.extra).map(|Extra { headers }| headers).unwrap_or_default()
    }

    /// Keeps the secrets of the stored configuration with the same id that this one leaves out, except those it clears.
    /// Credentials belong to their scheme, and are not kept for another one.
    ///
    /// # Errors
    /// Returns the name of a field with a secret that would be kept although the URL has another origin: its receiver must
    /// not get the secrets of the earlier one.
    pub(crate) fn keep_secrets(&mut self, stored: &Self, cleared: ClearedSecrets) -> Result<(), &'static str> {
        let has_same_origin = same_origin(&self.config.url, &stored.config.url);
        let keep = |field: &'static str| if has_same_origin { Ok(()) } else { Err(field) };
        let (config, old) = (&mut self.config, &stored.config);
        if config.token.is_empty() && !cleared.token && !old.token.is_empty() {
            keep("token")?;
            config.token.clone_from(&old.token);
        }
        let keeps_schemes = config.authentication.is_none() && !cleared.authentication;
        if let Some(old) = &old.authentication {
            let info = match &mut config.authentication {
                Some(info) => Some(info).filter(|info| info.scheme.eq_ignore_ascii_case(&old.scheme)),
                None if keeps_schemes => {
                    Some(config.authentication.insert(AuthenticationInfo { credentials: String::new(), ..old.clone() }))
                }
                None => None,
            };
            if let Some(info) = info
                && info.credentials.is_empty()
                && !cleared.credentials
                && !old.credentials.is_empty()
            {
                keep("authentication.credentials")?;
                info.credentials.clone_from(&old.credentials);
            }
        }
        let kept = [(HEADERS, !cleared.headers), (SCHEMES, keeps_schemes)];
        let (mut members, old) = (members(&self.extra), members(&stored.extra));
        let mut is_changed = false;
        for (name, value) in old {
            if kept.contains(&(&*name, true)) && !members.contains_key(&name) {
                if name == HEADERS {
                    keep(HEADERS)?;
                }
                members.insert(name, value);
                is_changed = true;
            }
        }
        if is_changed {
            self.extra = Value::Object(members).to_string().into();
        }
        Ok(())
    }

    /// Returns the configuration without its token and credentials.
    pub(crate) fn public_config(&self) -> TaskPushNotificationConfig {
        let mut config = TaskPushNotificationConfig { token: String::new(), ..self.config.clone() };
        if let Some(authentication) = &mut config.authentication {
            authentication.credentials.clear();
        }
        config
    }

    /// Returns the configuration without its secrets: the token, the credentials, the userinfo of the URL, and the fields of
    /// other versions.
    pub(crate) fn without_secrets(&self) -> Self {
        let mut config = self.public_config();
        if let Ok(mut url) = Url::parse(&config.url)
            && (!url.username().is_empty() || url.password().is_some())
        {
            // Fails only for URLs that can't have a user.
            _ = url.set_username("");
            _ = url.set_password(None);
            config.url = url.into();
        }
        Self { config, version: self.version, extra: Bytes::new() }
    }
}

// Omits everything that may be a secret: the URL, the token and the credentials.
debug_fields!(PushConfig { id: config.id, version });

/// Returns whether two URLs have the same scheme, host and port.
fn same_origin(a: &str, b: &str) -> bool {
    let origin = |url: &str| Url::parse(url).ok().map(|url| url.origin());
    a == b || origin(a).zip(origin(b)).is_some_and(|(a, b)| a == b)
}

/// Decodes the members of [`PushConfig::extra`]. There are none in bytes of another implementation.
fn members(extra: &Bytes) -> Map<String, Value> {
    serde_json::from_slice(extra).unwrap_or_default()
}
