//! `a2a admin backup`, `restore`, `export` and `import`: copies of databases. Those of several agents are files in a directory.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use serde_json::json;
use tempfile::TempDir;

use super::{
    Output, Target, Usage, audited, count,
    reader::{self, Reader},
    with_store,
};
use crate::{
    cli::{OutputError, config::StorePath, report, show::OutputFormat},
    store::{
        ImportError,
        sqlite::{self, Inspector},
    },
};

/// Extensions of the copies in a directory, which have the names of their agents.
const BACKUP: &str = "db";
const EXPORT: &str = "jsonl";

/// Returns the path of the copy of a database: `to`, or a file in this directory.
fn copy_of(target: &Target, to: &Path, extension: &str) -> PathBuf {
    target.agent.as_ref().map_or_else(|| to.to_owned(), |agent| to.join(agent).with_added_extension(extension))
}

/// Makes copies, in a directory if they are of several agents. A failure leaves none, because some look like all.
fn copy<T>(targets: &[Target], to: &Path, copy: impl FnMut(&Target) -> anyhow::Result<T>) -> anyhow::Result<Vec<T>> {
    // Copies have the messages of clients.
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let has_directory = targets.iter().any(|target| target.agent.is_some());
    if has_directory {
        fs::create_dir(to).with_context(|| to.display().to_string())?;
    }
    let copied = targets.iter().map(copy).collect::<anyhow::Result<_>>();
    if copied.is_err() && has_directory {
        drop(fs::remove_dir_all(to));
    }
    copied
}

/// Finds the copies of databases: `from`, or the files in this directory. Reports the agents that have none there.
///
/// # Errors
/// A copy does not fit: it is of one database, and there are several agents, or the reverse, or one that does not exist.
fn copies<'a>(targets: &'a [Target], from: &Path, extension: &str) -> anyhow::Result<Vec<(&'a Target, PathBuf)>> {
    let error = |path: &Path, why: &str| Usage(format!("{} {why}", path.display()));
    if !from.is_dir() {
        let [target @ Target { agent: None, .. }] = targets else {
            let why = "is a copy of one database, and there are several agents: name one with --agent";
            return Err(error(from, why).into());
        };
        return Ok(vec![(target, from.to_owned())]);
    }
    let mut copies = Vec::new();
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            let target = targets.iter().find(|target| copy_of(target, from, extension) == path);
            let missing = || error(&path, "is of an agent that has no database here; copy the others one by one");
            copies.push((target.ok_or_else(missing)?, path.clone()));
        }
    }
    copies.sort_by(|(_, one), (_, other)| one.cmp(other));
    let missing = || error(from, &format!("has no copies of agents, NAME.{extension}"));
    if copies.is_empty() {
        return Err(missing().into());
    }
    let is_missing = |target: &&Target| copies.iter().all(|(copied, _)| copied.path != target.path);
    for agent in targets.iter().filter(is_missing).filter_map(|target| target.agent.as_ref()) {
        report(&format!("note: agent {agent} has no copy in {}\n", from.display()));
    }
    Ok(copies)
}

/// Writes a copy of each database.
pub(super) fn backup(targets: &[Target], to: &Path, format: OutputFormat) -> anyhow::Result<()> {
    copy(targets, to, |target| Ok(Inspector::open(&target.path)?.backup(&copy_of(target, to, BACKUP))?))?;
    audited("admin backup", None, u64::try_from(targets.len())?);
    targets.iter().try_for_each(|target| print_copied("backed up", "to", target, &copy_of(target, to, BACKUP), format))
}

fn print_copied(verb: &str, to: &str, target: &Target, path: &Path, format: OutputFormat) -> anyhow::Result<()> {
    let (store, path) = (target.path.display().to_string(), path.display().to_string());
    let text = format!("{verb} {store} {to} {path}\n");
    Output::new(format, target).print(|| json!({"store": store, "path": path}), || text)
}

/// Puts copies where there are no databases: all of them, or none if one does not fit or is damaged.
pub(super) fn restore(targets: &[Target], from: &Path, format: OutputFormat) -> anyhow::Result<()> {
    let copies = copies(targets, from, BACKUP)?;
    let written = copies.iter().map(|(target, copy)| restored(&target.path, copy)).collect::<anyhow::Result<Vec<_>>>();
    for ((target, _), (_directory, temporary, ())) in copies.iter().zip(&written.context("nothing was restored")?) {
        sqlite::publish(temporary, &target.path)?;
        audited("admin restore", target.agent.as_deref(), 1);
    }
    copies.iter().try_for_each(|(target, copy)| print_copied("restored", "from", target, copy, format))
}

/// Writes a copy without damage to a temporary file beside the path of a database that does not exist.
fn restored(path: &Path, copy: &Path) -> anyhow::Result<(TempDir, PathBuf, ())> {
    let shown = path.display();
    if sqlite::user_of(path).is_some() {
        return Err(anyhow!("{shown} is in use; stop the server first"));
    }
    let files = ["", "-wal", "-shm"].map(|end| format!("{shown}{end}"));
    if let Some(found) = files.iter().find(|file| Path::new(file).exists()) {
        return Err(anyhow!("{found} exists; move it away, with its -wal and -shm files"));
    }
    let backup = Inspector::open(copy)?;
    if let Some(problem) = backup.check()?.0.first() {
        return Err(anyhow!("{} is damaged: {problem}", copy.display()));
    }
    write_temporary(path, |to| Ok(backup.backup(to)?))
}

/// Writes the tasks of each database to a file, or those of one to stdout.
pub(super) fn export(
    targets: &[Target],
    owner: Option<&str>,
    include_secrets: bool,
    to: Option<&Path>,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let Some(to) = to else {
        let [target @ Target { agent: None, .. }] = targets else {
            let why = "there are several agents: name a directory for their exports, or one of them with --agent";
            return Err(Usage(why.to_owned()).into());
        };
        let mut out = BufWriter::new(io::stdout().lock());
        let exported = Reader::open(target)?.export(owner, include_secrets, &mut out);
        return exported.map(|tasks| audited("admin export", owner, tasks)).map_err(|error| {
            error.downcast::<io::Error>().map_or_else(|error| error, |error| OutputError::from(error).into())
        });
    };
    let exported = copy(targets, to, |target| {
        let (reader, path) = (Reader::open(target)?, copy_of(target, to, EXPORT));
        let file = File::create_new(&path).with_context(|| path.display().to_string())?;
        let mut out = BufWriter::new(file);
        let exported = reader.export(owner, include_secrets, &mut out).and_then(|tasks| {
            out.get_ref().sync_all()?;
            Ok(tasks)
        });
        if exported.is_err() {
            // A partial export looks like a complete one.
            drop((out, fs::remove_file(&path)));
        }
        exported.with_context(|| format!("nothing was exported to {}", path.display()))
    })?;
    audited("admin export", owner, exported.iter().sum());
    for (target, tasks) in targets.iter().zip(exported) {
        let path = copy_of(target, to, EXPORT).display().to_string();
        let text = format!("exported {} to {path}\n", count(tasks, "task"));
        Output::new(format, target).print(|| json!({"tasks": tasks, "path": path}), || text)?;
    }
    Ok(())
}

/// Reads exported tasks from a file, from those in a directory, or from stdin. Each database is imported for itself: the error of one names
/// the agents that were imported before.
pub(super) fn import(targets: &[Target], from: Option<&Path>, format: OutputFormat) -> anyhow::Result<()> {
    let stdin = Path::new("stdin");
    let mut imported: Vec<&str> = Vec::new();
    for (target, copy) in copies(targets, from.unwrap_or(stdin), EXPORT)? {
        let lines: Box<dyn BufRead + Send> = match from {
            Some(_) => Box::new(BufReader::new(File::open(&copy).with_context(|| copy.display().to_string())?)),
            None => Box::new(BufReader::new(io::stdin())),
        };
        import_one(target, lines, format).map_err(|error| match imported.join(", ") {
            agents if agents.is_empty() => error,
            agents => error.context(format!("imported before: {agents}; then failed")),
        })?;
        imported.extend(target.agent.as_deref());
    }
    Ok(())
}

fn import_one(target: &Target, lines: Box<dyn BufRead + Send>, format: OutputFormat) -> anyhow::Result<()> {
    let Target { path, config, .. } = target;
    let in_use = "a server is using the database and would not notice the import; stop it first";
    let import = |path: &Path, lines| with_store(path, config, in_use, async |store| Ok(store.import(lines).await?));
    let with_context = |error: anyhow::Error| match error.downcast_ref() {
        None | Some(ImportError::Unknown(_)) => error,
        Some(_) => error.context(format!("nothing was imported into {}", path.display())),
    };
    let tasks = if matches!(config.store.path, StorePath::Postgres(_)) {
        reader::import(target, lines).map_err(with_context)?
    } else if path.exists() {
        import(path, lines).map_err(with_context)?
    } else {
        let (_directory, temporary, tasks) = write_temporary(path, |path| import(path, lines))?;
        sqlite::publish(&temporary, path)?;
        tasks
    };
    audited("admin import", None, tasks);
    let text = || format!("imported {} into {}\n", count(tasks, "task"), path.display());
    let json = || json!({"tasks": tasks, "store": path.display().to_string()});
    Output::new(format, target).print(json, text)
}

/// Writes a database with a temporary name to a temporary directory beside its path. Unless it is published, neither it nor the WAL and lock
/// files of SQLite remain.
fn write_temporary<T>(
    path: &Path,
    fill: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<(TempDir, PathBuf, T)> {
    let context = || path.display().to_string();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| anyhow!("{} is not a file name", path.display()))?;
    let directory = tempfile::Builder::new().prefix("a2a-import-").tempdir_in(parent).with_context(context)?;
    let temporary = directory.path().join(name);
    let result = fill(&temporary).with_context(|| format!("nothing was written to {}", path.display()))?;
    Ok((directory, temporary, result))
}
