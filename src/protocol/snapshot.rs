//! Snapshot of a task: the response of `GetTask` and `CancelTask`, decoded or still encoded.

use std::{borrow::Cow, fmt, mem, sync::Arc};

use bytes::{BufMut, Bytes};
use prost::{DecodeError, Message as _};
use serde::{Serialize, Serializer, ser::Error as _};
use tonic::Response;

use crate::protocol::{
    error::Error,
    history::HistoryLimit,
    json::{count, write_encoded, write_to},
    messages::v1::Task,
    rpc::UnaryOutput,
};

/// Snapshot of a task: the response of `GetTask` (3.1.3) and `CancelTask` (3.1.5).
///
/// Holds a decoded task, or the protobuf that a store holds. Protobuf is sent unchanged over gRPC, and transcoded to
/// ProtoJSON without decoding. Accessors decode it. An implementation of the service returns a task:
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
/// // A caller takes the task out of the response.
/// let request = GetTaskRequest { id: "42".to_owned(), ..GetTaskRequest::default() };
/// let response = Archive.get_task(Request::new(request)).await?;
/// let task: Task = response.into_inner().into_task()?;
/// assert_eq!(task.id, "42");
/// # Ok::<_, Status>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Snapshot(Origin);

/// Initial representation of a snapshot.
#[derive(Clone)]
enum Origin {
    /// A decoded task, possibly shared.
    Task(Arc<Task>),
    Proto(Bytes),
}

impl Snapshot {
    /// Wraps an encoded task. The bytes are not validated until they are decoded.
    pub fn from_proto(proto: Bytes) -> Self {
        Self(Origin::Proto(proto))
    }

    /// Returns the task.
    ///
    /// # Errors
    /// `Internal` if it can't be decoded.
    pub fn task(&self) -> Result<Cow<'_, Task>, Error> {
        Ok(match &self.0 {
            Origin::Task(task) => Cow::Borrowed(task),
            Origin::Proto(proto) => Cow::Owned(decode(proto)?),
        })
    }

    /// Returns the task by value. A shared task is copied.
    ///
    /// # Errors
    /// `Internal` if it can't be decoded.
    pub fn into_task(self) -> Result<Task, Error> {
        match self.0 {
            Origin::Task(task) => Ok(Arc::unwrap_or_clone(task)),
            Origin::Proto(proto) => decode(&proto),
        }
    }

    /// Truncates the history to its newest messages within the limit. Protobuf is decoded only if that removes any.
    pub(crate) fn shortened(self, limit: HistoryLimit) -> Result<Self, Error> {
        const HISTORY: u32 = 5;
        let fits = match &self.0 {
            Origin::Task(task) => limit.surplus(&task.history) == 0,
            // A history is smaller than its task.
            Origin::Proto(proto) if limit.messages.is_none() && proto.len() <= limit.bytes => true,
            Origin::Proto(proto) => count(proto, HISTORY).is_some_and(|(messages, bytes)| limit.fits(messages, bytes)),
        };
        if fits {
            return Ok(self);
        }
        let task = match self.0 {
            Origin::Proto(proto) => {
                let mut task = decode(&proto)?;
                limit.truncate(&mut task.history);
                task
            }
            Origin::Task(task) => limit.copy_task(&task, true),
        };
        Ok(task.into())
    }

    /// Returns the task as a shared reference, without copying it.
    ///
    /// # Errors
    /// `Internal` if it can't be decoded.
    pub(crate) fn into_shared(self) -> Result<Arc<Task>, Error> {
        match self.0 {
            Origin::Task(task) => Ok(task),
            Origin::Proto(proto) => decode(&proto).map(Arc::new),
        }
    }
}

fn decode(proto: &Bytes) -> Result<Task, Error> {
    Task::decode(&**proto).map_err(Error::internal)
}

/// Decodes the task of a response.
pub(crate) fn decoded(response: Response<Snapshot>) -> Result<Response<Task>, Error> {
    let (metadata, snapshot, extensions) = response.into_parts();
    Ok(Response::from_parts(metadata, snapshot.into_task()?, extensions))
}

conversions! {
    Snapshot:
    task: Task => Arc::new(task).into();
    task: Arc<Task> => Self(Origin::Task(task));
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::from_proto(Bytes::new())
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Origin::Task(task) => task.fmt(f),
            Origin::Proto(proto) => match Task::decode(&**proto) {
                Ok(task) => task.fmt(f),
                Err(error) => error.fmt(f),
            },
        }
    }
}

wraps_message! { Snapshot: Task }

impl Snapshot {
    fn encode_proto(&self, buf: &mut impl BufMut) {
        match &self.0 {
            Origin::Task(task) => task.encode_raw(buf),
            Origin::Proto(proto) => buf.put_slice(proto),
        }
    }

    fn proto_len(&self) -> usize {
        match &self.0 {
            Origin::Task(task) => task.encoded_len(),
            Origin::Proto(proto) => proto.len(),
        }
    }

    fn edit(&mut self, change: impl FnOnce(&mut Task) -> Result<(), DecodeError>) -> Result<(), DecodeError> {
        let mut task = match mem::take(self).0 {
            Origin::Task(task) => task,
            Origin::Proto(proto) => Arc::new(Task::decode(proto)?),
        };
        let changed = change(Arc::make_mut(&mut task));
        *self = task.into();
        changed
    }
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.task().map_err(S::Error::custom)?.serialize(serializer)
    }
}

impl UnaryOutput for Snapshot {
    fn write_json(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        let written = match &self.0 {
            Origin::Task(task) => write_to(out, &**task),
            Origin::Proto(proto) => write_encoded::<Task>(out, proto),
        };
        written.map_err(Error::internal)
    }
}
