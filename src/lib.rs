//! A2A (`Agent2Agent`) protocol server and client: one service over gRPC, HTTP+JSON and JSON-RPC on one port.
//!
//! - [`agent`]: the trait that an agent implements. [`server`]: serves an agent. [`client`]: calls remote agents.
//! - [`transport`]: HTTP, SSE and gRPC bindings. [`v03`]: protocol 0.3. [`service`]: the protocol operations.
//! - [`journal`] and [`store`]: durable event logs of tasks. [`task`]: their state machine.

pub mod agent;
pub mod auth;
pub mod call;
pub mod card;
pub mod check;
pub mod cli;
pub mod client;
pub mod clock;
mod config;
pub mod contract;
pub mod error;
pub mod event;
mod execution;
pub mod extension;
mod fingerprint;
pub mod history;
pub mod ids;
pub mod journal;
pub mod json;
mod message;
pub mod pb;
mod proto;
pub mod protocol;
mod report;
pub mod response_budget;
pub mod server;
pub mod service;
pub mod snapshot;
pub mod store;
pub mod task;
mod telemetry;
pub mod testing;
pub mod transport;
pub mod v03;

/// Compiles the Rust blocks of the README as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
