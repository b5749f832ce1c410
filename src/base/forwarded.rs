//! Public URL of the server, for the agent card: the configured URL, forwarded headers of a trusted proxy (`Forwarded`,
//! `X-Forwarded-*`), the host of the request, or else the listen address.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use http::{
    HeaderMap, HeaderName, header,
    uri::{self, PathAndQuery},
};

#[cfg(feature = "push")]
use url::Url;

use crate::base::network::Network;

/// Host of the request that a proxy received.
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// Port of the request that a proxy received.
pub(crate) const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
/// Address of a proxy's client.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Prefix that a proxy strips from the path.
pub(crate) const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
/// Scheme of the request that a proxy received: `https` if the proxy terminates TLS.
pub(crate) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Parts of a request for the agent card.
#[derive(Clone, Copy, Debug)]
pub struct RequestOrigin<'a> {
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

#[cfg(test)]
impl<'a> RequestOrigin<'a> {
    /// Request for a path, without a host and a peer.
    pub(crate) fn at(path: &'a str, headers: &'a HeaderMap) -> Self {
        Self { path, prefix: "", host: None, target: None, peer: None, query: None, headers }
    }
}

impl RequestOrigin<'_> {
    /// Returns the base URL that the client requested. `None` without a valid host. Ignores forwarded headers.
    pub fn url(&self) -> Option<String> {
        Some(format!("http://{}{}", Authority::parse(self.host?)?, self.prefix))
    }
}

/// Configuration of the public address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Address {
    /// Configured URL, without a trailing slash.
    pub(crate) public: Option<String>,
    /// Proxies whose forwarded headers are trusted.
    pub(crate) trusted: Vec<Network>,
    /// Listen address.
    pub(crate) bound: Option<SocketAddr>,
    /// The server has TLS.
    pub(crate) is_tls: bool,
    /// Path below the URL at which the agent is served too. Empty if there is none.
    pub(crate) agent: String,
}

impl Address {
    /// Returns the path of the configured URL, if it has one.
    pub(crate) fn path(&self) -> Option<&str> {
        let (_, rest) = self.public.as_deref()?.split_once("://")?;
        rest.find('/').map(|start| &rest[start..])
    }

    /// Returns the origin of the configured URL, or else of the listen address. `None` if neither is known.
    #[cfg(feature = "push")]
    pub(crate) fn origin(&self) -> Option<String> {
        let configured = self.public.as_deref().and_then(|url| Url::parse(url).ok());
        let configured = configured.map(|url| url.origin().ascii_serialization());
        let scheme = if self.is_tls { "https" } else { "http" };
        configured.or_else(|| self.bound.map(|addr| format!("{scheme}://{}", Authority::from(addr))))
    }

    /// Returns the URL at which the client of a request reaches the server. `None` if it is unknown.
    pub(crate) fn of(&self, request: &RequestOrigin<'_>) -> Option<String> {
        if let Some(public) = &self.public {
            let is_below = !self.agent.is_empty() && request.prefix.ends_with(&self.agent);
            return Some(format!("{public}{}", if is_below { &*self.agent } else { "" }));
        }
        let forwarded = request.peer.and_then(|peer| self.forwarded_by(peer, request.headers));
        let host = if forwarded.is_some() { request.target.or(request.host) } else { request.host };
        let mut forwarded = forwarded.unwrap_or_default();
        let host = forwarded.host.take().or_else(|| host.and_then(Authority::parse));
        let authority = host.or_else(|| self.bound.map(Authority::from))?;
        let (scheme, default_port) = if forwarded.https || self.is_tls { ("https", 443) } else { ("http", 80) };
        // A port next to the host is the one that the client used; `X-Forwarded-Port` may be that of a proxy.
        let port = authority.port.or(forwarded.port.filter(|port| *port != default_port));
        let authority = Authority { port, ..authority };
        Some(format!("{scheme}://{authority}{}{}", forwarded.prefix, request.prefix))
    }

    /// Returns the forwarded headers of a request. `None` if the peer is not a trusted proxy.
    pub(crate) fn forwarded_by(&self, peer: IpAddr, headers: &HeaderMap) -> Option<Forwarded> {
        self.trusts(peer).then(|| self.forwarded(headers))
    }

    fn trusts(&self, addr: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(addr))
    }

    /// Reads the forwarded headers. `Forwarded` counts only without `X-Forwarded-*`: most proxies set the latter, and pass
    /// on a `Forwarded` that the client forged.
    fn forwarded(&self, headers: &HeaderMap) -> Forwarded {
        // The last value is from the peer; earlier ones may be forged.
        let last = |name| {
            let line = headers.get_all(name).iter().next_back()?.to_str().ok()?;
            line.rsplit(',').next().map(str::trim)
        };
        let prefix = last(FORWARDED_PREFIX).and_then(parse_prefix).unwrap_or_default();
        let by_proxy = [FORWARDED_HOST, FORWARDED_PORT, FORWARDED_PROTO, FORWARDED_FOR, header::FORWARDED];
        let by_proxy = by_proxy.iter().any(|name| headers.contains_key(name));
        let mut forwarded = Forwarded { prefix, by_proxy, ..Forwarded::default() };
        let (host, port, proto) = (last(FORWARDED_HOST), last(FORWARDED_PORT), last(FORWARDED_PROTO));
        if host.or(port).or(proto).is_some() {
            forwarded.host = host.and_then(Authority::parse);
            forwarded.port = port.and_then(parse_port);
            forwarded.https = proto.is_some_and(|proto| proto.eq_ignore_ascii_case("https"));
            return forwarded;
        }
        let lines = headers.get_all(header::FORWARDED).iter().rev().filter_map(|line| line.to_str().ok());
        // Each proxy appends an element. Elements are read backwards, as long as they come from trusted proxies. Quotes are
        // ignored when splitting: host names have no commas, and a quote that a client left open must not hide later elements.
        for element in lines.flat_map(|line| line.rsplit(',')) {
            let pair = |name: &str| {
                let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
                let (_, value) = pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case(name))?;
                Some(value.trim().trim_matches('"'))
            };
            forwarded.host = pair("host").and_then(Authority::parse);
            forwarded.https = pair("proto").is_some_and(|proto| proto.eq_ignore_ascii_case("https"));
            if !pair("for").and_then(node).is_some_and(|client| self.trusts(client)) {
                break;
            }
        }
        forwarded
    }
}

/// Forwarded headers of a trusted proxy (`Forwarded`, `X-Forwarded-*`).
#[derive(Default)]
pub(crate) struct Forwarded {
    /// Host that the client requested.
    pub(crate) host: Option<Authority>,
    /// Port that the client requested, if `host` has none.
    pub(crate) port: Option<u16>,
    /// The client's connection uses TLS.
    pub(crate) https: bool,
    prefix: String,
    /// The request has a forwarded header: the peer did not send it on its own behalf.
    pub(crate) by_proxy: bool,
}

/// Host of a URL with an optional port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authority {
    host: String,
    port: Option<u16>,
}

impl Authority {
    /// Parses an IP address or a DNS name, with or without a port. Returns `None` if clients can't connect to it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        /// Maximum length of a DNS name in bytes.
        const MAX_NAME: usize = 253;
        let authority: uri::Authority = text.parse().ok()?;
        let host = authority.host();
        // Rejects a user before the host, which could pass for the host.
        let port = match authority.as_str().strip_prefix(host)? {
            "" => None,
            rest => Some(parse_port(rest.strip_prefix(':')?)?),
        };
        let host = if let Some(addr) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            connectable_host(IpAddr::V6(addr.parse().ok()?))
        } else if let Ok(addr) = host.parse::<Ipv4Addr>() {
            connectable_host(IpAddr::V4(addr))
        } else {
            let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            let is_name = (1..=MAX_NAME).contains(&host.len()) && host.bytes().all(is_allowed);
            is_name.then(|| host.to_owned())?
        };
        Some(Self { host, port })
    }

    pub(crate) fn has_port(&self) -> bool {
        self.port.is_some()
    }
}

conversions! { Authority: addr: SocketAddr => Self { host: connectable_host(addr.ip()), port: Some(addr.port()) }; }

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Formats an address for a URL. Clients can't connect to an unspecified address (`0.0.0.0`, `::`): a client that requested
/// one is on this machine, so it becomes the loopback address.
fn connectable_host(addr: IpAddr) -> String {
    match addr.to_canonical() {
        IpAddr::V4(addr) if addr.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        IpAddr::V4(addr) => addr.to_string(),
        IpAddr::V6(addr) if addr.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
        IpAddr::V6(addr) => format!("[{addr}]"),
    }
}

/// Parses a port other than 0, without a sign.
fn parse_port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| is_number && *port != 0)
}

/// Parses the address of a node in `Forwarded` or `X-Forwarded-For`, with or without a port (RFC 7239, 6).
pub(crate) fn node(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|addr| addr.ip()))
}

/// Parses a path prefix, and removes its trailing slash. `None` if it is not a plain path.
fn parse_prefix(text: &str) -> Option<String> {
    let path: PathAndQuery = text.parse().ok()?;
    let is_plain = text.starts_with('/') && !text.starts_with("//") && path.as_str() == text && path.query().is_none();
    is_plain.then(|| text.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
        lines.iter().map(line).collect()
    }

    fn url(address: &Address, peer: &str, lines: &[(&'static str, &str)]) -> Option<String> {
        let headers = headers(lines);
        let host = headers.get("host").and_then(|host| host.to_str().ok());
        let peer = Some(peer.parse().unwrap());
        let request = RequestOrigin { prefix: "/echo", host, peer, ..RequestOrigin::at("", &headers) };
        address.of(&request)
    }

    #[test]
    fn forwarded_headers_count_only_from_trusted_proxies() {
        let mut address = Address { trusted: vec!["10.0.0.0/8".parse().unwrap()], ..Address::default() };
        let proxied = [("host", "up:1"), ("x-forwarded-host", "a.example"), ("x-forwarded-proto", "https")];
        assert_eq!(url(&address, "10.0.0.1", &proxied).unwrap(), "https://a.example/echo");
        assert_eq!(url(&address, "192.0.2.1", &proxied).unwrap(), "http://up:1/echo");
        assert_eq!(url(&address, "192.0.2.1", &[]), None);
        address.bound = Some("[::]:80".parse().unwrap());
        assert_eq!(url(&address, "192.0.2.1", &[]).unwrap(), "http://[::1]:80/echo");
        assert_eq!(url(&address, "192.0.2.1", &[("host", "no host")]).unwrap(), "http://[::1]:80/echo");
        address.public = Some("https://public.example".to_owned());
        assert_eq!(url(&address, "10.0.0.1", &proxied).unwrap(), "https://public.example");
    }

    #[test]
    fn forwarded_headers_of_a_trusted_proxy_set_the_url() {
        let address = Address { trusted: vec!["10.0.0.0/8".parse().unwrap()], ..Address::default() };
        let url = |lines: &[(&'static str, &str)]| url(&address, "10.0.0.1", lines).unwrap();
        for (lines, expected) in [
            (&[("host", "h"), ("x-forwarded-proto", "HTTPS"), ("x-forwarded-port", "443")][..], "https://h"),
            (&[("host", "h"), ("x-forwarded-proto", "https"), ("x-forwarded-port", "8443")], "https://h:8443"),
            (&[("host", "h:1"), ("x-forwarded-port", "8443")], "http://h:1"),
            (&[("host", "h"), ("x-forwarded-prefix", "/a/b/")], "http://h/a/b"),
            (&[("host", "h"), ("x-forwarded-prefix", "//evil/a")], "http://h"),
            (&[("host", "h"), ("x-forwarded-prefix", "/a?b")], "http://h"),
            (&[("host", "h"), ("x-forwarded-host", "evil, a")], "http://a"),
            (&[("host", "h"), ("x-forwarded-host", "a b")], "http://h"),
            (&[("host", "h"), ("forwarded", "for=1.1.1.1;Proto=https;host=\"a:1\"")], "https://a:1"),
            // The element of the nearest proxy, and that of the proxy before it if it is trusted too.
            (&[("host", "h"), ("forwarded", "host=evil, for=1.1.1.1;host=a")], "http://a"),
            (
                &[("host", "h"), ("forwarded", "host=evil,for=1.1.1.1;host=b;proto=https,for=\"10.0.0.2:5\";host=a")],
                "https://b",
            ),
            (&[("host", "h"), ("forwarded", "for=\"x"), ("forwarded", "for=1.1.1.1;host=a")], "http://a"),
            // Forged by the client, and passed on by a proxy that sets `X-Forwarded-*`.
            (&[("host", "h"), ("x-forwarded-proto", "https"), ("forwarded", "host=evil")], "https://h"),
        ] {
            assert_eq!(url(lines), format!("{expected}/echo"), "{lines:?}");
        }
    }

    #[test]
    fn authorities_that_clients_cannot_connect_to_are_rejected() {
        let host = |text| Authority::parse(text).map(|authority| authority.to_string());
        for text in ["a.example", "a.example:8080", "127.0.0.1:1", "[::1]", "[2001:db8::1]:443", "my_host"] {
            assert_eq!(host(text).as_deref(), Some(text));
        }
        assert_eq!(host("0.0.0.0:8080").unwrap(), "127.0.0.1:8080");
        assert_eq!(host("[::]:8080").unwrap(), "[::1]:8080");
        let long = "a".repeat(254);
        let invalid = [
            "", ":80", "a:", "a:0", "a:65536", "a:+1", "a/b", "user@a", "a b", "a\"b", "[::1", "[a]", "::1", "*", &long,
        ];
        for text in invalid {
            assert_eq!(host(text), None, "{text}");
        }
    }

    #[test]
    fn forwarded_nodes_are_addresses_with_optional_ports() {
        for (text, addr) in [("1.2.3.4", "1.2.3.4"), ("1.2.3.4:5", "1.2.3.4"), ("[::1]", "::1"), ("[::1]:5", "::1")] {
            assert_eq!(node(text), addr.parse().ok(), "{text}");
        }
        assert_eq!((node("unknown"), node("_hidden")), (None, None));
    }
}
