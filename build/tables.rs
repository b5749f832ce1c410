//! Tables of code generation that the OpenAPI documents need too (`src/openapi.rs`).

/// HTTP bindings of an RPC that its proto file lacks: verb, template, body.
///
/// To subscribe, the specification uses POST (11.3.2) and the proto file GET; clients use either, in 1.0 and in 0.3. In
/// 0.3 a template was also published with `task/` instead of `tasks/`, and clients were generated from it.
pub(crate) const EXTRA_BINDINGS: [(&str, [&str; 3]); 4] = [
    ("lf.a2a.v1.A2AService.SubscribeToTask", ["POST", "/tasks/{id=*}:subscribe", ""]),
    ("lf.a2a.v1.A2AService.SubscribeToTask", ["POST", "/{tenant}/tasks/{id=*}:subscribe", ""]),
    ("a2a.v1.A2AService.TaskSubscription", ["POST", "/v1/{name=tasks/*}:subscribe", ""]),
    (
        "a2a.v1.A2AService.CreateTaskPushNotificationConfig",
        ["POST", "/v1/{parent=task/*/pushNotificationConfigs}", "config"],
    ),
];

/// Messages whose members in 0.3 JSON-RPC are fields of the 1.0 message: names in 1.0 and in 0.3, `kind`, and the members
/// in the order in which they are written.
///
/// `!` marks a member that is written even if it is unset. `=` precedes the names of a member, separated by `|`, if they
/// differ from the name of the field; the first is written, all are read.
pub(crate) const CLASSIC_JSON: [(&str, &str, &str, &str); 13] = [
    ("Artifact", "Artifact", "", "artifact_id! name description parts! extensions metadata"),
    ("CancelTaskRequest", "TaskIdParams", "", "id! metadata"),
    (
        "DeleteTaskPushNotificationConfigRequest",
        "DeleteTaskPushNotificationConfigParams",
        "",
        "task_id=id! id=push_notification_config_id!",
    ),
    (
        "GetTaskPushNotificationConfigRequest",
        "GetTaskPushNotificationConfigParams",
        "",
        "task_id=id! id=push_notification_config_id",
    ),
    ("GetTaskRequest", "TaskQueryParams", "", "id! history_length"),
    ("ListTaskPushNotificationConfigsRequest", "ListTaskPushNotificationConfigParams", "", "task_id=id!"),
    (
        "ListTasksRequest",
        "ListTasksParams",
        "",
        "context_id status page_size page_token history_length \
         status_timestamp_after=last_updated_after|status_timestamp_after include_artifacts",
    ),
    ("ListTasksResponse", "ListTasksResult", "", "tasks! total_size! page_size! next_page_token!"),
    (
        "Message",
        "Message",
        "message",
        "message_id! context_id task_id role! parts! reference_task_ids extensions metadata",
    ),
    ("SubscribeToTaskRequest", "TaskIdParams", "", "id!"),
    ("Task", "Task", "task", "id! context_id! status! artifacts history metadata"),
    (
        "TaskArtifactUpdateEvent",
        "TaskArtifactUpdateEvent",
        "artifact-update",
        "task_id! context_id! artifact! append! last_chunk! metadata",
    ),
    ("TaskStatus", "TaskStatus", "", "state! message timestamp"),
];
