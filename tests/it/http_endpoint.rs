//! HTTP endpoint as an agent: forms of its responses, failures, repetition, signatures and cancels.

use std::{
    io::{Read as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    adapter::{HttpEndpoint, HttpOptions},
    client::Client,
    pb::v1::{Part, TaskState},
    server::{Limits, Server},
    testing::{Probe, ProbeOutcome, probe},
};
use axum::{Router, body::Body, extract::Request, response::Response, routing::post};
use futures::future::BoxFuture;
use http::{StatusCode, header};
use serde_json::Value;
use tokio::net::TcpListener;

type Handler = Arc<dyn Fn(Request) -> BoxFuture<'static, Response> + Send + Sync>;

/// Serves an endpoint, and returns its URL.
async fn serve(handler: Handler) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/turn", listener.local_addr().unwrap());
    let app = Router::new().route("/turn", post(move |request: Request| handler(request)));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// Endpoint that responds with a status and a body.
fn fixed(status: StatusCode, content_type: &'static str, body: &'static str) -> Handler {
    Arc::new(move |_| {
        let response = Response::builder().status(status).header(header::CONTENT_TYPE, content_type);
        Box::pin(std::future::ready(response.body(Body::from(body)).unwrap()))
    })
}

async fn agent(handler: Handler, options: HttpOptions) -> Probe {
    probe(HttpEndpoint::new(&serve(handler).await, options).unwrap())
}

async fn send(content_type: &'static str, body: &'static str) -> ProbeOutcome {
    agent(fixed(StatusCode::OK, content_type, body), HttpOptions::default()).await.send("hello").await.unwrap()
}

#[tokio::test]
async fn responses_of_each_form_become_updates() {
    let (artifact, ask) = (r#"{"type":"artifact","text":"Hi"}"#, r#"{"type":"ask","message":"City?"}"#);
    let lines: &'static str = format!("{artifact}\n\n{ask}\n{artifact}").leak();
    let events: &'static str = format!(": comment\nid: 1\ndata: {artifact}\r\n\r\nevent: x\ndata:{ask}\n\n").leak();
    let list: &'static str = format!("[{artifact}, {ask}]").leak();
    for (content_type, body) in [
        ("application/x-ndjson", lines),
        ("application/jsonl; charset=utf-8", lines),
        ("text/event-stream", events),
        ("application/json", list),
    ] {
        let outcome = send(content_type, body).await;
        assert_eq!((outcome.state(), outcome.status_text().as_str()), (TaskState::InputRequired, "City?"), "{body}");
        assert_eq!(outcome.artifact("output").unwrap().parts, [Part::text("Hi")], "{body}");
    }
    for (content_type, body, expected) in [
        ("text/plain", "Hi\n", "Hi"),
        ("application/json", artifact, "Hi"),
        ("text/event-stream", "data: {\"type\":\"artifact\",\ndata: \"text\":\"Hi\"}", "Hi"),
        ("text/plain", "", ""),
    ] {
        let outcome = send(content_type, body).await;
        assert_eq!((outcome.state(), outcome.text().as_str()), (TaskState::Completed, expected), "{body}");
    }
    for (content_type, body) in
        [("application/json", "<html>"), ("application/x-ndjson", "x"), ("application/json", "")]
    {
        assert_eq!(send(content_type, body).await.state(), TaskState::Failed, "{body}");
    }
}

/// Responses of other servers, and parts of one, are no answer.
#[tokio::test]
async fn responses_without_an_answer_fail_the_turn() {
    for (status, content_type, body, expected) in [
        (206, "text/plain", "Hi", "The endpoint of the agent responded with status 206."),
        (202, "text/plain", "Accepted", "The agent's endpoint responded with status 202: no answer yet."),
        (202, "", "", "The agent's endpoint responded with status 202: no answer yet."),
        (204, "", "", ""),
        (200, "application/json", "[]", "The agent's endpoint sent no event."),
        (200, "application/json", " [ ]\n", "The agent's endpoint sent no event."),
        (200, "text/html", "<b>Hi</b>", ""),
        (200, "text/html", "<!DOCTYPE html>\n<html>502</html>", "The agent's endpoint responded with a web page."),
        // An answer may be a page or XML, but then it is not declared as a page.
        (200, "text/plain", "<!DOCTYPE html>\n<html>502</html>", ""),
        (
            200,
            "text/html",
            "<?xml version=\"1.0\"?><html>502</html>",
            "The agent's endpoint responded with a web page.",
        ),
        (200, "text/html", "<!-- 502 --><html></html>", "The agent's endpoint responded with a web page."),
        (200, "text/html; charset=utf-8", " <HTML>502", "The agent's endpoint responded with a web page."),
    ] {
        let handler = fixed(StatusCode::from_u16(status).unwrap(), content_type, body);
        let outcome = agent(handler, HttpOptions::default()).await.send("hello").await.unwrap();
        let state = if expected.is_empty() { TaskState::Completed } else { TaskState::Failed };
        let found = (outcome.state(), outcome.status_text());
        assert_eq!(found, (state, expected.to_owned()), "{status} {content_type} {body}");
    }
}

/// An event without `data:` is a part of the answer.
#[tokio::test]
async fn lines_of_json_in_an_event_stream_fail_the_turn() {
    let event = "data: {\"type\":\"artifact\",\"text\":\"Hi\"}\n\n";
    for line in [
        "{\"type\":\"fail\",\"text\":\"no\"}\n\n",
        "{\"type\":\"fai",
        " {\"type\":\"artifact\",\"text\":\"b\"}\r\n\r\ndata: [DONE]\n\n",
        "x\n{\"type\":\"fail\"}\n\ndata: {\"type\":\"complete\"}\n\n",
    ] {
        let body: &'static str = format!("{event}{line}").leak();
        let outcome = send("text/event-stream", body).await;
        assert_eq!((outcome.state(), &*outcome.text()), (TaskState::Failed, "Hi"), "{line}");
    }
    let other: &'static str = format!("{event}x: {{}}\nfoo\n\n").leak();
    assert_eq!(send("text/event-stream", other).await.state(), TaskState::Completed);
}

/// Pings and the end marker of an event stream are no events. A byte order mark is skipped in each format.
#[tokio::test]
async fn marks_of_streams_are_no_events() {
    let artifact = r#"{"type":"artifact","text":"Hi"}"#;
    let event = format!("data: {artifact}\n\n");
    for (content_type, body) in [
        ("text/event-stream", format!("\u{feff}{event}")),
        ("text/event-stream", format!("\u{feff}{}", event.replace('\n', "\r"))),
        ("text/event-stream", format!("{event}data: [DONE]\n\n")),
        ("text/event-stream", format!("data: {artifact}\ndata: [DONE]")),
        ("text/event-stream", format!("{event}data: [DONE]\n\ndata: {artifact}\n\n")),
        ("text/event-stream", format!("event: ping\ndata: {{}}\n\ndata: \n\nevent: artifact\n{event}")),
        ("application/json", format!("\u{feff}{artifact}")),
        ("application/json", format!("\u{feff}[{artifact}]")),
        ("text/plain", "\u{feff}Hi".to_owned()),
        ("text/plain; charset=iso-8859-1", "\u{feff}Hi".to_owned()),
    ] {
        let outcome = send(content_type, body.clone().leak()).await;
        let found = (outcome.state(), outcome.text());
        assert_eq!(found, (TaskState::Completed, "Hi".to_owned()), "{body:?} {}", outcome.status_text());
    }
    for body in ["data: [DONE]\n\n", "\u{feff}", "event: ping\ndata: {}\n\n"] {
        let outcome = send("text/event-stream", body).await;
        assert_eq!(outcome.status_text(), "The agent's endpoint sent no event.", "{body:?}");
    }
    let cut: &'static str = format!("{event}data: {{\"type\":\"art").leak();
    assert_eq!(send("text/event-stream", cut).await.state(), TaskState::Failed);
}

#[tokio::test]
async fn text_is_decoded_by_its_charset() {
    let response = async |content_type: &'static str, body: &'static [u8]| {
        let handler: Handler = Arc::new(move |_| {
            let response = Response::builder().header(header::CONTENT_TYPE, content_type);
            Box::pin(std::future::ready(response.body(Body::from(body)).unwrap()))
        });
        agent(handler, HttpOptions::default()).await.send("hello").await.unwrap()
    };
    for (content_type, body, expected) in [
        ("text/plain; charset=iso-8859-1", &b"Gr\xfc\xdfe"[..], "Grüße"),
        ("text/plain;charset=\"ISO-8859-1\"", b"Gr\xfc\xdfe", "Grüße"),
        ("text/plain; format=flowed; Charset=latin1", b"Gr\xfc\xdfe\n", "Grüße"),
        ("text/plain; charset=windows-1252", b"\x80 \x93Hi\x94 \x9f\xa0\xff", "€ “Hi” Ÿ\u{a0}ÿ"),
        ("text/plain; charset=us-ascii", b"Hi", "Hi"),
        ("text/html; charset=UTF-8", "Grüße".as_bytes(), "Grüße"),
        ("text/plain; charset=utf8", "Grüße".as_bytes(), "Grüße"),
        ("text/plain", "Grüße".as_bytes(), "Grüße"),
        ("text/plain", b"Gr\xfc\xdfe", "Gr\u{fffd}\u{fffd}e"),
        ("text/plain; charset=iso-8859-1", "\u{feff}Grüße".as_bytes(), "Grüße"),
    ] {
        assert_eq!(response(content_type, body).await.text(), expected, "{content_type}");
    }
    let outcome = response("text/plain; charset=utf-16le", b"H\0i\0").await;
    assert_eq!(outcome.state(), TaskState::Failed);
    assert!(outcome.status_text().contains("neither in UTF-8"), "{}", outcome.status_text());
}

/// Sends a message to an endpoint whose response has this body and these headers, and returns the text of the failure.
async fn failure(headers: &[(&'static str, &'static str)], body: impl Fn() -> Body + Send + Sync + 'static) -> String {
    let headers = headers.to_vec();
    let handler: Handler = Arc::new(move |_| {
        let response =
            headers.iter().fold(Response::builder(), |response, (name, value)| response.header(*name, *value));
        Box::pin(std::future::ready(response.body(body()).unwrap()))
    });
    let outcome = agent(handler, HttpOptions::default()).await.send("hello").await.unwrap();
    assert_eq!(outcome.state(), TaskState::Failed, "{}", outcome.text());
    outcome.status_text()
}

#[tokio::test]
async fn decoded_size_of_events_is_limited() {
    let numbers = format!(r#"{{"type":"artifact","data":[{}]}}"#, vec!["0"; 1_000_000].join(","));
    let parts = format!(r#"{{"type":"artifact","parts":[{}]}}"#, vec!["{}"; 500_000].join(","));
    for event in [numbers, parts] {
        for (content_type, body) in [
            ("application/json", event.clone()),
            ("application/json", format!("[{event}]")),
            ("application/x-ndjson", format!("{event}\n")),
            ("text/event-stream", format!("data: {event}\n\n")),
        ] {
            let body = bytes::Bytes::from(body);
            let text = failure(&[("content-type", content_type)], move || body.clone().into()).await;
            assert!(text.contains("bytes once decoded (decoded_bytes)"), "{content_type}: {text}");
        }
    }
}

#[tokio::test]
async fn streams_without_an_event_fail() {
    for (content_type, body) in [
        ("text/event-stream", ""),
        ("text/event-stream", ": ping\n\nid: 1\n\ndata:\n\n"),
        ("application/x-ndjson", ""),
        ("application/x-ndjson", "\n \r\n"),
    ] {
        let outcome = send(content_type, body).await;
        let found = (outcome.state(), outcome.status_text());
        assert_eq!(found, (TaskState::Failed, "The agent's endpoint sent no event.".to_owned()), "{body:?}");
    }
    for (content_type, piece) in
        [("text/event-stream", ": ping\n\n"), ("text/event-stream", "data:\n\n"), ("application/x-ndjson", "\r\n")]
    {
        let endless = move || Body::from_stream(futures::stream::repeat_with(move || Ok::<_, std::io::Error>(piece)));
        let text = failure(&[("content-type", content_type)], endless).await;
        assert!(text.ends_with("has more than 262144 bytes without an event."), "{piece:?}: {text}");
    }
}

/// Lines of an endpoint are read as those of a command.
#[tokio::test]
async fn other_lines_are_logged_and_broken_events_fail() {
    const LINES: &str = "application/x-ndjson";
    for body in [
        "INFO ready\n{\"type\":\"artifact\",\"text\":\"hi\"}\n",
        "\u{feff}{\"type\":\"artifact\",\"text\":\"hi\"}\r[DONE]\r\n",
        "{\"type\":\"artifact\",\"text\":\"hi\"}",
    ] {
        let outcome = send(LINES, body).await;
        assert_eq!((outcome.state(), outcome.text().as_str()), (TaskState::Completed, "hi"), "{body}");
    }
    for body in
        ["{\"type\":\"status\"}\n{\"type\":\"arti", "{\"type\":\"status\"}\n{broken}\n", "{\"type\":\"status\"}\nBye"]
    {
        assert_eq!(send(LINES, body).await.state(), TaskState::Failed, "{body}");
    }
    // The halves of a character in two texts, and half of one at the end.
    let halves =
        "{\"type\":\"artifact\",\"text\":\"a\\ud83d\"}\n{\"type\":\"artifact\",\"text\":\"\\ude00b\\uD83D\"}\n";
    assert_eq!(send(LINES, halves).await.text(), "a😀b\u{fffd}");
    let text = send(LINES, "<html>\n").await.status_text();
    assert_eq!(text, "The agent's endpoint sent no event. Its output begins with: <html>");
}

#[tokio::test]
async fn encoded_responses_fail() {
    for content_type in ["text/plain", "application/json", "application/x-ndjson", "text/event-stream"] {
        let headers = [("content-type", content_type), ("content-encoding", "gzip")];
        let text = failure(&headers, || Body::from("\u{1f}?")).await;
        assert!(text.ends_with("has a content encoding, which was not requested."), "{text}");
    }
    let handler: Handler = Arc::new(|_| {
        let response = Response::builder().header(header::CONTENT_ENCODING, "identity");
        Box::pin(std::future::ready(response.body(Body::from("Hi")).unwrap()))
    });
    assert_eq!(agent(handler, HttpOptions::default()).await.send("hello").await.unwrap().text(), "Hi");
}

#[tokio::test]
async fn interim_responses_do_not_extend_the_time_for_a_response() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/turn", listener.local_addr().unwrap());
    let (received, request) = tokio::sync::oneshot::channel();
    let closed = tokio::task::spawn_blocking(move || {
        let (mut connection, _) = listener.accept().unwrap();
        assert!(connection.read(&mut [0; 4096]).unwrap() > 0);
        received.send(()).unwrap();
        while connection.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_ok() {}
    });
    let agent = probe(HttpEndpoint::new(&url, HttpOptions::default()).unwrap());
    let sent = tokio::spawn(async move { agent.send("hello").await });
    request.await.unwrap();
    tokio::time::pause();
    tokio::time::advance(Duration::from_mins(10)).await;
    tokio::time::resume();
    let outcome = sent.await.unwrap().unwrap();
    assert_eq!(outcome.status_text(), "The agent's endpoint did not respond in time.");
    closed.await.unwrap();
}

#[tokio::test]
async fn failures_name_no_internals() {
    let outcome = agent(fixed(StatusCode::BAD_REQUEST, "text/plain", "secret"), HttpOptions::default()).await;
    let outcome = outcome.send("hello").await.unwrap();
    assert_eq!(outcome.status_text(), "The endpoint of the agent responded with status 400.");
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}/secret", listener.local_addr().unwrap())
    };
    let outcome = probe(HttpEndpoint::new(&closed, HttpOptions::default()).unwrap()).send("hello").await.unwrap();
    assert_eq!(outcome.status_text(), "The endpoint of the agent can't be reached.");
    let small = HttpOptions::default().output_bytes(10);
    let outcome = agent(fixed(StatusCode::OK, "text/plain", "more than ten bytes"), small).await.send("hello").await;
    assert_eq!(
        outcome.unwrap().status_text(),
        "The response of the agent's endpoint is too large (limits.task_bytes)."
    );
    let silent: Handler = Arc::new(|_| Box::pin(std::future::pending()));
    let endpoint = HttpEndpoint::new(&serve(silent).await, HttpOptions::default()).unwrap();
    let limits = Limits::default().turn_deadline(Duration::from_millis(100));
    let limited = Client::from_service(Server::new(endpoint).limits(limits).into_service());
    let text = limited.send("hello").await.unwrap().text();
    assert!(text.contains("(deadline)"), "{text}");
    for url in ["ftp://agent.example/", "nothing", "file:///etc/passwd"] {
        assert!(HttpEndpoint::new(url, HttpOptions::default()).is_err(), "{url}");
    }
    let options = HttpOptions::default().token(Some("sesame".into())).secret(Some("sesame".into()));
    assert!(!format!("{:?}", HttpEndpoint::new("http://localhost/sesame", options).unwrap()).contains("sesame"));
}

#[tokio::test]
async fn only_idempotent_endpoints_get_a_request_again() {
    for (idempotent, retry_after, expected, state) in [
        (true, "0", 3, TaskState::Completed),
        (true, "3600", 1, TaskState::Failed),
        (true, "Fri, 31 Dec 9999 23:59:59 GMT", 1, TaskState::Failed),
        (false, "0", 1, TaskState::Failed),
    ] {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let handler: Handler = Arc::new(move |_| {
            let is_ready = counted.fetch_add(1, Ordering::Relaxed) == 2;
            let status = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            let response = Response::builder().status(status).header(header::RETRY_AFTER, retry_after);
            Box::pin(std::future::ready(response.body(Body::empty()).unwrap()))
        });
        let outcome = agent(handler, HttpOptions::default().idempotent(idempotent)).await.send("hello").await.unwrap();
        assert_eq!((outcome.state(), count.load(Ordering::Relaxed)), (state, expected));
    }
}

#[tokio::test]
async fn requests_have_the_turn_and_are_signed() {
    let handler: Handler = Arc::new(|request| {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
            let webhook = standardwebhooks::Webhook::new("whsec_c2VzYW1lLW9wZW4tc2VzYW1l").unwrap();
            webhook.verify(&body, &parts.headers).unwrap();
            assert_eq!(parts.headers[header::AUTHORIZATION], "Bearer sesame");
            assert_eq!(parts.headers["idempotency-key"], parts.headers["webhook-id"]);
            let turn: Value = serde_json::from_slice(&body).unwrap();
            let text = format!("{} {}", turn["text"].as_str().unwrap(), turn["task"]["history"][0]["role"]);
            Response::new(Body::from(text))
        })
    });
    let options = HttpOptions::default().token(Some("sesame".into()));
    let options = options.secret(Some("whsec_c2VzYW1lLW9wZW4tc2VzYW1l".into()));
    let outcome = agent(handler, options).await.send("hello").await.unwrap();
    assert_eq!(outcome.text(), "hello \"ROLE_USER\"", "{outcome:?}");
}

/// A cancel closes the connection, so that the endpoint notices it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_closes_the_connection() {
    let (dropped, notice) = tokio::sync::mpsc::channel::<()>(1);
    let handler: Handler = Arc::new(move |_| {
        let guard = dropped.clone();
        let first = r#"{"type":"status","message":"working"}"#;
        let events = async_stream::stream! {
            let _guard = guard;
            yield Ok::<_, std::io::Error>(format!("{first}\n"));
            std::future::pending::<()>().await;
        };
        let response = Response::builder().header(header::CONTENT_TYPE, "application/x-ndjson");
        Box::pin(std::future::ready(response.body(Body::from_stream(events)).unwrap()))
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/turn", listener.local_addr().unwrap());
    let app = Router::new().route("/turn", post(move |request: Request| handler(request)));
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let agent = probe(HttpEndpoint::new(&url, HttpOptions::default()).unwrap());
    assert_eq!(agent.cancel("hello").await.unwrap().state(), TaskState::Canceled);
    // Ends when the stream and the endpoint, which have the senders, are dropped.
    server.abort();
    let mut notice = notice;
    tokio::time::timeout(Duration::from_secs(10), notice.recv()).await.expect("the connection is closed");
}
