//! What came with a call, whichever way it came in: who calls, in which version, and what they asked for beside the
//! message. The edge makes it once; inside, it is all that is known of the caller.
//!
//! On the wire these are service parameters (3.2.6): headers of HTTP, and metadata of gRPC, which are the same. This
//! file has the one table of them, for servers to read and for clients to write.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use http::{Extensions, HeaderMap, HeaderName, HeaderValue, header::USER_AGENT};
use tokio::time::Instant;
use tonic::metadata::MetadataMap;

use crate::{
    error::{Error, ErrorKind},
    event::Cursor,
};

/// `A2A-Version` (3.6.1).
pub const VERSION: HeaderName = HeaderName::from_static("a2a-version");
/// `A2A-Extensions` (3.2.6).
pub const EXTENSIONS: HeaderName = HeaderName::from_static("a2a-extensions");
/// The same before 1.0.
pub const EXTENSIONS_BEFORE: HeaderName = HeaderName::from_static("x-a2a-extensions");
/// What a stream is taken up after; a browser's `EventSource` sends it.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Names a send, so that it can be repeated without being done twice.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The id of a request, given by whoever saw it first.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// W3C Trace Context.
pub const TRACE: HeaderName = HeaderName::from_static("traceparent");
/// How long the caller waits: of gRPC, and taken from others too. tonic reads it in its own server alone.
pub const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// A version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 0.3, and 0.2 where it is the same.
    V0_3,
    /// 1.0.
    #[default]
    V1_0,
}

impl Version {
    /// Reads `A2A-Version`. A patch should not be there, and is not considered (3.6).
    pub fn from_text(text: &str) -> Option<Self> {
        let mut numbers = text.trim().split('.');
        let (major, minor) = (numbers.next()?, numbers.next()?);
        if !numbers.all(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit())) {
            return None;
        }
        [Self::V0_3, Self::V1_0].into_iter().find(|it| it.as_str().split_once('.') == Some((major, minor)))
    }

    /// As `A2A-Version` has it: major and minor.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_3 => "0.3",
            Self::V1_0 => "1.0",
        }
    }
}

/// The way that a call came in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Binding {
    /// By a function call.
    #[default]
    InProcess,
    /// gRPC.
    Grpc,
    /// HTTP+JSON.
    Rest,
    /// JSON-RPC.
    JsonRpc,
}

/// What came with a call. A request without one is refused: nobody is anonymous by oversight.
#[derive(Clone, Debug, Default)]
pub struct Call {
    /// Whose tasks these are: what the policy derives from the principal. Empty for callers that nobody has named.
    pub owner: Arc<str>,
    /// Who calls, as the authentication named them.
    pub principal: Option<Arc<str>>,
    /// The version that the call is in.
    pub version: Version,
    /// The way it came in.
    pub binding: Binding,
    /// The extensions that the caller asks for, by URI, each once.
    pub extensions: Vec<String>,
    /// When the caller stops waiting.
    pub deadline: Option<Instant>,
    /// Names a send, so that it can be repeated.
    pub idempotency_key: Option<String>,
    /// What a stream is to be taken up after.
    pub cursor: Option<Cursor>,
    /// `traceparent`.
    pub trace: Option<String>,
    /// The other end of the connection.
    pub peer: Option<SocketAddr>,
    /// The id of the request, where it came with one.
    pub request_id: Option<String>,
    /// In the messages of 0.3's proto the caller has files as they are, and not in base64.
    pub plain_files: bool,
}

impl Call {
    /// A call by a function call, for the owner of this name.
    pub fn by(owner: &str) -> Self {
        Self { owner: owner.into(), ..Self::default() }
    }

    /// Reads what came with a request. What can't be read is as if it were not there, except a cursor, which then fits no
    /// log, and the version, which the edge has to look at before it knows what the request is.
    pub fn from_headers(headers: &HeaderMap, binding: Binding) -> Self {
        let mut call = Self { binding, ..Self::default() };
        // In one pass: to look for each by its name takes longer than all there mostly are.
        for (name, value) in headers {
            let Some(text) = value.to_str().ok().filter(|it| !it.is_empty()) else {
                if name == LAST_EVENT_ID && !value.is_empty() {
                    call.cursor.get_or_insert_with(Cursor::nowhere);
                }
                continue;
            };
            match name {
                it if it == EXTENSIONS || it == EXTENSIONS_BEFORE => ask(&mut call.extensions, text),
                it if it == TIMEOUT && call.deadline.is_none() => {
                    call.deadline = timeout(text).and_then(|it| Instant::now().checked_add(it));
                }
                it if it == IDEMPOTENCY_KEY => _ = call.idempotency_key.get_or_insert_with(|| text.to_owned()),
                // Who says that they come back is not taken for somebody who comes for the first time.
                it if it == LAST_EVENT_ID => {
                    call.cursor.get_or_insert_with(|| Cursor::from_text(text).unwrap_or_else(Cursor::nowhere));
                }
                it if it == TRACE => _ = call.trace.get_or_insert_with(|| text.to_owned()),
                it if it == REQUEST_ID && text.len() <= 128 => {
                    call.request_id.get_or_insert_with(|| text.to_owned());
                }
                it if it == USER_AGENT => call.plain_files = has_plain_files(text, headers.contains_key(VERSION)),
                _ => {}
            }
        }
        call
    }

    /// What a client sends along: nothing that is not listed here, and so never a credential by accident.
    pub fn to_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut set = |name: HeaderName, value: Option<&str>| {
            if let Some(value) = value.and_then(|it| HeaderValue::from_str(it).ok()) {
                headers.insert(name, value);
            }
        };
        set(VERSION, Some(self.version.as_str()));
        set(EXTENSIONS, Some(self.extensions.join(", ").as_str()).filter(|it| !it.is_empty()));
        set(LAST_EVENT_ID, self.cursor.as_ref().map(Cursor::as_str));
        set(IDEMPOTENCY_KEY, self.idempotency_key.as_deref());
        set(REQUEST_ID, self.request_id.as_deref());
        set(TRACE, self.trace.as_deref());
        let left = self.deadline.map(|it| it.saturating_duration_since(Instant::now()).as_millis());
        set(TIMEOUT, left.map(|it| format!("{}m", it.min(99_999_999))).as_deref());
        headers
    }

    /// The same, as metadata of gRPC.
    pub fn to_metadata(&self) -> MetadataMap {
        MetadataMap::from_headers(self.to_headers())
    }

    /// A request that comes with this.
    pub fn request<T>(self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.extensions_mut().insert(self);
        request
    }

    /// What came with a request.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<&Self, Error> {
        request.extensions().get().ok_or_else(|| Error::internal("a request reached the service without its call"))
    }

    /// Makes this the only thing that a request brings along.
    pub fn alone(self, extensions: &mut Extensions) {
        extensions.clear();
        extensions.insert(self);
    }

    /// How long the caller still waits, if that is known.
    pub fn time_left(&self) -> Option<Duration> {
        self.deadline.map(|it| it.saturating_duration_since(Instant::now()))
    }

    /// Refuses a call whose time is over before anything is done for it.
    pub fn in_time(&self) -> Result<(), Error> {
        match self.time_left() {
            Some(Duration::ZERO) => Err(ErrorKind::DeadlineExceeded.into()),
            _ => Ok(()),
        }
    }
}

/// The header in which a request asks for extensions. `None` if it asks for none, or uses both headers.
pub(crate) fn extensions_spelling(headers: &HeaderMap) -> Option<HeaderName> {
    match (headers.contains_key(EXTENSIONS), headers.contains_key(EXTENSIONS_BEFORE)) {
        (true, false) => Some(EXTENSIONS),
        (false, true) => Some(EXTENSIONS_BEFORE),
        (true, true) | (false, false) => None,
    }
}

/// Names the extensions of an answer in this header instead of the other one.
pub(crate) fn spell_extensions(headers: &mut HeaderMap, spelling: HeaderName) {
    let other = if spelling == EXTENSIONS { EXTENSIONS_BEFORE } else { EXTENSIONS };
    if let Some(active) = headers.remove(other) {
        headers.insert(spelling, active);
    }
}

/// Adds the extensions that a line asks for: of either spelling of the header, which may be there more than once.
fn ask(all: &mut Vec<String>, line: &str) {
    for uri in line.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        if !all.iter().any(|it| it == uri) {
            all.push(uri.to_owned());
        }
    }
}

/// Whether a client has files as they are in the messages of 0.3's proto. Those in JavaScript do, by what they stand on: Node,
/// Deno, Bun or a browser. The SDK for Go does since its second version, which is the one that says that it speaks 0.3.
fn has_plain_files(agent: &str, says_version: bool) -> bool {
    let mut products = agent.split_whitespace().map(|it| it.split_once('/').map_or(it, |it| it.0));
    is_javascript(agent) || products.any(|it| it == "grpc-go" && says_version)
}

/// Returns true for a `User-Agent` of the runtimes of JavaScript: Node, Deno, Bun and browsers.
pub(crate) fn is_javascript(agent: &str) -> bool {
    let mut products = agent.split_whitespace().map(|it| it.split_once('/').map_or(it, |it| it.0));
    products.any(|it| matches!(it, "node" | "undici" | "grpc-node-js" | "Deno" | "Bun" | "Mozilla"))
}

/// `grpc-timeout`: up to eight digits, and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|it| it.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_digits_and_a_unit() {
        assert_eq!(timeout("1500m"), Some(Duration::from_millis(1500)));
        assert_eq!(timeout("2H"), Some(Duration::from_hours(2)));
        for text in ["", "m", "1", "123456789S", "-1S", "1x", "é"] {
            assert_eq!(timeout(text), None, "{text}");
        }
    }

    #[test]
    fn a_version_is_two_numbers_and_a_patch_that_says_nothing() {
        for text in ["1.0", "1.0.3", "1.0.0.7", " 1.0 "] {
            assert_eq!(Version::from_text(text), Some(Version::V1_0), "{text}");
        }
        assert_eq!(Version::from_text("0.3.0"), Some(Version::V0_3));
        for text in ["", "1", "1.", "1.1", "2.0", "1.0.", "1.0.x", "v1.0", "1.00", "1.0, 1.0", "é"] {
            assert_eq!(Version::from_text(text), None, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_writes_a_server_reads() {
        let call = Call {
            extensions: vec!["https://example.com/a".into(), "urn:b".into()],
            deadline: Some(Instant::now() + Duration::from_secs(3)),
            idempotency_key: Some("k".into()),
            cursor: Cursor::from_text("t.1.2"),
            request_id: Some("r".into()),
            ..Call::by("ada")
        };
        let read = Call::from_headers(&call.to_headers(), Binding::Rest);
        assert_eq!((read.extensions, read.idempotency_key), (call.extensions, call.idempotency_key));
        assert_eq!((read.cursor, read.deadline, read.request_id), (call.cursor, call.deadline, call.request_id));
        assert_eq!(&*read.owner, "", "who one is, one can't say of oneself");
    }

    #[test]
    fn both_spellings_of_the_extensions_are_read_once() {
        let mut headers = HeaderMap::new();
        headers.append("a2a-extensions", HeaderValue::from_static("urn:a, urn:b"));
        headers.append("a2a-extensions", HeaderValue::from_static("urn:b,,urn:c"));
        headers.append("x-a2a-extensions", HeaderValue::from_static("urn:d"));
        assert_eq!(Call::from_headers(&headers, Binding::Rest).extensions, ["urn:a", "urn:b", "urn:c", "urn:d"]);
    }
}
