//! Push configurations of tasks: how one comes to its task, and how many that may be.

use std::sync::Arc;

use super::{Execution, limits::limit};
use crate::{
    agent::Agent,
    error::Error,
    store::{Key, PushConfig, PutResult},
};

impl PushConfig {
    /// The one of a task, which is not for its sender to name.
    pub(super) fn of(mut self, key: &Key) -> Arc<Self> {
        key.id().clone_into(&mut self.config.task_id);
        key.scope().tenant.as_ref().clone_into(&mut self.config.tenant);
        Arc::new(self)
    }
}

impl<A: Agent> Execution<A> {
    /// Keeps a configuration with a task that is there. Returns it, and its id where there was none of that id.
    pub(crate) async fn put_push(
        &self,
        key: &Key,
        push: PushConfig,
    ) -> Result<(Arc<PushConfig>, Option<String>), Error> {
        let (push, most) = (push.of(key), self.0.limits.max_push_configs);
        match self.0.journal.store().put_push(key, Arc::clone(&push), most).await? {
            PutResult::Created => {
                let id = push.config.id.clone();
                Ok((push, Some(id)))
            }
            PutResult::Replaced => Ok((push, None)),
            PutResult::TaskNotFound => Err(Error::task_not_found(key.id())),
            PutResult::Full => {
                let why = format!("task {} has {most} push notification configurations, of at most so many", key.id());
                Err(limit("max_push_configs", why).with("taskId", key.id()))
            }
        }
    }
}
