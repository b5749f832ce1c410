//! HTTP client of a session. An HTTP error ends its call at once. One that means that the server does not know the session any more,
//! and is not an answer to the call, makes `rmcp` open another one, and repeat the call once.

use std::{collections::HashMap, io, slice, sync::Arc, time::Duration};

use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use http::{HeaderName, HeaderValue, StatusCode, header};
use reqwest::{Client, RequestBuilder, Response};
use rmcp::{
    model::{ClientJsonRpcMessage, ErrorCode, ErrorData, JsonRpcError, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        HttpStatusError, SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
        StreamableHttpResponseLimits,
    },
};
use serde_json::Value;
use sse_stream::Sse;
use tokio::time::{Instant, sleep_until, timeout};

use super::message;
use crate::{
    agents::endpoint::media_type,
    base::{
        bounded_body::{BodyError, ResponseBody},
        sse::SseReader,
        stderr::escaped,
    },
    protocol::rpc::brief,
};

/// Header with the id of a session.
const SESSION: &str = "mcp-session-id";

/// Words of an error that a session is not known any more.
const LOST: [&str; 9] =
    ["not found", "not_found", "no valid", "invalid", "unknown", "expired", "terminated", "not exist", "no longer"];

/// Maximum time to wait for a first event that reports an unknown session.
const FIRST_EVENT: Duration = Duration::from_secs(1);

/// Minimum time before an ended stream is opened again, also if the server asks for less.
const MIN_RETRY: Duration = Duration::from_millis(MIN_RETRY_MILLIS);
const MIN_RETRY_MILLIS: u64 = 1000;

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
        let (id, method) = (call.id.clone(), call.request.method().to_owned());
        let mut request = self.0.post(&*uri).body(serde_json::to_vec(&message)?);
        request = request.header(header::CONTENT_TYPE, "application/json");
        request = request.header(header::ACCEPT, "text/event-stream, application/json");
        let request = with_headers(request, session.as_deref(), token, headers);
        // Without the URL, which may have a secret.
        let response = request.send().await.map_err(reqwest::Error::without_url)?;
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
        if parsed.is_err() && status == StatusCode::BAD_REQUEST && method == "initialize" {
            // The text may name the versions of the server.
            let text = format!("HTTP {status}: {}", brief(&escaped(&String::from_utf8_lossy(body))));
            parsed = Ok(ServerJsonRpcMessage::Error(JsonRpcError::new(None, ErrorData::invalid_params(text, None))));
        }
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
        let mut request = self.0.get(&*uri).header(header::ACCEPT, "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = with_headers(request, session.as_deref(), token, headers).send().await?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => return Err(StreamableHttpError::ServerDoesNotSupportSse),
            status if !status.is_success() => return Err(HttpStatusError::new(status.as_u16(), None).into()),
            _ if media_type(&response) == "text/event-stream" => {}
            _ => return Err(StreamableHttpError::UnexpectedContentType(Some(media_type(&response)))),
        }
        let delayed = events(response, max).then(async |event| {
            if event.is_err() {
                // `rmcp` opens the stream again at once.
                sleep_until(Instant::now() + MIN_RETRY).await;
            }
            event
        });
        Ok(delayed.boxed())
    }
}

/// Adds the headers of a session to a request.
fn with_headers(
    mut request: RequestBuilder,
    session: Option<&str>,
    token: Option<String>,
    headers: Headers,
) -> RequestBuilder {
    request = request.headers(headers.into_iter().collect());
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    if let Some(session) = session {
        request = request.header(SESSION, session);
    }
    request
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

/// Returns the events of a response as `rmcp` reads them, the last of which has only the last id. The stream ends at an event of more
/// than `max` bytes.
fn events(response: Response, max: usize) -> BoxStream<'static, Result<Sse, SseError>> {
    let reader = SseReader::new(response.bytes_stream().boxed(), max).accept_unterminated();
    let items = stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        let next = reader.next().await.map(|event| match event {
            Ok(event) => String::from_utf8(event.data.into()).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        });
        let retry = reader.retry.map(|millis| millis.max(MIN_RETRY_MILLIS));
        let id = reader.id.as_ref().map(|id| String::from_utf8_lossy(id).into_owned());
        let event = |data| Ok(Sse { event: None, data, id, retry });
        Some(match next {
            Some(Ok(data)) => (vec![event(Some(message::readable(data)))], Some(reader)),
            Some(Err(why)) => (vec![event(None), Err(SseError::Body(why.into()))], None),
            None => (vec![event(None)], None),
        })
    });
    items.flat_map(stream::iter).boxed()
}
