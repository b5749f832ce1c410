//! Generated code: messages, service traits, and their bindings to HTTP and JSON-RPC. `build.rs` writes it from
//! `proto/`.

pub use crate::protocol::{json::wkt, messages::v03};

/// Encoded `FileDescriptorSet` of the proto files with their comments, for gRPC reflection and the generator of the API
/// documents.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Defines a module with the messages of a package, its generated service trait, client and server, and their bindings.
macro_rules! service {
    ($(#[$doc:meta])* $module:ident = $package:literal, $messages:ident) => {
        crate::protocol::messages::generated! {
            $(#[$doc])*
            pub mod $module {
                pub use crate::protocol::messages::$messages::*;

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
                    use crate::protocol::rpc::{codec as grpc, *};

                    include!(concat!(env!("OUT_DIR"), "/services/", $package, ".bindings.rs"));
                }
            }
        }
    };
}
pub(crate) use service;

service! {
    /// Protocol 1.0.
    v1 = "lf.a2a.v1", v1
}
