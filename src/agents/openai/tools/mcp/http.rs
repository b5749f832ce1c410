//! HTTP client of a session. An HTTP error ends its call at once. One that may mean that the server does not know the session any
//! more makes `rmcp` open another one, and repeat the call once.

use std::{collections::HashMap, io, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use http::{HeaderName, HeaderValue, StatusCode, header};
use reqwest::{Client, Response};
use rmcp::{
    model::{ClientJsonRpcMessage, ErrorCode, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        HttpStatusError, SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
        StreamableHttpResponseLimits,
    },
};
use sse_stream::{Sse, SseStream};

use crate::{
    agents::endpoint::media_type,
    base::bounded_body::{BodyError, ResponseBody},
};

/// Header with the id of a session.
const SESSION: &str = "mcp-session-id";

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
                return Ok(StreamableHttpPostResponse::Sse(events(response, limits.max_sse_event_size), opened));
            }
            "application/json" => {}
            _ => return Err(StreamableHttpError::UnexpectedContentType(Some(media_type))),
        }
        if status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let body = ResponseBody::of(response, limits.max_json_response_size).all().await;
        let mut parsed = match &body {
            Ok(body) => serde_json::from_slice::<ServerJsonRpcMessage>(body),
            Err(_) if !status.is_success() => serde_json::from_slice(b""),
            Err(BodyError::Interrupted(_)) => return Err(StreamableHttpError::UnexpectedEndOfStream),
            Err(error) => return Err(io::Error::other(error.to_string()).into()),
        };
        if let Ok(ServerJsonRpcMessage::Error(error)) = &mut parsed {
            // An answer to this call, as opposed to one to its session or to its form.
            let is_answer = error.id.as_ref() == Some(&id)
                && matches!(error.error.code, ErrorCode::INVALID_PARAMS | ErrorCode::METHOD_NOT_FOUND);
            let names_session = error.id.is_none() && error.error.message.to_lowercase().contains("session");
            if session.is_some()
                && !is_answer
                && (status == StatusCode::BAD_REQUEST || status.is_success() && names_session)
            {
                return Err(StreamableHttpError::SessionExpired);
            }
            // Servers that have not read the call do not know its id.
            error.id = Some(id);
        } else if status == StatusCode::BAD_REQUEST && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
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
        self.0.get_stream(uri, session, last, token, headers).await
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
        self.0.get_stream_with_max_sse_event_size(uri, session, last, token, headers, max).await
    }
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
    SseStream::from_bytes_stream(limited).boxed()
}
