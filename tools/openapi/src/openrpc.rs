//! OpenRPC document of JSON-RPC: the methods of 1.0 from the descriptors, and those of 0.3.

use std::collections::BTreeMap;

use a2a_service::{
    card::JSON_RPC,
    error::{Error, ErrorKind},
    protocol::Version,
};
use prost_reflect::{DescriptorPool, MethodDescriptor};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::openapi::{
    RefOr, Type,
    schema::{ArrayBuilder, Object, ObjectBuilder, Schema},
};

use super::{
    DESCRIPTION, TITLE, URL,
    comments::summary,
    errors,
    examples::{self, Example},
    schema::Schemas,
    v03_schema::V03Schemas,
};

/// Prefix of the names of 0.3 schemas and errors.
const V03: &str = "V03";

/// Methods of 0.3: name, RPC of 1.0, schema of the parameters, and of the result. An empty schema stands for none.
const METHODS: [(&str, &str, &str, &str); 13] = [
    ("message/send", "SendMessage", "MessageSendParams", "SendMessageResult"),
    ("message/stream", "SendStreamingMessage", "MessageSendParams", "StreamEvent"),
    ("tasks/get", "GetTask", "TaskQueryParams", "Task"),
    ("tasks/list", "ListTasks", "ListTasksParams", "ListTasksResult"),
    ("tasks/cancel", "CancelTask", "TaskIdParams", "Task"),
    ("tasks/resubscribe", "SubscribeToTask", "TaskIdParams", "StreamEvent"),
    (
        "tasks/pushNotificationConfig/set",
        "CreateTaskPushNotificationConfig",
        "TaskPushNotificationConfig",
        "TaskPushNotificationConfig",
    ),
    (
        "tasks/pushNotificationConfig/get",
        "GetTaskPushNotificationConfig",
        "GetTaskPushNotificationConfigParams",
        "TaskPushNotificationConfig",
    ),
    (
        "tasks/pushNotificationConfig/list",
        "ListTaskPushNotificationConfigs",
        "ListTaskPushNotificationConfigParams",
        "[TaskPushNotificationConfig]",
    ),
    (
        "tasks/pushNotificationConfig/delete",
        "DeleteTaskPushNotificationConfig",
        "DeleteTaskPushNotificationConfigParams",
        "",
    ),
    ("agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard", "", "AgentCard"),
    // Aliases of 0.1, and in the text of 0.3.
    ("tasks/send", "SendMessage", "MessageSendParams", "SendMessageResult"),
    ("agent/authenticatedExtendedCard", "GetExtendedAgentCard", "", "AgentCard"),
];

/// Number of the rows of `METHODS` that are not aliases.
const CURRENT_METHODS: usize = 11;

/// OpenRPC document.
#[derive(Serialize)]
pub(super) struct OpenRpc {
    openrpc: &'static str,
    info: Info,
    servers: Vec<Server>,
    methods: Vec<Method>,
    components: Components,
}

#[derive(Serialize)]
struct Info {
    title: &'static str,
    description: String,
    license: License,
    version: &'static str,
}

#[derive(Serialize)]
struct License {
    name: &'static str,
}

#[derive(Serialize)]
struct Server {
    name: String,
    url: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Method {
    name: String,
    summary: Option<String>,
    description: Option<String>,
    tags: Vec<Tag>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    deprecated: bool,
    param_structure: &'static str,
    params: Vec<ContentDescriptor>,
    result: ContentDescriptor,
    errors: Vec<Value>,
    examples: Vec<ExamplePairing>,
}

#[derive(Serialize)]
struct Tag {
    name: String,
}

#[derive(Serialize)]
struct ContentDescriptor {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    required: Option<bool>,
    schema: RefOr<Schema>,
}

#[derive(Serialize)]
struct ExamplePairing {
    name: String,
    params: Vec<NamedValue>,
    result: NamedValue,
}

#[derive(Serialize)]
struct NamedValue {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    value: Value,
}

#[derive(Serialize)]
struct Components {
    schemas: BTreeMap<String, RefOr<Schema>>,
    errors: BTreeMap<String, Value>,
}

/// Creates the document.
pub(super) fn document(pool: &DescriptorPool, schemas: &mut Schemas<'_>) -> OpenRpc {
    let service = pool.get_service_by_name("lf.a2a.v1.A2AService");
    let rpcs: Vec<_> = service.iter().flat_map(|service| service.methods().collect::<Vec<_>>()).collect();
    let mut methods: Vec<_> = rpcs.iter().map(|rpc| current_method(rpc, schemas)).collect();
    for (index, row) in METHODS.iter().enumerate() {
        let rpc = rpcs.iter().find(|rpc| rpc.name() == row.1);
        methods.extend(rpc.map(|rpc| v03_method(rpc, row, index >= CURRENT_METHODS, schemas)));
    }
    let kinds = ErrorKind::ALL.into_iter().filter(|kind| *kind != ErrorKind::VerbNotAllowed);
    let errors = kinds.flat_map(|kind| {
        [Version::V1_0, Version::V0_3].map(|version| (error_name(kind, version), error(kind, version)))
    });
    let errors = errors.collect();
    errors::add_detail_schemas(&mut schemas.all, Version::V1_0);
    let description = format!(
        "{DESCRIPTION}\n\nJSON-RPC binding of the Agent2Agent (A2A) protocol: the methods of 1.0, whose parameters and results are \
         ProtoJSON, and those of 0.3, whose names have a slash. The result of a streaming method is a sequence of \
         server-sent events; the data of each is a JSON-RPC response with the result described here. The `data` of an \
         error of 1.0 has the schema `ErrorDetails`; errors of 0.3 have no `data`."
    );
    let info = Info { title: TITLE, description, license: License { name: "Apache-2.0" }, version: "1.0" };
    OpenRpc {
        openrpc: "1.3.2",
        info,
        servers: vec![Server { name: "A2A".to_owned(), url: format!("{URL}{JSON_RPC}") }],
        methods,
        components: Components { schemas: std::mem::take(&mut schemas.all), errors },
    }
}

fn current_method(rpc: &MethodDescriptor, schemas: &mut Schemas<'_>) -> Method {
    let (input, output) = (rpc.input(), rpc.output());
    let params = input.fields().map(|field| ContentDescriptor {
        name: field.json_name().to_owned(),
        description: schemas.comments.of(&field),
        required: Some(schemas.is_required(&field)),
        schema: schemas.field(&field),
    });
    let params: Vec<_> = params.collect();
    let is_empty = output.full_name() == "google.protobuf.Empty";
    let result = if is_empty { null() } else { schemas.message(&output) };
    let result_examples = if is_empty { Vec::new() } else { examples::of(output.full_name()) };
    let example = pair(&examples::of(input.full_name()), &result_examples);
    method(rpc.name(), rpc, Version::V1_0, params, (output.name(), result), example, schemas)
}

fn v03_method(
    rpc: &MethodDescriptor,
    row: &(&str, &str, &str, &str),
    is_alias: bool,
    schemas: &mut Schemas<'_>,
) -> Method {
    let (name, _, params_name, result_name) = *row;
    let mut v03 = V03Schemas::new(rpc.parent_pool(), schemas, V03);
    let result = match result_name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(item) => ArrayBuilder::new().items(v03.named(item)).into(),
        None if result_name.is_empty() => null(),
        None => v03.named(result_name),
    };
    let params = if params_name.is_empty() { Vec::new() } else { members(&mut v03, params_name) };
    let (input, output) = (rpc.input(), rpc.output());
    let inputs = if params_name.is_empty() { Vec::new() } else { examples::v03(input.name()) };
    let example = pair(&inputs, &examples::v03(output.name()));
    let result_name = if result_name.is_empty() { "null" } else { result_name.trim_matches(['[', ']']) };
    let method = method(name, rpc, Version::V0_3, params, (result_name, result), example, schemas);
    Method { deprecated: is_alias, ..method }
}

/// Returns the members of an object as parameters.
fn members(v03: &mut V03Schemas<'_, '_>, name: &str) -> Vec<ContentDescriptor> {
    let Some(Object { properties, required, .. }) = v03.object_named(name) else { return Vec::new() };
    let parameter = |(name, schema): (String, RefOr<Schema>)| ContentDescriptor {
        required: Some(required.contains(&name)),
        name,
        description: None,
        schema,
    };
    properties.into_iter().map(parameter).collect()
}

fn method(
    name: &str,
    rpc: &MethodDescriptor,
    version: Version,
    params: Vec<ContentDescriptor>,
    (result_name, schema): (&str, RefOr<Schema>),
    examples: Vec<ExamplePairing>,
    schemas: &Schemas<'_>,
) -> Method {
    let comment = schemas.comments.of(rpc);
    let streaming = "The response is a stream of server-sent events; this is the result in one of them.";
    let description = rpc.is_server_streaming().then(|| streaming.to_owned());
    Method {
        name: name.to_owned(),
        summary: comment.as_deref().map(summary),
        description: comment,
        tags: vec![Tag { name: version.as_str().to_owned() }],
        deprecated: false,
        param_structure: "by-name",
        params,
        result: ContentDescriptor { name: result_name.to_owned(), description, required: None, schema },
        errors: errors::kinds_of(rpc.name())
            .map(|kind| json!({"$ref": format!("#/components/errors/{}", error_name(kind, version))}))
            .collect(),
        examples,
    }
}

/// Pairs each example of the parameters with one of the result. Without examples of the result, it is null.
fn pair(inputs: &[Example], outputs: &[Example]) -> Vec<ExamplePairing> {
    let no_params = [Example { name: "example", summary: "", value: json!({}) }];
    let inputs = if inputs.is_empty() { &no_params[..] } else { inputs };
    let count = inputs.len().max(outputs.len());
    let pairing = |index: usize| {
        let input = inputs.get(index).or(inputs.first());
        let output = outputs.get(index).or(outputs.first());
        let members = input.and_then(|example| example.value.as_object()).into_iter().flatten();
        let param =
            |(name, value): (&String, &Value)| NamedValue { name: name.clone(), summary: None, value: value.clone() };
        let name = |example: Option<&Example>| example.map_or("example", |example| example.name).to_owned();
        let summary = output.map(|example| example.summary.to_owned()).filter(|summary| !summary.is_empty());
        let result = NamedValue {
            name: name(output),
            summary,
            value: output.map_or(Value::Null, |example| example.value.clone()),
        };
        let is_input = inputs.len() >= outputs.len();
        ExamplePairing {
            name: name(if is_input { input } else { output }),
            params: members.map(param).collect(),
            result,
        }
    };
    (0..count).map(pairing).collect()
}

fn null() -> RefOr<Schema> {
    ObjectBuilder::new().schema_type(Type::Null).into()
}

fn error_name(kind: ErrorKind, version: Version) -> String {
    let prefix = if version == Version::V0_3 { V03 } else { "" };
    format!("{prefix}{kind:?}")
}

fn error(kind: ErrorKind, version: Version) -> Value {
    let error: Error = errors::example(kind);
    let code = error.wire_for(version).json_rpc;
    let message = error.message_for(version);
    match version {
        Version::V1_0 => json!({"code": code, "message": message, "data": error.details()}),
        Version::V0_3 => json!({"code": code, "message": message}),
    }
}
