//! Round trips of messages from 1.0 to 0.3 and back, and the losses listed in the parent module.

use std::fmt::Debug;

use proptest::{collection::vec, option, prelude::*};

use super::*;
use crate::protocol::pb::{
    v1::{part::Content, send_message_response::Payload as Answer, stream_response::Payload},
    v03::{file_part::File, part::Part as OldPart},
    wkt::{ListValue, Struct, Timestamp, Value, value::Kind},
};

fn id() -> impl Strategy<Value = String> {
    "[a-z0-9:%ü-]{1,6}(/[a-z]{1,3})?"
}

fn text() -> impl Strategy<Value = String> {
    "[ -~ü]{0,8}"
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..3)
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Kind::NullValue(0)),
        any::<bool>().prop_map(Kind::BoolValue),
        (-9e9..9e9).prop_map(Kind::NumberValue),
        text().prop_map(Kind::StringValue),
    ];
    leaf.prop_map(Value::from).prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(|values| Kind::ListValue(ListValue { values }).into()),
            object_of(inner).prop_map(|object| Kind::StructValue(object).into()),
        ]
    })
}

fn object_of(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Struct> {
    proptest::collection::btree_map("[a-z]{0,3}|value", value, 0..3).prop_map(|fields| Struct { fields })
}

fn object() -> impl Strategy<Value = Struct> {
    object_of(value())
}

fn metadata() -> impl Strategy<Value = Option<Struct>> {
    option::of(object())
}

/// Metadata that is unset or not empty: empty metadata of wrapped data does not survive a round trip.
fn unset_or_nonempty_metadata() -> impl Strategy<Value = Option<Struct>> {
    metadata().prop_map(|metadata| metadata.filter(|it| !it.fields.is_empty()))
}

fn part() -> impl Strategy<Value = v1::Part> {
    let file = prop_oneof![vec(any::<u8>(), 0..9).prop_map(Content::Raw), text().prop_map(Content::Url)];
    let file = (file, text(), text(), metadata()).prop_map(|(content, filename, media_type, metadata)| v1::Part {
        content: Some(content),
        filename,
        media_type,
        metadata,
    });
    let to_part = |(content, metadata)| v1::Part { content: Some(content), metadata, ..v1::Part::default() };
    let object = object().prop_map(|object| Content::Data(Kind::StructValue(object).into()));
    prop_oneof![
        (text().prop_map(Content::Text), metadata()).prop_map(to_part),
        file,
        (object, metadata()).prop_map(to_part),
        (value().prop_map(Content::Data), unset_or_nonempty_metadata()).prop_map(to_part),
    ]
}

prop_compose! {
    fn message()(
        message_id in id(), context_id in text(), task_id in text(), role in 0..9, parts in vec(part(), 0..3),
        metadata in metadata(), extensions in texts(),
    ) -> v1::Message {
        let reference_task_ids = Vec::new();
        v1::Message { message_id, context_id, task_id, role, parts, metadata, extensions, reference_task_ids }
    }
}

prop_compose! {
    fn artifact()(
        artifact_id in text(), name in text(), description in text(), parts in vec(part(), 0..3),
        metadata in metadata(), extensions in texts(),
    ) -> v1::Artifact {
        v1::Artifact { artifact_id, name, description, parts, metadata, extensions }
    }
}

prop_compose! {
    fn status()(state in 0..12, message in option::of(message()), time in option::of((any::<i64>(), 0..9))) -> v1::TaskStatus {
        let timestamp = time.map(|(seconds, nanos)| Timestamp { seconds, nanos });
        v1::TaskStatus { state, message, timestamp }
    }
}

prop_compose! {
    fn task()(
        id in text(), context_id in text(), status in option::of(status()), artifacts in vec(artifact(), 0..3),
        history in vec(message(), 0..3), metadata in metadata(),
    ) -> v1::Task {
        v1::Task { id, context_id, status, artifacts, history, metadata }
    }
}

prop_compose! {
    fn status_update()(
        task_id in text(), context_id in text(), status in option::of(status()), metadata in metadata(),
    ) -> v1::TaskStatusUpdateEvent {
        v1::TaskStatusUpdateEvent { task_id, context_id, status, metadata }
    }
}

prop_compose! {
    fn artifact_update()(
        task_id in text(), context_id in text(), artifact in option::of(artifact()), append in any::<bool>(),
        last_chunk in any::<bool>(), metadata in metadata(),
    ) -> v1::TaskArtifactUpdateEvent {
        v1::TaskArtifactUpdateEvent { task_id, context_id, artifact, append, last_chunk, metadata }
    }
}

prop_compose! {
    fn push()(id in text(), url in text(), token in text(), auth in option::of((text(), text()))) -> v1::TaskPushNotificationConfig {
        let authentication = auth.map(|(scheme, credentials)| v1::AuthenticationInfo { scheme, credentials });
        v1::TaskPushNotificationConfig { id, url, token, authentication, ..Default::default() }
    }
}

prop_compose! {
    fn configuration()(
        accepted_output_modes in texts(), task_push_notification_config in option::of(push()),
        length in option::of(any::<i32>()), return_immediately in any::<bool>(),
    ) -> v1::SendMessageConfiguration {
        let history_length = length.filter(|length| *length != 0);
        v1::SendMessageConfiguration { accepted_output_modes, task_push_notification_config, history_length, return_immediately }
    }
}

prop_compose! {
    fn send()(
        message in option::of(message()), configuration in option::of(configuration()), metadata in metadata(),
    ) -> v1::SendMessageRequest {
        v1::SendMessageRequest { tenant: String::new(), message, configuration, metadata }
    }
}

/// Asserts that converting to 0.3 and back does not change the message.
fn assert_round_trip<New, Old>(message: &New)
where
    New: Clone + PartialEq + Debug + TryFrom<Old, Error: Debug>,
    Old: From<New>,
{
    assert_eq!(&New::try_from(Old::from(message.clone())).unwrap(), message);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn messages_that_0_3_can_represent_survive_a_round_trip(
        send in send(), task in task(), message in message(), status in status_update(), artifact in artifact_update(),
    ) {
        assert_round_trip::<_, v03::SendMessageRequest>(&send);
        for payload in [
            Payload::Task(task.clone()),
            Payload::Message(message.clone()),
            Payload::StatusUpdate(status),
            Payload::ArtifactUpdate(artifact),
        ] {
            assert_round_trip::<_, v03::StreamResponse>(&v1::StreamResponse { payload: Some(payload) });
        }
        for payload in [None, Some(Answer::Task(task)), Some(Answer::Message(message))] {
            assert_round_trip::<_, v03::SendMessageResponse>(&v1::SendMessageResponse { payload });
        }
    }

    #[test]
    fn requests_with_resource_names_survive_a_round_trip(task_id in id(), id in id(), length in option::of(1..9), page in (0..9, text()), config in push()) {
        let tenant = String::new;
        assert_round_trip::<_, v03::GetTaskRequest>(&v1::GetTaskRequest { id: task_id.clone(), history_length: length, tenant: tenant() });
        assert_round_trip::<_, v03::CancelTaskRequest>(&v1::CancelTaskRequest { id: task_id.clone(), ..Default::default() });
        assert_round_trip::<_, v03::TaskSubscriptionRequest>(&v1::SubscribeToTaskRequest { id: task_id.clone(), tenant: tenant() });
        let (page_size, page_token) = page;
        assert_round_trip::<_, v03::ListTaskPushNotificationConfigRequest>(&v1::ListTaskPushNotificationConfigsRequest {
            task_id: task_id.clone(), page_size, page_token: page_token.clone(), tenant: tenant(),
        });
        assert_round_trip::<_, v03::GetTaskPushNotificationConfigRequest>(&v1::GetTaskPushNotificationConfigRequest {
            task_id: task_id.clone(), id: id.clone(), tenant: tenant(),
        });
        assert_round_trip::<_, v03::DeleteTaskPushNotificationConfigRequest>(&v1::DeleteTaskPushNotificationConfigRequest {
            task_id: task_id.clone(), id: id.clone(), tenant: tenant(),
        });
        let unnamed = v1::TaskPushNotificationConfig { task_id, id: String::new(), ..config };
        let named = v1::TaskPushNotificationConfig { id, ..unnamed.clone() };
        for config in [named, unnamed] {
            assert_round_trip::<_, v03::CreateTaskPushNotificationConfigRequest>(&config);
            assert_round_trip::<_, v03::TaskPushNotificationConfig>(&config);
            let page = v1::ListTaskPushNotificationConfigsResponse { configs: vec![config], next_page_token: page_token.clone() };
            assert_round_trip::<_, v03::ListTaskPushNotificationConfigResponse>(&page);
        }
    }

    /// Decoding may take raw contents for base64 once; further round trips do not change them.
    #[test]
    fn file_contents_are_stable_after_the_first_conversion(bytes in prop_oneof![vec(any::<u8>(), 0..9), "[A-Za-z0-9+/]{0,12}={0,2}".prop_map(String::into_bytes)]) {
        let part = v1::Part::from(old_part(OldPart::File(old_file(File::FileWithBytes(bytes)))));
        assert_round_trip::<_, v03::Part>(&part);
    }
}

fn old_part(part: OldPart) -> v03::Part {
    v03::Part { part: Some(part), metadata: None }
}

fn old_file(file: File) -> FilePart {
    FilePart { file: Some(file), ..FilePart::default() }
}

fn object_with(name: &str, kind: Kind) -> Struct {
    Struct { fields: [(name.to_owned(), kind.into())].into() }
}

#[test]
fn file_contents_are_base64_text_in_0_3() {
    let part = v03::Part::from(v1::Part::bytes("hello", "text/plain").named("a.txt"));
    let Some(OldPart::File(file)) = &part.part else { panic!("{part:?}") };
    assert_eq!((file.mime_type.as_str(), file.name.as_str()), ("text/plain", "a.txt"));
    assert_eq!(file.file, Some(File::FileWithBytes(b"aGVsbG8=".to_vec())));
    for (bytes, decoded) in [
        (&b"aGVsbG8="[..], &b"hello"[..]),
        (b"hello", b"hello"),
        (b"", b""),
        (b"\xff\x00", b"\xff\x00"),
        (b"aGVsbG8", b"aGVsbG8"),
        (b"aGVs bG8=", b"aGVs bG8="),
        // Ambiguous: raw contents that are valid base64 text are decoded.
        (b"data", b"u\xabZ"),
    ] {
        let part = v1::Part::from(old_part(OldPart::File(old_file(File::FileWithBytes(bytes.to_vec())))));
        assert_eq!(part.content, Some(Content::Raw(decoded.to_vec())), "{bytes:?}");
    }
}

#[test]
fn data_that_is_not_an_object_is_wrapped_and_marked() {
    let five = v1::Part::from(Content::Data(Kind::NumberValue(5.0).into()));
    let wrapped = v03::Part::from(five.clone());
    assert_eq!(wrapped.metadata, Some(object_with("data_part_compat", Kind::BoolValue(true))));
    let data = Some(object_with("value", Kind::NumberValue(5.0)));
    assert_eq!(wrapped.part, Some(OldPart::Data(DataPart { data: data.clone() })));
    assert_eq!(v1::Part::from(wrapped.clone()), five);
    // An object without the mark, or with further members, is not unwrapped.
    let unmarked = v1::Part::from(v03::Part { metadata: None, ..wrapped.clone() });
    assert_eq!(unmarked.content, data.map(|data| Content::Data(Kind::StructValue(data).into())));
    let more = Struct { fields: [("value".to_owned(), Value::default()), ("b".to_owned(), Value::default())].into() };
    let more = v1::Part::from(v03::Part { part: Some(OldPart::Data(DataPart { data: Some(more) })), ..wrapped });
    assert!(more.metadata.is_some());
    let unset = v1::Part::from(old_part(OldPart::Data(DataPart { data: None })));
    assert_eq!(unset.content, Some(Content::Data(Kind::StructValue(Struct::default()).into())));
}

/// Checks the rows of the table in the parent module.
#[test]
fn round_trips_lose_only_the_documented_fields() {
    let named = v1::Part::text("x").named("a.txt");
    assert_eq!(v1::Part::from(v03::Part::from(named)), v1::Part::text("x"));
    let marked = v1::Part { metadata: Some(Struct::default()), ..Content::Data(Kind::NullValue(0).into()).into() };
    assert_eq!(v1::Part::from(v03::Part::from(marked)).metadata, None);
    assert_eq!(v1::Part::from(v03::Part::default()), v1::Part::default());
    assert_eq!(v1::Part::from(old_part(OldPart::File(FilePart::default()))).content, None);

    let message = v1::Message { message_id: "m".into(), reference_task_ids: vec!["t".into()], ..Default::default() };
    let back = v1::Message::from(v03::Message::from(message.clone()));
    assert_eq!(back, v1::Message { reference_task_ids: vec![], ..message });

    let empty = v03::TaskStatus { update: Some(v03::Message::default()), ..Default::default() };
    assert_eq!(v1::TaskStatus::from(empty).message, None);

    let none = v1::SendMessageConfiguration { history_length: Some(0), ..Default::default() };
    assert_eq!(v1::SendMessageConfiguration::from(v03::SendMessageConfiguration::from(none)).history_length, None);
    let empty = v1::SendMessageConfiguration::from(v03::SendMessageConfiguration::default());
    assert!(empty.return_immediately, "`blocking` that is unset is false in the proto");
    let push = v1::TaskPushNotificationConfig { tenant: "acme".into(), task_id: "t".into(), ..Default::default() };
    let sent = v1::SendMessageConfiguration { task_push_notification_config: Some(push), ..Default::default() };
    let back = v1::SendMessageConfiguration::from(v03::SendMessageConfiguration::from(sent));
    assert_eq!(back.task_push_notification_config, Some(v1::TaskPushNotificationConfig::default()));
    let none = v1::GetTaskRequest { id: "t".into(), history_length: Some(0), tenant: "acme".into() };
    let back = v1::GetTaskRequest::try_from(v03::GetTaskRequest::from(none)).unwrap();
    assert_eq!((back.history_length, back.tenant.as_str()), (None, ""));
    let cancel = v1::CancelTaskRequest { id: "t".into(), metadata: Some(Struct::default()), ..Default::default() };
    assert_eq!(v1::CancelTaskRequest::try_from(v03::CancelTaskRequest::from(cancel)).unwrap().metadata, None);
}

#[test]
fn ids_of_a_push_configuration_are_taken_from_the_request_in_order() {
    let auth = |schemes: &[&str]| {
        let schemes = schemes.iter().copied().map(str::to_owned).collect();
        Some(v03::AuthenticationInfo { schemes, credentials: "x".into() })
    };
    let config = |id: &str, schemes: &[&str]| {
        let id = id.to_owned();
        Some(PushNotificationConfig { id, url: "u".into(), authentication: auth(schemes), ..Default::default() })
    };
    let ids = |parent: &str, config_id: &str, name: &str, id: &str| {
        let config =
            v03::TaskPushNotificationConfig { name: name.into(), push_notification_config: config(id, &["Bearer"]) };
        let (parent, config_id) = (parent.to_owned(), config_id.to_owned());
        let request = v03::CreateTaskPushNotificationConfigRequest { parent, config_id, config: Some(config) };
        v1::TaskPushNotificationConfig::try_from(request).map(|config| (config.task_id, config.id))
    };
    let name = "tasks/t2/pushNotificationConfigs/n";
    for (parent, config_id, name, id, expected) in [
        ("tasks/t", "c", "", "", ("t", "c")),
        ("tasks/t", "c", name, "i", ("t", "c")),
        ("tasks/t/pushNotificationConfigs", "", name, "i", ("t", "i")),
        ("task/t/pushNotificationConfigs", "", name, "", ("t", "n")),
        ("", "", name, "", ("t2", "n")),
        ("tasks/t", "", "", "", ("t", "")),
    ] {
        let (task, config) = ids(parent, config_id, name, id).unwrap();
        assert_eq!((task.as_str(), config.as_str()), expected, "{parent} {config_id} {name} {id}");
    }
    for parent in ["", "t"] {
        assert_eq!(ids(parent, "c", "", "i").unwrap_err().violations()[0].field, "parent");
    }
    let scheme = |schemes: &[&str]| {
        let config = v1::TaskPushNotificationConfig::from(config("", schemes).unwrap());
        config.authentication.map(|info| (info.scheme, info.credentials))
    };
    assert_eq!(scheme(&["Bearer", "Basic"]), Some(("Bearer".to_owned(), "x".to_owned())));
    assert_eq!(scheme(&[]), None);
}

#[test]
fn enum_numbers_are_equal_in_both_versions() {
    for number in 0..9 {
        let (new, old) = (v1::TaskState::try_from(number).unwrap(), v03::TaskState::try_from(number).unwrap());
        let [new, old] = [new.as_str_name(), old.as_str_name()].map(|name| name.replace("CANCELLED", "CANCELED"));
        assert_eq!(new, old);
    }
    for number in 0..3 {
        let [new, old] =
            [v1::Role::try_from(number).unwrap().as_str_name(), v03::Role::try_from(number).unwrap().as_str_name()];
        assert_eq!(new, old);
    }
    assert!(v1::TaskState::try_from(9).is_err() && v03::TaskState::try_from(9).is_err());
}

#[test]
fn status_updates_with_a_terminal_state_are_final() {
    for state in 0..10 {
        let status = Some(v1::TaskStatus { state, ..Default::default() });
        let update = v03::TaskStatusUpdateEvent::from(v1::TaskStatusUpdateEvent { status, ..Default::default() });
        assert_eq!(update.r#final, [3, 4, 5, 7].contains(&state), "{state}");
    }
}
