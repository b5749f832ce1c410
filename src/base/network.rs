//! IP networks in CIDR notation, for lists of trusted proxies, addresses that other machines reach, and hosts of this machine.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use ipnet::IpNet;
use serde::Deserialize;

/// IP network in CIDR notation (`10.0.0.0/8`, `fd00::/8`) or a single address.
///
/// ```
/// use a2a_service::card::Network;
///
/// let network: Network = "10.0.0.0/8".parse().unwrap();
/// assert!(network.contains("10.1.2.3".parse().unwrap()));
/// assert!("10.0.0.0/33".parse::<Network>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(IpNet);

impl Network {
    /// Returns true if an address is in the network. IPv4-mapped IPv6 addresses, such as those of peers of a dual-stack
    /// socket, count as IPv4.
    pub fn contains(&self, addr: IpAddr) -> bool {
        self.0.contains(&addr.to_canonical())
    }
}

/// Returns the network that an address is counted for in limits: the /64 of an IPv6 address.
pub(crate) fn network_of(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => addr,
        IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits() >> 64 << 64).into(),
    }
}

conversions! { Network: addr: IpAddr => Self(addr.to_canonical().into()); }

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // `ipnet` would read octets with leading zeros, which other programs read as octal numbers.
        let network = match text.split_once('/') {
            Some((addr, prefix)) => {
                addr.parse().ok().zip(prefix.parse().ok()).and_then(|(addr, prefix)| IpNet::new(addr, prefix).ok())
            }
            None => text.parse().ok().map(|addr: IpAddr| Self::from(addr).0),
        };
        network
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not an IP address or network; write 10.0.0.1 or 10.0.0.0/8"))
    }
}

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Returns true if an address is reachable from other machines.
pub(crate) fn is_public(addr: SocketAddr) -> bool {
    !addr.ip().to_canonical().is_loopback()
}

/// Returns true for a host of this machine: `localhost`, or a loopback address, which has brackets in a URL if it is of IPv6.
/// IPv4-mapped IPv6 addresses count as IPv4. Names below `localhost` do not count: some resolvers ask DNS for them.
pub(crate) fn is_loopback_host(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Returns true if secrets may be sent to a URL with this scheme and host: over TLS, or within this machine.
pub(crate) fn is_secure(scheme: &str, host: &str) -> bool {
    match scheme {
        "https" => !host.is_empty(),
        "http" => is_loopback_host(host),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_hosts_are_localhost_and_loopback_addresses() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.1.2.3", "::1", "[::1]", "[::ffff:127.0.0.1]"] {
            assert!(is_loopback_host(host) && is_secure("http", host), "{host}");
        }
        let others =
            ["", "a.localhost", "localhost.example", "128.0.0.1", "0.0.0.0", "[::]", "[::ffff:10.0.0.1]", "::2"];
        for host in others {
            assert!(!is_loopback_host(host) && !is_secure("http", host), "{host}");
        }
        assert!(is_secure("https", "agent.example") && !is_secure("https", "") && !is_secure("ftp", "localhost"));
    }

    #[test]
    fn networks_contain_the_addresses_with_their_prefix() {
        let inside = |network: &str, addr: &str| network.parse::<Network>().unwrap().contains(addr.parse().unwrap());
        for (network, addr) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1", "::ffff:127.0.0.1"),
            ("10.1.0.0/16", "10.1.255.255"),
            ("10.1.2.3/16", "10.1.0.0"),
            ("0.0.0.0/0", "255.255.255.255"),
            ("::/0", "fd00::1"),
            ("fd00::/8", "fdff::1"),
            ("::1", "::1"),
        ] {
            assert!(inside(network, addr), "{network} {addr}");
        }
        for (network, addr) in [
            ("127.0.0.1", "127.0.0.2"),
            ("10.1.0.0/16", "10.2.0.0"),
            ("0.0.0.0/0", "::1"),
            ("::/0", "10.0.0.1"),
            ("fd00::/8", "fe00::1"),
        ] {
            assert!(!inside(network, addr), "{network} {addr}");
        }
    }

    #[test]
    fn errors_quote_the_invalid_network() {
        for text in ["", "localhost", "10.0.0.0/33", "10.0.0.0/", "::/129", "10.0.0/8", "10.0.0.0/-1"] {
            assert!(text.parse::<Network>().unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
        let network: Network = serde_json::from_str("\"10.0.0.0/8\"").unwrap();
        assert_eq!(network.to_string(), "10.0.0.0/8");
    }
}
