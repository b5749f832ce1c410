//! Request context: builds the [`Call`] of a request from its headers, query, connection and authenticated principal, and
//! assigns request ids.
//!
//! Nothing else of the request's extensions is passed on to the service.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header, request::Parts};

use super::{FileBytes, Settings, peer, version::RequestedVersion};
use crate::{
    base::sources::Ids,
    protocol::{
        Error, Version,
        call::{Call, Principal, REQUEST_ID, TIMEOUT, forwarded_headers, query_parameter},
        event::Cursor,
        response_budget::ResponseBudget,
    },
    transport::{pipeline::base_path::PathPrefix, resource::card::card_request},
};

/// Checks of a request that wait until its version is known. The version of JSON-RPC is in the body.
#[derive(Clone)]
pub(super) struct PendingChecks {
    /// Error if the deadline is malformed, or has already passed.
    deadline: Result<(), Error>,
    requested: RequestedVersion,
}

impl PendingChecks {
    /// Checks deadline and version of a request that has the form of this version, and sets the version of its [`Call`].
    ///
    /// # Errors
    /// `InvalidParams` and `DeadlineExceeded` for the deadline, or those of [`RequestedVersion::check`].
    pub(super) fn complete(self, version: Version, call: &mut Call) -> Result<(), Error> {
        self.deadline?;
        self.requested.check(version)?;
        call.version = version;
        if let Some(record) = &call.record {
            record.caller(call);
        }
        Ok(())
    }

    /// Returns the version of errors that are reported before the version is known.
    pub(super) fn presumed_version(&self) -> Version {
        self.requested.presumed()
    }
}

/// Completes the [`Call`] of a request, which has been parsed from its headers. It is to replace all extensions.
pub(super) fn complete_call(
    call: &mut Call,
    parts: &mut Parts,
    settings: &Settings,
    responses: &ResponseBudget,
) -> PendingChecks {
    call.peer = peer(parts);
    call.names_agent = parts.extensions.get::<PathPrefix>().is_some_and(|prefix| prefix.names_agent);
    let needs_base_url = settings.has_extended_card || parts.uri.path().ends_with("/GetAgentCard");
    let base_url = settings.base_url.as_ref().filter(|_| needs_base_url);
    let base_url = base_url.and_then(|base_url| base_url(&card_request(parts)));
    call.base_url = base_url.map(Arc::from);
    call.responses = Some(responses.clone());
    if let Some(principal) = parts.extensions.remove::<Principal>() {
        call.owner = Arc::clone(&principal.owner);
        call.principal = Some(Arc::new(principal));
    }
    match settings.v03_file_bytes {
        FileBytes::Auto => {}
        FileBytes::Base64 => call.plain_files = false,
        FileBytes::Raw => call.plain_files = true,
    }
    if call.cursor.is_none() {
        // A browser's `EventSource` can't set a header on its first request.
        let text = query_parameter(parts.uri.query(), "lastEventId").filter(|text| !text.is_empty());
        call.cursor = text.map(|text| Cursor::from_text(&text).unwrap_or_else(Cursor::invalid));
    }
    call.forwarded = forwarded_headers(&parts.headers, &settings.forward_headers);
    let requested = RequestedVersion::of(parts, settings.protocols, settings.strict_version);
    call.record = parts.extensions.remove();
    if let Some(record) = call.record.clone() {
        record.begin_span(call);
    }
    let deadline = if call.deadline.is_none() && parts.headers.contains_key(TIMEOUT) {
        Err(Error::invalid_field(TIMEOUT.as_str(), "is not a number of up to eight digits with a unit, such as 30S"))
    } else {
        call.check_deadline()
    };
    PendingChecks { deadline, requested }
}

/// Marks the values of headers with credentials as sensitive, so that `Debug` of a request hides them.
pub(crate) fn hide_credentials(headers: &mut HeaderMap) {
    for (name, value) in headers {
        let text = name.as_str();
        let is_secret = *name == header::AUTHORIZATION
            || *name == header::PROXY_AUTHORIZATION
            || *name == header::COOKIE
            || ["-key", "-token", "-secret", "-password", "-signature", "-authorization", "-credential"]
                .iter()
                .any(|ending| text.ends_with(ending));
        if is_secret {
            value.set_sensitive(true);
        }
    }
}

/// Returns the request id: the value of `X-Request-Id` if it is 1 to 128 visible ASCII characters, else a new UUID, which
/// replaces it.
pub(crate) fn request_id(headers: &mut HeaderMap, ids: &Ids) -> HeaderValue {
    let is_valid = |id: &&HeaderValue| (1..=128).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic);
    if let Some(id) = headers.get(REQUEST_ID).filter(is_valid) {
        return id.clone();
    }
    // An owner of its own is not copied by the clone. Infallible: a UUID is a valid header value.
    let id = HeaderValue::from_maybe_shared(Bytes::from_owner(ids.time_ordered_ascii()));
    let id = id.unwrap_or(HeaderValue::from_static("unknown"));
    headers.insert(REQUEST_ID, id.clone());
    id
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, Request};

    use super::*;

    #[test]
    fn debug_of_a_request_hides_credentials() {
        let mut request = Request::builder().uri("/tasks").header("accept", "text/plain");
        let secret = [
            "authorization",
            "proxy-authorization",
            "cookie",
            "x-api-key",
            "x-a2a-notification-token",
            "x-hub-signature",
        ];
        for name in secret {
            request = request.header(name, "s3cret");
        }
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        hide_credentials(&mut parts.headers);
        let debug = format!("{parts:?}");
        assert!(!debug.contains("s3cret") && debug.contains("text/plain") && debug.contains("x-api-key"), "{debug}");
        assert_eq!(parts.headers["cookie"], "s3cret", "the value itself is unchanged");
    }

    #[test]
    fn only_configured_headers_are_forwarded() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("authorization", "s3cret"), ("x-user", "ada"), ("x-user", "bob"), ("x-other", "1")] {
            headers.append(name, HeaderValue::from_static(value));
        }
        assert_eq!(forwarded_headers(&headers, &[]), None);
        let names = [header::AUTHORIZATION, HeaderName::from_static("x-user"), HeaderName::from_static("x-missing")];
        let forwarded = forwarded_headers(&headers, &names).unwrap();
        assert_eq!((forwarded.len(), &forwarded["authorization"]), (3, &headers["authorization"]));
        assert_eq!(forwarded.get_all("x-user").iter().collect::<Vec<_>>(), ["ada", "bob"]);
        assert!(!format!("{:?}", Call { forwarded: Some(forwarded), ..Call::default() }).contains("s3cret"));
    }

    #[test]
    fn valid_request_id_is_kept_and_invalid_one_is_replaced() {
        let assigned = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(id).unwrap());
            let id = request_id(&mut headers, &Ids::default());
            assert_eq!(headers[REQUEST_ID], id);
            id.to_str().unwrap().to_owned()
        };
        let longest = "r".repeat(128);
        assert_eq!((assigned("r-1"), assigned(&longest)), ("r-1".to_owned(), longest.clone()));
        for invalid in ["", "r 1", &format!("{longest}r")] {
            assert!(uuid::Uuid::parse_str(&assigned(invalid)).is_ok(), "{invalid}");
        }
    }
}
