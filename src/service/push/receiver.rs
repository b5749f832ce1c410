//! Receiver of push notifications: verification of sender and content, duplicates, and decoding in the forms of 1.0 and 0.3.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    sync::Arc,
    time::Duration,
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
    routing::{MethodRouter, post},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Collected, LengthLimitError, Limited};
use parking_lot::Mutex;
use serde_json::value::RawValue;
use subtle::ConstantTimeEq as _;
use tokio::time::timeout;
use url::Url;

use super::{
    sender::{DELIVERY_ID, NOTIFICATION_TOKEN, OLD_NOTIFICATION_TOKEN},
    token::Expected,
};
use crate::{
    base::{
        clock::Millis,
        jwks::{KeySet, KeySource, TokenError},
        jws::PublicKeys,
        sources::Sources,
        webhook_signature::{SECRET_PREFIX, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP, is_signed},
    },
    protocol::{
        error::{Error, ErrorKind},
        event::Event,
        pb::v1::{StreamResponse, stream_response::Payload},
        rpc,
        v03::json::Read,
        version::Version,
    },
};

/// Default maximum difference between the time of a delivery and the current time.
const TOLERANCE: Duration = Duration::from_mins(5);

/// Default maximum size of a body, in bytes.
const MAX_BODY: usize = 8 << 20;

/// Default number of delivery ids that are remembered.
const MAX_IDS: usize = 10_000;

/// Maximum length of a delivery id, in bytes.
const MAX_ID: usize = 1024;

/// Time limit for the body of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Notification whose sender and content are verified.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerifiedNotification {
    /// Delivery id: equal for all attempts to deliver this notification. `None` if the sender gives none.
    pub id: Option<String>,
    /// Form of the notification.
    pub version: Version,
    /// The task, or the update. Of 0.3, in the form of 1.0.
    pub event: Event,
}

/// Result of a request that passes all checks.
#[derive(Clone, Debug)]
pub enum Received {
    /// First delivery of a notification.
    New(VerifiedNotification),
    /// Repetition of a notification that was received already. The response is a success, so that it is not sent again.
    Duplicate,
}

/// Rejection of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Rejection {
    status: StatusCode,
    reason: String,
}

impl Rejection {
    fn new(status: StatusCode, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into() }
    }

    fn unauthorized(reason: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, reason)
    }

    /// Returns the status of the response: 401 if sender or content are not verified, 400 for another body than a
    /// notification, 413 for one that is too large, 503 if the sender should retry.
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<TokenError> for Rejection {
    fn from(error: TokenError) -> Self {
        match error {
            TokenError::Invalid(why) => Self::unauthorized(why),
            TokenError::UnknownKey => Self::unauthorized("the key of the token is unknown"),
            TokenError::UnknownForNow | TokenError::Unavailable => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "the key of the token is not known yet")
            }
        }
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.reason).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}

defaults! {
    /// Receiver of push notifications. Verifies the sender by the token of the configuration, by the keys of the server, or by
    /// both; without either, it rejects all notifications unless [`unauthenticated`](Self::unauthenticated).
    ///
    /// With a [`token`](Self::token), a notification must have it in a header, or a signature of
    /// [Standard Webhooks](https://www.standardwebhooks.com) made with it. If it has both, both must be right. A token that begins
    /// with `whsec_` requires the signature. With [keys](Self::public_keys), a notification must have a JSON Web Token in
    /// `Authorization`, signed by one of them, for this body.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use a2a_service::{
    ///     agent::demo::Demo,
    ///     axum::Router,
    ///     call::Call,
    ///     client::Client,
    ///     pb::v1::{Message, SendMessageConfiguration, SendMessageRequest, TaskPushNotificationConfig},
    ///     push::{PushOptions, Receiver, VerifiedNotification},
    ///     server::Server,
    /// };
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // The receiver.
    /// let (token, (seen, mut deliveries)) = ("a secret of the client", tokio::sync::mpsc::channel(100));
    /// let webhook = Receiver::new().token(token).into_route(move |notification: VerifiedNotification| {
    ///     let seen = seen.clone();
    ///     async move { seen.send(notification.event).await }
    /// });
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// let url = format!("http://{}/webhook", listener.local_addr()?);
    /// let router = Router::new().route("/webhook", webhook);
    /// tokio::spawn(async move { a2a_service::axum::serve(listener, router).await });
    ///
    /// // A server that may send to this machine without TLS.
    /// let options = PushOptions::default().allow(vec!["http://127.0.0.1".parse()?]);
    /// let server = Server::new(Demo).push(true).push_options(options).bind("127.0.0.1:0").await?;
    /// let agent = Client::builder().rest(&format!("http://{}", server.addr()))?;
    /// tokio::spawn(server.run_until(std::future::pending()));
    ///
    /// // The client.
    /// let config = TaskPushNotificationConfig { url, token: token.into(), ..Default::default() };
    /// let request = SendMessageRequest {
    ///     message: Some(Message::user("/stream 3 1")),
    ///     configuration: Some(SendMessageConfiguration {
    ///         task_push_notification_config: Some(config),
    ///         return_immediately: true,
    ///         ..Default::default()
    ///     }),
    ///     ..Default::default()
    /// };
    /// agent.send_message(Call::default().request(request)).await?;
    /// while let Some(event) = deliveries.recv().await {
    ///     if event.status_update().and_then(|update| update.status.as_ref()).is_some_and(|status| status.state().is_terminal()) {
    ///         break;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[derive(Clone)]
    #[must_use = "a receiver does nothing until it receives a request"]
    pub struct Receiver {
        tokens: Vec<String>,
        keys: Option<Arc<KeySet>>,
        issuer: Option<String>,
        audience: Option<String>,
        is_open: bool,
        tolerance: Duration = TOLERANCE,
        max_body: usize = MAX_BODY,
        seen: Arc<Seen> = Arc::new(Seen { max: MAX_IDS, ids: Mutex::default() }),
        sources: Sources,
    }
}

setters! {
    Receiver:
    /// Maximum difference between the time of a delivery and the current time. 5 minutes by default.
    pub tolerance => tolerance: Duration;

    /// Maximum size of a body, in bytes. 8 MiB by default.
    pub max_body => max_body: usize;

    /// Sources of time and ids, of which the clock is used. Those of the system by default.
    pub sources => sources: Sources;
}

impl Receiver {
    /// Creates a receiver that rejects all notifications, until a token or keys are set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts notifications with this token, which the client gave in the configuration. Can be called again: each of the
    /// tokens is accepted, for example the old and the new one during a change.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.tokens.push(token.into());
        self
    }

    /// Requires a JSON Web Token that is signed by one of these keys. A server sends it if the configuration has the
    /// authentication scheme `Bearer` without credentials.
    pub fn public_keys(mut self, keys: PublicKeys) -> Self {
        self.keys = Some(Arc::new(KeySet::fixed(keys)));
        self
    }

    /// Requires a JSON Web Token that is signed by one of the keys at a URL: `/.well-known/jwks.json` of the server. The keys
    /// are requested when they are needed first, after an hour, and if a token has an unknown key, but at most every 30 s.
    ///
    /// # Errors
    /// `InvalidParams` if the URL is not absolute or not of http or https, or if the HTTP client can't be created.
    pub fn jwks_url(mut self, url: &str) -> Result<Self, Error> {
        let url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = url.ok_or_else(|| Error::invalid_field("jwks_url", "must be an absolute http or https URL"))?;
        let keys = KeySet::remote(KeySource::Url(url.into()));
        self.keys = Some(Arc::new(keys.map_err(|error| ErrorKind::InvalidParams.because(error.to_string()))?));
        Ok(self)
    }

    /// Requires this issuer in the JSON Web Token. Any by default.
    pub fn issuer(mut self, issuer: impl Into<String>) -> Self {
        self.issuer = Some(issuer.into());
        self
    }

    /// Requires this audience in the JSON Web Token: the origin of the webhook, such as `https://hooks.example`. Any by
    /// default. Set it if other receivers trust the same server, which could otherwise repeat notifications here.
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.audience = Some(audience.into());
        self
    }

    /// Accepts notifications although neither a token nor keys are set. For tests and demonstrations: anybody can then send
    /// them.
    pub fn unauthenticated(mut self) -> Self {
        self.is_open = true;
        self
    }

    /// Number of delivery ids that are remembered to recognize duplicates. 10,000 by default; zero recognizes none.
    pub fn remembered_deliveries(mut self, max: usize) -> Self {
        self.seen = Arc::new(Seen { max, ids: Mutex::default() });
        self
    }

    /// Checks and decodes a request. A notification counts as received when this returns: [`forget`](Self::forget) it if it
    /// could not be processed and should be delivered again.
    ///
    /// # Errors
    /// The request is rejected, for a reason that the response should have.
    pub async fn receive(&self, headers: &HeaderMap, body: &[u8]) -> Result<Received, Rejection> {
        Ok(match self.begin(headers, body).await? {
            Some((notification, processing)) => {
                processing.finish();
                Received::New(notification)
            }
            None => Received::Duplicate,
        })
    }

    /// Forgets that a notification was received, so that its next delivery is not a duplicate.
    pub fn forget(&self, id: &str) {
        self.seen.remove(id);
    }

    /// Returns a route for POST requests that passes each notification to a handler, once. If the handler fails, the response
    /// is 500, and the server delivers the notification again. While it runs, repetitions get 503.
    pub fn into_route<H, F, E, S>(self, handler: H) -> MethodRouter<S>
    where
        H: Fn(VerifiedNotification) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send,
        E: fmt::Display + Send,
        S: Clone + Send + Sync + 'static,
    {
        post(move |request: Request<Body>| {
            let (receiver, handler) = (self.clone(), handler.clone());
            async move { receiver.respond(request, |notification, _| handler(notification)).await }
        })
    }

    /// Checks and decodes a request, and passes its notification and its body to a handler unless it is a duplicate.
    ///
    /// # Errors
    /// The request is rejected, or the handler failed.
    pub(crate) async fn respond<H, F, E>(&self, request: Request<Body>, handler: H) -> Result<StatusCode, Rejection>
    where
        H: FnOnce(VerifiedNotification, Bytes) -> F,
        F: Future<Output = Result<(), E>>,
        E: fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let body = match timeout(TIMEOUT, self.read(body)).await {
            Ok(body) => body?,
            Err(_) => return Err(Rejection::new(StatusCode::REQUEST_TIMEOUT, "the body was not received in time")),
        };
        if let Some((notification, processing)) = self.begin(&parts.headers, &body).await? {
            let id = notification.id.clone();
            if let Err(error) = handler(notification, body).await {
                tracing::warn!(delivery.id = id, error.cause = %error, "push notification not processed");
                return Err(Rejection::new(StatusCode::INTERNAL_SERVER_ERROR, "the notification was not processed"));
            }
            processing.finish();
        }
        Ok(StatusCode::NO_CONTENT)
    }

    async fn read(&self, body: Body) -> Result<Bytes, Rejection> {
        let read = Limited::new(body, self.max_body).collect().await.map(Collected::to_bytes);
        read.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => too_large(self.max_body),
            None => Rejection::new(StatusCode::BAD_REQUEST, "the body is incomplete"),
        })
    }

    /// Checks and decodes a request. `None` if the notification was received already.
    async fn begin(
        &self,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Option<(VerifiedNotification, Processing)>, Rejection> {
        if body.len() > self.max_body {
            return Err(too_large(self.max_body));
        }
        if self.tokens.is_empty() && self.keys.is_none() && !self.is_open {
            return Err(Rejection::unauthorized("the receiver has neither a token nor keys"));
        }
        let now = self.sources.clock.millis();
        let (webhook_id, own_id) = (text(headers, &WEBHOOK_ID)?, text(headers, &DELIVERY_ID)?);
        if webhook_id.zip(own_id).is_some_and(|(one, other)| one != other) {
            return Err(Rejection::new(StatusCode::BAD_REQUEST, "the headers have two delivery ids"));
        }
        if !self.tokens.is_empty() {
            self.check_token(headers, webhook_id, body, now)?;
        }
        let token_id = match &self.keys {
            Some(keys) => self.check_jwt(keys, headers, body, now).await?,
            None => None,
        };
        let id = webhook_id.or(own_id).map(str::to_owned);
        if id.is_some() && token_id.is_some() && id != token_id {
            return Err(Rejection::unauthorized("the token belongs to another delivery"));
        }
        let id = id.or(token_id);
        if id.as_ref().is_some_and(|id| id.len() > MAX_ID) {
            return Err(Rejection::new(
                StatusCode::BAD_REQUEST,
                format!("the delivery id is longer than {MAX_ID} bytes"),
            ));
        }
        let (version, message) = Self::decode(body)?;
        let Some(processing) = Processing::begin(&self.seen, id.clone())? else { return Ok(None) };
        Ok(Some((VerifiedNotification { id, version, event: message.into() }, processing)))
    }

    /// Checks the token of the configuration and the signature of Standard Webhooks.
    fn check_token(&self, headers: &HeaderMap, id: Option<&str>, body: &[u8], now: Millis) -> Result<(), Rejection> {
        let sent = match text(headers, &NOTIFICATION_TOKEN)? {
            Some(token) => Some(token),
            None => text(headers, &OLD_NOTIFICATION_TOKEN)?,
        };
        let signed = text(headers, &WEBHOOK_SIGNATURE)?;
        if sent.is_none() && signed.is_none() {
            return Err(Rejection::unauthorized("the notification has no token"));
        }
        let candidates =
            self.tokens.iter().filter(|own| sent.is_none_or(|sent| own.as_bytes().ct_eq(sent.as_bytes()).into()));
        let candidates: Vec<&String> = candidates.collect();
        if candidates.is_empty() {
            return Err(Rejection::unauthorized("the token is wrong"));
        }
        let Some(signed) = signed else {
            let is_enough = candidates.iter().any(|token| !token.starts_with(SECRET_PREFIX));
            return is_enough.then_some(()).ok_or_else(|| Rejection::unauthorized("the notification has no signature"));
        };
        let (Some(id), Some(timestamp)) = (id, text(headers, &WEBHOOK_TIMESTAMP)?) else {
            return Err(Rejection::unauthorized("the signature has no `webhook-id` or `webhook-timestamp`"));
        };
        let seconds: i64 = timestamp.parse().map_err(|_| Rejection::unauthorized("the timestamp is malformed"))?;
        let difference = Duration::from_secs(now.div_euclid(1000).abs_diff(seconds));
        if difference > self.tolerance {
            return Err(Rejection::unauthorized("the timestamp is too old, or in the future"));
        }
        is_signed(signed, &candidates, id, timestamp, body)
            .then_some(())
            .ok_or_else(|| Rejection::unauthorized("the signature is wrong"))
    }

    /// Checks the JSON Web Token and returns its delivery id.
    async fn check_jwt(
        &self,
        keys: &Arc<KeySet>,
        headers: &HeaderMap,
        body: &[u8],
        now: Millis,
    ) -> Result<Option<String>, Rejection> {
        let (issuer, audience) = (self.issuer.as_deref(), self.audience.as_deref());
        let expected = Expected { issuer, audience, body, now, tolerance: self.tolerance };
        let bearer = text(headers, &header::AUTHORIZATION)?.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let token = bearer.ok_or_else(|| Rejection::unauthorized("the notification has no bearer token"))?;
        let claims = keys.verify(|keys| keys.verify_token(token)).await?;
        claims.check(&expected)?;
        Ok(claims.jti)
    }

    /// Decodes a notification: a response of a stream in 1.0, or a task, a message or an update in 0.3.
    fn decode(body: &[u8]) -> Result<(Version, StreamResponse), Rejection> {
        const V1_MEMBERS: [&str; 6] =
            ["task", "message", "statusUpdate", "status_update", "artifactUpdate", "artifact_update"];
        let bad = |why: String| Rejection::new(StatusCode::BAD_REQUEST, why);
        let malformed = |error: serde_json::Error| bad(format!("the body is not a notification: {error}"));
        let members: HashMap<String, &RawValue> = serde_json::from_slice(body).map_err(malformed)?;
        let has = |name: &str| members.contains_key(name);
        let (version, message): (_, StreamResponse) = if !has("kind") && V1_MEMBERS.into_iter().any(has) {
            (Version::V1_0, serde_json::from_slice(body).map_err(malformed)?)
        } else {
            let message = rpc::from_json(body).map_err(|error| bad(format!("the body is not a notification: {error}")));
            let Read(message) = message?;
            (Version::V0_3, message)
        };
        let id = match &message.payload {
            Some(Payload::Message(message)) => &message.message_id,
            Some(payload) => payload.task_id(),
            None => "",
        };
        if id.is_empty() {
            return Err(bad("the body is not a notification: it has no task, message or update with an id".to_owned()));
        }
        Ok((version, message))
    }
}

debug_fields!(Receiver { issuer, audience, tolerance, max_body });

fn too_large(max: usize) -> Rejection {
    Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {max} bytes"))
}

/// Returns the only value of a header.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Rejection> {
    let mut values = headers.get_all(name).into_iter();
    let value = values.next().map(HeaderValue::to_str).transpose();
    match value {
        Ok(value) if values.next().is_none() => Ok(value),
        _ => Err(Rejection::new(StatusCode::BAD_REQUEST, format!("the header {name} is not one text"))),
    }
}

/// Delivery ids that were received, the oldest of which are forgotten.
struct Seen {
    max: usize,
    ids: Mutex<Ids>,
}

#[derive(Default)]
struct Ids {
    /// `true` for a notification that is processed, `false` while a handler runs.
    state: HashMap<Arc<str>, bool>,
    order: VecDeque<Arc<str>>,
}

impl Seen {
    fn remove(&self, id: &str) {
        let mut ids = self.ids.lock();
        if ids.state.remove(id).is_some() {
            ids.order.retain(|known| **known != *id);
        }
    }
}

/// Processing of a notification. Unless it is finished, the notification is forgotten.
struct Processing {
    seen: Arc<Seen>,
    id: Option<Arc<str>>,
}

impl Processing {
    /// Begins processing. `None` for a notification that is processed already.
    fn begin(seen: &Arc<Seen>, id: Option<String>) -> Result<Option<Self>, Rejection> {
        let Some(id) = id.filter(|_| seen.max > 0) else { return Ok(Some(Self { seen: Arc::clone(seen), id: None })) };
        let id: Arc<str> = id.into();
        let mut ids = seen.ids.lock();
        match ids.state.get(&id) {
            Some(true) => return Ok(None),
            Some(false) => {
                let reason = "the notification is being processed";
                return Err(Rejection::new(StatusCode::SERVICE_UNAVAILABLE, reason));
            }
            None => {}
        }
        if ids.order.len() >= seen.max
            && let Some(oldest) = ids.order.pop_front()
        {
            ids.state.remove(&oldest);
        }
        ids.state.insert(Arc::clone(&id), false);
        ids.order.push_back(Arc::clone(&id));
        drop(ids);
        Ok(Some(Self { seen: Arc::clone(seen), id: Some(id) }))
    }

    fn finish(mut self) {
        if let Some(id) = self.id.take()
            && let Some(is_processed) = self.seen.ids.lock().state.get_mut(&id)
        {
            *is_processed = true;
        }
    }
}

impl Drop for Processing {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.seen.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests;
