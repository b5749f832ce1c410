//! Exposure of a server: it listens on an address that other machines can reach only if callers are authenticated, or if that is
//! allowed.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, ToSocketAddrs};

use crate::{
    base::stderr,
    transport::{connection::listener, pipeline::PipelineSettings},
};

/// Returns true if an address is reachable from other machines.
pub(crate) fn is_public(addr: SocketAddr) -> bool {
    !addr.ip().to_canonical().is_loopback()
}

impl PipelineSettings {
    /// Listens on an address. An address that is reachable from other machines needs an authenticator, or a server that
    /// is [insecure](crate::server::Server::insecure).
    pub(crate) async fn listen(&self, addr: impl ToSocketAddrs) -> io::Result<(TcpListener, SocketAddr)> {
        let listener = listener::bind(addr).await?;
        let addr = listener.local_addr()?;
        if !is_public(addr) || self.authenticator.is_some() {
            return Ok((listener, addr));
        }
        if !self.insecure {
            let reason = format!(
                "{addr} is reachable from other machines and callers are not authenticated; set an authenticator \
                 (Server::authenticator), listen on 127.0.0.1 or [::1], or allow unauthenticated access \
                 (Server::insecure)"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        let warning = "callers are not authenticated and see all tasks: no token is set";
        tracing::warn!(server.address = %addr, "{warning}");
        stderr::report(format_args!("warning: {warning} (server.address={addr})"));
        Ok((listener, addr))
    }
}
