//! Updates that an agent sends during its turn: status, artifact chunks and saved state.
//!
//! An update waits while too many are pending in the store (backpressure). After the end of the turn it fails, so that `?` stops
//! an agent that was canceled.

use std::mem;

use futures_util::TryFutureExt as _;
use serde::Serialize;

use super::{Error, Stopped};
use crate::{
    engine::journal::LiveRef,
    protocol::{
        event::{Event, metadata_mut},
        message::json_object,
        pb::{
            v1::{Artifact, Message, Part, TaskArtifactUpdateEvent, TaskState, stream_response::Payload},
            wkt::Struct,
        },
    },
};

/// Updates that an agent sends during its turn.
pub struct Updates {
    pub(crate) live: LiveRef,
    pub(crate) turn: u32,
    /// Metadata of the events.
    pub(crate) metadata: Option<Box<Struct>>,
}

impl Updates {
    /// Sets the status to WORKING.
    ///
    /// # Errors
    /// The turn has ended (this holds for all updates): by a cancel, its deadline, a limit, or a stop of the server.
    pub fn working(&self) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.status(TaskState::Working, None)
    }

    /// Sets the status to WORKING, with a message about the progress: a text, or a message with parts and metadata.
    ///
    /// # Errors
    /// The turn has ended.
    pub fn progress(&self, message: impl Into<Message>) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.status(TaskState::Working, Some(message.into()))
    }

    /// Sets the status to `AUTH_REQUIRED` while the turn continues. To end the turn until the caller has authorized the
    /// agent, return [`End::AuthRequired`](super::End::AuthRequired).
    ///
    /// # Errors
    /// The turn has ended.
    pub fn auth_required(&self, message: impl Into<Message>) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.status(TaskState::AuthRequired, Some(message.into()))
    }

    /// Sets members of the metadata of the task. They are sent to clients as the metadata of a status update, WORKING: a client
    /// that reads the stream adds them to its task. Members with other names remain. `metadata` must serialize to a JSON object.
    ///
    /// ```
    /// use a2a_service::{agent::{self, End}, testing};
    ///
    /// let agent = agent::from_fn(|_, out| async move {
    ///     out.task_metadata(&serde_json::json!({"ticket": "T-1"})).await?;
    ///     Ok(End::Completed(None))
    /// });
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let outcome = testing::probe(agent).send("go").await.unwrap();
    /// let metadata = outcome.task.unwrap().metadata;
    /// assert_eq!(serde_json::to_string(&metadata).unwrap(), r#"{"ticket":"T-1"}"#);
    /// # });
    /// ```
    ///
    /// # Errors
    /// The value does not serialize to a JSON object, or the turn has ended.
    pub async fn task_metadata(&self, metadata: &impl Serialize) -> Result<(), Error> {
        let out = self.with_metadata(metadata)?;
        Ok(out.working().await?)
    }

    /// Returns a sender for the same turn that adds metadata to each of its events. That of status updates also becomes part of the
    /// metadata of the task. `metadata` must serialize to a JSON object.
    ///
    /// ```
    /// use a2a_service::{agent::{self, End}, testing};
    ///
    /// let agent = agent::from_fn(|_, out| async move {
    ///     out.with_metadata(&serde_json::json!({"step": 1}))?.progress("Searching").await?;
    ///     Ok(End::Completed(None))
    /// });
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let events = testing::probe(agent).stream("go").await.unwrap();
    /// let metadata = events[1].status_update().unwrap().metadata.as_ref().unwrap();
    /// assert_eq!(serde_json::to_string(metadata).unwrap(), r#"{"step":1}"#);
    /// # });
    /// ```
    ///
    /// # Errors
    /// The value does not serialize to a JSON object.
    pub fn with_metadata(&self, metadata: &impl Serialize) -> Result<Self, Error> {
        let metadata = json_object(metadata)
            .map_err(|cause| Error::internal("event metadata: not a JSON object").caused_by(cause))?;
        Ok(Self { live: self.live.clone(), turn: self.turn, metadata: Some(Box::new(metadata)) })
    }

    /// Waits until all updates of this turn so far are committed, and so visible to clients. Updates are committed without
    /// it, when the agent pauses: it is for agents that act in other systems once clients can know of it.
    ///
    /// # Errors
    /// The turn has ended.
    pub async fn flush(&self) -> Result<(), Stopped> {
        self.live.commit_updates(self.turn).await.map_err(|_| Stopped)
    }

    /// Creates a writer for an artifact with a name. Several artifacts may be written concurrently.
    pub fn artifact(&self, name: impl Into<String>) -> ArtifactWriter<'_> {
        let artifact = Artifact {
            artifact_id: self.live.journal().sources().ids.random(),
            name: name.into(),
            ..Artifact::default()
        };
        ArtifactWriter { out: self, artifact, append: false, last: false }
    }

    /// Sends a chunk of an artifact with all its members, except for the ids of the task and the context.
    #[cfg(feature = "client")]
    pub(crate) fn chunk(&self, chunk: TaskArtifactUpdateEvent) -> impl Future<Output = Result<(), Stopped>> + Send {
        let (task_id, context_id) = (self.live.key.id().to_owned(), (*self.live.context).to_owned());
        let chunk = TaskArtifactUpdateEvent { task_id, context_id, ..chunk };
        self.push(Event::pending(Payload::ArtifactUpdate(chunk)))
    }

    /// Saves the agent's state for the next turn of this task, or for the next attempt of this one
    /// ([`Turn::saved`](super::Turn::saved)). It is committed with the next update, or when the agent pauses.
    ///
    /// # Errors
    /// The state can't be serialized to JSON or exceeds the maximum size of an event, or the turn has ended.
    pub async fn save(&self, state: &impl Serialize) -> Result<(), Error> {
        let bytes = serde_json::to_vec(state)?;
        let max = self.live.max_event_bytes();
        if bytes.len() > max {
            return Err(Error::internal(format!(
                "saved state: {} bytes exceed the limit of {max} (limits.task_bytes)",
                bytes.len()
            )));
        }
        Ok(self.live.save_agent_state(self.turn, bytes.into()).await.map_err(|_| Stopped)?)
    }

    fn status(&self, state: TaskState, message: Option<Message>) -> impl Future<Output = Result<(), Stopped>> + Send {
        let mut event = self.live.status_event(state, message);
        if let Some(metadata) = &self.metadata
            && let Some(payload) = event.payload_mut()
        {
            *metadata_mut(payload) = Some(Struct::clone(metadata));
        }
        self.push(event)
    }

    /// Pushes an event. This and its callers are no `async fn`, which would store the event twice in the future of each agent.
    fn push(&self, event: Event) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.live.push_update(self.turn, event).map_err(|_| Stopped)
    }
}

/// Writer of an artifact. Each call of [`text`](Self::text), [`part`](Self::part) and so on sends a chunk: the first creates the
/// artifact, later ones are appended.
#[must_use = "an artifact needs at least one chunk"]
pub struct ArtifactWriter<'a> {
    out: &'a Updates,
    artifact: Artifact,
    append: bool,
    last: bool,
}

impl ArtifactWriter<'_> {
    /// Sets the id. With the id of an artifact of an earlier turn, the first chunk replaces that artifact.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.artifact.artifact_id = id.into();
        self
    }

    /// Appends to the artifact with this id if it exists, instead of replacing it.
    pub fn appending(mut self) -> Self {
        self.append = true;
        self
    }

    /// Sets the description.
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.artifact.description = description.into();
        self
    }

    /// Sets the metadata. After the first chunk, the next one adds it to that of the artifact.
    ///
    /// # Errors
    /// The value does not serialize to a JSON object.
    pub fn metadata(mut self, metadata: &impl Serialize) -> Result<Self, Error> {
        let metadata = json_object(metadata)
            .map_err(|cause| Error::internal("artifact metadata: not a JSON object").caused_by(cause))?;
        self.artifact.metadata = Some(metadata);
        Ok(self)
    }

    /// Sets the URIs of the extensions that the artifact uses.
    pub fn extensions<T: Into<String>>(mut self, extensions: impl IntoIterator<Item = T>) -> Self {
        self.artifact.extensions = extensions.into_iter().map(Into::into).collect();
        self
    }

    /// Marks the next chunk as the last one.
    pub fn last(mut self) -> Self {
        self.last = true;
        self
    }

    /// Sends a text part. Several calls without a pause of the agent in between may be joined into one event: the artifact
    /// has all parts, but clients may receive them in fewer chunks. This holds for all chunks.
    ///
    /// # Errors
    /// The turn has ended (this holds for all chunks).
    pub fn text(&mut self, text: impl Into<String>) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.part(Part::text(text))
    }

    /// Sends a data part.
    ///
    /// # Errors
    /// The value can't be serialized to JSON, or the turn has ended.
    pub async fn data(&mut self, data: &impl Serialize) -> Result<(), Error> {
        let part = Part::data(data)?;
        Ok(self.part(part).await?)
    }

    /// Sends a file part with its content.
    ///
    /// # Errors
    /// The turn has ended.
    pub fn bytes(
        &mut self,
        bytes: impl Into<Vec<u8>>,
        media_type: impl Into<String>,
    ) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.part(Part::bytes(bytes, media_type))
    }

    /// Sends a file part with a URL.
    ///
    /// # Errors
    /// The turn has ended.
    pub fn file(
        &mut self,
        url: impl Into<String>,
        media_type: impl Into<String>,
    ) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.part(Part::url(url, media_type))
    }

    /// Sends a part.
    ///
    /// # Errors
    /// The turn has ended.
    pub fn part(&mut self, part: Part) -> impl Future<Output = Result<(), Stopped>> + Send {
        self.parts(vec![part])
    }

    /// Sends several parts as one chunk.
    ///
    /// # Errors
    /// The turn has ended.
    pub fn parts(&mut self, parts: Vec<Part>) -> impl Future<Output = Result<(), Stopped>> + Send {
        let id = self.artifact.artifact_id.clone();
        // Only the next chunk has the other members, also if it is appended to an existing artifact.
        let rest = Artifact { artifact_id: id, ..Artifact::default() };
        let artifact = Artifact { parts, ..mem::replace(&mut self.artifact, rest) };
        let live = &self.out.live;
        let update = TaskArtifactUpdateEvent {
            task_id: live.key.id().to_owned(),
            context_id: (*live.context).to_owned(),
            artifact: Some(artifact),
            append: self.append,
            last_chunk: self.last,
            metadata: self.out.metadata.as_deref().cloned(),
        };
        self.append = true;
        self.out.push(Event::pending(Payload::ArtifactUpdate(update)))
    }
}

debug_fields!(Updates { task: live.key, turn });

debug_fields!(ArtifactWriter<'_> { artifact });
