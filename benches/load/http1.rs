//! Minimal HTTP/1.1 client: one call at a time, with replies as a body or as server-sent events.

use memchr::memmem;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Received bytes that have not been consumed.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl Input {
    pub(crate) fn ready(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    pub(crate) fn take(&mut self, length: usize) {
        self.at += length;
    }

    /// Reads available bytes.
    pub(crate) async fn fill(&mut self, socket: &mut TcpStream) {
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
        }
        if self.end == self.bytes.len() {
            self.bytes.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, self.end - self.at);
            // Starts small, since there may be a thousand connections.
            let more = self.bytes.len().max(4096);
            if self.end * 2 > self.bytes.len() || self.bytes.is_empty() {
                self.bytes.resize(self.bytes.len() + more, 0);
            }
        }
        let read = socket.read(&mut self.bytes[self.end..]).await.unwrap();
        assert!(read > 0, "the server closed the connection");
        self.end += read;
    }

    /// Reads until this many bytes are available.
    pub(crate) async fn need(&mut self, socket: &mut TcpStream, length: usize) {
        while self.ready().len() < length {
            self.fill(socket).await;
        }
    }

    /// Returns the offset of the next occurrence of `pattern`.
    async fn find(&mut self, socket: &mut TcpStream, pattern: &[u8]) -> usize {
        loop {
            if let Some(at) = memmem::find(self.ready(), pattern) {
                return at;
            }
            self.fill(socket).await;
        }
    }
}

pub(crate) struct Http1 {
    socket: TcpStream,
    input: Input,
    /// Decoded content of a chunked reply.
    body: Vec<u8>,
    at: usize,
    rest: Rest,
}

/// Rest of the current reply.
enum Rest {
    Nothing,
    Body(usize),
    Chunks,
}

impl Http1 {
    pub(crate) fn new(socket: TcpStream) -> Self {
        Self { socket, input: Input::default(), body: Vec::new(), at: 0, rest: Rest::Nothing }
    }

    /// Sends a request and reads the reply header.
    pub(crate) async fn call(&mut self, request: &[u8]) {
        if let Rest::Body(length) = self.rest {
            self.input.take(length);
        }
        self.body.clear();
        self.at = 0;
        self.socket.write_all(request).await.unwrap();
        let end = self.input.find(&mut self.socket, b"\r\n\r\n").await;
        let head = &self.input.ready()[..end];
        assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(self.input.ready()));
        let length = memmem::find(head, b"content-length: ").map(|at| {
            let digits = head[at + 16..].iter().take_while(|byte| byte.is_ascii_digit());
            digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'))
        });
        self.rest = length.map_or(Rest::Chunks, Rest::Body);
        self.input.take(end + 4);
    }

    /// Returns the body or the next event; `None` after the last.
    pub(crate) async fn message(&mut self) -> Option<&[u8]> {
        match self.rest {
            Rest::Nothing => None,
            Rest::Body(length) => {
                self.input.need(&mut self.socket, length).await;
                Some(&self.input.ready()[..length])
            }
            Rest::Chunks => {
                let mut searched = self.at;
                loop {
                    if let Some(found) = memmem::find(&self.body[searched..], b"\n\n") {
                        let event = self.at..searched + found;
                        self.at = event.end + 2;
                        return Some(&self.body[event]);
                    }
                    searched = self.body.len().saturating_sub(1).max(self.at);
                    if self.at == self.body.len() {
                        self.body.clear();
                        self.at = 0;
                        searched = 0;
                    }
                    if !self.chunk().await {
                        assert!(self.at == self.body.len(), "incomplete event");
                        self.rest = Rest::Nothing;
                        return None;
                    }
                }
            }
        }
    }

    /// Reads a chunk. Returns `false` for the last one.
    async fn chunk(&mut self) -> bool {
        let end = self.input.find(&mut self.socket, b"\r\n").await;
        let digits = self.input.ready()[..end].iter();
        let length = digits.fold(0, |length, it| length * 16 + char::from(*it).to_digit(16).unwrap() as usize);
        self.input.need(&mut self.socket, end + 2 + length + 2).await;
        self.body.extend_from_slice(&self.input.ready()[end + 2..][..length]);
        self.input.take(end + 2 + length + 2);
        length > 0
    }
}
