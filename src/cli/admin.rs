//! `a2a admin`: maintenance of task databases. Tasks, garbage collection, statistics, export, import, backup, integrity
//! check, deletion of an owner's data, and deliveries of push notifications.

use std::{
    cell::Cell,
    fs::File,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, anyhow};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Usage, audited,
    connection::block_on,
    report, say,
    show::{self, OutputFormat, count},
    start_audit_log, warn,
};
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
        Counts, FileUsage, Maintenance as _, Retention, SweepResult,
        sqlite::{self, Inspector, Options, Sqlite, Stats},
    },
};

mod archive;
mod cluster;
mod push;
mod reader;
mod tasks;
mod timeline;

/// Arguments of `a2a admin`.
#[derive(Debug, clap::Args)]
pub(super) struct Admin {
    /// Configuration file. Defaults to `a2a.toml`, if that exists. [env: `A2A_CONFIG`]
    #[arg(long, global = true, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Task database, as `sqlite:PATH` or `postgres://…`. Defaults to the configured one, or those of all `[[agents]]`. [env: `A2A_STORE`]
    #[arg(long, global = true, value_name = "sqlite:PATH")]
    store: Option<String>,
    /// Only this one of several agents. Defaults to all of them.
    #[arg(long, global = true, value_name = "NAME")]
    agent: Option<String>,
    /// Format of the output: text, indented JSON, or JSON on one line.
    #[arg(long, short, global = true, value_enum, default_value = "text", hide_default_value = true)]
    output: OutputFormat,
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
    /// Prints the time and the task of an error id, and the command that finds its cause in the log. A server may be using the
    /// database.
    Error(timeline::ErrorId),
    /// Exports tasks with their event logs and push configurations as JSON Lines. A server may be using the database.
    Export {
        /// Include the secrets of push configurations: tokens, credentials, userinfo of URLs, and headers.
        #[arg(long)]
        include_secrets: bool,
        /// Export only the tasks of this owner.
        #[arg(long)]
        owner: Option<String>,
        /// File to create, or directory with a file for each of several agents; it must not exist. Defaults to stdout.
        path: Option<PathBuf>,
    },
    /// Imports exported tasks: all of them, or none if one exists already. Creates the database if it does not exist. No
    /// server may be using it, unless it is a PostgreSQL database.
    Import {
        /// File to read, or directory with those of several agents. Defaults to stdin.
        path: Option<PathBuf>,
    },
    /// Writes a consistent copy of the database. A server may be using it.
    Backup {
        /// File to create, or directory with a file for each of several agents; it must not exist.
        path: PathBuf,
    },
    /// Puts a backup where the database was. No server may be using it.
    Restore {
        /// Backup: a file, or the directory with those of several agents.
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
    /// Lists the servers that share a PostgreSQL database, and counts what waits for one.
    Cluster,
    /// Takes a task from a stuck server of a PostgreSQL database, so that another one runs it.
    ///
    /// Further output of the stuck server is refused. A free server takes the task over, perhaps the same one.
    Release(tasks::Selection),
    /// Declares a server of a PostgreSQL database dead, so that others take over its tasks.
    Bury {
        /// Number of the replica, as printed by `a2a admin cluster`.
        replica: u64,
    },
    /// Creates or migrates the tables of a PostgreSQL database, for servers with `--migrate=never`. Servers of the version before may be
    /// using it.
    Migrate,
}

impl Action {
    /// Returns true for actions that change or export data.
    fn is_audited(&self) -> bool {
        match self {
            Self::Gc { dry_run } | Self::Forget { dry_run, .. } => !dry_run,
            Self::Export { .. }
            | Self::Import { .. }
            | Self::Backup { .. }
            | Self::Restore { .. }
            | Self::Release(_)
            | Self::Bury { .. }
            | Self::Migrate => true,
            Self::Push(push) => matches!(push, push::Push::Retry(_) | push::Push::Drop(_)),
            Self::Stats | Self::List(_) | Self::Show(_) | Self::Error(_) | Self::Check | Self::Cluster => false,
        }
    }

    /// Returns true for actions that are for databases that servers share, false for those that are for files, and `None` for the others.
    fn is_for_shared(&self) -> Option<bool> {
        if matches!(self, Self::Cluster | Self::Release(_) | Self::Bury { .. } | Self::Migrate) {
            return Some(true);
        }
        let is_for_both = matches!(
            self,
            Self::List(_)
                | Self::Show(_)
                | Self::Error(_)
                | Self::Export { .. }
                | Self::Import { .. }
                | Self::Push(push::Push::List { .. } | push::Push::Show(_))
        );
        if is_for_both { None } else { Some(false) }
    }
}

/// Database of the server, or of one of several agents.
struct Target {
    /// Name of the agent, if the command is about all of them.
    agent: Option<String>,
    /// Path of the file. Of a database that servers share, the URL without its password.
    path: PathBuf,
    config: Config,
}

/// Selects the databases of a configuration. Those of agents that a command can't use are skipped with a note.
fn targets(arguments: &Admin, LoadedConfig { config, agents, .. }: LoadedConfig) -> anyhow::Result<Vec<Target>> {
    let creates = matches!(arguments.action, Action::Import { .. } | Action::Restore { .. });
    let names = || agents.iter().map(|agent| agent.name.as_str()).collect::<Vec<_>>().join(", ");
    let selected = match &arguments.agent {
        Some(name) => {
            let missing = Usage(format!("--agent: there is no agent {name} in [{}]", names()));
            let agent = agents.into_iter().find(|agent| agent.name == *name).ok_or(missing)?;
            vec![(None, agent.config)]
        }
        None if arguments.store.is_none() && !agents.is_empty() => {
            agents.into_iter().map(|agent| (Some(agent.name), agent.config)).collect()
        }
        None => vec![(None, config)],
    };
    let mut targets = Vec::new();
    for (agent, config) in selected {
        let is_shared = matches!(config.store.path, StorePath::Postgres(_));
        if arguments.action.is_for_shared().is_some_and(|wanted| wanted != is_shared) {
            let why = if is_shared {
                "this command is for files; for databases: list, show, error, export, import, push list, cluster, release, bury and \
                 migrate\n\
                 note: pg_dump makes backups, and `POST /operator/deliveries:retry` of a server retries deliveries"
            } else {
                "cluster, release, bury and migrate are for PostgreSQL databases, which servers share"
            };
            return Err(config::Error::new(format!("store: {why}")).into());
        }
        match (config.store.path.clone(), agent) {
            (StorePath::Sqlite(path), Some(agent)) if !creates && !path.exists() => {
                report(&format!("note: agent {agent} has no tasks yet: {} does not exist\n", path.display()));
            }
            (StorePath::Sqlite(path), None) if !creates && !path.exists() => {
                let why = "there is no task database\nnote: --store sqlite:PATH names another";
                return Err(anyhow!("{}: {why}", std::path::absolute(&path)?.display()));
            }
            (StorePath::Sqlite(path), agent) => targets.push(Target { agent, path, config }),
            (StorePath::Postgres(url), agent) => targets.push(Target { agent, path: url.to_string().into(), config }),
            (StorePath::Memory, Some(agent)) => report(&format!("note: agent {agent} keeps its tasks in memory\n")),
            (StorePath::Memory, None) => {}
        }
    }
    let why = "store: there is no database that could be maintained from another process; --store names a file";
    if targets.is_empty() { Err(config::Error::new(why).into()) } else { Ok(targets) }
}

/// A task or a delivery that is not in a database. Other databases may have it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotFound(String);

/// A database is damaged. Others are checked too.
#[derive(Debug, thiserror::Error)]
#[error("{} is damaged; restore a backup", .0.display())]
struct Damaged(PathBuf);

/// Runs an `a2a admin` command.
pub(super) fn run(arguments: &Admin) -> anyhow::Result<()> {
    let flag = |text: &String| ("store".to_owned(), text.clone());
    let flags: Vec<_> = arguments.store.iter().map(flag).collect();
    let loaded = config::load(arguments.config.as_deref(), &flags)?;
    for warning in &loaded.warnings {
        warn(warning);
    }
    let (Admin { output, action, .. }, log_format) = (arguments, loaded.config.log.format);
    let targets = targets(arguments, loaded)?;
    if action.is_audited() {
        start_audit_log(log_format);
    }
    let user = || targets.iter().find_map(|target| Some((target.path.display(), sqlite::user_of(&target.path)?)));
    let is_exclusive = action.is_audited() && !matches!(action, Action::Export { .. } | Action::Backup { .. });
    if let Some((path, user)) = user().filter(|_| *output == OutputFormat::Text && is_exclusive) {
        let beside = "list, show, error, stats, check, backup, export, push list and --dry-run work beside a server";
        report(&format!("note: {path} is in use by {user}\nnote: {beside}\n"));
    }
    let now = Clock::default().millis();
    let each = |act: Act<'_>| each(&targets, *output, act);
    match action {
        Action::Export { include_secrets, owner, path } => {
            archive::export(&targets, owner.as_deref(), *include_secrets, path.as_deref(), *output)
        }
        Action::Import { path } => archive::import(&targets, path.as_deref(), *output),
        Action::Backup { path } => archive::backup(&targets, path, *output),
        Action::Restore { path } => archive::restore(&targets, path, *output),
        Action::Gc { dry_run } => each(&|target, out| gc(target, now, *dry_run, out)),
        Action::Stats => each(&stats),
        Action::List(arguments) => each(&|target, out| tasks::list(arguments, target, out)),
        Action::Show(arguments) => each(&|target, out| tasks::show(arguments, target, out)),
        Action::Error(arguments) => each(&|target, out| timeline::error(arguments, target, out)),
        Action::Check => each(&|target, out| check(&target.path, out)),
        Action::Forget { owner, dry_run: true, .. } => each(&|target, out| count_tasks_of(owner, &target.path, out)),
        Action::Forget { owner, dry_run: false, yes } => each(&|target, out| forget(target, owner, *yes, out)),
        Action::Push(action) => each(&|target, out| push::run(action, target, now, out)),
        Action::Cluster => each(&cluster::show),
        Action::Release(selection) => each(&|target, out| cluster::release(selection, target, out)),
        Action::Migrate => each(&cluster::migrate),
        Action::Bury { replica } => each(&|target, out| cluster::bury(*replica, target, out)),
    }
}

/// Command for a database.
type Act<'a> = &'a dyn Fn(&Target, &Output<'_>) -> anyhow::Result<()>;

/// Runs a command for each database. It continues after a damaged one, and after one without what the command should show.
fn each(targets: &[Target], format: OutputFormat, act: Act<'_>) -> anyhow::Result<()> {
    let (mut is_found, mut failure) = (false, None);
    for target in targets {
        match act(target, &Output::new(format, target)) {
            Err(error) if error.is::<NotFound>() || error.is::<Damaged>() => failure = failure.or(Some(error)),
            result => {
                result?;
                is_found = true;
            }
        }
    }
    failure.filter(|error| !is_found || error.is::<Damaged>()).map_or(Ok(()), Err)
}

/// Output about a database.
struct Output<'a> {
    format: OutputFormat,
    /// Agent that the output names, if there are several.
    agent: Option<&'a str>,
    /// Heading of the first text. Empty after it.
    heading: Cell<String>,
}

impl<'a> Output<'a> {
    fn new(format: OutputFormat, target: &'a Target) -> Self {
        let agent = target.agent.as_deref();
        let heading = agent.map(|agent| format!("agent {agent}, {}:\n", target.path.display()));
        Self { format, agent, heading: heading.unwrap_or_default().into() }
    }

    /// Prints a result: a JSON object, or a text.
    fn print(&self, json: impl FnOnce() -> Value, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.format == OutputFormat::Text {
            return Ok(say(&(self.heading.take() + &text()))?);
        }
        let mut json = json();
        if let Some(agent) = self.agent {
            json["agent"] = agent.into();
        }
        Ok(say(&show::json(&json, self.format)?)?)
    }
}

/// Returns an owner as text for people.
fn owner_name(owner: &str) -> String {
    if owner.is_empty() { "callers without a name".to_owned() } else { format!("owner {owner:?}") }
}

/// Prints the number of tasks that [`forget`] would delete.
fn count_tasks_of(owner: &str, path: &Path, out: &Output<'_>) -> anyhow::Result<()> {
    let tasks = Inspector::open(path)?.count_tasks_of(owner)?;
    out.print(
        || json!({"owner": owner, "dry_run": true, "tasks": tasks}),
        || format!("{} of {} would be deleted from {}\n", count(tasks, "task"), owner_name(owner), path.display()),
    )
}

/// Deletes the tasks of an owner, after a confirmation unless `is_confirmed`.
fn forget(target: &Target, owner: &str, is_confirmed: bool, out: &Output<'_>) -> anyhow::Result<()> {
    let path = &target.path;
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !is_confirmed && !can_ask {
        return Err(Usage(format!(
            "nothing was deleted: confirm the deletion of all tasks of {} with --yes; --dry-run prints their number",
            owner_name(owner)
        ))
        .into());
    }
    let in_use = "a server is using the database and has its tasks in memory; stop it first";
    let deleted = with_existing_store(target, in_use, async |store| {
        // The number does not change during the confirmation, because the database is locked.
        if !is_confirmed && !confirm(Inspector::open(path)?.count_tasks_of(owner)?, owner, path)? {
            return Ok(None);
        }
        Ok(Some(store.forget(owner).await?))
    })?;
    let Some(tasks) = deleted else { return Err(anyhow!("nothing was deleted: the deletion was not confirmed")) };
    audited("admin forget", owner, tasks);
    let json = || json!({"owner": owner, "dry_run": false, "tasks": tasks});
    out.print(json, || format!("deleted {} from {}\n", count(tasks, "task"), path.display()))?;
    if tasks > 0 {
        warn("backups of the database, including those made by migrations, still contain these tasks");
    }
    Ok(())
}

/// Asks for a confirmation on the terminal.
fn confirm(tasks: u64, owner: &str, path: &Path) -> anyhow::Result<bool> {
    report(&format!(
        "Delete {} of {} in all tenants from {}? This can't be undone. Type yes to delete them: ",
        count(tasks, "task"),
        owner_name(owner),
        path.display()
    ));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context("can't read the confirmation")?;
    Ok(answer.trim() == "yes")
}

/// Opens an existing database exclusively and runs `act` with it. `in_use` is the error context if a server is using it.
fn with_existing_store<T>(
    Target { path, config, .. }: &Target,
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

fn gc(target: &Target, now: Millis, is_dry_run: bool, out: &Output<'_>) -> anyhow::Result<()> {
    let Target { path, config, .. } = target;
    let (policy, task_limits) = (config.retention(), config.limits().task_limits());
    let (swept, idle) = if is_dry_run {
        Inspector::open(path)?.preview_sweep(&policy, now)?
    } else {
        let in_use = "a server is using the database and does this by itself; use --dry-run for a report";
        let (swept, idle) = with_existing_store(target, in_use, async |store| {
            let shared: Arc<Sqlite> = Arc::clone(store);
            let journal = Journal::new(shared, Sources::default(), LiveMemory::new(usize::MAX));
            let idle = match Retention::cutoff(policy.idle, now) {
                Some(before) => execution::end_idle(&journal, task_limits, before).await?,
                None => 0,
            };
            journal.stop();
            Ok((store.sweep(&policy, now, &|_| false).await?, u64::try_from(idle)?))
        })?;
        audited("admin gc", None, swept.tasks.saturating_add(idle));
        (swept, idle)
    };
    let SweepResult { tasks, logs, push_configs: pushes, idempotency_keys: sends } = &swept;
    let (path, verb) = (path.display(), if is_dry_run { "would be" } else { "were" });
    out.print(
        || {
            json!({
                "dry_run": is_dry_run, "tasks": tasks, "logs": logs, "push_configs": pushes,
                "idempotency_keys": sends, "canceled": idle,
            })
        },
        || {
            format!(
                "{tasks} terminal tasks {verb} deleted from {path}\n{logs} event logs of retained tasks {verb} deleted\n\
                 {pushes} push configurations of retained tasks {verb} deleted\n\
                 {sends} idempotency keys of retained tasks {verb} deleted\n{idle} idle tasks {verb} canceled\n"
            )
        },
    )
}

fn check(path: &Path, out: &Output<'_>) -> anyhow::Result<()> {
    let (problems, tasks) = Inspector::open(path)?.check()?;
    out.print(
        || json!({"tasks": tasks, "problems": problems}),
        || match &*problems {
            [] => format!("checked {} in {}, no problems found\n", count(tasks, "task"), path.display()),
            problems => problems.join("\n") + "\n",
        },
    )?;
    if problems.is_empty() { Ok(()) } else { Err(Damaged(path.to_owned()).into()) }
}

fn stats(target: &Target, out: &Output<'_>) -> anyhow::Result<()> {
    let (path, stats) = (target.path.display().to_string(), Inspector::open(&target.path)?.stats()?);
    let Stats { version, files: FileUsage { database, free, log, .. }, counts } = &stats;
    let Counts { tasks: by_state, owners, owner_count, without_log, push_configs, idempotency_keys } = counts;
    let tasks: u64 = by_state.iter().map(|(_, count)| count).sum();
    let json = || {
        let by_state = by_state.iter().map(|(state, count)| (state.as_str_name().to_owned(), json!(count)));
        let owner =
            |(owner, tenant, count): &(String, String, u64)| json!({"owner": owner, "tenant": tenant, "tasks": count});
        json!({
            "store": path, "schema_version": version, "file_bytes": database, "free_bytes": free, "wal_bytes": log,
            "tasks": tasks, "states": by_state.collect::<serde_json::Map<_, _>>(), "without_log": without_log,
            "push_configs": push_configs, "idempotency_keys": idempotency_keys, "owners": owner_count,
            "largest_owners": owners.iter().map(owner).collect::<Value>(),
        })
    };
    let text = || {
        let by_state = by_state.iter().map(|(state, count)| format!("  {count} {}\n", state.as_str_name()));
        let largest =
            owners.iter().map(|(owner, tenant, count)| format!("  {count} of {owner:?} in tenant {tenant:?}\n"));
        let (by_state, largest) = (by_state.collect::<String>(), largest.collect::<String>());
        let [database, free, log] = [*database, *free, *log].map(show::size);
        let tasks = count(tasks, "task");
        format!(
            "{path}: schema version {version}, {database} ({free} free), write-ahead log {log}\n{tasks}\n{by_state}\
             {without_log} of them without event logs\n{push_configs} push configurations\n\
             {idempotency_keys} idempotency keys\n{owner_count} owners, counted per tenant\n{largest}"
        )
    };
    out.print(json, text)
}
