//! Service layer of the wire log: logs each request as its protocol 1.0 call, and the result or the events.

use std::{fmt, sync::Arc};

use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status};
use tracing::Span;

use super::{TARGET, line, refusal, text::message};
use crate::{
    contract::BoxStream,
    event::Event,
    pb::v1::{
        a2a_service_server::A2aService,
        bindings::{Rpc, each_rpc},
    },
};

/// Service wrapper that logs the calls to another service and their results.
pub(crate) struct WireLogService(pub(crate) Arc<dyn A2aService>);

/// Logs a unary call and its result.
async fn unary<Req: Serialize, Res: Serialize>(
    rpc: &'static str,
    request: Request<Req>,
    handler: impl AsyncFnOnce(Request<Req>) -> Result<Response<Res>, Status>,
) -> Result<Response<Res>, Status> {
    let span = Span::current();
    line!(&span, "call: {rpc} {}", message(request.get_ref()));
    let result = handler(request).await;
    match &result {
        Ok(response) => line!(&span, "result: {rpc} {}", message(response.get_ref())),
        Err(status) => line!(&span, "result: {rpc} {}", refusal(status)),
    }
    result
}

/// Logs a streaming call and its events.
async fn streaming<Req: Serialize>(
    rpc: &'static str,
    request: Request<Req>,
    handler: impl AsyncFnOnce(Request<Req>) -> Result<Response<BoxStream<Event>>, Status>,
) -> Result<Response<BoxStream<Event>>, Status> {
    let span = Span::current();
    line!(&span, "call: {rpc} {}", message(request.get_ref()));
    match handler(request).await {
        Ok(response) => Ok(response.map(|events| -> BoxStream<Event> {
            Box::pin(events.map(move |event| {
                match &event {
                    Ok(event) => line!(&span, "event: {rpc} {}", message(event)),
                    Err(status) => line!(&span, "event: {rpc} {}", refusal(status)),
                }
                event
            }))
        })),
        Err(status) => {
            line!(&span, "result: {rpc} {}", refusal(&status));
            Err(status)
        }
    }
}

macro_rules! called {
    ($($kind:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for WireLogService { $(
            async fn $method(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                $kind(Rpc::$rpc.name(), request, async |request| self.0.$method(request).await).await
            }
        )* }
    };
}

each_rpc!(called);

impl fmt::Debug for WireLogService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Called").finish_non_exhaustive()
    }
}
