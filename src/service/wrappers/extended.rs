//! Protocol extensions (4.6): the trait [`Extension`], and the negotiation of active extensions by `A2A-Extensions`.
//!
//! The caller lists the extensions that it requests. Those that the server supports are active for the call, and listed in the
//! response; others are ignored. Calls without extensions have no overhead. [`ExtendedService`] applies the active extensions to
//! requests, responses and events.

use std::{any::Any, fmt, mem, sync::Arc};

use futures_util::stream::unfold;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, metadata::MetadataValue};

use crate::protocol::{
    call::Call,
    error::{Error, ErrorKind},
    event::{Event, metadata_mut},
    pb::{
        v1::{
            AgentCard, AgentExtension, ListTaskPushNotificationConfigsResponse, ListTasksResponse, SendMessageRequest,
            SendMessageResponse, Task, TaskPushNotificationConfig, a2a_service_server::A2aService, bindings::each_rpc,
            send_message_response, stream_response::Payload,
        },
        wkt::{Empty, Struct},
    },
    rpc::{BoxStream, ServiceFuture},
    snapshot::Snapshot,
    version::Version,
};
pub use crate::protocol::{
    event::resume,
    message::{hops, secret},
};

/// Header (or gRPC metadata) that lists the requested extensions of a call, and the active ones of a response.
pub(crate) const ACTIVE: &str = "a2a-extensions";

/// Protocol extension. For calls in which it is active, it can change requests, and add metadata to responses and events.
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
    /// Returns the URI of the extension. Each version has another URI (4.6.3).
    fn uri(&self) -> &str;

    /// Returns the description for the agent card.
    #[expect(clippy::unnecessary_literal_bound, reason = "implementations may return a string that they own")]
    fn description(&self) -> &str {
        ""
    }

    /// Returns true if calls that do not request the extension are rejected.
    fn required(&self) -> bool {
        false
    }

    /// Returns the parameters for the agent card, as the extension defines them.
    fn params(&self) -> Option<Struct> {
        None
    }

    /// Inspects a send before it is accepted, and may add metadata. It must add equal metadata to a retry with the same
    /// `Idempotency-Key`, which is a conflict otherwise.
    ///
    /// # Errors
    /// The send is rejected with this error.
    fn request(&self, _request: &mut SendMessageRequest, _call: &Call) -> Result<(), Error> {
        Ok(())
    }

    /// Returns metadata to add to an event of a stream, or to the task or message of a response, for this caller only.
    ///
    /// # Errors
    /// The call fails with this error, or its stream ends with it.
    fn response_metadata(&self, _payload: &Payload, _call: &Call) -> Result<Option<Struct>, Error> {
        Ok(None)
    }
}

/// Extension that the card declares and the agent implements itself.
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

/// Request extension: the extensions of the [`Call`] are the active ones, not all that the caller requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Negotiated;

/// Merges the extensions that the server implements with those that the card declares, and declares all of them on the card.
pub(crate) fn all(mut all: Vec<Arc<dyn Extension>>, declared: &mut Vec<AgentExtension>) -> Vec<Arc<dyn Extension>> {
    declared.retain(|declaration| all.iter().all(|extension| extension.uri() != declaration.uri));
    all.extend(declared.drain(..).map(|declaration| -> Arc<dyn Extension> { Arc::new(declaration) }));
    declared.extend(all.iter().map(|extension| AgentExtension {
        uri: extension.uri().to_owned(),
        description: extension.description().to_owned(),
        required: extension.required(),
        params: extension.params(),
    }));
    all
}

impl fmt::Debug for dyn Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.uri())
    }
}

/// Service that negotiates the extensions of each call (4.6.2) and applies the active ones.
pub struct ExtendedService {
    service: Arc<dyn A2aService>,
    extensions: Vec<Arc<dyn Extension>>,
    /// Calls that request no extension need no negotiation.
    none_required: bool,
    /// Callers of 0.3 have to request required extensions too.
    strict: bool,
}

/// Active extensions of a call.
struct Active {
    extensions: Vec<Arc<dyn Extension>>,
    call: Call,
}

impl ExtendedService {
    /// Wraps a service.
    pub fn new(service: Arc<dyn A2aService>, extensions: impl IntoIterator<Item = Arc<dyn Extension>>) -> Self {
        let extensions: Vec<_> = extensions.into_iter().collect();
        let none_required = extensions.iter().all(|extension| !extension.required());
        Self { service, extensions, none_required, strict: false }
    }

    /// Rejects callers of 0.3 that do not request a required extension, as those of 1.0. Off by default.
    #[must_use]
    pub fn strict(self, strict: bool) -> Self {
        Self { strict, ..self }
    }

    /// Returns true if a call needs no negotiation.
    fn can_bypass<T>(&self, request: &Request<T>) -> bool {
        self.none_required && Call::of(request).is_ok_and(|call| call.extensions.is_empty())
    }

    /// Reduces the requested extensions of a call to those that the server supports.
    ///
    /// # Errors
    /// The call does not request a required extension.
    fn negotiate<T>(&self, request: &mut Request<T>) -> Result<Active, Error> {
        let mut call = Call::of(request)?.clone();
        // 0.3 has no error for a missing extension (0.3, 8.2), so its callers are rejected only by a strict server.
        let (is_enforced, header) = match call.version {
            Version::V1_0 => (true, "A2A-Extensions"),
            Version::V0_3 => (self.strict, "X-A2A-Extensions"),
        };
        let is_missing = |extension: &dyn Extension| {
            extension.required() && !call.extensions.iter().any(|uri| uri == extension.uri())
        };
        if let Some(missing) = self.extensions.iter().find(|extension| is_enforced && is_missing(&***extension)) {
            let why = format!("name {} in the header {header}", missing.uri());
            return Err(ErrorKind::ExtensionSupportRequired.because(why).with("extension", missing.uri()));
        }
        let find = |uri: &String| self.extensions.iter().find(|extension| extension.uri() == uri).cloned();
        let extensions: Vec<_> = call.extensions.iter().filter_map(find).collect();
        call.extensions = extensions.iter().map(|extension| extension.uri().to_owned()).collect();
        request.extensions_mut().insert(call.clone());
        request.extensions_mut().insert(Negotiated);
        Ok(Active { extensions, call })
    }
}

impl Active {
    /// Returns the metadata that the extensions add to a payload.
    fn metadata_for(&self, payload: &Payload) -> Result<Option<Struct>, Error> {
        let mut added: Option<Struct> = None;
        for extension in &self.extensions {
            if let Some(metadata) = extension.response_metadata(payload, &self.call)? {
                added.get_or_insert_default().fields.extend(metadata.fields);
            }
        }
        Ok(added)
    }

    fn extend_payload(&self, mut payload: Payload) -> Result<Payload, Error> {
        if let Some(metadata) = self.metadata_for(&payload)? {
            add_metadata(&mut payload, metadata);
        }
        Ok(payload)
    }

    fn extend_task(&self, task: Task) -> Result<Task, Error> {
        match self.extend_payload(Payload::Task(task))? {
            Payload::Task(task) => Ok(task),
            Payload::Message(_) | Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_) => Ok(Task::default()),
        }
    }

    fn extend_event(&self, event: Event) -> Result<Event, Error> {
        let Some(payload) = event.payload() else { return Ok(event) };
        let Some(added) = self.metadata_for(payload)? else { return Ok(event) };
        // Copies only events with added metadata. The copy keeps the position in the log.
        let (position, mark) = (event.position(), event.mark());
        match event.into_response().payload {
            Some(mut payload) => {
                add_metadata(&mut payload, added);
                Ok(Event::new(position, mark, payload))
            }
            None => Ok(Event::default()),
        }
    }

    /// Lists the active extensions in the response (4.6.2).
    fn list_in<T>(&self, mut response: Response<T>) -> Response<T> {
        if !self.extensions.is_empty() {
            let uris = self.call.extensions.join(", ");
            // Always valid, because the URIs were received in a header.
            if let Ok(uris) = MetadataValue::try_from(uris) {
                response.metadata_mut().insert(ACTIVE, uris);
            }
        }
        response
    }
}

fn add_metadata(payload: &mut Payload, metadata: Struct) {
    metadata_mut(payload).get_or_insert_default().fields.extend(metadata.fields);
}

/// Response body that extensions can add metadata to.
trait WithExtensions: Sized {
    /// Adds the metadata of the active extensions. Does nothing by default, for responses without output of the agent.
    fn with_extensions(self, _: Active) -> Result<Self, Error> {
        Ok(self)
    }
}

impl WithExtensions for SendMessageResponse {
    fn with_extensions(self, active: Active) -> Result<Self, Error> {
        use send_message_response::Payload as Reply;
        let payload = match self.payload {
            Some(Reply::Task(task)) => Payload::Task(task),
            Some(Reply::Message(message)) => Payload::Message(message),
            None => return Ok(self),
        };
        let payload = match active.extend_payload(payload)? {
            Payload::Task(task) => Some(Reply::Task(task)),
            Payload::Message(message) => Some(Reply::Message(message)),
            Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_) => None,
        };
        Ok(Self { payload })
    }
}

impl WithExtensions for Snapshot {
    fn with_extensions(self, active: Active) -> Result<Self, Error> {
        Ok(active.extend_task(self.into_task()?)?.into())
    }
}

impl WithExtensions for ListTasksResponse {
    fn with_extensions(mut self, active: Active) -> Result<Self, Error> {
        for task in &mut self.tasks {
            *task = active.extend_task(mem::take(task))?;
        }
        Ok(self)
    }
}

impl WithExtensions for BoxStream<Event> {
    fn with_extensions(self, active: Active) -> Result<Self, Error> {
        if active.extensions.is_empty() {
            return Ok(self);
        }
        Ok(Box::pin(unfold(Some((self, active)), async |state| {
            let (mut events, active) = state?;
            match events.next().await?.map(|event| active.extend_event(event)) {
                // The stream ends after the error of an extension.
                Ok(Err(error)) => Some((Err(error.into()), None)),
                Ok(Ok(event)) => Some((Ok(event), Some((events, active)))),
                Err(status) => Some((Err(status), Some((events, active)))),
            }
        })))
    }
}

impl WithExtensions for TaskPushNotificationConfig {}
impl WithExtensions for ListTaskPushNotificationConfigsResponse {}
impl WithExtensions for Empty {}
impl WithExtensions for AgentCard {}

impl ExtendedService {
    /// Forwards a call with negotiated extensions, and applies them to the request and the response.
    async fn forward<'a, Req: Any, Res: WithExtensions>(
        &'a self,
        mut request: Request<Req>,
        call: impl FnOnce(&'a dyn A2aService, Request<Req>) -> ServiceFuture<'a, Res>,
    ) -> Result<Response<Res>, Status> {
        let active = self.negotiate(&mut request)?;
        // Sends are the only requests that extensions can change.
        let body: &mut dyn Any = request.get_mut();
        if let Some(send) = body.downcast_mut::<SendMessageRequest>() {
            active.extensions.iter().try_for_each(|extension| extension.request(send, &active.call))?;
        }
        let response = call(&*self.service, request);
        let (metadata, body, extensions) = active.list_in(response.await?).into_parts();
        Ok(Response::from_parts(metadata, body.with_extensions(active)?, extensions))
    }
}

macro_rules! extended {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        impl A2aService for ExtendedService { $(
            fn $method<'a, 'b>(&'a self, request: Request<$request>) -> ServiceFuture<'b, $response>
            where
                'a: 'b,
                Self: 'b,
            {
                if self.can_bypass(&request) {
                    return self.service.$method(request);
                }
                Box::pin(self.forward(request, |service, request| service.$method(request)))
            }
        )* }
    };
}

each_rpc!(extended);

debug_fields!(ExtendedService { extensions });
