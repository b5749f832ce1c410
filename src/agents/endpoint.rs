//! HTTP requests of agents at an endpoint: URL, client, retries.

use std::{io, time::Duration};

use bytes::Bytes;
use reqwest::{Client, RequestBuilder, Response, Url, header};
use tokio::time::{Instant, sleep_until, timeout};

use super::{End, Error, Stopped, Turn, Updates, waiting_message};
use crate::{
    base::{
        bounded_body::BodyError,
        credential::Credential,
        dependency::{Dependency, MAX_WAIT, OutboundCall, OutboundResult},
        retry::{Backoff, retry_after},
    },
    protocol::error::chain,
};

pub(super) use crate::client::http_builder as client_builder;

/// Maximum delay that `Retry-After` may request before a retry. A longer one fails the turn.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(30);

/// Result of an attempt to send a request.
pub(super) type Attempt = reqwest::Result<Response>;

/// Parses the URL of an endpoint.
///
/// # Errors
/// `InvalidInput` if the URL is not one of `http` or `https`.
pub(super) fn parse_url(url: &str) -> io::Result<Url> {
    let url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the URL is not one of http or https"))
}

/// Returns a POST request of a turn with a JSON body and a `traceparent`. `accept` are the media types of the response.
pub(super) async fn post(
    (client, url): (&Client, &Url),
    token: Option<&Credential>,
    accept: &str,
    trace: Option<String>,
    body: &Bytes,
) -> RequestBuilder {
    let request = client.post(url.clone()).body(body.clone()).header(header::ACCEPT, accept);
    let mut request = request.header(header::CONTENT_TYPE, "application/json");
    if let Some(token) = token {
        request = request.bearer_auth(token.current().await);
    }
    if let Some(trace) = trace {
        request = request.header("traceparent", trace);
    }
    request
}

/// Returns the failure of a turn for an error of the response's body. `endpoint` is the name of the endpoint for the client.
pub(super) fn failure(endpoint: &str, error: BodyError<reqwest::Error>) -> Error {
    match error {
        BodyError::Interrupted(cause) => interrupted(endpoint).caused_by(cause),
        BodyError::TimedOut => Error::public(format!("The {endpoint} did not respond in time.")),
        BodyError::TooLarge(_) => {
            Error::public(format!("The response of the {endpoint} is too large (limits.task_bytes)."))
        }
        BodyError::WithoutEvent(max) => {
            Error::public(format!("The response of the {endpoint} has more than {max} bytes without an event."))
        }
        BodyError::Encoded => {
            Error::public(format!("The response of the {endpoint} has a content encoding, which was not requested."))
        }
    }
}

/// Returns the failure for a response that ended too early.
pub(super) fn interrupted(endpoint: &str) -> Error {
    Error::public(format!("The response of the {endpoint} was interrupted."))
}

/// Returns the media type of a response in lower case, without parameters. Empty if there is none.
pub(super) fn media_type(response: &Response) -> String {
    let content_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Sends a request, and waits for the head of the response. Interim responses (1xx) do not extend the time.
pub(super) async fn send(endpoint: &str, request: RequestBuilder, limit: Duration) -> Result<Attempt, Error> {
    timeout(limit, request.send()).await.map_err(|_| failure(endpoint, BodyError::TimedOut))
}

/// Runs the work of a turn until it is canceled. The connection of the work is then closed, so that the other side can stop too.
pub(super) async fn until_canceled(turn: &Turn, work: impl Future<Output = Result<End, Error>>) -> Result<End, Error> {
    tokio::select! {
        end = work => end,
        () = turn.canceled() => Err(Stopped.into()),
    }
}

/// Returns the result of an attempt that got no response.
pub(super) fn unanswered(error: &reqwest::Error) -> OutboundResult {
    if error.is_connect() {
        OutboundResult::Connect
    } else if error.is_timeout() {
        OutboundResult::Timeout
    } else {
        OutboundResult::Protocol
    }
}

/// Sends a probe. Any response shows that the endpoint is there.
pub(super) async fn probe(request: RequestBuilder) -> OutboundResult {
    match request.send().await {
        Ok(response) => OutboundResult::of_status(response.status().as_u16(), None),
        Err(error) => unanswered(&error),
    }
}

/// Sends a request until it succeeds, its result is final, or all retries were made. Waits as `Retry-After` asks for. If the endpoint
/// can't be reached, a turn that was accepted before that was known waits for it. Also returns the call of a successful response. Each attempt is a
/// span with this name, whose context `send` gets.
pub(super) async fn with_retries<F: Future<Output = Result<Attempt, Error>>>(
    (turn, out): (&Turn, &Updates),
    (dependency, url, name): (&Dependency, &Url, &str),
    (max_retries, backoff): (u32, Backoff),
    send: impl Fn(Option<String>) -> F,
    is_final: impl Fn(&Attempt) -> bool,
) -> Result<(Attempt, Option<OutboundCall>), Error> {
    let sources = turn.live.journal().sources();
    let (mut retries, mut waits_until) = (0, None);
    loop {
        let mut call = dependency.begin().repeating(retries > 0).traced(name.to_owned());
        call.span.set("http.request.method", "POST");
        call.span.set_some("server.address", url.host_str());
        call.span.set_some("server.port", url.port_or_known_default());
        let result = match send(call.span.header().or_else(|| turn.trace().map(str::to_owned))).await {
            Ok(result) => result,
            Err(error) => {
                call.end(OutboundResult::Timeout);
                return Err(error);
            }
        };
        let wait = result.as_ref().ok().and_then(|response| retry_after(response.headers(), sources.clock.millis()));
        let delay = backoff.delay_after(wait, MAX_RETRY_AFTER, retries, sources.rng.next_u64());
        let delay = delay.filter(|_| retries < max_retries && !is_final(&result));
        let outcome = match &result {
            Ok(response) if response.status().is_success() => {
                call.span.set("http.response.status_code", response.status().as_u16());
                call.answered();
                return Ok((result, Some(call)));
            }
            Ok(response) => OutboundResult::of_status(response.status().as_u16(), wait),
            Err(error) => unanswered(error),
        };
        match &result {
            Ok(_) => call.end(outcome),
            // Without the URL, which may have a secret.
            Err(error) => call.fail(outcome, &std::error::Error::source(error).map(chain).unwrap_or_default()),
        }
        let may_wait = outcome == OutboundResult::Connect && (turn.attempt() > 1 || dependency.state().is_open());
        let delay = match delay {
            Some(delay) => delay,
            None if may_wait => {
                if waits_until.is_none() {
                    out.progress(waiting_message(dependency)?).await?;
                }
                let until = *waits_until.get_or_insert_with(|| Instant::now() + MAX_WAIT);
                if !dependency.wait_while_open(until).await || Instant::now() >= until {
                    return Ok((result, None));
                }
                backoff.longest
            }
            None => return Ok((result, None)),
        };
        retries += 1;
        sleep_until(Instant::now() + delay).await;
    }
}
