//! Requests to the webhooks of push notifications.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use reqwest::{
    Client,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};
use tokio::time::{Instant, timeout_at};
use url::{Host, Url};

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
/// A connection is made only to addresses that were checked. The client for public targets has a resolver that knows the public
/// addresses of the names in use. Names with internal addresses, which the allow-list admits for some ports, have a client for
/// these addresses, which knows no others.
pub(crate) struct Sender {
    /// Timeout of an attempt.
    timeout: Duration,
    /// Maximum number of unused connections per host.
    idle_connections: usize,
    /// Client of public targets and of targets without a name. A failure to create it is reported for each attempt.
    public: Result<Client, String>,
    names: PublicNames,
    /// Clients of names with internal addresses, by the addresses with the port.
    internal: Mutex<HashMap<Vec<SocketAddr>, Client>>,
    policy: TargetPolicy,
    content_type: HeaderValue,
    keys: Option<SigningKeys>,
    issuer: String,
    credentials: Option<Arc<dyn WebhookCredentials>>,
    tracing: Tracing,
}

/// Issuer of tokens of a server that has no URL.
const UNKNOWN_ISSUER: &str = "a2a-service";

/// Maximum number of clients for internal targets that are kept. With each, its unused connections are kept.
const MAX_INTERNAL_CLIENTS: usize = 64;

/// Creates a client. It has no timeout: its requests are part of attempts, which have one.
fn client(resolver: Arc<dyn Resolve>, idle_connections: usize) -> Result<Client, String> {
    let client = Client::builder()
        .dns_resolver(resolver)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .referer(false)
        .pool_max_idle_per_host(idle_connections)
        .user_agent(concat!("a2a-service/", env!("CARGO_PKG_VERSION")))
        .build();
    client.map_err(|error| error.to_string())
}

/// Resolver of connections to public targets.
#[derive(Clone, Default)]
struct PublicNames(Arc<Mutex<HashMap<Box<str>, Checked>>>);

/// Checked addresses of a name, and the number of attempts that use it.
#[derive(Default)]
struct Checked {
    addresses: Vec<SocketAddr>,
    attempts: usize,
}

impl PublicNames {
    /// Adds the addresses of a name until the guard is dropped.
    fn insert(&self, name: &str, addresses: &[SocketAddr]) -> PublicName {
        let mut names = self.0.lock();
        let checked = names.entry(name.into()).or_default();
        addresses.clone_into(&mut checked.addresses);
        checked.attempts += 1;
        PublicName { names: self.clone(), name: name.into() }
    }
}

impl Resolve for PublicNames {
    fn resolve(&self, name: Name) -> Resolving {
        let known = self.0.lock().get(name.as_str()).map(|checked| checked.addresses.clone());
        Box::pin(async move {
            let addresses: Addrs = Box::new(known.ok_or("the attempt has ended")?.into_iter());
            Ok(addresses)
        })
    }
}

/// Name that is known while an attempt uses it.
struct PublicName {
    names: PublicNames,
    name: Box<str>,
}

impl Drop for PublicName {
    fn drop(&mut self) {
        if let Entry::Occupied(mut checked) = self.names.0.lock().entry(std::mem::take(&mut self.name)) {
            checked.get_mut().attempts -= 1;
            if checked.get().attempts == 0 {
                checked.remove();
            }
        }
    }
}

/// Resolver of connections to one target, whose addresses were checked.
struct CheckedAddresses(Vec<SocketAddr>);

impl Resolve for CheckedAddresses {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses: Addrs = Box::new(self.0.clone().into_iter());
        Box::pin(std::future::ready(Ok(addresses)))
    }
}

impl Sender {
    pub(crate) fn new(options: &PushOptions, tracing: Tracing) -> Self {
        let json = if options.plain_json { "application/json" } else { "application/a2a+json" };
        let names = PublicNames::default();
        Self {
            timeout: options.timeout,
            idle_connections: options.per_host,
            public: client(Arc::new(names.clone()), options.per_host),
            names,
            internal: Mutex::default(),
            policy: TargetPolicy::new(options),
            content_type: HeaderValue::from_static(json),
            keys: options.keys.clone(),
            issuer: options.issuer.clone().unwrap_or_else(|| UNKNOWN_ISSUER.to_owned()),
            credentials: options.credentials.clone(),
            tracing,
        }
    }

    /// Returns the client for a target with these checked addresses.
    fn client(&self, url: &Url, addresses: &[SocketAddr]) -> Result<Client, String> {
        let is_name = matches!(url.host(), Some(Host::Domain(_)));
        if !is_name || self.policy.are_public(addresses) {
            return self.public.clone();
        }
        let mut addresses = addresses.to_vec();
        addresses.sort_unstable();
        if let Some(client) = self.internal.lock().get(&addresses) {
            return Ok(client.clone());
        }
        let client = client(Arc::new(CheckedAddresses(addresses.clone())), self.idle_connections)?;
        let mut clients = self.internal.lock();
        if clients.len() >= MAX_INTERNAL_CLIENTS {
            clients.clear();
        }
        clients.insert(addresses, client.clone());
        Ok(client)
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
        let public = url.host_str().filter(|_| self.policy.are_public(&addresses));
        let _known = public.map(|name| self.names.insert(name, &addresses));
        let http = self.client(&url, &addresses).map_err(Failure::retry)?;
        let headers = headers(config, id, &body, now);
        let mut headers = headers.map_err(|field| rejected(format!("{field} can't be sent in an HTTP header")))?;
        let TaskPushNotificationConfig { tenant, task_id, id: config_id, .. } = &config.config;
        let request = WebhookRequest { url: &url, version: config.version, tenant, task_id, config_id };
        // Credentials of the client take precedence over those of the server, and those over a token that is signed here.
        let has_own = headers.contains_key(header::AUTHORIZATION) || has_credentials(config);
        let source = self.credentials.as_deref().filter(|_| !has_own);
        let presented = match source {
            Some(source) => authorization(source, &request, deadline).await?,
            None => None,
        };
        let signed = self.keys.as_ref().filter(|_| !has_own && presented.is_none() && asks_for_token(config));
        let value = match (&presented, signed) {
            (Some(value), _) => Some(value.clone()),
            (None, Some(keys)) => {
                let token = keys.token(&self.issuer, &url, id, &body, now).map_err(|error| error.to_string());
                let value =
                    token.and_then(|token| sensitive(&format!("Bearer {token}")).map_err(|error| error.to_string()));
                Some(value.map_err(|why| Failure::retry(format!("the notification can't be signed: {why}")))?)
            }
            (None, None) => None,
        };
        headers.extend(value.map(|value| (header::AUTHORIZATION, value)));
        let json = HeaderValue::from_static("application/json");
        headers.extend(trace.and_then(|trace| HeaderValue::from_str(trace).ok()).map(|trace| (TRACE, trace)));
        let content_type = if config.version == Version::V1_0 { self.content_type.clone() } else { json };
        headers.insert(header::CONTENT_TYPE, content_type);
        let post = async |headers: &HeaderMap| {
            let sent = http.post(url.clone()).headers(headers.clone()).body(body.clone()).send();
            let response = timeout_at(deadline, sent).await;
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

/// Returns true for a configuration with credentials of the client.
fn has_credentials(push: &PushConfig) -> bool {
    push.config.authentication.as_ref().is_some_and(|info| !info.credentials.is_empty())
}

/// Returns true for a configuration that asks for a token signed by the server: `Bearer` without credentials.
fn asks_for_token(push: &PushConfig) -> bool {
    let authentication = push.config.authentication.as_ref();
    authentication.is_some_and(|info| info.scheme.eq_ignore_ascii_case("bearer") && info.credentials.is_empty())
}

/// Names of headers of the connection and of the message.
const RESERVED: &str = "host connection transfer-encoding te upgrade keep-alive proxy-connection http2-settings \
    content-length content-type expect trailer";

/// Returns true for headers that a client can't set: those of the connection and of the message, and the signature.
fn is_reserved(name: &HeaderName) -> bool {
    let own = [DELIVERY_ID, WEBHOOK_ID, WEBHOOK_TIMESTAMP, WEBHOOK_SIGNATURE];
    RESERVED.split(' ').any(|reserved| name == reserved) || own.contains(name)
}
