//! The error of this crate.
//!
//! An error has two halves that never mix: what the caller reads (the specification's sentence, a detail, the fields
//! that are to blame), and a cause, which is for the log alone. Where a cause is hidden, both have the same id.

use std::{borrow::Cow, collections::HashMap, error::Error as StdError, fmt, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tonic::{Status, metadata::MetadataValue};
use tonic_types::{ErrorDetails, StatusExt as _};

pub use self::kind::{ErrorKind, Wire};
use crate::{call::Version, check::Violation, telemetry::report};

mod kind;
mod v03;

/// The `domain` of every `google.rpc.ErrorInfo` of this protocol.
pub const DOMAIN: &str = "a2a-protocol.org";

/// An error: a word wide, so that results stay small.
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
    /// For the caller, after the sentence of the kind.
    detail: Cow<'static, str>,
    /// Of `google.rpc.ErrorInfo`.
    metadata: Vec<(Cow<'static, str>, String)>,
    violations: Vec<Violation>,
    retry_after: Option<Duration>,
    /// `WWW-Authenticate`.
    challenge: Option<String>,
    /// Of a call to an agent elsewhere: nothing of it has left this process.
    unsent: bool,
    /// For the log.
    cause: Option<Arc<dyn StdError + Send + Sync>>,
}

impl ErrorKind {
    /// An error of this kind.
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

    /// An error of this kind, and what the caller should know of it.
    pub fn because(self, detail: impl Into<Cow<'static, str>>) -> Error {
        let mut error = self.error();
        error.0.detail = detail.into();
        error
    }
}

impl Error {
    /// A task that is not there, or not for this caller.
    pub fn task_not_found(id: &str) -> Self {
        ErrorKind::TaskNotFound.because(id.to_owned()).with("taskId", id)
    }

    /// Parameters that cannot be read, where no field can be named.
    #[expect(clippy::needless_pass_by_value, reason = "so that it is a function for `map_err`")]
    pub fn invalid_params(reason: impl ToString) -> Self {
        ErrorKind::InvalidParams.because(reason.to_string())
    }

    /// Parameters of which these fields are wrong.
    pub fn invalid(violations: Vec<Violation>) -> Self {
        let mut error = ErrorKind::InvalidParams.because(reasons(&violations));
        error.0.violations = violations;
        error
    }

    /// One field that is wrong, and why: a sentence without its subject.
    pub fn invalid_field(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::invalid(vec![Violation { field: field.into(), description: description.into() }])
    }

    /// The same, with the fields that are to blame under other names.
    #[must_use]
    pub(crate) fn renamed(mut self, name: impl Fn(&str) -> Option<String>) -> Self {
        let mut renamed = false;
        for it in &mut self.0.violations {
            if let Some(name) = name(&it.field) {
                (it.field, renamed) = (name, true);
            }
        }
        if renamed {
            self.0.detail = reasons(&self.0.violations).into();
        }
        self
    }

    /// Replaces the description of a field that is to blame.
    #[must_use]
    pub(crate) fn explained(mut self, field: &str, description: impl Into<String>) -> Self {
        if let Some(violation) = self.0.violations.iter_mut().find(|violation| violation.field == field) {
            violation.description = description.into();
            self.0.detail = reasons(&self.0.violations).into();
        }
        self
    }

    /// The server's fault. The cause goes to the log, under an id that the caller is given.
    pub fn internal(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        ErrorKind::Internal.error().hide(cause)
    }

    /// Puts a cause behind this error: into the log, once, under an id that the caller is given.
    #[must_use]
    pub fn hide(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let (id, cause) = (crate::seam::fresh_id(), cause.into());
        let (kind, chain) = (self.0.kind, chain(&*cause));
        tracing::warn!(error.id = %id, error.kind = ?kind, error.cause = %chain, "a call failed");
        report(format_args!("a call failed: error.id={id} error.kind={kind:?} error.cause={chain}"));
        let detail = &self.0.detail;
        let detail = if detail.is_empty() { format!("error id {id}") } else { format!("{detail} (error id {id})") };
        self.0.detail = detail.into();
        self.0.cause = Some(cause.into());
        self.with("errorId", id)
    }

    /// Adds to the metadata of `google.rpc.ErrorInfo`.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.0.metadata.push((name.into(), value.into()));
        self
    }

    /// Says when the same call may succeed.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Says which credentials would do: the value of `WWW-Authenticate`.
    #[must_use]
    pub fn challenge(mut self, challenge: impl Into<String>) -> Self {
        self.0.challenge = Some(challenge.into());
        self
    }

    /// Says that nothing of the call has left this process.
    #[must_use]
    pub(crate) fn unsent(mut self) -> Self {
        self.0.unsent = true;
        self
    }

    /// Of a call to an agent elsewhere: nothing of it has left this process, and the agent can't have heard of it.
    pub fn is_unsent(&self) -> bool {
        self.0.unsent
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The codes of each binding.
    pub fn wire(&self) -> Wire {
        self.0.kind.wire()
    }

    /// What `google.rpc.ErrorInfo` says beside the reason: the name of a limit, an id …
    pub fn metadata(&self, name: &str) -> Option<&str> {
        self.0.metadata.iter().find(|it| it.0 == name).map(|it| &*it.1)
    }

    /// The fields that are to blame.
    pub fn violations(&self) -> &[Violation] {
        &self.0.violations
    }

    /// The value of `Retry-After`, in whole seconds and at least one.
    pub fn retry_after_seconds(&self) -> Option<u64> {
        self.0.retry_after.map(|it| it.as_secs() + u64::from(it.subsec_nanos() > 0)).map(|it| it.max(1))
    }

    /// The value of `WWW-Authenticate`.
    pub fn challenge_text(&self) -> Option<&str> {
        self.0.challenge.as_deref()
    }

    /// The details in JSON: a `google.rpc.ErrorInfo`, and a `google.rpc.BadRequest` where fields are to blame.
    pub fn details(&self) -> Vec<Value> {
        self.details_for(Version::V1_0)
    }

    /// The same, with the reason that is a version's.
    pub fn details_for(&self, version: Version) -> Vec<Value> {
        let of = |name| format!("type.googleapis.com/google.rpc.{name}");
        let reason = self.wire_for(version).reason;
        let mut info = json!({"@type": of("ErrorInfo"), "reason": reason, "domain": DOMAIN});
        if !self.0.metadata.is_empty() {
            info["metadata"] = self.0.metadata.iter().map(|it| (it.0.to_string(), Value::from(&*it.1))).collect();
        }
        let mut details = vec![info];
        if !self.0.violations.is_empty() {
            let row = |it: &Violation| json!({"field": it.field, "description": it.description});
            let rows: Vec<_> = self.0.violations.iter().map(row).collect();
            details.push(json!({"@type": of("BadRequest"), "fieldViolations": rows}));
        }
        if let Some(after) = self.retry_after_seconds() {
            details.push(json!({"@type": of("RetryInfo"), "retryDelay": format!("{after}s")}));
        }
        details
    }

    /// `google.rpc.Status` in JSON, as HTTP+JSON has it (11.6).
    pub fn problem(&self) -> Value {
        self.problem_for(Version::V1_0)
    }

    fn status(self, version: Version, message: String) -> Status {
        let Wire { reason, grpc, .. } = self.wire_for(version);
        let metadata: HashMap<_, _> = self.0.metadata.iter().map(|it| (it.0.to_string(), it.1.clone())).collect();
        let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
        for it in self.violations() {
            details.add_bad_request_violation(&it.field, &it.description);
        }
        if let Some(after) = self.retry_after_seconds() {
            details.set_retry_info(Some(Duration::from_secs(after)));
        }
        let mut status = Status::with_error_details(grpc, message, details);
        if let Some(challenge) = self.challenge_text().and_then(|it| MetadataValue::try_from(it).ok()) {
            status.metadata_mut().insert("www-authenticate", challenge);
        }
        status.set_source(Arc::new(self));
        status
    }
}

fn reasons(violations: &[Violation]) -> String {
    let reasons: Vec<_> = violations.iter().map(|it| format!("{}: {}", it.field, it.description)).collect();
    reasons.join("; ")
}

/// An error and what is behind it, in a line.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(it) = next {
        text = format!("{text}: {it}");
        next = it.source();
    }
    text
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
        self.0.cause.as_deref().map(|it| -> &(dyn StdError + 'static) { it })
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        kind.error()
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        error.into_status(Version::V1_0)
    }
}

impl From<Status> for Error {
    /// Takes the error back out of the status it was put in. A status from elsewhere goes by the reason in its details,
    /// and one without them, tonic's own among them, by its code.
    fn from(status: Status) -> Self {
        if let Some(error) = status.source().and_then(|it| it.downcast_ref::<Self>()) {
            return error.clone();
        }
        let details = status.get_error_details();
        let info = details.error_info();
        let kind = info.and_then(|it| ErrorKind::from_reason(&it.reason));
        let kind = kind.unwrap_or_else(|| ErrorKind::from_grpc(status.code()));
        let mut error = kind.because(without_sentence(kind, status.message()).to_owned());
        let violations = details.bad_request().into_iter().flat_map(|it| &it.field_violations);
        error.0.violations =
            violations.map(|it| Violation { field: it.field.clone(), description: it.description.clone() }).collect();
        error.0.retry_after = details.retry_info().and_then(|it| it.retry_delay);
        let metadata = info.into_iter().flat_map(|it| &it.metadata);
        error.0.metadata = metadata.map(|(name, value)| (name.clone().into(), value.clone())).collect();
        error.0.metadata.sort_unstable();
        error
    }
}

/// The detail of a message that came over the wire, which begins with the sentence of its kind if it is one of ours.
pub(crate) fn without_sentence(kind: ErrorKind, message: &str) -> &str {
    let detail = message.strip_prefix(kind.wire().sentence).map(|it| it.strip_prefix(": ").unwrap_or(it));
    detail.unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_goes_through_a_status_and_back() {
        let error = Error::invalid_field("message.role", "is required").retry_after(Duration::from_millis(1200));
        let status = Status::from(error);
        // As it is read from the wire, where no source is.
        let read = Status::with_details(status.code(), status.message(), status.details().to_vec().into());
        for it in [status, read] {
            let back = Error::from(it);
            assert_eq!(back.kind(), ErrorKind::InvalidParams);
            assert_eq!(back.to_string(), "Invalid parameters: message.role: is required");
            assert_eq!(back.violations()[0].field, "message.role");
            assert_eq!(back.retry_after_seconds(), Some(2));
        }
    }

    #[test]
    fn a_cause_is_hidden_under_an_id() {
        let error = Error::internal("the disk is on fire");
        let text = error.to_string();
        assert!(text.starts_with("Internal error: error id ") && !text.contains("fire"), "{text}");
        assert!(!error.problem().to_string().contains("fire"));
        assert!(format!("{error:?}").contains("fire"));
    }

    #[test]
    fn an_error_is_a_word() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
