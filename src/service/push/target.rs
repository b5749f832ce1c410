//! Targets of push notifications: protection against requests to internal addresses (server-side request forgery, 13.2).
//!
//! A URL is checked when a configuration is stored, and again before each attempt. The connection is made to an address
//! that was checked, so a name that changes its address between check and connection gains nothing.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use ipnet::IpNet;
use tokio::time::timeout;
use url::{Host, Url};

use super::PushOptions;
use crate::{
    base::name_lookup::{Busy, NameLookups},
    engine::execution::{RETRY_AFTER, limit_error},
    protocol::error::Error,
};

/// Default of the ports of targets that need no entry in the allow-list.
pub(crate) const PORTS: [u16; 4] = [443, 80, 8080, 8443];

/// Maximum number of concurrent look-ups of host names, in total and for an owner.
const LOOKUPS: (usize, usize) = (32, 8);

/// Maximum time that a look-up waits for others.
const LOOKUP_WAIT: Duration = Duration::from_millis(500);

/// Time limit of name resolution when a configuration is stored. A name that does not resolve by then is accepted, since each
/// attempt resolves it again.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(1);

/// Networks that are not part of the public internet, or whose addresses contain others (IANA special-purpose registries).
const REFUSED: [&str; 26] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    // Public by its number, but internal services of Azure.
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    // IPv6 outside of 2000::/3 is refused as a whole.
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "2620:4f:8000::/48",
    "3fff::/20",
    "2d00::/8",
    "2e00::/7",
];

/// Names that resolvers or platforms map to internal addresses.
const REFUSED_NAMES: [&str; 6] = ["localhost", "local", "internal", "localdomain", "lan", "home.arpa"];

/// Entry of an allow-list: targets that are accepted although they are internal or use another port. A network or address
/// (`10.0.0.0/8`, `127.0.0.1`), a host name (`hooks.internal`) or its subdomains (`*.corp.example`), each with a port
/// (`127.0.0.1:9000`, `[::1]:9000`) or for all ports. `*:9000` permits a port of public addresses. `https` is required unless the
/// entry begins with `http://`.
///
/// ```
/// use a2a_service::push::AllowedTarget;
///
/// let target: AllowedTarget = "http://127.0.0.1:9000".parse().unwrap();
/// assert_eq!(target.to_string(), "http://127.0.0.1:9000");
/// assert!("https://hooks.example/path".parse::<AllowedTarget>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedTarget {
    allows_http: bool,
    host: AllowedHost,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedHost {
    /// All public addresses.
    Public,
    Network(IpNet),
    Name(String),
    /// Begins with a dot.
    Suffix(String),
}

impl FromStr for AllowedTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a target; write 10.0.0.0/8, 127.0.0.1:9000, hooks.internal, *.corp.example or *:9000, \
                 after `http://` if it may be called without TLS"
            )
        };
        let (allows_http, rest) = match text.split_once("://") {
            Some(("http", rest)) => (true, rest),
            Some(("https", rest)) => (false, rest),
            Some(_) => return Err(wrong()),
            None => (false, text),
        };
        if let Ok(network) = rest.parse::<IpNet>() {
            return Ok(Self { allows_http, host: AllowedHost::Network(network.trunc()), port: None });
        }
        let is_bare_ipv6 = rest.parse::<Ipv6Addr>().is_ok();
        let (name, port) = match rest.rsplit_once(':') {
            Some((name, port)) if !is_bare_ipv6 && !port.ends_with(']') => {
                (name, Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?))
            }
            _ => (rest, None),
        };
        let unbracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let host = match (unbracketed.parse::<IpAddr>(), name.strip_prefix("*.")) {
            (Ok(address), _) => AllowedHost::Network(address.to_canonical().into()),
            (Err(_), None) if name == "*" => port.map(|_| AllowedHost::Public).ok_or_else(wrong)?,
            (Err(_), Some(suffix)) => AllowedHost::Suffix(format!(".{}", dns_name(suffix).ok_or_else(wrong)?)),
            (Err(_), None) => AllowedHost::Name(dns_name(name).ok_or_else(wrong)?),
        };
        Ok(Self { allows_http, host, port })
    }
}

/// Returns a DNS name in the form in which URLs have it.
fn dns_name(text: &str) -> Option<String> {
    match Host::parse(text).ok()? {
        Host::Domain(name) => Some(name.trim_end_matches('.').to_owned()).filter(|name| !name.is_empty()),
        Host::Ipv4(_) | Host::Ipv6(_) => None,
    }
}

impl fmt::Display for AllowedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.allows_http { "http://" } else { "" })?;
        match &self.host {
            AllowedHost::Public => f.write_str("*"),
            AllowedHost::Network(network) if network.prefix_len() == network.max_prefix_len() => match network.addr() {
                IpAddr::V6(address) if self.port.is_some() => write!(f, "[{address}]"),
                address @ (IpAddr::V4(_) | IpAddr::V6(_)) => write!(f, "{address}"),
            },
            AllowedHost::Network(network) => write!(f, "{network}"),
            AllowedHost::Name(name) => f.write_str(name),
            AllowedHost::Suffix(suffix) => write!(f, "*{suffix}"),
        }?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Source of the addresses of host names, instead of the resolver of the system. Must not block.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    /// Returns all addresses of a name.
    ///
    /// # Errors
    /// The name does not exist, or the name server does not answer.
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// Reason why a target can't be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TargetError {
    /// The target is not permitted. The text names the setting; it does not tell to which address a name resolved.
    Refused(String),
    /// The name did not resolve.
    Unresolved,
    /// Too many names are being resolved.
    Busy(Busy),
}

/// Decides which targets are permitted.
#[derive(Clone)]
pub(crate) struct TargetPolicy {
    allow: Arc<[AllowedTarget]>,
    refused: Arc<[IpNet]>,
    ports: Arc<[u16]>,
    lookups: Arc<NameLookups>,
    resolver: Option<Arc<dyn Resolver>>,
}

impl TargetPolicy {
    /// Creates the policy that permits public addresses with some ports, and what an allow-list names.
    pub(crate) fn new(options: &PushOptions) -> Self {
        let refused = REFUSED.iter().filter_map(|network| network.parse().ok()).collect();
        let PushOptions { allow, ports, resolver, .. } = options.clone();
        let lookups = NameLookups::new(LOOKUPS.0, LOOKUPS.1, LOOKUP_WAIT);
        Self { allow: allow.into(), refused, ports: ports.into(), lookups, resolver }
    }

    /// Checks the target of a new configuration of an owner. A name that does not resolve is accepted. `field` is the name of the
    /// URL in the request.
    ///
    /// # Errors
    /// The target is refused, or `ResourceExhausted` if too many names are being resolved.
    pub(crate) async fn check_registration(&self, owner: &Arc<str>, url: &Url, field: String) -> Result<(), Error> {
        match timeout(REGISTRATION_TIMEOUT, self.addresses(owner, url)).await {
            Ok(Err(TargetError::Refused(why))) => Err(Error::invalid_field(field, why)),
            Ok(Err(TargetError::Busy(busy))) => {
                let name = match busy {
                    Busy::Total(_) => "webhook_lookups",
                    Busy::Owner(_) => "webhook_lookups_per_owner",
                };
                let why = format!("{field}: {busy}; check that their name servers answer, and retry later");
                Err(limit_error(name, why).retry_after(RETRY_AFTER))
            }
            Ok(Ok(_) | Err(TargetError::Unresolved)) | Err(_) => Ok(()),
        }
    }

    /// Resolves a name for an owner.
    async fn resolve(&self, owner: &Arc<str>, name: &str, port: u16) -> Result<io::Result<Vec<SocketAddr>>, Busy> {
        let Some(resolver) = &self.resolver else { return self.lookups.resolve(owner, name, port).await };
        let _slot = self.lookups.slot(owner).await?;
        Ok(resolver.resolve(name, port).await)
    }

    /// Returns the addresses of a target of an owner, all of which are permitted.
    ///
    /// # Errors
    /// The target is refused or does not resolve.
    pub(crate) async fn addresses(&self, owner: &Arc<str>, url: &Url) -> Result<Vec<SocketAddr>, TargetError> {
        let refuse = |why: &str| Err(TargetError::Refused(why.to_owned()));
        let needs_http = match url.scheme() {
            "https" => false,
            "http" => true,
            _ => return refuse("must be a URL with https"),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("must not have a user name or password; use the authentication of the configuration");
        }
        let Some((host, port)) = url.host().zip(url.port_or_known_default()) else {
            return refuse("must be an absolute URL with https");
        };
        let entry = format!("`{}{host}:{port}` to push.allow", if needs_http { "http://" } else { "" });
        let (name, addresses) = match host {
            Host::Ipv4(address) => (None, vec![SocketAddr::new(address.into(), port)]),
            Host::Ipv6(address) => (None, vec![SocketAddr::new(address.into(), port)]),
            Host::Domain(name) => {
                let name = name.trim_end_matches('.');
                let addresses = self.resolve(owner, name, port).await.map_err(TargetError::Busy)?;
                // A refused name is refused whether it resolves or not.
                (Some(name), addresses.unwrap_or_default())
            }
        };
        let needs_port = !self.ports.contains(&port);
        let names_entry = |entry: &&AllowedTarget| name.is_some_and(|name| entry.names(name));
        let is_for_public = |entry: &&AllowedTarget| entry.host == AllowedHost::Public;
        let entries = || self.allow.iter().filter(|entry| entry.port.is_none_or(|allowed| allowed == port));
        if let Some(name) = name
            && !entries().any(|entry| names_entry(&entry))
            && is_internal_name(name)
        {
            return refuse(&format!("is an internal name; an operator can add {entry}"));
        }
        if addresses.is_empty() {
            let allowed = entries().find(|entry| names_entry(entry) || is_for_public(entry));
            return Err(self
                .unmet(needs_http, needs_port, allowed, &entry)
                .map_or(TargetError::Unresolved, TargetError::Refused));
        }
        for address in &addresses {
            let ip = address.ip().to_canonical();
            let is_public = self.is_public(ip);
            let allowed = entries()
                .filter(|entry| names_entry(entry) || entry.contains(ip) || (is_public && is_for_public(entry)))
                .max_by_key(|entry| entry.allows_http);
            if allowed.is_none() && !is_public {
                return refuse(&format!("its host has an internal address; an operator can add {entry}"));
            }
            if let Some(why) = self.unmet(needs_http, needs_port, allowed, &entry) {
                return Err(TargetError::Refused(why));
            }
        }
        Ok(addresses)
    }

    /// Returns the requirement of a target that its entry in the allow-list, if any, does not meet. `missing` is the entry that would.
    fn unmet(
        &self,
        needs_http: bool,
        needs_port: bool,
        allowed: Option<&AllowedTarget>,
        missing: &str,
    ) -> Option<String> {
        if needs_http && !allowed.is_some_and(|entry| entry.allows_http) {
            return Some(format!("must have https; an operator can add {missing}"));
        }
        (needs_port && allowed.is_none())
            .then(|| format!("must have one of the ports {:?}; an operator can add {missing}", self.ports))
    }

    /// Returns true for an address of the public internet.
    fn is_public(&self, ip: IpAddr) -> bool {
        let is_global = match ip {
            IpAddr::V4(_) => true,
            IpAddr::V6(address) => match embedded_ipv4(address) {
                Some(embedded) => return self.is_public(embedded.into()),
                None => address.segments()[0] & 0xe000 == 0x2000,
            },
        };
        is_global && !self.refused.iter().any(|network| network.contains(&ip))
    }
}

impl AllowedTarget {
    fn names(&self, name: &str) -> bool {
        match &self.host {
            AllowedHost::Public | AllowedHost::Network(_) => false,
            AllowedHost::Name(allowed) => allowed == name,
            AllowedHost::Suffix(suffix) => name.ends_with(suffix.as_str()),
        }
    }

    fn contains(&self, ip: IpAddr) -> bool {
        matches!(&self.host, AllowedHost::Network(network) if network.contains(&ip))
    }
}

/// Returns true for names that never belong to the public internet.
fn is_internal_name(name: &str) -> bool {
    REFUSED_NAMES
        .iter()
        .any(|refused| name == *refused || name.strip_suffix(refused).is_some_and(|rest| rest.ends_with('.')))
}

/// Returns the IPv4 address to which the well-known prefix of NAT64 translates an address (RFC 6052).
fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = address.segments() else { return None };
    Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
}
