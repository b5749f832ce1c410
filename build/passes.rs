//! The three passes of code generation over `proto/`; each writes one directory of `OUT_DIR`.

use std::{fs, path::Path};

use proc_macro2::TokenStream;

use super::{
    exceptions::{SECRET, SHARED},
    message,
    schema::{PACKAGES, Package, Schema, WELL_KNOWN, WELL_KNOWN_MODULE},
};
use crate::Result;

pub(crate) fn run(proto: &Path, out: &Path) -> Result<()> {
    let folder = |name| -> Result<_> {
        let folder = out.join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    };
    let (well_known, messages, services) = (folder("well_known")?, folder("messages")?, folder("services")?);
    let v03 = folder("v03")?;

    let mut compiler = protox::Compiler::new([proto])?;
    compiler.include_source_info(true).include_imports(true).open_files(PACKAGES.map(|package| package.file))?;
    // `pb::DESCRIPTORS` includes the comments; gRPC reflection needs the imports.
    let descriptors = compiler.encode_file_descriptor_set();
    fs::write(out.join("descriptors.bin"), &descriptors)?;
    let files = compiler.file_descriptor_set();
    let mut google = files.clone();
    google.file.retain(|file| WELL_KNOWN.contains(&file.name()));

    // Without `compile_well_known_types`, prost adds its own extern path and rejects ours as a duplicate.
    let mut pass = prost_build::Config::new();
    pass.compile_well_known_types().btree_map(["."]).out_dir(well_known);
    pass.compile_fds(google)?;

    let mut pass = prost_build::Config::new();
    pass.compile_well_known_types().btree_map(["."]).extern_path(".google.protobuf", WELL_KNOWN_MODULE);
    pass.skip_debug(SECRET);
    pass.out_dir(&messages).compile_fds(files.clone())?;

    // Every message is extern here, so that only the services are generated. An exact path takes precedence over its
    // package.
    let mut pass = tonic_prost_build::configure()
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", WELL_KNOWN_MODULE)
        // Methods return a boxed stream instead of an associated type, which makes the trait dyn-compatible.
        .generate_default_stubs(true)
        .codec_path("crate::protocol::rpc::codec::Codec")
        .out_dir(&services);
    for (name, rust) in PACKAGES.map(|package| (package.name, package.module)).into_iter().chain(SHARED) {
        pass = pass.extern_path(format!(".{name}"), rust);
    }
    pass.compile_fds(files)?;

    let schema = Schema::new(&descriptors)?;
    for Package { name, .. } in PACKAGES {
        let service = schema.pool.services().find(|service| service.package_name() == name);
        let service = service.ok_or_else(|| format!("package {name}: no service; add one to its proto file"))?;
        write(&services.join(format!("{name}.bindings.rs")), schema.bindings(&service)?)?;
        let enums = schema.pool.all_enums().filter(|descriptor| descriptor.package_name() == name);
        let mut code: TokenStream = enums.map(|descriptor| message::numbers(&descriptor)).collect();
        let all = schema.pool.all_messages();
        for message in all.filter(|message| message.package_name() == name && !message.is_map_entry()) {
            code.extend(schema.message(&message)?);
        }
        for message in schema.kept(name) {
            code.extend(schema.transcode(&message)?);
        }
        write(&messages.join(format!("{name}.json.rs")), code)?;
    }
    write(&v03.join("conversions.rs"), schema.conversions()?)?;
    write(&v03.join("json.rs"), schema.v03_json()?)
}

fn write(file: &Path, code: TokenStream) -> Result<()> {
    Ok(fs::write(file, prettyplease::unparse(&syn::parse2(code)?))?)
}
