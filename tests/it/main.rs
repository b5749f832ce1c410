//! What is promised to the outside, in one binary.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test may fail, and clippy's own exceptions do not cover the helpers of tests"
)]

mod admin;
mod auth;
mod card;
mod classic;
mod classic_client;
mod classic_rpc_client;
mod clients;
mod comes_back;
mod config;
mod v03;
mod contract {
    mod descriptors;
}
mod codec;
mod crossing;
mod documents;
mod durable;
mod engine;
mod errors;
#[cfg(debug_assertions)]
mod faults;
mod gate;
mod history;
mod json;
mod killed;
mod latency;
mod power;
mod printed;
mod program;
mod protocol;
mod proxy;
mod recovery;
mod scenarios;
mod stalled;
mod store;
mod terminated;
mod times;
#[cfg(feature = "tls")]
mod tls;
mod ways;
mod wire;
