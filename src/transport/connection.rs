//! State of a connection, observed at its I/O: HTTP version, idleness, write stalls, floods and disconnect of the client.

pub(crate) mod http2_floods;
pub mod listener;
#[cfg(feature = "server-tls")]
pub(crate) mod tls;
pub(crate) mod write_timeout;

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
    time::{Instant, Sleep, sleep_until},
};

use crate::{
    base::clock,
    transport::connection::{http2_floods::FrameBudget, write_timeout::WriteTimeout},
};

/// Connection preface of an HTTP/2 client (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// State of a connection, by which [`listener`](crate::transport::connection::listener) decides when to close it.
#[derive(Default)]
pub(super) struct ConnectionState {
    /// A request or the HTTP/2 preface was received.
    is_open: AtomicBool,
    /// Number of received requests plus completed responses: any change is activity.
    activity: AtomicU32,
    /// The last request has no response yet.
    is_busy: AtomicBool,
    /// HTTP/1: hyper waits for input.
    is_reading: AtomicBool,
    /// HTTP/1: deadline of the response that is being sent.
    response_deadline: Mutex<Option<Instant>>,
    /// The connection uses HTTP/2.
    is_http2: AtomicBool,
    /// Number of requests whose responses are not complete.
    open_streams: AtomicUsize,
    /// HTTP/2: the client has exceeded its budget of control frames.
    is_flooded: AtomicBool,
}

impl ConnectionState {
    /// Records a received request.
    pub(super) fn request_received(&self) {
        self.is_open.store(true, Relaxed);
        self.is_busy.store(true, Relaxed);
        self.activity.fetch_add(1, Relaxed);
    }

    pub(super) fn is_http2(&self) -> bool {
        self.is_http2.load(Relaxed)
    }

    /// Returns true if the connection is idle: no response is due, and over HTTP/2 no stream is open.
    pub(super) fn is_idle(&self) -> bool {
        if self.is_http2() {
            self.open_streams.load(Relaxed) == 0
        } else {
            self.is_reading.load(Relaxed) && !self.is_busy.load(Relaxed)
        }
    }

    /// Completes once the client has exceeded its budget of control frames, if it is polled after each read.
    pub(super) async fn flooded(&self) {
        std::future::poll_fn(|_| if self.is_flooded.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

/// Guard that counts a request as open until it is dropped.
pub(super) struct OpenStream(Arc<ConnectionState>);

impl OpenStream {
    pub(super) fn new(state: &Arc<ConnectionState>) -> Self {
        state.open_streams.fetch_add(1, Relaxed);
        Self(Arc::clone(state))
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open_streams.fetch_sub(1, Relaxed);
        // The idle timeout begins here.
        self.0.activity.fetch_add(1, Relaxed);
    }
}

/// HTTP version of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HttpVersion {
    /// Not known yet: the input so far is this number of bytes of the HTTP/2 preface.
    Undetermined(usize),
    Http1,
    Http2,
}

/// I/O of a connection that updates its [`ConnectionState`].
///
/// Detects the HTTP/2 preface, which hyper does not report: a connection without a request or a complete preface is closed.
/// Over HTTP/1, detects that the client disconnects during a response, while hyper does not read.
pub(super) struct CountedIo<I> {
    io: I,
    state: Arc<ConnectionState>,
    version: HttpVersion,
    /// Reports that vectored writes are not supported: HTTP/2, before the first write. h2 asks once, at its start. It then
    /// joins headers, up to 1 KiB of data and trailers in one write instead of two. Larger frames are written vectored anyway.
    hides_vectored: bool,
    /// HTTP/1: first byte of the next request, read during the response while checking for a disconnect.
    peeked: Option<u8>,
    /// HTTP/1: time in which a response has to begin if the client has ended its side of the connection.
    half_close: Duration,
    /// HTTP/1: end of that time, once the client has done so.
    half_closed: Option<Pin<Box<Sleep>>>,
    /// Timeout of writes that wait for the socket.
    stall: WriteTimeout,
    frames: FrameBudget,
}

impl<I> CountedIo<I> {
    /// Wraps the I/O of a connection. `write_timeout`: see [`WriteTimeout`]; zero is no limit.
    pub(super) fn new(io: I, state: Arc<ConnectionState>, write_timeout: Duration, half_close: Duration) -> Self {
        Self {
            io,
            state,
            version: HttpVersion::Undetermined(0),
            hides_vectored: false,
            peeked: None,
            half_close,
            half_closed: None,
            stall: WriteTimeout::new(write_timeout),
            frames: FrameBudget::new(),
        }
    }

    /// Counts written bytes in the budget of control frames. Fails a write of `offered` bytes once the write timeout has passed.
    fn check_write(
        &mut self,
        written: Poll<io::Result<usize>>,
        offered: usize,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(written)) = written
            && self.version == HttpVersion::Http2
        {
            self.frames.wrote(written);
        }
        match written {
            Poll::Ready(Ok(written)) if written < offered => self.stall.took(written),
            Poll::Ready(_) => self.stall.progressed(),
            Poll::Pending => {}
        }
        if written.is_ready() {
            return written;
        }
        let deadline = if self.version == HttpVersion::Http1 { *self.state.response_deadline.lock() } else { None };
        self.stall.poll(deadline, cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Compares input with the HTTP/2 preface, of which `matched` bytes were read before.
    fn detect_version(&mut self, matched: usize, read: &[u8]) {
        let expected = &PREFACE[matched..];
        let common = expected.len().min(read.len());
        let is_match = read.get(..common) == expected.get(..common);
        self.version = match matched + common {
            _ if !is_match => HttpVersion::Http1,
            matched if matched < PREFACE.len() => HttpVersion::Undetermined(matched),
            _ => HttpVersion::Http2,
        };
        if self.version == HttpVersion::Http2 {
            self.state.is_open.store(true, Relaxed);
            self.state.is_http2.store(true, Relaxed);
            self.hides_vectored = true;
            self.count_frames(read.get(common..).unwrap_or_default());
        }
    }

    /// Counts the HTTP/2 frames in the input.
    fn count_frames(&mut self, read: &[u8]) {
        if self.frames.read(read) {
            self.state.is_flooded.store(true, Relaxed);
        }
    }

    fn set_reading(&mut self, is_reading: bool) {
        if self.version == HttpVersion::Http1 {
            self.state.is_reading.store(is_reading, Relaxed);
        }
    }
}

impl<I: AsyncRead + Unpin> CountedIo<I> {
    /// Completes with an error if the client has disconnected, by reading one byte while hyper does not read. Registers the
    /// waker otherwise.
    ///
    /// The end of the input is no disconnect if a response begins in time. If the client has gone nevertheless, the response or
    /// the next comment of a stream can't be written.
    fn poll_disconnect(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.half_closed.is_none() {
            let mut byte = [0];
            let mut buf = ReadBuf::new(&mut byte);
            if let Err(error) = ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf)) {
                return Poll::Ready(error);
            }
            self.peeked = buf.filled().first().copied();
            if self.peeked.is_some() {
                return Poll::Pending;
            }
            if self.half_close.is_zero() {
                return Poll::Ready(io::ErrorKind::UnexpectedEof.into());
            }
            self.half_closed = Some(Box::pin(sleep_until(clock::after(Instant::now(), self.half_close))));
        }
        match &mut self.half_closed {
            Some(end) if self.state.is_busy.load(Relaxed) => {
                ready!(end.as_mut().poll(cx));
                Poll::Ready(io::ErrorKind::UnexpectedEof.into())
            }
            _ => Poll::Pending,
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CountedIo<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.state.is_flooded.load(Relaxed) {
            // Further input is not read: the connection is about to be closed.
            return Poll::Pending;
        }
        let before = buf.filled().len();
        if buf.remaining() > 0
            && let Some(byte) = self.peeked.take()
        {
            buf.put_slice(&[byte]);
        }
        // Reads on after the peeked byte, since a read of one byte is inefficient.
        let polled = Pin::new(&mut self.io).poll_read(cx, buf);
        match self.version {
            HttpVersion::Undetermined(matched) => self.detect_version(matched, &buf.filled()[before..]),
            HttpVersion::Http1 => {}
            HttpVersion::Http2 => self.count_frames(&buf.filled()[before..]),
        }
        // After the peeked byte, an error is reported by the next read.
        let polled = if buf.filled().len() > before { Poll::Ready(Ok(())) } else { polled };
        self.set_reading(polled.is_pending());
        polled
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CountedIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.hides_vectored = false;
        self.state.is_busy.store(false, Relaxed);
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.check_write(written, buf.len(), cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.hides_vectored = false;
        self.state.is_busy.store(false, Relaxed);
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.check_write(written, bufs.iter().map(|buf| buf.len()).sum(), cx)
    }

    fn is_write_vectored(&self) -> bool {
        !self.hides_vectored && self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.version == HttpVersion::Http1
            && !self.state.is_reading.load(Relaxed)
            && self.peeked.is_none()
            && let Poll::Ready(error) = self.poll_disconnect(cx)
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
    async fn input_during_a_response_is_read_completely() {
        let (mut client, server) = tokio::io::duplex(1 << 10);
        let mut server = CountedIo::new(server, Arc::default(), Duration::ZERO, Duration::ZERO);
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
        assert!(!server.state.is_reading.load(Relaxed), "hyper handles the byte before it reads on");

        drop(client);
        let disconnect = poll_fn(|cx| Pin::new(&mut server).poll_flush(cx)).await;
        assert_eq!(disconnect.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
