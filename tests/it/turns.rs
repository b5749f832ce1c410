//! Records of turns: their line in the log, their metrics, what the store keeps of them, and how an operator reads it.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use a2a_service::{
    agent::{Agent, End, Error, Turn, Updates},
    auth::Principal,
    bytes::Bytes,
    call::Call,
    http::StatusCode,
    pb::v1::{Message, SendMessageRequest, Task, TaskState, a2a_service_server::A2aService, send_message_response},
    server::Server,
    service::Limits,
    store::{Scope, TaskFilter, TaskKey, TurnRecord, sqlite::Options},
};
use axum::{Router, routing};
use futures_util::future::join_all;
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    metrics::v1::{NumberDataPoint, metric::Data, number_data_point},
};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpListener,
    time::{interval, timeout},
};

use crate::{
    program::{a2a, message, output, post, signal, started},
    scenarios::{get, send, text},
    store::opened::OpenedStore,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// Starts a server in a directory, whose log is JSON.
async fn serve(directory: &Path) -> (tokio::process::Child, String) {
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log", "json"]);
    command.env("A2A_STORE", "sqlite:a2a.db").current_dir(directory);
    started(command).await
}

/// Stops a server, and returns the lines of the target in its log.
async fn log(mut server: tokio::process::Child, target: &str) -> Vec<Value> {
    let mut text = String::new();
    let mut errors = server.stderr.take().unwrap();
    signal(&server, "-TERM");
    errors.read_to_string(&mut text).await.unwrap();
    server.wait().await.unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["target"] == target).collect()
}

/// Runs `a2a admin` on the database of a directory; returns its exit code, standard output and standard error.
async fn admin(directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = a2a(&[&["admin"], arguments].concat());
    command.env("A2A_STORE", "sqlite:a2a.db").current_dir(directory);
    let output = output(command).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

async fn admin_json(directory: &Path, arguments: &[&str]) -> Value {
    let (code, output, errors) = admin(directory, &[arguments, &["-ojsonl"]].concat()).await;
    assert_eq!(code, 0, "{output}{errors}");
    serde_json::from_str(&output).unwrap()
}

/// Value of a metric by its name and labels, as the server prints them.
fn metric(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse().unwrap())
}

/// Sum of a metric over its labels.
fn total(text: &str, name: &str) -> u64 {
    let series = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    series.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_outcome_is_counted_logged_and_stored_once() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let config = "shutdown_grace = '0s'\n[turn]\ndeadline = '4s'\nidle_timeout = '2s'\n[limits]\ntask_bytes = '1MiB'\n";
    std::fs::write(directory.join("a2a.toml"), config).unwrap();
    let (server, url) = serve(directory).await;
    let url = &url;
    let send = async |body: Value| post(&format!("{url}/message:send"), &body).await;
    let at_once = |text: &str| {
        let mut body = message(text);
        body["configuration"] = json!({"returnImmediately": true});
        body
    };
    let all = [
        ("hello", "completed", "none"),
        ("/fail on purpose", "failed", "agent"),
        ("/reject it", "rejected", "none"),
        ("/ask City?", "input_required", "none"),
        ("/auth", "auth_required", "none"),
        ("/message hi", "reply", "none"),
        ("/panic", "failed", "panic"),
        ("/hang", "failed", "idle"),
        ("/stream 100 100", "failed", "deadline"),
        ("/stream 3 100 1000000", "failed", "limit"),
    ];
    let replies = join_all(all.iter().map(|(text, ..)| send(message(text)))).await;
    let asked = replies[3]["task"]["id"].as_str().unwrap();
    let mut answer = message("Lisbon");
    answer["message"]["taskId"] = asked.into();
    assert_eq!(send(answer).await["task"]["status"]["state"], "TASK_STATE_COMPLETED");
    let slow = send(at_once("/slow 60")).await["task"]["id"].as_str().unwrap().to_owned();
    assert_eq!(post(&format!("{url}/tasks/{slow}:cancel"), &json!({})).await["status"]["state"], "TASK_STATE_CANCELED");

    let text = crate::bindings::fetch(format!("{url}/metrics")).await.unwrap().bytes().await.unwrap();
    let text = std::str::from_utf8(&text).unwrap();
    let mut expected = BTreeMap::from([(("canceled", "none"), 1)]);
    for (_, outcome, reason) in all {
        *expected.entry((outcome, reason)).or_default() += 1;
    }
    *expected.entry(("completed", "none")).or_default() += 1;
    for ((outcome, reason), count) in &expected {
        let name = format!(r#"a2a_turns_ended_total{{outcome="{outcome}",reason="{reason}"}}"#);
        assert_eq!(metric(text, &name), *count, "{name}:\n{text}");
    }
    assert_eq!(total(text, "a2a_turns_ended_total"), 12, "{text}");
    assert_eq!(total(text, "a2a_turns_started_total"), 12 + metric(text, "a2a_turns"), "{text}");
    assert_eq!(metric(text, "a2a_turns"), 0);
    assert_eq!(metric(text, r#"a2a_turns_started_total{kind="follow_up"}"#), 1);
    assert_eq!(metric(text, "a2a_tasks_created_total"), 10, "a plain reply has no task:\n{text}");
    for (state, count) in [("COMPLETED", 2), ("FAILED", 5), ("REJECTED", 1), ("CANCELED", 1)] {
        assert_eq!(metric(text, &format!(r#"a2a_tasks_ended_total{{state="TASK_STATE_{state}"}}"#)), count);
        assert_eq!(metric(text, &format!(r#"a2a_task_duration_seconds_count{{state="TASK_STATE_{state}"}}"#)), count);
    }
    let durations = r#"a2a_turn_duration_seconds_count{outcome="failed"}"#;
    assert_eq!(metric(text, durations), 5);
    assert_eq!(metric(text, r#"a2a_turn_duration_seconds_bucket{outcome="failed",le="2.5"}"#), 4, "{text}");

    // The reply, the log and the store have one error id.
    for (reply, (_, outcome, reason)) in replies.iter().zip(all) {
        let id = &reply["task"]["status"]["message"]["metadata"]["errorId"];
        assert_eq!(id.is_string(), outcome == "failed", "{reply}");
        if let Some(id) = id.as_str() {
            let found = admin_json(directory, &["error", id]).await;
            assert_eq!((&found["task"], &found["reason"]), (&reply["task"]["id"], &json!(reason)));
        }
    }
    // Ended by the stop of the server.
    send(at_once("/slow 60")).await;
    let lines = log(server, "a2a_service::turn").await;
    let ends = |line: &&Value| {
        let reason = if line["outcome"] == "failed" { line["reason"].as_str().unwrap() } else { "none" };
        assert_eq!(line["error.id"].is_string(), line["outcome"] == "failed", "{line}");
        assert_eq!(line["level"], if line["outcome"] == "failed" { "WARN" } else { "INFO" }, "{line}");
        assert_eq!(line["message"].as_str().unwrap(), format!("turn {}", line["outcome"].as_str().unwrap()));
        (line["outcome"].as_str().unwrap().to_owned(), reason.to_owned())
    };
    let mut logged = BTreeMap::<(String, String), u64>::new();
    for line in &lines {
        *logged.entry(ends(&line)).or_default() += 1;
    }
    let mut expected: BTreeMap<_, _> =
        expected.iter().map(|((outcome, reason), count)| ((outcome.to_string(), reason.to_string()), *count)).collect();
    expected.insert(("abandoned".to_owned(), "none".to_owned()), 1);
    assert_eq!(logged, expected);
    let failed = lines.iter().find(|line| line["task.id"] == replies[1]["task"]["id"]).unwrap();
    assert_eq!(failed["error.id"], replies[1]["task"]["status"]["message"]["metadata"]["errorId"]);
    assert_eq!(
        (&failed["error.cause"], &failed["turn"], &failed["attempt"]),
        (&json!("on purpose"), &json!(1), &json!(1))
    );
    let answered = lines.iter().filter(|line| line["task.id"] == asked).map(|line| line["turn"].as_u64().unwrap());
    assert_eq!(answered.collect::<Vec<_>>(), [1, 2]);
    let deadline = lines.iter().find(|line| line["reason"] == "deadline").unwrap();
    assert!(
        deadline["duration_ms"].as_u64().unwrap() >= 4000 && deadline["commits"].as_u64().unwrap() > 9,
        "{deadline}"
    );
}

/// Agents whose turns end for reasons that those of the program itself never have. `UPSTREAM`, `ENDPOINT` and `MODEL` stand for URLs.
#[cfg(unix)]
const AGENTS: &str = r#"
shutdown_grace = "0s"

[[agents]]
name = "error"
exec.command = "cat"

[[agents]]
name = "exit_code"
exec.command = "sh -c 'exit 3'"

[[agents]]
name = "unavailable"
http.url = "ENDPOINT"

[[agents]]
name = "breaker_open"
upstream.url = "UPSTREAM"

[[agents]]
name = "credentials"
openai.url = "MODEL/denied"
openai.model = "m"

[[agents]]
name = "tool_rounds"
openai.url = "MODEL/calls"
openai.model = "m"
openai.ask = true

[[agents]]
name = "stopped"
exec.command = "sleep 60"
"#;

/// The reasons that the agent of the program itself has are in [`each_outcome_is_counted_logged_and_stored_once`].
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasons_of_what_agents_need_and_of_a_stop_are_counted_once() {
    let exported = Arc::<Mutex<Vec<Bytes>>>::default();
    let received = Arc::clone(&exported);
    let collector = async move |body: Bytes| received.lock().unwrap().push(body);
    let collector = crate::bindings::program(Router::new().route("/v1/metrics", routing::post(collector))).await;
    let denied = routing::post(async || StatusCode::UNAUTHORIZED);
    let calls = json!([{"id": "c", "type": "function", "function": {"name": "none", "arguments": "{}"}}]);
    let choice = json!({"finish_reason": "tool_calls", "message": {"content": null, "tool_calls": calls}});
    let calls = json!({"choices": [choice]}).to_string();
    let calls = routing::post(async move || ([("content-type", "application/json")], calls));
    let model = Router::new().route("/denied/chat/completions", denied).route("/calls/chat/completions", calls);
    let model = crate::bindings::program(model).await;
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (mut upstream, upstream_url) = started(a2a(&["serve", "--listen", "127.0.0.1:0"])).await;

    let directory = tempfile::tempdir().unwrap();
    let config = AGENTS.replace("UPSTREAM", &upstream_url).replace("MODEL", &model);
    let config = config.replace("ENDPOINT", &format!("http://{unused}/turn"));
    std::fs::write(directory.path().join("a2a.toml"), config).unwrap();
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "error"]);
    command.env("PATH", "/usr/bin:/bin").env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector).current_dir(directory.path());
    let (mut server, url) = started(command).await;
    signal(&upstream, "-KILL");
    upstream.wait().await.unwrap();

    let reasons = ["error", "exit_code", "unavailable", "breaker_open", "credentials", "tool_rounds"];
    let sends = reasons.into_iter().chain(["stopped"]).map(async |agent: &str| {
        let mut body = message("hello");
        // A message that does not fit into the environment of a command.
        body["message"]["messageId"] = if agent == "error" { "nul\0" } else { "m-1" }.into();
        body["configuration"] = json!({"returnImmediately": true});
        post(&format!("{url}/{agent}/message:send"), &body).await
    });
    join_all(sends).await;
    let metrics = async || crate::bindings::fetch(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
    let mut ticks = interval(Duration::from_millis(100));
    let ended = async {
        loop {
            let text = metrics().await;
            if total(&text, "a2a_turns_ended_total") >= 6 {
                return text;
            }
            ticks.tick().await;
        }
    };
    // A turn waits for half a minute for an upstream agent.
    let text = timeout(Duration::from_mins(1), ended).await.unwrap();
    for agent in reasons {
        let name = format!(r#"a2a_turns_ended_total{{outcome="failed",reason="{agent}",agent="{agent}"}}"#);
        assert_eq!(metric(&text, &name), 1, "{name}:\n{text}");
    }
    let started = total(&text, "a2a_turns_started_total");
    assert_eq!((total(&text, "a2a_turns_ended_total"), started, total(&text, "a2a_turns")), (6, 7, 1), "{text}");

    signal(&server, "-TERM");
    timeout(Duration::from_secs(20), server.wait()).await.unwrap().unwrap();
    let last = ExportMetricsServiceRequest::decode(exported.lock().unwrap().last().unwrap().clone()).unwrap();
    let all: Vec<_> =
        last.resource_metrics.iter().flat_map(|all| &all.scope_metrics).flat_map(|all| &all.metrics).collect();
    let sum = |name: &str, label: &str| -> i64 {
        let data = all.iter().find(|metric| metric.name == name).unwrap().data.as_ref();
        let Some(Data::Sum(sum)) = data else { panic!("{data:?}") };
        let has = |point: &&NumberDataPoint| label.is_empty() || format!("{:?}", point.attributes).contains(label);
        let value = |point: &NumberDataPoint| match point.value {
            Some(number_data_point::Value::AsInt(value)) => value,
            value => panic!("{value:?}"),
        };
        sum.data_points.iter().filter(has).map(value).sum()
    };
    assert_eq!((sum("a2a.turns.ended", ""), sum("a2a.turns.started", "")), (7, 7));
    assert_eq!((sum("a2a.turns.ended", "\"abandoned\""), sum("a2a.turns.ended", "\"failed\"")), (1, 6));
}

/// From an error id in a user's hand to the task, the trace and the line in the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_id_leads_to_its_task_and_log_line() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let (server, url) = serve(directory).await;
    let request = crate::bindings::http()
        .post(format!("{url}/message:send"))
        .header("content-type", "application/json")
        .header("traceparent", format!("00-{TRACE}-00f067aa0ba902b7-01"))
        .header("x-request-id", "request-7")
        .body(message("/fail no such city").to_string());
    let reply: Value = serde_json::from_slice(&request.send().await.unwrap().bytes().await.unwrap()).unwrap();
    let status = &reply["task"]["status"];
    assert_eq!(status["message"]["parts"][0]["text"], "no such city");
    let (id, task) =
        (status["message"]["metadata"]["errorId"].as_str().unwrap(), reply["task"]["id"].as_str().unwrap());

    let found = admin_json(directory, &["error", id]).await;
    let time = found["time"].as_str().unwrap();
    assert_eq!(time.get(..10), status["timestamp"].as_str().unwrap().get(..10));
    assert_eq!(found["search"], format!("journalctl -u a2a --since @{} -g {id}", unix(time) - 60));
    for (member, expected) in [
        ("task", task),
        ("state", "TASK_STATE_FAILED"),
        ("reason", "agent"),
        ("message", "no such city"),
        ("trace", TRACE),
        ("owner", ""),
    ] {
        assert_eq!(found[member], expected, "{member}: {found}");
    }
    let (code, text, _) = admin(directory, &["error", &id.to_uppercase()]).await;
    assert!(code == 0 && text.contains(&format!("Task:     {task}\n")), "{text}");
    assert!(text.contains(&format!("Trace:    {TRACE}\n")) && text.contains("Request:  request-7\n"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");

    let unknown = "01930000-0005-7abc-8def-0123456789ab";
    let (code, output, errors) = admin(directory, &["error", unknown]).await;
    assert_eq!((code, output.as_str()), (1, ""));
    for expected in ["no task has the error id", "2024-11-06T", "journalctl -u a2a --since @17308"] {
        assert!(errors.contains(expected), "{errors}");
    }
    assert!(errors.lines().all(|line| line.chars().count() <= 100), "{errors}");
    for invalid in ["none", "b0000000-0000-4000-8000-000000000000"] {
        let (code, _, errors) = admin(directory, &["error", invalid]).await;
        assert!(code == 2 && errors.contains("not an error id"), "{errors}");
    }
    let lines = log(server, "a2a_service::turn").await;
    let [line] = &*lines else { panic!("{lines:?}") };
    for (field, expected) in [("error.id", id), ("trace.id", TRACE), ("request.id", "request-7"), ("task.id", task)] {
        assert_eq!(line[field], expected, "{line}");
    }
}

fn unix(time: &str) -> i64 {
    time.parse::<jiff::Timestamp>().unwrap().as_second()
}

/// Agent that streams, asks, hangs in its first attempt at "go", and then fails.
#[derive(Clone)]
struct Worker;

impl Agent for Worker {
    async fn run(&self, turn: Turn, out: Updates) -> Result<End, Error> {
        match turn.text() {
            "ask" => {
                let mut artifact = out.artifact("output");
                for n in 0..12 {
                    artifact.text(format!("{n} ")).await?;
                    out.flush().await?;
                }
                Ok(End::input_required("which city?"))
            }
            "go" if turn.attempt() == 1 => {
                out.progress("Searching").await?;
                std::future::pending().await
            }
            "go" => Err("the disk is full")?,
            _ => Ok(End::Completed(None)),
        }
    }

    fn resumable(&self) -> bool {
        true
    }
}

fn service(store: &OpenedStore) -> Arc<dyn A2aService> {
    let mut limits = Limits::default();
    limits.commit_interval = Duration::ZERO;
    Server::new(Worker).limits(limits).store(Arc::clone(&store.store)).into_service()
}

/// Waits until a task is in a state.
async fn wait_for(agent: &dyn A2aService, id: &str, state: TaskState) -> Task {
    let reached = async {
        loop {
            let task = get(agent, id).await.unwrap();
            if task.state() == state {
                return task;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(20), reached).await.unwrap()
}

/// Creates a database with a task of two turns, the second of which failed in its second attempt, after a crash. Returns the id of
/// the task.
async fn failed_after_a_restart(directory: &Path) -> String {
    let store = OpenedStore::sqlite(Options::default());
    let agent = service(&store);
    let asked = send(&*agent, text("", "ask")).await;
    let id = asked.id.clone();
    let waiting = tokio::spawn({
        let (agent, request) = (Arc::clone(&agent), text(&id, "go"));
        async move { drop(agent.send_message(Call::default().request(request)).await) }
    });
    wait_for(&*agent, &id, TaskState::Working).await;
    while get(&*agent, &id).await.unwrap().status.unwrap().message.is_none() {
        tokio::task::yield_now().await;
    }
    let store = store.killed();
    waiting.abort();
    let agent = service(&store);
    wait_for(&*agent, &id, TaskState::Failed).await;
    let copy = directory.join("a2a.db").display().to_string();
    let database = rusqlite::Connection::open(store.path().unwrap()).unwrap();
    database.execute("VACUUM INTO ?", [copy]).unwrap();
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeline_has_attempts_commits_and_the_error() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let id = failed_after_a_restart(directory).await;
    let shown = admin_json(directory, &["show", &id, "--timeline"]).await;
    let turns: Vec<_> = shown["turns"].as_array().unwrap().iter().collect();
    let key = |turn: &&Value| (turn["n"].as_u64().unwrap(), turn["attempt"].as_u64().unwrap());
    assert_eq!(turns.iter().map(key).collect::<Vec<_>>(), [(1, 1), (2, 1), (2, 2)]);
    let outcomes: Vec<_> = turns.iter().map(|turn| (turn["outcome"].clone(), turn["reason"].clone())).collect();
    assert_eq!(
        outcomes,
        [(json!("input_required"), json!("none")), (Value::Null, Value::Null), (json!("failed"), json!("error"))]
    );
    assert!(turns[0]["start"] == turns[1]["start"] && turns[1]["start"].as_u64() < turns[2]["start"].as_u64());
    assert!(turns[0]["commits"].as_u64().unwrap() >= 12, "{}", turns[0]);
    for turn in &turns {
        assert!(turn["queued"].as_str() <= turn["begun"].as_str(), "{turn}");
    }
    let events = shown["events"].as_array().unwrap();
    let times: Vec<_> = events.iter().map(|event| event["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted() && times.first() < times.last(), "{times:?}");
    let seqs: Vec<_> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert!(seqs.into_iter().eq(1..=u64::try_from(events.len()).unwrap()));
    let fences: Vec<_> = events.iter().map(|event| event["fence"].as_u64()).collect();
    assert!(fences.is_sorted() && fences.first() < fences.last());
    assert_eq!(events.iter().filter(|event| event["hidden"] == true).count(), 1, "the follow-up");
    assert_eq!(events.last().unwrap()["ends"], "task");
    let error = turns[2]["error_id"].as_str().unwrap();
    assert_eq!(admin_json(directory, &["error", error]).await["task"], id);

    let (code, text, _) = admin(directory, &["show", &id, "--timeline"]).await;
    assert_eq!(code, 0);
    let words = |line: &str| line.split_whitespace().skip(1).take(2).map(str::to_owned).collect::<Vec<_>>().join(" ");
    let shown_lines: Vec<_> = text.lines().filter(|line| line.starts_with('+')).map(words).collect();
    let message = |line: &String| line.starts_with("message ");
    let what: Vec<_> = shown_lines.iter().map(|line| if message(line) { "message" } else { line }).collect();
    assert_eq!(
        what,
        [
            "message",
            "turn 1",
            "artifact output",
            "input-required \"which",
            "turn 1",
            "message",
            "turn 2",
            "working",
            "working \"Searching\"",
            "restart start",
            "turn 2",
            "failed \"Agent",
            "turn 2",
        ],
        "{text}"
    );
    assert!(text.contains("12 chunks"), "{text}");
    assert!(text.contains(&format!("\n{:<25}error {error}\n", "")), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");

    // Export and import keep all of it.
    for arguments in [&["export", "one.jsonl"][..], &["import", "one.jsonl", "--store", "sqlite:new.db"]] {
        assert_eq!(admin(directory, arguments).await.0, 0, "{arguments:?}");
    }
    let copied = admin_json(directory, &["show", &id, "--timeline", "--store", "sqlite:new.db"]).await;
    assert_eq!((&copied["turns"], &copied["events"]), (&shown["turns"], &shown["events"]));
    for arguments in [&["export", "two.jsonl", "--store", "sqlite:new.db"][..], &["check", "--store", "sqlite:new.db"]]
    {
        assert_eq!(admin(directory, arguments).await.0, 0, "{arguments:?}");
    }
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    assert_eq!(read("one.jsonl"), read("two.jsonl"));
    // Commits of one millisecond are several.
    let chunks = |text: &str| {
        text.lines().find(|line| line.contains("12 chunks in ")).unwrap().split(" ..").next().unwrap()[9..].to_owned()
    };
    let before = chunks(&text);
    assert!(!before.contains(" in 1 commits"), "{before}");
    let database = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    database.execute("UPDATE log SET at = 0", []).unwrap();
    let (_, text, _) = admin(directory, &["show", &id, "--timeline"]).await;
    assert_eq!(chunks(&text), before);
    drop(database);
    let (code, output, _) = admin(directory, &["forget", "--owner", "", "--yes"]).await;
    assert_eq!(code, 0, "{output}");
    let database = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    let left: i64 =
        database.query_row("SELECT count(*) FROM log WHERE turn IS NOT NULL", [], |row| row.get(0)).unwrap();
    assert_eq!((left, admin(directory, &["error", error]).await.0), (0, 1));
}

/// A file of the schema before records of turns is migrated, and its tasks have a timeline without times of commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_of_schema_1_is_migrated() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let id = failed_after_a_restart(directory).await;
    let database = rusqlite::Connection::open(directory.join("a2a.db")).unwrap();
    database
        .execute_batch(
            "DROP INDEX task_error; ALTER TABLE task DROP COLUMN turn; ALTER TABLE log DROP COLUMN turn;
             ALTER TABLE log DROP COLUMN at; ALTER TABLE push DROP COLUMN tried; ALTER TABLE push DROP COLUMN status;
             ALTER TABLE push DROP COLUMN error; PRAGMA user_version = 1;",
        )
        .unwrap();
    drop(database);
    assert_ne!(admin(directory, &["check"]).await.0, 0, "needs a server for its migration");
    let (server, url) = serve(directory).await;
    let task = post(&format!("{url}/message:send"), &message("/fail again")).await["task"].clone();
    drop(log(server, "").await);
    let (code, output, _) = admin(directory, &["check"]).await;
    assert_eq!((code, output.as_str()), (0, "checked 2 tasks in a2a.db, no problems found\n"));
    let shown = admin_json(directory, &["show", &id, "--timeline"]).await;
    assert_eq!(shown["turns"], json!([]));
    assert!(shown["events"].as_array().unwrap().iter().all(|event| event["time"].is_null()), "{shown}");
    let error = task["status"]["message"]["metadata"]["errorId"].as_str().unwrap();
    assert_eq!(admin_json(directory, &["error", error]).await["task"], task["id"]);
    assert!(directory.join("a2a.db.v1").exists());
}

/// A commit row has at most five bytes more, and a short task that ends with its first commit none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn times_and_turns_are_small() {
    let store = OpenedStore::sqlite(Options::default());
    let agent = service(&store);
    send(&*agent, text("", "ask")).await;
    send(&*agent, text("", "done")).await;
    let database = rusqlite::Connection::open(store.path().unwrap()).unwrap();
    // A byte for each column in the header of the row, and up to three for a time of up to two hours.
    let sql = "SELECT count(*), sum(turn IS NOT NULL), max(at) < 1 << 23, max(length(turn)) FROM log";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    let (rows, with_turn, is_short, longest): (i64, i64, bool, i64) = database.query_row(sql, [], row).unwrap();
    assert!(rows > 12 && with_turn == 2 && is_short && longest <= 32, "{rows} {with_turn} {is_short} {longest}");
    let sql = "SELECT count(*) FROM task WHERE whole IS NOT NULL AND turn IS NULL";
    let short: i64 = database.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(short, 1);
}

/// A record names the caller if that is not the owner, also of a short task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_names_another_caller_than_the_owner() {
    for store in [OpenedStore::sqlite(Options::default()), OpenedStore::memory(9)] {
        let agent = service(&store);
        let principal = Principal::new("bot").owner("ada");
        let call = Call { trace: Some(format!("00-{TRACE}-00f067aa0ba902b7-01")), ..Call::of_principal(principal) };
        let request = SendMessageRequest { message: Some(Message::user("done")), ..Default::default() };
        let reply = agent.send_message(call.request(request)).await.unwrap().into_inner();
        let Some(send_message_response::Payload::Task(task)) = reply.payload else { panic!("{reply:?}") };
        let turns = turns(&store, "ada", &task.id).await;
        let [turn] = &*turns else { panic!("{turns:?}") };
        assert_eq!((turn.caller.as_deref(), turn.outcome, turn.number), (Some("bot"), Some("completed"), 1));
        assert_eq!(turn.trace.unwrap()[0], 0x4b);
        assert_eq!((turn.accepted <= turn.begun.unwrap(), turn.begun <= turn.ended), (true, true));
    }
}

async fn turns(store: &OpenedStore, owner: &str, id: &str) -> Vec<TurnRecord> {
    let inspect = store.inspect().unwrap();
    let key = TaskKey::new(&Arc::new(Scope { owner: owner.into(), tenant: "".into() }), id);
    let filter = TaskFilter {
        id: Some(key.id().to_owned()),
        owner: Some(owner.to_owned()),
        tenant: Some(String::new()),
        ..TaskFilter::default()
    };
    let page = inspect.tasks(&filter, 9).await.unwrap();
    inspect.task(page.tasks[0].number).await.unwrap().unwrap().turns
}
