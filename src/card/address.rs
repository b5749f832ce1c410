//! Where a server is reached, as far as it can know: what its operator says, what a proxy that is trusted says, what
//! the client asked for, and last what it is bound to.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use http::{
    HeaderMap, HeaderName, header,
    uri::{self, PathAndQuery},
};

use super::Network;
use crate::transport::CardRequest;

/// The host that a proxy was asked for.
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// The port that a proxy was asked at.
pub(crate) const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
/// The address of the client of a proxy.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// What a proxy takes off the path.
pub(crate) const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
/// `https`, where a proxy ends TLS.
pub(crate) const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// What is known of it before anybody asks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Address {
    /// What the operator says, without a slash at its end.
    pub(crate) public: Option<String>,
    /// Those who are believed what they say of the client.
    pub(super) trusted: Vec<Network>,
    /// What the server listens on.
    pub(super) bound: Option<SocketAddr>,
}

impl Address {
    /// The path of the public URL, if it has one.
    pub(crate) fn path(&self) -> Option<&str> {
        let (_, rest) = self.public.as_deref()?.split_once("://")?;
        rest.find('/').map(|at| &rest[at..])
    }

    /// The URL at which the sender of this request reaches the server; none where nothing tells.
    pub(super) fn of(&self, request: &CardRequest<'_>) -> Option<String> {
        if let Some(public) = &self.public {
            return Some(public.clone());
        }
        let (said, host) = self.asked(request);
        let authority = host.or_else(|| self.bound.map(Authority::from))?;
        let (scheme, usual) = if said.https { ("https", 443) } else { ("http", 80) };
        // A port in the name is the more exact one: it is the client's own.
        let port = authority.port.or(said.port.filter(|it| *it != usual));
        let authority = Authority { port, ..authority };
        Some(format!("{scheme}://{authority}{}{}", said.prefix, request.prefix))
    }

    /// What the sender of this request asked for, whatever the server is called.
    pub(super) fn host(&self, request: &CardRequest<'_>) -> Option<Authority> {
        self.asked(request).1
    }

    fn asked(&self, request: &CardRequest<'_>) -> (Forwarded, Option<Authority>) {
        let forwarded = request.peer.and_then(|it| self.forwarded_by(it, request.headers));
        let host = if forwarded.is_some() { request.target.or(request.host) } else { request.host };
        let mut said = forwarded.unwrap_or_default();
        let host = said.host.take().or_else(|| host.and_then(Authority::parse));
        (said, host)
    }

    /// Returns the forwarded headers of a request. `None` if the peer is not a trusted proxy.
    pub(crate) fn forwarded_by(&self, peer: IpAddr, headers: &HeaderMap) -> Option<Forwarded> {
        self.trusts(peer).then(|| self.forwarded(headers))
    }

    fn trusts(&self, addr: IpAddr) -> bool {
        self.trusted.iter().any(|it| it.contains(addr))
    }

    /// What proxies say. `Forwarded` counts only where the other headers say nothing: most proxies set those, and let
    /// through a `Forwarded` that the client made up.
    fn forwarded(&self, headers: &HeaderMap) -> Forwarded {
        // The last value is that of the proxy that we talk to; what stands before it came from outside.
        let last = |name| {
            let line = headers.get_all(name).iter().next_back()?.to_str().ok()?;
            line.rsplit(',').next().map(str::trim)
        };
        let prefix = last(FORWARDED_PREFIX).and_then(path).unwrap_or_default();
        let by_proxy = [FORWARDED_HOST, FORWARDED_PORT, FORWARDED_PROTO, FORWARDED_FOR, header::FORWARDED];
        let by_proxy = by_proxy.iter().any(|it| headers.contains_key(it));
        let mut said = Forwarded { prefix, by_proxy, ..Forwarded::default() };
        let (host, port, proto) = (last(FORWARDED_HOST), last(FORWARDED_PORT), last(FORWARDED_PROTO));
        if host.or(port).or(proto).is_some() {
            said.host = host.and_then(Authority::parse);
            said.port = port.and_then(number);
            said.https = proto.is_some_and(|it| it.eq_ignore_ascii_case("https"));
            return said;
        }
        let lines = headers.get_all(header::FORWARDED).iter().rev().filter_map(|it| it.to_str().ok());
        // Each proxy adds what it saw to the end, and so it is read from there, as far as the proxies are trusted.
        // A comma in quotes would be no name of a host, and one that a client left open must not hide what follows it.
        for element in lines.flat_map(|it| it.rsplit(',')) {
            let pair = |name: &str| {
                let mut pairs = element.split(';').filter_map(|it| it.split_once('='));
                let (_, value) = pairs.find(|it| it.0.trim().eq_ignore_ascii_case(name))?;
                Some(value.trim().trim_matches('"'))
            };
            said.host = pair("host").and_then(Authority::parse);
            said.https = pair("proto").is_some_and(|it| it.eq_ignore_ascii_case("https"));
            if !pair("for").and_then(node).is_some_and(|it| self.trusts(it)) {
                break;
            }
        }
        said
    }
}

/// Forwarded headers of a trusted proxy (`Forwarded`, `X-Forwarded-*`).
#[derive(Default)]
pub(crate) struct Forwarded {
    /// The host that the client asked for.
    pub(crate) host: Option<Authority>,
    /// The port that the client asked at, where the host has none.
    pub(crate) port: Option<u16>,
    /// The client came over TLS.
    pub(crate) https: bool,
    prefix: String,
    /// A header shows that the request was forwarded, rather than sent by the peer itself.
    pub(crate) by_proxy: bool,
}

/// A host, and perhaps a port, that can stand in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authority {
    host: String,
    port: Option<u16>,
}

impl Authority {
    /// What a client or a proxy says, if it can be connected to: an address or a name, with or without a port.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        /// The longest name of DNS.
        const LONGEST: usize = 253;
        let whole: uri::Authority = text.parse().ok()?;
        let host = whole.host();
        // A user before the host makes another host of what looks like one.
        let port = match whole.as_str().strip_prefix(host)? {
            "" => None,
            rest => Some(number(rest.strip_prefix(':')?)?),
        };
        let host = if let Some(it) = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            reachable(IpAddr::V6(it.parse().ok()?))
        } else if let Ok(it) = host.parse::<Ipv4Addr>() {
            reachable(IpAddr::V4(it))
        } else {
            let named = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'-' | b'.' | b'_');
            let name = (1..=LONGEST).contains(&host.len()) && host.bytes().all(named);
            name.then(|| host.to_owned())?
        };
        Some(Self { host, port })
    }
}

impl Authority {
    /// The host alone.
    pub(super) fn name(&self) -> &str {
        &self.host
    }

    pub(crate) fn has_port(&self) -> bool {
        self.port.is_some()
    }
}

impl From<SocketAddr> for Authority {
    fn from(addr: SocketAddr) -> Self {
        Self { host: reachable(addr.ip()), port: Some(addr.port()) }
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        self.port.map_or(Ok(()), |it| write!(f, ":{it}"))
    }
}

/// An address as URLs have it. "Any" is one to listen on and not one to call: whoever is told it is on this machine.
fn reachable(addr: IpAddr) -> String {
    match addr.to_canonical() {
        IpAddr::V4(it) if it.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        IpAddr::V4(it) => it.to_string(),
        IpAddr::V6(it) if it.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
        IpAddr::V6(it) => format!("[{it}]"),
    }
}

/// A port that can be connected to.
fn number(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|it| it.is_ascii_digit());
    text.parse().ok().filter(|it| digits && *it != 0)
}

/// A node as `Forwarded` and `X-Forwarded-For` have it: an address, with or without a port.
pub(crate) fn node(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|it| it.ip()))
}

/// What a proxy took off the path, without a slash at its end.
fn path(text: &str) -> Option<String> {
    let whole: PathAndQuery = text.parse().ok()?;
    let plain = text.starts_with('/') && !text.starts_with("//") && whole.as_str() == text && whole.query().is_none();
    plain.then(|| text.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line = |it: &(&'static str, &str)| (HeaderName::from_static(it.0), it.1.parse().unwrap());
        lines.iter().map(line).collect()
    }

    fn of(address: &Address, peer: &str, lines: &[(&'static str, &str)]) -> Option<String> {
        let headers = headers(lines);
        let host = headers.get("host").and_then(|it| it.to_str().ok());
        let peer = Some(peer.parse().unwrap());
        let request =
            CardRequest { path: "", prefix: "/echo", host, target: None, peer, query: None, headers: &headers };
        address.of(&request)
    }

    #[test]
    fn who_is_believed() {
        let mut address = Address { trusted: vec!["10.0.0.0/8".parse().unwrap()], ..Address::default() };
        let proxied = [("host", "up:1"), ("x-forwarded-host", "a.example"), ("x-forwarded-proto", "https")];
        assert_eq!(of(&address, "10.0.0.1", &proxied).unwrap(), "https://a.example/echo");
        assert_eq!(of(&address, "192.0.2.1", &proxied).unwrap(), "http://up:1/echo");
        assert_eq!(of(&address, "192.0.2.1", &[]), None);
        address.bound = Some("[::]:80".parse().unwrap());
        assert_eq!(of(&address, "192.0.2.1", &[]).unwrap(), "http://[::1]:80/echo");
        assert_eq!(of(&address, "192.0.2.1", &[("host", "no host")]).unwrap(), "http://[::1]:80/echo");
        address.public = Some("https://public.example".to_owned());
        assert_eq!(of(&address, "10.0.0.1", &proxied).unwrap(), "https://public.example");
    }

    #[test]
    fn what_proxies_say() {
        let address = Address { trusted: vec!["10.0.0.0/8".parse().unwrap()], ..Address::default() };
        let url = |lines: &[(&'static str, &str)]| of(&address, "10.0.0.1", lines).unwrap();
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
            // The nearest proxy's word; and that of the one before it, where that one is trusted too.
            (&[("host", "h"), ("forwarded", "host=evil, for=1.1.1.1;host=a")], "http://a"),
            (
                &[("host", "h"), ("forwarded", "host=evil,for=1.1.1.1;host=b;proto=https,for=\"10.0.0.2:5\";host=a")],
                "https://b",
            ),
            (&[("host", "h"), ("forwarded", "for=\"x"), ("forwarded", "for=1.1.1.1;host=a")], "http://a"),
            // Made up by the client, and let through by a proxy that sets the other headers.
            (&[("host", "h"), ("x-forwarded-proto", "https"), ("forwarded", "host=evil")], "https://h"),
        ] {
            assert_eq!(url(lines), format!("{expected}/echo"), "{lines:?}");
        }
    }

    #[test]
    fn what_is_a_host() {
        let host = |text| Authority::parse(text).map(|it| it.to_string());
        for text in ["a.example", "a.example:8080", "127.0.0.1:1", "[::1]", "[2001:db8::1]:443", "my_host"] {
            assert_eq!(host(text).as_deref(), Some(text));
        }
        assert_eq!(host("0.0.0.0:8080").unwrap(), "127.0.0.1:8080");
        assert_eq!(host("[::]:8080").unwrap(), "[::1]:8080");
        let long = "a".repeat(254);
        let no_hosts = [
            "", ":80", "a:", "a:0", "a:65536", "a:+1", "a/b", "user@a", "a b", "a\"b", "[::1", "[a]", "::1", "*", &long,
        ];
        for text in no_hosts {
            assert_eq!(host(text), None, "{text}");
        }
    }

    #[test]
    fn who_was_before_a_proxy() {
        for (text, addr) in [("1.2.3.4", "1.2.3.4"), ("1.2.3.4:5", "1.2.3.4"), ("[::1]", "::1"), ("[::1]:5", "::1")] {
            assert_eq!(node(text), addr.parse().ok(), "{text}");
        }
        assert_eq!((node("unknown"), node("_hidden")), (None, None));
    }
}
