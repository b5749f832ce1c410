//! Memory that decoded messages occupy beyond their encoded bytes: an empty part takes two bytes in protobuf and over a hundred in
//! memory, a number in a list 11 and 32. Estimated from the sizes of parts and values; texts are in the encoded bytes.

use crate::protocol::{
    json::wkt::{Struct, Value, value::Kind},
    messages::v1::{Artifact, Message, Part, Task, TaskStatus, part::Content, stream_response::Payload},
};

/// Members in a node of the map of an object, and the minimum if there are several nodes.
const NODE: (usize, usize) = (11, 5);

/// Returns the memory of the parts and values of an event.
pub(crate) fn of_event(payload: &Payload) -> usize {
    match payload {
        Payload::Task(task) => of_task(task),
        Payload::Message(message) => of_message(message),
        Payload::StatusUpdate(update) => of_status(update.status.as_ref()) + of_metadata(update.metadata.as_ref()),
        Payload::ArtifactUpdate(update) => {
            update.artifact.as_ref().map_or(0, of_artifact) + of_metadata(update.metadata.as_ref())
        }
    }
}

/// Returns the memory of the parts and values of a task.
pub(crate) fn of_task(task: &Task) -> usize {
    let history = task.history.iter().map(|message| size_of::<Message>() + of_message(message)).sum::<usize>();
    let artifacts = task.artifacts.iter().map(|artifact| size_of::<Artifact>() + of_artifact(artifact)).sum::<usize>();
    history + artifacts + of_status(task.status.as_ref()) + of_metadata(task.metadata.as_ref())
}

/// Returns the memory of the parts and values of an artifact.
pub(crate) fn of_artifact(artifact: &Artifact) -> usize {
    of_parts(&artifact.parts) + of_metadata(artifact.metadata.as_ref()) + of_texts(&artifact.extensions)
}

/// Returns the memory of a list of parts.
pub(crate) fn of_parts(parts: &[Part]) -> usize {
    let content = |part: &Part| match &part.content {
        Some(Content::Data(value)) => of_value(value),
        Some(Content::Text(_) | Content::Raw(_) | Content::Url(_)) | None => 0,
    };
    parts.iter().map(|part| size_of::<Part>() + of_metadata(part.metadata.as_ref()) + content(part)).sum()
}

fn of_message(message: &Message) -> usize {
    let texts = of_texts(&message.extensions) + of_texts(&message.reference_task_ids);
    of_parts(&message.parts) + of_metadata(message.metadata.as_ref()) + texts
}

fn of_status(status: Option<&TaskStatus>) -> usize {
    status.and_then(|status| status.message.as_ref()).map_or(0, of_message)
}

fn of_metadata(metadata: Option<&Struct>) -> usize {
    metadata.map_or(0, of_object)
}

fn of_texts(texts: &[String]) -> usize {
    size_of_val(texts)
}

fn of_value(value: &Value) -> usize {
    match &value.kind {
        Some(Kind::ListValue(list)) => list.values.iter().map(|value| size_of::<Value>() + of_value(value)).sum(),
        Some(Kind::StructValue(object)) => of_object(object),
        _ => 0,
    }
}

/// Nodes of the map are counted as if they had as few members as they may.
fn of_object(object: &Struct) -> usize {
    let (most, least) = NODE;
    let nodes = object.fields.len().div_ceil(if object.fields.len() > most { least } else { most });
    nodes * most * size_of::<(String, Value)>() + object.fields.values().map(of_value).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_data(json: &str) -> usize {
        of_parts(&[Content::Data(serde_json::from_str(json).unwrap()).into()]) - size_of::<Part>()
    }

    #[test]
    fn parts_and_values_count_what_they_occupy() {
        assert_eq!(of_parts(&vec![Part::default(); 1000]), 1000 * size_of::<Part>());
        assert_eq!(of_parts(&[Part::text("x".repeat(1000))]), size_of::<Part>(), "texts are in the encoded bytes");
        assert_eq!(of_data("[1, null, [true]]"), 4 * size_of::<Value>());
        assert_eq!(of_data("{}"), 0);
        let node = 11 * size_of::<(String, Value)>();
        assert_eq!(of_data(r#"{"a": 1, "b": {"c": 2}}"#), 2 * node);
        let members: Vec<_> = (0..12).map(|n| format!(r#""{n}": {n}"#)).collect();
        assert_eq!(of_data(&format!("{{{}}}", members.join(","))), 3 * node);
    }
}
