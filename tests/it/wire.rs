//! Bytes on the wire: what each binding reads and writes, and what a connection may do.

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

/// The bindings are generated; what is written by hand knows none of the calls.
#[test]
fn no_transport_names_an_rpc() {
    use a2a_service::pb::v1::bindings::Rpc;
    use heck::ToSnakeCase as _;

    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = std::fs::read_dir(root.join("transport")).unwrap().map(|it| it.unwrap().path());
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
