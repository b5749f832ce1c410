//! `a2a status`: the state of a running server, and the file with which a server gives its operator access.
//!
//! The file is beside the database: who can read it can read the database too. It has the URL of the server, so that its token is
//! sent nowhere else.

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use super::{
    config::{self, StorePath},
    connection::Connection,
    doctor::is_local,
    say_text,
    show::{self, OutputFormat, cut, safe},
    terminal::{DIM, GREEN, RED, YELLOW, paint},
};
use crate::{
    base::{
        secret_file::{read_secret, replace_secret},
        sources::Ids,
    },
    client::{Retry, complete_url},
    protocol::error::ErrorKind,
    service::auth::Token,
};

/// Extension of the name of the database for the file with the access of the operator.
const EXTENSION: &str = ".operator";

/// Maximum size of that file in bytes.
const MAX_FILE: u64 = 4096;

/// Time limit of the request.
const LIMIT: Duration = Duration::from_secs(10);

/// Arguments of `a2a status`.
#[derive(Debug, clap::Args)]
pub(super) struct Status {
    /// URL of the server. Defaults to that of the server that uses the database.
    url: Option<String>,
    /// Task database of the server, as `sqlite:PATH`, beside which the server writes a token. Defaults to the configured one. [env: `A2A_STORE`]
    #[arg(long, value_name = "sqlite:PATH")]
    store: Option<String>,
    /// Configuration file. Defaults to `a2a.toml`, if that exists. [env: `A2A_CONFIG`]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    #[command(flatten)]
    connection: Connection,
}

/// A dependency of an agent is down.
#[derive(Debug, thiserror::Error)]
#[error("a dependency is down: {0}")]
pub(super) struct DependencyDown(String);

/// Access of the operator to a server.
#[derive(Debug, Deserialize, Serialize)]
struct Access {
    /// URL of the server.
    url: String,
    token: String,
}

/// Path of the file beside a database.
fn file_of(store: &Path) -> PathBuf {
    let mut path = OsString::from(store);
    path.push(EXTENSION);
    path.into()
}

/// File with the access of the operator to a running server, which is removed when this is dropped.
pub(super) struct AccessFile {
    path: PathBuf,
    token: String,
}

impl AccessFile {
    /// Creates the file beside a database, with mode 0600. Replaces that of a server that was killed.
    pub(super) fn create(store: &Path, url: String, token: &Token) -> io::Result<Self> {
        let (path, token) = (file_of(store), token.expose().to_owned());
        replace_secret(&path, serde_json::to_string(&Access { url, token: token.clone() })?.as_bytes())?;
        Ok(Self { path, token })
    }
}

impl Drop for AccessFile {
    fn drop(&mut self) {
        // The next server may have replaced it.
        if read(&self.path).is_some_and(|access| access.token == self.token) {
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Creates the operator token of a start.
pub(super) fn new_token() -> anyhow::Result<Token> {
    let ids = Ids::default();
    Token::new(&format!("{}{}", ids.random(), ids.random())).map_err(anyhow::Error::msg)
}

fn read(path: &Path) -> Option<Access> {
    serde_json::from_str(&read_secret(path, MAX_FILE).ok()?).ok()
}

impl Status {
    /// Returns the database of the server, and the access to it. A configuration that can't be read does not matter if the URL is
    /// given.
    fn access(&self) -> anyhow::Result<(String, Option<Access>)> {
        let flags: Vec<_> = self.store.iter().map(|store| ("store".to_owned(), store.clone())).collect();
        let loaded = match config::load(self.config.as_deref(), &flags) {
            Err(_) if self.url.is_some() => return Ok(Default::default()),
            loaded => loaded?,
        };
        // That of the first agent, as the server has it.
        let first = loaded.agents.into_iter().next().filter(|_| self.store.is_none());
        match first.map_or(loaded.config, |agent| agent.config).store.path {
            StorePath::Sqlite(path) => Ok((path.display().to_string(), read(&file_of(&path)))),
            StorePath::Memory => Ok(("memory".to_owned(), None)),
        }
    }
}

/// Returns true for two URLs of one address of this machine. Only a server there can have written the file.
fn is_same_server(url: &Url, other: &str) -> bool {
    let is_same = |other: Url| {
        url.scheme() == other.scheme()
            && url.port_or_known_default() == other.port_or_known_default()
            && is_local(&other)
    };
    is_local(url) && Url::parse(other).is_ok_and(is_same)
}

/// Runs `a2a status`.
pub(super) async fn run(arguments: &Status) -> anyhow::Result<()> {
    let (store, access) = arguments.access()?;
    let url = match (&arguments.url, &access) {
        (Some(url), _) => complete_url(url)?,
        (None, Some(access)) => complete_url(&access.url)?,
        (None, None) => {
            let why = format!("no server is running on the database {store}; give the URL of the server");
            return Err(ErrorKind::Unavailable.because(why).into());
        }
    };
    let connection = &arguments.connection;
    let mut builder = connection.limited(Some(LIMIT))?.retry(Retry::never());
    if let Some(access) = access.filter(|access| is_same_server(&url, &access.url)) {
        builder = builder.bearer(&access.token)?;
    }
    let mut document = url.clone();
    document.set_path(&format!("{}/operator/status", url.path().trim_end_matches('/')));
    let status = builder.json_document("status of a server", &document).await;
    let status = status.map_err(|error| match error.kind() {
        ErrorKind::Unauthenticated | ErrorKind::PermissionDenied => {
            let hint = "give a token with the scope admin (--token), or run this in the directory of the server";
            anyhow::Error::from(error.kind().because(format!("{url}: the status needs credentials; {hint}")))
        }
        _ => super::failure::explained(error, &url, ""),
    })?;
    if connection.output == OutputFormat::Text {
        say_text(&table(&status))?;
    } else {
        say_text(&show::json(&status, connection.output)?)?;
    }
    if status["ready"] != true {
        anyhow::bail!("the server is not ready: {}", text(&status["reason"]));
    }
    let down = down(&status);
    if down.is_empty() { Ok(()) } else { Err(DependencyDown(down.join(", ")).into()) }
}

/// Returns the names of the dependencies that are down. Without them, there is a number at most.
fn down(status: &Value) -> Vec<String> {
    let each = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let of_agent = |agent: Value| {
        let down = each(&agent["dependencies"]).into_iter().filter(|dependency| dependency["state"] == "down");
        down.map(|dependency| format!("{} of {}", text(&dependency["peer"]), text(&agent["name"]))).collect::<Vec<_>>()
    };
    let named: Vec<_> = each(&status["agents"]).into_iter().flat_map(of_agent).collect();
    match status["totals"]["dependencies_down"].as_u64() {
        Some(count) if count > 0 && named.is_empty() => vec![count.to_string()],
        _ => named,
    }
}

/// Formats a text or a number without characters that control a terminal. Empty for null.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => safe(text).into(),
        other => other.to_string(),
    }
}

/// Formats a number of seconds, such as `2h 5m`.
fn duration(value: &Value) -> String {
    let seconds = value.as_f64().unwrap_or_default();
    if seconds < 10.0 {
        return format!("{seconds:.1}s");
    }
    let whole = humantime::format_duration(Duration::from_secs_f64(seconds.trunc())).to_string();
    whole.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Formats a size in bytes.
fn size(value: &Value) -> String {
    let (mut size, mut unit) = (value.as_f64().unwrap_or_default(), "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if size >= 1024.0 {
            (size, unit) = (size / 1024.0, next);
        }
    }
    format!("{size:.0} {unit}")
}

/// Formats the status as text of at most 80 columns.
fn table(status: &Value) -> String {
    let totals = &status["totals"];
    let ready = match (status["ready"] == true, status["draining"] == true) {
        (true, _) => paint(GREEN, "ready"),
        (false, true) => paint(YELLOW, "draining"),
        (false, false) => paint(RED, format_args!("not ready: {}", text(&status["reason"]))),
    };
    let mut out = format!("{ready}, up {}", duration(&status["uptime_seconds"]));
    if let Some(version) = status["build"]["version"].as_str() {
        _ = write!(out, ", version {}", safe(version));
    }
    _ = writeln!(out, "\nturns {} running, {} queued", text(&totals["turns"]), text(&totals["queued"]));
    let states = totals["tasks"].as_object().into_iter().flatten();
    let states: Vec<_> = states
        .map(|(state, count)| format!("{} {}", count, safe(state).trim_start_matches("TASK_STATE_").to_lowercase()))
        .collect();
    if !states.is_empty() {
        _ = writeln!(out, "tasks {}", show::wrapped(&states.join(", "), 6));
    }
    let store = &status["store"];
    if store.is_object() {
        _ = write!(out, "store {}, log {}", size(&store["bytes"]), size(&store["wal"]));
        if let Some(max) = store.get("max").filter(|max| !max.is_null()) {
            _ = write!(out, ", at most {}", size(max));
        }
        if let Some(commit) = store["commit_p99_ms"].as_f64() {
            _ = write!(out, ", 99 % of the commits within {commit} ms");
        }
        out.push('\n');
    }
    let push = &status["push"];
    if push.is_object() {
        let (due, dead) = (text(&push["due"]), text(&push["dead"]));
        _ = writeln!(out, "push  {due} due, {dead} dead, lag {}", duration(&push["lag_seconds"]));
    }
    let otlp = &status["otlp"];
    if otlp.is_object() {
        let error = otlp["last_error"].as_str().map(|error| format!(", {}", safe(error))).unwrap_or_default();
        let line = format!("otlp  {} queued, {} dropped{error}", text(&otlp["queue"]), text(&otlp["dropped"]));
        _ = writeln!(out, "{}", cut(&line, 80));
    }
    add_agents(&mut out, status);
    add_limits(&mut out, status);
    if status["access"] != "full" {
        let why = "--token with the scope admin shows more, as this does in the directory of the server";
        _ = writeln!(out, "{}", paint(DIM, show::wrapped(why, 0)));
    }
    out
}

fn add_agents(out: &mut String, status: &Value) {
    let Some(agents) = status["agents"].as_array() else { return };
    _ = writeln!(out, "\n{:<20}  {:<8}  {:>6}  {:>6}  NEEDS", "AGENT", "KIND", "TURNS", "QUEUED");
    for agent in agents {
        let name = text(&agent["name"]);
        let (kind, turns, queued) = (text(&agent["kind"]), text(&agent["turns"]), text(&agent["queued"]));
        let start = format!("{:<20}  {kind:<8}  {turns:>6}  {queued:>6}", cut(&name, 20));
        let needs = agent["dependencies"].as_array().into_iter().flatten();
        let needs: Vec<_> = needs.map(|dependency| (dependency, text(&dependency["state"]))).collect();
        let mut line = start;
        for (dependency, state) in &needs {
            let style = if state == "down" { RED } else { GREEN };
            let peer = text(&dependency["peer"]);
            let cell = cut(&peer, 20).into_owned();
            _ = writeln!(out, "{line}  {cell} {}", paint(style, state));
            line = " ".repeat(48);
            if state == "down" {
                let error = &dependency["last_error"];
                let why = format!("since {}: {}", text(&dependency["since"]), text(error));
                _ = writeln!(out, "  {}", cut(&why, 78));
            }
        }
        if needs.is_empty() {
            _ = writeln!(out, "{line}");
        }
        let error = &agent["last_error"];
        if error.is_object() {
            let why =
                format!("last error {} {} ({})", text(&error["time"]), text(&error["class"]), text(&error["error_id"]));
            _ = writeln!(out, "  {}", cut(&why, 78));
        }
    }
}

/// Adds the limits that are in use.
fn add_limits(out: &mut String, status: &Value) {
    let limits = status["limits"].as_array().into_iter().flatten();
    let mut used = limits.filter(|limit| limit["used"].as_u64().is_some_and(|used| used > 0)).peekable();
    if used.peek().is_some() {
        _ = writeln!(out, "\n{:<28}  {:<16}  {:>14}  {:>14}", "LIMIT", "AGENT", "USED", "MAX");
    }
    for limit in used {
        let (name, agent) = (text(&limit["name"]), text(&limit["agent"]));
        let (used, max) = (text(&limit["used"]), text(&limit["max"]));
        _ = writeln!(out, "{:<28}  {:<16}  {used:>14}  {max:>14}", cut(&name, 28), cut(&agent, 16));
    }
}
