//! The edge: where a request becomes a call, or is refused. All that is known of a caller is found out here, and only
//! here.

use std::{borrow::Cow, net::SocketAddr, sync::Arc};

use axum::extract::ConnectInfo;
use http::{Extensions, HeaderMap, HeaderValue, Uri, request::Parts};
use percent_encoding::percent_decode_str;

use super::{FileBytes, Settings, brief};
use crate::{
    auth::Principal,
    call::{Binding, Call, VERSION},
    error::{Error, ErrorKind},
    event::Cursor,
    protocol::{Protocols, Version},
};

/// A request that became a call. Its form tells which version it is in, and that of JSON-RPC stands in the body: so it is
/// let in later, by whoever knows.
#[derive(Clone)]
pub(super) struct RequestedVersion {
    in_time: Result<(), Error>,
    /// The version that is asked for.
    asked: Option<Cow<'static, str>>,
    protocols: Protocols,
    strict: bool,
}

/// What most callers ask for, which needs no text of its own.
const USUAL: &str = Version::V1_0.as_str();

/// Makes the call of a request, and leaves nothing else of what came with it but its headers.
pub(super) fn admit(parts: &mut Parts, binding: Binding, settings: &Settings) -> RequestedVersion {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|it| it.0);
    let principal = parts.extensions.get().map(|it: &Principal| Arc::clone(it.name()));
    let mut call = Call { peer, ..Call::from_headers(&parts.headers, binding) };
    if let Some(principal) = principal {
        call.owner = Arc::clone(&principal);
        call.principal = Some(principal);
    }
    match settings.v03_file_bytes {
        FileBytes::Auto => {}
        it @ (FileBytes::Base64 | FileBytes::Raw) => call.plain_files = it == FileBytes::Raw,
    }
    if call.cursor.is_none() {
        // Those who can't set a header, such as the first request of an `EventSource`, have the query.
        let text = parameter(&parts.uri, "lastEventId").filter(|it| !it.is_empty());
        call.cursor = text.map(|it| Cursor::from_text(&it).unwrap_or_else(Cursor::nowhere));
    }
    let asked =
        asked(&parts.uri, &parts.headers).map(|it| if it == USUAL { USUAL.into() } else { Cow::Owned(brief(&it)) });
    let (in_time, protocols, strict) = (call.in_time(), settings.protocols, settings.strict_version);
    call.alone(&mut parts.extensions);
    RequestedVersion { in_time, asked, protocols, strict }
}

impl RequestedVersion {
    /// Lets in a call that has the form of this version, and notes that on it.
    pub(super) fn enter(self, version: Version, extensions: &mut Extensions) -> Result<(), Error> {
        self.in_time.clone()?;
        match version {
            Version::V1_0 => self.check()?,
            Version::V0_3 => self.check_classic()?,
        }
        if let Some(call) = extensions.get_mut::<Call>() {
            call.version = version;
        }
        Ok(())
    }

    /// The version that what has no form is refused in.
    pub(super) fn presumed(&self) -> Version {
        if self.protocols.has(Version::V0_3) { presumed(self.asked.as_deref()) } else { Version::V1_0 }
    }

    /// Refuses a call that asks for another version of the protocol than it has the form of (3.6). A call that asks for
    /// none is taken by its form, since whoever writes one by hand sends no header; the text has it in 0.3 (3.6.2), and
    /// that is what `strict` is for.
    fn check(self) -> Result<(), Error> {
        let Self { asked, protocols, strict, .. } = self;
        let (served, supported) = (protocols.has(Version::V1_0), protocols.to_string());
        let kind = ErrorKind::VersionNotSupported;
        match asked {
            None if served && !strict => Ok(()),
            Some(it) if served && Version::from_text(&it) == Some(Version::V1_0) => Ok(()),
            None => {
                let why = if served { "without A2A-Version is one of 0.3" } else { "of this form is one of 1.0" };
                let why = format!("a call {why}, and this server speaks {supported}");
                Err(kind.because(why).with("supportedVersions", supported))
            }
            Some(it) => {
                // Calls of another version that is served have another form.
                let form = Version::from_text(&it).is_some_and(|it| it != Version::V1_0 && protocols.has(it));
                let form = if form { "calls of this form are of 1.0, and " } else { "" };
                let error = kind.because(format!("`{it}`; {form}this server speaks {supported}"));
                Err(error.with("requestedVersion", it).with("supportedVersions", supported))
            }
        }
    }

    /// 0.3 has no word for versions, and clients of it ask for none. One that also speaks 1.0 may send that with
    /// whatever it sends; only what is neither is refused. Where 0.3 is not served, its calls are for nobody.
    fn check_classic(self) -> Result<(), Error> {
        // A patch is not considered (3.6).
        let before = |it: &str| matches!(it.trim().split('.').take(2).collect::<Vec<_>>()[..], ["0", "1" | "2"]);
        if !self.protocols.has(Version::V0_3) {
            return Err(ErrorKind::MethodNotFound.because("protocol 0.3 is not served"));
        }
        match self.asked {
            Some(it) if Version::from_text(&it).is_none() && !before(&it) => {
                let why = format!("`{it}`; calls of this form are of {}", Version::V0_3.as_str());
                Err(ErrorKind::VersionNotSupported.because(why).with("requestedVersion", it))
            }
            _ => Ok(()),
        }
    }
}

/// The key of a call, to be sent back with its answer.
pub(super) fn key(extensions: &Extensions) -> Option<HeaderValue> {
    let key = extensions.get::<Call>()?.idempotency_key.as_ref()?;
    HeaderValue::from_str(key).ok()
}

/// The version that a request is refused in, of which nobody has seen more than its head.
pub(super) fn presumed_of(parts: &Parts) -> Version {
    if !super::version::stored_protocols(&parts.extensions).has(Version::V0_3) {
        return Version::V1_0;
    }
    presumed(asked(&parts.uri, &parts.headers).as_deref())
}

/// What does not say that it is 1.0 is of the version before (3.6.2). What that one is told, both can read.
fn presumed(asked: Option<&str>) -> Version {
    if asked.is_some_and(of_1) { Version::V1_0 } else { Version::V0_3 }
}

fn of_1(asked: &str) -> bool {
    asked.trim().starts_with("1.")
}

/// Asks for a version of those that have tenants, one of which may be called `v1`: else that is where 0.3 begins.
pub(super) fn asks_for_1(uri: &Uri, headers: &HeaderMap) -> bool {
    asked(uri, headers).is_some_and(|it| of_1(&it))
}

/// The version that is asked for: in a header, else in the query (3.6.1).
fn asked<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<Cow<'a, str>> {
    let lines = headers.get_all(VERSION).into_iter().map(|it| it.to_str().unwrap_or("?").trim());
    let header = lines.into_iter().find(|it| !it.is_empty()).map(Cow::Borrowed);
    header.or_else(|| parameter(uri, VERSION.as_str()).filter(|it| !it.trim().is_empty()))
}

/// A parameter of the query, whichever way its name is capitalized: it stands for a header.
fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    let mut pairs = uri.query()?.split('&').filter_map(|it| it.split_once('='));
    let value = pairs.find(|it| it.0.eq_ignore_ascii_case(name))?.1;
    percent_decode_str(value).decode_utf8().ok()
}
