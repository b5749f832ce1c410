//! A server that listens: it serves until it is told to stop, and drains then.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::{TcpListener, ToSocketAddrs};
use tokio_util::sync::CancellationToken;

use super::{Layered, Layers};
use crate::{
    agent::Agent,
    service::Service,
    transport::{HttpService, listener},
};

/// How much longer a connection may take to send what it was left with.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A server that listens.
#[must_use = "a server serves when it runs"]
pub struct BoundServer<A> {
    pub(super) listener: TcpListener,
    pub(super) addr: SocketAddr,
    pub(super) http: HttpService,
    /// Another listener, for gRPC alone, and what serves its connections.
    pub(super) grpc: Option<(TcpListener, Layered)>,
    pub(super) layers: Layers,
    pub(super) service: Arc<Service<A>>,
    pub(super) draining: CancellationToken,
    pub(super) settings: listener::Settings,
    pub(super) grace: Duration,
}

impl<A: Agent> BoundServer<A> {
    /// Where it listens; with the port that was picked, where none was named.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Listens on another address too, for gRPC alone. Returns where.
    ///
    /// # Errors
    /// The errors of [`Server::bind`](super::Server::bind).
    pub async fn grpc(&mut self, addr: impl ToSocketAddrs) -> io::Result<SocketAddr> {
        let (listener, addr) = self.layers.listen(addr).await?;
        self.grpc = Some((listener, self.layers.around(self.http.grpc(), Some(addr))));
        Ok(addr)
    }

    /// Serves until `stop` returns, then drains: takes no new connections and no new work, lets what runs end for the
    /// time of the [grace](super::Server::grace), cuts what is left of streams so that they can be taken up again, and
    /// returns. Nothing is canceled by this.
    pub async fn run_until(self, stop: impl Future<Output = ()>) {
        let Self { listener, addr, http, grpc, layers, service, draining, settings, grace } = self;
        let http = layers.around(http, Some(addr));
        // The engine ends what runs at the end of the grace; its last words have a moment more to be sent.
        let settings = listener::Settings { grace: grace.saturating_add(LAST_WORDS), ..settings };
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
        // In this order: a signal that comes right after the first reply finds who waits for it.
        tokio::join!(stopping, listener::serve(listener, http, &settings, &draining), grpc);
    }
}

impl<A> fmt::Debug for BoundServer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("addr", &self.addr).finish_non_exhaustive()
    }
}
