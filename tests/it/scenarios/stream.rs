//! Streams and subscriptions: first event, events, and end (specification 3.1.2, 3.1.6).

use a2a_service::pb::v1::Part;

use super::*;
use crate::bindings::scenario;

fn states(events: &[Event]) -> Vec<TaskState> {
    events.iter().filter_map(state).collect()
}

/// Returns the text of each artifact chunk, and its `append` and `lastChunk`.
fn chunks(events: &[Event]) -> Vec<(String, bool, bool)> {
    let chunk = |event: &Event| match event.payload()? {
        Payload::ArtifactUpdate(update) => {
            let text = update.artifact.as_ref()?.parts.iter().filter_map(|part| part.as_text()).collect();
            Some((text, update.append, update.last_chunk))
        }
        Payload::Task(_) | Payload::Message(_) | Payload::StatusUpdate(_) => None,
    };
    events.iter().filter_map(chunk).collect()
}

scenario!(stream_has_the_task_and_its_events, kinds(), async |agent: &dyn A2aService| {
    let events = remaining(stream(agent, text("", "/stream 3 1")).await).await;
    assert_eq!(task_of(&events[0]).history.len(), 1);
    assert_eq!(states(&events), [TaskState::Submitted, TaskState::Working, TaskState::Completed]);
    // Chunks that wait for a slow store are joined, which changes only their number.
    let chunks = chunks(&events);
    assert_eq!(chunks.iter().map(|chunk| &*chunk.0).collect::<String>(), "chunk 1 of 3\nchunk 2 of 3\nchunk 3 of 3\n");
    assert_eq!(chunks.iter().map(|chunk| chunk.1).collect::<Vec<_>>(), [false, true, true][..chunks.len()]);
    let id = &task_of(&events[0]).id;
    let task = get(agent, id).await.unwrap();
    assert_eq!(
        (task.artifacts.len(), &*task.artifacts[0].parts),
        (1, &[Part::text("chunk 1 of 3\nchunk 2 of 3\nchunk 3 of 3\n")][..])
    );
    for event in &events[1..] {
        match event.payload().unwrap() {
            Payload::StatusUpdate(update) => {
                assert_eq!((&update.task_id, &update.context_id), (id, &task.context_id));
            }
            Payload::ArtifactUpdate(update) => {
                assert_eq!((&update.task_id, &update.context_id), (id, &task.context_id));
            }
            other @ (Payload::Task(_) | Payload::Message(_)) => panic!("{other:?}"),
        }
    }
});

/// Asserts the state that ends the stream of a command.
async fn ends_with(agent: &dyn A2aService, command: &str, last: TaskState) {
    let events = remaining(stream(agent, text("", command)).await).await;
    assert_eq!(states(&events).first(), Some(&TaskState::Submitted), "{command}");
    assert_eq!(states(&events).last(), Some(&last), "{command}");
}

// Every outcome of a turn ends the stream.
scenario!(stream_ends_with_every_outcome_of_a_turn, kinds(), async |agent: &dyn A2aService| {
    for (command, last) in [
        ("hello", TaskState::Completed),
        ("!done", TaskState::Completed),
        ("/ask what?", TaskState::InputRequired),
        ("/fail x", TaskState::Failed),
        ("/panic", TaskState::Failed),
        ("/reject x", TaskState::Rejected),
    ] {
        ends_with(agent, command, last).await;
    }
});

scenario!(
    stream_ends_if_authorization_is_required,
    kinds(not_openai = "a model does not ask for authorization"),
    async |agent: &dyn A2aService| {
        ends_with(agent, "/auth", TaskState::AuthRequired).await;
    }
);

scenario!(
    stream_of_a_message_reply_has_only_the_message,
    kinds(
        not_openai = "a model always has a task",
        not_upstream = "a send of the gateway has a key, and so always a task",
        not_upstream_v03 = "a send of the gateway has a key, and so always a task"
    ),
    async |agent: &dyn A2aService| {
        let events = remaining(stream(agent, text("", "/message hi")).await).await;
        let [only] = &events[..] else { panic!("{events:?}") };
        assert!(
            matches!(only.payload(), Some(Payload::Message(reply)) if reply.text() == "hi" && reply.task_id.is_empty())
        );
    }
);

scenario!(
    auth_required_keeps_the_stream_open,
    kinds(
        not_exec = "an event `auth` ends the turn",
        not_http = "an event `auth` ends the turn",
        not_openai = "a model does not ask for authorization"
    ),
    async |agent: &dyn A2aService| {
        let mut events = stream(agent, text("", "!authorise")).await;
        let first = next(&mut events).await;
        assert_eq!(state(&next(&mut events).await), Some(TaskState::AuthRequired));
        cancel::cancel(agent, &task_of(&first).id).await.unwrap();
        assert_eq!(states(&remaining(events).await), [TaskState::Canceled]);
    }
);

scenario!(stream_of_a_follow_up_begins_with_the_task, kinds(), async |agent: &dyn A2aService| {
    let interrupted = send(agent, text("", "/ask what?")).await;
    let events = remaining(stream(agent, text(&interrupted.id, "Rome")).await).await;
    let first = task_of(&events[0]);
    assert_eq!((first.state(), first.history.last().unwrap().text().as_str()), (TaskState::Working, "Rome"));
    assert_eq!(states(&events), [TaskState::Working, TaskState::Completed], "the agent's own WORKING is not a change");
    assert_eq!(chunks(&events).iter().map(|chunk| (&*chunk.0, chunk.1)).collect::<Vec<_>>(), [("Rome", false)]);
});

scenario!(
    last_chunk_of_an_artifact_is_marked,
    kinds(not_openai = "a model does not announce its last chunk"),
    async |agent: &dyn A2aService| {
        for command in ["/stream 3 1", "Rome"] {
            let chunks = chunks(&remaining(stream(agent, text("", command)).await).await);
            assert_eq!(
                chunks.iter().map(|chunk| chunk.2).collect::<Vec<_>>(),
                [false, false, true][3 - chunks.len()..]
            );
        }
    }
);

scenario!(
    subscription_has_the_task_and_later_events,
    kinds(),
    not_at_0_3 = "a stream ends with the turn in 0.3",
    async |agent: &dyn A2aService| {
        let interrupted = send(agent, text("", "/ask what?")).await;
        let mut one = subscribe(agent, &interrupted.id).await.unwrap();
        let mut two = subscribe(agent, &interrupted.id).await.unwrap();
        for events in [&mut one, &mut two] {
            let first = next(events).await;
            assert_eq!(task_of(&first), &interrupted);
        }
        // The subscription spans turns until the task is terminal.
        send(agent, text(&interrupted.id, "again")).await;
        send(agent, text(&interrupted.id, "Rome")).await;
        let (one, two) = (remaining(one).await, remaining(two).await);
        let all = [TaskState::Working, TaskState::InputRequired, TaskState::Working, TaskState::Completed];
        assert_eq!(states(&one), all);
        assert_eq!(one, two, "streams have equal events in equal order (3.5.2)");
    }
);

scenario!(
    subscription_to_terminal_task_is_rejected,
    kinds(),
    not_at_0_3 = "the stream has the terminal task in 0.3",
    async |agent: &dyn A2aService| {
        let done = send(agent, text("", "hello")).await;
        assert_error_kind(&subscribe(agent, &done.id).await.err().unwrap(), ErrorKind::UnsupportedOperation);
        assert_error_kind(&subscribe(agent, "nowhere").await.err().unwrap(), ErrorKind::TaskNotFound);
    }
);

scenario!(disconnected_reader_does_not_affect_the_task, kinds(), async |agent: &dyn A2aService| {
    let mut events = stream(agent, text("", "/stream 5 20")).await;
    let id = task_of(&next(&mut events).await).id.clone();
    let other = subscribe(agent, &id).await.unwrap();
    drop(events);
    assert_eq!(states(&remaining(other).await).last(), Some(&TaskState::Completed));
    assert_eq!(output(&get(agent, &id).await.unwrap()).lines().count(), 5);
});

fn number(digits: &[u8]) -> usize {
    std::str::from_utf8(digits).unwrap().parse().unwrap()
}

// Clients that read only the first part of an artifact get all of its text.
scenario!(artifact_in_150_pieces_is_stored_as_one_text, kinds(), async |agent: &dyn A2aService| {
    let blocking = send(agent, text("", "!burst 150")).await;
    let stored = get(agent, &blocking.id).await.unwrap();
    for task in [&blocking, &stored] {
        assert_eq!(task.artifacts.iter().map(|artifact| artifact.parts.len()).collect::<Vec<_>>(), [1]);
        let numbers: Vec<usize> = output(task).as_bytes().chunks(1024).map(|piece| number(&piece[..6])).collect();
        assert_eq!(numbers, (0..150).collect::<Vec<_>>());
    }
});

scenario!(burst_of_events_is_complete, kinds(), async |agent: &dyn A2aService| {
    let events = remaining(stream(agent, text("", "!burst 500")).await).await;
    let numbers: Vec<usize> = chunks(&events).iter().map(|chunk| chunk.0[..6].parse().unwrap()).collect();
    assert_eq!(numbers, (0..500).collect::<Vec<_>>());
});
