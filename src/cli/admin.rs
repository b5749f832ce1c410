//! `a2a admin`: maintenance of a task database. Tasks, garbage collection, statistics, export, import, backup, integrity
//! check, deletion of an owner's data, and deliveries of push notifications.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, IsTerminal as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, anyhow};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{OutputError, Usage, audited, connection::block_on, report, say, say_text, start_audit_log, warn};
use crate::{
    base::{
        clock::{Clock, Millis},
        sources::Sources,
    },
    cli::config::{self, Config, LoadedConfig, StorePath},
    engine::{
        execution,
        journal::{Journal, LiveMemory},
    },
    store::{
        Counts, Maintenance as _, Retention, SweepResult,
        sqlite::{self, ExportError, ImportError, Inspector, Options, Sqlite, Stats},
    },
};

mod push;
mod tasks;

/// Arguments of `a2a admin`.
#[derive(Debug, clap::Args)]
pub(super) struct Admin {
    /// Configuration file. Defaults to `a2a.toml`, if that exists. [env: `A2A_CONFIG`]
    #[arg(long, global = true, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Task database, as `sqlite:PATH`. Defaults to the configured one. [env: `A2A_STORE`]
    #[arg(long, global = true, value_name = "sqlite:PATH")]
    store: Option<String>,
    /// Print JSON: an object, or one on each line.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Deletes expired data and cancels tasks that waited too long for their client, as a server does by itself. No server
    /// may be using the database.
    Gc {
        /// Reports what would be deleted and canceled, without changes. A server may be using the database.
        #[arg(long)]
        dry_run: bool,
    },
    /// Prints statistics. A server may be using the database.
    Stats,
    /// Lists tasks, the latest created first. A server may be using the database.
    List(tasks::List),
    /// Prints a task with its owner and its push configurations, without their secrets. A server may be using the database.
    Show(tasks::Show),
    /// Exports tasks with their event logs and push configurations as JSON Lines. A server may be using the database.
    Export {
        /// Include the secrets of push configurations: tokens, credentials, userinfo of URLs, and headers.
        #[arg(long)]
        include_secrets: bool,
        /// Export only the tasks of this owner.
        #[arg(long)]
        owner: Option<String>,
        /// File to create; it must not exist. Defaults to stdout.
        path: Option<PathBuf>,
    },
    /// Imports exported tasks: all of them, or none if one exists already. Creates the database if it does not exist. No
    /// server may be using it.
    Import {
        /// File to read. Defaults to stdin.
        path: Option<PathBuf>,
    },
    /// Writes a consistent copy of the database. A server may be using it.
    Backup {
        /// File to create; it must not exist.
        path: PathBuf,
    },
    /// Checks the integrity of the database. A server may be using it.
    Check,
    /// Deletes all tasks of an owner, in any state, and overwrites the deleted data, after a confirmation. No server may be
    /// using the database.
    Forget {
        /// Owner of the tasks, in all tenants. Callers without a name have the owner ''.
        #[arg(long)]
        owner: String,
        /// Prints the number of tasks that would be deleted, without changes. A server may be using the database.
        #[arg(long, conflicts_with = "yes")]
        dry_run: bool,
        /// Deletes without asking. Required if stdin or stderr is not a terminal.
        #[arg(long)]
        yes: bool,
    },
    /// Lists the deliveries of push notifications, retries them, and deletes their configurations.
    #[command(subcommand)]
    Push(push::Push),
}

impl Action {
    /// Returns true for actions that change or export data.
    fn is_audited(&self) -> bool {
        match self {
            Self::Gc { dry_run } | Self::Forget { dry_run, .. } => !dry_run,
            Self::Export { .. } | Self::Import { .. } | Self::Backup { .. } => true,
            Self::Push(push) => push.is_change(),
            Self::Stats | Self::List(_) | Self::Show(_) | Self::Check => false,
        }
    }
}

/// Runs an `a2a admin` command.
pub(super) fn run(arguments: &Admin) -> anyhow::Result<()> {
    let flag = |text: &String| ("store".to_owned(), text.clone());
    let flags: Vec<_> = arguments.store.iter().map(flag).collect();
    let LoadedConfig { config, warnings, .. } = config::load(arguments.config.as_deref(), &flags)?;
    for warning in &warnings {
        warn(warning);
    }
    let StorePath::Sqlite(path) = &config.store.path else {
        return Err(config::Error::new(
            "store: a store in memory can't be maintained from another process; --store names a file",
        )
        .into());
    };
    if arguments.action.is_audited() {
        start_audit_log(config.log.format);
    }
    let now = Clock::default().millis();
    let out = Output { as_json: arguments.json };
    match &arguments.action {
        Action::Gc { dry_run } => gc(path, &config, now, *dry_run, out),
        Action::Stats => {
            let stats = Inspector::open(path)?.stats()?;
            out.print(|| stats_json(path, &stats), || stats_report(path, &stats))
        }
        Action::List(arguments) => tasks::list(arguments, path, out),
        Action::Show(arguments) => tasks::show(arguments, path, out),
        Action::Export { include_secrets, owner, path: to } => {
            export(path, owner.as_deref(), *include_secrets, to.as_deref(), out)
        }
        Action::Import { path: from } => import(path, &config, from.as_deref(), out),
        Action::Backup { path: to } => {
            Inspector::open(path)?.backup(to)?;
            audited("admin backup", None, 1);
            let text = || format!("backed up {} to {}\n", path.display(), to.display());
            out.print(|| json!({"store": path.display().to_string(), "path": to.display().to_string()}), text)
        }
        Action::Check => check(path, out),
        Action::Forget { owner, dry_run: true, .. } => {
            let tasks = Inspector::open(path)?.count_tasks_of(owner)?;
            out.print(
                || json!({"owner": owner, "dry_run": true, "tasks": tasks}),
                || format!("{tasks} tasks of {} would be deleted\n", owner_name(owner)),
            )
        }
        Action::Forget { owner, dry_run: false, yes } => forget(path, &config, owner, *yes, out),
        Action::Push(action) => push::run(action, path, &config, now, out),
    }
}

/// Output format.
#[derive(Clone, Copy, Debug)]
struct Output {
    as_json: bool,
}

impl Output {
    /// Prints a result: a JSON value on one line, or a text.
    fn print(self, json: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        let printed = if self.as_json { say(&format!("{}\n", json())) } else { say_text(&text()) };
        Ok(printed?)
    }
}

/// Returns an owner as text for people.
fn owner_name(owner: &str) -> String {
    if owner.is_empty() { "callers without a name".to_owned() } else { format!("owner {owner:?}") }
}

/// Deletes the tasks of an owner, after a confirmation unless `is_confirmed`.
fn forget(path: &Path, config: &Config, owner: &str, is_confirmed: bool, out: Output) -> anyhow::Result<()> {
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !is_confirmed && !can_ask {
        return Err(Usage(format!(
            "nothing was deleted: confirm the deletion of all tasks of {} with --yes; --dry-run prints their number",
            owner_name(owner)
        ))
        .into());
    }
    let in_use = "a server is using the database and has its tasks in memory; stop it first";
    let deleted = with_existing_store(path, config, in_use, async |store| {
        // The number does not change during the confirmation, because the database is locked.
        if !is_confirmed && !confirm(Inspector::open(path)?.count_tasks_of(owner)?, owner)? {
            return Ok(None);
        }
        Ok(Some(store.forget(owner).await?))
    })?;
    let Some(tasks) = deleted else { return Err(anyhow!("nothing was deleted: the deletion was not confirmed")) };
    audited("admin forget", owner, tasks);
    let json = || json!({"owner": owner, "dry_run": false, "tasks": tasks});
    out.print(json, || format!("deleted {tasks} tasks\n"))?;
    if tasks > 0 {
        warn("backups of the database, including those made by migrations, still contain these tasks");
    }
    Ok(())
}

/// Asks for a confirmation on the terminal.
fn confirm(tasks: u64, owner: &str) -> anyhow::Result<bool> {
    report(&format!(
        "Delete {tasks} tasks of {} in all tenants? This can't be undone. Type yes to delete them: ",
        owner_name(owner)
    ));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context("can't read the confirmation")?;
    Ok(answer.trim() == "yes")
}

/// Opens an existing database exclusively and runs `act` with it. `in_use` is the error context if a server is using it.
fn with_existing_store<T>(
    path: &Path,
    config: &Config,
    in_use: &'static str,
    act: impl AsyncFnOnce(&Arc<Sqlite>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    // `Sqlite::open` would create a missing file.
    drop(File::open(path).with_context(|| path.display().to_string())?);
    with_store(path, config, in_use, act)
}

/// Opens or creates a database exclusively and runs `act` with it. `in_use` is the error context if a server is using it.
fn with_store<T>(
    path: &Path,
    config: &Config,
    in_use: &'static str,
    act: impl AsyncFnOnce(&Arc<Sqlite>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let options = Options { durability: config.store.durability, ..Options::default() };
    let store = match Sqlite::open(path, options) {
        Ok(store) => store,
        Err(error) if matches!(error.problem, sqlite::Problem::InUse(_)) => return Err(anyhow!(error).context(in_use)),
        Err(error) => return Err(error.into()),
    };
    block_on(act(&Arc::new(store)))
}

fn gc(path: &Path, config: &Config, now: Millis, is_dry_run: bool, out: Output) -> anyhow::Result<()> {
    if is_dry_run {
        let (swept, idle) = Inspector::open(path)?.preview_sweep(&config.retention(), now)?;
        return out.print(|| sweep_json(&swept, idle, true), || sweep_report(&swept, idle, "would be"));
    }
    let in_use = "a server is using the database and does this by itself; use --dry-run for a report";
    let (policy, task_limits) = (config.retention(), config.limits().task_limits());
    let (swept, idle) = with_existing_store(path, config, in_use, async |store| {
        let shared: Arc<Sqlite> = Arc::clone(store);
        let journal = Journal::new(shared, Sources::default(), LiveMemory::new(usize::MAX));
        let idle = match Retention::cutoff(policy.idle, now) {
            Some(before) => execution::end_idle(&journal, task_limits, before).await?,
            None => 0,
        };
        journal.stop();
        Ok((store.sweep(&policy, now, &|_| false).await?, idle))
    })?;
    let idle = u64::try_from(idle)?;
    audited("admin gc", None, swept.tasks.saturating_add(idle));
    out.print(|| sweep_json(&swept, idle, false), || sweep_report(&swept, idle, "were"))
}

fn sweep_json(swept: &SweepResult, idle: u64, is_dry_run: bool) -> Value {
    json!({
        "dry_run": is_dry_run,
        "tasks": swept.tasks,
        "logs": swept.logs,
        "push_configs": swept.push_configs,
        "idempotency_keys": swept.idempotency_keys,
        "canceled": idle,
    })
}

/// Formats the result of a sweep. `verb` is `were` or `would be`.
fn sweep_report(swept: &SweepResult, idle: u64, verb: &str) -> String {
    let SweepResult { tasks, logs, push_configs: pushes, idempotency_keys: sends } = swept;
    format!(
        "{tasks} terminal tasks {verb} deleted\n{logs} event logs of retained tasks {verb} deleted\n\
         {pushes} push configurations of retained tasks {verb} deleted\n\
         {sends} idempotency keys of retained tasks {verb} deleted\n{idle} idle tasks {verb} canceled\n"
    )
}

fn export(
    path: &Path,
    owner: Option<&str>,
    include_secrets: bool,
    to: Option<&Path>,
    output: Output,
) -> anyhow::Result<()> {
    let look = Inspector::open(path)?;
    let Some(to) = to else {
        let exported = look.export(owner, include_secrets, &mut BufWriter::new(io::stdout().lock()));
        return exported.map(|tasks| audited("admin export", owner, tasks)).map_err(|error| match error {
            ExportError::Output(error) => OutputError::from(error).into(),
            ExportError::Database(error) => error.into(),
        });
    };
    let file = File::create_new(to).with_context(|| to.display().to_string())?;
    let mut out = BufWriter::new(file);
    let exported = look.export(owner, include_secrets, &mut out).map_err(anyhow::Error::from).and_then(|tasks| {
        out.get_ref().sync_all()?;
        Ok(tasks)
    });
    if exported.is_err() {
        // A partial export looks like a complete one.
        drop((out, fs::remove_file(to)));
    }
    let tasks = exported.with_context(|| format!("nothing was exported to {}", to.display()))?;
    audited("admin export", owner, tasks);
    let text = || format!("exported {tasks} tasks to {}\n", to.display());
    output.print(|| json!({"tasks": tasks, "path": to.display().to_string()}), text)
}

fn import(path: &Path, config: &Config, from: Option<&Path>, out: Output) -> anyhow::Result<()> {
    let lines: Box<dyn BufRead + Send> = match from {
        Some(from) => Box::new(BufReader::new(File::open(from).with_context(|| from.display().to_string())?)),
        None => Box::new(BufReader::new(io::stdin())),
    };
    let in_use = "a server is using the database and would not notice the import; stop it first";
    let import = |path: &Path| with_store(path, config, in_use, async |store| Ok(store.import(lines).await?));
    let tasks = if path.exists() {
        import(path).map_err(|error| {
            let is_undone = error.is::<ImportError>();
            if is_undone { error.context(format!("nothing was imported into {}", path.display())) } else { error }
        })?
    } else {
        create_atomically(path, import)?
    };
    audited("admin import", None, tasks);
    let text = || format!("imported {tasks} tasks into {}\n", path.display());
    out.print(|| json!({"tasks": tasks, "store": path.display().to_string()}), text)
}

/// Creates a database under a temporary name in the same directory and renames it when `fill` succeeds. A failure leaves
/// neither the database nor the WAL and lock files of SQLite.
fn create_atomically<T>(path: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let context = || path.display().to_string();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| anyhow!("{} is not a file name", path.display()))?;
    let directory = tempfile::Builder::new().prefix("a2a-import-").tempdir_in(parent).with_context(context)?;
    let temporary = directory.path().join(name);
    let result = fill(&temporary).with_context(|| format!("nothing was written to {}", path.display()))?;
    sqlite::publish(&temporary, path)?;
    Ok(result)
}

fn check(path: &Path, out: Output) -> anyhow::Result<()> {
    let (problems, tasks) = Inspector::open(path)?.check()?;
    out.print(
        || json!({"tasks": tasks, "problems": problems}),
        || match &*problems {
            [] => format!("checked {tasks} tasks, no problems found\n"),
            problems => problems.join("\n") + "\n",
        },
    )?;
    if problems.is_empty() {
        return Ok(());
    }
    Err(anyhow!("{} is damaged; restore a backup", path.display()))
}

fn stats_json(path: &Path, stats: &Stats) -> Value {
    let counts = &stats.counts;
    let by_state = counts.tasks.iter().map(|(state, count)| (state.as_str_name().to_owned(), json!(count)));
    let owner =
        |(owner, tenant, count): &(String, String, u64)| json!({"owner": owner, "tenant": tenant, "tasks": count});
    json!({
        "store": path.display().to_string(),
        "schema_version": stats.version,
        "file_bytes": stats.file_bytes,
        "free_bytes": stats.free_bytes,
        "wal_bytes": stats.wal_bytes,
        "tasks": counts.tasks.iter().map(|(_, count)| count).sum::<u64>(),
        "states": by_state.collect::<serde_json::Map<_, _>>(),
        "without_log": counts.without_log,
        "push_configs": counts.push_configs,
        "idempotency_keys": counts.idempotency_keys,
        "owners": counts.owner_count,
        "largest_owners": counts.owners.iter().map(owner).collect::<Vec<_>>(),
    })
}

fn stats_report(path: &Path, stats: &Stats) -> String {
    let Stats { version, file_bytes, free_bytes, wal_bytes, counts } = stats;
    let Counts { tasks, owners, owner_count, without_log, push_configs, idempotency_keys } = counts;
    let by_state = tasks.iter().map(|(state, count)| format!("  {count} {}\n", state.as_str_name()));
    let largest = owners.iter().map(|(owner, tenant, count)| format!("  {count} of {owner:?} in tenant {tenant:?}\n"));
    let (by_state, largest) = (by_state.collect::<String>(), largest.collect::<String>());
    let (path, tasks) = (path.display(), tasks.iter().map(|(_, count)| count).sum::<u64>());
    format!(
        "{path}: schema version {version}, {file_bytes} bytes ({free_bytes} free), write-ahead log {wal_bytes} bytes\n\
         {tasks} tasks\n{by_state}{without_log} of them without event logs\n{push_configs} push configurations\n\
         {idempotency_keys} idempotency keys\n{owner_count} owners, counted per tenant\n{largest}"
    )
}
