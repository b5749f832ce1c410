//! Generated messages of both protocol versions, with ProtoJSON and validation. The module `pb` re-exports them.

mod secret;

macro_rules! messages {
    ($(#[$doc:meta])* $module:ident = $package:literal) => {
        $(#[$doc])*
        #[allow(
            clippy::all,
            clippy::nursery,
            clippy::pedantic,
            clippy::restriction,
            deprecated,
            missing_debug_implementations,
            missing_docs,
            unreachable_pub,
            unused,
            unused_qualifications,
            reason = "generated"
        )]
        pub mod $module {
            use crate::{check::*, json};

            include!(concat!(env!("OUT_DIR"), "/messages/", $package, ".rs"));
            include!(concat!(env!("OUT_DIR"), "/messages/", $package, ".json.rs"));
        }
    };
}

messages! {
    /// Messages of protocol 1.0.
    v1 = "lf.a2a.v1"
}
messages! {
    /// Messages of protocol 0.3.
    v03 = "a2a.v1"
}
