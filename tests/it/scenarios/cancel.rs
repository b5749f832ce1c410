//! Cancellation of a task (specification 3.1.5).

use a2a_service::pb::v1::CancelTaskRequest;

use super::*;
use crate::bindings::scenario;

pub(super) async fn cancel(agent: &dyn A2aService, id: &str) -> Result<Task, Error> {
    let cancel = CancelTaskRequest { id: id.into(), ..CancelTaskRequest::default() };
    agent.cancel_task(request(cancel)).await?.into_inner().into_task()
}

scenario!(cancel_stops_the_agent, kinds(), async |agent: &dyn A2aService| {
    let mut events = stream(agent, text("", "/slow 30")).await;
    let id = task_of(&next(&mut events).await).id.clone();
    assert_eq!(state(&next(&mut events).await), Some(TaskState::Working));
    assert_eq!(cancel(agent, &id).await.unwrap().state(), TaskState::Canceled);
    assert_eq!(remaining(events).await.iter().filter_map(state).collect::<Vec<_>>(), [TaskState::Canceled]);
});

scenario!(
    cancel_is_idempotent,
    kinds(),
    not_at_0_3 = "the second is rejected in 0.3",
    async |agent: &dyn A2aService| {
        let id = send(agent, text("", "/ask what?")).await.id;
        assert_eq!(cancel(agent, &id).await.unwrap().state(), TaskState::Canceled);
        let again = cancel(agent, &id).await.unwrap();
        assert_eq!(again, get(agent, &id).await.unwrap());
        assert_error_kind(
            &send_payload(agent, text(&id, "more")).await.err().unwrap(),
            ErrorKind::UnsupportedOperation,
        );
    }
);

/// Sends a command that interrupts its task, and cancels the task.
async fn cancel_interrupted(agent: &dyn A2aService, command: &str) {
    let interrupted = send(agent, text("", command)).await;
    let mut events = subscribe(agent, &interrupted.id).await.unwrap();
    next(&mut events).await;
    assert_eq!(cancel(agent, &interrupted.id).await.unwrap().state(), TaskState::Canceled);
    assert_eq!(remaining(events).await.iter().filter_map(state).collect::<Vec<_>>(), [TaskState::Canceled]);
}

scenario!(cancel_of_a_task_that_needs_input_succeeds, kinds(), async |agent: &dyn A2aService| {
    cancel_interrupted(agent, "/ask what?").await;
});

scenario!(
    cancel_of_a_task_that_needs_authorization_succeeds,
    kinds(not_openai = "a model does not ask for authorization"),
    async |agent: &dyn A2aService| {
        cancel_interrupted(agent, "/auth").await;
    }
);

scenario!(cancel_of_terminal_task_is_rejected, kinds(), async |agent: &dyn A2aService| {
    for command in ["hello", "/fail x", "/reject x"] {
        let terminal = send(agent, text("", command)).await;
        assert_error_kind(&cancel(agent, &terminal.id).await.err().unwrap(), ErrorKind::TaskNotCancelable);
        assert_eq!(get(agent, &terminal.id).await.unwrap(), terminal);
    }
    assert_error_kind(&cancel(agent, "nowhere").await.err().unwrap(), ErrorKind::TaskNotFound);
});
