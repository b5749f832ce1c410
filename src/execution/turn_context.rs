//! What came with a message beside it, as it is kept for a turn that has to be run again: who sent it and what they asked
//! for. Credentials are not among it: none come in so far.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Execution, Parts};
use crate::{
    agent::Agent,
    event::{Event, Seq},
    journal::{TurnContext, live::Inner},
    pb::{
        v1::{Message, Task, stream_response::Payload},
        wkt::Struct,
    },
    store::{Key, StoredTask, Unavailable},
};

/// Metadata that makes it longer than this is not kept.
const MOST: usize = 64 << 10;

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

/// What came with the messages of a task, each under its number.
pub(super) struct TurnContexts(Vec<ContextRecord>);

impl<A: Agent> Execution<A> {
    /// Notes what came with a message, where the store outlives the process.
    pub(super) fn note(&self, inner: &mut Inner, seq: Seq, asked: &TurnContext) {
        let nothing = asked.principal.is_none() && asked.metadata.is_none();
        if (nothing && asked.extensions.is_empty() && asked.accepted_output_modes.is_empty())
            || self.0.journal.store().immediate().is_some()
        {
            return;
        }
        let mut kept = ContextRecord {
            seq,
            principal: asked.principal.as_deref().map(str::to_owned),
            extensions: asked.extensions.clone(),
            modes: asked.accepted_output_modes.clone(),
            metadata: asked.metadata.clone(),
        };
        let mut text = serde_json::to_string(&kept);
        if text.as_ref().is_ok_and(|it| it.len() > MOST) {
            kept.metadata = None;
            text = serde_json::to_string(&kept);
        }
        if let Some(text) = text.ok().filter(|it| it.len() <= MOST) {
            inner.note(seq, text.into());
        }
    }
}

impl TurnContexts {
    /// As a store has them. What can't be read is as if it were not there: the turn runs without.
    pub(super) fn of(stored: &StoredTask) -> Self {
        let text = stored.turn_contexts.as_deref().filter(|it| !it.is_empty());
        Self(text.and_then(|it| serde_json::from_slice(it).ok()).unwrap_or_default())
    }

    /// Puts them where they were.
    pub(super) fn restore(&self, inner: &mut Inner) {
        for it in &self.0 {
            if let Ok(text) = serde_json::to_string(it) {
                inner.note(it.seq, text.into());
            }
        }
    }

    /// What came with one of the messages.
    pub(super) fn asked(&self, seq: Seq, referenced: Vec<Task>) -> TurnContext {
        let kept = self.0.iter().find(|it| it.seq == seq);
        TurnContext {
            principal: kept.and_then(|it| it.principal.as_deref()).map(Arc::from),
            extensions: kept.map(|it| it.extensions.clone()).unwrap_or_default(),
            accepted_output_modes: kept.map(|it| it.modes.clone()).unwrap_or_default(),
            metadata: kept.and_then(|it| it.metadata.clone()),
            referenced,
        }
    }
}

impl<A: Agent> Parts<A> {
    /// The tasks that a message refers to, as they are now. One that is damaged is left out, as one that is not there.
    pub(super) async fn referenced(&self, key: &Key, message: Option<&Message>) -> Result<Vec<Task>, Unavailable> {
        let store = self.journal.store();
        let mut tasks = Vec::new();
        for id in message.iter().flat_map(|it| &it.reference_task_ids).take(self.limits.references) {
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
                    tracing::warn!(task.id = key.id(), error.cause = %cause, "a damaged task is left out of the references");
                }
                Err(cause) => return Err(cause),
            }
        }
        Ok(tasks)
    }
}

/// The message that an event is.
pub(super) fn message(event: &Event) -> Option<&Message> {
    match event.payload() {
        Some(Payload::Message(it)) => Some(it),
        Some(Payload::Task(_) | Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_)) | None => None,
    }
}
