//! Payloads of push notifications, in the form of the protocol version with which a configuration was registered (4.3.3).

use bytes::Bytes;

use super::{PushEvents, V03Payload};
use crate::protocol::{
    error::Error,
    event::{Ends, Event, Seq},
    pb::v1::{Task, TaskArtifactUpdateEvent, stream_response::Payload},
    task::{can_join, join_chunks},
    v03::json::push_payload,
    version::Version,
};

/// Maximum size of joined artifact chunks in bytes of protobuf.
const MAX_JOINED_BYTES: usize = 64 << 10;

/// Notification to send.
#[derive(Debug)]
pub(crate) struct Notification {
    /// Last event that it covers.
    pub(crate) seq: Seq,
    /// JSON.
    pub(crate) body: Bytes,
}

/// Selection and form of the notifications of a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) version: Version,
    pub(crate) events: PushEvents,
    pub(crate) v03: V03Payload,
}

impl Form {
    /// Returns whether notifications carry the whole task.
    pub(crate) fn needs_task(self) -> bool {
        self.version == Version::V0_3 && self.v03 == V03Payload::Task
    }

    /// Returns the notifications for events of the log, in order. `task` is the current task; it is required if
    /// [`needs_task`](Self::needs_task).
    ///
    /// Successive chunks of an artifact are joined. With whole tasks, artifact updates before a status update are covered by
    /// its notification: each has the status of its event, and the artifacts and messages of the current task.
    ///
    /// # Errors
    /// A payload can't be encoded.
    pub(crate) fn notifications(self, events: &[Event], task: Option<&Task>) -> Result<Vec<Notification>, Error> {
        let mut found = Vec::new();
        let selected: Vec<&Event> = events.iter().filter(|event| self.selects(event)).collect();
        if let Some(task) = task.filter(|_| self.needs_task()) {
            for (index, event) in selected.iter().enumerate() {
                let is_last = index + 1 == selected.len();
                let status = event.payload().and_then(Payload::status);
                if status.is_none() && !is_last {
                    continue;
                }
                let mut task = task.clone();
                if !is_last && let Some(status) = status {
                    task.status = Some(status.clone());
                }
                let body = push_payload(&Payload::Task(task), event.ends() != Ends::Nothing)?;
                found.push(Notification { seq: event.seq(), body });
            }
        } else {
            let mut selected = selected.into_iter().peekable();
            while let Some(event) = selected.next() {
                let Some(mut payload) = event.payload().cloned() else { continue };
                let (mut seq, mut ends, mut bytes) = (event.seq(), event.ends(), event.proto_len());
                if let Payload::ArtifactUpdate(first) = &mut payload {
                    while let Some(next) = selected.next_if(|next| joins(first, next, bytes)) {
                        (seq, ends, bytes) = (next.seq(), next.ends(), bytes + next.proto_len());
                        if let Some(chunk) = next.artifact_update() {
                            join_chunks(first, &mut chunk.clone());
                        }
                    }
                }
                let body = match self.version {
                    Version::V1_0 => Event::pending(payload).json().clone(),
                    Version::V0_3 => push_payload(&payload, ends != Ends::Nothing)?,
                };
                found.push(Notification { seq, body });
            }
        }
        Ok(found)
    }

    /// Returns whether an event is delivered. Messages of the client are not events for it.
    fn selects(self, event: &Event) -> bool {
        if event.mark().hidden {
            return false;
        }
        match self.events {
            PushEvents::All => event.payload().is_some(),
            PushEvents::Status => event.payload().and_then(Payload::status).is_some(),
            PushEvents::Terminal => {
                event.payload().and_then(Payload::status).is_some_and(|status| status.state().is_terminal())
            }
        }
    }
}

/// Returns whether an event is a chunk that continues an artifact update, and still fits.
fn joins(first: &TaskArtifactUpdateEvent, next: &Event, bytes: usize) -> bool {
    next.artifact_update().is_some_and(|chunk| chunk.append && can_join(first, chunk))
        && bytes + next.proto_len() <= MAX_JOINED_BYTES
}
