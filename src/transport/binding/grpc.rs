//! gRPC binding of the server: RPCs, error details for tonic's own errors, health service and reflection.

use std::{convert::Infallible, mem, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header, request::Parts};
use http_body_util::Full;
use tonic::{Code, Status, metadata::MetadataMap, server::NamedService, service::Routes};
use tonic_health::pb::{FILE_DESCRIPTOR_SET as HEALTH, health_server::HealthServer};
use tonic_reflection::server::Builder;
use tonic_types::pb::FILE_DESCRIPTOR_SET as ERROR_DETAILS;
use tower_service::Service;

use crate::{
    protocol::{
        Error, ErrorKind, Version,
        pb::DESCRIPTORS,
        rpc::{
            Dispatch, ParamSource, Params,
            codec::{PREFIX, TRUNCATED, split_frame},
        },
    },
    transport::{
        RequestBody, ResponseAccounting, WriteDeadline,
        body::{
            self, Body, BodyLimits,
            receive_budget::HEALTH_MESSAGE,
            response::{headers, remove_framing},
            too_large_for,
        },
        resource::health::Health,
    },
};

/// Compression of the messages of a request.
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Serves a request to an RPC. The extensions of the request are its `Call` alone.
///
/// `server` is that of tonic for the service. It serves streams, and rejects unknown RPCs and bodies that are not one
/// uncompressed message. Its future is three times as large as this one, and is moved several times.
pub(in crate::transport) fn serve<T, S, B>(
    service: T,
    mut server: S,
    mut parts: Parts,
    body: B,
    limits: BodyLimits,
    mut accounting: ResponseAccounting,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send
where
    T: Dispatch,
    S: Service<http::Request<tonic::body::Body>, Response = Response<tonic::body::Body>, Error = Infallible> + Send,
    S::Future: Send,
    B: RequestBody,
{
    let rpc = parts.uri.path().rsplit('/').next().and_then(T::rpc);
    let traits = rpc.map(T::traits);
    let is_read = accounting.reserve_for(traits, &mut parts.extensions);
    let is_streaming = traits.is_some_and(|traits| traits.is_streaming);
    let is_plain = !is_streaming && !parts.headers.contains_key(ENCODING);
    async move {
        let (version, max_message) = (accounting.class.version, limits.body_bytes);
        let frame = match rpc {
            Some(_) => read_frame(&parts.headers, body, &limits).await,
            None => Ok(Bytes::new()),
        };
        let mut response = match (frame, rpc) {
            (Ok(frame), Some(rpc)) if is_plain && let Some(message) = message_in(&frame) => {
                let params = Params { source: ParamSource::Proto(message), path: Vec::new() };
                // The service gets no headers: its part of them is in the `Call`.
                let extensions = mem::take(&mut parts.extensions);
                let request = tonic::Request::from_parts(MetadataMap::new(), extensions, params);
                match service.call(rpc, request).await.and_then(|reply| Ok(reply.into_unary()?)) {
                    Ok((frame, metadata)) => {
                        let mut response = Response::new(Body::message(frame));
                        *response.headers_mut() = headers(metadata);
                        let content_type = HeaderValue::from_static("application/grpc");
                        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
                        response
                    }
                    Err(status) => complete(status.into_http(), max_message, version),
                }
            }
            (Ok(frame), _) => {
                let body = tonic::body::Body::new(Full::new(frame));
                complete(server.call(http::Request::from_parts(parts, body)).await?, max_message, version)
            }
            (Err(error), _) => accounting.class.error_response(error),
        };
        if is_streaming {
            WriteDeadline::after(limits.stream_max_age).map(|deadline| response.extensions_mut().insert(deadline));
            response.body_mut().is_stream = true;
        }
        Ok(accounting.finish(response, is_read))
    }
}

/// Reads a body that has one message. tonic rejects incomplete messages and unknown compressions, but reports other flags as its
/// own error and ignores further messages.
///
/// # Errors
/// `InvalidRequest` for the frame, or an error of [`body::read`].
pub(in crate::transport) async fn read_frame<B: RequestBody>(
    headers: &HeaderMap,
    body: B,
    limits: &BodyLimits,
) -> Result<Bytes, Error> {
    let frame = body::read(headers, body, limits, PREFIX).await?;
    let invalid = |why| Err(ErrorKind::InvalidRequest.because(format!("the body: {why}")));
    let Some((flags, length, message)) = split_frame(&frame) else { return Ok(frame) };
    if flags > u8::from(headers.contains_key(ENCODING)) {
        return invalid(format!("its frame has the flags {flags:#04x}, and is not an uncompressed message"));
    }
    if message.len() > length {
        return invalid("has more than one message".to_owned());
    }
    Ok(frame)
}

/// Returns the message in a gRPC frame, unless that is compressed or incomplete.
fn message_in(frame: &Bytes) -> Option<Bytes> {
    let (flags, length, message) = split_frame(frame)?;
    (flags == 0 && message.len() == length).then(|| frame.slice(PREFIX..))
}

/// Adds error details (10.6) to errors that tonic itself generated, which have only a code and a message.
fn complete(response: Response<tonic::body::Body>, max_message: usize, version: Version) -> Response<Body> {
    let mut response = response.map(Body::grpc);
    if response.headers().len() > 1 {
        remove_framing(response.headers_mut());
    }
    let headers = response.headers();
    // Errors of 0.3 with details are converted too: those of the codec have the form of 1.0.
    let is_complete = || headers.contains_key(Status::GRPC_STATUS_DETAILS) && version == Version::V1_0;
    if !headers.contains_key(Status::GRPC_STATUS) || is_complete() {
        return response;
    }
    let status_of = |error: Error| error.into_status(version);
    match Status::from_header_map(headers) {
        None => response,
        Some(status) if status.code() == Code::Ok => response,
        // Only tonic uses this code, for a message that is too large.
        Some(status) if status.code() == Code::OutOfRange => status_of(too_large_for(max_message)).into_http(),
        // gRPC has no code for a request that ends before its message. The client caused it, so it is not INTERNAL.
        Some(status) if status.code() == Code::Internal && TRUNCATED.contains(&status.message()) => {
            status_of(ErrorKind::InvalidRequest.because(status.message().to_owned())).into_http()
        }
        Some(mut status) => {
            let metadata = mem::take(status.metadata_mut());
            let prefix = status.message().split(':').next().unwrap_or_default().to_owned();
            let error = Error::from(status);
            if version == Version::V0_3 && prefix == error.kind().v03_name() {
                return response;
            }
            let mut complete = status_of(error);
            *complete.metadata_mut() = metadata;
            complete.into_http()
        }
    }
}

/// Both versions of the reflection service. Many tools try the older one first.
const REFLECTION: [&str; 2] = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

/// Builds the health service, and reflection in both versions with the comments of the proto files. Reflection also has the
/// types of error details, which no service names: tools need them to print the details of an error.
pub(in crate::transport) fn auxiliary_services(service: Health) -> Routes {
    /// Maximum size of a reflection request in bytes. It names a service, a file or a symbol.
    const MAX_MESSAGE: usize = 16 << 10;
    let services = Arc::clone(&service.services);
    let health = HealthServer::new(service).max_decoding_message_size(HEALTH_MESSAGE);
    let reflection = || {
        let builder = [DESCRIPTORS, HEALTH, ERROR_DETAILS]
            .into_iter()
            .fold(Builder::configure(), Builder::register_encoded_file_descriptor_set);
        let names = services.iter().copied().chain([HealthServer::<Health>::NAME]).chain(REFLECTION);
        names.fold(builder, Builder::with_service_name)
    };
    let v1 = reflection().build_v1().map(|service| service.max_decoding_message_size(MAX_MESSAGE));
    let v1alpha = reflection().build_v1alpha().map(|service| service.max_decoding_message_size(MAX_MESSAGE));
    let routes = Routes::new(health);
    match (v1, v1alpha) {
        (Ok(v1), Ok(v1alpha)) => routes.add_service(v1).add_service(v1alpha).prepare(),
        (v1, v1alpha) => {
            let errors = [v1.err(), v1alpha.err()];
            tracing::error!(?errors, "reflection unavailable: invalid descriptors");
            routes.prepare()
        }
    }
}

/// Adds error details to the response of an unknown service. Responses of health and reflection are unchanged.
pub(in crate::transport) fn complete_unimplemented(response: Response<tonic::body::Body>) -> Response<Body> {
    const UNIMPLEMENTED: &[u8] = b"12";
    let status = response.headers().get(Status::GRPC_STATUS);
    if status.is_some_and(|code| code.as_bytes() == UNIMPLEMENTED) {
        complete(response, 0, Version::V1_0)
    } else {
        response.map(Body::grpc)
    }
}
