//! Parts of a request that the agent card may depend on: path, host, peer and headers.

use std::net::IpAddr;

use http::HeaderMap;

use super::Authority;

/// What the card may depend on.
#[derive(Clone, Copy, Debug)]
pub struct CardRequest<'a> {
    /// The path that it was asked for at: there are some.
    pub path: &'a str,
    /// What stood before it, where the door is mounted below a path.
    pub prefix: &'a str,
    /// The host and the port that were asked for: `:authority` of HTTP/2, and `Host` of HTTP/1.
    pub host: Option<&'a str>,
    /// The authority in the request line of HTTP/1 (RFC 9112, 3.2.2), which only proxies put there.
    pub target: Option<&'a str>,
    /// The other end of the connection, which may be a proxy.
    pub peer: Option<IpAddr>,
    /// The query, without its question mark.
    pub query: Option<&'a str>,
    /// The headers.
    pub headers: &'a HeaderMap,
}

impl<'a> CardRequest<'a> {
    /// The URL that the server was asked at, if the request tells. What proxies say is not looked at.
    pub fn url(&self) -> Option<String> {
        Some(format!("http://{}{}", Authority::parse(self.host?)?, self.prefix))
    }
}
