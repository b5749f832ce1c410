//! The calls of 1.0 that the requests were, whichever version they came in, and how they were answered.

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

/// A service that writes down what it is asked, and what another answers.
pub(crate) struct WireLogService(pub(crate) Arc<dyn A2aService>);

/// Writes a call down, and how it was answered.
async fn unary<Req: Serialize, Res: Serialize>(
    rpc: &'static str,
    request: Request<Req>,
    answer: impl AsyncFnOnce(Request<Req>) -> Result<Response<Res>, Status>,
) -> Result<Response<Res>, Status> {
    let span = Span::current();
    line!(&span, "call: {rpc} {}", message(request.get_ref()));
    let answer = answer(request).await;
    match &answer {
        Ok(response) => line!(&span, "answer: {rpc} {}", message(response.get_ref())),
        Err(status) => line!(&span, "answer: {rpc} {}", refusal(status)),
    }
    answer
}

/// The same, event by event.
async fn streaming<Req: Serialize>(
    rpc: &'static str,
    request: Request<Req>,
    answer: impl AsyncFnOnce(Request<Req>) -> Result<Response<BoxStream<Event>>, Status>,
) -> Result<Response<BoxStream<Event>>, Status> {
    let span = Span::current();
    line!(&span, "call: {rpc} {}", message(request.get_ref()));
    match answer(request).await {
        Ok(response) => Ok(response.map(|events| -> BoxStream<Event> {
            Box::pin(events.map(move |it| {
                match &it {
                    Ok(event) => line!(&span, "event: {rpc} {}", message(event)),
                    Err(status) => line!(&span, "event: {rpc} {}", refusal(status)),
                }
                it
            }))
        })),
        Err(status) => {
            line!(&span, "answer: {rpc} {}", refusal(&status));
            Err(status)
        }
    }
}

macro_rules! called {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for WireLogService { $(
            async fn $method(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                $by(Rpc::$rpc.name(), request, async |it| self.0.$method(it).await).await
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
