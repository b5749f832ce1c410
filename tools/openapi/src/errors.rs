//! Errors of HTTP+JSON: the schema of their body, and a response for each HTTP status with an example of each kind.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use utoipa::openapi::{
    Components, ContentBuilder, Ref, RefOr, Response, ResponseBuilder, Type,
    example::ExampleBuilder,
    header::HeaderBuilder,
    schema::{AdditionalProperties, ArrayBuilder, Discriminator, ObjectBuilder, OneOfBuilder, Schema},
};

use a2a_service::{
    error::{Error, ErrorKind},
    protocol::Version,
};

/// RPCs that send a message. Names of 0.3 follow those of 1.0, where they differ.
const SENDS: [&str; 2] = ["SendMessage", "SendStreamingMessage"];

const SUBSCRIBE: [&str; 2] = ["SubscribeToTask", "TaskSubscription"];

const PUSH: [&str; 5] = [
    "CreateTaskPushNotificationConfig",
    "DeleteTaskPushNotificationConfig",
    "GetTaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs",
    "ListTaskPushNotificationConfig",
];

const EXTENDED_CARD: [&str; 2] = ["GetExtendedAgentCard", "GetAgentCard"];

/// Kinds that only some RPCs have, with the names of those RPCs. The other kinds are general.
const SPECIFIC: [(ErrorKind, &[&[&str]]); 9] = [
    (ErrorKind::TaskNotFound, &[&SENDS, &SUBSCRIBE, &PUSH, &["GetTask", "CancelTask"]]),
    (ErrorKind::TaskNotCancelable, &[&["CancelTask"]]),
    (ErrorKind::PushNotificationNotSupported, &[&SENDS, &PUSH]),
    (ErrorKind::TaskEnded, &[&SENDS, &SUBSCRIBE]),
    (ErrorKind::StreamingNotSupported, &[&["SendStreamingMessage"], &SUBSCRIBE]),
    (ErrorKind::ExtendedCardNotSupported, &[&EXTENDED_CARD]),
    (ErrorKind::ExtendedAgentCardNotConfigured, &[&EXTENDED_CARD]),
    (ErrorKind::IdempotencyConflict, &[&SENDS]),
    (
        ErrorKind::Aborted,
        &[&SENDS, &["CancelTask", "CreateTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"]],
    ),
];

/// Kinds of requests with a body.
const OF_BODY: [ErrorKind; 2] = [ErrorKind::ContentTypeNotSupported, ErrorKind::Parse];

/// Kinds of the public agent card, which is no RPC.
const OF_PUBLIC_CARD: [ErrorKind; 6] = [
    ErrorKind::ForeignOrigin,
    ErrorKind::InvalidRequest,
    ErrorKind::Misdirected,
    ErrorKind::ResourceExhausted,
    ErrorKind::Unauthenticated,
    ErrorKind::VersionNotSupported,
];

/// Returns the kinds of the errors that an RPC can have, given its name in 1.0 or 0.3.
pub(super) fn kinds_of(rpc: &str) -> impl Iterator<Item = ErrorKind> {
    ErrorKind::ALL.into_iter().filter(move |kind| {
        let row = SPECIFIC.iter().find(|row| row.0 == *kind);
        // A path that does not support the HTTP method is no operation.
        row.is_none_or(|(_, rpcs)| rpcs.iter().any(|names| names.contains(&rpc))) && *kind != ErrorKind::VerbNotAllowed
    })
}

/// Name of the schema of an error body.
const BODY: &str = "ErrorResponse";

/// Type URLs of the details, and their schemas.
const DETAILS: [(&str, &str); 3] = [
    ("type.googleapis.com/google.rpc.ErrorInfo", "ErrorInfo"),
    ("type.googleapis.com/google.rpc.BadRequest", "BadRequest"),
    ("type.googleapis.com/google.rpc.RetryInfo", "RetryInfo"),
];

/// Error responses of the operations of a document.
pub(super) struct ErrorResponses {
    version: Version,
    /// Responses by their names in the components.
    responses: BTreeMap<String, Response>,
}

impl ErrorResponses {
    pub(super) fn new(version: Version) -> Self {
        Self { version, responses: BTreeMap::new() }
    }

    /// Returns the error responses of an operation of an RPC: HTTP status, and a reference to the response.
    pub(super) fn of_rpc(&mut self, rpc: &str, has_body: bool) -> Vec<(String, Ref)> {
        let kinds: Vec<_> = kinds_of(rpc).filter(|kind| has_body || !OF_BODY.contains(kind)).collect();
        self.add(rpc, &kinds)
    }

    /// Returns the error responses of the public agent card.
    pub(super) fn of_public_card(&mut self) -> Vec<(String, Ref)> {
        self.add("GetPublicAgentCard", &OF_PUBLIC_CARD)
    }

    /// Adds the responses of an operation. Statuses with general kinds only have a response that operations share.
    fn add(&mut self, operation: &str, kinds: &[ErrorKind]) -> Vec<(String, Ref)> {
        let version = self.version;
        let general: Vec<_> = kinds_of("").collect();
        let (all, general) = (statuses(kinds, version), statuses(&general, version));
        let references = all.into_iter().map(|(status, kinds)| {
            let is_general = general.get(&status) == Some(&kinds);
            let name = if is_general { format!("Error{status}") } else { format!("{operation}Error{status}") };
            self.responses.entry(name.clone()).or_insert_with(|| response(status, &kinds, version));
            (status.to_string(), Ref::from_response_name(name))
        });
        references.collect()
    }

    /// Adds the responses with their schemas and examples to the components of the document.
    pub(super) fn add_to(self, components: &mut Components) {
        let Self { version, responses } = self;
        components.responses.extend(responses.into_iter().map(|(name, response)| (name, response.into())));
        for kind in ErrorKind::ALL.into_iter().filter(|kind| *kind != ErrorKind::VerbNotAllowed) {
            let example = ExampleBuilder::new().value(Some(problem(kind, version)));
            components.examples.insert(format!("{kind:?}"), example.build().into());
        }
        add_schemas(components, version);
    }
}

/// Returns the HTTP statuses of kinds, with the kinds of each.
fn statuses(kinds: &[ErrorKind], version: Version) -> BTreeMap<u16, Vec<ErrorKind>> {
    let mut statuses: BTreeMap<u16, Vec<ErrorKind>> = BTreeMap::new();
    for kind in kinds {
        statuses.entry(kind.wire_for(version).http).or_default().push(*kind);
    }
    statuses
}

/// Creates the schema of a text.
fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

/// Adds a required member to an object schema.
fn named(object: ObjectBuilder, name: &str, value: ObjectBuilder, description: &str) -> ObjectBuilder {
    object.property(name, value.description(Some(description))).required(name)
}

/// Adds the schemas of error details, and `ErrorDetails` for the list of them.
pub(super) fn add_detail_schemas(schemas: &mut BTreeMap<String, RefOr<Schema>>, version: Version) {
    let schema = |name: &str| Ref::from_schema_name(name);
    let of_type = |name: &str| {
        let url = DETAILS.iter().find(|row| row.1 == name).map(|row| row.0);
        ObjectBuilder::new().property("@type", text().enum_values(Some(url))).required("@type")
    };

    let info = of_type("ErrorInfo").description(Some("Kind of an error, which identifies it in every binding."));
    let reasons: Vec<_> = ErrorKind::ALL.iter().map(|kind| kind.wire_for(version).reason).collect();
    let info = named(
        info,
        "reason",
        text().examples(reasons.first().copied()),
        "Kind of the error, such as `TASK_NOT_FOUND`.",
    );
    let info = named(info, "domain", text(), "Origin of the reason: `a2a-protocol.org`.");
    let metadata = ObjectBuilder::new().additional_properties(Some(text()));
    let info = info
        .property("metadata", metadata.description(Some("Details, such as `taskId` or the `limit` that was reached.")));

    let violation = ObjectBuilder::new().description(Some("Invalid field of a request."));
    let violation =
        named(violation, "field", text(), "Path of the field in JSON, such as `message.parts[0].mediaType`.");
    let violation = named(violation, "description", text(), "Problem with the field.");
    let violations = ArrayBuilder::new().items(schema("FieldViolation"));
    let bad_request = of_type("BadRequest").description(Some("Invalid fields of a request."));
    let bad_request = bad_request.property("fieldViolations", violations).required("fieldViolations");

    let retry = of_type("RetryInfo").description(Some("Delay after which a retry may succeed."));
    let retry = named(retry, "retryDelay", text(), "Delay in seconds, such as `2s`.");

    let detail = DETAILS.iter().fold(OneOfBuilder::new(), |detail, row| detail.item(schema(row.1)));
    let mapping = DETAILS.map(|(url, name)| (url, format!("#/components/schemas/{name}")));
    let detail = detail.discriminator(Some(Discriminator::with_mapping("@type", mapping)));
    let detail = detail.description(Some("Detail of an error."));
    let details = ArrayBuilder::new().items(schema("ErrorDetail"));
    let details = details.description(Some("Details of an error. The first one is an `ErrorInfo`."));

    let mut insert = |name: &str, schema| drop(schemas.insert(name.to_owned(), schema));
    insert("ErrorInfo", info.into());
    insert("FieldViolation", violation.into());
    insert("BadRequest", bad_request.into());
    insert("RetryInfo", retry.into());
    insert("ErrorDetail", detail.into());
    insert("ErrorDetails", details.into());
}

/// Adds the schemas of the body of an error.
fn add_schemas(components: &mut Components, version: Version) {
    add_detail_schemas(&mut components.schemas, version);
    let number = || ObjectBuilder::new().schema_type(Type::Integer);
    let status = ObjectBuilder::new().description(Some("Error, as `google.rpc.Status`."));
    let status = named(status, "code", number(), "HTTP status.");
    let status = named(status, "status", text(), "Name of the gRPC code, such as `NOT_FOUND`.");
    let status = named(status, "message", text(), "Message for people.");
    let mut status = status.property("details", Ref::from_schema_name("ErrorDetails")).required("details");

    let mut body = ObjectBuilder::new().property("error", Ref::from_schema_name("ErrorStatus")).required("error");
    body = body.description(Some("Body of an error."));
    if version == Version::V0_3 {
        let extra = "A member with the name of the error, such as `TaskNotFoundError`, is true.";
        status = status.additional_properties(Some(AdditionalProperties::FreeForm(true)));
        status = status.description(Some(format!("Error, as `google.rpc.Status`. {extra}")));
        body = named(body, "code", number(), "JSON-RPC code of the error.");
        body = named(body, "type", text(), "Name of the error, such as `TaskNotFoundError`.");
        body = named(body, "message", text(), "Message for people.");
    }
    let mut insert = |name: &str, schema| drop(components.schemas.insert(name.to_owned(), schema));
    insert("ErrorStatus", status.into());
    insert(BODY, body.into());
}

fn response(status: u16, kinds: &[ErrorKind], version: Version) -> Response {
    let sentence =
        |kind: &ErrorKind| format!("- `{}`: {}", kind.wire_for(version).reason, kind.wire_for(version).sentence);
    let mut sentences: Vec<_> = kinds.iter().map(sentence).collect();
    sentences.dedup();
    let mut response = ResponseBuilder::new().description(sentences.join("\n"));
    let seconds = || ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(1));
    if matches!(status, 429 | 503) {
        let header = HeaderBuilder::new().schema(Some(seconds()));
        response = response
            .header("Retry-After", header.description(Some("Seconds after which a retry may succeed.")).build());
    }
    if status == 401 {
        let header = HeaderBuilder::new().description(Some("Authentication scheme that the server requires."));
        response = response.header("WWW-Authenticate", header.build());
    }
    let reference = |kind: &ErrorKind| RefOr::Ref(Ref::new(format!("#/components/examples/{kind:?}")));
    let examples = kinds.iter().map(|kind| (format!("{kind:?}"), reference(kind)));
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(BODY))).examples_from_iter(examples);
    response.content("application/json", content.build()).build()
}

/// Returns an error of a kind with typical details.
pub(super) fn example(kind: ErrorKind) -> Error {
    let error = kind.error();
    #[expect(clippy::wildcard_enum_match_arm, reason = "other kinds have no details of their own")]
    match kind {
        ErrorKind::TaskNotFound => Error::task_not_found("0197a3c2-58f1-7d05-9c1e-3f6f0c9b1a42"),
        ErrorKind::InvalidParams => Error::invalid_field("message.parts", "is required"),
        ErrorKind::ResourceExhausted => {
            kind.because("too many running turns").with("limit", "turns").retry_after(Duration::from_secs(1))
        }
        ErrorKind::Unavailable => error.retry_after(Duration::from_secs(2)),
        ErrorKind::VersionNotSupported => {
            kind.because("A2A-Version: `2.0`; this server supports 1.0, 0.3").with("requestedVersion", "2.0")
        }
        ErrorKind::Internal => {
            let id = "0197a3c2-6d0e-7f32-8a0b-9b9c4a1d2e3f";
            kind.because(format!("error id {id}")).with("errorId", id)
        }
        _ => error,
    }
}

fn problem(kind: ErrorKind, version: Version) -> Value {
    example(kind).problem_for(version)
}
