//! Protocol 0.3, and 0.2 where it is the same: what a call in it is to the one service, which speaks 1.0.

pub mod card;
pub mod event;
mod file_part;
pub mod grpc;
pub mod json;
pub mod jsonrpc;
mod message;
pub mod push_extras;
pub mod rest;
pub mod semantics;
