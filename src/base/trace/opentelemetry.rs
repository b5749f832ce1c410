//! Spans of OpenTelemetry.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use opentelemetry::{
    Context, KeyValue, StringValue, Value as OtelValue,
    global::{BoxedSpan, BoxedTracer},
    trace::{
        Span as _, SpanBuilder, SpanContext, SpanId, SpanKind as OtelKind, Status, TraceContextExt as _, TraceFlags,
        TraceId, Tracer as _,
    },
};
use serde_json::Value;

use super::{MAX_CONTENT, Parent, SpanKind, TraceContext};

/// Maximum length of a text in an attribute of a span in bytes.
const MAX_TEXT: usize = 256;

/// A tracer is in use: details of calls are recorded for spans.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Returns true if there has been a tracer in this process.
pub(crate) fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Tracer of a server or a client, if it has one. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tracing {
    tracer: Option<Arc<BoxedTracer>>,
    /// Spans have the contents of messages.
    pub(crate) has_content: bool,
}

impl Tracing {
    /// Traces with a tracer.
    pub(crate) fn of(tracer: BoxedTracer) -> Self {
        IS_USED.store(true, Ordering::Relaxed);
        Self { tracer: Some(Arc::new(tracer)), has_content: false }
    }

    /// Returns true if there is a tracer.
    pub(crate) fn is_on(&self) -> bool {
        self.tracer.is_some()
    }

    /// Starts a span, now or at an earlier time. An empty one without a tracer.
    pub(crate) fn start(
        &self,
        kind: SpanKind,
        name: impl Into<Cow<'static, str>>,
        parent: Option<Parent<'_>>,
        at: Option<SystemTime>,
    ) -> Span {
        let Some(tracer) = &self.tracer else { return Span::default() };
        let mut builder = SpanBuilder::from_name(name).with_kind(match kind {
            SpanKind::Server | SpanKind::ServerChild => OtelKind::Server,
            SpanKind::Internal => OtelKind::Internal,
            SpanKind::Client => OtelKind::Client,
        });
        builder.start_time = at;
        // Not the current context: a turn continues after its request, in a task of its own.
        let mut context = Context::new();
        if let Some(parent) = parent {
            context = context.with_remote_span_context(span_context(&parent, kind == SpanKind::Server));
        }
        Span(Some(tracer.build_with_context(builder, &context)))
    }
}

fn span_context(parent: &Parent<'_>, is_remote: bool) -> SpanContext {
    let (ids, state) = (parent.context.0, parent.state.and_then(|state| state.parse().ok()));
    let trace = TraceId::from_bytes(ids[..16].try_into().unwrap_or_default());
    let span = SpanId::from_bytes(ids[16..24].try_into().unwrap_or_default());
    SpanContext::new(trace, span, TraceFlags::new(ids[24]), is_remote, state.unwrap_or_default())
}

/// Span of a call, a turn or a request. Empty without a tracer. It ends when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Span(Option<BoxedSpan>);

impl Span {
    fn recording(&mut self) -> Option<&mut BoxedSpan> {
        self.0.as_mut().filter(|span| span.is_recording())
    }

    /// Sets an attribute. Of a text, the first 256 bytes.
    pub(crate) fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(span) = self.recording() {
            span.set_attribute(KeyValue::new(key, attribute(value.into(), MAX_TEXT)));
        }
    }

    /// Sets an attribute to content, which is up to 8 KiB long.
    pub(crate) fn set_content(&mut self, key: &'static str, text: &str) {
        if let Some(span) = self.recording() {
            span.set_attribute(KeyValue::new(key, attribute(text.into(), MAX_CONTENT)));
        }
    }

    /// Adds an event.
    pub(crate) fn event(&mut self, name: &'static str) {
        if let Some(span) = self.recording() {
            span.add_event(name, Vec::new());
        }
    }

    /// Adds the event of a retry, which is made after an error and a delay.
    pub(crate) fn retry(&mut self, attempt: u32, error_type: &'static str, delay: Duration) {
        if let Some(span) = self.recording() {
            let attempt = KeyValue::new("a2a_service.retry.attempt", i64::from(attempt));
            let delay = KeyValue::new("a2a_service.retry.delay", delay.as_secs_f64());
            span.add_event("retry", vec![attempt, KeyValue::new("error.type", error_type), delay]);
        }
    }

    /// Links another span, which has this relation to the span.
    pub(crate) fn link(&mut self, relation: &'static str, context: TraceContext) {
        if let Some(span) = self.recording() {
            let linked = span_context(&Parent { context, state: None }, true);
            span.add_link(linked, vec![KeyValue::new("a2a_service.link", relation)]);
        }
    }

    /// Replaces the name.
    pub(crate) fn rename(&mut self, name: impl Into<Cow<'static, str>>) {
        if let Some(span) = self.recording() {
            span.update_name(name);
        }
    }

    /// Marks the span as failed, for this reason, which is one of a bounded number.
    pub(crate) fn fail(&mut self, error_type: &str) {
        if let Some(span) = self.recording() {
            span.set_status(Status::error(""));
        }
        self.set("error.type", error_type);
    }

    /// Context of the span, also if it is not exported. `None` if the tracer has no ids.
    pub(crate) fn context(&self) -> Option<TraceContext> {
        let context = self.0.as_ref()?.span_context();
        let mut bytes = [0; 25];
        bytes[..16].copy_from_slice(&context.trace_id().to_bytes());
        bytes[16..24].copy_from_slice(&context.span_id().to_bytes());
        bytes[24] = context.trace_flags().to_u8();
        context.is_valid().then_some(TraceContext(bytes))
    }

    /// `tracestate` of the span, if there is one.
    pub(crate) fn state(&self) -> Option<String> {
        Some(self.0.as_ref()?.span_context().trace_state().header()).filter(|state| !state.is_empty())
    }
}

/// Returns the value of an attribute. Of a text, the beginning.
fn attribute(value: Value, max: usize) -> OtelValue {
    match value {
        Value::String(mut text) => {
            text.truncate(text.floor_char_boundary(max));
            text.into()
        }
        Value::Bool(flag) => flag.into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64().unwrap_or_default().into(),
        },
        Value::Array(texts) => {
            let texts = texts.iter().filter_map(Value::as_str).map(|text| StringValue::from(text.to_owned()));
            OtelValue::Array(texts.collect::<Vec<_>>().into())
        }
        other @ (Value::Null | Value::Object(_)) => other.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_attributes_are_bounded() {
        assert_eq!(attribute("é".repeat(200).into(), 255).as_str().len(), 254);
    }
}
