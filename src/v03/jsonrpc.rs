//! The methods of classic JSON-RPC (0.3, 7) over the service of 1.0: what they are called, and what they read and write.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use prost::Message as _;
use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::{Response, Status, metadata::MetadataMap};

use super::{
    card, event,
    grpc::classic_names,
    json::{Classic, PushRegistration, V02Send, Webhook, Write},
    push_extras::PushExtras,
    semantics::Semantics,
};
use crate::{
    call::Call,
    contract::{BoxStream, Dispatch, Reply, Request, Route, decode, line},
    error::{Error, ErrorKind},
    event::Event,
    pb::v1::{
        GetExtendedAgentCardRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest, SendMessageRequest,
        TaskPushNotificationConfig,
        a2a_service_server::A2aService,
        bindings::{Checked, each_rpc},
    },
    seam,
    snapshot::decoded,
};

/// A service of 1.0, for callers of classic JSON-RPC.
#[derive(Clone)]
pub struct Methods(pub Arc<dyn A2aService>);

/// What a caller of classic JSON-RPC can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `message/send`
    Send,
    /// `message/stream`
    Stream,
    /// `tasks/send`, before 0.2.
    SendBefore,
    /// `tasks/sendSubscribe`, before 0.2.
    StreamBefore,
    /// `tasks/get`
    Get,
    /// `tasks/list`, which some servers of 0.3 have and its text has not.
    List,
    /// `tasks/cancel`
    Cancel,
    /// `tasks/resubscribe`
    Resubscribe,
    /// `tasks/pushNotificationConfig/set`
    SetPush,
    /// `tasks/pushNotificationConfig/get`
    GetPush,
    /// `tasks/pushNotificationConfig/list`
    ListPush,
    /// `tasks/pushNotificationConfig/delete`
    DeletePush,
    /// `agent/getAuthenticatedExtendedCard`
    Card,
}

impl Dispatch for Methods {
    type Rpc = Method;

    const ACTIONS: &'static [&'static str] = &[];

    const VERBS: &'static [&'static str] = &[];

    fn rpc(name: &str) -> Option<Method> {
        Some(match name {
            "message/send" => Method::Send,
            "message/stream" => Method::Stream,
            "tasks/send" => Method::SendBefore,
            "tasks/sendSubscribe" => Method::StreamBefore,
            "tasks/get" => Method::Get,
            "tasks/list" => Method::List,
            "tasks/cancel" => Method::Cancel,
            "tasks/resubscribe" => Method::Resubscribe,
            "tasks/pushNotificationConfig/set" | "tasks/pushNotification/set" => Method::SetPush,
            "tasks/pushNotificationConfig/get" | "tasks/pushNotification/get" => Method::GetPush,
            "tasks/pushNotificationConfig/list" => Method::ListPush,
            "tasks/pushNotificationConfig/delete" => Method::DeletePush,
            // The second is how 0.3 has it in 11.1.3.
            "agent/getAuthenticatedExtendedCard" | "agent/authenticatedExtendedCard" => Method::Card,
            _ => return None,
        })
    }

    fn is_streaming(method: Method) -> bool {
        matches!(method, Method::Stream | Method::StreamBefore | Method::Resubscribe)
    }

    fn is_silent(method: Method) -> bool {
        method == Method::DeletePush
    }

    fn is_read(method: Method) -> bool {
        matches!(method, Method::Get | Method::List | Method::GetPush | Method::ListPush | Method::Card)
    }

    fn route(_: &str, _: &[&str], _: &str) -> Option<Route<Method>> {
        None
    }

    async fn call(&self, method: Method, request: Request<'_>) -> Result<Reply, Status> {
        self.answer(method, request).await.map(told).map_err(|status| refusal(method, status))
    }
}

/// Service for calls without an id: refuses each call whose parameters have passed their checks, and does nothing.
struct WithoutId;

macro_rules! refuse {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for WithoutId { $(
            async fn $method(&self, _: tonic::Request<$request>) -> Result<Response<$response>, Status> {
                Err(ErrorKind::InvalidRequest.because("`id` is missing").into())
            }
        )* }
    };
}

each_rpc!(refuse);

impl Methods {
    /// Methods for calls without an id, which are no notifications at 0.3. The error of a method's parameters comes first,
    /// as with the first servers of 0.3, and nothing is done in any case.
    pub fn without_id() -> Self {
        Self(Arc::new(Semantics::new(Arc::new(Checked(Arc::new(WithoutId))))))
    }

    async fn answer(&self, method: Method, request: Request<'_>) -> Result<Reply, Status> {
        let service = &*self.0;
        let reply = match method {
            Method::Send => unary(service.send_message(sent(read(request)?)?.0).await?),
            Method::Stream => Ok(streaming(service.send_streaming_message(sent(read(request)?)?.0).await?)),
            Method::SendBefore => unary(service.send_message(Box::pin(self.earlier(request)).await?).await?),
            Method::StreamBefore => {
                Ok(streaming(service.send_streaming_message(Box::pin(self.earlier(request)).await?).await?))
            }
            Method::Get => unary(decoded(service.get_task(read(request)?).await?)?),
            Method::List => unary(service.list_tasks(read(request)?).await?),
            Method::Cancel => unary(decoded(service.cancel_task(read(request)?).await?)?),
            Method::Resubscribe => Ok(streaming(service.subscribe_to_task(read(request)?).await?)),
            Method::SetPush => {
                let (metadata, mut extensions, PushRegistration { it, kept }) = read(request)?.into_parts();
                kept.put("pushNotificationConfig.", &mut extensions)?;
                let request = tonic::Request::from_parts(metadata, extensions, it);
                webhook(&service.create_task_push_notification_config(request).await?)
            }
            Method::GetPush => webhook(&service.get_task_push_notification_config(read(request)?).await?),
            Method::ListPush => Ok(Box::pin(self.webhooks(read(request)?)).await?),
            Method::DeletePush => {
                let reply = service.delete_task_push_notification_config(read(request)?).await?;
                let (metadata, ..) = reply.into_parts();
                Ok(Reply::Unary(Bytes::new(), metadata))
            }
            Method::Card => {
                let (_, extensions, _) = request.into_parts();
                let wanted = GetExtendedAgentCardRequest::default();
                let request = tonic::Request::from_parts(MetadataMap::new(), extensions, wanted);
                let (metadata, card, _) = service.get_extended_agent_card(request).await?.into_parts();
                Ok(Reply::Unary(line(card.encoded_len(), &card::v03_card(&card))?, metadata))
            }
        };
        Ok(reply?)
    }

    /// Reads a send as it was before 0.2, when a client chose the id of its task: one that is there is gone on with, and
    /// another gets an id from us, as does a message, which had none then.
    async fn earlier(&self, request: Request<'_>) -> Result<tonic::Request<SendMessageRequest>, Status> {
        let (mut request, id) = sent(read(request)?)?;
        let call = Call::of(&request)?.clone();
        if let Some(message) = request.get_mut().message.as_mut().filter(|it| it.message_id.is_empty()) {
            message.message_id = seam::fresh_id();
        }
        if let Some(message) = request.get_mut().message.as_mut().filter(|it| it.task_id.is_empty() && !id.is_empty()) {
            let get = GetTaskRequest { id, history_length: Some(1), ..GetTaskRequest::default() };
            match self.0.get_task(call.request(get)).await.map_err(Error::from) {
                Ok(task) => message.task_id = task.into_inner().into_task()?.id,
                Err(error) if error.kind() == ErrorKind::TaskNotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(request)
    }

    /// All webhooks of a task: the list of 0.3 has no pages.
    async fn webhooks(&self, request: tonic::Request<ListTaskPushNotificationConfigsRequest>) -> Result<Reply, Status> {
        let (call, wanted) = (Call::of(&request)?.clone(), request.get_ref().clone());
        let (mut request, mut all, mut besides) = (request, Vec::new(), Vec::new());
        loop {
            let (metadata, page, extensions) = self.0.list_task_push_notification_configs(request).await?.into_parts();
            let mut kept = PushExtras::kept_of_each(&extensions);
            kept.resize(page.configs.len(), PushExtras::default());
            besides.append(&mut kept);
            all.extend(page.configs);
            if page.next_page_token.is_empty() {
                let length = all.iter().map(prost::Message::encoded_len).sum();
                let list: Vec<_> = all.iter().zip(&besides).map(|(config, kept)| Webhook { config, kept }).collect();
                return Ok(Reply::Unary(line(length, &list)?, metadata));
            }
            let page_token = page.next_page_token;
            request = call.clone().request(ListTaskPushNotificationConfigsRequest { page_token, ..wanted.clone() });
        }
    }
}

/// Reads the parameters of a call.
fn read<T: Classic>(request: Request<'_>) -> Result<tonic::Request<T>, Error> {
    let (metadata, extensions, draft) = decode::<T::Draft>(request)?.into_parts();
    let message = T::finish::<serde_json::Error>(draft).map_err(Error::invalid_params)?;
    Ok(tonic::Request::from_parts(metadata, extensions, message))
}

/// A refusal, with the fields under the names that they have in classic JSON.
fn refusal(method: Method, mut status: Status) -> Status {
    let metadata = std::mem::take(status.metadata_mut());
    let mut refusal = Status::from(Error::from(status).renamed(|field| classic_field(method, field)));
    *refusal.metadata_mut() = metadata;
    refusal
}

/// What a field of 1.0 is called in the parameters of a method, where that differs.
fn classic_field(method: Method, field: &str) -> Option<String> {
    // As the members of a webhook are called everywhere.
    let webhook = |field: &str| field.replace("authentication.scheme", "authentication.schemes");
    match (method, field) {
        (Method::Send | Method::Stream | Method::SendBefore | Method::StreamBefore, field) => {
            let field = field.strip_prefix("configuration.taskPushNotificationConfig")?;
            Some(format!("configuration.pushNotificationConfig{}", webhook(field)))
        }
        (Method::SetPush, "id" | "url" | "token") => Some(format!("pushNotificationConfig.{field}")),
        (Method::SetPush, field) if field.starts_with("authentication") => {
            Some(format!("pushNotificationConfig.{}", webhook(field)))
        }
        (Method::GetPush | Method::ListPush | Method::DeletePush, "taskId") => Some("id".to_owned()),
        (Method::GetPush | Method::DeletePush, "id") => Some("pushNotificationConfigId".to_owned()),
        _ => None,
    }
}

/// A send, and the id that its task had before 0.2.
fn sent(request: tonic::Request<V02Send>) -> Result<(tonic::Request<SendMessageRequest>, String), Error> {
    let (metadata, mut extensions, V02Send { send, task_id, kept }) = request.into_parts();
    kept.put("configuration.pushNotificationConfig.", &mut extensions)?;
    Ok((tonic::Request::from_parts(metadata, extensions, send), task_id))
}

/// Shows a webhook with what was said beside.
fn webhook(response: &Response<TaskPushNotificationConfig>) -> Result<Reply, Error> {
    let kept = PushExtras::kept(response.extensions());
    let config = response.get_ref();
    Ok(Reply::Unary(line(config.encoded_len(), &Webhook { config, kept: &kept })?, response.metadata().clone()))
}

fn unary<T: prost::Message>(response: Response<T>) -> Result<Reply, Error>
where
    for<'a> Write<'a, T>: Serialize,
{
    let (metadata, message, _) = response.into_parts();
    Ok(Reply::Unary(line(message.encoded_len(), &Write(&message))?, metadata))
}

fn streaming(response: Response<BoxStream<Event>>) -> Reply {
    let (metadata, events, _) = response.into_parts();
    Reply::Stream(Box::pin(events.filter_map(|it| it.and_then(|it| Ok(event::classic(&it)?)).transpose())), metadata)
}

/// What was active is told under the name that 0.3 asks for it by.
fn told(mut reply: Reply) -> Reply {
    let (Reply::Unary(_, metadata) | Reply::Stream(_, metadata)) = &mut reply;
    classic_names(metadata);
    reply
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Methods").finish_non_exhaustive()
    }
}
