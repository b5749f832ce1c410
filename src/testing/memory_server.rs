//! Server without sockets, and its clients.

use std::{convert::Infallible, io, sync::Arc};

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::io::DuplexStream;
use tokio_stream::StreamExt as _;
use tonic::transport::{Channel, Endpoint};
use tower::{Service as _, service_fn};

use crate::{
    client::{Client, ClientBuilder, HttpTransport},
    engine::agent::Agent,
    protocol::{
        call::Binding,
        error::{Error, ErrorKind},
        pb::v1::{a2a_service_client::A2aServiceClient, a2a_service_server::A2aService},
        rpc::BoxStream,
        version::Version,
    },
    server::{Handle, Server},
};

/// Base URL of servers in memory.
const URL: &str = "http://agent.test";

/// Capacity of a connection of gRPC in each direction, in bytes.
const PIPE: usize = 64 << 10;

/// Serves an agent in memory, with the default settings of a server.
///
/// Must be called in a tokio runtime.
///
/// ```
/// use a2a_service::{call::Binding, protocol::Version, testing::{self, Script}};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let server = testing::serve(Script::new().text("Hello, ").echo());
/// for (binding, version) in testing::MemoryServer::INTERFACES {
///     let client = server.client(binding, version).await?;
///     assert_eq!(client.send("Ada").await?.text(), "Hello, Ada");
/// }
/// # Ok::<_, a2a_service::error::Error>(())
/// # }).unwrap();
/// ```
pub fn serve<A: Agent>(agent: A) -> MemoryServer {
    MemoryServer::new(Server::new(agent))
}

/// Server without sockets. Its clients call it over the bindings of a server with a listener, with equal HTTP requests and
/// responses.
///
/// Over gRPC, clients use HTTP/2 on a connection in memory. Over HTTP+JSON and JSON-RPC, a request is passed to the server
/// without the bytes of HTTP. gRPC of 0.3 is not available: it needs a server with a listener ([`Server::bind`]).
pub struct MemoryServer {
    router: Router,
    handle: Handle,
    channel: Channel,
}

impl MemoryServer {
    /// Bindings and versions of the clients.
    pub const INTERFACES: [(Binding, Version); 5] = [
        (Binding::Grpc, Version::V1_0),
        (Binding::Rest, Version::V1_0),
        (Binding::JsonRpc, Version::V1_0),
        (Binding::Rest, Version::V0_3),
        (Binding::JsonRpc, Version::V0_3),
    ];

    /// Serves in memory with the settings of a server. Must be called in a tokio runtime.
    pub fn new(server: Server) -> Self {
        let (router, handle) = server.into_parts();
        let shared = router.clone();
        let connector = service_fn(move |_: Uri| std::future::ready(io::Result::Ok(connect(shared.clone()))));
        let channel = Endpoint::from_static(URL).connect_with_connector_lazy(connector);
        Self { router, handle, channel }
    }

    /// Base URL of the server, which only its [transport](Self::transport) reaches.
    pub fn url(&self) -> &'static str {
        URL
    }

    /// Handle for readiness and drain.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the network of this server for clients of HTTP+JSON and JSON-RPC.
    pub fn transport(&self) -> MemoryTransport {
        MemoryTransport(self.router.clone())
    }

    /// Returns the options of a client that reaches this server over HTTP+JSON and JSON-RPC.
    pub fn client_builder(&self) -> ClientBuilder {
        Client::builder().transport(self.transport())
    }

    /// Returns a client over a binding and version. A client over gRPC has no card.
    ///
    /// # Errors
    /// `UnsupportedOperation` if the server does not serve the version, or if it is not one of the
    /// [interfaces](Self::INTERFACES).
    pub async fn client(&self, binding: Binding, version: Version) -> Result<Client, Error> {
        if binding == Binding::Grpc {
            return Ok(Client::from_service(self.service(binding, version)?));
        }
        self.client_builder().binding(binding).version(version).connect(URL).await
    }

    /// Returns the server as the service trait, called over a binding and version. Calls are retried as those of a client.
    ///
    /// # Errors
    /// `UnsupportedOperation` if it is not one of the [interfaces](Self::INTERFACES).
    pub fn service(&self, binding: Binding, version: Version) -> Result<Arc<dyn A2aService>, Error> {
        let builder = self.client_builder().version(version);
        match (binding, version) {
            (Binding::Rest, _) => builder.rest(URL),
            (Binding::JsonRpc, _) => builder.json_rpc(&format!("{URL}/rpc")),
            (Binding::Grpc, Version::V1_0) => Ok(builder.around(Arc::new(A2aServiceClient::new(self.channel.clone())))),
            (Binding::Grpc, Version::V0_3) | (Binding::InProcess, _) => {
                let reason = "a server in memory has gRPC of 1.0, and HTTP+JSON and JSON-RPC of 1.0 and 0.3";
                Err(ErrorKind::UnsupportedOperation.because(reason))
            }
        }
    }
}

debug_fields!(MemoryServer { handle });

/// Network of a [`MemoryServer`] for the JSON bindings.
#[derive(Clone, Debug)]
pub struct MemoryTransport(Router);

#[tonic::async_trait]
impl HttpTransport for MemoryTransport {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<BoxStream<Bytes>>, Error> {
        let mut request = request.map(Body::from);
        // As over HTTP/1.1: the target has no host, which is in a header.
        let host = request.uri().authority().and_then(|host| HeaderValue::try_from(host.as_str()).ok());
        if let Some(host) = host {
            request.headers_mut().insert(header::HOST, host);
        }
        if let Some(path) = request.uri().path_and_query().cloned() {
            *request.uri_mut() = Uri::from(path);
        }
        let responded: Result<_, Infallible> = self.0.clone().call(request).await;
        let Ok(response) = responded;
        Ok(response.map(|body| -> BoxStream<Bytes> {
            let failed = |cause: axum::Error| ErrorKind::Unavailable.because(cause.to_string()).into();
            Box::pin(body.into_data_stream().map(move |chunk| chunk.map_err(failed)))
        }))
    }
}

/// Opens a connection to a router in memory.
fn connect(router: Router) -> TokioIo<DuplexStream> {
    let (client, server) = tokio::io::duplex(PIPE);
    // Ends with the connection, which the client closes.
    tokio::spawn(async move {
        let (connection, service) = (Builder::new(TokioExecutor::new()), TowerToHyperService::new(router));
        if let Err(error) = connection.serve_connection(TokioIo::new(server), service).await {
            tracing::debug!("connection in memory failed: {error}");
        }
    });
    TokioIo::new(client)
}
