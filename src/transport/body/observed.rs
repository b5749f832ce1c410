//! Logging: the subscriber of the program, the request log and the wire log, the bodies that the two observe, and metrics.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tracing::Span;

/// Observer of a body. It is dropped with the body, which may be before the end.
pub(crate) trait BodyObserver: Unpin {
    /// Returns the span in which the body is polled.
    fn span(&self) -> &Span;

    /// Receives each frame, or `None` at the end and after an error. `is_end` is true if the body was sent completely.
    fn observe(&mut self, frame: Option<&Frame<Bytes>>, is_end: bool);
}

/// Body whose frames are passed to an observer, if there is one.
pub(crate) struct ObservedBody<B, O> {
    pub(crate) body: B,
    pub(crate) observer: Option<O>,
}

impl<B, O> Body for ObservedBody<B, O>
where
    B: Body<Data = Bytes> + Unpin,
    O: BodyObserver,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, observer } = &mut *self;
        let Some(observer) = observer else { return Pin::new(body).poll_frame(cx) };
        let frame = ready!(observer.span().in_scope(|| Pin::new(&mut *body).poll_frame(cx)));
        match &frame {
            Some(Ok(frame)) => observer.observe(Some(frame), frame.is_trailers() || body.is_end_stream()),
            Some(Err(_)) => observer.observe(None, false),
            None => observer.observe(None, true),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
