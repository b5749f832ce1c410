//! Bindings of protocol 0.3.

pub(crate) mod grpc;
pub mod jsonrpc;
pub mod rest;
