//! Bodies: of answers, in as few boxes as there are kinds of them, and of requests, which are read up to a limit.

use std::{
    error::Error as StdError,
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tonic::Status;

use crate::error::{Error, ErrorKind};

/// What is read and thrown away of a body that is too large, so that its sender comes to read the answer. Closed on, a
/// sender in the middle of its body would see a broken connection.
const DISCARD: u64 = 8 << 20;

/// The body of an answer.
#[derive(Default)]
pub struct Body(Kind);

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Whole(Bytes),
    Grpc(tonic::body::Body),
    Events(Pin<Box<dyn http_body::Body<Data = Bytes, Error = Status> + Send>>),
}

impl Body {
    /// What tonic answers with.
    pub(crate) fn grpc(body: tonic::body::Body) -> Self {
        Self(Kind::Grpc(body))
    }

    /// What comes bit by bit.
    pub(crate) fn events(body: impl http_body::Body<Data = Bytes, Error = Status> + Send + 'static) -> Self {
        Self(Kind::Events(Box::pin(body)))
    }
}

impl From<Bytes> for Body {
    fn from(data: Bytes) -> Self {
        Self(if data.is_empty() { Kind::Empty } else { Kind::Whole(data) })
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Empty => "empty",
            Kind::Whole(_) => "whole",
            Kind::Grpc(_) => "grpc",
            Kind::Events(_) => "events",
        })
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut self.0 {
            Kind::Empty => Poll::Ready(None),
            Kind::Whole(data) => {
                let data = std::mem::take(data);
                self.0 = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Kind::Grpc(body) => Pin::new(body).poll_frame(cx),
            Kind::Events(body) => body.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty => true,
            Kind::Whole(_) => false,
            Kind::Grpc(body) => body.is_end_stream(),
            Kind::Events(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Whole(data) => SizeHint::with_exact(u64::try_from(data.len()).unwrap_or(u64::MAX)),
            Kind::Grpc(body) => body.size_hint(),
            Kind::Events(body) => body.size_hint(),
        }
    }
}

/// The body of a request, read whole. One that is larger than `max` or slower than `patience` is refused.
pub(crate) async fn read<B>(headers: &HeaderMap, body: B, max: usize, patience: Duration) -> Result<Bytes, Error>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let slow = |_| ErrorKind::DeadlineExceeded.because(format!("the body did not arrive within {patience:?}"));
    let mut whole = pin!(collect(headers, body, max));
    // Most come with their heads, and are not waited for.
    if let Poll::Ready(it) = poll_fn(|cx| Poll::Ready(whole.as_mut().poll(cx))).await {
        return it;
    }
    Box::pin(tokio::time::timeout(patience, whole)).await.map_err(slow)?
}

async fn collect<B>(headers: &HeaderMap, body: B, max: usize) -> Result<Bytes, Error>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let mut body = pin!(body);
    let limit = u64::try_from(max).unwrap_or(u64::MAX);
    let (mut first, mut rest, mut length) = (Bytes::new(), BytesMut::new(), 0_u64);
    let mut too_large = body.size_hint().lower() > limit;
    while !too_large {
        let Some(frame) = body.frame().await else { break };
        // The cause is that the other end went away, or broke HTTP; neither is one for the log of errors.
        let frame =
            frame.map_err(|it| ErrorKind::InvalidRequest.because(format!("the body broke off: {}", it.into())))?;
        let Ok(data) = frame.into_data() else { continue };
        length = length.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        too_large = length > limit;
        if too_large || data.is_empty() {
            continue;
        }
        // Most bodies come in one piece, which is taken as it is.
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                let expected = usize::try_from(body.size_hint().lower()).unwrap_or(0).min(max);
                rest.reserve(first.len() + data.len() + expected);
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    if too_large {
        // Who asked before sending gets the answer instead of leave to send.
        if !headers.contains_key(header::EXPECT) {
            while let Some(Ok(frame)) = body.frame().await {
                length = length.saturating_add(frame.data_ref().map_or(0, |it| u64::try_from(it.len()).unwrap_or(0)));
                if length > DISCARD {
                    break;
                }
            }
        }
        return Err(too_large_for(max));
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// A body or a message that has more than `max` bytes.
pub(crate) fn too_large_for(max: usize) -> Error {
    ErrorKind::TooLarge.because(format!("up to {max} bytes are taken")).with("limit", max.to_string())
}
