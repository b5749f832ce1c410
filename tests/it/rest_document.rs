//! Generates `docs/rest.md`, the reference of HTTP routes and JSON-RPC methods, from the descriptors of the proto files, and
//! checks that the file is up to date and that the server has each route. `UPDATE=1` writes the file.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use a2a_service::{
    contract::Dispatch,
    pb::{DESCRIPTORS, v1::bindings::ServiceHandle},
    v03::{METHODS, jsonrpc::V03Methods, rest::V03Rest},
};
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor, Value};

const HEAD: &str = "\
# HTTP routes and JSON-RPC methods

Generated from the proto files of both protocol versions: `proto/lf/a2a/v1/a2a.proto` (1.0) and `proto/a2a/v1/a2a.proto` (0.3).

- Everything is also served below the base path (the path of `public_url`).
- Request and response bodies are ProtoJSON. Requests have the content type `application/json` or `application/a2a+json`.
- A stream is a sequence of server-sent events. The `id:` of an event is its cursor: with `Last-Event-ID`, or `lastEventId`
  in the query, a subscription or a repeated streaming send continues after that event.
- `Idempotency-Key` makes a send safe to retry. `A2A-Version`, `A2A-Extensions` and `Authorization` are headers of any request.
- [errors.md](errors.md) lists all errors.

## Protocol 1.0: HTTP+JSON

Each route is also served with a tenant in front: `/{tenant}/message:send`. Without it, the tenant is the one in the body or the
query.

";

const JSON_RPC: &str = "
## Protocol 1.0: JSON-RPC

`POST` to `/rpc`, `/a2a` or `/`. The body is one request or a batch of at most 64. The result of a stream is a
sequence of server-sent events, each with a JSON-RPC response. gRPC and gRPC-Web have the same methods in the service
`lf.a2a.v1.A2AService`.

| Method | `params` | `result` |
| --- | --- | --- |
";

const REST_V03: &str = "
## Protocol 0.3: HTTP+JSON

With `A2A-Version: 1.0`, or if `protocols` contains only 1.0, `v1` is the name of a tenant instead. Paths with `/v1/task/` in place
of `/v1/tasks/` are served too. [protocol-0.3.md](protocol-0.3.md) describes the differences from 1.0.

";

const JSON_RPC_V03: &str = "
## Protocol 0.3: JSON-RPC

Same URLs as for 1.0. gRPC has the service `a2a.v1.A2AService`.

| Method | Method of 1.0 | Result |
| --- | --- | --- |
";

const TAIL: &str = "
## Other paths

| Path | Content |
| --- | --- |
| `GET /.well-known/agent-card.json` | Agent card. Without `A2A-Version`, it has the form of all versions that the server has |
| `GET /.well-known/agent.json`, `GET /agent-card` | Agent card in a form that clients of 0.3 can read. All cards are also served below `/rpc` and `/a2a` |
| `GET /agent/authenticatedExtendedCard` | Extended agent card of 0.2; also below `/rpc` and `/a2a` |
| `GET /.well-known/oauth-protected-resource` | [Issuers](authentication.md#json-web-tokens) of the accepted tokens, if there are any (RFC 9728) |
| `GET /agents`, `GET /.well-known/ai-catalog.json` | [Agents](agents.md#several-agents) of the server that the caller may use: a plain list, and an AI Catalog |
| `GET /.well-known/jwks.json` | Public [keys](push.md#signed-tokens) that verify push notifications, if the server has any |
| `GET /` | [Console](console.md), if `Accept` names `text/html` and `console` is not `false`; its files are below `/console/` |
| `GET /console/review.json` | Problems of the agent card, as `a2a card validate -o json` prints them; as public as the card |
| `GET /docs` | Swagger UI, if `docs` |
| `GET /openapi.json` | OpenAPI document of HTTP+JSON at the newest protocol version that is served |
| `GET /openapi.yaml` | The same bytes as YAML, since every JSON document is a YAML document |
| `GET /openapi/v0.3.json` | OpenAPI document of HTTP+JSON at 0.3 |
| `GET /openapi/openrpc.json` | OpenRPC document of JSON-RPC |
| `GET /openapi/schemas/NAME.json` | JSON Schema of a message, such as `lf.a2a.v1.Task` |
| `GET /openapi/proto/PATH` | Proto file, such as `lf/a2a/v1/a2a.proto` |
| `GET /healthz` | 200 as long as the process responds |
| `GET /readyz` | 200 if the server accepts work; 503 during recovery, while it drains, and if the store is not available |
| `grpc.health.v1.Health` | gRPC health checks of the server and of each service |
| `grpc.reflection.v1.ServerReflection`, `grpc.reflection.v1alpha.ServerReflection` | gRPC server reflection |

Every `GET` route supports `HEAD`. A tenant cannot be named `agents`, `console`, `docs`, `metrics`, `openapi` or `operator`: these are paths of the
server. The documents are public, and have the name, security schemes and URL of the server. `a2a openapi` prints them for a server
with default settings, without the proto files; the directories `openapi/` and `proto/` of the repository have them too.
";

/// A route: HTTP verb, path template, and the request field that is the body (`*` for the whole request).
struct HttpRoute {
    verb: String,
    template: String,
    body: String,
}

fn rpcs(pool: &DescriptorPool, service: &str) -> Vec<MethodDescriptor> {
    pool.get_service_by_name(service).unwrap().methods().collect()
}

/// Returns the routes of an RPC: its `google.api.http` rule with the additional bindings, and other verbs that the server
/// accepts at the same paths.
fn routes<B: Dispatch>(rpc: &MethodDescriptor) -> Vec<HttpRoute> {
    let pool = rpc.parent_pool();
    let extension = pool.get_extension_by_name("google.api.http").unwrap();
    let options = rpc.options();
    let rule = options.get_extension(&extension);
    let mut routes = Vec::new();
    collect(rule.as_message().unwrap(), &mut routes);
    for HttpRoute { verb, template, body } in std::mem::take(&mut routes) {
        for served in B::VERBS {
            if (*served == verb || body.is_empty()) && is_served::<B>(served, &template, rpc.name()) {
                routes.push(HttpRoute { verb: (*served).to_owned(), template: template.clone(), body: body.clone() });
            }
        }
        let documented = |route: &HttpRoute| route.verb == verb && route.template == template;
        assert!(routes.iter().any(documented), "{verb} {template} is not served");
    }
    routes
}

fn collect(rule: &DynamicMessage, routes: &mut Vec<HttpRoute>) {
    let text = |field: &str| rule.get_field_by_name(field).unwrap().as_str().unwrap().to_owned();
    let verb = ["get", "put", "post", "delete", "patch"].into_iter().find(|verb| rule.has_field_by_name(verb)).unwrap();
    routes.push(HttpRoute { verb: verb.to_uppercase(), template: text(verb), body: text("body") });
    let additional = rule.get_field_by_name("additional_bindings").unwrap();
    additional.as_list().unwrap().iter().filter_map(Value::as_message).for_each(|rule| collect(rule, routes));
}

/// Returns true if the server has this RPC at a path that matches the template.
fn is_served<B: Dispatch>(verb: &str, template: &str, rpc: &str) -> bool {
    let path = path(template, |_| "x".to_owned());
    let (path, action) = path.rsplit_once(':').unwrap_or((&path, ""));
    let segments: Vec<_> = path.split('/').skip(1).collect();
    let names = [rpc.to_owned(), format!("Proto({rpc})")];
    B::route(verb, &segments, action).is_some_and(|route| names.contains(&format!("{:?}", route.rpc)))
}

/// Returns the path of a template with a text for each variable, given its name: `/tasks/{id=*}` is `/tasks/` and the text
/// for `id`. The wildcards of a variable with several segments are named after the collections before them: `tasks/*` is
/// `tasks/{task}`.
fn path(template: &str, variable: impl Fn(&str) -> String) -> String {
    let (mut out, mut rest) = (String::new(), template);
    while let Some((before, (name, after))) =
        rest.split_once('{').map(|(before, rest)| (before, rest.split_once('}').unwrap()))
    {
        out.push_str(before);
        match name.split_once('=') {
            Some((_, pattern)) if pattern != "*" => {
                let named = pattern.replacen("tasks/*", &format!("tasks/{}", variable("task")), 1);
                out.push_str(
                    &named.replace(
                        "pushNotificationConfigs/*",
                        &format!("pushNotificationConfigs/{}", variable("config")),
                    ),
                );
            }
            Some((name, _)) => out.push_str(&variable(name)),
            None => out.push_str(&variable(name)),
        }
        rest = after;
    }
    out + rest
}

/// Returns the names of the variables of a template.
fn variables(template: &str) -> BTreeSet<&str> {
    let names = template.split('{').skip(1).filter_map(|part| part.split_once('}'));
    names.map(|(name, _)| name.split_once('=').map_or(name, |(name, _)| name)).collect()
}

/// Describes the body and the query of a request.
fn parameters(rpc: &MethodDescriptor, route: &HttpRoute) -> String {
    let input = rpc.input();
    let body = match route.body.as_str() {
        "" => None,
        "*" => return format!("body: `{}`", input.name()),
        field => Some(input.get_field_by_name(field).unwrap()),
    };
    let variables = variables(&route.template);
    let in_query = |name: &str| !variables.contains(name) && body.as_ref().is_none_or(|body| body.name() != name);
    let mut fields: Vec<_> = input.fields().filter(|field| in_query(field.name())).collect();
    fields.sort_by_key(prost_reflect::FieldDescriptor::number);
    let query: Vec<_> = fields.iter().map(|field| format!("`{}`", field.json_name())).collect();
    let body = body.map(|body| format!("body: `{}`", body.kind().as_message().unwrap().name()));
    let query = (!query.is_empty()).then(|| format!("query: {}", query.join(", ")));
    [body, query].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Describes the response of an RPC. `empty` stands for no content.
fn response(rpc: &MethodDescriptor, empty: &str) -> String {
    match rpc.output().full_name() {
        "google.protobuf.Empty" => empty.to_owned(),
        _ if rpc.is_server_streaming() => format!("stream of `{}`", rpc.output().name()),
        _ => format!("`{}`", rpc.output().name()),
    }
}

fn rest_table<B: Dispatch>(rpcs: &[MethodDescriptor]) -> String {
    const TENANT: &str = "/{tenant}";
    let mut table = "| Route | RPC | Parameters | Response |\n| --- | --- | --- | --- |\n".to_owned();
    for rpc in rpcs {
        let routes = routes::<B>(rpc);
        let is_twin = |route: &HttpRoute, other: &HttpRoute| {
            other.verb == route.verb && other.template.strip_prefix(TENANT) == Some(&route.template)
        };
        let has_tenants = routes.iter().any(|route| route.template.starts_with(TENANT));
        for route in routes.iter().filter(|route| !route.template.starts_with(TENANT)) {
            assert!(!has_tenants || routes.iter().any(|other| is_twin(route, other)), "{}: no tenant", route.template);
            let path = path(&route.template, |name| {
                let field = rpc.input().get_field_by_name(name);
                format!("{{{}}}", field.map_or(name.to_owned(), |field| field.json_name().to_owned()))
            });
            let (verb, parameters, response) = (&route.verb, parameters(rpc, route), response(rpc, "empty object"));
            writeln!(table, "| `{verb} {path}` | {} | {parameters} | {response} |", rpc.name()).unwrap();
        }
    }
    table
}

/// Returns the names of the JSON-RPC methods of 0.3.
pub(crate) fn method_names() -> Vec<&'static str> {
    METHODS.iter().map(|(name, _)| *name).collect()
}

fn document() -> String {
    let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
    let (current, v03) = (rpcs(&pool, "lf.a2a.v1.A2AService"), rpcs(&pool, "a2a.v1.A2AService"));
    let mut text = HEAD.to_owned() + &rest_table::<ServiceHandle>(&current) + JSON_RPC;
    for rpc in &current {
        assert!(ServiceHandle::rpc(rpc.name()).is_some(), "{}", rpc.name());
        writeln!(text, "| `{}` | `{}` | {} |", rpc.name(), rpc.input().name(), response(rpc, "`null`")).unwrap();
    }
    text += REST_V03;
    text += &rest_table::<V03Rest>(&v03);
    assert!(V03Rest::route("GET", &["v1", "tasks"], "").is_some());
    assert!(V03Rest::route("GET", &["v1", "task", "x"], "").is_some());
    text += "| `GET /v1/tasks` | ListTasks of 1.0, with tasks of 0.3 | query: as in 1.0 | `tasks`, `nextPageToken` |\n";
    text += JSON_RPC_V03;
    for name in method_names() {
        let method = V03Methods::rpc(name).unwrap();
        let current = method.name();
        let rpc = current_rpc_descriptor(&pool, current);
        let streaming = V03Methods::traits(method).is_streaming;
        assert_eq!(streaming, rpc.is_server_streaming(), "{name}");
        let result = match (current, streaming) {
            (_, true) => "stream of tasks, messages and updates",
            ("SendMessage", _) => "task or message",
            ("GetTask" | "CancelTask", _) => "task",
            ("ListTasks", _) => "page of tasks",
            ("ListTaskPushNotificationConfigs", _) => "array of push configurations",
            ("DeleteTaskPushNotificationConfig", _) => "`null`",
            ("GetExtendedAgentCard", _) => "agent card",
            _ => "push configuration",
        };
        writeln!(text, "| `{name}` | `{current}` | {result} |").unwrap();
    }
    text + TAIL
}

fn current_rpc_descriptor(pool: &DescriptorPool, name: &str) -> MethodDescriptor {
    rpcs(pool, "lf.a2a.v1.A2AService").into_iter().find(|rpc| rpc.name() == name).unwrap()
}

#[test]
fn rest_document_is_up_to_date() {
    let (path, text) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/rest.md"), document());
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "outdated; UPDATE=1 writes {}", path.display());
}
