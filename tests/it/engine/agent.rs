//! Agent API: what a turn gives the agent, and how artifacts, saved state and updates reach callers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, End, Turn, Updates},
    auth::Principal,
    call::Call,
    error::ErrorKind,
    event::Event,
    pb::v1::{
        Artifact, CancelTaskRequest, ListTasksRequest, Message, Part, SendMessageConfiguration, SendMessageRequest,
        Task, TaskState, TaskStatus, send_message_response::Payload, stream_response::Payload as StreamPayload,
    },
    service::Limits,
    store::{Scope, Store, TaskKey, memory::Memory, sqlite::Options},
    task,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::support::*;
use crate::{gate::Gate, store::opened::OpenedStore};

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

/// Artifacts by id as a caller sees them: name, description, text, and number of metadata members.
fn seen(task: &Task) -> BTreeMap<&str, (&str, &str, String, usize)> {
    let mut all = BTreeMap::new();
    for Artifact { artifact_id, name, description, parts, metadata, .. } in &task.artifacts {
        let text = parts.iter().filter_map(Part::as_text).collect();
        let members = metadata.as_ref().map_or(0, |object| object.fields.len());
        all.insert(artifact_id.as_str(), (name.as_str(), description.as_str(), text, members));
    }
    assert_eq!(all.len(), task.artifacts.len(), "artifact ids are unique");
    all
}

async fn writes(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    if turn.text() == "again" {
        // Second turn: replaces artifact 1, appends to artifact 2 and, with `appending`, creates artifact 4.
        out.artifact("one").id("1").text("new").await?;
        out.artifact("two").id("2").appending().metadata(&json!({"b": 2}))?.text("+").await?;
        out.artifact("four").id("4").appending().describe("fresh").text("4").await?;
        return Ok(End::input_required("more?"));
    }
    let mut one = out.artifact("one").id("1").describe("the first").metadata(&json!({"a": 1}))?;
    let mut two = out.artifact("two").id("2").metadata(&json!({"a": 1}))?;
    one.text("a").await?;
    one.text("b").await?;
    two.text("x").await?;
    one.text("c").await?;
    two.parts(vec![Part::text("y"), Part::data(&json!({"z": [1, null]}))?]).await?;
    out.working().await?;
    one.last().bytes(vec![0, 255], "application/octet-stream").await?;
    out.artifact("three").id("3").file("https://example.com/3", "text/plain").await?;
    Ok(End::input_required("more?"))
}

async fn writes_pieces(_: Turn, out: Updates) -> Result<End, agent::Error> {
    out.artifact("a").id("a").parts(vec![Part::text("one "), Part::text("two")]).await?;
    out.artifact("b").id("b").text("three").await?;
    Ok(End::Completed(None))
}

/// The log, and so a resumed stream, has the parts of an artifact as they were sent; a task has them joined.
#[tokio::test(start_paused = true)]
async fn log_has_the_parts_that_a_task_has_joined() {
    let text = |texts: &[&str]| texts.iter().copied().map(Part::text).collect::<Vec<_>>();
    let (sent, joined) = ([text(&["one ", "two"]), text(&["three"])], [text(&["one two"]), text(&["three"])]);
    let in_events = |events: &[Event]| {
        let parts = events.iter().filter_map(|event| match event.payload()? {
            StreamPayload::ArtifactUpdate(update) => Some(update.artifact.as_ref()?.parts.clone()),
            StreamPayload::Task(_) | StreamPayload::Message(_) | StreamPayload::StatusUpdate(_) => None,
        });
        parts.collect::<Vec<_>>()
    };
    for store in stores() {
        let bench = bench(Arc::clone(&store), writes_pieces);
        // Without a reader, the content of the events is in the task that they end.
        let blocking = bench.send(Message::user("go")).await.unwrap();
        let mut events = bench.stream(Message::user("go")).await.unwrap();
        let streamed = remaining_events(&mut events).await;
        drop(events);
        bench.wait_until_evicted().await;
        assert_eq!(in_events(&streamed), sent);
        let id = task_in(&streamed[0]).id.clone();
        let list = ListTasksRequest { include_artifacts: Some(true), ..Default::default() };
        let listed = bench.list(list).await.unwrap().tasks;
        assert_eq!(listed.len(), 2);
        for task in
            listed.iter().chain([&blocking, &bench.get(&blocking.id).await.unwrap(), &bench.get(&id).await.unwrap()])
        {
            assert_eq!(task.artifacts.iter().map(|artifact| artifact.parts.clone()).collect::<Vec<_>>(), joined);
        }
        assert_eq!(in_events(&bench.log(&*store, &blocking.id).await), sent);
        let resumed = remaining_events(&mut bench.resume(&id, streamed[0].cursor()).await.unwrap()).await;
        let json = |events: &[Event]| events.iter().map(|event| event.json().clone()).collect::<Vec<_>>();
        assert_eq!((&resumed[..], json(&resumed)), (&streamed[1..], json(&streamed[1..])));
    }
}

#[tokio::test(start_paused = true)]
async fn artifact_updates_fold_to_one_artifact_per_id_in_every_read() {
    for store in stores() {
        let bench = bench(store, writes);
        let mut events = bench.stream(Message::user("go")).await.unwrap();
        let streamed = remaining_events(&mut events).await;
        let mut folded = task_in(&streamed[0]).clone();
        streamed[1..].iter().filter_map(Event::payload).for_each(|payload| task::apply(&mut folded, payload));
        let blocking = bench.send(Message::user("go")).await.unwrap();
        for task in [&folded, &bench.get(&folded.id).await.unwrap(), &blocking] {
            let seen = seen(task);
            assert_eq!(seen["1"], ("one", "the first", "abc".into(), 1));
            assert_eq!((&seen["2"].2, seen["2"].3, task.artifacts[1].parts.len()), (&"xy".into(), 1, 2));
            assert_eq!((seen["3"].0, task.artifacts.len()), ("three", 3));
        }
        drop(events);
        bench.wait_until_evicted().await;
        let again = bench.send(follow_up(&folded.id, "again")).await.unwrap();
        let list = ListTasksRequest { include_artifacts: Some(true), ..Default::default() };
        let listed = bench.list(list).await.unwrap().tasks.into_iter().find(|task| task.id == again.id).unwrap();
        for task in [&again, &bench.get(&again.id).await.unwrap(), &listed] {
            let seen = seen(task);
            assert_eq!(seen["1"], ("one", "", "new".into(), 0));
            assert_eq!((&seen["2"].2, seen["2"].3), (&"xy+".into(), 2));
            assert_eq!((seen["4"].0, seen["4"].1, task.artifacts.len()), ("four", "fresh", 4));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn turn_exposes_the_request_context_of_its_message() {
    let observed: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorder = Arc::clone(&observed);
    let mut limits = Limits::default();
    limits.turn_deadline = Duration::from_secs(77);
    let bench = with_limits(Arc::new(Memory::default()), limits, move |turn: Turn, _| {
        let mut observed = recorder.lock();
        observed.push(format!(
            "{} {} {:?}",
            turn.owner(),
            turn.tenant(),
            turn.principal().map(|principal| &principal.id)
        ));
        observed.push(format!("{:?} {:?}", turn.extensions(), turn.accepted_output_modes()));
        let metadata = turn.metadata().map(|metadata| metadata.fields.keys().cloned().collect::<Vec<_>>());
        observed.push(format!("{metadata:?} {}", turn.attempt()));
        assert_eq!(turn.deadline() - Instant::now(), Duration::from_secs(77));
        assert_eq!((turn.task_id(), turn.context_id()), (&*turn.task().id, &*turn.task().context_id));
        drop(observed);
        async move { Ok(End::reply(turn.text())) }
    });
    let principal = Principal::new("Ada").owner("ada");
    let call = Call { extensions: vec!["urn:x".into()], ..Call::of_principal(principal) };
    let modes = vec!["image/png".to_owned()];
    let request = SendMessageRequest {
        tenant: "blue".into(),
        message: Some(Message::user("a").and(Part::url("https://example.com", "")).and(Part::text("b"))),
        configuration: Some(SendMessageConfiguration { accepted_output_modes: modes, ..Default::default() }),
        metadata: Some(serde_json::from_value(json!({"k": 1})).unwrap()),
    };
    let answer = bench.api.send_message(call.request(request)).await.unwrap().into_inner().payload.unwrap();
    let Payload::Message(answer) = answer else { panic!("a task") };
    assert_eq!(answer.text(), "a\n[file https://example.com]\nb");
    assert_eq!(*observed.lock(), [r#"ada blue Some("Ada")"#, r#"[] ["image/png"]"#, r#"Some(["k"]) 1"#]);
}

#[tokio::test(start_paused = true)]
async fn saved_state_is_available_to_later_turns_of_the_task() {
    for store in stores() {
        let bench = bench(store, |turn: Turn, out: Updates| async move {
            let before: Option<Vec<String>> = turn.saved();
            let mut words = before.clone().unwrap_or_default();
            if turn.text() == "as-text" {
                // Saved state of another type reads as absent.
                assert_eq!(turn.saved::<String>(), None);
            }
            words.push(turn.text().to_owned());
            if turn.text() != "quiet" {
                out.save(&words).await?;
            }
            Ok(End::input_required(format!("{before:?}")))
        });
        let task = bench.send(Message::user("a")).await.unwrap();
        assert_eq!(status_text(&task), "None");
        let mut subscribed = None;
        for (text, expected) in [
            ("b", r#"Some(["a"])"#),
            ("quiet", r#"Some(["a", "b"])"#),
            ("as-text", r#"Some(["a", "b"])"#),
            ("c", r#"Some(["a", "b", "as-text"])"#),
        ] {
            // The task is evicted between the first turns; later a subscriber keeps it in memory.
            match &subscribed {
                None => bench.wait_until_evicted().await,
                Some(_) => assert_eq!(bench.service.live_tasks(), 1),
            }
            assert_eq!(status_text(&bench.send(follow_up(&task.id, text)).await.unwrap()), expected);
            if text == "quiet" {
                subscribed = Some(bench.subscribe(&task.id).await.unwrap());
            }
        }
        // Saved state is per task, not per context.
        let other = Message { context_id: task.context_id.clone(), ..Message::user("x") };
        assert_eq!(status_text(&bench.send(other).await.unwrap()), "None");
    }
}

#[tokio::test(start_paused = true)]
async fn history_of_a_turn_has_all_earlier_messages() {
    for store in stores() {
        let bench = bench(store, |turn: Turn, out: Updates| async move {
            let history: Vec<_> = turn.history().map(Message::text).collect();
            out.progress(format!("on {}", turn.text())).await?;
            out.artifact("history").last().text(history.join("|")).await?;
            Ok(End::input_required(format!("{}?", turn.text())))
        });
        let id = bench.send(Message::user("a")).await.unwrap().id;
        bench.wait_until_evicted().await;
        bench.send(follow_up(&id, "b")).await.unwrap();
        let _live = bench.subscribe(&id).await.unwrap();
        let task = bench.send(follow_up(&id, "c")).await.unwrap();
        let histories: Vec<_> = task.artifacts.iter().filter_map(|artifact| artifact.parts[0].as_text()).collect();
        assert_eq!(histories, ["", "a|on a|a?", "a|on a|a?|b|on b|b?"]);
    }
}

#[tokio::test(start_paused = true)]
async fn turn_resolves_referenced_tasks_of_the_same_owner() {
    let bench = bench(Arc::new(Memory::default()), |turn: Turn, out: Updates| async move {
        let texts: Vec<_> = turn.referenced().iter().map(|task| task.history[0].text()).collect();
        out.artifact("seen").last().text(texts.join("|")).await?;
        Ok(End::Completed(None))
    });
    let (mut ids, foreign) = (Vec::new(), bench.as_owner("bob").send(Message::user("bob's")).await.unwrap().id);
    for text in ["a", "b"] {
        ids.push(bench.send(Message::user(text)).await.unwrap().id);
    }
    let referencing = |ids: &[String]| Message { reference_task_ids: ids.to_vec(), ..Message::user("look") };
    let task = bench.send(referencing(&[ids[1].clone(), foreign, "no-such".into(), ids[0].clone()])).await.unwrap();
    assert_eq!(task.artifacts[0].parts[0].as_text(), Some("b|a"));
    assert_eq!(task.history[0].reference_task_ids.len(), 4);
    let refused = bench.send(referencing(&vec!["x".to_owned(); 17])).await.unwrap_err();
    assert_eq!(refused.violations()[0].field, "message.referenceTaskIds");
    assert_eq!(refused.kind(), ErrorKind::InvalidParams);
}

/// Cancellation and drain futures that are created and dropped repeatedly leave no waker behind.
#[tokio::test(start_paused = true)]
async fn agent_can_poll_for_cancellation_repeatedly() {
    let bench = bench(Arc::new(Memory::default()), |turn: Turn, out: Updates| async move {
        for n in 0..1000 {
            tokio::select! {
                biased;
                () = turn.canceled() => return Err(agent::Stopped.into()),
                () = turn.draining() => return Ok(End::Completed(None)),
                () = sleep_ms(10) => if n % 100 == 0 { out.working().await? },
            }
        }
        Ok(End::Completed(None))
    });
    let sent = bench.spawn_send(Message::user("go"));
    assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::Completed);
    let mut events = bench.stream(Message::user("go")).await.unwrap();
    let id = task_id(&next_event(&mut events).await);
    sleep_ms(25).await;
    let started = Instant::now();
    assert_eq!(bench.cancel(&id).await.unwrap().state(), TaskState::Canceled);
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn flush_returns_once_all_updates_are_durable() {
    let file = OpenedStore::sqlite(Options::default());
    for store in stores().into_iter().chain([Arc::clone(&file.store)]) {
        let written = Arc::clone(&store);
        let bench = bench(Arc::clone(&store), move |turn: Turn, out: Updates| {
            let written = Arc::clone(&written);
            async move {
                out.flush().await?;
                let scope = Scope { owner: turn.owner().into(), tenant: turn.tenant().into() };
                let key = TaskKey::new(&Arc::new(scope), turn.task_id());
                for n in 1..=3 {
                    out.artifact("n").text(n.to_string()).await?;
                    out.flush().await?;
                    let log = written.events(&key, 0, usize::MAX >> 1, usize::MAX).await?;
                    assert_eq!(log.iter().filter_map(Event::artifact_update).count(), n);
                    out.save(&n).await?;
                    out.flush().await?;
                    let stored = written.load(&key).await?.and_then(|task| task.agent_state);
                    assert_eq!(stored.as_deref(), Some(n.to_string().as_bytes()));
                }
                out.progress("flushed").await?;
                turn.canceled().await;
                Err(out.flush().await.unwrap_err().into())
            }
        });
        let mut events = bench.stream(Message::user("go")).await.unwrap();
        let id = task_id(&next_event(&mut events).await);
        while next_event(&mut events).await.status_update().is_none() {}
        assert_eq!(bench.cancel(&id).await.unwrap().state(), TaskState::Canceled);
    }
}

#[tokio::test(start_paused = true)]
async fn flush_waits_for_the_store() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), |_, out: Updates| async move {
        let started = Instant::now();
        out.working().await?;
        assert_eq!(started.elapsed(), Duration::ZERO);
        out.flush().await?;
        assert_eq!(started.elapsed(), Duration::from_secs(2));
        Ok(End::Completed(None))
    });
    let sent = bench.spawn_send(Message::user("go"));
    sleep_ms(2000).await;
    gate.open();
    assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::Completed);
}

#[tokio::test(start_paused = true)]
async fn status_messages_and_events_carry_parts_and_metadata() {
    fn message(text: &str) -> Message {
        Message::agent(text).and(Part::url("https://example.com", "")).with_metadata(&json!({"k": text})).unwrap()
    }
    for store in stores() {
        let bench = bench(store, |_, out: Updates| async move {
            let first = out.with_metadata(&json!({"step": 1}))?;
            first.progress(message("begun")).await?;
            let mut artifact = first.artifact("a").id("a");
            artifact.text("one").await?;
            out.artifact("a").id("a").appending().text("two").await?;
            assert!(out.with_metadata(&"no object").is_err());
            Err(agent::Error::public(message("over")))
        });
        let mut events = bench.stream(Message::user("go")).await.unwrap();
        let events = remaining_events(&mut events).await;
        let of = |status: &TaskStatus| {
            let message = status.message.as_ref().unwrap();
            (status.state(), message.text(), message.parts.len(), serde_json::to_value(&message.metadata).unwrap())
        };
        let statuses: Vec<_> = events.iter().filter_map(Event::status_update).collect();
        let [begun, over] = statuses[..] else { panic!("{statuses:?}") };
        let (first, last) = (begun.status.as_ref().map(of), over.status.as_ref().map(of));
        assert_eq!(first, Some((TaskState::Working, "begun".to_owned(), 2, json!({"k": "begun"}))));
        let (state, text, parts, mut metadata) = last.unwrap();
        assert!(metadata.as_object_mut().unwrap().remove("errorId").unwrap().is_string());
        assert_eq!((state, &*text, parts, metadata), (TaskState::Failed, "over", 2, json!({"k": "over"})));
        let chunks: Vec<_> = events.iter().filter_map(Event::artifact_update).collect();
        let [one, two] = chunks[..] else { panic!("chunks with different metadata are not joined: {chunks:?}") };
        let metadata = [&begun.metadata, &one.metadata, &two.metadata, &over.metadata];
        assert_eq!(serde_json::to_value(metadata).unwrap(), json!([{"step": 1}, {"step": 1}, null, null]));
    }
}

#[tokio::test(start_paused = true)]
async fn agent_gets_the_metadata_of_the_first_cancel_request() {
    for store in stores() {
        let bench = bench(store, |turn: Turn, out: Updates| async move {
            out.working().await?;
            assert_eq!(turn.cancel_metadata(), None);
            turn.canceled().await;
            sleep_ms(10).await;
            Ok(End::completed(serde_json::to_string(&turn.cancel_metadata())?))
        });
        let mut events = bench.stream(Message::user("go")).await.unwrap();
        let id = task_id(&next_event(&mut events).await);
        while state_in(&next_event(&mut events).await) != Some(TaskState::Working) {}
        let cancel = |metadata: serde_json::Value| {
            let metadata = serde_json::from_value(metadata).unwrap();
            let request = CancelTaskRequest { tenant: bench.tenant.clone(), id: id.clone(), metadata };
            bench.api.cancel_task(bench.call.clone().request(request))
        };
        let (first, second) = tokio::join!(cancel(json!({"reason": "late"})), cancel(json!({"reason": "later"})));
        assert!(first.is_err() && second.is_err());
        assert_eq!(status_text(&bench.get(&id).await.unwrap()), r#"{"reason":"late"}"#);
    }
}
