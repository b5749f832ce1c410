//! `a2a listen`: output, verification, commands, and end of the program.

use std::{path::Path, process::Stdio, time::Duration};

use a2a_service::{agent::demo::Demo, client, pb::v1::TaskPushNotificationConfig, push::PushOptions, server::Server};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout},
    time::timeout,
};

use crate::program::{a2a, output, signal};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Running `a2a listen`.
struct Listener {
    child: Child,
    url: String,
    /// Output after the startup message.
    lines: Lines<BufReader<ChildStdout>>,
}

impl Listener {
    async fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, &[]).await
    }

    async fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = a2a(&[&["listen", "--port", "0"], arguments].concat());
        // For commands.
        command.env("PATH", std::env::var("PATH").unwrap()).envs(variables.iter().copied());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let is_json = arguments.contains(&"--json");
        let mut banner = Vec::new();
        for _ in 0..3 {
            let line = async { if is_json { errors.next_line().await } else { lines.next_line().await } };
            banner.push(timeout(TIMEOUT, line).await.unwrap().unwrap().unwrap());
        }
        let url = banner[0].strip_prefix("listening on ").unwrap().to_owned();
        let origin = url.split('/').take(3).collect::<Vec<_>>().join("/");
        assert!(banner[1].contains(&format!(r#""url":"{url}""#)), "{banner:?}");
        assert!(banner[2].contains(&format!(r#"push.allow = ["{origin}"]"#)), "{banner:?}");
        tokio::spawn(async move { while let Ok(Some(_)) = errors.next_line().await {} });
        Self { child, url, lines }
    }

    async fn line(&mut self) -> String {
        timeout(TIMEOUT, self.lines.next_line()).await.unwrap().unwrap().unwrap()
    }

    async fn json(&mut self) -> Value {
        serde_json::from_str(&self.line().await).unwrap()
    }

    async fn code(&mut self) -> Option<i32> {
        timeout(TIMEOUT, self.child.wait()).await.unwrap().unwrap().code()
    }

    /// Sends a notification with this delivery id.
    fn notify(&self, id: &str) -> reqwest::RequestBuilder {
        let task = json!({ "id": "t-1", "contextId": "c-1", "status": { "state": "TASK_STATE_WORKING" } });
        let body = json!({ "task": task }).to_string();
        let request = crate::bindings::http().post(&self.url).header("content-type", "application/json");
        request.header("webhook-id", id).body(body)
    }

    async fn status(&self, id: &str) -> StatusCode {
        timeout(TIMEOUT, self.notify(id).send()).await.unwrap().unwrap().status()
    }
}

/// Server that sends to loopback, over JSON-RPC of 1.0 or 0.3.
async fn agent(is_v03: bool) -> std::sync::Arc<dyn a2a_service::A2aService> {
    let options = PushOptions::default().allow(vec!["http://127.0.0.1".parse().unwrap()]);
    let url = crate::bindings::serve(Server::new(Demo).push(true).push_options(options)).await;
    if is_v03 { crate::v03_client::json_rpc(&url) } else { client::json_rpc(&format!("{url}/rpc")).unwrap() }
}

fn config(url: &str, token: &str) -> TaskPushNotificationConfig {
    TaskPushNotificationConfig { url: url.into(), token: token.into(), ..Default::default() }
}

#[tokio::test]
async fn notifications_are_printed_as_they_arrive() {
    let mut listener = Listener::start_with(&["--token-env", "HOOK_TOKEN"], &[("HOOK_TOKEN", "a secret")]).await;
    let agent = agent(false).await;
    let task = crate::push::send(&*agent, "/stream 2 1", config(&listener.url, "a secret")).await.unwrap();
    let mut text = String::new();
    loop {
        let line = listener.line().await;
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{line}");
        let event = rest.strip_prefix(&format!("{} verified: ", task.id)).unwrap_or_else(|| panic!("{line}"));
        text.extend(event.strip_prefix("artifactUpdate "));
        if event.starts_with("statusUpdate TASK_STATE_COMPLETED") {
            break;
        }
    }
    assert_eq!(text.replace("\"\"", ""), r#""chunk 1 of 2\nchunk 2 of 2\n""#);
    signal(&listener.child, "-INT");
    assert_eq!(listener.code().await, Some(0));
    let mut rest = String::new();
    listener.lines.into_inner().read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "");
}

#[tokio::test]
async fn json_lines_have_the_body_as_received() {
    for (is_v03, version) in [(false, "1.0"), (true, "0.3")] {
        let mut listener = Listener::start(&["--json", "--path", "/hook"]).await;
        assert!(listener.url.ends_with("/hook"), "{}", listener.url);
        let agent = agent(is_v03).await;
        let task = crate::push::send(&*agent, "hello", config(&listener.url, "")).await.unwrap();
        let line = loop {
            let line = listener.json().await;
            if line["state"] == "TASK_STATE_COMPLETED" {
                break line;
            }
        };
        assert_eq!(
            (&line["verified"], &line["version"], &line["taskId"]),
            (&json!(false), &json!(version), &json!(task.id))
        );
        assert_eq!(line["contextId"], *task.context_id);
        assert_eq!(
            (line["deliveryId"].as_str(), line["deliveryId"].is_string()),
            (line["headers"]["webhook-id"].as_str(), true)
        );
        if is_v03 {
            assert_eq!((&line["event"], &line["body"]["kind"]), (&json!("task"), &json!("task")));
            assert_eq!(line["headers"]["content-type"], "application/json");
            assert_eq!(line["body"]["status"]["state"], "completed");
        } else {
            assert_eq!(line["event"], "statusUpdate");
            assert_eq!(line["headers"]["content-type"], "application/a2a+json");
            assert_eq!(line["body"]["statusUpdate"]["taskId"], *task.id);
        }
        signal(&listener.child, "-TERM");
        assert_eq!(listener.code().await, Some(0));
    }
}

#[tokio::test]
async fn unverified_notifications_and_other_requests_are_rejected() {
    let listener = Listener::start(&["--token", "secret"]).await;
    let status = async |request: reqwest::RequestBuilder| request.send().await.unwrap().status().as_u16();
    let notify = || listener.notify("1").header("a2a-notification-token", "secret");
    assert_eq!(status(listener.notify("1")).await, 401);
    assert_eq!(status(listener.notify("1").header("a2a-notification-token", "Secret")).await, 401);
    assert_eq!(status(notify().header("origin", "http://page.invalid")).await, 403);
    assert_eq!(status(notify().header("sec-fetch-site", "same-origin")).await, 403);
    assert_eq!(status(notify().body("{}")).await, 400);
    assert_eq!(status(crate::bindings::http().get(&listener.url)).await, 405);
    assert_eq!(status(crate::bindings::http().post(format!("{}other", listener.url))).await, 404);
    assert_eq!(status(notify()).await, 204);

    let refused = output(a2a(&["listen", "--host", "192.0.2.1"])).await;
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(errors.contains("192.0.2.1:9000 is reachable from other machines"), "{errors}");
    let refused = output(a2a(&["listen", "--forward", "a 'b"])).await;
    assert_eq!(refused.status.code(), Some(2));
}

/// Commands get the body, the variables and not the token. After a failure, the notification is sent again.
#[tokio::test]
async fn commands_process_notifications() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    let (log, token) = (directory.path().join("log"), ("HOOK_TOKEN", "secret"));
    let text = format!(
        "cat >'{body}'\n\
         echo \"$A2A_DELIVERY_ID $A2A_TASK_ID $A2A_CONTEXT_ID $A2A_EVENT $A2A_STATE $A2A_PROTOCOL_VERSION $A2A_VERIFIED \
         ${{HOOK_TOKEN-none}} $1\" >>'{log}'\n\
         echo printed by the command\n\
         case $A2A_DELIVERY_ID in fails*) exit 3 ;; esac\n",
        body = directory.path().join("body").display(),
        log = log.display(),
    );
    std::fs::write(&script, text).unwrap();
    let forward = format!("sh '{}' 'two words'", script.display());
    let arguments = ["--json", "--token-env", "HOOK_TOKEN", "--forward", &forward, "--count", "2"];
    let mut listener = Listener::start_with(&arguments, &[token]).await;
    let status = async |id: &str| {
        let request = listener.notify(id).header("a2a-notification-token", "secret");
        timeout(TIMEOUT, request.send()).await.unwrap().unwrap().status().as_u16()
    };
    assert_eq!((status("fails").await, status("fails").await), (500, 500));
    // Failures do not count, and duplicates are not forwarded.
    assert_eq!((status("1").await, status("1").await, status("2").await), (204, 204, 204));
    let expected = ["fails", "fails", "1", "2"]
        .map(|id| format!("{id} t-1 c-1 task TASK_STATE_WORKING 1.0 true none two words\n"))
        .concat();
    assert_eq!(std::fs::read_to_string(log).unwrap(), expected);
    let body: Value = serde_json::from_slice(&std::fs::read(directory.path().join("body")).unwrap()).unwrap();
    assert_eq!(body["task"]["id"], "t-1");
    assert_eq!(listener.code().await, Some(0));
    for id in ["fails", "fails", "1", "2"] {
        assert_eq!(listener.json().await["deliveryId"], id);
    }
    assert!(listener.lines.next_line().await.unwrap().is_none(), "stdout has only notifications");
}

#[tokio::test]
async fn command_that_does_not_exist_fails() {
    let listener = Listener::start(&["--forward", "/nonexistent/command"]).await;
    assert_eq!(listener.status("1").await, 500);
}

/// A command that ignores its input, however long that is, can succeed.
#[tokio::test]
async fn command_need_not_read() {
    let listener = Listener::start(&["--forward", "true"]).await;
    let task = json!({ "id": "t", "contextId": "x".repeat(200), "status": { "state": "TASK_STATE_WORKING" } });
    let body = json!({ "task": task, "unknown": "x".repeat(1 << 20) }).to_string();
    assert_eq!(listener.notify("1").body(body).send().await.unwrap().status(), 204);
}

/// Waits until a file exists.
async fn wait_for(file: &Path) {
    let exists = async {
        while !file.exists() {
            #[expect(clippy::disallowed_methods, reason = "another process makes the file")]
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, exists).await.unwrap();
}

/// Waits until a process has ended.
async fn wait_for_end(process: &str) {
    let is_running = || {
        let kill = std::process::Command::new("kill").args(["-0", process]).stderr(Stdio::null()).status();
        kill.unwrap().success()
    };
    let ended = async {
        while is_running() {
            #[expect(clippy::disallowed_methods, reason = "the process is not ours")]
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, ended).await.unwrap();
}

/// A sender that disconnects will send again, so its command is killed with the processes that it has started.
#[tokio::test]
async fn command_is_killed_if_the_sender_disconnects() {
    let directory = tempfile::tempdir().unwrap();
    let started = directory.path().join("started");
    let forward = format!(r#"sh -c 'sleep 1000 & echo $! >"$0.new" && mv "$0.new" "$0"; wait' {}"#, started.display());
    let listener = Listener::start(&["--forward", &forward, "--concurrency", "1"]).await;
    let request = tokio::spawn(listener.notify("1").send());
    wait_for(&started).await;
    let child = std::fs::read_to_string(&started).unwrap().trim().to_owned();
    std::fs::remove_file(&started).unwrap();
    request.abort();
    wait_for_end(&child).await;
    // Its place is free, and the next attempt is not a duplicate.
    let request = tokio::spawn(listener.notify("1").send());
    wait_for(&started).await;
    let child = std::fs::read_to_string(&started).unwrap().trim().to_owned();
    drop(request);
    signal(&listener.child, "-INT");
    signal_and_end(listener, &child).await;
}

/// A second signal ends the program, and the commands with it.
async fn signal_and_end(mut listener: Listener, child: &str) {
    // The first signal waits for the command. The wait ensures that the signals are not merged.
    assert!(timeout(Duration::from_millis(300), listener.child.wait()).await.is_err());
    signal(&listener.child, "-INT");
    assert_eq!(listener.code().await, Some(1));
    wait_for_end(child).await;
}

#[tokio::test]
async fn running_commands_end_before_the_program_stops() {
    let directory = tempfile::tempdir().unwrap();
    let (started, go) = (directory.path().join("started"), directory.path().join("go"));
    let forward =
        format!(r#"sh -c 'touch "$0"; until [ -e "$1" ]; do sleep 0.02; done' {} {}"#, started.display(), go.display());
    let mut listener = Listener::start(&["--forward", &forward]).await;
    let request = tokio::spawn(listener.notify("1").send());
    wait_for(&started).await;
    signal(&listener.child, "-INT");
    assert!(timeout(Duration::from_millis(300), listener.child.wait()).await.is_err());
    std::fs::write(go, "").unwrap();
    assert_eq!(request.await.unwrap().unwrap().status(), 204);
    assert_eq!(listener.code().await, Some(0));
}

/// A JSON Web Token of the server is verified by its published keys.
#[tokio::test]
async fn signed_tokens_are_verified() {
    use a2a_service::push::{Algorithm, SigningKeys};
    let keys = SigningKeys::generate(Algorithm::Es256).unwrap();
    let jwks = keys.jwks().to_string();
    let router = axum::Router::new().fallback(move || std::future::ready(jwks.clone()));
    let jwks_url = crate::bindings::program(router).await;
    let arguments =
        ["--jwks", &jwks_url, "--issuer", "http://agent.invalid", "--audience", "http://hook.invalid", "--json"];
    let mut listener = Listener::start(&arguments).await;
    let body = r#"{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}"#;
    let webhook = "http://hook.invalid/a".parse().unwrap();
    let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    let other = SigningKeys::generate(Algorithm::Es256).unwrap();
    for (keys, issuer, expected) in [
        (&keys, "http://other.invalid", 401),
        (&other, "http://agent.invalid", 503),
        (&keys, "http://agent.invalid", 204),
    ] {
        let token = keys.token(issuer, &webhook, "d", body.as_bytes(), now).unwrap();
        let request = listener.notify("d").body(body).bearer_auth(token);
        assert_eq!(request.send().await.unwrap().status(), expected);
    }
    assert_eq!(listener.json().await["verified"], true);
}
