//! What protocol 0.3 does otherwise than 1.0, over its own ways in.

use super::*;
use crate::bindings::v03_scenario;

v03_scenario!(a_second_cancel_is_refused, async |agent: &dyn A2aService| {
    let id = send(agent, text("", "/ask what?")).await.id;
    let canceled = cancel::cancel(agent, &id).await.unwrap();
    assert_eq!(canceled.state(), TaskState::Canceled);
    assert_error_kind(&cancel::cancel(agent, &id).await.err().unwrap(), ErrorKind::TaskNotCancelable);
    assert_eq!(get(agent, &id).await.unwrap(), canceled);
});

v03_scenario!(a_message_to_what_has_ended_is_wrong, async |agent: &dyn A2aService| {
    let ended = send(agent, text("", "hello")).await;
    assert_error_kind(&send_payload(agent, text(&ended.id, "more")).await.err().unwrap(), ErrorKind::InvalidParams);
    let error: Error = agent.send_streaming_message(request(text(&ended.id, "more"))).await.err().unwrap().into();
    assert_error_kind(&error, ErrorKind::InvalidParams);
    assert_eq!(get(agent, &ended.id).await.unwrap(), ended, "nothing was done");
});

v03_scenario!(a_subscription_to_what_has_ended_is_its_task, async |agent: &dyn A2aService| {
    let ended = send(agent, text("", "hello")).await;
    let events = remaining(subscribe(agent, &ended.id).await.unwrap()).await;
    // Those who wait for a `final` get its status once more.
    let (first, rest) = events.split_first().unwrap();
    assert_eq!(task_of(first), &ended);
    assert!(rest.len() < 2 && rest.iter().all(|it| state(it) == Some(ended.state())), "{rest:?}");
    assert_error_kind(&subscribe(agent, "nowhere").await.err().unwrap(), ErrorKind::TaskNotFound);
});

v03_scenario!(a_subscription_ends_with_a_turn, async |agent: &dyn A2aService| {
    let asked = send(agent, text("", "/ask what?")).await;
    let mut events = subscribe(agent, &asked.id).await.unwrap();
    assert_eq!(task_of(&next(&mut events).await), &asked);
    send(agent, text(&asked.id, "again")).await;
    assert_eq!(state(remaining(events).await.last().unwrap()), Some(TaskState::InputRequired));
});

v03_scenario!(no_length_of_a_history_is_all_of_it, async |agent: &dyn A2aService| {
    let asked = send(agent, text("", "/ask what?")).await;
    let none = SendMessageConfiguration { history_length: Some(0), ..SendMessageConfiguration::default() };
    assert_eq!(send(agent, configured(text(&asked.id, "this"), none)).await.history.len(), 3);
    let get = GetTaskRequest { id: asked.id, history_length: Some(0), ..GetTaskRequest::default() };
    assert_eq!(agent.get_task(request(get)).await.unwrap().into_inner().into_task().unwrap().history.len(), 3);
});
