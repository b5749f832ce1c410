//! gRPC-Web: gRPC for web pages, over HTTP/1.1 too. The trailers are the last frame of the response body, and bodies in the
//! text format are base64.

use std::borrow::Cow;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header, request::Parts};
use http_body_util::{BodyExt as _, BodyStream, StreamBody, combinators::MapErr};
use tonic::Status;
use tonic_web::GrpcWebLayer;
use tower::{Service as _, service_fn};
use tower_layer::Layer as _;

use crate::{
    protocol::{ErrorKind, response_budget::ResponseBudget, rpc::codec::PREFIX},
    transport::{Body, RequestBody, ResponseFuture, media_type},
};

/// Request body, decoded to that of a gRPC request.
pub(in crate::transport) type DecodedBody = MapErr<tonic::body::Body, fn(Status) -> Status>;

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Binary,
    /// Base64.
    Text,
}

impl Encoding {
    /// Returns the encoding of a media type; `None` for other types than those of gRPC-Web with protobuf.
    fn of(media_type: &str) -> Option<Self> {
        let is_any = |names: [&str; 2]| names.iter().any(|name| media_type.eq_ignore_ascii_case(name));
        if is_any(["application/grpc-web", "application/grpc-web+proto"]) {
            Some(Self::Binary)
        } else if is_any(["application/grpc-web-text", "application/grpc-web-text+proto"]) {
            Some(Self::Text)
        } else {
            None
        }
    }

    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Binary => "application/grpc-web+proto",
            Self::Text => "application/grpc-web-text+proto",
        })
    }
}

/// Encodings of a request and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct GrpcWebFormat {
    request: Encoding,
    response: Encoding,
}

impl GrpcWebFormat {
    /// Returns the format of a request with this media type; `None` for other types than those of gRPC-Web with protobuf.
    /// The response has the first such type in `Accept`, else the type of the request.
    pub(in crate::transport) fn of(media_type: &str, headers: &HeaderMap) -> Option<Self> {
        let request = Encoding::of(media_type)?;
        let response = media_type::accepted(headers).find_map(Encoding::of).unwrap_or(request);
        Some(Self { request, response })
    }

    /// Converts a gRPC response without a body, such as that of an error.
    pub(in crate::transport) fn convert_headers(self, mut response: Response<Body>) -> Response<Body> {
        response.headers_mut().insert(header::CONTENT_TYPE, self.response.content_type());
        response
    }
}

/// Serves a gRPC-Web request with a function that serves gRPC.
pub(in crate::transport) fn serve<B, F>(
    format: GrpcWebFormat,
    mut parts: Parts,
    body: B,
    unsent: &ResponseBudget,
    mut serve_grpc: F,
) -> ResponseFuture
where
    B: RequestBody,
    F: FnMut(Parts, DecodedBody) -> ResponseFuture,
{
    // tonic-web accepts only the exact names.
    parts.headers.insert(header::CONTENT_TYPE, format.request.content_type());
    parts.headers.insert(header::ACCEPT, format.response.content_type());
    // Without the length of the body, since the limit is for the decoded one.
    let body = StreamBody::new(BodyStream::new(body.map_err(|error| Status::from_error(error.into()))));
    let serve_grpc = service_fn(move |request: Request<tonic::body::Body>| {
        let (parts, body) = request.into_parts();
        let convert: fn(Status) -> Status = |status| decoding_error(&status);
        serve_grpc(parts, body.map_err(convert))
    });
    let response = GrpcWebLayer::new().layer(serve_grpc).call(Request::from_parts(parts, body));
    // Binary frames of messages are passed on as they are, and are counted already. Those in base64 are copies.
    let unsent = (format.response == Encoding::Text).then(|| unsent.clone());
    Box::pin(async move {
        let response = response.await?.map(Body::grpc);
        Ok(match &unsent {
            Some(unsent) => response.map(|body| body.counted(unsent)),
            None => response,
        })
    })
}

/// Converts an error of tonic-web, which reports each as INTERNAL. The client caused it: the base64 is invalid, or the body
/// is incomplete.
fn decoding_error(status: &Status) -> Status {
    let reason = status.message().strip_prefix("tonic-web: ").unwrap_or(status.message());
    ErrorKind::InvalidRequest.because(format!("the gRPC-Web body is invalid: {reason}")).into()
}

/// Returns the trailers of a frame of a response body. `None` for a frame with messages.
pub(crate) fn trailers(frame: &[u8]) -> Option<HeaderMap> {
    /// First byte of the prefix of trailers.
    const TRAILERS: u8 = 0x80;
    /// First character of the prefix of trailers in base64.
    const TRAILERS_TEXT: u8 = b'g';
    let frame = match *frame.first()? {
        TRAILERS => Cow::Borrowed(frame),
        TRAILERS_TEXT => BASE64_STANDARD.decode(frame).ok()?.into(),
        _ => return None,
    };
    let lines = str::from_utf8(frame.get(PREFIX..)?).ok()?.lines().filter_map(|line| line.split_once(':'));
    let trailers = lines.map(|(name, value)| Some((name.parse::<HeaderName>().ok()?, value.trim().parse().ok()?)));
    trailers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_has_the_accepted_encoding_or_that_of_the_request() {
        use Encoding::{Binary, Text};
        let format = |content_type: &str, accept: Option<&'static str>| {
            let accept = accept.map(|value| (header::ACCEPT, HeaderValue::from_static(value)));
            GrpcWebFormat::of(content_type, &accept.into_iter().collect())
                .map(|GrpcWebFormat { request, response }| (request, response))
        };
        for (content_type, encoding) in [
            ("application/grpc-web", Binary),
            ("application/grpc-web+proto", Binary),
            ("application/grpc-web-text", Text),
            ("application/grpc-web-text+proto", Text),
        ] {
            assert_eq!(format(content_type, None), Some((encoding, encoding)));
            assert_eq!(format(content_type, Some("*/*")), Some((encoding, encoding)));
            assert_eq!(format(content_type, Some("application/grpc-web")), Some((encoding, Binary)));
            assert_eq!(format(content_type, Some("*/*, application/grpc-web-text;q=1")), Some((encoding, Text)));
        }
        for content_type in
            ["application/grpc", "application/grpc-web+json", "application/grpc-webs", "application/json"]
        {
            assert_eq!(format(content_type, Some("application/grpc-web")), None, "{content_type}");
        }
    }

    #[test]
    fn trailers_are_read_from_their_frame() {
        let frame = b"\x80\0\0\0\x21grpc-status:5\r\ngrpc-message:a:b\r\n";
        let text = BASE64_STANDARD.encode(frame);
        for frame in [&frame[..], text.as_bytes()] {
            let trailers = trailers(frame).unwrap();
            assert_eq!(
                (trailers.len(), &trailers["grpc-status"], &trailers["grpc-message"]),
                (2, &"5".parse().unwrap(), &"a:b".parse().unwrap())
            );
        }
        for frame in [&b""[..], b"\0\0\0\0\0", b"\x80\0\0", b"AAAAAAA=", b"g"] {
            assert_eq!(trailers(frame), None);
        }
    }
}
