//! The gRPC binding: tonic's, with a codec that fails and buffers as we want, and a client that sends no more than it
//! should.

use std::{error::Error as StdError, marker::PhantomData};

use bytes::Buf as _;
use tokio_stream::StreamExt as _;
use tonic::{
    Code, ConnectError, Extensions, Request, Response, Status, Streaming,
    codec::{self, BufferSettings, DecodeBuf},
    server::NamedService,
    service::Routes,
};
use tonic_health::pb::{FILE_DESCRIPTOR_SET as HEALTH, health_server::HealthServer};
use tonic_prost::ProstEncoder;
use tonic_reflection::server::Builder;

use crate::{
    call::{Call, Version},
    contract::BoxStream,
    error::{Error, ErrorKind, chain, without_sentence},
    json::{Measure, check_proto},
    pb::DESCRIPTORS,
    transport::{
        body::{Body, too_large_for},
        health::{self, Health},
        response::keep_framing,
    },
};

/// What an open stream holds from its first byte on; tonic's own 8 KiB would be a third of what an idle one may cost.
const BUFFER: usize = 1024;

/// What is ready goes out in writes of up to so many bytes.
const WRITE: usize = 32 << 10;

/// Messages as protobuf.
#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> codec::Codec for Codec<T, U>
where
    T: prost::Message + 'static,
    U: prost::Message + Default + Measure + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(BUFFER, WRITE))
    }

    fn decoder(&mut self) -> Self::Decoder {
        Decoder(PhantomData)
    }
}

/// Reads messages; one that is malformed is the caller's fault, where tonic's own decoder says INTERNAL.
#[derive(Debug)]
pub struct Decoder<U>(PhantomData<U>);

impl<U: prost::Message + Default + Measure> codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic gives a message in one piece.
        check_proto::<U>(bytes.chunk())?;
        U::decode(bytes).map(Some).map_err(|e| Error::invalid_params(e).into())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, WRITE)
    }
}

/// Gives the refusals of tonic's own, which know a code and nothing more, the details that all of ours have (10.6).
pub(super) fn complete(
    response: http::Response<tonic::body::Body>,
    max_message: usize,
    version: Version,
) -> http::Response<Body> {
    let mut response = response.map(Body::grpc);
    if response.headers().len() > 1 {
        keep_framing(response.headers_mut());
    }
    let headers = response.headers();
    // Of those that have details, the ones of the codec don't know which version they are for.
    let whole = headers.contains_key(Status::GRPC_STATUS_DETAILS) && version == Version::V1_0;
    if !headers.contains_key(Status::GRPC_STATUS) || whole {
        return response;
    }
    let say = |error: Error| error.into_status(version);
    match Status::from_header_map(headers) {
        None => response,
        Some(status) if status.code() == Code::Ok => response,
        // No error of ours has this code; of tonic it is what it says of a message that is too long.
        Some(status) if status.code() == Code::OutOfRange => say(too_large_for(max_message)).into_http(),
        // gRPC has no word for a call that breaks off before its message has come; it is not we who are at fault.
        Some(status) if status.code() == Code::Internal && BROKEN.contains(&status.message()) => {
            say(ErrorKind::InvalidRequest.because(status.message().to_owned())).into_http()
        }
        Some(mut status) => {
            let metadata = std::mem::take(status.metadata_mut());
            let said = status.message().split(':').next().unwrap_or_default().to_owned();
            let error = Error::from(status);
            if version == Version::V0_3 && said == error.kind().classic_name() {
                return response;
            }
            let mut complete = say(error);
            *complete.metadata_mut() = metadata;
            complete.into_http()
        }
    }
}

/// What tonic says of a request that ends too early.
const BROKEN: [&str; 2] = ["Missing request message.", "Unexpected EOF decoding stream."];

/// Both versions of the reflection service. Tools ask for either, and many for the older one first.
const REFLECTION: [&str; 2] = ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

/// Returns true if a path is a method of a reflection service.
pub(super) fn is_reflection(path: &str) -> bool {
    let service = path.strip_prefix('/').and_then(|path| path.split('/').next());
    service.is_some_and(|service| REFLECTION.contains(&service))
}

/// The services that tools look for beside ours: health, and reflection in both of its versions, which says what is
/// served here with the comments of the proto files.
pub(super) fn beside(service: Health) -> Routes {
    /// Requests of reflection name a service, a file or a symbol.
    const MAX_MESSAGE: usize = 16 << 10;
    let services = service.services.clone();
    let health = HealthServer::new(service).max_decoding_message_size(health::MAX_MESSAGE);
    let reflection = || {
        let builder = Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
        let builder = builder.register_encoded_file_descriptor_set(HEALTH);
        let names = services.iter().copied().chain([name_of(&health)]).chain(REFLECTION);
        names.fold(builder, Builder::with_service_name)
    };
    let v1 = reflection().build_v1().map(|service| service.max_decoding_message_size(MAX_MESSAGE));
    let v1alpha = reflection().build_v1alpha().map(|service| service.max_decoding_message_size(MAX_MESSAGE));
    let routes = Routes::new(health);
    match (v1, v1alpha) {
        (Ok(v1), Ok(v1alpha)) => routes.add_service(v1).add_service(v1alpha).prepare(),
        (v1, v1alpha) => {
            let errors = [v1.err(), v1alpha.err()];
            tracing::error!(?errors, "the descriptors can't be read, and there is no reflection");
            routes.prepare()
        }
    }
}

fn name_of<S: NamedService>(_: &S) -> &'static str {
    S::NAME
}

/// Gives the answer to a service that is not there the details that all of our errors have. What the services beside
/// ours say is not for us to complete.
pub(super) fn complete_unknown(response: http::Response<tonic::body::Body>) -> http::Response<Body> {
    let status = response.headers().get(Status::GRPC_STATUS);
    if status.is_some_and(|it| it.as_bytes() == b"12") {
        complete(response, 0, Version::V1_0)
    } else {
        response.map(Body::grpc)
    }
}

/// Leaves of what came with a request only what may be sent on: what the table of [`Call`] lists.
pub fn outbound<T>(request: Request<T>) -> Request<T> {
    let (_, extensions, message) = request.into_parts();
    let metadata = extensions.get::<Call>().map(Call::to_metadata).unwrap_or_default();
    Request::from_parts(metadata, Extensions::new(), message)
}

/// The reply of an agent.
pub fn unary<T>(reply: Result<Response<T>, Status>) -> Result<Response<T>, Status> {
    reply.map_err(received)
}

/// The stream of an agent.
pub fn streaming<T: Send + 'static>(
    reply: Result<Response<Streaming<T>>, Status>,
) -> Result<Response<BoxStream<T>>, Status> {
    let boxed = |it: Streaming<T>| -> BoxStream<T> { Box::pin(it.map(|it| it.map_err(received))) };
    reply.map(|it| it.map(boxed)).map_err(received)
}

/// An error that came from the wire has no source. One of ours is of the codec above, which takes whoever wrote a message
/// for a caller; here it was the agent. Any other is tonic's own, which heard nothing from the agent any more.
fn received(status: Status) -> Status {
    let Some(source) = status.source() else {
        return if is_cut(&status) {
            ErrorKind::Unavailable.because(status.message().to_owned()).into()
        } else {
            status
        };
    };
    match source.downcast_ref::<Error>().map(Error::kind) {
        Some(kind @ ErrorKind::InvalidParams) => {
            let reason = without_sentence(kind, status.message()).to_owned();
            ErrorKind::InvalidAgentResponse.because(reason).into()
        }
        Some(_) => status,
        None if status.code() == Code::DeadlineExceeded => status,
        None => {
            let broken = ErrorKind::Unavailable.because(chain(source));
            if never_connected(source) { broken.unsent().into() } else { broken.into() }
        }
    }
}

/// An answer that ends within a message, or without the status that ends every answer. Of the agent's own, neither has
/// these words; and tonic tells them by nothing else.
fn is_cut(status: &Status) -> bool {
    const NO_STATUS: &str = "protocol error: missing grpc-status trailer";
    let within = status.code() == Code::Internal && BROKEN.contains(&status.message());
    within || (status.code() == Code::Unknown && status.message().starts_with(NO_STATUS))
}

fn never_connected(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(it) = next {
        if it.is::<ConnectError>() {
            return true;
        }
        next = it.source();
    }
    false
}
