//! Sending a message, and what comes back (3.1.1, 3.2, 3.4).

use a2a_service::pb::{
    v1::{Part, Role, part::Content},
    wkt::value::Kind,
};

use super::*;
use crate::bindings::scenario;

scenario!(an_echo_is_a_completed_task, async |agent: &dyn A2aService| {
    let task = send(agent, text("", "hello")).await;
    assert_eq!((task.state(), output(&task).as_str()), (TaskState::Completed, "hello"));
    assert_eq!(task.artifacts.len(), 1);
    let [message] = &task.history[..] else { panic!("{task:?}") };
    assert_eq!((message.role(), message.text().as_str()), (Role::User, "hello"));
    assert_eq!((&message.task_id, &message.context_id), (&task.id, &task.context_id));
    assert!(!task.id.is_empty() && !task.context_id.is_empty() && task.id != task.context_id);
    // Milliseconds are all that a timestamp has (5.6.1).
    let time = task.status.as_ref().unwrap().timestamp.unwrap();
    assert!(time.seconds > 1_700_000_000 && time.nanos % 1_000_000 == 0, "{time:?}");
    assert_eq!(get(agent, &task.id).await.unwrap(), task);
});

scenario!(a_context_is_kept_and_shared_with_nobody, async |agent: &dyn A2aService| {
    let one = send(agent, text("", "mine")).await;
    let two = send(agent, text("", "!history")).await;
    assert_ne!(one.context_id, two.context_id);
    assert_eq!((output(&two).as_str(), two.history.len()), ("", 1));
    let mut third = text("", "!history");
    third.message.as_mut().unwrap().context_id.clone_from(&one.context_id);
    let third = send(agent, third).await;
    assert_eq!(third.context_id, one.context_id, "a caller's context is taken as it is (3.4.1)");
    assert_ne!(third.id, one.id);
    // Another task of the same conversation begins with nothing of the first.
    assert_eq!((output(&third).as_str(), third.artifacts.len(), third.history.len()), ("", 1, 1));
});

scenario!(what_is_asked_for_completes_the_task, async |agent: &dyn A2aService| {
    let asked = send(agent, text("", "/ask Which city?")).await;
    assert_eq!((asked.state(), status_text(&asked).as_str()), (TaskState::InputRequired, "Which city?"));
    let again = send(agent, text(&asked.id, "again")).await;
    assert_eq!((again.state(), status_text(&again).as_str()), (TaskState::InputRequired, "again?"));
    let mut rome = text(&asked.id, "Rome");
    rome.message.as_mut().unwrap().context_id.clone_from(&asked.context_id);
    let done = send(agent, rome).await;
    assert_eq!((done.state(), output(&done).as_str(), &done.id), (TaskState::Completed, "Rome", &asked.id));
    let said: Vec<_> = done.history.iter().map(Message::text).collect();
    assert_eq!(said, ["/ask Which city?", "Which city?", "again", "again?", "Rome"]);
    assert!(done.history.iter().all(|it| it.task_id == asked.id && it.context_id == asked.context_id));
});

scenario!(an_agent_knows_what_was_said, async |agent: &dyn A2aService| {
    let one = send(agent, text("", "!history")).await;
    let two = send(agent, text(&one.id, "!history")).await;
    let last = two.artifacts.last().unwrap();
    assert_eq!(last.parts[0].as_text(), Some("!history|more?"));
});

scenario!(an_authorisation_ends_the_wait, async |agent: &dyn A2aService| {
    let asked = send(agent, text("", "/auth")).await;
    assert_eq!(asked.state(), TaskState::AuthRequired);
    assert!(!status_text(&asked).is_empty(), "it says what for (7.6.1)");
    let done = send(agent, text(&asked.id, "done")).await;
    assert_eq!((done.state(), done.artifacts[0].name.as_str()), (TaskState::Completed, "authorised"));
    // Also where the agent goes on meanwhile.
    let asked = send(agent, text("", "!authorise")).await;
    assert_eq!(asked.state(), TaskState::AuthRequired);
});

scenario!(a_failure_says_no_more_than_it_should, async |agent: &dyn A2aService| {
    for (command, begins) in [
        ("/panic", "Agent execution failed (panic): error id "),
        ("!error", "Agent execution failed (error): error id "),
        ("/fail no such city", "no such city"),
    ] {
        let failed = send(agent, text("", command)).await;
        assert_eq!(failed.state(), TaskState::Failed, "{command}");
        assert!(status_text(&failed).starts_with(begins), "{command}: {}", status_text(&failed));
        assert!(!format!("{failed:?}").contains("swordfish"));
    }
    let rejected = send(agent, text("", "/reject not mine")).await;
    assert_eq!((rejected.state(), status_text(&rejected).as_str()), (TaskState::Rejected, "not mine"));
});

scenario!(a_plain_message_makes_no_task, async |agent: &dyn A2aService| {
    let mut sent = text("", "/message hi");
    sent.message.as_mut().unwrap().context_id = "c-1".into();
    let Answer::Message(message) = send_payload(agent, sent).await.unwrap() else { panic!("no message") };
    assert_eq!((message.text().as_str(), message.role()), ("hi", Role::Agent));
    assert_eq!((message.context_id.as_str(), message.task_id.as_str()), ("c-1", ""));
    assert!(!message.message_id.is_empty());
    let Answer::Message(message) = send_payload(agent, text("", "/message hi")).await.unwrap() else {
        panic!("no message")
    };
    assert!(!message.context_id.is_empty(), "a context that was made is told (3.4.1)");
});

scenario!(each_kind_of_part_arrives, async |agent: &dyn A2aService| {
    let task = send(agent, text("", "/parts")).await;
    let parts = &task.artifacts[0].parts;
    assert_eq!(parts[0].as_text(), Some("A text part."));
    assert_eq!(parts[1], Part::bytes("A raw part.\n", "text/plain").named("raw.txt"));
    assert_eq!(parts[2], Part::url("https://example.com/map.png", "image/png").named("map.png"));
    let Some(Content::Data(data)) = &parts[3].content else { panic!("{parts:?}") };
    let Some(Kind::StructValue(data)) = &data.kind else { panic!("{data:?}") };
    assert_eq!(data.fields["nothing"].kind, Some(Kind::NullValue(0)));
    // And in: what the message holds is in the history as it was sent.
    let mut sent = text("", "parts");
    let null = Part { content: Some(Content::Data(Kind::NullValue(0).into())), ..Part::default() };
    sent.message.as_mut().unwrap().parts.extend(parts.iter().cloned().chain([null]));
    let sent_parts = sent.message.as_ref().unwrap().parts.clone();
    assert_eq!(send(agent, sent).await.history[0].parts, sent_parts);
});

scenario!(at_once_is_at_once, async |agent: &dyn A2aService| {
    let configuration = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    let begun = std::time::SystemTime::now();
    let task = send(agent, configured(text("", "/slow 30"), configuration)).await;
    assert!(begun.elapsed().unwrap().as_millis() < 400);
    assert!(matches!(task.state(), TaskState::Submitted | TaskState::Working), "{task:?}");
    assert!(get(agent, &task.id).await.is_ok());
});

scenario!(accepted_follow_up_sets_the_task_to_working, async |agent: &dyn A2aService| {
    let at_once = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    let asked = send(agent, text("", "/ask Which city?")).await;
    let accepted = send(agent, configured(text(&asked.id, "!silent"), at_once)).await;
    assert_eq!(accepted.state(), TaskState::Working);
    assert_eq!(get(agent, &asked.id).await.unwrap().state(), TaskState::Working);
    let said: Vec<_> = accepted.history.iter().map(Message::text).collect();
    assert_eq!(said, ["/ask Which city?", "Which city?", "!silent"]);
    // Subscribers get the event, and a stream begins with the task as it was accepted.
    let asked = send(agent, text("", "/ask Which city?")).await;
    let mut subscribed = subscribe(agent, &asked.id).await.unwrap();
    assert_eq!(task_of(&next(&mut subscribed).await).state(), TaskState::InputRequired);
    let events = remaining(stream(agent, text(&asked.id, "Rome")).await).await;
    assert_eq!(task_of(&events[0]).state(), TaskState::Working);
    assert_eq!(events.iter().filter_map(state).collect::<Vec<_>>(), [TaskState::Working, TaskState::Completed]);
    let told: Vec<_> = remaining(subscribed).await.iter().filter_map(state).collect();
    assert_eq!(told, [TaskState::Working, TaskState::Completed]);
});

scenario!(first_update_is_shown_right_after_a_reply_at_once, async |agent: &dyn A2aService| {
    let at_once = SendMessageConfiguration { return_immediately: true, ..SendMessageConfiguration::default() };
    let begun = send(agent, configured(text("", "/hang"), at_once)).await;
    assert_eq!(get(agent, &begun.id).await.unwrap().state(), TaskState::Working);
});

scenario!(a_wait_is_bounded_and_ends_nothing, async |agent: &dyn A2aService| {
    let task = send(agent, text("", "/hang")).await;
    assert_eq!(task.state(), TaskState::Working, "an unsettled task, and no error (3.2.2)");
    assert_eq!(get(agent, &task.id).await.unwrap().state(), TaskState::Working);
});

scenario!(
    a_message_refers_to_tasks_of_its_caller,
    not_in_v03_proto = "a message of its proto file refers to no tasks",
    async |agent: &dyn A2aService| {
        let one = send(agent, text("", "one")).await;
        let mut sent = text("", "!referenced");
        sent.message.as_mut().unwrap().reference_task_ids = vec![one.id.clone(), "gone".into()];
        assert_eq!(output(&send(agent, sent).await), one.id);
    }
);

/// What is left of a conversation of three messages.
async fn history(agent: &dyn A2aService, lengths: &[(Option<i32>, &[&str])]) {
    for (length, left) in lengths {
        let length = *length;
        let asked = send(agent, text("", "/ask a")).await;
        let configuration = SendMessageConfiguration { history_length: length, ..SendMessageConfiguration::default() };
        let task = send(agent, configured(text(&asked.id, "again"), configuration.clone())).await;
        assert_eq!(task.history.iter().map(Message::text).collect::<Vec<_>>(), *left, "{length:?}");
        let get = GetTaskRequest { id: asked.id.clone(), history_length: length, ..GetTaskRequest::default() };
        let task = agent.get_task(request(get)).await.unwrap().into_inner().into_task().unwrap();
        assert_eq!(task.history.iter().map(Message::text).collect::<Vec<_>>(), *left, "{length:?}");
        let mut events = stream(agent, configured(text(&asked.id, "x"), configuration)).await;
        let first = next(&mut events).await;
        assert_eq!(task_of(&first).history.len(), length.map_or(5, |it| usize::try_from(it).unwrap()), "{length:?}");
    }
}

scenario!(history_is_as_long_as_was_asked_for, async |agent: &dyn A2aService| {
    history(agent, &[(None, &["/ask a", "a", "again"]), (Some(1), &["again"])]).await;
});

scenario!(history_may_be_none_at_all, not_at_0_3 = "there 0 sets no limit", async |agent: &dyn A2aService| {
    history(agent, &[(Some(0), &[])]).await;
});
