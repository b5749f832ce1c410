//! API documents over HTTP: `/openapi.json`, `/openapi.yaml` and the paths below `/openapi/`; and Swagger UI, below `/docs/`.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header, request::Parts};

use super::card::{card_request, respond_with_public, vary};
use crate::{
    protocol::{Error, Version, error::ErrorKind},
    transport::{
        Body, DocumentSource,
        body::response::{not_found, status, status_response},
        pipeline::browser_headers::{DOCS_POLICY, add_page_headers},
    },
};

/// First bytes of gzip.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// Responds with a document. Documents are as public as the agent card.
pub(in crate::transport) async fn respond_with_document(
    source: Option<DocumentSource>,
    parts: Parts,
) -> Response<Body> {
    // Building the documents takes a while.
    let response = tokio::task::spawn_blocking(move || build_response(source, &parts)).await;
    response.unwrap_or_else(|error| status_response(Error::internal(error).into(), Version::V1_0))
}

fn build_response(source: Option<DocumentSource>, parts: &Parts) -> Response<Body> {
    let document = source.and_then(|source| source(&card_request(parts)));
    let Some((media_type, content)) = document else {
        let is_docs = cfg!(feature = "docs") && matches!(parts.uri.path(), "/docs" | "/docs/");
        if !is_docs {
            return not_found(parts);
        }
        let why = "the API documentation is not enabled; the operator of this server enables it with `docs` (--docs)";
        return status_response(ErrorKind::MethodNotFound.because(why).into(), Version::V1_0);
    };
    if parts.uri.path() == "/docs" {
        // The page has relative links.
        let mut response = status(StatusCode::PERMANENT_REDIRECT);
        response.headers_mut().insert(header::LOCATION, HeaderValue::from_static("docs/"));
        return response;
    }
    let mut headers = HeaderMap::from_iter([(header::VARY, vary())]);
    if media_type.starts_with("text/html") {
        add_page_headers(&mut headers, DOCS_POLICY);
    }
    // Files of pages that are stored compressed. Every browser accepts that.
    if content.starts_with(GZIP) {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    respond_with_public(content, media_type, parts, headers)
}
