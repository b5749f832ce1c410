//! gRPC codec with limits and validation of protobuf messages; for clients, outgoing metadata and errors of remote agents.

use std::{error::Error as StdError, marker::PhantomData};

use bytes::{Buf as _, BufMut as _};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tonic::{
    Code, ConnectError, Extensions, Request, Status, Streaming, TimeoutExpired,
    codec::{self, BufferSettings, DecodeBuf},
    metadata::MetadataMap,
};
use tonic_prost::ProstEncoder;

use super::{BoxStream, ServiceResult};
use crate::protocol::{
    call::{Call, until_head, within},
    error::{Error, ErrorKind, chain, sources, without_sentence},
    json::{Measure, check_proto},
};

/// Initial buffer of an open stream in bytes. tonic's default of 8 KiB would be a third of the memory of an idle stream.
const BUFFER: usize = 1024;

/// Number of buffered bytes at which a stream yields them to be written.
const WRITE: usize = 32 << 10;

/// Codec for messages in protobuf.
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

/// Decoder that reports a malformed message as `InvalidParams`. tonic's own decoder reports INTERNAL.
#[derive(Debug)]
pub struct Decoder<U>(PhantomData<U>);

impl<U: prost::Message + Default + Measure> codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic passes a message as one chunk.
        let message = decode(bytes.chunk());
        // Also of a malformed message, which would be decoded again otherwise.
        bytes.advance(bytes.remaining());
        Ok(Some(message?))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, WRITE)
    }
}

/// Decodes a message within the limit of decoded sizes.
///
/// # Errors
/// `TooLarge`, or `InvalidParams` if it is malformed.
pub(super) fn decode<T: prost::Message + Default + Measure>(proto: &[u8]) -> Result<T, Error> {
    check_proto::<T>(proto)?;
    T::decode(proto).map_err(Error::invalid_params)
}

/// Length of the prefix of a message in a gRPC frame in bytes.
pub(crate) const PREFIX: usize = 5;

/// Splits a gRPC frame into its flags, the length that it states, and what follows. `None` if the prefix is incomplete.
pub(crate) fn split_frame(frame: &[u8]) -> Option<(u8, usize, &[u8])> {
    let (&[flags, ref length @ ..], message) = frame.split_first_chunk::<PREFIX>()?;
    Some((flags, usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX), message))
}

/// Encodes a message with its prefix: uncompressed, and of this length.
pub(super) fn frame(message: &impl prost::Message) -> Result<Vec<u8>, Error> {
    let length = message.encoded_len();
    let mut frame = Vec::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).map_err(Error::internal)?);
    message.encode_raw(&mut frame);
    Ok(frame)
}

/// Messages of tonic's errors for a message that ends too early.
pub(crate) const TRUNCATED: [&str; 2] = ["Missing request message.", "Unexpected EOF decoding stream."];

/// Builds an outgoing request: its metadata is that of its [`Call`], and nothing else of the request is forwarded. Returns it
/// with the deadline of the call.
fn outbound<T>(request: Request<T>) -> (Option<Instant>, Request<T>) {
    let (_, extensions, message) = request.into_parts();
    let call = extensions.get::<Call>();
    let (deadline, headers) = (call.and_then(|call| call.deadline), call.map(Call::to_headers).unwrap_or_default());
    let metadata = MetadataMap::from_headers(headers);
    (deadline, Request::from_parts(metadata, Extensions::new(), message))
}

/// Calls a unary RPC of a remote agent until the deadline of the call, and converts its errors.
pub async fn unary<Req, Res, Fut>(request: Request<Req>, rpc: impl FnOnce(Request<Req>) -> Fut) -> ServiceResult<Res>
where
    Fut: Future<Output = ServiceResult<Res>>,
{
    let (deadline, request) = outbound(request);
    until_head(deadline, rpc(request)).await?.map_err(received)
}

/// Calls a streaming RPC of a remote agent, converts its errors, and ends the stream at the deadline of the call.
pub async fn streaming<Req, Res, Fut>(
    request: Request<Req>,
    rpc: impl FnOnce(Request<Req>) -> Fut,
) -> ServiceResult<BoxStream<Res>>
where
    Res: Send + 'static,
    Fut: Future<Output = ServiceResult<Streaming<Res>>>,
{
    let (deadline, request) = outbound(request);
    let boxed = |items: Streaming<Res>| -> BoxStream<Res> {
        Box::pin(futures_util::stream::unfold(Some(items), move |items| async move {
            let mut items = items?;
            match within(deadline, items.next()).await {
                Ok(item) => Some((item?.map_err(received), Some(items))),
                Err(late) => Some((Err(late.into()), None)),
            }
        }))
    };
    let response = until_head(deadline, rpc(request)).await?.map_err(received)?;
    Ok(response.map(boxed))
}

/// Converts an error of a call to a remote agent.
///
/// An error that the agent sent has no source. An [`Error`] as the source is from [`Decoder`], which blames the client; here
/// the agent sent the invalid message. Any other source is an error of tonic: the connection to the agent failed.
fn received(status: Status) -> Status {
    let Some(source) = status.source() else {
        return if is_cut(&status) {
            ErrorKind::Unavailable.because(status.message().to_owned()).into()
        } else {
            status
        };
    };
    match source.downcast_ref::<Error>().map(Error::kind) {
        Some(kind @ (ErrorKind::InvalidParams | ErrorKind::TooLarge)) => {
            let reason = without_sentence(kind, status.message()).replacen("request: takes", "the response takes", 1);
            ErrorKind::InvalidAgentResponse.because(reason).into()
        }
        Some(_) => status,
        None if status.code() == Code::DeadlineExceeded => status,
        None if sources(source).any(<dyn StdError>::is::<TimeoutExpired>) => ErrorKind::DeadlineExceeded.error().into(),
        None => {
            let broken = ErrorKind::Unavailable.because(chain(source));
            if sources(source).any(<dyn StdError>::is::<ConnectError>) { broken.unsent().into() } else { broken.into() }
        }
    }
}

/// Returns true for a response that ends within a message, or without `grpc-status`. tonic's errors for these are
/// recognizable only by their messages, which agents do not send.
fn is_cut(status: &Status) -> bool {
    const NO_STATUS: &str = "protocol error: missing grpc-status trailer";
    let within_message = status.code() == Code::Internal && TRUNCATED.contains(&status.message());
    within_message || (status.code() == Code::Unknown && status.message().starts_with(NO_STATUS))
}
