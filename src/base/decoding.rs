//! Decoding of large texts and messages outside of the threads that drive connections. Content encodings, of which none is decoded.

use std::{future, panic};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Semaphore,
    task::{self, spawn_blocking},
};

/// Byte order mark of UTF-8, which some programs put before a text. One is skipped.
#[cfg(any(feature = "client", all(feature = "exec", unix)))]
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Returns the content encoding of a body by its headers, such as `gzip`. `None` if it is sent as it is.
#[cfg(any(feature = "auth", feature = "client", feature = "push", feature = "server"))]
pub(crate) fn content_encoding(headers: &http::HeaderMap) -> Option<&[u8]> {
    let values = headers.get_all(http::header::CONTENT_ENCODING).iter();
    let mut names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    names.find(|name| !name.is_empty() && !name.eq_ignore_ascii_case(b"identity"))
}

/// Length in bytes from which decoding takes so long that it would delay other calls.
const LARGE: usize = 1 << 20;

/// Number of large texts that are decoded at the same time, over all agents and clients of the process. This bounds the memory and
/// the processor time that they take.
static PERMITS: Semaphore = Semaphore::const_new(2);

/// Decodes a text of so many bytes: a large one on a thread for blocking work, once it is its turn.
pub(crate) async fn decode<T: Send + 'static>(length: usize, decode: impl FnOnce() -> T + Send + 'static) -> T {
    if length <= LARGE {
        return decode();
    }
    // It is never closed.
    let permit = PERMITS.acquire().await.ok();
    let decoded = spawn_blocking(move || {
        let _permit = permit;
        decode()
    });
    match decoded.await {
        Ok(decoded) => decoded,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => panic::resume_unwind(panic),
            // The runtime stops, and drops this future too.
            Err(_) => future::pending().await,
        },
    }
}

/// Decodes a request of so many bytes where the caller can't wait. A few workers of a runtime with several threads pass their other
/// tasks on before they decode a large one. Not for tasks of a [`LocalSet`](tokio::task::LocalSet), which can't be passed on.
pub(crate) fn decode_request<T>(length: usize, decode: impl FnOnce() -> T) -> T {
    /// Requests that are decoded so at the same time: each needs another thread.
    static IN_PLACE: Semaphore = Semaphore::const_new(4);
    let is_worker = || {
        let runtime = Handle::try_current();
        // The future of `block_on` has no id, and delays no other task.
        runtime.is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread) && task::try_id().is_some()
    };
    if length > LARGE
        && is_worker()
        && let Ok(_permit) = IN_PLACE.try_acquire()
    {
        return task::block_in_place(decode);
    }
    decode()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    #[cfg(any(feature = "auth", feature = "client", feature = "push", feature = "server"))]
    fn content_encoding_is_that_of_all_headers() {
        for (values, expected) in [
            (&[][..], None),
            (&["identity, Identity", ""], None),
            (&["gzip"], Some("gzip")),
            (&["identity, br"], Some("br")),
            (&["identity", " deflate ,identity"], Some("deflate")),
        ] {
            let values = values.iter().map(|value| (http::header::CONTENT_ENCODING, value.parse().unwrap()));
            let headers: http::HeaderMap = values.collect();
            assert_eq!(content_encoding(&headers), expected.map(str::as_bytes), "{headers:?}");
        }
    }

    #[tokio::test]
    async fn large_texts_are_decoded_on_another_thread() {
        let own = thread::current().id();
        assert_eq!(decode(LARGE, || thread::current().id()).await, own);
        assert_ne!(decode(LARGE + 1, || thread::current().id()).await, own);
        assert_eq!(decode_request(LARGE + 1, || thread::current().id()), own, "a runtime with one thread has no other");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_continue_while_a_request_is_decoded() {
        let decoded = tokio::spawn(async {
            let (sender, receiver) = std::sync::mpsc::channel();
            tokio::spawn(async move { sender.send(()) });
            // The only worker is here.
            decode_request(LARGE + 1, || receiver.recv())
        });
        assert_eq!(decoded.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    #[should_panic(expected = "of the decoder")]
    async fn panic_of_a_decoder_is_passed_on() {
        _ = decode::<usize>(LARGE + 1, || panic!("of the decoder")).await;
    }
}
