//! What can go wrong, and the table that says how each binding puts it on the wire.

use tonic::Code;

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
    /// The path is one of ours, and not for this verb.
    VerbNotAllowed,
    /// A parameter is missing or malformed.
    InvalidParams,
    /// The body is larger than is taken.
    TooLarge,
    /// Nobody is known by the credentials, or there are none.
    Unauthenticated,
    /// The caller is known, and may not.
    PermissionDenied,
    /// The request comes from a web page of an origin that is not in `cors.origins`.
    ForeignOrigin,
    /// The request is for a host that is not a name of this server, nor in `allowed_hosts`.
    Misdirected,
    /// A limit is reached: try later, or ask for less.
    ResourceExhausted,
    /// The server can't do it now. The same call may succeed later.
    Unavailable,
    /// The caller's time is over.
    DeadlineExceeded,
    /// The body of the request was not received in time.
    RequestTimeout,
    /// Somebody else was there first.
    Aborted,
    /// Another message has been sent under the same key.
    IdempotencyConflict,
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
    pub const ALL: [Self; 29] = [
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
        Self::VerbNotAllowed,
        Self::InvalidParams,
        Self::TooLarge,
        Self::Unauthenticated,
        Self::PermissionDenied,
        Self::ForeignOrigin,
        Self::Misdirected,
        Self::ResourceExhausted,
        Self::Unavailable,
        Self::DeadlineExceeded,
        Self::RequestTimeout,
        Self::Aborted,
        Self::IdempotencyConflict,
        Self::Internal,
    ];

    /// The table of section 5.4 (as of 1.0.1), and of 9.5 for what JSON-RPC itself defines. Our own codes begin at
    /// −32050, clear of those that the protocol has taken.
    #[rustfmt::skip]
    pub const fn wire(self) -> Wire {
        use Code::{Aborted, AlreadyExists, DeadlineExceeded, FailedPrecondition, Internal, InvalidArgument, NotFound, PermissionDenied};
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
            Self::VerbNotAllowed                 => ("METHOD_NOT_ALLOWED",                     -32600, Unimplemented,      405, "Method not allowed"),
            Self::InvalidParams                  => ("INVALID_PARAMS",                         -32602, InvalidArgument,    400, "Invalid parameters"),
            Self::TooLarge                       => ("PAYLOAD_TOO_LARGE",                      -32600, ResourceExhausted,  413, "Request payload too large"),
            Self::Unauthenticated                => ("UNAUTHENTICATED",                        -32050, Unauthenticated,    401, "Authentication required"),
            Self::PermissionDenied               => ("PERMISSION_DENIED",                      -32051, PermissionDenied,   403, "Permission denied"),
            Self::ForeignOrigin                  => ("ORIGIN_NOT_ALLOWED",                     -32058, PermissionDenied,   403, "Origin not allowed"),
            Self::Misdirected                    => ("MISDIRECTED_REQUEST",                    -32059, FailedPrecondition, 421, "Misdirected request"),
            Self::ResourceExhausted              => ("RESOURCE_EXHAUSTED",                     -32052, ResourceExhausted,  429, "Limit reached"),
            Self::Unavailable                    => ("UNAVAILABLE",                            -32053, Unavailable,        503, "Temporarily unavailable"),
            Self::DeadlineExceeded               => ("DEADLINE_EXCEEDED",                      -32054, DeadlineExceeded,   504, "Deadline exceeded"),
            // Of gRPC's codes, UNAVAILABLE would make clients send a body that is too slow at once again.
            Self::RequestTimeout                 => ("REQUEST_TIMEOUT",                        -32057, DeadlineExceeded,   408, "Request received too slowly"),
            Self::Aborted                        => ("ABORTED",                                -32055, Aborted,            409, "Conflict"),
            Self::IdempotencyConflict            => ("IDEMPOTENCY_CONFLICT",                   -32056, AlreadyExists,      409, "Idempotency-Key is in use"),
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
            408 => Self::RequestTimeout,
            409 => Self::Aborted,
            413 => Self::TooLarge,
            421 => Self::Misdirected,
            429 => Self::ResourceExhausted,
            400..=499 => Self::InvalidParams,
            502 | 503 => Self::Unavailable,
            504 => Self::DeadlineExceeded,
            _ => Self::Internal,
        }
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
}
