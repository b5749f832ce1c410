//! Operator API over HTTP, below `/operator`: its routes, and who may use them. Responses are never stored, and no page of another
//! origin can read them. `service/operator.rs` has their content.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header, request::Parts};
use http_body::Frame;
use http_body_util::StreamBody;
use percent_encoding::percent_decode_str;

use tokio::time::timeout;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;

use crate::{
    protocol::{
        Error, ErrorKind, Version,
        call::{Principal, REQUEST_ID},
    },
    service::{
        auth::audit,
        operator::{Access, FeedEvent, Operator, Query},
    },
    transport::{
        NotReady, RequestBody, Settings,
        binding::sse::event_stream,
        body::{
            self, Body, BodyLimits,
            response::{respond as respond_with, status_response},
        },
        brief,
        media_type::{JSON, checked_for_rest},
        peer,
    },
};

/// Marks a request of a client on this machine to a server without authentication.
#[derive(Clone, Copy)]
pub(in crate::transport) struct LocalOperator;

/// Headers of proxies, besides those whose names have `forwarded` or end with `-ip`.
const PROXY_HEADERS: [&str; 3] = ["via", "cdn-loop", "x-envoy-external-address"];

/// Returns true if the connection of a request is from a loopback address, and no header says that a proxy has forwarded it. Many
/// proxies add no such header: what this opens may be seen by their clients.
pub(in crate::transport) fn is_from_this_machine(parts: &Parts) -> bool {
    let is_of_proxy = |name: &str| name.contains("forwarded") || name.ends_with("-ip") || PROXY_HEADERS.contains(&name);
    peer(parts).is_some_and(|peer| peer.ip().to_canonical().is_loopback())
        && !parts.headers.keys().any(|name| is_of_proxy(name.as_str()))
}

/// Responds to a request of an operator.
pub(in crate::transport) async fn respond<B: RequestBody>(
    operator: Arc<Operator>,
    settings: Settings,
    parts: Parts,
    body: B,
    limits: BodyLimits,
) -> Response<Body> {
    let response = match body::read(&parts.headers, body, &limits, 0).await {
        Ok(body) => route(operator, &settings, &parts, &body, &limits).await,
        Err(error) => Err(error),
    };
    let mut response = response.unwrap_or_else(|error| status_response(error.into(), Version::V1_0));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn route(
    operator: Arc<Operator>,
    settings: &Settings,
    parts: &Parts,
    body: &Bytes,
    limits: &BodyLimits,
) -> Result<Response<Body>, Error> {
    let (path, principal) = (parts.uri.path(), parts.extensions.get::<Principal>());
    let is_local = parts.extensions.get::<LocalOperator>().is_some();
    let segments = path.split('/').filter(|segment| !segment.is_empty()).skip(1);
    let segments: Vec<_> = segments.map(|segment| percent_decode_str(segment).decode_utf8_lossy()).collect();
    let segments: Vec<&str> = segments.iter().map(|segment| &**segment).collect();
    let needed = if segments == ["status"] { Access::Counts } else { Access::Full };
    let access = operator.access(&parts.headers, principal, is_local, needed)?;
    if needed == Access::Full {
        let request_id = parts.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        audit::operator_access(&brief(path), principal, peer(parts).map(|peer| peer.ip()), request_id);
    }
    let query = || -> Result<Query, Error> {
        let parsed = serde_html_form::from_str(parts.uri.query().unwrap_or_default());
        parsed.map_err(|error| ErrorKind::InvalidParams.because(format!("query: {}", brief(&error.to_string()))))
    };
    let accepts_events = || parts.headers.get(header::ACCEPT).is_some_and(|accept| accept == "text/event-stream");
    let _permit = operator.read_permit().await;
    let value = match &*segments {
        ["status"] => {
            let ready =
                if settings.drain.is_cancelled() { Err(NotReady::Draining) } else { (settings.readiness)().await };
            let metrics = match settings.metrics.as_ref().filter(|_| access > Access::Counts) {
                Some(metrics) => metrics().await,
                None => String::new(),
            };
            let reason = ready.err().map(|reason| reason.to_string());
            operator.status(access, settings.drain.is_cancelled(), reason, &metrics).await
        }
        ["tasks"] if accepts_events() => {
            let feed = Arc::clone(&operator).feed(query()?)?;
            return Ok(respond_with_feed(feed, settings.drain.clone(), principal.cloned(), limits));
        }
        ["tasks"] => operator.tasks(query()?).await?,
        ["tasks", id] => operator.task(id, &query()?).await?,
        ["tasks", id, "events"] => operator.events(id, &query()?).await?,
        ["deliveries"] => operator.deliveries(query()?).await?,
        ["deliveries:retry"] => {
            let retry = serde_json::from_str(checked_for_rest(&parts.headers, body)?);
            operator.retry(&retry.map_err(|error| ErrorKind::InvalidParams.because(error.to_string()))?).await?
        }
        _ => return Err(ErrorKind::MethodNotFound.because(brief(&format!("{} {path}", parts.method)))),
    };
    Ok(respond_with(StatusCode::OK, HeaderMap::new(), JSON, value.to_string().into()))
}

/// Responds with a feed as server-sent events. It ends with the server, at the maximum age of streams, and with the validity of the
/// credentials. Its client then gets another one.
fn respond_with_feed(
    feed: impl Stream<Item = FeedEvent> + Send + 'static,
    drain: CancellationToken,
    principal: Option<Principal>,
    limits: &BodyLimits,
) -> Response<Body> {
    let validity = principal.map(|principal| principal.validity).unwrap_or_default();
    let end = async move {
        tokio::select! {
            () = drain.cancelled_owned() => {}
            () = validity.ended() => {}
        }
    };
    let keep_alive = if limits.keep_alive.is_zero() { Duration::MAX } else { limits.keep_alive };
    // The head is sent at once.
    let first = stream::iter([Bytes::from_static(b": feed\n\n")]);
    let events = stream::unfold(Box::pin(feed), move |mut feed: Pin<Box<_>>| async move {
        let text = match timeout(keep_alive, feed.next()).await {
            Ok(event) => event?.map_or("event: reset\ndata: {}\n\n".to_owned(), |task| format!("data: {task}\n\n")),
            Err(_) => ": keep-alive\n\n".to_owned(),
        };
        Some((Bytes::from(text), feed))
    });
    let frames = first.chain(events).take_until(end).map(|text| Ok(Frame::data(text)));
    event_stream(StreamBody::new(frames), HeaderMap::new(), limits.stream_max_age)
}
