//! Metrics over HTTP: `/metrics`, in the text format of Prometheus.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts};

use crate::transport::{
    MetricsSource, ResponseFuture,
    body::response::{not_found, respond},
    now,
};

/// Responds with the metrics. Without a source, the resource does not exist. The caller is authorized before.
pub(in crate::transport) fn respond_with_metrics(source: Option<&MetricsSource>, parts: &Parts) -> ResponseFuture {
    let Some(source) = source.map(Arc::clone) else { return now(not_found(parts)) };
    Box::pin(async move {
        let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        let headers = HeaderMap::from_iter([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))]);
        Ok(respond(StatusCode::OK, headers, content_type, source().await.into()))
    })
}
