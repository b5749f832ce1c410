//! JSON of 0.3 and 0.2 over JSON-RPC, read into 1.0 messages and written from them without an intermediate form.
//!
//! Objects carry a `kind`, states are in kebab case (`input-required`), and roles are `user` and `agent`. The other bindings
//! of 0.3 have ProtoJSON or protobuf instead.
//!
//! Writing follows the schema of 0.3. Reading also accepts older forms and common mistakes: `type` instead of `kind`, or
//! neither; `data` instead of `bytes`; `cancelled`; data that is an array; snake case names; times without a zone; unknown
//! members. A member that 0.3 requires may be missing unless 1.0 needs it.
//!
//! Some 1.0 values have no representation in this format and do not survive a round trip:
//!
//! | 1.0 | Written | Read back |
//! | --- | --- | --- |
//! | `filename`, `mediaType` of text or data | omitted | unset |
//! | data that is not an object | `{"value": …}`, and `data_part_compat: true` in the metadata | unchanged |
//! | such data with empty metadata | as above | metadata is unset |
//! | data `{"value": …}` whose metadata already has the mark | unchanged | unwrapped, and the mark removed |
//! | part without content | empty text | empty text |
//! | role that is unset or unknown | `agent` | `agent` |
//! | state that is unknown | `unknown` | unset |
//! | task without a status, status update without a status, artifact update without an artifact | an empty status or artifact | an empty status or artifact |
//! | time with a precision below milliseconds | milliseconds | milliseconds |
//! | `tenant` | omitted | unset |
//! | authentication without a scheme | empty list of schemes | unset |
//!
//! In the other direction, `final` is not stored: it is derived from the event. The `headers` of a push configuration and its
//! `schemes` after the first are read into separate [push extras](super::push_extras).

pub(super) mod enum_names;
mod read;
mod write;

pub(super) use self::read::{BYTES_AND_URI, SCALAR};
pub use self::{
    read::{Classic, PushRegistration, Read, V02Send},
    write::{FinalEvent, Webhook, Write},
};
