//! Generates messages with prost, and their ProtoJSON with pbjson.

use std::{env, error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=../../proto");
    println!("cargo:rerun-if-changed=build.rs");
    let mut compiler = protox::Compiler::new(["../../proto"])?;
    compiler.include_imports(true).open_file("lf/a2a/v1/a2a.proto")?;
    prost_build::Config::new()
        .compile_well_known_types()
        .extern_path(".google.protobuf", "::pbjson_types")
        .compile_fds(compiler.file_descriptor_set())?;
    pbjson_build::Builder::new()
        .register_descriptors(&compiler.encode_file_descriptor_set())?
        .extern_path(".google.protobuf", "::pbjson_types")
        .ignore_unknown_fields()
        .out_dir(Path::new(&env::var("OUT_DIR")?))
        .build(&[".lf.a2a.v1"])?;
    Ok(())
}
