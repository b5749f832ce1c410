//! gRPC statuses: error details in the trailers, malformed requests, unknown methods, deadlines.

use a2a_service::{client, contract::codec::Codec, pb::v1::Task};
use http::header;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use super::support::*;

/// Returns the reason of an error, and the fields that it names.
fn reason_and_fields(status: &Status) -> (String, Vec<String>) {
    let details = status.get_error_details();
    let fields = details.bad_request().into_iter().flat_map(|bad_request| &bad_request.field_violations);
    let info = details.error_info().unwrap();
    assert_eq!(info.domain, "a2a-protocol.org");
    (info.reason.clone(), fields.map(|violation| violation.field.clone()).collect())
}

/// Sends raw bytes as a message.
async fn send_raw(url: &str, path: &'static str, message: &[u8]) -> Status {
    let channel = tonic::transport::Channel::from_shared(url.to_owned()).unwrap().connect_lazy();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let codec = Codec::<RawMessage, Task>::default();
    client.unary(Request::new(RawMessage(message.to_vec())), path.parse().unwrap(), codec).await.unwrap_err()
}

#[tokio::test]
async fn errors_have_details_in_trailers() {
    let server = Server::start().await;
    let agent = client::grpc(&server.url).unwrap();
    let mut request = send("");
    request.message.as_mut().unwrap().parts.clear();
    let error = agent.send_message(Request::new(request)).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(
        reason_and_fields(&error),
        ("INVALID_PARAMS".into(), vec!["message.messageId".into(), "message.parts".into()])
    );
}

#[tokio::test]
async fn malformed_protobuf_is_an_invalid_argument() {
    let server = Server::start().await;
    for message in [&[0x0a, 0x7f][..], &[0xff], &[0x0a, 0x02, 0xff, 0xfe]] {
        let error = send_raw(&server.url, "/lf.a2a.v1.A2AService/GetTask", message).await;
        assert_eq!(
            (error.code(), reason_and_fields(&error).0.as_str()),
            (Code::InvalidArgument, "INVALID_PARAMS"),
            "{message:?}"
        );
    }
}

/// Errors that tonic detects have the details of ours.
#[tokio::test]
async fn unknown_methods_are_unimplemented() {
    let server = Server::start().await;
    for path in ["/lf.a2a.v1.A2AService/Nothing", "/x.Y/Z", "/lf.a2a.v1.A2AService/GetExtendedAgentCard"] {
        let error = send_raw(&server.url, path, &[]).await;
        assert_eq!(
            (error.code(), reason_and_fields(&error).0.as_str()),
            (Code::Unimplemented, "METHOD_NOT_FOUND"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn request_with_an_expired_deadline_is_rejected_before_the_service() {
    let server = Server::start().await;
    let http = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let request = http.post(format!("{}/lf.a2a.v1.A2AService/GetTask", server.url)).header("grpc-timeout", "0n");
    let request = request.header(header::CONTENT_TYPE, "application/grpc+proto");
    let reply = request.body(vec![0, 0, 0, 0, 0]).send().await.unwrap();
    assert_eq!((reply.status().as_u16(), &reply.headers()["grpc-status"]), (200, &"4".parse().unwrap()));
    assert_eq!(reply.headers()[header::CONTENT_TYPE], "application/grpc");
    let error = Status::from_header_map(reply.headers()).unwrap();
    assert_eq!(reason_and_fields(&error).0, "DEADLINE_EXCEEDED");
    assert!(server.echo.calls.lock().is_empty());
}

/// An agent that ignores the deadline would let the caller wait for ever.
#[tokio::test]
async fn malformed_deadline_is_rejected() {
    let server = Server::start().await;
    let http = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    for text in ["abc", "5", "-1S", "1.5S", "123456789S", "1 S", "1x"] {
        let request = http.post(format!("{}/lf.a2a.v1.A2AService/GetTask", server.url)).header("grpc-timeout", text);
        let request = request.header(header::CONTENT_TYPE, "application/grpc").body(vec![0, 0, 0, 0, 0]);
        let reply = request.send().await.unwrap();
        let error = Status::from_header_map(reply.headers()).unwrap();
        assert_eq!(
            (error.code(), reason_and_fields(&error)),
            (Code::InvalidArgument, ("INVALID_PARAMS".to_owned(), vec!["grpc-timeout".to_owned()]))
        );
        let get = http.get(format!("{}/tasks/t", server.url)).header("grpc-timeout", text);
        assert_eq!(get.send().await.unwrap().status(), 400, "{text}");
    }
    assert!(server.echo.calls.lock().is_empty());
}

/// The trailers of gRPC need HTTP/2.
#[tokio::test]
async fn grpc_over_http_1_is_an_unsupported_media_type() {
    let server = Server::start().await;
    let http = reqwest::Client::builder().http1_only().build().unwrap();
    let request = http.post(format!("{}/lf.a2a.v1.A2AService/GetTask", server.url));
    let request = request.header(header::CONTENT_TYPE, "application/grpc").body(vec![0, 0, 0, 0, 0]);
    let reply = request.send().await.unwrap();
    assert_eq!(reply.status(), 415);
    let error = Status::from_header_map(reply.headers()).unwrap();
    assert!(error.message().contains("gRPC needs HTTP/2; over HTTP/1.1, use gRPC-Web"), "{error}");
    assert!(server.echo.calls.lock().is_empty());
}

#[derive(Clone, Debug, Default)]
struct RawMessage(Vec<u8>);

impl prost::Message for RawMessage {
    fn encode_raw(&self, buf: &mut impl bytes::BufMut) {
        buf.put_slice(&self.0);
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn merge_field(
        &mut self,
        _: u32,
        _: prost::encoding::WireType,
        _: &mut impl bytes::Buf,
        _: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        Ok(())
    }

    fn clear(&mut self) {}
}
