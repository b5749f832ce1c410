//! Protobuf codec of the gRPC binding, and the client side: outgoing metadata and errors of remote agents.

use std::{error::Error as StdError, marker::PhantomData};

use bytes::Buf as _;
use tokio_stream::StreamExt as _;
use tonic::{
    Code, ConnectError, Extensions, Request, Response, Status, Streaming,
    codec::{self, BufferSettings, DecodeBuf},
};
use tonic_prost::ProstEncoder;

use super::BoxStream;
use crate::{
    call::Call,
    error::{Error, ErrorKind, chain, without_sentence},
    json::{Measure, check_proto},
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
        check_proto::<U>(bytes.chunk()).map_err(Error::from)?;
        U::decode(bytes).map(Some).map_err(|e| Error::invalid_params(e).into())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, WRITE)
    }
}

/// What tonic says of a request that ends too early.
pub(crate) const BROKEN: [&str; 2] = ["Missing request message.", "Unexpected EOF decoding stream."];

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
