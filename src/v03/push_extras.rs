//! What 0.3 says of a push configuration and 1.0 has no place for, in the form that both codecs of 0.3 keep it in beside
//! the configuration.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use http::HeaderName;
use serde::{Deserialize, Serialize};
use tonic::Extensions;

use crate::{
    error::Error,
    pb::v03::{AuthenticationInfo, PushNotificationConfig, TaskPushNotificationConfig},
    service::push::{AllPushExtras, PushExtra},
};

/// What a configuration says further. It may be a secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PushExtras {
    /// The schemes after the first, which is 1.0's (0.3, 6.9).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schemes: Vec<String>,
    /// Headers that a client wants to be sent along, as some of 0.2 write them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl PushExtras {
    /// What a configuration of protobuf says.
    pub(crate) fn of(config: Option<&PushNotificationConfig>) -> Self {
        let schemes = config.and_then(|it| it.authentication.as_ref()).map(|it| &it.schemes);
        Self { schemes: schemes.into_iter().flatten().skip(1).cloned().collect(), headers: BTreeMap::new() }
    }

    /// Gives it along with a request, in which the configuration is at `at`. What could not be sent is refused, without a
    /// word of what may be a secret.
    pub(crate) fn put(&self, at: &str, extensions: &mut Extensions) -> Result<(), Error> {
        if *self == Self::default() {
            return Ok(());
        }
        let wrong = |field: String, why: &str| Err(Error::invalid_field(format!("{at}{field}"), why));
        // After the first, which 1.0 has.
        for (n, scheme) in (1..).zip(&self.schemes) {
            if scheme.chars().any(char::is_control) {
                return wrong(format!("authentication.schemes[{n}]"), "must not have control characters");
            }
        }
        for (name, value) in &self.headers {
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                return wrong("headers".to_owned(), "must be named as headers of HTTP are");
            }
            if value.chars().any(char::is_control) {
                return wrong(format!("headers.{name}"), "must not have control characters");
            }
        }
        extensions.insert(PushExtra(serde_json::to_vec(self).map_err(Error::internal)?.into()));
        Ok(())
    }

    /// What was kept of the configuration in a reply.
    pub(crate) fn kept(extensions: &Extensions) -> Self {
        extensions.get().map(|it: &PushExtra| Self::read(&it.0)).unwrap_or_default()
    }

    /// What was kept of each configuration in a reply, in their order.
    pub(crate) fn kept_of_each(extensions: &Extensions) -> Vec<Self> {
        extensions.get().map(|it: &AllPushExtras| it.0.iter().map(Self::read).collect()).unwrap_or_default()
    }

    /// What another server kept is nothing here.
    fn read(bytes: &Bytes) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// Says it again in protobuf, which has no headers either.
    pub(crate) fn restore(self, config: &mut TaskPushNotificationConfig) {
        if self.schemes.is_empty() {
            return;
        }
        let config = config.push_notification_config.get_or_insert_default();
        let AuthenticationInfo { schemes, .. } = config.authentication.get_or_insert_default();
        schemes.extend(self.schemes);
    }
}

impl fmt::Debug for PushExtras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Further").field("schemes", &self.schemes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(schemes: &[&str], headers: &[(&str, &str)]) -> Result<PushExtras, Error> {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let further = PushExtras { schemes: schemes.iter().map(|it| (*it).to_owned()).collect(), headers };
        let mut extensions = Extensions::new();
        further.put("config.", &mut extensions)?;
        assert_eq!(PushExtras::kept(&extensions), further);
        let printed = format!("{further:?} {:?}", extensions.get::<PushExtra>());
        assert!(!printed.contains("swordfish"), "{printed}");
        Ok(further)
    }

    #[test]
    fn what_cannot_be_sent_is_refused_by_its_field() {
        put(&[], &[]).unwrap();
        put(&["Basic"], &[("X-Key", "swordfish"), ("x-ü", "")]).unwrap_err();
        put(&["Basic"], &[("X-Key", "swordfish"), ("x-empty", "")]).unwrap();
        for (schemes, headers, field) in [
            (&["a\nb"][..], &[][..], "config.authentication.schemes[1]"),
            (&["a", "b\r"], &[], "config.authentication.schemes[2]"),
            (&[], &[("X-Key", "swordfish\r\nHost: other")], "config.headers.X-Key"),
            (&[], &[("X-Key: swordfish\r\nX", "a")], "config.headers"),
            (&[], &[("", "a")], "config.headers"),
        ] {
            let error = put(schemes, headers).unwrap_err();
            assert_eq!(error.violations()[0].field, field);
            assert!(!format!("{error:?} {:?}", error.details()).contains("swordfish"), "{error}");
        }
    }
}
