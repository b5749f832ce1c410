//! Streams: what they begin with, what they carry, and when they end (3.1.2, 3.1.6).

use super::*;
use crate::bindings::scenario;

fn states(events: &[Event]) -> Vec<TaskState> {
    events.iter().filter_map(state).collect()
}

/// The chunks of the artifacts, and whether each is appended.
fn chunks(events: &[Event]) -> Vec<(String, bool, bool)> {
    let chunk = |event: &Event| match event.payload()? {
        Payload::ArtifactUpdate(it) => {
            let text = it.artifact.as_ref()?.parts.iter().filter_map(|it| it.as_text()).collect();
            Some((text, it.append, it.last_chunk))
        }
        Payload::Task(_) | Payload::Message(_) | Payload::StatusUpdate(_) => None,
    };
    events.iter().filter_map(chunk).collect()
}

scenario!(a_stream_is_its_task_and_what_happens_to_it, async |agent: &dyn A2aService| {
    let events = remaining(stream(agent, text("", "/stream 3 1")).await).await;
    assert_eq!(task_of(&events[0]).history.len(), 1);
    assert_eq!(states(&events), [TaskState::Submitted, TaskState::Working, TaskState::Completed]);
    // Chunks that a slow store has kept waiting are joined, which changes nothing but their number.
    let chunks = chunks(&events);
    assert_eq!(chunks.iter().map(|it| &*it.0).collect::<String>(), "chunk 1 of 3\nchunk 2 of 3\nchunk 3 of 3\n");
    assert_eq!(chunks.iter().map(|it| it.1).collect::<Vec<_>>(), [false, true, true][..chunks.len()]);
    assert_eq!(chunks.iter().map(|it| it.2).collect::<Vec<_>>(), [false, false, true][3 - chunks.len()..]);
    let id = &task_of(&events[0]).id;
    let task = get(agent, id).await.unwrap();
    assert_eq!((task.artifacts.len(), task.artifacts[0].parts.len()), (1, 3));
    for event in &events[1..] {
        match event.payload().unwrap() {
            Payload::StatusUpdate(it) => assert_eq!((&it.task_id, &it.context_id), (id, &task.context_id)),
            Payload::ArtifactUpdate(it) => assert_eq!((&it.task_id, &it.context_id), (id, &task.context_id)),
            other @ (Payload::Task(_) | Payload::Message(_)) => panic!("{other:?}"),
        }
    }
});

// The stream that never ends: it does, however the turn does.
scenario!(every_stream_ends, async |agent: &dyn A2aService| {
    for (command, last) in [
        ("hello", TaskState::Completed),
        ("!done", TaskState::Completed),
        ("/ask what?", TaskState::InputRequired),
        ("/auth", TaskState::AuthRequired),
        ("/fail x", TaskState::Failed),
        ("/panic", TaskState::Failed),
        ("/reject x", TaskState::Rejected),
    ] {
        let events = remaining(stream(agent, text("", command)).await).await;
        assert_eq!(states(&events).first(), Some(&TaskState::Submitted), "{command}");
        assert_eq!(states(&events).last(), Some(&last), "{command}");
    }
    let events = remaining(stream(agent, text("", "/message hi")).await).await;
    let [only] = &events[..] else { panic!("{events:?}") };
    assert!(matches!(only.payload(), Some(Payload::Message(it)) if it.text() == "hi" && it.task_id.is_empty()));
});

scenario!(an_authorisation_keeps_the_stream_open, async |agent: &dyn A2aService| {
    let mut events = stream(agent, text("", "!authorise")).await;
    let first = next(&mut events).await;
    assert_eq!(state(&next(&mut events).await), Some(TaskState::AuthRequired));
    cancel::cancel(agent, &task_of(&first).id).await.unwrap();
    assert_eq!(states(&remaining(events).await), [TaskState::Canceled]);
});

scenario!(a_follow_up_begins_with_its_task, async |agent: &dyn A2aService| {
    let asked = send(agent, text("", "/ask what?")).await;
    let events = remaining(stream(agent, text(&asked.id, "Rome")).await).await;
    let first = task_of(&events[0]);
    assert_eq!((first.state(), first.history.last().unwrap().text().as_str()), (TaskState::Working, "Rome"));
    assert_eq!(states(&events), [TaskState::Working, TaskState::Completed], "the agent's own WORKING says nothing new");
    assert_eq!(chunks(&events), [("Rome".to_owned(), false, true)]);
});

scenario!(
    a_subscription_is_the_task_and_all_that_follows,
    not_at_0_3 = "there a stream ends with a turn",
    async |agent: &dyn A2aService| {
        let asked = send(agent, text("", "/ask what?")).await;
        let mut one = subscribe(agent, &asked.id).await.unwrap();
        let mut two = subscribe(agent, &asked.id).await.unwrap();
        for it in [&mut one, &mut two] {
            let first = next(it).await;
            assert_eq!(task_of(&first), &asked);
        }
        // It stays over the turns, until the task ends.
        send(agent, text(&asked.id, "again")).await;
        send(agent, text(&asked.id, "Rome")).await;
        let (one, two) = (remaining(one).await, remaining(two).await);
        let all = [TaskState::Working, TaskState::InputRequired, TaskState::Working, TaskState::Completed];
        assert_eq!(states(&one), all);
        assert_eq!(one, two, "the same events in the same order on every stream (3.5.2)");
    }
);

scenario!(
    a_subscription_to_what_has_ended_is_refused,
    not_at_0_3 = "there it is the task as it ended",
    async |agent: &dyn A2aService| {
        let done = send(agent, text("", "hello")).await;
        assert_error_kind(&subscribe(agent, &done.id).await.err().unwrap(), ErrorKind::UnsupportedOperation);
        assert_error_kind(&subscribe(agent, "nowhere").await.err().unwrap(), ErrorKind::TaskNotFound);
    }
);

scenario!(a_reader_that_leaves_takes_nothing_along, async |agent: &dyn A2aService| {
    let mut events = stream(agent, text("", "/stream 5 20")).await;
    let id = task_of(&next(&mut events).await).id.clone();
    let other = subscribe(agent, &id).await.unwrap();
    drop(events);
    assert_eq!(states(&remaining(other).await).last(), Some(&TaskState::Completed));
    assert_eq!(get(agent, &id).await.unwrap().artifacts[0].parts.len(), 5);
});

scenario!(a_burst_loses_nothing, async |agent: &dyn A2aService| {
    let events = remaining(stream(agent, text("", "!burst 500")).await).await;
    let numbers: Vec<usize> = chunks(&events).iter().map(|it| it.0[..6].parse().unwrap()).collect();
    assert_eq!(numbers, (0..500).collect::<Vec<_>>());
});
