//! Odd content in the answers of remote agents: what it means reaches the caller of the client and of the gateway, or is an error or a
//! warning. Nothing is dropped without a sign.

use a2a_service::{client::StreamEvent, error::ErrorKind, pb::v1::ListTasksRequest};
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;

use crate::remote_agents::{Remote, card, gateway, rest_card, run, task};

/// Remote agent with a stream of these results, and this stored task.
async fn streaming(version: &str, results: &[Value], stored: &Value) -> Remote {
    let response = |result: &Value| format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {result}}}"#);
    let stream = results.iter().map(|result| format!("data: {}\n\n", response(result))).collect::<Vec<_>>().concat();
    let stored = response(stored);
    Remote::serve(&card(version, true), move |method| {
        (200, if method.to_lowercase().contains("stream") { stream.clone() } else { stored.clone() })
    })
    .await
}

fn status(state: &str) -> Value {
    json!({"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": state}}})
}

fn chunk(artifact: &Value, append: bool) -> Value {
    json!({"artifactUpdate": {"taskId": "t1", "contextId": "c1", "append": append, "artifact": artifact}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_without_parts_are_no_answer() {
    for result in [
        json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "content": "42"}}),
        json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": []}}),
        json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": null}}),
        json!({"kind": "message", "messageId": "m", "role": "agent", "content": "42"}),
        json!({"message": {}}),
    ] {
        for (version, streams) in [("1.0", false), ("1.0", true), ("0.3", false), ("0.3", true)] {
            let remote = Remote::of_result(version, streams, &result).await;
            for outcome in remote.send().await {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidAgentResponse, "{version} {result}: {error}");
                let names_parts = error.to_string().contains("message.parts: ");
                assert!(names_parts || result == json!({"message": {}}), "{version} {result}: {error}");
            }
            let (code, stdout, stderr) = run(&["send", &remote.url, "Hello"], "").await;
            assert_eq!((code, &*stdout), (6, ""), "{stderr}");
            assert!(stderr.starts_with("error: Invalid agent response type: "), "{stderr}");
        }
    }
    // The name of the parts in the protobuf of 0.3.
    let message = r#"{"message": {"messageId": "m", "role": "ROLE_AGENT", "content": [{"text": "42"}]}}"#;
    let remote = Remote::serve(&rest_card("0.3", "URL"), move |_| (200, message.to_owned())).await;
    for outcome in remote.send().await {
        assert_eq!(outcome.unwrap().text(), "42");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn artifacts_without_ids_are_kept_apart() {
    let [one, two] = ["one", "two"].map(|text| json!({"parts": [{"text": text}]}));
    let mut whole = task("1.0");
    whole["artifacts"] = json!([one, two]);
    let working = status("TASK_STATE_WORKING");
    let remotes = [
        Remote::of_result("1.0", false, &whole).await,
        streaming("1.0", &[working.clone(), chunk(&one, false), chunk(&two, false), json!({"task": whole})], &whole)
            .await,
        streaming("1.0", &[working, chunk(&one, false), chunk(&two, false), status("TASK_STATE_COMPLETED")], &whole)
            .await,
    ];
    for remote in remotes {
        let sent = gateway(&remote.client().await).send("Hello").await.unwrap();
        let artifacts = sent.task().unwrap().artifacts.iter();
        let found: Vec<_> = artifacts.map(|it| (&*it.artifact_id, it.parts[0].as_text().unwrap())).collect();
        assert_eq!(found, [("unnamed-1", "one"), ("unnamed-2", "two")]);
    }
}

/// Halves of a character: those that meet within a text are joined, others are U+FFFD.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halves_of_characters_are_replaced() {
    for version in ["1.0", "0.3"] {
        for (half, expected) in [(r"a\ud83d", "a\u{fffd}"), (r"\ude00b", "\u{fffd}b"), (r"\ud83d\ude00", "😀")] {
            let response =
                format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {}}}"#, task(version)).replace("42", half);
            let card = card(version, true).to_string().replace("Remote", &format!("Remote {half}"));
            let remote = Remote::serve_text(card, move |method| {
                let is_stream = method.to_lowercase().contains("stream");
                (200, if is_stream { format!("data: {response}\n\n") } else { response.clone() })
            })
            .await;
            assert_eq!(remote.client().await.card().name, format!("Remote {expected}"));
            for outcome in remote.send().await {
                assert_eq!(outcome.unwrap().text(), expected, "{version} {half}");
            }
            let (code, _, stderr) = run(&["card", "validate", &remote.url], "").await;
            assert_eq!(code, 0, "{stderr}");
        }
    }
    let rest = task("1.0").to_string().replace("42", r"a\ud83d");
    let remote = Remote::serve(&rest_card("1.0", "URL"), move |_| (200, format!(r#"{{"task": {rest}}}"#))).await;
    let (code, stdout, stderr) = run(&["send", &remote.url, "Hello"], "").await;
    assert!(code == 0 && stdout.contains("a\u{fffd}"), "{stdout} {stderr}");
}

/// A last chunk may have no parts, and a further one more members of the artifact.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_further_chunks_reach_the_artifact() {
    let part = json!({"artifactId": "a", "parts": [{"text": "42"}]});
    let mut last = chunk(&json!({"artifactId": "a", "parts": [], "metadata": {"k": 1}, "extensions": ["urn:x"]}), true);
    last["artifactUpdate"]["lastChunk"] = true.into();
    let end = status("TASK_STATE_COMPLETED");
    let remote = streaming("1.0", &[chunk(&part, false), last, end], &task("1.0")).await;
    let sent = gateway(&remote.client().await).send("Hello").await.unwrap();
    let artifact = &sent.task().unwrap().artifacts[0];
    assert_eq!((&*sent.text(), &*artifact.extensions), ("42", &["urn:x".to_owned()][..]));
    assert_eq!(serde_json::to_value(&artifact.metadata).unwrap(), json!({"k": 1}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_events_are_counted_in_a_warning() {
    for (version, unknown) in [
        ("1.0", json!({"progressUpdate": {"x": 1}})),
        ("0.3", json!({"kind": "progress-update", "taskId": "t1", "x": 1})),
    ] {
        let remote = streaming(version, &[unknown.clone(), unknown, task(version)], &task(version)).await;
        let events: Vec<_> = remote.client().await.stream("Hello").await.unwrap().collect().await;
        assert!(matches!(&*events, [Ok(StreamEvent::Task(_))]), "{events:?}");
        let (code, stdout, stderr) = run(&["stream", &remote.url, "Hello"], "").await;
        assert!(code == 0 && stdout.contains("42"), "{stdout}");
        assert_eq!(stderr, "warning: events of the agent ignored: they have no content that is known events=2\n");
        let (_, _, stderr) = run(&["send", &remote.url, "Hello"], "").await;
        assert_eq!(stderr, "", "{version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_with_tasks_without_ids_are_invalid() {
    let remote =
        Remote::of_result("1.0", false, &json!({"tasks": [{"status": {"state": "TASK_STATE_WORKING"}}]})).await;
    let client = remote.client().await;
    let listed = client.list(ListTasksRequest::default()).next().await.unwrap();
    assert_eq!(listed.unwrap_err().kind(), ErrorKind::InvalidAgentResponse);
    let (code, stdout, stderr) = run(&["list", "tasks", &remote.url], "").await;
    assert_eq!((code, &*stdout), (6, ""), "{stderr}");
    assert!(stderr.contains("task that has no id"), "{stderr}");
}

/// The id of a response may be written with a fraction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_with_a_fraction_of_zero_are_the_same() {
    for (id, is_own) in [("ID.0", true), ("ID.5", false), ("ID1", false)] {
        let response = format!(r#"{{"jsonrpc": "2.0", "id": {id}, "result": {}}}"#, task("1.0"));
        let remote = Remote::serve(&card("1.0", false), move |_| (200, response.clone())).await;
        for outcome in remote.send().await {
            assert_eq!(outcome.is_ok(), is_own, "{id}");
        }
    }
}

/// Advice for the sender of a request is not for the reader of a response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_03_in_a_response_are_no_warning() {
    let mut task = task("1.0");
    task["artifacts"][0]["parts"][0]["kind"] = "text".into();
    let remote = Remote::of_result("1.0", false, &task).await;
    let (code, stdout, stderr) = run(&["send", &remote.url, "Hello"], "").await;
    assert!(code == 0 && stdout.contains("42"), "{stdout}");
    assert_eq!(stderr, "");
}

/// A card that the client takes is valid, at most with a warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cards_with_their_version_elsewhere_are_valid() {
    let interface =
        |version: Value| json!([{"protocolBinding": "JSONRPC", "url": "URL/rpc", "protocolVersion": version}]);
    let mut of_card = card("1.0", false);
    of_card["protocolVersion"] = "1.0".into();
    of_card["supportedInterfaces"] = json!([{"protocolBinding": "JSONRPC", "url": "URL/rpc", "tenant": ""}]);
    let mut cards = vec![of_card];
    for version in [json!("v1.0"), json!(1.0), json!(1)] {
        let mut card = card("1.0", false);
        card["supportedInterfaces"] = interface(version);
        cards.push(card);
    }
    for card in cards {
        let remote =
            Remote::serve(&card, |_| (200, format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {}}}"#, task("1.0"))))
                .await;
        let (code, _, stderr) = run(&["send", &remote.url, "Hello"], "").await;
        assert_eq!(code, 0, "{card}: {stderr}");
        let (code, stdout, stderr) = run(&["card", "validate", &remote.url], "").await;
        assert!(code == 0 && stdout.starts_with("valid "), "{card}: {stdout} {stderr}");
    }
}
