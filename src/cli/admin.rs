//! `a2a admin`: what who looks after a file of tasks does with it.

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
    config::{self, Config, Loaded, StorePath},
    execution,
    journal::Journal,
    seam::{Clock, Millis},
    store::{
        Retention, Store as _, Swept,
        sqlite::{self, Inspection, Options, Sqlite, Stats},
    },
};

/// Where the tasks are.
#[derive(Debug, clap::Args)]
pub(super) struct Admin {
    /// The configuration file. Where none is named, `a2a.toml`, if it is there. [env: `A2A_CONFIG`]
    #[arg(long, global = true, value_name = "PATH")]
    config: Option<PathBuf>,
    /// The file, as `sqlite:PATH`. Where none is named, the one that is configured. [env: `A2A_STORE`]
    #[arg(long, global = true, value_name = "sqlite:PATH")]
    store: Option<String>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Deletes what has been kept for long enough, and ends what has waited for its client for too long, as a server does
    /// by itself. No server may have the file.
    Gc {
        /// Says what that would be, and changes nothing. A server may have the file.
        #[arg(long)]
        dry_run: bool,
    },
    /// Says what is in the file. A server may have it.
    Stats,
    /// Writes tasks as lines of JSON, with their logs and push configurations. A server may have the file.
    Export {
        /// Those of this owner. All, where none is named.
        #[arg(long)]
        owner: Option<String>,
        /// Where they are written, and nothing may be yet. To the output, where nothing is named.
        path: Option<PathBuf>,
    },
    /// Takes tasks that were exported: all, or none where one of them is there already. No server may have the file, which is
    /// made where there is none.
    Import {
        /// Where they are. From the input, where nothing is named.
        path: Option<PathBuf>,
    },
    /// Writes a copy of the file, as it is at one moment. A server may have it.
    Backup {
        /// Where the copy is written, and nothing may be yet.
        path: PathBuf,
    },
    /// Says whether the file is what it should be. A server may have it.
    Check,
    /// Deletes all tasks of an owner, whatever they do, and overwrites what they were. No server may have the file.
    Forget {
        /// Whose, in all tenants. Callers without a name have the owner ''.
        #[arg(long)]
        owner: String,
    },
}

/// Does it.
pub(super) fn run(arguments: &Admin) -> anyhow::Result<()> {
    let flag = |text: &String| config::KEYS.iter().find(|it| it.name == "store.place").map(|it| (it, text.clone()));
    let flags: Vec<_> = arguments.store.iter().filter_map(flag).collect();
    let Loaded { config, warnings, .. } = config::load(arguments.config.as_deref(), &flags)?;
    for warning in &warnings {
        warn(warning);
    }
    let StorePath::Sqlite(path) = &config.store else {
        return Err(config::Error::new(
            "tasks are kept in memory, which is gone with its server; --store names a file",
        )
        .into());
    };
    let now = Clock::new().millis();
    match &arguments.what {
        What::Gc { dry_run: true } => {
            let (swept, idle) = Inspection::open(path)?.due(&config.retention(), now)?;
            say(&told(&swept, idle, "would be"));
        }
        What::Gc { dry_run: false } => gc(path, &config, now)?,
        What::Stats => say(&shown(path, &Inspection::open(path)?.stats()?)),
        What::Export { owner, path: to } => export(path, owner.as_deref(), to.as_deref())?,
        What::Import { path: from } => import(path, &config, from.as_deref())?,
        What::Backup { path: to } => {
            Inspection::open(path)?.backup(to)?;
            say(&format!("{} is a copy of {}\n", to.display(), path.display()));
        }
        What::Check => check(path)?,
        What::Forget { owner } => {
            let why = "its server would go on with what is deleted; stop it first";
            let tasks = alone(path, &config, why, async |it| Ok(it.forget(owner).await?))?;
            say(&format!("{tasks} tasks were deleted\n"));
            if tasks > 0 {
                warn("copies of the file, those that migrations made among them, still have them");
            }
        }
    }
    Ok(())
}

/// With a file that is there, and that no server has.
fn alone<T>(
    path: &Path,
    config: &Config,
    why: &'static str,
    act: impl AsyncFnOnce(&Arc<Sqlite>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    // It is not to be made by who only looks after it.
    drop(File::open(path).with_context(|| path.display().to_string())?);
    opened(path, config, why, act)
}

/// With a file that no server has, and that is made where there is none.
fn opened<T>(
    path: &Path,
    config: &Config,
    why: &'static str,
    act: impl AsyncFnOnce(&Arc<Sqlite>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let options = Options { durability: config.store_durability, ..Options::default() };
    let store = match Sqlite::open(path, options) {
        Ok(it) => it,
        Err(error @ sqlite::Error::InUse { .. }) => return Err(anyhow!(error).context(why)),
        Err(error) => return Err(error.into()),
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(act(&Arc::new(store)))
}

fn gc(path: &Path, config: &Config, now: Millis) -> anyhow::Result<()> {
    let why = "its server does this by itself (retention.every); --dry-run says what is due";
    let (policy, bounds) = (config.retention(), config.limits().bounds());
    let (swept, idle) = alone(path, config, why, async |it| {
        let store: Arc<Sqlite> = Arc::clone(it);
        let journal = Journal::new(store);
        let idle = match Retention::before(policy.idle, now) {
            Some(before) => execution::end_idle(&journal, bounds, before).await?,
            None => 0,
        };
        journal.stop();
        Ok((it.sweep(&policy, now, &|_| false).await?, idle))
    })?;
    say(&told(&swept, u64::try_from(idle)?, "were"));
    Ok(())
}

fn told(swept: &Swept, idle: u64, what: &str) -> String {
    let Swept { tasks, logs, pushes, sends } = swept;
    format!(
        "{tasks} tasks that had ended {what} deleted\n{logs} logs of others\n{pushes} push configurations of others\n\
         {sends} keys of sends of others\n{idle} tasks that had waited for their clients for too long {what} canceled\n"
    )
}

fn export(path: &Path, owner: Option<&str>, to: Option<&Path>) -> anyhow::Result<()> {
    let look = Inspection::open(path)?;
    let Some(to) = to else {
        look.export(owner, &mut BufWriter::new(io::stdout().lock()))?;
        return Ok(());
    };
    let file = File::create_new(to).with_context(|| to.display().to_string())?;
    let mut out = BufWriter::new(file);
    let exported = look.export(owner, &mut out).map_err(anyhow::Error::from).and_then(|tasks| {
        out.get_ref().sync_all()?;
        Ok(tasks)
    });
    if exported.is_err() {
        // An incomplete export could be taken for a complete one.
        drop((out, fs::remove_file(to)));
    }
    let tasks = exported?;
    say(&format!("{tasks} tasks are in {}\n", to.display()));
    Ok(())
}

fn import(path: &Path, config: &Config, from: Option<&Path>) -> anyhow::Result<()> {
    let lines: Box<dyn BufRead + Send> = match from {
        Some(it) => Box::new(BufReader::new(File::open(it).with_context(|| it.display().to_string())?)),
        None => Box::new(BufReader::new(io::stdin())),
    };
    let why = "its server would not know of them; stop it first";
    let import = |path: &Path| opened(path, config, why, async |store| Ok(store.import(lines).await?));
    let tasks = if path.exists() { import(path)? } else { staged(path, import)? };
    say(&format!("{tasks} tasks were taken into {}\n", path.display()));
    Ok(())
}

/// Creates a file under a temporary name in the same directory and renames it when `fill` succeeds. A failure leaves
/// neither the file nor what SQLite keeps beside it.
fn staged<T>(path: &Path, fill: impl FnOnce(&Path) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let named = || path.display().to_string();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| anyhow!("{} is not the name of a file", path.display()))?;
    let directory = tempfile::Builder::new().prefix("a2a-import-").tempdir_in(parent).with_context(named)?;
    let temporary = directory.path().join(name);
    let made = fill(&temporary).with_context(|| format!("nothing was written to {}", path.display()))?;
    sqlite::publish(&temporary, path)?;
    Ok(made)
}

fn check(path: &Path) -> anyhow::Result<()> {
    let (wrong, tasks) = Inspection::open(path)?.check()?;
    for it in &wrong {
        say(&format!("{it}\n"));
    }
    if wrong.is_empty() {
        say(&format!("{tasks} tasks, and nothing is wrong\n"));
        return Ok(());
    }
    Err(anyhow!("{} is not what it should be; a copy that is, is the way back", path.display()))
}

fn shown(path: &Path, stats: &Stats) -> String {
    let Stats { version, bytes, free, ahead, tasks, owners, scopes, folded, pushes, sends } = stats;
    let in_each = tasks.iter().map(|(state, tasks)| format!("  {tasks} {}\n", state.as_str_name()));
    let named = owners.iter().map(|(owner, tenant, tasks)| format!("  {tasks} of {owner:?} in {tenant:?}\n"));
    let (in_each, named) = (in_each.collect::<String>(), named.collect::<String>());
    let (path, tasks) = (path.display(), tasks.iter().map(|it| it.1).sum::<u64>());
    format!(
        "{path}: version {version}, {bytes} bytes, of which {free} are free; {ahead} bytes beside it\n\
         {tasks} tasks\n{in_each}{folded} of them without their logs\n{pushes} push configurations\n\
         {sends} keys of sends\n{scopes} owners, each in a tenant\n{named}"
    )
}
