//! The proto files as descriptors, and what they leave unsaid.

use prost_reflect::{DescriptorPool, ExtensionDescriptor, FieldDescriptor, MessageDescriptor, Value};

use crate::Result;

/// A package of `proto/`.
pub(crate) struct Package {
    pub(crate) name: &'static str,
    /// Its file, which may have only one service.
    pub(crate) file: &'static str,
    /// The module that its messages are in.
    pub(crate) module: &'static str,
}

/// Protocol 1.0, and 0.3.
pub(crate) const PACKAGES: [Package; 2] = [
    Package { name: "lf.a2a.v1", file: "lf/a2a/v1/a2a.proto", module: "crate::pb::v1" },
    Package { name: "a2a.v1", file: "a2a/v1/a2a.proto", module: "crate::pb::v03" },
];

/// What the packages use of `google.protobuf`, and the module that it is in.
pub(crate) const WELL_KNOWN: [&str; 3] =
    ["google/protobuf/empty.proto", "google/protobuf/struct.proto", "google/protobuf/timestamp.proto"];
pub(crate) const WELL_KNOWN_MODULE: &str = "crate::pb::wkt";

/// Replies that have a type of ours around the message. An item of a stream knows where in it it stands, and that of 1.0
/// is shared by all who read it; a task may be as its store has it.
pub(crate) const SHARED: [(&str, &str); 3] = [
    ("lf.a2a.v1.StreamResponse", "crate::event::Event"),
    ("a2a.v1.StreamResponse", "crate::v03::event::Event"),
    ("lf.a2a.v1.Task", "crate::snapshot::Snapshot"),
];

/// Messages that are kept in protobuf, and written in ProtoJSON without being decoded.
pub(crate) const KEPT: [&str; 2] = ["lf.a2a.v1.Task", "lf.a2a.v1.StreamResponse"];

/// Bindings of an RPC to HTTP that its proto file lacks: verb, template, body.
///
/// 1.0: the text of the specification subscribes by POST (11.3.2), its proto file by GET, and clients do either. So it
/// is in 0.3. There a template was published with `task/` for `tasks/`, and clients were generated from it.
pub(crate) const EXTRA_BINDINGS: [(&str, [&str; 3]); 4] = [
    ("lf.a2a.v1.A2AService.SubscribeToTask", ["POST", "/tasks/{id=*}:subscribe", ""]),
    ("lf.a2a.v1.A2AService.SubscribeToTask", ["POST", "/{tenant}/tasks/{id=*}:subscribe", ""]),
    ("a2a.v1.A2AService.TaskSubscription", ["POST", "/v1/{name=tasks/*}:subscribe", ""]),
    (
        "a2a.v1.A2AService.CreateTaskPushNotificationConfig",
        ["POST", "/v1/{parent=task/*/pushNotificationConfigs}", "config"],
    ),
];

/// Names of a member that are read beside its own. The Go SDK's REST client filters tasks by `lastUpdatedAfter`, which
/// is what `statusTimestampAfter` (3.1.4) was called before 1.0.
pub(crate) const EXTRA_NAMES: [(&str, &str); 1] =
    [("lf.a2a.v1.ListTasksRequest.status_timestamp_after", "lastUpdatedAfter")];

/// Names of a value that are read beside its own: the two versions of the protocol spell one state differently.
pub(crate) const EXTRA_VALUES: [(&str, &str, i32); 2] =
    [("lf.a2a.v1.TaskState", "TASK_STATE_CANCELLED", 5), ("a2a.v1.TaskState", "TASK_STATE_CANCELED", 5)];

/// Oneofs that must have an arm: "a Part MUST contain exactly one" of them (4.1.6), which proto has no word for. Other
/// oneofs stand in replies, or may be of an arm that a later version adds.
pub(crate) const CHOICES: [&str; 2] = ["lf.a2a.v1.Part.content", "a2a.v1.Part.part"];

/// The descriptors, with the two annotations that code comes out of.
pub(crate) struct Schema {
    pub(crate) pool: DescriptorPool,
    pub(crate) http: ExtensionDescriptor,
    field_behavior: ExtensionDescriptor,
}

impl Schema {
    pub(crate) fn new(descriptors: &[u8]) -> Result<Self> {
        // prost's own descriptors forget extensions, and so `google.api.http`.
        let pool = DescriptorPool::decode(descriptors)?;
        let extension = |name: &str| pool.get_extension_by_name(name).ok_or(format!("{name} is not compiled in"));
        let (http, field_behavior) = (extension("google.api.http")?, extension("google.api.field_behavior")?);
        let schema = Self { pool, http, field_behavior };
        schema.knows_its_exceptions()?;
        Ok(schema)
    }

    pub(crate) fn is_required(&self, field: &FieldDescriptor) -> bool {
        const REQUIRED: Value = Value::EnumNumber(2);
        field.options().get_extension(&self.field_behavior).as_list().is_some_and(|it| it.contains(&REQUIRED))
    }

    /// Refuses a table above that speaks of what is not there: it would do nothing, and nobody would see it.
    fn knows_its_exceptions(&self) -> Result<()> {
        let methods: Vec<_> = self.pool.services().flat_map(|it| it.methods().collect::<Vec<_>>()).collect();
        let messages: Vec<_> = self.pool.all_messages().collect();
        let unknown = [
            SHARED.iter().map(|it| it.0).find(|it| messages.iter().all(|message| message.full_name() != *it)),
            KEPT.into_iter().find(|it| messages.iter().all(|message| message.full_name() != *it)),
            EXTRA_BINDINGS.iter().map(|it| it.0).find(|it| methods.iter().all(|method| method.full_name() != *it)),
            (EXTRA_NAMES.iter().map(|it| it.0))
                .find(|it| messages.iter().flat_map(MessageDescriptor::fields).all(|field| field.full_name() != *it)),
            (EXTRA_VALUES.iter().map(|it| it.0)).find(|it| self.pool.get_enum_by_name(it).is_none()),
            (CHOICES.into_iter())
                .find(|it| messages.iter().flat_map(MessageDescriptor::oneofs).all(|oneof| oneof.full_name() != *it)),
        ];
        match unknown.into_iter().flatten().next() {
            Some(name) => Err(format!("build/schema.rs speaks of {name}, which no proto file has").into()),
            None => Ok(()),
        }
    }
}
