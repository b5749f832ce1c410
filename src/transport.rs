//! The door: what stands between a connection and the service.

pub mod grpc;
pub mod transcode;
