//! Errors: equal kinds, fields and details over every binding (specification 3.3, 5.4).

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

scenario!(invalid_request_is_rejected_by_field, async |agent: &dyn A2aService| {
    let negative = SendMessageConfiguration { history_length: Some(-1), ..SendMessageConfiguration::default() };
    for (sent, field) in [
        (SendMessageRequest::default(), "message"),
        (changed(|message| message.message_id.clear()), "message.messageId"),
        (changed(|message| message.parts.clear()), "message.parts"),
        (configured(text("", "x"), negative), "configuration.historyLength"),
    ] {
        let error = send_payload(agent, sent.clone()).await.err().unwrap();
        assert_error_kind(&error, ErrorKind::InvalidParams);
        assert_eq!(fields(&error), [field], "{error}");
        // Streaming sends are rejected before the stream begins.
        let error: Error = agent.send_streaming_message(request(sent)).await.err().unwrap().into();
        assert_eq!(fields(&error), [field], "{error}");
    }
    // An agent may send messages too (3.4).
    assert_eq!(send(agent, changed(|message| message.role = Role::Agent.into())).await.state(), TaskState::Completed);
});

scenario!(
    message_without_a_role_or_content_is_rejected,
    not_in_v03_json_rpc = "it cannot express a missing role or part; `wire::v03_inputs` tests its bytes",
    async |agent: &dyn A2aService| {
        for (sent, field) in [
            (changed(|message| message.role = 0), "message.role"),
            (changed(|message| message.role = 99), "message.role"),
            (changed(|message| message.parts.push(Part::default())), "message.parts[1]"),
        ] {
            let error = send_payload(agent, sent).await.err().unwrap();
            assert_error_kind(&error, ErrorKind::InvalidParams);
            assert_eq!(fields(&error), [field], "{error}");
        }
    }
);

scenario!(
    message_to_terminal_task_is_rejected,
    not_at_0_3 = "the error names the message in 0.3",
    async |agent: &dyn A2aService| {
        for command in ["hello", "/fail x", "/reject x"] {
            let terminal = send(agent, text("", command)).await;
            assert_error_kind(
                &send_payload(agent, text(&terminal.id, "more")).await.err().unwrap(),
                ErrorKind::UnsupportedOperation,
            );
            let error: Error =
                agent.send_streaming_message(request(text(&terminal.id, "more"))).await.err().unwrap().into();
            assert_error_kind(&error, ErrorKind::UnsupportedOperation);
            assert_eq!(get(agent, &terminal.id).await.unwrap(), terminal, "the task is unchanged");
        }
    }
);

scenario!(message_to_unknown_task_or_wrong_context_is_rejected, async |agent: &dyn A2aService| {
    assert_error_kind(&send_payload(agent, text("nowhere", "hi")).await.err().unwrap(), ErrorKind::TaskNotFound);
    let interrupted = send(agent, text("", "/ask what?")).await;
    let mut sent = text(&interrupted.id, "hi");
    sent.message.as_mut().unwrap().context_id = "another".into();
    let error = send_payload(agent, sent).await.err().unwrap();
    assert_error_kind(&error, ErrorKind::InvalidParams);
    assert_eq!(fields(&error), ["message.contextId"]);
    assert_eq!(get(agent, &interrupted.id).await.unwrap(), interrupted);
});

scenario!(unknown_task_is_not_found, async |agent: &dyn A2aService| {
    let error = get(agent, "t-9").await.err().unwrap();
    assert_error_kind(&error, ErrorKind::TaskNotFound);
    assert_eq!(error.to_string(), "Task not found: t-9");
    let negative = GetTaskRequest { id: "t-9".into(), history_length: Some(-1), ..GetTaskRequest::default() };
    let error: Error = agent.get_task(request(negative)).await.err().unwrap().into();
    assert_eq!(fields(&error), ["historyLength"]);
    // Ids may have any characters.
    for id in ["urn:x:1", "a/b", "a b", "ü", "1:cancel", "%2F"] {
        assert_eq!(get(agent, id).await.err().unwrap().to_string(), format!("Task not found: {id}"));
    }
});

scenario!(push_notifications_are_not_supported_by_default, async |agent: &dyn A2aService| {
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
    extended_card_is_not_supported_by_default,
    not_at_0_3 = "0.3 has its own error for it",
    async |agent: &dyn A2aService| {
        let card = agent.get_extended_agent_card(request(GetExtendedAgentCardRequest::default())).await;
        assert_error_kind(&card.err().unwrap().into(), ErrorKind::UnsupportedOperation);
    }
);
