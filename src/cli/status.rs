//! `a2a status`: the state of a running server, and the file with which a server gives its operator access.
//!
//! The file is beside the database: who can read it can read the database too. It has the URL of the server, so that its token is
//! sent nowhere else.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;

use super::{
    Verdict,
    config::{self, StorePath},
    connection::Connection,
    doctor::is_local,
    say,
    show::{self, WIDTH, cut, safe},
    terminal::{GREEN, RED, paint},
    warn,
};
use crate::{
    base::{
        secret_file::{is_shared, read_file, replace_secret},
        sources::Ids,
    },
    client::{Retry, complete_url},
    protocol::error::ErrorKind,
    service::auth::Token,
};

/// Extension of the name of the database for the file with the access of the operator.
const EXTENSION: &str = "operator";

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

/// Access of the operator to a server.
#[derive(Debug, Deserialize, Serialize)]
struct Access {
    /// URL of the server.
    url: String,
    token: String,
}

/// File with the access of the operator to a running server, which is removed when this is dropped.
pub(super) struct AccessFile {
    path: PathBuf,
    token: String,
}

impl AccessFile {
    /// Creates the file beside a database, with mode 0600. Replaces that of a server that was killed.
    pub(super) fn create(store: &Path, url: String, token: &Token) -> io::Result<Self> {
        let (path, token) = (store.with_added_extension(EXTENSION), token.expose().to_owned());
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

/// Reads the file, unless other users of the system can read it.
fn read(path: &Path) -> Option<Access> {
    let (content, metadata) = read_file(path, MAX_FILE).ok()?;
    if is_shared(&metadata) {
        warn(&format!("{} is not used, since other users can read it; restart the server", path.display()));
        return None;
    }
    serde_json::from_slice(&content).ok()
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
            StorePath::Sqlite(path) => Ok((path.display().to_string(), read(&path.with_added_extension(EXTENSION)))),
            StorePath::Memory => Ok(("memory".to_owned(), None)),
            StorePath::Postgres(url) => Ok((url.to_string(), None)),
        }
    }
}

/// Returns true for two URLs of one address of this machine. Only a server there can have written the file.
fn is_same_server(url: &Url, other: &str) -> bool {
    let address = |url: &Url| (url.scheme().to_owned(), url.port_or_known_default());
    Url::parse(other).is_ok_and(|other| is_local(url) && is_local(&other) && address(url) == address(&other))
}

/// Runs `a2a status`.
pub(super) async fn run(arguments: &Status) -> anyhow::Result<()> {
    let (store, access) = arguments.access()?;
    let url = arguments.url.as_ref().or(access.as_ref().map(|access| &access.url)).ok_or_else(|| {
        let why = format!("no server is running on the database {store}; give the URL of the server");
        ErrorKind::Unavailable.because(why)
    })?;
    let url = complete_url(url)?;
    let connection = &arguments.connection;
    let mut builder = connection.limited(Some(LIMIT))?.retry(Retry::never());
    if let Some(access) = access.filter(|access| !connection.has_token() && is_same_server(&url, &access.url)) {
        builder = builder.bearer(&access.token)?;
    }
    let mut document = url.clone();
    document.set_path(&format!("{}/operator/status", url.path().trim_end_matches('/')));
    let status = builder.json_document("status of a server", &document).await;
    let status = status.map_err(|error| {
        if !matches!(error.kind(), ErrorKind::Unauthenticated | ErrorKind::PermissionDenied) {
            return super::failure::explained(error, &url, "");
        }
        let hint = "give a token with the scope admin (--token), or run this in the directory of the server";
        error.kind().because(format!("{url}: the status needs credentials; {hint}")).into()
    })?;
    say(&show::formatted(&status, connection.output, || format(&status))?)?;
    if status["ready"] != true {
        anyhow::bail!("the server is not ready: {}", text(&status["reason"]));
    }
    let down = dependencies(&status).into_iter().filter(|dependency| dependency["state"] == "down");
    let down: Vec<_> = down.map(|it| format!("{} of {}", text(&it["peer"]), text(&it["agent"]))).collect();
    let count = status["totals"]["dependencies_down"].as_u64().unwrap_or_default();
    let down =
        if down.is_empty() { format!("{count} in total; an operator's token shows which") } else { down.join(", ") };
    let text = format!("a dependency is down: {down}");
    if count == 0 { Ok(()) } else { Err(Verdict { text, code: 7 }.into()) }
}

/// Returns the dependencies of all agents, with the names of these, and times without year and seconds.
fn dependencies(status: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    for agent in list(&status["agents"]) {
        for mut dependency in list(&agent["dependencies"]) {
            dependency["agent"] = agent["name"].clone();
            let minute = |time: &Value| text(time).get(5..16).unwrap_or_default().replace('T', " ");
            let last_error = text(&dependency["last_error"]) + " " + &minute(&dependency["last_error_time"]);
            (dependency["since"], dependency["last_error"]) = (minute(&dependency["since"]).into(), last_error.into());
            all.push(dependency);
        }
    }
    all
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Formats a value without characters that control a terminal: the members of an object one after another.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => safe(text),
        Value::Object(members) => {
            let shown = |(name, value): (&String, &Value)| {
                // Names of states without their prefix.
                let name = safe(name).trim_start_matches("TASK_STATE_").to_lowercase();
                let is_size = matches!(&*name, "bytes" | "free" | "wal" | "max");
                let size = value.as_u64().filter(|_| is_size).map(show::size);
                match value.as_object() {
                    Some(counts) => (!counts.is_empty()).then(|| format!("{name} ({})", text(value))),
                    None => (!value.is_null()).then(|| format!("{name} {}", size.unwrap_or_else(|| text(value)))),
                }
            };
            members.iter().filter_map(shown).collect::<Vec<_>>().join(", ")
        }
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => safe(&value.to_string()),
    }
}

/// Formats objects as a table of these members.
pub(super) fn table(names: &[&str], objects: &[Value]) -> String {
    if objects.is_empty() {
        return String::new();
    }
    let mut lines = vec![String::new(); objects.len() + 1];
    for name in names {
        let cells = objects.iter().map(|object| text(&object[name]));
        let cells: Vec<_> = std::iter::once(name.to_uppercase()).chain(cells).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or_default();
        lines.iter_mut().zip(cells).for_each(|(line, cell)| _ = write!(line, "{cell:<width$}  "));
    }
    lines.iter().fold("\n".to_owned(), |all, line| all + &cut(line.trim_end(), WIDTH) + "\n")
}

/// Formats the status as text of at most 80 columns.
fn format(status: &Value) -> String {
    let ready = if status["ready"] == true { paint(GREEN, "ready") } else { paint(RED, text(&status["reason"])) };
    let uptime = Duration::from_secs(status["uptime_seconds"].as_u64().unwrap_or_default());
    let mut out = format!("{ready}, up {}\n", humantime::format_duration(uptime));
    for name in ["build", "totals", "push", "store", "otlp"] {
        if status[name].is_object() {
            _ = writeln!(out, "{name:<8}{}", show::wrapped(&text(&status[name]), 8));
        }
    }
    let agents = list(&status["agents"]);
    out += &table(&["name", "kind", "turns", "queued", "breaker"], &agents);
    out += &table(&["agent", "peer", "address", "state", "since", "last_error"], &dependencies(status));
    let used = list(&status["limits"]).into_iter().filter(|limit| limit["used"] != 0).map(|mut limit| {
        let is_size = text(&limit["name"]).ends_with("bytes") || limit["name"] == "store.max_size";
        let cell = |count: &Value| count.as_u64().filter(|_| is_size).map_or_else(|| text(count), show::size);
        (limit["used"], limit["max"]) = (cell(&limit["used"]).into(), cell(&limit["max"]).replace('-', "none").into());
        limit
    });
    out += &table(&["agent", "name", "used", "max"], &used.collect::<Vec<_>>());
    for agent in agents.iter().filter(|agent| agent["last_error"].is_object()) {
        let error = show::wrapped(&text(&agent["last_error"]), 0);
        _ = writeln!(out, "\nlast error of {}:\n{error}", text(&agent["name"]));
    }
    if status["access"] != "full" {
        out += "\nA token with the scope admin shows more (--token).\n";
    }
    out
}
