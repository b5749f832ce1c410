//! Errors as protocol 0.3 has them: its numbers by cause, its sentences, and the bodies that its readers look into.

use serde_json::{Value, json};
use tonic::{Code, Status};

use super::{Error, ErrorKind, Wire};
use crate::call::Version;

impl ErrorKind {
    /// The codes of each binding at a version.
    pub const fn wire_for(self, version: Version) -> Wire {
        match version {
            Version::V1_0 => self.wire(),
            Version::V0_3 => self.classic(),
        }
    }

    /// The table of 0.3, 8: what is not in it is as in 1.0. That version has numbers of JSON-RPC alone; the statuses of
    /// HTTP and gRPC are those of its first servers, which clients have learned to read. `FAILED_PRECONDITION` is a task
    /// that can't be canceled, and nothing else, since clients know it by that.
    #[rustfmt::skip]
    const fn classic(self) -> Wire {
        use Code::{FailedPrecondition, InvalidArgument, Unimplemented};
        let as_now = self.wire();
        let (reason, json_rpc, grpc, http, sentence) = match self {
            //                                       reason                      JSON-RPC  gRPC             HTTP
            Self::TaskNotCancelable              => (as_now.reason,               -32002, FailedPrecondition, 409, as_now.sentence),
            Self::PushNotificationNotSupported   => (as_now.reason,               -32003, Unimplemented,      400, as_now.sentence),
            Self::UnsupportedOperation
            | Self::StreamingNotSupported        => (as_now.reason,               -32004, Unimplemented,      400, as_now.sentence),
            // It has no number for this one (8.2), nor for a version.
            Self::ExtensionSupportRequired       => ("UNSUPPORTED_OPERATION",     -32004, Unimplemented,      400, "This operation is not supported"),
            Self::VersionNotSupported            => ("INVALID_REQUEST",           -32600, InvalidArgument,    400, "Invalid JSON-RPC Request"),
            // An error (7.1) that 1.0 has made one of the operation, and that was one of the parameters.
            Self::TaskEnded                      => ("INVALID_PARAMS",            -32602, InvalidArgument,    400, "Invalid method parameters"),
            Self::ContentTypeNotSupported        => (as_now.reason,               -32005, InvalidArgument,    415, as_now.sentence),
            Self::ExtendedCardNotSupported
            | Self::ExtendedAgentCardNotConfigured => ("EXTENDED_AGENT_CARD_NOT_CONFIGURED",
                                                                                  -32007, Unimplemented,      404, "Authenticated Extended Card not configured"),
            Self::InvalidRequest                 => (as_now.reason,               -32600, as_now.grpc,        400, "Invalid JSON-RPC Request"),
            Self::InvalidParams                  => (as_now.reason,               -32602, as_now.grpc,        400, "Invalid method parameters"),
            Self::Internal                       => (as_now.reason,               -32603, as_now.grpc,        500, "Internal server error"),
            Self::TaskNotFound | Self::InvalidAgentResponse | Self::Parse | Self::MethodNotFound | Self::VerbNotAllowed
            | Self::TooLarge | Self::Unauthenticated | Self::PermissionDenied | Self::ForeignOrigin
            | Self::Misdirected | Self::ResourceExhausted
            | Self::Unavailable | Self::DeadlineExceeded | Self::RequestTimeout | Self::Aborted | Self::IdempotencyConflict => return as_now,
        };
        Wire { reason, json_rpc, grpc, http, sentence }
    }

    /// What 0.3 calls an error of this kind, which is how some of its clients know it (0.3, 8.1 and 8.2).
    pub const fn classic_name(self) -> &'static str {
        match self.classic().json_rpc {
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
            // Our own, which it leaves to servers (8.1).
            _ => "ServerError",
        }
    }
}

impl Error {
    /// The codes of each binding at a version.
    pub fn wire_for(&self, version: Version) -> Wire {
        self.kind().wire_for(version)
    }

    /// What the caller reads, in the words of a version: its sentence, and the detail. Callers of 0.3 read nothing else, so
    /// that a limit is named in it.
    pub fn message_for(&self, version: Version) -> String {
        let mut message = self.wire_for(version).sentence.to_owned();
        // A limit that is no setting is a number, which the detail has.
        let limit = self.metadata("limit").filter(|it| it.starts_with(|c: char| c.is_ascii_alphabetic()));
        if let Some(limit) = limit.filter(|_| version == Version::V0_3) {
            message.extend([" (limit ", limit, ")"]);
        }
        if !self.0.detail.is_empty() {
            message.extend([": ", &self.0.detail]);
        }
        message
    }

    /// The body of an error of HTTP+JSON at a version.
    ///
    /// 0.3 asks for JSON and says no more (0.3, 3.2.3), and its clients look in three places: into an object `error`, for
    /// a number `code`, and for a `type`. This has all three, and in `error` a member of the type's name for those who
    /// take it for text and look into that.
    pub fn problem_for(&self, version: Version) -> Value {
        let wire = self.wire_for(version);
        let (message, details) = (self.message_for(version), self.details_for(version));
        let mut error = json!({"code": wire.http, "status": wire.status(), "message": message, "details": details});
        match version {
            Version::V1_0 => json!({"error": error}),
            Version::V0_3 => {
                let name = self.kind().classic_name();
                error[name] = true.into();
                json!({"error": error, "code": wire.json_rpc, "type": name, "message": message})
            }
        }
    }

    /// The status of gRPC at a version. The message of 0.3 begins with the name of the error: it is all that some of its
    /// clients look at.
    pub fn into_status(self, version: Version) -> Status {
        let message = self.message_for(version);
        match version {
            Version::V1_0 => self.status(version, message),
            Version::V0_3 => {
                let message = format!("{}: {message}", self.kind().classic_name());
                self.status(version, message)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_that_0_3_knows_and_our_own() {
        for kind in ErrorKind::ALL {
            let wire = kind.wire_for(Version::V0_3);
            let known = (-32007..=-32001).contains(&wire.json_rpc)
                || [-32700, -32600, -32601, -32602, -32603].contains(&wire.json_rpc);
            assert!(known || (-32060..=-32050).contains(&wire.json_rpc), "{kind:?}");
            assert_eq!(known, kind.classic_name() != "ServerError", "{kind:?}");
            let precondition = wire.grpc == Code::FailedPrecondition;
            let expected = matches!(kind, ErrorKind::TaskNotCancelable | ErrorKind::Misdirected);
            assert_eq!(precondition, expected, "{kind:?}");
            assert!((400..600).contains(&wire.http), "{kind:?}");
            assert_eq!(kind.wire_for(Version::V1_0), kind.wire());
        }
    }

    #[test]
    fn an_error_is_said_in_the_words_of_its_reader() {
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
        assert_eq!(Error::from(status).kind(), ErrorKind::TaskEnded, "in process, nothing of it is lost");
        let error = ErrorKind::ResourceExhausted.because("2 turns run").with("limit", "turns");
        assert_eq!(error.message_for(Version::V0_3), "Limit reached (limit turns): 2 turns run");
        assert_eq!(error.message_for(Version::V1_0), "Limit reached: 2 turns run");
    }
}
