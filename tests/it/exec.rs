//! Commands as agents: both formats, files, persistent commands, and commands that behave badly.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use a2a_service::{
    adapter::{Exec, ExecFormat, ExecOptions, HttpEndpoint, HttpOptions},
    client::{Client, StreamEvent},
    pb::v1::{Message, Part, TaskState, part::Content},
    server::{Limits, Server},
    testing::{Probe, ProbeOutcome, probe},
};
use tokio_stream::StreamExt as _;

use crate::{
    agent_kinds::until_first_chunk,
    program::{a2a, is_root, signal, started},
};

/// Path of the program, which is the guard of commands.
fn guard() -> PathBuf {
    env!("CARGO_BIN_EXE_a2a").into()
}

fn options() -> ExecOptions {
    ExecOptions::default().guard(Some(guard()))
}

/// Agent that runs a shell script.
fn shell(script: &str, options: ExecOptions) -> Probe {
    probe(Exec::new(["sh", "-c", script], options).unwrap())
}

fn json_lines() -> ExecOptions {
    options().format(ExecFormat::JsonLines)
}

/// Returns true if the machine has a program.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

/// Sends a message to a script whose failures are exposed. Returns the state and the text of the status message.
async fn send_exposed(script: &str, options: ExecOptions) -> (TaskState, String) {
    let command = Exec::new(["sh", "-c", script], options).unwrap();
    let agent = Client::from_service(Server::new(command).expose_causes(true).into_service());
    let outcome = agent.send("hello").await.unwrap();
    (outcome.state(), outcome.error().unwrap_or_default())
}

async fn send(script: &str, text: &str) -> ProbeOutcome {
    shell(script, options()).send(text).await.unwrap()
}

/// Runs a script, and cancels its task after its first output.
async fn cancel_running(script: &str, options: ExecOptions) {
    let command = Exec::new(["sh", "-c", script], options).unwrap();
    let agent = Client::from_service(Server::new(command).into_service());
    let (id, _events) = until_first_chunk(&agent, "go").await;
    assert_eq!(agent.cancel(&id).await.unwrap().state(), TaskState::Canceled);
}

/// Waits until a condition holds, for at most ten seconds.
pub(crate) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        _ = tokio::time::timeout(Duration::from_millis(10), std::future::pending::<()>()).await;
    }
    panic!("{what}");
}

/// Returns true if a process with this number runs.
pub(crate) fn is_running(id: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_reads_the_message_and_writes_an_artifact() {
    let outcome = send("tr a-z A-Z", "hello").await;
    assert_eq!((outcome.state(), outcome.text().as_str()), (TaskState::Completed, "HELLO"));
    let silent = send("cat >/dev/null", "hello").await;
    assert_eq!((silent.state(), silent.text().as_str()), (TaskState::Completed, ""));
    assert!(silent.task.unwrap().artifacts.is_empty());
    // Without a guard.
    let plain = shell("echo done", ExecOptions::default()).send("hello").await.unwrap();
    assert_eq!(plain.text(), "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_never_part_of_the_command() {
    let text = "$(touch injected); `id` && rm -rf \"$HOME\" 'x";
    assert_eq!(send("cat", text).await.text(), text);
    assert!(!Path::new("injected").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_scripts_stream_line_by_line() {
    let shell = "echo first; while [ ! -e GATE ]; do sleep 0.01; done; echo second";
    let python = "import os, time\nprint('first')\nwhile not os.path.exists('GATE'): time.sleep(0.01)\nprint('second')";
    let node = "console.log('first'); const timer = setInterval(() => {
        if (require('fs').existsSync('GATE')) { console.log('second'); clearInterval(timer) }
    }, 10)";
    for (program, flag, script) in [("sh", "-c", shell), ("python3", "-c", python), ("node", "-e", node)] {
        if has(program) {
            streams_line_by_line(program, flag, script).await;
        }
    }
}

/// The first line arrives while the command runs: it waits for a file that is created then.
async fn streams_line_by_line(program: &str, flag: &str, script: &str) {
    let directory = tempfile::tempdir().unwrap();
    let gate = directory.path().join("gate");
    let script = script.replace("GATE", gate.to_str().unwrap());
    let command = Exec::new([program, flag, &script], options()).unwrap();
    let agent = Client::from_service(Server::new(command).into_service());
    let (open, opened) = tokio::sync::oneshot::channel();
    let opening = tokio::spawn(async move {
        opened.await.unwrap();
        fs::write(gate, "").unwrap();
    });
    let mut open = Some(open);
    let mut text = String::new();
    let mut events = agent.stream("go").await.unwrap();
    while let Some(event) = events.next().await {
        let StreamEvent::Artifact(update) = event.unwrap() else { continue };
        for part in update.artifact.iter().flat_map(|artifact| &artifact.parts) {
            text.push_str(part.as_text().unwrap());
            if let Some(open) = open.take() {
                open.send(()).unwrap();
            }
        }
    }
    opening.await.unwrap();
    assert_eq!(text, "first\nsecond", "{program}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_describes_the_turn_and_has_no_secret_of_the_server() {
    let outcome = send("env", "hello").await;
    let (text, task) = (outcome.text(), outcome.task.unwrap());
    assert!(text.contains(&format!("A2A_TASK_ID={}\n", task.id)) && text.contains(&task.context_id), "{text}");
    let own = [
        "A2A_TASK_ID",
        "A2A_CONTEXT_ID",
        "A2A_MESSAGE_ID",
        "A2A_ATTEMPT",
        "A2A_FENCE",
        "A2A_OWNER",
        "A2A_TENANT",
        "A2A_HOPS",
        "A2A_INPUT_DIR",
        "A2A_OUTPUT_DIR",
    ];
    let others = text.lines().filter(|line| line.starts_with("A2A_") && !own.iter().any(|name| line.starts_with(name)));
    assert_eq!(others.collect::<Vec<_>>(), [""; 0]);
    let with = options().env([("GREETING".to_owned(), "salve".to_owned())].into());
    assert_eq!(shell("echo $GREETING", with).send("hello").await.unwrap().text(), "salve");
}

/// A command can publish the files that it writes, and not those behind a link.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_output_directory_publishes_nothing_else() {
    let secrets = tempfile::tempdir().unwrap();
    fs::write(secrets.path().join("secret"), "sesame").unwrap();
    let replace = format!(r#"mv "$output" "$output.own"; ln -s {} "$output""#, secrets.path().display());
    let text = format!(r#"output=$A2A_OUTPUT_DIR; echo own >"$output/own"; {replace}"#);
    let lines = format!(
        r#"read -r turn; output=$(printf %s "$turn" | sed 's/.*"outputDir":"\([^"]*\)".*/\1/'); echo own >"$output/own"
        {replace}; echo '{{"type":"complete"}}'"#
    );
    for (script, options) in [(text, options()), (lines, json_lines())] {
        let outcome = shell(&script, options).send("go").await.unwrap();
        assert_eq!(outcome.state(), TaskState::Completed, "{}", outcome.status_text());
        let names: Vec<_> = outcome.task.as_ref().unwrap().artifacts.iter().map(|artifact| &*artifact.name).collect();
        assert_eq!(names, ["own"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_passed_as_paths_and_written_as_artifacts() {
    let script = r#"while read -r line; do case $line in /*) wc -c <"$line" ;; *) echo "$line" ;; esac; done
        printf '<svg/>' >"$A2A_OUTPUT_DIR/chart.svg"; ln -s /etc/hostname "$A2A_OUTPUT_DIR/link""#;
    let parts = vec![
        Part::text("Compare"),
        Part::bytes("12345", "text/plain").named("../a.txt"),
        Part::data(&serde_json::json!({"n": 1})).unwrap(),
        Part::url("https://files.invalid/b", "text/plain"),
        Part::text("\n"),
    ];
    let outcome = shell(script, options()).send_message(Message { parts, ..Message::user("") }).await.unwrap();
    assert_eq!(outcome.artifact("output").unwrap().parts[0].as_text().unwrap().lines().next(), Some("Compare"));
    let output: String = outcome.artifact("output").unwrap().parts.iter().filter_map(Part::as_text).collect();
    assert!(output.starts_with("Compare\n5\n{\"n\":1}\nhttps://files.invalid/b"), "{output}");
    let chart = &outcome.artifact("chart.svg").unwrap().parts[0];
    assert_eq!((chart.media_type.as_str(), chart.filename.as_str()), ("image/svg+xml", "chart.svg"));
    assert_eq!(chart.content, Some(Content::Raw(b"<svg/>".to_vec())));
    assert!(outcome.artifact("link").is_none());
    // A workspace belongs to a task. What the command writes there stays.
    let workspace = tempfile::tempdir().unwrap();
    let agent = shell("mkdir output; cat >>log; cat log; pwd", options().workspace(Some(workspace.path().to_owned())));
    let outcome = agent.send("hello").await.unwrap();
    let task = outcome.task.clone().unwrap().id;
    let directory = fs::canonicalize(workspace.path()).unwrap().join(&task);
    assert_eq!(outcome.text(), format!("hello{}", directory.display()));
    assert!(directory.join("log").exists() && directory.join("output").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_behave_badly_end_in_the_right_state() {
    for (script, expected) in [
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "ended by signal 9 (the system may have run out of memory)"),
        ("exit 137", "ended by signal 9 (the system may have run out of memory)"),
        ("echo partial; exit 1", "exit code 1"),
        ("ulimit -S -t 1; while :; do :; done", "ended by signal 24 (it exceeded its processor time)"),
    ] {
        let (state, text) = send_exposed(script, options()).await;
        assert!(state == TaskState::Failed && text.ends_with(&format!("\n{expected}")), "{script}: {text}");
    }
    // It never reads its input, which is larger than a pipe.
    let outcome = send("echo done", &"x".repeat(900_000)).await;
    assert_eq!((outcome.state(), outcome.text().as_str()), (TaskState::Completed, "done"));
    // It closes stdout early.
    let outcome = send("echo done; exec >&-; cat >/dev/null", "hello").await;
    assert_eq!((outcome.state(), outcome.text().as_str()), (TaskState::Completed, "done"));
    let outcome = send(r"printf 'a\377b'", "hello").await;
    assert_eq!((outcome.state(), outcome.text().as_str()), (TaskState::Completed, "a\u{fffd}b"));
    let outcome = send("head -c 100000000 /dev/zero >&2; echo done", "hello").await;
    assert_eq!(outcome.text(), "done", "stderr is not limited");
    let limited = options().output_bytes(1 << 20);
    let outcome = shell("yes | head -c 1073741824", limited.clone()).send("hello").await.unwrap();
    assert_eq!(outcome.status_text(), "The output of the command exceeds 1048576 bytes (limits.task_bytes).");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("id").display().to_string();
    let slow = Exec::new(["sh", "-c", &format!("echo $$ >{path}; sleep 60")], options()).unwrap();
    let limits = Limits::default().turn_deadline(Duration::from_millis(500));
    let agent = Client::from_service(Server::new(slow).limits(limits).into_service());
    let outcome = agent.send("hello").await.unwrap();
    assert!(outcome.text().contains("(deadline)"), "{}", outcome.text());
    eventually("the command is ended", || !is_running(&fs::read_to_string(&path).unwrap())).await;
    let large = "head -c 600000000 /dev/zero | tail -c 600000000 >/dev/null";
    let outcome = shell(large, options().memory(Some(256 << 20))).send("go").await.unwrap();
    assert_eq!(outcome.state(), TaskState::Failed);
    assert!(Exec::new(["no-such-program"], options()).unwrap_err().to_string().contains("no-such-program"));
    assert!(Exec::new([""; 0], options()).is_err());
    let unguarded = ExecOptions::default().memory(Some(1 << 20));
    assert!(Exec::new(["cat"], unguarded).is_err(), "only a guard limits resources");
}

/// The status message of a failed turn has an error id, and only on request the end of the command and its last lines of stderr.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stderr_of_a_failed_command_is_exposed_on_request_only() {
    let script = r"echo Traceback >&2; printf 'ValueError: no \033[1mcity\nlast\n' >&2; exit 1";
    for (name, options) in
        [("text", options()), ("JSON lines", json_lines()), ("without a guard", ExecOptions::default())]
    {
        let outcome = shell(script, options.clone()).send("hello").await.unwrap();
        let text = outcome.status_text();
        assert!(text.starts_with("Agent execution failed: error id "), "{name}: {text}");
        assert!(!text.contains("ValueError") && !text.contains("exit"), "{name}: {text}");
        let (state, text) = send_exposed(script, options).await;
        let (first, cause) = text.split_once('\n').unwrap();
        assert!(state == TaskState::Failed && first.starts_with("Agent execution failed: error id "), "{text}");
        let error = r"ValueError: no \u{1b}[1mcity";
        assert_eq!(cause, format!("exit code 1: {error}\nTraceback\n{error}\nlast"), "{name}");
    }
    // Bounded in lines and bytes, and without secrets of the command.
    let script = "i=0; while [ $i -lt 500 ]; do i=$((i+1)); echo \"$i $API_TOKEN $(head -c 1000 /dev/zero | tr '\\0' x)\" >&2; done; exit 7";
    let secret = options().env([("API_TOKEN".to_owned(), "sesame-open".to_owned())].into());
    let (_, text) = send_exposed(script, secret).await;
    assert!(text.contains("exit code 7: 500 (hidden) x") && !text.contains("sesame") && text.len() < 5000, "{text}");
    assert!(text.lines().count() <= 22 && text.contains("\n495 (hidden) x"), "{text}");
    // Output of a command that is no event, log events and broken events have no secrets either.
    for (line, expected) in [
        (r"$API_TOKEN", "Its output begins with: (hidden)"),
        (r#"{\"type\":\"$API_TOKEN\"}"#, "unknown variant `(hidden)`"),
        (r#"{\"type\":\"status\"}${API_TOKEN}"#, "(hidden)"),
    ] {
        let secret = json_lines().env([("API_TOKEN".to_owned(), "sesame-open".to_owned())].into());
        let (_, text) = send_exposed(&format!("echo \"{line}\""), secret).await;
        assert!(text.contains(expected) && !text.contains("sesame"), "{text}");
    }
    // Data of a message stay, and its text is in the cause.
    let agent = a2a_service::agent::from_fn(|_, _| async {
        let mut message = Message::agent("No answer.");
        message.parts.push(Part::data(&serde_json::json!({"city": "Lisbon"})).unwrap());
        Err(a2a_service::agent::Error::public(message).caused_by("disk full"))
    });
    let exposed = Client::from_service(Server::new(agent).expose_causes(true).into_service());
    let outcome = exposed.send("hello").await.unwrap();
    let parts = &outcome.task().unwrap().status.as_ref().unwrap().message.as_ref().unwrap().parts;
    assert!(parts.len() == 2 && format!("{parts:?}").contains("Lisbon"), "{parts:?}");
    // Text for clients gets its cause too.
    let agent = a2a_service::agent::from_fn(|_, _| async {
        Err(a2a_service::agent::Error::public("No answer.").caused_by("disk\u{7} full"))
    });
    let exposed = Client::from_service(Server::new(agent).expose_causes(true).into_service());
    assert_eq!(exposed.send("hello").await.unwrap().text(), r"No answer: disk\u{7} full");
    let endpoint = HttpEndpoint::new("http://127.0.0.1:9/", HttpOptions::default()).unwrap();
    let exposed = Client::from_service(Server::new(endpoint).expose_causes(true).into_service());
    let text = exposed.send("hello").await.unwrap().text();
    assert!(text.starts_with("The endpoint of the agent can't be reached: ") && text.contains("refused"), "{text}");
    // A persistent command ends.
    let ends =
        Exec::new(["sh", "-c", "read -r line; echo 'KeyError: x' >&2; exit 4"], json_lines().persistent(true)).unwrap();
    let exposed = Client::from_service(Server::new(ends).expose_causes(true).into_service());
    let text = exposed.send("hello").await.unwrap().text();
    assert_eq!(text, "The command ended before the end of the turn: exit code 4: KeyError: x");
}

/// Commands that can't be started are errors at the start, which say what mends them, and of the turn if that comes later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_cannot_be_started_say_what_mends_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let write = |name: &str, content: &str, mode: u32| {
        fs::write(path(name), content).unwrap();
        fs::set_permissions(path(name), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        path(name)
    };
    let missing = "its interpreter /nowhere/python is missing; use --exec 'sh ";
    for (program, expected) in [
        (write("plain.sh", "#!/bin/sh\n", 0o644), "is not executable; run: chmod +x "),
        (write("none.sh", "echo hello\n", 0o755), "has no #! line; use --exec 'sh "),
        (write("both.sh", "\u{feff}echo hello\n", 0o644), "has no #! line; use --exec 'sh "),
        (write("windows.sh", "#!/bin/sh\r\necho hello\r\n", 0o755), r" has Windows line ends; run: sed -i 's/\r$//' "),
        (write("other.sh", "#!/nowhere/python -u\n", 0o755), missing),
        (write("env.rb", "#!/usr/bin/env -S no-such-ruby -w\n", 0o755), "its interpreter no-such-ruby is missing; "),
        (path(""), " is a directory; name a program in it: --exec "),
        (path("none"), ": no such file"),
        (write("a'; b.sh", "#!/bin/sh\n", 0o644), "a'; b.sh\""),
        (write("c d.sh", "echo hello\n", 0o755), "/c d.sh'\""),
        ("no-such-program".to_owned(), ": not in PATH, and not in this directory; install it, or write its path"),
    ] {
        let error = Exec::new([&program], options()).unwrap_err().to_string();
        assert!(error.starts_with(program.trim_end_matches('/')) && error.contains(expected), "{program}: {error}");
    }
    let error = Exec::new(["sh", "-e", "none.sh"], options()).unwrap_err().to_string();
    assert!(error.ends_with(&std::env::current_dir().unwrap().display().to_string()), "{error}");
    // After the start.
    for options in [options(), ExecOptions::default()] {
        for (content, mode, expected) in [
            ("#!/bin/sh\n", 0o644, "is not executable; run: chmod +x "),
            ("#!/nowhere/sh\n", 0o755, "its interpreter /nowhere/sh is missing"),
            ("import sys\n", 0o755, "has no #! line"),
        ] {
            let changed = write("changed.sh", "#!/bin/sh\n", 0o755);
            let agent = Server::new(Exec::new([&changed], options.clone()).unwrap()).expose_causes(true);
            write("changed.sh", content, mode);
            let text = Client::from_service(agent.into_service()).send("hello").await.unwrap().text();
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}

/// The agents that `a2a init` writes ask a question, stream and send a file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_of_init_ask_stream_and_send_a_file() {
    for (kind, script, program) in
        [("shell", "agent.sh", "sh"), ("python", "agent.py", "python3"), ("node", "agent.mjs", "node")]
    {
        if !has(program) {
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        let mut init = a2a(&["init", kind]);
        init.current_dir(directory.path());
        let output = crate::program::output(init).await;
        let expected = format!(
            "written: a2a.toml and {script}\nedit, start the agent with `a2a serve`, and talk to it:\n  a2a chat 127.0.0.1:8080\n"
        );
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{output:?}");
        let mut serve = a2a(&["serve", "--listen", "127.0.0.1:0"]);
        serve.env("PATH", std::env::var_os("PATH").unwrap()).current_dir(directory.path());
        let (_server, url) = started(serve).await;
        let agent = Client::connect(&url).await.unwrap();
        let asked = agent.send(r#"a "quoted" \ topic"#).await.unwrap();
        assert_eq!((asked.state(), asked.text().as_str()), (TaskState::InputRequired, "How many lines?"), "{kind}");
        let reply = |text: &str| Message { task_id: asked.task().unwrap().id.clone(), ..Message::user(text) };
        let again = agent.send(reply("many")).await.unwrap();
        assert_eq!(
            (again.state(), again.text().as_str()),
            (TaskState::InputRequired, "Please send a number."),
            "{kind}"
        );
        let mut events = agent.stream(reply("2")).await.unwrap();
        let mut chunks = Vec::new();
        while let Some(event) = events.next().await {
            if let StreamEvent::Artifact(update) = event.unwrap() {
                let artifact = update.artifact.unwrap();
                chunks.push(artifact.parts[0].as_text().map_or(artifact.name.clone(), str::to_owned));
            }
        }
        let topic = r#"a "quoted" \ topic"#;
        let expected = [format!("1. {topic}\n"), format!("2. {topic}\n"), "answer.txt".to_owned()];
        assert_eq!(chunks.concat(), expected.concat(), "{kind}: {chunks:?}");
        let mut again = a2a(&["init", kind, "--file", "other.toml"]);
        again.current_dir(directory.path());
        let refused = crate::program::output(again).await;
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(!directory.path().join("other.toml").exists(), "nothing is written");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_ends_all_processes_of_a_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    // It ends at SIGTERM.
    let script = format!("trap 'echo stopped >{}; exit 1' TERM; echo started; sleep 60 & wait", path("stopped"));
    cancel_running(&script, options()).await;
    eventually("the command got SIGTERM", || Path::new(&path("stopped")).exists()).await;
    // It ignores SIGTERM, and so do its descendants, of which one is in a session of its own.
    let script = format!(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ >{0}; while :; do sleep 1; done' & \
         echo $$ >{1}; while [ ! -s {0} ]; do sleep 0.01; done; echo started; while :; do sleep 1; done",
        path("session"),
        path("command"),
    );
    cancel_running(&script, options().grace(Duration::from_millis(100))).await;
    for name in ["session", "command"] {
        let id = fs::read_to_string(path(name)).unwrap();
        eventually(&format!("{name} is killed"), || !is_running(&id)).await;
    }
}

/// A cancel that makes an update fail is one all the same: the command gets SIGTERM, and its grace period.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn command_that_writes_without_pause_gets_sigterm() {
    let directory = tempfile::tempdir().unwrap();
    for attempt in 0..20 {
        let path = directory.path().join(attempt.to_string());
        let path_text = path.display();
        let script = format!("trap 'echo stopped >{path_text}; exit 1' TERM; while :; do echo more; done");
        cancel_running(&script, options()).await;
        eventually("the command got SIGTERM", || path.exists()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_in_the_background_end_with_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("id").display().to_string();
    let outcome = send(&format!("setsid sleep 300 & echo $! >{path}; echo done"), "go").await;
    assert_eq!((outcome.state(), outcome.text().as_str()), (TaskState::Completed, "done"));
    let id = fs::read_to_string(&path).unwrap();
    eventually("the process in the background is killed", || !is_running(&id)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_become_updates_of_the_task() {
    let script = r#"read -r turn
        echo '{"type":"status","message":"Thinking","metadata":{"step":1}}'
        echo '{"type":"artifact","id":"a","name":"answer","text":"4"}'
        echo '{"type":"artifact","id":"a","text":"2","last":true,"metadata":{"k":2},"extensions":["urn:y"]}'
        echo '{"type":"artifact","name":"table","data":{"rows":[1,2]},"description":"Rows","metadata":{"k":1},"extensions":["urn:x"]}'
        echo '{"type":"status","metadata":{"ticket":"T-1"}}'
        echo
        echo '{"type":"log","level":"warn","message":"careful"}'
        echo '{"type":"complete","message":"Done.","metadata":{"end":true}}'"#;
    let events = shell(script, json_lines()).stream("go").await.unwrap();
    let status = events.iter().find_map(|event| event.status_update()).unwrap();
    assert_eq!(serde_json::to_value(&status.metadata).unwrap(), serde_json::json!({"step": 1}));
    let outcome = shell(script, json_lines()).send("go").await.unwrap();
    assert_eq!((outcome.state(), outcome.status_text().as_str()), (TaskState::Completed, "Done."));
    let answer = outcome.artifact("answer").unwrap();
    assert_eq!(answer.parts.iter().filter_map(Part::as_text).collect::<String>(), "42");
    assert_eq!((&*answer.artifact_id, &*answer.extensions), ("a", &["urn:y".to_owned()][..]));
    assert_eq!(serde_json::to_value(&answer.metadata).unwrap(), serde_json::json!({"k": 2}), "of a further chunk");
    let table = outcome.artifact("table").unwrap();
    assert_eq!(serde_json::to_value(&table.parts).unwrap(), serde_json::json!([{"data": {"rows": [1, 2]}}]));
    assert_eq!(table.extensions, ["urn:x"]);
    let metadata = serde_json::to_value(&outcome.task.as_ref().unwrap().metadata).unwrap();
    assert_eq!(metadata, serde_json::json!({"step": 1, "ticket": "T-1", "end": true}), "of three events");
    for (line, state, text) in [
        (r#"{"type":"reject","message":"No."}"#, TaskState::Rejected, "No."),
        (r#"{"type":"fail","message":"Broken."}"#, TaskState::Failed, "Broken."),
        (r#"{"type":"auth","message":"Log in."}"#, TaskState::AuthRequired, "Log in."),
        (r#"{"type":"message","message":"Hi."}"#, TaskState::Unspecified, "Hi."),
        (r#"{"type":"ask","message":{"parts":[{"text":"City?"}]}}"#, TaskState::InputRequired, "City?"),
        ("", TaskState::Failed, "The command sent no event."),
    ] {
        let outcome = shell(&format!("cat >/dev/null & echo '{line}'"), json_lines()).send("go").await.unwrap();
        assert_eq!((outcome.state(), outcome.status_text().as_str()), (state, text), "{line}");
    }
    for line in [r#"{"type":"dance"}"#, r#"{"type":"ask"}"#, r#"{"type":"artifact"}"#] {
        let outcome = shell(&format!("echo '{line}'"), json_lines()).send("go").await.unwrap();
        assert_eq!(outcome.state(), TaskState::Failed, "{line}");
        assert!(!outcome.status_text().contains(line), "the cause is in the log only");
    }
}

/// Lines that are no JSON objects are output for the log. Broken events, and what is cut, fail the turn (D3).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_output_is_logged_and_broken_events_fail() {
    const EVENT: &str = r#"{"type":"artifact","text":"hi"}"#;
    let run = async |output: &str| {
        let outcome = shell(&format!("printf '%b' '{output}'"), json_lines()).send("go").await.unwrap();
        (outcome.state(), outcome.text(), outcome.status_text())
    };
    for output in [
        format!("Loading model\\n{EVENT}\\n"),
        format!("{EVENT}\\nINFO done\\n"),
        format!("\\0357\\0273\\0277{EVENT}\\r\\n"),
        format!("10%%\\r20%%\\r{EVENT}\\r"),
        format!("data: x\\n[DONE]\\n[1]\\n{EVENT}"),
        format!("data: {EVENT}\\n\\n"),
        format!("[{EVENT}]\\n"),
    ] {
        let (state, text, status) = run(&output).await;
        assert_eq!((state, text.as_str()), (TaskState::Completed, "hi"), "{output}: {status}");
    }
    for output in [
        format!("{EVENT}\\n{{\"type\":\"artifact\",\"te"),
        format!("{EVENT}\\n{{\"type\":\"artifact\",\"te\\n"),
        format!("{{broken}}\\n{EVENT}\\n"),
        format!("{EVENT}\\nBye"),
        format!("{EVENT}\\nLoading {EVENT}\\n"),
    ] {
        assert_eq!(run(&output).await.0, TaskState::Failed, "{output}");
    }
    for (output, shown) in [
        ("Traceback:\\n  x\\n", " Its output begins with: Traceback:"),
        ("hello", " Its output begins with: hello"),
        ("data: x\\n\\n", " Its output begins with: data: x"),
        ("\\0033[1mx\\n", " Its output begins with: \\u{1b}[1mx"),
        ("\\n", ""),
    ] {
        let (state, _, status) = run(output).await;
        assert_eq!((state, status), (TaskState::Failed, format!("The command sent no event.{shown}")), "{output}");
    }
    let long = shell("head -c 100000 /dev/zero | tr '\\0' x; echo", json_lines()).send("go").await.unwrap();
    assert_eq!(long.status_text().len(), "The command sent no event. Its output begins with: ".len() + 200);
    // A file is an answer too.
    let file = shell("echo Done; echo x >\"$A2A_OUTPUT_DIR/a.txt\"", json_lines()).send("go").await.unwrap();
    assert!(file.state() == TaskState::Completed && file.artifact("a.txt").is_some(), "{}", file.status_text());
}

/// Other output of a persistent command ends none of its turns, and a broken event only its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_output_of_a_persistent_command_is_logged() {
    let script = r#"echo 'Loading model'
    while read -r line; do
        turn=$(printf '%s' "$line" | sed 's/.*"turn":"\([0-9]*\)".*/\1/')
        case $line in
            *'"type":"cancel"'*) ;;
            *'"text":"wrong","messages"'*) printf '{"type":"dance","turn":"%s"}\n' "$turn" ;;
            *'"text":"exit","messages"'*) exit 1 ;;
            *) printf 'INFO %s\r\n{"type":"artifact","turn":"%s","text":"%s"}\r\n[DONE]\n{"type":"complete","turn":"%s"}\n' $$ "$turn" $$ "$turn" ;;
        esac
    done"#;
    let agent = shell(script, json_lines().persistent(true));
    let first = agent.send("go").await.unwrap();
    assert_eq!(first.state(), TaskState::Completed, "{}", first.status_text());
    assert_eq!(agent.send("wrong").await.unwrap().state(), TaskState::Failed);
    assert_eq!(agent.send("go").await.unwrap().text(), first.text(), "the same process");
    let status = agent.send("exit").await.unwrap().status_text();
    assert_eq!(status, "The command ended before the end of the turn.");
}

/// Agent that asks once, and keeps what it has saved.
const WAITER: &str = r#"read -r turn
case $turn in
    *'"state":{"dish":"soup"}'*) echo '{"type":"artifact","name":"order","text":"Soup, as you said."}' ;;
    *) echo '{"type":"save","state":{"dish":"soup"}}'; echo '{"type":"ask","message":"For how many?"}' ;;
esac"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn saved_state_reaches_the_next_turn() {
    let agent = shell(WAITER, json_lines());
    let asked = agent.send("Soup").await.unwrap();
    assert_eq!((asked.state(), asked.status_text().as_str()), (TaskState::InputRequired, "For how many?"));
    let done = agent.reply(&asked, "two").await.unwrap();
    assert_eq!((done.state(), done.text().as_str()), (TaskState::Completed, "Soup, as you said."));
}

/// Persistent agent, which answers `wait` after its cancel or with the next turn, and ends at `exit`.
const PERSISTENT: &str = r#"waiting=
while read -r line; do
    turn=$(printf '%s' "$line" | sed 's/.*"turn":"\([0-9]*\)".*/\1/')
    case $line in
        *'"type":"cancel"'*) echo '{"type":"fail","turn":"'"$turn"'","message":"canceled"}' ;;
        *'"text":"exit","messages"'*) exit 1 ;;
        *'"text":"wait","messages"'*)
            echo '{"type":"status","turn":"'"$turn"'","message":"waiting"}'
            waiting="$waiting $turn" ;;
        *)
            for one in $waiting $turn; do
                echo '{"type":"artifact","turn":"'"$one"'","name":"id","text":"'$$'"}'
                echo '{"type":"complete","turn":"'"$one"'"}'
            done
            waiting= ;;
    esac
done"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persistent_command_gets_all_turns() {
    let agent = shell(PERSISTENT, json_lines().persistent(true));
    let waiting = tokio::spawn({
        let agent = agent.clone();
        async move { agent.send("wait").await.unwrap() }
    });
    let mut first = agent.send("go").await.unwrap();
    while !waiting.is_finished() {
        first = agent.send("go").await.unwrap();
    }
    assert_eq!(waiting.await.unwrap().text(), first.text(), "one process");
    assert_eq!(agent.cancel("wait").await.unwrap().state(), TaskState::Canceled);
    let outcome = agent.send("exit").await.unwrap();
    assert_eq!(outcome.status_text(), "The command ended before the end of the turn.");
    let next = agent.send("go").await.unwrap();
    assert!(next.state() == TaskState::Completed && next.text() != first.text(), "it is started again");
    let id = next.text();
    drop(agent);
    eventually("the process ends with the agent", || !is_running(&id)).await;
    assert!(Exec::new(["cat"], options().persistent(true)).is_err(), "needs JSON lines");
}

/// SIGKILL of the server leaves no process and no files behind. The command of the configuration gets the flags of the official
/// program.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_server_leaves_no_process_and_no_files() {
    let persistent = &["--exec-format", "persistent"][..];
    let named = &["--name", "Sleeper"][..];
    for (flags, trap) in [(named, "trap '' TERM"), (persistent, "trap '' TERM"), (named, ":"), (persistent, ":")] {
        let (directory, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| directory.path().join(name).display().to_string();
        let script =
            format!("{trap}; setsid sleep 300 & echo $! >{}; echo $$ >{}; sleep 300", path("session"), path("command"));
        let command = format!("sh -c \"{script}\"");
        let mut serve = a2a(&[&["serve", "--listen", "127.0.0.1:0", "--exec", &command], flags].concat());
        serve.env("PATH", std::env::var_os("PATH").unwrap()).env("TMPDIR", temporary.path());
        let (mut server, url) = started(serve).await;
        let agent = Client::connect(&url).await.unwrap();
        assert_eq!(agent.card().name == "Sleeper", flags != persistent);
        let file = Part::bytes("secret", "text/plain").named("a.txt");
        let mut events = agent.stream(Message { parts: vec![file], ..Message::user("") }).await.unwrap();
        events.next().await.unwrap().unwrap();
        eventually("the command runs", || Path::new(&path("command")).exists()).await;
        eventually("there are files", || fs::read_dir(temporary.path()).unwrap().count() == 1).await;
        signal(&server, "-KILL");
        server.wait().await.unwrap();
        for name in ["session", "command"] {
            let id = fs::read_to_string(path(name)).unwrap();
            eventually(&format!("{name} is killed"), || !is_running(&id)).await;
        }
        eventually("the files are deleted", || fs::read_dir(temporary.path()).unwrap().count() == 0).await;
    }
}

/// A command of the same user reads neither the environment of the server in `/proc`, nor secrets that it inherits.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_have_no_secret_of_the_server() {
    let script = r#"sh -c 'env; tr "\\0" "\\n" </proc/$(cat)/environ; echo end'"#;
    let directory = tempfile::tempdir().unwrap();
    let serve = a2a(&["serve", "--listen", "127.0.0.1:0", "--exec", script]);
    let mut command = tokio::process::Command::new("setpriv");
    if is_root() {
        // Root may read everything.
        fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"]);
    }
    command.arg(serve.as_std().get_program()).args(serve.as_std().get_args()).current_dir(directory.path());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("A2A_STORE", "memory");
    for name in ["A2A_TOKEN", "PGPASSWORD", "PGPASSFILE", "OTEL_EXPORTER_OTLP_HEADERS"] {
        command.env(name, "sesame");
    }
    command.stdout(std::process::Stdio::piped()).kill_on_drop(true);
    let (server, url) = started(command).await;
    let agent = Client::builder().bearer("sesame").unwrap().connect(&url).await.unwrap();
    let outcome = agent.send(server.id().unwrap().to_string()).await.unwrap();
    let text = format!("{outcome:?}");
    assert!(text.contains("A2A_TASK_ID=") && text.contains("end") && !text.contains("sesame"), "{text}");
}

#[tokio::test]
async fn invalid_commands_are_errors_of_the_configuration() {
    for (arguments, expected) in [
        (&["--exec", "no-such-program"][..], "no-such-program"),
        (&["--exec", "cat | tr a-z A-Z"], "sh -c"),
        (&["--exec", "sh -c 'x"], "check its quotes"),
        (&["--exec", "cat", "--exec-format", "lines"], "`persistent`"),
        (&["--exec-format", "text"], "exec.command"),
        (&["--dev", "--public-url", "https://a.example"], "on this machine only; remove public_url"),
        (&["--dev", "--trusted-proxies", "10.0.0.1"], "on this machine only; remove trusted_proxies"),
        (&["--dev", "--allowed-hosts", "a.example"], "on this machine only; remove allowed_hosts"),
        (&["--dev", "--cors-origins", "https://a.example"], "on this machine only; remove cors_origins"),
        (&["--dev", "--metrics-listen", "0.0.0.0:0", "--insecure"], "on this machine only; remove 0.0.0.0:0"),
    ] {
        let mut command = a2a(&[&["serve", "--listen", "127.0.0.1:0"], arguments].concat());
        command.env("PATH", std::env::var_os("PATH").unwrap());
        let output = crate::program::output(command).await;
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}
