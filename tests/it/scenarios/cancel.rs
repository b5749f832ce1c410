//! Canceling a task (3.1.5).

use a2a_service::pb::v1::CancelTaskRequest;

use super::*;
use crate::bindings::scenario;

pub(super) async fn cancel(agent: &dyn A2aService, id: &str) -> Result<Task, Error> {
    let cancel = CancelTaskRequest { id: id.into(), ..CancelTaskRequest::default() };
    agent.cancel_task(request(cancel)).await?.into_inner().into_task()
}

scenario!(a_cancel_stops_the_agent, async |agent: &dyn A2aService| {
    let mut events = stream(agent, text("", "/slow 30")).await;
    let id = task_of(&next(&mut events).await).id.clone();
    assert_eq!(state(&next(&mut events).await), Some(TaskState::Working));
    assert_eq!(cancel(agent, &id).await.unwrap().state(), TaskState::Canceled);
    assert_eq!(remaining(events).await.iter().filter_map(state).collect::<Vec<_>>(), [TaskState::Canceled]);
});

scenario!(
    a_cancel_that_comes_twice_is_one,
    not_at_0_3 = "there the second is refused",
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

scenario!(what_waits_can_be_canceled, async |agent: &dyn A2aService| {
    for command in ["/ask what?", "/auth"] {
        let waits = send(agent, text("", command)).await;
        let mut events = subscribe(agent, &waits.id).await.unwrap();
        next(&mut events).await;
        assert_eq!(cancel(agent, &waits.id).await.unwrap().state(), TaskState::Canceled);
        assert_eq!(remaining(events).await.iter().filter_map(state).collect::<Vec<_>>(), [TaskState::Canceled]);
    }
});

scenario!(what_has_ended_otherwise_cannot, async |agent: &dyn A2aService| {
    for command in ["hello", "/fail x", "/reject x"] {
        let ended = send(agent, text("", command)).await;
        assert_error_kind(&cancel(agent, &ended.id).await.err().unwrap(), ErrorKind::TaskNotCancelable);
        assert_eq!(get(agent, &ended.id).await.unwrap(), ended);
    }
    assert_error_kind(&cancel(agent, "nowhere").await.err().unwrap(), ErrorKind::TaskNotFound);
});
