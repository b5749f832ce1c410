//! Exceptions of code generation, where the proto files are silent or differ from the specification: types, further names of
//! members and of enum values, and constraints. `extra_bindings.rs` has further HTTP routes, `v03_json.rs` the messages
//! whose 0.3 JSON is generated.

/// Response messages with a Rust type of their own instead of the prost struct: the items of streams, which know their
/// log position (those of 1.0 are also shared by all readers), and a task, which may still be encoded.
pub(crate) const SHARED: [(&str, &str); 3] = [
    ("lf.a2a.v1.StreamResponse", "crate::protocol::event::Event"),
    ("a2a.v1.StreamResponse", "crate::protocol::v03::event::Event"),
    ("lf.a2a.v1.Task", "crate::protocol::snapshot::Snapshot"),
];

/// Messages with credentials, as proto paths. `src/protocol/messages/redact.rs` implements their `Debug`, without the credentials.
pub(crate) const SECRET: [&str; 4] = [
    ".lf.a2a.v1.TaskPushNotificationConfig",
    ".lf.a2a.v1.AuthenticationInfo",
    ".a2a.v1.PushNotificationConfig",
    ".a2a.v1.AuthenticationInfo",
];

/// Messages that stores keep encoded in protobuf, and that are written in ProtoJSON without being decoded.
pub(crate) const KEPT: [&str; 2] = ["lf.a2a.v1.Task", "lf.a2a.v1.StreamResponse"];

/// Alternative JSON names accepted for a member. The Go SDK's REST client filters tasks by `lastUpdatedAfter`, the name
/// of `statusTimestampAfter` (3.1.4) before 1.0.
pub(crate) const EXTRA_NAMES: [(&str, &str); 1] =
    [("lf.a2a.v1.ListTasksRequest.status_timestamp_after", "lastUpdatedAfter")];

/// Alternative names accepted for an enum value: the two protocol versions spell one state differently.
pub(crate) const EXTRA_VALUES: [(&str, &str, i32); 2] =
    [("lf.a2a.v1.TaskState", "TASK_STATE_CANCELLED", 5), ("a2a.v1.TaskState", "TASK_STATE_CANCELED", 5)];

/// Fields of messages that only agents send, with the function of `src/protocol/json.rs` that reads them more leniently than those
/// of requests.
pub(crate) const LENIENT: [(&str, &str); 4] = [
    ("lf.a2a.v1.TaskStatus.state", "state"),
    ("lf.a2a.v1.TaskStatus.timestamp", "time"),
    ("a2a.v1.TaskStatus.state", "state"),
    ("a2a.v1.TaskStatus.timestamp", "time"),
];

/// Oneofs that must be set: "a Part MUST contain exactly one" (4.1.6), which protobuf can't express. Other oneofs occur
/// only in responses, or may have an arm that a later version adds.
pub(crate) const CHOICES: [&str; 2] = ["lf.a2a.v1.Part.content", "a2a.v1.Part.part"];
