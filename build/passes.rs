//! The passes over `proto/`, each of which writes a folder of `OUT_DIR`.

use std::{fs, path::Path};

use proc_macro2::TokenStream;

use super::{
    message,
    schema::{PACKAGES, Package, SHARED, Schema, WELL_KNOWN, WELL_KNOWN_MODULE},
};
use crate::Result;

/// The messages that have credentials.
const SECRET: [&str; 4] = [
    ".lf.a2a.v1.TaskPushNotificationConfig",
    ".lf.a2a.v1.AuthenticationInfo",
    ".a2a.v1.PushNotificationConfig",
    ".a2a.v1.AuthenticationInfo",
];

pub(crate) fn run(proto: &Path, out: &Path) -> Result<()> {
    let folder = |name| -> Result<_> {
        let folder = out.join(name);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    };
    let (well_known, messages, services) = (folder("well_known")?, folder("messages")?, folder("services")?);

    let mut compiler = protox::Compiler::new([proto])?;
    compiler.include_source_info(true).include_imports(true).open_files(PACKAGES.map(|it| it.file))?;
    // With their comments, which the OpenAPI document publishes, and with what they import, for gRPC reflection.
    let descriptors = compiler.encode_file_descriptor_set();
    fs::write(out.join("descriptors.bin"), &descriptors)?;
    let files = compiler.file_descriptor_set();
    let mut google = files.clone();
    google.file.retain(|it| WELL_KNOWN.contains(&it.name()));

    // In each pass, without `compile_well_known_types`, prost adds a path of its own and refuses ours as a duplicate.
    let mut pass = prost_build::Config::new();
    pass.compile_well_known_types().btree_map(["."]).out_dir(well_known);
    pass.compile_fds(google)?;

    let mut pass = prost_build::Config::new();
    pass.compile_well_known_types().btree_map(["."]).extern_path(".google.protobuf", WELL_KNOWN_MODULE);
    // What has credentials is not printed by them: `src/pb/secret.rs`.
    pass.skip_debug(SECRET);
    pass.out_dir(&messages).compile_fds(files.clone())?;

    // Every message is extern here, so that only the services are written. An exact path beats that of its package.
    let mut pass = tonic_prost_build::configure()
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", WELL_KNOWN_MODULE)
        // Methods that return a boxed stream, in place of an associated type: it is what makes the trait dyn-safe.
        .generate_default_stubs(true)
        .codec_path("crate::transport::grpc::Codec")
        .out_dir(&services);
    for (name, rust) in PACKAGES.map(|it| (it.name, it.module)).into_iter().chain(SHARED) {
        pass = pass.extern_path(format!(".{name}"), rust);
    }
    pass.compile_fds(files)?;

    let schema = Schema::new(&descriptors)?;
    for Package { name, .. } in PACKAGES {
        let service = schema.pool.services().find(|it| it.package_name() == name).ok_or("a package has a service")?;
        write(&services.join(format!("{name}.bindings.rs")), schema.bindings(&service)?)?;
        let enums = schema.pool.all_enums().filter(|it| it.package_name() == name);
        let mut code: TokenStream = enums.map(|it| message::numbers(&it)).collect();
        for message in schema.pool.all_messages().filter(|it| it.package_name() == name && !it.is_map_entry()) {
            code.extend(schema.message(&message)?);
        }
        for message in schema.kept(name) {
            code.extend(schema.transcode(&message)?);
        }
        write(&messages.join(format!("{name}.json.rs")), code)?;
    }
    Ok(())
}

fn write(file: &Path, code: TokenStream) -> Result<()> {
    Ok(fs::write(file, prettyplease::unparse(&syn::parse2(code)?))?)
}
