//! Logging: the subscriber of the program, the request log and the wire log.

#[cfg(feature = "cli")]
pub(crate) mod log;
pub(crate) mod request_log;
pub(crate) mod wire_log;
