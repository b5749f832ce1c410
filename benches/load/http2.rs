//! Minimal HTTP/2 and gRPC client: one call at a time, without decoding headers.

use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::http1::Input;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW: u8 = 8;

/// Path prefix of the methods.
const SERVICE: &str = "/lf.a2a.v1.A2AService/";

/// `END_STREAM` flag of a data or header frame, and `ACK` flag of a settings or ping frame.
const END: u8 = 1;

/// Maximum frame size that every peer accepts, and maximum window size.
const FRAME: usize = 16384;
const LARGEST: u32 = (1 << 31) - 1;

pub(crate) struct Http2 {
    socket: TcpStream,
    input: Input,
    output: Vec<u8>,
    /// Received messages of the current call.
    body: Vec<u8>,
    at: usize,
    stream: u32,
    ended: bool,
    /// Send windows of the connection and of the current stream, and initial window of a stream.
    window: i64,
    window_of_stream: i64,
    initial: i64,
    /// Bytes received since the last window update.
    received: u32,
}

impl Http2 {
    pub(crate) async fn new(socket: TcpStream) -> Self {
        let mut client = Self {
            socket,
            input: Input::default(),
            output: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            body: Vec::new(),
            at: 0,
            stream: 0,
            ended: true,
            window: 65535,
            window_of_stream: 0,
            initial: 65535,
            received: 0,
        };
        // Disables push, and sets the initial window to its maximum.
        let settings = [[0, 2, 0, 0, 0, 0], [0, 4, 0x7f, 0xff, 0xff, 0xff]].concat();
        client.frame(SETTINGS, 0, 0, &settings);
        client.frame(WINDOW, 0, 0, &(LARGEST - 65535).to_be_bytes());
        client.flush().await;
        // The settings of the server come first.
        client.read().await;
        client
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.output.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
        self.output.extend_from_slice(&[kind, flags]);
        self.output.extend_from_slice(&stream.to_be_bytes());
        self.output.extend_from_slice(payload);
    }

    async fn flush(&mut self) {
        self.socket.write_all(&self.output).await.unwrap();
        self.output.clear();
    }

    /// Sends a length-prefixed message to a method.
    pub(crate) async fn call(&mut self, method: &str, mut message: &[u8]) {
        let first = self.stream == 0;
        self.stream = if first { 1 } else { self.stream + 2 };
        self.body.clear();
        (self.at, self.ended) = (0, false);
        self.window_of_stream = self.initial;
        self.headers(method, first);
        loop {
            let window = usize::try_from(self.window.min(self.window_of_stream)).unwrap_or(0);
            let (now, rest) = message.split_at(message.len().min(FRAME).min(window));
            if now.is_empty() {
                self.flush().await;
                self.read().await;
                continue;
            }
            self.frame(DATA, if rest.is_empty() { END } else { 0 }, self.stream, now);
            let length = i64::try_from(now.len()).unwrap();
            (self.window, self.window_of_stream) = (self.window - length, self.window_of_stream - length);
            message = rest;
            if rest.is_empty() {
                return self.flush().await;
            }
        }
    }

    /// Writes the headers. Fields that are the same in every call are indexed after the first one (RFC 7541).
    fn headers(&mut self, method: &str, first: bool) {
        let mut block = vec![0x83, 0x86, 0x04, u8::try_from(SERVICE.len() + method.len()).unwrap()];
        block.extend_from_slice(SERVICE.as_bytes());
        block.extend_from_slice(method.as_bytes());
        if first {
            block.extend_from_slice(b"\x41\x09localhost\x5f\x10application/grpc\x40\x02te\x08trailers");
        } else {
            block.extend_from_slice(&[0xc0, 0xbf, 0xbe]);
        }
        self.frame(HEADERS, 4, self.stream, &block);
    }

    /// Returns the next message, or `None` after the last.
    pub(crate) async fn message(&mut self) -> Option<&[u8]> {
        loop {
            let ready = &self.body[self.at..];
            if let Some(head) = ready.first_chunk::<5>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if ready.len() >= 5 + length {
                    let from = self.at + 5;
                    self.at = from + length;
                    return Some(&self.body[from..][..length]);
                }
            }
            if self.ended {
                assert!(ready.is_empty(), "incomplete message");
                return None;
            }
            if ready.is_empty() {
                self.body.clear();
                self.at = 0;
            }
            self.read().await;
        }
    }

    /// Reads a frame, and acknowledges it if required.
    async fn read(&mut self) {
        self.input.need(&mut self.socket, 9).await;
        let head = self.input.ready();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        self.input.need(&mut self.socket, 9 + length).await;
        let payload = &self.input.ready()[9..9 + length];
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        match kind {
            DATA => {
                assert!(flags & 8 == 0, "padding is not supported");
                self.received += u32::try_from(length).unwrap();
                if stream == self.stream {
                    self.body.extend_from_slice(payload);
                    self.ended |= flags & END != 0;
                }
            }
            HEADERS if stream == self.stream => self.ended |= flags & END != 0,
            SETTINGS if flags & END == 0 => {
                for at in (0..length).step_by(6).filter(|at| payload[*at..*at + 2] == [0, 4]) {
                    self.initial = number(at + 2).into();
                }
                self.frame(SETTINGS, END, 0, &[]);
            }
            PING if flags & END == 0 => {
                let payload: [u8; 8] = payload.try_into().unwrap();
                self.frame(PING, END, 0, &payload);
            }
            WINDOW if stream == 0 => self.window += i64::from(number(0)),
            WINDOW if stream == self.stream => self.window_of_stream += i64::from(number(0)),
            RESET | GO_AWAY => panic!("the server reset the call: {payload:?}"),
            _ => {}
        }
        self.input.take(9 + length);
        if self.received > LARGEST / 4 {
            let more = std::mem::take(&mut self.received).to_be_bytes();
            self.frame(WINDOW, 0, 0, &more);
        }
        if !self.output.is_empty() {
            self.flush().await;
        }
    }
}
