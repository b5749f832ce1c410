//! Bindings of protocol 0.3 that implement the service trait of 1.0: gRPC and HTTP+JSON ([`V03Client`]), and JSON-RPC
//! ([`V03RpcClient`]).
//!
//! Agents of 0.2 are called over JSON-RPC too: its methods are the same where both versions have them.

use std::{fmt::Display, sync::Arc, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, metadata::MetadataMap};

use super::{
    A2aService, AgentCard, BoxStream, Call, Error, ErrorKind, Event, StreamResponse, Task, Version,
    http::{JsonRpc, RestBinding},
};
use crate::{
    base::decoding,
    protocol::{
        pb::v1::bindings::{Rpc, each_rpc},
        rpc::{Frame, HttpRule, Remote, Reply, ServiceResult, StreamItem as _, Transport, from_json},
        snapshot::Snapshot,
        v03::{
            METHODS,
            event::Event as V03Event,
            json::{Read, Write},
            pb as v03,
        },
        validate::Violation,
    },
};

/// Returns the HTTP+JSON binding of 0.3.
pub(super) fn rest(rest: RestBinding) -> Arc<dyn A2aService> {
    Arc::new(V03Client(Arc::new(Remote(Explicit(rest)))))
}

/// HTTP+JSON that sends `blocking: false` explicitly, which ProtoJSON would omit. Servers of 0.3 differ in the default.
struct Explicit(RestBinding);

#[tonic::async_trait]
impl Transport for Explicit {
    async fn send(
        &self,
        rpc: &'static str,
        rule: HttpRule,
        mut request: Request<serde_json::Value>,
    ) -> Result<Reply, Status> {
        if let Some(configuration) =
            request.get_mut().get_mut("configuration").and_then(serde_json::Value::as_object_mut)
        {
            configuration.entry("blocking").or_insert(false.into());
        }
        self.0.send(rpc, rule, request).await
    }
}

/// Client of the generated 0.3 service, over gRPC or HTTP+JSON.
pub(super) struct V03Client(pub(super) Arc<dyn v03::a2a_service_server::A2aService>);

/// Sets the version of the request's context.
fn with_version<T>(mut request: Request<T>) -> Request<T> {
    request.extensions_mut().get_or_insert_default::<Call>().version = Version::V0_3;
    request
}

/// Converts a request to 0.3.
fn to_v03<New, Old: From<New>>(request: Request<New>) -> Request<Old> {
    with_version(request.map(Old::from))
}

fn from_v03<Old, New>(reply: ServiceResult<Old>) -> ServiceResult<New>
where
    New: TryFrom<Old, Error: Display>,
{
    let response = reply.map_err(|status| to_v1_status(&status))?;
    let (metadata, message, extensions) = rename_extensions_header(response).into_parts();
    let message = New::try_from(message).map_err(|e| ErrorKind::InvalidAgentResponse.because(e.to_string()))?;
    Ok(Response::from_parts(metadata, message, extensions))
}

fn events(reply: ServiceResult<BoxStream<V03Event>>) -> ServiceResult<BoxStream<Event>> {
    let events = |stream: BoxStream<V03Event>| -> BoxStream<Event> {
        Box::pin(stream.map(|item| item.map(Event::from).map_err(|status| to_v1_status(&status))))
    };
    reply.map(|response| rename_extensions_header(response).map(events)).map_err(|status| to_v1_status(&status))
}

fn rename_extensions_header<T>(mut response: Response<T>) -> Response<T> {
    if let Some(value) = response.metadata_mut().remove("x-a2a-extensions") {
        response.metadata_mut().insert("a2a-extensions", value);
    }
    response
}

/// Rewrites the message of an error from the wording of 0.3 to that of 1.0.
fn to_v1_status(status: &Status) -> Status {
    let error = Error::from(status.clone());
    if error.is_unsent() {
        return status.clone();
    }
    let kind = error.kind();
    let message = status.message();
    let message = message.strip_prefix(&format!("{}: ", kind.v03_name())).unwrap_or(message);
    let (old, new) = (kind.wire_for(Version::V0_3).sentence, kind.wire().sentence);
    let message = message.strip_prefix(old).map_or_else(|| message.to_owned(), |rest| format!("{new}{rest}"));
    let (details, metadata) = (status.details().to_vec().into(), status.metadata().clone());
    Status::with_details_and_metadata(status.code(), message, details, metadata)
}

/// Converts a task, which the service trait of 1.0 returns as a snapshot.
fn snapshot(reply: ServiceResult<v03::Task>) -> ServiceResult<Snapshot> {
    Ok(from_v03::<_, Task>(reply)?.map(Snapshot::from))
}

/// Calls the RPC of 0.3 for the one of 1.0 with this name.
macro_rules! v03_rpc {
    (list_tasks $agent:ident $request:ident) => {{
        _ = ($agent, $request);
        let why = "ListTasks: protocol 0.3 has no such operation over this binding";
        Err(ErrorKind::UnsupportedOperation.because(why).into())
    }};
    (get_task $agent:ident $request:ident) => {
        snapshot($agent.get_task(to_v03($request)).await)
    };
    (cancel_task $agent:ident $request:ident) => {
        snapshot($agent.cancel_task(to_v03($request)).await)
    };
    (send_streaming_message $agent:ident $request:ident) => {
        events($agent.send_streaming_message(to_v03($request)).await)
    };
    (subscribe_to_task $agent:ident $request:ident) => {
        events($agent.task_subscription(to_v03($request)).await)
    };
    (list_task_push_notification_configs $agent:ident $request:ident) => {
        from_v03($agent.list_task_push_notification_config(to_v03($request)).await)
    };
    (get_extended_agent_card $agent:ident $request:ident) => {{
        let request = with_version($request.map(|_| v03::GetAgentCardRequest {}));
        let card = $agent.get_agent_card(request).await.map_err(|status| to_v1_status(&status))?;
        Ok(rename_extensions_header(card).map(AgentCard::from))
    }};
    ($method:ident $agent:ident $request:ident) => {
        from_v03($agent.$method(to_v03($request)).await)
    };
}

macro_rules! over_v03 {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for V03Client { $(
            async fn $method(&self, request: Request<$request>) -> ServiceResult<$response> {
                let agent = &self.0;
                v03_rpc!($method agent request)
            }
        )* }
    };
}

each_rpc!(over_v03);

/// Client of the JSON-RPC methods of 0.3.
pub(super) struct V03RpcClient(pub(super) JsonRpc);

impl V03RpcClient {
    async fn send<T>(&self, rpc: Rpc, request: Request<T>) -> Result<Reply, Status>
    where
        for<'a> Write<'a, T>: Serialize,
    {
        let (metadata, extensions, message) = with_version(request).into_parts();
        let params = serde_json::to_value(Write(&message)).map_err(Error::internal)?;
        let request = Request::from_parts(metadata, extensions, params);
        // JSON-RPC ignores the HTTP rule.
        let method = METHODS.iter().find(|(_, known)| *known == rpc).map_or(rpc.name(), |(method, _)| method);
        self.0.send(method, rpc.http_rule(), request).await.map_err(|status| with_details(&status))
    }

    async fn unary<T, R>(&self, rpc: Rpc, request: Request<T>) -> ServiceResult<R>
    where
        for<'a> Write<'a, T>: Serialize,
        Read<R>: DeserializeOwned + Send + 'static,
    {
        let (data, metadata) = self.send(rpc, request).await?.into_unary()?;
        let Read(result) = decoding::decode(data.len(), move || from_json(&data)).await?;
        Ok(response(result, metadata))
    }

    async fn streaming<T>(&self, rpc: Rpc, request: Request<T>) -> ServiceResult<BoxStream<Event>>
    where
        for<'a> Write<'a, T>: Serialize,
    {
        let (frames, metadata) = self.send(rpc, request).await?.into_stream();
        let mut frames = frames.map(|frame| frame.map_err(|status| with_details(&status))).peekable();
        // JSON-RPC reports a rejected stream as its first event, other bindings as the reply.
        if let Some(Err(status)) = frames.peek().await {
            return Err(status.clone());
        }
        let events = frames.then(async |frame| {
            let frame = frame?;
            decoding::decode(frame.data.approx_len(), move || event(frame)).await
        });
        Ok(response(Box::pin(events), metadata))
    }
}

fn response<T>(message: T, metadata: MetadataMap) -> Response<T> {
    rename_extensions_header(Response::from_parts(metadata, message, tonic::Extensions::new()))
}

fn event(Frame { cursor, data }: Frame) -> Result<Event, Status> {
    let Read(message) = match &**data.bytes() {
        // Not recognized as an event of this version.
        b"{}" => Read::default(),
        json => from_json::<Read<StreamResponse>>(json)?,
    };
    Event::from_frame(Frame { cursor, data: serde_json::to_vec(&message).map_err(Error::internal)?.into() })
}

/// Rewrites an error to the wording of 1.0. Restores the details that servers of this crate have only in the text in 0.3.
fn with_details(status: &Status) -> Status {
    let (error, converted) = (Error::from(status.clone()), to_v1_status(status));
    let kind = error.kind();
    let Some(text) = converted.message().strip_prefix(kind.wire().sentence) else { return converted };
    if error.is_unsent() {
        return converted;
    }
    let (limit, text) = match text.strip_prefix(" (limit ").and_then(|rest| rest.split_once(')')) {
        Some((limit, text)) => (Some(limit), text),
        None => (None, text),
    };
    let text = text.trim_start_matches(": ");
    let mut violations: Vec<Violation> = Vec::new();
    for part in text.split("; ").filter(|_| kind == ErrorKind::InvalidParams) {
        match (part.split_once(": ").filter(|(field, _)| !field.contains(' ')), violations.last_mut()) {
            (Some((field, description)), _) => {
                violations.push(Violation { field: v1_field(field), description: description.to_owned() });
            }
            (None, Some(last)) => last.description.extend(["; ", part]),
            (None, None) => {}
        }
    }
    let mut error = if violations.is_empty() { kind.because(text.to_owned()) } else { Error::invalid(violations) };
    if let Some(limit) = limit {
        error = error.with("limit", limit);
    }
    if let (ErrorKind::TaskNotFound, Some(id)) = (kind, text.split(", ").next()) {
        error = error.with("taskId", id);
    }
    if let (ErrorKind::ContentTypeNotSupported, Some(field)) = (kind, text.split(": ").next()) {
        error = error.with("field", field);
    }
    if let Some(after) = Error::from(converted).retry_after_seconds() {
        error = error.retry_after(Duration::from_secs(after));
    }
    let mut restored = Status::from(error);
    *restored.metadata_mut() = status.metadata().clone();
    restored
}

/// Returns the name in 1.0 of a push notification field of 0.3.
fn v1_field(field: &str) -> String {
    let field = field.replace("authentication.schemes", "authentication.scheme");
    match field.strip_prefix("pushNotificationConfig.") {
        Some(field) => field.to_owned(),
        None => field.replace(".pushNotificationConfig", ".taskPushNotificationConfig"),
    }
}

macro_rules! over_json_rpc {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for V03RpcClient { $(
            async fn $method(&self, request: Request<$request>) -> ServiceResult<$response> {
                self.$by(Rpc::$rpc, request).await
            }
        )* }
    };
}

each_rpc!(over_json_rpc);
