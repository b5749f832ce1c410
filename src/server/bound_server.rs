//! Listening server: accepts connections until it is stopped, then drains (graceful shutdown).

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::{TcpListener, ToSocketAddrs};
use tokio_util::sync::CancellationToken;

use super::{Layered, Layers};
use crate::{
    agent::Agent,
    service::Service,
    transport::{HttpService, listener},
};

/// Time after the grace period in which connections may send their remaining data.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Server that is bound to its address and not yet accepting connections.
#[must_use = "a bound server does nothing until run_until"]
pub struct BoundServer<A> {
    pub(super) listener: TcpListener,
    pub(super) addr: SocketAddr,
    pub(super) http: HttpService,
    /// Additional listener for gRPC only, with the service for its connections.
    pub(super) grpc: Option<(TcpListener, Layered)>,
    pub(super) layers: Layers,
    pub(super) service: Arc<Service<A>>,
    pub(super) draining: CancellationToken,
    pub(super) settings: listener::ListenerSettings,
    pub(super) grace: Duration,
}

impl<A: Agent> BoundServer<A> {
    /// Address of the listener. Contains the actual port if port 0 was requested.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Adds a listener for gRPC only and returns its address.
    ///
    /// # Errors
    /// The errors of [`Server::bind`](super::Server::bind).
    pub async fn grpc(&mut self, addr: impl ToSocketAddrs) -> io::Result<SocketAddr> {
        let (listener, addr) = self.layers.listen(addr).await?;
        self.grpc = Some((listener, self.layers.around(self.http.grpc(), Some(addr))));
        Ok(addr)
    }

    /// Serves until `stop` completes, then drains: rejects new connections and calls, waits for running turns up to the
    /// [grace period](super::Server::drain_grace), and closes the remaining streams, which clients can resume later. No task is
    /// canceled.
    pub async fn run_until(self, stop: impl Future<Output = ()>) {
        let Self { listener, addr, http, grpc, layers, service, draining, settings, grace } = self;
        let http = layers.around(http, Some(addr));
        // The service ends the remaining turns after the grace period; their last events still have to be sent.
        let settings = listener::ListenerSettings { grace_period: grace.saturating_add(FLUSH_TIMEOUT), ..settings };
        let stopping = async {
            stop.await;
            draining.cancel();
            service.drain(grace).await;
        };
        let grpc = async {
            if let Some((listener, http)) = grpc {
                listener::serve(listener, http, &settings, &draining).await;
            }
        };
        // `stopping` is polled first, so that it waits for the signal before the first response is sent.
        tokio::join!(stopping, listener::serve(listener, http, &settings, &draining), grpc);
    }
}

impl<A> fmt::Debug for BoundServer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("addr", &self.addr).finish_non_exhaustive()
    }
}
