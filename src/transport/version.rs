//! Protocol version rules (specification 3.6): how `A2A-Version`, the path and the JSON-RPC method determine the version
//! of a request, and which versions are accepted.
//!
//! The *form* of a request (gRPC service, REST path, JSON-RPC method name) decides which version it is parsed as. The
//! *requested* version is the one in its header or query, and must match the form: see [`RequestedVersion::check`].
//! Errors that are reported before the form is known have the *presumed* version, which follows from the requested one.

use std::borrow::Cow;

use http::{HeaderMap, Uri, request::Parts};
use tonic::server::NamedService;

use super::{V03Server, brief};
use crate::protocol::{
    Error, ErrorKind, Protocols, Version,
    call::requested_version,
    pb::v1::{a2a_service_server::A2aServiceServer, bindings::ServiceHandle},
};

/// Value of `A2A-Version` of most requests, which needs no allocation.
const USUAL: &str = Version::V1_0.as_str();

/// Full name of the gRPC service of a version.
pub(super) const fn grpc_service_name(version: Version) -> &'static str {
    match version {
        Version::V1_0 => <A2aServiceServer<ServiceHandle> as NamedService>::NAME,
        Version::V0_3 => <V03Server as NamedService>::NAME,
    }
}

/// Returns the name of the method if a path is one of the gRPC service of this version.
pub(super) fn grpc_method(path: &str, version: Version) -> Option<&str> {
    path.strip_prefix('/')?.strip_prefix(grpc_service_name(version))?.strip_prefix('/')
}

/// Returns the name of the method if a path is one of the A2A service, and not of health, reflection or an unknown service.
///
/// If 0.3 is not served, its gRPC service is an unknown service: 0.3 has no error for an unsupported version. 1.0 has one
/// (`VersionNotSupported`), so its service is always known.
pub(super) fn a2a_grpc_method(path: &str, version: Version, served: Protocols) -> Option<&str> {
    grpc_method(path, version).filter(|_| version == Version::V1_0 || served.has(version))
}

/// Returns the version of a JSON-RPC method: names of 0.3 have a slash, names of 1.0 have none.
pub(super) fn of_json_rpc_method(method: &str) -> Version {
    if method.contains('/') { Version::V0_3 } else { Version::V1_0 }
}

/// Returns the version of a body that is not a valid JSON-RPC request, by the first `method` in its text, if there is one.
pub(super) fn of_invalid_json_rpc(body: &[u8]) -> Option<Version> {
    const MEMBER: &[u8] = br#""method""#;
    let start = body.windows(MEMBER.len()).position(|window| window == MEMBER)?;
    let value = body.get(start + MEMBER.len()..)?.trim_ascii_start().strip_prefix(b":")?;
    let method = value.trim_ascii_start().strip_prefix(b"\"")?.split(|byte| *byte == b'"').next()?;
    Some(if method.contains(&b'/') { Version::V0_3 } else { Version::V1_0 })
}

/// Returns true if a request names a version 1.x. Below `/v1/`, it then is a request of a tenant named `v1`, and not one
/// of 0.3.
pub(super) fn requests_1_x(uri: &Uri, headers: &HeaderMap) -> bool {
    requested_version(uri.query(), headers).is_some_and(|text| is_1_x(&text))
}

fn is_1_x(requested: &str) -> bool {
    requested.trim().starts_with("1.")
}

/// Returns the presumed version of a request.
pub(super) fn presumed_of(parts: &Parts, served: Protocols) -> Version {
    presumed(requested_version(parts.uri.query(), &parts.headers).as_deref(), served)
}

/// Returns the presumed version: 0.3 unless the request names 1.x (3.6.2). Clients of both versions can read errors of 0.3.
fn presumed(requested: Option<&str>, served: Protocols) -> Version {
    if !served.has(Version::V0_3) || requested.is_some_and(is_1_x) { Version::V1_0 } else { Version::V0_3 }
}

/// Requested version of a request, and the settings that decide whether it is accepted.
#[derive(Clone)]
pub(super) struct RequestedVersion {
    /// Value of `A2A-Version`, shortened for error messages.
    text: Option<Cow<'static, str>>,
    served: Protocols,
    /// Requests of 1.0 must name their version.
    strict: bool,
}

impl RequestedVersion {
    /// Reads the requested version of a request.
    pub(super) fn of(parts: &Parts, served: Protocols, strict: bool) -> Self {
        let text = requested_version(parts.uri.query(), &parts.headers);
        let text = text.map(|text| if text == USUAL { USUAL.into() } else { Cow::Owned(brief(&text)) });
        Self { text, served, strict }
    }

    /// Returns the presumed version.
    pub(super) fn presumed(&self) -> Version {
        presumed(self.text.as_deref(), self.served)
    }

    /// Checks that a request of this form is accepted.
    ///
    /// # Errors
    /// `VersionNotSupported`; `MethodNotFound` for a request of 0.3 if that is not served.
    pub(super) fn check(self, form: Version) -> Result<(), Error> {
        match form {
            Version::V1_0 => self.check_v1(),
            Version::V0_3 => self.check_v03(),
        }
    }

    /// Rejects a request of 1.0 that names another version (3.6). A request without a version is accepted unless `strict`:
    /// requests that are written by hand often lack the header. The specification treats it as 0.3 (3.6.2).
    fn check_v1(self) -> Result<(), Error> {
        let Self { text, served, strict } = self;
        let is_served = served.has(Version::V1_0);
        let kind = ErrorKind::VersionNotSupported;
        match text {
            None if is_served && !strict => Ok(()),
            Some(text) if is_served && Version::from_text(&text) == Some(Version::V1_0) => Ok(()),
            None => {
                let problem = if is_served {
                    "A2A-Version is missing, which means 0.3, but the request has the form of 1.0"
                } else {
                    "the request has the form of 1.0"
                };
                let reason = format!("{problem}; this server supports {served}");
                Err(kind.because(reason).with("supportedVersions", served.to_string()))
            }
            Some(text) => {
                // The requested version is served, but its requests have another form.
                let is_other_form =
                    Version::from_text(&text).is_some_and(|version| version != Version::V1_0 && served.has(version));
                let hint = if is_other_form { "the request has the form of 1.0; " } else { "" };
                let error = kind.because(format!("A2A-Version: `{text}`; {hint}this server supports {served}"));
                Err(error.with("requestedVersion", text).with("supportedVersions", served.to_string()))
            }
        }
    }

    /// Rejects a request of 0.3 that names an unknown version. 0.3 has no version header, and clients that support both
    /// versions send the one of 1.0 with requests of 0.3 too.
    fn check_v03(self) -> Result<(), Error> {
        if !self.served.has(Version::V0_3) {
            return Err(ErrorKind::MethodNotFound.because("protocol 0.3 is not served"));
        }
        match self.text {
            Some(text) if Version::serving(&text).is_none() => {
                let form = Version::V0_3.as_str();
                let reason = format!("A2A-Version: `{text}`; the request has the form of {form}");
                Err(ErrorKind::VersionNotSupported.because(reason).with("requestedVersion", text))
            }
            _ => Ok(()),
        }
    }
}
