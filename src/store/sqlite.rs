//! Tasks in a file, by SQLite: what was committed is there after a restart, whatever ended the process.
//!
//! One thread writes, and takes whatever waits, from all tasks, into one transaction; some read, each on a connection
//! of its own. A file is one server's at a time. Where SQLite fails, the transaction fails whole, and the next one is
//! tried as if nothing had been.

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

use self::{
    checkpoint::Checkpoints,
    file::{LockedFile, Role},
    quota::Quota,
    reader::Readers,
    writer::Writer,
};
pub(crate) use self::{
    file::publish,
    inspect::{Inspector, Stats},
};
use super::{
    Change, Claim, Commit, Damaged, Full, InUse, Key, ListPage, ListQuery, Log, PushConfig, PushPage, PutResult,
    Refused, Retention, RunnerId, Scope, SendOutcome, Store, StoredTask, SweepResult, Unavailable,
};
use crate::{
    clock::Millis,
    event::{Fence, Seq},
};

mod check;
mod checkpoint;
mod claim;
mod counters;
mod export;
mod failpoint;
mod file;
mod insert_batch;
mod inspect;
mod list;
mod log_rows;
mod push;
mod quota;
mod read;
mod reader;
mod retention;
mod schema;
mod sweep;
#[cfg(test)]
mod tests;
mod worker;
mod write;
mod writer;

/// How many threads read.
const READERS: usize = 4;

/// Trial write of the size of a commit, which shows before the first commit whether there is space for it.
const PROBE: &str = "INSERT INTO probe VALUES(zeroblob(16384)); DELETE FROM probe";

/// How many tasks are kept where nobody says.
pub const DEFAULT_MAX_TASKS: usize = 1_000_000;

/// A store in a file.
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
// In this order they are dropped: who reads, who writes, what waits for the writer's word, and then the claim.
pub struct Sqlite {
    readers: Readers,
    writer: Writer,
    _checkpoints: Checkpoints,
    claimed: LockedFile,
    fence: Fence,
    /// The last row that claims have reached. An unreadable row can't always be marked as claimed.
    last_claimed: AtomicI64,
    room: Arc<Mutex<Quota>>,
    health: Arc<Health>,
}

/// Options of a store in a file.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Failures that a commit survives. [`Durability::Process`] by default.
    pub durability: Durability,
    /// Maximum number of tasks. At the limit, a new task evicts the task that reached its terminal state first.
    pub max_tasks: usize,
    /// Maximum number of tasks of one owner, over all tenants. At the limit, a new task evicts the owner's task that reached
    /// its terminal state first. `max_tasks` by default.
    pub max_tasks_per_owner: Option<usize>,
    /// Maximum size of the file in bytes. Only the disk limits it by default.
    pub max_bytes: Option<u64>,
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

/// Why a file can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two servers would not know of each other's tasks.
    #[error("{} is in use by {by}", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
        /// By whom, and since when.
        by: String,
    },
    /// It was written by a version of this program that is newer than this one.
    #[error(
        "{} has version {version} of the tables, and this program knows those up to {newest}: a newer one wrote it",
        path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: i32,
        /// The newest one that is known.
        newest: i32,
    },
    /// It was written by a version of this program that is older than this one, and has not been brought up yet.
    #[error("{} has version {version} of the tables; a server that opens it brings it to the newest", path.display())]
    Older {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: i32,
    },
    /// It is something else, and is left as it is.
    #[error("{} is no file of this program", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file is larger than [`Options::max_bytes`].
    #[error(
        "{}: {bytes} bytes exceed the limit of {max_bytes} (store.max_size); raise the limit, or serve a compact copy \
         (a2a admin backup)",
        path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// The configured maximum in bytes.
        max_bytes: u64,
    },
    /// It can't be reached, or there is nothing to run on.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// SQLite can't use it.
    #[error("{}: {}", path.display(), said(cause))]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What SQLite says.
        cause: rusqlite::Error,
    },
}

/// What goes wrong while a file is opened.
#[derive(Debug)]
enum Fault {
    Sqlite(rusqlite::Error),
    System(io::Error),
}

/// What has been seen of the file.
struct Health {
    path: PathBuf,
    /// The database and its log, and which files these names were when the store was opened.
    files: Vec<(PathBuf, file::FileId)>,
    /// Set while one of the names is missing or is another file.
    fault: watch::Sender<Option<Unavailable>>,
    /// Something in it can't be read. That does not go away by itself.
    damaged: Mutex<Option<Unavailable>>,
    /// What came of the last transaction, and when.
    last: Mutex<Option<(Instant, Result<(), Unavailable>)>>,
}

impl Sqlite {
    /// Opens a file, which is made where there is none. Blocks while it does.
    ///
    /// # Errors
    /// Another server has it, a newer program wrote it, it is something else, or it can't be reached or written to.
    pub fn open(path: &Path, options: Options) -> Result<Self, Error> {
        let claimed = LockedFile::new(path)?;
        let at = claimed.path.clone();
        let failed = |it: Fault| Error::of(&at, it);
        // The number of an opening is on the disk before anything has it, whatever may be lost later: it is never
        // given again.
        let mut db = claimed.connect(Role::Write(Durability::Power)).map_err(|it| failed(it.into()))?;
        // Before the migration, which copies an old file, and after it, which adds tables to a new one.
        check_size(&db, &at, &options)?;
        schema::migrate(&mut db, &at, schema::STEPS)?;
        check_size(&db, &at, &options)?;
        let opened = || {
            failpoint::at("open.fence")?;
            let begun = begin(&db, &options)?;
            failpoint::at("open.done").map(|()| begun)
        };
        let (fence, room) = opened().map_err(|it| failed(it.into()))?;
        sync_directory(&at).map_err(|it| failed(it.into()))?;
        Self::start(claimed, db, &options, fence, room).map_err(failed)
    }

    fn start(claimed: LockedFile, db: Connection, options: &Options, fence: Fence, room: Quota) -> Result<Self, Fault> {
        options.durability.apply(&db)?;
        let health = Arc::new(Health::new(&claimed.path)?);
        let (room, behind) = (Arc::new(Mutex::new(room)), Arc::new(AtomicBool::new(false)));
        let (wake, woken) = mpsc::sync_channel(1);
        let reading = (0..READERS).map(|_| claimed.connect(Role::Read)).collect::<rusqlite::Result<_>>()?;
        let checkpoint = claimed.connect(Role::Checkpoint)?;
        let file = File::options().read(true).write(true).open(&claimed.path)?;
        let checkpoints = Checkpoints::new(checkpoint, file, woken, Arc::clone(&behind), Arc::clone(&health))?;
        let writer = Writer::new(db, Arc::clone(&room), Arc::clone(&health), behind, wake, options.max_bytes)?;
        let readers = Readers::new(reading, Arc::clone(&health))?;
        let last_claimed = AtomicI64::new(0);
        Ok(Self { readers, writer, _checkpoints: checkpoints, claimed, fence, last_claimed, room, health })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.claimed.path
    }
}

/// Rejects a file that is larger than the configured maximum: SQLite would ignore a smaller one without an error.
fn check_size(db: &Connection, path: &Path, options: &Options) -> Result<(), Error> {
    let Some(max_bytes) = options.max_bytes else { return Ok(()) };
    let value = |name| db.pragma_query_value(None, name, |row| row.get(0)).map(number);
    let pages = value("page_count").and_then(|pages| Ok(pages.saturating_mul(value("page_size")?)));
    let bytes = pages.map_err(|cause| Error::of(path, cause))?;
    if bytes > max_bytes { Err(Error::TooLarge { path: path.to_owned(), bytes, max_bytes }) } else { Ok(()) }
}

/// Raises the fence, and counts what is there.
fn begin(db: &Connection, options: &Options) -> rusqlite::Result<(Fence, Quota)> {
    if let Some(bytes) = options.max_bytes {
        let page: u64 = db.pragma_query_value(None, "page_size", |it| it.get(0)).map(number)?;
        let pages = i64::try_from(bytes / page.max(1)).unwrap_or(i64::MAX);
        db.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    let sql = "UPDATE opening SET fence = fence + 1 RETURNING fence";
    let fence = db.query_row(sql, [], |it| it.get(0)).map(number)?;
    Ok((fence, Quota::new(db, options)?))
}

/// A file that is new is in its directory for good only when that is on the disk too.
fn sync_directory(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(it) if cfg!(unix) => File::open(it)?.sync_all(),
        _ => Ok(()),
    }
}

/// A number as it was before SQLite had it.
fn number(it: i64) -> u64 {
    u64::try_from(it).unwrap_or(0)
}

/// What is wrong, as people say it, and then as SQLite does.
fn said(error: &rusqlite::Error) -> String {
    let plain = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "there is no room for more",
        Some(ErrorCode::ReadOnly) => "it can't be written to",
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => "it can't be opened",
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => "it is damaged",
        Some(ErrorCode::SystemIoFailure) => "the system can't read or write it",
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => "something else has it open",
        _ if is_damage(error) => "it is damaged",
        _ => return error.to_string(),
    };
    format!("{plain} ({error})")
}

/// Returns whether something can't be read: a value of a row, or more than that.
fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    is_corruption(error)
        || matches!(
            error,
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..)
        )
}

/// Returns whether SQLite can't read its own structures, which may be those of any task.
fn is_corruption(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

impl Health {
    /// Of the files that have these names now.
    fn new(path: &Path) -> io::Result<Self> {
        let mut files = vec![(path.to_owned(), file::which(path)?)];
        let log = file::log_of(path);
        // Where SQLite has no log yet, nothing is known of it.
        files.extend(file::which(&log).ok().map(|which| (log, which)));
        let (damaged, last, fault) = (Mutex::default(), Mutex::default(), watch::Sender::new(None));
        Ok(Self { path: path.to_owned(), files, fault, damaged, last })
    }

    /// Checks that the files are still those that were opened. Writes to a file that was deleted or replaced do not
    /// fail, but are lost with the process. Takes two system calls.
    fn look(&self) -> Result<(), Unavailable> {
        let lost = self.files.iter().find(|(path, opened)| file::which(path).ok().as_ref() != Some(opened));
        match lost {
            // Corruption does not go away by itself.
            None if self.fault.borrow().is_none() || self.damaged.lock().is_some() => Ok(()),
            None => {
                tracing::info!(store.path = %self.path.display(), "database file found again");
                self.fault.send_replace(None);
                Ok(())
            }
            Some((path, _)) => {
                let gone = Unavailable(format!("{}: it is not there any more, or is another file", path.display()));
                self.fault.send_if_modified(|it| {
                    let is_new = it.is_none();
                    if is_new {
                        tracing::error!(
                            store.path = %path.display(),
                            "database file deleted, moved or replaced: no new work is accepted; move the original file \
                             back, or restart the server, which then opens what has this path"
                        );
                        *it = Some(gone.clone());
                    }
                    is_new
                });
                Err(gone)
            }
        }
    }

    /// What is known without another try. What could be written a moment ago can be, so that whoever asks all the time
    /// writes no more than others do. What could not be a little while ago is tried again by those who wanted it
    /// written, and that something smaller can be is no comfort to them.
    fn known(&self) -> Option<Result<(), Unavailable>> {
        if let Some(it) = &*self.damaged.lock() {
            return Some(Err(it.clone()));
        }
        let last = self.last.lock();
        let (at, outcome) = last.as_ref()?;
        let while_true = Duration::from_secs(if outcome.is_ok() { 1 } else { 5 });
        (at.elapsed() < while_true).then(|| outcome.clone())
    }

    /// A transaction has come to its end.
    fn tried(&self, outcome: &Result<(), Unavailable>) {
        *self.last.lock() = Some((Instant::now(), outcome.clone()));
    }

    /// Converts an error for the caller. Corruption of the file is recorded; an unreadable value concerns only its
    /// task.
    fn failed(&self, error: &rusqlite::Error) -> Unavailable {
        let failed = Unavailable(format!("{}: {}", self.path.display(), said(error)));
        if is_corruption(error) {
            self.damaged.lock().get_or_insert_with(|| failed.clone());
            // New work is refused by the same finding that makes the store unready.
            self.fault.send_if_modified(|fault| fault.is_none() && fault.replace(failed.clone()).is_none());
        }
        failed
    }
}

impl Error {
    fn of(path: &Path, fault: impl Into<Fault>) -> Self {
        let path = path.to_owned();
        match fault.into() {
            Fault::Sqlite(it) if it.sqlite_error_code() == Some(ErrorCode::NotADatabase) => Self::Foreign { path },
            Fault::Sqlite(cause) => Self::Sqlite { path, cause },
            Fault::System(cause) => Self::Io { path, cause },
        }
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(it: rusqlite::Error) -> Self {
        Self::Sqlite(it)
    }
}

impl From<io::Error> for Fault {
    fn from(it: io::Error) -> Self {
        Self::System(it)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            max_tasks: DEFAULT_MAX_TASKS,
            max_tasks_per_owner: None,
            max_bytes: None,
        }
    }
}

#[async_trait]
impl Store for Sqlite {
    /// While one of them is written, the other comes together.
    fn lanes(&self) -> usize {
        2
    }

    fn fence(&self) -> Fence {
        self.fence
    }

    fn check_capacity(&self, scope: &Scope) -> Result<(), Full> {
        self.room.lock().takes(&scope.owner)
    }

    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<(), Refused>>, Unavailable> {
        self.writer.change(batch.iter().cloned().map(Change::Commit).collect()).await
    }

    async fn commit_changes(&self, batch: Arc<[Change]>) -> Result<Vec<Result<(), Refused>>, Unavailable> {
        self.writer.change(batch).await
    }

    async fn load(&self, key: &Key) -> Result<Option<StoredTask>, Unavailable> {
        let key = key.clone();
        self.readers.run(move |it| read::load(it, &key)).await
    }

    async fn events(&self, key: &Key, after: Seq, limit: usize) -> Result<Log, Unavailable> {
        let key = key.clone();
        let events = self.readers.run(move |it| match read::id(it, &key)? {
            Some(task) => read::events(it, task, after, limit),
            None => Ok(Vec::new()),
        });
        Ok(Log { events: events.await? })
    }

    async fn find_send(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable> {
        let (scope, key) = (Arc::clone(scope), key.to_owned());
        self.readers.run(move |it| read::sent(it, &scope, &key)).await
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable> {
        let query = query.clone();
        self.readers.run(move |it| list::list(it, &query)).await
    }

    async fn put_push(&self, key: &Key, push: Arc<PushConfig>, most: usize) -> Result<PutResult, Unavailable> {
        let key = key.clone();
        self.writer
            .run(move |it| match read::id(it.db, &key)? {
                Some(task) => push::keep(it.db, task, &push, most),
                None => Ok(PutResult::TaskNotFound),
            })
            .await
    }

    async fn get_push(&self, key: &Key, id: &str) -> Result<Option<Arc<PushConfig>>, Unavailable> {
        let (key, id) = (key.clone(), id.to_owned());
        self.readers.run(move |it| push::get(it, &key, &id)).await
    }

    async fn list_push(&self, key: &Key, after: u64, limit: usize) -> Result<Option<PushPage>, Unavailable> {
        let key = key.clone();
        self.readers.run(move |it| push::page(it, &key, after, limit)).await
    }

    async fn delete_push(&self, key: &Key, id: &str) -> Result<bool, Unavailable> {
        let (key, id) = (key.clone(), id.to_owned());
        self.writer
            .run(move |it| {
                let task = read::id(it.db, &key)?;
                task.map(|task| push::delete(it.db, task, &id)).transpose().map(|it| it.is_some())
            })
            .await
    }

    async fn claim(&self, _: RunnerId, limit: usize, _: Duration) -> Result<Vec<Claim>, Unavailable> {
        let (fence, after) = (self.fence, self.last_claimed.load(Ordering::Acquire));
        let (claimed, last) = self.writer.run(move |it| it.claim(fence, after, limit)).await?;
        self.last_claimed.fetch_max(last, Ordering::AcqRel);
        Ok(claimed)
    }

    async fn diagnose(&self, key: &Key) -> Result<Option<Damaged>, Unavailable> {
        let key = key.clone();
        let found = self.readers.run(move |db| match read::id(db, &key)? {
            Some(id) => check::task(db, id),
            None => Ok(None),
        });
        Ok(found.await?.map(Damaged))
    }

    async fn idle_tasks(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<Key>, Unavailable> {
        self.waiting(before, skip, limit).await
    }

    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<SweepResult, Unavailable> {
        self.keep(policy, now, in_use).await
    }

    async fn log_bytes(&self, key: &Key) -> Result<usize, Unavailable> {
        let key = key.clone();
        self.readers.run(move |it| read::log_bytes(it, &key)).await
    }

    async fn context_bytes(&self, scope: &Arc<Scope>, context: &str, most: usize) -> Result<usize, Unavailable> {
        let (scope, context) = (Arc::clone(scope), context.to_owned());
        self.readers.run(move |db| read::context_bytes(db, &scope, &context, most)).await
    }

    async fn check(&self) -> Result<(), Unavailable> {
        let health = Arc::clone(&self.health);
        self.readers.run(move |_| Ok(health.look())).await??;
        if let Some(it) = self.health.known() {
            return it;
        }
        self.writer.run(|it| it.db.execute_batch(PROBE)).await
    }

    fn fault(&self) -> Option<watch::Receiver<Option<Unavailable>>> {
        Some(self.health.fault.subscribe())
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.room.lock().tasks();
        f.debug_struct("Sqlite").field("path", &self.path()).field("tasks", &tasks).finish_non_exhaustive()
    }
}
