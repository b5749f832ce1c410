//! Chat completions: requests, retries, and responses as a stream or a document.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{self, HeaderValue},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    agent::Error,
    base::bounded_body::{BodyError, ResponseBody},
    clock,
};

/// Maximum number of attempts to send a request.
const ATTEMPTS: u32 = 4;

/// Delay before the second attempt, which doubles for each further one.
const DELAY: Duration = Duration::from_millis(500);

/// Maximum delay that `Retry-After` may request. A longer one fails the turn.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// Maximum size of the body of an error response.
const ERROR_BYTES: usize = 64 << 10;

/// Maximum length of a text of the endpoint that is logged, in characters.
const MAX_QUOTED: usize = 300;

/// Maximum number of tool calls in a response.
const MAX_CALLS: usize = 64;

/// Numbers of tokens. Read in the form of the API, and stored in that of the metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Usage {
    #[serde(default, rename = "promptTokens", alias = "prompt_tokens")]
    prompt: u64,
    #[serde(default, rename = "completionTokens", alias = "completion_tokens")]
    completion: u64,
    #[serde(default, rename = "totalTokens", alias = "total_tokens")]
    total: u64,
}

impl Usage {
    /// Adds the tokens of a further request.
    pub(super) fn add(&mut self, other: Self) {
        self.prompt = self.prompt.saturating_add(other.prompt);
        self.completion = self.completion.saturating_add(other.completion);
        self.total = self.total.saturating_add(other.total);
    }
}

/// Tool call of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ToolCall {
    pub(super) id: String,
    pub(super) name: String,
    /// Arguments in JSON.
    pub(super) arguments: String,
}

impl ToolCall {
    /// Returns the arguments. Those that are not JSON are a string.
    pub(super) fn arguments(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_else(|_| self.arguments.clone().into())
    }
}

/// Response of the model, without its text, which was passed on.
#[derive(Debug, Default)]
pub(super) struct Completion {
    pub(super) calls: Vec<ToolCall>,
    pub(super) finish: Option<String>,
    pub(super) usage: Option<Usage>,
    /// Reason for which the model refuses to answer.
    pub(super) refusal: String,
}

/// Chunk of a stream, or a whole response.
#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    #[serde(default, alias = "message")]
    delta: Option<Delta>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    #[serde(default)]
    index: Option<usize>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    function: Option<FunctionDelta>,
}

#[derive(Deserialize)]
struct FunctionDelta {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
}

/// Client of a chat completions endpoint.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) client: Client,
    pub(super) url: Url,
    pub(super) key: Option<String>,
    pub(super) idle_timeout: Duration,
    pub(super) output_bytes: usize,
}

impl Endpoint {
    /// Sends a request, and opens the stream of its response.
    pub(super) async fn open(&self, body: &Bytes, trace: Option<&str>) -> Result<CompletionStream<'_>, Error> {
        let response = self.request(body, trace).await?;
        let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        if content_type.eq_ignore_ascii_case("text/html") {
            let cause = "the response is no chat completion (text/html); check openai.url";
            return Err(Error::public("The model endpoint responded with a web page.").caused_by(cause));
        }
        let is_document = content_type.eq_ignore_ascii_case("application/json");
        let body = ResponseBody::of(response, self.output_bytes).idle_timeout(self.idle_timeout);
        Ok(CompletionStream {
            endpoint: self,
            body,
            is_document,
            is_finished: false,
            ignored: String::new(),
            completion: Completion::default(),
        })
    }

    /// Sends a request, and repeats it if the endpoint is overloaded. Returns the response with a successful status.
    async fn request(&self, body: &Bytes, trace: Option<&str>) -> Result<Response, Error> {
        let mut delay = DELAY;
        for attempt in 1.. {
            let mut request = self.client.post(self.url.clone()).body(body.clone());
            request = request.header(header::CONTENT_TYPE, "application/json");
            request = request.header(header::ACCEPT, "text/event-stream, application/json");
            if let Some(key) = &self.key {
                request = request.bearer_auth(key);
            }
            if let Some(trace) = trace {
                request = request.header("traceparent", trace);
            }
            let result = timeout(self.idle_timeout, request.send()).await.map_err(|_| stalled())?;
            let wait = match &result {
                Ok(response) if is_retryable(response.status()) => {
                    retry_after(response.headers().get(header::RETRY_AFTER)).map_or(Some(delay), |wait| {
                        // The endpoint is not available for too long.
                        (wait <= MAX_DELAY).then_some(wait.max(delay))
                    })
                }
                Ok(_) => None,
                Err(error) => (!error.is_builder()).then_some(delay),
            };
            match (result, wait.filter(|_| attempt < ATTEMPTS)) {
                (Ok(response), _) if response.status().is_success() => return Ok(response),
                (_, Some(wait)) => {
                    sleep_until(Instant::now() + wait).await;
                    delay *= 2;
                }
                (Ok(response), None) => return Err(self.rejection(response).await),
                (Err(error), None) => {
                    // Without the URL, which may have a secret.
                    let error = error.without_url();
                    return Err(Error::public("The model endpoint can't be reached.").caused_by(error));
                }
            }
        }
        Err(Error::internal("no attempt was made"))
    }

    /// Returns the failure for a response with an unsuccessful status.
    async fn rejection(&self, response: Response) -> Error {
        let status = response.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            // The body may quote the key.
            let cause = format!("the model endpoint responded with status {status}; check the key (A2A_OPENAI_KEY)");
            return Error::public("The model endpoint rejects the credentials of the agent.").caused_by(cause);
        }
        let deadline = clock::after(Instant::now(), self.idle_timeout);
        let body = ResponseBody::of(response, ERROR_BYTES).deadline(Some(deadline)).all().await.unwrap_or_default();
        let text = String::from_utf8_lossy(&body).into_owned();
        let cause = format!("the model endpoint responded with status {status}: {}", self.quoted(&text));
        let status = status.as_u16();
        let public = match status {
            _ if text.contains("context_length_exceeded") => "The conversation is too long for the model.".to_owned(),
            429 => "The model endpoint is overloaded, or its quota is exhausted (status 429).".to_owned(),
            500.. => format!("The model endpoint is not available (status {status})."),
            _ => format!("The model endpoint rejects the request (status {status})."),
        };
        Error::public(public).caused_by(cause)
    }

    /// Returns the beginning of a text of the endpoint for the log, without the key.
    fn quoted(&self, text: &str) -> String {
        let text = match &self.key {
            Some(key) => text.replace(key.as_str(), "(hidden)"),
            None => text.to_owned(),
        };
        let mut line = String::new();
        let start: String = text.chars().take(MAX_QUOTED).collect();
        // Writing to a string does not fail.
        _ = crate::report::write_escaped(&mut line, &start, false);
        line
    }
}

/// Returns the failure of an endpoint that sends nothing.
fn stalled() -> Error {
    Error::public("The model endpoint did not respond in time (openai.idle_timeout).")
}

/// Returns the failure for an error of the response's body.
fn failure(error: BodyError<reqwest::Error>) -> Error {
    match error {
        BodyError::Interrupted(cause) => interrupted().caused_by(cause),
        BodyError::TimedOut => stalled(),
        BodyError::TooLarge(_) => {
            Error::public("The response of the model endpoint is too large (openai.output_bytes).")
        }
    }
}

fn interrupted() -> Error {
    Error::public("The response of the model endpoint was interrupted.")
}

fn is_retryable(status: StatusCode) -> bool {
    let is_permanent = matches!(status, StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED);
    status == StatusCode::TOO_MANY_REQUESTS || (status.is_server_error() && !is_permanent)
}

/// Returns the delay that a response requests in seconds. A date is treated as not given.
fn retry_after(header: Option<&HeaderValue>) -> Option<Duration> {
    let seconds = header?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Response of the model while it is received.
pub(super) struct CompletionStream<'a> {
    endpoint: &'a Endpoint,
    body: ResponseBody,
    /// The response is one JSON document, not a stream.
    is_document: bool,
    is_finished: bool,
    /// First line that is no chunk, for the log.
    ignored: String,
    completion: Completion,
}

impl CompletionStream<'_> {
    /// Receives the next text of the model. `None` at the end of the response.
    pub(super) async fn next(&mut self) -> Result<Option<String>, Error> {
        while !self.is_finished {
            if self.is_document {
                let body = self.body.all().await.map_err(failure)?;
                self.is_finished = true;
                return self.apply(&body).map(Some);
            }
            let line = self.body.line().await.map_err(failure)?;
            let Some(line) = line else {
                self.is_finished = true;
                // Some endpoints close the stream without its last line.
                if self.completion.finish.is_some() {
                    return Ok(None);
                }
                let cause = "the response ended before its last chunk";
                return Err(interrupted().caused_by(match self.ignored.as_str() {
                    "" => cause.to_owned(),
                    ignored => format!("{cause}; the first line that is no chunk: {ignored}"),
                }));
            };
            let Some(data) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
                // A blank line ends each chunk.
                if self.ignored.is_empty() && !line.is_empty() {
                    self.ignored = self.endpoint.quoted(&String::from_utf8_lossy(&line));
                }
                continue;
            };
            if data == b"[DONE]" {
                self.is_finished = true;
                return Ok(None);
            }
            let text = self.apply(data)?;
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
        Ok(None)
    }

    /// Returns the response, without its text.
    pub(super) fn into_completion(self) -> Completion {
        self.completion
    }

    /// Applies a chunk, and returns its text.
    fn apply(&mut self, data: &[u8]) -> Result<String, Error> {
        let chunk: Chunk = serde_json::from_slice(data).map_err(|cause| {
            let quoted = self.endpoint.quoted(&String::from_utf8_lossy(data));
            let cause = format!("not a chunk of a chat completion ({cause}): {quoted}");
            Error::public("The response of the model endpoint is invalid.").caused_by(cause)
        })?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            let cause = self.endpoint.quoted(&error.to_string());
            return Err(Error::public("The model endpoint reported an error.").caused_by(cause));
        }
        if let Some(usage) = chunk.usage {
            self.completion.usage = Some(usage);
        }
        let mut text = String::new();
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            if let Some(delta) = choice.delta {
                text.extend(delta.content);
                self.completion.refusal.extend(delta.refusal);
                for call in delta.tool_calls.into_iter().flatten() {
                    self.completion.add_call(call)?;
                }
            }
            if choice.finish_reason.is_some() {
                self.completion.finish = choice.finish_reason;
            }
        }
        Ok(text)
    }
}

impl Completion {
    /// Adds a piece of a tool call. A piece belongs to the last call, unless it has another index or id.
    fn add_call(&mut self, delta: CallDelta) -> Result<(), Error> {
        let count = self.calls.len();
        let id = delta.id.unwrap_or_default();
        let is_last = self.calls.last().is_some_and(|last| id.is_empty() || last.id == id);
        let continued = match delta.index {
            // An endpoint may send all calls with index 0.
            Some(index) if index + 1 == count && is_last => Some(index),
            Some(index) if index + 1 < count && id.is_empty() => Some(index),
            None if is_last && !id.is_empty() => Some(count - 1),
            Some(_) | None => None,
        };
        let position = match continued {
            Some(index) => index,
            None if count == MAX_CALLS => {
                return Err(Error::public(format!("The model called more than {MAX_CALLS} tools at once.")));
            }
            None => {
                let id = if id.is_empty() { format!("call_{count}") } else { id };
                self.calls.push(ToolCall { id, ..ToolCall::default() });
                count
            }
        };
        if let (Some(call), Some(function)) = (self.calls.get_mut(position), delta.function) {
            call.name.extend(function.name);
            call.arguments.extend(function.arguments);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_stored_between_turns() {
        let usage: Usage =
            serde_json::from_str(r#"{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}"#).unwrap();
        assert_eq!(usage, Usage { prompt: 9, completion: 2, total: 11 });
        let stored = serde_json::to_string(&usage).unwrap();
        assert_eq!(stored, r#"{"promptTokens":9,"completionTokens":2,"totalTokens":11}"#);
        assert_eq!(serde_json::from_str::<Usage>(&stored).unwrap(), usage);
    }

    fn calls(deltas: &[&str]) -> Vec<ToolCall> {
        let mut completion = Completion::default();
        for delta in deltas {
            completion.add_call(serde_json::from_str(delta).unwrap()).unwrap();
        }
        completion.calls
    }

    #[test]
    fn pieces_of_tool_calls_are_joined() {
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        };
        let expected = [call("a", "add", "{\"x\":1}"), call("b", "now", "{}")];
        let pieces = [
            r#"{"index":0,"id":"a","function":{"name":"add","arguments":""}}"#,
            r#"{"index":0,"function":{"arguments":"{\"x\""}}"#,
            r#"{"index":0,"function":{"arguments":":1}"}}"#,
            r#"{"index":1,"id":"b","function":{"name":"now","arguments":"{}"}}"#,
        ];
        assert_eq!(calls(&pieces), expected);
        let whole = [
            r#"{"id":"a","function":{"name":"add","arguments":"{\"x\":1}"}}"#,
            r#"{"id":"b","function":{"name":"now","arguments":"{}"}}"#,
        ];
        assert_eq!(calls(&whole), expected);
        // Each call has index 0.
        let equal = whole.map(|piece| piece.replacen('{', r#"{"index":0,"#, 1));
        assert_eq!(calls(&[&equal[0], &equal[1]]), expected);
        let unnamed = calls(&[r#"{"function":{"name":"now"}}"#, r#"{"function":{"name":"now"}}"#]);
        assert_eq!(unnamed, [call("call_0", "now", ""), call("call_1", "now", "")]);
    }

    #[test]
    fn retry_after_is_a_number_of_seconds() {
        let delay = |value: &'static str| retry_after(Some(&HeaderValue::from_static(value)));
        assert_eq!(delay("2"), Some(Duration::from_secs(2)));
        assert_eq!(delay("Fri, 31 Dec 1999 23:59:59 GMT"), None);
        assert_eq!(retry_after(None), None);
    }
}
