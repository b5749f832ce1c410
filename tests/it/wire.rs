//! Wire format: bytes that each binding reads and writes, and limits of connections.

mod batch;
mod bindings;
mod browser;
mod client;
mod connection;
mod drain;
mod encodings;
mod errors;
mod grpc;
mod grpc_web;
mod health;
mod inputs;
mod jsonrpc;
mod limits;
mod mount;
mod origin;
mod rest;
mod slow_readers;
mod sse;
mod support;
mod tolerance;
mod v03_examples;
mod v03_files;
mod v03_grpc;
mod v03_inputs;
mod v03_jsonrpc;
mod v03_jsonrpc_errors;
mod v03_jsonrpc_push;
mod v03_rest;
mod v03_support;
mod versions;

/// Transports dispatch by the generated bindings and must not name RPCs.
#[test]
fn transports_name_no_rpc() {
    use a2a_service::pb::v1::bindings::Rpc;
    use heck::ToSnakeCase as _;

    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // The methods of 0.3 JSON-RPC are not in its proto file.
    let files = crate::layers::files(&root.join("transport"))
        .into_iter()
        .filter(|file| !file.to_string_lossy().contains("v03"));
    let files: Vec<_> = files.chain([root.join("transport.rs")]).collect();
    assert!(files.len() > 30);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for rpc in Rpc::ALL {
            for name in [rpc.name().to_owned(), rpc.name().to_snake_case()] {
                assert!(!text.contains(&name), "{} names {name}", file.display());
            }
        }
    }
}
