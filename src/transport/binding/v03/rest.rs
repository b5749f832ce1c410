//! HTTP+JSON binding of 0.3: the routes of its proto file, the routes that only the specification has (0.3, 3.5.6), and
//! normalization of request bodies.

use std::{borrow::Cow, sync::Arc};

use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde_json::Value;
use tonic::Status;

use super::grpc::{convert_response, to_v03_status};
use crate::protocol::{
    Error,
    pb::{
        v1::{
            GetExtendedAgentCardRequest, ListTasksRequest, ListTasksResponse, TaskState, a2a_service_server::A2aService,
        },
        v03,
    },
    rpc::{BodyMapping, Dispatch, ParamSource, Reply, Request, Route, RpcTraits, UnaryOutput, unary},
    v03::{
        card::v03_card,
        file_encoding::{FileEncoding, FileParts},
        json::EnumNames as _,
        pb::bindings::ServiceHandle,
    },
};

mod normalize;

/// HTTP+JSON binding of the 0.3 service.
#[derive(Clone)]
pub struct V03Rest {
    proto: ServiceHandle,
    service: Arc<dyn A2aService>,
}

/// RPC of the binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rpc {
    /// RPC of the 0.3 proto file.
    Proto(crate::protocol::v03::pb::bindings::Rpc),
    /// `GET /v1/tasks`, which is in the specification but not in the proto file.
    List,
}

impl V03Rest {
    /// Creates the binding from the 0.3 service and the 1.0 service behind it, which implements the RPCs that the 0.3 proto
    /// file lacks.
    pub(crate) const fn new(proto: ServiceHandle, service: Arc<dyn A2aService>) -> Self {
        Self { proto, service }
    }
}

impl Dispatch for V03Rest {
    type Rpc = Rpc;

    const CUSTOM_VERBS: &'static [&'static str] = ServiceHandle::CUSTOM_VERBS;

    const VERBS: &'static [&'static str] = ServiceHandle::VERBS;

    fn rpc(name: &str) -> Option<Rpc> {
        ServiceHandle::rpc(name).map(Rpc::Proto)
    }

    fn name(rpc: Rpc) -> &'static str {
        match rpc {
            Rpc::Proto(rpc) => rpc.name(),
            Rpc::List => "ListTasks",
        }
    }

    fn traits(rpc: Rpc) -> RpcTraits {
        if let Rpc::Proto(rpc) = rpc { ServiceHandle::traits(rpc) } else { RpcTraits::default() }
    }

    /// Also accepts `/v1/task/…`: one published HTTP rule has `task` instead of `tasks`, and clients follow it.
    fn route(verb: &str, segments: &[&str], custom_verb: &str) -> Option<Route<Rpc>> {
        let Route { rpc, body, fields } = match segments {
            ["v1", "tasks"] if verb == "GET" && custom_verb.is_empty() => {
                return Some(Route { rpc: Rpc::List, body: BodyMapping::None, fields: Vec::new() });
            }
            ["v1", "task", rest @ ..] => {
                let segments: Vec<_> = ["v1", "tasks"].into_iter().chain(rest.iter().copied()).collect();
                ServiceHandle::route(verb, &segments, custom_verb)?
            }
            segments => ServiceHandle::route(verb, segments, custom_verb)?,
        };
        // Clients often send the whole message where the proto file has one field as the body. The body itself is inspected,
        // and the remaining fields are read from the query if they are there.
        let body = if matches!(body, BodyMapping::Field(_)) { BodyMapping::Anywhere } else { body };
        Some(Route { rpc: Rpc::Proto(rpc), body, fields })
    }

    async fn call(&self, rpc: Rpc, mut request: Request<'_>) -> Result<Reply, Status> {
        if rpc == Rpc::Proto(crate::protocol::v03::pb::bindings::Rpc::GetAgentCard) {
            return self.card(request).await.map_err(to_v03_status);
        }
        let Rpc::Proto(rpc) = rpc else {
            if let ParamSource::Query(query) = &mut request.get_mut().source {
                *query = normalized_list_query(query).into();
            }
            let service = &*self.service;
            let files = FileEncoding::of(&request);
            let list = async |mut request: tonic::Request<ListTasksRequest>| {
                // 0.3 has no tenants.
                request.get_mut().tenant.clear();
                files.reply(convert_response::<ListTasksResponse, Tasks>(service.list_tasks(request).await))
            };
            return unary(request, list).await.map_err(to_v03_status);
        };
        let files = FileEncoding::of(&request);
        if let ParamSource::Json(text) | ParamSource::Both(text, _) = &mut request.get_mut().source
            && let Some(normalized) = normalized_body(rpc, files, text).map_err(|error| to_v03_status(error.into()))?
        {
            *text = Cow::Owned(normalized);
        }
        self.proto.call(rpc, request).await
    }
}

impl V03Rest {
    /// Returns the extended agent card in the card format of 0.3 (0.3, 5.5), which is not the ProtoJSON of its proto file.
    async fn card(&self, request: Request<'_>) -> Result<Reply, Status> {
        let (metadata, extensions, _) = request.into_parts();
        let request = tonic::Request::from_parts(metadata, extensions, GetExtendedAgentCardRequest::default());
        let (metadata, card, _) = self.service.get_extended_agent_card(request).await?.into_parts();
        Ok(Reply::Unary(serde_json::to_vec(&v03_card(&card)).map_err(Error::internal)?.into(), metadata))
    }
}

/// Replaces the JSON-RPC name of a state in the `status` parameter by its proto name. Unknown names are left for the decoder
/// to reject.
fn normalized_list_query(query: &str) -> String {
    let normalized_status = |parameter: &str| {
        let value = parameter.strip_prefix("status=")?;
        let state = percent_decode_str(value).decode_utf8().ok()?;
        Some(format!("status={}", TaskState::from_any_name(&state)?.as_str_name()))
    };
    let parameters =
        query.split('&').map(|parameter| normalized_status(parameter).unwrap_or_else(|| parameter.to_owned()));
    parameters.collect::<Vec<_>>().join("&")
}

/// Returns the body in the form that the decoder reads, or `None` if it needs no change. A body that is not a JSON object is
/// left for the decoder to reject.
fn normalized_body(
    rpc: crate::protocol::v03::pb::bindings::Rpc,
    files: FileEncoding,
    text: &str,
) -> Result<Option<String>, Error> {
    use crate::protocol::v03::pb::bindings::Rpc;
    let is_send = matches!(rpc, Rpc::SendMessage | Rpc::SendStreamingMessage);
    if !is_send && rpc != Rpc::CreateTaskPushNotificationConfig {
        return Ok(None);
    }
    let Ok(Value::Object(mut body)) = serde_json::from_str(text) else { return Ok(None) };
    if is_send {
        normalize::send(&mut body, files)?;
    } else {
        normalize::push(&mut body);
    }
    Ok(serde_json::to_string(&body).ok())
}

/// Page of tasks, in the form of the 0.3 servers that support `GET /v1/tasks`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tasks {
    #[prost(message, repeated, tag = "1")]
    tasks: Vec<v03::Task>,
    #[prost(string, tag = "2")]
    next_page_token: String,
}

impl FileParts for Tasks {
    fn each_file(&mut self, change: &mut dyn FnMut(&mut Vec<u8>)) {
        self.tasks.each_file(change);
    }
}

impl UnaryOutput for Tasks {}

impl From<ListTasksResponse> for Tasks {
    fn from(page: ListTasksResponse) -> Self {
        Self { tasks: page.tasks.into_iter().map(Into::into).collect(), next_page_token: page.next_page_token }
    }
}

debug_fields!(V03Rest {});
