//! Write-progress timeout: ends answers of which the client takes too little, and streams that are too old.
//!
//! An HTTP/2 stream without a window is never polled by hyper, so nothing in a body can end it. Its deadline is kept by the
//! task that drives it: [`StreamExecutor`] wraps each of hyper's stream futures. Dropping one resets its stream and frees what
//! it holds, and leaves the other streams of the connection alone. Over HTTP/1 a connection has one answer at a time, and
//! [`CountedIo`](super::connection::Guarded) fails a write that makes no progress, by a [`WriteTimeout`] of its own.

use std::{
    cell::RefCell,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::response_budget::SMALL;

/// Bytes that are given to HTTP/2 at once. A client has to take as many within the timeout, or all that wait if they are
/// fewer.
const PIECE: usize = 64 << 10;

tokio::task_local! {
    /// The HTTP/2 stream that is being polled.
    static FLOW: RefCell<WriteProgress>;
}

/// When an answer has to end, as an extension of its response.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteDeadline(Instant);

impl WriteDeadline {
    /// After so long from now; never if zero.
    pub(super) fn after(age: Duration) -> Option<Self> {
        Instant::now().checked_add(age).filter(|_| !age.is_zero()).map(Self)
    }
}

/// State of the answer on one HTTP/2 stream.
#[derive(Debug, Default)]
struct WriteProgress {
    /// There is an answer. Before, nothing waits for the client.
    answered: bool,
    /// The body has nothing to send yet.
    idle: bool,
    /// The body gave something, so what it gave before was taken. Reset for each poll.
    progressed: bool,
    until: Option<Instant>,
    /// Made with the first piece.
    pieces: Option<Arc<Pieces>>,
}

impl WriteProgress {
    /// Returns true if bytes wait for the client.
    fn is_waiting(&self) -> bool {
        self.answered && (!self.idle || self.pieces.as_ref().is_some_and(|pieces| pieces.held() > 0))
    }

    fn taken(&self) -> usize {
        self.pieces.as_ref().map_or(0, |pieces| pieces.taken.load(Ordering::Relaxed))
    }
}

/// Pieces of one body that hyper and HTTP/2 have.
#[derive(Debug, Default)]
struct Pieces {
    given: AtomicUsize,
    /// Sent, or dropped with their stream.
    taken: AtomicUsize,
    /// The body, where only its end is left.
    end: AtomicWaker,
}

impl Pieces {
    fn held(&self) -> usize {
        self.given.load(Ordering::Acquire).wrapping_sub(self.taken.load(Ordering::Acquire))
    }
}

/// Bytes in the send buffer of HTTP/2.
struct Piece {
    data: Bytes,
    pieces: Arc<Pieces>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.pieces.taken.fetch_add(1, Ordering::AcqRel);
        self.pieces.end.wake();
    }
}

/// Watches the body of a response. Returns the time when the answer has to end, if there is one.
pub(super) fn observe<B>(response: Response<B>) -> (Response<ProgressBody<B>>, Option<Instant>) {
    let until = response.extensions().get::<WriteDeadline>().map(|until| until.0);
    let tracked = FLOW.try_with(|flow| {
        let mut flow = flow.borrow_mut();
        (flow.answered, flow.until) = (true, until);
    });
    let tracked = tracked.is_ok();
    (response.map(|body| ProgressBody { body, tracked, rest: Bytes::new(), end: None, pieces: None }), until)
}

/// A body that reports to the task of its HTTP/2 stream whether it waits for the client. The body is sent in pieces,
/// and ends once all of them were sent: at its end, hyper would drop the stream, which could then no longer be reset.
pub(super) struct ProgressBody<B> {
    body: B,
    /// This is an answer over HTTP/2.
    tracked: bool,
    /// Rest of the last frame.
    rest: Bytes,
    /// Set once all else was given.
    end: Option<End>,
    pieces: Option<Arc<Pieces>>,
}

/// End of a body.
enum End {
    Nothing,
    Trailers(Frame<Bytes>),
}

impl<B> ProgressBody<B> {
    fn piece(&mut self) -> Frame<Bytes> {
        let pieces = Arc::clone(self.pieces.get_or_insert_default());
        note(|flow| {
            flow.pieces.get_or_insert_with(|| Arc::clone(&pieces));
        });
        pieces.given.fetch_add(1, Ordering::AcqRel);
        let data = self.rest.split_to(self.rest.len().min(PIECE));
        Frame::data(Bytes::from_owner(Piece { data, pieces }))
    }

    /// Returns the end of the body once its pieces were sent.
    fn poll_end(&mut self, cx: &Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if let Some(pieces) = self.pieces.as_ref().filter(|pieces| pieces.held() > 0) {
            pieces.end.register(cx.waker());
            if pieces.held() > 0 {
                return Poll::Pending;
            }
        }
        Poll::Ready(match self.end.take() {
            Some(End::Trailers(trailers)) => Some(trailers),
            Some(End::Nothing) | None => None,
        })
    }
}

/// Changes the state of the stream that is being polled.
fn note(change: impl FnOnce(&mut WriteProgress)) {
    // A body that was moved out of its task is not tracked.
    _ = FLOW.try_with(|flow| change(&mut flow.borrow_mut()));
}

impl<B: Body<Data = Bytes> + Unpin> Body for ProgressBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let it = &mut *self;
        if !it.tracked {
            return Pin::new(&mut it.body).poll_frame(cx);
        }
        if it.rest.is_empty() && it.end.is_none() {
            let Poll::Ready(frame) = Pin::new(&mut it.body).poll_frame(cx) else {
                note(|flow| flow.idle = true);
                return Poll::Pending;
            };
            note(|flow| (flow.idle, flow.progressed) = (false, true));
            match frame.transpose()?.map(Frame::into_data) {
                Some(Ok(data)) if data.len() > SMALL => it.rest = data,
                Some(Ok(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Err(trailers)) => it.end = Some(End::Trailers(trailers)),
                None => it.end = Some(End::Nothing),
            }
        }
        if it.rest.is_empty() {
            return it.poll_end(cx).map(|end| end.map(Ok));
        }
        note(|flow| (flow.idle, flow.progressed) = (false, true));
        Poll::Ready(Some(Ok(it.piece())))
    }

    fn is_end_stream(&self) -> bool {
        let sent = || self.pieces.as_ref().is_none_or(|pieces| pieces.held() == 0);
        self.rest.is_empty() && self.end.is_none() && self.body.is_end_stream() && sent()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Runs the HTTP/2 streams of a connection as tasks that end when the client takes too little for the timeout.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamExecutor {
    /// Never if zero.
    pub(super) timeout: Duration,
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        tokio::spawn(Timed {
            stream,
            flow: WriteProgress::default(),
            taken: 0,
            stall: WriteTimeout::new(self.timeout),
        });
    }
}

pin_project! {
    /// A stream of HTTP/2. Once it is over, its answer is dropped, which resets it.
    struct Timed<F> {
        #[pin]
        stream: F,
        flow: WriteProgress,
        // Number of pieces that were sent at the last poll.
        taken: usize,
        stall: WriteTimeout,
    }
}

impl<F: Future<Output = ()>> Future for Timed<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let it = self.project();
        let flow = RefCell::new(mem::take(it.flow));
        let (polled, flow) = FLOW.sync_scope(flow, || (it.stream.poll(cx), FLOW.with(RefCell::take)));
        *it.flow = flow;
        if polled.is_ready() {
            return Poll::Ready(());
        }
        let taken = mem::replace(it.taken, it.flow.taken());
        if mem::take(&mut it.flow.progressed) || taken != *it.taken || !it.flow.is_waiting() {
            it.stall.progressed();
        }
        if !it.flow.is_waiting() {
            return Poll::Pending;
        }
        ready!(it.stall.poll(it.flow.until, cx));
        tracing::debug!("stream reset: the client took too little of its answer");
        Poll::Ready(())
    }
}

/// Time since enough was last taken of what waits to be written.
#[derive(Debug)]
pub(super) struct WriteTimeout {
    /// Never over if zero.
    timeout: Duration,
    since: Option<Instant>,
    /// Bytes that were taken since then.
    taken: usize,
    /// Made when something has to wait for the first time, and moved only when it fires.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, since: None, taken: 0, timer: None }
    }

    /// Enough was taken, or nothing waits.
    pub(super) fn progressed(&mut self) {
        (self.since, self.taken) = (None, 0);
    }

    /// Counts bytes that were taken. Fewer than [`PIECE`] within the timeout are not enough.
    pub(super) fn took(&mut self, bytes: usize) {
        if self.since.is_some() {
            self.taken = self.taken.saturating_add(bytes);
        }
        if self.taken >= PIECE {
            self.progressed();
        }
    }

    /// Returns once too little was taken for the timeout, or at `until` if that comes first.
    pub(super) fn poll(&mut self, until: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let stalled = since.checked_add(self.timeout).filter(|_| !self.timeout.is_zero());
        let Some(due) = stalled.into_iter().chain(until).min() else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() > due {
            timer.as_mut().reset(due);
        }
        loop {
            ready!(timer.as_mut().poll(cx));
            if Instant::now() >= due {
                return Poll::Ready(());
            }
            timer.as_mut().reset(due);
        }
    }
}
