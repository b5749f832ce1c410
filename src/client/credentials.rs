//! Credentials and further headers of a client.

use std::sync::Arc;

use http::HeaderMap;

use crate::{call::Call, error::Error};

/// Headers that a client sends with each call, such as credentials. Their values are marked as sensitive.
#[derive(Clone, Debug, Default)]
pub(super) struct Credentials {
    pub(super) headers: HeaderMap,
}

impl Credentials {
    pub(super) fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Adds the headers to a call. Headers that the call has already stay.
    #[expect(clippy::unused_async, reason = "tokens will be fetched here")]
    pub(super) async fn authorize(&self, mut call: Call) -> Result<Call, Error> {
        if self.headers.is_empty() {
            return Ok(call);
        }
        let mut headers = self.headers.clone();
        headers.extend(call.headers.take().map(|headers| HeaderMap::clone(&headers)).unwrap_or_default());
        call.headers = Some(Arc::new(headers));
        Ok(call)
    }
}
