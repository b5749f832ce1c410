//! Classic JSON, which 0.3 and 0.2 have in JSON-RPC: a `kind` tells what an object is, states are in kebab case and roles
//! are `user` and `agent`. It is read into the messages of 1.0, and written from them, without anything between.
//!
//! What it says is what the schema of 0.3 says. What it hears may be older, or somebody's slip: `type` in place of
//! `kind` or neither, `data` in place of `bytes`, `cancelled`, data that is an array, names in snake case, times without
//! a zone, and members that nobody knows. Every member that 0.3 requires may be missing as far as 1.0 can do without it.
//!
//! Some of what 1.0 can say has no word here, and is not there when it is read again:
//!
//! | in 1.0 | what is written | what is read of that |
//! | --- | --- | --- |
//! | `filename`, `mediaType` of text or data | nothing | none |
//! | data that is no object | `{"value": …}`, and `data_part_compat` in the metadata | the same data |
//! | the same, with empty metadata | the same | no metadata |
//! | data `{"value": …}` with such metadata | the same | the value alone, without the mark |
//! | a part without content | text that is empty | that |
//! | a role that is not set, or has no name | `agent` | that |
//! | a state that has no name | `unknown` | not set |
//! | a task or an event without a status or an artifact | one without members | that |
//! | a time finer than milliseconds | milliseconds | those |
//! | `tenant` | nothing | none |
//! | authentication without a scheme | a list without one | none |
//!
//! The other way, `final` is not kept: what it says, an event knows by itself. The `headers` of a webhook and the `schemes`
//! after the first are read as what is said [beside](super::beside).

pub(super) mod enum_names;
mod read;
mod write;

pub(super) use self::read::{BYTES_AND_URI, SCALAR};
pub use self::{
    read::{Classic, PushRegistration, Read, V02Send},
    write::{FinalEvent, Webhook, Write},
};
