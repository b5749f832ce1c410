//! Trace context of W3C, and spans. Without a tracer, spans are empty: nothing is allocated or measured.

use std::{
    borrow::Cow,
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use parking_lot::Mutex;

#[cfg(feature = "trace")]
pub(crate) mod opentelemetry;

/// Maximum length of a `tracestate` in bytes. A longer one is not passed on.
pub(crate) const MAX_STATE: usize = 512;

/// Maximum length of a text in an attribute of a span in bytes.
const MAX_TEXT: usize = 256;

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
        let version = &known[..2];
        let mut bytes = [0; 25];
        let digits = known.bytes().skip(3).filter(|byte| *byte != b'-').map(|byte| match byte {
            b'a'..=b'f' => byte - b'a' + 10,
            _ => byte - b'0',
        });
        digits.enumerate().for_each(|(index, digit)| bytes[index / 2] |= digit << (4 * (1 - index % 2)));
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let is_valid = version != "ff"
            && !is_zero(&bytes[..16])
            && !is_zero(&bytes[16..24])
            && (rest.is_empty() || version != "00" && rest.starts_with('-'));
        is_valid.then_some(Self(bytes))
    }

    /// Returns the `traceparent`.
    pub(crate) fn to_header(self) -> String {
        format!("00-{}-{}-{:02x}", self.trace_id(), self.span_id(), self.0[24])
    }

    /// Trace id in hexadecimal digits.
    pub(crate) fn trace_id(&self) -> impl fmt::Display + '_ {
        Hex(&self.0[..16])
    }

    /// Span id in hexadecimal digits.
    pub(crate) fn span_id(&self) -> impl fmt::Display + '_ {
        Hex(&self.0[16..24])
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_header())
    }
}

/// Bytes in hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
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

/// Value of an attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Integer(i64),
    Float(f64),
    Bool(bool),
    /// List of one text.
    List(&'a str),
}

macro_rules! values {
    ($($type:ty => |$value:ident| $converted:expr;)*) => { $(
        impl<'a> From<$type> for Value<'a> {
            fn from($value: $type) -> Self {
                $converted
            }
        }
    )* };
}

values! {
    &'a str => |text| Self::Text(text);
    &'a String => |text| Self::Text(text);
    i64 => |number| Self::Integer(number);
    u16 => |number| Self::Integer(number.into());
    u32 => |number| Self::Integer(number.into());
    u64 => |number| Self::Integer(number.try_into().unwrap_or(i64::MAX));
    usize => |number| Self::Integer(number.try_into().unwrap_or(i64::MAX));
    f64 => |number| Self::Float(number);
    bool => |flag| Self::Bool(flag);
}

impl Value<'_> {
    /// Returns the beginning of a text that an attribute may have.
    fn shortened(self, max: usize) -> Self {
        let cut = |text: &str| text.floor_char_boundary(max.min(text.len()));
        match self {
            Self::Text(text) => Self::Text(&text[..cut(text)]),
            Self::List(text) => Self::List(&text[..cut(text)]),
            other @ (Self::Integer(_) | Self::Float(_) | Self::Bool(_)) => other,
        }
    }
}

/// Attribute of a span, of an event or of a link.
pub(crate) type Attribute<'a> = (&'static str, Value<'a>);

/// Start of a span.
pub(crate) struct Start<'a> {
    pub(crate) name: Cow<'static, str>,
    pub(crate) kind: SpanKind,
    pub(crate) parent: Option<Parent<'a>>,
    /// Time of the start, if it is not now.
    pub(crate) at: Option<SystemTime>,
}

/// Source of spans.
pub(crate) trait Tracer: Send + Sync {
    fn start(&self, start: Start<'_>) -> Box<dyn Recorder>;
}

/// Span of a tracer. It ends when it is dropped.
pub(crate) trait Recorder: Send + Sync {
    fn set(&mut self, attribute: Attribute<'_>);
    fn event(&mut self, name: &'static str, attributes: &[Attribute<'_>]);
    fn link(&mut self, context: TraceContext, attributes: &[Attribute<'_>]);
    fn rename(&mut self, name: Cow<'static, str>);
    fn fail(&mut self);
    /// `None` if the tracer has no ids.
    fn context(&self) -> Option<TraceContext>;
    fn state(&self) -> Option<String>;
}

/// A tracer is in use: details of calls are recorded for spans.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Returns true if there has been a tracer in this process.
pub(crate) fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Tracer of a server or a client, if it has one. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tracing {
    tracer: Option<Arc<dyn Tracer>>,
    /// Spans have the contents of messages.
    pub(crate) has_content: bool,
}

impl Tracing {
    /// Traces with a tracer.
    #[cfg(feature = "trace")]
    pub(crate) fn of(tracer: ::opentelemetry::global::BoxedTracer) -> Self {
        let tracer = opentelemetry::OtelTracer(tracer);
        IS_USED.store(true, Ordering::Relaxed);
        Self { tracer: Some(Arc::new(tracer)), has_content: false }
    }

    /// Returns true if there is a tracer.
    pub(crate) fn is_on(&self) -> bool {
        self.tracer.is_some()
    }

    /// Starts a span. An empty one without a tracer.
    pub(crate) fn start(&self, kind: SpanKind, name: impl Into<Cow<'static, str>>, parent: Option<Parent<'_>>) -> Span {
        self.start_at(kind, name, parent, None)
    }

    /// Starts a span with an earlier start.
    pub(crate) fn start_at(
        &self,
        kind: SpanKind,
        name: impl Into<Cow<'static, str>>,
        parent: Option<Parent<'_>>,
        at: Option<SystemTime>,
    ) -> Span {
        let start = |tracer: &Arc<dyn Tracer>| tracer.start(Start { name: name.into(), kind, parent, at });
        Span(self.tracer.as_ref().map(start))
    }
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tracing").field(&self.is_on()).finish()
    }
}

/// Span of a call, a turn or a request. Empty without a tracer. It ends when it is dropped.
#[derive(Default)]
pub(crate) struct Span(Option<Box<dyn Recorder>>);

impl Span {
    /// Sets an attribute. Of a text, the first 256 bytes.
    pub(crate) fn set<'a>(&mut self, key: &'static str, value: impl Into<Value<'a>>) {
        if let Some(span) = &mut self.0 {
            span.set((key, value.into().shortened(MAX_TEXT)));
        }
    }

    /// Sets an attribute, unless there is no value.
    pub(crate) fn set_some<'a>(&mut self, key: &'static str, value: Option<impl Into<Value<'a>>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// Sets an attribute to content, which is up to 8 KiB long.
    pub(crate) fn set_content(&mut self, key: &'static str, text: &str) {
        if let Some(span) = &mut self.0 {
            span.set((key, Value::Text(text).shortened(MAX_CONTENT)));
        }
    }

    /// Adds an event.
    pub(crate) fn event(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        if let Some(span) = &mut self.0 {
            span.event(name, attributes);
        }
    }

    /// Links another span, which has this relation to the span.
    pub(crate) fn link(&mut self, relation: &'static str, context: TraceContext) {
        if let Some(span) = &mut self.0 {
            span.link(context, &[("a2a_service.link", Value::Text(relation))]);
        }
    }

    /// Replaces the name.
    pub(crate) fn rename(&mut self, name: impl Into<Cow<'static, str>>) {
        if let Some(span) = &mut self.0 {
            span.rename(name.into());
        }
    }

    /// Marks the span as failed, for this reason, which is one of a bounded number.
    pub(crate) fn fail(&mut self, error_type: &str) {
        if let Some(span) = &mut self.0 {
            span.fail();
            span.set(("error.type", Value::Text(error_type).shortened(MAX_TEXT)));
        }
    }

    /// Context of the span, also if it is not exported.
    pub(crate) fn context(&self) -> Option<TraceContext> {
        self.0.as_ref()?.context()
    }

    /// `traceparent` of requests that the span is about.
    pub(crate) fn header(&self) -> Option<String> {
        self.context().map(TraceContext::to_header)
    }

    /// `tracestate` of the span, if there is one.
    pub(crate) fn state(&self) -> Option<String> {
        self.0.as_ref()?.state()
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.context()).finish()
    }
}

/// Span of a request, which begins when it is known who calls.
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

    /// Returns the trace of a part of the request, whose span has begun.
    pub(crate) fn part(&self, parent: Option<Parent<'_>>) -> Self {
        let span = self.tracing.start(SpanKind::ServerChild, "request", parent);
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
            let mut span = self.tracing.start_at(SpanKind::Server, "request", parent, Some(self.started));
            if let (None, Some(caller)) = (parent, caller) {
                span.link("caller", caller.context);
            }
            span
        });
        Some((span.context()?, span.state()))
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

impl fmt::Debug for RequestTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestTrace").field(&self.span).finish()
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

    /// Returns true if spans have contents.
    pub(crate) fn has_content(&self) -> bool {
        self.tracing.is_on() && self.tracing.has_content
    }

    /// Starts a span below this one.
    pub(crate) fn start(&self, kind: SpanKind, name: impl Into<Cow<'static, str>>) -> Span {
        self.start_at(kind, name, None)
    }

    /// Starts a span below this one, with an earlier start.
    pub(crate) fn start_at(&self, kind: SpanKind, name: impl Into<Cow<'static, str>>, at: Option<SystemTime>) -> Span {
        let parent = self.context.map(|context| Parent { context, state: self.state.as_deref() });
        self.tracing.start_at(kind, name, parent, at)
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
        let mut span = Tracing::default().start(SpanKind::Client, "POST", Parent::parse(Some(VALID), None));
        span.set("key", "value");
        span.fail("error");
        assert_eq!((span.context(), size_of::<Span>()), (None, size_of::<&[u8]>()));
        assert_eq!(TraceScope::default().run(|| TraceScope::current().start(SpanKind::Client, "x").context()), None);
    }

    #[test]
    fn texts_of_attributes_are_bounded() {
        let text = "é".repeat(200);
        let Value::Text(short) = Value::Text(&text).shortened(255) else { panic!() };
        assert_eq!(short.len(), 254);
    }
}
