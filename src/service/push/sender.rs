//! Requests to the webhooks of push notifications.

use std::{future::ready, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use reqwest::{
    Client,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};
use tokio::time::{Instant, timeout_at};
use url::Url;

use super::{
    PushOptions,
    credentials::{WebhookCredentials, WebhookRequest},
    response::{Failure, MAX_RESPONSE, check_status, describe},
    target::{TargetError, TargetPolicy},
};
use crate::{
    base::{
        bounded_body::ResponseBody,
        clock::Millis,
        jws::SigningKeys,
        oauth::sensitive,
        trace::{Parent, Span, SpanKind, Tracing},
        webhook_signature::{WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP, sign},
    },
    protocol::{call::TRACE, error::Error, pb::v1::TaskPushNotificationConfig, version::Version},
    store::{DeliveryClaim, PushConfig},
};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
pub(crate) const NOTIFICATION_TOKEN: HeaderName = HeaderName::from_static("a2a-notification-token");
pub(crate) const OLD_NOTIFICATION_TOKEN: HeaderName = HeaderName::from_static("x-a2a-notification-token");
pub(crate) const DELIVERY_ID: HeaderName = HeaderName::from_static("a2a-delivery-id");

/// Client of webhooks.
///
/// A connection is made only to addresses that were checked: the resolver of its client knows those of the attempt, and no others.
pub(crate) struct Sender {
    /// Timeout of an attempt.
    timeout: Duration,
    /// A failure to create it is reported for each attempt.
    client: Result<Client, String>,
    policy: TargetPolicy,
    content_type: HeaderValue,
    keys: Option<SigningKeys>,
    issuer: String,
    credentials: Option<Arc<dyn WebhookCredentials>>,
    tracing: Tracing,
}

/// Issuer of tokens of a server that has no URL.
const UNKNOWN_ISSUER: &str = "a2a-service";

tokio::task_local! {
    /// Checked addresses of the attempt that is polled.
    static ADDRESSES: Vec<SocketAddr>;
}

/// Resolver of connections: it knows only the checked addresses of the attempt that connects.
struct CheckedAddresses;

impl Resolve for CheckedAddresses {
    fn resolve(&self, _: Name) -> Resolving {
        let known = ADDRESSES.try_with(|addresses| -> Addrs { Box::new(addresses.clone().into_iter()) });
        Box::pin(ready(known.map_err(|_| "the attempt has ended".into())))
    }
}

/// Creates the client of all targets. It has no timeout: its requests are part of attempts, which have one.
fn client(idle_connections: usize) -> Result<Client, String> {
    let client = Client::builder()
        .dns_resolver(Arc::new(CheckedAddresses))
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .pool_max_idle_per_host(idle_connections)
        .user_agent(concat!("a2a-service/", env!("CARGO_PKG_VERSION")))
        .build();
    client.map_err(|error| error.to_string())
}

impl Sender {
    pub(crate) fn new(options: &PushOptions, tracing: Tracing) -> Self {
        let json = if options.plain_json { "application/json" } else { "application/a2a+json" };
        Self {
            timeout: options.timeout,
            client: client(options.per_host),
            policy: TargetPolicy::new(options),
            content_type: HeaderValue::from_static(json),
            keys: options.keys.clone(),
            issuer: options.issuer.clone().unwrap_or_else(|| UNKNOWN_ISSUER.to_owned()),
            credentials: options.credentials.clone(),
            tracing,
        }
    }

    /// Checks a configuration of an owner that is to be stored. `prefix` is the path of its fields in the request.
    ///
    /// # Errors
    /// The target is refused, too many names are being resolved, or a field can't be sent.
    pub(crate) async fn check(&self, owner: &Arc<str>, prefix: &str, config: &PushConfig) -> Result<(), Error> {
        let invalid = |field: &str, why: &str| Error::invalid_field(format!("{prefix}{field}"), why);
        let url = Url::parse(&config.config.url).map_err(|_| invalid("url", "must be an absolute URL with https"))?;
        self.policy.check_registration(owner, &url, format!("{prefix}url")).await?;
        headers(config, "", &[], 0).map(drop).map_err(|field| invalid(field, "can't be sent in an HTTP header"))
    }

    /// Makes one attempt to send a notification. If the receiver rejects the credentials of the server, the notification is
    /// sent a second time with other ones, if there are any. `trace` is the `traceparent` that the notification continues.
    ///
    /// # Errors
    /// The receiver has not accepted it.
    pub(crate) async fn send(
        &self,
        claim: &DeliveryClaim,
        id: &str,
        trace: Option<&str>,
        body: Bytes,
        now: Millis,
    ) -> Result<u16, Failure> {
        let mut span = self.tracing.start(SpanKind::Client, "SendPushNotification", Parent::parse(trace, None), None);
        span.set("a2a.task.id", &*claim.config.config.task_id);
        span.set("a2a_service.push.attempt", claim.attempts + 1);
        let passed_on = span.header();
        let sent = self.post(claim, id, passed_on.as_deref().or(trace), body, now, &mut span).await;
        if let Err(failure) = &sent {
            span.fail(failure.name());
        }
        sent
    }

    async fn post(
        &self,
        claim: &DeliveryClaim,
        id: &str,
        trace: Option<&str>,
        body: Bytes,
        now: Millis,
        span: &mut Span,
    ) -> Result<u16, Failure> {
        let config = &claim.config;
        let rejected = |reason: String| Failure::Rejected { reason, status: None };
        let url = Url::parse(&config.config.url).map_err(|_| rejected("the URL is invalid".to_owned()))?;
        span.set_some("server.address", url.host_str());
        span.set_some("server.port", url.port_or_known_default());
        let deadline = Instant::now() + self.timeout;
        let addresses = timeout_at(deadline, self.policy.addresses(&claim.key.scope().owner, &url)).await;
        let addresses = addresses.map_err(|_| Failure::retry("the host does not resolve in time"))?;
        let addresses = addresses.map_err(|error| match error {
            TargetError::Unresolved => Failure::retry("the host does not resolve"),
            TargetError::Refused(why) => rejected(format!("url: {why}")),
            TargetError::Busy(busy) => Failure::Busy { reason: busy.to_string() },
        })?;
        let http = self.client.as_ref().map_err(Failure::retry)?;
        let headers = headers(config, id, &body, now);
        let mut headers = headers.map_err(|field| rejected(format!("{field} can't be sent in an HTTP header")))?;
        let TaskPushNotificationConfig { tenant, task_id, id: config_id, .. } = &config.config;
        let request = WebhookRequest { url: &url, version: config.version, tenant, task_id, config_id };
        // Credentials of the client take precedence over those of the server, and those over a token that is signed here: for
        // `Bearer` without credentials.
        let authentication = config.config.authentication.as_ref();
        let has_credentials = authentication.is_some_and(|info| !info.credentials.is_empty());
        let has_own = has_credentials || headers.contains_key(header::AUTHORIZATION);
        let source = self.credentials.as_deref().filter(|_| !has_own);
        let presented = match source {
            Some(source) => authorization(source, &request, deadline).await?,
            None => None,
        };
        let asks_for_token = authentication.is_some_and(|info| info.scheme.eq_ignore_ascii_case("bearer"));
        let may_sign = asks_for_token && !has_own && presented.is_none();
        if let Some(keys) = self.keys.as_ref().filter(|_| may_sign) {
            let token = keys.token(&self.issuer, &url, id, &body, now).map_err(|error| error.to_string());
            let value =
                token.and_then(|token| sensitive(&format!("Bearer {token}")).map_err(|error| error.to_string()));
            let failed = |why| Failure::retry(format!("the notification can't be signed: {why}"));
            headers.insert(header::AUTHORIZATION, value.map_err(failed)?);
        }
        headers.extend(presented.clone().map(|value| (header::AUTHORIZATION, value)));
        let json = HeaderValue::from_static("application/json");
        headers.extend(trace.and_then(|trace| HeaderValue::from_str(trace).ok()).map(|trace| (TRACE, trace)));
        let content_type = if config.version == Version::V1_0 { self.content_type.clone() } else { json };
        headers.insert(header::CONTENT_TYPE, content_type);
        let post = async |headers: &HeaderMap| {
            let sent = http.post(url.clone()).headers(headers.clone()).body(body.clone()).send();
            let response = timeout_at(deadline, ADDRESSES.scope(addresses.clone(), sent)).await;
            let response = response.map_err(|_| Failure::retry("the receiver did not answer in time"))?;
            response.map_err(|error| Failure::retry(describe(&error, "the receiver")))
        };
        let mut response = post(&headers).await?;
        if response.status() == StatusCode::UNAUTHORIZED
            && let Some((source, rejected)) = source.zip(presented)
            && timeout_at(deadline, source.rejected(&request, &rejected)).await.unwrap_or_default()
            && let Some(value) = authorization(source, &request, deadline).await?
        {
            headers.insert(header::AUTHORIZATION, value);
            response = post(&headers).await?;
        }
        let status = response.status();
        span.set("http.response.status_code", status.as_u16());
        let accepted = check_status(status, response.headers(), now);
        // The head decides. A body that does not arrive in time closes the connection.
        _ = ResponseBody::of(response, MAX_RESPONSE).deadline(Some(deadline)).all().await;
        accepted.map(|()| status.as_u16())
    }
}

/// Returns what a source of credentials has for a notification.
async fn authorization(
    source: &dyn WebhookCredentials,
    request: &WebhookRequest<'_>,
    deadline: Instant,
) -> Result<Option<HeaderValue>, Failure> {
    let value = timeout_at(deadline, source.authorization(request)).await;
    let value = value.map_err(|_| Failure::retry("no credentials in time"))?;
    let value = value.map_err(|error| Failure::retry(format!("no credentials: {error}")))?;
    Ok(value.map(|mut value| {
        value.set_sensitive(true);
        value
    }))
}

/// Returns the headers of a notification: those of the client, the token, the credentials, and the signature. `Err` has the
/// field that can't be a header.
fn headers(push: &PushConfig, id: &str, body: &[u8], now: Millis) -> Result<HeaderMap, &'static str> {
    let secret = |text: &str, field: &'static str| sensitive(text).map_err(|_| field);
    let config = &push.config;
    let mut headers = HeaderMap::new();
    for (name, value) in push.headers() {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "headers")?;
        if !is_reserved(&name) {
            headers.insert(name, secret(&value, "headers")?);
        }
    }
    if let Some(info) = &config.authentication {
        let credentials = &info.credentials;
        if credentials.is_empty() {
            // There is nothing to send; for `Bearer`, the server makes a token.
        } else if info.scheme.eq_ignore_ascii_case("apikey") {
            headers.insert(API_KEY, secret(credentials, "authentication.credentials")?);
        } else {
            let text = format!("{} {credentials}", info.scheme);
            headers.insert(header::AUTHORIZATION, secret(&text, "authentication.credentials")?);
        }
    }
    let visible = |text: &str| HeaderValue::from_str(text).map_err(|_| "id");
    let timestamp = now.div_euclid(1000).to_string();
    headers.insert(DELIVERY_ID, visible(id)?);
    headers.insert(WEBHOOK_ID, visible(id)?);
    headers.insert(WEBHOOK_TIMESTAMP, visible(&timestamp)?);
    if !config.token.is_empty() {
        for name in [NOTIFICATION_TOKEN, OLD_NOTIFICATION_TOKEN] {
            headers.insert(name, secret(&config.token, "token")?);
        }
        headers.insert(WEBHOOK_SIGNATURE, visible(&sign(&config.token, id, &timestamp, body))?);
    }
    Ok(headers)
}

/// Names of headers of the connection and of the message.
const RESERVED: &str = "host connection transfer-encoding te upgrade keep-alive proxy-connection http2-settings \
    content-length content-type expect trailer";

/// Returns true for headers that a client can't set: those of the connection and of the message, and the signature.
fn is_reserved(name: &HeaderName) -> bool {
    let own = [DELIVERY_ID, WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE];
    RESERVED.split(' ').any(|reserved| name == reserved) || own.contains(name)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn connections_are_made_to_the_addresses_of_their_attempt_only() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
                stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").unwrap();
            }
        });
        let (client, url) = (client(1).unwrap(), format!("http://hooks.example:{}/", address.port()));
        let sent = ADDRESSES.scope(vec![address], client.post(&url).send()).await;
        assert_eq!(sent.unwrap().status(), StatusCode::NO_CONTENT);

        let error = client.post(&url).send().await.unwrap_err();
        assert!(describe(&error, "the receiver").contains("the attempt has ended"), "{error:?}");
        let sent = ADDRESSES.scope(Vec::new(), client.post("http://localhost/").send()).await;
        assert!(sent.unwrap_err().is_connect());
    }
}
