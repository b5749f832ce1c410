//! Extensions of the protocol (4.6): what a server offers beside it, and its caller may ask for.
//!
//! A caller names those it wants in `A2A-Extensions`. Those that the server has too are active for this call, and the
//! reply names them; any other is ignored. A server without extensions has none of this in its way.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use tonic::{Request, Response, Status, metadata::MetadataValue};

use crate::{
    call::{Call, Version},
    error::{Error, ErrorKind},
    event::Event,
    pb::{
        v1::{
            AgentCard, AgentExtension, CancelTaskRequest, DeleteTaskPushNotificationConfigRequest,
            GetExtendedAgentCardRequest, GetTaskPushNotificationConfigRequest, GetTaskRequest,
            ListTaskPushNotificationConfigsRequest, ListTaskPushNotificationConfigsResponse, ListTasksRequest,
            ListTasksResponse, SendMessageRequest, SendMessageResponse, SubscribeToTaskRequest, Task,
            TaskPushNotificationConfig, a2a_service_server::A2aService, send_message_response,
            stream_response::Payload,
        },
        wkt::{Empty, Struct},
    },
    snapshot::Snapshot,
    transport::transcode::{Answer, BoxStream},
};

pub mod resume;

/// Where a reply names what was active, as a call does what it asks for.
pub(crate) const ACTIVE: &str = "a2a-extensions";

/// An extension. It sees what is sent to the agent and what comes back, of the calls in which it is active.
///
/// ```
/// use a2a_service::{agent::demo::Demo, extension::Extension, server::Server};
///
/// struct Timing;
///
/// impl Extension for Timing {
///     fn uri(&self) -> &str {
///         "https://example.com/ext/timing/v1"
///     }
/// }
///
/// let server = Server::new(Demo).extension(Timing);
/// ```
pub trait Extension: Send + Sync + 'static {
    /// Names it. Another version of it is another URI (4.6.3).
    fn uri(&self) -> &str;

    /// What the agent card says of how it is used here.
    #[expect(clippy::unnecessary_literal_bound, reason = "another one may make its description")]
    fn description(&self) -> &str {
        ""
    }

    /// Whether a call that does not ask for it is refused.
    fn required(&self) -> bool {
        false
    }

    /// What the agent card says of it, as the extension itself defines it.
    fn params(&self) -> Option<Struct> {
        None
    }

    /// Sees a message before the agent does. May add to its metadata: the same to each repetition of a send that has an
    /// `Idempotency-Key`, which is else another message under this key.
    ///
    /// # Errors
    /// Refuses it.
    fn request(&self, _request: &mut SendMessageRequest, _call: &Call) -> Result<(), Error> {
        Ok(())
    }

    /// Sees what the agent has said: an event of a stream, and the task or the message of a reply. What this returns is
    /// added to its metadata, for this caller alone.
    ///
    /// # Errors
    /// Refuses it, and ends the stream.
    fn said(&self, _said: &Payload, _call: &Call) -> Result<Option<Struct>, Error> {
        Ok(None)
    }
}

/// One that is declared on the card, and that the agent itself sees to.
impl Extension for AgentExtension {
    fn uri(&self) -> &str {
        &self.uri
    }

    fn description(&self) -> &str {
        &self.description
    }

    fn required(&self) -> bool {
        self.required
    }

    fn params(&self) -> Option<Struct> {
        self.params.clone()
    }
}

/// Says that the extensions of a call are those that are active, and not just those that were asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Negotiated;

/// The extensions of a server.
pub(crate) type Extensions = Arc<[Arc<dyn Extension>]>;

/// The extensions that somebody sees to, and those that are only declared on the card; and then the card has both.
pub(crate) fn all(mut all: Vec<Arc<dyn Extension>>, declared: &mut Vec<AgentExtension>) -> Vec<Arc<dyn Extension>> {
    declared.retain(|it| all.iter().all(|own| own.uri() != it.uri));
    all.extend(declared.drain(..).map(|it| -> Arc<dyn Extension> { Arc::new(it) }));
    declared.extend(all.iter().map(|it| AgentExtension {
        uri: it.uri().to_owned(),
        description: it.description().to_owned(),
        required: it.required(),
        params: it.params(),
    }));
    all
}

/// A service with extensions.
pub struct Extended {
    service: Arc<dyn A2aService>,
    extensions: Extensions,
    /// A call that asks for nothing need not be looked at.
    none_required: bool,
}

/// What is active in a call: a place among the extensions each.
struct Active {
    extensions: Extensions,
    places: Vec<usize>,
    call: Call,
}

impl Extended {
    /// This service, with these extensions.
    pub fn new(service: Arc<dyn A2aService>, extensions: impl IntoIterator<Item = Arc<dyn Extension>>) -> Self {
        let extensions: Extensions = extensions.into_iter().collect();
        let none_required = extensions.iter().all(|it| !it.required());
        Self { service, extensions, none_required }
    }

    /// Nothing of all this is in the way of a call that does not want any of it.
    fn is_out_of_the_way<T>(&self, request: &Request<T>) -> bool {
        self.none_required && Call::of(request).is_ok_and(|it| it.extensions.is_empty())
    }

    /// Leaves of what is asked for what there is, and refuses a call that has to ask for more.
    fn negotiate<T>(&self, request: &mut Request<T>) -> Result<Active, Error> {
        let mut call = Call::of(request)?.clone();
        // 0.3 has no error that would tell a caller what to do about it (0.3, 8.2).
        let insists = call.version >= Version::V1_0;
        let missing = |it: &dyn Extension| it.required() && !call.extensions.iter().any(|uri| uri == it.uri());
        if let Some(it) = self.extensions.iter().find(|it| insists && missing(&***it)) {
            let why = format!("name {} in the header A2A-Extensions", it.uri());
            return Err(ErrorKind::ExtensionSupportRequired.because(why).with("extension", it.uri()));
        }
        let places = |uri: &String| self.extensions.iter().position(|it| it.uri() == uri);
        let places: Vec<usize> = call.extensions.iter().filter_map(places).collect();
        call.extensions.retain(|uri| self.extensions.iter().any(|it| it.uri() == uri));
        request.extensions_mut().insert(call.clone());
        request.extensions_mut().insert(Negotiated);
        Ok(Active { extensions: Arc::clone(&self.extensions), places, call })
    }
}

impl Active {
    fn all(&self) -> impl Iterator<Item = &dyn Extension> {
        self.places.iter().filter_map(|it| self.extensions.get(*it)).map(|it| &**it)
    }

    fn request(&self, request: &mut SendMessageRequest) -> Result<(), Error> {
        self.all().try_for_each(|it| it.request(request, &self.call))
    }

    /// What is added to the metadata of what was said.
    fn added(&self, said: &Payload) -> Result<Option<Struct>, Error> {
        let mut added: Option<Struct> = None;
        for it in self.all() {
            if let Some(it) = it.said(said, &self.call)? {
                added.get_or_insert_default().fields.extend(it.fields);
            }
        }
        Ok(added)
    }

    fn said(&self, mut said: Payload) -> Result<Payload, Error> {
        if let Some(it) = self.added(&said)? {
            add(&mut said, it);
        }
        Ok(said)
    }

    fn task(&self, task: Task) -> Result<Task, Error> {
        match self.said(Payload::Task(task))? {
            Payload::Task(it) => Ok(it),
            Payload::Message(_) | Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_) => Ok(Task::default()),
        }
    }

    fn event(&self, event: Event) -> Result<Event, Error> {
        let Some(it) = event.payload() else { return Ok(event) };
        let Some(added) = self.added(it)? else { return Ok(event) };
        // Only what is added to is copied; it stays where it was in the log.
        let (position, mark) = (event.position(), event.mark());
        match event.into_message().payload {
            Some(mut payload) => {
                add(&mut payload, added);
                Ok(Event::new(position, mark, payload))
            }
            None => Ok(Event::default()),
        }
    }

    /// Tells the caller what was active (4.6.2).
    fn echo<T>(&self, mut response: Response<T>) -> Response<T> {
        if !self.places.is_empty() {
            let uris = self.call.extensions.join(", ");
            // They came in a header, and can go in one.
            if let Ok(it) = MetadataValue::try_from(uris) {
                response.metadata_mut().insert(ACTIVE, it);
            }
        }
        response
    }
}

fn add(said: &mut Payload, metadata: Struct) {
    let place = match said {
        Payload::Task(it) => &mut it.metadata,
        Payload::Message(it) => &mut it.metadata,
        Payload::StatusUpdate(it) => &mut it.metadata,
        Payload::ArtifactUpdate(it) => &mut it.metadata,
    };
    place.get_or_insert_default().fields.extend(metadata.fields);
}

/// The events of a call.
struct Events {
    all: BoxStream<Event>,
    active: Active,
    refused: bool,
}

impl Stream for Events {
    type Item = Result<Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.refused {
            return Poll::Ready(None);
        }
        let Poll::Ready(item) = self.all.as_mut().poll_next(cx) else { return Poll::Pending };
        Poll::Ready(item.map(|it| {
            let event = self.active.event(it?);
            self.refused = event.is_err();
            Ok(event?)
        }))
    }
}

fn events(active: Active, response: Response<BoxStream<Event>>) -> Response<BoxStream<Event>> {
    let response = active.echo(response);
    if active.places.is_empty() {
        return response;
    }
    response.map(|events| -> BoxStream<Event> { Box::pin(Events { all: events, active, refused: false }) })
}

impl Extended {
    async fn send(&self, mut request: Request<SendMessageRequest>) -> Result<Response<SendMessageResponse>, Status> {
        let active = self.negotiate(&mut request)?;
        active.request(request.get_mut())?;
        let mut response = active.echo(self.service.send_message(request).await?);
        let reply = response.get_mut();
        let said = match reply.payload.take() {
            Some(send_message_response::Payload::Task(it)) => Some(Payload::Task(it)),
            Some(send_message_response::Payload::Message(it)) => Some(Payload::Message(it)),
            None => None,
        };
        reply.payload = match said.map(|it| active.said(it)).transpose()? {
            Some(Payload::Task(it)) => Some(send_message_response::Payload::Task(it)),
            Some(Payload::Message(it)) => Some(send_message_response::Payload::Message(it)),
            Some(Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_)) | None => None,
        };
        Ok(response)
    }

    async fn stream(&self, mut request: Request<SendMessageRequest>) -> Result<Response<BoxStream<Event>>, Status> {
        let active = self.negotiate(&mut request)?;
        active.request(request.get_mut())?;
        Ok(events(active, self.service.send_streaming_message(request).await?))
    }

    async fn get(&self, mut request: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let active = self.negotiate(&mut request)?;
        let (metadata, task, extensions) = active.echo(self.service.get_task(request).await?).into_parts();
        Ok(Response::from_parts(metadata, active.task(task.into_task()?)?.into(), extensions))
    }
}

#[tonic::async_trait]
impl A2aService for Extended {
    fn send_message<'a, 'b>(&'a self, request: Request<SendMessageRequest>) -> Answer<'b, SendMessageResponse>
    where
        'a: 'b,
        Self: 'b,
    {
        if self.is_out_of_the_way(&request) { self.service.send_message(request) } else { Box::pin(self.send(request)) }
    }

    fn send_streaming_message<'a, 'b>(&'a self, request: Request<SendMessageRequest>) -> Answer<'b, BoxStream<Event>>
    where
        'a: 'b,
        Self: 'b,
    {
        if self.is_out_of_the_way(&request) {
            return self.service.send_streaming_message(request);
        }
        Box::pin(self.stream(request))
    }

    fn get_task<'a, 'b>(&'a self, request: Request<GetTaskRequest>) -> Answer<'b, Snapshot>
    where
        'a: 'b,
        Self: 'b,
    {
        if self.is_out_of_the_way(&request) { self.service.get_task(request) } else { Box::pin(self.get(request)) }
    }

    async fn list_tasks(&self, mut request: Request<ListTasksRequest>) -> Result<Response<ListTasksResponse>, Status> {
        let active = self.negotiate(&mut request)?;
        let mut response = active.echo(self.service.list_tasks(request).await?);
        for it in &mut response.get_mut().tasks {
            *it = active.task(std::mem::take(it))?;
        }
        Ok(response)
    }

    async fn cancel_task(&self, mut request: Request<CancelTaskRequest>) -> Result<Response<Snapshot>, Status> {
        let active = self.negotiate(&mut request)?;
        let (metadata, task, extensions) = active.echo(self.service.cancel_task(request).await?).into_parts();
        Ok(Response::from_parts(metadata, active.task(task.into_task()?)?.into(), extensions))
    }

    async fn subscribe_to_task(
        &self,
        mut request: Request<SubscribeToTaskRequest>,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let active = self.negotiate(&mut request)?;
        Ok(events(active, self.service.subscribe_to_task(request).await?))
    }

    async fn create_task_push_notification_config(
        &self,
        mut request: Request<TaskPushNotificationConfig>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let active = self.negotiate(&mut request)?;
        Ok(active.echo(self.service.create_task_push_notification_config(request).await?))
    }

    async fn get_task_push_notification_config(
        &self,
        mut request: Request<GetTaskPushNotificationConfigRequest>,
    ) -> Result<Response<TaskPushNotificationConfig>, Status> {
        let active = self.negotiate(&mut request)?;
        Ok(active.echo(self.service.get_task_push_notification_config(request).await?))
    }

    async fn list_task_push_notification_configs(
        &self,
        mut request: Request<ListTaskPushNotificationConfigsRequest>,
    ) -> Result<Response<ListTaskPushNotificationConfigsResponse>, Status> {
        let active = self.negotiate(&mut request)?;
        Ok(active.echo(self.service.list_task_push_notification_configs(request).await?))
    }

    async fn delete_task_push_notification_config(
        &self,
        mut request: Request<DeleteTaskPushNotificationConfigRequest>,
    ) -> Result<Response<Empty>, Status> {
        let active = self.negotiate(&mut request)?;
        Ok(active.echo(self.service.delete_task_push_notification_config(request).await?))
    }

    async fn get_extended_agent_card(
        &self,
        mut request: Request<GetExtendedAgentCardRequest>,
    ) -> Result<Response<AgentCard>, Status> {
        let active = self.negotiate(&mut request)?;
        Ok(active.echo(self.service.get_extended_agent_card(request).await?))
    }
}

impl fmt::Debug for dyn Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri())
    }
}

impl fmt::Debug for Extended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extended").field("extensions", &self.extensions).finish_non_exhaustive()
    }
}
