//! Configuration of the program: files, variables, flags, printed configuration and errors.

use std::path::PathBuf;

use a2a_service::axum::{self, Router};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

use crate::program::{a2a, output, started};

/// Creates an empty directory for a test.
fn directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("config").join(name);
    if path.exists() {
        std::fs::remove_dir_all(&path).unwrap();
    }
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Runs a command; returns its exit code, standard output and standard error.
async fn run(command: Command) -> (i32, String, String) {
    let output = output(command).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// `UPDATE=1 cargo test` writes the file.
#[tokio::test]
async fn configuration_document_is_up_to_date() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let (code, printed, _) = run(a2a(&["config", "reference"])).await;
    assert_eq!(code, 0);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == printed, "docs/configuration.md is outdated; UPDATE=1 writes it");
}

#[tokio::test]
async fn print_config_shows_each_value_with_its_origin() {
    let directory = directory("printed");
    std::fs::write(directory.join("a2a.toml"), "token = 'hunter2'\nsend_timeout = '1s'\n\n[card]\nname = \"Ada's\"\n")
        .unwrap();
    let mut command = a2a(&["serve", "--print-config", "--limits-body-bytes=64KiB", "--insecure"]);
    command.current_dir(&directory).env("A2A_SEND_TIMEOUT", "2s").env("A2A_TURN_DEADLINE", "3m");
    let (code, printed, errors) = run(command).await;
    assert_eq!((code, &*errors), (0, ""));
    assert!(!printed.contains("hunter2"), "{printed}");
    let lines: Vec<_> = printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "listen = [\"127.0.0.1:8080\"] # default",
        "token = \"(hidden)\" # a2a.toml:1",
        "send_timeout = \"2s\" # A2A_SEND_TIMEOUT",
        "deadline = \"3m\" # A2A_TURN_DEADLINE",
        "body_bytes = \"64KiB\" # --limits-body-bytes",
        "insecure = true # --insecure",
        "name = \"Ada's\" # a2a.toml:5",
        "# public_url = # default",
    ] {
        assert!(lines.iter().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
    // The printed configuration can be read again.
    std::fs::write(directory.join("reread.toml"), printed.replace("(hidden)", "hunter2")).unwrap();
    let mut reread = a2a(&["serve", "--print-config", "--config", "reread.toml"]);
    let (code, reread, errors) = run({
        reread.current_dir(&directory);
        reread
    })
    .await;
    let values =
        |text: &str| text.lines().map(|line| line.split(" # ").next().unwrap().trim().to_owned()).collect::<Vec<_>>();
    assert_eq!((code, values(&reread), &*errors), (0, values(&printed), ""));
}

/// Flags of the official command line stand for keys of the configuration.
#[tokio::test]
async fn official_flags_configure_the_server() {
    let directory = directory("official");
    let card = r#"{"name": "Geo", "description": "Maps", "version": "3", "skills": [{"id": "route", "name": "Route",
        "description": "Finds a route", "tags": []}], "url": "http://other.invalid/", "protocolVersion": "0.3.0"}"#;
    std::fs::write(directory.join("card.json"), card).unwrap();
    std::fs::write(directory.join("other.json"), "{}").unwrap();
    let run_in = |arguments: &[&str]| {
        let mut command = a2a(&[&["serve", "--print-config"], arguments].concat());
        command.current_dir(&directory);
        run(command)
    };
    for (arguments, lines) in [
        (&["--host", "::1", "--port", "9"][..], &["listen = [\"[::1]:9\"] # --listen"][..]),
        (&["--port", "9", "--echo"], &["listen = [\"127.0.0.1:9\"] # --listen", "# command = # default"]),
        (&["--host", "localhost"], &["listen = [\"127.0.0.1:8080\"] # --listen"]),
        (&["--listen", "8081,8082"], &["listen = [\"127.0.0.1:8081\", \"127.0.0.1:8082\"] # --listen"]),
        (
            &["--name", "Geo", "--description", "Maps"],
            &["name = \"Geo\" # --card-name", "description = \"Maps\" # --card-description"],
        ),
        (&["--protocol", "latest"], &["protocols = [\"1.0\"] # --protocols"]),
        (&["--protocol", "0.3", "--card-compat"], &["protocols = [\"0.3\"] # --protocols"]),
        (&["--quiet"], &["filter = \"warn\" # --log-filter"]),
        (&["--quiet", "--log-filter", "info"], &["filter = \"info\" # --log-filter"]),
        (&["--card", "card.json"], &["file = \"card.json\" # --card-file"]),
    ] {
        let (code, printed, errors) = run_in(arguments).await;
        assert_eq!((code, &*errors), (0, ""), "{arguments:?}");
        let printed: Vec<_> =
            printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for line in lines {
            assert!(printed.iter().any(|printed| printed == line), "{line}: {printed:#?}");
        }
    }
    for (arguments, expected) in [
        (&["--port", "1", "--listen", "2"][..], "cannot be used with"),
        (&["--echo", "--exec", "cat"], "cannot be used with"),
        (&["--host", "agent.example"], "expected an IP address, or localhost"),
        (&["--card", "none.json"], "none.json: No such file"),
        (&["--card", "other.json"], "not an agent card: it has no name"),
    ] {
        let (code, _, errors) = run_in(arguments).await;
        assert!(code == 2 && errors.contains(expected), "{errors}");
    }
    let mut command =
        a2a(&["serve", "--listen", "0", "--card", "card.json", "--name", "Atlas", "--log-filter", "warn"]);
    command.current_dir(&directory);
    let (_server, url) = started(command).await;
    let served =
        crate::bindings::fetch(format!("{url}/.well-known/agent-card.json")).await.unwrap().bytes().await.unwrap();
    let served: serde_json::Value = serde_json::from_slice(&served).unwrap();
    assert_eq!((&served["name"], &served["version"]), (&"Atlas".into(), &"3".into()), "{served}");
    assert_eq!(served["skills"][0]["id"], "route");
    assert_eq!(served["url"], format!("{url}/rpc"));
    let interfaces = served["supportedInterfaces"].as_array().unwrap();
    assert_eq!(interfaces.len(), 7, "those of the server, and that of another origin: {served}");
    assert_eq!(interfaces[6]["url"], "http://other.invalid/");
}

#[tokio::test]
async fn configuration_errors_name_their_source_before_the_server_starts() {
    let directory = directory("wrong");
    std::fs::write(directory.join("other.toml"), "insecure = true\n\n[turn]\ndeadlin = '1s'\n").unwrap();
    for (arguments, variable, expected) in [
        (
            vec!["--config", "other.toml"],
            None,
            "other.toml:4: unknown key `turn.deadlin`; did you mean `turn.deadline`?",
        ),
        (vec![], Some(("A2A_CONFIG", "other.toml")), "other.toml:4: unknown key"),
        (vec![], Some(("A2A_SEND_TIMEOUT", "soon")), "A2A_SEND_TIMEOUT: `soon` is not a duration"),
        (vec!["--send-timeout", "soon"], None, "--send-timeout: `soon` is not a duration"),
        (vec!["--send-timeoutt", "1s"], None, "--send-timeout"),
        (vec!["--config", "missing.toml"], None, "missing.toml: "),
    ] {
        let mut command = a2a(&["serve"]);
        command.current_dir(&directory).args(&arguments).envs(variable);
        let (code, printed, errors) = run(command).await;
        assert_eq!((code, &*printed), (2, ""), "{arguments:?} {variable:?}");
        assert!(errors.starts_with("error: ") && errors.contains(expected), "{errors}");
    }
}

/// Other programs use the prefix too, so an unknown variable does not stop the server from starting.
#[tokio::test]
async fn unknown_variables_are_reported_as_warnings() {
    let warning = "A2A_SEND_TIMEOUTT: unknown variable, ignored; did you mean A2A_SEND_TIMEOUT?";
    let mut command = a2a(&["serve", "--print-config"]);
    command.env("A2A_SEND_TIMEOUTT", "1s");
    let (code, _, errors) = run(command).await;
    assert_eq!((code, &*errors), (0, &*format!("warning: {warning}\n")));
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("A2A_SEND_TIMEOUTT", "1s");
    let (mut child, _) = started(command).await;
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next_line().await.unwrap().unwrap();
    assert!(first.contains("WARN") && first.contains(warning), "{first}");
}

#[cfg(unix)]
#[tokio::test]
async fn secret_in_a_file_that_others_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;

    let directory = directory("secret");
    let path = directory.join("token");
    std::fs::write(&path, "hunter2\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("A2A_TOKEN_FILE", &path);
    let (mut child, url) = started(command).await;
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next_line().await.unwrap().unwrap();
    assert!(first.contains("chmod 600") && !first.contains("hunter2"), "{first}");
    let response = reqwest::Client::new().get(format!("{url}/tasks")).bearer_auth("hunter2").send().await.unwrap();
    assert_eq!(response.status(), 200);
}

/// Credentials in files are used as they are now: by the server, towards an endpoint, and towards an upstream agent.
#[tokio::test]
async fn changed_credentials_are_read_again() {
    let directory = directory("credentials");
    let file = directory.join("token");
    std::fs::write(&file, "first-first-first\n").unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let echo = async |headers: http::HeaderMap| headers["authorization"].to_str().unwrap().to_owned();
    tokio::spawn(axum::serve(listener, Router::new().fallback(echo)).into_future());
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--http", &endpoint, "--log-filter", "off"]);
    command.env("A2A_TOKEN_FILE", &file).env("A2A_HTTP_TOKEN_FILE", &file);
    let (_server, url) = started(command).await;
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--upstream", &url, "--log-filter", "off"]);
    command.env("A2A_UPSTREAM_TOKEN_FILE", &file);
    let (_gateway, gateway) = started(command).await;
    let send = async || {
        let body =
            serde_json::json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}});
        let request = reqwest::Client::new().post(format!("{gateway}/message:send"));
        let request = request.header("content-type", "application/json").body(body.to_string());
        request.send().await.unwrap().text().await.unwrap()
    };
    assert!(send().await.contains("Bearer first-first-first"), "{}", send().await);
    std::fs::write(&file, "second-second-second\n").unwrap();
    let renewed = async {
        while !send().await.contains("Bearer second-second-second") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), renewed).await.unwrap();
    let old = reqwest::Client::new().get(format!("{url}/tasks")).bearer_auth("first-first-first").send().await.unwrap();
    assert_eq!(old.status(), 401);
    // A token that could be guessed is not accepted from callers.
    std::fs::write(&file, "short\n").unwrap();
    let status = async |token: &str| {
        let request = reqwest::Client::new().get(format!("{url}/tasks")).bearer_auth(token);
        request.send().await.unwrap().status().as_u16()
    };
    // The server checks the file each second.
    let mut interval = tokio::time::interval(std::time::Duration::from_millis(100));
    for _ in 0..25 {
        interval.tick().await;
        assert_eq!(status("second-second-second").await, 200);
    }
    assert_eq!(status("short").await, 401);
}

#[tokio::test]
async fn help_lists_every_flag() {
    let (_, reference, _) = run(a2a(&["config", "reference"])).await;
    let (code, help, _) = run(a2a(&["serve", "--help"])).await;
    assert_eq!(code, 0);
    let flags: Vec<_> = reference.lines().filter_map(|line| line.split_once("`, `--")?.1.strip_suffix('`')).collect();
    assert!(flags.len() > 10);
    for flag in flags {
        assert!(help.contains(&format!("--{flag}")), "{flag}");
    }
}
