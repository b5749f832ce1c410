//! Checks of a single exchange: the head of the response, then its body and the request.

use std::{collections::BTreeSet, sync::Arc};

use a2a_service::protocol::Version;
use http::{HeaderMap, Method, StatusCode, Uri, header, request, response};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    Exemption, Recorded,
    documents::{DOCUMENTS, Operation, Schema, reason},
    is_exempt, violated,
};

const JSON: &str = "application/json";
/// Path of the agent card.
const WELL_KNOWN: &str = "/.well-known/agent-card.json";
const EVENTS: &str = "text/event-stream";

/// Paths of JSON-RPC.
const JSON_RPC: [&str; 3] = ["/rpc", "/a2a", ""];

/// Request whose response is checked.
#[derive(Clone)]
pub(super) struct Exchange {
    /// Method and path, for messages.
    line: String,
    kind: Kind,
    request_type: Option<String>,
    /// Texts of the query and of the headers by their names.
    query: Vec<(String, String)>,
    headers: HeaderMap,
    is_head: bool,
    /// The request is for the agent card and names no version: the server chooses one.
    is_card_of_any_version: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    Rest(Version, Option<&'static Operation>),
    JsonRpc,
}

impl Exchange {
    /// Creates the exchange of a request. `None` for gRPC and for resources that are not part of the API.
    pub(super) fn of(parts: &request::Parts) -> Option<Self> {
        let path = parts.uri.path();
        let request_type = media_type(&parts.headers);
        let is_grpc = request_type.as_deref().is_some_and(|media_type| media_type.starts_with("application/grpc"));
        if is_grpc && parts.method == Method::POST {
            return None;
        }
        let kind = if JSON_RPC.contains(&path.strip_suffix('/').unwrap_or(path)) {
            Kind::JsonRpc
        } else {
            let version = rest_version(&parts.uri, &parts.headers);
            let verb = if parts.method == Method::HEAD { "GET" } else { parts.method.as_str() };
            let operations = DOCUMENTS.rest(version).operations(path);
            Kind::Rest(version, operations.and_then(|operations| operations.get(verb)))
        };
        Some(Self {
            line: format!("{} {path}", parts.method),
            kind,
            request_type,
            query: query(&parts.uri),
            headers: parts.headers.clone(),
            is_head: parts.method == Method::HEAD,
            is_card_of_any_version: path == WELL_KNOWN && requested_version(&parts.uri, &parts.headers).is_empty(),
        })
    }

    /// Checks the head of a response, and the request if it has succeeded. Returns the check of the body.
    pub(super) fn check_head(self, response: &response::Parts, sent: &Arc<Mutex<Recorded>>) -> Option<BodyCheck> {
        let status = response.status;
        let media_type = media_type(&response.headers);
        let check = |exchange, content| {
            let is_events = media_type.as_deref() == Some(EVENTS);
            Some(BodyCheck { exchange, content, is_events, received: Recorded::default() })
        };
        match self.kind {
            Kind::JsonRpc if self.is_head || !matches!(media_type.as_deref(), Some(JSON | EVENTS)) => None,
            Kind::JsonRpc => check(self, Content::JsonRpc(Arc::clone(sent))),
            // A path lists its HTTP methods. 405 is the response to the others, and in tests of any error.
            Kind::Rest(version, operation) if operation.is_none() || status == StatusCode::METHOD_NOT_ALLOWED => {
                let is_error = status.is_client_error() || status.is_server_error();
                let is_json = media_type.as_deref() == Some(JSON) && !self.is_head;
                let error = Arc::clone(&DOCUMENTS.rest(version).error);
                if is_error && is_json { check(self, Content::Rest(error, version, None)) } else { None }
            }
            Kind::Rest(version, operation) => {
                let operation = operation?;
                let is_error = status.is_client_error() || status.is_server_error();
                let Some(content) = operation.responses.get(&status.as_u16()) else {
                    if is_error && media_type.as_deref() == Some(JSON) && is_exempt(Exemption::Errors) {
                        return check(self, Content::Rest(Arc::clone(&DOCUMENTS.rest(version).error), version, None));
                    }
                    self.fail(&format!("the status {status} is not documented"))
                };
                if status == StatusCode::OK {
                    self.check_parameters(operation);
                    self.check_request(operation, &sent.lock());
                }
                let schema = match &media_type {
                    None if content.is_empty() => return None,
                    None => self.fail(&format!("the response {status} has no content type")),
                    Some(media_type) => content.get(media_type),
                };
                let Some(schema) = schema else {
                    self.fail(&format!("the content type {media_type:?} of {status} is not documented"))
                };
                let reasons = operation.reasons.get(&status.as_u16()).filter(|_| is_error);
                if self.is_head { None } else { check(self, Content::Rest(Arc::clone(schema), version, reasons)) }
            }
        }
    }

    fn check_parameters(&self, operation: &Operation) {
        if is_exempt(Exemption::Requests) || is_exempt(Exemption::Parameters) {
            return;
        }
        for parameter in &operation.parameters {
            let name = &*parameter.name;
            let texts: Vec<_> = if parameter.is_header {
                self.headers.get_all(name).iter().filter_map(|text| text.to_str().ok()).collect()
            } else {
                self.query.iter().filter(|row| row.0 == name).map(|row| &*row.1).collect()
            };
            if parameter.is_required && texts.is_empty() {
                self.fail(&format!("the parameter `{name}` is missing"));
            }
            for text in texts {
                let violations = parameter.schema.violations(&parameter.value(text));
                if !violations.is_empty() {
                    self.fail(&format!("the parameter `{name}` violates its schema: {}", violations.join("\n")));
                }
            }
        }
        let is_known = |name: &str| operation.parameters.iter().any(|known| !known.is_header && known.name == name);
        if let Some((name, _)) = self.query.iter().find(|(name, _)| !is_known(name)) {
            self.fail(&format!("the parameter `{name}` is not documented"));
        }
    }

    fn check_request(&self, operation: &Operation, sent: &Recorded) {
        let (Some(request), Some(body)) = (&operation.request, sent.whole()) else { return };
        if is_exempt(Exemption::Requests) || (body.is_empty() && !request.is_required) {
            return;
        }
        let media_type = self.request_type.as_deref().unwrap_or_default();
        match request.content.get(&media_type.to_lowercase()) {
            Some(schema) => drop(self.check_json("request", schema, body)),
            None => self.fail(&format!("the content type `{media_type}` of the request is not documented")),
        }
    }

    fn check_json(&self, subject: &str, schema: &Schema, text: &[u8]) -> Value {
        match serde_json::from_slice(text) {
            Ok(value) => {
                self.check_value(subject, schema, &value);
                value
            }
            Err(error) => self.fail(&format!("the {subject} is not JSON: {error}: {}", excerpt(text))),
        }
    }

    fn check_value(&self, subject: &str, schema: &Schema, value: &Value) {
        let mut violations = schema.violations(value);
        if !violations.is_empty() && self.is_card_of_any_version {
            let operations = DOCUMENTS.v03.operations(WELL_KNOWN).unwrap();
            violations = operations["GET"].responses[&200][JSON].violations(value);
        }
        if !violations.is_empty() {
            let value = excerpt(value.to_string().as_bytes());
            self.fail(&format!("the {subject} violates its schema: {}\nof {value}", violations.join("\n")));
        }
    }

    fn check_json_rpc(&self, request: &[u8], response: &[u8]) {
        let Ok(response) = serde_json::from_slice::<Value>(response) else {
            self.fail(&format!("the response is not JSON: {}", excerpt(response)))
        };
        let request = serde_json::from_slice::<Value>(request).unwrap_or_default();
        let Value::Array(responses) = &response else { return self.check_json_rpc_response(&request, &response) };
        if responses.is_empty() {
            self.fail("the batch is empty");
        }
        let requests = request.as_array().map(|requests| &requests[..]).unwrap_or_default();
        for response in responses {
            // The ids of a batch may be equal: then any of its requests may be that of the response.
            let mut same_id = requests.iter().filter(|request| request["id"] == response["id"]);
            let only = same_id.next().filter(|_| same_id.next().is_none());
            self.check_json_rpc_response(only.unwrap_or(&Value::Null), response);
        }
    }

    /// Checks a response of JSON-RPC. The request is null if it is unknown.
    fn check_json_rpc_response(&self, request: &Value, response: &Value) {
        let fail =
            |reason: &str| -> ! { self.fail(&format!("{reason}: {}", excerpt(response.to_string().as_bytes()))) };
        let method_name = request["method"].as_str().unwrap_or_default();
        let method = DOCUMENTS.json_rpc.method(method_name);
        if response["jsonrpc"] != "2.0" {
            fail("`jsonrpc` is not \"2.0\"");
        }
        match (response.get("result"), response.get("error")) {
            (Some(result), None) => {
                if !request.is_null() && response.get("id") != request.get("id") {
                    fail("the id is not that of the request");
                }
                let Some(method) = method else {
                    if request.is_null() {
                        return;
                    }
                    fail(&format!("the method `{method_name}` is not documented"))
                };
                self.check_value(&format!("result of {method_name}"), &method.result, result);
                if !is_exempt(Exemption::Requests) {
                    let params = request.get("params").cloned().unwrap_or_else(|| json!({}));
                    self.check_value(&format!("request of {method_name}"), &method.params, &params);
                }
            }
            (None, Some(error)) => {
                let method = method.filter(|_| !is_exempt(Exemption::Errors));
                let codes: &BTreeSet<i64> = method.map_or(&DOCUMENTS.json_rpc.codes, |method| &method.codes);
                if !error["code"].as_i64().is_some_and(|code| codes.contains(&code)) {
                    fail("the code of the error is not documented");
                }
                if !error["message"].is_string() {
                    fail("the error has no message");
                }
                if let Some(data) = error.get("data") {
                    self.check_value("data of the error", &DOCUMENTS.json_rpc.details, data);
                }
            }
            _ => fail("neither result nor error, or both"),
        }
    }

    /// Fails the test.
    fn fail(&self, reason: &str) -> ! {
        let Self { line, kind, .. } = self;
        let (file, operation) = match kind {
            Kind::Rest(Version::V1_0, operation) => ("a2a-v1.json", operation.map(|operation| &*operation.id)),
            Kind::Rest(Version::V0_3, operation) => ("a2a-v0.3.json", operation.map(|operation| &*operation.id)),
            Kind::JsonRpc => ("a2a-jsonrpc.json", None),
        };
        violated(&format!("openapi/{file}: {line} ({}): {reason}", operation.unwrap_or("no operation")))
    }
}

/// Check of the body of a response.
pub(super) struct BodyCheck {
    exchange: Exchange,
    content: Content,
    is_events: bool,
    /// The body, or the part of it that is no complete event yet.
    received: Recorded,
}

enum Content {
    /// Schema of the body, or of each event, and the reasons of errors.
    Rest(Arc<Schema>, Version, Option<&'static BTreeSet<String>>),
    /// Request of the response.
    JsonRpc(Arc<Mutex<Recorded>>),
}

impl BodyCheck {
    /// Adds data of the body. Checks the events that are complete.
    pub(super) fn data(&mut self, data: &[u8]) {
        self.received.add(data);
        if !self.is_events || self.received.exceeds_limit {
            return;
        }
        while let Some(length) = self.received.bytes.windows(2).position(|window| window == b"\n\n") {
            let event: Vec<_> = self.received.bytes.drain(..length + 2).collect();
            self.check_event(&event);
        }
    }

    /// Checks the body of a response at its end.
    pub(super) fn end(self) {
        if self.received.exceeds_limit {
            return;
        }
        if !self.is_events {
            self.check(&self.received.bytes, None);
        } else if !self.received.bytes.is_empty() {
            self.exchange.fail(&format!("the stream ends within an event: {}", excerpt(&self.received.bytes)));
        }
    }

    fn check_event(&self, event: &[u8]) {
        let text = std::str::from_utf8(event).unwrap_or_else(|error| self.exchange.fail(&error.to_string()));
        let fields: Vec<_> = text.lines().filter_map(|line| line.split_once(": ")).collect();
        let values = |name| fields.iter().filter(move |field| field.0 == name).map(|field| field.1);
        let data: Vec<_> = values("data").collect();
        // A comment has no data.
        if !data.is_empty() {
            self.check(data.join("\n").as_bytes(), values("event").next());
        }
    }

    fn check(&self, text: &[u8], event_name: Option<&str>) {
        if is_exempt(Exemption::Responses) {
            return;
        }
        let exchange = &self.exchange;
        match &self.content {
            Content::Rest(_, version, _) if event_name == Some("error") => {
                drop(exchange.check_json("error event", &DOCUMENTS.rest(*version).error, text));
            }
            Content::Rest(schema, _, reasons) => {
                let value = exchange.check_json("response", schema, text);
                if let Some(reasons) = reasons
                    && !is_exempt(Exemption::Errors)
                    && !reason(&value).is_some_and(|reason| reasons.contains(reason))
                {
                    exchange.fail(&format!("the reason of the error is not documented: {}", excerpt(text)));
                }
            }
            Content::JsonRpc(sent) => {
                let sent = sent.lock();
                // Requests that were not read whole have errors as responses.
                exchange.check_json_rpc(sent.whole().unwrap_or_default(), text);
            }
        }
    }
}

/// Returns the version of a request over HTTP+JSON. A path of a tenant named `v1` is recognized by the requested version.
fn rest_version(uri: &Uri, headers: &HeaderMap) -> Version {
    let requested = requested_version(uri, headers);
    let is_v03 = match uri.path() {
        WELL_KNOWN => matches!(requested.split('.').take(2).collect::<Vec<_>>()[..], ["0", "1" | "2" | "3"]),
        path => path.starts_with("/v1/") && !requested.starts_with("1."),
    };
    if is_v03 { Version::V0_3 } else { Version::V1_0 }
}

/// Returns the version that a request names in its header or query. Empty if it names none.
fn requested_version<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> &'a str {
    let lines = headers.get_all("a2a-version").into_iter().filter_map(|line| line.to_str().ok());
    let pairs = uri.query().into_iter().flat_map(|query| query.split('&')).filter_map(|pair| pair.split_once('='));
    let query = pairs.filter(|(name, _)| name.eq_ignore_ascii_case("a2a-version")).map(|(_, value)| value);
    lines.chain(query).map(str::trim).find(|text| !text.is_empty()).unwrap_or_default()
}

/// Returns the parameters in a query.
fn query(uri: &Uri) -> Vec<(String, String)> {
    let url = reqwest::Url::parse(&format!("http://localhost/?{}", uri.query().unwrap_or_default())).unwrap();
    url.query_pairs().into_owned().collect()
}

/// Returns the media type of a message without its parameters.
fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or_default().trim().to_owned())
}

/// Returns the begin of a text, for messages.
fn excerpt(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let end = text.char_indices().nth(600).map_or(text.len(), |(index, _)| index);
    text[..end].to_owned()
}
