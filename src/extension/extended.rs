//! A service with extensions around it: what of a call and of its answer they see, and what they add.

use std::{
    any::Any,
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;
use tonic::{Request, Response, Status, metadata::MetadataValue};

use super::{ACTIVE, Extension, Extensions, Negotiated, metadata_mut};
use crate::{
    call::{Call, Version},
    contract::{BoxStream, ResponseFuture},
    error::{Error, ErrorKind},
    event::Event,
    pb::{
        v1::{
            AgentCard, ListTaskPushNotificationConfigsResponse, ListTasksResponse, SendMessageRequest,
            SendMessageResponse, Task, TaskPushNotificationConfig, a2a_service_server::A2aService, bindings::each_rpc,
            send_message_response, stream_response::Payload,
        },
        wkt::{Empty, Struct},
    },
    snapshot::Snapshot,
};

/// A service with extensions.
pub struct ExtendedService {
    service: Arc<dyn A2aService>,
    extensions: Extensions,
    /// A call that asks for nothing need not be looked at.
    none_required: bool,
    /// Required extensions are required of callers of 0.3 too.
    strict: bool,
}

/// What is active in a call: a place among the extensions each.
struct Active {
    extensions: Extensions,
    places: Vec<usize>,
    call: Call,
}

impl ExtendedService {
    /// This service, with these extensions.
    pub fn new(service: Arc<dyn A2aService>, extensions: impl IntoIterator<Item = Arc<dyn Extension>>) -> Self {
        let extensions: Extensions = extensions.into_iter().collect();
        let none_required = extensions.iter().all(|it| !it.required());
        Self { service, extensions, none_required, strict: false }
    }

    /// Rejects callers of 0.3 that do not ask for a required extension, as those of 1.0. Off by default.
    #[must_use]
    pub fn strict(self, strict: bool) -> Self {
        Self { strict, ..self }
    }

    /// Nothing of all this is in the way of a call that does not want any of it.
    fn is_out_of_the_way<T>(&self, request: &Request<T>) -> bool {
        self.none_required && Call::of(request).is_ok_and(|it| it.extensions.is_empty())
    }

    /// Leaves of what is asked for what there is, and refuses a call that has to ask for more.
    fn negotiate<T>(&self, request: &mut Request<T>) -> Result<Active, Error> {
        let mut call = Call::of(request)?.clone();
        // 0.3 has no error of its own for this (0.3, 8.2), so that its callers pass where the server is not strict.
        let (insists, header) = match call.version {
            Version::V1_0 => (true, "A2A-Extensions"),
            Version::V0_3 => (self.strict, "X-A2A-Extensions"),
        };
        let missing = |it: &dyn Extension| it.required() && !call.extensions.iter().any(|uri| uri == it.uri());
        if let Some(it) = self.extensions.iter().find(|it| insists && missing(&***it)) {
            let why = format!("name {} in the header {header}", it.uri());
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
    metadata_mut(said).get_or_insert_default().fields.extend(metadata.fields);
}

/// What is answered.
trait WithExtensions: Sized {
    /// Shows extensions what an agent has said of it, and adds what they say of that.
    fn show(self, _: Active) -> Result<Self, Error> {
        Ok(self)
    }
}

impl WithExtensions for SendMessageResponse {
    fn show(self, active: Active) -> Result<Self, Error> {
        use send_message_response::Payload as Reply;
        let said = match self.payload {
            Some(Reply::Task(it)) => Payload::Task(it),
            Some(Reply::Message(it)) => Payload::Message(it),
            None => return Ok(self),
        };
        let payload = match active.said(said)? {
            Payload::Task(it) => Some(Reply::Task(it)),
            Payload::Message(it) => Some(Reply::Message(it)),
            Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_) => None,
        };
        Ok(Self { payload })
    }
}

impl WithExtensions for Snapshot {
    fn show(self, active: Active) -> Result<Self, Error> {
        Ok(active.task(self.into_task()?)?.into())
    }
}

impl WithExtensions for ListTasksResponse {
    fn show(mut self, active: Active) -> Result<Self, Error> {
        for it in &mut self.tasks {
            *it = active.task(mem::take(it))?;
        }
        Ok(self)
    }
}

impl WithExtensions for BoxStream<Event> {
    fn show(self, active: Active) -> Result<Self, Error> {
        if active.places.is_empty() {
            return Ok(self);
        }
        Ok(Box::pin(Events { all: self, active, refused: false }))
    }
}

// In these there is nothing that an agent has said.
impl WithExtensions for TaskPushNotificationConfig {}
impl WithExtensions for ListTaskPushNotificationConfigsResponse {}
impl WithExtensions for Empty {}
impl WithExtensions for AgentCard {}

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

impl ExtendedService {
    /// Lets the extensions of a call see what is asked and what is answered.
    async fn extend<'a, Req: Any, Res: WithExtensions>(
        &'a self,
        mut request: Request<Req>,
        call: impl FnOnce(&'a dyn A2aService, Request<Req>) -> ResponseFuture<'a, Res>,
    ) -> Result<Response<Res>, Status> {
        let active = self.negotiate(&mut request)?;
        // Of all that is asked, this alone is for the agent.
        let asked: &mut dyn Any = request.get_mut();
        if let Some(send) = asked.downcast_mut::<SendMessageRequest>() {
            active.request(send)?;
        }
        let answer = call(&*self.service, request);
        let (metadata, told, extensions) = active.echo(answer.await?).into_parts();
        Ok(Response::from_parts(metadata, told.show(active)?, extensions))
    }
}

macro_rules! extended {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        impl A2aService for ExtendedService { $(
            fn $method<'a, 'b>(&'a self, request: Request<$request>) -> ResponseFuture<'b, $response>
            where
                'a: 'b,
                Self: 'b,
            {
                if self.is_out_of_the_way(&request) {
                    return self.service.$method(request);
                }
                Box::pin(self.extend(request, |service, request| service.$method(request)))
            }
        )* }
    };
}

each_rpc!(extended);

impl fmt::Debug for ExtendedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extended").field("extensions", &self.extensions).finish_non_exhaustive()
    }
}
