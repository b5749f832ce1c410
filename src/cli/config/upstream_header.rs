//! Names of headers of callers that an agent passes on: `upstream.forward`.

use http::HeaderName;

use super::value::{Value, brief, quoted};

/// Name of a request header that is forwarded. Hop-by-hop headers and those of the protocol are rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamHeader(pub(crate) HeaderName);

impl UpstreamHeader {
    /// Headers that are set by the client of the upstream agent.
    const RESERVED: [&str; 14] = [
        "accept",
        "accept-encoding",
        "connection",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "last-event-id",
        "te",
        "traceparent",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    ];

    /// Beginnings of the names of such headers.
    const RESERVED_PREFIXES: [&str; 6] = ["a2a-", "content-", "grpc-", "proxy-", "sec-", "x-a2a-"];
}

impl Value for UpstreamHeader {
    const KIND: &'static str = "header";

    fn read(text: &str) -> Result<Self, String> {
        let invalid = || format!("{} is not the name of a header; write `authorization`", brief(text));
        let name = HeaderName::try_from(text).map_err(|_| invalid())?;
        let is_reserved = Self::RESERVED.contains(&name.as_str())
            || Self::RESERVED_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix));
        if is_reserved {
            return Err(format!("`{name}` can't be forwarded; name only headers such as credentials"));
        }
        Ok(Self(name))
    }

    fn show(&self) -> Option<String> {
        Some(quoted(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_connection_and_of_the_protocol_are_not_forwarded() {
        let read = |text: &str| UpstreamHeader::read(text).map(|header| header.0);
        assert_eq!(read("Authorization").unwrap(), "authorization");
        assert_eq!(read("x-api-key").unwrap(), "x-api-key");
        for name in ["host", "Content-Length", "a2a-version", "grpc-timeout", "idempotency-key", "proxy-authorization"]
        {
            assert!(read(name).unwrap_err().contains("can't be forwarded"), "{name}");
        }
        assert!(read("no header").unwrap_err().contains("write `authorization`"));
    }
}
