//! Behaviour of protocol 0.3 that differs from 1.0, over the bindings of 0.3.

use super::*;
use crate::bindings::v03_scenario;

v03_scenario!(second_cancel_is_rejected, async |agent: &dyn A2aService| {
    let id = send(agent, text("", "/ask what?")).await.id;
    let canceled = cancel::cancel(agent, &id).await.unwrap();
    assert_eq!(canceled.state(), TaskState::Canceled);
    assert_error_kind(&cancel::cancel(agent, &id).await.err().unwrap(), ErrorKind::TaskNotCancelable);
    assert_eq!(get(agent, &id).await.unwrap(), canceled);
});

v03_scenario!(errors_have_the_names_of_0_3, async |agent: &dyn A2aService| {
    let done = send(agent, text("", "hello")).await.id;
    let asked = send(agent, text("", "/ask what?")).await.id;
    cancel::cancel(agent, &asked).await.unwrap();
    for (id, state) in [(done, "completed"), (asked, "canceled")] {
        let error = cancel::cancel(agent, &id).await.err().unwrap().to_string();
        assert!(error.contains(&id) && error.ends_with(&format!("is {state}")), "{error}");
    }
});

v03_scenario!(message_to_terminal_task_has_invalid_params, async |agent: &dyn A2aService| {
    let terminal = send(agent, text("", "hello")).await;
    assert_error_kind(&send_payload(agent, text(&terminal.id, "more")).await.err().unwrap(), ErrorKind::InvalidParams);
    let error: Error = agent.send_streaming_message(request(text(&terminal.id, "more"))).await.err().unwrap().into();
    assert_error_kind(&error, ErrorKind::InvalidParams);
    assert_eq!(get(agent, &terminal.id).await.unwrap(), terminal, "the task is unchanged");
});

v03_scenario!(subscription_to_terminal_task_has_the_task, async |agent: &dyn A2aService| {
    let terminal = send(agent, text("", "hello")).await;
    let events = remaining(subscribe(agent, &terminal.id).await.unwrap()).await;
    // Clients that wait for `final` get the status once more.
    let (first, rest) = events.split_first().unwrap();
    assert_eq!(task_of(first), &terminal);
    assert!(rest.len() < 2 && rest.iter().all(|event| state(event) == Some(terminal.state())), "{rest:?}");
    assert_error_kind(&subscribe(agent, "nowhere").await.err().unwrap(), ErrorKind::TaskNotFound);
});

v03_scenario!(subscription_ends_with_the_turn, async |agent: &dyn A2aService| {
    let interrupted = send(agent, text("", "/ask what?")).await;
    let mut events = subscribe(agent, &interrupted.id).await.unwrap();
    assert_eq!(task_of(&next(&mut events).await), &interrupted);
    send(agent, text(&interrupted.id, "again")).await;
    assert_eq!(state(remaining(events).await.last().unwrap()), Some(TaskState::InputRequired));
});

v03_scenario!(history_length_of_0_returns_the_whole_history, async |agent: &dyn A2aService| {
    let interrupted = send(agent, text("", "/ask what?")).await;
    let none = SendMessageConfiguration { history_length: Some(0), ..SendMessageConfiguration::default() };
    assert_eq!(send(agent, configured(text(&interrupted.id, "this"), none)).await.history.len(), 3);
    let get = GetTaskRequest { id: interrupted.id, history_length: Some(0), ..GetTaskRequest::default() };
    assert_eq!(agent.get_task(request(get)).await.unwrap().into_inner().into_task().unwrap().history.len(), 3);
});
