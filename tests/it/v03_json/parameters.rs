//! Method parameters and results in the JSON of protocol 0.3.

use a2a_service::pb::{v1::*, wkt::Timestamp};

use super::{full, metadata, read, read_send, written};

#[test]
fn parameters_are_converted_in_both_directions() {
    let config = TaskPushNotificationConfig {
        id: "p".into(),
        task_id: "t".into(),
        url: "https://h.example".into(),
        token: "k".into(),
        authentication: Some(AuthenticationInfo { scheme: "Bearer".into(), credentials: "x".into() }),
        tenant: String::new(),
    };
    let push = concat!(
        r#"{"id":"p","url":"https://h.example","token":"k","#,
        r#""authentication":{"schemes":["Bearer"],"credentials":"x"}}"#,
    );
    let task_push = format!(r#"{{"taskId":"t","pushNotificationConfig":{push}}}"#);
    assert_eq!(written(&config), task_push);
    assert_eq!(read::<TaskPushNotificationConfig>(&task_push), config);
    let list = ListTaskPushNotificationConfigsResponse { configs: vec![config.clone()], ..Default::default() };
    assert_eq!(written(&list), format!("[{task_push}]"));
    assert_eq!(read::<ListTaskPushNotificationConfigsResponse>(&format!("[{task_push}]")), list);

    let (message, message_json) = full();
    let send = SendMessageRequest {
        message: Some(message),
        configuration: Some(SendMessageConfiguration {
            accepted_output_modes: vec!["text/plain".into()],
            task_push_notification_config: Some(TaskPushNotificationConfig { task_id: String::new(), ..config }),
            history_length: Some(0),
            return_immediately: true,
        }),
        metadata: Some(metadata(r#"{"m":1}"#)),
        tenant: String::new(),
    };
    let configuration = format!(
        r#"{{"acceptedOutputModes":["text/plain"],"historyLength":0,"pushNotificationConfig":{push},"blocking":false}}"#
    );
    let json = format!(r#"{{"message":{message_json},"configuration":{configuration},"metadata":{{"m":1}}}}"#);
    assert_eq!(written(&send), json);
    assert_eq!(read_send(&json), send);

    let list = ListTasksRequest {
        context_id: "c".into(),
        status: TaskState::AuthRequired.into(),
        page_size: Some(7),
        page_token: "n".into(),
        history_length: Some(1),
        status_timestamp_after: Some(Timestamp { seconds: 1, nanos: 0 }),
        include_artifacts: Some(true),
        tenant: String::new(),
    };
    let json = concat!(
        r#"{"contextId":"c","status":"auth-required","pageSize":7,"pageToken":"n","historyLength":1,"#,
        r#""lastUpdatedAfter":"1970-01-01T00:00:01.000Z","includeArtifacts":true}"#,
    );
    assert_eq!(written(&list), json);
    assert_eq!(read::<ListTasksRequest>(json), list);
    let page = ListTasksResponse { page_size: 50, total_size: 2, ..Default::default() };
    let json = r#"{"tasks":[],"totalSize":2,"pageSize":50,"nextPageToken":""}"#;
    assert_eq!((written(&page).as_str(), &read::<ListTasksResponse>(json)), (json, &page));

    let get = GetTaskRequest { id: "t".into(), history_length: Some(3), ..Default::default() };
    assert_eq!(written(&get), r#"{"id":"t","historyLength":3}"#);
    assert_eq!(read::<GetTaskRequest>(r#"{"id":"t","history_length":"3","metadata":{}}"#), get);
    let cancel = CancelTaskRequest { id: "t".into(), metadata: Some(metadata("{}")), ..Default::default() };
    assert_eq!(written(&cancel), r#"{"id":"t","metadata":{}}"#);
    assert_eq!(read::<CancelTaskRequest>(r#"{"id":"t","metadata":{}}"#), cancel);
    let subscribe = SubscribeToTaskRequest { id: "t".into(), ..Default::default() };
    assert_eq!(read::<SubscribeToTaskRequest>(&written(&subscribe)), subscribe);
    let get = GetTaskPushNotificationConfigRequest { task_id: "t".into(), id: "p".into(), ..Default::default() };
    assert_eq!(written(&get), r#"{"id":"t","pushNotificationConfigId":"p"}"#);
    assert_eq!(read::<GetTaskPushNotificationConfigRequest>(&written(&get)), get);
    let get = GetTaskPushNotificationConfigRequest { id: String::new(), ..get };
    assert_eq!(written(&get), r#"{"id":"t"}"#);
    let delete = DeleteTaskPushNotificationConfigRequest { task_id: "t".into(), id: "p".into(), ..Default::default() };
    assert_eq!(read::<DeleteTaskPushNotificationConfigRequest>(&written(&delete)), delete);
    let list = ListTaskPushNotificationConfigsRequest { task_id: "t".into(), ..Default::default() };
    assert_eq!(read::<ListTaskPushNotificationConfigsRequest>(&written(&list)), list);
}

/// A missing `blocking` waits, unless there is a push configuration (0.3, 9.5).
#[test]
fn blocking_defaults_to_true_without_a_push_configuration() {
    for (configuration, returns_immediately) in [
        ("{}", false),
        (r#"{"blocking":true}"#, false),
        (r#"{"blocking":false}"#, true),
        (r#"{"blocking":null}"#, false),
        (r#"{"pushNotificationConfig":{"url":"u"}}"#, true),
        (r#"{"pushNotificationConfig":{"url":"u"},"blocking":true}"#, false),
    ] {
        let send = read_send(&format!(r#"{{"configuration":{configuration}}}"#));
        assert_eq!(send.configuration.unwrap().return_immediately, returns_immediately, "{configuration}");
    }
}
