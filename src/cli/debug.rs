//! Output of `--debug`: a line for each request and response on stderr, without secrets.

use std::{fmt::Display, sync::Arc};

use bytes::Bytes;
use http::header;
use serde::Serialize;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::{report, show::safe};
use crate::{
    client::{HttpTransport, Observer},
    protocol::{call::Call, error::Error, rpc::BoxStream},
    transport::pipeline::wire_log::redaction::{Media, headers, message, url},
};

/// Prints requests and responses.
pub(super) const DEBUG: Observer = Observer {
    http: |network| Arc::new(ObservedHttp(network)),
    grpc: |url, agent| Arc::new(ObservedGrpc { agent, url: url.to_owned() }),
    grpc_v03: |url, agent| Arc::new(ObservedGrpc { agent, url: url.to_owned() }),
};

/// Prints a request, and returns its time.
fn requested(request: &str) -> Instant {
    report(&format!("> {}\n", line(request)));
    Instant::now()
}

fn answered(started: Instant, answer: impl Display) {
    report(&format!("< ({} ms) {}\n", started.elapsed().as_millis(), line(&answer.to_string())));
}

/// Returns a text on a single line.
fn line(text: &str) -> String {
    safe(text).replace('\n', " ")
}

/// Network whose requests are printed.
struct ObservedHttp(Arc<dyn HttpTransport>);

#[tonic::async_trait]
impl HttpTransport for ObservedHttp {
    async fn send(&self, request: http::Request<Bytes>) -> Result<http::Response<BoxStream<Bytes>>, Error> {
        let started = requested(&http_request(&request));
        let result = self.0.send(request).await;
        match &result {
            Ok(response) => answered(started, format!("{} {}", response.status(), headers(response.headers()))),
            Err(error) => answered(started, format!("failed: {error}")),
        }
        result
    }
}

fn http_request(request: &http::Request<Bytes>) -> String {
    let (body, map) = (request.body(), request.headers());
    let content_type = map.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = if body.is_empty() { String::new() } else { Media::of(content_type).show(body, body.len()) };
    format!("{} {} {} {body}", request.method(), url(request.uri()), headers(map)).trim_end().to_owned()
}

/// gRPC interface whose calls are printed.
struct ObservedGrpc<A: ?Sized> {
    agent: Arc<A>,
    url: String,
}

impl<A: ?Sized> ObservedGrpc<A> {
    async fn call<Req: Serialize, Res>(
        &self,
        rpc: &str,
        request: Request<Req>,
        handler: impl AsyncFnOnce(Request<Req>) -> Result<Response<Res>, Status>,
    ) -> Result<Response<Res>, Status> {
        let metadata = request.extensions().get::<Call>().map(Call::to_headers).unwrap_or_default();
        let started = requested(&format!("{} {rpc} {} {}", self.url, headers(&metadata), message(request.get_ref())));
        let result = handler(request).await;
        match &result {
            Ok(_) => answered(started, "Ok"),
            Err(status) => answered(started, format!("{:?}: {}", status.code(), status.message())),
        }
        result
    }
}

macro_rules! observed {
    ($($kind:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for ObservedGrpc<dyn A2aService> { $(
            async fn $method(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                let rpc = format!("{PACKAGE}.A2AService/{}", Rpc::$rpc.name());
                self.call(&rpc, request, async |request| self.agent.$method(request).await).await
            }
        )* }
    };
}

/// Implements the service of a version in a module of its own.
macro_rules! versions {
    ($($name:ident = $package:literal in $($path:ident)::+;)+) => { $(
        mod $name {
            use super::{ObservedGrpc, Request, Response, Status};
            use $($path)::+::{a2a_service_server::A2aService, bindings::{Rpc, each_rpc}};

            const PACKAGE: &str = $package;

            each_rpc!(observed);
        }
    )+ };
}

versions! {
    v1_0 = "lf.a2a.v1" in crate::protocol::pb::v1;
    v0_3 = "a2a.v1" in crate::protocol::v03::pb;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_printed_without_secrets() {
        let mut request = http::Request::builder()
            .method("POST")
            .uri("https://u:secret@a.example/message:send?k=secret&pageToken=1")
            .header("a2a-version", "1.0")
            .header("content-type", "application/json")
            .header("authorization", "Bearer secret")
            .body(Bytes::from(r#"{"configuration":{"taskPushNotificationConfig":{"id":"it's","token":"secret"}}}"#))
            .unwrap();
        let expected = "POST https://(hidden)@a.example/message:send?(hidden) [a2a-version: 1.0, \
                        content-type: application/json, authorization: (hidden)] \
                        {\"configuration\":{\"taskPushNotificationConfig\":{\"id\":\"it's\",\"token\":\"(hidden)\"}}}";
        assert_eq!(http_request(&request), expected);
        for form in ["client_id=a&client_secret=s3cret", "grant_type=client_credentials&scope=s3cret"] {
            *request.body_mut() = form.into();
            assert!(http_request(&request).ends_with(&format!(" ({} bytes that are not JSON)", form.len())));
        }
    }
}
