//! Errors in protocol 0.3: codes, messages, HTTP+JSON error bodies and gRPC statuses.

use serde_json::{Value, json};
use tonic::{Code, Status};

use super::{Error, ErrorKind, Wire};
use crate::protocol::version::Version;

/// Names of methods in 1.0 and 0.3, as far as errors name them.
const METHODS: [(&str, &str); 5] = [
    ("SendMessage", "message/send"),
    ("SendStreamingMessage", "message/stream"),
    ("GetTask", "tasks/get"),
    ("CancelTask", "tasks/cancel"),
    ("SubscribeToTask", "tasks/resubscribe"),
];

impl ErrorKind {
    /// Codes of this kind in each binding at a protocol version.
    pub const fn wire_for(self, version: Version) -> Wire {
        match version {
            Version::V1_0 => self.wire(),
            Version::V0_3 => self.wire_v03(),
        }
    }

    /// Error codes of 0.3 (0.3, 8). Kinds without an entry have the codes of 1.0. The specification defines only JSON-RPC
    /// codes; the HTTP and gRPC statuses are those of the first servers, on which clients rely. `FAILED_PRECONDITION` is
    /// reserved for tasks that can't be canceled, because clients identify that error by it.
    #[rustfmt::skip]
    const fn wire_v03(self) -> Wire {
        use Code::{FailedPrecondition, InvalidArgument, Unimplemented};
        let current = self.wire();
        let (reason, json_rpc, grpc, http, sentence) = match self {
            //                                       reason                      JSON-RPC  gRPC             HTTP
            Self::TaskNotCancelable              => (current.reason,               -32002, FailedPrecondition, 409, current.sentence),
            Self::PushNotificationNotSupported   => (current.reason,               -32003, Unimplemented,      400, current.sentence),
            Self::UnsupportedOperation
            | Self::StreamingNotSupported        => (current.reason,               -32004, Unimplemented,      400, current.sentence),
            // 0.3 has no code for required extensions (8.2), nor for versions.
            Self::ExtensionSupportRequired       => ("UNSUPPORTED_OPERATION",     -32004, Unimplemented,      400, "This operation is not supported"),
            Self::VersionNotSupported            => ("INVALID_REQUEST",           -32600, InvalidArgument,    400, "Invalid JSON-RPC Request"),
            // An error of the parameters in 0.3 (7.1), and of the operation in 1.0.
            Self::TaskEnded                      => ("INVALID_PARAMS",            -32602, InvalidArgument,    400, "Invalid method parameters"),
            Self::ContentTypeNotSupported        => (current.reason,               -32005, InvalidArgument,    415, current.sentence),
            Self::ExtendedCardNotSupported
            | Self::ExtendedAgentCardNotConfigured => ("EXTENDED_AGENT_CARD_NOT_CONFIGURED",
                                                                                  -32007, Unimplemented,      404, "Authenticated Extended Card not configured"),
            Self::InvalidRequest                 => (current.reason,               -32600, current.grpc,        400, "Invalid JSON-RPC Request"),
            Self::InvalidParams                  => (current.reason,               -32602, current.grpc,        400, "Invalid method parameters"),
            Self::Internal                       => (current.reason,               -32603, current.grpc,        500, "Internal server error"),
            Self::TaskNotFound | Self::InvalidAgentResponse | Self::Parse | Self::MethodNotFound | Self::VerbNotAllowed
            | Self::TooLarge | Self::Unauthenticated | Self::PermissionDenied | Self::ForeignOrigin
            | Self::Misdirected | Self::ResourceExhausted
            | Self::Unavailable | Self::DeadlineExceeded | Self::RequestTimeout | Self::Aborted | Self::IdempotencyConflict => return current,
        };
        Wire { reason, json_rpc, grpc, http, sentence }
    }

    /// Name of the error in 0.3, by which some clients identify it (0.3, 8.1 and 8.2).
    pub const fn v03_name(self) -> &'static str {
        match self.wire_v03().json_rpc {
            -32001 => "TaskNotFoundError",
            -32002 => "TaskNotCancelableError",
            -32003 => "PushNotificationNotSupportedError",
            -32004 => "UnsupportedOperationError",
            -32005 => "ContentTypeNotSupportedError",
            -32006 => "InvalidAgentResponseError",
            -32007 => "AuthenticatedExtendedCardNotConfiguredError",
            -32700 => "JSONParseError",
            -32600 => "InvalidRequestError",
            -32601 => "MethodNotFoundError",
            -32602 => "InvalidParamsError",
            -32603 => "InternalError",
            // Server-defined codes (8.1).
            _ => "ServerError",
        }
    }
}

impl Error {
    /// Codes of this error in each binding at a protocol version.
    pub fn wire_for(&self, version: Version) -> Wire {
        self.kind().wire_for(version)
    }

    /// Message for the caller: the sentence that the protocol version defines, and the detail. In 0.3 it also names the
    /// limit, because JSON-RPC errors have no other details there, and methods and states have their names of 0.3.
    pub fn message_for(&self, version: Version) -> String {
        let mut message = self.wire_for(version).sentence.to_owned();
        // A limit without a setting is a number, which the detail contains.
        let limit = self.metadata("limit").filter(|limit| limit.starts_with(|c: char| c.is_ascii_alphabetic()));
        if let Some(limit) = limit.filter(|_| version == Version::V0_3) {
            message.extend([" (limit ", limit, ")"]);
        }
        if !self.0.detail.is_empty() {
            message.push_str(": ");
            match (version, self.kind()) {
                // Their details are what the client has sent.
                (Version::V0_3, ErrorKind::TaskNotFound | ErrorKind::MethodNotFound | ErrorKind::VerbNotAllowed)
                | (Version::V1_0, _) => message.push_str(&self.0.detail),
                (Version::V0_3, _) => message.push_str(&with_v03_names(&self.0.detail)),
            }
        }
        message
    }

    /// Body of an HTTP+JSON error at a protocol version.
    ///
    /// 0.3 defines no format (0.3, 3.2.3), and its clients read different members: the object `error`, the number `code`, or
    /// `type`. The body has all three. `error` also has a member with the name of the type, for clients that search its text.
    pub fn problem_for(&self, version: Version) -> Value {
        let wire = self.wire_for(version);
        let (message, details) = (self.message_for(version), self.details_for(version));
        let mut error = json!({"code": wire.http, "status": wire.status(), "message": message, "details": details});
        match version {
            Version::V1_0 => json!({"error": error}),
            Version::V0_3 => {
                let name = self.kind().v03_name();
                error[name] = true.into();
                json!({"error": error, "code": wire.json_rpc, "type": name, "message": message})
            }
        }
    }

    /// gRPC status at a protocol version. In 0.3 the message begins with the name of the error, by which some clients
    /// identify it.
    pub fn into_status(self, version: Version) -> Status {
        let message = self.message_for(version);
        let message = match version {
            Version::V1_0 => message,
            Version::V0_3 => format!("{}: {message}", self.kind().v03_name()),
        };
        self.status(version, message)
    }
}

/// Replaces the names of methods and states by those of 0.3 (0.3, 6.3 and 7).
fn with_v03_names(detail: &str) -> String {
    let is_delimiter = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let renamed = detail.split_inclusive(is_delimiter).map(|piece| {
        let word = piece.trim_end_matches(is_delimiter);
        let method = METHODS.iter().find(|(name, _)| *name == word).map(|(_, method)| (*method).to_owned());
        let state = || {
            Some(
                word.strip_prefix("TASK_STATE_")?
                    .replace("UNSPECIFIED", "unknown")
                    .to_ascii_lowercase()
                    .replace('_', "-"),
            )
        };
        method.or_else(state).unwrap_or_else(|| word.to_owned()) + &piece[word.len()..]
    });
    renamed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v03_codes_are_standard_or_server_defined() {
        for kind in ErrorKind::ALL {
            let wire = kind.wire_for(Version::V0_3);
            let known = (-32007..=-32001).contains(&wire.json_rpc)
                || [-32700, -32600, -32601, -32602, -32603].contains(&wire.json_rpc);
            assert!(known || (-32060..=-32050).contains(&wire.json_rpc), "{kind:?}");
            assert_eq!(known, kind.v03_name() != "ServerError", "{kind:?}");
            let precondition = wire.grpc == Code::FailedPrecondition;
            let expected = matches!(kind, ErrorKind::TaskNotCancelable | ErrorKind::Misdirected);
            assert_eq!(precondition, expected, "{kind:?}");
            assert!((400..600).contains(&wire.http), "{kind:?}");
            assert_eq!(kind.wire_for(Version::V1_0), kind.wire());
        }
    }

    #[test]
    fn error_has_the_message_and_codes_of_the_version() {
        let error = ErrorKind::TaskEnded.because("task t-1 has ended");
        assert_eq!(error.message_for(Version::V1_0), error.to_string());
        assert_eq!(error.problem_for(Version::V1_0), error.problem());
        assert_eq!(error.message_for(Version::V0_3), "Invalid method parameters: task t-1 has ended");
        let problem = error.problem_for(Version::V0_3);
        assert_eq!((&problem["code"], &problem["type"]), (&json!(-32602), &json!("InvalidParamsError")));
        assert_eq!((&problem["error"]["code"], &problem["error"]["status"]), (&json!(400), &json!("INVALID_ARGUMENT")));
        assert_eq!(problem["error"]["InvalidParamsError"], true);
        assert_eq!(problem["error"]["details"][0]["reason"], "INVALID_PARAMS");
        let status = error.into_status(Version::V0_3);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "InvalidParamsError: Invalid method parameters: task t-1 has ended");
        assert_eq!(Error::from(status).kind(), ErrorKind::TaskEnded, "in process the kind is preserved");
        let error = ErrorKind::ResourceExhausted.because("2 running turns").with("limit", "turns");
        assert_eq!(error.message_for(Version::V0_3), "Limit reached (limit turns): 2 running turns");
        assert_eq!(error.message_for(Version::V1_0), "Limit reached: 2 running turns");
    }

    #[test]
    fn methods_and_states_have_the_names_of_the_version() {
        for (detail, expected) in [
            ("task t is TASK_STATE_CANCELED", "task t is canceled"),
            ("is TASK_STATE_UNSPECIFIED", "is unknown"),
            ("ü TASK_STATE_INPUT_REQUIRED, (TASK_STATE_FAILED).", "ü input-required, (failed)."),
            ("use SendMessage, or poll the task", "use message/send, or poll the task"),
            ("SendStreamingMessage/SubscribeToTask", "message/stream/tasks/resubscribe"),
            ("MY_TASK_STATE_FAILED SendMessages 'TASK_STATES'", "MY_TASK_STATE_FAILED SendMessages 'TASK_STATES'"),
        ] {
            let error = ErrorKind::TaskNotCancelable.because(detail);
            assert_eq!(error.message_for(Version::V1_0), format!("Task cannot be canceled: {detail}"));
            assert_eq!(error.message_for(Version::V0_3), format!("Task cannot be canceled: {expected}"));
        }
        for (name, method) in METHODS {
            let known = crate::protocol::v03::METHODS.iter().find(|(known, _)| *known == method).unwrap();
            assert_eq!(known.1.name(), name);
        }
        let unknown = Error::task_not_found("SendMessage");
        assert_eq!(unknown.message_for(Version::V0_3), "Task not found: SendMessage");
    }
}
