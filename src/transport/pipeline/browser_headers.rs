//! Response headers for browsers: CORS, and headers that prevent a response from being displayed, embedded or interpreted as a
//! page.
//!
//! A page of another origin gets no access to credentials that a browser adds by itself: `Access-Control-Allow-Credentials` is
//! never sent.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request::Parts};

use crate::transport::{Body, body::response::status};

const CROSS_ORIGIN_OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Content security policy of responses that are no pages: they load nothing, and no page can frame them.
const STRICT_POLICY: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");

/// Content security policy of the console: it loads its own files, calls this server only, and can't insert HTML.
pub(in crate::transport) const CONSOLE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);

/// Content security policy of Swagger UI. The hash is that of its one inline style, the colors of its logo.
pub(in crate::transport) const DOCS_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'sha256-RL3ie0nH+Lzz2YNqQN83mnU0J1ot4QL7b99vMdIX99w='; \
     img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

const NOSNIFF: HeaderValue = HeaderValue::from_static("nosniff");
const NO_REFERRER: HeaderValue = HeaderValue::from_static("no-referrer");
const DENY: HeaderValue = HeaderValue::from_static("DENY");
const SAME_ORIGIN: HeaderValue = HeaderValue::from_static("same-origin");
const CROSS_ORIGIN: HeaderValue = HeaderValue::from_static("cross-origin");

/// Seconds for which a browser may cache the response to a preflight.
const PREFLIGHT_MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// Response headers that a page of an allowed origin can read, besides those that every page can read.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "a2a-version, a2a-extensions, x-a2a-extensions, idempotency-key, x-request-id, retry-after, www-authenticate, allow, \
     location, etag, date, grpc-status, grpc-message, grpc-status-details-bin",
);

/// Browser headers of the response to one request.
pub(crate) struct BrowserHeaders {
    /// Value of `Access-Control-Allow-Origin`. `None` for pages that may not read the response, and other clients.
    pub(crate) allowed_origin: Option<HeaderValue>,
    /// The response depends on `Origin`.
    pub(crate) varies_by_origin: bool,
    /// The response is gRPC, which pages can't read: browsers hide its trailers.
    pub(crate) is_grpc: bool,
}

impl BrowserHeaders {
    /// Adds the headers to a response. Headers that it has already, such as those of a layer of the program, are kept.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap) {
        if self.is_grpc {
            return;
        }
        let content_type = headers.get(header::CONTENT_TYPE);
        let is_page = content_type.is_some_and(|value| value.as_bytes().starts_with(b"text/html"));
        // Most responses have only a content type, so that there is nothing to keep.
        let is_bare = content_type.is_some() && headers.len() == 1;
        let add = |headers: &mut HeaderMap, name: HeaderName, value: HeaderValue| {
            if is_bare {
                headers.insert(name, value);
            } else {
                headers.entry(name).or_insert(value);
            }
        };
        if let Some(origin) = &self.allowed_origin {
            add(headers, header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            add(headers, header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
        let own = if is_bare { None } else { headers.get(header::ACCESS_CONTROL_ALLOW_ORIGIN) };
        let readable_by = own.or(self.allowed_origin.as_ref());
        let is_readable = readable_by.is_some();
        // Public resources allow every origin.
        if self.varies_by_origin && readable_by.is_none_or(|origin| origin != "*") {
            headers.append(header::VARY, header::ORIGIN.into());
        }
        add(headers, header::X_CONTENT_TYPE_OPTIONS, NOSNIFF);
        add(headers, CROSS_ORIGIN_RESOURCE_POLICY, if is_readable { CROSS_ORIGIN } else { SAME_ORIGIN });
        // Pages of a layer of the program need a policy of their own.
        if !is_page {
            // Also prevents frames. Headers that only old browsers need would be a larger header map, and so an allocation.
            add(headers, header::CONTENT_SECURITY_POLICY, STRICT_POLICY);
        }
    }
}

/// Adds the headers of a page of this server with this content security policy.
pub(in crate::transport) fn add_page_headers(headers: &mut HeaderMap, policy: HeaderValue) {
    headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    headers.insert(header::X_FRAME_OPTIONS, DENY);
    headers.insert(header::REFERRER_POLICY, NO_REFERRER);
    headers.insert(CROSS_ORIGIN_OPENER_POLICY, SAME_ORIGIN);
}

/// Returns the response to a preflight from an allowed origin; [`BrowserHeaders`] adds the origin. `None` for other requests. A
/// preflight has no credentials, so it needs no authentication.
pub(crate) fn preflight(parts: &Parts, is_allowed: impl FnOnce() -> bool) -> Option<Response<Body>> {
    let is_preflight =
        parts.method == Method::OPTIONS && parts.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if !is_preflight || !is_allowed() {
        return None;
    }
    let mut response = status(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    let methods = HeaderValue::from_static("GET, HEAD, POST, DELETE, OPTIONS");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    // All requested headers are listed, since a wildcard does not cover `Authorization`, and API keys and extensions have
    // headers of any name.
    if let Some(requested) = parts.headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, requested.clone());
    }
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_MAX_AGE);
    for name in [header::ACCESS_CONTROL_REQUEST_METHOD, header::ACCESS_CONTROL_REQUEST_HEADERS] {
        headers.append(header::VARY, name.into());
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(browser: &BrowserHeaders, lines: &[(HeaderName, &'static str)]) -> HeaderMap {
        let lines = lines.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
        let mut headers = lines.collect();
        browser.add_to(&mut headers);
        headers
    }

    fn browser(origin: Option<&'static str>) -> BrowserHeaders {
        let allowed_origin = origin.map(HeaderValue::from_static);
        BrowserHeaders { allowed_origin, varies_by_origin: true, is_grpc: false }
    }

    #[test]
    fn headers_of_the_response_take_precedence() {
        let app = browser(Some("https://app.example"));
        let own = [
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
            (header::CONTENT_SECURITY_POLICY, "default-src 'self'"),
            (header::X_FRAME_OPTIONS, "SAMEORIGIN"),
            (header::REFERRER_POLICY, "origin"),
        ];
        let headers = added(&app, &own);
        for (name, value) in own {
            assert_eq!(headers.get_all(&name).iter().collect::<Vec<_>>(), [value], "{name}");
        }
        assert!(!headers.contains_key(header::VARY), "the response is that of every origin");
        assert_eq!(headers[CROSS_ORIGIN_RESOURCE_POLICY], "cross-origin");
    }

    #[test]
    fn pages_of_a_layer_get_no_policy() {
        let headers = added(&browser(None), &[(header::CONTENT_TYPE, "text/html; charset=utf-8")]);
        assert!(!headers.contains_key(header::CONTENT_SECURITY_POLICY));
        assert!(!headers.contains_key(header::X_FRAME_OPTIONS));
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    }

    #[test]
    fn grpc_gets_no_headers() {
        let grpc = BrowserHeaders { is_grpc: true, ..browser(Some("https://app.example")) };
        assert!(added(&grpc, &[]).is_empty());
    }
}
