//! Metadata of a task and extensions of an artifact, which an agent sets: stored, in each reply, and on streams.

use a2a_service::{
    agent::{self, End},
    pb::wkt::Struct,
    server::Server,
    task::apply,
};
use serde_json::json;

use super::*;
use crate::bindings::{Binding, each_binding, in_file, json_rpc_in_file};

fn text_of(metadata: Option<&Struct>) -> String {
    metadata.map(|metadata| serde_json::to_string(metadata).unwrap()).unwrap_or_default()
}

async fn metadata_of_tasks_is_stored_and_streamed(binding: Binding) {
    let agent = agent::from_fn(|_, out| async move {
        out.task_metadata(&json!({ "ticket": "T-1", "step": 1 })).await?;
        let mut answer = out.artifact("answer").extensions(["urn:citations"]);
        answer.text("4").await?;
        out.task_metadata(&json!({ "step": 2 })).await?;
        out.with_metadata(&json!({ "by": "x" }))?.progress("nearly").await?;
        answer.text("2").await?;
        Ok(End::completed("done"))
    });
    let agent = binding(Server::new(agent)).await;
    let events = remaining(stream(&*agent, text("", "go")).await).await;
    let updates = events.iter().filter_map(|event| match event.payload()? {
        Payload::StatusUpdate(update) => Some(text_of(update.metadata.as_ref())),
        Payload::Task(_) | Payload::Message(_) | Payload::ArtifactUpdate(_) => None,
    });
    assert_eq!(updates.collect::<Vec<_>>(), [r#"{"step":1,"ticket":"T-1"}"#, r#"{"step":2}"#, r#"{"by":"x"}"#, ""]);
    let mut seen = Task::default();
    events.iter().filter_map(Event::payload).for_each(|payload| apply(&mut seen, payload));
    let stored = get(&*agent, &seen.id).await.unwrap();
    for task in [&seen, &stored, &send(&*agent, text("", "go")).await] {
        assert_eq!(text_of(task.metadata.as_ref()), r#"{"by":"x","step":2,"ticket":"T-1"}"#);
        assert_eq!((output(task).as_str(), &*task.artifacts[0].extensions), ("42", &["urn:citations".to_owned()][..]));
    }
}

each_binding!(metadata_of_tasks_is_stored_and_streamed);

#[tokio::test]
async fn metadata_of_tasks_is_stored_in_files() {
    for binding in [in_file, json_rpc_in_file] {
        metadata_of_tasks_is_stored_and_streamed(binding).await;
    }
}
