//! How the program is configured, as who runs it sees it.

use std::path::PathBuf;

use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

use crate::program::{a2a, output, started};

/// A directory of its own for each test, empty.
fn directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("config").join(name);
    if path.exists() {
        std::fs::remove_dir_all(&path).unwrap();
    }
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// The exit code, what was said, and what was wrong.
async fn run(command: Command) -> (i32, String, String) {
    let output = output(command).await;
    let text = |it: Vec<u8>| String::from_utf8(it).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// `UPDATE=1 cargo test` writes it.
#[tokio::test]
async fn the_reference_in_docs_is_what_the_program_prints() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let (code, printed, _) = run(a2a(&["config", "reference"])).await;
    assert_eq!(code, 0);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == printed, "docs/configuration.md is not what the program prints; UPDATE=1 writes it");
}

#[tokio::test]
async fn what_is_configured_is_printed_with_its_origin() {
    let directory = directory("printed");
    std::fs::write(directory.join("a2a.toml"), "token = 'hunter2'\nwait = '1s'\n\n[card]\nname = \"Ada's\"\n").unwrap();
    let mut command = a2a(&["serve", "--print-config", "--max-body=64KiB", "--insecure"]);
    command.current_dir(&directory).env("A2A_WAIT", "2s").env("A2A_TURN_DEADLINE", "3m");
    let (code, printed, wrong) = run(command).await;
    assert_eq!((code, &*wrong), (0, ""));
    assert!(!printed.contains("hunter2"), "{printed}");
    let lines: Vec<_> = printed.lines().map(|it| it.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for line in [
        "listen = \"127.0.0.1:8080\" # default",
        "token = \"(hidden)\" # a2a.toml:1",
        "wait = \"2s\" # A2A_WAIT",
        "deadline = \"3m\" # A2A_TURN_DEADLINE",
        "max_body = \"64KiB\" # --max-body",
        "insecure = true # --insecure",
        "name = \"Ada's\" # a2a.toml:5",
        "# public_url = # default",
    ] {
        assert!(lines.iter().any(|it| it == line), "{line} is not in\n{printed}");
    }
    // It is a configuration again.
    std::fs::write(directory.join("again.toml"), printed.replace("(hidden)", "hunter2")).unwrap();
    let mut again = a2a(&["serve", "--print-config", "--config", "again.toml"]);
    let (code, again, wrong) = run({
        again.current_dir(&directory);
        again
    })
    .await;
    let values = |it: &str| it.lines().map(|it| it.split(" # ").next().unwrap().trim().to_owned()).collect::<Vec<_>>();
    assert_eq!((code, values(&again), &*wrong), (0, values(&printed), ""));
}

#[tokio::test]
async fn what_is_wrong_is_said_with_its_place_before_anything_is_served() {
    let directory = directory("wrong");
    std::fs::write(directory.join("other.toml"), "wait = '1s'\n\n[turn]\ndeadlin = '1s'\n").unwrap();
    for (arguments, variable, said) in [
        (
            vec!["--config", "other.toml"],
            None,
            "other.toml:4: unknown key `turn.deadlin`; did you mean `turn.deadline`?",
        ),
        (vec![], Some(("A2A_CONFIG", "other.toml")), "other.toml:4: unknown key"),
        (vec![], Some(("A2A_WAIT", "soon")), "A2A_WAIT: `soon` is not a duration"),
        (vec!["--wait", "soon"], None, "--wait: `soon` is not a duration"),
        (vec!["--waitt", "1s"], None, "--wait"),
        (vec!["--config", "missing.toml"], None, "missing.toml: "),
    ] {
        let mut command = a2a(&["serve"]);
        command.current_dir(&directory).args(&arguments).envs(variable);
        let (code, printed, wrong) = run(command).await;
        assert_eq!((code, &*printed), (64, ""), "{arguments:?} {variable:?}");
        assert!(wrong.starts_with("error: ") && wrong.contains(said), "{wrong}");
    }
}

/// Other programs use the prefix too, so an unknown variable does not stop the server from starting.
#[tokio::test]
async fn unknown_variables_are_warnings() {
    let warning = "A2A_WAITT: unknown variable, ignored; did you mean A2A_WAIT?";
    let mut command = a2a(&["serve", "--print-config"]);
    command.env("A2A_WAITT", "1s");
    let (code, _, wrong) = run(command).await;
    assert_eq!((code, &*wrong), (0, &*format!("warning: {warning}\n")));
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("A2A_WAITT", "1s");
    let (mut child, _) = started(command).await;
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next_line().await.unwrap().unwrap();
    assert!(first.contains("WARN") && first.contains(warning), "{first}");
}

#[tokio::test]
async fn the_help_names_every_key() {
    let (_, reference, _) = run(a2a(&["config", "reference"])).await;
    let (code, help, _) = run(a2a(&["serve", "--help"])).await;
    assert_eq!(code, 0);
    let flags: Vec<_> = reference.lines().filter_map(|it| it.split_once("`, `--")?.1.strip_suffix('`')).collect();
    assert!(flags.len() > 10);
    for flag in flags {
        assert!(help.contains(&format!("--{flag}")), "{flag}");
    }
}
