//! The extension by which every client learns where its stream can be taken up again, and whether it has missed
//! something: server-sent events have a place for the one, gRPC has none, and nothing has one for the other.
//!
//! Of each event of a stream the metadata has `urn:a2a-service:resume:v1/cursor`, which is what `Last-Event-ID` takes, as
//! metadata of gRPC too. Where events are missing before it, because the log does not have them any more or had
//! others, it has `urn:a2a-service:resume:v1/gap` too, which is true: the event is the task as it is.

use super::metadata_mut;
use crate::{
    event::{Cursor, Event},
    pb::{
        v1::{AgentExtension, stream_response::Payload},
        wkt::{Struct, Value, value::Kind},
    },
};

/// Names the extension.
pub const URI: &str = "urn:a2a-service:resume:v1";

const CURSOR: &str = "urn:a2a-service:resume:v1/cursor";
const GAP: &str = "urn:a2a-service:resume:v1/gap";

/// What the card says of it.
pub(crate) fn declared() -> AgentExtension {
    AgentExtension {
        uri: URI.to_owned(),
        description:
            "The metadata of each event of a stream has the cursor after which Last-Event-ID takes the stream up."
                .to_owned(),
        ..AgentExtension::default()
    }
}

/// The event with its marks. What no log has, has no place in one.
pub(crate) fn mark(event: Event, gap: bool) -> Event {
    let Some(cursor) = event.cursor().map(ToString::to_string) else { return event };
    let (position, mark) = (event.position(), event.mark());
    let Some(mut payload) = event.into_message().payload else { return Event::default() };
    let metadata = metadata_mut(&mut payload).get_or_insert_default();
    metadata.fields.insert(CURSOR.to_owned(), Value { kind: Some(Kind::StringValue(cursor)) });
    if gap {
        mark_gap(metadata);
    }
    Event::new(position, mark, payload)
}

/// The same event, which says that others are missing before it. Of an event from elsewhere.
pub(crate) fn after_gap(event: Event) -> Event {
    change(event, mark_gap)
}

fn mark_gap(metadata: &mut Struct) {
    metadata.fields.insert(GAP.to_owned(), Value { kind: Some(Kind::BoolValue(true)) });
}

/// The same event without its cursor in the metadata, for who did not ask for one. Of an event from elsewhere.
pub(crate) fn unmarked(event: Event) -> Event {
    if event.payload().and_then(cursor).is_none() {
        return event;
    }
    change(event, |it| _ = it.fields.remove(CURSOR))
}

fn change(event: Event, change: impl FnOnce(&mut Struct)) -> Event {
    let (cursor, mut message) = (event.cursor().cloned(), event.into_message());
    if let Some(it) = message.payload.as_mut().map(metadata_mut) {
        change(it.get_or_insert_default());
        it.take_if(|it| it.fields.is_empty());
    }
    Event::elsewhere(cursor, message)
}

/// The cursor of an event that came from elsewhere.
pub fn cursor(event: &Payload) -> Option<Cursor> {
    match &metadata(event)?.fields.get(CURSOR)?.kind {
        Some(Kind::StringValue(it)) => Cursor::from_text(it),
        _ => None,
    }
}

/// Whether events are missing before this one, of a stream that was taken up again.
pub fn is_gap(event: &Payload) -> bool {
    let mark = metadata(event).and_then(|it| it.fields.get(GAP));
    mark.is_some_and(|it| it.kind == Some(Kind::BoolValue(true)))
}

fn metadata(event: &Payload) -> Option<&Struct> {
    match event {
        Payload::Task(it) => it.metadata.as_ref(),
        Payload::Message(it) => it.metadata.as_ref(),
        Payload::StatusUpdate(it) => it.metadata.as_ref(),
        Payload::ArtifactUpdate(it) => it.metadata.as_ref(),
    }
}
