//! Table of the messages whose 0.3 JSON is generated. `tools/openapi` compiles this file too, for the API documents.

/// Messages whose members in 0.3 JSON-RPC are fields of the 1.0 message: names in 1.0 and in 0.3, `kind`, and the members
/// in the order in which they are written.
///
/// `!` marks a member that is written even if it is unset. `=` precedes the names of a member, separated by `|`, if they
/// differ from the name of the field; the first is written, all are read.
pub(crate) const V03_MESSAGES: [(&str, &str, &str, &str); 13] = [
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
