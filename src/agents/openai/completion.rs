//! Chat completions: requests, retries, and responses as a stream or a document.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use reqwest::{Client, Response, StatusCode, Url};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use self::{
    calls::Calls,
    chunk::{Chunk, Form, JoinedMembers, Members},
};
pub(super) use self::{
    calls::ToolCall,
    chunk::{Finish, Usage},
};
use crate::{
    agents::endpoint::{self, Attempt, interrupted, media_type, post, with_retries},
    base::{
        bounded_body::{BodyError, ResponseBody},
        clock,
        credential::Credential,
        decoding,
        dependency::{Dependency, OutboundCall, OutboundResult},
        metric,
        retry::Backoff,
        sse::{SseReader, without_mark},
        stderr::escaped,
        surrogates::{self, TextPieces},
        trace::{MAX_CONTENT, TraceScope},
    },
    engine::agent::{Error, Turn, Updates},
    protocol::{json::check_json, pb::v1::Message},
};

mod calls;
mod chunk;

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

/// Response of the model, whose text was passed on.
#[derive(Debug, Default)]
pub(super) struct Completion {
    pub(super) calls: Vec<ToolCall>,
    /// Message of the assistant with the calls, for the next request.
    pub(super) message: Value,
    /// The response has text.
    pub(super) has_text: bool,
    pub(super) has_reasoning: bool,
    pub(super) finish: Option<Finish>,
    pub(super) usage: Option<Usage>,
    /// Reason for which the model refuses to answer.
    pub(super) refusal: String,
}

/// Client of a chat completions endpoint.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) client: Client,
    pub(super) url: Url,
    pub(super) key: Option<Credential>,
    pub(super) dependency: Dependency,
    /// Name of the spans of requests: `chat` and the model.
    pub(super) span_name: Box<str>,
    pub(super) idle_timeout: Duration,
    pub(super) output_bytes: usize,
}

impl Endpoint {
    /// Sends a request, repeats it if the endpoint is overloaded, and opens the stream of its response. `tools` are the names of the tools.
    pub(super) async fn open<'a>(
        &'a self,
        turn: (&Turn, &Updates),
        body: &Bytes,
        tools: Vec<&'a str>,
    ) -> Result<CompletionStream<'a>, Error> {
        let send = async |trace| {
            let request = post((&self.client, &self.url), self.key.as_ref(), ACCEPT, trace, body).await;
            endpoint::send(ENDPOINT, request, self.idle_timeout).await
        };
        let is_final = |result: &Attempt| match result {
            // A server without the method (501) or the version of HTTP (505) will not get it.
            Ok(response) => !matches!(response.status().as_u16(), 429 | 500 | 502..=504 | 506..=599),
            Err(error) => error.is_builder(),
        };
        let called = (&self.dependency, &self.url, &*self.span_name);
        let (result, mut call) = with_retries(turn, called, (RETRIES, BACKOFF), send, is_final).await?;
        // Without the URL, which may have a secret.
        let response = result.map_err(|error| {
            let failure = Error::public("The model endpoint can't be reached.");
            failure.caused_by(error.without_url()).because_of("unavailable")
        })?;
        if !response.status().is_success() {
            return Err(self.rejection(response).await);
        }
        let has_content = TraceScope::current().tracing.has_content;
        if let Some(OutboundCall { span, .. }) = &mut call {
            span.set("gen_ai.operation.name", "chat");
            span.set("gen_ai.provider.name", "openai");
            span.set("gen_ai.request.model", self.span_name.strip_prefix("chat ").unwrap_or_default());
            span.set("gen_ai.conversation.id", turn.0.context_id());
            if has_content {
                let message =
                    |message: &Message| json!({"role": "user", "parts": [{"type": "text", "content": message.text()}]});
                let messages: Vec<_> = turn.0.stored_messages().map(message).collect();
                span.set_content("gen_ai.input.messages", &Value::from(messages).to_string());
            }
        }
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
        let answer = has_content.then(String::new);
        Ok(CompletionStream { endpoint: self, call, content, tools, received: Received::default(), answer })
    }

    /// Returns the failure for a response with an unsuccessful status.
    async fn rejection(&self, response: Response) -> Error {
        let status = response.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            // The body may quote the key.
            let cause = format!("the model endpoint responded with status {status}; check the key (A2A_OPENAI_KEY)");
            let text = "The model endpoint rejects the credentials of the agent.";
            return Error::public(text).caused_by(cause).because_of("credentials");
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
            Some(key) => text.replace(&**key.latest(), "(hidden)"),
            None => text.to_owned(),
        };
        escaped(&text.chars().take(MAX_QUOTED).collect::<String>())
    }
}

fn failure(error: BodyError<reqwest::Error>) -> Error {
    endpoint::failure(ENDPOINT, error)
}

/// Response of the model while it is received.
pub(super) struct CompletionStream<'a> {
    endpoint: &'a Endpoint,
    /// Until the end of the response.
    call: Option<OutboundCall>,
    /// Beginning of the text, if spans have contents.
    answer: Option<String>,
    content: Content,
    /// Names of the tools.
    tools: Vec<&'a str>,
    received: Received,
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

/// Content of a response that was received, except for its text.
#[derive(Default)]
struct Received {
    text: TextPieces,
    /// Text so far, as the content of a JSON string.
    known: String,
    /// Messages have pieces of the text, and not all of it so far.
    has_pieces: bool,
    has_text: bool,
    has_reasoning: bool,
    /// Content of a JSON string.
    refusal: String,
    calls: Calls,
    /// Members of the assistant's message that are not known.
    members: JoinedMembers,
    /// Form in which the answer has begun. It may be empty.
    form: Option<Form>,
    finish: Option<Finish>,
    usage: Option<Usage>,
    /// Number of chunks without a known member.
    unknown: usize,
    /// Number of parts of the content that were skipped.
    skipped: usize,
}

impl CompletionStream<'_> {
    /// Receives the next text of the model. `None` at the end of the response.
    pub(super) async fn next(&mut self) -> Result<Option<String>, Error> {
        let next = self.receive().await;
        if let (Ok(Some(text)), Some(answer)) = (&next, &mut self.answer)
            && answer.len() < MAX_CONTENT
        {
            answer.push_str(text);
        }
        if !matches!(next, Ok(Some(_)))
            && let Some(mut call) = self.call.take()
        {
            let Received { usage, finish, .. } = &self.received;
            if let Some(usage) = usage {
                call.span.set("gen_ai.usage.input_tokens", usage.prompt);
                call.span.set("gen_ai.usage.output_tokens", usage.completion);
            }
            if let Some(finish) = finish {
                call.span.set("gen_ai.response.finish_reasons", vec![finish.label()]);
            }
            if let Some(answer) = &self.answer {
                let message = json!([{"role": "assistant", "parts": [{"type": "text", "content": answer}]}]);
                call.span.set_content("gen_ai.output.messages", &message.to_string());
            }
            call.end(if next.is_ok() { OutboundResult::Ok } else { OutboundResult::Protocol });
        }
        next
    }

    async fn receive(&mut self) -> Result<Option<String>, Error> {
        loop {
            let text = match &mut self.content {
                Content::Nothing => return Ok(None),
                Content::Document(body) => {
                    let data = without_mark(&body.all().await.map_err(failure)?);
                    self.content = Content::Nothing;
                    self.decode(data, 1).await? + self.received.text.finish()
                }
                Content::Events(events) => match events.next().await {
                    _ if events.json_line().is_some() => {
                        let line = events.json_line().unwrap_or_default().to_vec();
                        return Err(self.invalid(&line, "JSON without `data:` in an event stream"));
                    }
                    Some(event) => {
                        let event = event.map_err(|error| failure(error.into()))?;
                        if event.name == "error" {
                            return Err(self.reported(&String::from_utf8_lossy(&event.data)));
                        }
                        self.decode(event.data, usize::MAX).await?
                    }
                    // Some endpoints close the stream without its last event, and others send no reason before that.
                    None if self.received.finish.is_some() || (events.is_done && self.received.unknown == 0) => {
                        self.content = Content::Nothing;
                        self.received.text.finish().to_owned()
                    }
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
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
    }

    /// Returns the response. `answer` is its text.
    ///
    /// # Errors
    /// The response has no answer, or an invalid tool call.
    pub(super) fn into_completion(self, answer: &str) -> Result<Completion, Error> {
        let received = self.received;
        let (unknown, skipped) = (received.unknown, received.skipped);
        if unknown + skipped > 0 {
            tracing::warn!(chunks = unknown, parts = skipped, "unknown chunks and parts of a model's response skipped");
        }
        if received.form.is_none() {
            return Err(Error::public("The response of the model endpoint has no answer."));
        }
        let (calls, call_messages) = received.calls.finish()?;
        let mut message = if calls.is_empty() { Map::new() } else { received.members.into_map()? };
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), if answer.is_empty() { Value::Null } else { answer.into() });
        message.insert("tool_calls".to_owned(), call_messages.into());
        Ok(Completion {
            calls,
            message: message.into(),
            has_text: received.has_text,
            has_reasoning: received.has_reasoning,
            finish: received.finish,
            usage: received.usage,
            refusal: surrogates::decode(&received.refusal)?,
        })
    }

    /// Decodes at most `max` chunks, applies them, and returns their text.
    async fn decode(&mut self, data: Bytes, max: usize) -> Result<String, Error> {
        let encoded = data.clone();
        let chunks = decoding::decode(data.len(), move || {
            check_json(&encoded).map_err(|error| format!("it {error}"))?;
            let chunks = serde_json::Deserializer::from_slice(&encoded).into_iter::<Members>();
            chunks.map(|chunk| Chunk::read(chunk?)).collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())
        });
        let chunks = chunks.await.map_err(|cause| self.invalid(&data, &cause))?;
        if chunks.len() > max {
            return Err(self.invalid(&data, "several documents in one"));
        }
        if let (None, Some(call)) = (self.received.form, &mut self.call) {
            call.span.set("gen_ai.response.time_to_first_chunk", call.elapsed().as_secs_f64());
            metric::MODEL_FIRST_CHUNK.observe(self.endpoint.dependency.agent(), &[], call.elapsed());
        }
        let mut text = String::new();
        for chunk in chunks {
            if let Some(error) = chunk.error {
                return Err(self.reported(&error));
            }
            text += &self.received.add(chunk, &self.tools)?;
        }
        Ok(text)
    }

    /// Returns the failure for data that is no chunk.
    fn invalid(&self, data: &[u8], cause: &str) -> Error {
        let quoted = self.endpoint.quoted(&String::from_utf8_lossy(data.get(..MAX_SEARCHED).unwrap_or(data)));
        let cause = format!("not a chunk of a chat completion ({}): {quoted}", self.endpoint.quoted(cause));
        Error::public("The response of the model endpoint is invalid.").caused_by(cause)
    }

    /// Returns the failure for an error that the endpoint reports.
    fn reported(&self, error: &str) -> Error {
        Error::public("The model endpoint reported an error.").caused_by(self.endpoint.quoted(error))
    }
}

impl Received {
    /// Adds a chunk, and returns its text.
    fn add(&mut self, mut chunk: Chunk, tools: &[&str]) -> Result<String, Error> {
        if (self.form, chunk.form) == (Some(Form::Delta), Some(Form::Message)) {
            // Some endpoints repeat the whole message at the end.
            chunk.calls.retain(|_| self.calls.is_empty());
            chunk.members.retain(|_| self.members.is_empty());
        }
        if chunk.form == Some(Form::Message) {
            self.remove_known(&mut chunk.text);
            match chunk.refusal.strip_prefix(&self.refusal) {
                Some(rest) => chunk.refusal = rest.to_owned(),
                None => chunk.refusal.retain(|_| self.form != Some(Form::Delta)),
            }
        }
        self.form = self.form.or(chunk.form);
        self.usage = chunk.usage.or(self.usage);
        self.unknown += usize::from(chunk.is_unknown);
        self.finish = self.finish.take().max(chunk.finish);
        self.has_reasoning |= chunk.has_reasoning;
        self.skipped += chunk.skipped;
        self.refusal.push_str(&chunk.refusal);
        self.calls.add(chunk.calls, tools)?;
        chunk.members.into_iter().for_each(|members| self.members.add(members));
        self.known.push_str(&chunk.text);
        let text = self.text.next(&chunk.text)?;
        self.has_text |= !text.trim().is_empty();
        Ok(text)
    }

    /// Removes the text so far from that of a message, which has all of it: after its pieces, or each time with more.
    fn remove_known(&mut self, text: &mut String) {
        if self.has_pieces || text.is_empty() {
            return;
        }
        match text.strip_prefix(&*self.known) {
            Some(rest) => *text = rest.to_owned(),
            // Written otherwise, such as with other escapes.
            None if self.form == Some(Form::Delta) && self.has_text => text.clear(),
            None => self.has_pieces = true,
        }
    }
}

#[cfg(test)]
mod tests;
