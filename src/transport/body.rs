//! HTTP bodies: the response [`Body`] of all bindings, and reading of request bodies up to a limit.

pub(crate) mod observed;
pub(crate) mod receive_budget;
pub(crate) mod response;

use std::{
    error::Error as StdError,
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, header};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tonic::Status;

use self::receive_budget::{HEALTH_MESSAGE, ReceiveBudget};
use crate::{
    protocol::{Error, ErrorKind, response_budget::ResponseBudget, rpc::codec::split_frame},
    transport::pipeline::peer_limit::PeerPermit,
};

/// Maximum number of bytes of a rejected body that are read and discarded. A client whose connection is closed while it
/// sends would see a connection error, and not the response.
const MAX_DISCARD: u64 = 8 << 20;

/// Maximum number of bytes of a body that are read and discarded if the request is rejected for its head.
const MAX_UNREAD: u64 = 64 << 10;

/// Time limit for reading these bytes. The client has sent most of them already.
const UNREAD_TIME: Duration = Duration::from_secs(1);

/// Limits of requests and responses, shared by the bindings.
#[derive(Clone)]
pub(super) struct BodyLimits {
    pub(super) body_bytes: usize,
    pub(super) body_timeout: Duration,
    pub(super) keep_alive: Duration,
    pub(super) stream_max_age: Duration,
    pub(super) batch_calls: usize,
    pub(super) batch_bytes: usize,
    pub(super) receiving: Arc<ReceiveBudget>,
}

impl BodyLimits {
    /// Limits of gRPC's health service, whose clients are not authenticated: small messages, and a separate receive budget.
    pub(super) fn of_health(&self) -> Self {
        Self { body_bytes: HEALTH_MESSAGE, receiving: ReceiveBudget::of_health(), ..self.clone() }
    }
}

/// Response body.
#[derive(Default)]
pub struct Body {
    kind: Kind,
    /// Budget that counts the frames until they are sent.
    unsent: Option<ResponseBudget>,
    /// The frames are events of a stream, which waits for room.
    pub(super) is_stream: bool,
    /// Counts the request as open until the body is dropped.
    permit: Option<Box<PeerPermit>>,
}

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Whole(Bytes),
    /// Message of a unary gRPC response.
    Message(Bytes),
    /// Trailers of that response.
    StatusOk,
    Grpc(tonic::body::Body),
    Events(Pin<Box<dyn http_body::Body<Data = Bytes, Error = Status> + Send>>),
}

impl Body {
    /// Creates the body of a unary gRPC response.
    pub(super) fn message(frame: Bytes) -> Self {
        Self::of(Kind::Message(frame))
    }

    /// Creates a body from one of tonic.
    pub(crate) fn grpc(body: tonic::body::Body) -> Self {
        Self::of(Kind::Grpc(body))
    }

    /// Creates a body that streams frames.
    pub(crate) fn events(body: impl http_body::Body<Data = Bytes, Error = Status> + Send + 'static) -> Self {
        Self { is_stream: true, ..Self::of(Kind::Events(Box::pin(body))) }
    }

    /// Creates a body from one of axum.
    pub(crate) fn from_axum(body: axum::body::Body) -> Self {
        Self::events(body.map_err(|error| Status::from_error(error.into())))
    }

    fn of(kind: Kind) -> Self {
        Self { kind, unsent: None, is_stream: false, permit: None }
    }

    /// Returns the number of bytes that are already encoded.
    pub(super) fn encoded_len(&self) -> usize {
        match &self.kind {
            Kind::Whole(data) | Kind::Message(data) => data.len(),
            Kind::Empty | Kind::StatusOk | Kind::Grpc(_) | Kind::Events(_) => 0,
        }
    }

    /// Counts the frames in the budget until they are sent.
    pub(super) fn counted(mut self, unsent: &ResponseBudget) -> Self {
        match &mut self.kind {
            Kind::Whole(data) | Kind::Message(data) => *data = unsent.count(mem::take(data), false),
            Kind::Grpc(_) | Kind::Events(_) => self.unsent = Some(unsent.clone()),
            Kind::Empty | Kind::StatusOk => {}
        }
        self
    }

    /// Counts a frame until it is sent.
    fn count(&self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match &self.unsent {
            Some(unsent) => frame.map_data(|data| unsent.count(data, self.is_stream)),
            None => frame,
        }
    }

    /// Attaches a permit, which is released when the body is dropped.
    pub(crate) fn with_permit(mut self, permit: PeerPermit) -> Self {
        self.permit = Some(Box::new(permit));
        self
    }
}

conversions! { Body: data: Bytes => Self::of(if data.is_empty() { Kind::Empty } else { Kind::Whole(data) }); }

debug_fields!(Body { is_stream });

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = match &mut self.kind {
            Kind::Empty => return Poll::Ready(None),
            Kind::Whole(data) => {
                let data = mem::take(data);
                self.kind = Kind::Empty;
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            Kind::Message(data) => {
                let data = mem::take(data);
                self.kind = Kind::StatusOk;
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            Kind::StatusOk => {
                self.kind = Kind::Empty;
                let trailers = HeaderMap::from_iter([(Status::GRPC_STATUS, HeaderValue::from_static("0"))]);
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            Kind::Grpc(body) => ready!(Pin::new(body).poll_frame(cx)),
            Kind::Events(body) => ready!(body.as_mut().poll_frame(cx)),
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| self.count(frame))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Empty => true,
            Kind::Whole(_) | Kind::Message(_) | Kind::StatusOk => false,
            Kind::Grpc(body) => body.is_end_stream(),
            Kind::Events(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Message(_) | Kind::StatusOk => SizeHint::default(),
            Kind::Whole(data) => SizeHint::with_exact(u64::try_from(data.len()).unwrap_or(u64::MAX)),
            Kind::Grpc(body) => body.size_hint(),
            Kind::Events(body) => body.size_hint(),
        }
    }
}

/// Reads the whole body of a request. `prefix` is the length of its beginning that does not count: zero, or that of a gRPC frame.
///
/// # Errors
/// The body, or the message whose length its gRPC frame states, is larger than `limits.body_bytes`. The body is not received within
/// `limits.body_timeout`, or exceeds the budget of received bytes.
pub(super) async fn read<B>(headers: &HeaderMap, body: B, limits: &BodyLimits, prefix: usize) -> Result<Bytes, Error>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let mut whole = pin!(collect(headers, body, limits, prefix));
    // Most bodies arrive with their headers and need no timer.
    if let Poll::Ready(body) = poll_fn(|cx| Poll::Ready(whole.as_mut().poll(cx))).await {
        return body;
    }
    let timed = Box::pin(tokio::time::timeout(limits.body_timeout, whole)).await;
    timed.map_err(|_| receive_budget::too_slow(limits.body_timeout))?
}

async fn collect<B>(headers: &HeaderMap, body: B, limits: &BodyLimits, prefix: usize) -> Result<Bytes, Error>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let mut body = pin!(body);
    let max = limits.body_bytes;
    let limit = u64::try_from(max.saturating_add(prefix)).unwrap_or(u64::MAX);
    let mut reserved = limits.receiving.reservation();
    let (mut first, mut rest, mut length) = (Bytes::new(), BytesMut::new(), 0_u64);
    let mut rejection = (body.size_hint().lower() > limit).then(|| too_large_for(max));
    while rejection.is_none() {
        let Some(frame) = body.frame().await else { break };
        let frame = frame.map_err(|error| match error.into().downcast::<Status>() {
            Ok(status) => Error::from(*status),
            // The client closed the connection or violated HTTP. Neither is an internal error.
            Err(error) => ErrorKind::InvalidRequest.because(format!("the body is incomplete: {error}")),
        })?;
        let Ok(data) = frame.into_data() else { continue };
        length = length.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        if length > limit {
            rejection = Some(too_large_for(max));
        } else if let Err(error) = reserved.grow(data.len()) {
            rejection = Some(error);
        }
        if rejection.is_some() || data.is_empty() {
            continue;
        }
        // Most bodies arrive in one piece, which is not copied.
        if first.is_empty() && rest.is_empty() {
            if prefix > 0 && split_frame(&data).is_some_and(|(_, length, _)| length > max) {
                // At once: over HTTP/2, the client may wait before it sends the rest.
                return Err(too_large_for(max));
            }
            first = data;
        } else {
            if rest.is_empty() {
                // Based on the received length: the announced length may be false.
                rest.reserve(2 * (first.len() + data.len()));
                rest.extend_from_slice(&mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    if let Some(error) = rejection {
        drop((reserved, first, rest));
        // A client that sent `Expect` waits for the response before it sends the body.
        if !headers.contains_key(header::EXPECT) {
            discard(body, MAX_DISCARD.saturating_sub(length)).await;
        }
        return Err(error);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// Reads the small body of a request that is rejected for its head, before the response is sent. Otherwise HTTP/2 resets the stream
/// while the client sends, and curl reports that instead of the response. A client that sent `Expect` waits with its body.
pub(super) async fn discard_unread<B: http_body::Body<Data = Bytes>>(headers: &HeaderMap, body: B) {
    if !body.is_end_stream() && body.size_hint().lower() <= MAX_UNREAD && !headers.contains_key(header::EXPECT) {
        _ = tokio::time::timeout(UNREAD_TIME, discard(pin!(body), MAX_UNREAD)).await;
    }
}

/// Reads a body up to its end, an error or about `max` bytes.
async fn discard<B: http_body::Body<Data = Bytes>>(mut body: Pin<&mut B>, max: u64) {
    let mut length = 0_u64;
    while length <= max
        && let Some(Ok(frame)) = body.frame().await
    {
        length = length.saturating_add(frame.data_ref().map_or(0, |data| u64::try_from(data.len()).unwrap_or(0)));
    }
}

/// Returns the error for a body or a message of more than `max` bytes.
pub(crate) fn too_large_for(max: usize) -> Error {
    ErrorKind::TooLarge
        .because(format!("the request exceeds the limit of {max} bytes (limits.body_bytes)"))
        .limit("body_bytes")
}
