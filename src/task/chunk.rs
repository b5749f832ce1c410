//! Chunks of an artifact before they are events.

use crate::pb::v1::{Artifact, TaskArtifactUpdateEvent};

/// Returns whether a chunk can be put behind another.
pub fn joins(first: &TaskArtifactUpdateEvent, second: &TaskArtifactUpdateEvent) -> bool {
    let fits = second.append && !first.last_chunk && second.metadata.is_none();
    match (&first.artifact, &second.artifact) {
        (Some(old), Some(new)) => fits && old.artifact_id == new.artifact_id && is_bare(new),
        _ => false,
    }
}

/// Puts one chunk behind another of the same artifact, before they have a number each: many small ones cost a log and
/// its readers more than they weigh. Says whether it did; else they must stay apart.
pub fn join(first: &mut TaskArtifactUpdateEvent, second: &mut TaskArtifactUpdateEvent) -> bool {
    let fits = joins(first, second);
    match (&mut first.artifact, &mut second.artifact) {
        (Some(old), Some(new)) if fits => {
            old.parts.append(&mut new.parts);
            first.last_chunk = second.last_chunk;
            true
        }
        _ => false,
    }
}

/// What a chunk weighs, as far as that tells small ones from large ones.
pub fn heft(chunk: &TaskArtifactUpdateEvent) -> usize {
    const FRAME: usize = 8;
    let parts = chunk.artifact.iter().flat_map(|it| &it.parts);
    parts.map(|it| it.as_text().map_or_else(|| prost::Message::encoded_len(it), str::len) + FRAME).sum()
}

/// Says nothing but parts.
fn is_bare(it: &Artifact) -> bool {
    it.name.is_empty() && it.description.is_empty() && it.metadata.is_none() && it.extensions.is_empty()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        pb::v1::{TaskState, stream_response::Payload},
        task::{
            apply,
            tests::{chunk, task_in},
        },
    };

    proptest! {
        /// However chunks are cut into events, the artifact is the same.
        #[test]
        fn joining_changes_nothing_but_the_number_of_events(
            chunks in proptest::collection::vec(("[ab]", "[a-z]{0,3}", any::<bool>(), any::<bool>()), 1..20),
        ) {
            let all: Vec<_> = chunks.iter().map(|(id, text, append, last)| {
                TaskArtifactUpdateEvent { last_chunk: *last, ..chunk(id, text, *append) }
            }).collect();
            let fold = |events: &[TaskArtifactUpdateEvent]| {
                let mut task = task_in(TaskState::Working);
                for it in events {
                    apply(&mut task, &Payload::ArtifactUpdate(it.clone()));
                }
                task.artifacts
            };
            let mut joined: Vec<TaskArtifactUpdateEvent> = Vec::new();
            for it in &all {
                let mut it = it.clone();
                if !joined.last_mut().is_some_and(|first| join(first, &mut it)) {
                    joined.push(it);
                }
            }
            prop_assert!(joined.len() <= all.len());
            prop_assert_eq!(fold(&joined), fold(&all));
        }
    }
}
