//! Output of `--debug`: each request as a command of curl or grpcurl, and the status and size of its response.
//!
//! The lines go to stderr and are a script for a shell: responses are comments in it. Secrets are replaced by `***`.

use std::{
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_core::Stream;
use http::{HeaderMap, Method, StatusCode, header};
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};
use url::Url;

use super::{report, show::safe};
use crate::{
    call::Call,
    client::{HttpTransport, Observer},
    contract::BoxStream,
    error::Error,
    extension::secret,
    pb::v1::a2a_service_server::A2aService,
    v03::pb::a2a_service_server::A2aService as V03Service,
};

/// Maximum length of a body that is printed, in bytes.
const MAX_BODY: usize = 64 << 10;

/// Replacement of a secret.
const MASK: &str = "***";

/// Members of JSON objects with secrets: those of push notification configurations.
const SECRET_MEMBERS: [&str; 3] = ["token", "credentials", "password"];

/// Query parameters of the protocol, without underscores and in lower case. The values of others may be secrets: an API key has the
/// name that the card of the agent gives it.
const PARAMETERS: [&str; 8] = [
    "tenant",
    "contextid",
    "status",
    "pagesize",
    "pagetoken",
    "historylength",
    "statustimestampafter",
    "includeartifacts",
];

/// Prints requests and responses.
#[derive(Clone, Debug)]
pub(super) struct Debug {
    /// Any TLS certificate is accepted.
    pub(super) accepts_invalid_certs: bool,
    /// File with further TLS root certificates.
    pub(super) ca: Option<PathBuf>,
}

impl Observer for Debug {
    fn http(&self, network: Arc<dyn HttpTransport>) -> Arc<dyn HttpTransport> {
        Arc::new(ObservedHttp { network, debug: self.clone() })
    }

    fn grpc(&self, url: &str, agent: Arc<dyn A2aService>) -> Arc<dyn A2aService> {
        Arc::new(ObservedGrpc { agent, target: self.target(url) })
    }

    fn grpc_v03(&self, url: &str, agent: Arc<dyn V03Service>) -> Arc<dyn V03Service> {
        Arc::new(ObservedGrpc { agent, target: self.target(url) })
    }
}

impl Debug {
    /// Returns a request as a command of curl.
    fn curl(&self, request: &http::Request<Bytes>) -> String {
        let mut words = vec!["curl".to_owned(), "-sS".to_owned()];
        if request.headers().get(header::ACCEPT).is_some_and(|accept| accept.as_bytes().ends_with(b"event-stream")) {
            words.push("-N".to_owned());
        }
        if self.accepts_invalid_certs {
            words.push("--insecure".to_owned());
        }
        if let Some(ca) = &self.ca {
            words.extend(["--cacert".to_owned(), quote(&ca.to_string_lossy())]);
        }
        let is_default = request.method() == if request.body().is_empty() { Method::GET } else { Method::POST };
        if !is_default {
            words.extend(["-X".to_owned(), request.method().to_string()]);
        }
        words.push(quote(&masked_url(&request.uri().to_string())));
        words.extend(headers(request.headers()));
        if !request.body().is_empty() {
            let text = String::from_utf8_lossy(request.body());
            // Other bodies than JSON have credentials, such as the form for an access token.
            let body = match serde_json::from_str(&text) {
                Ok(json) => masked_json(json).unwrap_or_else(|| text.into_owned()),
                Err(_) => MASK.to_owned(),
            };
            words.extend(["--data-raw".to_owned(), argument(&body)]);
        }
        words.join(" ")
    }

    /// Returns flags and address of a gRPC server, for commands of grpcurl.
    fn target(&self, url: &str) -> Target {
        let parsed = Url::parse(url).ok();
        let is_plain = parsed.as_ref().is_none_or(|url| url.scheme() == "http");
        let mut flags = vec![];
        match &self.ca {
            _ if is_plain => flags.push("-plaintext".to_owned()),
            Some(ca) => flags.extend(["-cacert".to_owned(), quote(&ca.to_string_lossy())]),
            None => {}
        }
        let authority = parsed.and_then(|url| {
            let port = url.port_or_known_default()?;
            Some(format!("{}:{port}", url.host_str()?))
        });
        Target { flags, authority: authority.unwrap_or_else(|| url.to_owned()) }
    }
}

/// Flags and address of a gRPC server.
struct Target {
    flags: Vec<String>,
    authority: String,
}

impl Target {
    /// Returns a call as a command of grpcurl.
    fn grpcurl(&self, method: &str, metadata: &HeaderMap, message: &impl Serialize) -> String {
        let mut words = vec!["grpcurl".to_owned()];
        words.extend(self.flags.iter().cloned());
        words.extend(headers(metadata));
        let json = serde_json::to_value(message).unwrap_or_default();
        let text = json.to_string();
        words.extend(["-d".to_owned(), argument(&masked_json(json).unwrap_or(text))]);
        words.extend([quote(&self.authority), method.to_owned()]);
        words.join(" ")
    }
}

/// Returns headers as flags. Values that the client marks as sensitive are secrets.
fn headers(headers: &HeaderMap) -> impl Iterator<Item = String> {
    headers.iter().flat_map(|(name, value)| {
        let text = if value.is_sensitive() { MASK.into() } else { String::from_utf8_lossy(value.as_bytes()) };
        ["-H".to_owned(), quote(&format!("{name}: {text}"))]
    })
}

/// Returns a word of a shell.
fn quote(word: &str) -> String {
    shlex::try_quote(&safe(word)).map(std::borrow::Cow::into_owned).unwrap_or_default()
}

/// Returns a body as a word of a shell, cut if it is long.
fn argument(body: &str) -> String {
    match body.char_indices().find(|(at, _)| *at >= MAX_BODY) {
        Some((at, _)) => format!("{} # cut, {} bytes in all", quote(&body[..at]), body.len()),
        None => quote(body),
    }
}

/// Returns a URL without the password, and with the values of other query parameters than those of the protocol masked.
fn masked_url(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return text.to_owned() };
    if url.password().is_some() {
        // Fails only for URLs that can't have a password.
        _ = url.set_password(Some(MASK));
    }
    let is_secret = |name: &str| !PARAMETERS.contains(&&*name.replace('_', "").to_ascii_lowercase());
    let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    if pairs.iter().any(|(name, _)| is_secret(name)) {
        let masked = pairs.iter().map(|(name, value)| (name, if is_secret(name) { MASK } else { value }));
        url.query_pairs_mut().clear().extend_pairs(masked);
    }
    url.into()
}

/// Returns JSON with its secrets masked. `None` if it has none.
fn masked_json(mut value: Value) -> Option<String> {
    mask(&mut value).then(|| value.to_string())
}

/// Masks the secrets of push notification configurations, and secret parts. Returns true if there are any.
fn mask(value: &mut Value) -> bool {
    match value {
        Value::Array(items) => {
            // All items are masked, also after the first secret.
            items.iter_mut().filter_map(|item| mask(item).then_some(())).count() > 0
        }
        Value::Object(members) => {
            let is_secret_part = members.get("metadata").is_some_and(|metadata| metadata.get(secret::URI).is_some());
            let mut found = false;
            for (name, member) in members {
                let is_secret = SECRET_MEMBERS.contains(&&**name) && member.is_string()
                    || is_secret_part && matches!(&**name, "text" | "raw" | "data" | "url" | "file");
                if is_secret {
                    *member = MASK.into();
                    found = true;
                } else {
                    found |= mask(member);
                }
            }
            found
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Network whose requests are printed.
struct ObservedHttp {
    network: Arc<dyn HttpTransport>,
    debug: Debug,
}

#[tonic::async_trait]
impl HttpTransport for ObservedHttp {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<BoxStream<Bytes>>, Error> {
        report(&format!("{}\n", self.debug.curl(&request)));
        let started = Instant::now();
        let response = self.network.send(request).await.inspect_err(|error| failed(error, started))?;
        let (head, body) = response.into_parts();
        let media_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let status = format!("HTTP {}", status_text(head.status));
        let media_type = media_type.map(|media_type| format!(", {}", comment(media_type))).unwrap_or_default();
        report(&format!("# {status}{media_type}\n"));
        let body = Counted { items: body, size: |chunk: &Bytes| chunk.len(), bytes: 0, unit: "bytes", started };
        Ok(http::Response::from_parts(head, Box::pin(body)))
    }
}

/// Returns a text of an agent for a comment, which is a single line.
fn comment(text: &str) -> String {
    safe(text).replace('\n', " ")
}

fn status_text(status: StatusCode) -> String {
    format!("{} {}", status.as_u16(), status.canonical_reason().unwrap_or_default()).trim_end().to_owned()
}

fn failed(error: &Error, started: Instant) {
    report(&format!("# failed after {} ms: {}\n", started.elapsed().as_millis(), comment(&error.to_string())));
}

/// Stream that prints its size at its end.
struct Counted<T, S: Fn(&T) -> usize> {
    items: BoxStream<T>,
    /// Size of an item in bytes.
    size: S,
    bytes: usize,
    unit: &'static str,
    started: Instant,
}

impl<T, S: Fn(&T) -> usize + Unpin> Stream for Counted<T, S> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.items.as_mut().poll_next(cx);
        match &polled {
            Poll::Ready(Some(Ok(item))) => self.bytes += (self.size)(item),
            Poll::Ready(Some(Err(status))) => failed(&Error::from(status.clone()), self.started),
            Poll::Ready(None) | Poll::Pending => {}
        }
        polled
    }
}

impl<T, S: Fn(&T) -> usize> Drop for Counted<T, S> {
    fn drop(&mut self) {
        let Self { bytes, unit, started, .. } = self;
        report(&format!("# {bytes} {unit} after {} ms\n", started.elapsed().as_millis()));
    }
}

/// gRPC interface whose calls are printed.
struct ObservedGrpc<A: ?Sized> {
    agent: Arc<A>,
    target: Target,
}

impl<A: ?Sized> ObservedGrpc<A> {
    fn print<T: Serialize>(&self, method: &str, request: &Request<T>) {
        let metadata = request.extensions().get::<Call>().map(Call::to_headers).unwrap_or_default();
        report(&format!("{}\n", self.target.grpcurl(method, &metadata, request.get_ref())));
    }
}

/// Prints the result of a call. Its size is that of its JSON, because the bytes of the message are known only to the connection.
fn unary<T: Serialize>(started: Instant, result: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
    match &result {
        Ok(response) => {
            let bytes = serde_json::to_string(response.get_ref()).map(|json| json.len()).unwrap_or_default();
            report(&format!("# {:?}, {bytes} bytes as JSON after {} ms\n", Code::Ok, started.elapsed().as_millis()));
        }
        Err(status) => refused(status, started),
    }
    result
}

fn streaming<T: Serialize + 'static>(
    started: Instant,
    result: Result<Response<BoxStream<T>>, Status>,
) -> Result<Response<BoxStream<T>>, Status> {
    match result {
        Ok(response) => {
            report(&format!("# {:?}\n", Code::Ok));
            let size = |event: &T| serde_json::to_string(event).map(|json| json.len()).unwrap_or_default();
            Ok(response.map(|items| -> BoxStream<T> {
                Box::pin(Counted { items, size, bytes: 0, unit: "bytes as JSON", started })
            }))
        }
        Err(status) => {
            refused(&status, started);
            Err(status)
        }
    }
}

fn refused(status: &Status, started: Instant) {
    let (code, message) = (status.code(), comment(status.message()));
    report(&format!("# {code:?}: {message}, after {} ms\n", started.elapsed().as_millis()));
}

macro_rules! observed {
    ($($kind:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for ObservedGrpc<dyn A2aService> { $(
            async fn $method(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                self.print(&format!("{PACKAGE}.A2AService/{}", Rpc::$rpc.name()), &request);
                let started = Instant::now();
                $kind(started, self.agent.$method(request).await)
            }
        )* }
    };
}

/// Calls of 1.0.
mod v1_0 {
    use super::{Instant, ObservedGrpc, Request, Response, Status, streaming, unary};
    use crate::pb::v1::{
        a2a_service_server::A2aService,
        bindings::{Rpc, each_rpc},
    };

    const PACKAGE: &str = "lf.a2a.v1";

    each_rpc!(observed);
}

/// Calls of 0.3.
mod v0_3 {
    use super::{Instant, ObservedGrpc, Request, Response, Status, streaming, unary};
    use crate::v03::pb::{
        a2a_service_server::A2aService,
        bindings::{Rpc, each_rpc},
    };

    const PACKAGE: &str = "a2a.v1";

    each_rpc!(observed);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DEBUG: Debug = Debug { accepts_invalid_certs: false, ca: None };

    #[test]
    fn request_is_printed_as_a_command_without_secrets() {
        let mut request = http::Request::builder()
            .method("POST")
            .uri("https://u:secret@a.example/message:send?api_key=secret&pageToken=1")
            .header("a2a-version", "1.0")
            .body(Bytes::from(r#"{"configuration":{"taskPushNotificationConfig":{"token":"secret","url":"it's"}}}"#))
            .unwrap();
        let mut token = http::HeaderValue::from_static("Bearer secret");
        token.set_sensitive(true);
        request.headers_mut().insert("authorization", token);
        let expected = "curl -sS 'https://u:***@a.example/message:send?api_key=***&pageToken=1' -H 'a2a-version: 1.0' \
                        -H 'authorization: ***' --data-raw \
                        \"{\\\"configuration\\\":{\\\"taskPushNotificationConfig\\\":{\\\"token\\\":\\\"***\\\",\
                        \\\"url\\\":\\\"it's\\\"}}}\"";
        assert_eq!(DEBUG.curl(&request), expected);
    }

    #[test]
    fn call_is_printed_as_a_command_without_secrets() {
        let message = json!({"parts": [{"text": "secret", "metadata": {secret::URI: true}}, {"text": "plain"}]});
        let expected = format!(
            r#"grpcurl -plaintext -d '{{"parts":[{{"metadata":{{"{}":true}},"text":"***"}},{{"text":"plain"}}]}}' '[::1]:80' x/Y"#,
            secret::URI
        );
        assert_eq!(DEBUG.target("http://[::1]").grpcurl("x/Y", &HeaderMap::new(), &message), expected);
    }
}
