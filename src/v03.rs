//! Protocol 0.3, and the compatible parts of 0.2, on top of the 1.0 service.
//!
//! Each binding (JSON-RPC, HTTP+JSON, gRPC) converts requests to 1.0 messages, calls the service through a layer that
//! applies the semantics of 0.3, and converts responses, events and errors back.

pub mod card;
pub mod event;
mod file_encoding;
#[cfg(feature = "server")]
pub mod grpc;
pub mod json;
#[cfg(feature = "server")]
pub mod jsonrpc;
mod message;
pub mod push_extras;
mod resource_name;
#[cfg(feature = "server")]
pub mod rest;
#[cfg(feature = "server")]
pub mod semantics;

crate::pb::service! {
    /// Generated service of protocol 0.3: trait, client, server and bindings.
    pb = "a2a.v1", v03
}
