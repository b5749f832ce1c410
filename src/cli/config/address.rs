//! Addresses in the configuration: those to listen on, and URLs of servers and agents.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::Uri;
use toml::{Spanned, de::DeValue};

use super::value::{Value, brief, filled, quoted};
use crate::{client::complete_url, service::card::is_grpc_address};

/// A port alone, also after a colon, is one of `127.0.0.1`, and so is `localhost`.
impl Value for SocketAddr {
    const KIND: &'static str = "address";

    fn read(text: &str) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        // `u16` would accept a sign.
        let port = port.parse().ok().filter(|_| port.starts_with(|c: char| c.is_ascii_digit()));
        match port.filter(|_| matches!(host, "" | "localhost")) {
            Some(port) => Ok(Self::from((Ipv4Addr::LOCALHOST, port))),
            None => text.parse().map_err(|_| {
                format!("{} is not an address with a port; write 127.0.0.1:8080, localhost:8080 or 8080", brief(text))
            }),
        }
    }

    fn show(&self) -> Option<String> {
        Some(quoted(self))
    }
}

/// Listen address by default.
pub(crate) const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Listen addresses, of which there is at least one.
#[derive(Clone, Debug)]
pub(crate) struct ListenAddresses(pub(crate) Vec<SocketAddr>);

impl Default for ListenAddresses {
    fn default() -> Self {
        Self(vec![DEFAULT_LISTEN])
    }
}

impl Value for ListenAddresses {
    const KIND: &'static str = "addresses";

    fn read(text: &str) -> Result<Self, String> {
        filled(<Vec<SocketAddr>>::read(text)?).map(Self)
    }

    fn from_toml(value: &Spanned<DeValue<'_>>) -> Result<Self, String> {
        filled(<Vec<SocketAddr>>::from_toml(value)?).map(Self)
    }

    fn show(&self) -> Option<String> {
        self.0.show()
    }
}

/// Declares types of text with a check.
macro_rules! checked_texts {
    ($($(#[$attribute:meta])* $name:ident = $kind:literal, $check:ident;)*) => { $(
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) String);

        impl Value for $name {
            const KIND: &'static str = $kind;

            fn read(text: &str) -> Result<Self, String> {
                $check(text).map(Self)
            }

            fn show(&self) -> Option<String> {
                Some(quoted(&self.0))
            }
        }
    )* };
}

checked_texts! {
    /// Base URL of a server: `http` or `https`, without a query and a fragment.
    BaseUrl = "URL", check_base_url;
    /// URL of an agent or of an endpoint: `http` or `https`, without a fragment. Without a scheme, `http` for this machine,
    /// else `https`.
    AgentUrl = "URL", complete_agent_url;
    /// gRPC address for the agent card: `host:port`, optionally after `dns:///`, or a URL without a path.
    GrpcAddress = "gRPC address", check_grpc_address;
    /// Base URL of a collector of telemetry, without credentials.
    CollectorUrl = "URL", check_collector_url;
}

fn check_base_url(text: &str) -> Result<String, String> {
    let uri: Option<Uri> = text.parse().ok();
    let is_base = uri.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some() && uri.query().is_none()
    });
    let error = || format!("{} is not the URL of a server; write https://agent.example", brief(text));
    if is_base && !text.contains('#') { Ok(text.to_owned()) } else { Err(error()) }
}

fn check_collector_url(text: &str) -> Result<String, String> {
    let url = complete_url(text).map_err(|_| format!("{} is not a URL; write http://localhost:4318", brief(text)))?;
    if !url.username().is_empty() || url.password().is_some() {
        // The text is not repeated.
        return Err("the URL has credentials; set them in OTEL_EXPORTER_OTLP_HEADERS".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("the URL has a query or a fragment; write http://localhost:4318".to_owned());
    }
    let url = url.as_str().trim_end_matches('/');
    Ok(url.strip_suffix("/v1/traces").unwrap_or(url).to_owned())
}

fn complete_agent_url(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    // A path, a name without a dot and a port, and a mistyped scheme are no hosts.
    let is_mistake = !text.contains("://")
        && (text.starts_with(['.', '/'])
            || text.contains('@')
            || !(text.contains(['.', ':']) || lower.starts_with("localhost"))
            || ["http:", "http/", "https:", "https/"].iter().any(|scheme| lower.starts_with(scheme)));
    let completed = complete_url(text).ok().filter(|url| !is_mistake && url.fragment().is_none());
    let completed = completed.ok_or_else(|| format!("{} is not a URL; write http://localhost:9000", brief(text)))?;
    Ok(if text.contains("://") { text.to_owned() } else { completed.into() })
}

fn check_grpc_address(text: &str) -> Result<String, String> {
    if is_grpc_address(text) {
        return Ok(text.to_owned());
    }
    Err(format!("{} is not a gRPC address; write agent.example:443 or https://agent.example", brief(text)))
}

/// Returns the `host:port` of a URL, or of a gRPC address.
pub(super) fn authority(text: &str) -> Option<String> {
    let uri: Uri = text.strip_prefix("dns:///").unwrap_or(text).parse().ok()?;
    let port = uri.port_u16().unwrap_or(if matches!(uri.scheme_str(), Some("http" | "grpc")) { 80 } else { 443 });
    Some(format!("{}:{port}", uri.host()?.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_without_a_host_is_on_loopback() {
        for (text, expected) in [
            ("8081", "127.0.0.1:8081"),
            (":8081", "127.0.0.1:8081"),
            ("localhost:8081", "127.0.0.1:8081"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("[::1]:0", "[::1]:0"),
        ] {
            assert_eq!(SocketAddr::read(text).unwrap().to_string(), expected, "{text}");
        }
        for text in ["", ":", "+1", ":+1", "65536", "localhost", "agent.example:80", "::1"] {
            assert!(SocketAddr::read(text).unwrap_err().contains("localhost:8080"), "{text}");
        }
    }

    #[test]
    fn base_urls_have_a_host_and_no_query() {
        for text in ["http://a", "https://a.example:81/below/", "http://[::1]:8"] {
            assert_eq!(BaseUrl::read(text).unwrap().0, text);
        }
        for text in ["", "a.example", "ftp://a", "/path", "http://a?b", "https://a#b"] {
            assert!(BaseUrl::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn urls_of_agents_are_completed() {
        for (text, expected) in [
            ("localhost:11434/v1", "http://localhost:11434/v1"),
            ("model.example/v1", "https://model.example/v1"),
            ("LOCALHOST", "http://localhost/"),
            ("http://a/v1?api-version=1", "http://a/v1?api-version=1"),
        ] {
            assert_eq!(AgentUrl::read(text).unwrap().0, expected);
        }
        for text in ["", "./agent.sh", "agent", "ftp://a", "/path", "https://a#b", "http:/a.b", "http//a.b", "me@a.b"] {
            assert!(AgentUrl::read(text).unwrap_err().contains("http://localhost:9000"), "{text}");
        }
    }

    #[test]
    fn urls_of_collectors_have_no_credentials() {
        for (text, expected) in [
            ("localhost:4318", "http://localhost:4318"),
            ("http://a.example/otel/", "http://a.example/otel"),
            ("https://a.example/x/v1/traces", "https://a.example/x"),
        ] {
            assert_eq!(CollectorUrl::read(text).unwrap().0, expected);
        }
        for text in ["https://user:s3cret@a.example", "https://s3cret@a.example", "https://a?key=s3cret", "a b"] {
            let error = CollectorUrl::read(text).unwrap_err();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn invalid_grpc_addresses_are_rejected() {
        assert!(GrpcAddress::read("agent.example:443").is_ok() && GrpcAddress::read("https://agent.example").is_ok());
        for text in ["", "x", "agent.example", "https://agent.example/a"] {
            assert!(GrpcAddress::read(text).unwrap_err().contains("agent.example:443"), "{text}");
        }
    }
}
