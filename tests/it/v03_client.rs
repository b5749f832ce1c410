//! Clients of protocol 0.3, for use in scenarios.

use std::sync::Arc;

use a2a_service::{
    client::{Client, ClientBuilder, Retry},
    pb::v1::a2a_service_server::A2aService,
    protocol::Version,
};

fn client() -> ClientBuilder {
    Client::builder().retry(Retry::never()).version(Version::V0_3)
}

pub(crate) fn grpc(url: &str) -> Arc<dyn A2aService> {
    client().grpc(url).unwrap()
}

pub(crate) fn rest(url: &str) -> Arc<dyn A2aService> {
    client().rest(url).unwrap()
}

pub(crate) fn json_rpc(url: &str) -> Arc<dyn A2aService> {
    client().json_rpc(&format!("{url}/rpc")).unwrap()
}
