//! Snapshots: exit code, stdout and stderr of commands, compared with the files in `snapshots/`.
//!
//! Ids, times, addresses and durations are replaced by names. `UPDATE_SNAPSHOTS=1` writes the files.

use std::{fmt::Write as _, fs, path::Path, process::Stdio};

use a2a_service::{
    agent::demo::Demo,
    auth::{Bearer, Token},
    server::Server,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    process::Command,
};

use super::{demo, serve};
use crate::program::{a2a, output};

/// Outputs of commands.
struct Snapshot {
    name: &'static str,
    text: String,
    /// Texts that differ from run to run, with their names.
    names: Vec<(String, String)>,
}

impl Snapshot {
    fn new(name: &'static str) -> Self {
        Self { name, text: String::new(), names: Vec::new() }
    }

    /// Replaces a text in everything that follows.
    fn replace(mut self, text: &str, name: &str) -> Self {
        self.names.push((text.to_owned(), name.to_owned()));
        self
    }

    /// Runs a command. Returns its stdout.
    async fn run(&mut self, arguments: &[&str]) -> String {
        let output = output(a2a(arguments)).await;
        self.add(arguments, output, usize::MAX)
    }

    /// Runs a command with a long result, whose first lines are compared.
    async fn run_first_lines(&mut self, arguments: &[&str], lines: usize) {
        let output = output(a2a(arguments)).await;
        self.add(arguments, output, lines);
    }

    async fn run_with_stdin(&mut self, arguments: &[&str], stdin: &str) {
        let mut child = a2a(arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).await.unwrap();
        let output = child.wait_with_output().await.unwrap();
        self.add(arguments, output, usize::MAX);
    }

    fn add(&mut self, arguments: &[&str], output: std::process::Output, lines: usize) -> String {
        let quoted = arguments.iter().map(|argument| {
            let is_plain = argument.chars().all(|c| c.is_alphanumeric() || "-_./:@+=".contains(c));
            if is_plain && !argument.is_empty() { (*argument).to_owned() } else { format!("'{argument}'") }
        });
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        let mut entry = format!("$ a2a {}\n", quoted.collect::<Vec<_>>().join(" "));
        let shown: String = stdout.split_inclusive('\n').take(lines).collect();
        for (name, text) in [("stdout", &shown), ("stderr", &stderr)] {
            if !text.is_empty() {
                _ = write!(entry, "--- {name}\n{text}");
            }
        }
        _ = write!(entry, "--- exit code {}\n\n", output.status.code().unwrap());
        for (text, name) in &self.names {
            entry = entry.replace(text, name);
        }
        self.text.push_str(&masked(&entry));
        stdout
    }

    fn check(self) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/command_line/snapshots");
        let path = directory.join(self.name).with_extension("txt");
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            fs::write(&path, self.text).unwrap();
            return;
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = expected.lines().zip(self.text.lines()).enumerate();
        let first = lines.find(|(_, (expected, found))| expected != found).map(|(line, _)| line + 1);
        let (name, found) = (path.display(), &self.text);
        assert!(*found == expected, "{name} differs from line {first:?} on; UPDATE_SNAPSHOTS=1 writes it:\n{found}");
    }
}

/// Replaces ids, times and users, and sizes that depend on them.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for line in text.split_inclusive('\n') {
        let mut line = with_names(line);
        // Sizes depend on the times in the events.
        for name in
            ["< (", "content-length: ", "grpc-timeout: ", "user.id=", "\"bytes\":", "Bytes:    ", "input-required    "]
        {
            if let Some((head, tail)) = line.clone().split_once(name) {
                line = format!("{head}{name}N{}", tail.trim_start_matches(|c: char| c.is_ascii_digit()));
            }
        }
        masked.push_str(&line);
    }
    masked
}

fn with_names(line: &str) -> String {
    let is_id = |text: &str| {
        text.len() == 36
            && text.bytes().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => byte.is_ascii_hexdigit(),
            })
    };
    let (mut named, mut rest) = (String::new(), line);
    while let Some(first) = rest.chars().next() {
        let time = rest.get(..30).unwrap_or(rest).find('Z').map(|end| &rest[..=end]);
        if rest.get(..36).is_some_and(is_id) {
            named.push_str("ID");
            rest = &rest[36..];
        } else if let Some(time) = time.filter(|time| time.len() >= 20 && time.starts_with("20") && time.contains('T'))
        {
            named.push_str("TIME");
            rest = &rest[time.len()..];
        } else {
            named.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    named
}

fn id(stdout: &str) -> String {
    serde_json::from_str::<Value>(stdout).unwrap()["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn messages() {
    let (agent, directory) = (demo().await, tempfile::tempdir().unwrap());
    let (url, path) = (agent.as_str(), directory.path().to_str().unwrap());
    let out = format!("{path}/out");
    let mut snapshot = Snapshot::new("messages").replace(url, "AGENT").replace(path, "DIR");
    snapshot.run(&["send", url, "Hello"]).await;
    snapshot.run(&["send", url, "Hello", "-o", "jsonl", "--history", "0"]).await;
    snapshot.run(&["send", url, "/message"]).await;
    snapshot.run(&["send", url, "/fail"]).await;
    let parts = ["send", url, "/parts", "--history", "0", "--output-dir", &out];
    snapshot.run(&parts).await;
    assert_eq!(fs::read_to_string(directory.path().join("out/raw.txt")).unwrap().len(), 12);
    snapshot.run(&parts).await;
    snapshot.run(&[&parts[..], &["--force", "-o", "jsonl"]].concat()).await;
    snapshot.run(&["stream", url, "/stream 2 50", "-v", "--binding", "rest"]).await;
    let streamed = snapshot.run(&["stream", url, "/stream 2 50", "-o", "jsonl"]).await;
    let task: Value = serde_json::from_str(streamed.lines().next().unwrap()).unwrap();
    let task_id = task["task"]["id"].as_str().unwrap();
    let cursor = format!("{task_id}.1.3");
    snapshot.run(&["stream", url, "--resume", &cursor]).await;
    snapshot
        .run(&["stream", url, "--resume", &format!("{task_id}.1.5"), "--output-dir", &format!("{path}/rest")])
        .await;
    assert_eq!(
        fs::read_to_string(directory.path().join("rest/stream.txt")).unwrap(),
        "chunk 1 of 2chunk 2 of 2".replace("2chunk", "2\nchunk") + "\n"
    );
    snapshot.run(&["subscribe", url, task_id, "--resume", &cursor]).await;
    snapshot.run(&["stream", url, "--resume", "other"]).await;
    snapshot.run(&["stream", url, "Hello", "--resume", &cursor]).await;
    snapshot.run(&["send", url, "--resume", &cursor]).await;
    snapshot.run(&["send", url]).await;
    snapshot.run(&["send", url, "--json", "{"]).await;
    snapshot.run(&["send", url, "--attach", &format!("{path}/none")]).await;
    snapshot.run_with_stdin(&["chat", url], "/ask Which city?\nParis\n/quit\n").await;
    snapshot.check();
}

#[tokio::test]
async fn tasks() {
    let agent = demo().await;
    let url = agent.as_str();
    let mut snapshot = Snapshot::new("tasks").replace(url, "AGENT");
    let sent = snapshot.run(&["send", url, "--immediate", "/slow 60", "-o", "jsonl"]).await;
    // Tables cut the ids of contexts.
    let context = serde_json::from_str::<Value>(&sent).unwrap()["contextId"].as_str().unwrap()[..25].to_owned();
    let (task, mut snapshot) = (id(&sent), snapshot.replace(&format!("  {context}…"), "  CONTEXT…"));
    snapshot.run(&["get", "task", url, &task]).await;
    snapshot.run(&["task", "get", url, &task, "--history", "0", "-o", "json"]).await;
    snapshot.run(&["list", "tasks", url]).await;
    snapshot.run(&["list", "tasks", url, "--status", "completed", "-o", "jsonl"]).await;
    snapshot.run(&["list", "tasks", url, "--status", "done"]).await;
    let hook = "https://hook.invalid/in";
    snapshot.run(&["push", "create", url, &task, "--webhook", hook, "--id", "one", "--webhook-token", "hush"]).await;
    snapshot.run(&["push", "create", url, &task, "--webhook", "file:///etc/passwd"]).await;
    snapshot.run(&["push", "list", url, &task]).await;
    snapshot.run(&["push", "get", url, &task, "one", "-o", "jsonl"]).await;
    snapshot.run(&["push", "delete", url, &task, "one"]).await;
    snapshot.run(&["push", "get", url, &task, "one"]).await;
    snapshot.run(&["cancel", url, &task]).await;
    snapshot.run(&["task", "watch", url, &task]).await;
    snapshot.run(&["task", "list", url, "--status", "canceled", "-o", "jsonl"]).await;
    snapshot.run(&["task", "cancel", url, &task]).await;
    snapshot.run(&["get", "task", url, "none"]).await;
    snapshot.run(&["cancel", url, "none", "--binding", "grpc"]).await;
    snapshot.check();
}

#[tokio::test]
async fn cards() {
    let (agent, directory) = (demo().await, tempfile::tempdir().unwrap());
    let (url, path) = (agent.as_str(), directory.path().to_str().unwrap());
    let mut snapshot = Snapshot::new("cards").replace(url, "AGENT").replace(path, "DIR");
    snapshot.run(&["discover", url]).await;
    snapshot.run(&["card", "get", url, "-o", "jsonl"]).await;
    snapshot.run(&["get", "card", url, "--extended"]).await;
    let file = format!("{path}/card.json");
    snapshot.run(&["card", "get", url, "--output-file", &file]).await;
    snapshot.run(&["card", "get", url, "--output-file", &file]).await;
    snapshot.run(&["card", "validate", url]).await;
    snapshot.run(&["card", "validate", &format!("{url}/unknown")]).await;
    snapshot.run(&["card", "validate", &file]).await;
    let mut card: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    card["skills"][0]["tags"] = Value::Null;
    card["supportedInterfaces"][0]["url"] = json!("/rpc");
    card["url"] = json!("");
    fs::write(&file, card.to_string()).unwrap();
    snapshot.run(&["card", "validate", &file]).await;
    snapshot.run(&["card", "validate", &file, "-o", "json"]).await;
    snapshot.run_with_stdin(&["card", "validate", "-", "-o", "jsonl"], "{}").await;
    snapshot.run_with_stdin(&["card", "validate", "-"], "none").await;
    snapshot.run(&["card", "verify", &file]).await;
    snapshot.check();
}

#[tokio::test]
async fn failures() {
    let protected = Server::new(Demo).authenticator(Bearer::new(Token::new("sesame").unwrap()));
    let protected = serve(protected).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let mut snapshot = Snapshot::new("failures").replace(&protected, "PROTECTED").replace(&closed, "CLOSED");
    snapshot.run(&["send", &closed, "Hello"]).await;
    snapshot.run(&["card", "validate", &format!("http://{closed}")]).await;
    snapshot.run(&["send", &protected, "Hello"]).await;
    snapshot.run(&["get", "task", &protected, "none", "--header", "sesame"]).await;
    snapshot.run(&["get", "task", &protected, "none", "--binding", "grpc", "--debug", "--token", "sesame"]).await;
    snapshot.run(&["get", "task", &protected, "none", "--binding", "rest", "--debug", "--token", "sesame"]).await;
    let old = ["--binding", "grpc", "--protocol", "0.3"];
    snapshot.run(&[&["get", "task", &protected, "none", "--debug", "--token", "sesame"], &old[..]].concat()).await;
    snapshot.run(&["discover", "ftp://agent.example"]).await;
    snapshot.run(&["sned", &closed]).await;
    snapshot.run_first_lines(&["doctor", &closed], 1).await;
    snapshot.check();
}

#[cfg(feature = "openapi")]
#[tokio::test]
async fn help_and_documents() {
    let directory = tempfile::tempdir().unwrap();
    let (path, tokens) = (directory.path().to_str().unwrap(), directory.path().join("tokens.toml"));
    let (tokens, starter) = (tokens.to_str().unwrap(), &*format!("{path}/a2a.toml"));
    let mut snapshot = Snapshot::new("help").replace(path, "DIR");
    for arguments in [
        &["-h"][..],
        &["--help"],
        &["send", "-h"],
        &["send", "--help"],
        &["get", "-h"],
        &["card", "-h"],
        &["card", "validate", "-h"],
        &["push", "create", "-h"],
        &["admin", "-h"],
        &["admin", "forget", "-h"],
        &["init", "-h"],
        &["init", "upstream", "--file", "-"],
        &["init", "exec", "--file", starter],
        &["init", "exec", "--file", starter],
        &["token", "revoke", "none", "--file", tokens],
        &["token", "list", "--file", tokens],
    ] {
        snapshot.run(arguments).await;
    }
    for arguments in
        [&["config", "reference"][..], &["completion", "bash"], &["man"], &["openapi"], &["help", "config", "limits"]]
    {
        snapshot.run_first_lines(arguments, 3).await;
    }
    snapshot.check();
}

/// Commands that run a server, or work on its files.
#[tokio::test]
async fn operation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let file = |name: &str| format!("{path}/{name}");
    let store = format!("sqlite:{}", file("a2a.db"));
    let started = super::super::program::started(a2a(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--store",
        &store,
        "--log-filter",
        "off",
    ]));
    let (mut server, url) = started.await;
    let sent = output(a2a(&["send", &url, "/ask Which city?", "-o", "json"])).await;
    let task = id(&String::from_utf8(sent.stdout).unwrap());
    super::super::program::signal(&server, "-TERM");
    assert!(server.wait().await.unwrap().success());

    let mut snapshot = Snapshot::new("operation").replace(path, "DIR");
    for arguments in [
        &["admin", "list", "--store", &store][..],
        &["admin", "list", "--store", &store, "-ojsonl"],
        &["admin", "show", &task, "--store", &store],
        &["admin", "show", "none", "--store", &store],
        &["admin", "error", "01a21e60-c74e-7000-921c-8e5c138a7ba1", "--store", &store],
        &["status", "--store", &store],
        &["admin", "check", "--store", &store],
        &["admin", "stats", "-h"],
        &["admin", "backup", &file("copy.db"), "--store", &store],
        &["admin", "backup", &file("copy.db"), "--store", &store],
        &["admin", "restore", &file("copy.db"), "--store", &store],
        &["admin", "import", &file("none.jsonl"), "--store", &store],
        &["admin", "gc", "--store", &store],
        &["admin", "push", "list", "--store", &store],
        &["admin", "push", "show", &task, "one", "--store", &store],
        &["admin", "push", "retry", &task, "one", "--store", &store],
        &["admin", "push", "drop", &task, "one", "--store", &store],
        &["admin", "cluster", "--store", &store],
        &["admin", "release", "-h"],
        &["admin", "bury", "1", "--store", &store],
        &["admin", "migrate", "--store", &store],
        &["admin", "forget", "--owner", "ada", "--dry-run", "--store", &store],
        &["admin", "forget", "--owner", "ada", "--store", &store],
        &["admin", "list", "--store", "sqlite:/none/a2a.db"],
        &["serve", "--listen", "nonsense"],
        &["serve", "--listen", "0.0.0.0:0"],
        &["serve", "--store", "sqlite:/none/a2a.db", "--listen", "127.0.0.1:0"],
        &["serve", "--exec", "cat", "--http", "http://localhost:9000"],
        &["serve", "--lisen", "8080"],
        &["listen", "--host", "0.0.0.0"],
        &["listen", "--port", "many"],
        &["card", "sign", &file("card.json"), "--key", &file("none.pem")],
        &["token", "new", "ada", "--file", &file("tokens.toml"), "--scope", "none"],
        &["token", "rotate", "ada", "--file", &file("tokens.toml")],
    ] {
        snapshot.run(arguments).await;
    }
    snapshot.run_first_lines(&["admin", "export", "--store", &store], 0).await;
    snapshot.run_with_stdin(&["admin", "forget", "--owner", "ada", "--store", &store], "no\n").await;
    snapshot.check();
}

/// Each command is in a snapshot.
#[tokio::test]
async fn all_commands_have_snapshots() {
    let directory = tempfile::tempdir().unwrap();
    assert!(output(a2a(&["man", directory.path().to_str().unwrap()])).await.status.success());
    let pages = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<_> = pages.map(|page| page.strip_suffix(".1").unwrap().replace('-', " ")).collect();
    let snapshots =
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/command_line/snapshots")).unwrap();
    let text: String = snapshots.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
    assert!(names.len() > 40, "{names:?}");
    for name in &names {
        assert!(text.contains(&format!("$ {name}")), "{name} is in no snapshot");
    }
}

/// Colors depend on the flag and on the variables, and are never in JSON.
#[tokio::test]
async fn colors_are_written_where_they_are_wanted() {
    let agent = demo().await;
    let send = ["send", agent.as_str(), "Hello"];
    for (flags, variables, is_colored) in [
        (&[][..], &[][..], false),
        (&[], &[("CLICOLOR_FORCE", "1")][..], true),
        (&[], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
        (&["--color", "always"], &[("NO_COLOR", "1")], true),
        (&["--color=never"], &[("CLICOLOR_FORCE", "1")], false),
        (&["--color", "always", "-o", "json"], &[], false),
    ] {
        let mut command = a2a(&[&send[..], flags].concat());
        command.envs(variables.iter().copied());
        let stdout = String::from_utf8(output(command).await.stdout).unwrap();
        assert_eq!(stdout.contains("\u{1b}["), is_colored, "{flags:?} {variables:?}: {stdout}");
        assert!(!is_colored || stdout.contains("\u{1b}[32mcompleted\u{1b}[0m"), "{stdout}");
    }
    let help = output(a2a(&["--color", "always", "send", "-h"])).await;
    assert!(String::from_utf8(help.stdout).unwrap().contains("\u{1b}["));
}

/// A terminal shows colors, and the progress of a call that takes long.
#[cfg(target_os = "linux")]
#[expect(clippy::print_stdout, reason = "a skipped test must not look like a passed one")]
#[tokio::test]
async fn terminal_shows_colors_and_progress() {
    let Some(script) = ["/usr/bin/script", "/bin/script"].into_iter().find(|path| Path::new(path).exists()) else {
        println!("skipped: `script` (util-linux) is missing");
        return;
    };
    let agent = demo().await;
    let terminal = |message: &str| {
        let mut command = Command::new(script);
        command.args(["-qec", &format!("{} send {agent} '{message}'", env!("CARGO_BIN_EXE_a2a")), "/dev/null"]);
        command.env_clear().env("TERM", "xterm").env("SHELL", "/bin/sh").stdin(Stdio::null()).kill_on_drop(true);
        command
    };
    for (message, has_progress) in [("/slow 1", true), ("Hello", false)] {
        let output = output(terminal(message)).await;
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.contains("\u{1b}[32mcompleted"), "{text}");
        assert_eq!(text.contains("\rworking "), has_progress, "{text:?}");
        let shown = text.rsplit_once("\u{1b}[K").map_or(&*text, |(_, shown)| shown);
        assert!(shown.contains("Task:") && !shown.contains("Working for 1 s.\u{1b}"), "the line is removed: {text:?}");
    }
    let asked = String::from_utf8(output(terminal("/ask Which city?")).await.stdout).unwrap();
    assert!(asked.contains(&format!("Answer with: a2a send {agent} --task ")), "{asked}");
    // Ctrl-C ends the program, not the task.
    let mut child = terminal("/slow 60").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains("\rworking ") {
        assert_ne!(stdout.read_buf(&mut shown).await.unwrap(), 0, "{}", String::from_utf8_lossy(&shown));
    }
    stdin.write_all(b"\x03").await.unwrap();
    stdout.read_to_end(&mut shown).await.unwrap();
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains(&format!("The task goes on: a2a subscribe {agent} ")), "{shown}");
    assert_eq!(child.wait().await.unwrap().code(), Some(130));
}

/// The certificate of the server is verified unless `--insecure-tls` is given. gRPC always verifies it.
#[tokio::test]
async fn any_certificate_is_accepted_on_request() {
    let (_server, url) = super::super::program::started(a2a(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        "self_signed",
        "--log-filter",
        "warn",
    ]))
    .await;
    for (flags, code, text) in [
        (&[][..], 3, "certificate"),
        (&["--insecure-tls"], 0, "warning: --insecure-tls: the certificate of the server is not verified\n"),
        (&["--insecure-tls", "--binding", "rest"], 0, "warning: "),
        (&["--insecure-tls", "--binding", "grpc"], 6, "gRPC with TLS always verifies the certificate"),
    ] {
        let output = output(a2a(&[&["send", &*url, "Hello"], flags].concat())).await;
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(code) && stderr.contains(text), "{flags:?}: {stderr}");
    }
}
