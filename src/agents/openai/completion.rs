//! Chat completions: requests, retries, and responses as a stream or a document.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use reqwest::{Client, Response, StatusCode, Url};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, value::RawValue};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use crate::{
    agents::endpoint::{self, Attempt, interrupted, media_type, post, with_retries},
    base::{
        bounded_body::{BodyError, ResponseBody},
        clock, decoding,
        retry::Backoff,
        sse::SseReader,
        stderr::escaped,
    },
    engine::agent::{Error, Turn},
    protocol::json::check_json,
};

/// Name of the endpoint for the client.
const ENDPOINT: &str = "model endpoint";

/// Media types of responses.
const ACCEPT: &str = "text/event-stream, application/json";

/// Maximum number of retries of a request.
const RETRIES: u32 = 3;

/// Delays between attempts.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(2) };

/// Maximum size of the body of an error response.
const ERROR_BYTES: usize = 64 << 10;

/// Maximum length of a text of the endpoint that is logged, in characters.
const MAX_QUOTED: usize = 300;

/// Maximum length of a text of the endpoint in which the key is looked for, before it is quoted, in bytes.
const MAX_SEARCHED: usize = 64 << 10;

/// Maximum number of tool calls in a response.
const MAX_CALLS: usize = 64;

/// Maximum size of the tool calls in a response, in bytes.
const MAX_CALL_BYTES: usize = 1 << 20;

/// Numbers of tokens. Read in the form of the API, and stored in that of the metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Usage {
    #[serde(default, rename = "promptTokens", alias = "prompt_tokens", deserialize_with = "number")]
    prompt: u64,
    #[serde(default, rename = "completionTokens", alias = "completion_tokens", deserialize_with = "number")]
    completion: u64,
    #[serde(default, rename = "totalTokens", alias = "total_tokens", deserialize_with = "number")]
    total: u64,
}

/// Deserializes a number of tokens. Anything else, such as a negative number, is ignored.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(Box::<RawValue>::deserialize(deserializer)?.get().parse().unwrap_or_default())
}

/// Deserializes numbers of tokens. Anything but an object is ignored.
fn usage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Usage>, D::Error> {
    Ok(serde_json::from_str(Box::<RawValue>::deserialize(deserializer)?.get()).unwrap_or_default())
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
        let arguments =
            check_json(self.arguments.as_bytes()).ok().and_then(|()| serde_json::from_str(&self.arguments).ok());
        arguments.unwrap_or_else(|| self.arguments.clone().into())
    }
}

/// Response of the model, without its text, which was passed on.
#[derive(Debug, Default)]
pub(super) struct Completion {
    pub(super) calls: Vec<ToolCall>,
    /// Size of the calls in bytes.
    call_bytes: usize,
    /// The response has an answer, which may be empty.
    has_choice: bool,
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
    #[serde(default, deserialize_with = "usage")]
    usage: Option<Usage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u32,
    #[serde(default, alias = "message")]
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionDelta>,
}

#[derive(Deserialize)]
struct FunctionDelta {
    name: Option<String>,
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
    pub(super) async fn open(&self, turn: &Turn, body: &Bytes) -> Result<CompletionStream<'_>, Error> {
        let response = self.request(turn, body).await?;
        let media_type = media_type(&response);
        if media_type == "text/html" {
            let cause = "the response is no chat completion (text/html); check openai.url";
            return Err(Error::public("The model endpoint responded with a web page.").caused_by(cause));
        }
        let body = ResponseBody::of(response, self.output_bytes).idle_timeout(self.idle_timeout);
        let content = if media_type == "application/json" {
            Content::Document(body)
        } else {
            let events: Events = SseReader::new(Box::pin(body.into_stream()), self.output_bytes);
            Content::Events(events.accept_unterminated())
        };
        Ok(CompletionStream { endpoint: self, content, completion: Completion::default() })
    }

    /// Sends a request, and repeats it if the endpoint is overloaded. Returns the response with a successful status.
    async fn request(&self, turn: &Turn, body: &Bytes) -> Result<Response, Error> {
        let send = async || {
            let request = post((&self.client, &self.url), self.key.as_ref(), ACCEPT, turn, body);
            endpoint::send(ENDPOINT, request, self.idle_timeout).await
        };
        let is_final = |result: &Attempt| match result {
            Ok(response) => !is_retryable(response.status()),
            Err(error) => error.is_builder(),
        };
        match with_retries(turn, RETRIES, BACKOFF, send, is_final).await? {
            Ok(response) if response.status().is_success() => Ok(response),
            Ok(response) => Err(self.rejection(response).await),
            // Without the URL, which may have a secret.
            Err(error) => Err(Error::public("The model endpoint can't be reached.").caused_by(error.without_url())),
        }
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
        let text = &text[..text.floor_char_boundary(MAX_SEARCHED)];
        let text = match &self.key {
            Some(key) => text.replace(key.as_str(), "(hidden)"),
            None => text.to_owned(),
        };
        escaped(&text.chars().take(MAX_QUOTED).collect::<String>())
    }
}

fn failure(error: BodyError<reqwest::Error>) -> Error {
    endpoint::failure(ENDPOINT, error)
}

fn is_retryable(status: StatusCode) -> bool {
    let is_permanent = matches!(status, StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED);
    status == StatusCode::TOO_MANY_REQUESTS || (status.is_server_error() && !is_permanent)
}

/// Response of the model while it is received.
pub(super) struct CompletionStream<'a> {
    endpoint: &'a Endpoint,
    content: Content,
    completion: Completion,
}

type Events = SseReader<BoxStream<'static, Result<Bytes, BodyError<reqwest::Error>>>>;

/// Content of a response that is still to be received.
enum Content {
    /// One JSON document.
    Document(ResponseBody),
    /// A chunk in each event.
    Events(Events),
    Nothing,
}

impl CompletionStream<'_> {
    /// Receives the next text of the model. `None` at the end of the response.
    pub(super) async fn next(&mut self) -> Result<Option<String>, Error> {
        loop {
            let data = match &mut self.content {
                Content::Nothing => return Ok(None),
                Content::Document(body) => {
                    let data = body.all().await.map_err(failure)?;
                    self.content = Content::Nothing;
                    return self.decode(data).await.map(Some);
                }
                Content::Events(events) => match events.next().await {
                    Some(event) => event.map_err(|error| failure(error.into()))?.data,
                    // Some endpoints close the stream without its last event.
                    None if self.completion.finish.is_some() => return Ok(None),
                    None => {
                        let cause = "the response ended before its last chunk";
                        let line = events.invalid_line().map(String::from_utf8_lossy);
                        return Err(interrupted(ENDPOINT).caused_by(line.map_or_else(
                            || cause.to_owned(),
                            |line| format!("{cause}; the first line that is no event: {}", self.endpoint.quoted(&line)),
                        )));
                    }
                },
            };
            // Some endpoints put no empty line between their events, which are then one event with several lines of data.
            let data = match data.trim_ascii().strip_suffix(b"[DONE]") {
                Some(rest) if rest.is_empty() || rest.ends_with(b"\n") => {
                    self.content = Content::Nothing;
                    data.slice_ref(rest)
                }
                _ => data,
            };
            let text = self.decode(data).await?;
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
    }

    /// Returns the response, without its text.
    ///
    /// # Errors
    /// The response has no answer.
    pub(super) fn into_completion(self) -> Result<Completion, Error> {
        if self.completion.has_choice {
            Ok(self.completion)
        } else {
            Err(Error::public("The response of the model endpoint has no answer."))
        }
    }

    /// Decodes chunks, applies them, and returns their text.
    async fn decode(&mut self, data: Bytes) -> Result<String, Error> {
        let encoded = data.clone();
        let chunks = decoding::decode(data.len(), move || {
            check_json(&encoded).map_err(|error| format!("it {error}"))?;
            let chunks = serde_json::Deserializer::from_slice(&encoded).into_iter::<Chunk>();
            chunks.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())
        });
        let mut text = String::new();
        for chunk in chunks.await.map_err(|cause| self.invalid(&data, &cause))? {
            text += &self.apply(chunk)?;
        }
        Ok(text)
    }

    /// Returns the failure for data that is no chunk.
    fn invalid(&self, data: &[u8], cause: &str) -> Error {
        let quoted = self.endpoint.quoted(&String::from_utf8_lossy(data.get(..MAX_SEARCHED).unwrap_or(data)));
        let cause = format!("not a chunk of a chat completion ({cause}): {quoted}");
        Error::public("The response of the model endpoint is invalid.").caused_by(cause)
    }

    /// Applies a chunk, and returns its text.
    fn apply(&mut self, chunk: Chunk) -> Result<String, Error> {
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            let cause = self.endpoint.quoted(&error.to_string());
            return Err(Error::public("The model endpoint reported an error.").caused_by(cause));
        }
        if let Some(usage) = chunk.usage {
            self.completion.usage = Some(usage);
        }
        let mut text = String::new();
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            self.completion.has_choice = true;
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
        let length = |text: Option<&String>| text.map_or(0, String::len);
        let function = |function: &FunctionDelta| length(function.name.as_ref()) + length(function.arguments.as_ref());
        self.call_bytes += id.len() + delta.function.as_ref().map_or(0, function);
        if self.call_bytes > MAX_CALL_BYTES {
            let text = format!("The tool calls of the model exceed {MAX_CALL_BYTES} bytes.");
            return Err(Error::public(text));
        }
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

    #[test]
    fn odd_numbers_of_usage_are_ignored() {
        let usage = |usage: &str| serde_json::from_str::<Chunk>(&format!(r#"{{"usage":{usage}}}"#)).unwrap().usage;
        for odd in ["-1", "9.5", "1e999", "\"9\"", "null", "[]", "99999999999999999999"] {
            let found = usage(&format!(r#"{{"prompt_tokens":{odd},"total_tokens":11}}"#));
            assert_eq!(found, Some(Usage { total: 11, ..Usage::default() }), "{odd}");
        }
        for odd in ["null", "7", "true", "\"x\"", r#"{"prompt_tokens":1,"prompt_tokens":2}"#] {
            assert_eq!(usage(odd), None, "{odd}");
        }
        assert_eq!(serde_json::from_str::<Chunk>("{}").unwrap().usage, None);
    }

    #[test]
    fn size_of_tool_calls_is_limited() {
        let delta = |arguments: String| CallDelta {
            index: Some(0),
            id: None,
            function: Some(FunctionDelta { name: None, arguments: Some(arguments) }),
        };
        let mut completion = Completion::default();
        let pieces = (0..100).take_while(|_| completion.add_call(delta("x".repeat(100_000))).is_ok()).count();
        assert_eq!((pieces, completion.calls[0].arguments.len()), (10, 1_000_000));
        let objects = ToolCall { arguments: format!("[{}1]", "{},".repeat(200_000)), ..ToolCall::default() };
        assert!(objects.arguments().is_string());
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
}
