//! A task as it is at a moment: what is answered when one is asked for.

use std::{borrow::Cow, fmt, mem, sync::Arc};

use bytes::{Buf, BufMut, Bytes};
use prost::{
    DecodeError, Message as _,
    encoding::{DecodeContext, WireType},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::Error as _};
use tonic::Response;

use crate::{
    contract::Output,
    error::Error,
    json::{Measure, count, write_encoded, write_to},
    pb::v1::Task,
    task,
};

/// A task as it is at a moment: the answer to `GetTask` (3.1.3) and to `CancelTask` (3.1.5).
///
/// It is a message, or still the protobuf that a store has of it: that goes out as it is over gRPC, and as ProtoJSON
/// without becoming a message in between. Whoever looks at it has it decoded. Who implements the contract answers with a
/// task:
///
/// ```
/// use a2a_service::{
///     pb::v1::{CancelTaskRequest, GetTaskRequest, Task, a2a_service_server::A2aService},
///     snapshot::Snapshot,
/// };
/// use tonic::{Request, Response, Status};
///
/// struct Archive;
///
/// #[tonic::async_trait]
/// impl A2aService for Archive {
///     async fn get_task(&self, request: Request<GetTaskRequest>) -> Result<Response<Snapshot>, Status> {
///         let task = Task { id: request.into_inner().id, ..Task::default() };
///         Ok(Response::new(task.into()))
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// // And who calls it takes the task out of it.
/// let request = GetTaskRequest { id: "42".to_owned(), ..GetTaskRequest::default() };
/// let answer = Archive.get_task(Request::new(request)).await?;
/// let task: Task = answer.into_inner().into_task()?;
/// assert_eq!(task.id, "42");
/// # Ok::<_, Status>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Snapshot(Origin);

/// What a snapshot began as.
#[derive(Clone)]
enum Origin {
    /// A message, which others may have too.
    Task(Arc<Task>),
    Proto(Bytes),
}

impl Snapshot {
    /// A task as a store kept it. Whether these bytes are one is seen when it is looked at.
    pub fn from_proto(proto: Bytes) -> Self {
        Self(Origin::Proto(proto))
    }

    /// The task, which is decoded where it is not a message; an error where it can't be.
    pub fn task(&self) -> Result<Cow<'_, Task>, Error> {
        Ok(match &self.0 {
            Origin::Task(it) => Cow::Borrowed(it),
            Origin::Proto(it) => Cow::Owned(decode(it)?),
        })
    }

    /// The same, to keep. It is copied where others have it too.
    pub fn into_task(self) -> Result<Task, Error> {
        match self.0 {
            Origin::Task(it) => Ok(Arc::unwrap_or_clone(it)),
            Origin::Proto(it) => decode(&it),
        }
    }

    /// With the newest so many messages of its history alone, which is all of it where no length is asked for (3.2.4).
    /// It is decoded where that leaves some out.
    pub(crate) fn shortened(self, length: Option<usize>) -> Result<Self, Error> {
        const HISTORY: u32 = 5;
        let Some(length) = length else { return Ok(self) };
        let fits = match &self.0 {
            Origin::Task(it) => it.history.len() <= length,
            Origin::Proto(it) => count(it, HISTORY).is_some_and(|it| it <= length),
        };
        if fits {
            return Ok(self);
        }
        let task = match self.0 {
            Origin::Proto(it) => {
                let mut task = decode(&it)?;
                task::shorten(&mut task.history, Some(length));
                task
            }
            Origin::Task(it) => task::view(&it, Some(length), true),
        };
        Ok(task.into())
    }

    /// The same, to share.
    pub(crate) fn into_shared(self) -> Result<Arc<Task>, Error> {
        match self.0 {
            Origin::Task(it) => Ok(it),
            Origin::Proto(it) => decode(&it).map(Arc::new),
        }
    }
}

fn decode(proto: &Bytes) -> Result<Task, Error> {
    Task::decode(&**proto).map_err(Error::internal)
}

/// The answer of a service as its task.
pub(crate) fn decoded(response: Response<Snapshot>) -> Result<Response<Task>, Error> {
    let (metadata, snapshot, extensions) = response.into_parts();
    Ok(Response::from_parts(metadata, snapshot.into_task()?, extensions))
}

impl From<Task> for Snapshot {
    fn from(task: Task) -> Self {
        Arc::new(task).into()
    }
}

impl From<Arc<Task>> for Snapshot {
    fn from(task: Arc<Task>) -> Self {
        Self(Origin::Task(task))
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::from_proto(Bytes::new())
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Origin::Task(it) => it.fmt(f),
            Origin::Proto(it) => match Task::decode(&**it) {
                Ok(it) => it.fmt(f),
                Err(error) => error.fmt(f),
            },
        }
    }
}

/// Of replies, the decoded size is not bounded.
impl Measure for Snapshot {}

/// So that tonic's codec, and any tonic client, works on it.
impl prost::Message for Snapshot {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        match &self.0 {
            Origin::Task(it) => it.encode_raw(buf),
            Origin::Proto(it) => buf.put_slice(it),
        }
    }

    fn encoded_len(&self) -> usize {
        match &self.0 {
            Origin::Task(it) => it.encoded_len(),
            Origin::Proto(it) => it.len(),
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let mut task = match mem::take(self).0 {
            Origin::Task(it) => it,
            Origin::Proto(it) => Arc::new(Task::decode(it)?),
        };
        let merged = Arc::make_mut(&mut task).merge_field(tag, wire_type, buf, context);
        *self = task.into();
        merged
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.task().map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Snapshot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Task::deserialize(deserializer).map(Self::from)
    }
}

impl Output for Snapshot {
    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        let written = match &self.0 {
            Origin::Task(it) => write_to(out, &**it),
            Origin::Proto(it) => write_encoded::<Task>(out, it),
        };
        written.map_err(Error::internal)
    }
}
