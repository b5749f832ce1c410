//! What an agent is given, and what becomes of what it says.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, End, Turn, Updates},
    call::Call,
    error::ErrorKind,
    event::Event,
    pb::v1::{
        Artifact, ListTasksRequest, Message, Part, SendMessageConfiguration, SendMessageRequest, Task, TaskState,
        send_message_response::Payload,
    },
    service::Limits,
    store::{Store, memory::Memory},
    task,
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use super::support::*;
use crate::gate::Gate;

fn stores() -> [Arc<dyn Store>; 2] {
    [Arc::new(Memory::default()), Gate::opened()]
}

/// An artifact as callers see it: name, description, text, and how many members its metadata has.
fn seen(task: &Task) -> BTreeMap<&str, (&str, &str, String, usize)> {
    let mut all = BTreeMap::new();
    for Artifact { artifact_id, name, description, parts, metadata, .. } in &task.artifacts {
        let text = parts.iter().filter_map(Part::as_text).collect();
        let members = metadata.as_ref().map_or(0, |it| it.fields.len());
        all.insert(artifact_id.as_str(), (name.as_str(), description.as_str(), text, members));
    }
    assert_eq!(all.len(), task.artifacts.len(), "an id, an artifact");
    all
}

async fn writes(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    if turn.text() == "again" {
        // Over two turns: one takes the place of the old one, one goes on with it, and one that isn't there begins.
        out.artifact("one").id("1").text("new").await?;
        out.artifact("two").id("2").appending().metadata(&json!({"b": 2}))?.text("+").await?;
        out.artifact("four").id("4").appending().describe("fresh").text("4").await?;
        return Ok(End::InputRequired(Message::agent("more?")));
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
    Ok(End::InputRequired(Message::agent("more?")))
}

#[tokio::test(start_paused = true)]
async fn an_artifact_is_one_for_whoever_looks() {
    for store in stores() {
        let bench = bench(store, writes);
        let mut events = bench.stream(Message::user("go")).await.unwrap();
        let streamed = rest(&mut events).await;
        let mut folded = task_of(&streamed[0]).clone();
        streamed[1..].iter().filter_map(Event::payload).for_each(|it| task::apply(&mut folded, it));
        let blocking = bench.send(Message::user("go")).await.unwrap();
        for task in [&folded, &bench.get(&folded.id).await.unwrap(), &blocking] {
            let seen = seen(task);
            assert_eq!(seen["1"], ("one", "the first", "abc".into(), 1));
            assert_eq!((&seen["2"].2, seen["2"].3, task.artifacts[1].parts.len()), (&"xy".into(), 1, 3));
            assert_eq!((seen["3"].0, task.artifacts.len()), ("three", 3));
        }
        drop(events);
        bench.empty().await;
        let again = bench.send(to(&folded.id, "again")).await.unwrap();
        let list = ListTasksRequest { include_artifacts: Some(true), ..Default::default() };
        let listed = bench.list(list).await.unwrap().tasks.into_iter().find(|it| it.id == again.id).unwrap();
        for task in [&again, &bench.get(&again.id).await.unwrap(), &listed] {
            let seen = seen(task);
            assert_eq!(seen["1"], ("one", "", "new".into(), 0));
            assert_eq!((&seen["2"].2, seen["2"].3), (&"xy+".into(), 2));
            assert_eq!((seen["4"].0, seen["4"].1, task.artifacts.len()), ("four", "fresh", 4));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_knows_what_came_with_its_message() {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let tells = Arc::clone(&told);
    let mut limits = Limits::default();
    limits.turn = Duration::from_secs(77);
    let bench = limited(Arc::new(Memory::default()), limits, move |turn: Turn, _| {
        let mut told = tells.lock();
        told.push(format!("{} {} {:?}", turn.owner(), turn.tenant(), turn.principal()));
        told.push(format!("{:?} {:?}", turn.extensions(), turn.accepted_output_modes()));
        let metadata = turn.metadata().map(|it| it.fields.keys().cloned().collect::<Vec<_>>());
        told.push(format!("{metadata:?} {}", turn.attempt()));
        assert_eq!(turn.deadline() - Instant::now(), Duration::from_secs(77));
        assert_eq!((turn.task_id(), turn.context_id()), (&*turn.task().id, &*turn.task().context_id));
        drop(told);
        async move { Ok(End::Reply(Message::agent(turn.text()))) }
    });
    let call = Call { principal: Some("Ada".into()), extensions: vec!["urn:x".into()], ..Call::by("ada") };
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
    assert_eq!(*told.lock(), [r#"ada blue Some("Ada")"#, r#"[] ["image/png"]"#, r#"Some(["k"]) 1"#]);
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_saved_it_finds_in_its_next_turn() {
    for store in stores() {
        let bench = bench(store, |turn: Turn, out: Updates| async move {
            let before: Option<Vec<String>> = turn.saved();
            let mut words = before.clone().unwrap_or_default();
            if turn.text() == "as-text" {
                // What can't be read as this is as if it were not there.
                assert_eq!(turn.saved::<String>(), None);
            }
            words.push(turn.text().to_owned());
            if turn.text() != "quiet" {
                out.save(&words).await?;
            }
            Ok(End::InputRequired(Message::agent(format!("{before:?}"))))
        });
        let task = bench.send(Message::user("a")).await.unwrap();
        assert_eq!(said(&task), "None");
        let mut subscribed = None;
        for (text, expected) in [
            ("b", r#"Some(["a"])"#),
            ("quiet", r#"Some(["a", "b"])"#),
            ("as-text", r#"Some(["a", "b"])"#),
            ("c", r#"Some(["a", "b", "as-text"])"#),
        ] {
            // Out of memory, and in it.
            match &subscribed {
                None => bench.empty().await,
                Some(_) => assert_eq!(bench.service.live_tasks(), 1),
            }
            assert_eq!(said(&bench.send(to(&task.id, text)).await.unwrap()), expected);
            if text == "quiet" {
                subscribed = Some(bench.subscribe(&task.id).await.unwrap());
            }
        }
        // No other task has it.
        let other = Message { context_id: task.context_id.clone(), ..Message::user("x") };
        assert_eq!(said(&bench.send(other).await.unwrap()), "None");
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_sees_what_was_said_before() {
    for store in stores() {
        let bench = bench(store, |turn: Turn, out: Updates| async move {
            let history: Vec<_> = turn.history().map(Message::text).collect();
            out.progress(format!("on {}", turn.text())).await?;
            out.artifact("history").last().text(history.join("|")).await?;
            Ok(End::InputRequired(Message::agent(format!("{}?", turn.text()))))
        });
        let id = bench.send(Message::user("a")).await.unwrap().id;
        bench.empty().await;
        bench.send(to(&id, "b")).await.unwrap();
        let _live = bench.subscribe(&id).await.unwrap();
        let task = bench.send(to(&id, "c")).await.unwrap();
        let heard: Vec<_> = task.artifacts.iter().filter_map(|it| it.parts[0].as_text()).collect();
        assert_eq!(heard, ["", "a|on a|a?", "a|on a|a?|b|on b|b?"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_sees_the_tasks_that_its_message_refers_to() {
    let bench = bench(Arc::new(Memory::default()), |turn: Turn, out: Updates| async move {
        let texts: Vec<_> = turn.referenced().iter().map(|it| it.history[0].text()).collect();
        out.artifact("seen").last().text(texts.join("|")).await?;
        Ok(End::Completed(None))
    });
    let (mut ids, theirs) = (Vec::new(), bench.by("bob").send(Message::user("bob's")).await.unwrap().id);
    for text in ["a", "b"] {
        ids.push(bench.send(Message::user(text)).await.unwrap().id);
    }
    let of = |ids: &[String]| Message { reference_task_ids: ids.to_vec(), ..Message::user("look") };
    let task = bench.send(of(&[ids[1].clone(), theirs, "no-such".into(), ids[0].clone()])).await.unwrap();
    assert_eq!(task.artifacts[0].parts[0].as_text(), Some("b|a"));
    assert_eq!(task.history[0].reference_task_ids.len(), 4);
    let refused = bench.send(of(&vec!["x".to_owned(); 17])).await.unwrap_err();
    assert_eq!(refused.violations()[0].field, "message.referenceTaskIds");
    assert_eq!(refused.kind(), ErrorKind::InvalidParams);
}

/// A loop that asks again and again whether it is to stop leaves nothing behind with each time that it asks.
#[tokio::test(start_paused = true)]
async fn an_agent_may_ask_often_whether_it_is_canceled() {
    let bench = bench(Arc::new(Memory::default()), |turn: Turn, out: Updates| async move {
        for n in 0..1000 {
            tokio::select! {
                biased;
                () = turn.canceled() => return Err(agent::Stopped.into()),
                () = turn.draining() => return Ok(End::Completed(None)),
                () = pass(10) => if n % 100 == 0 { out.working().await? },
            }
        }
        Ok(End::Completed(None))
    });
    let sent = bench.sending(Message::user("go"));
    assert_eq!(sent.await.unwrap().unwrap().state(), TaskState::Completed);
    let mut events = bench.stream(Message::user("go")).await.unwrap();
    let id = id_of(&next(&mut events).await);
    pass(25).await;
    let started = Instant::now();
    assert_eq!(bench.cancel(&id).await.unwrap().state(), TaskState::Canceled);
    assert_eq!(started.elapsed(), Duration::ZERO);
}
