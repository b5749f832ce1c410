//! Body of an HTTP response, of limited size: read as a whole, or line by line.

use std::time::Duration;

use bytes::BytesMut;
use reqwest::Response;
use tokio::time::timeout;

/// Body of a response, of limited size.
pub(super) struct Body {
    response: Response,
    buffer: BytesMut,
    /// Length of the prefix of the buffer that has no line feed.
    searched: usize,
    /// Number of bytes that may still be received.
    left: usize,
    /// Maximum time in which nothing is received.
    idle_timeout: Option<Duration>,
}

/// Error of a body.
#[derive(Debug)]
pub(super) enum BodyError {
    /// The connection was closed before the end of the body. The error has no URL.
    Interrupted(reqwest::Error),
    /// The body exceeds the limit.
    TooLarge,
    /// Nothing was received for the idle timeout.
    Stalled,
}

impl Body {
    /// Creates the body of a response, of at most `max` bytes.
    pub(super) fn new(response: Response, max: usize) -> Self {
        Self { response, buffer: BytesMut::new(), searched: 0, left: max, idle_timeout: None }
    }

    /// Sets the maximum time in which nothing is received. None by default.
    pub(super) fn idle_timeout(self, idle_timeout: Duration) -> Self {
        Self { idle_timeout: Some(idle_timeout), ..self }
    }

    /// Receives more of the body. Returns false at its end.
    async fn receive(&mut self) -> Result<bool, BodyError> {
        let chunk = match self.idle_timeout {
            Some(limit) => timeout(limit, self.response.chunk()).await.map_err(|_| BodyError::Stalled)?,
            None => self.response.chunk().await,
        };
        let chunk = chunk.map_err(|error| BodyError::Interrupted(error.without_url()))?;
        let Some(chunk) = chunk else { return Ok(false) };
        self.left = self.left.checked_sub(chunk.len()).ok_or(BodyError::TooLarge)?;
        self.buffer.extend_from_slice(&chunk);
        Ok(true)
    }

    /// Returns the next line, without its line feed and white space before it. `None` at the end of the body.
    pub(super) async fn line(&mut self) -> Result<Option<BytesMut>, BodyError> {
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            if let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(self.searched + end + 1);
                self.searched = 0;
                line.truncate(line.trim_ascii_end().len());
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if !self.receive().await? {
                self.searched = 0;
                let rest = self.buffer.split();
                return Ok((!rest.is_empty()).then_some(rest));
            }
        }
    }

    /// Returns the whole body.
    pub(super) async fn all(&mut self) -> Result<BytesMut, BodyError> {
        while self.receive().await? {}
        Ok(self.buffer.split())
    }
}
