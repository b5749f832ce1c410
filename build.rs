//! Turns `proto/` into Rust.
//!
//! ```text
//! proto/*.proto --protox--> descriptors --+-- prost-build, pass 0 --> google.protobuf, with ordered maps  (pb::wkt)
//!                                         +-- prost-build, pass 1 --> messages, plain prost structs      (pb::v1, v03)
//!                                         +-- tonic, pass 2 --------> service traits, gRPC client and server
//!                                         +-- message.rs -----------> ProtoJSON and checks of every message
//!                                         +-- encoded.rs -----------> ProtoJSON of messages that are kept in protobuf
//!                                         +-- service.rs, route.rs -> REST routes, JSON-RPC methods, adapters
//! ```
//!
//! What the proto files leave unsaid, or say otherwise than the specification, stands in `build/schema.rs` and nowhere
//! else. Everything lands in `OUT_DIR` and comes in through `src/pb.rs`. Nothing generated is checked in, and no
//! generated text is edited.

mod build {
    pub(crate) mod encoded;
    pub(crate) mod message;
    pub(crate) mod passes;
    pub(crate) mod route;
    pub(crate) mod schema;
    pub(crate) mod service;
}

use std::{env, error::Error, path::Path};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    // Without these lines any file of the package that is touched makes all of it anew.
    for input in ["proto", "build", "build.rs"] {
        println!("cargo:rerun-if-changed={input}");
    }
    build::passes::run(Path::new("proto"), Path::new(&env::var("OUT_DIR")?))
}
