//! Spans, and their export by OTLP over HTTP: the receiver is in the test, and decodes with the messages of OpenTelemetry.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    process::Output,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use a2a_service::{
    agent::{End, demo::Demo, from_fn},
    auth::{NewToken, add_token},
    bytes::Bytes,
    call::Call,
    client::{self, Client, Retry},
    http::{HeaderMap, StatusCode},
    opentelemetry::{
        global::BoxedTracer,
        trace::{SpanKind as Kind, TracerProvider as _},
    },
    pb::v1::{GetTaskRequest, SendMessageRequest, send_message_response::Payload},
    server::Server,
};
use axum::{Router, body::Body, extract::State, response::Response, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value as AnyValue},
    trace::v1::{Span, span::SpanKind, status::StatusCode as SpanStatus},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData, SpanExporter},
};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::TcpListener,
    process::Child,
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};

use crate::program::{a2a, message, output, post as send, signal, started};

const SOON: Duration = Duration::from_secs(30);

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// `traceparent` of a caller who exports the trace.
const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Attributes of resources, spans, their events and links in the registries of OpenTelemetry. Others begin with `a2a_service.`. Each
/// name was compared with `model/` of semantic-conventions 1.44.0 and, for `a2a.*`, `gen_ai.*` and `mcp.*`, with `model/` of
/// semantic-conventions-genai, which has no versions, as of November 2026.
const CONVENTIONS: [&str; 50] = [
    "a2a.message.id",
    "a2a.method.name",
    "a2a.protocol.version",
    "a2a.task.id",
    "a2a.task.state",
    "a2a.tenant",
    "client.address",
    "db.operation.batch.size",
    "db.operation.name",
    "db.system.name",
    "error.type",
    "gen_ai.agent.name",
    "gen_ai.conversation.id",
    "gen_ai.input.messages",
    "gen_ai.operation.name",
    "gen_ai.output.messages",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.finish_reasons",
    "gen_ai.response.time_to_first_chunk",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.id",
    "gen_ai.tool.call.result",
    "gen_ai.tool.name",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "host.name",
    "http.request.method",
    "http.request.resend_count",
    "http.response.status_code",
    "http.route",
    "jsonrpc.request.id",
    "mcp.method.name",
    "network.protocol.version",
    "process.executable.name",
    "process.exit.code",
    "process.pid",
    "rpc.method",
    "rpc.status_code",
    "rpc.system.name",
    "server.address",
    "server.port",
    "service.instance.id",
    "service.name",
    "service.version",
    "telemetry.sdk.language",
    "telemetry.sdk.name",
    "telemetry.sdk.version",
    "url.scheme",
    "user_agent.original",
];

/// Exported span.
#[derive(Clone, Debug)]
struct Exported {
    span: Span,
    resource: BTreeMap<String, String>,
}

fn attributes(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &AnyValue| match value {
        AnyValue::StringValue(text) => text.clone(),
        AnyValue::IntValue(number) => number.to_string(),
        AnyValue::DoubleValue(number) => number.to_string(),
        AnyValue::BoolValue(flag) => flag.to_string(),
        AnyValue::StringValueStrindex(_)
        | AnyValue::ArrayValue(_)
        | AnyValue::KvlistValue(_)
        | AnyValue::BytesValue(_) => format!("{value:?}"),
    };
    let value = |attribute: &KeyValue| attribute.value.as_ref()?.value.as_ref().map(text);
    attributes.iter().filter_map(|attribute| Some((attribute.key.clone(), value(attribute)?))).collect()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

impl Exported {
    fn name(&self) -> &str {
        &self.span.name
    }

    fn attribute(&self, name: &str) -> String {
        attributes(&self.span.attributes).remove(name).unwrap_or_default()
    }

    fn trace(&self) -> String {
        hex(&self.span.trace_id)
    }

    fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    fn parent(&self) -> String {
        hex(&self.span.parent_span_id)
    }

    fn is_server(&self) -> bool {
        self.span.kind() == SpanKind::Server
    }

    /// Relations and span ids of the links.
    fn links(&self) -> Vec<(String, String)> {
        let relation =
            |attributes_: &[KeyValue]| attributes(attributes_).remove("a2a_service.link").unwrap_or_default();
        self.span.links.iter().map(|link| (relation(&link.attributes), hex(&link.span_id))).collect()
    }

    fn failed(&self) -> bool {
        self.span.status.as_ref().is_some_and(|status| status.code() == SpanStatus::Error)
    }

    /// `traceparent` of a request that this span is about.
    fn header(&self) -> String {
        format!("00-{}-{}-01", self.trace(), self.id())
    }
}

/// Response of a collector to a request with this number.
type Respond = dyn Fn(usize) -> Option<Response> + Send + Sync;

/// Collector that keeps the spans of accepted requests.
#[derive(Clone)]
struct Collector {
    spans: Arc<watch::Sender<Vec<Exported>>>,
    /// Ids of the spans of all requests, also of those that are not accepted.
    offered: Arc<Mutex<Vec<Vec<u8>>>>,
    requests: Arc<AtomicUsize>,
    headers: Arc<Mutex<HeaderMap>>,
    /// No request gets a response before this has a permit.
    gate: Arc<Semaphore>,
    respond: Arc<Respond>,
    url: String,
}

impl Collector {
    /// Starts a collector. `None` of `respond`: no response.
    async fn start(respond: impl Fn(usize) -> Option<Response> + Send + Sync + 'static) -> Self {
        Self::start_behind(Semaphore::new(1), respond).await
    }

    async fn start_behind(
        gate: Semaphore,
        respond: impl Fn(usize) -> Option<Response> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (spans, _) = watch::channel(Vec::new());
        let respond = Arc::new(respond);
        let (spans, gate) = (Arc::new(spans), Arc::new(gate));
        let (offered, requests, headers) = Default::default();
        let collector = Self { spans, offered, requests, headers, gate, respond, url };
        let router = Router::new().route("/v1/traces", post(receive)).with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        collector
    }

    async fn accepting() -> Self {
        Self::start(|_| Some(Response::new(Body::empty()))).await
    }

    /// Waits until the spans fulfil a condition, and returns them.
    async fn wait(&self, is_met: impl Fn(&[Exported]) -> bool) -> Vec<Exported> {
        let mut spans = self.spans.subscribe();
        let met = timeout(SOON, spans.wait_for(|spans| is_met(spans))).await;
        let met = met.map(|met| met.unwrap().clone());
        met.unwrap_or_else(|_| panic!("received only {:#?}", self.spans.borrow()))
    }

    /// Waits for a span with this name, and returns the spans so far.
    async fn wait_for(&self, name: &str) -> Vec<Exported> {
        self.wait(|spans| spans.iter().any(|span| span.name() == name)).await
    }

    /// Starts a server that exports to this collector.
    async fn server(&self, arguments: &[&str]) -> (Child, String) {
        let arguments = [&["serve", "--listen", "127.0.0.1:0", "--otlp-endpoint", &self.url], arguments].concat();
        started(a2a(&arguments)).await
    }
}

async fn receive(State(collector): State<Collector>, headers: HeaderMap, body: Bytes) -> Response {
    assert_eq!(headers["content-type"], "application/x-protobuf");
    let number = collector.requests.fetch_add(1, SeqCst);
    *collector.headers.lock().unwrap() = headers;
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let spans = request.resource_spans.into_iter().flat_map(|all| {
        let resource = attributes(&all.resource.unwrap_or_default().attributes);
        let spans = all.scope_spans.into_iter().flat_map(|scope| scope.spans);
        spans.map(move |span| Exported { span, resource: resource.clone() }).collect::<Vec<_>>()
    });
    let spans: Vec<_> = spans.collect();
    collector.offered.lock().unwrap().extend(spans.iter().map(|span| span.span.span_id.clone()));
    drop(collector.gate.acquire().await);
    let Some(response) = (collector.respond)(number) else { return std::future::pending().await };
    if response.status() == StatusCode::OK {
        for Exported { span, resource } in &spans {
            let of_events = span.events.iter().flat_map(|event| &event.attributes);
            let all =
                span.attributes.iter().chain(of_events).chain(span.links.iter().flat_map(|link| &link.attributes));
            for name in all.map(|attribute| &attribute.key).chain(resource.keys()) {
                // The second one is set by a test.
                let is_own = name.starts_with("a2a_service.") || name == "deployment.environment.name";
                assert!(is_own || CONVENTIONS.contains(&&**name), "{name} is in no convention");
            }
        }
        collector.spans.send_modify(|all| all.extend(spans));
    }
    response
}

fn status(status: u16) -> Response {
    Response::builder().status(status).header("retry-after", "1").body(Body::empty()).unwrap()
}

fn find<'a>(spans: &'a [Exported], name: &str) -> &'a Exported {
    spans.iter().find(|span| span.name() == name).unwrap_or_else(|| panic!("no {name} in {spans:#?}"))
}

/// Stops a server. Returns its stderr.
async fn stop(mut child: Child) -> String {
    signal(&child, "-TERM");
    let mut stderr = String::new();
    timeout(SOON, child.stderr.take().unwrap().read_to_string(&mut stderr)).await.unwrap().unwrap();
    assert_eq!(timeout(SOON, child.wait()).await.unwrap().unwrap().code(), Some(0), "{stderr}");
    stderr
}

/// Threads of a process, by name.
#[cfg(target_os = "linux")]
fn threads(child: &Child) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{}/task", child.id().unwrap())).unwrap();
    threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).unwrap()).collect()
}

#[tokio::test]
async fn calls_of_each_binding_continue_the_trace_of_the_caller() {
    let collector = Collector::accepting().await;
    let (child, url) = collector.server(&[]).await;
    let call = || Call { trace: Some(CALLER.to_owned()), ..Call::default() };
    let request = |text: &str| serde_json::from_value(message(text)).unwrap();
    for agent in
        [client::grpc(&url).unwrap(), client::rest(&url).unwrap(), client::json_rpc(&format!("{url}/rpc")).unwrap()]
    {
        agent.send_message(call().request(request("hello"))).await.unwrap();
        let mut events =
            agent.send_streaming_message(call().request(request("/stream 3 1"))).await.unwrap().into_inner();
        while let Some(event) = tokio_stream::StreamExt::next(&mut events).await {
            event.unwrap();
        }
    }
    let old = json!({"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {
        "message": {"kind": "message", "messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": "hello"}]}}});
    let sent = crate::bindings::http().post(format!("{url}/rpc")).header("content-type", "application/json");
    sent.header("traceparent", CALLER).header("tracestate", "vendor=1").body(old.to_string()).send().await.unwrap();
    let spans = collector.wait(|spans| spans.len() >= 14).await;
    assert_eq!(spans.len(), 14, "{spans:#?}");
    // The client of a proxy on this machine may be anybody.
    let stranger = crate::bindings::http().post(format!("{url}/rpc")).header("content-type", "application/json");
    let stranger = stranger.header("x-forwarded-for", "203.0.113.5").header("traceparent", CALLER);
    stranger.body(old.to_string()).send().await.unwrap();
    let all = collector.wait(|spans| spans.len() >= 16).await;
    let served = all[14..].iter().find(|span| span.is_server()).unwrap();
    assert!(served.trace() != TRACE && served.span.links.len() == 1, "{served:#?}");
    let servers: Vec<_> = spans.iter().filter(|span| span.is_server()).collect();
    for span in &servers {
        assert_eq!((&*span.trace(), &*span.parent()), (TRACE, "00f067aa0ba902b7"), "{span:#?}");
        assert_eq!(span.attribute("a2a.method.name"), span.name());
        assert_eq!(span.attribute("client.address"), "127.0.0.1");
        assert_eq!(span.attribute("http.response.status_code"), "200");
        assert_eq!(span.attribute("a2a.message.id"), "m-1");
        assert!(!span.attribute("a2a.task.id").is_empty() && !span.failed(), "{span:#?}");
        let turn = spans.iter().find(|turn| turn.parent() == span.id()).unwrap();
        assert_eq!((turn.name(), turn.trace(), turn.span.kind()), ("invoke_agent", span.trace(), SpanKind::Internal));
        assert_eq!(turn.attribute("a2a.task.id"), span.attribute("a2a.task.id"));
        assert_eq!(turn.attribute("a2a_service.turn.outcome"), "completed");
        assert!(!turn.attribute("gen_ai.conversation.id").is_empty() && turn.links().is_empty(), "{turn:#?}");
        assert_eq!(span.resource["service.name"], "a2a");
        assert_eq!(span.resource["service.version"], env!("CARGO_PKG_VERSION"));
    }
    let mut kinds: Vec<_> = servers
        .iter()
        .map(|span| (span.attribute("a2a_service.binding"), span.attribute("a2a.protocol.version"), span.name()))
        .collect();
    kinds.sort();
    let expected = [
        ("grpc", "1.0", "SendMessage"),
        ("grpc", "1.0", "SendStreamingMessage"),
        ("http", "1.0", "SendMessage"),
        ("http", "1.0", "SendStreamingMessage"),
        ("jsonrpc", "0.3", "SendMessage"),
        ("jsonrpc", "1.0", "SendMessage"),
        ("jsonrpc", "1.0", "SendStreamingMessage"),
    ];
    assert_eq!(kinds, expected.map(|(binding, version, name)| (binding.to_owned(), version.to_owned(), name)));
    let old = servers.iter().find(|span| span.attribute("a2a.protocol.version") == "0.3").unwrap();
    assert_eq!(old.span.trace_state, "vendor=1");
    for span in servers.iter().filter(|span| span.name() == "SendStreamingMessage") {
        assert!(span.attribute("a2a_service.stream.events").parse::<u32>().unwrap() >= 3, "{span:#?}");
        assert_eq!(span.span.events[0].name, "first_event");
    }
    stop(child).await;
}

#[tokio::test]
async fn batch_is_one_span_with_a_child_for_each_call() {
    let collector = Collector::accepting().await;
    let (child, url) = collector.server(&[]).await;
    let call =
        |id: u32, method: &str, params: Value| json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    let batch = json!([call(1, "SendMessage", message("hello")), call(2, "GetTask", json!({"id": "nobody"}))]);
    send(&format!("{url}/rpc"), &batch).await;
    // Neither documents nor health checks have spans, and a request that is no call has no name of one.
    for path in ["/.well-known/agent-card.json", "/healthz", "/readyz", "/metrics", "/docs"] {
        crate::bindings::fetch(format!("{url}{path}")).await.unwrap();
    }
    let unknown = crate::bindings::http().get(format!("{url}/secret-path")).send().await.unwrap();
    assert_eq!(unknown.status(), 404);
    let spans = collector.wait(|spans| spans.iter().filter(|span| span.is_server()).count() >= 4).await;
    let names: Vec<_> = spans.iter().filter(|span| span.is_server()).map(Exported::name).collect();
    let of = |name: &str| names.iter().filter(|found| **found == name).count();
    assert_eq!((names.len(), of("POST"), of("SendMessage"), of("GetTask"), of("GET")), (4, 1, 1, 1, 1), "{names:?}");
    let (all, get) = (find(&spans, "POST"), find(&spans, "GetTask"));
    assert_eq!((all.attribute("a2a.message.id"), all.attribute("a2a.task.id")), Default::default());
    let sent = find(&spans, "SendMessage");
    assert_eq!(sent.attribute("a2a.message.id"), "m-1");
    assert!(!sent.attribute("a2a.task.id").is_empty() && !get.failed(), "{sent:#?}");
    for child in [sent, get] {
        assert_eq!((child.trace(), child.parent()), (all.trace(), all.id()));
    }
    assert_eq!(
        (get.attribute("error.type"), get.attribute("jsonrpc.request.id")),
        ("TASK_NOT_FOUND".into(), "2".into())
    );
    stop(child).await;
}

/// Exporter of the embedding program.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Kept {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

#[tokio::test]
async fn program_has_the_spans_of_its_server_and_its_client_and_strangers_are_linked() {
    let kept = Kept::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(kept.clone()).build();
    let tracer = || BoxedTracer::new(Box::new(provider.tracer("program")));
    // Without the address of its client, a router trusts nobody.
    let url = crate::bindings::program(Server::new(Demo).tracer(tracer()).router()).await;
    let client = Client::builder().tracer(tracer()).connect(&url).await.unwrap();
    let call = || Call { trace: Some(CALLER.to_owned()), ..Call::default() };
    let request = |text: &str| call().request(serde_json::from_value::<SendMessageRequest>(message(text)).unwrap());
    client.service().send_message(request("hello")).await.unwrap();
    let mut events = client.service().send_streaming_message(request("/stream 3 1")).await.unwrap().into_inner();
    while let Some(event) = tokio_stream::StreamExt::next(&mut events).await {
        event.unwrap();
    }
    let missing = GetTaskRequest { id: "nobody".into(), ..GetTaskRequest::default() };
    client.service().get_task(Call::default().request(missing)).await.unwrap_err();
    drop((events, client));
    let spans = kept.0.lock().unwrap().clone();
    let of = |name: &str, kind: Kind| {
        let span = spans.iter().find(|span| span.name == name && span.span_kind == kind);
        span.unwrap_or_else(|| panic!("no {name} in {spans:#?}")).clone()
    };
    let attribute = |span: &SpanData, name: &str| {
        let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == name);
        found.map(|attribute| attribute.value.as_str().into_owned()).unwrap_or_default()
    };
    for name in ["SendMessage", "SendStreamingMessage"] {
        let (sent, served) = (of(name, Kind::Client), of(name, Kind::Server));
        assert_eq!(sent.span_context.trace_id().to_string(), TRACE);
        assert_eq!(sent.parent_span_id.to_string(), "00f067aa0ba902b7");
        assert_ne!(served.span_context.trace_id(), sent.span_context.trace_id(), "a stranger is no parent");
        assert_eq!(served.links.links[0].span_context.span_id(), sent.span_context.span_id());
        assert_eq!(attribute(&sent, "a2a.task.id"), attribute(&served, "a2a.task.id"));
        assert_eq!(attribute(&sent, "server.address"), "127.0.0.1");
    }
    assert_eq!(attribute(&of("GetTask", Kind::Client), "error.type"), "TASK_NOT_FOUND");
}

#[tokio::test]
async fn retries_are_events_of_the_span_of_their_call() {
    let kept = Kept::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(kept.clone()).build();
    let tracer = BoxedTracer::new(Box::new(provider.tracer("program")));
    let url = crate::bindings::program(Router::new().fallback(async || StatusCode::SERVICE_UNAVAILABLE)).await;
    let retry = Retry::default().attempts(2).first(Duration::from_millis(1));
    let agent = Client::builder().retry(retry).tracer(tracer).rest(&url).unwrap();
    let missing = GetTaskRequest { id: "nobody".into(), ..GetTaskRequest::default() };
    agent.get_task(Call::default().request(missing)).await.unwrap_err();
    let spans = kept.0.lock().unwrap().clone();
    assert_eq!(spans.len(), 1, "{spans:#?}");
    let events: Vec<_> = spans[0]
        .events
        .iter()
        .map(|event| {
            let value = |name: &str| {
                let found = event.attributes.iter().find(|attribute| attribute.key.as_str() == name);
                found.map(|attribute| attribute.value.as_str().into_owned()).unwrap_or_default()
            };
            let attempt = value("a2a_service.retry.attempt");
            (event.name.to_string(), attempt, value("error.type"), value("a2a_service.retry.delay").is_empty())
        })
        .collect();
    let retry = |attempt: &str| ("retry".to_owned(), attempt.to_owned(), "UNAVAILABLE".to_owned(), false);
    assert_eq!(events, [retry("1"), retry("2")]);
}

/// MCP server that answers a call with its `traceparent`.
#[cfg(unix)]
const TOOL_SERVER: &str = r#"
while read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  trace=$(printf '%s' "$line" | sed -n 's/.*"_meta":{[^}]*"traceparent":"\([^"]*\)".*/\1/p')
  case "$line" in
    *'"initialize"'*) reply='{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"s","version":"1"}}' ;;
    *'"tools/list"'*) reply='{"tools":[{"name":"greet","inputSchema":{"type":"object"}}]}' ;;
    *'"tools/call"'*) reply='{"content":[{"type":"text","text":"'$trace'"}]}' ;;
    *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$reply"
done
"#;

/// Text of the first artifact of a reply.
fn text_of(reply: &Value) -> &str {
    reply["task"]["artifacts"][0]["parts"][0]["text"].as_str().unwrap_or_else(|| panic!("{reply}"))
}

#[cfg(unix)]
#[tokio::test]
async fn agents_get_the_context_of_the_span_of_their_request() {
    let collector = Collector::accepting().await;
    let path = std::env::var("PATH").unwrap();
    let run = async |arguments: &[&str]| {
        let arguments = [&["serve", "--listen", "127.0.0.1:0", "--otlp-endpoint", &collector.url], arguments].concat();
        let mut command = a2a(&arguments);
        command.env("PATH", &path);
        let (child, url) = started(command).await;
        let sent =
            crate::bindings::http().post(format!("{url}/message:send")).header("content-type", "application/json");
        let sent = sent.header("traceparent", CALLER).header("tracestate", "vendor=1");
        let reply = sent.body(message("hello").to_string()).send().await.unwrap();
        let reply: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        stop(child).await;
        reply
    };
    // Returns the span with this name below the turn, and removes all.
    let take = |name: &str| {
        let mut spans = Vec::new();
        collector.spans.send_modify(|all| spans = std::mem::take(all));
        let span = find(&spans, name).clone();
        assert_eq!((span.trace(), span.span.kind()), (TRACE.to_owned(), SpanKind::Client));
        assert_eq!(span.parent(), find(&spans, "invoke_agent").id());
        span
    };
    let reply = run(&["--exec", r#"sh -c 'echo "$TRACEPARENT $TRACESTATE"; exit 0'"#]).await;
    let span = take("sh");
    assert_eq!(text_of(&reply).trim(), format!("{} vendor=1", span.header()));
    let exit = (span.attribute("process.exit.code"), span.attribute("process.executable.name"));
    assert_eq!(exit, ("0".to_owned(), "sh".to_owned()));
    let echo =
        r#"sh -c 'read -r line; t=${line#*\"traceparent\":\"}; echo "{\"type\":\"artifact\",\"text\":\"${t%%\"*}\"}"'"#;
    let reply = run(&["--exec", echo, "--exec-format", "json_lines"]).await;
    assert_eq!(text_of(&reply), take("sh").header());

    let persistent = r#"sh -c 'while read -r line; do t=${line#*\"traceparent\":\"}; n=${line#*\"turn\":\"}; n=${n%%\"*}
        printf "{\"type\":\"artifact\",\"turn\":\"%s\",\"text\":\"%s\"}\n{\"type\":\"complete\",\"turn\":\"%s\"}\n" "$n" "${t%%\"*}" "$n"; done'"#;
    let reply = run(&["--exec", persistent, "--exec-format", "persistent"]).await;
    assert_eq!(text_of(&reply), take("sh").header());

    let header = |headers: &HeaderMap| headers["traceparent"].to_str().unwrap().to_owned();
    let endpoint =
        crate::bindings::program(Router::new().fallback(async move |headers: HeaderMap| header(&headers))).await;
    let reply = run(&["--http", &endpoint]).await;
    let span = take("POST");
    assert_eq!((text_of(&reply), &*span.attribute("http.response.status_code")), (&*span.header(), "200"));
    assert_eq!(span.attribute("server.address"), "127.0.0.1");

    let complete = move |headers: HeaderMap| async move {
        let message = json!({"role": "assistant", "content": header(&headers)});
        let usage = json!({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11});
        let mut body = completion(&message, "stop");
        body["usage"] = usage;
        as_json(&body)
    };
    let model = crate::bindings::program(Router::new().fallback(complete)).await;
    for content in ["none", "messages"] {
        let reply = run(&["--openai", &model, "--openai-model", "m", "--otlp-content", content]).await;
        let span = take("chat m");
        assert_eq!(text_of(&reply), span.header());
        let value = |name| span.attribute(name);
        let usage = [value("gen_ai.usage.input_tokens"), value("gen_ai.usage.output_tokens")];
        assert_eq!((usage, value("gen_ai.request.model")), (["9".to_owned(), "2".to_owned()], "m".to_owned()));
        let contents = (value("gen_ai.input.messages"), value("gen_ai.output.messages"));
        assert_eq!(contents.0.contains("hello"), content == "messages", "{contents:?}");
        assert_eq!(contents.1.contains(&span.header()), content == "messages", "{contents:?}");
    }

    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("server.sh");
    fs::write(&script, TOOL_SERVER).unwrap();
    let servers = format!("[{{ name = 'shell', command = ['sh', '{}'] }}]", script.display());
    let model = crate::bindings::program(crate::dependencies::model()).await;
    let reply = run(&["--openai", &format!("{model}/v1"), "--model", "m", "--openai-mcp", &servers]).await;
    let span = take("tools/call greet");
    assert_eq!(text_of(&reply), span.header());
    let [method, tool, operation, server] =
        ["mcp.method.name", "gen_ai.tool.name", "gen_ai.operation.name", "a2a_service.mcp.server"]
            .map(|name| span.attribute(name));
    assert_eq!([&*method, &*tool, &*operation, &*server], ["tools/call", "greet", "execute_tool", "shell"]);

    // A gateway and its upstream agent have one trace.
    let (upstream, url) = collector.server(&[]).await;
    run(&["--upstream", &url]).await;
    stop(upstream).await;
    let spans = collector.spans.borrow().clone();
    let is_send = |span: &&Exported| span.is_server() && !span.attribute("a2a.message.id").is_empty();
    let called = spans.iter().filter(is_send).find(|span| span.parent() != "00f067aa0ba902b7").unwrap();
    let call = find_id(&spans, &called.parent());
    assert_eq!((call.span.kind(), call.trace(), call.name()), (SpanKind::Client, TRACE.to_owned(), called.name()));
    assert_eq!(call.attribute("a2a.task.id"), called.attribute("a2a.task.id"));
    assert_eq!(find_id(&spans, &call.parent()).name(), "invoke_agent");
}

/// Body of a send, which is answered at once.
fn at_once(text: &str, task: Option<&str>) -> Value {
    let mut body = message(text);
    body["configuration"] = json!({"returnImmediately": true});
    if let Some(task) = task {
        body["message"]["taskId"] = json!(task);
    }
    body
}

/// Turns with this number, in the order of their ends.
fn turns<'a>(spans: &'a [Exported], number: &str) -> Vec<&'a Exported> {
    let is_turn =
        |span: &&Exported| span.name() == "invoke_agent" && span.attribute("a2a_service.turn.number") == number;
    spans.iter().filter(is_turn).collect()
}

/// Returns what a store has of the turns of a task: number, attempt, and the span as a `traceparent`.
async fn stored_turns(store: &str, task: &str) -> Vec<(u64, u64, String)> {
    let shown = output(a2a(&["admin", "show", task, "--timeline", "-ojsonl", "--store", store])).await;
    assert!(shown.status.success(), "{shown:?}");
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let span = |turn: &Value| format!("00-{}-{}-01", turn["trace"].as_str().unwrap(), turn["span"].as_str().unwrap());
    let turns = shown["turns"].as_array().unwrap().iter();
    turns.map(|turn| (turn["n"].as_u64().unwrap(), turn["attempt"].as_u64().unwrap(), span(turn))).collect()
}

#[tokio::test]
async fn turns_are_linked_over_follow_ups_and_restarts() {
    let collector = Collector::accepting().await;
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let arguments = ["--store", &store, "--idempotent"];
    let (child, url) = collector.server(&arguments).await;
    let url_of = |url: &str| format!("{url}/message:send");
    let asked = send(&url_of(&url), &at_once("/ask who?", None)).await;
    let task = asked["task"]["id"].as_str().unwrap();
    collector.wait(|spans| turns(spans, "1").len() == 1).await;
    send(&url_of(&url), &at_once("me", Some(task))).await;
    let spans = collector.wait(|spans| turns(spans, "2").len() == 1).await;
    let (first, second) = (turns(&spans, "1")[0], turns(&spans, "2")[0]);
    assert_eq!(second.links(), [("previous_turn".to_owned(), first.id())]);
    assert_eq!(stored_turns(&store, task).await, [(1, 1, first.header()), (2, 1, second.header())]);
    let parent = spans.iter().find(|span| span.id() == second.parent()).unwrap();
    assert_eq!((parent.name(), parent.trace()), ("SendMessage", second.trace()));
    assert_ne!(first.trace(), second.trace());
    // The server is killed during a turn: another attempt is in the same trace.
    let sent = crate::bindings::http().post(url_of(&url)).header("content-type", "application/json");
    let sent = sent.header("traceparent", CALLER).body(at_once("/slow 3", None).to_string()).send().await.unwrap();
    let sent: Value = serde_json::from_slice(&sent.bytes().await.unwrap()).unwrap();
    let spans = collector.wait(|spans| spans.iter().any(|span| span.is_server() && span.trace() == TRACE)).await;
    let call = spans.iter().find(|span| span.trace() == TRACE).unwrap().id();
    let id = sent["task"]["id"].as_str().unwrap();
    let interrupted = stored_turns(&store, id).await;
    signal(&child, "-KILL");
    let (child, _) = collector.server(&arguments).await;
    let spans =
        collector.wait(|spans| spans.iter().any(|span| span.name() == "invoke_agent" && span.trace() == TRACE)).await;
    let turn = spans.iter().find(|span| span.name() == "invoke_agent" && span.trace() == TRACE).unwrap();
    assert_eq!(turn.attribute("a2a.task.id"), id);
    assert_eq!((turn.parent(), turn.attribute("a2a_service.turn.attempt")), (call.clone(), "2".to_owned()));
    let links = turn.links();
    assert_eq!((links.len(), &*links[0].0), (1, "previous_attempt"), "{turn:#?}");
    assert!(links[0].1 != call && links[0].1 != turn.id(), "{turn:#?}");
    // The span of the interrupted attempt was lost with its server. Its record names it.
    assert_eq!(interrupted, [(1, 1, format!("00-{TRACE}-{}-01", links[0].1))]);
    assert_eq!(stored_turns(&store, id).await, [interrupted, vec![(1, 2, turn.header())]].concat());
    stop(child).await;
}

#[tokio::test]
async fn turn_of_several_messages_continues_the_first_and_links_the_others() {
    let kept = Kept::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(kept.clone()).build();
    let permits = Arc::new(Semaphore::new(0));
    let agent = {
        let permits = Arc::clone(&permits);
        from_fn(move |_, out| {
            let permits = Arc::clone(&permits);
            async move {
                out.working().await?;
                permits.acquire().await?.forget();
                Ok(End::input_required("more?"))
            }
        })
    };
    let tracer = BoxedTracer::new(Box::new(provider.tracer("program")));
    let service = Server::new(agent).tracer(tracer).into_service();
    let send = async |task: Option<&str>, span: &str| {
        let trace = Some(CALLER.replace("00f067aa0ba902b7", span));
        let request = serde_json::from_value::<SendMessageRequest>(at_once("hello", task)).unwrap();
        let reply = service.send_message(Call { trace, ..Call::default() }.request(request)).await.unwrap();
        match reply.into_inner().payload {
            Some(Payload::Task(task)) => task.id,
            other => panic!("{other:?}"),
        }
    };
    let task = send(None, "0000000000000001").await;
    for span in ["0000000000000002", "0000000000000003", "0000000000000004"] {
        send(Some(&task), span).await;
    }
    permits.add_permits(2);
    let ended = async {
        while kept.0.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, ended).await.unwrap();
    let spans = kept.0.lock().unwrap().clone();
    let parents: Vec<_> = spans.iter().map(|span| span.parent_span_id.to_string()).collect();
    assert_eq!(parents, ["0000000000000001", "0000000000000002"]);
    let links: Vec<_> = spans[1].links.iter().map(|link| link.span_context.span_id().to_string()).collect();
    let first = spans[0].span_context.span_id().to_string();
    assert_eq!(links, [&*first, "0000000000000003", "0000000000000004"]);
}

#[tokio::test]
async fn reads_and_cancels_link_the_turn_that_they_are_about() {
    let collector = Collector::accepting().await;
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let (child, url) = collector.server(&["--store", &store]).await;
    let mut body = at_once("/slow 20", None);
    body["tenant"] = json!("north");
    let sent = send(&format!("{url}/message:send"), &body).await;
    let path = format!("/north/tasks/{}", sent["task"]["id"].as_str().unwrap());
    let get = async |url: &str| crate::bindings::fetch(format!("{url}{path}")).await.unwrap().text().await.unwrap();
    assert!(get(&url).await.contains("TASK_STATE_WORKING"));
    let subscribed = crate::bindings::fetch(format!("{url}{path}:subscribe")).await.unwrap();
    let canceled = send(&format!("{url}{path}:cancel"), &json!({})).await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    subscribed.text().await.unwrap();
    let port = url.rsplit(':').next().unwrap().to_owned();
    stop(child).await;
    // The turn of a task that is read from the store.
    let (child, url) = collector.server(&["--store", &store]).await;
    assert!(get(&url).await.contains("TASK_STATE_CANCELED"));
    stop(child).await;
    let spans = collector.spans.borrow().clone();
    let turn = find(&spans, "invoke_agent");
    assert_eq!(turn.attribute("a2a.task.state"), "TASK_STATE_CANCELED");
    assert!(turn.span.events.iter().any(|event| event.name == "cancel_requested"), "{turn:#?}");
    let about = |name: &str, state: &str| {
        let is_found = |span: &&Exported| span.name() == name && span.attribute("a2a.task.state") == state;
        spans.iter().find(is_found).unwrap_or_else(|| panic!("no {name} of {state} in {spans:#?}"))
    };
    for (name, state, route) in [
        ("GetTask", "TASK_STATE_WORKING", "/tasks/{id}"),
        ("SubscribeToTask", "TASK_STATE_CANCELED", "/tasks/{id}:subscribe"),
        ("CancelTask", "TASK_STATE_CANCELED", "/tasks/{id}:cancel"),
        ("GetTask", "TASK_STATE_CANCELED", "/tasks/{id}"),
    ] {
        let span = about(name, state);
        assert_eq!(span.links(), [("turn".to_owned(), turn.id())], "{name} {state}");
        assert_ne!(span.trace(), turn.trace());
        assert_eq!((&*span.attribute("http.route"), &*span.attribute("a2a.tenant")), (route, "north"));
    }
    let sent = find(&spans, "SendMessage");
    assert_eq!((sent.attribute("http.route"), sent.attribute("a2a.tenant")), ("/message:send".into(), "north".into()));
    assert_eq!((sent.attribute("server.address"), sent.attribute("server.port")), ("127.0.0.1".into(), port));
    let state = sent.attribute("a2a.task.state");
    assert!(sent.links().is_empty() && ["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"].contains(&&*state), "{state}");
}

#[tokio::test]
async fn turn_has_an_event_of_the_drain_and_a_span_of_a_slow_commit() {
    let collector = Collector::accepting().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a2a.db");
    let (child, url) = collector.server(&["--store", &format!("sqlite:{}", path.display())]).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (target, body) = (format!("{url}/message:send"), at_once("/slow 1", None));
    let mut sending = tokio::spawn(async move { send(&target, &body).await });
    assert!(timeout(Duration::from_millis(400), &mut sending).await.is_err(), "the store is locked");
    other.execute_batch("COMMIT").unwrap();
    timeout(SOON, sending).await.unwrap().unwrap();
    stop(child).await;
    let spans = collector.spans.borrow().clone();
    let (turn, commit) = (find(&spans, "invoke_agent"), find(&spans, "commit"));
    assert_eq!(turn.attribute("a2a_service.turn.outcome"), "completed");
    let events: Vec<_> = turn.span.events.iter().map(|event| &*event.name).collect();
    assert_eq!(events, ["drain"]);
    assert_eq!((commit.parent(), commit.trace()), (turn.id(), turn.trace()));
    assert_eq!(commit.attribute("db.operation.batch.size"), "1");
    assert!(commit.span.end_time_unix_nano - commit.span.start_time_unix_nano >= 100_000_000, "{commit:#?}");
}

/// Answer of a model.
fn completion(message: &Value, finish_reason: &str) -> Value {
    let choice = json!({"index": 0, "message": message, "finish_reason": finish_reason});
    json!({"id": "c-1", "object": "chat.completion", "choices": [choice]})
}

fn as_json(body: &Value) -> ([(&'static str, &'static str); 1], String) {
    ([("content-type", "application/json")], body.to_string())
}

#[tokio::test]
async fn question_of_a_model_is_a_span_of_its_tool() {
    let collector = Collector::accepting().await;
    let call = json!({"name": "ask_user", "arguments": json!({"question": "CANARY?"}).to_string()});
    let call = json!([{"id": "call-1", "type": "function", "function": call}]);
    let body = completion(&json!({"role": "assistant", "tool_calls": call}), "tool_calls");
    let complete = async move || as_json(&body);
    let model = crate::bindings::program(Router::new().fallback(complete)).await;
    let (child, url) = collector.server(&["--openai", &model, "--openai-model", "m", "--openai-ask"]).await;
    let reply = send(&format!("{url}/message:send"), &message("hello")).await;
    assert_eq!(reply["task"]["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let spans = collector.wait_for("SendMessage").await;
    let (asked, turn) = (find(&spans, "execute_tool ask_user"), find(&spans, "invoke_agent"));
    assert_eq!((asked.span.kind(), asked.parent()), (SpanKind::Internal, turn.id()));
    assert_eq!(asked.attribute("gen_ai.operation.name"), "execute_tool");
    assert_eq!(
        (asked.attribute("gen_ai.tool.name"), asked.attribute("gen_ai.tool.call.id")),
        ("ask_user".into(), "call-1".into())
    );
    assert_eq!(find(&spans, "SendMessage").attribute("a2a.task.state"), "TASK_STATE_INPUT_REQUIRED");
    assert!(!format!("{spans:?}").contains("CANARY"));
    stop(child).await;
}

#[tokio::test]
async fn commands_continue_the_trace_of_their_environment() {
    let collector = Collector::accepting().await;
    let (child, url) = collector.server(&[]).await;
    for (name, trace) in [("send", CALLER), ("stream", CALLER), ("send", "invalid")] {
        let mut command = a2a(&[name, &url, "hello", "--verbose"]);
        command.env("TRACEPARENT", trace).env("TRACESTATE", "vendor=1");
        let sent = output(command).await;
        let stderr = String::from_utf8(sent.stderr).unwrap();
        assert_eq!(
            (sent.status.code(), stderr.contains(&format!("trace {TRACE}\n"))),
            (Some(0), trace == CALLER),
            "{stderr}"
        );
    }
    stop(child).await;
    let spans = collector.spans.borrow().clone();
    let servers: Vec<_> = spans.iter().filter(|span| span.is_server() && span.name().starts_with("Send")).collect();
    let parents: Vec<_> = servers.iter().map(|span| (span.name(), span.parent(), &*span.span.trace_state)).collect();
    let caller = "00f067aa0ba902b7".to_owned();
    let expected = [
        ("SendMessage", caller.clone(), "vendor=1"),
        ("SendStreamingMessage", caller, "vendor=1"),
        ("SendMessage", String::new(), ""),
    ];
    assert_eq!(parents, expected);
}

fn find_id<'a>(spans: &'a [Exported], id: &str) -> &'a Exported {
    spans.iter().find(|span| span.id() == id).unwrap()
}

#[tokio::test]
async fn notification_continues_the_trace_of_its_turn_after_a_restart() {
    let collector = Collector::accepting().await;
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let (headers, accepts) = (watch::Sender::new(Vec::new()), Arc::new(AtomicUsize::new(0)));
    let (received, accepted) = (headers.clone(), Arc::clone(&accepts));
    let hook = Router::new().fallback(async move |headers: HeaderMap| {
        received.send_modify(|all| all.push(headers["traceparent"].to_str().unwrap().to_owned()));
        if accepted.load(SeqCst) > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
    });
    let hook = crate::bindings::program(hook).await;
    let arguments = ["--store", &store, "--push-enabled", "--push-allow", "http://127.0.0.1"];
    let (child, url) = collector.server(&arguments).await;
    let mut body = message("hello");
    body["configuration"] = json!({"taskPushNotificationConfig": {"url": hook}});
    let sent = crate::bindings::http().post(format!("{url}/message:send")).header("content-type", "application/json");
    sent.header("traceparent", CALLER).body(body.to_string()).send().await.unwrap();
    let mut all = headers.subscribe();
    timeout(SOON, all.wait_for(|all| !all.is_empty())).await.unwrap().unwrap();
    stop(child).await;
    accepts.store(1, SeqCst);
    let before = headers.borrow().len();
    let (child, _) = collector.server(&arguments).await;
    timeout(SOON, all.wait_for(|all| all.len() > before)).await.unwrap().unwrap();
    let delivered = |spans: &[Exported]| {
        let is_delivered = |span: &&Exported| {
            span.name() == "SendPushNotification" && span.attribute("http.response.status_code") == "200"
        };
        spans.iter().find(is_delivered).cloned()
    };
    let spans = collector.wait(|spans| delivered(spans).is_some()).await;
    let (span, turn) = (delivered(&spans).unwrap(), find(&spans, "invoke_agent"));
    assert_eq!((span.trace(), span.parent()), (TRACE.to_owned(), turn.id()), "{spans:#?}");
    assert!(headers.borrow()[before..].contains(&span.header()), "{span:#?}");
    assert!(span.attribute("a2a_service.push.attempt").parse::<u32>().unwrap() > 1);
    assert_eq!(span.attribute("server.address"), "127.0.0.1");
    let failed = find(&spans, "SendPushNotification");
    assert_eq!((failed.attribute("error.type"), failed.failed()), ("failed".to_owned(), true));
    stop(child).await;
}

/// Agents of each kind, with secrets wherever the configuration has them. `MODEL`, `HOOK` and `TOOLS` stand for addresses and files.
#[cfg(unix)]
const SECRETS: &str = r#"
store = "sqlite:a2a.db"
push.enabled = true
push.allow = ["http://127.0.0.1"]
auth.tokens = "tokens.json"

[[agents]]
name = "environment"
exec.command = "env"

[[agents]]
name = "model"
openai.url = "MODEL"
openai.model = "m"
openai.key = "CANARY-key"
openai.system = "CANARY"
openai.mcp = [{ name = "shell", command = ["sh", "TOOLS"] }]

[[agents]]
name = "endpoint"
http.url = "HOOK/CANARY?token=CANARY"
http.token = "CANARY-token"
"#;

#[cfg(unix)]
#[tokio::test]
async fn contents_and_credentials_are_in_no_span_log_and_metric() {
    let collector = Collector::accepting().await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let tools = TOOL_SERVER.replace("'$trace'", "CANARY");
    fs::write(path("tools.sh"), tools).unwrap();
    // The caller is in the log on purpose, and nowhere else.
    let token = |name: &str| {
        let mut new = NewToken::new(name);
        new.owner = Some(format!("{name}-owner"));
        add_token(&path("tokens.json"), new, std::time::SystemTime::now()).unwrap()
    };
    let (owner, admin) = (token("CANARY"), token("ops"));
    let (hooks, called) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(0));
    let (counted, seen) = (Arc::clone(&hooks), called.clone());
    let hook = Router::new().fallback(async move || {
        seen.send_replace(counted.fetch_add(1, SeqCst) + 1);
        (StatusCode::INTERNAL_SERVER_ERROR, "CANARY")
    });
    let hook = crate::bindings::program(hook).await;
    // Calls a tool with the message, and answers with its result.
    let complete = async |body: Bytes| {
        let body: Value = serde_json::from_slice(&body).unwrap();
        let last = body["messages"].as_array().unwrap().last().unwrap().clone();
        let arguments = json!({"text": last["content"]}).to_string();
        let call = json!([{"id": "call-1", "type": "function", "function": {"name": "greet", "arguments": arguments}}]);
        let (message, reason) = match last["role"].as_str() {
            Some("tool") => (json!({"role": "assistant", "content": last["content"]}), "stop"),
            _ => (json!({"role": "assistant", "tool_calls": call}), "tool_calls"),
        };
        let mut body = completion(&message, reason);
        body["id"] = "CANARY".into();
        as_json(&body)
    };
    let model = crate::bindings::program(Router::new().fallback(complete)).await;
    let config = SECRETS.replace("MODEL", &model).replace("HOOK", &hook);
    let config = config.replace("TOOLS", &path("tools.sh").display().to_string());
    fs::write(path("a2a.toml"), config).unwrap();
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log", "json"]);
    command.env_remove("A2A_STORE").env("PATH", std::env::var_os("PATH").unwrap()).current_dir(directory.path());
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url);
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=CANARY-header");
    command.env("OTEL_SERVICE_NAME", "geo").env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test");
    let (child, url) = started(command).await;
    let post = async |path: &str, body: &Value| {
        let request = crate::bindings::http().post(format!("{url}{path}?x=CANARY")).bearer_auth(&owner);
        let request =
            request.header("x-secret", "CANARY").header("cookie", "CANARY").header("idempotency-key", "CANARY");
        let sent = request.header("content-type", "application/json").body(body.to_string()).send().await.unwrap();
        sent.text().await.unwrap()
    };
    let body = json!({
        "message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "CANARY"}], "metadata": {"CANARY": "CANARY"}},
        "metadata": {"CANARY": "CANARY"},
        "configuration": {"taskPushNotificationConfig": {
            "url": format!("{hook}/CANARY?CANARY=CANARY"), "token": "CANARY",
            "authentication": {"scheme": "Bearer", "credentials": "CANARY"},
        }},
    });
    let reply = post("/message:send", &body).await;
    assert!(reply.contains("OTEL_SERVICE_NAME") && !reply.contains("CANARY-header"), "{reply}");
    let reply = post("/model/message:send", &body).await;
    assert_eq!(text_of(&serde_json::from_str(&reply).unwrap()), "CANARY");
    let reply = post("/endpoint/message:send", &body).await;
    assert!(reply.contains("responded with status 500"), "{reply}");
    for method in ["SendMessage", "SendStreamingMessage"] {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": body});
        assert!(post("/model/rpc", &call).await.contains("CANARY"));
    }
    let rejected = crate::bindings::http().get(format!("{url}/tasks")).bearer_auth("CANARY").send().await.unwrap();
    assert_eq!(rejected.status(), 401);
    // The endpoint is called twice: by its agent, and as the webhook of each task.
    let mut called = called.subscribe();
    timeout(SOON, called.wait_for(|called| *called >= 6)).await.unwrap().unwrap();
    collector.wait_for("SendPushNotification").await;
    let metrics = crate::bindings::http().get(format!("{url}/metrics")).bearer_auth(&admin).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    assert!(metrics.contains("a2a_tool_calls_total") && !metrics.contains("CANARY"), "{metrics}");
    assert_eq!(collector.headers.lock().unwrap()["authorization"], "CANARY-header");
    let stderr = stop(child).await;
    let spans = collector.spans.borrow().clone();
    for name in ["env", "POST", "chat m", "tools/call greet", "SendPushNotification"] {
        find(&spans, name);
    }
    assert_eq!(spans[0].resource["service.name"], "geo");
    assert_eq!(spans[0].resource["deployment.environment.name"], "test");
    let spans = format!("{spans:?}");
    assert!(!spans.contains("CANARY"), "{spans}");
    for line in stderr.lines() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line.as_object_mut().unwrap().retain(|name, _| name != "owner" && name != "principal");
        assert!(!line.to_string().contains("CANARY"), "{line}");
    }
}

#[tokio::test]
async fn spans_of_a_turn_with_a_secret_part_have_no_contents() {
    let collector = Collector::accepting().await;
    let body = completion(&json!({"role": "assistant", "content": "done"}), "stop");
    let complete = async move || as_json(&body);
    let model = crate::bindings::program(Router::new().fallback(complete)).await;
    let arguments = ["--openai", &model, "--openai-model", "m", "--otlp-content", "messages"];
    let (child, url) = collector.server(&arguments).await;
    let mut body = message("shown");
    let secret = json!({"text": "CANARY", "metadata": {"urn:a2a-service:secret:v1": true}});
    body["message"]["parts"].as_array_mut().unwrap().push(secret);
    let reply = send(&format!("{url}/message:send"), &body).await;
    assert_eq!(text_of(&reply), "done");
    let spans = collector.wait_for("SendMessage").await;
    // Not even the other parts: the answer of the model may quote the secret.
    let chat = find(&spans, "chat m");
    let contents = ["gen_ai.input.messages", "gen_ai.output.messages"].map(|name| chat.attribute(name));
    assert_eq!(contents, [const { String::new() }; 2], "{chat:#?}");
    assert_eq!(chat.attribute("gen_ai.request.model"), "m");
    let stderr = stop(child).await;
    assert!(!format!("{spans:?}{stderr}").contains("CANARY"), "{spans:#?}\n{stderr}");
}

#[tokio::test]
async fn log_lines_have_the_ids_of_their_request() {
    let collector = Collector::accepting().await;
    for format in ["json", "text"] {
        let (child, url) = collector.server(&["--log", format, "--log-filter", "info,a2a_service=debug"]).await;
        send(&format!("{url}/message:send"), &message("hello")).await;
        let before = collector.spans.borrow().len();
        let stderr = stop(child).await;
        let spans = collector.spans.borrow().clone();
        let span = find(&spans[before.min(spans.len() - 1)..], "SendMessage").clone();
        let line = stderr.lines().find(|line| line.contains("a2a_service::request")).unwrap();
        if format == "json" {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!((&line["trace.id"], &line["span.id"]), (&json!(span.trace()), &json!(span.id())), "{line}");
            assert_eq!(line.get("span"), None, "{line}");
        } else {
            let ids = format!("trace.id={} span.id={}", span.trace(), span.id());
            assert!(line.contains(&ids), "{line}");
        }
    }
}

#[tokio::test]
async fn spans_are_exported_when_the_server_stops() {
    let collector = Collector::accepting().await;
    let (child, url) = collector.server(&[]).await;
    send(&format!("{url}/message:send"), &message("hello")).await;
    stop(child).await;
    let spans = collector.spans.borrow().clone();
    assert_eq!(find(&spans, "SendMessage").attribute("a2a_service.binding"), "http");
    // A collector that does not respond delays the end by two seconds, and by one for the runtime.
    let hanging = Collector::start(|_| None).await;
    let (child, url) = hanging.server(&[]).await;
    send(&format!("{url}/message:send"), &message("hello")).await;
    let start = Instant::now();
    stop(child).await;
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[tokio::test]
async fn collector_that_is_down_delays_no_call() {
    // Nothing listens: the spans are lost, and counted.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--otlp-endpoint", &format!("http://{free}")];
    let (mut child, url) = started(a2a(&arguments)).await;
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    let start = Instant::now();
    for _ in 0..50 {
        send(&format!("{url}/message:send"), &message("hello")).await;
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let warned = async {
        loop {
            let line = stderr.next_line().await.unwrap().unwrap();
            if line.contains("spans lost") {
                return line;
            }
        }
    };
    let warning = timeout(SOON, warned).await.unwrap();
    assert!(warning.contains("level=WARN") && warning.contains("otlp.endpoint"), "{warning}");
    let metrics = crate::bindings::fetch(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
    let failed = metrics.lines().find(|line| line.starts_with("a2a_otlp_spans_total{result=\"failed\"}"));
    assert!(failed.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
    // The thread of the exporter lives: a collector at that address gets the next spans.
    #[cfg(target_os = "linux")]
    assert!(threads(&child).iter().any(|name| name.starts_with("OpenTelemetry")), "{:?}", threads(&child));
    signal(&child, "-KILL");
}

/// Resident memory of a process in bytes.
#[cfg(target_os = "linux")]
fn memory(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Sends 1000 messages, and then batches of reads with more spans than the queue has room for. Returns the growth of the memory, the
/// counts of spans, and stderr.
#[cfg(target_os = "linux")]
async fn growth(arguments: &[&str]) -> (u64, BTreeMap<String, u64>, String) {
    const MAX_QUEUE: usize = 8192;
    const BATCH: usize = 50;
    let (child, url) =
        started(a2a(&[&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn"], arguments].concat())).await;
    let sends = async |count: usize| {
        for _ in 0..count / 10 {
            let url = format!("{url}/message:send");
            futures_util::future::join_all((0..10).map(|_| async { send(&url, &message("hello")).await })).await;
        }
    };
    let read = |id: usize| json!({"jsonrpc": "2.0", "id": id, "method": "GetTask", "params": {"id": "nobody"}});
    let batch: Value = (0..BATCH).map(read).collect();
    sends(100).await;
    let before = memory(&child);
    sends(1000).await;
    for _ in 0..MAX_QUEUE / BATCH + 10 {
        let replies = send(&format!("{url}/rpc"), &batch).await;
        assert_eq!(replies.as_array().map(Vec::len), Some(BATCH), "{replies}");
    }
    let after = memory(&child);
    let counts = counted_all(&url, u64::from(!arguments.is_empty())).await;
    signal(&child, "-TERM");
    let ended = timeout(SOON, child.wait_with_output()).await.unwrap().unwrap();
    (after.saturating_sub(before), counts, String::from_utf8(ended.stderr).unwrap())
}

#[cfg(target_os = "linux")]
#[expect(clippy::print_stdout, reason = "figures")]
#[tokio::test]
async fn memory_is_bounded_while_the_collector_is_down() {
    const MAX_GROWTH: u64 = 10 << 20;
    // One that is connected and says nothing keeps more spans than one that refuses connections.
    let hanging = Collector::start(|_| None).await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let (without, ..) = growth(&[]).await;
    for (endpoint, lost) in [(&*hanging.url, "dropped"), (&*free, "failed")] {
        let (with, counts, stderr) = growth(&["--otlp-endpoint", endpoint]).await;
        println!("{lost}: {} KiB more than {} KiB; {counts:?}", with.saturating_sub(without) >> 10, without >> 10);
        assert!(with < without + MAX_GROWTH, "{with} bytes, {without} without an endpoint");
        assert!(counts.get(lost).is_some_and(|count| *count > 0), "{counts:?}");
        assert!((1..=2).contains(&stderr.matches("spans lost").count()), "{stderr}");
    }
}

/// Sum of the spans that a server has counted, by result.
async fn counted(url: &str) -> BTreeMap<String, u64> {
    let text = crate::bindings::fetch(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
    let counts = text.lines().filter_map(|line| {
        let (result, count) = line.strip_prefix("a2a_otlp_spans_total{result=\"")?.split_once("\"} ")?;
        Some((result.to_owned(), count.parse().unwrap()))
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Waits until a server has counted this many spans. Returns their numbers by result.
async fn counted_all(url: &str, spans: u64) -> BTreeMap<String, u64> {
    let all = async {
        loop {
            let counts = counted(url).await;
            if counts.values().sum::<u64>() >= spans {
                return counts;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, all).await.unwrap()
}

#[tokio::test]
async fn spans_are_counted_once_with_a_collector_that_is_slow_busy_or_broken() {
    const SENDS: u64 = 20;
    let truncated = || {
        let parts = [Ok(Bytes::from_static(b"x")), Err(std::io::Error::other("closed"))];
        let body = Body::from_stream(futures_util::stream::iter(parts));
        Response::builder().header("content-length", "100").body(body).unwrap()
    };
    // It responds only after the last call, which would not end if it waited for the collector.
    let slow = Collector::start_behind(Semaphore::new(0), |_| Some(status(200))).await;
    let busy = Collector::start(|number| Some(status(if number == 0 { 429 } else { 200 }))).await;
    let rejecting = Collector::start(|_| Some(status(400))).await;
    let cut = Collector::start(move |_| Some(truncated())).await;
    for (collector, result, is_repeated) in
        [(slow, "exported", false), (busy, "exported", true), (rejecting, "failed", false), (cut, "failed", true)]
    {
        let (child, url) = collector.server(&[]).await;
        for _ in 0..SENDS {
            send(&format!("{url}/message:send"), &message("hello")).await;
        }
        collector.gate.add_permits(1);
        // That of the call and that of the turn.
        let counts = counted_all(&url, 2 * SENDS).await;
        let stderr = stop(child).await;
        assert_eq!(counts, BTreeMap::from([(result.to_owned(), 2 * SENDS)]), "{stderr}");
        let offered = collector.offered.lock().unwrap().clone();
        let different = offered.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!(different, usize::try_from(2 * SENDS).unwrap());
        assert_eq!(offered.len() > different, is_repeated, "{result}: {} of {different}", offered.len());
        let accepted = collector.spans.borrow().len();
        assert_eq!(stderr.matches("spans lost").count(), usize::from(result == "failed"), "{accepted}: {stderr}");
    }
}

#[tokio::test]
async fn nothing_is_exported_without_an_endpoint() {
    let collector = Collector::accepting().await;
    for (variable, value) in [("", ""), ("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_SAMPLER", "always_off")] {
        let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
        if !variable.is_empty() {
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url).env(variable, value);
        }
        let (child, url) = started(command).await;
        send(&format!("{url}/message:send"), &message("hello")).await;
        #[cfg(target_os = "linux")]
        let has_thread = threads(&child).iter().any(|name| name.starts_with("OpenTelemetry"));
        #[cfg(target_os = "linux")]
        assert_eq!(has_thread, variable == "OTEL_TRACES_SAMPLER", "{:?}", threads(&child));
        stop(child).await;
    }
    assert_eq!(collector.requests.load(SeqCst), 0);
}

#[tokio::test]
async fn endpoint_with_credentials_is_rejected_and_the_start_names_the_endpoint() {
    let failed = async |endpoint: &str| -> Output {
        output(a2a(&["serve", "--listen", "127.0.0.1:0", "--otlp-endpoint", endpoint])).await
    };
    let rejected = failed("https://user:s3cret@collector.example").await;
    let stderr = String::from_utf8(rejected.stderr).unwrap();
    assert!(!rejected.status.success() && !stderr.contains("s3cret"), "{stderr}");
    assert!(
        stderr.contains("--otlp-endpoint: the URL has credentials; set them in OTEL_EXPORTER_OTLP_HEADERS"),
        "{stderr}"
    );
    // The file wins over the variable of OpenTelemetry.
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a2a.toml"), "[otlp]\nendpoint = \"127.0.0.1:1\"\nsample = 0.5\n").unwrap();
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:2").current_dir(directory.path());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = async {
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if line.starts_with("traces") {
                return line;
            }
        }
    };
    let line = timeout(SOON, line).await.unwrap();
    assert_eq!(line, "traces are exported to http://127.0.0.1:1 (a2a.toml:2)");
    stop(child).await;
}
