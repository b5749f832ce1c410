//! Spans of OpenTelemetry.

use std::borrow::Cow;

use opentelemetry::{
    Context, KeyValue, Value as OtelValue,
    global::{BoxedSpan, BoxedTracer},
    trace::{
        Span as _, SpanBuilder, SpanContext, SpanId, SpanKind as OtelKind, Status, TraceContextExt as _, TraceFlags,
        TraceId, TraceState, Tracer as _,
    },
};

use super::{Attribute, Parent, Recorder, SpanKind, Start, TraceContext, Tracer, Value};

/// Tracer of the program.
pub(crate) struct OtelTracer(pub(crate) BoxedTracer);

impl Tracer for OtelTracer {
    fn start(&self, start: Start<'_>) -> Box<dyn Recorder> {
        let Start { name, kind, parent, at } = start;
        let mut builder = SpanBuilder::from_name(name).with_kind(match kind {
            SpanKind::Server | SpanKind::ServerChild => OtelKind::Server,
            SpanKind::Internal => OtelKind::Internal,
            SpanKind::Client => OtelKind::Client,
        });
        builder.start_time = at;
        // Not the current context: a turn continues after its request, in a task of its own.
        let context = match parent {
            Some(parent) => Context::new().with_remote_span_context(span_context(&parent, kind == SpanKind::Server)),
            None => Context::new(),
        };
        Box::new(OtelSpan(self.0.build_with_context(builder, &context)))
    }
}

fn span_context(parent: &Parent<'_>, is_remote: bool) -> SpanContext {
    let (ids, state) = (parent.context.0, parent.state.and_then(|state| state.parse().ok()));
    let (mut trace, mut span) = ([0; 16], [0; 8]);
    trace.copy_from_slice(&ids[..16]);
    span.copy_from_slice(&ids[16..24]);
    let (trace, span) = (TraceId::from_bytes(trace), SpanId::from_bytes(span));
    SpanContext::new(trace, span, TraceFlags::new(ids[24]), is_remote, state.unwrap_or(TraceState::NONE))
}

struct OtelSpan(BoxedSpan);

impl Recorder for OtelSpan {
    fn set(&mut self, attribute: Attribute<'_>) {
        if self.0.is_recording() {
            self.0.set_attribute(key_value(&attribute));
        }
    }

    fn event(&mut self, name: &'static str, attributes: &[Attribute<'_>]) {
        if self.0.is_recording() {
            self.0.add_event(name, attributes.iter().map(key_value).collect());
        }
    }

    fn link(&mut self, context: TraceContext, attributes: &[Attribute<'_>]) {
        if self.0.is_recording() {
            let linked = span_context(&Parent { context, state: None }, true);
            self.0.add_link(linked, attributes.iter().map(key_value).collect());
        }
    }

    fn rename(&mut self, name: Cow<'static, str>) {
        self.0.update_name(name);
    }

    fn fail(&mut self) {
        self.0.set_status(Status::error(""));
    }

    fn context(&self) -> Option<TraceContext> {
        let context = self.0.span_context();
        let mut bytes = [0; 25];
        bytes[..16].copy_from_slice(&context.trace_id().to_bytes());
        bytes[16..24].copy_from_slice(&context.span_id().to_bytes());
        bytes[24] = context.trace_flags().to_u8();
        context.is_valid().then_some(TraceContext(bytes))
    }

    fn state(&self) -> Option<String> {
        Some(self.0.span_context().trace_state().header()).filter(|state| !state.is_empty())
    }
}

fn key_value((key, value): &Attribute<'_>) -> KeyValue {
    let value = match *value {
        Value::Text(text) => OtelValue::from(text.to_owned()),
        Value::Integer(number) => number.into(),
        Value::Float(number) => number.into(),
        Value::Bool(flag) => flag.into(),
        Value::List(text) => OtelValue::Array(vec![opentelemetry::StringValue::from(text.to_owned())].into()),
    };
    KeyValue::new(*key, value)
}
