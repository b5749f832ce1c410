//! Error kinds, and the table of their reason, JSON-RPC code, gRPC code and HTTP status.

use tonic::Code;

/// Defines the error kinds, and the table of their reason, JSON-RPC code, gRPC code, HTTP status and first sentence.
macro_rules! kinds {
    ($(#[$attribute:meta])* pub enum $name:ident {
        $($(#[$doc:meta])* $kind:ident => $reason:literal $json_rpc:literal $grpc:ident $http:literal $sentence:literal;)*
    }) => {
        $(#[$attribute])*
        pub enum $name { $($(#[$doc])* $kind,)* }

        impl $name {
            /// All kinds.
            pub const ALL: [Self; [$(stringify!($kind)),*].len()] = [$(Self::$kind),*];

            /// Codes of this kind at protocol 1.0: section 5.4 (as of 1.0.1), and section 9.5 for the codes of JSON-RPC itself.
            /// Server-defined codes begin at −32050, outside the range that the protocol uses.
            pub const fn wire(self) -> Wire {
                let (reason, json_rpc, grpc, http, sentence) = match self {
                    $(Self::$kind => ($reason, $json_rpc, Code::$grpc, $http, $sentence),)*
                };
                Wire { reason, json_rpc, grpc, http, sentence }
            }
        }
    };
}

kinds! {
    /// Kind of an error. Some kinds share a reason on the wire. The comments of the kinds are the source of `docs/errors.md`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ErrorKind {
        /// The task does not exist, or the caller has no access to it.
        TaskNotFound => "TASK_NOT_FOUND" -32001 NotFound 404 "Task not found";
        /// The task is in a terminal state other than `TASK_STATE_CANCELED`.
        TaskNotCancelable => "TASK_NOT_CANCELABLE" -32002 FailedPrecondition 400 "Task cannot be canceled";
        /// The agent does not offer push notifications.
        PushNotificationNotSupported => "PUSH_NOTIFICATION_NOT_SUPPORTED" -32003 FailedPrecondition 400 "Push Notification is not supported";
        /// The agent does not support the operation.
        UnsupportedOperation => "UNSUPPORTED_OPERATION" -32004 FailedPrecondition 400 "This operation is not supported";
        /// The task is in a terminal state: it accepts no messages and has no stream.
        TaskEnded => "UNSUPPORTED_OPERATION" -32004 FailedPrecondition 400 "This operation is not supported";
        /// The agent does not offer streaming.
        StreamingNotSupported => "UNSUPPORTED_OPERATION" -32004 FailedPrecondition 400 "This operation is not supported";
        /// The agent has no extended card for authenticated callers.
        ExtendedCardNotSupported => "UNSUPPORTED_OPERATION" -32004 FailedPrecondition 400 "This operation is not supported";
        /// The agent does not accept or produce the media type.
        ContentTypeNotSupported => "CONTENT_TYPE_NOT_SUPPORTED" -32005 InvalidArgument 400 "Incompatible content types";
        /// The agent returned a response that violates the protocol.
        InvalidAgentResponse => "INVALID_AGENT_RESPONSE" -32006 Internal 500 "Invalid agent response type";
        /// The agent card declares an extended card, but none is configured.
        ExtendedAgentCardNotConfigured => "EXTENDED_AGENT_CARD_NOT_CONFIGURED" -32007 FailedPrecondition 400 "Extended agent card not configured";
        /// The caller does not request an extension that the agent requires.
        ExtensionSupportRequired => "EXTENSION_SUPPORT_REQUIRED" -32008 FailedPrecondition 400 "Extension support required";
        /// The server does not serve the requested protocol version.
        VersionNotSupported => "VERSION_NOT_SUPPORTED" -32009 FailedPrecondition 400 "This version is not supported";
        /// The body is not valid JSON.
        Parse => "PARSE_ERROR" -32700 InvalidArgument 400 "Invalid JSON payload";
        /// The body is valid JSON but not a JSON-RPC request.
        InvalidRequest => "INVALID_REQUEST" -32600 InvalidArgument 400 "Request payload validation error";
        /// The method or path does not exist.
        MethodNotFound => "METHOD_NOT_FOUND" -32601 Unimplemented 404 "Method not found";
        /// The path exists, but does not support this HTTP method.
        VerbNotAllowed => "METHOD_NOT_ALLOWED" -32600 Unimplemented 405 "Method not allowed";
        /// A parameter is missing or malformed.
        InvalidParams => "INVALID_PARAMS" -32602 InvalidArgument 400 "Invalid parameters";
        /// The request body exceeds the size limit.
        TooLarge => "PAYLOAD_TOO_LARGE" -32600 ResourceExhausted 413 "Request payload too large";
        /// Credentials are missing or invalid.
        Unauthenticated => "UNAUTHENTICATED" -32050 Unauthenticated 401 "Authentication required";
        /// The caller is authenticated but not authorized.
        PermissionDenied => "PERMISSION_DENIED" -32051 PermissionDenied 403 "Permission denied";
        /// The request comes from a web page of an origin that is not in `cors_origins`.
        ForeignOrigin => "ORIGIN_NOT_ALLOWED" -32058 PermissionDenied 403 "Origin not allowed";
        /// The request is for a host that is neither a name of this server nor in `allowed_hosts`.
        Misdirected => "MISDIRECTED_REQUEST" -32059 FailedPrecondition 421 "Misdirected request";
        /// A limit is reached. Retry later or request less.
        ResourceExhausted => "RESOURCE_EXHAUSTED" -32052 ResourceExhausted 429 "Limit reached";
        /// The server is temporarily unable to process the call. A retry may succeed.
        Unavailable => "UNAVAILABLE" -32053 Unavailable 503 "Unavailable";
        /// The deadline of the call has passed.
        DeadlineExceeded => "DEADLINE_EXCEEDED" -32054 DeadlineExceeded 504 "Deadline exceeded";
        // Not UNAVAILABLE, because gRPC clients would immediately retry a body that is too slow.
        /// The request body was not received in time.
        RequestTimeout => "REQUEST_TIMEOUT" -32057 DeadlineExceeded 408 "Request received too slowly";
        /// The resource was modified concurrently.
        Aborted => "ABORTED" -32055 Aborted 409 "Conflict";
        /// The idempotency key was used for another message.
        IdempotencyConflict => "IDEMPOTENCY_CONFLICT" -32056 AlreadyExists 409 "Idempotency-Key is in use";
        /// The server failed. The cause is in its log, under the `errorId` of the error.
        Internal => "INTERNAL_ERROR" -32603 Internal 500 "Internal error";
    }
}

/// Codes of an error kind in each binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// `google.rpc.ErrorInfo.reason`.
    pub reason: &'static str,
    /// `code` of the JSON-RPC error.
    pub json_rpc: i32,
    /// `grpc-status`.
    pub grpc: Code,
    /// HTTP status of HTTP+JSON.
    pub http: u16,
    /// First words of every message of this kind.
    pub sentence: &'static str,
}

impl ErrorKind {
    /// Returns the first kind with this reason.
    pub fn from_reason(reason: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.wire().reason == reason)
    }

    /// Returns the first kind with this JSON-RPC code.
    pub fn from_json_rpc(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.wire().json_rpc == code)
    }

    /// Returns the kind for a gRPC code without details, as in statuses of tonic.
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

    /// Returns the kind for an HTTP status without details.
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
    /// Name of the gRPC code in `google.rpc.Code`.
    pub fn status(&self) -> &'static str {
        code_name(self.grpc)
    }
}

/// Names of the gRPC codes, in the order of their numbers.
const CODES: &str = "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED \
                     RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE \
                     DATA_LOSS UNAUTHENTICATED";

/// Returns the name of a gRPC code in `google.rpc.Code`.
pub(crate) fn code_name(code: Code) -> &'static str {
    let number = usize::try_from(i32::from(code)).unwrap_or(usize::MAX);
    CODES.split(' ').nth(number).unwrap_or("UNKNOWN")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Literals from section 5.4, and the range of server-defined codes.
    #[test]
    fn codes_match_the_specification() {
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
