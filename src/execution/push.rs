//! Push configurations: assignment to a task, and their maximum number per task.

use std::sync::Arc;

use super::{Execution, limits::limit_error};
use crate::{
    agent::Agent,
    error::Error,
    store::{Key, PushConfig, PutResult},
};

impl PushConfig {
    /// Sets the task and tenant, whatever the client sent.
    pub(super) fn for_task(mut self, key: &Key) -> Arc<Self> {
        key.id().clone_into(&mut self.config.task_id);
        key.scope().tenant.as_ref().clone_into(&mut self.config.tenant);
        Arc::new(self)
    }
}

impl<A: Agent> Execution<A> {
    /// Stores a configuration of a task. Also returns its id if it is new, `None` if it replaced one with that id.
    pub(crate) async fn put_push(
        &self,
        key: &Key,
        push: PushConfig,
    ) -> Result<(Arc<PushConfig>, Option<String>), Error> {
        let (push, max) = (push.for_task(key), self.0.limits.push_configs);
        match self.0.journal.store().put_push(key, Arc::clone(&push), max).await? {
            PutResult::Created => {
                let id = push.config.id.clone();
                Ok((push, Some(id)))
            }
            PutResult::Replaced => Ok((push, None)),
            PutResult::TaskNotFound => Err(Error::task_not_found(key.id())),
            PutResult::Full => {
                let why = format!(
                    "task {} has {max} push notification configurations; delete one first (limits.push_configs)",
                    key.id()
                );
                Err(limit_error("push_configs", why).with("taskId", key.id()))
            }
        }
    }
}
