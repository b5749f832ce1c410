//! Agents elsewhere, over each binding of protocol 1.0, as the same trait that a service here implements.

pub mod http;

use std::{sync::Arc, time::Duration};

use tonic::transport::Endpoint;

use self::http::{JsonRpc, Rest};
use crate::{
    error::{Error, ErrorKind},
    pb::v1::{a2a_service_client::A2aServiceClient, a2a_service_server::A2aService},
    transport::transcode::Remote,
};

/// How long a connection may take to be there.
const CONNECT: Duration = Duration::from_secs(10);

const PING: Duration = Duration::from_secs(20);

/// What an agent may answer at once, in bytes: a message, or an event of a stream.
pub const MAX_REPLY: usize = 16 << 20;

/// An agent that speaks HTTP+JSON. `url` is what its routes begin with.
pub fn rest(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    Ok(Arc::new(Remote(Rest::new(http::client()?, url)?)))
}

/// An agent that speaks JSON-RPC at `url`.
pub fn json_rpc(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    Ok(Arc::new(Remote(JsonRpc::new(http::client()?, url)?)))
}

/// An agent that speaks gRPC. It is connected to when it is first called, on the runtime that this is called on.
pub fn grpc(url: &str) -> Result<Arc<dyn A2aService>, Error> {
    let invalid = |e| ErrorKind::InvalidParams.because(format!("`{url}` is no address of an agent: {e}"));
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(invalid)?.connect_timeout(CONNECT);
    // A stream may be silent for long; whether the other end is still there, only a ping can tell.
    let channel = endpoint.http2_keep_alive_interval(PING).keep_alive_timeout(PING).connect_lazy();
    Ok(Arc::new(A2aServiceClient::new(channel).max_decoding_message_size(MAX_REPLY)))
}
