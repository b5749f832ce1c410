//! Fuzz targets: parsers of input that anybody can send. Each runs its seeds in `corpus/`, and then random changes of them and
//! random bytes, with a new seed in each run. A failure prints the smallest input that was found; add it to the corpus.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may panic, and clippy's exceptions for tests do not cover their helpers"
)]

use std::{fs, path::PathBuf, time::Duration};

use a2a_service::{
    agent::{self, End},
    axum::{Router, body::Body},
    base::sse::SseReader,
    card::signature,
    event::Cursor,
    jose::{Algorithm, PublicKeys, SigningKey},
    push::Receiver,
    server::Server,
    store::{ListQuery, PageToken},
    v03,
};
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::BodyExt as _;
use proptest::{
    collection::vec,
    prelude::*,
    sample::Index,
    test_runner::{Config, TestCaseError, TestError, TestRunner},
};
use tokio::{runtime::Runtime, time::Instant};
use tokio_stream::StreamExt as _;
use tower_service::Service as _;

/// Default duration of a target in seconds. The environment variable `FUZZ_SECONDS` sets another.
const SECONDS: u64 = 3;

/// Pieces that parsers treat in a special way.
const PIECES: [&str; 20] = [
    "",
    "\0",
    "\"",
    "\\u0000",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "-1",
    "1e999",
    "18446744073709551616",
    "%",
    "%00",
    "/",
    "..",
    "\u{1f980}",
    "\r\n",
];

/// Change of a seed.
#[derive(Clone, Debug)]
enum Change {
    Replace(Index, u8),
    Remove(Index, Index),
    Repeat(Index, Index),
    Insert(Index, Index),
}

impl Change {
    fn strategy() -> impl Strategy<Value = Self> {
        let index = any::<Index>;
        prop_oneof![
            (index(), any::<u8>()).prop_map(|(at, byte)| Self::Replace(at, byte)),
            (index(), index()).prop_map(|(from, to)| Self::Remove(from, to)),
            (index(), index()).prop_map(|(from, to)| Self::Repeat(from, to)),
            (index(), index()).prop_map(|(at, piece)| Self::Insert(at, piece)),
        ]
    }

    fn apply(&self, input: &mut Vec<u8>) {
        let end = input.len() + 1;
        let range = |from: &Index, to: &Index| {
            let (from, to) = (from.index(end), to.index(end));
            from.min(to)..from.max(to)
        };
        match self {
            Self::Replace(at, byte) if !input.is_empty() => {
                let at = at.index(input.len());
                input[at] = *byte;
            }
            Self::Replace(..) => {}
            Self::Remove(from, to) => drop(input.drain(range(from, to))),
            Self::Repeat(from, to) => {
                let repeated = input[range(from, to)].to_vec();
                input.extend(repeated);
            }
            Self::Insert(at, piece) => {
                let at = at.index(end);
                input.splice(at..at, PIECES[piece.index(PIECES.len())].bytes());
            }
        }
    }
}

/// Runs a target with the seeds of its corpus, and then with random inputs.
fn fuzz(corpus: &str, mut target: impl FnMut(&[u8])) {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(corpus);
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    let seeds: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
    assert!(!seeds.is_empty());
    for seed in &seeds {
        target(seed);
    }
    let changed = (proptest::sample::select(seeds), vec(Change::strategy(), 1..6)).prop_map(|(mut input, changes)| {
        for change in &changes {
            change.apply(&mut input);
        }
        input
    });
    let inputs = prop_oneof![9 => changed, 1 => vec(any::<u8>(), 0..200)];
    let seconds = std::env::var("FUZZ_SECONDS").map_or(SECONDS, |seconds| seconds.parse().unwrap());
    let config = Config { cases: 100, failure_persistence: None, max_shrink_time: 1000, ..Config::default() };
    let (mut runner, target) = (TestRunner::new(config), std::cell::RefCell::new(target));
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let result = runner.run(&inputs, |input| {
            let run = std::panic::AssertUnwindSafe(|| (target.borrow_mut())(&input));
            std::panic::catch_unwind(run).map_err(|_| TestCaseError::fail("panic"))
        });
        if let Err(TestError::Fail(_, input)) = result {
            panic!("{corpus}: {:?} fails; add it to tests/fuzz/corpus/{corpus}", String::from_utf8_lossy(&input));
        }
    }
}

/// Server of the targets for HTTP, without a network.
struct Target {
    runtime: Runtime,
    router: Router,
}

impl Target {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let router = runtime.block_on(async {
            let agent = agent::from_fn(|_, _| async { Ok(End::Completed(None)) });
            Server::new(agent).router()
        });
        Self { runtime, router }
    }

    /// Sends a request, and checks that the server has no internal error and responds with valid JSON.
    fn send(&self, request: Request<Body>) {
        let shown = format!("{} {}", request.method(), request.uri());
        self.runtime.block_on(async {
            let response = self.router.clone().call(request).await.unwrap();
            let (parts, body) = response.into_parts();
            assert_ne!(parts.status, StatusCode::INTERNAL_SERVER_ERROR, "{shown}");
            let content_type = parts.headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap());
            if content_type.contains("json") {
                let body = body.collect().await.unwrap().to_bytes();
                let json: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert!(!json.to_string().contains("-32603"), "{shown}: {json}");
            }
        });
    }

    fn post(&self, path: &str, body: &[u8]) {
        let request =
            Request::post(path).header(header::HOST, "localhost").header(header::CONTENT_TYPE, "application/json");
        self.send(request.body(Body::from(body.to_vec())).unwrap());
    }

    /// Sends a request with the method, path and query of an input.
    fn call(&self, input: &[u8]) {
        let Ok(text) = std::str::from_utf8(input) else { return };
        let (method, target) = text.split_once(' ').unwrap_or(("GET", text));
        let (Ok(method), Ok(uri)) = (method.parse::<Method>(), target.parse::<Uri>()) else { return };
        // Streams and long polls are not the subject.
        if !uri.path().contains("subscribe") {
            let request = Request::builder().method(method).uri(uri).header(header::HOST, "localhost");
            self.send(request.body(Body::empty()).unwrap());
        }
    }
}

#[test]
fn json_rpc() {
    let target = Target::new();
    fuzz("json_rpc", |input| target.post("/rpc", input));
}

#[test]
fn json_rpc_v03() {
    let target = Target::new();
    fuzz("json_rpc_v03", |input| target.post("/rpc", input));
}

#[test]
fn rest() {
    let target = Target::new();
    fuzz("rest", |input| target.call(input));
}

#[test]
fn rest_v03() {
    let target = Target::new();
    fuzz("rest_v03", |input| target.call(input));
}

/// The events do not depend on how the bytes are divided into chunks.
#[test]
fn sse() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let read = |input: &[u8], size: usize| {
        let chunks: Vec<_> = input
            .chunks(size)
            .map(|chunk| Ok::<_, std::convert::Infallible>(bytes::Bytes::copy_from_slice(chunk)))
            .collect();
        let events = SseReader::new(tokio_stream::iter(chunks), 16 << 20).map(|event| format!("{event:?}"));
        runtime.block_on(events.collect::<Vec<String>>())
    };
    fuzz("sse", |input| {
        let whole = read(input, input.len().max(1));
        for size in [1, 2, 7] {
            assert_eq!(read(input, size), whole);
        }
    });
}

#[test]
fn page_tokens() {
    let query = ListQuery::default();
    fuzz("page_token", |input| {
        let token = std::str::from_utf8(input).ok().and_then(|text| PageToken::from_text(text, &query));
        if let Some(token) = token {
            assert_eq!(PageToken::from_text(&token.to_text(&query), &query), Some(token));
        }
    });
}

#[test]
fn cursors() {
    fuzz("cursor", |input| {
        let Some(cursor) = std::str::from_utf8(input).ok().and_then(Cursor::from_text) else { return };
        let again = Cursor::from_text(cursor.as_str()).unwrap();
        assert_eq!(again.parts(), cursor.parts());
    });
}

/// Cards are read, signed, and verified. A signature that this test did not make is never valid.
#[test]
fn cards() {
    let key = SigningKey::generate(Algorithm::EdDsa).unwrap();
    let (own, other) = (PublicKeys::from_iter([&key]), SigningKey::generate(Algorithm::EdDsa).unwrap());
    let other = PublicKeys::from_iter([&other]);
    fuzz("card", |input| {
        _ = v03::card::from_json(input);
        assert!(signature::verify(input, &other).is_err());
        if let Ok(signed) = signature::sign(input, &key) {
            assert!(signature::verify(&signed, &other).is_err());
            let count =
                serde_json::from_slice::<serde_json::Value>(&signed).unwrap()["signatures"].as_array().unwrap().len();
            assert!(count > 32 || signature::verify(&signed, &own).is_ok());
        }
    });
}

/// Tokens of push notifications: none is accepted.
#[test]
fn tokens() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key = SigningKey::generate(Algorithm::Es256).unwrap().with_id("k");
    let receiver = Receiver::new().public_keys(PublicKeys::from_iter([&key]));
    let router: Router =
        Router::new().route("/", receiver.into_route(async |_| Ok::<(), std::convert::Infallible>(())));
    fuzz("jwt", |input| {
        let token = [b"Bearer ", input].concat();
        let Ok(token) = http::HeaderValue::from_bytes(&token) else { return };
        let request = Request::post("/").header(header::AUTHORIZATION, token).body(Body::from("{}")).unwrap();
        let response = runtime.block_on(router.clone().call(request)).unwrap();
        // 400 for a header that is not text.
        assert!(matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::BAD_REQUEST));
    });
}
