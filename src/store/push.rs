//! Push notification configurations, as a store keeps them: with their task, and gone with it.

use std::{fmt, sync::Arc};

use bytes::Bytes;

use crate::{pb::v1::TaskPushNotificationConfig, protocol::Version};

/// Where what happens to a task is to be sent (4.3).
#[derive(Clone, PartialEq)]
pub struct PushConfig {
    /// What was registered, with its own id and that of its task.
    pub config: TaskPushNotificationConfig,
    /// The version of the protocol that it was registered in: what is sent there has that form.
    pub version: Version,
    /// What that version says of it and `config` has no place for. Only who wrote it can read it.
    pub beside: Bytes,
}

/// Its URL may be a secret, and the rest is one.
impl fmt::Debug for PushConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("PushConfig");
        f.field("id", &self.config.id).field("version", &self.version).finish_non_exhaustive()
    }
}

/// What became of a configuration that was to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutResult {
    /// There was none of its id.
    Made,
    /// It has the place of the one of its id.
    Replaced,
    /// There is no such task.
    NoTask,
    /// The task has as many as it may have.
    Full,
}

/// Some of a task's configurations, in the order in which their ids were first put.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PushPage {
    /// In their order.
    pub configs: Vec<Arc<PushConfig>>,
    /// What the next ones come after, if there are more.
    pub next: Option<u64>,
}
