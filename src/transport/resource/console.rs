//! Console: the page at `/` for browsers, and its files below `/console/`, which are those of the folder `console`.

use axum::extract::OriginalUri;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header, request::Parts};

use super::card::{card_request, respond_as_public_as_card, respond_with_tag};
use crate::{
    protocol::call,
    service::card::{RequestOrigin, review::review},
    transport::{
        Body, Settings,
        body::response::{not_found, status},
        pipeline::browser_headers::{CONSOLE_POLICY, add_page_headers},
    },
};

/// Files by their path in the folder, without comments and indentation.
#[cfg(feature = "console")]
const FILES: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/console.rs"));
#[cfg(not(feature = "console"))]
const FILES: &[(&str, &str)] = &[];

/// Module with facts about the server, which is no file.
const FACTS: &str = "server.js";

/// The files are those of the version of the server, so that a browser must not combine those of two versions.
const CACHE_CONTROL: HeaderValue = HeaderValue::from_static("no-cache");

/// Responds with a file of the console. `facts` is the content of `console/server.js`. Files are public: they have no data.
pub(in crate::transport) fn respond_with_file(facts: &Bytes, parts: &Parts) -> Response<Body> {
    let path = parts.uri.path();
    let mut headers = HeaderMap::from_iter([(header::CACHE_CONTROL, CACHE_CONTROL)]);
    let name = match path {
        "/" => {
            if let Some(location) = with_slash(parts) {
                return redirect(location);
            }
            headers.insert(header::VARY, HeaderValue::from_static("accept"));
            "index.html"
        }
        "/console" => return redirect(HeaderValue::from_static("./")),
        "/console/" => return redirect(HeaderValue::from_static("../")),
        path => path.strip_prefix("/console/").unwrap_or_default(),
    };
    let content = if name == FACTS { Some(facts.clone()) } else { file(name) };
    let Some(content) = content else { return not_found(parts) };
    add_page_headers(&mut headers, CONSOLE_POLICY);
    respond_with_tag(content, media_type(name), parts, headers)
}

/// Responds with the problems of the agent card, as `a2a card validate` prints them. It is as public as the card.
pub(in crate::transport) fn respond_with_review(settings: &Settings, parts: &Parts) -> Response<Body> {
    if settings.console.is_none() {
        return not_found(parts);
    }
    // The card that has the members of all versions.
    let mut headers = parts.headers.clone();
    headers.remove(call::VERSION);
    let request = RequestOrigin { headers: &headers, query: None, ..card_request(parts) };
    let card = serde_json::from_slice(&(settings.card)(&request)).unwrap_or_default();
    // Serialization can't fail: the review has texts only.
    let review = serde_json::to_vec(&review(&card)).unwrap_or_default();
    respond_as_public_as_card(settings, review.into(), parts, HeaderMap::new())
}

/// Returns the content of a file. In debug builds, the variable `CONSOLE_FOLDER` replaces the files of the build by those of a
/// folder, so that they can be edited while a server runs.
fn file(name: &str) -> Option<Bytes> {
    #[cfg(debug_assertions)]
    if let Some(folder) = std::env::var_os("CONSOLE_FOLDER").filter(|_| !name.contains("..")) {
        return std::fs::read(std::path::Path::new(&folder).join(name)).ok().map(Bytes::from);
    }
    FILES.iter().find(|(file, _)| *file == name).map(|(_, content)| Bytes::from_static(content.as_bytes()))
}

/// Returns the location of a page whose URL lacks the slash at its end. Its relative links need it. The location is relative
/// too, since a proxy may have removed a prefix.
fn with_slash(parts: &Parts) -> Option<HeaderValue> {
    let requested = &parts.extensions.get::<OriginalUri>()?.0;
    let (_, name) = requested.path().rsplit_once('/').filter(|(_, name)| !name.is_empty())?;
    let query = requested.query().map(|query| format!("?{query}")).unwrap_or_default();
    HeaderValue::try_from(format!("./{name}/{query}")).ok()
}

fn redirect(location: HeaderValue) -> Response<Body> {
    let mut response = status(StatusCode::PERMANENT_REDIRECT);
    response.headers_mut().insert(header::LOCATION, location);
    response
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    }
}
