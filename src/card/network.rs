//! Networks by prefix, as lists of trusted proxies have them.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::Deserialize;

/// Every address that begins like this one: `10.0.0.0/8`, `fd00::/8`, or a single address.
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
pub struct Network {
    addr: IpAddr,
    prefix: u8,
}

impl Network {
    /// Says whether an address is in it. IPv4 in the clothes of IPv6, as a socket for both has its peers, is IPv4.
    pub fn contains(&self, addr: IpAddr) -> bool {
        let shift = |width: u8| u32::from(width - self.prefix);
        match (self.addr, addr.to_canonical()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).checked_shr(shift(32)).unwrap_or(0) == 0,
            (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).checked_shr(shift(128)).unwrap_or(0) == 0,
            _ => false,
        }
    }
}

impl From<IpAddr> for Network {
    fn from(addr: IpAddr) -> Self {
        let addr = addr.to_canonical();
        Self { addr, prefix: width(addr) }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither an IP address nor a network such as 10.0.0.0/8");
        let Some((addr, prefix)) = text.split_once('/') else {
            return text.parse().map(IpAddr::into).map_err(|_| wrong());
        };
        let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
        let prefix = prefix.parse().ok().filter(|it| *it <= width(addr)).ok_or_else(wrong)?;
        Ok(Self { addr, prefix })
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
        write!(f, "{}/{}", self.addr, self.prefix)
    }
}

const fn width(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_a_network_or_not() {
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
    fn what_is_no_network_is_refused_by_name() {
        for text in ["", "localhost", "10.0.0.0/33", "10.0.0.0/", "::/129", "10.0.0/8", "10.0.0.0/-1"] {
            assert!(text.parse::<Network>().unwrap_err().contains(&format!("`{text}`")), "{text}");
        }
        let network: Network = serde_json::from_str("\"10.0.0.0/8\"").unwrap();
        assert_eq!(network.to_string(), "10.0.0.0/8");
    }
}
