//! Code generation: compiles `proto/` to Rust.
//!
//! ```text
//! proto/*.proto --protox--> descriptors --+-- prost-build, pass 0 --> google.protobuf, with ordered maps  (pb::wkt)
//!                                         +-- prost-build, pass 1 --> messages, plain prost structs      (pb::v1, v03)
//!                                         +-- tonic, pass 2 --------> service traits, gRPC client and server
//!                                         +-- message.rs -----------> ProtoJSON of every message
//!                                         +-- check.rs -------------> validation of every message
//!                                         +-- encoded.rs -----------> ProtoJSON of messages that are kept in protobuf
//!                                         +-- service.rs, routes.rs > REST routes, JSON-RPC methods, adapters
//!                                         +-- v03.rs ---------------> conversions and JSON of protocol 0.3
//! ```
//!
//! Exceptions, where the proto files are silent or differ from the specification, are in `build/exceptions.rs`,
//! `build/extra_bindings.rs` and `build/v03_json.rs` only. The output goes to `OUT_DIR` and is included by `src/protocol/pb.rs`. It is
//! neither checked in nor edited.

mod build {
    pub(crate) mod check;
    pub(crate) mod commit;
    pub(crate) mod encoded;
    pub(crate) mod exceptions;
    pub(crate) mod extra_bindings;
    pub(crate) mod message;
    pub(crate) mod passes;
    pub(crate) mod routes;
    pub(crate) mod schema;
    pub(crate) mod service;
    pub(crate) mod v03;
    pub(crate) mod v03_json;
}

use std::{env, error::Error, fmt::Write as _, fs, path::Path, process::Command};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    // Without these lines, Cargo reruns this script when any file of the package changes.
    for input in ["proto", "openapi/schemas", "build", "build.rs"] {
        println!("cargo:rerun-if-changed={input}");
    }
    // In debug builds, every commit would compile the whole crate again.
    if env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        let (commit, inputs) = build::commit::commit(Path::new(&env::var("CARGO_MANIFEST_DIR")?));
        for input in inputs {
            println!("cargo:rerun-if-changed={}", input.display());
        }
        println!("cargo:rustc-env=A2A_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    }
    let rustc = Command::new(env::var("RUSTC")?).arg("--version").output()?;
    let version = String::from_utf8(rustc.stdout)?.split_whitespace().nth(1).unwrap_or("unknown").to_owned();
    println!("cargo:rustc-env=A2A_RUSTC={version}");
    let out = env::var("OUT_DIR")?;
    schemas(Path::new("openapi/schemas"), Path::new(&out))?;
    build::passes::run(Path::new("proto"), Path::new(&out))
}

/// Writes the table of the JSON Schemas in a directory: name and text.
fn schemas(directory: &Path, out: &Path) -> Result<()> {
    let mut files = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    let mut table = "[\n".to_owned();
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let path = file.to_string_lossy();
        writeln!(table, r#"    ("{name}", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/{path}"))),"#)?;
    }
    table.push(']');
    Ok(fs::write(out.join("schemas.rs"), table)?)
}
