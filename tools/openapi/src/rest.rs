//! OpenAPI documents of HTTP+JSON: paths from the `google.api.http` annotations of a service.

use a2a_service::{call, card::WELL_KNOWN, protocol::Version};
use prost_reflect::{DescriptorPool, DynamicMessage, FieldDescriptor, MethodDescriptor, ServiceDescriptor, Value};
use serde_json::Value as Json;
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, Deprecated, HttpMethod, InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder,
    Paths, Ref, RefOr, Required, Response, ResponseBuilder, SecurityRequirement, ServerBuilder, Type,
    example::ExampleBuilder,
    header::HeaderBuilder,
    path::{Operation, OperationBuilder, Parameter, ParameterBuilder, ParameterIn},
    request_body::{RequestBody, RequestBodyBuilder},
    schema::{ObjectBuilder, Schema},
    security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
    tag::TagBuilder,
};

use super::{
    comments::summary,
    errors::ErrorResponses,
    examples::{self, Example},
    extra_bindings::EXTRA_BINDINGS,
    links,
    schema::{Schemas, described, upper_camel},
    v03_schema::V03Schemas,
};
use crate::{DESCRIPTION, TITLE, URL};

const JSON: &str = "application/json";
const A2A_JSON: &str = "application/a2a+json";
const EVENTS: &str = "text/event-stream";

/// Name of the security scheme.
const BEARER: &str = "bearer";

/// Path prefix of a binding that names the tenant.
const TENANT: &str = "/{tenant}/";

/// Names of the reusable parameters.
const VERSION: &str = "A2AVersion";
const EXTENSIONS: &str = "A2AExtensions";
const IDEMPOTENCY_KEY: &str = "IdempotencyKey";
const LAST_EVENT_ID: &str = "LastEventId";
const LAST_EVENT_ID_IN_QUERY: &str = "LastEventIdInQuery";

/// Binding of an RPC to an HTTP method and a path (`google.api.http`).
struct Binding {
    verb: String,
    template: String,
    body: String,
}

/// Creates the document of a service at a protocol version.
pub(super) fn document(service: &ServiceDescriptor, version: Version, schemas: &mut Schemas<'_>) -> OpenApi {
    let mut paths = Paths::new();
    let mut add = |path: &str, verb: &str, operation: Operation| {
        if let Some(method) = http_method(verb) {
            paths.add_path_operation(path, vec![method], operation);
        }
    };
    let tag = service.name();
    let mut errors = ErrorResponses::new(version);
    for rpc in service.methods() {
        let bindings = bindings(&rpc);
        for binding in &bindings {
            let route = Route::parse(&rpc, &binding.template);
            let operation = OperationOf { rpc: &rpc, version, bindings: &bindings, binding, route: &route, tag };
            add(&route.path, &binding.verb, operation.create(schemas, &mut errors));
        }
    }
    if version == Version::V0_3
        && let Some(operation) = task_list(service, schemas, &mut errors, tag)
    {
        add("/v1/tasks", "GET", operation);
    }
    if service.parent_pool().get_message_by_name(&format!("{}.AgentCard", service.package_name())).is_some() {
        add(WELL_KNOWN, "GET", card(service, version, schemas, &mut errors, tag));
    }

    let mut components = parameters(ComponentsBuilder::new(), version).build();
    errors.add_to(&mut components);
    components.schemas.extend(std::mem::take(&mut schemas.all));
    links::add(&mut paths, &components.schemas);
    let http =
        HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("Token, if the server requires one."));
    components.security_schemes.insert(BEARER.to_owned(), SecurityScheme::Http(http.build()).into());
    let number = version.as_str();
    let license = LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0"));
    let about = format!(
        "{DESCRIPTION}\n\nHTTP+JSON binding of the Agent2Agent (A2A) protocol {number}. Bodies are ProtoJSON. The server accepts and \
         ignores unknown members, and null for an unset member."
    );
    let info = InfoBuilder::new().title(TITLE).version(number).description(Some(about)).license(Some(license.build()));
    let tag = TagBuilder::new().name(tag).description(schemas.comments.of(service));
    OpenApiBuilder::new()
        .info(info)
        .servers(Some([ServerBuilder::new().url(URL).build()]))
        .tags(Some([tag.build()]))
        .paths(paths)
        .components(Some(components))
        .security(Some([SecurityRequirement::new(BEARER, [""; 0]), SecurityRequirement::default()]))
        .build()
}

fn http_method(verb: &str) -> Option<HttpMethod> {
    Some(match verb {
        "GET" => HttpMethod::Get,
        "POST" => HttpMethod::Post,
        "PUT" => HttpMethod::Put,
        "PATCH" => HttpMethod::Patch,
        "DELETE" => HttpMethod::Delete,
        _ => return None,
    })
}

/// Returns the bindings of an RPC: those of its proto file, then `EXTRA_BINDINGS`.
fn bindings(rpc: &MethodDescriptor) -> Vec<Binding> {
    let Some(http) = rpc.parent_pool().get_extension_by_name("google.api.http") else { return Vec::new() };
    let options = rpc.options();
    let rule = options.get_extension(&http);
    let rule = rule.as_message();
    let text = |rule: &DynamicMessage, field: &str| {
        rule.get_field_by_name(field).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let read = |rule: &DynamicMessage| {
        let verb = ["get", "put", "post", "delete", "patch"].into_iter().find(|verb| rule.has_field_by_name(verb))?;
        Some(Binding { verb: verb.to_uppercase(), template: text(rule, verb), body: text(rule, "body") })
    };
    let additional = rule.and_then(|rule| rule.get_field_by_name("additional_bindings"));
    let additional = additional.iter().filter_map(|list| list.as_list()).flatten().filter_map(Value::as_message);
    let extra = EXTRA_BINDINGS.iter().filter(|row| row.0 == rpc.full_name()).map(|row| row.1.map(str::to_owned));
    let extra = extra.map(|[verb, template, body]| Binding { verb, template, body });
    rule.into_iter().chain(additional).filter_map(read).chain(extra).collect()
}

/// Path of a binding in the form of OpenAPI.
struct Route {
    path: String,
    variables: Vec<Variable>,
}

/// Variable of a path.
struct Variable {
    /// Name in the document.
    name: String,
    field: FieldDescriptor,
    /// Pattern of the field in the template, and the index of this variable among its wildcards.
    pattern: String,
    index: usize,
}

impl Route {
    /// Parses a template. `/tasks/{id=*}` becomes `/tasks/{id}`, and `/{name=tasks/*}` becomes `/tasks/{taskId}`.
    fn parse(rpc: &MethodDescriptor, template: &str) -> Self {
        let (mut path, mut variables, mut rest) = (String::new(), Vec::new(), template);
        while let Some((before, after)) = rest.split_once('{') {
            let (variable, after) = after.split_once('}').unwrap_or((after, ""));
            let (field, pattern) = variable.split_once('=').unwrap_or((variable, "*"));
            path.push_str(before);
            rest = after;
            let Some(field) = rpc.input().get_field_by_name(field) else { continue };
            let mut collection = "";
            let segments = pattern.split('/').map(|segment| {
                if segment != "*" {
                    collection = segment;
                    return segment.to_owned();
                }
                let singular = collection.strip_suffix('s').unwrap_or(collection);
                let name = if pattern == "*" { field.json_name().to_owned() } else { format!("{singular}Id") };
                let index = variables.iter().filter(|variable: &&Variable| variable.field == field).count();
                variables.push(Variable {
                    name: name.clone(),
                    field: field.clone(),
                    pattern: pattern.to_owned(),
                    index,
                });
                format!("{{{name}}}")
            });
            let segments: Vec<_> = segments.collect();
            path.push_str(&segments.join("/"));
        }
        path.push_str(rest);
        Self { path, variables }
    }

    fn has(&self, field: &FieldDescriptor) -> bool {
        self.variables.iter().any(|variable| variable.field == *field)
    }
}

impl Variable {
    fn parameter(&self, schemas: &mut Schemas<'_>, example: Option<&Json>) -> Parameter {
        let (schema, description) = if self.pattern == "*" {
            (schemas.field(&self.field), schemas.comments.of(&self.field))
        } else {
            let id =
                ObjectBuilder::new().schema_type(Type::String).max_length(Some(a2a_service::validate::MAX_ID_BYTES));
            let collection = self.name.strip_suffix("Id").unwrap_or(&self.name);
            (id.into(), Some(format!("Id of the {}.", spaced(collection))))
        };
        let mut schema = described(schema, None, false);
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            object.min_length = Some(1);
        }
        let example = example.and_then(|example| self.example(example));
        let parameter =
            ParameterBuilder::new().name(&self.name).parameter_in(ParameterIn::Path).required(Required::True);
        parameter.description(description).schema(Some(schema)).example(example).build()
    }

    /// Returns the value of the variable in an example of the request.
    fn example(&self, request: &Json) -> Option<Json> {
        let value = request.get(self.field.json_name())?.as_str()?;
        if self.pattern == "*" {
            return Some(value.into());
        }
        let mut wildcards = self.pattern.split('/').zip(value.split('/')).filter(|(pattern, _)| *pattern == "*");
        wildcards.nth(self.index).map(|(_, value)| value.into())
    }
}

/// Converts lower camel case to words: `pushNotificationConfig` to `push notification config`.
fn spaced(name: &str) -> String {
    let spaced = |letter: char| {
        let space = letter.is_ascii_uppercase().then_some(' ');
        space.into_iter().chain(letter.to_lowercase())
    };
    name.chars().flat_map(spaced).collect()
}

/// Operation of a binding.
struct OperationOf<'a> {
    rpc: &'a MethodDescriptor,
    version: Version,
    /// All bindings of the RPC.
    bindings: &'a [Binding],
    binding: &'a Binding,
    route: &'a Route,
    tag: &'a str,
}

impl OperationOf<'_> {
    fn create(&self, schemas: &mut Schemas<'_>, errors: &mut ErrorResponses) -> Operation {
        let Self { rpc, binding, route, .. } = self;
        let input = rpc.input();
        let request_examples = examples::of(input.full_name());
        let example = request_examples.first().map(|example| &example.value);
        let (id, is_deprecated) = self.id();
        let mut operation = self.described(OperationBuilder::new(), schemas).operation_id(Some(id));
        if is_deprecated {
            operation = operation.deprecated(Some(Deprecated::True));
        }
        for variable in &route.variables {
            operation = operation.parameter(variable.parameter(schemas, example));
        }
        let mut fields: Vec<_> = input.fields().collect();
        fields.sort_by_key(FieldDescriptor::number);
        let in_query = |field: &&FieldDescriptor| !route.has(field) && field.name() != binding.body;
        if binding.body != "*" {
            for field in fields.iter().filter(in_query) {
                operation = operation.parameter(query_parameter(field, schemas, example));
            }
        }
        let is_send = input.fields().any(|field| {
            field
                .kind()
                .as_message()
                .is_some_and(|message| message.name() == "Message" && message.package_name() == input.package_name())
        });
        let mut headers = vec![VERSION, EXTENSIONS];
        headers.extend(is_send.then_some(IDEMPOTENCY_KEY));
        if rpc.is_server_streaming() {
            headers.push(LAST_EVENT_ID);
            headers.extend((binding.verb == "GET").then_some(LAST_EVENT_ID_IN_QUERY));
        }
        for name in headers {
            operation = operation.parameter_ref(Ref::new(format!("#/components/parameters/{name}")));
        }
        operation = operation.request_body(self.body(schemas, &request_examples));
        operation = operation.response("200", self.response(schemas, is_send));
        for (status, response) in errors.of_rpc(rpc.name(), !binding.body.is_empty()) {
            operation = operation.response(status, response);
        }
        operation.build()
    }

    fn described(&self, operation: OperationBuilder, schemas: &Schemas<'_>) -> OperationBuilder {
        let comment = schemas.comments.of(self.rpc);
        operation.tag(self.tag).summary(comment.as_deref().map(summary)).description(comment)
    }

    /// Returns the operation id, and true for a path that is served for old clients only.
    ///
    /// The id is the name of the RPC. If the RPC has several verbs, those other than POST are a suffix.
    fn id(&self) -> (String, bool) {
        let Self { rpc, bindings, binding, .. } = self;
        let has_post = bindings.iter().any(|binding| binding.verb == "POST");
        let has_verb_suffix = if has_post { binding.verb != "POST" } else { binding.verb != bindings[0].verb };
        let mut id = rpc.name().to_owned();
        if has_verb_suffix {
            id.push_str(&upper_camel(&binding.verb.to_lowercase()));
        }
        let is_tenant = binding.template.starts_with(TENANT);
        let is_alternate = !is_tenant && bindings.first().is_some_and(|first| first.template != binding.template);
        if is_tenant {
            id.push_str("WithTenant");
        }
        if is_alternate {
            id.push_str("Alternate");
        }
        (id, is_alternate)
    }

    fn body(&self, schemas: &mut Schemas<'_>, examples: &[Example]) -> Option<RequestBody> {
        let Self { rpc, binding, route, .. } = self;
        let input = rpc.input();
        let (schema, examples): (_, Vec<_>) = match binding.body.as_str() {
            "" => return None,
            "*" => {
                let in_path: Vec<_> = route.variables.iter().map(|variable| variable.field.name()).collect();
                let schema = schemas.body(&input, &format!("{}Body", rpc.name()), &in_path);
                let without_path = |example: &Example| {
                    let mut example = example.clone();
                    if let Json::Object(members) = &mut example.value {
                        members.retain(|name, _| {
                            !route.variables.iter().any(|variable| variable.field.json_name() == name)
                        });
                    }
                    example
                };
                (schema, examples.iter().map(without_path).collect())
            }
            field => {
                let field = input.get_field_by_name(field)?;
                let schema = described(schemas.field(&field), None, false);
                let member = |example: &Example| {
                    let value = example.value.get(field.json_name())?.clone();
                    Some(Example { value, ..example.clone() })
                };
                (schema, examples.iter().filter_map(member).collect())
            }
        };
        let is_required = input.fields().any(|field| schemas.is_required(&field) && !route.has(&field))
            || !matches!(binding.body.as_str(), "" | "*");
        let content = content(schema, &examples);
        let required = if is_required { Required::True } else { Required::False };
        let body = RequestBodyBuilder::new().required(Some(required));
        Some(body.content(JSON, content.clone()).content(A2A_JSON, content).build())
    }

    fn response(&self, schemas: &mut Schemas<'_>, is_send: bool) -> Response {
        let Self { rpc, version, .. } = self;
        let output = rpc.output();
        let is_card = *version == Version::V0_3 && output.name() == "AgentCard";
        let (schema, examples) = if is_card {
            (V03Schemas::new(rpc.parent_pool(), schemas, "").named("AgentCard"), examples::v03("AgentCard"))
        } else {
            (schemas.message(&output), examples::of(output.full_name()))
        };
        let mut response = ResponseBuilder::new();
        let extensions =
            HeaderBuilder::new().description(Some("URIs of the active protocol extensions, separated by commas."));
        response = response.header(extensions_header(*version), extensions.build());
        if is_send {
            let key = HeaderBuilder::new().description(Some("Idempotency key of the request."));
            response = response.header("Idempotency-Key", key.build());
        }
        if rpc.is_server_streaming() {
            let description = "Stream of server-sent events. The schema is that of the `data:` of one event, which is one \
                line of JSON. The `id:` of an event is its cursor, for `Last-Event-ID`. An event named `error` has an \
                `ErrorResponse` as its data and ends the stream. Lines that begin with a colon keep the connection open.";
            return response.description(description).content(EVENTS, content(schema, &examples)).build();
        }
        response = response.description(match output.full_name() {
            "google.protobuf.Empty" => "Empty object.".to_owned(),
            _ => schemas.comments.of(&output).map_or_else(|| output.name().to_owned(), |comment| summary(&comment)),
        });
        let content = content(schema, &examples);
        response = response.content(JSON, content.clone());
        if *version == Version::V1_0 {
            response = response.content(A2A_JSON, content);
        }
        response.build()
    }
}

fn extensions_header(version: Version) -> &'static str {
    if version == Version::V0_3 { "X-A2A-Extensions" } else { "A2A-Extensions" }
}

fn content(schema: RefOr<Schema>, examples: &[Example]) -> utoipa::openapi::Content {
    let content = ContentBuilder::new().schema(Some(schema));
    match examples {
        [] => content,
        [example] => content.example(Some(example.value.clone())),
        examples => content.examples_from_iter(examples.iter().map(|example| {
            let value = ExampleBuilder::new().summary(example.summary).value(Some(example.value.clone()));
            (example.name, value.build())
        })),
    }
    .build()
}

fn query_parameter(field: &FieldDescriptor, schemas: &mut Schemas<'_>, example: Option<&Json>) -> Parameter {
    let required = if schemas.is_required(field) { Required::True } else { Required::False };
    let example = example.and_then(|example| example.get(field.json_name())).cloned();
    let schema = described(schemas.field(field), None, false);
    let parameter = ParameterBuilder::new().name(field.json_name()).parameter_in(ParameterIn::Query);
    parameter.required(required).description(schemas.comments.of(field)).schema(Some(schema)).example(example).build()
}

/// Creates the operation of `GET /v1/tasks`, which is in the specification of 0.3 but not in its proto file. Its filters are
/// those of 1.0.
fn task_list(
    service: &ServiceDescriptor,
    schemas: &mut Schemas<'_>,
    errors: &mut ErrorResponses,
    tag: &str,
) -> Option<Operation> {
    let pool: &DescriptorPool = service.parent_pool();
    let (request, task) =
        (pool.get_message_by_name("lf.a2a.v1.ListTasksRequest")?, pool.get_message_by_name("a2a.v1.Task")?);
    let state = pool.get_message_by_name("a2a.v1.TaskStatus")?.get_field_by_name("state")?;
    let comment = "Lists the tasks the caller may see, the most recently updated first, page by page.";
    let mut operation = OperationBuilder::new().operation_id(Some("ListTasks")).tag(tag);
    operation = operation.summary(Some(summary(comment))).description(Some(comment));
    let examples = examples::of("lf.a2a.v1.ListTasksRequest");
    let example = examples.first().map(|example| &example.value);
    for field in request.fields().filter(|field| field.name() != "tenant") {
        let mut parameter = query_parameter(&field, schemas, example);
        if field.name() == "status" {
            parameter.schema = Some(described(schemas.field(&state), None, false));
        }
        operation = operation.parameter(parameter);
    }
    for name in [VERSION, EXTENSIONS] {
        operation = operation.parameter_ref(Ref::new(format!("#/components/parameters/{name}")));
    }
    let tasks = utoipa::openapi::schema::ArrayBuilder::new().items(schemas.message(&task));
    let token = ObjectBuilder::new().schema_type(Type::String);
    let page = ObjectBuilder::new()
        .description(Some("One page of tasks, the most recently updated first."))
        .property("tasks", tasks.description(Some("Tasks of the page.")))
        .property("nextPageToken", token.description(Some("`pageToken` of the next page. Empty on the last page.")))
        .required("tasks")
        .required("nextPageToken");
    let key = schemas.location.key(service.package_name(), "ListTasksResponse");
    schemas.all.insert(key.clone(), page.into());
    let content = content(schemas.location.reference(&key).into(), &examples::of("a2a.v1.ListTasksResponse"));
    operation =
        operation.response("200", ResponseBuilder::new().description("Page of tasks").content(JSON, content).build());
    for (status, response) in errors.of_rpc("ListTasks", false) {
        operation = operation.response(status, response);
    }
    Some(operation.build())
}

/// Creates the operation of the public agent card.
fn card(
    service: &ServiceDescriptor,
    version: Version,
    schemas: &mut Schemas<'_>,
    errors: &mut ErrorResponses,
    tag: &str,
) -> Operation {
    let pool = service.parent_pool();
    let (schema, examples) = match pool.get_message_by_name("lf.a2a.v1.AgentCard").filter(|_| version == Version::V1_0)
    {
        Some(card) => (schemas.message(&card), examples::of(card.full_name())),
        None => (V03Schemas::new(pool, schemas, "").named("AgentCard"), examples::v03("AgentCard")),
    };
    let tag_header = HeaderBuilder::new().description(Some("Entity tag, for `If-None-Match`."));
    let response = ResponseBuilder::new().description("Agent card").header("ETag", tag_header.build());
    let description = "Reads the public agent card. Authentication is needed only if the server protects the card. Without `A2A-Version`, the card may have \
        members of other protocol versions too.";
    let mut operation = OperationBuilder::new()
        .operation_id(Some("GetPublicAgentCard"))
        .tag(tag)
        .summary(Some("Reads the public agent card"))
        .description(Some(description))
        .parameter_ref(Ref::new(format!("#/components/parameters/{VERSION}")))
        .security(SecurityRequirement::default())
        .response("200", response.content(JSON, content(schema, &examples)).build())
        .response("304", ResponseBuilder::new().description("Card that the client has already").build());
    for (status, response) in errors.of_public_card() {
        operation = operation.response(status, response);
    }
    operation.build()
}

/// Adds the parameters that operations share: headers, and the cursor of a stream in the query.
fn parameters(components: ComponentsBuilder, version: Version) -> ComponentsBuilder {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let optional = |name: &str, place: ParameterIn, schema: ObjectBuilder, description: &str| {
        let parameter = ParameterBuilder::new().name(name).parameter_in(place).required(Required::False);
        parameter.description(Some(description)).schema(Some(schema)).build()
    };
    let number = version.as_str();
    let numbers = text().enum_values(Some([number])).default(Some(number.into()));
    let cursor = "Cursor of the last event that the client received: the stream continues after it.";
    components
        .parameter(VERSION, optional("A2A-Version", ParameterIn::Header, numbers, "Protocol version of the request."))
        .parameter(
            EXTENSIONS,
            optional(
                extensions_header(version),
                ParameterIn::Header,
                text(),
                "URIs of the protocol extensions that the client activates, separated by commas.",
            ),
        )
        .parameter(
            IDEMPOTENCY_KEY,
            optional(
                "Idempotency-Key",
                ParameterIn::Header,
                text().min_length(Some(1)).max_length(Some(call::MAX_IDEMPOTENCY_KEY_BYTES)),
                "Identifies a send, so that the server executes it once even if the client repeats it.",
            ),
        )
        .parameter(LAST_EVENT_ID, optional("Last-Event-ID", ParameterIn::Header, text(), cursor))
        .parameter(
            LAST_EVENT_ID_IN_QUERY,
            optional(
                "lastEventId",
                ParameterIn::Query,
                text(),
                &format!("{cursor} For clients that cannot set headers."),
            ),
        )
}
