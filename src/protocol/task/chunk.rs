//! Joining of artifact chunks before they become events.

use crate::protocol::messages::v1::{Artifact, TaskArtifactUpdateEvent};

/// Returns whether `second` can be joined to `first`.
pub fn can_join(first: &TaskArtifactUpdateEvent, second: &TaskArtifactUpdateEvent) -> bool {
    let fits = second.append && !first.last_chunk && first.metadata.is_none() && second.metadata.is_none();
    match (&first.artifact, &second.artifact) {
        (Some(old), Some(new)) => fits && old.artifact_id == new.artifact_id && is_bare(new),
        _ => false,
    }
}

/// Joins `second` to `first`, before either has a sequence number: many small events cost the log and its readers more
/// than their content. Returns `false` and changes nothing if the chunks must stay separate.
pub fn join_chunks(first: &mut TaskArtifactUpdateEvent, second: &mut TaskArtifactUpdateEvent) -> bool {
    let fits = can_join(first, second);
    match (&mut first.artifact, &mut second.artifact) {
        (Some(old), Some(new)) if fits => {
            old.parts.append(&mut new.parts);
            first.last_chunk = second.last_chunk;
            true
        }
        _ => false,
    }
}

/// Returns whether a chunk has nothing but an id and parts.
fn is_bare(chunk: &Artifact) -> bool {
    chunk.name.is_empty() && chunk.description.is_empty() && chunk.metadata.is_none() && chunk.extensions.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::{
        pb::v1::{TaskState, stream_response::Payload},
        task::{
            apply,
            tests::{chunk, task_in},
        },
    };

    proptest! {
        /// The artifact is the same whether its chunks are joined or not.
        #[test]
        fn joined_chunks_fold_to_the_same_artifact(
            chunks in proptest::collection::vec(("[ab]", "[a-z]{0,3}", any::<bool>(), any::<bool>()), 1..20),
        ) {
            let all: Vec<_> = chunks.iter().map(|(id, text, append, last)| {
                TaskArtifactUpdateEvent { last_chunk: *last, ..chunk(id, text, *append) }
            }).collect();
            let fold = |events: &[TaskArtifactUpdateEvent]| {
                let mut task = task_in(TaskState::Working);
                for event in events {
                    apply(&mut task, &Payload::ArtifactUpdate(event.clone()));
                }
                task.artifacts
            };
            let mut joined: Vec<TaskArtifactUpdateEvent> = Vec::new();
            for chunk in &all {
                let mut chunk = chunk.clone();
                if !joined.last_mut().is_some_and(|first| join_chunks(first, &mut chunk)) {
                    joined.push(chunk);
                }
            }
            prop_assert!(joined.len() <= all.len());
            prop_assert_eq!(fold(&joined), fold(&all));
        }
    }
}
