//! HTTP client of a session. An HTTP error ends its call at once. One that means that the server does not know the session any more,
//! and is not an answer to the call, makes `rmcp` open another one, and repeat the call once.

use std::{collections::HashMap, io, slice, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use http::{HeaderName, HeaderValue, StatusCode, header};
use reqwest::{Client, Response};
use rmcp::{
    model::{ClientJsonRpcMessage, ErrorCode, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        HttpStatusError, SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
        StreamableHttpResponseLimits,
    },
};
use serde_json::Value;
use sse_stream::{Sse, SseStream};
use tokio::time::{Instant, sleep_until, timeout};

use super::message;
use crate::{
    agents::endpoint::media_type,
    base::bounded_body::{BodyError, ResponseBody},
};

/// Header with the id of a session.
const SESSION: &str = "mcp-session-id";

/// Words of an error that a session is not known any more.
const LOST: [&str; 9] =
    ["not found", "not_found", "no valid", "invalid", "unknown", "expired", "terminated", "not exist", "no longer"];

/// Time in which the first event of a response tells that the server does not know the session.
const FIRST_EVENT: Duration = Duration::from_secs(1);

/// Minimum time before an ended stream is opened again, also if the server asks for less.
const MIN_RETRY: Duration = Duration::from_secs(1);

/// Client of `reqwest` that distinguishes the errors of requests.
#[derive(Clone)]
pub(super) struct HttpClient(pub(super) Client);

/// Headers of a request.
type Headers = HashMap<HeaderName, HeaderValue>;

/// Error of a request.
type HttpError = StreamableHttpError<reqwest::Error>;

impl StreamableHttpClient for HttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, token, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Result<StreamableHttpPostResponse, HttpError> {
        let ClientJsonRpcMessage::Request(call) = &message else {
            let client = &self.0;
            return client.post_message_with_response_limits(uri, message, session, token, headers, limits).await;
        };
        let id = call.id.clone();
        let mut request = self.0.post(&*uri).headers(headers.into_iter().collect()).body(serde_json::to_vec(&message)?);
        request = request.header(header::CONTENT_TYPE, "application/json");
        request = request.header(header::ACCEPT, "text/event-stream, application/json");
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(session) = &session {
            request = request.header(SESSION, &**session);
        }
        let response = request.send().await?;
        let (status, media_type) = (response.status(), media_type(&response));
        let opened = response.headers().get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
        match &*media_type {
            _ if !status.is_success() => {}
            _ if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) => {
                return Ok(StreamableHttpPostResponse::Accepted);
            }
            "text/event-stream" => {
                let mut events = events(response, limits.max_sse_event_size);
                // A call that takes longer is in the session.
                let first = match &session {
                    Some(_) => timeout(FIRST_EVENT, events.next()).await.ok().flatten(),
                    None => None,
                };
                let error = first.as_ref().and_then(|event| event.as_ref().ok()?.data.as_deref().map(str::as_bytes));
                let error = error.filter(|data| matches!(message::parse(data), Ok(ServerJsonRpcMessage::Error(_))));
                if error.is_some_and(|data| is_session_lost(status, data, &id.to_string())) {
                    return Err(StreamableHttpError::SessionExpired);
                }
                let events = stream::iter(first).chain(events).boxed();
                return Ok(StreamableHttpPostResponse::Sse(events, opened));
            }
            "application/json" => {}
            _ => return Err(StreamableHttpError::UnexpectedContentType(Some(media_type))),
        }
        let body = match ResponseBody::of(response, limits.max_json_response_size).all().await {
            Ok(body) => body,
            Err(_) if !status.is_success() => return Err(HttpStatusError::new(status.as_u16(), None).into()),
            Err(BodyError::Interrupted(_)) => return Err(StreamableHttpError::UnexpectedEndOfStream),
            Err(error) => return Err(io::Error::other(error.to_string()).into()),
        };
        let body = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&body);
        let mut parsed = message::parse(body);
        let is_rejected = match status {
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND => true,
            _ => status.is_success() && matches!(parsed, Ok(ServerJsonRpcMessage::Error(_))),
        };
        if session.is_some() && is_rejected && is_session_lost(status, body, &id.to_string()) {
            return Err(StreamableHttpError::SessionExpired);
        }
        if let Ok(ServerJsonRpcMessage::Error(error)) = &mut parsed {
            // Servers that have not read the call do not know its id.
            error.id = Some(id);
        } else if !status.is_success() {
            return Err(HttpStatusError::new(status.as_u16(), None).into());
        }
        Ok(StreamableHttpPostResponse::Json(parsed?, opened))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), HttpError> {
        self.0.delete_session(uri, session, token, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpError> {
        let max = StreamableHttpResponseLimits::default().max_sse_event_size;
        self.get_stream_with_max_sse_event_size(uri, session, last, token, headers, max).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        token: Option<String>,
        headers: Headers,
        max: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpError> {
        let stream =
            self.0.get_stream_with_max_sse_event_size(uri, session, last, token, headers, max).await?.map(readable);
        let delayed = stream.then(async |event| {
            if event.is_err() {
                // `rmcp` opens the stream again at once.
                sleep_until(Instant::now() + MIN_RETRY).await;
            }
            event
        });
        Ok(delayed.boxed())
    }
}

/// Returns true if a rejected call may be repeated in another session: the response says that the server does not know the session, and
/// is not an answer to the call, which may have run.
fn is_session_lost(status: StatusCode, body: &[u8], call: &str) -> bool {
    let text = String::from_utf8_lossy(body);
    let json: Value = match serde_json::from_str(&text) {
        // It may be an answer.
        Err(_) if text.contains("\"jsonrpc\"") => return false,
        parsed => parsed.unwrap_or_default(),
    };
    let is_own = |message: &&Value| {
        let id = &message["id"];
        id.as_str().map_or_else(|| id.to_string(), str::to_owned) == call
    };
    let message = |json: &Value| json["error"]["message"].as_str().map(str::to_lowercase);
    if let Some(answer) = json.as_array().map_or(slice::from_ref(&json), Vec::as_slice).iter().find(is_own) {
        // Errors of tools name other sessions.
        let is_of_tool = [ErrorCode::INVALID_PARAMS, ErrorCode::METHOD_NOT_FOUND]
            .iter()
            .any(|code| answer["error"]["code"] == code.0);
        let is_lost = |text: String| text.contains("session") && LOST.iter().any(|lost| text.contains(lost));
        return !is_of_tool && message(answer).is_some_and(is_lost);
    }
    let text = message(&json).unwrap_or_else(|| text.to_lowercase());
    status == StatusCode::NOT_FOUND || text.contains("session") || text.contains("server not initialized")
}

/// Makes an event readable for `rmcp`, and limits how soon its stream is opened again.
fn readable(event: Result<Sse, SseError>) -> Result<Sse, SseError> {
    let least = u64::try_from(MIN_RETRY.as_millis()).unwrap_or(u64::MAX);
    event.map(|event| Sse {
        data: event.data.map(message::readable),
        retry: event.retry.map(|retry| retry.max(least)),
        ..event
    })
}

/// Returns the events of a response, which ends at one of more than `max` bytes.
fn events(response: Response, max: usize) -> BoxStream<'static, Result<Sse, SseError>> {
    let (mut event, mut line, mut after_cr) = (0, 0, false);
    let limited = response.bytes_stream().map(move |chunk| {
        let chunk: Bytes = chunk.map_err(io::Error::other)?;
        for byte in &chunk {
            event += 1;
            match byte {
                b'\n' if after_cr => {}
                // An empty line ends an event.
                b'\n' | b'\r' if line == 0 => event = 0,
                b'\n' | b'\r' => line = 0,
                _ => line += 1,
            }
            after_cr = *byte == b'\r';
            if event > max {
                return Err(io::Error::other(format!("an event has more than {max} bytes")));
            }
        }
        Ok(chunk)
    });
    SseStream::from_bytes_stream(limited).map(readable).boxed()
}
