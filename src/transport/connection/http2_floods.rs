//! Flood protection of HTTP/2: a budget of control frames per connection.

use tokio::time::Instant;

/// Maximum number of control frames in a burst.
const BURST: i64 = 10_000;

/// Number of control frames per second that are added to the budget.
const PER_SECOND: i64 = 1000;

/// Number of control frames that a request adds to the budget: priorities, window updates, a reset.
const PER_REQUEST: i64 = 8;

/// Number of written bytes that add one control frame to the budget, for window updates. Few clients send one for less than
/// 1 KiB. Acknowledgements of pings and settings have 17 and 9 bytes, and so do not pay for further ones.
const BYTES_PER_FRAME: i64 = 64;

/// Length of a frame's header (RFC 9113, 4.1).
const HEADER: usize = 9;

/// Types of frames that carry requests (RFC 9113, 6). All other types count as control frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;

/// Budget of control frames of a connection: `SETTINGS`, `PING`, `PRIORITY`, `WINDOW_UPDATE` and others that cost work and
/// carry no request, and empty `DATA`.
///
/// Time, requests and responses add to it. A connection that exceeds it is flooded.
#[derive(Debug)]
pub(in crate::transport) struct FrameBudget {
    /// Bytes of an incomplete frame header.
    header: [u8; HEADER],
    filled: usize,
    /// Number of payload bytes of the current frame that are not read yet.
    payload: usize,
    left: i64,
    /// Time of the last refill.
    refilled: Instant,
}

impl FrameBudget {
    pub(in crate::transport) fn new() -> Self {
        Self { header: [0; HEADER], filled: 0, payload: 0, left: BURST, refilled: Instant::now() }
    }

    /// Counts the frames in the input. Returns true if the budget is exceeded.
    pub(in crate::transport) fn read(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = &bytes[skipped..];
            let wanted = (HEADER - self.filled).min(bytes.len());
            if self.payload > 0 || wanted == 0 {
                break;
            }
            self.header[self.filled..self.filled + wanted].copy_from_slice(&bytes[..wanted]);
            self.filled += wanted;
            bytes = &bytes[wanted..];
            if self.filled == HEADER {
                self.filled = 0;
                let [high, middle, low, kind, ..] = self.header;
                self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                match kind {
                    DATA if self.payload > 0 => {}
                    HEADERS => self.add(PER_REQUEST),
                    _ => self.left -= 1,
                }
            }
        }
        self.left < 0 && !self.refill()
    }

    /// Adds written bytes to the budget.
    pub(in crate::transport) fn wrote(&mut self, bytes: usize) {
        self.add(i64::try_from(bytes).unwrap_or(i64::MAX) / BYTES_PER_FRAME);
    }

    fn add(&mut self, frames: i64) {
        self.left = self.left.saturating_add(frames).min(BURST);
    }

    /// Adds the frames for the time since the last refill. Returns true if the budget is no longer exceeded.
    fn refill(&mut self) -> bool {
        let millis = i64::try_from(self.refilled.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.refilled = Instant::now();
        self.add(millis.saturating_mul(PER_SECOND) / 1000);
        self.left >= 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 0];
        frame.resize(HEADER + payload, 0);
        frame
    }

    /// Reads a frame repeatedly until the budget is exceeded. Returns the number of reads within the budget.
    fn read(budget: &mut FrameBudget, frame: &[u8], most: i64) -> i64 {
        (0..most).take_while(|_| !budget.read(frame)).count().try_into().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn burst_and_rate_are_bounded() {
        for kind in [2, 4, PING, WINDOW_UPDATE, 77, DATA] {
            let mut budget = FrameBudget::new();
            let frame = frame(kind, if kind == DATA { 0 } else { 8 });
            assert_eq!(read(&mut budget, &frame, 2 * BURST), BURST, "{kind}");
            tokio::time::advance(Duration::from_secs(1)).await;
            // The frame that exceeded the budget is subtracted.
            assert_eq!(read(&mut budget, &frame, 2 * BURST), PER_SECOND - 1, "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_counted_across_read_boundaries() {
        for size in [1, 2, 8, 9, 10, 17, 1000] {
            let mut budget = FrameBudget::new();
            let frames = [frame(PING, 8), frame(DATA, 1000), frame(HEADERS, 3), frame(WINDOW_UPDATE, 4)].concat();
            for piece in frames.repeat(10).chunks(size) {
                assert!(!budget.read(piece));
            }
            // Two control frames and one request per repetition. The budget never exceeds a burst.
            assert_eq!((budget.left, budget.filled, budget.payload), (BURST - 1, 0, 0), "{size}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn downloads_uploads_and_requests_have_no_limit() {
        let mut budget = FrameBudget::new();
        for _ in 0..20 * BURST {
            // A window update for the stream and the connection after every frame, as naive clients send them.
            budget.wrote(HEADER + 200);
            assert!(!budget.read(&frame(WINDOW_UPDATE, 4)) && !budget.read(&frame(WINDOW_UPDATE, 4)));
            assert!(!budget.read(&frame(DATA, 1)));
            assert!(!budget.read(&frame(HEADERS, 20)) && !budget.read(&frame(3, 4)));
        }
        // Acknowledgements of pings do not pay for pings.
        let mut pings = 0;
        while !budget.read(&frame(PING, 8)) {
            budget.wrote(HEADER + 8);
            pings += 1;
        }
        // The reset before the pings took one frame of the burst.
        assert_eq!(pings, BURST - 1);
    }
}
