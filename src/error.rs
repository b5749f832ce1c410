//! The error of this crate, and the table that says how each binding puts it on the wire.
//!
//! An error has two halves that never mix: what the caller reads (the specification's sentence, a detail, the fields
//! that are to blame), and a cause, which is for the log alone. Where a cause is hidden, both have the same id.

use std::{borrow::Cow, collections::HashMap, error::Error as StdError, fmt, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tonic::{Code, Status, metadata::MetadataValue};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::check::Violation;

/// The `domain` of every `google.rpc.ErrorInfo` of this protocol.
pub const DOMAIN: &str = "a2a-protocol.org";

/// What can go wrong with a call. Finer than the wire's reasons where a caller may want to know the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The task does not exist, or the caller may not see it.
    TaskNotFound,
    /// The task has ended otherwise.
    TaskNotCancelable,
    /// Webhooks are not offered.
    PushNotificationNotSupported,
    /// The operation is not one that this agent offers.
    UnsupportedOperation,
    /// The task has ended: it takes no message and has no stream.
    TaskEnded,
    /// Streams are not offered.
    StreamingNotSupported,
    /// There is no card for authenticated callers.
    ExtendedCardNotSupported,
    /// A media type that the agent does not take or give.
    ContentTypeNotSupported,
    /// The agent gave what the protocol does not allow.
    InvalidAgentResponse,
    /// A card for authenticated callers is promised and missing.
    ExtendedAgentCardNotConfigured,
    /// An extension that the caller must use, and does not.
    ExtensionSupportRequired,
    /// A version of the protocol that is not served.
    VersionNotSupported,
    /// The request is not JSON.
    Parse,
    /// The request is JSON and no call.
    InvalidRequest,
    /// No such method, or no such path.
    MethodNotFound,
    /// A parameter is missing or malformed.
    InvalidParams,
    /// The body is larger than is taken.
    TooLarge,
    /// Nobody is known by the credentials, or there are none.
    Unauthenticated,
    /// The caller is known, and may not.
    PermissionDenied,
    /// A limit is reached: try later, or ask for less.
    ResourceExhausted,
    /// The server can't do it now. The same call may succeed later.
    Unavailable,
    /// The caller's time is over.
    DeadlineExceeded,
    /// Somebody else was there first.
    Aborted,
    /// The server is at fault; what happened is in its log.
    Internal,
}

/// The codes of a kind, one for each binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// `google.rpc.ErrorInfo.reason`.
    pub reason: &'static str,
    /// The `code` of a JSON-RPC error.
    pub json_rpc: i32,
    /// `grpc-status`.
    pub grpc: Code,
    /// The status of HTTP+JSON.
    pub http: u16,
    /// What every message of the kind begins with.
    pub sentence: &'static str,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 24] = [
        Self::TaskNotFound,
        Self::TaskNotCancelable,
        Self::PushNotificationNotSupported,
        Self::UnsupportedOperation,
        Self::TaskEnded,
        Self::StreamingNotSupported,
        Self::ExtendedCardNotSupported,
        Self::ContentTypeNotSupported,
        Self::InvalidAgentResponse,
        Self::ExtendedAgentCardNotConfigured,
        Self::ExtensionSupportRequired,
        Self::VersionNotSupported,
        Self::Parse,
        Self::InvalidRequest,
        Self::MethodNotFound,
        Self::InvalidParams,
        Self::TooLarge,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::Unavailable,
        Self::DeadlineExceeded,
        Self::Aborted,
        Self::Internal,
    ];

    /// The table of section 5.4 (as of 1.0.1), and of 9.5 for what JSON-RPC itself defines. Our own codes begin at
    /// −32050, clear of those that the protocol has taken.
    #[rustfmt::skip]
    pub const fn wire(self) -> Wire {
        use Code::{Aborted, DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, NotFound, PermissionDenied};
        use Code::{ResourceExhausted, Unauthenticated, Unavailable, Unimplemented};
        const UNSUPPORTED: &str = "This operation is not supported";
        let (reason, json_rpc, grpc, http, sentence) = match self {
            //                                       reason                                  JSON-RPC  gRPC             HTTP
            Self::TaskNotFound                   => ("TASK_NOT_FOUND",                         -32001, NotFound,           404, "Task not found"),
            Self::TaskNotCancelable              => ("TASK_NOT_CANCELABLE",                    -32002, FailedPrecondition, 400, "Task cannot be canceled"),
            Self::PushNotificationNotSupported   => ("PUSH_NOTIFICATION_NOT_SUPPORTED",        -32003, FailedPrecondition, 400, "Push Notification is not supported"),
            Self::UnsupportedOperation
            | Self::TaskEnded
            | Self::StreamingNotSupported
            | Self::ExtendedCardNotSupported     => ("UNSUPPORTED_OPERATION",                  -32004, FailedPrecondition, 400, UNSUPPORTED),
            Self::ContentTypeNotSupported        => ("CONTENT_TYPE_NOT_SUPPORTED",             -32005, InvalidArgument,    400, "Incompatible content types"),
            Self::InvalidAgentResponse           => ("INVALID_AGENT_RESPONSE",                 -32006, Internal,           500, "Invalid agent response type"),
            Self::ExtendedAgentCardNotConfigured => ("EXTENDED_AGENT_CARD_NOT_CONFIGURED",     -32007, FailedPrecondition, 400, "Extended agent card not configured"),
            Self::ExtensionSupportRequired       => ("EXTENSION_SUPPORT_REQUIRED",             -32008, FailedPrecondition, 400, "Extension support required"),
            Self::VersionNotSupported            => ("VERSION_NOT_SUPPORTED",                  -32009, FailedPrecondition, 400, "This version is not supported"),
            Self::Parse                          => ("PARSE_ERROR",                            -32700, InvalidArgument,    400, "Invalid JSON payload"),
            Self::InvalidRequest                 => ("INVALID_REQUEST",                        -32600, InvalidArgument,    400, "Request payload validation error"),
            Self::MethodNotFound                 => ("METHOD_NOT_FOUND",                       -32601, Unimplemented,      404, "Method not found"),
            Self::InvalidParams                  => ("INVALID_PARAMS",                         -32602, InvalidArgument,    400, "Invalid parameters"),
            Self::TooLarge                       => ("PAYLOAD_TOO_LARGE",                      -32600, ResourceExhausted,  413, "Request payload too large"),
            Self::Unauthenticated                => ("UNAUTHENTICATED",                        -32050, Unauthenticated,    401, "Authentication required"),
            Self::PermissionDenied               => ("PERMISSION_DENIED",                      -32051, PermissionDenied,   403, "Permission denied"),
            Self::ResourceExhausted              => ("RESOURCE_EXHAUSTED",                     -32052, ResourceExhausted,  429, "Limit reached"),
            Self::Unavailable                    => ("UNAVAILABLE",                            -32053, Unavailable,        503, "Temporarily unavailable"),
            Self::DeadlineExceeded               => ("DEADLINE_EXCEEDED",                      -32054, DeadlineExceeded,   504, "Deadline exceeded"),
            Self::Aborted                        => ("ABORTED",                                -32055, Aborted,            409, "Conflict"),
            Self::Internal                       => ("INTERNAL_ERROR",                         -32603, Internal,           500, "Internal error"),
        };
        Wire { reason, json_rpc, grpc, http, sentence }
    }

    /// The kind of a reason that came over the wire.
    pub fn from_reason(reason: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.wire().reason == reason)
    }

    /// The kind of a JSON-RPC code that came over the wire.
    pub fn from_json_rpc(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.wire().json_rpc == code)
    }

    /// The kind that a gRPC code alone tells; tonic's own answers have no more.
    pub fn from_grpc(code: Code) -> Self {
        match code {
            Code::InvalidArgument | Code::OutOfRange => Self::InvalidParams,
            Code::NotFound => Self::TaskNotFound,
            Code::FailedPrecondition => Self::UnsupportedOperation,
            Code::Unimplemented => Self::MethodNotFound,
            Code::Unauthenticated => Self::Unauthenticated,
            Code::PermissionDenied => Self::PermissionDenied,
            Code::ResourceExhausted => Self::ResourceExhausted,
            Code::Unavailable | Code::Cancelled => Self::Unavailable,
            Code::DeadlineExceeded => Self::DeadlineExceeded,
            Code::Aborted | Code::AlreadyExists => Self::Aborted,
            Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => Self::Internal,
        }
    }

    /// The kind that an HTTP status alone tells.
    pub fn from_http(status: u16) -> Self {
        match status {
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 | 405 => Self::MethodNotFound,
            409 => Self::Aborted,
            413 => Self::TooLarge,
            429 => Self::ResourceExhausted,
            400..=499 => Self::InvalidParams,
            502 | 503 => Self::Unavailable,
            504 => Self::DeadlineExceeded,
            _ => Self::Internal,
        }
    }

    /// An error of this kind.
    pub fn error(self) -> Error {
        Error(Box::new(Inner {
            kind: self,
            detail: Cow::Borrowed(""),
            metadata: Vec::new(),
            violations: Vec::new(),
            retry_after: None,
            challenge: None,
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
    metadata: Vec<(&'static str, String)>,
    violations: Vec<Violation>,
    retry_after: Option<Duration>,
    /// `WWW-Authenticate`.
    challenge: Option<String>,
    /// For the log.
    cause: Option<Arc<dyn StdError + Send + Sync>>,
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
        let reasons: Vec<_> = violations.iter().map(|it| format!("{}: {}", it.field, it.description)).collect();
        let mut error = ErrorKind::InvalidParams.because(reasons.join("; "));
        error.0.violations = violations;
        error
    }

    /// One field that is wrong, and why: a sentence without its subject.
    pub fn invalid_field(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::invalid(vec![Violation { field: field.into(), description: description.into() }])
    }

    /// The server's fault. The cause goes to the log, under an id that the caller is given.
    pub fn internal(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        ErrorKind::Internal.error().hide(cause)
    }

    /// Puts a cause behind this error: into the log, once, under an id that the caller is given.
    #[must_use]
    pub fn hide(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let (id, cause) = (crate::seam::fresh_id(), cause.into());
        tracing::warn!(error.id = %id, error.kind = ?self.0.kind, error.cause = %chain(&*cause), "a call failed");
        let detail = &self.0.detail;
        let detail = if detail.is_empty() { format!("error id {id}") } else { format!("{detail} (error id {id})") };
        self.0.detail = detail.into();
        self.0.cause = Some(cause.into());
        self.with("errorId", id)
    }

    /// Adds to the metadata of `google.rpc.ErrorInfo`.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.0.metadata.push((name, value.into()));
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

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The codes of each binding.
    pub fn wire(&self) -> Wire {
        self.0.kind.wire()
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
        let of = |name| format!("type.googleapis.com/google.rpc.{name}");
        let mut info = json!({"@type": of("ErrorInfo"), "reason": self.wire().reason, "domain": DOMAIN});
        if !self.0.metadata.is_empty() {
            info["metadata"] = self.0.metadata.iter().map(|it| (it.0.to_owned(), Value::from(&*it.1))).collect();
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
        let Wire { http, .. } = self.wire();
        let (status, message, details) = (self.wire().status(), self.to_string(), self.details());
        json!({"error": {"code": http, "status": status, "message": message, "details": details}})
    }
}

impl Wire {
    /// The name of the gRPC code, as `google.rpc.Code` spells it.
    pub fn status(&self) -> &'static str {
        match self.grpc {
            Code::Ok => "OK",
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
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
        let Wire { reason, grpc, .. } = error.wire();
        let metadata: HashMap<_, _> = error.0.metadata.iter().map(|it| (it.0.to_owned(), it.1.clone())).collect();
        let mut details = ErrorDetails::with_error_info(reason, DOMAIN, metadata);
        for it in error.violations() {
            details.add_bad_request_violation(&it.field, &it.description);
        }
        if let Some(after) = error.retry_after_seconds() {
            details.set_retry_info(Some(Duration::from_secs(after)));
        }
        let mut status = Self::with_error_details(grpc, error.to_string(), details);
        if let Some(challenge) = error.challenge_text().and_then(|it| MetadataValue::try_from(it).ok()) {
            status.metadata_mut().insert("www-authenticate", challenge);
        }
        status.set_source(Arc::new(error));
        status
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

    /// Section 5.4 of the specification in literals, and the rule for our own codes.
    #[test]
    fn the_table_is_that_of_the_specification() {
        let rows = [
            (ErrorKind::TaskNotFound, -32001, Code::NotFound, 404),
            (ErrorKind::TaskNotCancelable, -32002, Code::FailedPrecondition, 400),
            (ErrorKind::PushNotificationNotSupported, -32003, Code::FailedPrecondition, 400),
            (ErrorKind::UnsupportedOperation, -32004, Code::FailedPrecondition, 400),
            (ErrorKind::ContentTypeNotSupported, -32005, Code::InvalidArgument, 400),
            (ErrorKind::InvalidAgentResponse, -32006, Code::Internal, 500),
            (ErrorKind::ExtendedAgentCardNotConfigured, -32007, Code::FailedPrecondition, 400),
            (ErrorKind::ExtensionSupportRequired, -32008, Code::FailedPrecondition, 400),
            (ErrorKind::VersionNotSupported, -32009, Code::FailedPrecondition, 400),
        ];
        for (kind, json_rpc, grpc, http) in rows {
            let wire = kind.wire();
            assert_eq!((wire.json_rpc, wire.grpc, wire.http), (json_rpc, grpc, http), "{kind:?}");
            assert_eq!(ErrorKind::from_reason(wire.reason), Some(kind));
        }
        for kind in ErrorKind::ALL {
            let code = kind.wire().json_rpc;
            assert!(
                (-32009..=-32001).contains(&code) || (-32060..=-32050).contains(&code) || code <= -32600,
                "{kind:?}"
            );
        }
    }

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
