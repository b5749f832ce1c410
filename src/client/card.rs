//! Agent card of a remote agent: its URLs, download with a cache (`ETag`), and selection of an interface.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use reqwest::Url;
use tokio::time::Instant;

use super::{
    AgentCard, Binding, Call, Error, ErrorKind, Version,
    builder::ClientBuilder,
    http::{Http, complete_url, read_body, shown_url},
    retry_policy::{Retries, is_transient},
    tls::is_secure,
};
use crate::{
    base::clock,
    protocol::{pb::v1::AgentInterface, v03::card},
};

/// Paths of the card below the base URL of an agent: that of 0.3 and 1.0 (8.2), and that of 0.2.
const WELL_KNOWN: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];

/// Time limit for the download of a card or a catalog, unless the client has another.
const CARD: Duration = Duration::from_secs(30);

/// Maximum number of retries of the download of a card. Less than for calls: the URL may be wrong.
const CARD_RETRIES: u32 = 3;

/// JSON document of a server.
#[derive(Debug)]
#[cfg_attr(not(feature = "cli"), expect(dead_code, reason = "only the program stores and checks documents"))]
pub(crate) struct Document<T> {
    /// Value that was read from the document.
    pub(crate) content: T,
    pub(crate) url: Url,
    /// `Content-Type`. Empty if the server sends none.
    pub(crate) media_type: String,
    pub(crate) json: Bytes,
}

/// Card that the program stores, to use it while the agent can't be reached.
#[cfg(feature = "cli")]
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct StoredCard {
    /// URL of the agent, at which the card was found.
    pub(crate) upstream: String,
    /// URL of the card.
    pub(super) url: String,
    /// Entity tag of the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// JSON of the card.
    pub(super) card: String,
}

#[cfg(feature = "cli")]
impl ClientBuilder {
    /// Downloads the card of the agent at a URL, for [`connect_to`](Self::connect_to).
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub(crate) async fn download(&self, agent: &str) -> Result<StoredCard, Error> {
        let Document { url, json, .. } = fetch(self, agent).await?;
        let cached = self.cache.0.lock().get(url.as_str()).map(|(tag, _)| tag.clone());
        let tag = cached.and_then(|tag| tag.to_str().map(str::to_owned).ok());
        let card = String::from_utf8_lossy(&json).into_owned();
        Ok(StoredCard { upstream: agent.to_owned(), url: url.to_string(), tag, card })
    }

    /// Downloads the document of the card of the agent at a URL. The card may be invalid.
    ///
    /// # Errors
    /// As [`connect`](Self::connect). The error names the URLs that were tried.
    pub(crate) async fn card_document(&self, agent: &Url) -> Result<Document<()>, Error> {
        let read = |json: &Bytes, url: &Url| match card::from_json(json) {
            Ok(card) => check_agent(&card, url, agent),
            Err(_) => serde_json::from_slice(json).map(|serde::de::IgnoredAny| ()).map_err(|error| error.to_string()),
        };
        first_document(self, "agent card", documents_of(agent, &WELL_KNOWN), read).await
    }

    /// Adds a stored card to the cache, so that the next download revalidates it (`If-None-Match`).
    pub(crate) fn cache(&self, stored: &StoredCard) {
        let tag = stored.tag.as_deref().and_then(|tag| HeaderValue::from_str(tag).ok());
        if let (Ok(url), Some(tag)) = (Url::parse(&stored.url), tag) {
            let headers = HeaderMap::from_iter([(header::ETAG, tag)]);
            self.cache.insert(&url, &headers, &stored.card.clone().into());
        }
    }
}

/// Interface of an agent card that this crate can call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Interface {
    /// Binding.
    pub binding: Binding,
    /// Protocol version.
    pub version: Version,
    /// Absolute URL.
    pub url: String,
    /// Tenant of all requests (4.4.6). Empty if there is none.
    pub tenant: String,
}

/// Returns the URLs at which a document with one of these paths may be: the URL itself if it names a document, else the paths
/// below it, the URL itself, and the paths of its host.
pub(super) fn documents_of(url: &Url, paths: &[&str]) -> Vec<Url> {
    let last = url.path_segments().and_then(|mut segments| segments.next_back()).unwrap_or_default();
    if last.rsplit_once('.').is_some_and(|(_, extension)| extension.eq_ignore_ascii_case("json")) {
        return vec![url.clone()];
    }
    let below = |base: &str| {
        let base = base.trim_end_matches('/');
        let document = |path: &&str| {
            let mut document = url.clone();
            document.set_path(&format!("{base}{path}"));
            document
        };
        paths.iter().map(document).collect::<Vec<_>>()
    };
    let mut all = below(url.path());
    if url.path() != "/" {
        all.push(url.clone());
        all.extend(below("/"));
    }
    all
}

/// Downloads the card of the agent at a URL. That of the host is used for a URL with a path if it has an interface at the path or
/// below it: a server can have several agents.
///
/// # Errors
/// `Unavailable` if no connection can be established, `InvalidAgentResponse` if there is no card.
pub(super) async fn fetch(builder: &ClientBuilder, url: &str) -> Result<Document<AgentCard>, Error> {
    let agent = complete_url(url)?;
    let read = |json: &Bytes, url: &Url| {
        let card = card::from_json(json).map_err(|error| error.to_string())?;
        if card.name.is_empty() {
            return Err("the document has no name".to_owned());
        }
        check_agent(&card, url, &agent).map(|()| card)
    };
    let found = first_document(builder, "agent card", documents_of(&agent, &WELL_KNOWN), read).await?;
    #[cfg(feature = "signing")]
    builder.check_signatures(&found.json)?;
    Ok(found)
}

/// Checks that the card at `url` is that of the agent: it is below the path of the agent, or has an interface at the path or
/// below it, or whose path lacks the `/v1` of the methods of 0.3. A card without a usable interface is taken for that of the agent.
fn check_agent(card: &AgentCard, url: &Url, agent: &Url) -> Result<(), String> {
    let path = agent.path().trim_end_matches('/');
    let is_below =
        |path: &str, base: &str| path.strip_prefix(base).is_some_and(|rest| matches!(rest.get(..1), None | Some("/")));
    let paths = interfaces(card, Some(url)).into_iter().filter_map(|interface| Url::parse(&interface.url).ok());
    let mut paths = paths.map(|url| url.path().trim_end_matches('/').to_owned()).peekable();
    let is_of_agent = is_below(url.path(), path)
        || paths.peek().is_none()
        || paths.any(|interface| is_below(&interface, path) || path.strip_prefix(&*interface) == Some("/v1"));
    if is_of_agent { Ok(()) } else { Err(format!("the card of an agent without an interface at {}", agent.path())) }
}

/// Downloads JSON documents at these URLs until one of them can be read. `read` returns the reason why a document can't.
///
/// # Errors
/// `InvalidAgentResponse` with each URL and reason if there is none. Errors of the server itself end the search.
pub(super) async fn first_document<T>(
    builder: &ClientBuilder,
    name: &'static str,
    urls: Vec<Url>,
    read: impl Fn(&Bytes, &Url) -> Result<T, String>,
) -> Result<Document<T>, Error> {
    let limit = builder.timeout.unwrap_or(CARD);
    let call = Call { deadline: Some(clock::after(Instant::now(), limit)), ..Call::default() };
    let mut retries = Retries::new(&builder.retry.clone().attempts(builder.retry.attempts.min(CARD_RETRIES)));
    let first = urls.first().ok_or_else(|| Error::internal("a document has no URL"))?.clone();
    let http = builder.http(first.as_str(), true)?;
    let mut tried = Vec::new();
    for url in urls {
        let received = loop {
            match fetch_json(builder, &http, &call, &url, name).await {
                Err(error) if is_transient(&error) && retries.wait(&error, &call).await => {}
                received => break received?,
            }
        };
        let content = received.and_then(|(json, media_type)| {
            let is_page = json.trim_ascii_start().starts_with(b"<");
            if is_page { Err("HTML instead of JSON".to_owned()) } else { Ok((read(&json, &url)?, json, media_type)) }
        });
        match content {
            Ok((content, json, media_type)) => return Ok(Document { content, url, media_type, json }),
            // Another path of the same server may have the document.
            Err(reason) => tried.push((url, reason)),
        }
    }
    if let [(url, reason)] = &*tried {
        return Err(none_at(url, name, reason));
    }
    let reasons: Vec<_> = tried.iter().map(|(url, reason)| format!("{}: {reason}", url.path())).collect();
    let reason = format!("no {name} at {}: {}", first.origin().ascii_serialization(), reasons.join("; "));
    Err(ErrorKind::InvalidAgentResponse.because(reason))
}

pub(super) fn none_at(url: &Url, name: &str, reason: &str) -> Error {
    ErrorKind::InvalidAgentResponse.because(format!("no {name} at {}: {reason}", shown_url(url.as_str())))
}

/// Downloads a JSON document. One that was downloaded before is only validated. Returns its media type with it, or the reason why
/// there is none at this URL.
async fn fetch_json(
    builder: &ClientBuilder,
    http: &Http,
    call: &Call,
    url: &Url,
    name: &str,
) -> Result<Result<(Bytes, String), String>, Error> {
    let mut request = http::Request::new(Bytes::new());
    *request.uri_mut() = url.as_str().parse().map_err(|_| none_at(url, name, "the URL is invalid"))?;
    let headers = request.headers_mut();
    headers.extend(builder.headers.clone());
    headers.extend(call.to_headers());
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    if builder.version.is_none() {
        // The server chooses the form of the card.
        headers.remove(crate::protocol::call::VERSION);
    }
    let known = builder.cache.0.lock().get(url.as_str()).cloned();
    if let Some((tag, _)) = &known {
        headers.insert(header::IF_NONE_MATCH, tag.clone());
    }
    let (head, body) = http.send(call, request).await?.into_parts();
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok());
    let media_type = text(header::CONTENT_TYPE).unwrap_or_default().to_owned();
    if let (StatusCode::NOT_MODIFIED, Some((_, json))) = (head.status, known) {
        return Ok(Ok((json, media_type)));
    }
    let json = read_body(body, http.limits.card, call.deadline).await?;
    let shown = shown_url(url.as_str());
    match head.status {
        status if status.is_success() => {
            builder.cache.insert(url, &head.headers, &json);
            Ok(Ok((json, media_type)))
        }
        status @ (StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::GONE) => {
            Ok(Err(format!("HTTP {status}")))
        }
        status if status.is_redirection() && status != StatusCode::NOT_MODIFIED => {
            let to = text(header::LOCATION).unwrap_or("another URL");
            Ok(Err(format!("it redirects to {to}; use that URL if you trust it")))
        }
        StatusCode::UNAUTHORIZED => {
            Err(ErrorKind::Unauthenticated.because(format!("the {name} at {shown} needs credentials")))
        }
        status => Err(ErrorKind::from_http(status.as_u16()).because(format!("the {name} at {shown}: HTTP {status}"))),
    }
}

/// Returns the interfaces of a card that this crate can call, in the order of the card. Relative URLs are resolved against
/// the URL of the card; an empty one is its origin.
pub(super) fn interfaces(card: &AgentCard, base: Option<&Url>) -> Vec<Interface> {
    card.supported_interfaces.iter().filter_map(|interface| usable(interface, base)).collect()
}

fn usable(interface: &AgentInterface, base: Option<&Url>) -> Option<Interface> {
    let binding = match interface.protocol_binding.to_ascii_uppercase().as_str() {
        "JSONRPC" | "" => Binding::JsonRpc,
        "HTTP+JSON" | "REST" | "HTTP_JSON" => Binding::Rest,
        "GRPC" => Binding::Grpc,
        _ => return None,
    };
    let version = match interface.protocol_version.split('.').next() {
        Some("1") => Version::V1_0,
        // Cards of 0.2 have no version of their interfaces.
        Some("0" | "") => Version::V0_3,
        _ => return None,
    };
    let url = match (binding, interface.url.trim()) {
        (Binding::Grpc, url) => grpc_url(url, base)?,
        (_, url) => match (Url::parse(url), base) {
            (Ok(url), _) => url.to_string(),
            (Err(_), Some(base)) => base.join(if url.is_empty() { "/" } else { url }).ok()?.to_string(),
            (Err(_), None) => return None,
        },
    };
    // One invalid URL does not make the other interfaces unusable.
    Url::parse(&url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())?;
    Some(Interface { binding, version, url, tenant: interface.tenant.clone() })
}

/// Returns the URL of a gRPC interface, which cards give as `host:port`, `dns:///host:port` or a URL. Without a scheme, that
/// of the card decides about TLS.
fn grpc_url(text: &str, base: Option<&Url>) -> Option<String> {
    let scheme = base.map_or("http", Url::scheme);
    let (scheme, authority) = match text.split_once("://") {
        Some(("grpc", rest)) => ("http", rest),
        Some(("grpcs", rest)) => ("https", rest),
        Some(("dns", rest)) => (scheme, rest.trim_start_matches('/')),
        Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
        Some(_) => return None,
        None if text.starts_with('/') => return None,
        None if text.is_empty() => return base.map(|base| base.origin().ascii_serialization()),
        None => (scheme, text),
    };
    Some(format!("{scheme}://{}", authority.trim_end_matches('/')))
}

impl ClientBuilder {
    /// Returns the interfaces that may be used, in the order of the card.
    ///
    /// # Errors
    /// `UnsupportedOperation` if there is none, `Unauthenticated` if credentials would be sent to another origin.
    pub(super) fn select<'a>(
        &self,
        card: &AgentCard,
        all: &'a [Interface],
        base: Option<&Url>,
    ) -> Result<Vec<&'a Interface>, Error> {
        let unsupported = |reason: String| ErrorKind::UnsupportedOperation.because(reason);
        let has = |interface: &&Interface| {
            self.binding.is_none_or(|binding| interface.binding == binding)
                && self.version.is_none_or(|version| interface.version == version)
        };
        // Verified although any certificate is to be accepted.
        let is_verified = |interface: &&Interface| {
            interface.binding == Binding::Grpc && self.tls.accepts_invalid_certs && is_secure(&interface.url)
        };
        let (verified, matching): (Vec<_>, Vec<_>) = all.iter().filter(has).partition(is_verified);
        if matching.is_empty() && !verified.is_empty() {
            let reason =
                "gRPC with TLS always verifies the certificate; use another binding, or add a root certificate";
            return Err(unsupported(reason.to_owned()));
        }
        if matching.is_empty() {
            let offered = card.supported_interfaces.iter().map(|interface| {
                let AgentInterface { protocol_binding, protocol_version, url, .. } = interface;
                format!("{protocol_binding} {protocol_version} at `{}`", shown_url(url))
            });
            let offered = offered.collect::<Vec<_>>().join(", ");
            let wanted = match (self.binding, self.version) {
                (None, None) => "that this client supports".to_owned(),
                (binding, version) => {
                    let binding = binding.map(|binding| format!("{binding:?}"));
                    let version = version.map(|version| version.as_str().to_owned());
                    format!("for {}", [binding, version].into_iter().flatten().collect::<Vec<_>>().join(" "))
                }
            };
            return Err(unsupported(format!("the agent's card has no interface {wanted}; it has: {offered}")));
        }
        // Credentials for the origin of the card are not for another origin that it names.
        let Some(base) = base.filter(|_| self.has_credentials() || self.call_credentials) else { return Ok(matching) };
        let is_trusted = |interface: &&Interface| Url::parse(&interface.url).is_ok_and(|url| self.trusts(&url, base));
        let (trusted, foreign): (Vec<_>, Vec<_>) = matching.into_iter().partition(is_trusted);
        let Some(first) = foreign.first().filter(|_| trusted.is_empty()) else { return Ok(trusted) };
        let reason = format!(
            "credentials are for {}, but the card names `{}`; connect to that origin, or allow it (trust_origin)",
            base.origin().ascii_serialization(),
            shown_url(&first.url),
        );
        Err(ErrorKind::Unauthenticated.because(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_without_a_scheme_are_completed() {
        for (text, expected) in [
            ("localhost:8081", "http://localhost:8081/"),
            (":8081", "http://localhost:8081/"),
            ("127.0.0.1:1/a", "http://127.0.0.1:1/a"),
            ("[::1]:1", "http://[::1]:1/"),
            ("agent.example", "https://agent.example/"),
            ("http://agent.example/x", "http://agent.example/x"),
        ] {
            assert_eq!(complete_url(text).unwrap().as_str(), expected);
        }
        assert!(complete_url("ftp://agent.example").is_err());
    }

    #[test]
    fn card_is_looked_for_below_the_url_and_at_its_host() {
        let paths = |url: &str| {
            let urls = documents_of(&Url::parse(url).unwrap(), &WELL_KNOWN);
            urls.iter().map(|url| url.path().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(paths("http://a.example"), WELL_KNOWN);
        assert_eq!(paths("http://a.example/x/card.json"), ["/x/card.json"]);
        let nested = ["/x/.well-known/agent-card.json", "/x/.well-known/agent.json", "/x/"];
        assert_eq!(paths("http://a.example/x/"), [&nested[..], &WELL_KNOWN].concat());
    }

    #[test]
    fn interfaces_of_all_forms_are_read() {
        let interface = |url: &str, binding: &str, version: &str| AgentInterface {
            url: url.into(),
            protocol_binding: binding.into(),
            protocol_version: version.into(),
            tenant: String::new(),
        };
        let base = Url::parse("https://a.example/x/card.json").unwrap();
        let found = |url: &str, binding: &str, version: &str| {
            usable(&interface(url, binding, version), Some(&base))
                .map(|found| (found.binding, found.version, found.url))
        };
        let (v1, v03) = (Version::V1_0, Version::V0_3);
        for (given, expected) in [
            (("http://b.example/rpc", "JSONRPC", "1.0"), Some((Binding::JsonRpc, v1, "http://b.example/rpc"))),
            (("/rpc", "JSONRPC", "0.3.0"), Some((Binding::JsonRpc, v03, "https://a.example/rpc"))),
            (("", "HTTP+JSON", "1.0"), Some((Binding::Rest, v1, "https://a.example/"))),
            (("", "jsonrpc", ""), Some((Binding::JsonRpc, v03, "https://a.example/"))),
            (("b.example:443", "GRPC", "1.0"), Some((Binding::Grpc, v1, "https://b.example:443"))),
            (("dns:///b.example:1", "GRPC", "1.0"), Some((Binding::Grpc, v1, "https://b.example:1"))),
            (("grpc://b.example:1", "GRPC", "0.3"), Some((Binding::Grpc, v03, "http://b.example:1"))),
            (("http://b.example", "SOAP", "1.0"), None),
            (("ftp://b.example", "JSONRPC", "1.0"), None),
            (("localhost:9/rpc", "JSONRPC", "1.0"), None),
            (("/rpc", "GRPC", "1.0"), None),
            (("http://b.example", "JSONRPC", "2.0"), None),
        ] {
            let expected = expected.map(|(binding, version, url)| (binding, version, url.to_owned()));
            assert_eq!(found(given.0, given.1, given.2), expected, "{given:?}");
        }
    }
}
