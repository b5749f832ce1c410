//! Generated code: messages, service traits, and their bindings to HTTP and JSON-RPC. `build.rs` writes it from
//! `proto/`.

mod secret;
pub mod wkt;

/// Encoded `FileDescriptorSet` of the proto files with their comments, for gRPC reflection and the OpenAPI document.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

macro_rules! package {
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
            unused,
            unused_qualifications,
            reason = "generated"
        )]
        pub mod $module {
            use crate::{check::*, json};

            include!(concat!(env!("OUT_DIR"), "/messages/", $package, ".rs"));
            include!(concat!(env!("OUT_DIR"), "/messages/", $package, ".json.rs"));
            include!(concat!(env!("OUT_DIR"), "/services/", $package, ".rs"));

            /// Bindings of the RPCs to HTTP and JSON-RPC, and adapters of the service trait.
            #[deny(unreachable_patterns, reason = "two routes collide")]
            pub mod bindings {
                use std::sync::Arc;

                use bytes::Bytes;
                use tonic::{
                    client::GrpcService,
                    codegen::{Body as HttpBody, StdError},
                };

                use super::*;
                use crate::contract::{self, grpc, *};

                include!(concat!(env!("OUT_DIR"), "/services/", $package, ".bindings.rs"));
            }
        }
    };
}

package! {
    /// Protocol 1.0.
    v1 = "lf.a2a.v1"
}
package! {
    /// Protocol 0.3.
    v03 = "a2a.v1"
}
