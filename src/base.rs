//! Mechanisms that know nothing about A2A.

#[cfg(any(feature = "auth", feature = "client", feature = "push"))]
pub(crate) mod bounded_body;
#[cfg(any(feature = "push", feature = "auth"))]
pub(crate) mod jwks;
#[cfg(any(feature = "signing", feature = "auth"))]
pub mod jws;
#[cfg(any(feature = "client", feature = "push"))]
pub(crate) mod oauth;
#[cfg(any(feature = "client", feature = "server"))]
pub(crate) mod retry;
#[cfg(any(feature = "signing", feature = "auth", feature = "server-tls"))]
pub(crate) mod secret_file;
#[cfg(feature = "client")]
pub mod sse;
#[cfg(any(feature = "auth", feature = "server-tls"))]
pub(crate) mod watched_file;
