//! Body of an HTTP response, of limited size: read as a whole, or as a stream.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{
    Stream, StreamExt as _,
    stream::{self, BoxStream},
};
use reqwest::Response;
use tokio::time::{Instant, timeout_at};

use crate::base::{clock, decoding::content_encoding};

/// Maximum number of bytes of a stream of events that belong to no event, such as comments: more than the comments of a day, which
/// keep a connection open.
pub(crate) const MAX_WITHOUT_EVENT: usize = 256 << 10;

/// Body of limited size, from a stream of chunks.
pub(crate) struct BoundedBody<S> {
    chunks: S,
    /// Maximum size in bytes.
    max: usize,
    /// Number of bytes that may still be received.
    left: usize,
    /// Maximum time in which nothing is received.
    idle_timeout: Option<Duration>,
    deadline: Option<Instant>,
    is_encoded: bool,
}

/// Body of a response of `reqwest`. Its errors have no URL, which may contain a secret.
pub(crate) type ResponseBody = BoundedBody<BoxStream<'static, Result<Bytes, reqwest::Error>>>;

/// Error of a body.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError<E> {
    /// The connection was closed before the end of the body.
    #[error("{0}")]
    Interrupted(E),
    /// The body exceeds this number of bytes.
    #[error("the response is larger than {0} bytes")]
    TooLarge(usize),
    /// The deadline has passed, or nothing was received for the idle timeout.
    #[error("the response did not arrive in time")]
    TimedOut,
    /// The stream has more than this number of bytes without an event.
    #[error("the response has more than {0} bytes without an event")]
    WithoutEvent(usize),
    /// The body has an encoding.
    #[error("the response has a content encoding, which was not requested")]
    Encoded,
}

impl ResponseBody {
    /// Creates the body of a response, of at most `max` bytes.
    pub(crate) fn of(response: Response, max: usize) -> Self {
        // The client requests no encoding.
        let is_encoded = content_encoding(response.headers()).is_some();
        let chunks = response.bytes_stream().map(|chunk| chunk.map_err(reqwest::Error::without_url));
        Self { is_encoded, ..Self::new(Box::pin(chunks), max) }
    }
}

impl<S, E> BoundedBody<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
{
    /// Creates a body of at most `max` bytes.
    pub(crate) fn new(chunks: S, max: usize) -> Self {
        Self { chunks, max, left: max, idle_timeout: None, deadline: None, is_encoded: false }
    }

    /// Sets the maximum time in which nothing is received. None by default.
    pub(crate) fn idle_timeout(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout: Some(idle_timeout), ..self }
    }

    /// Sets the time at which the body must be complete. None by default.
    pub(crate) fn deadline(self, deadline: Option<Instant>) -> Self {
        Self { deadline, ..self }
    }

    /// Receives the next chunk. `None` at the end of the body.
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError<E>> {
        if self.is_encoded {
            return Err(BodyError::Encoded);
        }
        let idle = self.idle_timeout.map(|limit| clock::after(Instant::now(), limit));
        let chunk = match [idle, self.deadline].into_iter().flatten().min() {
            Some(limit) => timeout_at(limit, self.chunks.next()).await.map_err(|_| BodyError::TimedOut)?,
            None => self.chunks.next().await,
        };
        let Some(chunk) = chunk.transpose().map_err(BodyError::Interrupted)? else { return Ok(None) };
        self.left = self.left.checked_sub(chunk.len()).ok_or(BodyError::TooLarge(self.max))?;
        Ok(Some(chunk))
    }

    /// Returns the whole body.
    pub(crate) async fn all(&mut self) -> Result<Bytes, BodyError<E>> {
        let mut all = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    }

    /// Returns the body as a stream of its chunks.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<Bytes, BodyError<E>>> {
        stream::try_unfold(self, async |mut body| Ok(body.chunk().await?.map(|chunk| (chunk, body))))
    }
}
