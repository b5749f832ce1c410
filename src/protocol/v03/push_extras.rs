//! Members of 0.3 push notification configurations that 1.0 lacks: further authentication schemes and HTTP headers.
//!
//! The 0.3 codecs pass them to the service as request extensions, serialized as JSON. The service stores these bytes with
//! the configuration without reading them, and returns them as response extensions.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::HeaderName;
use serde::{Deserialize, Serialize};
use tonic::Extensions;

#[cfg(feature = "server")]
use crate::protocol::call::{AllPushExtras, PushExtra};
use crate::protocol::{
    error::Error,
    pb::v03::{AuthenticationInfo, PushNotificationConfig, TaskPushNotificationConfig},
};

/// Members of a push configuration that 1.0 lacks. They may contain secrets.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PushExtras {
    /// Authentication schemes after the first (0.3, 6.9); the first is in the 1.0 configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schemes: Vec<String>,
    /// HTTP headers to send with each notification, by name. Some 0.2 clients set them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

impl PushExtras {
    /// Extracts the further schemes of a protobuf configuration, which has no headers.
    pub(crate) fn of(config: Option<&PushNotificationConfig>) -> Self {
        let schemes = config.and_then(|config| config.authentication.as_ref()).map(|info| &info.schemes);
        Self { schemes: schemes.into_iter().flatten().skip(1).cloned().collect(), headers: BTreeMap::new() }
    }

    /// Adds the further schemes to a protobuf configuration, which has no headers.
    pub(crate) fn restore(self, config: &mut TaskPushNotificationConfig) {
        if self.schemes.is_empty() {
            return;
        }
        let config = config.push_notification_config.get_or_insert_default();
        let AuthenticationInfo { schemes, .. } = config.authentication.get_or_insert_default();
        schemes.extend(self.schemes);
    }
}

#[cfg(feature = "server")]
impl PushExtras {
    /// Validates the members and adds them to a request's extensions, unless there are none.
    ///
    /// `at` is the field path of the configuration in the request, with a trailing dot.
    ///
    /// # Errors
    /// `InvalidParams` if a member cannot be sent in an HTTP header. The message does not contain the value, which may be a
    /// secret.
    pub(crate) fn put(&self, at: &str, extensions: &mut Extensions) -> Result<(), Error> {
        if *self == Self::default() {
            return Ok(());
        }
        let invalid = |field: String, why: &str| Err(Error::invalid_field(format!("{at}{field}"), why));
        // Index 0 is in the 1.0 configuration.
        for (index, scheme) in (1..).zip(&self.schemes) {
            if scheme.chars().any(char::is_control) {
                return invalid(format!("authentication.schemes[{index}]"), "must not have control characters");
            }
        }
        for (name, value) in &self.headers {
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                return invalid("headers".to_owned(), "has an invalid HTTP header name");
            }
            if value.chars().any(char::is_control) {
                return invalid(format!("headers.{name}"), "must not have control characters");
            }
        }
        extensions.insert(PushExtra(serde_json::to_vec(self).map_err(Error::internal)?.into()));
        Ok(())
    }

    /// Returns the public members of the configuration in a response.
    pub(crate) fn public(extensions: &Extensions) -> Self {
        extensions.get().map(|stored: &PushExtra| Self::decode(&stored.0).without_secrets()).unwrap_or_default()
    }

    /// Returns the public members of each configuration in a list response, in the order of the list.
    pub(crate) fn public_of_each(extensions: &Extensions) -> Vec<Self> {
        let all = extensions.get().map(|stored: &AllPushExtras| &stored.0[..]).unwrap_or_default();
        all.iter().map(|stored| Self::decode(&stored.0).without_secrets()).collect()
    }

    /// Drops the headers, whose values may be secrets.
    fn without_secrets(self) -> Self {
        Self { headers: BTreeMap::new(), ..self }
    }

    /// Decodes stored members. Bytes in another format, stored by another implementation, count as none.
    fn decode(bytes: &Bytes) -> Self {
        serde_json::from_slice(bytes).unwrap_or_default()
    }
}

debug_fields!(PushExtras { schemes });

#[cfg(test)]
mod tests {
    use super::*;

    fn put(schemes: &[&str], headers: &[(&str, &str)]) -> Result<PushExtras, Error> {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let further = PushExtras { schemes: schemes.iter().copied().map(str::to_owned).collect(), headers };
        let mut extensions = Extensions::new();
        further.put("config.", &mut extensions)?;
        assert_eq!(PushExtras::decode(&extensions.get::<PushExtra>().cloned().unwrap_or_default().0), further);
        assert_eq!(PushExtras::public(&extensions), further.clone().without_secrets());
        let printed = format!("{further:?} {:?}", extensions.get::<PushExtra>());
        assert!(!printed.contains("swordfish"), "{printed}");
        Ok(further)
    }

    #[test]
    fn members_that_are_invalid_in_headers_are_rejected_with_their_field() {
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
