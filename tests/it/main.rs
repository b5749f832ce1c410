//! Integration tests: public behaviour of the library and the program, in one binary.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may panic, and clippy's exceptions for tests do not cover their helpers"
)]

mod admin;
mod agent_kinds;
mod agents;
mod auth;
mod bindings;
mod card;
mod client;
mod client_retry;
#[cfg(all(unix, feature = "postgres"))]
mod cluster;
mod codec;
mod command_line;
mod config;
mod conformance;
mod console;
mod contract {
    mod descriptors;
}
mod crash;
mod cross_version;
#[cfg(unix)]
mod dependencies;
mod doctor;
mod documents;
mod durability;
mod embedding;
mod engine;
mod errors_document;
mod examples;
#[cfg(unix)]
mod exec;
#[cfg(debug_assertions)]
mod faults;
mod gate;
mod history;
mod hops;
mod http_endpoint;
mod isolation;
mod json;
mod latency;
mod layers;
mod listen;
mod mcp;
mod metrics;
mod openai;
#[cfg(feature = "openapi")]
mod openapi;
#[cfg(unix)]
mod operator;
mod otlp;
mod power_loss;
mod program;
mod protocol_document;
mod proxy;
mod published_examples;
mod push;
mod recovery;
mod redirects;
mod remote_agents;
mod remote_answers;
mod rest_document;
mod scenarios;
mod secret_parts;
#[cfg(all(feature = "postgres", unix))]
mod shared_database;
mod shutdown;
mod stalled_readers;
mod store;
mod testing;
mod timestamps;
#[cfg(feature = "tls")]
mod tls;
mod turns;
mod upstream;
mod v03;
mod v03_client;
mod v03_json;
mod warnings;
mod wire;
mod wire_log;
mod workload;
