//! ProtoJSON: accepted input, rejected input, and output.

mod encoded;
mod oracle;

use std::fmt::Debug;

use a2a_service::{
    event::Event,
    pb::{
        v1::{
            AgentCard, AgentSkill, ListTasksRequest, ListTasksResponse, Message, Part, SendMessageRequest, Task,
            TaskState, TaskStatus, part,
        },
        v03,
        wkt::{MAX_DEPTH, Struct, Timestamp, Value as Any, value::Kind},
    },
};
use prost::Message as _;
use serde::de::DeserializeOwned;
use serde_json::json;

fn text<T: serde::Serialize>(message: &T) -> String {
    serde_json::to_string(message).unwrap()
}

fn decode_error<T: DeserializeOwned + Debug>(json: &str) -> String {
    serde_json::from_str::<T>(json).unwrap_err().to_string()
}

#[test]
fn timestamps_are_parsed_and_printed() {
    for (given, printed) in [
        ("2025-11-09T10:30:00Z", "2025-11-09T10:30:00.000Z"),
        ("2025-11-09T10:30:00.1Z", "2025-11-09T10:30:00.100Z"),
        ("2025-11-09T10:30:00.123456789+02:00", "2025-11-09T08:30:00.123Z"),
        ("2025-11-09T23:30:00-05:30", "2025-11-10T05:00:00.000Z"),
        ("2025-11-09T23:30:00-00:00", "2025-11-09T23:30:00.000Z"),
        ("2025-11-09t10:30:00.999999z", "2025-11-09T10:30:00.999Z"),
        ("2025-11-09 10:30:00", "2025-11-09T10:30:00.000Z"),
        ("2024-02-29T00:00:00", "2024-02-29T00:00:00.000Z"),
        ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.500Z"),
        ("1970-01-01T00:59:59.5+01:00", "1969-12-31T23:59:59.500Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999Z"),
        // Timestamps cannot represent a leap second.
        ("2016-12-31T23:59:60Z", "2016-12-31T23:59:59.000Z"),
        // Accepted although not RFC 3339.
        ("2025-11-09T10:30Z", "2025-11-09T10:30:00.000Z"),
        ("2025-11-09T10:30:00+0200", "2025-11-09T08:30:00.000Z"),
    ] {
        assert_eq!(given.parse::<Timestamp>().unwrap().to_string(), printed, "{given}");
    }
    for wrong in [
        "",
        "now",
        "1762684200",
        "2025-11-09",
        "2025-13-09T10:30:00Z",
        "2025-02-29T00:00:00Z",
        "2025-11-09T24:00:00Z",
        "2025-11-09T10:30:00.Z",
        "2025-11-09T10:30:00.1234567890Z",
        "2025-11-09T10:30:00+26:00",
        "2025-11-09T10:30:00 UTC",
        "2025-11-09T10:30:00Z[UTC]",
        "+025-11-09T10:30:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "-000001-01-01T00:00:00Z",
        "2025-11-09T10:30:00Zä",
        "ääääääääääääääääääää",
    ] {
        assert!(wrong.parse::<Timestamp>().is_err(), "{wrong}");
    }
    // Round trip of each day of eight centuries.
    for day in -141_000..148_000 {
        let time = Timestamp { seconds: day * 86_400 + 7, nanos: 5_000_000 };
        assert_eq!(time.to_string().parse::<Timestamp>().unwrap(), time);
    }
}

/// Stored data of a peer, an agent or an older version must not make a reply fail.
#[test]
fn out_of_range_stored_values_can_be_printed() {
    for (seconds, nanos, printed) in [
        (i64::MAX, i32::MAX, "9999-12-31T23:59:59.999Z"),
        (i64::MIN, i32::MIN, "0001-01-01T00:00:00.000Z"),
        (0, -1, "1970-01-01T00:00:00.000Z"),
        (-1, 1_999_999, "1969-12-31T23:59:59.001Z"),
    ] {
        let status = TaskStatus { timestamp: Some(Timestamp { seconds, nanos }), state: 99, ..Default::default() };
        assert_eq!(text(&status), format!(r#"{{"state":99,"timestamp":"{printed}"}}"#));
    }
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let data = Part { content: Some(part::Content::Data(Kind::NumberValue(number).into())), ..Default::default() };
        assert_eq!(text(&data), r#"{"data":null}"#);
        assert_eq!(serde_json::to_value(&data).unwrap(), json!({"data": null}));
    }
    assert_eq!(text(&Any { kind: None }), "null");
    assert_eq!(text(&Part::default()), "{}");
}

#[test]
fn values_are_read_and_printed() {
    for (given, printed) in [
        (r#"{"b":1,"a":[1.0,-2,1.5,1e3,null,true,"x",{}]}"#, r#"{"a":[1,-2,1.5,1000,null,true,"x",{}],"b":1}"#),
        ("1234567890123456789", "1234567890123456768"),
        ("18446744073709551615", "1.8446744073709552e+19"),
        ("123456789012345678901234567890", "1.2345678901234568e+29"),
        ("9007199254740993", "9007199254740992"),
        ("1e300", "1e+300"),
        ("-0", "0"),
        // The nearest double.
        ("0.30000000000000004", "0.30000000000000004"),
        ("5.5e-324", "5e-324"),
        ("null", "null"),
    ] {
        let value: Any = serde_json::from_str(given).unwrap();
        assert_eq!(text(&value), printed);
        assert_eq!(Any::decode(value.encode_to_vec().as_slice()).unwrap(), value);
    }
    assert!(decode_error::<Struct>("[]").contains("expected an object"));
    // Two readers could take different ones.
    for text in [r#"{"a":1,"a":2}"#, r#"[{"b":[{"a":null,"a":null}]}]"#] {
        assert!(decode_error::<Any>(text).contains("\"a\" is given twice"));
    }
    assert!(serde_json::from_str::<Struct>("null").is_err());
}

/// Data of the maximum depth can be decoded again, at every position of a message that takes free-form JSON.
#[test]
fn nesting_is_limited() {
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let nested = |depth: usize| format!("{}null{}", open.repeat(depth), close.repeat(depth));
        let within = |depth: usize| format!(r#"{{"a":{}}}"#, nested(depth - 1));
        let events = |depth: usize| {
            let parts = format!(r#"{{"parts":[{{"data":{},"metadata":{}}}]}}"#, nested(depth), within(depth));
            [
                format!(r#"{{"statusUpdate":{{"status":{{"message":{parts}}}}}}}"#),
                format!(r#"{{"artifactUpdate":{{"artifact":{parts}}}}}"#),
                format!(r#"{{"task":{{"status":{{"message":{parts}}},"history":[{parts}],"artifacts":[{parts}]}}}}"#),
                format!(r#"{{"message":{{"metadata":{}}}}}"#, within(depth)),
            ]
        };
        for event in events(MAX_DEPTH) {
            let event: Event = serde_json::from_str(&event).unwrap();
            assert!(Event::decode(event.proto().clone()).is_ok());
            let bytes = ListTasksResponse { tasks: vec![task_of(&event)], ..Default::default() }.encode_to_vec();
            assert!(ListTasksResponse::decode(bytes.as_slice()).is_ok());
        }
        for event in events(MAX_DEPTH + 1) {
            let error = decode_error::<Event>(&event);
            assert!(error.contains("JSON nested more than 28 deep"), "{error}");
        }
    }
    // Unknown members are not stored, so their depth is not limited.
    let unknown = format!(r#"{{"id":"t","unknown":{}{}}}"#, "[".repeat(1000), "]".repeat(1000));
    assert_eq!(serde_json::from_str::<Task>(&unknown).unwrap().id, "t");
}

fn task_of(event: &Event) -> Task {
    use a2a_service::pb::v1::stream_response::Payload;
    match event.payload() {
        Some(Payload::Task(task)) => task.clone(),
        _ => Task::default(),
    }
}

#[test]
fn accepted_variants_of_protojson() {
    for (given, printed) in [
        // Null means an absent member, except where it is a value.
        (
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x", "raw": null, "metadata": null}], "extensions": null, "metadata": {"k": null}}, "configuration": null}),
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}], "metadata": {"k": null}}}),
        ),
        (
            json!({"message": {"message_id": "m", "role": 1, "parts": [{"data": null}, {"raw": "_-8"}], "unknown": {"a": [1]}}}),
            json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"data": null}, {"raw": "/+8="}]}}),
        ),
        (
            json!({"message": {"role": null, "parts": [{"data": {"a": 1}}]}, "configuration": {"historyLength": "3", "returnImmediately": false}}),
            json!({"message": {"messageId": "", "role": "ROLE_UNSPECIFIED", "parts": [{"data": {"a": 1}}]}, "configuration": {"historyLength": 3}}),
        ),
        // Empty text and zero count as set.
        (
            json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": ""}, {"raw": ""}]}, "configuration": {"history_length": 0}}),
            json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": ""}, {"raw": ""}]}, "configuration": {"historyLength": 0}}),
        ),
    ] {
        let message: SendMessageRequest = serde_json::from_value(given.clone()).unwrap();
        assert_eq!(serde_json::to_value(&message).unwrap(), printed);
        // Decoding from bytes has the same result as from a value.
        assert_eq!(serde_json::from_str::<SendMessageRequest>(&given.to_string()).unwrap(), message);
    }
    let part: Part = serde_json::from_str(r#"{"data":null}"#).unwrap();
    assert_eq!(part.content, Some(part::Content::Data(Kind::NullValue(0).into())));
}

#[test]
fn invalid_input_is_rejected() {
    for (wrong, reason) in [
        (r#"{"messageId":"a","messageId":"b"}"#, "`messageId` is given twice"),
        (r#"{"messageId":"a","message_id":"b"}"#, "`messageId` is given twice"),
        (r#"{"taskId":null,"taskId":"b"}"#, "`taskId` is given twice"),
        (r#"{"messageId":1}"#, "expected a string"),
        (r#"{"messageId":"\ud800"}"#, "hex escape"),
        (r#"{"parts":[null]}"#, "expected a Part as an object"),
        (r#"{"parts":["x"]}"#, "expected a Part as an object"),
        (r#"{"parts":[{"text":"a","url":"b"}]}"#, "must have only one of text, raw, url, data"),
        (r#"{"parts":[{"data":null,"text":"b"}]}"#, "must have only one of text, raw, url, data"),
        (r#"{"parts":[{"raw":"?"}]}"#, "not base64"),
        (r#"{"parts":[{"raw":"+_8="}]}"#, "not base64"),
        (r#"{"parts":{}}"#, "expected a sequence"),
        (r#"{"role":"ROLE_OTHER"}"#, r#""ROLE_OTHER" is not one of ROLE_USER, ROLE_AGENT"#),
        (r#"{"role":"role_user"}"#, r#""role_user" is not one of ROLE_USER, ROLE_AGENT"#),
        (r#"{"role":4294967296}"#, "4294967296 is not one of ROLE_USER, ROLE_AGENT"),
        (r#"{"role":1.5}"#, "expected one of ROLE_USER, ROLE_AGENT"),
        (r#"{"metadata":[]}"#, "expected an object"),
        (r#"{"metadata":"x"}"#, "expected an object"),
        ("[]", "expected a Message as an object"),
    ] {
        let error = decode_error::<Message>(wrong);
        assert!(error.contains(reason), "{wrong}: {error}");
    }
}

#[test]
fn integers_are_read_in_every_form() {
    let read = |given: &str| serde_json::from_str::<ListTasksRequest>(&format!(r#"{{"pageSize":{given}}}"#));
    for (given, number) in [
        ("7", 7),
        ("-7", -7),
        ("\"7\"", 7),
        ("7.0", 7),
        ("\"7.0\"", 7),
        ("1e2", 100),
        ("\"1e2\"", 100),
        ("2147483647", i32::MAX),
        ("-2147483648", i32::MIN),
    ] {
        assert_eq!(read(given).unwrap().page_size, Some(number), "{given}");
    }
    assert_eq!(read("null").unwrap().page_size, None);
    for wrong in
        ["2147483648", "-2147483649", "7.5", "1e10", "\"\"", "\" 7\"", "\"x\"", "\"NaN\"", "\"inf\"", "true", "[7]"]
    {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn each_version_reads_the_spelling_of_the_other() {
    let status = |name: &str| format!(r#"{{"state":"{name}"}}"#);
    for name in ["TASK_STATE_CANCELED", "TASK_STATE_CANCELLED"] {
        let new: TaskStatus = serde_json::from_str(&status(name)).unwrap();
        let old: v03::TaskStatus = serde_json::from_str(&status(name)).unwrap();
        assert_eq!((new.state(), old.state()), (TaskState::Canceled, v03::TaskState::Cancelled));
        assert_eq!((text(&new), text(&old)), (status("TASK_STATE_CANCELED"), status("TASK_STATE_CANCELLED")));
    }
    let filter: ListTasksRequest = serde_json::from_str(r#"{"lastUpdatedAfter":"2025-11-09T10:30:00Z"}"#).unwrap();
    assert_eq!(text(&filter), r#"{"statusTimestampAfter":"2025-11-09T10:30:00.000Z"}"#);
    let both = r#"{"lastUpdatedAfter":"2025-11-09T10:30:00Z","statusTimestampAfter":"2025-11-09T10:30:00Z"}"#;
    assert!(decode_error::<ListTasksRequest>(both).contains("`statusTimestampAfter` is given twice"));
}

/// Members that were renamed during 0.3, and one that is a Rust keyword.
#[test]
fn renamed_members_of_0_3_are_read() {
    let event = r#"{"status_update":{"taskId":"t","final":true,"status":{"update":{"messageId":"m"}}}}"#;
    let event: v03::StreamResponse = serde_json::from_str(event).unwrap();
    let printed = r#"{"statusUpdate":{"taskId":"t","status":{"message":{"messageId":"m"}},"final":true}}"#;
    assert_eq!(text(&event), printed);
    let reply: v03::SendMessageResponse = serde_json::from_str(r#"{"msg":{"messageId":"m"}}"#).unwrap();
    assert_eq!(text(&reply), r#"{"message":{"messageId":"m"}}"#);
}

#[test]
fn required_members_are_always_printed() {
    assert_eq!(text(&ListTasksResponse::default()), r#"{"tasks":[],"nextPageToken":"","pageSize":0,"totalSize":0}"#);
    assert_eq!(text(&AgentSkill::default()), r#"{"id":"","name":"","description":"","tags":[]}"#);
    assert_eq!(text(&Task::default()), r#"{"id":""}"#);
    let card: AgentCard = serde_json::from_value(json!({"name": "a", "capabilities": {"streaming": false}})).unwrap();
    let printed = concat!(
        r#"{"name":"a","description":"","supportedInterfaces":[],"version":"","capabilities":{"streaming":false},"#,
        r#""defaultInputModes":[],"defaultOutputModes":[],"skills":[]}"#
    );
    assert_eq!(text(&card), printed);
}
