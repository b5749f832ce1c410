//! Host and origin checks: protection of a server against DNS rebinding and cross-site requests from web pages.
//!
//! A page in a browser can send requests to any address that the browser reaches, including loopback addresses. It can't set
//! `Host`, `Origin` and `Sec-Fetch-*`, on which the checks rely. Other programs can send any headers, so the checks do not
//! protect against them.

use std::{collections::BTreeSet, fmt, net::SocketAddr, str::FromStr};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header, request::Parts};

use super::framing::{RequestHead, SEC_FETCH_SITE};
use crate::{
    base::network::is_public,
    protocol::error::{Error, ErrorKind},
    service::card::{Address, CardTemplate, Forwarded},
    transport::{RequestClass, brief, peer},
};

const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");

/// Maximum length of a host name in bytes (RFC 1035, section 2.3.4).
const MAX_HOST: usize = 253;

/// Host that requests may name: `agent.example`, with any port; `agent.example:8080`; `*.agent.example`, for each subdomain;
/// or `*`, for every host, which disables the check.
///
/// ```
/// use a2a_service::transport::AllowedHost;
///
/// let host: AllowedHost = "*.Agent.example".parse().unwrap();
/// assert_eq!(host.to_string(), "*.agent.example");
/// assert!("https://agent.example".parse::<AllowedHost>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost(HostPattern);

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    Any,
    /// Begins with a dot.
    Suffix(String),
    Host(Host),
}

/// Host of a request in lower case, without the dot that ends a fully qualified name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    name: String,
    port: Option<u16>,
}

impl Host {
    fn parse(text: &str) -> Option<Self> {
        let (name, port) = split_port(text)?;
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        let is_host = is_ip(name) || ((1..=MAX_HOST).contains(&name.len()) && name.bytes().all(is_allowed));
        is_host.then(|| Self { name: name.to_ascii_lowercase(), port })
    }

    /// Returns true for hosts that are safe against DNS rebinding: IP addresses, and names that resolvers map to loopback
    /// addresses (RFC 6761, 6.3).
    fn is_address_or_loopback(&self) -> bool {
        is_ip(&self.name) || self.name == "localhost" || self.name.ends_with(".localhost")
    }
}

/// Splits `host`, `host:port` or `[address]:port`.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    match port {
        None => Some((name, None)),
        Some(port) if is_number(port) => Some((name, Some(port.parse().ok()?))),
        Some(_) => None,
    }
}

/// Returns true if a host is an IPv4 address, or an IPv6 address in brackets, with or without a zone.
fn is_ip(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        let address = address.split_once('%').map_or(address, |(address, _)| address);
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    host.parse::<std::net::Ipv4Addr>().is_ok()
}

impl AllowedHost {
    fn permits(&self, host: &Host) -> bool {
        match &self.0 {
            HostPattern::Any => true,
            HostPattern::Suffix(suffix) => host.name.ends_with(suffix),
            HostPattern::Host(Host { name, port }) => *name == host.name && (port.is_none() || *port == host.port),
        }
    }
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let text = brief(text);
            format!("`{text}` is not a host; write agent.example, agent.example:8080, *.agent.example or *")
        };
        if text == "*" {
            return Ok(Self(HostPattern::Any));
        }
        let pattern = match text.strip_prefix("*.") {
            Some(name) => match Host::parse(name) {
                Some(Host { name, port: None }) if !is_ip(&name) => HostPattern::Suffix(format!(".{name}")),
                _ => return Err(wrong()),
            },
            None => HostPattern::Host(Host::parse(text).ok_or_else(wrong)?),
        };
        Ok(Self(pattern))
    }
}

impl fmt::Display for AllowedHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            HostPattern::Any => f.write_str("*"),
            HostPattern::Suffix(suffix) => write!(f, "*{suffix}"),
            HostPattern::Host(Host { name, port: None }) => f.write_str(name),
            HostPattern::Host(Host { name, port: Some(port) }) => write!(f, "{name}:{port}"),
        }
    }
}

/// Origin of web pages that may call the server: `https://app.example`, `http://localhost:3000`, or `*`, for every origin,
/// which disables the check.
///
/// ```
/// use a2a_service::transport::AllowedOrigin;
///
/// let origin: AllowedOrigin = "HTTPS://App.example:443".parse().unwrap();
/// assert_eq!(origin.to_string(), "https://app.example");
/// assert!("null".parse::<AllowedOrigin>().is_err() && "https://app.example/".parse::<AllowedOrigin>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedOrigin(Option<Origin>);

/// Scheme, host and port, as a browser serializes them (RFC 6454, 6.2): in lower case, without the default port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Origin(String);

impl Origin {
    /// Returns `None` for `null` and for invalid origins.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        if scheme.is_empty() || !scheme.bytes().all(is_allowed) {
            return None;
        }
        let Host { name, port } = Host::parse(authority)?;
        let scheme = scheme.to_ascii_lowercase();
        let default_port = match &*scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        Some(Self(match port.filter(|port| Some(*port) != default_port) {
            Some(port) => format!("{scheme}://{name}:{port}"),
            None => format!("{scheme}://{name}"),
        }))
    }
}

impl FromStr for AllowedOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self(None));
        }
        let wrong = || format!("`{}` is not an origin; write https://app.example, without a path, or *", brief(text));
        Origin::parse(text).map(|origin| Self(Some(origin))).ok_or_else(wrong)
    }
}

impl fmt::Display for AllowedOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_ref().map_or("*", |origin| &origin.0))
    }
}

/// Hosts and origins that a server accepts.
#[derive(Clone, Debug)]
pub(crate) struct OriginPolicy {
    /// From `allowed_hosts` and `public_url`.
    hosts: Vec<AllowedHost>,
    /// The host is checked on every listen address, not only on a loopback address.
    checks_all_addresses: bool,
    /// From `cors_origins`.
    origins: BTreeSet<Origin>,
    any_origin: bool,
    /// Origin of `public_url`.
    public: Option<Origin>,
    address: Address,
}

impl OriginPolicy {
    pub(crate) fn new(card: &CardTemplate, hosts: Vec<AllowedHost>, origins: Vec<AllowedOrigin>) -> Self {
        let checks_all_addresses = !hosts.is_empty();
        let address = card.address().clone();
        let public = address.public.as_deref().and_then(|url| url.parse::<http::Uri>().ok());
        let named = public.as_ref().and_then(http::Uri::host).and_then(|host| host.parse().ok());
        let any_origin = origins.iter().any(|origin| origin.0.is_none());
        Self {
            hosts: hosts.into_iter().chain(named).collect(),
            checks_all_addresses,
            origins: origins.into_iter().filter_map(|origin| origin.0).collect(),
            any_origin,
            public: public.and_then(|url| origin(url.scheme_str()?, url.authority()?.as_str())),
            address,
        }
    }

    /// Checks a request. `bound`: its listen address, if known.
    ///
    /// # Errors
    /// The host or the origin is not allowed.
    pub(crate) fn check(
        &self,
        class: RequestClass,
        parts: &Parts,
        head: &RequestHead,
        bound: Option<SocketAddr>,
    ) -> Result<(), Error> {
        let peer = peer(parts).map(|peer| peer.ip());
        let forwarded = peer.and_then(|peer| self.address.forwarded_by(peer, &parts.headers));
        let is_loopback = bound.is_some_and(|addr| !is_public(addr));
        if (self.checks_all_addresses || is_loopback)
            && forwarded.as_ref().is_none_or(|forwarded| !forwarded.by_proxy)
            && !class.kind.is_health(parts.uri.path())
        {
            self.check_hosts(parts)?;
        }
        // The card, the key set and health checks are public.
        if !head.names_page || class.is_public(parts) {
            return Ok(());
        }
        self.check_origin(class, parts, forwarded.as_ref(), bound.is_some())
    }

    /// Rejects a host that may come from DNS rebinding. The authority of the request target takes precedence over
    /// `Host` (RFC 9112, 3.2.2); if both are present, both are checked. Browsers never send a request without either.
    fn check_hosts(&self, parts: &Parts) -> Result<(), Error> {
        for text in hosts(parts) {
            let is_permitted =
                |host: Host| host.is_address_or_loopback() || self.hosts.iter().any(|allowed| allowed.permits(&host));
            // Fast path without an allocation.
            let is_usual = |text| split_port(text).is_some_and(|(name, _)| name == "localhost" || is_ip(name));
            let is_known = text.is_some_and(|text| is_usual(text) || Host::parse(text).is_some_and(is_permitted));
            if !is_known && text != Some("") {
                let host = brief(text.unwrap_or("?"));
                let reason = format!("host: `{host}` is not a name of this server; set public_url or allowed_hosts");
                return Err(ErrorKind::Misdirected.because(reason).with("setting", "allowed_hosts"));
            }
        }
        Ok(())
    }

    /// Rejects requests from pages of other origins, except navigation: the page that links to a document can't read it. The
    /// operator API is for the server's own pages only.
    fn check_origin(
        &self,
        class: RequestClass,
        parts: &Parts,
        forwarded: Option<&Forwarded>,
        bound: bool,
    ) -> Result<(), Error> {
        let is_exempt = !class.is_operator() && (self.any_origin || is_navigation(parts));
        let (origins, site) = (parts.headers.get_all(header::ORIGIN), parts.headers.get(SEC_FETCH_SITE));
        let is_cross_origin = site.is_some_and(|site| matches!(site.as_bytes(), b"cross-site" | b"same-site"));
        if is_exempt || (origins.iter().next().is_none() && !is_cross_origin) {
            return Ok(());
        }
        let rejected = |origin: &str| {
            if class.is_operator() {
                let reason = format!("origin: {origin} may not use the operator API, which is for this server's pages");
                return Err(ErrorKind::ForeignOrigin.because(reason));
            }
            let reason = format!("origin: {origin} may not call this server; add it to cors_origins");
            Err(ErrorKind::ForeignOrigin.because(reason).with("setting", "cors_origins"))
        };
        let mut is_allowed = false;
        for value in origins {
            let text = value.to_str().unwrap_or("?");
            let origin = Origin::parse(text);
            is_allowed = !class.is_operator() && origin.as_ref().is_some_and(|origin| self.origins.contains(origin));
            let is_own = || origin.as_ref().is_some_and(|origin| self.is_own(origin, parts, forwarded, bound));
            if !is_allowed && (is_cross_origin || !is_own()) {
                return rejected(&format!("`{}`", brief(text)));
            }
        }
        if is_cross_origin && !is_allowed { rejected("a page of another origin") } else { Ok(()) }
    }

    /// Returns true if this is the origin of the server itself: `public_url`, or the host of the request. A mounted
    /// router can't know whether TLS is terminated in front of it.
    fn is_own(&self, origin: &Origin, parts: &Parts, forwarded: Option<&Forwarded>, bound: bool) -> bool {
        if self.public.as_ref() == Some(origin) {
            return true;
        }
        if let Some(Forwarded { host: Some(host), port, https, .. }) = forwarded {
            let port = if host.has_port() { None } else { *port };
            let port = port.map_or_else(String::new, |port| format!(":{port}"));
            let scheme = if *https || self.address.is_tls { "https" } else { "http" };
            return self::origin(scheme, &format!("{host}{port}")).as_ref() == Some(origin);
        }
        let over_tls = self.address.is_tls || forwarded.is_some_and(|forwarded| forwarded.https);
        let target_scheme = if parts.version >= Version::HTTP_2 { parts.uri.scheme_str() } else { None };
        let schemes = match (over_tls, bound) {
            (true, _) => &["https"][..],
            (false, true) => &["http"],
            (false, false) => &["http", "https"],
        };
        let host = hosts(parts).next().flatten();
        let mut schemes = schemes.iter().copied().chain(target_scheme);
        host.is_some_and(|host| schemes.any(|scheme| self::origin(scheme, host).as_ref() == Some(origin)))
    }

    /// Returns the value of `Access-Control-Allow-Origin` for a page of an allowed origin.
    pub(crate) fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.any_origin {
            return Some(HeaderValue::from_static("*"));
        }
        let value = headers.get(header::ORIGIN)?;
        let origin = Origin::parse(value.to_str().ok()?)?;
        self.origins.contains(&origin).then(|| value.clone())
    }

    /// Returns true if responses depend on `Origin`.
    pub(crate) fn varies_by_origin(&self) -> bool {
        !self.any_origin && !self.origins.is_empty()
    }
}

/// Returns the hosts that a request names; `None` for one that is not ASCII.
fn hosts(parts: &Parts) -> impl Iterator<Item = Option<&str>> {
    let target = parts.uri.authority().map(|authority| Some(authority.as_str()));
    target.into_iter().chain(parts.headers.get_all(header::HOST).into_iter().map(|host| host.to_str().ok()))
}

fn origin(scheme: &str, authority: &str) -> Option<Origin> {
    Origin::parse(&format!("{scheme}://{authority}"))
}

/// Returns true for navigation to a document. The page that links to it can't read it, and a GET changes nothing. Streams are
/// not documents.
fn is_navigation(parts: &Parts) -> bool {
    let is_document = matches!(parts.method, Method::GET | Method::HEAD) && !parts.uri.path().ends_with(":subscribe");
    is_document && parts.headers.get(SEC_FETCH_MODE).is_some_and(|mode| mode == "navigate")
}

#[cfg(test)]
mod tests {
    use axum::extract::ConnectInfo;

    use super::*;
    use crate::protocol::{pb::v1::AgentCard, version::Protocols};

    fn check(policy: &OriginPolicy, parts: &Parts, bound: Option<SocketAddr>) -> Result<(), Error> {
        policy.check(RequestClass::new(parts, Protocols::default()), parts, &RequestHead::of(parts), bound)
    }

    fn request(lines: &[(&'static str, &'static str)]) -> Parts {
        let mut request = http::Request::builder().method("POST").uri("/message:send");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn policy(card: &CardTemplate, hosts: &[&str], origins: &[&str]) -> OriginPolicy {
        let hosts = hosts.iter().map(|host| host.parse().unwrap()).collect();
        OriginPolicy::new(card, hosts, origins.iter().map(|origin| origin.parse().unwrap()).collect())
    }

    fn card() -> CardTemplate {
        CardTemplate::new(AgentCard::default())
    }

    #[test]
    fn hosts_are_ip_addresses_loopback_names_or_configured() {
        let policy =
            policy(&card().url("https://public.example/a"), &["a.example", "b.example:81", "*.c.example"], &[]);
        let check = |host| policy.check_hosts(&request(&[("host", host)]));
        for host in [
            "127.0.0.1:8080",
            "192.0.2.1",
            "127.0.0.1.",
            "[::1]:8080",
            "[2001:db8::1]",
            "[fe80::1%25eth0]:1",
            "0.0.0.0:1",
            "localhost",
            "LOCALHOST:8080",
            "localhost.:1",
            "a.localhost",
            "a.example",
            "A.Example:9",
            "a.example.",
            "b.example:81",
            "x.c.example",
            "public.example:443",
            "public.example",
            "",
        ] {
            assert!(check(host).is_ok(), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "xlocalhost",
            "b.example",
            "c.example",
            "b.example:82",
            "localhost@evil.example",
            "evil.example@localhost",
            "[evil.example]",
            "::1",
            "a b",
            "a:b",
            "localhost/",
            "1:2:3",
        ] {
            assert_eq!(check(host).map_err(|error| error.kind()), Err(ErrorKind::Misdirected), "{host}");
        }
        let error = check("evil.example").unwrap_err().to_string();
        assert!(error.contains("allowed_hosts") && error.contains("evil.example"), "{error}");
    }

    #[test]
    fn host_is_checked_on_loopback_addresses_or_with_allowed_hosts() {
        let foreign = request(&[("host", "evil.example")]);
        let [loopback, any] = ["[::1]:80", "0.0.0.0:80"].map(|addr| addr.parse().ok());
        let (open, named) = (policy(&card(), &[], &[]), policy(&card(), &["a.example"], &[]));
        assert!(check(&open, &foreign, loopback).is_err());
        assert!(check(&open, &foreign, any).is_ok() && check(&open, &foreign, None).is_ok());
        for bound in [loopback, any, None] {
            assert!(check(&named, &foreign, bound).is_err());
            assert!(check(&policy(&card(), &["*"], &[]), &foreign, bound).is_ok());
        }
    }

    #[test]
    fn authority_of_target_and_host_are_both_checked() {
        let policy = policy(&card(), &[], &[]);
        for (target, host, allowed) in [
            ("http://localhost:1/tasks", "127.0.0.1", true),
            ("http://evil.example/tasks", "127.0.0.1", false),
            ("http://127.0.0.1/tasks", "evil.example", false),
        ] {
            let (mut parts, ()) = http::Request::builder().uri(target).body(()).unwrap().into_parts();
            parts.headers.insert(header::HOST, host.parse().unwrap());
            assert_eq!(policy.check_hosts(&parts).is_ok(), allowed, "{target} {host}");
        }
    }

    #[test]
    fn own_and_allowed_origins_are_accepted() {
        let policy = policy(&card().url("https://public.example"), &[], &["https://app.example", "http://[::1]:3000"]);
        let bound = "127.0.0.1:8080".parse().ok();
        let check = |lines: &[(&'static str, &'static str)]| {
            let lines = [&[("host", "127.0.0.1:8080")], lines].concat();
            check(&policy, &request(&lines), bound).map_err(|error| error.kind())
        };
        for origin in [
            "http://127.0.0.1:8080",
            "https://public.example",
            "https://public.example:443",
            "https://app.example",
            "HTTPS://APP.example",
            "http://[::1]:3000",
        ] {
            assert_eq!(check(&[("origin", origin)]), Ok(()), "{origin}");
        }
        for origin in [
            "null",
            "",
            "https://127.0.0.1:8080",
            "http://127.0.0.1",
            "http://127.0.0.1:8081",
            "http://localhost:8080",
            "http://public.example",
            "https://evil.example",
            "http://app.example",
            "https://app.example/",
            "*",
        ] {
            assert_eq!(check(&[("origin", origin)]), Err(ErrorKind::ForeignOrigin), "{origin}");
        }
        for (site, allowed) in [("same-origin", true), ("none", true), ("same-site", false), ("cross-site", false)] {
            let site = ("sec-fetch-site", site);
            let expected = if allowed { Ok(()) } else { Err(ErrorKind::ForeignOrigin) };
            assert_eq!((check(&[site]), check(&[site, ("origin", "https://app.example")])), (expected, Ok(())));
        }
        let both = [("origin", "https://app.example"), ("origin", "https://evil.example")];
        assert_eq!(check(&both), Err(ErrorKind::ForeignOrigin));
    }

    #[test]
    fn mounted_router_accepts_https_origin_of_its_host() {
        let policy = policy(&card(), &[], &[]);
        let of = |origin| request(&[("host", "a.example"), ("origin", origin)]);
        assert!(check(&policy, &of("https://a.example"), None).is_ok());
        assert!(check(&policy, &of("https://a.example"), "192.0.2.1:80".parse().ok()).is_err());
        assert!(check(&policy, &of("https://a.example:8443"), None).is_err());
    }

    #[test]
    fn forwarded_host_of_trusted_proxy_is_used() {
        let policy = policy(&card().trusted_proxies(["10.0.0.0/8".parse().unwrap()]), &[], &[]);
        let check = |peer: &str, lines: &[(&'static str, &'static str)]| {
            let mut parts = request(&[&[("host", "up.internal:1")], lines].concat());
            parts.extensions.insert(ConnectInfo(SocketAddr::new(peer.parse().unwrap(), 1)));
            check(&policy, &parts, "127.0.0.1:8080".parse().ok()).is_ok()
        };
        let forwarded =
            [("x-forwarded-host", "a.example"), ("x-forwarded-proto", "https"), ("origin", "https://a.example")];
        assert!(check("10.0.0.1", &forwarded) && !check("192.0.2.1", &forwarded));
        assert!(check("10.0.0.1", &[("x-forwarded-for", "192.0.2.1")]) && !check("10.0.0.1", &[]));
        assert!(check("10.0.0.1", &[("forwarded", "for=192.0.2.1;host=a.example")]));
        let other = [("x-forwarded-host", "a.example"), ("origin", "https://a.example")];
        assert!(!check("10.0.0.1", &other), "the proxy did not forward https");
        let ported = [("forwarded", "for=192.0.2.1;proto=https;host=\"a.example:8443\"")];
        assert!(check("10.0.0.1", &[&ported[..], &[("origin", "https://a.example:8443")]].concat()));
    }
}
