//! Generated messages of both protocol versions, with ProtoJSON and validation. The module `pb` re-exports them.

/// Defines a module of generated code, to which no lint applies.
macro_rules! generated {
    ($(#[$doc:meta])* pub mod $module:ident { $($code:tt)* }) => {
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
        pub mod $module { $($code)* }
    };
}
pub(crate) mod redact;

pub(crate) use generated;

macro_rules! messages {
    ($(#[$doc:meta])* $module:ident = $package:literal) => {
        generated! {
            $(#[$doc])*
            pub mod $module {
                use crate::protocol::{json, validate::*};

                include!(concat!(env!("OUT_DIR"), "/messages/", $package, ".rs"));
                include!(concat!(env!("OUT_DIR"), "/messages/", $package, ".json.rs"));
            }
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
