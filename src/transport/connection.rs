//! A connection that is watched: what it speaks, whether it waits for its client, and whether that is still there.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::{control_frames::FrameBudget, write_timeout::WriteTimeout};

/// What an HTTP/2 client says first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What is seen of a connection, for who decides how long it is kept.
#[derive(Default)]
pub(super) struct ConnectionState {
    /// A request has come, or the preface of HTTP/2.
    open: AtomicBool,
    /// Number of requests so far, and of completed answers.
    calls: AtomicU32,
    /// The last of them has no answer yet.
    busy: AtomicBool,
    /// HTTP/1: more is read from it as soon as it comes.
    reads: AtomicBool,
    /// HTTP/1: when the answer that is being sent has to end.
    until: Mutex<Option<Instant>>,
    /// The connection uses HTTP/2.
    http2: AtomicBool,
    /// Requests whose answers are not whole yet.
    streams: AtomicUsize,
    /// HTTP/2: the client has exceeded its budget of control frames.
    flooded: AtomicBool,
}

impl ConnectionState {
    /// A request has come.
    pub(super) fn called(&self) {
        self.open.store(true, Relaxed);
        self.busy.store(true, Relaxed);
        self.calls.fetch_add(1, Relaxed);
    }

    pub(super) fn calls(&self) -> u32 {
        self.calls.load(Relaxed)
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Relaxed)
    }

    /// HTTP/1: the next answer has to end at this time.
    pub(super) fn ends_at(&self, until: Option<Instant>) {
        *self.until.lock() = until;
    }

    pub(super) fn is_http2(&self) -> bool {
        self.http2.load(Relaxed)
    }

    /// Returns true if the connection is idle: no answer is due, and over HTTP/2 no stream is open.
    pub(super) fn is_idle(&self) -> bool {
        if self.is_http2() {
            self.streams.load(Relaxed) == 0
        } else {
            self.reads.load(Relaxed) && !self.busy.load(Relaxed)
        }
    }

    /// Completes once the client has exceeded its budget of control frames, if it is polled after each read.
    pub(super) async fn flooded(&self) {
        let flooded = || if self.flooded.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending };
        std::future::poll_fn(|_| flooded()).await;
    }
}

/// A request that is counted as open until this is dropped.
pub(super) struct OpenStream(Arc<ConnectionState>);

impl OpenStream {
    pub(super) fn new(watch: &Arc<ConnectionState>) -> Self {
        watch.streams.fetch_add(1, Relaxed);
        Self(Arc::clone(watch))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
        // The idle timeout begins here.
        self.0.calls.fetch_add(1, Relaxed);
    }
}

/// What a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaks {
    /// So much of the preface of HTTP/2 was read, and nothing else.
    Begins(usize),
    Http1,
    Http2,
}

/// Notes when a client has begun with HTTP/2, which is not seen from outside: somebody who connects and waits is let go,
/// and so is one who stops in the middle of the preface. Over HTTP/1 it is seen here that a client has gone while it is
/// answered, which nobody reads from then.
pub(super) struct CountedIo<I> {
    io: I,
    watch: Arc<ConnectionState>,
    speaks: Speaks,
    /// It speaks HTTP/2, and nothing was written to it yet. Whoever writes it asks at the beginning whether pieces may
    /// stay apart; told that they may not, it puts what is up to 1 KiB, the headers before it and the trailers after it
    /// into one write, where it else makes two. Larger pieces are for a vectored write all the same.
    joins: bool,
    /// What a client has sent of its next request before the answer to this one has ended.
    ahead: Option<u8>,
    /// Time with too little progress while written data waits for the socket.
    stall: WriteTimeout,
    frames: FrameBudget,
}

impl<I> CountedIo<I> {
    /// `write_timeout`: how long a write may make too little progress, for ever if zero.
    pub(super) fn new(io: I, watch: Arc<ConnectionState>, write_timeout: Duration) -> Self {
        let (stall, frames) = (WriteTimeout::new(write_timeout), FrameBudget::new());
        Self { io, watch, speaks: Speaks::Begins(0), joins: false, ahead: None, stall, frames }
    }

    /// Fails a write of `offered` bytes that has made too little progress for too long.
    fn in_time(
        &mut self,
        written: Poll<io::Result<usize>>,
        offered: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(written)) if written < offered => self.stall.took(written),
            Poll::Ready(_) => self.stall.progressed(),
            Poll::Pending => {}
        }
        if written.is_ready() {
            return written;
        }
        let until = if self.speaks == Speaks::Http1 { *self.watch.until.lock() } else { None };
        self.stall.poll(until, cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    fn look(&mut self, matched: usize, read: &[u8]) {
        let expected = &PREFACE[matched..];
        let common = expected.len().min(read.len());
        let same = read.get(..common) == expected.get(..common);
        self.speaks = match matched + common {
            _ if !same => Speaks::Http1,
            matched if matched < PREFACE.len() => Speaks::Begins(matched),
            _ => Speaks::Http2,
        };
        if self.speaks == Speaks::Http2 {
            self.watch.open.store(true, Relaxed);
            self.watch.http2.store(true, Relaxed);
            self.joins = true;
            self.count(read.get(common..).unwrap_or_default());
        }
    }

    /// Counts the frames of HTTP/2 in what was read.
    fn count(&mut self, read: &[u8]) {
        if self.frames.read(read) {
            self.watch.flooded.store(true, Relaxed);
        }
    }

    fn wrote(&mut self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(written)) = written
            && self.speaks == Speaks::Http2
        {
            self.frames.wrote(*written);
        }
    }

    fn reads(&mut self, reads: bool) {
        if self.speaks == Speaks::Http1 {
            self.watch.reads.store(reads, Relaxed);
        }
    }
}

impl<I: AsyncRead + Unpin> CountedIo<I> {
    /// Whether the client is still there, while nobody reads what it says. It is said once; whoever asks is woken to ask
    /// again.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut byte = [0];
        let mut buf = ReadBuf::new(&mut byte);
        if let Err(error) = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf)) {
            return Poll::Ready(error);
        }
        self.ahead = buf.filled().first().copied();
        if self.ahead.is_some() { Poll::Pending } else { Poll::Ready(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CountedIo<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.watch.flooded.load(Relaxed) {
            // Further input is not read: the connection is about to be closed.
            return Poll::Pending;
        }
        let before = buf.filled().len();
        if buf.remaining() > 0
            && let Some(it) = self.ahead.take()
        {
            buf.put_slice(&[it]);
        }
        // What follows that byte comes with it: a body is not to be read byte by byte.
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        match self.speaks {
            Speaks::Begins(matched) => self.look(matched, &buf.filled()[before..]),
            Speaks::Http1 => {}
            Speaks::Http2 => self.count(&buf.filled()[before..]),
        }
        // Of an error that comes behind the byte, the next read tells.
        let polled = if buf.filled().len() > before { Poll::Ready(Ok(())) } else { polled };
        self.reads(polled.is_pending());
        polled
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CountedIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.joins = false;
        self.watch.busy.store(false, Relaxed);
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.wrote(&written);
        self.in_time(written, buf.len(), cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.joins = false;
        self.watch.busy.store(false, Relaxed);
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.wrote(&written);
        self.in_time(written, bufs.iter().map(|buf| buf.len()).sum(), cx)
    }

    fn is_write_vectored(&self) -> bool {
        !self.joins && self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.speaks == Speaks::Http1
            && !self.watch.reads.load(Relaxed)
            && self.ahead.is_none()
            && let Poll::Ready(error) = self.poll_gone(cx)
        {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn what_comes_while_nobody_reads_is_read_whole() {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let mut server = CountedIo::new(server, Arc::default(), Duration::ZERO);
        let mut read = [0; 1 << 10];
        client.write_all(b"POST / HTTP/1.1").await.unwrap();
        assert_eq!(server.read(&mut read).await.unwrap(), 15);

        client.write_all(b"a body of some length").await.unwrap();
        for _ in 0..3 {
            poll_fn(|cx| Pin::new(&mut server).poll_flush(cx)).await.unwrap();
        }
        let length = server.read(&mut read).await.unwrap();
        assert_eq!(&read[..length], b"a body of some length");

        client.write_all(b"!").await.unwrap();
        poll_fn(|cx| Pin::new(&mut server).poll_flush(cx)).await.unwrap();
        assert_eq!(server.read(&mut read).await.unwrap(), 1);
        assert!(!server.watch.reads.load(Relaxed), "what it has read is looked at first");

        drop(client);
        let gone = poll_fn(|cx| Pin::new(&mut server).poll_flush(cx)).await;
        assert_eq!(gone.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
