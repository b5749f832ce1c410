//! Commands of the `a2a` program that call a remote agent: exit code, stdout and stderr of each.

use std::process::Stdio;

use a2a_service::{
    agent::demo::Demo,
    auth::{Bearer, Token},
    server::Server,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
};

use crate::{
    bindings::no_names,
    program::{a2a, output},
};

mod errors;
mod snapshots;

/// Serves the demo agent, and returns its `host:port`.
async fn demo() -> String {
    serve(Server::new(Demo).name("Demo").push(true).push_options(no_names())).await
}

async fn serve(server: Server) -> String {
    let server = server.bind("127.0.0.1:0").await.unwrap();
    let address = server.addr().to_string();
    tokio::spawn(server.run_until(std::future::pending()));
    address
}

/// Runs the program, and returns its exit code, stdout and stderr. Ids and times are replaced by `ID` and `TIME`.
async fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = output(a2a(arguments)).await;
    let text = |bytes: Vec<u8>| masked(&String::from_utf8(bytes).unwrap());
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn masked(text: &str) -> String {
    let word = |word: &str| {
        let is_id = word.len() == 36 && word.bytes().filter(|byte| *byte == b'-').count() == 4;
        let is_time = word.len() >= 20 && word.ends_with('Z') && word.starts_with("20");
        if is_id {
            "ID".to_owned()
        } else if is_time {
            "TIME".to_owned()
        } else {
            word.to_owned()
        }
    };
    let is_separator = |c: char| c.is_whitespace() || matches!(c, '(' | ')' | '[' | ']' | '"' | ',' | '`');
    let mut masked = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_separator) {
        let end = at + rest[at..].chars().next().unwrap().len_utf8();
        masked.extend([&word(&rest[..at]), &rest[at..end]]);
        rest = &rest[end..];
    }
    masked + &word(rest)
}

const TASK: &str = "\
Task:     ID
Context:  ID
Status:   completed (TIME)
Artifacts:
  [echo] Hello
History:
  [user] Hello
";

/// A script for the official command line runs unchanged.
#[tokio::test]
async fn commands_of_the_official_program_are_accepted() {
    let agent = demo().await;
    let agent = agent.as_str();
    let url = format!("http://{agent}");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("message.json");
    std::fs::write(&file, r#"{"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "Hello"}]}"#).unwrap();
    let file = file.to_str().unwrap();
    let hello = (0, TASK.to_owned(), String::new());
    for arguments in [
        vec!["send", &url, "Hello"],
        vec!["send", agent, "Hello"],
        vec!["send", &url, "Hello", "--transport", "grpc", "--insecure"],
        vec!["send", &url, "Hello", "--transport", "rest", "--timeout", "30s", "--tenant", ""],
        vec!["send", &url, "Hello", "--transport", "jsonrpc", "--svc-param", "x-trace=1", "-o", "text"],
        vec!["send", &url, "Hello", "--svc-param", "x-a=1", "--svc-param", "x-b=2", "--output", "text"],
        vec!["send", &url, "Hello", "--protocol", "0.3", "--auth", "Bearer none"],
        vec!["send", "--transport=rest", "--timeout=1m", &url, "Hello", "--context", "c-1", "--auth=Basic YTpi"],
        vec!["send", &url, "--json", r#"{"parts": [{"text": "Hello"}]}"#],
        vec!["send", &url, "--parts", r#"[{"text": "Hello"}]"#, "--history", "5"],
        vec!["send", &url, "-f", file],
        vec!["send", &url, "--file", file],
    ] {
        let (code, stdout, stderr) = run(&arguments).await;
        assert_eq!((code, stdout.replace("c-1", "ID"), stderr), hello, "{arguments:?}");
    }
    let asked = output(a2a(&["send", &url, "/ask Which city?", "-o", "json"])).await;
    let asked: Value = serde_json::from_slice(&asked.stdout).unwrap();
    let (id, context) = (asked["id"].as_str().unwrap(), asked["contextId"].as_str().unwrap());
    let (code, answered, _) = run(&["send", &url, "--task", id, "--context", context, "Lisbon", "-o", "text"]).await;
    assert!(code == 0 && answered.contains("Status:   completed"), "{answered}");
    let since = ["--since", "2020-01-01T00:00:00Z", "--limit", "2", "--history", "1", "--with-artifacts"];
    for arguments in [
        [&["list", "tasks", &url, "--context", context, "--status", "completed", "-o", "json"][..], &since].concat(),
        vec![
            "list",
            "tasks",
            &url,
            "--status",
            "TASK_STATE_COMPLETED",
            "--limit",
            "1",
            "--page-token",
            "",
            "-o",
            "json",
        ],
    ] {
        let (code, page, stderr) = run(&arguments).await;
        let page: Value = serde_json::from_str(&page).unwrap_or_default();
        assert!(code == 0 && page["tasks"][0]["id"] == "ID", "{arguments:?}: {page} {stderr}");
    }
    for arguments in [
        vec!["get", "task", &url, id, "--history", "2", "--verbose"],
        vec!["get", "card", &url, "--output", "text", "--tenant", ""],
        vec!["discover", &url, "--timeout", "5s"],
        vec!["completion", "bash"],
    ] {
        let (code, _, stderr) = run(&arguments).await;
        assert_eq!(code, 0, "{arguments:?}: {stderr}");
    }
    let running = output(a2a(&["send", &url, "--immediate", "/slow 60", "-o", "json"])).await;
    let running: Value = serde_json::from_slice(&running.stdout).unwrap();
    let id = running["id"].as_str().unwrap();
    let (code, canceled, _) = run(&["cancel", &url, id, "-v"]).await;
    assert!(code == 0 && canceled.contains("canceled"), "{canceled}");
    // The task has ended, and the agent has one card.
    for arguments in [["subscribe", &url, id], ["get", "card", &url]] {
        let extended = if arguments[0] == "get" { "--extended" } else { "-v" };
        assert_eq!(run(&[&arguments[..], &[extended]].concat()).await.0, 6, "{arguments:?}");
    }

    let streamed = "Task:     ID\nContext:  ID\nStatus:   submitted (TIME)\nHistory:\n  [user] /stream 2 50\n\
                    [status] working\n  [stream] chunk 1 of 2\n  [stream] chunk 2 of 2\n[status] completed\n";
    for arguments in [["send", &url, "--stream", "/stream 2 50"], ["stream", &url, "/stream 2 50", "-v"]] {
        let (code, stdout, _) = run(&arguments).await;
        assert_eq!((code, stdout.as_str()), (0, streamed), "{arguments:?}");
    }

    let (code, card, _) = run(&["discover", &url]).await;
    assert_eq!(code, 0);
    for line in ["Name:         Demo\n", "Interfaces:\n", "Streaming:    yes\n", "Skills:\n", "  [echo] "] {
        assert!(card.contains(line), "{card}");
    }
    let (_, card, _) = run(&["get", "card", &url, "-o", "json"]).await;
    assert_eq!(serde_json::from_str::<Value>(&card).unwrap()["name"], "Demo");
}

#[tokio::test]
async fn tasks_are_printed_listed_and_canceled() {
    let agent = demo().await;
    let url = agent.as_str();
    let started = output(a2a(&["send", url, "--immediate", "/slow 60", "-o", "json"])).await;
    let task: Value = serde_json::from_slice(&started.stdout).unwrap();
    let (id, context) = (task["id"].as_str().unwrap(), task["contextId"].as_str().unwrap());

    // The context is cut, so that a row has 80 columns.
    let cut = &context[..25];
    let table = format!("ID                                    STATUS          CONTEXT\nID  working         {cut}…\n");
    for arguments in [
        vec!["list", "tasks", url],
        vec!["task", "list", url, "--status", "working", "--all"],
        vec!["list", "tasks", url, "--context", context, "--limit", "5", "--since", "2020-01-01T00:00:00Z"],
    ] {
        assert_eq!(run(&arguments).await, (0, table.clone(), String::new()), "{arguments:?}");
    }
    let (_, page, _) = run(&["list", "tasks", url, "-o", "jsonl"]).await;
    assert_eq!(serde_json::from_str::<Value>(&page).unwrap()["tasks"].as_array().unwrap().len(), 1, "{page}");

    let mut watch = a2a(&["subscribe", url, id]).spawn().unwrap();
    let mut events = BufReader::new(watch.stdout.take().unwrap());
    let mut watched = String::new();
    events.read_line(&mut watched).await.unwrap();
    let (code, canceled, _) = run(&["cancel", url, id]).await;
    assert!(code == 0 && canceled.contains("Status:   canceled"), "{canceled}");
    events.read_to_string(&mut watched).await.unwrap();
    assert!(watched.contains("working") && watched.contains("canceled"), "{watched}");

    let (code, again, _) = run(&["task", "cancel", url, id]).await;
    assert!(code == 0 && again.contains("Status:   canceled"), "{again}");
    let (code, found, _) = run(&["get", "task", url, id, "--history", "0"]).await;
    assert!(code == 0 && !found.contains("History"), "{found}");
    let (code, failed, _) = run(&["send", url, "/fail no such city"]).await;
    assert!(code == 1 && failed.contains("failed"), "{failed}");
}

#[tokio::test]
async fn push_configurations_are_managed() {
    let agent = demo().await;
    let url = agent.as_str();
    let started = output(a2a(&["send", url, "--immediate", "/slow 60", "-o", "json"])).await;
    let task: Value = serde_json::from_slice(&started.stdout).unwrap();
    let id = task["id"].as_str().unwrap();
    let hook = "https://hook.invalid/in";
    let create = ["push", "create", url, id, "--webhook", hook, "--id", "one", "--webhook-token", "hush"];
    let line = (0, format!("one  {hook}\n"), String::new());
    assert_eq!(run(&create).await, line);
    assert_eq!(run(&["push", "list", url, id]).await, line);
    assert_eq!(run(&["push", "get", url, id, "one"]).await, line);
    assert_eq!(run(&["push", "delete", url, id, "one"]).await, (0, String::new(), String::new()));
    assert_eq!(run(&["push", "list", url, id]).await, (0, String::new(), String::new()));
    assert_eq!(run(&["push", "get", url, id, "one"]).await.0, 6);
}

#[tokio::test]
async fn messages_come_from_files_and_stdin() {
    let agent = demo().await;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (text, message) = (path("text.txt", "Hello"), path("message.json", r#"{"parts": [{"text": "Hello"}]}"#));
    assert_eq!(run(&["send", &agent, &format!("@{text}")]).await.1, TASK);
    assert_eq!(run(&["send", &agent, "--file", &message]).await.1, TASK);
    let (code, attached, _) = run(&["send", &agent, "Look", "--attach", &text, "--data", r#"{"a": 1}"#]).await;
    assert!(
        code == 0 && attached.contains(r#"[user] Look [file text.txt, text/plain, 5 bytes] {"a":1}"#),
        "{attached}"
    );
    assert_eq!(with_stdin(&["send", &agent, "-"], "Hello\n").await, (0, TASK.to_owned()));

    let chat = "/ask Which city?\nParis\n/history\n";
    let (code, answers) = with_stdin(&["chat", &agent], chat).await;
    assert!(code == 0 && answers.starts_with("Which city?\nParis\n"), "{answers}");
    assert!(answers.contains("[user] Paris"), "{answers}");
}

async fn with_stdin(arguments: &[&str], stdin: &str) -> (i32, String) {
    let mut child = a2a(arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).await.unwrap();
    let output = child.wait_with_output().await.unwrap();
    (output.status.code().unwrap(), masked(&String::from_utf8(output.stdout).unwrap()))
}

#[tokio::test]
async fn exit_codes_tell_the_kind_of_a_failure() {
    let protected = Server::new(Demo).authenticator(Bearer::new(Token::new("sesame").unwrap()));
    let protected = serve(protected).await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (silent, closed) = (silent.local_addr().unwrap().to_string(), {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        closed.local_addr().unwrap().to_string()
    });
    for (arguments, code, text) in [
        (vec!["send", &protected, "Hello", "--token", "sesame"], 0, ""),
        (vec!["send", &protected, "Hello", "--header", "Authorization: Bearer sesame"], 0, ""),
        (vec!["send", &protected, "Hello"], 4, "error: "),
        (vec!["send", &protected, "Hello", "--token", "wrong"], 4, "error: "),
        (vec!["send", &protected], 2, "the message is empty"),
        (vec!["send", &protected, "Hello", "--header", "nothing"], 2, "NAME:VALUE"),
        (vec!["send", &protected, "Hello", "--json", "{}"], 2, "cannot be used with"),
        (vec!["send", &protected, "--json", "{"], 2, "--json"),
        (vec!["send"], 2, "Usage"),
        (vec!["unknown"], 2, "unknown"),
        (vec!["get", "task", &protected, "none", "--token", "sesame"], 6, "Task not found"),
        (vec!["send", &protected, "--token", "sesame", "--attach", "/no/such/file"], 1, "/no/such/file"),
        (vec!["send", &closed, "Hello"], 3, "refused"),
        (vec!["send", &silent, "Hello", "--timeout", "300ms"], 5, "error: "),
    ] {
        let (found, _, stderr) = run(&arguments).await;
        assert_eq!(found, code, "{arguments:?}: {stderr}");
        assert!(stderr.contains(text) && !stderr.contains("sesame"), "{arguments:?}: {stderr}");
    }
}

/// The token of the server is no credential for the agents that the program calls.
#[tokio::test]
async fn token_comes_from_a_variable_of_its_own() {
    let agent = serve(Server::new(Demo).authenticator(Bearer::new(Token::new("sesame").unwrap()))).await;
    for (variable, code) in [("A2A_CLIENT_TOKEN", 0), ("A2A_TOKEN", 4)] {
        let mut command = a2a(&["send", &agent, "Hello"]);
        command.env(variable, "sesame");
        assert_eq!(output(command).await.status.code(), Some(code), "{variable}");
    }
}

#[tokio::test]
async fn help_is_narrow_and_completions_cover_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let (code, script, _) = run(&["completion", shell]).await;
        assert!(code == 0 && script.contains("subscribe"), "{shell}");
    }
    let (code, page, _) = run(&["man"]).await;
    assert!(code == 0 && page.contains(".TH a2a 1"));
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(run(&["man", directory.path().to_str().unwrap()]).await.0, 0);
    // Also of flags that only the long help has.
    let page = std::fs::read_to_string(directory.path().join("a2a-send.1")).unwrap();
    let (_, flag) = page.split_once(".TP\n\\fB\\-\\-trust\\-origin\\fR").unwrap();
    assert!(flag.lines().nth(1).unwrap().starts_with("Sends credentials to interfaces of this origin"), "{flag}");
    assert!(page.contains("Examples:"), "{page}");
    let (_, help, _) = run(&["--help"]).await;
    assert!(help.contains("Exit codes:") && help.contains("the agent cannot be reached"), "{help}");
    for command in ["send", "chat", "discover", "subscribe", "cancel"] {
        let (code, help, _) = run(&[command, "--help"]).await;
        assert!(code == 0 && help.contains("Connection:"), "{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}

/// Each kind of credentials is sent as the card of the agent declares it.
#[tokio::test]
async fn credentials_are_sent_as_the_card_declares() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.json").display().to_string();
    let made = output(a2a(&["token", "--file", &path, "new", "ada", "--header", "x-api-key"])).await;
    let secret = String::from_utf8(made.stdout)
        .unwrap()
        .split_whitespace()
        .find(|word| word.starts_with("a2a_"))
        .unwrap()
        .to_owned();
    let agent =
        serve(Server::new(Demo).authenticator(a2a_service::auth::TokenFile::open(path.as_ref()).unwrap())).await;
    for (key, code) in [(secret.as_str(), 0), ("wrong", 4)] {
        let (found, _, stderr) = run(&["send", &agent, "Hello", "--api-key", key]).await;
        assert_eq!(found, code, "{stderr}");
        let mut command = a2a(&["send", &agent, "Hello"]);
        command.env("A2A_CLIENT_API_KEY", key);
        assert_eq!(output(command).await.status.code(), Some(code));
    }
    let (code, _, stderr) = run(&["send", &agent, "Hello", "--client-id", "me"]).await;
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("--client-secret"), "{stderr}");
    let (code, _, stderr) = run(&["send", &agent, "Hello", "--client-cert", &path, "--client-key", &path]).await;
    assert!(code == 2 && !stderr.contains("a2a_"), "{stderr}");
}

#[tokio::test]
async fn catalogs_are_printed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let catalog = r#"{"agents": [{"name": "Geo", "description": "Finds\nplaces", "url": "https://geo.example"}]}"#;
    let app = axum::Router::new().route("/.well-known/agents.json", axum::routing::get(async move || catalog));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let (code, stdout, stderr) = run(&["discover", &address, "--catalog"]).await;
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout.split_whitespace().collect::<Vec<_>>(), ["Geo", "https://geo.example/", "Finds", "places"]);
    let (code, stdout, _) = run(&["discover", &address, "--catalog", "-o", "jsonl"]).await;
    let entry: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, entry["cardUrl"].as_str()), (0, Some("https://geo.example/")));
    let (code, stdout, _) = run(&["discover", &demo().await, "--catalog"]).await;
    assert!(code == 0 && stdout.starts_with("Demo "), "{stdout}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let without = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, axum::Router::new()).await });
    assert_ne!(run(&["discover", &without, "--catalog"]).await.0, 0, "there is no catalog");
}
