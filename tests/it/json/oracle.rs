//! ProtoJSON compared with prost-reflect and pbjson, over random messages.
//!
//! Known differences have a test each. A failing test of these means that the other crate changed; if pbjson then does what
//! the protocol requires, `build/message.rs` is obsolete.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
};

use a2a_oracle::v1 as pbjson;
use a2a_service::pb::{DESCRIPTORS, v1, v03};
use proptest::{prelude::*, test_runner::TestCaseError};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
    prost_types,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

/// Random bytes that determine a message. After the last one it returns zeros, so every message is finite.
struct Choices<'a> {
    bytes: std::slice::Iter<'a, u8>,
    /// Includes values that pbjson does not support.
    unsupported: bool,
}

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or_default()
    }

    fn of<T: Copy, const N: usize>(&mut self, from: [T; N]) -> T {
        from[usize::from(self.byte()) % N]
    }

    fn up_to_three<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.byte() % 4).map(|_| make(self)).collect()
    }

    fn text(&mut self) -> String {
        self.of(["", "x", "tasks/1", "ä\"\\\n\u{7f}\u{2028}🦀", "null", "2025-11-09T10:30:00Z", "A+/_-=="]).to_owned()
    }

    fn timestamp(&mut self) -> prost_types::Timestamp {
        let seconds = self.of([0, -1, 1_762_684_200, -62_135_596_800, 253_402_300_799]) - i64::from(self.byte() % 2);
        let nanos = self.of([0, 1_000_000, 120_000_000, 999_000_000]);
        prost_types::Timestamp { seconds: seconds.clamp(-62_135_596_800, 253_402_300_799), nanos }
    }

    fn json(&mut self) -> prost_types::Value {
        use prost_types::value::Kind;
        let kind = match self.byte() % 8 {
            0 => Kind::BoolValue(true),
            1 => Kind::StringValue(self.text()),
            2 => Kind::NumberValue(self.of([0.0, 1.0, -2.0, 1.5, 0.1 + 0.2, 1e300, 5e-324, 9_007_199_254_740_991.0])),
            3 if self.unsupported => Kind::NumberValue(self.of([9_007_199_254_740_992.0, 1e18, 1e19, -9.3e18])),
            4 if self.unsupported => Kind::NullValue(0),
            5 => Kind::ListValue(prost_types::ListValue { values: self.up_to_three(Self::json) }),
            6 => Kind::StructValue(self.object()),
            _ => Kind::BoolValue(false),
        };
        prost_types::Value { kind: Some(kind) }
    }

    fn object(&mut self) -> prost_types::Struct {
        prost_types::Struct {
            fields: self.up_to_three(|choices| (choices.text(), choices.json())).into_iter().collect(),
        }
    }

    fn message(&mut self, descriptor: &MessageDescriptor) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        match descriptor.full_name() {
            "google.protobuf.Timestamp" => message.transcode_from(&self.timestamp()).unwrap(),
            "google.protobuf.Value" => message.transcode_from(&self.json()).unwrap(),
            "google.protobuf.Struct" => message.transcode_from(&self.object()).unwrap(),
            _ => {
                for field in descriptor.fields().filter(|field| field.containing_oneof().is_none()) {
                    if self.byte() % 2 == 1 {
                        message.set_field(&field, self.field(&field));
                    }
                }
                for oneof in descriptor.oneofs() {
                    let arms: Vec<_> = oneof.fields().collect();
                    if let Some(arm) = usize::from(self.byte() % 8).checked_sub(1) {
                        let field = &arms[arm % arms.len()];
                        message.set_field(field, self.field(field));
                    }
                }
            }
        }
        message
    }

    fn field(&mut self, field: &FieldDescriptor) -> Value {
        if field.is_map() {
            let value = field.kind().as_message().unwrap().map_entry_value_field();
            let entries = self.up_to_three(|choices| (MapKey::String(choices.text()), choices.one(&value.kind())));
            Value::Map(entries.into_iter().collect::<HashMap<_, _>>())
        } else if field.is_list() {
            Value::List(self.up_to_three(|choices| choices.one(&field.kind())))
        } else {
            self.one(&field.kind())
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the kinds that the proto files have")]
    fn one(&mut self, kind: &Kind) -> Value {
        match kind {
            Kind::String => Value::String(self.text()),
            Kind::Bool => Value::Bool(self.byte() % 2 == 1),
            Kind::Int32 => Value::I32(self.of([0, 1, -1, 50, i32::MIN, i32::MAX])),
            Kind::Bytes => Value::Bytes(self.up_to_three(Self::byte).into()),
            Kind::Enum(descriptor) if self.unsupported && self.byte().is_multiple_of(8) => {
                let known: BTreeSet<_> = descriptor.values().map(|value| value.number()).collect();
                Value::EnumNumber(self.of([-1, 99, i32::MAX]).max(*known.last().unwrap() + 1))
            }
            Kind::Enum(descriptor) => {
                let known: Vec<_> = descriptor.values().map(|value| value.number()).collect();
                Value::EnumNumber(known[usize::from(self.byte()) % known.len()])
            }
            Kind::Message(descriptor) => Value::Message(self.message(descriptor)),
            other => panic!("the proto files have no {other:?}"),
        }
    }
}

fn pool() -> &'static DescriptorPool {
    static POOL: std::sync::LazyLock<DescriptorPool> =
        std::sync::LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).unwrap());
    &POOL
}

fn descriptor(name: &str) -> MessageDescriptor {
    pool().get_message_by_name(name).unwrap()
}

/// Message of this crate with the traits that the comparison needs.
trait OwnMessage: prost::Message + Default + Debug + PartialEq + Serialize + DeserializeOwned {}
impl<T: prost::Message + Default + Debug + PartialEq + Serialize + DeserializeOwned> OwnMessage for T {}

/// Returns a random message of a descriptor.
fn random<T: OwnMessage>(name: &str, bytes: &[u8], unsupported: bool) -> T {
    Choices { bytes: bytes.iter(), unsupported }.message(&descriptor(name)).transcode_to().unwrap()
}

/// Asserts that each side reads the JSON of the other as an equal message.
fn prost_reflect_agrees<T: OwnMessage>(name: &str, bytes: &[u8]) -> Result<(), TestCaseError> {
    let ours: T = random(name, bytes, true);
    let printed = serde_json::to_string(&ours).unwrap();
    let mut text = serde_json::Deserializer::from_str(&printed);
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let read = DynamicMessage::deserialize_with_options(descriptor(name), &mut text, &options).unwrap();
    prop_assert_eq!(&read.transcode_to::<T>().unwrap(), &ours, "read by prost-reflect: {}", printed);
    let theirs = DynamicMessage::decode(descriptor(name), ours.encode_to_vec().as_slice()).unwrap();
    let printed = serde_json::to_string(&theirs).unwrap();
    prop_assert_eq!(&serde_json::from_str::<T>(&printed).unwrap(), &ours, "read by this crate: {}", printed);
    Ok(())
}

/// Asserts the agreement with pbjson, for values that it supports.
fn pbjson_agrees<T: OwnMessage, P: OwnMessage>(name: &str, bytes: &[u8]) -> Result<(), TestCaseError> {
    let ours: T = random(name, bytes, false);
    let theirs = P::decode(ours.encode_to_vec().as_slice()).unwrap();
    let printed = serde_json::to_string(&ours).unwrap();
    let read: P = serde_json::from_str(&printed).map_err(|e| TestCaseError::fail(format!("{e}: {printed}")))?;
    prop_assert_eq!(&read, &theirs, "read by pbjson: {}", printed);
    let printed = serde_json::to_string(&theirs).unwrap();
    prop_assert_eq!(&serde_json::from_str::<T>(&printed).unwrap(), &ours, "read by this crate: {}", printed);
    Ok(())
}

macro_rules! messages {
    ($($name:ident)*; $($v03_name:ident)*) => {
        const NAMES: &[&str] = &[
            $(concat!("lf.a2a.v1.", stringify!($name)),)*
            $(concat!("a2a.v1.", stringify!($v03_name)),)*
        ];

        proptest! {
            // Seeds are not stored: a seed yields another message once a proto file changes.
            #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

            #[test]
            fn prost_reflect_agrees_with_us(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
                $(prost_reflect_agrees::<v1::$name>(concat!("lf.a2a.v1.", stringify!($name)), &bytes)?;)*
                $(prost_reflect_agrees::<v03::$v03_name>(concat!("a2a.v1.", stringify!($v03_name)), &bytes)?;)*
            }

            #[test]
            fn pbjson_agrees_with_us(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
                $(pbjson_agrees::<v1::$name, pbjson::$name>(concat!("lf.a2a.v1.", stringify!($name)), &bytes)?;)*
            }
        }
    };
}

messages! {
    SendMessageRequest GetTaskRequest ListTasksRequest CancelTaskRequest SubscribeToTaskRequest
    TaskPushNotificationConfig GetTaskPushNotificationConfigRequest ListTaskPushNotificationConfigsRequest
    DeleteTaskPushNotificationConfigRequest GetExtendedAgentCardRequest SendMessageResponse StreamResponse Task
    ListTasksResponse ListTaskPushNotificationConfigsResponse AgentCard;
    SendMessageRequest SendMessageResponse StreamResponse AgentCard CreateTaskPushNotificationConfigRequest
}

#[test]
fn every_message_of_the_service_is_compared() {
    let service = pool().get_service_by_name("lf.a2a.v1.A2AService").unwrap();
    let messages = service.methods().flat_map(|method| [method.input(), method.output()]);
    for message in messages.filter(|message| message.package_name() == "lf.a2a.v1") {
        assert!(NAMES.contains(&message.full_name()), "{}", message.full_name());
    }
}

// Differences of pbjson, which are the reasons not to use it.

#[test]
fn pbjson_rejects_null() {
    for json in [
        r#"{"extensions":null}"#,
        r#"{"messageId":null}"#,
        r#"{"role":null}"#,
        r#"{"parts":[{"text":"x","raw":null}]}"#,
    ] {
        assert!(serde_json::from_str::<pbjson::Message>(json).is_err(), "{json}");
        assert!(serde_json::from_str::<v1::Message>(json).is_ok(), "{json}");
    }
}

#[test]
fn pbjson_loses_null() {
    let part: pbjson::Part = serde_json::from_str(r#"{"data":null}"#).unwrap();
    assert_eq!(part.content, None);
}

#[test]
fn pbjson_omits_required_members() {
    assert_eq!(serde_json::to_value(pbjson::ListTasksResponse::default()).unwrap(), json!({}));
}

#[test]
fn pbjson_fails_to_print_an_unknown_number() {
    let status = pbjson::TaskStatus { state: 99, ..Default::default() };
    assert!(serde_json::to_string(&status).is_err());
}

#[test]
fn pbjson_prints_timestamps_in_a_forbidden_form() {
    let time = |nanos| {
        let timestamp = Some(pbjson_timestamp(1_762_684_200, nanos));
        serde_json::to_value(pbjson::TaskStatus { timestamp, ..Default::default() }).unwrap()["timestamp"].clone()
    };
    assert_eq!(time(0), "2025-11-09T10:30:00+00:00");
    assert_eq!(time(1_000), "2025-11-09T10:30:00.000001+00:00");
}

fn pbjson_timestamp<T: prost::Message + Default>(seconds: i64, nanos: i32) -> T {
    T::decode(prost_types::Timestamp { seconds, nanos }.encode_to_vec().as_slice()).unwrap()
}

#[test]
fn pbjson_prints_integers_with_a_fraction_and_rejects_large_ones() {
    let part: pbjson::Part = serde_json::from_str(r#"{"data":1}"#).unwrap();
    assert_eq!(serde_json::to_string(&part).unwrap(), r#"{"data":1.0}"#);
    assert!(serde_json::from_str::<pbjson::Part>(r#"{"data":9007199254740993}"#).is_err());
}

// Differences of prost-reflect.

#[test]
fn prost_reflect_fails_on_a_number_that_json_lacks() {
    let nan = prost_types::Value { kind: Some(prost_types::value::Kind::NumberValue(f64::NAN)) };
    let mut theirs = DynamicMessage::new(descriptor("google.protobuf.Value"));
    theirs.transcode_from(&nan).unwrap();
    assert!(serde_json::to_string(&theirs).is_err());
}
