//! The edge: where a request becomes a call, or is refused. All that is known of a caller is found out here, and only
//! here.

use std::{borrow::Cow, net::SocketAddr, sync::Arc};

use axum::extract::ConnectInfo;
use http::request::Parts;
use percent_encoding::percent_decode_str;

use super::brief;
use crate::{
    auth::Principal,
    call::{Call, Door, VERSION, Version},
    error::{Error, ErrorKind},
    event::Cursor,
};

/// The version that is spoken behind every door, which is all that a caller can ask for.
const SUPPORTED: Version = Version::V1_0;

/// Makes the call of a request, and leaves nothing else of what came with it but its headers.
pub(super) fn admit(parts: &mut Parts, door: Door, strict_version: bool) -> Result<(), Error> {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|it| it.0);
    let principal = parts.extensions.get().map(|it: &Principal| Arc::clone(it.name()));
    let mut call = Call { peer, ..Call::from_headers(&parts.headers, door) };
    if let Some(principal) = principal {
        call.owner = Arc::clone(&principal);
        call.principal = Some(principal);
    }
    call.in_time()?;
    check_version(parts, strict_version)?;
    if call.cursor.is_none() {
        // Those who can't set a header, such as the first request of an `EventSource`, have the query.
        call.cursor = parameter(parts, "lastEventId").and_then(|it| Cursor::from_text(&it));
    }
    call.alone(&mut parts.extensions);
    Ok(())
}

/// Refuses a call that asks for another version of the protocol than it has the form of (3.6). A call that asks for none
/// is taken by its form, since whoever writes one by hand sends no header; the text has it in 0.3 (3.6.2), and that is
/// what `strict` is for.
fn check_version(parts: &Parts, strict: bool) -> Result<(), Error> {
    let lines = parts.headers.get_all(VERSION).into_iter().map(|it| it.to_str().unwrap_or("?").trim());
    let header = lines.into_iter().find(|it| !it.is_empty()).map(Cow::Borrowed);
    let asked = header.or_else(|| parameter(parts, VERSION.as_str()).filter(|it| !it.trim().is_empty()));
    let supported = SUPPORTED.as_str();
    match asked {
        None if !strict => Ok(()),
        Some(it) if Version::from_text(&it) == Some(SUPPORTED) => Ok(()),
        None => {
            let why = format!("a call without A2A-Version is one of 0.3, and this server speaks {supported}");
            Err(ErrorKind::VersionNotSupported.because(why).with("supportedVersions", supported))
        }
        Some(it) => {
            let it = brief(&it);
            let error = ErrorKind::VersionNotSupported.because(format!("`{it}`; this server speaks {supported}"));
            Err(error.with("requestedVersion", it).with("supportedVersions", supported))
        }
    }
}

/// A parameter of the query, whichever way its name is capitalized: it stands for a header.
fn parameter<'a>(parts: &'a Parts, name: &str) -> Option<Cow<'a, str>> {
    let mut pairs = parts.uri.query()?.split('&').filter_map(|it| it.split_once('='));
    let value = pairs.find(|it| it.0.eq_ignore_ascii_case(name))?.1;
    percent_decode_str(value).decode_utf8().ok()
}
