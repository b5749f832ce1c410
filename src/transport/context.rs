//! Request context: builds the [`Call`] of a request from its headers, query, connection and authenticated principal.
//!
//! Nothing else of the request's extensions is passed on to the service.

use std::{net::SocketAddr, sync::Arc};

use axum::extract::ConnectInfo;
use http::{Extensions, HeaderValue, request::Parts};

use super::{FileBytes, Settings, query_parameter, version::RequestedVersion};
use crate::{
    call::{Binding, Call, Principal},
    error::Error,
    event::Cursor,
    protocol::Version,
};

/// Checks of a request that wait until its version is known. The version of JSON-RPC is in the body.
#[derive(Clone)]
pub(super) struct PendingChecks {
    /// Error if the deadline has already passed.
    deadline: Result<(), Error>,
    requested: RequestedVersion,
}

impl PendingChecks {
    /// Checks deadline and version of a request that has the form of this version, and sets the version of its [`Call`].
    ///
    /// # Errors
    /// `DeadlineExceeded`, or those of [`RequestedVersion::check`].
    pub(super) fn complete(self, version: Version, extensions: &mut Extensions) -> Result<(), Error> {
        self.deadline?;
        self.requested.check(version)?;
        if let Some(call) = extensions.get_mut::<Call>() {
            call.version = version;
        }
        Ok(())
    }

    /// Returns the version of errors that are reported before the version is known.
    pub(super) fn presumed_version(&self) -> Version {
        self.requested.presumed()
    }
}

/// Builds the [`Call`] of a request. It replaces all other extensions.
pub(super) fn attach_call(parts: &mut Parts, binding: Binding, settings: &Settings) -> PendingChecks {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0);
    let principal = parts.extensions.get().map(|principal: &Principal| Arc::clone(principal.name()));
    let mut call = Call { peer, ..Call::from_headers(&parts.headers, binding) };
    if let Some(principal) = principal {
        call.owner = Arc::clone(&principal);
        call.principal = Some(principal);
    }
    match settings.v03_file_bytes {
        FileBytes::Auto => {}
        FileBytes::Base64 => call.plain_files = false,
        FileBytes::Raw => call.plain_files = true,
    }
    if call.cursor.is_none() {
        // A browser's `EventSource` can't set a header on its first request.
        let text = query_parameter(&parts.uri, "lastEventId").filter(|text| !text.is_empty());
        call.cursor = text.map(|text| Cursor::from_text(&text).unwrap_or_else(Cursor::invalid));
    }
    let requested = RequestedVersion::of(parts, settings.protocols, settings.strict_version);
    let deadline = call.in_time();
    call.alone(&mut parts.extensions);
    PendingChecks { deadline, requested }
}

/// Returns the idempotency key of a request as a header of its response.
pub(super) fn idempotency_key(extensions: &Extensions) -> Option<HeaderValue> {
    let key = extensions.get::<Call>()?.idempotency_key.as_ref()?;
    HeaderValue::from_str(key).ok()
}
