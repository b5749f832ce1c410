//! Limits per client address: open connections, or open requests of clients behind trusted proxies, and the rate of requests.

use std::{
    borrow::Cow,
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http::{HeaderMap, HeaderName, header};
use parking_lot::Mutex;

use crate::{
    base::network::network_of,
    protocol::{Error, ErrorKind, call::RateLimit},
    service::card::{Network, node},
};

/// Default of `limits.connections_per_peer`.
pub(crate) const CONNECTIONS_PER_PEER: usize = 256;

/// `X-Forwarded-For`: address of the client, and of the proxies in order.
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Delay after which a rejected client may retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of open connections per client address, and optionally of its requests per second, over all listeners that
/// share it.
///
/// Loopback addresses and trusted proxies have no limit of connections. Requests through a trusted proxy are counted for
/// the address that it forwards, as connections are. An IPv6 address counts as its /64 network, which is what one client
/// usually has.
#[derive(Clone, Debug)]
pub struct PeerLimit(Arc<Peers>);

#[derive(Debug)]
struct Peers {
    max: usize,
    trusted: Vec<Network>,
    /// Number of open connections or requests, of addresses that have any.
    open: Mutex<HashMap<IpAddr, usize>>,
    /// Maximum number of requests per second of an address. Zero: no limit.
    rate: u32,
    rates: RateLimit<IpAddr>,
}

impl Default for PeerLimit {
    fn default() -> Self {
        Self::new(CONNECTIONS_PER_PEER, 0, Vec::new())
    }
}

impl PeerLimit {
    /// Creates a limit of `max` connections and `rate` requests per second for each address, zero for none. Addresses
    /// forwarded by `trusted` proxies are used.
    pub fn new(max: usize, rate: u32, trusted: Vec<Network>) -> Self {
        Self(Arc::new(Peers { max, trusted, open: Mutex::default(), rate, rates: RateLimit::new(rate) }))
    }

    /// Counts a connection.
    ///
    /// # Errors
    /// `ResourceExhausted` if the address has reached the limit.
    pub(in crate::transport) fn connect(&self, peer: SocketAddr) -> Result<Option<PeerPermit>, Error> {
        self.count(peer.ip())
    }

    /// Counts a request against the rate of its client address, and as open if it came through a trusted proxy.
    ///
    /// # Errors
    /// `ResourceExhausted` if the client has reached a limit.
    pub(crate) fn request(&self, peer: Option<SocketAddr>, headers: &HeaderMap) -> Result<Option<PeerPermit>, Error> {
        if self.0.rates.is_limited()
            && let Some(client) = self.client(peer, headers)
        {
            self.count_rate(client)?;
        }
        match peer.filter(|peer| self.trusts(peer.ip())).and_then(|_| self.forwarded_client(headers)) {
            Some(client) => self.count(client),
            None => Ok(None),
        }
    }

    /// Returns the address of the client of a request: the forwarded one behind a trusted proxy.
    pub(crate) fn client(&self, peer: Option<SocketAddr>, headers: &HeaderMap) -> Option<IpAddr> {
        let addr = peer?.ip();
        let forwarded = if self.trusts(addr) { self.forwarded_client(headers) } else { None };
        Some(forwarded.unwrap_or(addr).to_canonical())
    }

    fn count_rate(&self, client: IpAddr) -> Result<(), Error> {
        self.0.rates.count(&network_of(client)).map_err(|wait| {
            let why = format!(
                "more than {} requests per second from one client address (limits.request_rate_per_peer)",
                self.0.rate
            );
            let error = ErrorKind::ResourceExhausted.because(why).limit("request_rate_per_peer");
            error.retry_after(wait)
        })
    }

    fn count(&self, addr: IpAddr) -> Result<Option<PeerPermit>, Error> {
        let (max, addr) = (self.0.max, addr.to_canonical());
        if max == 0 || addr.is_loopback() || self.trusts(addr) {
            return Ok(None);
        }
        let network = network_of(addr);
        let mut open = self.0.open.lock();
        let count = open.get(&network).copied().unwrap_or(0);
        if count >= max {
            let error = ErrorKind::ResourceExhausted.because(format!(
                "too many open connections or requests ({max}) from one client address; close some or retry later \
                 (limits.connections_per_peer)"
            ));
            return Err(error.limit("connections_per_peer").retry_after(RETRY_AFTER));
        }
        open.insert(network, count + 1);
        Ok(Some(PeerPermit { peers: Arc::clone(&self.0), network }))
    }

    /// Returns true for addresses of trusted proxies.
    pub(crate) fn trusts(&self, addr: IpAddr) -> bool {
        let addr = addr.to_canonical();
        self.0.trusted.iter().any(|network| network.contains(addr))
    }

    /// Returns the last forwarded address that is not a trusted proxy, the only one that the client cannot forge. `Forwarded`
    /// is used only without `X-Forwarded-For`, as for the host: most proxies set the latter, and pass on a `Forwarded` of the
    /// client unchanged.
    fn forwarded_client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        // Invalid UTF-8 from a client invalidates its own entry, and not the entries that proxies append.
        let lines = |name| headers.get_all(name).iter().rev().map(|value| String::from_utf8_lossy(value.as_bytes()));
        let untrusted = |node: Option<IpAddr>| match node {
            Some(addr) if self.trusts(addr) => None,
            // An entry without an address ends the search: the entries before it may be forged.
            node => Some(node),
        };
        if headers.contains_key(FORWARDED_FOR) {
            let nodes = |line: Cow<'_, str>| line.rsplit(',').map(|text| node(text.trim())).collect::<Vec<_>>();
            return lines(FORWARDED_FOR).flat_map(nodes).find_map(untrusted).flatten();
        }
        let nodes = |line: Cow<'_, str>| {
            let of_element = |element: &str| {
                let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
                let (_, value) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
                node(value.trim().trim_matches('"'))
            };
            line.rsplit(',').map(of_element).collect::<Vec<_>>()
        };
        lines(header::FORWARDED).flat_map(nodes).find_map(untrusted).flatten()
    }
}

/// Guard that counts a connection or a request until it is dropped.
#[derive(Debug)]
pub(crate) struct PeerPermit {
    peers: Arc<Peers>,
    network: IpAddr,
}

impl Drop for PeerPermit {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock();
        if let Some(count) = open.get_mut(&self.network) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn rate_of_requests_is_limited_by_the_address_of_the_client() {
        let limits = PeerLimit::new(0, 2, vec!["10.0.0.0/8".parse().unwrap()]);
        let request = |peer: &str, forwarded: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(FORWARDED_FOR, HeaderValue::from_str(forwarded).unwrap());
            limits.request(Some(SocketAddr::new(peer.parse().unwrap(), 1)), &headers).map(drop)
        };
        for peer in ["192.0.2.1", "127.0.0.1", "2001:db8::1"] {
            (0..2).for_each(|_| request(peer, "192.0.2.77").unwrap());
            let error = request(peer, "192.0.2.77").unwrap_err();
            assert_eq!((error.kind(), error.retry_after_seconds()), (ErrorKind::ResourceExhausted, Some(1)), "{error}");
        }
        // An untrusted peer can't forge its address; a proxy forwards those of its clients.
        request("2001:db8::2", "192.0.2.78").unwrap_err();
        for client in ["192.0.2.2", "192.0.2.3"] {
            (0..2).for_each(|_| request("10.1.2.3", client).unwrap());
            request("10.1.2.3", client).unwrap_err();
        }
    }

    fn limit(max: usize) -> PeerLimit {
        PeerLimit::new(max, 0, vec!["10.0.0.0/8".parse().unwrap()])
    }

    fn addr(ip: &str) -> SocketAddr {
        (ip.parse::<IpAddr>().unwrap(), 1).into()
    }

    #[test]
    fn connections_are_counted_by_address() {
        let peers = limit(2);
        let first = peers.connect(addr("192.0.2.1")).unwrap().unwrap();
        let _second = peers.connect(addr("::ffff:192.0.2.1")).unwrap().unwrap();
        let error = peers.connect(addr("192.0.2.1")).unwrap_err();
        assert_eq!((error.kind(), error.retry_after_seconds()), (ErrorKind::ResourceExhausted, Some(1)));
        assert!(error.to_string().contains("limits.connections_per_peer"), "{error}");
        assert!(peers.connect(addr("192.0.2.2")).is_ok());
        drop(first);
        assert!(peers.connect(addr("192.0.2.1")).is_ok());
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        let peers = limit(1);
        let _first = peers.connect(addr("2001:db8::1")).unwrap();
        assert!(peers.connect(addr("2001:db8::ffff:2")).is_err());
        assert!(peers.connect(addr("2001:db8:0:1::1")).is_ok());
    }

    #[test]
    fn loopback_and_proxies_have_no_limit() {
        let peers = limit(1);
        for ip in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.2.3"] {
            let permits: Vec<_> = (0..3).map(|_| peers.connect(addr(ip)).unwrap()).collect();
            assert!(permits.iter().all(Option::is_none), "{ip}");
        }
        let unlimited = limit(0);
        let permits: Vec<_> = (0..3).map(|_| unlimited.connect(addr("192.0.2.1")).unwrap()).collect();
        assert!(permits.iter().all(Option::is_none));
        drop(peers);
    }

    #[test]
    fn requests_through_proxies_are_counted_by_forwarded_address() {
        let lines = |lines: &[(&'static str, &str)]| -> HeaderMap {
            lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
        };
        let mut no_text = HeaderMap::new();
        no_text.insert(FORWARDED_FOR, HeaderValue::from_bytes(b"\xff, 192.0.2.1").unwrap());
        for (headers, client) in [
            (lines(&[("x-forwarded-for", "192.0.2.9, 192.0.2.1")]), Some("192.0.2.1")),
            (lines(&[("x-forwarded-for", "192.0.2.1:4711, 10.0.0.2")]), Some("192.0.2.1")),
            (lines(&[("x-forwarded-for", "192.0.2.1"), ("x-forwarded-for", "10.0.0.2")]), Some("192.0.2.1")),
            (lines(&[("x-forwarded-for", "192.0.2.1"), ("forwarded", "for=192.0.2.9")]), Some("192.0.2.1")),
            (lines(&[("forwarded", "for=192.0.2.9, for=\"[2001:db8::1]:4711\";host=a")]), Some("2001:db8::1")),
            (lines(&[("forwarded", "for=192.0.2.1, for=10.0.0.2;proto=https")]), Some("192.0.2.1")),
            (lines(&[("x-forwarded-for", "192.0.2.1, unknown")]), None),
            (lines(&[("x-forwarded-for", "10.0.0.2")]), None),
            (no_text, Some("192.0.2.1")),
            (lines(&[]), None),
        ] {
            let peers = limit(1);
            let client = client.map(|client| client.parse::<IpAddr>().unwrap());
            assert_eq!(peers.forwarded_client(&headers), client, "{headers:?}");
            let first = peers.request(Some(addr("10.0.0.1")), &headers).unwrap();
            assert_eq!(first.is_some(), client.is_some(), "{headers:?}");
            assert_eq!(peers.request(Some(addr("10.0.0.1")), &headers).is_err(), client.is_some(), "{headers:?}");
            // These headers are ignored from untrusted peers.
            assert!(peers.request(Some(addr("192.0.2.7")), &headers).unwrap().is_none());
            assert!(peers.request(None, &headers).unwrap().is_none());
        }
    }
}
