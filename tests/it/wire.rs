//! Wire format: bytes that each binding reads and writes, and limits of connections.

mod batch;
mod classic_examples;
mod classic_files;
mod classic_grpc;
mod classic_inputs;
mod classic_rest;
mod classic_rpc;
mod classic_rpc_errors;
mod classic_rpc_push;
mod classic_scripted;
mod client;
mod connection;
mod doors;
mod drain;
mod errors;
mod grpc;
mod health;
mod inputs;
mod jsonrpc;
mod limits;
mod mount;
mod origin;
mod rest;
mod slow;
mod sse;
mod support;
mod tolerance;
mod versions;

/// Transports dispatch by the generated bindings and must not name RPCs.
#[test]
fn transports_name_no_rpc() {
    use a2a_service::pb::v1::bindings::Rpc;
    use heck::ToSnakeCase as _;

    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = std::fs::read_dir(root.join("transport")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.chain([root.join("transport.rs")]).collect();
    assert!(files.len() > 5);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for rpc in Rpc::ALL {
            for name in [rpc.name().to_owned(), rpc.name().to_snake_case()] {
                assert!(!text.contains(&name), "{} names {name}", file.display());
            }
        }
    }
}
