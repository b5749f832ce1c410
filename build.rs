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

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    // Without these lines, Cargo reruns this script when any file of the package changes.
    for input in ["proto", "openapi/schemas", "console", "build", "build.rs"] {
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
    let name = |file: &Path| Some(file.file_stem()?.to_string_lossy().into_owned());
    table("schemas.rs", "include_str", &files(Path::new("openapi/schemas"))?, name, Path::new(&out))?;
    let name = |file: &Path| Some(file.strip_prefix("console").ok()?.to_string_lossy().into_owned());
    table("console.rs", "include_bytes", &files(Path::new("console"))?, name, Path::new(&out))?;
    build::passes::run(Path::new("proto"), Path::new(&out))
}

/// Returns the paths of the files in a directory and in those below it, in alphabetical order.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    found.sort();
    Ok(found)
}

/// Writes a table of files: the name that `name` derives from the path, and the content.
fn table(
    output: &str,
    include: &str,
    files: &[PathBuf],
    name: impl Fn(&Path) -> Option<String>,
    out: &Path,
) -> Result<()> {
    let mut table = "[\n".to_owned();
    for file in files {
        let (name, path) = (name(file).unwrap_or_default(), file.to_string_lossy());
        writeln!(table, r#"    ("{name}", {include}!(concat!(env!("CARGO_MANIFEST_DIR"), "/{path}"))),"#)?;
    }
    table.push(']');
    Ok(fs::write(out.join(output), table)?)
}
