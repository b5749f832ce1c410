//! Observation of calls: their metrics, and their details for the request log.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};

use crate::{
    base::metric,
    protocol::{
        call::{Call, CallRecord},
        error::{self, Error, ErrorKind},
        event::{Ends, Event},
        message::task_id::OfTask,
        pb::v1::{
            TaskStatus,
            a2a_service_server::A2aService,
            bindings::{Rpc, each_rpc},
            stream_response::Payload,
        },
        rpc::{BoxStream, ServiceFuture},
    },
    service::streams::STREAM_MAX_AGE,
};

/// Service wrapper that records the metrics of each call, and its details in its [`CallRecord`], if it has one.
pub(crate) struct ObservedService {
    service: Arc<dyn A2aService>,
    /// Name of the agent, in a server with several.
    agent: Option<Arc<str>>,
    is_metered: bool,
}

impl ObservedService {
    /// Wraps a service. Without metrics, only calls with a record are observed.
    pub(crate) fn new(service: Arc<dyn A2aService>, agent: Option<Arc<str>>, is_metered: bool) -> Self {
        Self { service, agent, is_metered }
    }

    /// Begins the observation of a call. `None` if there is nothing to observe.
    fn observe<T: OfTask>(&self, operation: &'static str, request: &Request<T>) -> Option<ObservedCall> {
        let call = Call::of(request).ok()?;
        let record = call.record.clone();
        if let Some(record) = &record {
            record.operation(operation);
            record.task(request.get_ref().task_id());
            record.message(self.agent.as_deref(), request.get_ref().message_ids());
        }
        let labels = self.is_metered.then(|| [operation, call.binding.name(), call.version.as_str()]);
        if labels.is_none() && record.is_none() {
            return None;
        }
        let (agent, start) = (self.agent.clone(), Instant::now());
        Some(ObservedCall { agent, labels, record, start, code: None })
    }
}

/// Call that is observed until it ends. A call that is dropped before has no code: its client has gone.
struct ObservedCall {
    agent: Option<Arc<str>>,
    /// Operation, binding and version, if the call is counted.
    labels: Option<[&'static str; 3]>,
    record: Option<Arc<CallRecord>>,
    start: Instant,
    code: Option<Code>,
}

impl ObservedCall {
    /// Records the reply, and the task that it names.
    fn reply<T: OfTask>(&mut self, result: &Result<Response<T>, Status>) {
        if let Some([operation, binding, _]) = self.labels {
            metric::CALL_DURATION.observe(self.agent.as_ref(), &[operation, binding], self.start.elapsed());
        }
        if let (Some(record), Ok(response)) = (&self.record, result) {
            record.task(response.get_ref().task_id());
            record.state(response.get_ref().task_state());
        }
    }
}

impl Drop for ObservedCall {
    fn drop(&mut self) {
        if let Some([operation, binding, version]) = self.labels {
            let code = error::code_name(self.code.unwrap_or(Code::Cancelled));
            metric::CALLS.add(self.agent.as_ref(), &[operation, binding, version, code], 1);
        }
    }
}

/// Observes a unary call.
async fn unary<T: OfTask>(mut call: ObservedCall, response: ServiceFuture<'_, T>) -> Result<Response<T>, Status> {
    let result = response.await;
    call.code = Some(result.as_ref().map_or_else(Status::code, |_| Code::Ok));
    call.reply(&result);
    result
}

/// Observes a streaming call until its stream ends.
async fn streaming(
    mut call: ObservedCall,
    response: ServiceFuture<'_, BoxStream<Event>>,
) -> Result<Response<BoxStream<Event>>, Status> {
    let result = response.await;
    call.code = result.as_ref().err().map(Status::code);
    call.reply(&result);
    let response = result?;
    if let Some([operation, binding, _]) = call.labels {
        metric::STREAMS.adjust(call.agent.as_ref(), &[operation, binding], 1);
    }
    let observed = |events| ObservedEvents { events, call, is_first: true, sent: None, end: None };
    Ok(response.map(|events| -> BoxStream<Event> { Box::pin(observed(events)) }))
}

/// Stream of an observed call.
struct ObservedEvents {
    events: BoxStream<Event>,
    call: ObservedCall,
    is_first: bool,
    /// Time of the last event, until the client has taken it.
    sent: Option<Instant>,
    /// Label of the end of the stream. `None` while the client has not seen it.
    end: Option<&'static str>,
}

/// Time after which a client that has not taken an event is too slow. The transport then disconnects it soon.
const SLOW: Duration = Duration::from_secs(30);

/// Returns the label of an error that ends a stream.
fn end_of(status: &Status) -> &'static str {
    match Error::from(status.clone()) {
        error if error.metadata("limit") == Some(STREAM_MAX_AGE) => "max_age",
        error if error.kind() == ErrorKind::Unavailable => "drain",
        _ => "error",
    }
}

impl Stream for ObservedEvents {
    type Item = Result<Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.sent = None;
        let item = ready!(self.events.as_mut().poll_next(cx));
        match &item {
            None => {
                self.call.code = Some(Code::Ok);
                self.end.get_or_insert("completed");
            }
            Some(Err(status)) => {
                self.call.code = Some(status.code());
                self.end = Some(end_of(status));
            }
            Some(Ok(event)) => {
                let is_first = std::mem::take(&mut self.is_first);
                if let Some([operation, binding, _]) = self.call.labels {
                    let (agent, labels) = (self.call.agent.as_ref(), [operation, binding]);
                    metric::STREAM_EVENTS.add(agent, &labels, 1);
                    if is_first {
                        metric::FIRST_EVENT.observe(agent, &labels, self.call.start.elapsed());
                    }
                    self.sent = Some(Instant::now());
                }
                if let Some(record) = &self.call.record {
                    record.sent_event();
                    if is_first {
                        record.task(event.task_id());
                    }
                    if record.trace.is_some() && event.ends() != Ends::Nothing {
                        let status = event.payload().and_then(Payload::status);
                        record.state(status.map(TaskStatus::state).unwrap_or_default());
                    }
                }
            }
        }
        Poll::Ready(item)
    }
}

impl Drop for ObservedEvents {
    fn drop(&mut self) {
        if let Some([operation, binding, _]) = self.call.labels {
            let is_slow = self.sent.is_some_and(|sent| sent.elapsed() >= SLOW);
            let end = self.end.unwrap_or(if is_slow { "slow" } else { "client_gone" });
            metric::STREAMS.adjust(self.call.agent.as_ref(), &[operation, binding], -1);
            metric::STREAM_DURATION.observe(self.call.agent.as_ref(), &[end], self.call.start.elapsed());
        }
    }
}

macro_rules! observed {
    ($($kind:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        impl A2aService for ObservedService { $(
            fn $method<'a, 'b>(&'a self, request: Request<$request>) -> ServiceFuture<'b, $response>
            where
                'a: 'b,
                Self: 'b,
            {
                let observed = self.observe(Rpc::$rpc.name(), &request);
                let response = self.service.$method(request);
                match observed {
                    Some(call) => Box::pin($kind(call, response)),
                    None => response,
                }
            }
        )* }
    };
}

each_rpc!(observed);

debug_fields!(ObservedService { is_metered });
