//! What 0.3 says of a push configuration and 1.0 has no place for, in the form that both codecs of 0.3 keep it in beside
//! the configuration.

use std::{collections::BTreeMap, fmt};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tonic::Extensions;

use crate::{
    pb::v03::{AuthenticationInfo, PushNotificationConfig, TaskPushNotificationConfig},
    service::push::{Beside, Besides},
};

/// What a configuration says further. It may be a secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Further {
    /// The schemes after the first, which is 1.0's (0.3, 6.9).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) schemes: Vec<String>,
    /// Headers that a client wants to be sent along, as some of 0.2 write them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, String>,
}

impl Further {
    /// What a configuration of protobuf says.
    pub(crate) fn of(config: Option<&PushNotificationConfig>) -> Self {
        let schemes = config.and_then(|it| it.authentication.as_ref()).map(|it| &it.schemes);
        Self { schemes: schemes.into_iter().flatten().skip(1).cloned().collect(), headers: BTreeMap::new() }
    }

    /// Gives it along with a request.
    pub(crate) fn put(&self, extensions: &mut Extensions) {
        if *self != Self::default() {
            // Members have names, and writing to memory does not fail.
            extensions.insert(Beside(serde_json::to_vec(self).unwrap_or_default().into()));
        }
    }

    /// What was kept of the configuration in a reply.
    pub(crate) fn kept(extensions: &Extensions) -> Self {
        extensions.get().map(|it: &Beside| Self::read(&it.0)).unwrap_or_default()
    }

    /// What was kept of each configuration in a reply, in their order.
    pub(crate) fn kept_of_each(extensions: &Extensions) -> Vec<Self> {
        extensions.get().map(|it: &Besides| it.0.iter().map(Self::read).collect()).unwrap_or_default()
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

impl fmt::Debug for Further {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Further").field("schemes", &self.schemes).finish_non_exhaustive()
    }
}
