//! Write timeout for clients that read a response too slowly, and the maximum age of streams.
//!
//! hyper does not poll an HTTP/2 stream without a send window, so its body cannot end it. The task of the stream enforces the
//! timeout: [`StreamExecutor`] wraps each of hyper's stream futures. Dropping one resets its stream and frees its memory, and
//! does not affect other streams of the connection. Over HTTP/1 a connection has one response at a time:
//! [`CountedIo`](crate::transport::connection::CountedIo) fails a write that makes no progress, by a [`WriteTimeout`] of its own.

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
use tokio::time::{Instant, Sleep, sleep_until};

use crate::{protocol::response_budget::SMALL, transport::connection::OpenStream};

/// Number of bytes that are passed to h2 at once. A client has to receive as many within the timeout, or all pending bytes if
/// there are fewer.
const PIECE: usize = 64 << 10;

tokio::task_local! {
    /// The HTTP/2 stream that is being polled.
    static FLOW: RefCell<WriteProgress>;
}

/// Deadline of a response, stored in its extensions.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct WriteDeadline(Instant);

impl WriteDeadline {
    /// Returns the deadline in `age` from now; `None` if zero.
    pub(in crate::transport) fn after(age: Duration) -> Option<Self> {
        Instant::now().checked_add(age).filter(|_| !age.is_zero()).map(Self)
    }
}

/// State of the response on one HTTP/2 stream.
#[derive(Debug, Default)]
struct WriteProgress {
    /// The response has started. Before, nothing waits for the client.
    has_response: bool,
    /// The body is pending.
    is_idle: bool,
    /// The body returned a frame, so the earlier ones were taken. Reset for each poll.
    progressed: bool,
    deadline: Option<Instant>,
    /// Created with the first piece.
    pieces: Option<Arc<Pieces>>,
}

impl WriteProgress {
    /// Returns true if bytes wait for the client.
    fn is_waiting(&self) -> bool {
        self.has_response && (!self.is_idle || self.pieces.as_ref().is_some_and(|pieces| pieces.held() > 0))
    }

    fn taken(&self) -> usize {
        self.pieces.as_ref().map_or(0, |pieces| pieces.taken.load(Ordering::Relaxed))
    }
}

/// Counters of the pieces of one body that were passed to hyper.
#[derive(Debug, Default)]
struct Pieces {
    given: AtomicUsize,
    /// Pieces that were sent, or dropped with their stream.
    taken: AtomicUsize,
    /// Waker of the body, if only its end remains.
    end: AtomicWaker,
}

impl Pieces {
    fn held(&self) -> usize {
        self.given.load(Ordering::Acquire).wrapping_sub(self.taken.load(Ordering::Acquire))
    }
}

/// Bytes in the send buffer of h2.
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

/// Tracks the progress of a response, whose body keeps its stream `open`. Also returns its deadline, if it has one.
pub(in crate::transport) fn observe<B>(
    response: Response<B>,
    open: OpenStream,
) -> (Response<ProgressBody<B>>, Option<Instant>) {
    let deadline = response.extensions().get::<WriteDeadline>().map(|deadline| deadline.0);
    let tracked = FLOW.try_with(|flow| {
        let mut flow = flow.borrow_mut();
        (flow.has_response, flow.deadline) = (true, deadline);
    });
    let (tracked, rest) = (tracked.is_ok(), Bytes::new());
    let observe =
        |body| ProgressBody { body, tracked, rest, has_ended: false, trailers: None, pieces: None, _open: open };
    (response.map(observe), deadline)
}

/// Body that reports to the task of its HTTP/2 stream whether it waits for the client. It is sent in pieces and ends once all
/// were sent: hyper drops the future of a stream at the end of the body, after which the stream can't be reset.
pub(in crate::transport) struct ProgressBody<B> {
    body: B,
    /// The response is sent over HTTP/2.
    tracked: bool,
    /// Rest of the last frame, not yet passed on.
    rest: Bytes,
    /// All data was passed on.
    has_ended: bool,
    /// Trailers that follow once all pieces were sent. Boxed, because most bodies have no pieces.
    trailers: Option<Box<Frame<Bytes>>>,
    pieces: Option<Arc<Pieces>>,
    _open: OpenStream,
}

impl<B> ProgressBody<B> {
    fn next_piece(&mut self) -> Frame<Bytes> {
        let pieces = Arc::clone(self.pieces.get_or_insert_default());
        update_progress(|flow| {
            flow.pieces.get_or_insert_with(|| Arc::clone(&pieces));
        });
        pieces.given.fetch_add(1, Ordering::AcqRel);
        let data = self.rest.split_to(self.rest.len().min(PIECE));
        Frame::data(Bytes::from_owner(Piece { data, pieces }))
    }

    /// Completes with the end of the body once all pieces were sent.
    fn poll_end(&mut self, cx: &Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if let Some(pieces) = self.pieces.as_ref().filter(|pieces| pieces.held() > 0) {
            pieces.end.register(cx.waker());
            if pieces.held() > 0 {
                return Poll::Pending;
            }
        }
        Poll::Ready(self.trailers.take().map(|trailers| *trailers))
    }
}

/// Updates the state of the stream that is being polled.
fn update_progress(change: impl FnOnce(&mut WriteProgress)) {
    // A body that was moved out of its task is not tracked.
    _ = FLOW.try_with(|flow| change(&mut flow.borrow_mut()));
}

impl<B: Body<Data = Bytes> + Unpin> Body for ProgressBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        if !this.tracked {
            return Pin::new(&mut this.body).poll_frame(cx);
        }
        if this.rest.is_empty() && !this.has_ended {
            let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
                update_progress(|flow| flow.is_idle = true);
                return Poll::Pending;
            };
            update_progress(|flow| (flow.is_idle, flow.progressed) = (false, true));
            let frame = frame.transpose()?;
            let is_small =
                |frame: &Frame<Bytes>| frame.data_ref().map_or(this.pieces.is_none(), |data| data.len() <= SMALL);
            if frame.as_ref().is_some_and(is_small) {
                return Poll::Ready(frame.map(Ok));
            }
            match frame.map(Frame::into_data) {
                Some(Ok(data)) => this.rest = data,
                end => (this.has_ended, this.trailers) = (true, end.and_then(Result::err).map(Box::new)),
            }
        }
        if this.rest.is_empty() {
            return this.poll_end(cx).map(|end| end.map(Ok));
        }
        update_progress(|flow| (flow.is_idle, flow.progressed) = (false, true));
        Poll::Ready(Some(Ok(this.next_piece())))
    }

    fn is_end_stream(&self) -> bool {
        let sent = || self.pieces.as_ref().is_none_or(|pieces| pieces.held() == 0);
        self.rest.is_empty() && !self.has_ended && self.body.is_end_stream() && sent()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Executor of the HTTP/2 streams of a connection. Their tasks end when the write timeout has passed.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct StreamExecutor {
    /// Write timeout; zero is no limit.
    pub(in crate::transport) timeout: Duration,
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        tokio::spawn(Timed {
            stream: Box::pin(stream),
            flow: WriteProgress::default(),
            taken: 0,
            stall: WriteTimeout::new(self.timeout),
        });
    }
}

/// Task of an HTTP/2 stream. At the timeout it ends, which drops the response and resets the stream.
struct Timed<F> {
    /// Boxed, because tokio moves a future several times.
    stream: Pin<Box<F>>,
    flow: WriteProgress,
    /// Number of pieces that were sent at the last poll.
    taken: usize,
    stall: WriteTimeout,
}

impl<F: Future<Output = ()>> Future for Timed<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let flow = RefCell::new(mem::take(&mut this.flow));
        let (polled, flow) = FLOW.sync_scope(flow, || (this.stream.as_mut().poll(cx), FLOW.with(RefCell::take)));
        this.flow = flow;
        if polled.is_ready() {
            return Poll::Ready(());
        }
        let taken = mem::replace(&mut this.taken, this.flow.taken());
        if mem::take(&mut this.flow.progressed) || taken != this.taken || !this.flow.is_waiting() {
            this.stall.progressed();
        }
        if !this.flow.is_waiting() {
            return Poll::Pending;
        }
        ready!(this.stall.poll(this.flow.deadline, cx));
        tracing::debug!("stream reset: write timeout");
        Poll::Ready(())
    }
}

/// Write timeout of one response or connection: passes if the client receives too little of the pending bytes.
#[derive(Debug)]
pub(in crate::transport) struct WriteTimeout {
    /// Zero is no limit.
    timeout: Duration,
    /// Time of the last sufficient progress. `None` if nothing is pending.
    since: Option<Instant>,
    /// Number of bytes that were taken since then.
    taken: usize,
    /// Created at the first wait, and reset only when it fires.
    timer: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    pub(in crate::transport) fn new(timeout: Duration) -> Self {
        Self { timeout, since: None, taken: 0, timer: None }
    }

    /// Records sufficient progress, or that nothing is pending.
    pub(in crate::transport) fn progressed(&mut self) {
        (self.since, self.taken) = (None, 0);
    }

    /// Counts taken bytes. Progress is sufficient at [`PIECE`] bytes.
    pub(in crate::transport) fn took(&mut self, bytes: usize) {
        if self.since.is_some() {
            self.taken = self.taken.saturating_add(bytes);
        }
        if self.taken >= PIECE {
            self.progressed();
        }
    }

    /// Completes when the timeout passes without sufficient progress, or at `deadline`, whichever is earlier.
    pub(in crate::transport) fn poll(&mut self, deadline: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let stalled = since.checked_add(self.timeout).filter(|_| !self.timeout.is_zero());
        let Some(due) = stalled.into_iter().chain(deadline).min() else { return Poll::Pending };
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
