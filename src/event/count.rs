//! Counter of event encodings, for tests: an event is encoded at most once per form, however many readers it has.

use super::Event;

#[derive(Clone, Copy)]
pub(crate) enum Form {
    Proto,
    Json,
}

#[cfg(test)]
static ENCODINGS: parking_lot::Mutex<std::collections::BTreeMap<String, [usize; 2]>> =
    parking_lot::Mutex::new(std::collections::BTreeMap::new());

#[cfg(test)]
pub(super) fn encoding(event: &Event, form: Form) {
    use crate::proto::v1::stream_response::Payload;
    if let Some(Payload::ArtifactUpdate(it)) = event.payload() {
        let mut all = ENCODINGS.lock();
        let counts = all.entry(it.task_id.clone()).or_default();
        match form {
            Form::Proto => counts[0] += 1,
            Form::Json => counts[1] += 1,
        }
    }
}

/// Returns the number of encodings of the artifact events of a task: in protobuf, and in JSON.
#[cfg(test)]
pub(crate) fn encodings(task_id: &str) -> [usize; 2] {
    ENCODINGS.lock().get(task_id).copied().unwrap_or_default()
}

#[cfg(not(test))]
pub(super) const fn encoding(_: &Event, _: Form) {}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, sync::Arc, time::Duration};

    use bytes::Bytes;
    use tokio::sync::Notify;
    use tokio_stream::StreamExt as _;
    use tonic::Request;

    use super::*;
    use crate::{
        agent::{self, End},
        call::Call,
        contract::{ParamSource, Params, Reply, streaming},
        execution::Limits,
        pb::v1::{
            Message, SendMessageConfiguration, SendMessageRequest, SubscribeToTaskRequest,
            a2a_service_server::A2aService, send_message_response,
        },
        service::Service,
        store::memory::Memory,
    };

    #[tokio::test(start_paused = true)]
    async fn an_event_is_encoded_once_for_all_who_read_it() {
        const EVENTS: usize = 1000;
        const READERS: usize = 100;
        let go = Arc::new(Notify::new());
        let gone = Arc::clone(&go);
        let agent = agent::from_fn(move |_, out| {
            let go = Arc::clone(&gone);
            async move {
                go.notified().await;
                let mut answer = out.artifact("a");
                for n in 0..EVENTS {
                    tokio::task::yield_now().await;
                    answer.text(n.to_string()).await?;
                }
                Ok(End::InputRequired(Message::agent("more?")))
            }
        });
        let limits = Limits { commit_interval: Duration::ZERO, ..Limits::default() };
        let service = Arc::new(Service::new(agent, Arc::new(Memory::default()), limits));
        let configuration = SendMessageConfiguration { return_immediately: true, ..Default::default() };
        let request = SendMessageRequest {
            message: Some(Message::user("go")),
            configuration: Some(configuration),
            ..Default::default()
        };
        let answer = service.send_message(Call::default().request(request)).await.unwrap().into_inner();
        let Some(send_message_response::Payload::Task(task)) = answer.payload else { panic!("no task") };
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..READERS {
            // As a subscriber by JSON has it …
            let params = Params {
                source: ParamSource::Json(Cow::Owned(format!(r#"{{"id": "{}"}}"#, task.id).into_bytes())),
                path: Vec::new(),
            };
            let subscribe = |it: Request<SubscribeToTaskRequest>| service.subscribe_to_task(it);
            let reply = streaming(Call::default().request(params), subscribe).await.unwrap();
            let Reply::Stream(frames, _) = reply else { panic!("no stream") };
            readers.spawn(async move {
                let frames: Vec<_> = frames.take(EVENTS + 2).map(|it| it.unwrap().data.bytes().clone()).collect().await;
                frames.iter().map(Bytes::len).sum::<usize>()
            });
            // … and as one by gRPC.
            let request = SubscribeToTaskRequest { id: task.id.clone(), ..Default::default() };
            let events = service.subscribe_to_task(Call::default().request(request)).await.unwrap().into_inner();
            readers.spawn(async move {
                let events: Vec<_> = events.take(EVENTS + 2).map(|it| it.unwrap()).collect().await;
                events.iter().map(|it| prost::Message::encode_to_vec(it).len()).sum()
            });
        }
        go.notify_one();
        let mut sizes = readers.join_all().await;
        sizes.sort_unstable();
        sizes.dedup();
        assert_eq!(sizes.len(), 2, "all read the same");
        assert_eq!(encodings(&task.id), [EVENTS; 2]);
    }
}
