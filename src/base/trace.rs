//! Trace context of W3C, and spans. Without a tracer, spans are empty: nothing is allocated or measured.

use std::{borrow::Cow, fmt, net::IpAddr, sync::Arc, time::SystemTime};

use parking_lot::Mutex;
use serde_json::Value;

#[cfg(not(feature = "trace"))]
pub use self::off::Tracing;
#[cfg(not(feature = "trace"))]
pub(crate) use self::off::{Span, is_used};
#[cfg(feature = "trace")]
pub use self::opentelemetry::Tracing;
#[cfg(feature = "trace")]
pub(crate) use self::opentelemetry::{Span, is_used};

#[cfg(not(feature = "trace"))]
mod off;
#[cfg(feature = "trace")]
mod opentelemetry;

/// Maximum length of a `tracestate` in bytes. A longer one is not passed on.
pub(crate) const MAX_STATE: usize = 512;

/// Maximum length of content in an attribute of a span in bytes.
pub(crate) const MAX_CONTENT: usize = 8 << 10;

/// Length of the part of a `traceparent` that each version has (W3C Trace Context, 3.2).
const PARENT_LENGTH: usize = 55;

/// Position of a span: trace id, span id and flags, as in a `traceparent`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceContext(pub(crate) [u8; 25]);

impl TraceContext {
    /// Parses a `traceparent`. `None` if it is invalid.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (known, rest) = text.split_at_checked(PARENT_LENGTH)?;
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_form = |(index, byte)| if matches!(index, 2 | 35 | 52) { byte == b'-' } else { is_hex(byte) };
        if !known.bytes().enumerate().all(is_form) {
            return None;
        }
        let trace = u128::from_str_radix(&known[3..35], 16).ok().filter(|trace| *trace != 0)?;
        let span = u64::from_str_radix(&known[36..52], 16).ok().filter(|span| *span != 0)?;
        let mut bytes = [0; 25];
        bytes[..16].copy_from_slice(&trace.to_be_bytes());
        bytes[16..24].copy_from_slice(&span.to_be_bytes());
        bytes[24] = u8::from_str_radix(&known[53..], 16).ok()?;
        let is_valid = match &known[..2] {
            "ff" => false,
            "00" => rest.is_empty(),
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        is_valid.then_some(Self(bytes))
    }

    /// Returns the `traceparent`.
    pub(crate) fn to_header(self) -> String {
        format!("00-{}-{}-{:02x}", self.trace_id(), self.span_id(), self.0[24])
    }

    /// Trace id in hexadecimal digits.
    pub(crate) fn trace_id(&self) -> impl fmt::Display + '_ {
        hex(&self.0[..16])
    }

    /// Span id in hexadecimal digits.
    pub(crate) fn span_id(&self) -> impl fmt::Display + '_ {
        hex(&self.0[16..24])
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_header())
    }
}

/// Returns up to 32 bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> impl fmt::Display + '_ {
    // In one piece: each line of the log has the ids, and `{byte:02x}` takes most of the time of a line.
    fmt::from_fn(move |f| {
        let (digit, mut text) = (|value: u8| b"0123456789abcdef"[usize::from(value & 15)], [0; 64]);
        let pairs = text.as_chunks_mut::<2>().0;
        pairs.iter_mut().zip(bytes).for_each(|(pair, byte)| *pair = [digit(byte >> 4), digit(*byte)]);
        f.write_str(str::from_utf8(&text).ok().and_then(|text| text.get(..2 * bytes.len())).unwrap_or_default())
    })
}

/// Returns the part of a `traceparent` that each version has: version, trace id, parent id and flags. `None` if the text is invalid.
pub(crate) fn valid_parent(text: &str) -> Option<&str> {
    TraceContext::parse(text).and_then(|_| text.get(..PARENT_LENGTH))
}

/// Kind of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanKind {
    /// Request of another process. Its parent is in that process.
    Server,
    /// Call within a request, with a parent in this process.
    ServerChild,
    /// Work of this process.
    Internal,
    /// Request to another process.
    Client,
}

/// Parent of a span: its context, and its `tracestate`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent<'a> {
    pub(crate) context: TraceContext,
    pub(crate) state: Option<&'a str>,
}

impl<'a> Parent<'a> {
    /// Parses a `traceparent`, with its `tracestate`.
    pub(crate) fn parse(parent: Option<&str>, state: Option<&'a str>) -> Option<Self> {
        Some(Self { context: TraceContext::parse(parent?)?, state })
    }
}

impl Span {
    /// Sets an attribute, unless there is no value.
    pub(crate) fn set_some(&mut self, key: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// `traceparent` of requests that the span is about.
    pub(crate) fn header(&self) -> Option<String> {
        self.context().map(TraceContext::to_header)
    }
}

/// Span of a request, which begins when it is known who calls.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    pub(crate) tracing: Tracing,
    started: SystemTime,
    /// Contexts of the peer are parents.
    is_trusted: bool,
    /// Address of the client.
    pub(crate) client: Option<IpAddr>,
    span: Mutex<Option<Span>>,
}

impl RequestTrace {
    /// Starts the time of a request. `is_trusted`: the peer decides whether its requests are exported.
    pub(crate) fn new(tracing: &Tracing, is_trusted: bool, client: Option<IpAddr>) -> Self {
        Self { tracing: tracing.clone(), started: SystemTime::now(), is_trusted, client, span: Mutex::default() }
    }

    /// Creates the trace of a call whose span has begun.
    pub(crate) fn of(span: Span) -> Self {
        Self { span: Mutex::new(Some(span)), ..Self::new(&Tracing::default(), false, None) }
    }

    /// Returns the trace of a part of the request, whose span has begun.
    pub(crate) fn part(&self, parent: Option<Parent<'_>>) -> Self {
        let span = self.tracing.start(SpanKind::ServerChild, "request", parent, None);
        Self { span: Mutex::new(Some(span)), ..Self::new(&self.tracing, self.is_trusted, self.client) }
    }

    /// Begins the span, unless it has begun. The context of a caller is the parent if the caller is authenticated or trusted, and
    /// otherwise linked: a stranger can't force the export. Returns the context of the span and its `tracestate`.
    pub(crate) fn begin(
        &self,
        caller: Option<Parent<'_>>,
        is_authenticated: bool,
    ) -> Option<(TraceContext, Option<String>)> {
        let mut span = self.span.lock();
        let span = span.get_or_insert_with(|| {
            let parent = caller.filter(|_| is_authenticated || self.is_trusted);
            let mut span = self.tracing.start(SpanKind::Server, "request", parent, Some(self.started));
            if let (None, Some(caller)) = (parent, caller) {
                span.link("caller", caller.context);
            }
            span
        });
        Some((span.context()?, span.state()))
    }

    /// Returns true if the span has begun and is exported.
    pub(crate) fn is_exported(&self) -> bool {
        self.span.lock().as_ref().and_then(Span::context).is_some_and(|context| context.0[24] & 1 == 1)
    }

    /// Changes the span, if it has begun.
    pub(crate) fn with(&self, change: impl FnOnce(&mut Span)) {
        self.span.lock().as_mut().map(change);
    }

    /// Returns the span, to be ended.
    pub(crate) fn take(&self) -> Span {
        self.span.lock().take().unwrap_or_default()
    }
}

/// Span that is being done, with the tracer of its children: what a turn gives to the calls that its agent makes.
#[derive(Clone, Debug, Default)]
pub(crate) struct TraceScope {
    pub(crate) tracing: Tracing,
    pub(crate) context: Option<TraceContext>,
    pub(crate) state: Option<Arc<str>>,
}

tokio::task_local! {
    /// Scope of the turn that is polled.
    static SCOPE: TraceScope;
}

impl TraceScope {
    /// Runs a function as a part of the span.
    pub(crate) fn run<T>(&self, run: impl FnOnce() -> T) -> T {
        if self.tracing.is_on() { SCOPE.sync_scope(self.clone(), run) } else { run() }
    }

    /// Returns the scope of the turn that is polled. Empty outside of turns, and without a tracer.
    pub(crate) fn current() -> Self {
        SCOPE.try_with(Self::clone).unwrap_or_default()
    }

    /// Returns the span as a parent.
    pub(crate) fn parent(&self) -> Option<Parent<'_>> {
        self.context.map(|context| Parent { context, state: self.state.as_deref() })
    }

    /// Starts a span below this one.
    pub(crate) fn start(&self, kind: SpanKind, name: impl Into<Cow<'static, str>>) -> Span {
        self.tracing.start(kind, name, self.parent(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn trace_parents_are_validated() {
        assert_eq!(TraceContext::parse(VALID).unwrap().to_header(), VALID);
        assert_eq!(valid_parent(VALID), Some(VALID));
        let later = format!("01{}-more", &VALID[2..]);
        assert_eq!(valid_parent(&later), Some(&later[..55]));
        let invalid = [
            VALID[..54].to_owned(),
            format!("{VALID}-"),
            VALID.to_uppercase(),
            VALID.replacen("00", "ff", 1),
            VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            VALID.replace("00f067aa0ba902b7", &"0".repeat(16)),
            VALID.replace("-0", "0-"),
            "é".repeat(28),
            String::new(),
        ];
        for text in invalid {
            assert_eq!(TraceContext::parse(&text), None, "{text}");
        }
    }

    #[test]
    fn spans_without_a_tracer_are_empty() {
        let mut span = Tracing::default().start(SpanKind::Client, "POST", Parent::parse(Some(VALID), None), None);
        span.set("key", "value");
        span.fail("error");
        assert_eq!((span.context(), size_of::<Span>()), (None, size_of::<&[u8]>()));
        assert_eq!(TraceScope::default().run(|| TraceScope::current().start(SpanKind::Client, "x").context()), None);
    }
}
