//! HTTP requests of agents at an endpoint: URL, client, retries.

use std::{io, time::Duration};

use bytes::Bytes;
use reqwest::{Client, RequestBuilder, Response, Url, header};
use tokio::time::{Instant, sleep_until, timeout};

use super::{End, Error, Stopped, Turn};
use crate::base::{
    bounded_body::BodyError,
    credential::Credential,
    retry::{Backoff, retry_after},
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

/// Returns a POST request of a turn with a JSON body. `accept` are the media types of the response.
pub(super) async fn post(
    (client, url): (&Client, &Url),
    token: Option<&Credential>,
    accept: &str,
    turn: &Turn,
    body: &Bytes,
) -> RequestBuilder {
    let request = client.post(url.clone()).body(body.clone()).header(header::ACCEPT, accept);
    let mut request = request.header(header::CONTENT_TYPE, "application/json");
    if let Some(token) = token {
        request = request.bearer_auth(token.current().await);
    }
    if let Some(trace) = turn.trace() {
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

/// Sends a request until it succeeds, its result is final, or all retries were made. Waits as `Retry-After` asks for.
pub(super) async fn with_retries<F: Future<Output = Result<Attempt, Error>>>(
    turn: &Turn,
    max_retries: u32,
    backoff: Backoff,
    send: impl Fn() -> F,
    is_final: impl Fn(&Attempt) -> bool,
) -> Result<Attempt, Error> {
    let sources = turn.live.journal().sources();
    let mut retries = 0;
    loop {
        let result = send().await?;
        let wait = result.as_ref().ok().and_then(|response| retry_after(response.headers(), sources.clock.millis()));
        let delay = backoff.delay_after(wait, MAX_RETRY_AFTER, retries, sources.rng.next_u64());
        let Some(delay) = delay.filter(|_| retries < max_retries && !is_final(&result)) else { return Ok(result) };
        retries += 1;
        sleep_until(Instant::now() + delay).await;
    }
}
