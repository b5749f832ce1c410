//! Agent that is an HTTP endpoint: each turn is a POST request, and the response has the events of the turn.
//!
//! Request and events are those of [JSON lines](crate::agents::turn_json). `docs/agents.md` describes them for authors of endpoints.

use std::{fmt, io, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use reqwest::{Client, Response, StatusCode, Url, header};
use serde_json::value::RawValue;
use tokio_stream::StreamExt as _;
use tokio_util::io::StreamReader;

use super::{
    Agent, AgentCard, End, Error, Turn, Updates,
    endpoint::{self, Attempt, client_builder, media_type, parse_url, post, until_canceled, with_retries},
    turn_json::{AgentEvent, EventSink, Line, OUTPUT, TurnEnd, TurnLine, quoted, read_line},
};
use crate::{
    base::{
        bounded_body::{BodyError, MAX_WITHOUT_EVENT, ResponseBody},
        credential::Credential,
        decoding::{self, BYTE_ORDER_MARK},
        dependency::{Dependency, OutboundResult},
        retry::Backoff,
        sse::{SseReader, without_mark},
        stderr::escaped,
        webhook_signature::sign as webhook_signature,
    },
    protocol::{
        call::{HOPS, RESPONSE_HEAD},
        json::check_json,
    },
};

/// Name of the endpoint for the client.
const ENDPOINT: &str = "agent's endpoint";

/// Media types of responses.
const ACCEPT: &str = "text/event-stream, application/x-ndjson, application/json, text/plain";

/// Maximum number of retries of a request.
const RETRIES: u32 = 2;

/// Delays between attempts.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(1) };

options! {
    /// Options of an [`HttpEndpoint`] agent.
    #[derive(Clone)]
    #[non_exhaustive]
    pub struct HttpOptions {
        /// Bearer token of the requests.
        pub token: Option<Credential>,
        /// Secret that signs the requests, as in Standard Webhooks.
        pub secret: Option<Credential>,
        /// The endpoint may get a turn twice: a request is repeated if its outcome is unknown or the endpoint is overloaded, and
        /// a turn that was interrupted runs again ([`Agent::resumable`]). Off by default: only requests that found no connection
        /// are repeated.
        pub idempotent: bool,
        /// Maximum size of a response in bytes. 64 MiB by default.
        pub output_bytes: usize = 64 << 20,
        /// Agent card.
        pub card: AgentCard,
    }
}

debug_fields!(HttpOptions { idempotent });

/// Agent that sends its turns to an HTTP endpoint.
///
/// ```no_run
/// use a2a_service::{adapter::{HttpEndpoint, HttpOptions}, server::Server};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// let agent = HttpEndpoint::new("http://127.0.0.1:5000/turn", HttpOptions::default())?;
/// Server::new(agent).name("Reporter").serve("127.0.0.1:8080").await
/// # }
/// ```
#[derive(Clone)]
pub struct HttpEndpoint {
    client: Client,
    url: Url,
    dependency: Dependency,
    options: HttpOptions,
}

impl fmt::Debug for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The path and the query may be secrets.
        let origin = self.url.origin().ascii_serialization();
        f.debug_struct("HttpEndpoint").field("origin", &origin).field("options", &self.options).finish_non_exhaustive()
    }
}

impl HttpEndpoint {
    /// Creates the agent of an endpoint. Redirects are followed within its origin, with status 307 or 308.
    ///
    /// # Errors
    /// `InvalidInput` if the URL is not one of `http` or `https`; other errors if TLS can't be set up.
    pub fn new(url: &str, options: HttpOptions) -> io::Result<Self> {
        let url = parse_url(url)?;
        let client = client_builder().build().map_err(io::Error::other)?;
        let (probed, mut origin) = (client.clone(), url.clone());
        origin.set_path("/");
        origin.set_query(None);
        // No request to the endpoint itself: it might take it for a turn.
        let probe = move || endpoint::probe(probed.head(origin.clone()));
        let dependency = Dependency::new("http", "the endpoint of the agent").at(url.as_str()).with_probe(true, probe);
        Ok(Self { client, url, dependency, options })
    }

    /// Sends a turn, and applies the events of the response.
    async fn turn(&self, turn: &Turn, out: &Updates) -> Result<End, Error> {
        let body = Bytes::from(TurnLine::new(turn, "1", &[], None).to_line()?);
        let id = format!("{}-{}", turn.task_id(), turn.message().message_id);
        let send = async |trace| {
            let request = post((&self.client, &self.url), self.options.token.as_ref(), ACCEPT, trace, &body).await;
            let mut request = request.header("idempotency-key", &id).header(HOPS, turn.hops().saturating_add(1));
            if let Some(secret) = &self.options.secret {
                let timestamp = (turn.live.journal().sources().clock.millis() / 1000).to_string();
                let signature = webhook_signature(&secret.current().await, &id, &timestamp, &body);
                request = request.header("webhook-id", &id).header("webhook-timestamp", timestamp);
                request = request.header("webhook-signature", signature);
            }
            endpoint::send(ENDPOINT, request, RESPONSE_HEAD).await
        };
        let is_final = |result: &Attempt| match result {
            Ok(response) => !self.options.idempotent || !matches!(response.status().as_u16(), 429 | 502..=504),
            Err(error) => !self.options.idempotent && !error.is_connect(),
        };
        let called = (&self.dependency, &self.url, "POST");
        let (result, call) = with_retries((turn, out), called, (RETRIES, BACKOFF), send, is_final).await?;
        // Without the URL, which may have a secret.
        let response = result.map_err(|error| {
            let failure = Error::public("The endpoint of the agent can't be reached.");
            failure.caused_by(error.without_url()).because_of("unavailable")
        })?;
        let status = response.status();
        // A part of a body is no answer.
        if !status.is_success() || status == StatusCode::PARTIAL_CONTENT {
            let status = status.as_u16();
            return Err(Error::public(format!("The endpoint of the agent responded with status {status}.")));
        }
        let end = self.read(response, turn, out).await;
        if let Some(call) = call {
            call.end(if end.is_ok() { OutboundResult::Ok } else { OutboundResult::Protocol });
        }
        end?.unwrap_or(Ok(End::Completed(None)))
    }

    /// Applies the events of a response.
    async fn read(&self, response: Response, turn: &Turn, out: &Updates) -> Result<Option<TurnEnd>, Error> {
        let (status, media_type, charset) = (response.status(), media_type(&response), charset(&response));
        let mut body = ResponseBody::of(response, self.options.output_bytes);
        let mut sink = EventSink::new(out, turn.task_id(), Arc::default());
        let end = match media_type.as_str() {
            "text/event-stream" => read_sse(body, self.options.output_bytes, &mut sink).await?,
            "application/json" => read_json(&mut body, &mut sink).await?,
            _ if media_type.starts_with("text/") || media_type.is_empty() => {
                // The text of an endpoint that has only accepted the turn is no answer.
                if status == StatusCode::ACCEPTED {
                    return Err(Error::public(format!("The {ENDPOINT} responded with status 202: no answer yet.")));
                }
                read_text(&mut body, charset?, media_type == "text/html", out).await?;
                None
            }
            _ => read_lines(body, self.options.output_bytes, &mut sink).await?,
        };
        sink.flush().await?;
        Ok(end)
    }
}

impl Agent for HttpEndpoint {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        until_canceled(&turn, self.turn(&turn, &out)).await
    }

    fn card(&self) -> AgentCard {
        self.options.card.clone()
    }

    fn resumable(&self) -> bool {
        self.options.idempotent
    }

    fn dependencies(&self) -> Vec<Dependency> {
        vec![self.dependency.clone()]
    }
}

fn failure(error: BodyError<reqwest::Error>) -> Error {
    endpoint::failure(ENDPOINT, error)
}

/// Applies the events of a body with a JSON object on each line.
async fn read_lines(body: ResponseBody, max: usize, sink: &mut EventSink<'_>) -> Result<Option<TurnEnd>, Error> {
    let chunks = body.into_stream().map(|chunk| chunk.map_err(io::Error::other));
    let mut lines = pin!(StreamReader::new(chunks));
    let mut blank = 0;
    let read_failure = |error: io::Error| error.downcast().map_or_else(Error::from, failure);
    while let Some(Line::Whole(line) | Line::Cut(line)) = read_line(&mut lines, max).await.map_err(read_failure)? {
        blank = if line.trim_ascii().is_empty() { blank + line.len() } else { 0 };
        if blank > MAX_WITHOUT_EVENT {
            return Err(failure(BodyError::WithoutEvent(MAX_WITHOUT_EVENT)));
        }
        if let Some(end) = sink.apply_line(line).await? {
            return Ok(Some(end));
        }
    }
    sink.failure(ENDPOINT).map_or(Ok(None), Err)
}

/// Applies the events of server-sent events.
async fn read_sse(body: ResponseBody, max: usize, sink: &mut EventSink<'_>) -> Result<Option<TurnEnd>, Error> {
    let chunks = pin!(body.into_stream());
    let mut events = SseReader::new(chunks, max).accept_unterminated();
    loop {
        let event = events.next().await;
        if let Some(line) = events.json_line() {
            let why = "a line of an event stream is JSON, but has no `data:`";
            return Err(Error::internal(format!("{why}: {}", quoted(line))));
        }
        let Some(event) = event else { return sink.failure(ENDPOINT).map_or(Ok(None), Err) };
        let data = event.map_err(|error| failure(error.into()))?.data;
        if let Some(end) = sink.apply(AgentEvent::decode(data).await?).await? {
            return Ok(Some(end));
        }
    }
}

/// Applies the events of a JSON document: an event, or a list of events.
async fn read_json(body: &mut ResponseBody, sink: &mut EventSink<'_>) -> Result<Option<TurnEnd>, Error> {
    let text = without_mark(&body.all().await.map_err(failure)?);
    let events = decoding::decode(text.len(), move || split(&text)).await?;
    for event in events {
        let end = sink.apply(AgentEvent::decode(event).await?).await?;
        if end.is_some() {
            return Ok(end);
        }
    }
    sink.failure(ENDPOINT).map_or(Ok(None), Err)
}

/// Returns the events of a JSON document, still encoded.
fn split(text: &Bytes) -> Result<Vec<Bytes>, Error> {
    if !text.trim_ascii_start().starts_with(b"[") {
        return Ok(vec![text.clone()]);
    }
    check_json(text).map_err(|cause| Error::public(format!("The response of the {ENDPOINT} {cause}.")))?;
    let events: Vec<&RawValue> = serde_json::from_slice(text)?;
    Ok(events.iter().map(|event| text.slice_ref(event.get().as_bytes())).collect())
}

/// Character encoding of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charset {
    Utf8,
    /// Also that of the labels `iso-8859-1` and `us-ascii`, as in the Encoding standard.
    Windows1252,
}

/// Returns the encoding that the content type of a response names. UTF-8 by default.
///
/// # Errors
/// The encoding is not supported.
fn charset(response: &Response) -> Result<Charset, Error> {
    let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_ascii_lowercase();
    let mut parameters = content_type.split(';').filter_map(|parameter| parameter.split_once('='));
    let label = parameters.find(|(name, _)| name.trim() == "charset").map_or("", |(_, label)| label);
    match label.trim().trim_matches(['"', '\'']) {
        "" | "utf-8" | "utf8" => Ok(Charset::Utf8),
        "iso-8859-1" | "iso8859-1" | "iso_8859-1" | "latin1" | "l1" | "windows-1252" | "cp1252" | "us-ascii"
        | "ascii" => Ok(Charset::Windows1252),
        label => {
            let text = format!("The response of the {ENDPOINT} is neither in UTF-8 nor in ISO 8859-1 or Windows-1252.");
            Err(Error::public(text).caused_by(format!("charset {}", escaped(label))))
        }
    }
}

impl Charset {
    /// Decodes a text. Invalid UTF-8 is replaced.
    fn decode(self, text: &[u8]) -> String {
        /// Characters of the bytes from 0x80 to 0x9F.
        const C1: &str = "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}žŸ";
        match self {
            Self::Utf8 => String::from_utf8_lossy(text).into_owned(),
            Self::Windows1252 => {
                let c1 = |byte: u8| C1.chars().nth(byte.checked_sub(0x80)?.into());
                text.iter().map(|byte| c1(*byte).unwrap_or_else(|| char::from(*byte))).collect()
            }
        }
    }
}

/// Sends a text as an artifact, if there is one. `may_be_page`: a whole web page is that of another server.
async fn read_text(body: &mut ResponseBody, charset: Charset, may_be_page: bool, out: &Updates) -> Result<(), Error> {
    out.working().await?;
    let text = body.all().await.map_err(failure)?;
    // A byte order mark takes precedence over the charset.
    let charset = if text.starts_with(BYTE_ORDER_MARK) { Charset::Utf8 } else { charset };
    let text = charset.decode(without_mark(&text).trim_ascii_end());
    let begins = |tag: &str| text.trim_start().get(..tag.len()).is_some_and(|text| text.eq_ignore_ascii_case(tag));
    if may_be_page && ["<!doctype", "<html", "<head", "<?xml", "<!--"].into_iter().any(begins) {
        return Err(Error::public(format!("The {ENDPOINT} responded with a web page.")));
    }
    if !text.is_empty() {
        out.artifact(OUTPUT).last().text(text).await?;
    }
    Ok(())
}
