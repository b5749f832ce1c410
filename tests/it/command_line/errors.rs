//! Errors of commands: exit codes by the state of a task, causes of failed connections with what to do, and errors as JSON.

use std::process::Stdio;

use a2a_service::{
    agent::demo::Demo,
    auth::{Bearer, Token},
    server::{Server, Tls},
};
use axum::{
    Router,
    response::Html,
    routing::{get, post},
};
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpListener,
};

use super::{TASK, demo, run, serve, with_stdin};
use crate::program::{a2a, output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/tls/root.pem");
const CERTIFICATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/tls/server.pem");
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/tls/server.key");

async fn serve_router(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Failed, rejected and canceled tasks are failures of each command that waits for the end of a turn.
#[tokio::test]
async fn exit_code_tells_the_state_of_the_task() {
    let agent = demo().await;
    let agent = agent.as_str();
    for (text, code, state) in [("Hello", 0, ""), ("/fail no", 1, "failed"), ("/reject no", 1, "rejected")] {
        for command in ["send", "stream"] {
            let (found, _, stderr) = run(&[command, agent, text]).await;
            let expected =
                if code == 0 { String::new() } else { format!("error: the task ended with the state {state}\n") };
            assert_eq!((found, stderr), (code, expected), "{command} {text}");
            assert_eq!(run(&[command, agent, text, "--exit-status=false"]).await.0, 0, "{command} {text}");
            assert_eq!(run(&[command, agent, "--exit-status", text]).await.0, code, "{command} {text}");
        }
        assert_eq!(with_stdin(&["chat", agent], &format!("{text}\nHello\n")).await.0, code, "chat {text}");
        assert_eq!(with_stdin(&["chat", agent, "--exit-status=false"], text).await.0, 0, "chat {text}");
    }
    assert_eq!(run(&["send", agent, "/ask Which city?"]).await.0, 0, "a question is no failure");
    for (flags, code) in [(&[][..], 1), (&["--exit-status=false"], 0)] {
        let running = output(a2a(&["send", agent, "--immediate", "/slow 60", "-o", "json"])).await;
        let id = serde_json::from_slice::<Value>(&running.stdout).unwrap()["id"].as_str().unwrap().to_owned();
        let mut watch = a2a(&[&["subscribe", agent, &id], flags].concat()).spawn().unwrap();
        let mut events = BufReader::new(watch.stdout.take().unwrap());
        events.read_line(&mut String::new()).await.unwrap();
        assert_eq!(run(&["cancel", agent, &id]).await.0, 0);
        assert_eq!(watch.wait().await.unwrap().code(), Some(code), "{flags:?}");
        assert_eq!(run(&["get", "task", agent, &id]).await.0, 0, "the call has succeeded");
    }
}

/// Each cause of a failed connection has a short text, and the next step below it, in lines of at most 100 columns.
#[tokio::test]
async fn connection_errors_name_the_cause_and_the_next_step() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let plain = demo().await;
    let protected = serve(Server::new(Demo).authenticator(Bearer::new(Token::new("sesame").unwrap()))).await;
    let tls = serve(Server::new(Demo).tls(Tls::from_files(CERTIFICATE, KEY).unwrap())).await;
    let by_name = format!("https://localhost:{}", tls.rsplit_once(':').unwrap().1);
    let page = serve_router(Router::new().fallback(get(async || Html("<html>Hello</html>")))).await;
    let nothing = serve_router(Router::new()).await;
    let proxy =
        Router::new().fallback(async || (StatusCode::BAD_REQUEST, "The plain HTTP request was sent to HTTPS port"));
    let proxy = serve_router(proxy).await;
    let (tls_url, plain_url, tls_plain) =
        (format!("https://{tls}"), format!("https://{plain}"), format!("http://{tls}"));
    for (arguments, code, cause, remedy) in [
        (vec![closed.as_str()], 3, "connection refused".to_owned(), "start the agent".to_owned()),
        (vec!["https://nothing.invalid"], 3, "the host name is unknown".to_owned(), "correct the host name".to_owned()),
        (
            vec![&tls_url],
            3,
            "of an unknown authority".to_owned(),
            format!("openssl s_client -connect {tls} </dev/null"),
        ),
        (vec![&by_name, "--ca", ROOT], 3, "for another name".to_owned(), "a name of the certificate".to_owned()),
        (vec![&plain_url], 3, "it has no TLS".to_owned(), format!("use the URL http://{plain}\n")),
        (vec![&tls_plain], 3, "not HTTP, but perhaps TLS".to_owned(), format!("use the URL https://{tls}\n")),
        (vec![&proxy], 3, "HTTP 400".to_owned(), format!("use the URL https://{proxy}, if it has TLS\n")),
        (vec![&page], 3, "HTML instead of JSON".to_owned(), "give the URL of an agent".to_owned()),
        (vec![&nothing], 3, "HTTP 404 Not Found".to_owned(), "give the URL of an agent".to_owned()),
        (vec![&protected], 4, "a bearer token is required".to_owned(), "A2A_CLIENT_TOKEN, or --token".to_owned()),
        (vec!["ftp://agent.example"], 2, "the scheme must be http or https".to_owned(), String::new()),
    ] {
        let arguments = [&["send"], &arguments[..], &["Hello"]].concat();
        let (found, stdout, stderr) = run(&arguments).await;
        assert_eq!((found, stdout.as_str()), (code, ""), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(&cause), "{arguments:?}: {stderr}");
        assert!(
            stderr.contains(&remedy) && (remedy.is_empty() || stderr.contains("\n  -> ")),
            "{arguments:?}: {stderr}"
        );
        assert!(stderr.lines().all(|line| line.chars().count() <= 100), "{arguments:?}: {stderr}");
    }
    assert_eq!(run(&["send", &tls_url, "Hello", "--ca", ROOT]).await.0, 0);
}

/// JSON-RPC agent whose calls fail with an error of its own.
async fn failing(error: Value) -> String {
    // The address is known before the card is.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let interface =
        json!({"url": format!("http://{address}/rpc"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"});
    let card = json!({"name": "Failing", "supportedInterfaces": [interface]});
    let answer = json!({"jsonrpc": "2.0", "id": 1, "error": error});
    let json = |value: Value| ([(header::CONTENT_TYPE, "application/json")], value.to_string());
    let app = Router::new()
        .route("/.well-known/agent-card.json", get(async move || json(card)))
        .route("/rpc", post(async move || json(answer)));
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn errors_are_json_with_the_code_of_the_protocol() {
    let agent = demo().await;
    let agent = agent.as_str();
    let quota = failing(json!({"code": -32050, "message": "no money left"})).await;
    let other = failing(json!({"code": -1, "message": "odd"})).await;
    let info = |code: &str| {
        let kind = "type.googleapis.com/google.rpc.ErrorInfo";
        json!([{"@type": kind, "reason": "TASK_NOT_FOUND", "domain": "a2a-protocol.org", "metadata": {"code": code}}])
    };
    let forged = failing(json!({"code": -32001, "message": "gone\n  -> a2a forged", "data": info("0")})).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    for (arguments, code, protocol, text) in [
        (&["get", "task", agent, "42", "-o", "json"][..], 6, json!(-32001), "Task not found: 42"),
        (&["get", "task", agent, "42", "--json"], 6, json!(-32001), "Task not found: 42"),
        (&["--color=never", "cancel", "-ojson", agent, "42", "--binding", "grpc"], 6, json!(-32001), "Task not found"),
        (&["push", "list", "--output=jsonl", agent, "42"], 6, json!(-32001), "Task not found"),
        (&["send", &quota, "Hello", "-o", "json"], 6, json!(-32050), "no money left"),
        (&["stream", &other, "Hello", "-o=json"], 6, json!(-1), "odd"),
        (&["send", &forged, "Hello", "-o=json"], 6, json!(-32001), "gone"),
        (&["send", agent, "/slow 9", "-o=json", "--timeout=500ms"], 5, json!(-32054), "Deadline exceeded"),
        (&["send", &closed, "Hello", "-o", "json"], 3, Value::Null, "connection refused"),
        (&["send", agent, "/fail no", "-o", "json"], 1, Value::Null, "state failed"),
        (&["send", "-o", "json"], 2, Value::Null, "required arguments were not provided"),
        (&["send", agent, "--task", "1", "-o", "json"], 2, Value::Null, "the message is empty"),
        (&["card", "validate", &closed, "--json"], 3, Value::Null, "connection refused"),
        (&["discover", &closed, "--catalog", "--json"], 3, Value::Null, "connection refused"),
        (&["listen", "--json", "--host", "0.0.0.0"], 2, Value::Null, "--insecure"),
    ] {
        let (found, _, stderr) = run(arguments).await;
        let parsed: Value = serde_json::from_str(&stderr).unwrap_or_else(|_| panic!("{arguments:?}: {stderr}"));
        let error = &parsed["error"];
        assert_eq!(
            (found, &error["exitCode"], &error["code"]),
            (code, &json!(code), &protocol),
            "{arguments:?}: {parsed}"
        );
        assert!(error["message"].as_str().unwrap().contains(text), "{arguments:?}: {parsed}");
        let is_line = arguments.iter().any(|argument| argument.contains("jsonl"));
        assert_eq!(stderr.lines().count() == 1, is_line, "{arguments:?}: {stderr}");
    }
    let (_, _, stderr) = run(&["get", "task", agent, "42", "-o", "text"]).await;
    assert_eq!(stderr, "error: Task not found: 42\n");
    let (_, _, stderr) = run(&["send", agent, "/reject no", "-o", "jsonl"]).await;
    assert_eq!(serde_json::from_str::<Value>(&stderr).unwrap()["error"]["state"], "TASK_STATE_REJECTED");
    let (code, _, stderr) = run(&["send", &quota, "Hello"]).await;
    assert!(
        code == 6 && stderr.contains("no money left (code -32050)"),
        "an agent's own code is no missing credential: {stderr}"
    );
    let (_, _, stderr) = run(&["send", &forged, "Hello"]).await;
    assert_eq!(stderr, "error: Task not found: gone\n         -> a2a forged\n");
    let (_, _, stderr) = run(&["send", agent, "/slow 9", "--timeout=500ms"]).await;
    let expected = format!("  -> the agent may go on with the task\n     then: a2a list tasks {agent}\n");
    assert!(stderr.ends_with(&expected), "{stderr}");
    let (_, _, stderr) = run(&["stream", agent, "/slow 9", "--timeout=1s"]).await;
    assert!(stderr.contains(&format!("     then: a2a subscribe {agent} ")), "{stderr}");
}

/// `--json` is `-o json`, except for a message of the official command line.
#[tokio::test]
async fn json_flag_has_one_meaning() {
    let agent = demo().await;
    let agent = agent.as_str();
    for arguments in [
        &["send", agent, "Hello", "--json"][..],
        &["send", "--json", agent, "Hello"],
        &["task", "list", agent, "--json"],
        &["discover", "--json", agent],
        &["chat", agent, "--json"],
    ] {
        let (code, stdout) = with_stdin(arguments, "").await;
        assert_eq!(code, 0, "{arguments:?}");
        assert!(stdout.is_empty() || stdout.starts_with("{\n"), "{arguments:?}: {stdout}");
    }
    let message = r#"{"parts": [{"text": "Hello"}]}"#;
    assert_eq!(run(&["send", agent, "--json", message]).await, (0, TASK.to_owned(), String::new()));
    let (code, stdout, _) = run(&["send", agent, "--json", message, "--json"]).await;
    assert!(code == 0 && stdout.starts_with("{\n"), "{stdout}");
    let (code, stdout, _) = run(&["send", agent, "--", "--json"]).await;
    assert!(code == 0 && stdout.contains("[echo] --json"), "{stdout}");
    let (code, _, stderr) = run(&["serve", "--json"]).await;
    assert!(code == 2 && stderr.contains("--json"), "{stderr}");
}

/// Without a message, stdin is one; with a message, nothing is read.
#[tokio::test]
async fn stdin_is_the_message_if_there_is_no_other() {
    let agent = demo().await;
    let agent = agent.as_str();
    assert_eq!(with_stdin(&["send", agent], "Hello\n").await, (0, TASK.to_owned()));
    assert!(with_stdin(&["stream", agent], "Hello\n").await.1.contains("[echo] Hello"));
    for arguments in [&["send", agent][..], &["send", agent, "-"], &["stream", agent, "--context", "1"]] {
        let (code, _, stderr) = run(arguments).await;
        assert!(code == 2 && stderr.contains("the message is empty"), "{arguments:?}: {stderr}");
    }
    let data = r#"{"a": 1}"#;
    for arguments in
        [&["send", agent, "Hello"][..], &["send", agent, "--data", data], &["send", agent, "--parts", "[]", "x"]]
    {
        // Nothing is written, and the pipe stays open.
        let mut child = a2a(arguments).stdin(Stdio::piped()).spawn().unwrap();
        let _stdin = child.stdin.take();
        let code =
            tokio::time::timeout(std::time::Duration::from_secs(30), child.wait()).await.unwrap().unwrap().code();
        assert_eq!(code, Some(if arguments.contains(&"--parts") { 2 } else { 0 }), "{arguments:?}");
    }
}

/// A URL in the place of a command names the command that is missing.
#[tokio::test]
async fn missing_commands_are_named() {
    for (arguments, expected) in [
        (&["localhost:8080"][..], "a2a send localhost:8080 'Hello'"),
        (&["card", "localhost:8080"], "a2a card get localhost:8080"),
        (&["get", "https://agent.example"], "a2a get card https://agent.example"),
        (&["list", "localhost:8080"], "a2a list tasks localhost:8080"),
        (&["task", "localhost:8080"], "a2a task get localhost:8080 ID"),
        (&["push", "localhost:8080"], "a2a push list localhost:8080 TASK"),
    ] {
        let (code, _, stderr) = run(arguments).await;
        assert!(code == 2 && stderr.contains(&format!("such as `{expected}`")), "{arguments:?}: {stderr}");
    }
    let (code, _, stderr) = run(&["stream", "localhost:8080", "Hello", "--file", "f.txt"]).await;
    assert!(code == 2 && stderr.contains("tip: a file is sent with a text by `--attach FILE`"), "{stderr}");
    let (code, _, stderr) = run(&["serve", "--", "sh", "-c"]).await;
    assert!(
        code == 2 && stderr.contains("tip: a command as the agent is one argument: `a2a serve --exec \"sh -c"),
        "{stderr}"
    );
    let (code, _, stderr) = run(&["sned", "localhost:8080"]).await;
    assert!(code == 2 && stderr.contains("'send'"), "{stderr}");
}

/// `a2a help` prints the help of commands and of topics.
#[tokio::test]
async fn help_is_given_by_command_and_by_topic() {
    for (arguments, expected) in [
        (&["help"][..], "Exit codes:"),
        (&["help", "serve"], "--turn-deadline"),
        (&["help", "push", "create"], "--webhook-token"),
        (&["help", "config"], "limits     body_bytes, connections,"),
        (&["help", "config", "limits"], "limits.tasks_per_owner\n  Maximum number of tasks of one owner"),
        (&["help", "config", "turn.deadline"], "`A2A_TURN_DEADLINE`, `--turn-deadline`"),
        (&["help", "config", "reference"], "Usage: a2a config reference"),
        (&["help", "deploy"], "systemctl enable --now a2a"),
        (&["help", "auth"], "a2a token new"),
        (&["help", "agents"], "a2a serve --exec ./agent.sh"),
        (&["help", "errors"], "TASK_NOT_FOUND"),
        (&["help", "output"], "130"),
    ] {
        let (code, stdout, stderr) = run(arguments).await;
        assert!(code == 0 && stdout.contains(expected), "{arguments:?}: {stdout}{stderr}");
        assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{arguments:?}: {stdout}");
    }
    let (code, _, stderr) = run(&["help", "limits"]).await;
    assert!(code == 2 && stderr.contains("`limits` is no command or topic"), "{stderr}");
    assert_eq!(run(&["-h"]).await.1.lines().filter(|line| line.starts_with("  help ")).count(), 1);
    assert!(run(&["-h"]).await.1.lines().count() <= 24);
}
