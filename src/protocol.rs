//! Data and rules of the A2A specification, without I/O: messages, `ProtoJSON`, errors, events, calls, states of a task, and
//! dispatch; in 1.0 and 0.3.

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
