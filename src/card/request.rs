//! Parts of a request that the agent card may depend on: path, host, peer and headers.

use std::net::IpAddr;

use http::HeaderMap;

use super::Authority;

/// Parts of a request for the agent card.
#[derive(Clone, Copy, Debug)]
pub struct CardRequest<'a> {
    /// Path of the request, without `prefix`.
    pub path: &'a str,
    /// Path prefix below which the server is mounted. Empty at the root.
    pub prefix: &'a str,
    /// Requested host with an optional port: `:authority` of HTTP/2, or `Host` of HTTP/1.
    pub host: Option<&'a str>,
    /// Authority in the request line of HTTP/1 (RFC 9112, 3.2.2), which only proxies send.
    pub target: Option<&'a str>,
    /// Address of the peer, which may be a proxy.
    pub peer: Option<IpAddr>,
    /// Query without its question mark.
    pub query: Option<&'a str>,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
}

impl CardRequest<'_> {
    /// Returns the base URL that the client requested. `None` without a valid host. Ignores forwarded headers.
    pub fn url(&self) -> Option<String> {
        Some(format!("http://{}{}", Authority::parse(self.host?)?, self.prefix))
    }
}
