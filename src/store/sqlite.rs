//! Persistent task store in an SQLite file. Committed data survives the end of the process.
//!
//! A single thread writes, and combines waiting changes of all tasks into one transaction (group commit). Reads run on a pool of
//! threads with one connection each. A lock file gives one server exclusive use of the database. After an SQLite error, the
//! transaction is rolled back, and the next one is attempted normally.

use std::{
    fmt,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
        mpsc,
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode};
use tokio::{sync::watch, time::Instant};

pub(crate) use self::{
    export::{ExportError, ImportError},
    file::publish,
    inspect::{Inspector, Stats},
};
use self::{
    file::{LockedFile, Role},
    threads::Readers,
    wal_checkpoint::Checkpoints,
    writer::Writer,
};
use super::{
    Claim, Commit, Committed, Damaged, Full, InUse, Inspect, Key, ListPage, ListQuery, Maintenance, Refused, Retention,
    Scope, SendOutcome, StoredTask, SweepResult, TaskStore, Unavailable,
    quota::{DEFAULT_MAX_PUSH_CONFIGS_PER_OWNER, Quota},
};
use crate::{
    clock::Millis,
    event::{Event, Fence, Seq},
};

mod counters;
mod delivery;
mod export;
mod failpoint;
mod file;
mod inspect;
mod list;
mod log_rows;
mod migrations;
mod push;
mod read;
mod sweep;
#[cfg(test)]
mod tests;
mod threads;
mod wal_checkpoint;
mod write;
mod writer;

/// Number of reader threads.
const READERS: usize = 4;

/// Trial write of the size of a typical commit, which detects a full or read-only disk.
const PROBE: &str = "INSERT INTO probe VALUES(zeroblob(16384)); DELETE FROM probe";

/// Default of [`Options::max_tasks`].
pub const DEFAULT_MAX_TASKS: usize = 1_000_000;

/// Store in an SQLite file.
///
/// ```no_run
/// use std::{path::Path, sync::Arc};
///
/// use a2a_service::{agent::demo::Demo, server::Server, store::sqlite::{Options, Sqlite}};
///
/// let store = Sqlite::open(Path::new("a2a.db"), Options::default())?;
/// let server = Server::new(Demo).store(Arc::new(store));
/// # Ok::<_, a2a_service::store::sqlite::Error>(())
/// ```
// Fields are dropped in this order: the lock file is released after all threads have ended.
pub struct Sqlite {
    readers: Readers,
    writer: Writer,
    _checkpoints: Checkpoints,
    file: LockedFile,
    fence: Fence,
    /// Last row that a claim has examined, since an unreadable row can't always be marked as claimed.
    last_claimed: AtomicI64,
    quota: Arc<Mutex<Quota>>,
    health: Arc<Health>,
}

options! {
    /// Options of an SQLite store.
    #[derive(Clone, Copy, Debug)]
    #[non_exhaustive]
    pub struct Options {
        /// Failures that a commit survives. [`Durability::Process`] by default.
        pub durability: Durability,
        /// Maximum number of tasks. At the limit, a new task evicts the task that reached its terminal state first.
        pub max_tasks: usize,
        /// Maximum number of tasks of one owner, over all tenants. At the limit, a new task evicts the owner's task
        /// that reached its terminal state first. `max_tasks` by default.
        pub max_tasks_per_owner: Option<usize>,
        /// Maximum number of push configurations of the tasks of one owner, over all tenants. 10 000 by default.
        pub max_push_configs_per_owner: usize,
        /// Maximum size of the file in bytes. Only the disk limits it by default.
        pub max_bytes: Option<u64>,
    }
}

/// Failures that a commit survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process for any reason. A crash of the machine may lose the last commits of all tasks, which leaves a
    /// consistent earlier state.
    #[default]
    Process,
    /// Also a power failure: each commit waits until it is on the disk.
    Power,
}

/// Reason why a database can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process uses the database.
    #[error("{} is in use by {by}", path.display())]
    InUse {
        /// Path of the database.
        path: PathBuf,
        /// Process that uses it, and since when, as far as known.
        by: String,
    },
    /// A newer version of this program wrote the database.
    #[error(
        "{} has schema version {version}, but this program supports versions up to {newest}; use a newer program",
        path.display()
    )]
    Newer {
        /// Path of the database.
        path: PathBuf,
        /// Schema version of the database.
        version: i32,
        /// Newest supported schema version.
        newest: i32,
    },
    /// An older version of this program wrote the database, and it has not been migrated yet.
    #[error("{} has the old schema version {version}; start a server with it once to migrate it", path.display())]
    Older {
        /// Path of the database.
        path: PathBuf,
        /// Schema version of the database.
        version: i32,
    },
    /// A former build of this program wrote the database. It is not changed.
    #[error(
        "{} was written by a former build of this program; export it with that build (a2a admin export), and import it \
         into a new database with this one (a2a admin import)",
        path.display()
    )]
    Former {
        /// Path of the database.
        path: PathBuf,
    },
    /// The file is not a database of this program. It is not changed.
    #[error("{} is not a database of this program", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is larger than [`Options::max_bytes`].
    #[error(
        "{}: {bytes} bytes exceed the limit of {max_bytes} (store.max_size); raise the limit, or serve a compact copy \
         (a2a admin backup)",
        path.display()
    )]
    TooLarge {
        /// Path of the database.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// The configured maximum in bytes.
        max_bytes: u64,
    },
    /// The file can't be accessed, or a thread can't be started.
    #[error("{}: {cause}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        cause: io::Error,
    },
    /// SQLite reports an error.
    #[error("{}: {}", path.display(), describe(cause))]
    Sqlite {
        /// Path of the database.
        path: PathBuf,
        /// Error of SQLite.
        cause: rusqlite::Error,
    },
}

/// Failure while a database is opened.
#[derive(Debug)]
enum OpenFailure {
    Sqlite(rusqlite::Error),
    System(io::Error),
}

/// Observed state of the database file.
struct Health {
    path: PathBuf,
    /// The database and its write-ahead log, with their identities when the store was opened.
    files: Vec<(PathBuf, file::FileId)>,
    /// Set while one of the paths is missing or is another file, and after corruption was found.
    fault: watch::Sender<Option<Unavailable>>,
    /// Corruption that was found. Permanent.
    damaged: Mutex<Option<Unavailable>>,
    /// Something was not written since the last sweep because the file has its maximum size.
    is_out_of_space: AtomicBool,
    /// Time and outcome of the last transaction.
    last: Mutex<Option<(Instant, Result<(), Unavailable>)>>,
}

impl Sqlite {
    /// Opens a database, and creates it if it does not exist. Blocks the thread.
    ///
    /// # Errors
    /// Another process uses the database, a newer program or a former build wrote it, the file is not a database of this program or exceeds
    /// the maximum size, or it can't be read or written.
    pub fn open(path: &Path, options: Options) -> Result<Self, Error> {
        let file = LockedFile::lock(path)?;
        let path = file.path.clone();
        let failed = |failure: OpenFailure| Error::new(&path, failure);
        file::create_private(&path).map_err(|cause| Error::Io { path: path.clone(), cause })?;
        // The fence is durable before it is used, whatever the configured durability, so that it is never reused.
        let mut db = file.connect(Role::Write(Durability::Power)).map_err(|error| failed(error.into()))?;
        // Before the migration, which copies an old file, and after it, which adds tables to a new one.
        check_size(&db, &path, &options)?;
        migrations::migrate(&mut db, &path, &migrations::steps())?;
        check_size(&db, &path, &options)?;
        let opened = || {
            failpoint::at("open.fence")?;
            let opening = begin_opening(&db, &options)?;
            failpoint::at("open.done").map(|()| opening)
        };
        let (fence, quota) = opened().map_err(|error| failed(error.into()))?;
        sync_directory(&path).map_err(|error| failed(error.into()))?;
        Self::start(file, db, &options, fence, quota).map_err(failed)
    }

    fn start(
        file: LockedFile,
        db: Connection,
        options: &Options,
        fence: Fence,
        quota: Quota,
    ) -> Result<Self, OpenFailure> {
        options.durability.apply(&db)?;
        let health = Arc::new(Health::new(&file.path)?);
        let (quota, wal_is_long) = (Arc::new(Mutex::new(quota)), Arc::new(AtomicBool::new(false)));
        let (wake, woken) = mpsc::sync_channel(1);
        let readers = (0..READERS).map(|_| file.connect(Role::Read)).collect::<rusqlite::Result<_>>()?;
        let checkpoint = file.connect(Role::Checkpoint)?;
        let handle = File::options().read(true).write(true).open(&file.path)?;
        let checkpoints = Checkpoints::new(checkpoint, handle, woken, Arc::clone(&wal_is_long), Arc::clone(&health))?;
        let writer = Writer::new(db, Arc::clone(&quota), Arc::clone(&health), wal_is_long, wake, options.max_bytes)?;
        let readers = Readers::new(readers, Arc::clone(&health))?;
        let last_claimed = AtomicI64::new(0);
        Ok(Self { readers, writer, _checkpoints: checkpoints, file, fence, last_claimed, quota, health })
    }

    /// Canonical path of the database.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// Rejects a database that is larger than the configured maximum: SQLite would silently ignore such a maximum.
fn check_size(db: &Connection, path: &Path, options: &Options) -> Result<(), Error> {
    let Some(max_bytes) = options.max_bytes else { return Ok(()) };
    let value = |name| db.pragma_query_value(None, name, |row| row.get(0)).map(unsigned);
    let pages = value("page_count").and_then(|pages| Ok(pages.saturating_mul(value("page_size")?)));
    let bytes = pages.map_err(|cause| Error::new(path, cause))?;
    if bytes > max_bytes { Err(Error::TooLarge { path: path.to_owned(), bytes, max_bytes }) } else { Ok(()) }
}

/// Raises the fence, and loads the task counts.
fn begin_opening(db: &Connection, options: &Options) -> rusqlite::Result<(Fence, Quota)> {
    if let Some(max_bytes) = options.max_bytes {
        let page_size: u64 = db.pragma_query_value(None, "page_size", |row| row.get(0)).map(unsigned)?;
        let max_pages = i64::try_from(max_bytes / page_size.max(1)).unwrap_or(i64::MAX);
        db.pragma_update_and_check(None, "max_page_count", max_pages, |_| Ok(()))?;
    }
    let sql = "UPDATE opening SET fence = fence + 1 RETURNING fence";
    let fence = db.query_row(sql, [], |row| row.get(0)).map(unsigned)?;
    Ok((fence, counters::load_quota(db, options)?))
}

/// Syncs the directory of a file, which makes a new directory entry durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if cfg!(unix) => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

/// Converts an SQLite integer back to an unsigned number. See [`signed`](write::signed).
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Describes an error: a summary for operators, followed by SQLite's message.
fn describe(error: &rusqlite::Error) -> String {
    let summary = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "the disk or the database is full",
        Some(ErrorCode::ReadOnly) => "the database is read-only",
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => "the database can't be opened",
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => "the database is damaged",
        Some(ErrorCode::SystemIoFailure) => "I/O error",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "another process has locked the database",
        _ if is_damage(error) => "the database is damaged",
        _ => return error.to_string(),
    };
    format!("{summary} ({error})")
}

/// Returns whether data can't be read: a value of a row, or a structure of the file.
fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    is_corruption(error)
        || matches!(
            error,
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..)
        )
}

/// Returns whether SQLite can't read the structure of the file, which may concern any task.
fn is_corruption(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

impl Health {
    /// Records the identities of the files at these paths.
    fn new(path: &Path) -> io::Result<Self> {
        let mut files = vec![(path.to_owned(), file::file_id(path)?)];
        let wal = file::wal_path(path);
        // If SQLite has not created the write-ahead log yet, it is not checked.
        files.extend(file::file_id(&wal).ok().map(|id| (wal, id)));
        let (damaged, last, fault) = (Mutex::default(), Mutex::default(), watch::Sender::new(None));
        Ok(Self { path: path.to_owned(), files, fault, damaged, is_out_of_space: AtomicBool::new(false), last })
    }

    /// Checks that the files are still those that were opened. Writes to a file that was deleted or replaced do not
    /// fail, but are lost with the process. Takes two system calls.
    fn check_files(&self) -> Result<(), Unavailable> {
        let lost = self.files.iter().find(|(path, opened)| file::file_id(path).ok().as_ref() != Some(opened));
        match lost {
            // Corruption is permanent.
            None if self.fault.borrow().is_none() || self.damaged.lock().is_some() => Ok(()),
            None => {
                tracing::info!(store.path = %self.path.display(), "database file found again");
                self.fault.send_replace(None);
                Ok(())
            }
            Some((path, _)) => {
                let lost = Unavailable(format!("{}: the file is missing or is another file", path.display()));
                self.fault.send_if_modified(|fault| {
                    let is_new = fault.is_none();
                    if is_new {
                        tracing::error!(
                            store.path = %path.display(),
                            "database file deleted, moved or replaced: no new work is accepted; move the original file \
                             back, or restart the server, which then opens the file at this path"
                        );
                        *fault = Some(lost.clone());
                    }
                    is_new
                });
                Err(lost)
            }
        }
    }

    /// Returns the outcome of a recent transaction, so that frequent health checks write no more than rare ones: a success
    /// is valid for 1 s. A failure is valid for 5 s, because the small trial write may succeed where commits fail.
    fn recent_outcome(&self) -> Option<Result<(), Unavailable>> {
        if let Some(damaged) = &*self.damaged.lock() {
            return Some(Err(damaged.clone()));
        }
        let last = self.last.lock();
        let (time, outcome) = last.as_ref()?;
        let valid_for = Duration::from_secs(if outcome.is_ok() { 1 } else { 5 });
        (time.elapsed() < valid_for).then(|| outcome.clone())
    }

    /// Records the outcome of a transaction.
    fn record(&self, outcome: &Result<(), Unavailable>) {
        *self.last.lock() = Some((Instant::now(), outcome.clone()));
    }

    /// Converts an error for the caller. Corruption of the file is recorded; an unreadable value concerns only its
    /// task.
    fn unavailable(&self, error: &rusqlite::Error) -> Unavailable {
        let unavailable = Unavailable(format!("{}: {}", self.path.display(), describe(error)));
        if is_corruption(error) {
            self.damaged.lock().get_or_insert_with(|| unavailable.clone());
            // New work is rejected from the moment that the store is not ready.
            self.fault.send_if_modified(|fault| fault.is_none() && fault.replace(unavailable.clone()).is_none());
        }
        unavailable
    }
}

impl Error {
    fn new(path: &Path, failure: impl Into<OpenFailure>) -> Self {
        let path = path.to_owned();
        match failure.into() {
            OpenFailure::Sqlite(cause) if cause.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
                Self::Foreign { path }
            }
            OpenFailure::Sqlite(cause) => Self::Sqlite { path, cause },
            OpenFailure::System(cause) => Self::Io { path, cause },
        }
    }
}

impl From<rusqlite::Error> for OpenFailure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<io::Error> for OpenFailure {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl Default for Options {
    fn default() -> Self {
        let max_tasks = DEFAULT_MAX_TASKS;
        Self {
            durability: Durability::default(),
            max_tasks,
            max_tasks_per_owner: None,
            max_push_configs_per_owner: DEFAULT_MAX_PUSH_CONFIGS_PER_OWNER,
            max_bytes: None,
        }
    }
}

#[async_trait]
impl TaskStore for Sqlite {
    /// Two lanes: while one batch is written, the next one is collected.
    fn lanes(&self) -> usize {
        2
    }

    fn first_fence(&self) -> Fence {
        self.fence
    }

    fn check_capacity(&self, scope: &Scope) -> Result<(), Full> {
        self.quota.lock().check(&scope.owner)
    }

    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<Committed, Refused>>, Unavailable> {
        self.writer.commit(batch).await
    }

    async fn load(&self, key: &Key) -> Result<Option<StoredTask>, Unavailable> {
        let key = key.clone();
        self.readers.run(move |db| read::load(db, &key)).await
    }

    async fn events(&self, key: &Key, after: Seq, limit: usize, max_bytes: usize) -> Result<Vec<Event>, Unavailable> {
        let key = key.clone();
        self.readers
            .run(move |db| match read::row_id(db, &key)? {
                Some(task) => read::events(db, task, after, limit, max_bytes),
                None => Ok(Vec::new()),
            })
            .await
    }

    async fn find_send(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable> {
        let (scope, key) = (Arc::clone(scope), key.to_owned());
        self.readers.run(move |db| read::find_send(db, &scope, &key)).await
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable> {
        let query = query.clone();
        self.readers.run(move |db| list::list(db, &query)).await
    }

    async fn log_bytes(&self, key: &Key) -> Result<usize, Unavailable> {
        let key = key.clone();
        self.readers.run(move |db| read::log_bytes(db, &key)).await
    }

    async fn context_bytes(&self, scope: &Arc<Scope>, context: &str, max: usize) -> Result<usize, Unavailable> {
        let (scope, context) = (Arc::clone(scope), context.to_owned());
        self.readers.run(move |db| read::context_bytes(db, &scope, &context, max)).await
    }
}

#[async_trait]
impl Maintenance for Sqlite {
    async fn claim(&self, limit: usize) -> Result<Vec<Claim>, Unavailable> {
        let (fence, after) = (self.fence, self.last_claimed.load(Ordering::Acquire));
        let (claimed, last) = self.writer.run(move |transaction| transaction.claim(fence, after, limit)).await?;
        self.last_claimed.fetch_max(last, Ordering::AcqRel);
        Ok(claimed)
    }

    async fn diagnose(&self, key: &Key) -> Result<Option<Damaged>, Unavailable> {
        let key = key.clone();
        let problem = self.readers.run(move |db| match read::row_id(db, &key)? {
            Some(id) => inspect::check_task(db, id),
            None => Ok(None),
        });
        Ok(problem.await?.map(Damaged))
    }

    async fn idle_tasks(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<Key>, Unavailable> {
        self.find_idle(before, skip, limit).await
    }

    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<SweepResult, Unavailable> {
        self.delete_expired(policy, now, in_use).await
    }

    async fn check(&self) -> Result<(), Unavailable> {
        let health = Arc::clone(&self.health);
        self.readers.run(move |_| Ok(health.check_files())).await??;
        if let Some(outcome) = self.health.recent_outcome() {
            return outcome;
        }
        self.writer.run(|transaction| transaction.db.execute_batch(PROBE)).await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    fn fault(&self) -> Option<watch::Receiver<Option<Unavailable>>> {
        Some(self.health.fault.subscribe())
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.quota.lock().total().tasks;
        f.debug_struct("Sqlite").field("path", &self.path()).field("tasks", &tasks).finish_non_exhaustive()
    }
}
