//! A file as who looks after it sees it, whether a server has it or not: nothing in it is changed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rusqlite::{Connection, OpenFlags, Row};

use super::{
    Error,
    file::{PATIENCE, beside},
    number, schema,
    sweep::{self, ENDED},
};
use crate::{
    clock::Millis,
    pb::v1::TaskState,
    store::{Retention, SweepResult},
};

/// A file that is looked at.
pub(crate) struct Inspector {
    path: PathBuf,
    pub(super) db: Connection,
}

/// What is in a file.
#[derive(Debug)]
pub(crate) struct Stats {
    /// The version of its tables.
    pub(crate) version: i32,
    /// How large it is, in bytes, and how much of that is free.
    pub(crate) file_bytes: u64,
    pub(crate) free_bytes: u64,
    /// How much has been committed and is not in it yet, in bytes.
    pub(crate) wal_bytes: u64,
    /// How many tasks there are, by state.
    pub(crate) tasks: Vec<(TaskState, u64)>,
    /// Those of whom there are most: owner, tenant, tasks.
    pub(crate) owners: Vec<(String, String, u64)>,
    /// How many owners there are, in each tenant.
    pub(crate) owner_count: u64,
    /// How many of the tasks that have ended have no log any more.
    pub(crate) without_log: u64,
    /// How many push configurations, and keys of sends.
    pub(crate) push_configs: u64,
    pub(crate) idempotency_keys: u64,
}

impl Inspector {
    /// Opens a file that is there.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let place = |cause| Error::Io { path: path.to_owned(), cause };
        fs::metadata(path).map_err(place)?;
        let failed = |source: rusqlite::Error| Error::of(path, source);
        // One that can't write could not read what a server that was killed has left in its log.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path, flags).map_err(failed)?;
        db.busy_timeout(PATIENCE).map_err(failed)?;
        db.pragma_update(None, "trusted_schema", false).map_err(failed)?;
        db.pragma_update(None, "query_only", true).map_err(failed)?;
        schema::is_ours(&db, path)?;
        Ok(Self { path: path.to_owned(), db })
    }

    /// Reads: all that this asks for is of one moment.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Error> {
        let moment = self.db.unchecked_transaction();
        moment.and_then(|it| read(&it)).map_err(|it| Error::of(&self.path, it))
    }

    /// What is in it.
    pub(crate) fn stats(&self) -> Result<Stats, Error> {
        /// So many owners are named.
        const NAMED: usize = 20;
        let ahead = fs::metadata(self.path.with_file_name({
            let mut name = self.path.file_name().unwrap_or_default().to_owned();
            name.push("-wal");
            name
        }));
        self.read(|db| {
            let count = |sql: &str| db.query_row(sql, [], |it| it.get(0)).map(number);
            let pragma = |name| db.pragma_query_value(None, name, |it| it.get(0)).map(number);
            let page = pragma("page_size")?;
            let state = |it: &Row<'_>| Ok((TaskState::try_from(it.get::<_, i32>(0)?), number(it.get(1)?)));
            let mut tasks = db.prepare("SELECT state, sum(tasks) FROM total GROUP BY state HAVING sum(tasks) > 0")?;
            let tasks = tasks.query_map([], state)?.collect::<rusqlite::Result<Vec<_>>>()?;
            let sql = "SELECT owner, tenant, sum(tasks) FROM total JOIN scope ON scope.id = total.scope
                GROUP BY scope.id HAVING sum(tasks) > 0 ORDER BY 3 DESC, 1, 2";
            let mut owners = db.prepare(sql)?;
            let owners = owners.query_map([], |it| Ok((it.get(0)?, it.get(1)?, number(it.get(2)?))))?;
            Ok(Stats {
                version: db.pragma_query_value(None, "user_version", |it| it.get(0))?,
                file_bytes: pragma("page_count")? * page,
                free_bytes: pragma("freelist_count")? * page,
                wal_bytes: ahead.map_or(0, |it| it.len()),
                tasks: tasks.into_iter().filter_map(|(state, tasks)| Some((state.ok()?, tasks))).collect(),
                owners: owners.take(NAMED).collect::<rusqlite::Result<_>>()?,
                owner_count: count("SELECT count(*) FROM scope")?,
                without_log: count(&format!("SELECT count(*) FROM task WHERE {ENDED} AND folded = 1"))?,
                push_configs: count("SELECT count(*) FROM push")?,
                idempotency_keys: count("SELECT count(*) FROM send")?,
            })
        })
    }

    /// What a sweep would delete now, and how many tasks have waited for their clients for too long.
    pub(crate) fn preview_sweep(&self, policy: &Retention, now: Millis) -> Result<(SweepResult, u64), Error> {
        self.read(|db| {
            let count = |window, sql: &str| match Retention::cutoff(window, now) {
                Some(before) => db.query_row(sql, [before], |it| it.get(0)).map(number),
                None => Ok(0),
            };
            let ended = format!("{ENDED} AND folded IN (0, 1) AND time < ?");
            // What goes with its task is not counted once more.
            let stays = Retention::cutoff(policy.finished, now).unwrap_or(Millis::MIN);
            let swept = SweepResult {
                tasks: count(policy.finished, &format!("SELECT count(*) FROM task WHERE {ended}"))?,
                logs: count(
                    policy.logs,
                    &format!("SELECT count(*) FROM task WHERE {ENDED} AND folded = 0 AND time < ? AND time >= {stays}"),
                )?,
                push_configs: count(
                    policy.push,
                    &format!(
                        "SELECT count(*) FROM task JOIN push ON push.task = task.id
                         WHERE pushes > 0 AND {ENDED} AND time < ? AND time >= {stays}"
                    ),
                )?,
                idempotency_keys: count(
                    policy.sends,
                    &format!(
                        "SELECT count(*) FROM send JOIN task ON task.id = send.task
                         WHERE send.time < ? AND NOT ({ENDED} AND task.time < {stays})"
                    ),
                )?,
            };
            let idle = count(policy.idle, &sweep::waiting())?;
            Ok((swept, idle))
        })
    }

    /// Writes a copy that is of one moment, and has nothing in it that is free. There must be nothing yet where it goes.
    pub(crate) fn backup(&self, to: &Path) -> Result<(), Error> {
        let place = |cause| Error::Io { path: to.to_owned(), cause };
        if to.exists() {
            return Err(place(io::Error::new(io::ErrorKind::AlreadyExists, "there is something already")));
        }
        let part = beside(to, "part");
        match fs::remove_file(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(place(error)),
            Ok(()) | Err(_) => {}
        }
        let text = part.to_str().ok_or_else(|| place(io::ErrorKind::InvalidFilename.into()))?;
        let failed = |it| Error::of(&self.path, it);
        // The copy is another file, and this one is only read.
        self.db.pragma_update(None, "query_only", false).map_err(failed)?;
        let written = self.db.execute("VACUUM INTO ?", [text]);
        self.db.pragma_update(None, "query_only", true).map_err(failed)?;
        written.map_err(failed)?;
        fs::File::open(&part).and_then(|it| it.sync_all()).map_err(place)?;
        // Where something has come meanwhile, that stays; as far as the file system knows of two names for one file.
        match fs::hard_link(&part, to) {
            Ok(()) => fs::remove_file(&part),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
            Err(_) => fs::rename(&part, to),
        }
        .map_err(place)
    }
}
