//! Hostile and broken servers: bounded memory and time, typed errors, and no credentials for other origins.

use a2a_service::pb::v1::{Artifact, StreamResponse, Task, TaskArtifactUpdateEvent, stream_response::Payload};
use prost::Message as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::*;

#[tokio::test]
async fn responses_of_hostile_servers_are_errors() {
    const JSON: &str = "application/json";
    const EVENTS: &str = "text/event-stream";
    let limits = SizeLimits::default().card(1000).response(2000).event(3000).stream(100_000);
    let case = |content_type, body: &[u8], is_endless| {
        let given = Given { content_type, body: Bytes::copy_from_slice(body), is_endless };
        quick().retry(Retry::never()).limits(limits).transport(given)
    };
    let endless_event = [b"data: ".as_slice(), &[b'x'; 500]].concat();
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0];
    for (content_type, body, is_endless, text) in [
        (JSON, b"[[[[[[[[[[".as_slice(), true, "2000 bytes"),
        (JSON, b"{\"task\": \"\xff\"}", false, "not UTF-8"),
        (JSON, &gzip, false, ""),
        (JSON, b"[1]", false, ""),
        (JSON, br#"{"jsonrpc": "2.0", "id": 99, "result": {"task": {"id": "1"}}}"#, false, "99"),
    ] {
        let agent = case(content_type, body, is_endless).json_rpc("http://agent.invalid").unwrap();
        let error = Client::from_service(agent).send("Hello").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{body:?}: {error}");
        assert!(text == "not UTF-8" || error.to_string().contains(text), "{error}");
    }
    for (body, text) in [(endless_event.as_slice(), "3000 bytes"), (b": ping\n\n", "100000 bytes")] {
        let agent = case(EVENTS, body, true).rest("http://agent.invalid").unwrap();
        let events = agent.send_streaming_message(Call::default().request("Hello".into())).await.unwrap();
        let error: Status = events.into_inner().next().await.unwrap().unwrap_err();
        assert!(error.message().contains(text), "{error}");
    }
    let error = case(JSON, b"{", true).connect("http://agent.invalid").await.unwrap_err();
    assert!(error.to_string().contains("1000 bytes"), "{error}");
}

#[tokio::test]
async fn slow_servers_are_left_at_the_deadline() {
    let slow = get(|| async {
        let ticks = tokio::time::interval(Duration::from_millis(50));
        let chunks = futures_util::stream::unfold(ticks, |mut ticks| async {
            ticks.tick().await;
            Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b" ")), ticks))
        });
        axum::body::Body::from_stream(chunks)
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(slow)).await.unwrap() });
    let client = quick().timeout(Duration::from_millis(400));
    assert_eq!(client.connect(&url).await.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
    let agent = client.with_card(card(&[(&url, "HTTP+JSON", "")]), None).unwrap();
    assert_eq!(agent.get("1").await.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
}

/// Each response would take over 100 MB once decoded.
#[tokio::test]
async fn decoded_size_of_responses_is_limited() {
    let task = Task {
        artifacts: vec![Artifact { parts: vec![Part::default(); 600_000], ..Default::default() }],
        ..Default::default()
    };
    let update = TaskArtifactUpdateEvent { artifact: task.artifacts.first().cloned(), ..Default::default() };
    let event = StreamResponse { payload: Some(Payload::ArtifactUpdate(update)) };
    let message = |proto: Vec<u8>| [&[0], &u32::try_from(proto.len()).unwrap().to_be_bytes()[..], &proto].concat();
    let (one, stream) = (Bytes::from(message(task.encode_to_vec())), Bytes::from(message(event.encode_to_vec())));
    let (task_json, event_json) = (serde_json::to_string(&task).unwrap(), serde_json::to_string(&event).unwrap());
    let error_json = format!(r#"{{"error": {{"data": [{}]}}}}"#, vec!["0"; 500_000].join(","));
    let respond = move |request: axum::extract::Request| async move {
        let result = |json: &str| format!(r#"{{"jsonrpc": "2.0", "result": {json}}}"#);
        let is_stream = |path: &str| path.contains("SubscribeToTask") || path.contains(":subscribe");
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let (is_rpc, path) = (parts.uri.path() == "/rpc", parts.uri.path().to_owned());
        let path = if is_rpc { String::from_utf8_lossy(&body).into_owned() } else { path };
        let (content_type, body) = match (parts.headers.get(header::CONTENT_TYPE), is_stream(&path)) {
            (Some(value), is_stream) if value == "application/grpc" => {
                ("application/grpc", if is_stream { stream.clone() } else { one.clone() })
            }
            (_, true) => {
                let json = if is_rpc { result(&event_json) } else { event_json.clone() };
                ("text/event-stream", format!("data: {json}\n\n").into())
            }
            (_, false) if path.ends_with("/failed") => ("application/json", error_json.clone().into()),
            (_, false) => {
                let json = if is_rpc { result(&task_json) } else { task_json.clone() };
                ("application/json", json.into())
            }
        };
        ([(header::CONTENT_TYPE, content_type)], body).into_response()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(respond)).await.unwrap() });
    for (binding, name, path) in
        [(Binding::Rest, "HTTP+JSON", ""), (Binding::JsonRpc, "JSONRPC", "/rpc"), (Binding::Grpc, "GRPC", "")]
    {
        let card = card(&[(&format!("{url}{path}"), name, "")]);
        let agent = quick().binding(binding).retry(Retry::never()).with_card(card, None).unwrap();
        let event = async || agent.subscribe("1").await?.next().await.unwrap().map(drop);
        let failed = if binding == Binding::Rest { "failed" } else { "1" };
        for result in [agent.get("1").await.map(drop), agent.get(failed).await.map(drop), event().await] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{binding:?}: {error}");
            assert!(error.to_string().contains("the response takes more than"), "{binding:?}: {error}");
        }
    }
}

/// Server that writes `head` to each connection, and then `body` until the connection is closed.
async fn endless(head: &'static [u8], body: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                _ = connection.read(&mut [0; 4096]).await;
                _ = connection.write_all(head).await;
                while connection.write_all(body).await.is_ok() {}
            });
        }
    });
    url
}

/// Each response would be endless: the client closes the connection after a bounded number of bytes.
#[tokio::test]
async fn endless_responses_are_cut_off() {
    const GZIP: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\n\r\n";
    const EVENTS: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    const ERROR: &[u8] = b"HTTP/1.1 500 Oh\r\ncontent-type: text/event-stream\r\n\r\n";
    let limits = SizeLimits::default().card(100_000).response(100_000).event(100_000).stream(1_000_000);
    for (head, body, kind) in [
        (b"HTTP/1.1 200 OK\r\n".as_slice(), b"x-header: value\r\n".as_slice(), ErrorKind::Unavailable),
        (b"HTTP/1.1 200 OK\r\nx-header: ", b"value", ErrorKind::Unavailable),
        (b"", b"HTTP/1.1 103 Early\r\n\r\n", ErrorKind::DeadlineExceeded),
        (GZIP, &[0; 1000], ErrorKind::InvalidAgentResponse),
        (EVENTS, b"data: a", ErrorKind::InvalidAgentResponse),
        (EVENTS, b"data: \xff\xfe\n\n", ErrorKind::InvalidAgentResponse),
        (EVENTS, b"data: {\"jsonrpc\": \"2.0\", \"id\": 99, \"result\": {}}\n\n", ErrorKind::InvalidAgentResponse),
        // As the comments of a day: the stream could be resumed.
        (EVENTS, b"id: 1\n", ErrorKind::Unavailable),
        (ERROR, b"data: a\n\n", ErrorKind::InvalidAgentResponse),
    ] {
        let url = endless(head, body).await;
        let builder = quick().retry(Retry::never()).limits(limits).timeout(Duration::from_secs(5));
        let agent = Client::from_service(builder.json_rpc(&url).unwrap());
        let request = Call { deadline: Some(tokio::time::Instant::now() + Duration::from_secs(2)), ..Call::default() };
        let opened = agent.service().send_streaming_message(request.request("Hello".into())).await;
        let status = match opened {
            Ok(response) => timeout(TIMEOUT, response.into_inner().next()).await.unwrap().unwrap().unwrap_err(),
            Err(status) => status,
        };
        let error = Error::from(status);
        assert_eq!(error.kind(), kind, "{:?}: {error}", String::from_utf8_lossy(head));
        assert!(!error.to_string().contains("aaaa"), "errors don't repeat the response: {error}");
    }
}

#[tokio::test]
async fn endless_messages_over_grpc_are_errors() {
    for (frame, encoding, is_late) in [
        ([0, 0xff, 0xff, 0xff, 0xff], "identity", false),
        ([1, 0, 0, 0x10, 0], "gzip", false),
        // Empty messages without an end.
        ([0; 5], "identity", true),
    ] {
        let respond = move || async move {
            let first = tokio_stream::once(Bytes::copy_from_slice(&frame));
            let rest = tokio_stream::iter(std::iter::repeat_with(|| Bytes::from_static(&[0; 1000])));
            let body = axum::body::Body::from_stream(first.chain(rest).map(Ok::<_, std::convert::Infallible>));
            let headers = [
                (header::CONTENT_TYPE, "application/grpc"),
                (header::HeaderName::from_static("grpc-encoding"), encoding),
            ];
            (headers, body).into_response()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(respond)).await.unwrap() });
        for version in [Version::V1_0, Version::V0_3] {
            let builder =
                quick().version(version).limits(SizeLimits::default().response(100_000)).retry(Retry::never());
            let mut card = card(&[(&url, "GRPC", "")]);
            version.as_str().clone_into(&mut card.supported_interfaces[0].protocol_version);
            let agent = builder.timeout(Duration::from_secs(1)).with_card(card, None).unwrap();
            let error = timeout(TIMEOUT, agent.get("1")).await.unwrap().unwrap_err();
            assert_eq!(error.kind() == ErrorKind::DeadlineExceeded, is_late, "{frame:?}: {error}");
            assert!(error.to_string().len() < 1000, "{error}");
            if is_late {
                let mut events = agent.subscribe("1").await.unwrap();
                let error = timeout(TIMEOUT, events.next()).await.unwrap().unwrap().unwrap_err();
                assert!(error.to_string().contains("events without content"), "{version:?}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn silent_servers_are_left_at_the_deadline_over_each_binding() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let held = Arc::new(Mutex::new(Vec::new()));
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            held.lock().push(connection);
        }
    });
    for (binding, name) in [(Binding::Rest, "HTTP+JSON"), (Binding::JsonRpc, "JSONRPC"), (Binding::Grpc, "GRPC")] {
        let builder = quick().binding(binding).timeout(Duration::from_millis(300));
        let agent = builder.with_card(card(&[(&url, name, "")]), None).unwrap();
        for result in [
            timeout(TIMEOUT, agent.get("1")).await.unwrap().map(drop),
            timeout(TIMEOUT, agent.subscribe("1")).await.unwrap().map(drop),
        ] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::DeadlineExceeded, "{binding:?}");
        }
    }
}

/// Serves subscriptions by one HTTP method only, and counts all requests.
async fn subscriptions(method: &'static str, refusal: u16) -> (String, Arc<Mutex<Vec<String>>>) {
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let requests = Arc::clone(&seen);
    let respond = move |request: Request<axum::body::Body>| {
        requests.lock().push(request.method().to_string());
        let refused = request.method() != method;
        async move {
            if refused {
                return (StatusCode::from_u16(refusal).unwrap(), json!({"detail": "no"}).to_string()).into_response();
            }
            let task = json!({"task": {"id": "1", "status": {"state": "TASK_STATE_COMPLETED"}}});
            ([(header::CONTENT_TYPE, "text/event-stream")], format!("data: {task}\n\n")).into_response()
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(respond)).await.unwrap() });
    (url, seen)
}

#[tokio::test]
async fn subscription_uses_the_http_method_that_the_server_has() {
    for (method, refusal, expected) in [
        ("GET", 405, ["GET", "GET"].as_slice()),
        ("POST", 404, &["GET", "POST", "POST"]),
        ("POST", 405, &["GET", "POST", "POST"]),
        ("POST", 501, &["GET", "POST", "POST"]),
        ("PATCH", 404, &["GET", "POST", "GET", "POST"]),
        ("POST", 403, &["GET", "GET"]),
    ] {
        let (url, seen) = subscriptions(method, refusal).await;
        let agent = Client::from_service(quick().retry(Retry::never()).rest(&url).unwrap());
        for _ in 0..2 {
            let events = agent.subscribe("1").await;
            assert_eq!(events.is_ok(), expected.last() == Some(&method), "{method} {refusal}");
        }
        assert_eq!(*seen.lock(), expected, "{method} {refusal}");
    }
    // The task is unknown, not the route.
    let agent = Client::from_service(quick().rest(&demo().await).unwrap());
    assert_eq!(agent.subscribe("none").await.unwrap_err().kind(), ErrorKind::TaskNotFound);
}

#[tokio::test]
async fn card_is_downloaded_again_after_a_transient_error() {
    let agent = demo().await;
    let card =
        crate::bindings::fetch(format!("{agent}/.well-known/agent-card.json")).await.unwrap().text().await.unwrap();
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    let respond = move || {
        let response = match count.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            _ => card.clone().into_response(),
        };
        async move { response }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(respond)).await.unwrap() });
    assert_eq!(quick().retry(Retry::never()).connect(&url).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let found = quick().connect(&url).await.unwrap();
    assert_eq!((found.card().name.as_str(), requests.load(Ordering::Relaxed)), ("Demo", 3));
}
