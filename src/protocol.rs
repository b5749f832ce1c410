//! Data and rules of the A2A specification, without I/O: messages, `ProtoJSON`, errors, events, calls, states of a task, and
//! dispatch; in 1.0 and 0.3.

/// Implements the traits of a message for a type that contains it in one of several forms: by its methods `encode_proto`,
/// `proto_len` and `edit`, and its conversion from the message. The type is then usable with tonic's codec and any client.
macro_rules! wraps_message {
    ($type:ty: $message:ty) => {
        impl crate::protocol::json::Measure for $type {
            fn field(number: u32) -> Option<crate::protocol::json::Nested> {
                <$message as crate::protocol::json::Measure>::field(number)
            }
        }

        impl prost::Message for $type {
            fn encode_raw(&self, buf: &mut impl bytes::BufMut) {
                self.encode_proto(buf);
            }

            fn encoded_len(&self) -> usize {
                self.proto_len()
            }

            fn merge_field(
                &mut self,
                tag: u32,
                wire_type: prost::encoding::WireType,
                buf: &mut impl bytes::Buf,
                context: prost::encoding::DecodeContext,
            ) -> Result<(), prost::DecodeError> {
                self.edit(|message| prost::Message::merge_field(message, tag, wire_type, buf, context))
            }

            fn clear(&mut self) {
                *self = Self::default();
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <$message as serde::Deserialize>::deserialize(deserializer).map(Self::from)
            }
        }
    };
}

pub(crate) mod agent_card;
pub mod call;
#[cfg(feature = "signing")]
pub mod card_signature;
pub mod error;
pub mod event;
#[doc(hidden)]
pub mod history;
#[doc(hidden)]
pub mod json;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod messages;
pub mod pb;
#[doc(hidden)]
pub mod response_budget;
#[doc(hidden)]
pub mod rpc;
#[doc(hidden)]
pub mod snapshot;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod task;
#[cfg(any(feature = "server", feature = "client"))]
#[doc(hidden)]
pub mod v03;
#[doc(hidden)]
pub mod validate;
pub mod version;

pub(crate) use self::error::{Error, ErrorKind};
pub use self::version::{Protocols, Version};
