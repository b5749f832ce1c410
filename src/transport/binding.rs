//! Bindings of the protocol, and what they share.

pub(crate) mod grpc;
pub(crate) mod grpc_web;
pub(crate) mod jsonrpc;
pub(crate) mod rest;
pub(crate) mod sse;
pub(crate) mod v03;
