//! A remote agent whose calls have spans. A span includes the retries of its call, and all events of its stream.

use std::sync::Arc;

use futures_util::StreamExt as _;
use reqwest::Url;
use tonic::{Request, Status};

use super::{A2aService, BoxStream, Call, Error, Event};
use crate::{
    base::trace::{Parent, RequestTrace, Span, SpanKind, TraceScope, Tracing},
    protocol::{
        call::CallRecord,
        message::task_id::OfTask,
        pb::v1::bindings::{Rpc, each_rpc},
        rpc::{ServiceFuture, ServiceResult},
    },
};

/// A remote agent with a tracer.
pub(super) struct Traced {
    agent: Arc<dyn A2aService>,
    tracing: Tracing,
    /// URL of the first interface, if it is known.
    url: Option<Url>,
}

impl Traced {
    /// Adds spans to an agent, if there is a tracer. `url` is that of its first interface.
    pub(super) fn wrap(agent: Arc<dyn A2aService>, tracing: &Tracing, url: Option<&str>) -> Arc<dyn A2aService> {
        if !tracing.is_on() {
            return agent;
        }
        Arc::new(Self { agent, tracing: tracing.clone(), url: url.and_then(|url| Url::parse(url).ok()) })
    }

    /// Begins the span of a call, which passes its context on, and whose retries are events. Its parent is the trace of the call, or
    /// else that of the turn that makes the call.
    fn begin<T: OfTask>(&self, operation: &'static str, request: &mut Request<T>) -> Arc<CallRecord> {
        let scope = TraceScope::current();
        let call = request.extensions().get::<Call>();
        let parent = call.and_then(|call| Parent::parse(call.trace.as_deref(), call.trace_state.as_deref()));
        let mut span = self.tracing.start(SpanKind::Client, operation, parent.or(scope.parent()), None);
        span.set("a2a.method.name", operation);
        span.set_some("server.address", self.url.as_ref().and_then(Url::host_str));
        span.set_some("server.port", self.url.as_ref().and_then(Url::port_or_known_default));
        describe(&mut span, request.get_ref());
        let mut call = request.extensions_mut().remove::<Call>().unwrap_or_default();
        if let Some(context) = span.context() {
            (call.trace, call.trace_state) = (Some(context.to_header()), span.state());
        }
        let record = Arc::new(CallRecord { trace: Some(RequestTrace::of(span)), ..CallRecord::default() });
        call.record = Some(Arc::clone(&record));
        request.extensions_mut().insert(call);
        record
    }
}

/// Returns the span of a call, to be ended.
fn take(call: &CallRecord) -> Span {
    call.trace.as_ref().map(RequestTrace::take).unwrap_or_default()
}

/// Sets the ids of a request or a response.
fn describe(span: &mut Span, message: &impl OfTask) {
    span.set_some("a2a.task.id", message.task_id().filter(|id| !id.is_empty()));
    if let Some((id, context)) = message.message_ids() {
        span.set("a2a.message.id", id);
        span.set_some("gen_ai.conversation.id", Some(context).filter(|id| !id.is_empty()));
    }
}

fn fail(span: &mut Span, status: &Status) {
    span.fail(Error::from(status.clone()).kind().wire().reason);
}

async fn unary<T: OfTask>(call: Arc<CallRecord>, response: ServiceFuture<'_, T>) -> ServiceResult<T> {
    let response = response.await;
    let mut span = take(&call);
    let response = response.inspect_err(|status| fail(&mut span, status))?;
    describe(&mut span, response.get_ref());
    Ok(response)
}

async fn streaming(
    call: Arc<CallRecord>,
    response: ServiceFuture<'_, BoxStream<Event>>,
) -> ServiceResult<BoxStream<Event>> {
    let response = response.await.inspect_err(|status| fail(&mut take(&call), status))?;
    let mut stream = StreamSpan { call, count: 0 };
    Ok(response.map(|events| -> BoxStream<Event> { Box::pin(events.inspect(move |item| stream.record(item))) }))
}

/// Span of a stream, which ends with it.
struct StreamSpan {
    call: Arc<CallRecord>,
    count: u64,
}

impl StreamSpan {
    fn record(&mut self, item: &Result<Event, Status>) {
        let Some(trace) = &self.call.trace else { return };
        match item {
            Ok(event) => {
                if self.count == 0 {
                    trace.with(|span| {
                        span.event("first_event");
                        span.set_some("a2a.task.id", event.task_id());
                    });
                }
                self.count += 1;
            }
            Err(status) => trace.with(|span| fail(span, status)),
        }
    }
}

impl Drop for StreamSpan {
    fn drop(&mut self) {
        take(&self.call).set("a2a_service.stream.events", self.count);
    }
}

macro_rules! traced {
    ($($kind:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        impl A2aService for Traced { $(
            fn $method<'a, 'b>(&'a self, mut request: Request<$request>) -> ServiceFuture<'b, $response>
            where
                'a: 'b,
                Self: 'b,
            {
                let span = self.begin(Rpc::$rpc.name(), &mut request);
                Box::pin($kind(span, self.agent.$method(request)))
            }
        )* }
    };
}

each_rpc!(traced);
