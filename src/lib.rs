//! A2A (`Agent2Agent`) protocol server and client: one service over gRPC, HTTP+JSON and JSON-RPC on one port, for clients of
//! protocol 1.0, 0.3 and 0.2.
//!
//! Each task has a durable event log. An agent appends to the log, and every stream, read and reply is a view of it: nothing is
//! sent to a client before it is committed, and a slow or disconnected client delays neither the agent nor other clients.
//!
//! # Agents
//!
//! An agent is a function, or a type that implements [`Agent`](agent::Agent). It receives a [`Turn`](agent::Turn) with the
//! messages of the client, sends updates through [`Updates`](agent::Updates), and returns the [`End`](agent::End) of the turn.
//! [`testing::probe`] runs it without a server, in unit tests:
//!
//! ```
//! use a2a_service::{agent::{self, End}, pb::v1::TaskState, testing};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let greeter = agent::from_fn(|turn, out| async move {
//!     if turn.text().is_empty() {
//!         return Ok(End::input_required("Your name?"));
//!     }
//!     out.artifact("greeting").text(format!("Hello, {}!", turn.text())).await?;
//!     Ok(End::Completed(None))
//! });
//!
//! let probe = testing::probe(greeter);
//! let asked = probe.send("").await?;
//! assert_eq!((asked.state(), asked.status_text().as_str()), (TaskState::InputRequired, "Your name?"));
//! let done = probe.reply(&asked, "Ada").await?;
//! assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, "Hello, Ada!"));
//! # Ok(()) }
//! ```
//!
//! # Server and client
//!
//! A [`Server`](server::Server) serves an agent over all bindings. [`serve`](server::Server::serve) listens until Ctrl-C or
//! SIGTERM, and then drains. A [`Client`](client::Client) calls agents over each binding. Local and remote agents implement the
//! same trait, [`A2aService`].
//!
//! ```
//! use a2a_service::{
//!     agent::demo::Demo,
//!     call::Call,
//!     client::Client,
//!     pb::v1::{Message, Part, SendMessageRequest},
//!     server::Server,
//! };
//! use tokio_stream::StreamExt as _;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::new(Demo).name("Demo").bind("127.0.0.1:0").await?;
//! let url = format!("http://{}", server.addr());
//! tokio::spawn(server.run_until(std::future::pending()));
//!
//! let agent = Client::builder().rest(&url)?;
//! let request = SendMessageRequest { message: Some(Message::user("/stream 3 1")), ..Default::default() };
//! let mut events = agent.send_streaming_message(Call::default().request(request)).await?.into_inner();
//! let mut text = String::new();
//! while let Some(event) = events.next().await {
//!     let event = event?;
//!     let parts = event.artifact_update().and_then(|update| update.artifact.as_ref()).map(|artifact| &artifact.parts);
//!     text.extend(parts.into_iter().flatten().filter_map(Part::as_text));
//! }
//! assert_eq!(text, "chunk 1 of 3\nchunk 2 of 3\nchunk 3 of 3\n");
//! # Ok(()) }
//! ```
//!
//! # Store and limits
//!
//! Tasks are in memory unless [`Server::store`](server::Server::store) sets a store. With a store in a file, streams resume
//! after a restart, and a turn that was interrupted runs again if its agent is [resumable](agent::Agent::resumable):
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use a2a_service::{agent::demo::Demo, server::{Limits, Server}, store::sqlite::{Options, Sqlite}};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("tasks.db");
//! let store = Sqlite::open(&path, Options::default().max_tasks(100_000))?;
//! let limits = Limits::default().turn_deadline(Duration::from_secs(60)).queued_messages(10);
//! let server = Server::new(Demo).store(Arc::new(store)).limits(limits);
//! # Ok(()) }
//! ```
//!
//! # Crate features
//!
//! | Feature | Content |
//! | --- | --- |
//! | `server` | [`agent`], [`server`], [`store`] with the store in memory, [`auth`], [`card`], [`extension`], [`testing`] |
//! | `sqlite` | The store in an SQLite file; includes `server` |
//! | `client` | [`client`] |
//! | `tls` | `https://` URLs in the client; includes `client` |
//! | `server-tls` | [TLS](server::Server::tls) in the server; includes `server` |
//! | `signing` | [`jose`], and [signatures](card::signature) of agent cards; includes `server` |
//! | `push` | [`push`], delivery of notifications; includes `signing` |
//! | `openapi` | API documents below `/openapi`; includes `server`. Enabled by default |
//! | `console` | Console: a page at `/` for browsers; includes `server`. Enabled by default |
//! | `docs` | Swagger UI for browsers; includes `openapi`. Enabled by default |
//! | `auth` | Token files and JSON Web Tokens in [`auth`]; includes `server` |
//! | `metrics` | Export of [metrics](server::Server::metrics) to Prometheus in the program; includes `server` |
//! | `exec` | [Commands as agents](adapter), on Unix; includes `server` |
//! | `openai` | [Models with a chat completions API as agents](adapter); includes `server` and `client` |
//! | `mcp` | MCP servers as tools of these models; includes `openai` |
//! | `trace` | Spans with a [tracer](server::Server::tracer) of OpenTelemetry |
//! | `otlp` | Export of spans by OTLP in the program; includes `server` and `trace` |
//! | `cli` | The program `a2a`; includes `server`, `sqlite`, `client`, `push`, `auth`, `metrics`, `otlp`, `exec`, `openai`, `mcp`, `tls` and `server-tls`. Enabled by default |
//!
//! # Where to go next
//!
//! - [`adapter`]: commands, endpoints, models and other A2A agents as agents.
//! - [`agent`]: turns, artifacts, saved state, failures, and agents that are selected at run time.
//! - [`server`]: settings, tower layers, and [embedding](server::Server::into_parts) in an axum program.
//! - [`auth`]: bearer tokens, and the trait for other schemes. [`card`]: the agent card. [`extension`]: protocol extensions.
//! - [`client`]: retries, resumed streams and credentials. [`event`]: events and cursors. [`error`]: errors of both sides.
//! - [`pb`]: the messages of the protocol, and the service trait. [`store`]: the trait for stores.

#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, unused_imports, reason = "modules without a feature gate have items that only some features use")
)]

/// Implements `Debug` with some fields of a type, and an ellipsis for the others, which may be secret.
macro_rules! debug_fields {
    ($($type:ident)::+ $(<$lifetime:lifetime>)? { $($name:ident $(: $($field:tt).+)?),* }) => {
        impl std::fmt::Debug for $($type)::+ $(<$lifetime>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let name = stringify!($($type)::+);
                let mut f = f.debug_struct(name.rsplit(':').next().unwrap_or(name).trim_start());
                f$(.field(stringify!($name), &debug_fields!(@field self $name $($($field).+)?)))*.finish_non_exhaustive()
            }
        }
    };
    (@field $self:ident $name:ident) => { $self.$name };
    (@field $self:ident $name:ident $($field:tt).+) => { $self.$($field).+ };
}

/// Declares builder methods of a type: name, field and type of the parameter.
macro_rules! setters {
    ($type:ident: $($(#[$attribute:meta])* $visibility:vis $name:ident => $($field:ident).+: $parameter:ty;)+) => {
        /// Builder methods that set a field.
        impl $type { $(
            $(#[$attribute])*
            $visibility fn $name(mut self, $name: $parameter) -> Self {
                self.$($field).+ = $name.into();
                self
            }
        )+ }
    };
}

/// Implements `From` for a type: for each other type, a name for its value, and the result.
macro_rules! conversions {
    ($type:ty: $($(#[$attribute:meta])* $value:ident: $source:ty => $result:expr;)+) => { $(
        impl From<$source> for $type {
            $(#[$attribute])*
            fn from($value: $source) -> Self {
                $result
            }
        }
    )+ };
}

/// Defines a struct with the default of each field: a value, or else the default of its type.
#[cfg(any(feature = "server", feature = "client"))]
macro_rules! defaults {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_attribute:meta])* $field_visibility:vis $field:ident: $type:ty $(= $default:expr)?,)+
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name { $($(#[$field_attribute])* $field_visibility $field: $type,)+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: defaults!(@value $($default)?),)+ }
            }
        }
    };
    (@value) => { Default::default() };
    (@value $default:expr) => { $default };
}

/// Defines a struct of options with their defaults, and a builder method for each field.
#[cfg(any(feature = "server", feature = "client"))]
macro_rules! options {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident { $($(#[$field_attribute:meta])* pub $field:ident: $type:ty $(= $default:expr)?,)+ }
    ) => {
        defaults! {
            $(#[$attribute])*
            pub struct $name { $($(#[$field_attribute])* pub $field: $type $(= $default)?,)+ }
        }

        setters! { $name: $($(#[$field_attribute])* #[must_use] pub $field => $field: $type;)+ }
    };
}

#[cfg(feature = "server")]
#[doc(hidden)]
pub mod agents;
#[doc(hidden)]
pub mod base;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod engine;
pub mod protocol;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod service;
#[cfg(feature = "server")]
pub mod store;
#[cfg(feature = "server")]
pub mod testing;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod transport;

// Public paths, which do not depend on the folders.
#[doc(hidden)]
pub use self::base::clock;
#[doc(hidden)]
pub use self::protocol::{history, json, response_budget, rpc as contract, snapshot, validate};
#[cfg(feature = "push")]
#[doc(inline)]
pub use self::service::push;
#[cfg(feature = "server")]
#[doc(inline)]
pub use self::{
    agents as adapter,
    engine::agent,
    service::{auth, card, wrappers::extended as extension},
};
#[doc(inline)]
pub use self::{
    base::sources,
    protocol::{call, error, event, pb},
};
#[cfg(feature = "server")]
#[doc(hidden)]
pub use self::{engine::journal, protocol::task};

/// Protocol 0.3: data, bindings and semantics.
#[cfg(any(feature = "server", feature = "client"))]
#[doc(hidden)]
pub mod v03 {
    pub use crate::protocol::v03::*;
    #[cfg(feature = "server")]
    pub use crate::{
        service::wrappers::v03 as semantics,
        transport::binding::v03::{jsonrpc, rest},
    };
}

// Other crates whose types are in the public API.
#[cfg(feature = "server")]
pub use axum;
#[cfg(feature = "trace")]
pub use opentelemetry;
#[cfg(feature = "push")]
pub use url;
pub use {bytes, http, serde_json, tonic};

#[cfg(any(feature = "signing", feature = "auth"))]
pub use self::base::jws as jose;
pub use crate::protocol::{pb::v1::a2a_service_server::A2aService, rpc::BoxStream, snapshot::Snapshot};

/// Compiles the Rust blocks of the documents as doc tests.
#[cfg(all(doctest, feature = "cli"))]
mod documents {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/client.md")]
    struct Client;
    #[doc = include_str!("../docs/embedding.md")]
    struct Embedding;
    #[doc = include_str!("../docs/usage.md")]
    struct Usage;
}
