//! Protocol 1.0 as pbjson has it. Our own ProtoJSON is compared with this one, so that we notice when it would do.

/// The messages of `lf.a2a.v1`.
#[allow(clippy::all, clippy::pedantic, deprecated, reason = "generated")]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/lf.a2a.v1.rs"));
    include!(concat!(env!("OUT_DIR"), "/lf.a2a.v1.serde.rs"));
}
