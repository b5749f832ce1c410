//! A2A (`Agent2Agent`) protocol server and client: one service over gRPC, HTTP+JSON and JSON-RPC on one port.
//!
//! - [`agent`]: the trait that an agent implements. [`server`]: serves an agent. [`client`]: calls remote agents.
//! - [`transport`]: HTTP, SSE and gRPC bindings. [`v03`]: protocol 0.3. [`service`]: the protocol operations.
//! - [`journal`] and [`store`]: durable event logs of tasks. [`task`]: their state machine.

#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, unused_imports, reason = "items below the features are shared by all of them")
)]

#[cfg(feature = "server")]
pub mod agent;
#[cfg(feature = "server")]
pub mod auth;
pub mod call;
#[cfg(feature = "server")]
pub mod card;
pub mod check;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
pub mod clock;
#[cfg(feature = "cli")]
mod config;
pub mod contract;
pub mod env;
pub mod error;
pub mod event;
#[cfg(feature = "server")]
mod execution;
#[cfg(feature = "server")]
pub mod extension;
#[cfg(feature = "server")]
mod fingerprint;
pub mod history;
#[cfg(feature = "server")]
pub mod journal;
pub mod json;
mod message;
pub mod pb;
mod proto;
pub mod protocol;
mod report;
pub mod response_budget;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod service;
pub mod snapshot;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod task;
#[cfg(feature = "server")]
mod telemetry;
#[cfg(feature = "server")]
pub mod testing;
#[cfg(feature = "server")]
pub mod transport;
#[cfg(feature = "server")]
pub mod v03;

/// Compiles the Rust blocks of the README as doc tests.
#[cfg(all(doctest, feature = "cli"))]
#[doc = include_str!("../README.md")]
struct Readme;
