//! Error type of the crate: kind, detail, field violations and retry delay, with conversions to gRPC and JSON.
//!
//! Separates what the caller receives (the sentence of the kind, a detail, the invalid fields) from the internal cause, which
//! is only logged. An error id, which the caller receives too, correlates both.

use std::{borrow::Cow, collections::HashMap, error::Error as StdError, fmt, iter, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tonic::{Status, metadata::MetadataValue};
use tonic_types::{ErrorDetails, StatusExt as _};

pub(crate) use self::kind::code_name;
pub use self::kind::{ErrorKind, Wire};
#[cfg(feature = "server")]
use crate::base::metric;
use crate::{
    base::{sources::Ids, stderr::report},
    protocol::{json::DecodedTooLarge, validate::Violation, version::Version},
};

mod kind;
mod v03;

/// `domain` of every `google.rpc.ErrorInfo` of the protocol.
pub const DOMAIN: &str = "a2a-protocol.org";

/// Challenge of a bearer token (RFC 6750, 3).
pub(crate) const BEARER: &str = "Bearer realm=\"a2a\"";

/// Challenge after a bearer token that is not accepted (RFC 6750, 3.1).
pub(crate) const INVALID_TOKEN: &str = "Bearer realm=\"a2a\", error=\"invalid_token\"";

/// Error of a call. One machine word, so that results stay small.
///
/// ```
/// use a2a_service::error::{Error, ErrorKind};
///
/// let error = Error::task_not_found("t-9");
/// assert_eq!(error.kind(), ErrorKind::TaskNotFound);
/// assert_eq!(error.to_string(), "Task not found: t-9");
/// assert_eq!(error.wire().json_rpc, -32001);
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    /// Sent to the caller, after the sentence of the kind.
    detail: Cow<'static, str>,
    /// Metadata of `google.rpc.ErrorInfo`.
    metadata: Vec<(Cow<'static, str>, String)>,
    violations: Vec<Violation>,
    retry_after: Option<Duration>,
    /// `WWW-Authenticate`.
    challenge: Option<String>,
    /// Set on errors of the client if nothing of the call was sent.
    unsent: bool,
    /// Logged, and never sent to the caller.
    cause: Option<Arc<dyn StdError + Send + Sync>>,
}

impl ErrorKind {
    /// Creates an error of this kind without a detail.
    pub fn error(self) -> Error {
        Error(Box::new(Inner {
            kind: self,
            detail: Cow::Borrowed(""),
            metadata: Vec::new(),
            violations: Vec::new(),
            retry_after: None,
            challenge: None,
            unsent: false,
            cause: None,
        }))
    }

    /// Creates an error of this kind with a detail for the caller: lower case, without a full stop.
    pub fn because(self, detail: impl Into<Cow<'static, str>>) -> Error {
        let mut error = self.error();
        error.0.detail = detail.into();
        error
    }
}

impl Error {
    /// Creates a [`TaskNotFound`](ErrorKind::TaskNotFound) error, also for tasks of other owners.
    pub fn task_not_found(id: &str) -> Self {
        ErrorKind::TaskNotFound.because(id.to_owned()).with("taskId", id)
    }

    /// Creates an [`InvalidParams`](ErrorKind::InvalidParams) error for parameters whose invalid field is unknown.
    #[expect(clippy::needless_pass_by_value, reason = "the signature fits `map_err`")]
    pub fn invalid_params(reason: impl ToString) -> Self {
        ErrorKind::InvalidParams.because(reason.to_string())
    }

    /// Creates an [`InvalidParams`](ErrorKind::InvalidParams) error for several invalid fields.
    pub fn invalid(violations: Vec<Violation>) -> Self {
        let mut error = ErrorKind::InvalidParams.because(violations_text(&violations));
        error.0.violations = violations;
        error
    }

    /// Creates an [`InvalidParams`](ErrorKind::InvalidParams) error for one field. The description is a predicate without
    /// its subject: `is required`.
    pub fn invalid_field(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::invalid(vec![Violation { field: field.into(), description: description.into() }])
    }

    /// Renames the invalid fields for which `name` returns another name.
    #[must_use]
    pub(crate) fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> Self {
        let mut renamed = false;
        for violation in &mut self.0.violations {
            if let Some(name) = name(&violation.field) {
                (violation.field, renamed) = (name, true);
            }
        }
        if renamed {
            self.0.detail = violations_text(&self.0.violations).into();
        }
        self
    }

    /// Replaces the description of an invalid field.
    #[must_use]
    pub(crate) fn explained(mut self, field: &str, description: impl Into<String>) -> Self {
        if let Some(violation) = self.0.violations.iter_mut().find(|violation| violation.field == field) {
            violation.description = description.into();
            self.0.detail = violations_text(&self.0.violations).into();
        }
        self
    }

    /// Creates an [`Internal`](ErrorKind::Internal) error and logs its cause, as [`hide`](Self::hide) does.
    pub fn internal(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        ErrorKind::Internal.error().hide(cause)
    }

    /// Adds an internal cause: logs it under a new error id, and adds only the id to the detail and the metadata.
    #[must_use]
    pub fn hide(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let (id, cause) = (Ids::default().time_ordered(), cause.into());
        let (kind, chain) = (self.0.kind, chain(&*cause));
        tracing::warn!(error.id = %id, error.kind = ?kind, error.cause = %chain, "call failed");
        report(format_args!("call failed: error.id={id} error.kind={kind:?} error.cause={chain}"));
        let detail = &self.0.detail;
        let detail = if detail.is_empty() { format!("error id {id}") } else { format!("{detail} (error id {id})") };
        self.0.detail = detail.into();
        self.0.cause = Some(cause.into());
        self.with("errorId", id)
    }

    /// Adds an entry to the metadata of `google.rpc.ErrorInfo`.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.0.metadata.push((name.into(), value.into()));
        self
    }

    /// Names the limit that was reached, as `limit` in the metadata, and counts the rejection in the metrics.
    #[must_use]
    pub(crate) fn limit(self, name: &'static str) -> Self {
        #[cfg(feature = "server")]
        metric::LIMIT_REJECTIONS.add(None, &[name], 1);
        self.with("limit", name)
    }

    /// Sets the delay after which the client may retry the call.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Sets the value of `WWW-Authenticate`.
    #[must_use]
    pub fn challenge(mut self, challenge: impl Into<String>) -> Self {
        self.0.challenge = Some(challenge.into());
        self
    }

    /// Marks a client error: nothing of the call was sent.
    #[must_use]
    pub(crate) fn unsent(mut self) -> Self {
        self.0.unsent = true;
        self
    }

    /// Returns true for an error of the client if nothing of the call was sent, so that a retry is safe.
    pub fn is_unsent(&self) -> bool {
        self.0.unsent
    }

    /// Kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Codes of the error in each binding, at protocol 1.0.
    pub fn wire(&self) -> Wire {
        self.0.kind.wire()
    }

    /// Returns an entry of the metadata of `google.rpc.ErrorInfo`, such as `limit` or `taskId`.
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.0.metadata.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// Invalid fields.
    pub fn violations(&self) -> &[Violation] {
        &self.0.violations
    }

    /// Value of `Retry-After`: whole seconds, rounded up, at least 1.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        let delay = self.0.retry_after?;
        Some((delay.as_secs() + u64::from(delay.subsec_nanos() > 0)).max(1))
    }

    /// Value of `WWW-Authenticate`.
    pub fn challenge_text(&self) -> Option<&str> {
        self.0.challenge.as_deref()
    }

    /// Details in JSON: `google.rpc.ErrorInfo`, and where they apply `google.rpc.BadRequest` and `google.rpc.RetryInfo`.
    pub fn details(&self) -> Vec<Value> {
        self.details_for(Version::V1_0)
    }

    /// Details in JSON with the reason that a protocol version defines.
    pub fn details_for(&self, version: Version) -> Vec<Value> {
        let type_url = |name| format!("type.googleapis.com/google.rpc.{name}");
        let reason = self.wire_for(version).reason;
        let mut info = json!({"@type": type_url("ErrorInfo"), "reason": reason, "domain": DOMAIN});
        if !self.0.metadata.is_empty() {
            let metadata = self.0.metadata.iter().map(|(key, value)| (key.to_string(), Value::from(&**value)));
            info["metadata"] = metadata.collect();
        }
        let mut details = vec![info];
        if !self.0.violations.is_empty() {
            let violation =
                |violation: &Violation| json!({"field": violation.field, "description": violation.description});
            let violations: Vec<_> = self.0.violations.iter().map(violation).collect();
            details.push(json!({"@type": type_url("BadRequest"), "fieldViolations": violations}));
        }
        if let Some(seconds) = self.retry_after_seconds() {
            details.push(json!({"@type": type_url("RetryInfo"), "retryDelay": format!("{seconds}s")}));
        }
        details
    }

    /// Error body of HTTP+JSON at protocol 1.0: `google.rpc.Status` in JSON (11.6).
    pub fn problem(&self) -> Value {
        self.problem_for(Version::V1_0)
    }

    fn status(self, version: Version, message: String) -> Status {
        let Wire { reason, grpc, .. } = self.wire_for(version);
        let metadata = self.0.metadata.iter().map(|(key, value)| (key.to_string(), value.clone()));
        let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata.collect::<HashMap<_, _>>());
        for violation in self.violations() {
            details.add_bad_request_violation(&violation.field, &violation.description);
        }
        if let Some(seconds) = self.retry_after_seconds() {
            details.set_retry_info(Some(Duration::from_secs(seconds)));
        }
        let mut status = Status::with_error_details(grpc, message, details);
        if let Some(challenge) = self.challenge_text().and_then(|text| MetadataValue::try_from(text).ok()) {
            status.metadata_mut().insert("www-authenticate", challenge);
        }
        status.set_source(Arc::new(self));
        status
    }
}

fn violations_text(violations: &[Violation]) -> String {
    let text = |violation: &Violation| format!("{}: {}", violation.field, violation.description);
    violations.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// Returns an error and its sources.
pub(crate) fn sources<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    iter::successors(Some(error), |&error| error.source())
}

/// Formats an error and its sources on one line.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    sources(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wire().sentence)?;
        if self.0.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.0.detail) }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, detail, violations, cause, .. } = &*self.0;
        let mut f = f.debug_struct("Error");
        f.field("kind", kind).field("detail", detail).field("violations", violations).field("cause", cause).finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.cause.as_deref().map(|cause| -> &(dyn StdError + 'static) { cause })
    }
}

conversions! { Error: kind: ErrorKind => kind.error(); }

conversions! { Status: error: Error => error.into_status(Version::V1_0); }

impl From<Status> for Error {
    /// Returns the original error of a status that this process created. Otherwise the kind follows from the reason in the
    /// details, or from the code if there are none, as in statuses of tonic.
    fn from(status: Status) -> Self {
        if let Some(error) = status.source().and_then(|source| source.downcast_ref::<Self>()) {
            return error.clone();
        }
        let details = status.get_error_details();
        let info = details.error_info();
        let kind = info.and_then(|info| ErrorKind::from_reason(&info.reason));
        let kind = kind.unwrap_or_else(|| ErrorKind::from_grpc(status.code()));
        let mut error = kind.because(without_sentence(kind, status.message()).to_owned());
        let violations = details.bad_request().into_iter().flat_map(|bad_request| &bad_request.field_violations);
        error.0.violations = violations
            .map(|violation| Violation { field: violation.field.clone(), description: violation.description.clone() })
            .collect();
        error.0.retry_after = details.retry_info().and_then(|info| info.retry_delay);
        let metadata = info.into_iter().flat_map(|info| &info.metadata);
        error.0.metadata = metadata.map(|(name, value)| (name.clone().into(), value.clone())).collect();
        error.0.metadata.sort_unstable();
        error
    }
}

/// Removes the sentence of the kind from a received message. Messages of servers of this crate begin with it.
pub(crate) fn without_sentence(kind: ErrorKind, message: &str) -> &str {
    let detail = message.strip_prefix(kind.wire().sentence).map(|rest| rest.strip_prefix(": ").unwrap_or(rest));
    detail.unwrap_or(message)
}

conversions! {
    Error:
    error: DecodedTooLarge => ErrorKind::TooLarge.because(format!("request: {error}")).limit("decoded_bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_round_trips_through_status() {
        let error = Error::invalid_field("message.role", "is required").retry_after(Duration::from_millis(1200));
        let status = Status::from(error);
        // A status from the wire has no source.
        let received = Status::with_details(status.code(), status.message(), status.details().to_vec().into());
        for status in [status, received] {
            let error = Error::from(status);
            assert_eq!(error.kind(), ErrorKind::InvalidParams);
            assert_eq!(error.to_string(), "Invalid parameters: message.role: is required");
            assert_eq!(error.violations()[0].field, "message.role");
            assert_eq!(error.retry_after_seconds(), Some(2));
        }
    }

    #[test]
    fn internal_cause_is_replaced_by_an_id() {
        let error = Error::internal("the disk is on fire");
        let text = error.to_string();
        assert!(text.starts_with("Internal error: error id ") && !text.contains("fire"), "{text}");
        assert!(!error.problem().to_string().contains("fire"));
        assert!(format!("{error:?}").contains("fire"));
    }

    #[test]
    fn error_is_one_machine_word() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
