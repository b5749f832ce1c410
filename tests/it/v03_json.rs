//! JSON of protocol 0.3 for the messages of 1.0: encoding, decoding, accepted variants and lossy conversions.

use a2a_service::{
    pb::{
        v1::{part::Content, send_message_response, stream_response::Payload, *},
        wkt::{Struct, Timestamp, Value},
    },
    v03::json::{FinalEvent, Read, WithExtras, Write},
};
use serde::{Serialize, de::DeserializeOwned};

mod parameters;
mod round_trip;

fn written<T>(message: &T) -> String
where
    for<'a> Write<'a, T>: Serialize,
{
    serde_json::to_string(&Write(message)).unwrap()
}

fn read<T>(json: &str) -> T
where
    Read<T>: DeserializeOwned,
{
    serde_json::from_str::<Read<T>>(json).unwrap_or_else(|e| panic!("{json}: {e}")).0
}

fn read_send(json: &str) -> SendMessageRequest {
    read::<WithExtras<SendMessageRequest>>(json).message
}

fn refused<T: std::fmt::Debug>(json: &str) -> String
where
    Read<T>: DeserializeOwned,
{
    let error = serde_json::from_str::<Read<T>>(json).map(|read| read.0).unwrap_err().to_string();
    error.rsplit_once(" at line ").map_or(error.as_str(), |(text, _)| text).to_owned()
}

fn value(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

fn metadata(json: &str) -> Struct {
    serde_json::from_str(json).unwrap()
}
/// Message with every member that 0.3 has, and its JSON.
/// A message with everything that 0.3 has a word for, and its only form.
fn full() -> (Message, &'static str) {
    let parts = vec![
        Part { metadata: Some(metadata(r#"{"k":1}"#)), ..Part::text("hi") },
        Part::bytes("hello", "text/plain").named("a.txt"),
        Part::url("https://x.example/y.png", "image/png"),
        Content::Data(value(r#"{"a":[1,null]}"#)).into(),
    ];
    let message = Message {
        message_id: "m-1".into(),
        context_id: "c-1".into(),
        task_id: "t-1".into(),
        role: Role::User.into(),
        parts,
        metadata: Some(metadata("{}")),
        extensions: vec!["urn:e".into()],
        reference_task_ids: vec!["t-0".into()],
    };
    let json = concat!(
        r#"{"kind":"message","messageId":"m-1","contextId":"c-1","taskId":"t-1","role":"user","parts":["#,
        r#"{"kind":"text","text":"hi","metadata":{"k":1}},"#,
        r#"{"kind":"file","file":{"name":"a.txt","mimeType":"text/plain","bytes":"aGVsbG8="}},"#,
        r#"{"kind":"file","file":{"mimeType":"image/png","uri":"https://x.example/y.png"}},"#,
        r#"{"kind":"data","data":{"a":[1,null]}}],"#,
        r#""referenceTaskIds":["t-0"],"extensions":["urn:e"],"metadata":{}}"#,
    );
    (message, json)
}

fn status(state: TaskState) -> TaskStatus {
    TaskStatus { state: state.into(), message: None, timestamp: Some(Timestamp { seconds: 0, nanos: 0 }) }
}

#[test]
fn message_is_encoded_and_decoded() {
    let (message, json) = full();
    assert_eq!(written(&message), json);
    assert_eq!(read::<Message>(json), message);
    let bare = Message { role: Role::Agent.into(), ..Message::default() };
    assert_eq!(written(&bare), r#"{"kind":"message","messageId":"","role":"agent","parts":[]}"#);
}

#[test]
fn tasks_and_updates_are_encoded_and_decoded() {
    let (message, message_json) = full();
    let artifact = Artifact {
        artifact_id: "a-1".into(),
        name: "n".into(),
        description: "d".into(),
        parts: vec![Part::text("x")],
        metadata: Some(metadata(r#"{"m":true}"#)),
        extensions: vec!["urn:e".into()],
    };
    let artifact_json = concat!(
        r#"{"artifactId":"a-1","name":"n","description":"d","parts":[{"kind":"text","text":"x"}],"#,
        r#""extensions":["urn:e"],"metadata":{"m":true}}"#,
    );
    let task = Task {
        id: "t-1".into(),
        context_id: "c-1".into(),
        status: Some(TaskStatus { message: Some(message.clone()), ..status(TaskState::InputRequired) }),
        artifacts: vec![artifact.clone()],
        history: vec![message.clone()],
        metadata: Some(metadata("{}")),
    };
    let task_json = format!(
        concat!(
            r#"{{"kind":"task","id":"t-1","contextId":"c-1","status":{{"state":"input-required","message":{message},"#,
            r#""timestamp":"1970-01-01T00:00:00.000Z"}},"artifacts":[{artifact}],"history":[{message}],"metadata":{{}}}}"#,
        ),
        message = message_json,
        artifact = artifact_json,
    );
    let update = TaskStatusUpdateEvent {
        task_id: "t-1".into(),
        context_id: "c-1".into(),
        status: Some(status(TaskState::Completed)),
        metadata: Some(metadata(r#"{"k":1}"#)),
    };
    let chunk = TaskArtifactUpdateEvent {
        task_id: "t-1".into(),
        context_id: "c-1".into(),
        artifact: Some(artifact),
        append: true,
        last_chunk: false,
        metadata: None,
    };
    let update_json = |last| {
        let status = r#"{"state":"completed","timestamp":"1970-01-01T00:00:00.000Z"}"#;
        let head = r#""kind":"status-update","taskId":"t-1","contextId":"c-1""#;
        format!(r#"{{{head},"status":{status},"final":{last},"metadata":{{"k":1}}}}"#)
    };
    let head = r#""kind":"artifact-update","taskId":"t-1","contextId":"c-1""#;
    let chunk_json = format!(r#"{{{head},"artifact":{artifact_json},"append":true,"lastChunk":false}}"#);
    assert_eq!(written(&task), task_json);
    assert_eq!(read::<Task>(&task_json), task);
    for (payload, last, json) in [
        (Payload::Task(task.clone()), false, task_json.clone()),
        (Payload::Message(message.clone()), true, message_json.to_owned()),
        (Payload::StatusUpdate(update.clone()), false, update_json(false)),
        (Payload::StatusUpdate(update), true, update_json(true)),
        (Payload::ArtifactUpdate(chunk), false, chunk_json),
    ] {
        assert_eq!(serde_json::to_string(&FinalEvent { payload: &payload, last }).unwrap(), json);
        // Some clients omit `kind`.
        let (kind, rest) = json[1..].split_once(',').unwrap();
        assert!(kind.starts_with(r#""kind":"#));
        for json in [json.clone(), format!("{{{rest}")] {
            assert_eq!(read::<StreamResponse>(&json), StreamResponse { payload: Some(payload.clone()) }, "{json}");
        }
    }
    for (payload, json) in [
        (send_message_response::Payload::Task(task), task_json),
        (send_message_response::Payload::Message(message), message_json.to_owned()),
    ] {
        let response = SendMessageResponse { payload: Some(payload) };
        assert_eq!(written(&response), json);
        assert_eq!(read::<SendMessageResponse>(&json), response);
    }
    assert_eq!(refused::<SendMessageResponse>(&update_json(true)), "expected a task or a message, found an event");
}

#[test]
fn states_and_roles_have_the_names_of_0_3() {
    for (word, state) in [
        ("submitted", TaskState::Submitted),
        ("working", TaskState::Working),
        ("input-required", TaskState::InputRequired),
        ("completed", TaskState::Completed),
        ("canceled", TaskState::Canceled),
        ("failed", TaskState::Failed),
        ("rejected", TaskState::Rejected),
        ("auth-required", TaskState::AuthRequired),
        ("unknown", TaskState::Unspecified),
    ] {
        let json = format!(r#"{{"state":"{word}"}}"#);
        let status = TaskStatus { state: state.into(), ..TaskStatus::default() };
        assert_eq!(written(&status), json);
        let snake = word.replace('-', "_");
        for other in [word, &snake, &word.to_uppercase(), state.as_str_name()] {
            assert_eq!(read::<TaskStatus>(&format!(r#"{{"state":"{other}"}}"#)), status, "{other}");
        }
    }
    assert_eq!(read::<TaskStatus>(r#"{"state":"cancelled"}"#).state(), TaskState::Canceled);
    assert_eq!(read::<TaskStatus>(r#"{"state":"TASK_STATE_CANCELLED"}"#).state(), TaskState::Canceled);
    // A state of a later version. Filters of requests are read strictly: `wire/v03_jsonrpc_errors.rs`.
    assert_eq!(read::<TaskStatus>(r#"{"state":"paused"}"#).state(), TaskState::Unspecified);
    for (word, role) in [("user", Role::User), ("Agent", Role::Agent), ("ROLE_USER", Role::User)] {
        assert_eq!(read::<Message>(&format!(r#"{{"role":"{word}"}}"#)).role(), role);
    }
    assert_eq!(refused::<Message>(r#"{"role":"system"}"#), r#""system" is not one of user, agent"#);
}

#[test]
fn kind_of_a_message_is_checked() {
    for json in [r#"{"kind":"message","messageId":"m"}"#, r#"{"kind":null,"messageId":"m"}"#, r#"{"messageId":"m"}"#] {
        assert_eq!(read::<Message>(json), Message { message_id: "m".into(), ..Message::default() }, "{json}");
    }
    assert_eq!(refused::<Message>(r#"{"kind":"task","messageId":"m"}"#), "must be `message`");
}

#[test]
fn part_type_follows_kind_or_else_its_member() {
    const SCALAR: &str = "data is a string, a number, a boolean or null; put it in an object or an array";
    let hi = Part::text("hi");
    let null: Part = Content::Data(value("null")).into();
    let object: Part = Content::Data(value(r#"{"a":1}"#)).into();
    let file = Part::bytes("hello", "");
    for (json, part) in [
        (r#"{"kind":"text","text":"hi"}"#, &hi),
        (r#"{"type":"text","text":"hi"}"#, &hi),
        (r#"{"kind":"text","type":"text","text":"hi"}"#, &hi),
        (r#"{"text":"hi"}"#, &hi),
        (r#"{"kind":"text","text":"hi","data":{"a":1},"more":[]}"#, &hi),
        (r#"{"text":"hi","data":null,"file":null}"#, &hi),
        (r#"{"kind":"data","data":{"a":1},"text":"hi"}"#, &object),
        (r#"{"data":{"a":1}}"#, &object),
        (r#"{"data":{"value":null},"metadata":{"data_part_compat":true}}"#, &null),
        (r#"{"kind":"data","data":[1,"x"]}"#, &Content::Data(value(r#"[1,"x"]"#)).into()),
        (
            r#"{"kind":"data","data":[7],"metadata":{"k":1}}"#,
            &Part { metadata: Some(metadata(r#"{"k":1}"#)), ..Content::Data(value("[7]")).into() },
        ),
        (r#"{"kind":"file","file":{"bytes":"aGVsbG8="}}"#, &file),
        (r#"{"kind":"file","file":{"data":"aGVsbG8"}}"#, &file),
        (r#"{"file":{"bytes":"aGVsbG8=","uri":""}}"#, &file),
        (
            r#"{"file":{"bytes":"","uri":"https://x.example","mime_type":"a/b"}}"#,
            &Part::url("https://x.example", "a/b"),
        ),
        (r#"{"file":{"bytes":"-_8"}}"#, &Part::bytes([0xfb, 0xff], "")),
        (r#"{"file":{"bytes":""}}"#, &Part::bytes("", "")),
    ] {
        assert_eq!(&read::<Part>(json), part, "{json}");
    }
    for (json, reason) in [
        ("{}", "must have one of text, file, data"),
        (r#"{"text":null}"#, "must have one of text, file, data"),
        (r#"{"text":"hi","data":{"a":1}}"#, "must have only one of text, file, data"),
        (r#"{"kind":"text","data":{}}"#, "must have `text`, since its kind is `text`"),
        (r#"{"kind":"image"}"#, "unknown variant `image`, expected one of `text`, `file`, `data`"),
        (r#"{"kind":"file","file":{}}"#, "must have one of bytes, uri"),
        (r#"{"file":{"bytes":"aGVsbG8=","uri":"https://x.example"}}"#, "has both bytes and a uri; send one of them"),
        (r#"{"kind":"data","data":7}"#, SCALAR),
        (r#"{"kind":"data","data":"text"}"#, SCALAR),
        (r#"{"data":true}"#, SCALAR),
        (r#"{"kind":"data","data":null}"#, SCALAR),
        (r#"{"kind":"file","file":{"bytes":"*"}}"#, "not base64: Invalid symbol 42, offset 0."),
        (r#"{"text":"a","text":"b"}"#, "`text` is given twice"),
        (r#"{"text":7}"#, "invalid type: integer `7`, expected a string"),
        ("[]", "invalid type: sequence, expected a Part as an object"),
    ] {
        assert_eq!(refused::<Part>(json), reason, "{json}");
    }
}

/// Variants written by other implementations: snake case, times without a zone, and members outside the message.
#[test]
fn variants_of_other_implementations_are_accepted() {
    let message = Message {
        message_id: "m".into(),
        context_id: "c".into(),
        task_id: "t".into(),
        reference_task_ids: vec!["r".into()],
        ..Message::default()
    };
    let json = r#"{"message_id":"m","context_id":"c","task_id":"t","reference_task_ids":["r"],"role":null,"new":1}"#;
    assert_eq!(read::<Message>(json), message);
    for (time, nanos) in [
        ("2025-04-02T16:59:25.331844", 331_844_000),
        ("2025-04-02T16:59:25Z", 0),
        ("2025-04-02T18:59:25.5+02:00", 500_000_000),
    ] {
        let status = read::<TaskStatus>(&format!(r#"{{"state":"working","timestamp":"{time}"}}"#));
        assert_eq!(status.timestamp, Some(Timestamp { seconds: 1_743_613_165, nanos }), "{time}");
    }
    for (json, id) in [
        (r#"{"message":{"role":"user"},"messageId":"m"}"#, "m"),
        (r#"{"messageId":"m","message":{"role":"user"}}"#, "m"),
        (r#"{"messageId":"other","message":{"messageId":"m"}}"#, "m"),
        (r#"{"message":{}}"#, ""),
    ] {
        assert_eq!(read_send(json).message.unwrap().message_id, id, "{json}");
    }
    let push = |authentication: &str| {
        let config = format!(r#"{{"url":"u","authentication":{authentication},"headers":{{"a":"b"}}}}"#);
        let json = format!(r#"{{"taskId":"t","pushNotificationConfig":{config}}}"#);
        read::<TaskPushNotificationConfig>(&json).authentication.map(|authentication| authentication.scheme)
    };
    assert_eq!(push(r#"{"schemes":["Basic","Bearer"]}"#).as_deref(), Some("Basic"));
    assert_eq!(push(r#"{"schemes":[],"credentials":"x"}"#), None);
    assert_eq!(refused::<TaskPushNotificationConfig>(r#"{"taskId":"t"}"#), "`pushNotificationConfig` is missing");
}

/// Cases for each row of the table in `v03::json`.
#[test]
fn lossy_conversions_match_the_documented_table() {
    let data = |json: &str, meta: Option<Struct>| Part { metadata: meta, ..Content::Data(value(json)).into() };
    let wrapped = |data: &str, meta: &str| format!(r#"{{"kind":"data","data":{{"value":{data}}},"metadata":{meta}}}"#);
    let mark = r#"{"data_part_compat":true}"#;
    let text = r#"{"kind":"text","text":"x"}"#;
    for (part, json, back) in [
        (Part { media_type: "a/b".into(), ..Part::text("x").named("n") }, text.to_owned(), Part::text("x")),
        (Part::default(), text.replace(r#""x""#, r#""""#), Part::text("")),
        (data("[1]", None), wrapped("[1]", mark), data("[1]", None)),
        (data("null", None), wrapped("null", mark), data("null", None)),
        (
            data("7", Some(metadata(r#"{"k":1}"#))),
            wrapped("7", r#"{"k":1,"data_part_compat":true}"#),
            data("7", Some(metadata(r#"{"k":1}"#))),
        ),
        (data("7", Some(metadata("{}"))), wrapped("7", mark), data("7", None)),
        (data(r#"{"value":7}"#, Some(metadata(mark))), wrapped("7", mark), data("7", None)),
        (Part { filename: "n".into(), ..data("{}", None) }, r#"{"kind":"data","data":{}}"#.into(), data("{}", None)),
    ] {
        assert_eq!(written(&part), json);
        assert_eq!(read::<Part>(&json), back, "{json}");
    }
    // Marked data of another shape is not unwrapped.
    for own in [r#"{"value":1,"b":2}"#, r#"{"b":2}"#] {
        assert_eq!(read::<Part>(&written(&data(own, Some(metadata(mark))))), data(own, Some(metadata(mark))));
    }
    for role in [0, 99] {
        assert_eq!(read::<Message>(&written(&Message { role, ..Message::default() })).role(), Role::Agent);
    }
    assert_eq!(written(&TaskStatus { state: 99, ..TaskStatus::default() }), r#"{"state":"unknown"}"#);
    let task = r#"{"kind":"task","id":"","contextId":"","status":{"state":"unknown"}}"#;
    assert_eq!(written(&Task::default()), task);
    assert_eq!(read::<Task>(task).status, Some(TaskStatus::default()));
    let time = Timestamp { seconds: 1, nanos: 2_345_678 };
    let status = TaskStatus { timestamp: Some(time), ..TaskStatus::default() };
    let back = read::<TaskStatus>(&written(&status)).timestamp;
    assert_eq!(back, Some(Timestamp { seconds: 1, nanos: 2_000_000 }));
    let config = TaskPushNotificationConfig {
        tenant: "acme".into(),
        url: "u".into(),
        authentication: Some(AuthenticationInfo::default()),
        ..Default::default()
    };
    let json = r#"{"taskId":"","pushNotificationConfig":{"url":"u","authentication":{"schemes":[]}}}"#;
    assert_eq!(written(&config), json);
    let back = TaskPushNotificationConfig { url: "u".into(), ..Default::default() };
    assert_eq!(read::<TaskPushNotificationConfig>(json), back);
}
