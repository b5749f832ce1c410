//! Mechanisms that know nothing about A2A.

#[cfg(any(feature = "auth", feature = "client", feature = "push"))]
pub(crate) mod bounded_body;
#[doc(hidden)]
pub mod clock;
#[cfg(any(feature = "server", feature = "client", feature = "push"))]
pub mod credential;
pub(crate) mod decoding;
#[cfg(feature = "server")]
pub mod dependency;
#[cfg(any(feature = "exec", feature = "cli"))]
pub(crate) mod environment;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod faults;
#[cfg(feature = "server")]
pub(crate) mod forwarded;
#[cfg(any(feature = "push", feature = "auth"))]
pub(crate) mod jwks;
#[cfg(any(feature = "signing", feature = "auth"))]
pub mod jws;
#[cfg(feature = "server")]
pub(crate) mod metric;
#[cfg(any(feature = "auth", feature = "client", feature = "push"))]
pub(crate) mod name_lookup;
#[cfg(any(feature = "client", feature = "server"))]
pub mod network;
#[cfg(any(feature = "client", feature = "push"))]
pub(crate) mod oauth;
#[cfg(feature = "server")]
pub(crate) mod owner_counts;
#[cfg(feature = "server")]
pub(crate) mod rate_limit;
#[cfg(any(all(feature = "exec", unix), all(feature = "client", feature = "push"), feature = "mcp"))]
pub(crate) mod redaction;
#[cfg(any(feature = "client", feature = "server"))]
pub(crate) mod retry;
#[cfg(feature = "server")]
pub(crate) mod sealing;
#[cfg(any(feature = "signing", feature = "auth", feature = "server-tls", feature = "postgres"))]
pub(crate) mod secret_file;
pub mod sources;
#[cfg(feature = "client")]
pub mod sse;
pub(crate) mod stderr;
#[cfg_attr(
    not(any(feature = "openai", all(feature = "client", feature = "push"), all(feature = "exec", unix))),
    expect(dead_code, reason = "only agents send texts in pieces")
)]
pub(crate) mod surrogates;
pub mod trace;
#[cfg(any(feature = "auth", feature = "server-tls"))]
pub(crate) mod watched_file;
#[cfg(feature = "push")]
pub(crate) mod webhook_signature;
