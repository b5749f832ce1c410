//! Errors: the same one means the same, whichever way it comes (3.3, 5.4).

use a2a_service::pb::v1::{
    DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest, GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest, Part, Role, TaskPushNotificationConfig,
};

use super::*;
use crate::bindings::scenario;

fn changed(change: impl FnOnce(&mut Message)) -> SendMessageRequest {
    let mut request = text("", "hello");
    change(request.message.as_mut().unwrap());
    request
}

scenario!(a_request_is_refused_by_its_field, async |agent: &dyn A2aService| {
    let negative = SendMessageConfiguration { history_length: Some(-1), ..SendMessageConfiguration::default() };
    for (sent, field) in [
        (SendMessageRequest::default(), "message"),
        (changed(|it| it.message_id.clear()), "message.messageId"),
        (changed(|it| it.parts.clear()), "message.parts"),
        (configured(text("", "x"), negative), "configuration.historyLength"),
    ] {
        let error = send_payload(agent, sent.clone()).await.err().unwrap();
        assert_error_kind(&error, ErrorKind::InvalidParams);
        assert_eq!(fields(&error), [field], "{error}");
        // A stream is refused before it begins.
        let error: Error = agent.send_streaming_message(request(sent)).await.err().unwrap().into();
        assert_eq!(fields(&error), [field], "{error}");
    }
    // An agent may send messages too (3.4).
    assert_eq!(send(agent, changed(|it| it.role = Role::Agent.into())).await.state(), TaskState::Completed);
});

scenario!(
    a_message_has_to_say_something,
    not_in_v03_json_rpc =
        "it has no form for a role or a part that is not there: what stands in their place is among its bytes",
    async |agent: &dyn A2aService| {
        for (sent, field) in [
            (changed(|it| it.role = 0), "message.role"),
            (changed(|it| it.role = 99), "message.role"),
            (changed(|it| it.parts.push(Part::default())), "message.parts[1]"),
        ] {
            let error = send_payload(agent, sent).await.err().unwrap();
            assert_error_kind(&error, ErrorKind::InvalidParams);
            assert_eq!(fields(&error), [field], "{error}");
        }
    }
);

scenario!(
    a_task_that_has_ended_takes_no_message,
    not_at_0_3 = "there the message is to blame",
    async |agent: &dyn A2aService| {
        for command in ["hello", "/fail x", "/reject x"] {
            let ended = send(agent, text("", command)).await;
            assert_error_kind(
                &send_payload(agent, text(&ended.id, "more")).await.err().unwrap(),
                ErrorKind::UnsupportedOperation,
            );
            let error: Error =
                agent.send_streaming_message(request(text(&ended.id, "more"))).await.err().unwrap().into();
            assert_error_kind(&error, ErrorKind::UnsupportedOperation);
            assert_eq!(get(agent, &ended.id).await.unwrap(), ended, "nothing was done");
        }
    }
);

scenario!(a_message_goes_to_a_task_that_takes_it, async |agent: &dyn A2aService| {
    assert_error_kind(&send_payload(agent, text("nowhere", "hi")).await.err().unwrap(), ErrorKind::TaskNotFound);
    let asked = send(agent, text("", "/ask what?")).await;
    let mut elsewhere = text(&asked.id, "hi");
    elsewhere.message.as_mut().unwrap().context_id = "elsewhere".into();
    let error = send_payload(agent, elsewhere).await.err().unwrap();
    assert_error_kind(&error, ErrorKind::InvalidParams);
    assert_eq!(fields(&error), ["message.contextId"]);
    assert_eq!(get(agent, &asked.id).await.unwrap(), asked);
});

scenario!(what_is_not_there_is_not_found, async |agent: &dyn A2aService| {
    let error = get(agent, "t-9").await.err().unwrap();
    assert_error_kind(&error, ErrorKind::TaskNotFound);
    assert_eq!(error.to_string(), "Task not found: t-9");
    let negative = GetTaskRequest { id: "t-9".into(), history_length: Some(-1), ..GetTaskRequest::default() };
    let error: Error = agent.get_task(request(negative)).await.err().unwrap().into();
    assert_eq!(fields(&error), ["historyLength"]);
    // An id may be anything.
    for id in ["urn:x:1", "a/b", "a b", "ü", "1:cancel", "%2F"] {
        assert_eq!(get(agent, id).await.err().unwrap().to_string(), format!("Task not found: {id}"));
    }
});

scenario!(push_notifications_are_not_offered, async |agent: &dyn A2aService| {
    let (task_id, id, url) = ("t".to_owned(), "c".to_owned(), "https://example.com/hook".to_owned());
    let config = TaskPushNotificationConfig { task_id: task_id.clone(), url, ..TaskPushNotificationConfig::default() };
    let inline = SendMessageConfiguration { task_push_notification_config: Some(config.clone()), ..Default::default() };
    let inline = configured(text("", "x"), inline);
    let get = GetTaskPushNotificationConfigRequest { task_id: task_id.clone(), id: id.clone(), ..Default::default() };
    let delete = DeleteTaskPushNotificationConfigRequest { task_id: task_id.clone(), id, ..Default::default() };
    let list = ListTaskPushNotificationConfigsRequest { task_id, ..Default::default() };
    for error in [
        agent.create_task_push_notification_config(request(config)).await.err().unwrap(),
        agent.get_task_push_notification_config(request(get)).await.err().unwrap(),
        agent.list_task_push_notification_configs(request(list)).await.err().unwrap(),
        agent.delete_task_push_notification_config(request(delete)).await.err().unwrap(),
        agent.send_message(request(inline.clone())).await.err().unwrap(),
        agent.send_streaming_message(request(inline)).await.err().unwrap(),
    ] {
        assert_error_kind(&error.into(), ErrorKind::PushNotificationNotSupported);
    }
});

scenario!(
    there_is_no_extended_card,
    not_at_0_3 = "it has an error of its own for this",
    async |agent: &dyn A2aService| {
        let card = agent.get_extended_agent_card(request(GetExtendedAgentCardRequest::default())).await;
        assert_error_kind(&card.err().unwrap().into(), ErrorKind::UnsupportedOperation);
    }
);
