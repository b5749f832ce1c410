//! `a2a admin`: maintenance of a task database. Garbage collection, statistics, export, import, backup, integrity check,
//! deletion of an owner's data, and deliveries of push notifications.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, anyhow};
use clap::Subcommand;

use super::{say, warn};
use crate::{
    clock::{Clock, Millis},
    config::{self, Config, Loaded, StorePath},
    env::Env,
    execution,
    journal::Journal,
    store::{
        Retention, Store as _, SweepResult,
        sqlite::{self, Inspector, Options, Sqlite, Stats},
    },
};

mod push;

/// Arguments of `a2a admin`.
#[derive(Debug, clap::Args)]
pub(super) struct Admin {
    /// Configuration file. Defaults to `a2a.toml`, if that exists. [env: `A2A_CONFIG`]
    #[arg(long, global = true, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Task database, as `sqlite:PATH`. Defaults to the configured one. [env: `A2A_STORE`]
    #[arg(long, global = true, value_name = "sqlite:PATH")]
    store: Option<String>,
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
    /// Deletes all tasks of an owner, in any state, and overwrites the deleted data. No server may be using the database.
    Forget {
        /// Owner of the tasks, in all tenants. Callers without a name have the owner ''.
        #[arg(long)]
        owner: String,
    },
    /// Lists the deliveries of push notifications, retries them, and deletes their configurations.
    #[command(subcommand)]
    Push(push::Push),
}

/// Runs an `a2a admin` command.
pub(super) fn run(arguments: &Admin) -> anyhow::Result<()> {
    let flag = |text: &String| ("store".to_owned(), text.clone());
    let flags: Vec<_> = arguments.store.iter().map(flag).collect();
    let Loaded { config, warnings, .. } = config::load(arguments.config.as_deref(), &flags)?;
    for warning in &warnings {
        warn(warning);
    }
    let StorePath::Sqlite(path) = &config.store_path else {
        return Err(config::Error::new(
            "store: a store in memory can't be maintained from another process; --store names a file",
        )
        .into());
    };
    let now = Clock::default().millis();
    match &arguments.action {
        Action::Gc { dry_run: true } => {
            let (swept, idle) = Inspector::open(path)?.preview_sweep(&config.retention(), now)?;
            say(&sweep_report(&swept, idle, "would be"));
        }
        Action::Gc { dry_run: false } => gc(path, &config, now)?,
        Action::Stats => say(&stats_report(path, &Inspector::open(path)?.stats()?)),
        Action::Export { include_secrets, owner, path: to } => {
            export(path, owner.as_deref(), *include_secrets, to.as_deref())?;
        }
        Action::Import { path: from } => import(path, &config, from.as_deref())?,
        Action::Backup { path: to } => {
            Inspector::open(path)?.backup(to)?;
            say(&format!("backed up {} to {}\n", path.display(), to.display()));
        }
        Action::Check => check(path)?,
        Action::Forget { owner } => {
            let in_use = "a server is using the database and has its tasks in memory; stop it first";
            let tasks = with_existing_store(path, &config, in_use, async |store| Ok(store.forget(owner).await?))?;
            say(&format!("deleted {tasks} tasks\n"));
            if tasks > 0 {
                warn("backups of the database, including those made by migrations, still contain these tasks");
            }
        }
        Action::Push(action) => push::run(action, path, &config, now)?,
    }
    Ok(())
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
    let options = Options { durability: config.store_durability, ..Options::default() };
    let store = match Sqlite::open(path, options) {
        Ok(store) => store,
        Err(error @ sqlite::Error::InUse { .. }) => return Err(anyhow!(error).context(in_use)),
        Err(error) => return Err(error.into()),
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(act(&Arc::new(store)))
}

fn gc(path: &Path, config: &Config, now: Millis) -> anyhow::Result<()> {
    let in_use =
        "a server is using the database and does this by itself (retention.interval); use --dry-run for a report";
    let (policy, task_limits) = (config.retention(), config.limits().task_limits());
    let (swept, idle) = with_existing_store(path, config, in_use, async |store| {
        let shared: Arc<Sqlite> = Arc::clone(store);
        let journal = Journal::new(shared, Env::default());
        let idle = match Retention::cutoff(policy.idle, now) {
            Some(before) => execution::end_idle(&journal, task_limits, before).await?,
            None => 0,
        };
        journal.stop();
        Ok((store.sweep(&policy, now, &|_| false).await?, idle))
    })?;
    say(&sweep_report(&swept, u64::try_from(idle)?, "were"));
    Ok(())
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

fn export(path: &Path, owner: Option<&str>, include_secrets: bool, to: Option<&Path>) -> anyhow::Result<()> {
    let look = Inspector::open(path)?;
    let Some(to) = to else {
        look.export(owner, include_secrets, &mut BufWriter::new(io::stdout().lock()))?;
        return Ok(());
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
    let tasks = exported?;
    say(&format!("exported {tasks} tasks to {}\n", to.display()));
    Ok(())
}

fn import(path: &Path, config: &Config, from: Option<&Path>) -> anyhow::Result<()> {
    let lines: Box<dyn BufRead + Send> = match from {
        Some(from) => Box::new(BufReader::new(File::open(from).with_context(|| from.display().to_string())?)),
        None => Box::new(BufReader::new(io::stdin())),
    };
    let in_use = "a server is using the database and would not notice the import; stop it first";
    let import = |path: &Path| with_store(path, config, in_use, async |store| Ok(store.import(lines).await?));
    let tasks = if path.exists() { import(path)? } else { create_atomically(path, import)? };
    say(&format!("imported {tasks} tasks into {}\n", path.display()));
    Ok(())
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

fn check(path: &Path) -> anyhow::Result<()> {
    let (problems, tasks) = Inspector::open(path)?.check()?;
    for problem in &problems {
        say(&format!("{problem}\n"));
    }
    if problems.is_empty() {
        say(&format!("checked {tasks} tasks, no problems found\n"));
        return Ok(());
    }
    Err(anyhow!("{} is damaged; restore a backup", path.display()))
}

fn stats_report(path: &Path, stats: &Stats) -> String {
    let Stats {
        version,
        file_bytes: bytes,
        free_bytes: free,
        wal_bytes: ahead,
        tasks,
        owners,
        owner_count: scopes,
        without_log: folded,
        push_configs: pushes,
        idempotency_keys: sends,
    } = stats;
    let by_state = tasks.iter().map(|(state, count)| format!("  {count} {}\n", state.as_str_name()));
    let largest = owners.iter().map(|(owner, tenant, count)| format!("  {count} of {owner:?} in tenant {tenant:?}\n"));
    let (by_state, largest) = (by_state.collect::<String>(), largest.collect::<String>());
    let (path, tasks) = (path.display(), tasks.iter().map(|(_, count)| count).sum::<u64>());
    format!(
        "{path}: schema version {version}, {bytes} bytes ({free} free), write-ahead log {ahead} bytes\n\
         {tasks} tasks\n{by_state}{folded} of them without event logs\n{pushes} push configurations\n\
         {sends} idempotency keys\n{scopes} owners, counted per tenant\n{largest}"
    )
}
