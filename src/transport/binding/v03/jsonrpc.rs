//! JSON-RPC binding of 0.3 (0.3, 7): method names, parameters and results on top of the 1.0 service.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use serde::Serialize;
use tokio_stream::StreamExt as _;
use tonic::{Response, Status, metadata::MetadataMap};

use super::grpc::rename_extensions;
use crate::{
    protocol::{
        Error, ErrorKind,
        call::Call,
        event::Event,
        pb::v1::{
            GetExtendedAgentCardRequest, ListTaskPushNotificationConfigsRequest, SendMessageRequest,
            TaskPushNotificationConfig,
            a2a_service_server::A2aService,
            bindings::{Rpc, ServiceHandle, ValidatedService, each_rpc},
        },
        rpc::{BoxStream, Dispatch, Reply, Request, RpcTraits, decode, encode_line},
        snapshot::decoded,
        v03::{
            METHODS, card, event,
            json::{V03Json, Webhook, WithExtras, Write},
            push_extras::PushExtras,
        },
    },
    service::wrappers::v03::V03Service,
};

/// JSON-RPC methods of 0.3, implemented on a 1.0 service.
#[derive(Clone)]
pub struct V03Methods {
    service: Arc<dyn A2aService>,
}

/// Service for requests without a JSON-RPC `id`: rejects every call and has no effect.
struct RejectMissingId;

macro_rules! reject_all {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for RejectMissingId { $(
            async fn $method(&self, _: tonic::Request<$request>) -> Result<Response<$response>, Status> {
                Err(ErrorKind::InvalidRequest.because("`id` is missing").into())
            }
        )* }
    };
}

each_rpc!(reject_all);

impl V03Methods {
    /// Creates the methods of a service.
    pub(crate) fn new(service: Arc<dyn A2aService>) -> Self {
        Self { service }
    }

    /// Methods for requests without a JSON-RPC `id`, which 0.3 does not treat as notifications. They validate the parameters,
    /// like the first 0.3 servers, then reject the request, and never execute it.
    pub(crate) fn without_id() -> Self {
        Self::new(Arc::new(V03Service::new(Arc::new(ValidatedService(Arc::new(RejectMissingId))))))
    }

    /// Returns the RPC of a method.
    pub fn rpc(method: &str) -> Option<Rpc> {
        METHODS.iter().find(|(name, _)| *name == method).map(|(_, rpc)| *rpc)
    }

    /// Returns the traits of an RPC.
    pub fn traits(rpc: Rpc) -> RpcTraits {
        let traits = ServiceHandle::traits(rpc);
        RpcTraits { is_read: traits.is_read && !traits.is_streaming, ..traits }
    }

    /// Decodes the parameters of an RPC, calls it, and encodes its reply.
    pub(in crate::transport) async fn call(&self, rpc: Rpc, request: Request<'_>) -> Result<Reply, Status> {
        self.dispatch(rpc, request).await.map(rename_metadata).map_err(|status| rename_fields(rpc, status))
    }

    async fn dispatch(&self, rpc: Rpc, request: Request<'_>) -> Result<Reply, Status> {
        let service = &*self.service;
        let reply = match rpc {
            Rpc::SendMessage => unary(service.send_message(parse_send(request)?).await?),
            Rpc::SendStreamingMessage => Ok(streaming(service.send_streaming_message(parse_send(request)?).await?)),
            Rpc::GetTask => unary(decoded(service.get_task(parse(request)?).await?)?),
            Rpc::ListTasks => unary(service.list_tasks(parse(request)?).await?),
            Rpc::CancelTask => unary(decoded(service.cancel_task(parse(request)?).await?)?),
            Rpc::SubscribeToTask => Ok(streaming(service.subscribe_to_task(parse(request)?).await?)),
            Rpc::CreateTaskPushNotificationConfig => {
                let request = parse_with_extras(request, "pushNotificationConfig.")?;
                push_config(&service.create_task_push_notification_config(request).await?)
            }
            Rpc::GetTaskPushNotificationConfig => {
                push_config(&service.get_task_push_notification_config(parse(request)?).await?)
            }
            Rpc::ListTaskPushNotificationConfigs => Ok(Box::pin(self.list_push_configs(parse(request)?)).await?),
            Rpc::DeleteTaskPushNotificationConfig => {
                let response = service.delete_task_push_notification_config(parse(request)?).await?;
                let (metadata, ..) = response.into_parts();
                Ok(Reply::Unary(Bytes::new(), metadata))
            }
            Rpc::GetExtendedAgentCard => {
                let (_, extensions, _) = request.into_parts();
                let message = GetExtendedAgentCardRequest::default();
                let request = tonic::Request::from_parts(MetadataMap::new(), extensions, message);
                let (metadata, card, _) = service.get_extended_agent_card(request).await?.into_parts();
                Ok(Reply::Unary(encode_line(card.encoded_len(), &card::v03_card(&card))?, metadata))
            }
        };
        Ok(reply?)
    }

    /// Returns all push configurations of a task: the list of 0.3 has no pages.
    async fn list_push_configs(
        &self,
        request: tonic::Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Reply, Status> {
        let (call, first_page) = (Call::of(&request)?.clone(), request.get_ref().clone());
        let (mut request, mut configs, mut all_extras) = (request, Vec::new(), Vec::new());
        loop {
            let (metadata, page, extensions) =
                self.service.list_task_push_notification_configs(request).await?.into_parts();
            let mut extras = PushExtras::public_of_each(&extensions);
            extras.resize(page.configs.len(), PushExtras::default());
            all_extras.append(&mut extras);
            configs.extend(page.configs);
            if page.next_page_token.is_empty() {
                let length = configs.iter().map(prost::Message::encoded_len).sum();
                let list: Vec<_> =
                    configs.iter().zip(&all_extras).map(|(config, extras)| Webhook { config, extras }).collect();
                return Ok(Reply::Unary(encode_line(length, &list)?, metadata));
            }
            let page_token = page.next_page_token;
            let call = Call { is_counted: true, ..call.clone() };
            request = call.request(ListTaskPushNotificationConfigsRequest { page_token, ..first_page.clone() });
        }
    }
}

/// Parses the parameters of a method.
fn parse<T: V03Json>(request: Request<'_>) -> Result<tonic::Request<T>, Error> {
    let (metadata, extensions, draft) = decode::<T::Draft>(request)?.into_parts();
    let message = T::finish::<serde_json::Error>(draft).map_err(Error::invalid_params)?;
    Ok(tonic::Request::from_parts(metadata, extensions, message))
}

/// Renames the fields in an error to those of the method's parameters. The metadata is unchanged.
fn rename_fields(rpc: Rpc, mut status: Status) -> Status {
    let metadata = std::mem::take(status.metadata_mut());
    let mut renamed = Status::from(Error::from(status).renamed(|field| parameter_name(rpc, field)));
    *renamed.metadata_mut() = metadata;
    renamed
}

/// Returns the path of a 1.0 field in the parameters of a method, or `None` if it is equal.
fn parameter_name(rpc: Rpc, field: &str) -> Option<String> {
    let in_push_config = |field: &str| field.replace("authentication.scheme", "authentication.schemes");
    match (rpc, field) {
        (Rpc::SendMessage | Rpc::SendStreamingMessage, field) => {
            let field = field.strip_prefix("configuration.taskPushNotificationConfig")?;
            Some(format!("configuration.pushNotificationConfig{}", in_push_config(field)))
        }
        (Rpc::CreateTaskPushNotificationConfig, "id" | "url" | "token" | "headers") => {
            Some(format!("pushNotificationConfig.{field}"))
        }
        (Rpc::CreateTaskPushNotificationConfig, field) if field.starts_with("authentication") => {
            Some(format!("pushNotificationConfig.{}", in_push_config(field)))
        }
        (
            Rpc::GetTaskPushNotificationConfig
            | Rpc::ListTaskPushNotificationConfigs
            | Rpc::DeleteTaskPushNotificationConfig,
            "taskId",
        ) => Some("id".to_owned()),
        (Rpc::GetTaskPushNotificationConfig | Rpc::DeleteTaskPushNotificationConfig, "id") => {
            Some("pushNotificationConfigId".to_owned())
        }
        _ => None,
    }
}

fn parse_send(request: Request<'_>) -> Result<tonic::Request<SendMessageRequest>, Error> {
    parse_with_extras(request, "configuration.pushNotificationConfig.")
}

/// Parses parameters. The members of the push configuration at a path that 1.0 lacks become an extension of the request.
fn parse_with_extras<T>(request: Request<'_>, at: &str) -> Result<tonic::Request<T>, Error>
where
    WithExtras<T>: V03Json,
{
    let (metadata, mut extensions, WithExtras { message, extras }) = parse(request)?.into_parts();
    extras.put(at, &mut extensions)?;
    Ok(tonic::Request::from_parts(metadata, extensions, message))
}

/// Writes a push configuration with its stored extra members.
fn push_config(response: &Response<TaskPushNotificationConfig>) -> Result<Reply, Error> {
    let extras = PushExtras::public(response.extensions());
    let config = response.get_ref();
    Ok(Reply::Unary(
        encode_line(config.encoded_len(), &Webhook { config, extras: &extras })?,
        response.metadata().clone(),
    ))
}

fn unary<T: prost::Message>(response: Response<T>) -> Result<Reply, Error>
where
    for<'a> Write<'a, T>: Serialize,
{
    let (metadata, message, _) = response.into_parts();
    Ok(Reply::Unary(encode_line(message.encoded_len(), &Write(&message))?, metadata))
}

fn streaming(response: Response<BoxStream<Event>>) -> Reply {
    let (metadata, events, _) = response.into_parts();
    let frames = events.filter_map(|item| item.and_then(|event| Ok(event::v03_frame(&event)?)).transpose());
    Reply::Stream(Box::pin(frames), metadata)
}

fn rename_metadata(mut reply: Reply) -> Reply {
    let (Reply::Unary(_, metadata) | Reply::Stream(_, metadata)) = &mut reply;
    rename_extensions(metadata);
    reply
}

debug_fields!(V03Methods {});
