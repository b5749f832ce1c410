//! The `a2a` program, the examples, and a program that uses the library: start, output, logs, signals and exit codes.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Output, Stdio},
    time::{Duration, SystemTime},
};

use a2a_service::{
    agent::{self, demo::Demo},
    auth::{Bearer, NewToken, Token, add_token},
    call::Call,
    client,
    pb::v1::{AgentCard, GetTaskRequest, SendMessageRequest},
    server::Server,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::timeout,
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Command of the program with an empty environment and, unless overridden, tasks in memory.
pub(crate) fn a2a(arguments: &[&str]) -> Command {
    a2a_at(env!("CARGO_BIN_EXE_a2a").as_ref(), arguments)
}

/// Command of another version of the program.
pub(crate) fn a2a_at(path: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(path);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.env_clear().env("A2A_STORE", "memory");
    command
}

pub(crate) async fn output(mut command: Command) -> Output {
    timeout(TIMEOUT, command.output()).await.unwrap().unwrap()
}

/// Starts a server; returns it and its URL, from the first line of its output.
async fn serve() -> (Child, String) {
    started(a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn"])).await
}

pub(crate) async fn started(command: Command) -> (Child, String) {
    try_started(command).await.unwrap()
}

/// Starts a server. Fails with its exit status if it ends before it listens.
pub(crate) async fn try_started(mut command: Command) -> Result<(Child, String), ExitStatus> {
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let Some(first) = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap() else {
        return Err(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap());
    };
    let url = first.strip_prefix("listening on ").unwrap().to_owned();
    // Reads on, since a full pipe would block the server.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok((child, url))
}

pub(crate) fn signal(child: &Child, name: &str) {
    let id = child.id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args([name, &id]).status().unwrap().success());
}

/// Returns true if this process, and so the programs that it starts, may read the memory of other processes.
#[cfg(target_os = "linux")]
pub(crate) fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

pub(crate) fn message(text: &str) -> Value {
    json!({"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": text}]}})
}

pub(crate) async fn post(url: &str, body: &Value) -> Value {
    let request = crate::bindings::http().post(url).header("content-type", "application/json").body(body.to_string());
    let reply = request.send().await.unwrap();
    assert_eq!(reply.status(), 200);
    serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap()
}

#[tokio::test]
async fn program_prints_its_address_and_stops_on_sigterm() {
    let (mut child, url) = serve().await;
    let reply = post(&format!("{url}/message:send"), &message("hello")).await;
    assert_eq!(reply["task"]["status"]["state"], "TASK_STATE_COMPLETED");
    signal(&child, "-TERM");
    assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));
}

/// Proxies of the environment are used for HTTP, except for the hosts in `NO_PROXY`.
#[tokio::test]
async fn proxies_of_the_environment_are_used() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    for (variable, url, expected) in [
        ("HTTP_PROXY", "http://agent.example", "GET http://agent.example/.well-known/agent-card.json HTTP/1.1"),
        ("https_proxy", "https://agent.example", "CONNECT agent.example:443 HTTP/1.1"),
        ("ALL_PROXY", "https://agent.example:8443/geo/card.json", "CONNECT agent.example:8443 HTTP/1.1"),
        ("ALL_PROXY", "http://agent.example/geo/card.json", "GET http://agent.example/geo/card.json HTTP/1.1"),
    ] {
        let mut command = a2a(&["discover", url]);
        let _child = command.env(variable, &address).spawn().unwrap();
        let (socket, _) = timeout(TIMEOUT, proxy.accept()).await.unwrap().unwrap();
        let line = BufReader::new(socket).lines().next_line().await.unwrap();
        assert_eq!(line.as_deref(), Some(expected), "{variable}");
    }
    drop(proxy);
    let (_child, url) = serve().await;
    for (exception, is_reached) in [("127.0.0.1", true), ("localhost,127.0.0.0/8", true), ("agent.example", false)] {
        let mut command = a2a(&["discover", &url, "--timeout", if is_reached { "30s" } else { "1s" }]);
        command.env("HTTP_PROXY", &address).env("NO_PROXY", exception);
        assert_eq!(output(command).await.status.success(), is_reached, "{exception}");
    }
}

/// Connects to nothing that is not configured. `strace` shows the calls of the server.
#[cfg(target_os = "linux")]
#[expect(clippy::print_stdout, reason = "a skipped test must not look like a passed one")]
#[tokio::test]
async fn server_connects_to_configured_addresses_only() {
    const STRACE: &str = "/usr/bin/strace";
    let directory = tempfile::tempdir().unwrap();
    let traces = std::process::Command::new(STRACE).args(["-o", "/dev/null", "true"]).output();
    if !(is_root() && traces.is_ok_and(|output| output.status.success())) {
        println!("skipped: `strace` is missing or not permitted");
        return;
    }
    let (_upstream, upstream) = serve().await;
    let port = upstream.rsplit_once(':').unwrap().1;
    for (name, flags) in [("demo", &[][..]), ("upstream", &["--upstream", &upstream])] {
        let log = directory.path().join(name);
        let program = a2a(&[&["serve", "--listen", "127.0.0.1:0"], flags].concat());
        let mut command = Command::new(STRACE);
        // The tracer is a child of the server (`-D`), so that signals reach the server.
        command.args(["-D", "-f", "-e", "trace=connect", "-o"]).arg(&log).arg(program.as_std().get_program());
        command.args(program.as_std().get_args()).env_clear().env("A2A_STORE", format!("sqlite:{name}.db"));
        command.current_dir(directory.path()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let (mut child, url) = started(command).await;
        let reply = post(&format!("{url}/message:send"), &message("hello")).await;
        assert_eq!(reply["task"]["status"]["state"], "TASK_STATE_COMPLETED");
        let id = child.id().unwrap().to_string();
        signal(&child, "-TERM");
        assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));
        // The tracer may end after the server. It pads ids of processes to five characters.
        let is_end = |line: &str| {
            line.split_once(' ').is_some_and(|(found, event)| found == id && event.trim() == "+++ exited with 0 +++")
        };
        #[expect(clippy::disallowed_methods, reason = "another process writes the file")]
        let complete = async {
            loop {
                let text = std::fs::read_to_string(&log).unwrap();
                if text.lines().any(is_end) {
                    return text;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let text = timeout(TIMEOUT, complete).await.unwrap();
        let connections: Vec<_> = text.lines().filter(|line| line.contains("connect(")).collect();
        assert_eq!(connections.is_empty(), name == "demo", "{connections:?}");
        assert!(connections.iter().all(|line| line.contains(&format!("htons({port})"))), "{connections:?}");
    }
}

/// The file is closed on exit, and its tasks are available after a restart, also after a kill.
#[tokio::test]
async fn tasks_in_a_file_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a2a.db");
    let store = format!("sqlite:{}", file.display());
    let start = || started(a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn", "--store", &store]));
    let mut tasks = Vec::new();
    for name in ["-TERM", "-KILL"] {
        let (mut child, url) = start().await;
        tasks.push(post(&format!("{url}/message:send"), &message("hello")).await["task"].clone());
        let second = output(a2a(&["serve", "--listen", "127.0.0.1:0", "--store", &store])).await;
        let errors = String::from_utf8(second.stderr).unwrap();
        assert_eq!(second.status.code(), Some(1));
        assert!(errors.contains(&format!("is in use by process {}, since 20", child.id().unwrap())), "{errors}");
        signal(&child, name);
        let code = timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code();
        assert_eq!(code, (name == "-TERM").then_some(0));
        assert_eq!(directory.path().join("a2a.db-wal").exists(), name == "-KILL");
        let (_child, url) = start().await;
        let client = client::rest(&url).unwrap();
        for task in &tasks {
            let id = task["id"].as_str().unwrap().to_owned();
            let found = client.get_task(Call::default().request(GetTaskRequest { id, ..Default::default() })).await;
            assert_eq!(&serde_json::to_value(found.unwrap().into_inner()).unwrap(), task);
        }
    }
}

/// The default store is a file in the working directory, whose path is printed.
#[tokio::test]
async fn default_store_is_a_file_in_the_working_directory() {
    let directory = tempfile::tempdir().unwrap();
    let serve = || {
        let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
        command.env_remove("A2A_STORE").current_dir(directory.path());
        command
    };
    let mut child = serve().spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
    let url = next().await.strip_prefix("listening on ").unwrap().to_owned();
    let file = directory.path().canonicalize().unwrap().join("a2a.db");
    assert_eq!(next().await, format!("tasks are stored in {}", file.display()));
    assert_eq!(next().await, "  (--store memory keeps them in memory only)");
    let task = post(&format!("{url}/message:send"), &message("hello")).await["task"].clone();
    // A second server in the same directory reports the owner of the file and the flag to change.
    let second = output(serve()).await;
    let errors = String::from_utf8(second.stderr).unwrap();
    assert!(errors.contains("is in use by process") && errors.contains("--store"), "{errors}");
    signal(&child, "-TERM");
    assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));
    let (_child, url) = started(serve()).await;
    let found = crate::bindings::fetch(format!("{url}/tasks/{}", task["id"].as_str().unwrap())).await.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&found.bytes().await.unwrap()).unwrap(), task);
    // `--store memory` creates no file.
    let mut memory = a2a(&["serve", "--listen", "127.0.0.1:0", "--store", "memory"]);
    let empty = tempfile::tempdir().unwrap();
    memory.env_remove("A2A_STORE").current_dir(empty.path());
    let (_child, _) = started(memory).await;
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0);
}

/// Returns the startup message of a server that is started with these flags and variables in a directory, and the running server.
async fn startup(directory: &Path, flags: &[&str], variables: &[(&str, &str)]) -> (Child, Vec<String>) {
    let mut command = a2a(&[&["serve"], flags].concat());
    command.current_dir(directory).envs(variables.iter().copied());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut shown = Vec::new();
    while shown.last().is_none_or(|line: &String| !line.contains("Ctrl-C stops the server.")) {
        let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap();
        shown.push(line.unwrap_or_else(|| panic!("the server has ended: {shown:#?}")));
    }
    (child, shown)
}

/// Returns the commands in a startup message, which may have several lines each.
fn commands(lines: &[String]) -> Vec<String> {
    let (mut commands, mut is_command) = (Vec::<String>::new(), false);
    for line in lines.iter().skip_while(|line| !line.ends_with("call it from another terminal:")).skip(1) {
        if line.starts_with("    ") && is_command {
            let command = commands.last_mut().unwrap();
            command.push('\n');
            command.push_str(line);
        } else if line.starts_with("  ") {
            commands.push(line.trim().to_owned());
        }
        is_command = line.starts_with("  ");
    }
    commands
}

/// Runs the commands of a startup message in a shell, one after the other. Returns their outputs. grpcurl only prints its arguments.
async fn run_printed(commands: &[String], variables: &[(&str, &str)]) -> Vec<String> {
    let mut variables: Vec<_> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let run = async |script: String, variables: &[(String, String)]| {
        let mut shell = Command::new("sh");
        shell.args(["-euc", &script]).env_clear().env("PATH", "/usr/bin:/bin").envs(variables.iter().cloned());
        shell.stdin(Stdio::null());
        output(shell).await
    };
    let mut outputs = Vec::new();
    for command in commands {
        if command.starts_with("TOKEN=") {
            let token = run(format!("{command}\nprintf %s \"$TOKEN\""), &variables).await;
            variables.push(("TOKEN".to_owned(), String::from_utf8(token.stdout).unwrap()));
            continue;
        }
        let script = format!("grpcurl() {{ printf '%s\\n' \"$@\"; }}\n{command}");
        let mut done = run(script.clone(), &variables).await;
        // The server notices a new token within a second.
        let started = SystemTime::now();
        while !done.status.success() && started.elapsed().unwrap() < Duration::from_secs(5) {
            done = run(script.clone(), &variables).await;
        }
        let (text, errors) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8(done.stderr).unwrap());
        assert!(done.status.success(), "{script}: {text}{errors}");
        outputs.push(text);
    }
    outputs
}

/// Runs the commands that the server prints at the start, with and without TLS and tokens.
#[tokio::test]
async fn printed_commands_work() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let path = |name: &str| directory.join(name).display().to_string();
    let certificates = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(path("server.pem"), certificates.cert.pem()).unwrap();
    std::fs::write(path("server.key"), certificates.signing_key.serialize_pem()).unwrap();
    std::fs::write(path("token"), "sesame-sesame-sesame\n").unwrap();
    let (cert, key, tokens) = (path("server.pem"), path("server.key"), path("tokens.json"));
    std::fs::write(&tokens, r#"{"tokens": []}"#).unwrap();
    let token = [("A2A_TOKEN", "sesame-sesame-sesame")];
    for (flags, variables, parts) in [
        (vec!["--listen", "127.0.0.1:0"], &[][..], vec!["listening on http://127.0.0.1:", "grpcurl -plaintext"]),
        (
            vec!["--listen", "0.0.0.0:0"],
            &token[..],
            vec!["listening on http://localhost:", "(0.0.0.0:", "\nwithout TLS, ", "authorization: Bearer $A2A_TOKEN"],
        ),
        (
            vec!["--listen", "0.0.0.0:0", "--tls-cert", "self_signed"],
            &[("A2A_TOKEN_FILE", "token")],
            vec!["listening on https://localhost:", "curl -k", "grpcurl -insecure", "TOKEN=$(cat ", "Bearer $TOKEN"],
        ),
        (
            vec!["--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &key, "--auth-tokens", &tokens],
            &[],
            vec!["listening on https://localhost:", "curl --cacert ", "grpcurl -cacert ", "new me)", "--insecure-tls"],
        ),
    ] {
        let (_server, lines) = startup(directory, &flags, variables).await;
        let text = lines.join("\n");
        let url = lines[0].strip_prefix("listening on ").unwrap();
        let console = format!("\nOpen {url}/ in a browser for the console, or call");
        for part in parts.iter().copied().chain([&*console]) {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(lines.len() <= 17 && !text.contains("configuration file:"), "{text}");
        let paths = [env!("CARGO_BIN_EXE_a2a"), directory.to_str().unwrap()];
        let short = paths.iter().fold(text.clone(), |text, path| text.replace(path, "a2a"));
        assert!(short.lines().all(|line| line.chars().count() <= 100), "{text}");
        let outputs = run_printed(&commands(&lines), variables).await;
        let [sent, rest, grpc] = &*outputs else { panic!("{outputs:#?}") };
        assert!(sent.contains("[echo] hello") && rest.contains("TASK_STATE_COMPLETED"), "{sent}{rest}");
        assert!(grpc.ends_with("\nlf.a2a.v1.A2AService/SendMessage\n"), "{grpc}");
    }
    // The token of the first command is there now.
    let (_server, lines) = startup(directory, &["--listen", "127.0.0.1:0", "--auth-tokens", &tokens], &[]).await;
    assert!(lines.contains(&"  TOKEN=...  # the secret that `a2a token new` has printed".to_owned()), "{lines:#?}");
    std::fs::write(path("a2a.toml"), "token = 'sesame-sesame-sesame'\n").unwrap();
    let (_server, lines) = startup(directory, &["--listen", "[::1]:0"], &[]).await;
    let file = directory.join("a2a.toml");
    assert!(lines.contains(&format!("configuration file: {}", file.display())), "{lines:#?}");
    assert!(lines.contains(&"  TOKEN=...  # as set at a2a.toml:1".to_owned()), "{lines:#?}");
}

/// A token that can be guessed is refused where other machines can try. The error does not contain it.
#[tokio::test]
async fn short_token_is_refused_on_a_public_address() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token").display().to_string();
    std::fs::write(&file, "hunter2-hunter2").unwrap();
    for (variable, value, place) in [
        ("A2A_TOKEN", "hunter2", "A2A_TOKEN: the token is"),
        ("A2A_TOKEN_FILE", &file, "A2A_TOKEN_FILE: the token in "),
    ] {
        let mut command = a2a(&["serve", "--listen", "0.0.0.0:0"]);
        command.env(variable, value);
        let refused = output(command).await;
        let errors = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{errors}");
        assert!(
            errors.contains(place) && errors.contains("`a2a token new`") && !errors.contains("hunter2-"),
            "{errors}"
        );
        assert!(!errors.contains("hunter2 "), "{errors}");
    }
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn"]);
    command.env("A2A_TOKEN", "hunter2");
    started(command).await;
}

/// The startup message names the agent, without the parts of URLs and commands that may be secret.
#[tokio::test]
async fn startup_message_names_the_agent() {
    let url = "http://user:secret@localhost:1/secret?key=secret";
    for (flags, expected) in [
        (&[][..], "the agent is the demo"),
        (&["--exec", "/bin/cat secret"], "the agent is the command /bin/cat"),
        (&["--http", url], "the agent is the endpoint at http://localhost:1"),
        (
            &["--openai", "localhost:1/v1?key=secret", "--model", "tiny"],
            "the agent is the model tiny at http://localhost:1",
        ),
    ] {
        let mut child = a2a(&[&["serve", "--listen", "127.0.0.1:0"], flags].concat()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut shown = Vec::new();
        loop {
            let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
            assert!(!line.contains("secret"), "{line}");
            let is_last = line.contains("Ctrl-C stops the server.");
            shown.push(line);
            if is_last {
                break;
            }
        }
        assert!(shown.iter().any(|line| line == expected), "{shown:#?}");
    }
}

/// A card that requires credentials which are not checked is rejected, and warnings name missing or premature entries.
#[tokio::test]
async fn card_with_unchecked_security_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("card.json").display().to_string();
    let scheme = json!({"securitySchemes": {"oauth": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}});
    for declared in [json!({"securityRequirements": [{"schemes": {"oauth": {}}}]}), scheme] {
        let mut card = json!({"name": "Geo", "supportedInterfaces": []});
        card.as_object_mut().unwrap().extend(declared.as_object().unwrap().clone());
        std::fs::write(&file, card.to_string()).unwrap();
        let refused = output(a2a(&["serve", "--listen", "127.0.0.1:0", "--card-file", &file])).await;
        let errors = String::from_utf8(refused.stderr).unwrap();
        assert!(refused.status.code() == Some(2) && errors.contains("card.file"), "{errors}");
        assert!(errors.contains("A2A_TOKEN"), "{errors}");
    }
    // With a token, the schemes that it does not satisfy are named.
    let key = json!({"apiKeySecurityScheme": {"location": "header", "name": "x-key"}});
    let oauth = json!({"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": "https://t.example", "scopes": {}}}}});
    let bearer = json!({"httpAuthSecurityScheme": {"scheme": "Bearer"}});
    let card = json!({"name": "Geo", "supportedInterfaces": [], "securitySchemes": {"key": key, "oauth": oauth, "token": bearer}});
    std::fs::write(&file, card.to_string()).unwrap();
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--card-file", &file]);
    command.args(["--public-url", "https://agent.example/a2a"]).env("A2A_TOKEN", "secret");
    let (mut child, url) = started(command).await;
    let card = crate::bindings::http().get(format!("{url}/.well-known/agent-card.json")).send().await.unwrap();
    let card: Value = serde_json::from_slice(&card.bytes().await.unwrap()).unwrap();
    assert_eq!(card["securitySchemes"].as_object().unwrap().keys().collect::<Vec<_>>(), ["bearer"]);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    signal(&child, "-TERM");
    let mut warnings = Vec::new();
    while let Some(line) = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap() {
        warnings.extend(line.split_once("WARN").map(|(_, warning)| warning.to_owned()));
    }
    let [key, oauth, grpc] = ["security scheme key ", "security scheme oauth ", "card.grpc_url"]
        .map(|text| warnings.iter().filter(|warning| warning.contains(text)).count());
    assert_eq!((key, oauth, grpc), (1, 1, 1), "{warnings:?}");
    assert!(!warnings.iter().any(|warning| warning.contains("scheme token")), "{warnings:?}");
}

#[tokio::test]
async fn running_turns_end_before_the_program_stops() {
    let (mut child, url) = serve().await;
    let slow = tokio::spawn(async move { post(&format!("{url}/message:send"), &message("/slow 0.5")).await });
    let (mut other, other_url) = serve().await;
    post(&format!("{other_url}/message:send"), &message("hello")).await;
    signal(&other, "-INT");
    assert_eq!(timeout(TIMEOUT, other.wait()).await.unwrap().unwrap().code(), Some(0));
    signal(&child, "-INT");
    assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));
    assert_eq!(slow.await.unwrap()["task"]["status"]["state"], "TASK_STATE_COMPLETED");
}

#[tokio::test]
async fn second_signal_stops_the_program_at_once() {
    stops_at_second_signal("-INT", 130).await;
    stops_at_second_signal("-TERM", 143).await;
}

/// A token file that is replaced by a pipe leaves the tokens as they are, and does not hold up the end.
#[cfg(unix)]
#[tokio::test]
async fn token_file_that_is_a_pipe_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (path, pipe) = (directory.path().join("tokens.json"), directory.path().join("pipe"));
    let secret = add_token(&path, NewToken::new("ada"), SystemTime::now()).unwrap();
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "error"]);
    command.env("A2A_AUTH_TOKENS", &path);
    let (mut child, url) = started(command).await;
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::rename(&pipe, &path).unwrap();
    let http = crate::bindings::http();
    let list = async || {
        let request = http.get(format!("{url}/tasks")).bearer_auth(&secret).timeout(Duration::from_secs(5));
        assert_eq!(request.send().await.unwrap().status(), 200);
    };
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut beat = tokio::time::interval(Duration::from_millis(50));
    let refused = async {
        loop {
            tokio::select! {
                line = log.next_line() => {
                    let line = line.unwrap().unwrap();
                    assert!(line.contains("token_file_unusable") && line.contains("is not a regular file"), "{line}");
                    break;
                }
                _ = beat.tick() => list().await,
            }
        }
    };
    timeout(TIMEOUT, refused).await.unwrap();
    list().await;
    signal(&child, "-TERM");
    assert_eq!(timeout(Duration::from_secs(5), child.wait()).await.unwrap().unwrap().code(), Some(0));
}

async fn stops_at_second_signal(second: &str, code: i32) {
    let (mut child, url) = serve().await;
    let mut stream = crate::bindings::http()
        .post(format!("{url}/message:stream"))
        .header("content-type", "application/json")
        .body(message("/hang").to_string())
        .send()
        .await
        .unwrap();
    assert!(stream.chunk().await.unwrap().is_some());
    let mut errors = child.stderr.take().unwrap();
    signal(&child, "-INT");
    // The first signal starts the drain, which the hanging turn prolongs. The wait ensures that the signals are not merged.
    assert!(timeout(Duration::from_millis(300), child.wait()).await.is_err());
    signal(&child, second);
    assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(code));
    let mut output = String::new();
    errors.read_to_string(&mut output).await.unwrap();
    assert!(!output.contains("panicked"), "{output}");
}

#[tokio::test]
async fn start_errors_name_their_cause_and_remedy() {
    let public = output(a2a(&["serve", "--listen", "0.0.0.0:0"])).await;
    let errors = String::from_utf8(public.stderr).unwrap();
    assert_eq!(public.status.code(), Some(2));
    assert!(errors.starts_with("error: 0.0.0.0:0 is reachable from other machines"), "{errors}");
    for remedy in ["A2A_TOKEN", "127.0.0.1", "--insecure"] {
        assert!(errors.contains(remedy), "{errors}");
    }

    let occupied = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = occupied.local_addr().unwrap().to_string();
    let failed = output(a2a(&["serve", "--listen", &addr])).await;
    assert_eq!((failed.status.code(), &*failed.stdout), (Some(1), &b""[..]));
    let errors = String::from_utf8(failed.stderr).unwrap();
    assert!(errors.contains(&addr) && errors.contains("--listen"), "{errors}");

    let wrong = output(a2a(&["serve", "--store", "nobody"])).await;
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("memory"));
    assert_eq!(output(a2a(&["--help"])).await.status.code(), Some(0));
}

/// The soft limit of open files becomes the hard one, and a hard one that is too low is reported.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn descriptor_limit_is_raised_and_reported() {
    for (connections, suffices) in [("200", true), ("1000", false)] {
        let mut command = Command::new("sh");
        command.args(["-c", r#"ulimit -Sn 100 && ulimit -Hn 300 && exec "$0" "$@""#, env!("CARGO_BIN_EXE_a2a")]);
        command.args(["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn", "--limits-connections", connections]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.env_clear().env("A2A_STORE", "memory");
        let (mut child, _) = started(command).await;
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id().unwrap())).unwrap();
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        assert_eq!(files.split_whitespace().collect::<Vec<_>>(), ["300", "300", "files"]);
        signal(&child, "-TERM");
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).await.unwrap();
        let warned = errors.contains("does not suffice for limits.connections") && errors.contains("needed=1064");
        assert_eq!(warned, !suffices, "{errors}");
    }
}

/// SQLite ignores a maximum below the current size of the file, which would then grow without a limit.
#[tokio::test]
async fn maximum_size_below_the_file_size_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn", "--store", &store];
    let (mut child, _) = started(a2a(&arguments)).await;
    signal(&child, "-TERM");
    assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));
    let size = std::fs::metadata(directory.path().join("a2a.db")).unwrap().len();
    let limited = |bytes: u64| a2a(&[&arguments[..], &["--store-max-size", &bytes.to_string()]].concat());
    let refused = output(limited(size - 1)).await;
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let expected = format!("{size} bytes exceed the limit of {} (store.max_size)", size - 1);
    assert!(errors.contains("a2a.db") && errors.contains(&expected), "{errors}");
    drop(started(limited(size)).await);
}

#[tokio::test]
async fn public_address_requires_a_token_or_insecure() {
    let mut command = a2a(&["serve", "--listen", "0.0.0.0:0"]);
    command.env("A2A_TOKEN", "sesame-sesame-sesame");
    let (_child, url) = started(command).await;
    assert!(url.starts_with("http://localhost:"), "{url}");
    assert_eq!(crate::bindings::fetch(format!("{url}/tasks")).await.unwrap().status(), 401);
    let listed = crate::bindings::http().get(format!("{url}/tasks")).bearer_auth("sesame-sesame-sesame").send();
    let listed = listed.await.unwrap();
    assert_eq!(listed.status(), 200);

    let (mut child, url) = started(a2a(&["serve", "--listen", "0.0.0.0:0", "--insecure"])).await;
    assert_eq!(crate::bindings::fetch(format!("{url}/tasks")).await.unwrap().status(), 200);
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = timeout(TIMEOUT, errors.next_line()).await.unwrap().unwrap().unwrap();
    assert!(first.contains("WARN") && first.contains("no token"), "{first}");
}

#[tokio::test]
async fn all_bindings_are_served_on_each_address() {
    let mut child = a2a(&["serve", "--listen", "127.0.0.1:0,[::1]:0"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
    next().await;
    let second = next().await;
    let url = second.strip_prefix("also on ").unwrap();
    let task = GetTaskRequest { id: "nobody".into(), ..GetTaskRequest::default() };
    let answer = client::grpc(url).unwrap().get_task(Call::default().request(task)).await;
    assert_eq!(answer.unwrap_err().code(), tonic::Code::NotFound);
    for path in ["/tasks", "/metrics", "/docs/"] {
        assert_eq!(crate::bindings::fetch(format!("{url}{path}")).await.unwrap().status(), 200, "{path}");
    }
    signal(&child, "-TERM");
    assert_eq!(timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code(), Some(0));
}

/// Returns the metrics that a server shows at this URL.
async fn metrics(url: &str, token: Option<&str>) -> (u16, String) {
    let mut request = crate::bindings::http().get(format!("{url}/metrics"));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), String::from_utf8(response.bytes().await.unwrap().into()).unwrap())
}

#[tokio::test]
async fn metrics_count_calls_streams_and_commits() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn", "--push-enabled"]);
    command.env("A2A_STORE", format!("sqlite:{}", directory.path().join("a2a.db").display()));
    let (_child, url) = started(command).await;
    post(&format!("{url}/message:send"), &message("hello")).await;
    let (client, hanging) = (crate::bindings::http(), message("/hang").to_string());
    let stream = client.post(format!("{url}/message:stream")).header("content-type", "application/json").body(hanging);
    let mut stream = stream.send().await.unwrap();
    assert!(stream.chunk().await.unwrap().is_some());
    assert_eq!(client.get(format!("{url}/tasks/nobody")).send().await.unwrap().status(), 404);
    let method = json!({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "nobody"}}).to_string();
    client.post(format!("{url}/rpc")).header("content-type", "application/json").body(method).send().await.unwrap();

    let (status, text) = metrics(&url, None).await;
    assert_eq!(status, 200);
    for line in [
        r#"a2a_calls_total{operation="SendMessage",binding="http",version="1.0",code="OK"} 1"#,
        r#"a2a_calls_total{operation="GetTask",binding="http",version="1.0",code="NOT_FOUND"} 1"#,
        r#"a2a_calls_total{operation="GetTask",binding="jsonrpc",version="0.3",code="NOT_FOUND"} 1"#,
        r#"a2a_http_responses_total{binding="http",status="404"} 1"#,
        r#"a2a_streams{operation="SendStreamingMessage",binding="http"} 1"#,
        r#"a2a_stream_first_event_seconds_count{operation="SendStreamingMessage",binding="http"} 1"#,
        r#"a2a_live_tasks{state="TASK_STATE_WORKING"} 1"#,
        "a2a_turns 1",
        "a2a_ready 1",
        r#"a2a_push_attempts_total{outcome="success"} 0"#,
        "# TYPE a2a_commit_duration_seconds histogram",
        "# TYPE a2a_commit_tasks histogram",
        "# TYPE a2a_stream_lag_events histogram",
    ] {
        assert!(text.lines().any(|found| found == line), "no line {line}:\n{text}");
    }
    let connections = text.lines().find_map(|line| line.strip_prefix("a2a_connections ")).unwrap();
    assert!(connections.parse::<u32>().unwrap() >= 2, "{connections}");
    for secret in ["owner=", "tenant=", "nobody", "m-1"] {
        assert!(!text.contains(secret), "{secret}:\n{text}");
    }
    drop(stream);
    let ended = r#"a2a_calls_total{operation="SendStreamingMessage",binding="http",version="1.0",code="CANCELLED"} 1"#;
    let closed = async {
        while !metrics(&url, None).await.1.contains(ended) {
            tokio::task::yield_now().await;
        }
    };
    timeout(TIMEOUT, closed).await.unwrap();
}

#[tokio::test]
async fn metrics_need_the_token_or_a_loopback_address() {
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("A2A_TOKEN", "s3cret");
    let (_guarded, url) = started(command).await;
    assert_eq!(metrics(&url, None).await.0, 401);
    assert_eq!(metrics(&url, Some("s3cret")).await.0, 200);
    let (_open, url) = started(a2a(&["serve", "--listen", "0.0.0.0:0,127.0.0.1:0", "--insecure"])).await;
    assert_eq!(metrics(&url.replace("0.0.0.0", "127.0.0.1"), None).await.0, 404, "other machines reach the address");
}

#[tokio::test]
async fn metrics_can_have_a_local_address_of_their_own() {
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]);
    command.env("A2A_TOKEN", "s3cret").env("A2A_LOG_FILTER", "warn");
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut addresses = Vec::new();
    while addresses.len() < 2 {
        let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
        let url = line.split_once(" on ").filter(|(name, _)| ["listening", "metrics"].contains(name));
        addresses.extend(url.map(|(_, url)| url.trim_end_matches("/metrics").to_owned()));
    }
    let [url, operations] = &addresses[..] else { unreachable!() };
    assert_eq!(metrics(url, None).await.0, 401);
    assert_eq!(metrics(url, Some("s3cret")).await.0, 404, "they are on their own address only");
    assert_eq!(metrics(operations, None).await.0, 200);
    let status =
        async |path: &str| crate::bindings::fetch(format!("{operations}{path}")).await.unwrap().status().as_u16();
    assert_eq!(
        (status("/readyz").await, status("/tasks").await, status("/.well-known/agent-card.json").await),
        (200, 404, 404)
    );
}

/// Failures, denials, changes of tokens and of push configurations have one target and stable fields, and no secrets.
#[tokio::test]
async fn security_events_are_in_the_audit_log() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens.json");
    let file = file.to_str().unwrap();
    let token = async |arguments: &[&str]| {
        let made = output(a2a(&[&["token", "--file", file], arguments].concat())).await;
        assert!(made.status.success(), "{made:?}");
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    };
    let full = token(&["new", "ada", "--owner", "acme", "--scope", "all"]).await;
    let reader = token(&["new", "bob", "--scope", "tasks:read"]).await;
    token(&["new", "key", "--header", "x-api-key"]).await;
    let serve = ["serve", "--listen", "127.0.0.1:0", "--log", "json", "--push-enabled=true", "--auth-tokens", file];
    let (mut child, url) = started(a2a(&serve)).await;
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut next = async || loop {
        let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
        assert!(!line.contains(&full) && !line.contains(&reader) && !line.contains("hunter2"), "{line}");
        let event: Value = serde_json::from_str(&line).unwrap();
        if event["target"] == "a2a_service::audit" {
            assert!(event["event"] == "tokens_changed" || event["peer"].as_str().is_some(), "{line}");
            return event;
        }
    };
    let send = async |token: Option<&str>, body: Value| {
        let request = crate::bindings::http().post(format!("{url}/message:send")).header("x-request-id", "r-1");
        let request = token.iter().fold(request, reqwest::RequestBuilder::bearer_auth);
        let sent = request.header("content-type", "application/json").body(body.to_string()).send().await.unwrap();
        sent.status().as_u16()
    };
    assert_eq!(send(None, message("hello")).await, 401);
    let event = next().await;
    assert_eq!((&event["event"], &event["level"]), (&json!("authentication_failed"), &json!("WARN")), "{event}");
    assert_eq!((&event["operation"], &event["scheme"]), (&json!("SendMessage"), &Value::Null), "{event}");
    assert_eq!(send(Some("hunter2"), message("hello")).await, 401);
    let event = next().await;
    assert_eq!((&event["event"], &event["scheme"]), (&json!("authentication_failed"), &json!("bearer")), "{event}");
    assert_eq!(event["request.id"], "r-1", "{event}");
    let with_key = crate::bindings::http().get(format!("{url}/tasks")).header("x-api-key", "hunter2");
    assert_eq!(with_key.send().await.unwrap().status().as_u16(), 401);
    let event = next().await;
    assert_eq!((&event["event"], &event["scheme"]), (&json!("authentication_failed"), &json!("x-api-key")), "{event}");

    assert_eq!(send(Some(&reader), message("hello")).await, 403);
    let event = next().await;
    assert_eq!((&event["event"], &event["principal"]), (&json!("permission_denied"), &json!("bob")), "{event}");
    assert!(event["reason"].as_str().unwrap().contains("tasks:write"), "{event}");

    let mut request = message("/hang");
    let push = json!({"url": "https://hook.invalid/in", "token": "hunter2"});
    request["configuration"] = json!({"taskPushNotificationConfig": push, "returnImmediately": true});
    assert_eq!(send(Some(&full), request).await, 200);
    let event = next().await;
    assert_eq!((&event["event"], &event["owner"]), (&json!("push_configuration_changed"), &json!("acme")), "{event}");

    // The file is checked again at requests.
    token(&["revoke", "bob"]).await;
    let until_revoked = async {
        while send(Some(&reader), message("hello")).await != 401 {
            // The server waits while nobody reads its log.
            next().await;
        }
    };
    timeout(TIMEOUT, until_revoked).await.unwrap();
    let event = loop {
        let event = next().await;
        if event["event"] != "permission_denied" {
            break event;
        }
    };
    assert_eq!((&event["event"], &event["tokens"]), (&json!("tokens_changed"), &json!(2)), "{event}");
    child.kill().await.unwrap();
}

#[tokio::test]
async fn each_request_is_one_log_line() {
    let (mut child, url) = started(a2a(&["serve", "--listen", "127.0.0.1:0", "--log", "json"])).await;
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let client = crate::bindings::http();
    let post = |path: &str, text: &str| {
        let request = client.post(format!("{url}{path}?secret=1")).header("content-type", "application/json");
        request.header("authorization", "Bearer hunter2").body(message(text).to_string())
    };
    let mut next = async || {
        loop {
            let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
            assert!(!line.contains("secret") && !line.contains("hunter2"), "{line}");
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["target"] != "a2a_service::turn" {
                return line;
            }
        }
    };
    let traced = post("/message:send", "hello").header("x-request-id", "r-1");
    let traced = traced.header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let reply = traced.send().await.unwrap();
    assert_eq!(reply.headers()["x-request-id"], "r-1");
    let line = next().await;
    let expected = json!({
        "level": "INFO", "target": "a2a_service::request", "message": "request completed", "rpc.system": "http",
        "http.method": "POST", "path": "/message:send", "status": 200, "request.id": "r-1",
        "operation": "SendMessage", "version": "1.0", "trace.id": "4bf92f3577b34da6a3ce929d0e0e4736",
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(line[name], *value, "{line}");
    }
    assert!(uuid::Uuid::parse_str(line["task.id"].as_str().unwrap()).is_ok(), "{line}");
    assert!(line["duration_ms"].is_u64() && line["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");

    // An invalid id is replaced.
    let mut stream =
        post("/message:stream", "/hang").header("x-request-id", "r 2").header("traceparent", "x").send().await.unwrap();
    assert!(stream.chunk().await.unwrap().is_some());
    drop(stream);
    let line = next().await;
    assert_eq!((line["message"].as_str(), line["path"].as_str()), (Some("response aborted"), Some("/message:stream")));
    assert_eq!(line.get("trace.id"), None, "{line}");
    assert!(uuid::Uuid::parse_str(line["request.id"].as_str().unwrap()).is_ok(), "{line}");
    // The outcome of a gRPC call is in its trailers.
    let grpc = client::grpc(&url).unwrap();
    let missing = GetTaskRequest { id: "nobody".into(), ..GetTaskRequest::default() };
    grpc.get_task(Call::default().request(missing)).await.unwrap_err();
    let line = next().await;
    assert_eq!((line["rpc.system"].as_str(), line["rpc.grpc.status_code"].as_u64()), (Some("grpc"), Some(5)), "{line}");
    assert_eq!(line["error.reason"], "TASK_NOT_FOUND");
    assert_eq!((&line["operation"], &line["task.id"]), (&json!("GetTask"), &json!("nobody")), "{line}");
    // That of gRPC-Web is in a frame of the body.
    for content_type in ["application/grpc-web", "application/grpc-web-text"] {
        let request: SendMessageRequest = serde_json::from_value(message("hello")).unwrap();
        let length = u32::try_from(request.encoded_len()).unwrap().to_be_bytes();
        let frame = [&[0], &length[..], &request.encode_to_vec()].concat();
        let frame = if content_type.ends_with("text") { BASE64_STANDARD.encode(frame).into() } else { frame };
        let call = client.post(format!("{url}/lf.a2a.v1.A2AService/SendStreamingMessage"));
        let reply = call.header("content-type", content_type).body(frame).send().await.unwrap();
        assert!(!reply.bytes().await.unwrap().is_empty());
        let line = next().await;
        assert_eq!((&line["rpc.system"], &line["rpc.grpc.status_code"]), (&json!("grpc"), &json!(0)), "{line}");
        assert_eq!(line["message"], "request completed");
    }
    // The reply metadata has the id too.
    let get = GetTaskRequest { id: "nobody".into(), ..GetTaskRequest::default() };
    let frame = [&[0, 0, 0, 0, u8::try_from(get.encoded_len()).unwrap()], &*get.encode_to_vec()].concat();
    let http2 = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let call = http2.post(format!("{url}/lf.a2a.v1.A2AService/GetTask")).header("content-type", "application/grpc");
    let reply = call.body(frame).send().await.unwrap();
    assert_eq!(next().await["request.id"], reply.headers()["x-request-id"].to_str().unwrap());
}

/// The log line has the JSON-RPC method and the error reason, which path and status do not show.
#[tokio::test]
async fn request_log_line_has_method_and_reason() {
    let (mut child, url) = started(a2a(&["serve", "--listen", "127.0.0.1:0", "--log", "json"])).await;
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let call = |method: &str| json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"id": "nobody"}});
    for (path, body, method, reason) in [
        ("/rpc", call("GetTask"), json!("GetTask"), json!("TASK_NOT_FOUND")),
        ("/rpc", call("tasks/get"), json!("tasks/get"), json!("TASK_NOT_FOUND")),
        ("/rpc", call("Nothing\u{1b}[31m"), json!("Nothing\u{1b}[31m"), json!("METHOD_NOT_FOUND")),
        ("/rpc", json!([call("GetTask")]), json!("batch"), Value::Null),
        ("/tasks/nobody:cancel", json!({}), Value::Null, json!("TASK_NOT_FOUND")),
        ("/message:send", message("hello"), Value::Null, Value::Null),
    ] {
        let request = crate::bindings::http().post(format!("{url}{path}")).header("content-type", "application/json");
        let reply = request.body(body.to_string()).send().await.unwrap();
        let id = reply.headers()["x-request-id"].to_str().unwrap().to_owned();
        assert!(uuid::Uuid::parse_str(&id).is_ok(), "{id}");
        drop(reply.bytes().await.unwrap());
        let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&line["rpc.method"], &line["error.reason"], &line["request.id"]), (&method, &reason, &json!(id)));
    }
}

/// Input of a client stays within its log line and cannot control a terminal.
#[tokio::test]
async fn client_input_cannot_forge_log_lines() {
    let fake = "2026-01-01T00:00:00Z ERROR a2a_service: fake\u{1b}[31m\u{9b}1m\u{2028}";
    for format in ["text", "json"] {
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--log", format, "--log-wire"];
        let (mut child, url) = started(a2a(&arguments)).await;
        let mut errors = child.stderr.take().unwrap();
        let text = format!("/fail x\n{fake}");
        post(&format!("{url}/message:send"), &message(&text)).await;
        post(&format!("{url}/message:send"), &message("/panic")).await;
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": format!("x\n{fake}"), "params": {}});
        post(&format!("{url}/rpc"), &call).await;
        let bad =
            crate::bindings::http().post(format!("{url}/message:send")).header("content-type", "application/json");
        drop(bad.body(format!("{{\"x\n{fake}")).send().await.unwrap().bytes().await.unwrap());
        signal(&child, "-TERM");
        let mut log = String::new();
        timeout(TIMEOUT, errors.read_to_string(&mut log)).await.unwrap().unwrap();
        assert!(log.contains("fake") && log.contains("thread panicked") && log.contains("asked to panic"), "{log}");
        assert!(!log.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{2028}'), "{log:?}");
        assert!(log.lines().all(|line| !line.starts_with("2026-01-01")), "{log}");
        assert!(format == "text" || log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{log}");
    }
}

/// Server of the test below, in its own process because tests in this process install a subscriber.
#[tokio::test]
#[ignore = "a process that another test starts"]
async fn library_program() {
    let failing =
        agent::from_fn(|_, _| async { Err(std::io::Error::other("the disk is on fire\nand spreads").into()) });
    let silent = std::env::var("SILENT_AT").ok();
    let server = Server::new(failing).report_to_stderr(silent.is_none()).map_card(AgentCard::bearer);
    server.serve(silent.as_deref().unwrap_or("127.0.0.1:0")).await.unwrap();
}

/// A program without a subscriber still writes its warnings, its address, and the causes of its error ids.
#[tokio::test]
async fn library_program_without_a_subscriber_reports_to_stderr() {
    let program = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "program::library_program", "--ignored", "--nocapture"]).kill_on_drop(true);
        command.env_remove("RUST_LOG").stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let mut child = program().spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut next = async || timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
    let warning = "a2a-service: warning: agent card declares credentials, but no authenticator checks them";
    assert_eq!(next().await, warning);
    assert_eq!(next().await, "a2a-service: warning: security scheme bearer of the agent card: not checked");
    let url = next().await.strip_prefix("a2a-service: listening on ").unwrap().to_owned();
    let reply = post(&format!("{url}/message:send"), &message("hello")).await;
    let status = reply["task"]["status"]["message"]["parts"][0]["text"].as_str().unwrap();
    let (_, id) = status.split_once("error id ").unwrap();
    let line = next().await;
    assert!(line.starts_with(&format!("a2a-service: turn failed: error.id={id} task.id=")), "{line}");
    assert!(line.ends_with(r"error.cause=the disk is on fire\nand spreads"), "{line}");
    // `report_to_stderr(false)` disables the reports.
    let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut silent = program().env("SILENT_AT", addr.to_string()).spawn().unwrap();
    let mut errors = silent.stderr.take().unwrap();
    wait_for_server(addr).await;
    post(&format!("http://{addr}/message:send"), &message("hello")).await;
    signal(&silent, "-TERM");
    assert!(timeout(TIMEOUT, silent.wait()).await.unwrap().unwrap().success());
    let mut output = String::new();
    errors.read_to_string(&mut output).await.unwrap();
    assert_eq!(output, "");
}

/// A public address requires an authenticator or `insecure`, as in the program.
#[tokio::test]
async fn library_server_requires_an_authenticator_or_insecure_on_a_public_address() {
    let refused = Server::new(Demo).bind("0.0.0.0:0").await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    for text in
        ["0.0.0.0:", "is reachable from other machines", "Server::authenticator", "127.0.0.1", "Server::insecure"]
    {
        assert!(refused.to_string().contains(text), "{refused}");
    }
    let mut local = Server::new(Demo).bind("127.0.0.1:0").await.unwrap();
    let refused = local.add("0.0.0.0:0").await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    drop(Server::new(Demo).insecure(true).bind("0.0.0.0:0").await.unwrap());
    let bearer = Bearer::new(Token::new("sesame").unwrap());
    drop(Server::new(Demo).authenticator(bearer).bind("0.0.0.0:0").await.unwrap());
}

/// Waits until a server accepts connections on an address.
async fn wait_for_server(addr: SocketAddr) {
    let connected = async {
        let mut beat = tokio::time::interval(Duration::from_millis(10));
        while TcpStream::connect(addr).await.is_err() {
            beat.tick().await;
        }
    };
    timeout(TIMEOUT, connected).await.unwrap();
}

/// Starts an example on a port that was free a moment ago, and waits until it accepts connections.
async fn example(name: &str) -> (Child, String) {
    let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let path = PathBuf::from(env!("CARGO_BIN_EXE_a2a")).parent().unwrap().join("examples").join(name);
    let child = Command::new(&path).arg(addr.to_string()).kill_on_drop(true).spawn();
    let child =
        child.unwrap_or_else(|error| panic!("{}: {error}; build it with `cargo build --examples`", path.display()));
    wait_for_server(addr).await;
    (child, format!("http://{addr}"))
}

fn text(task: &Value) -> String {
    let parts =
        task["artifacts"].as_array().into_iter().flatten().flat_map(|artifact| artifact["parts"].as_array().unwrap());
    parts.filter_map(|part| part["text"].as_str()).collect()
}

#[tokio::test]
async fn examples_work_as_documented() {
    let (_child, url) = example("hello_world").await;
    let reply = post(&format!("{url}/message:send"), &message("Ada")).await;
    assert_eq!(text(&reply["task"]), "Hello, Ada!");

    let (_child, url) = example("streaming").await;
    let reply = post(&format!("{url}/message:send"), &message("3")).await;
    assert_eq!(text(&reply["task"]), "1 2 3 ");
    let reply = post(&format!("{url}/message:send"), &message("x")).await;
    assert_eq!(reply["task"]["status"]["state"], "TASK_STATE_FAILED");

    let (_child, url) = example("multi_turn").await;
    let asked = post(&format!("{url}/message:send"), &message("Soup")).await;
    assert_eq!(asked["task"]["status"]["message"]["parts"][0]["text"], "Soup: for how many?");
    for (answer, state) in [("many", "TASK_STATE_INPUT_REQUIRED"), ("4", "TASK_STATE_COMPLETED")] {
        let mut next = message(answer);
        next["message"]["taskId"] = asked["task"]["id"].clone();
        let reply = post(&format!("{url}/message:send"), &next).await;
        assert_eq!(reply["task"]["status"]["state"], state);
        if answer == "4" {
            let order = json!({"dish": "Soup", "guests": 4});
            assert_eq!(reply["task"]["artifacts"][0]["parts"][0]["data"], order);
        }
    }

    let (_child, url) = example("mounted").await;
    assert_eq!(
        crate::bindings::fetch(format!("{url}/about")).await.unwrap().text().await.unwrap(),
        "Two agents, and a page."
    );
    for (path, expected) in [("", "Ada"), ("/shout", "ADA")] {
        let card = crate::bindings::fetch(format!("{url}{path}/.well-known/agent-card.json"))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap();
        let card: Value = serde_json::from_slice(&card).unwrap();
        let interfaces = card["supportedInterfaces"].as_array().unwrap();
        // Interfaces of both versions.
        assert_eq!(interfaces.len(), if path.is_empty() { 6 } else { 4 }, "gRPC paths cannot have a prefix");
        let call = json!({"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": message("Ada")});
        let reply = post(interfaces[0]["url"].as_str().unwrap(), &call).await;
        assert_eq!(text(&reply["result"]["task"]), expected);
        let reply = post(&format!("{}/message:send", interfaces[1]["url"].as_str().unwrap()), &message("Ada")).await;
        assert_eq!(text(&reply["task"]), expected);
    }
}
