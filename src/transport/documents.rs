//! API documents over HTTP: `/openapi.json`, `/openapi.yaml` and the paths below `/openapi/`.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header, request::Parts};

use super::{
    Body, DocumentSource,
    card::{ANY_ORIGIN, CACHE_CONTROL, card_request, entity_tag, is_known, vary},
    response::respond,
    rest,
};
use crate::{error::ErrorKind, protocol::Version};

/// Returns true for the paths of documents.
pub(super) fn is_document(path: &str) -> bool {
    matches!(path, "/openapi" | "/openapi.json" | "/openapi.yaml") || path.starts_with("/openapi/")
}

/// Responds with a document. Documents are as public as the agent card.
pub(super) async fn respond_with_document(source: Option<DocumentSource>, parts: Parts) -> Response<Body> {
    // Building the documents takes a while.
    let found = tokio::task::spawn_blocking(move || {
        let document = source.and_then(|source| source(&card_request(&parts)));
        let tag = document.as_ref().map(|(_, content)| entity_tag(content)).unwrap_or_default();
        (document, tag, parts)
    });
    let ((media_type, content), tag, parts) = match found.await {
        Ok((Some(document), tag, parts)) => (document, tag, parts),
        Ok((None, _, parts)) => {
            let reason = format!("{} {}", parts.method, super::brief(parts.uri.path()));
            return rest::status_response(ErrorKind::MethodNotFound.because(reason).into(), Version::V1_0);
        }
        Err(error) => return rest::status_response(crate::error::Error::internal(error).into(), Version::V1_0),
    };
    let is_not_modified = is_known(&parts.headers, &tag);
    let mut headers = HeaderMap::new();
    // Always succeeds: the tag consists of hexadecimal digits in quotes.
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(header::CACHE_CONTROL, CACHE_CONTROL);
    headers.insert(header::VARY, vary());
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ANY_ORIGIN);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if is_not_modified {
        let mut response = Response::new(Body::default());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.headers_mut() = headers;
        return response;
    }
    let is_head = parts.method == Method::HEAD;
    if is_head {
        headers.insert(header::CONTENT_LENGTH, content.len().into());
    }
    let body = if is_head { Bytes::new() } else { content };
    respond(StatusCode::OK, headers, HeaderValue::from_static(media_type), body)
}
