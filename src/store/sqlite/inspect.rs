//! Read-only access to a database for the `admin` commands, also while a server uses it: statistics, preview of a retention
//! sweep, and backup.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags, Row};

use super::{
    Error,
    file::{BUSY_TIMEOUT, sibling, wal_path},
    schema,
    sweep::{COUNT_IDLE, TERMINAL},
    unsigned,
};
use crate::{
    clock::Millis,
    pb::v1::TaskState,
    store::{Retention, SweepResult},
};

/// Read-only view of a database.
pub(crate) struct Inspector {
    path: PathBuf,
    pub(super) db: Connection,
}

/// Statistics of a database.
#[derive(Debug)]
pub(crate) struct Stats {
    /// Schema version.
    pub(crate) version: i32,
    /// Size of the database in bytes.
    pub(crate) file_bytes: u64,
    /// Unused part of the database in bytes.
    pub(crate) free_bytes: u64,
    /// Size of the write-ahead log in bytes.
    pub(crate) wal_bytes: u64,
    /// Numbers of tasks by state.
    pub(crate) tasks: Vec<(TaskState, u64)>,
    /// Owners with the most tasks: owner, tenant, and number of tasks.
    pub(crate) owners: Vec<(String, String, u64)>,
    /// Number of owners, counted per tenant.
    pub(crate) owner_count: u64,
    /// Number of tasks in a terminal state whose log was deleted.
    pub(crate) without_log: u64,
    /// Number of push configurations.
    pub(crate) push_configs: u64,
    /// Number of idempotency keys.
    pub(crate) idempotency_keys: u64,
}

impl Inspector {
    /// Opens an existing database.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let io_error = |cause| Error::Io { path: path.to_owned(), cause };
        fs::metadata(path).map_err(io_error)?;
        let failed = |source: rusqlite::Error| Error::new(path, source);
        // Recovering the write-ahead log of a killed server requires write access.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path, flags).map_err(failed)?;
        db.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
        db.pragma_update(None, "trusted_schema", false).map_err(failed)?;
        db.pragma_update(None, "query_only", true).map_err(failed)?;
        schema::check_version(&db, path)?;
        Ok(Self { path: path.to_owned(), db })
    }

    /// Runs queries in a read transaction, which provides a consistent snapshot.
    pub(super) fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let transaction = self.db.unchecked_transaction();
        transaction.and_then(|transaction| query(&transaction)).map_err(|error| Error::new(&self.path, error))
    }

    /// Returns statistics of the database.
    pub(crate) fn stats(&self) -> Result<Stats, Error> {
        /// Maximum number of listed owners.
        const MAX_OWNERS: usize = 20;
        let wal = fs::metadata(wal_path(&self.path));
        self.read(|db| {
            let count = |sql: &str| db.query_row(sql, [], |row| row.get(0)).map(unsigned);
            let pragma = |name| db.pragma_query_value(None, name, |row| row.get(0)).map(unsigned);
            let page_size = pragma("page_size")?;
            let state = |row: &Row<'_>| Ok((TaskState::try_from(row.get::<_, i32>(0)?), unsigned(row.get(1)?)));
            let mut tasks = db.prepare("SELECT state, sum(tasks) FROM total GROUP BY state HAVING sum(tasks) > 0")?;
            let tasks = tasks.query_map([], state)?.collect::<rusqlite::Result<Vec<_>>>()?;
            let sql = "SELECT owner, tenant, sum(tasks) FROM total JOIN scope ON scope.id = total.scope
                GROUP BY scope.id HAVING sum(tasks) > 0 ORDER BY 3 DESC, 1, 2";
            let mut owners = db.prepare(sql)?;
            let owners = owners.query_map([], |row| Ok((row.get(0)?, row.get(1)?, unsigned(row.get(2)?))))?;
            Ok(Stats {
                version: db.pragma_query_value(None, "user_version", |row| row.get(0))?,
                file_bytes: pragma("page_count")? * page_size,
                free_bytes: pragma("freelist_count")? * page_size,
                wal_bytes: wal.map_or(0, |metadata| metadata.len()),
                tasks: tasks.into_iter().filter_map(|(state, tasks)| Some((state.ok()?, tasks))).collect(),
                owners: owners.take(MAX_OWNERS).collect::<rusqlite::Result<_>>()?,
                owner_count: count("SELECT count(*) FROM scope")?,
                without_log: count(&format!("SELECT count(*) FROM task WHERE {TERMINAL} AND folded = 1"))?,
                push_configs: count("SELECT count(*) FROM push")?,
                idempotency_keys: count("SELECT count(*) FROM send")?,
            })
        })
    }

    /// Counts what a retention sweep would delete now, and the tasks that have waited too long for their clients.
    pub(crate) fn preview_sweep(&self, policy: &Retention, now: Millis) -> Result<(SweepResult, u64), Error> {
        self.read(|db| {
            let count = |retention, sql: &str| match Retention::cutoff(retention, now) {
                Some(before) => db.query_row(sql, [before], |row| row.get(0)).map(unsigned),
                None => Ok(0),
            };
            let expired = format!("{TERMINAL} AND folded IN (0, 1) AND time < ?");
            // Data of a task that is deleted itself is not counted separately.
            let task_cutoff = Retention::cutoff(policy.finished, now).unwrap_or(Millis::MIN);
            let result = SweepResult {
                tasks: count(policy.finished, &format!("SELECT count(*) FROM task WHERE {expired}"))?,
                logs: count(
                    policy.logs,
                    &format!(
                        "SELECT count(*) FROM task
                         WHERE {TERMINAL} AND folded = 0 AND time < ? AND time >= {task_cutoff}"
                    ),
                )?,
                push_configs: count(
                    policy.push,
                    &format!(
                        "SELECT count(*) FROM task JOIN push ON push.task = task.id
                         WHERE pushes > 0 AND {TERMINAL} AND time < ? AND time >= {task_cutoff}"
                    ),
                )?,
                idempotency_keys: count(
                    policy.idempotency_keys,
                    &format!(
                        "SELECT count(*) FROM send JOIN task ON task.id = send.task
                         WHERE send.time < ? AND NOT ({TERMINAL} AND task.time < {task_cutoff})"
                    ),
                )?,
            };
            let idle = count(policy.idle, COUNT_IDLE)?;
            Ok((result, idle))
        })
    }

    /// Writes a consistent, compact copy to a path that must not exist.
    pub(crate) fn backup(&self, to: &Path) -> Result<(), Error> {
        let io_error = |cause| Error::Io { path: to.to_owned(), cause };
        if to.exists() {
            return Err(io_error(io::Error::new(io::ErrorKind::AlreadyExists, "the file exists already")));
        }
        let part = sibling(to, "part");
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(error)),
            Ok(()) | Err(_) => {}
        }
        let text = part.to_str().ok_or_else(|| io_error(io::ErrorKind::InvalidFilename.into()))?;
        let failed = |error| Error::new(&self.path, error);
        // `VACUUM INTO` writes the copy and only reads this database.
        self.db.pragma_update(None, "query_only", false).map_err(failed)?;
        let written = self.db.execute("VACUUM INTO ?", [text]);
        self.db.pragma_update(None, "query_only", true).map_err(failed)?;
        written.map_err(failed)?;
        fs::File::open(&part).and_then(|file| file.sync_all()).map_err(io_error)?;
        // A hard link, unlike a rename, does not replace a file that was created concurrently. Not all file systems have
        // hard links.
        match fs::hard_link(&part, to) {
            Ok(()) => fs::remove_file(&part),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
            Err(_) => fs::rename(&part, to),
        }
        .map_err(io_error)
    }
}
