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
    schemas(Path::new("openapi/schemas"), Path::new(&out))?;
    console(Path::new(&out))?;
    build::passes::run(Path::new("proto"), Path::new(&out))
}

/// Writes the table of the files of the console: the path in the folder, and the content as it is served.
fn console(out: &Path) -> Result<()> {
    let mut table = "[\n".to_owned();
    for file in files(Path::new("console"))?.iter().filter(|file| !file.ends_with("MANIFEST")) {
        let (name, text) = (file.strip_prefix("console")?.to_string_lossy(), fs::read_to_string(file)?);
        let is_own = !file.starts_with("console/vendor");
        writeln!(table, "    ({name:?}, {:?}),", if is_own { shortened(&text, name.ends_with(".css")) } else { text })?;
    }
    table.push(']');
    Ok(fs::write(out.join("console.rs"), table)?)
}

/// Returns the text of a script, a page or a style sheet without indentation, blank lines, and lines that are comments. Line breaks
/// in the templates of scripts count as spaces, and other strings have none.
fn shortened(text: &str, is_style: bool) -> String {
    let mut is_comment = false;
    let mut short = String::with_capacity(text.len());
    for line in text.lines().map(str::trim) {
        let begins = is_comment || line.starts_with("/*");
        is_comment = begins && !line.ends_with("*/");
        if begins || line.is_empty() || line.starts_with("//") {
            continue;
        }
        short.push_str(line);
        short.push('\n');
    }
    let spaces = [(": ", ":"), ("; ", ";"), (", ", ","), (" { ", "{"), (" {\n", "{\n"), (" }", "}"), (";}", "}")];
    if is_style { spaces.iter().fold(short, |text, (from, to)| text.replace(from, to)) } else { short }
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

/// Writes the table of the JSON Schemas in a directory: name and text.
fn schemas(directory: &Path, out: &Path) -> Result<()> {
    let mut table = "[\n".to_owned();
    for file in files(directory)? {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let path = file.to_string_lossy();
        writeln!(table, r#"    ("{name}", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/{path}"))),"#)?;
    }
    table.push(']');
    Ok(fs::write(out.join("schemas.rs"), table)?)
}
