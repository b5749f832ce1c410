//! Sending a message: tasks, contexts, parts, waiting and history (specification 3.1.1, 3.2, 3.4).

use a2a_service::pb::{
    v1::{Part, Role, part::Content},
    wkt::value::Kind,
};

use super::*;
use crate::bindings::scenario;

scenario!(send_to_the_echo_agent_returns_a_completed_task, kinds(), async |agent: &dyn A2aService| {
    let task = send(agent, text("", "hello")).await;
    assert_eq!((task.state(), output(&task).as_str()), (TaskState::Completed, "hello"));
    assert_eq!(task.artifacts.len(), 1);
    let [message] = &task.history[..] else { panic!("{task:?}") };
    assert_eq!((message.role(), message.text().as_str()), (Role::User, "hello"));
    assert_eq!((&message.task_id, &message.context_id), (&task.id, &task.context_id));
    assert!(!task.id.is_empty() && !task.context_id.is_empty() && task.id != task.context_id);
    // Timestamps have millisecond precision (5.6.1).
    let time = task.status.as_ref().unwrap().timestamp.unwrap();
    assert!(time.seconds > 1_700_000_000 && time.nanos % 1_000_000 == 0, "{time:?}");
    assert_eq!(get(agent, &task.id).await.unwrap(), task);
});

scenario!(
    context_is_kept_and_not_shared,
    kinds(not_exec = "the script does not read the history", not_openai = "a context is a conversation with the model"),
    async |agent: &dyn A2aService| {
        let one = send(agent, text("", "mine")).await;
        let two = send(agent, text("", "!history")).await;
        assert_ne!(one.context_id, two.context_id);
        assert_eq!((output(&two).as_str(), two.history.len()), ("", 1));
        let mut third = text("", "!history");
        third.message.as_mut().unwrap().context_id.clone_from(&one.context_id);
        let third = send(agent, third).await;
        assert_eq!(third.context_id, one.context_id, "the context of the client is used unchanged (3.4.1)");
        assert_ne!(third.id, one.id);
        // Another task of the context starts without artifacts and history of the first.
        assert_eq!((output(&third).as_str(), third.artifacts.len(), third.history.len()), ("", 1, 1));
    }
);

scenario!(follow_ups_complete_an_interrupted_task, kinds(), async |agent: &dyn A2aService| {
    let interrupted = send(agent, text("", "/ask Which city?")).await;
    assert_eq!((interrupted.state(), status_text(&interrupted).as_str()), (TaskState::InputRequired, "Which city?"));
    let again = send(agent, text(&interrupted.id, "again")).await;
    assert_eq!((again.state(), status_text(&again).as_str()), (TaskState::InputRequired, "again?"));
    let mut rome = text(&interrupted.id, "Rome");
    rome.message.as_mut().unwrap().context_id.clone_from(&interrupted.context_id);
    let done = send(agent, rome).await;
    assert_eq!((done.state(), output(&done).as_str(), &done.id), (TaskState::Completed, "Rome", &interrupted.id));
    let texts: Vec<_> = done.history.iter().map(Message::text).collect();
    assert_eq!(texts, ["/ask Which city?", "Which city?", "again", "again?", "Rome"]);
    assert!(
        done.history
            .iter()
            .all(|message| message.task_id == interrupted.id && message.context_id == interrupted.context_id)
    );
});

scenario!(
    agent_sees_the_history,
    kinds(not_exec = "the script does not read the history"),
    async |agent: &dyn A2aService| {
        let one = send(agent, text("", "!history")).await;
        let two = send(agent, text(&one.id, "!history")).await;
        let last = two.artifacts.last().unwrap();
        assert_eq!(last.parts[0].as_text(), Some("!history|more?"));
    }
);

scenario!(
    auth_required_ends_the_wait,
    kinds(not_openai = "a model does not ask for authorization"),
    async |agent: &dyn A2aService| {
        let interrupted = send(agent, text("", "/auth")).await;
        assert_eq!(interrupted.state(), TaskState::AuthRequired);
        assert!(!status_text(&interrupted).is_empty(), "the status message states the purpose (7.6.1)");
        let done = send(agent, text(&interrupted.id, "done")).await;
        assert_eq!((done.state(), done.artifacts[0].name.as_str()), (TaskState::Completed, "authorised"));
        // The wait also ends if the agent continues to run.
        let interrupted = send(agent, text("", "!authorise")).await;
        assert_eq!(interrupted.state(), TaskState::AuthRequired);
    }
);

scenario!(
    failure_does_not_expose_internal_details,
    kinds(
        not_exec = "a command does not panic",
        not_http = "an endpoint does not panic",
        not_openai = "a model does not panic"
    ),
    async |agent: &dyn A2aService| {
        for (command, begins) in [
            ("/panic", "Agent execution failed (panic): error id "),
            ("!error", "Agent execution failed: error id "),
            ("/fail no such city", "no such city"),
        ] {
            let failed = send(agent, text("", command)).await;
            assert_eq!(failed.state(), TaskState::Failed, "{command}");
            assert!(status_text(&failed).starts_with(begins), "{command}: {}", status_text(&failed));
            assert!(!format!("{failed:?}").contains("swordfish"));
        }
        let rejected = send(agent, text("", "/reject not mine")).await;
        assert_eq!((rejected.state(), status_text(&rejected).as_str()), (TaskState::Rejected, "not mine"));
    }
);

scenario!(
    message_reply_creates_no_task,
    kinds(
        not_openai = "a model always has a task",
        not_upstream = "a send of the gateway has a key, and so always a task",
        not_upstream_v03 = "a send of the gateway has a key, and so always a task"
    ),
    async |agent: &dyn A2aService| {
        let mut sent = text("", "/message hi");
        sent.message.as_mut().unwrap().context_id = "c-1".into();
        let Answer::Message(message) = send_payload(agent, sent).await.unwrap() else { panic!("no message") };
        assert_eq!((message.text().as_str(), message.role()), ("hi", Role::Agent));
        assert_eq!((message.context_id.as_str(), message.task_id.as_str()), ("c-1", ""));
        assert!(!message.message_id.is_empty());
        let Answer::Message(message) = send_payload(agent, text("", "/message hi")).await.unwrap() else {
            panic!("no message")
        };
        assert!(!message.context_id.is_empty(), "a generated context is returned (3.4.1)");
    }
);

scenario!(
    every_kind_of_part_is_transferred,
    kinds(not_openai = "a model answers with text"),
    async |agent: &dyn A2aService| {
        let task = send(agent, text("", "/parts")).await;
        let parts = &task.artifacts[0].parts;
        assert_eq!(parts[0].as_text(), Some("A text part."));
        assert_eq!(parts[1], Part::bytes("A raw part.\n", "text/plain").named("raw.txt"));
        assert_eq!(parts[2], Part::url("https://example.com/map.png", "image/png").named("map.png"));
        let Some(Content::Data(data)) = &parts[3].content else { panic!("{parts:?}") };
        let Some(Kind::StructValue(data)) = &data.kind else { panic!("{data:?}") };
        assert_eq!(data.fields["nothing"].kind, Some(Kind::NullValue(0)));
        // Parts of a message are in the history as they were sent.
        let mut sent = text("", "parts");
        let null = Part { content: Some(Content::Data(Kind::NullValue(0).into())), ..Part::default() };
        sent.message.as_mut().unwrap().parts.extend(parts.iter().cloned().chain([null]));
        let sent_parts = sent.message.as_ref().unwrap().parts.clone();
        assert_eq!(send(agent, sent).await.history[0].parts, sent_parts);
    }
);

scenario!(return_immediately_returns_the_unfinished_task, kinds(), async |agent: &dyn A2aService| {
    let configuration = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    let begun = std::time::SystemTime::now();
    let task = send(agent, configured(text("", "/slow 30"), configuration)).await;
    assert!(begun.elapsed().unwrap().as_millis() < 400);
    assert!(matches!(task.state(), TaskState::Submitted | TaskState::Working), "{task:?}");
    assert!(get(agent, &task.id).await.is_ok());
});

scenario!(accepted_follow_up_sets_the_task_to_working, kinds(), async |agent: &dyn A2aService| {
    let immediately = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    let interrupted = send(agent, text("", "/ask Which city?")).await;
    let accepted = send(agent, configured(text(&interrupted.id, "!silent"), immediately)).await;
    assert_eq!(accepted.state(), TaskState::Working);
    assert_eq!(get(agent, &interrupted.id).await.unwrap().state(), TaskState::Working);
    let texts: Vec<_> = accepted.history.iter().map(Message::text).collect();
    assert_eq!(texts, ["/ask Which city?", "Which city?", "!silent"]);
    // Subscribers get the event, and a stream begins with the task as it was accepted.
    let interrupted = send(agent, text("", "/ask Which city?")).await;
    let mut subscribed = subscribe(agent, &interrupted.id).await.unwrap();
    assert_eq!(task_of(&next(&mut subscribed).await).state(), TaskState::InputRequired);
    let events = remaining(stream(agent, text(&interrupted.id, "Rome")).await).await;
    assert_eq!(task_of(&events[0]).state(), TaskState::Working);
    assert_eq!(events.iter().filter_map(state).collect::<Vec<_>>(), [TaskState::Working, TaskState::Completed]);
    let received: Vec<_> = remaining(subscribed).await.iter().filter_map(state).collect();
    assert_eq!(received, [TaskState::Working, TaskState::Completed]);
});

scenario!(first_update_is_visible_after_an_immediate_reply, async |agent: &dyn A2aService| {
    let immediately = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    let task = send(agent, configured(text("", "/hang"), immediately)).await;
    assert_eq!(get(agent, &task.id).await.unwrap().state(), TaskState::Working);
});

scenario!(wait_is_limited_and_the_task_continues, async |agent: &dyn A2aService| {
    let task = send(agent, text("", "/hang")).await;
    assert_eq!(task.state(), TaskState::Working, "the response is the unfinished task, not an error (3.2.2)");
    assert_eq!(get(agent, &task.id).await.unwrap().state(), TaskState::Working);
});

scenario!(
    references_resolve_to_tasks_of_the_caller,
    kinds(
        not_exec = "a turn in JSON lines has no referenced tasks",
        not_http = "a turn in JSON lines has no referenced tasks",
        not_openai = "a model does not get other tasks",
        not_upstream = "the agent does not know the tasks of its gateway",
        not_upstream_v03 = "the agent does not know the tasks of its gateway"
    ),
    not_in_v03_proto = "messages of its proto file have no task references",
    async |agent: &dyn A2aService| {
        let one = send(agent, text("", "one")).await;
        let mut sent = text("", "!referenced");
        sent.message.as_mut().unwrap().reference_task_ids = vec![one.id.clone(), "gone".into()];
        assert_eq!(output(&send(agent, sent).await), one.id);
    }
);

/// Asserts the messages that each history length leaves of a conversation of three messages.
async fn history(agent: &dyn A2aService, lengths: &[(Option<i32>, &[&str])]) {
    for (length, expected) in lengths {
        let length = *length;
        let interrupted = send(agent, text("", "/ask a")).await;
        let configuration = SendMessageConfiguration { history_length: length, ..SendMessageConfiguration::default() };
        let task = send(agent, configured(text(&interrupted.id, "again"), configuration.clone())).await;
        assert_eq!(task.history.iter().map(Message::text).collect::<Vec<_>>(), *expected, "{length:?}");
        let get = GetTaskRequest { id: interrupted.id.clone(), history_length: length, ..GetTaskRequest::default() };
        let task = agent.get_task(request(get)).await.unwrap().into_inner().into_task().unwrap();
        assert_eq!(task.history.iter().map(Message::text).collect::<Vec<_>>(), *expected, "{length:?}");
        let mut events = stream(agent, configured(text(&interrupted.id, "x"), configuration)).await;
        let first = next(&mut events).await;
        assert_eq!(
            task_of(&first).history.len(),
            length.map_or(5, |length| usize::try_from(length).unwrap()),
            "{length:?}"
        );
    }
}

scenario!(history_is_cut_to_the_requested_length, kinds(), async |agent: &dyn A2aService| {
    history(agent, &[(None, &["/ask a", "a", "again"]), (Some(1), &["again"])]).await;
});

scenario!(
    history_length_of_0_returns_no_history,
    kinds(),
    not_at_0_3 = "0 means unlimited in 0.3",
    async |agent: &dyn A2aService| {
        history(agent, &[(Some(0), &[])]).await;
    }
);
