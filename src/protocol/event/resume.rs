//! Extension `resume`: the cursor of each stream event in its metadata, and a mark where events are missing.
//!
//! Server-sent events carry the cursor in `id:`; gRPC has no field for it. No binding has a field for a gap.
//!
//! The metadata of each event has `urn:a2a-service:resume:v1/cursor`, the value for `Last-Event-ID`, which gRPC clients send as
//! metadata. If the log does not have the events after the caller's cursor, because they are deleted or differ, the stream begins
//! with the current task, marked by `urn:a2a-service:resume:v1/gap = true`.

use super::{Payload, Struct, metadata_mut};
use crate::protocol::{
    event::{Cursor, Event},
    json::wkt::{Value, value::Kind},
    messages::v1::AgentExtension,
};

/// URI of the extension.
pub const URI: &str = "urn:a2a-service:resume:v1";

const CURSOR: &str = "urn:a2a-service:resume:v1/cursor";
const GAP: &str = "urn:a2a-service:resume:v1/gap";

/// Returns the declaration on the agent card.
pub(crate) fn declaration() -> AgentExtension {
    AgentExtension {
        uri: URI.to_owned(),
        description:
            "The metadata of each stream event has the cursor with which Last-Event-ID resumes the stream after it."
                .to_owned(),
        ..AgentExtension::default()
    }
}

/// Adds the cursor to the metadata of an event, and the mark of a gap before it. Leaves events without a cursor as they are.
pub(crate) fn with_cursor(event: Event, gap: bool) -> Event {
    let Some(cursor) = event.cursor().map(ToString::to_string) else { return event };
    let (position, mark) = (event.position(), event.mark());
    let Some(mut payload) = event.into_response().payload else { return Event::default() };
    let metadata = metadata_mut(&mut payload).get_or_insert_default();
    metadata.fields.insert(CURSOR.to_owned(), Value { kind: Some(Kind::StringValue(cursor)) });
    if gap {
        mark_gap(metadata);
    }
    Event::new(position, mark, payload)
}

/// Marks a received event: others are missing before it.
pub(crate) fn with_gap(event: Event) -> Event {
    change(event, mark_gap)
}

fn mark_gap(metadata: &mut Struct) {
    metadata.fields.insert(GAP.to_owned(), Value { kind: Some(Kind::BoolValue(true)) });
}

/// Removes the cursor from the metadata of a received event, for callers that did not request the extension.
pub(crate) fn without_cursor(event: Event) -> Event {
    if event.payload().and_then(cursor).is_none() {
        return event;
    }
    change(event, |metadata| _ = metadata.fields.remove(CURSOR))
}

fn change(event: Event, change: impl FnOnce(&mut Struct)) -> Event {
    let (cursor, mut message) = (event.cursor().cloned(), event.into_response());
    if let Some(metadata) = message.payload.as_mut().map(metadata_mut) {
        change(metadata.get_or_insert_default());
        metadata.take_if(|metadata| metadata.fields.is_empty());
    }
    Event::from_remote(cursor, message)
}

/// Returns the cursor in the metadata of a received event.
pub fn cursor(event: &Payload) -> Option<Cursor> {
    match &metadata(event)?.fields.get(CURSOR)?.kind {
        Some(Kind::StringValue(text)) => Cursor::from_text(text),
        _ => None,
    }
}

/// Returns true if events are missing before this event of a resumed stream.
pub fn is_gap(event: &Payload) -> bool {
    let mark = metadata(event).and_then(|metadata| metadata.fields.get(GAP));
    mark.is_some_and(|mark| mark.kind == Some(Kind::BoolValue(true)))
}

fn metadata(event: &Payload) -> Option<&Struct> {
    match event {
        Payload::Task(task) => task.metadata.as_ref(),
        Payload::Message(message) => message.metadata.as_ref(),
        Payload::StatusUpdate(update) => update.metadata.as_ref(),
        Payload::ArtifactUpdate(update) => update.metadata.as_ref(),
    }
}
