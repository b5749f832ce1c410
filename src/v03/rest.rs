//! HTTP+JSON of 0.3: the routes of its proto file, those that only its text has (0.3, 3.5.6), and bodies as its clients
//! write them.

use std::{borrow::Cow, fmt, sync::Arc};

use percent_encoding::percent_decode_str;
use serde::{Serialize, Serializer, ser::SerializeStruct as _};
use serde_json::Value;
use tonic::Status;

use super::{
    card::v03_card,
    file_part::{FileEncoding, FileParts},
    grpc::{answer, refusal},
    json::enum_names::EnumNames as _,
};
use crate::{
    contract::{Body, Dispatch, Output, Reply, Request, Route, Source, unary},
    error::Error,
    pb::{
        v1::{
            GetExtendedAgentCardRequest, ListTasksRequest, ListTasksResponse, TaskState, a2a_service_server::A2aService,
        },
        v03::{self, bindings::ServiceHandle},
    },
};

mod normalize;

/// The service of 0.3, as HTTP+JSON sees it.
#[derive(Clone)]
pub struct Rest {
    proto: ServiceHandle,
    service: Arc<dyn A2aService>,
}

/// What can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rpc {
    /// What the proto file has.
    Proto(v03::bindings::Rpc),
    /// `GET /v1/tasks`, which only the text has.
    List,
}

impl Rest {
    /// This service; what the proto file of 0.3 lacks is asked of the one of 1.0 behind it.
    pub(crate) const fn new(proto: ServiceHandle, service: Arc<dyn A2aService>) -> Self {
        Self { proto, service }
    }
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rest")
    }
}

impl Dispatch for Rest {
    type Rpc = Rpc;

    const ACTIONS: &'static [&'static str] = ServiceHandle::ACTIONS;

    const VERBS: &'static [&'static str] = ServiceHandle::VERBS;

    fn rpc(name: &str) -> Option<Rpc> {
        ServiceHandle::rpc(name).map(Rpc::Proto)
    }

    fn is_streaming(rpc: Rpc) -> bool {
        matches!(rpc, Rpc::Proto(it) if ServiceHandle::is_streaming(it))
    }

    fn is_silent(rpc: Rpc) -> bool {
        matches!(rpc, Rpc::Proto(it) if ServiceHandle::is_silent(it))
    }

    fn is_read(rpc: Rpc) -> bool {
        matches!(rpc, Rpc::Proto(it) if ServiceHandle::is_read(it))
    }

    /// A template was published with `task/` for `tasks/`, and whoever wrote clients by it can't have known where else.
    fn route(verb: &str, segments: &[&str], action: &str) -> Option<Route<Rpc>> {
        let Route { rpc, body, fields } = match segments {
            ["v1", "tasks"] if verb == "GET" && action.is_empty() => {
                return Some(Route { rpc: Rpc::List, body: Body::None, fields: Vec::new() });
            }
            ["v1", "task", rest @ ..] => {
                let segments: Vec<_> = ["v1", "tasks"].into_iter().chain(rest.iter().copied()).collect();
                ServiceHandle::route(verb, &segments, action)?
            }
            segments => ServiceHandle::route(verb, segments, action)?,
        };
        // A body that should be one member is often all of them: what it is, is told by looking at it. The rest is in the
        // query then, or not.
        let body = if matches!(body, Body::Field(_)) { Body::Anywhere } else { body };
        Some(Route { rpc: Rpc::Proto(rpc), body, fields })
    }

    async fn call(&self, rpc: Rpc, mut request: Request<'_>) -> Result<Reply, Status> {
        if rpc == Rpc::Proto(v03::bindings::Rpc::GetAgentCard) {
            return self.card(request).await.map_err(refusal);
        }
        let Rpc::Proto(rpc) = rpc else {
            if let Source::Query(query) = &mut request.get_mut().source {
                *query = listed(query).into();
            }
            let service = &*self.service;
            let files = FileEncoding::of(&request);
            let list = async |mut request: tonic::Request<ListTasksRequest>| {
                // It has no tenants.
                request.get_mut().tenant.clear();
                files.reply(answer::<ListTasksResponse, Tasks>(service.list_tasks(request).await))
            };
            return unary(request, list).await.map_err(refusal);
        };
        let files = FileEncoding::of(&request);
        if let Source::Json(text) | Source::Both(text, _) = &mut request.get_mut().source
            && let Some(repaired) = repaired(rpc, files, text).map_err(|error| refusal(error.into()))?
        {
            *text = Cow::Owned(repaired);
        }
        self.proto.call(rpc, request).await
    }
}

impl Rest {
    /// The card for authenticated callers, in the JSON that cards of 0.3 have everywhere, which is not that of its proto
    /// file (0.3, 5.5).
    async fn card(&self, request: Request<'_>) -> Result<Reply, Status> {
        let (metadata, extensions, _) = request.into_parts();
        let request = tonic::Request::from_parts(metadata, extensions, GetExtendedAgentCardRequest::default());
        let (metadata, card, _) = self.service.get_extended_agent_card(request).await?.into_parts();
        Ok(Reply::Unary(serde_json::to_vec(&v03_card(&card)).map_err(Error::internal)?.into(), metadata))
    }
}

/// What a list is asked for, where a state may have the name that it has in JSON-RPC. What is none is left, to be refused.
fn listed(query: &str) -> String {
    let parameter = |it: &str| {
        let (name, value) = it.split_once('=').filter(|it| it.0 == "status")?;
        let word = percent_decode_str(value).decode_utf8().ok()?;
        Some(format!("{name}={}", TaskState::try_from(TaskState::liberal(&word)?).ok()?.as_str_name()))
    };
    let parameters = query.split('&').map(|it| parameter(it).unwrap_or_else(|| it.to_owned()));
    parameters.collect::<Vec<_>>().join("&")
}

/// A body as the decoder reads it. What is no JSON, or no object, is left as it is, for that to refuse.
fn repaired(rpc: v03::bindings::Rpc, files: FileEncoding, text: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    use v03::bindings::Rpc;
    let is_send = match rpc {
        Rpc::SendMessage | Rpc::SendStreamingMessage => true,
        Rpc::CreateTaskPushNotificationConfig => false,
        Rpc::GetTask
        | Rpc::CancelTask
        | Rpc::TaskSubscription
        | Rpc::GetTaskPushNotificationConfig
        | Rpc::ListTaskPushNotificationConfig
        | Rpc::GetAgentCard
        | Rpc::DeleteTaskPushNotificationConfig => return Ok(None),
    };
    let Ok(Value::Object(mut body)) = serde_json::from_slice(text) else { return Ok(None) };
    if is_send {
        normalize::send(&mut body, files)?;
    } else {
        normalize::push(&mut body);
    }
    Ok(serde_json::to_vec(&body).ok())
}

/// A page of tasks, as the servers of 0.3 that have lists print it.
#[derive(Clone, PartialEq, prost::Message)]
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

impl Output for Tasks {}

impl From<ListTasksResponse> for Tasks {
    fn from(it: ListTasksResponse) -> Self {
        Self { tasks: it.tasks.into_iter().map(Into::into).collect(), next_page_token: it.next_page_token }
    }
}

impl Serialize for Tasks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut page = serializer.serialize_struct("Tasks", 2)?;
        page.serialize_field("tasks", &self.tasks)?;
        page.serialize_field("nextPageToken", &self.next_page_token)?;
        page.end()
    }
}
