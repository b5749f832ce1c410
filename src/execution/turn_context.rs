//! Request contexts of unanswered messages, stored for turns that are run again after a restart: principal, extensions,
//! output media types and metadata. Credentials are not stored.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Execution, Shared};
use crate::{
    agent::Agent,
    event::Seq,
    journal::{TurnContext, live::LiveState},
    pb::{
        v1::{Message, Task},
        wkt::Struct,
    },
    store::{Key, StoredTask, Unavailable},
};

/// Maximum size of a stored context in bytes of JSON. Metadata that exceeds it is not stored.
const MAX_BYTES: usize = 64 << 10;

#[derive(Serialize, Deserialize)]
struct ContextRecord {
    seq: Seq,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    extensions: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    modes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<Struct>,
}

/// Stored contexts of the messages of a task, by event number.
pub(super) struct TurnContexts(Vec<ContextRecord>);

impl<A: Agent> Execution<A> {
    /// Stores the context of a message, unless it is empty or the store does not outlive the process.
    pub(super) fn store_context(&self, inner: &mut LiveState, seq: Seq, context: &TurnContext) {
        let is_anonymous = context.principal.is_none() && context.metadata.is_none();
        if (is_anonymous && context.extensions.is_empty() && context.accepted_output_modes.is_empty())
            || self.0.journal.store().immediate().is_some()
        {
            return;
        }
        let mut record = ContextRecord {
            seq,
            principal: context.principal.as_deref().map(str::to_owned),
            extensions: context.extensions.clone(),
            modes: context.accepted_output_modes.clone(),
            metadata: context.metadata.clone(),
        };
        let mut text = serde_json::to_string(&record);
        if text.as_ref().is_ok_and(|text| text.len() > MAX_BYTES) {
            record.metadata = None;
            text = serde_json::to_string(&record);
        }
        if let Some(text) = text.ok().filter(|text| text.len() <= MAX_BYTES) {
            inner.store_context(seq, text.into());
        }
    }
}

impl TurnContexts {
    /// Decodes the stored contexts. If they can't be decoded, turns run without.
    pub(super) fn from_stored(stored: &StoredTask) -> Self {
        let text = stored.turn_contexts.as_deref().filter(|text| !text.is_empty());
        Self(text.and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default())
    }

    /// Restores the contexts of a live task.
    pub(super) fn restore(&self, inner: &mut LiveState) {
        for record in &self.0 {
            if let Ok(text) = serde_json::to_string(record) {
                inner.store_context(record.seq, text.into());
            }
        }
    }

    /// Returns the context of a message.
    pub(super) fn context(&self, seq: Seq, referenced: Vec<Task>) -> TurnContext {
        let record = self.0.iter().find(|record| record.seq == seq);
        TurnContext {
            principal: record.and_then(|record| record.principal.as_deref()).map(Arc::from),
            extensions: record.map(|record| record.extensions.clone()).unwrap_or_default(),
            accepted_output_modes: record.map(|record| record.modes.clone()).unwrap_or_default(),
            metadata: record.and_then(|record| record.metadata.clone()),
            referenced,
        }
    }
}

impl<A: Agent> Shared<A> {
    /// Loads the tasks that a message references. Damaged and missing tasks are omitted.
    pub(super) async fn referenced(&self, key: &Key, message: Option<&Message>) -> Result<Vec<Task>, Unavailable> {
        let store = self.journal.store();
        let mut tasks = Vec::new();
        for id in message.iter().flat_map(|message| &message.reference_task_ids).take(self.limits.references) {
            let key = Key::new(key.scope(), id);
            let found = async {
                match store.load(&key).await? {
                    Some(mut stored) => stored.load_task(&**store, &key).await.map(Some),
                    None => Ok(None),
                }
            };
            match found.await {
                Ok(found) => tasks.extend(found),
                Err(cause) if matches!(store.diagnose(&key).await, Ok(Some(_))) => {
                    tracing::warn!(task.id = key.id(), error.cause = %cause, "damaged task omitted from the referenced tasks");
                }
                Err(cause) => return Err(cause),
            }
        }
        Ok(tasks)
    }
}
