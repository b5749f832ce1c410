//! Round trips of random 1.0 messages through the JSON of protocol 0.3.

use a2a_service::{
    pb::{
        v1::{part::Content, stream_response::Payload, *},
        wkt::{Struct, Timestamp, Value, value::Kind},
    },
    v03::json::FinalEvent,
};
use proptest::prelude::*;

use super::{read, read_send, written};

fn texts() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(".*", 0..3)
}

fn struct_of(values: impl Strategy<Value = Value>) -> impl Strategy<Value = Struct> {
    prop::collection::btree_map("[a-z]{1,4}", values, 0..3).prop_map(|fields| Struct { fields })
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Kind::NullValue(0)),
        any::<bool>().prop_map(Kind::BoolValue),
        (-1e15..1e15).prop_map(Kind::NumberValue),
        any::<i32>().prop_map(|number| Kind::NumberValue(number.into())),
        ".*".prop_map(Kind::StringValue),
    ];
    leaf.prop_map(Value::from).prop_recursive(3, 12, 3, |inner| {
        let list = prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            list.prop_map(|values| Kind::ListValue(a2a_service::pb::wkt::ListValue { values }).into()),
            struct_of(inner).prop_map(|fields| Kind::StructValue(fields).into()),
        ]
    })
}

/// Metadata without the compatibility mark, and not empty, which data other than objects cannot preserve.
fn any_metadata() -> impl Strategy<Value = Option<Struct>> {
    prop::option::of(struct_of(any_value()).prop_filter("not empty", |fields| !fields.fields.is_empty()))
}

fn any_part() -> impl Strategy<Value = Part> {
    let file = || (".*", ".*", any_metadata());
    prop_oneof![
        (".*", any_metadata()).prop_map(|(text, metadata)| Part { metadata, ..Part::text(text) }),
        (any_value(), any_metadata()).prop_map(|(data, metadata)| Part { metadata, ..Content::Data(data).into() }),
        (any::<Vec<u8>>(), file())
            .prop_map(|(raw, (name, media, metadata))| Part { metadata, ..Part::bytes(raw, media).named(name) }),
        (".*", file())
            .prop_map(|(url, (name, media, metadata))| Part { metadata, ..Part::url(url, media).named(name) }),
    ]
}

fn any_message() -> impl Strategy<Value = Message> {
    let ids = (".*", ".*", ".*", 1..3);
    (ids, prop::collection::vec(any_part(), 0..3), any_metadata(), texts(), texts()).prop_map(
        |((message_id, context_id, task_id, role), parts, metadata, extensions, reference_task_ids)| Message {
            message_id,
            context_id,
            task_id,
            role,
            parts,
            metadata,
            extensions,
            reference_task_ids,
        },
    )
}

fn any_status() -> impl Strategy<Value = TaskStatus> {
    let time = (-1_000_000_000..10_000_000_000_i64, 0..1000)
        .prop_map(|(seconds, millis)| Timestamp { seconds, nanos: millis * 1_000_000 });
    (0..9, prop::option::of(any_message()), prop::option::of(time)).prop_map(|(state, message, timestamp)| TaskStatus {
        state,
        message,
        timestamp,
    })
}

fn any_artifact() -> impl Strategy<Value = Artifact> {
    let parts = prop::collection::vec(any_part(), 0..3);
    (".*", ".*", ".*", parts, any_metadata(), texts()).prop_map(
        |(artifact_id, name, description, parts, metadata, extensions)| Artifact {
            artifact_id,
            name,
            description,
            parts,
            metadata,
            extensions,
        },
    )
}

fn any_task() -> impl Strategy<Value = Task> {
    let (artifacts, history) =
        (prop::collection::vec(any_artifact(), 0..2), prop::collection::vec(any_message(), 0..2));
    (".*", ".*", any_status(), artifacts, history, any_metadata()).prop_map(
        |(id, context_id, status, artifacts, history, metadata)| Task {
            id,
            context_id,
            status: Some(status),
            artifacts,
            history,
            metadata,
        },
    )
}

fn any_payload() -> impl Strategy<Value = Payload> {
    prop_oneof![
        any_task().prop_map(Payload::Task),
        any_message().prop_map(Payload::Message),
        (".*", ".*", any_status(), any_metadata()).prop_map(|(task_id, context_id, status, metadata)| {
            let status = Some(status);
            Payload::StatusUpdate(TaskStatusUpdateEvent { task_id, context_id, status, metadata })
        }),
        (".*", ".*", any_artifact(), any::<[bool; 2]>(), any_metadata()).prop_map(
            |(task_id, context_id, artifact, [append, last_chunk], metadata)| {
                let artifact = Some(artifact);
                let event = TaskArtifactUpdateEvent { task_id, context_id, artifact, append, last_chunk, metadata };
                Payload::ArtifactUpdate(event)
            }
        ),
    ]
}

fn any_config() -> impl Strategy<Value = TaskPushNotificationConfig> {
    let authentication = ("[!-~]+", ".*").prop_map(|(scheme, credentials)| AuthenticationInfo { scheme, credentials });
    (".*", ".*", ".+", ".*", prop::option::of(authentication)).prop_map(|(id, task_id, url, token, authentication)| {
        TaskPushNotificationConfig { id, task_id, url, token, authentication, tenant: String::new() }
    })
}

fn any_send() -> impl Strategy<Value = SendMessageRequest> {
    let config = prop::option::of(
        any_config().prop_map(|config| TaskPushNotificationConfig { task_id: String::new(), ..config }),
    );
    let configuration = (texts(), config, prop::option::of(any::<i32>()), any::<bool>()).prop_map(
        |(accepted_output_modes, task_push_notification_config, history_length, return_immediately)| {
            SendMessageConfiguration {
                accepted_output_modes,
                task_push_notification_config,
                history_length,
                return_immediately,
            }
        },
    );
    (any_message(), prop::option::of(configuration), any_metadata()).prop_map(|(message, configuration, metadata)| {
        SendMessageRequest { message: Some(message), configuration, metadata, tenant: String::new() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn result_is_preserved(payload in any_payload(), last in any::<bool>()) {
        let json = serde_json::to_string(&FinalEvent { payload: &payload, last }).unwrap();
        prop_assert!(!json.contains('\n'));
        prop_assert_eq!(read::<StreamResponse>(&json).payload, Some(payload));
    }

    #[test]
    fn task_is_preserved(task in any_task()) {
        prop_assert_eq!(read::<Task>(&written(&task)), task);
    }

    #[test]
    fn send_is_preserved(send in any_send()) {
        prop_assert_eq!(read_send(&written(&send)), send);
    }

    #[test]
    fn push_configuration_is_preserved(config in any_config()) {
        prop_assert_eq!(read::<TaskPushNotificationConfig>(&written(&config)), config);
    }
}
