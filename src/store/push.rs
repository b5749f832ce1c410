//! Push notification configurations as stored data. They are deleted together with their task.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::{pb::v1::TaskPushNotificationConfig, protocol::Version};

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

/// Omits everything that may be a secret: the URL, the token and the credentials.
impl fmt::Debug for PushConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("PushConfig");
        f.field("id", &self.config.id).field("version", &self.version).finish_non_exhaustive()
    }
}

/// Result of storing a push configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutResult {
    /// The configuration was added.
    Created,
    /// The configuration of the same id was replaced.
    Replaced,
    /// The task does not exist.
    TaskNotFound,
    /// The task has the maximum number of configurations.
    Full,
}

/// Page of push configurations, in the order in which their ids were first stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PushPage {
    /// Configurations of the page.
    pub configs: Vec<Arc<PushConfig>>,
    /// Cursor of the next page, if there is one.
    pub next: Option<u64>,
}
