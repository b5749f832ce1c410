//! Persistent task store in an SQLite file. Committed data survives the end of the process.
//!
//! A single thread writes, and combines waiting changes of all tasks into one transaction (group commit). Reads run on a pool of
//! threads with one connection each. Locks of the database and of a lock file give one server exclusive use. After an SQLite error,
//! the transaction is rolled back, and the next one is attempted normally.

use std::{
    fs::File,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI64, Ordering},
        mpsc,
    },
};

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::watch;

pub use self::{
    error::{Error, Problem},
    options::{DEFAULT_MAX_TASKS, Durability, Options},
};
use self::{
    file::{LockedFile, Role, sync_directory},
    health::Health,
    threads::Readers,
    values::unsigned,
    wal_checkpoint::Checkpoints,
    writer::{PROBE, Writer},
};
pub(crate) use self::{
    file::{publish, user_of},
    inspect::{Inspector, Stats},
};
use super::{
    Claim, Commit, Committed, Damaged, Full, InUse, Inspect, ListPage, ListQuery, LogSummary, Maintenance, Refused,
    Retention, Scope, SendOutcome, StoreUsage, StoredTask, SweepResult, TaskKey, TaskStore, Unavailable, quota::Quota,
};
use crate::{
    base::clock::Millis,
    protocol::{
        event::{Event, Fence, Position, Seq},
        pb::v1::{Task, TaskState},
    },
    store::{PushConfig, log_codec::TaskIds},
};

mod counters;
mod delivery;
mod error;
mod export;
mod failpoint;
mod file;
mod health;
mod inspect;
mod list;
mod migrations;
mod options;
mod read;
mod sweep;
#[cfg(test)]
mod tests;
mod threads;
mod transaction;
mod usage;
mod values;
mod wal_checkpoint;
mod write;
mod writer;

/// Number of reader threads.
const READERS: usize = 4;

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
// Fields are dropped in this order: the locks are released after all threads have ended.
pub struct Sqlite {
    readers: Readers,
    /// Connection for the reads of operators, which may take long. Opened by the first one.
    inspection: OnceLock<Readers>,
    writer: Writer,
    _checkpoints: Checkpoints,
    file: LockedFile,
    fence: Fence,
    /// Last row that a claim has examined, since an unreadable row can't always be marked as claimed.
    last_claimed: AtomicI64,
    quota: Arc<Mutex<Quota>>,
    /// Maximum size of the file in bytes.
    max_bytes: Option<u64>,
    health: Arc<Health>,
}

impl Sqlite {
    /// Opens a database, and creates it if it does not exist. Blocks the thread.
    ///
    /// # Errors
    /// Another process uses the database, a newer program or a former build wrote it, the file is not a database of this program or exceeds
    /// the maximum size, or it can't be read or written.
    pub fn open(path: &Path, options: Options) -> Result<Self, Error> {
        let file = LockedFile::lock(path).map_err(|error| error.at(path))?;
        let path = file.path.clone();
        Self::start(file, &options).map_err(|error| error.at(&path))
    }

    fn start(file: LockedFile, options: &Options) -> Result<Self, Error> {
        let file = file.lock_database()?;
        // The fence is durable before it is used, whatever the configured durability, so that it is never reused.
        let mut db = file.connect(Role::Write(Durability::Power))?;
        // Before the migration, which copies an old file, and after it, which adds tables to a new one.
        check_size(&db, options)?;
        migrations::migrate(&mut db, &file.path, &migrations::steps())?;
        check_size(&db, options)?;
        failpoint::at("open.fence")?;
        let (fence, quota) = begin_opening(&db, options)?;
        failpoint::at("open.done")?;
        sync_directory(&file.path)?;
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
        let (inspection, max_bytes) = (OnceLock::new(), options.max_bytes);
        Ok(Self {
            readers,
            inspection,
            writer,
            _checkpoints: checkpoints,
            file,
            fence,
            last_claimed,
            quota,
            max_bytes,
            health,
        })
    }

    /// Runs a query of an operator, on a connection of its own.
    async fn inspect<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let connection = if let Some(opened) = self.inspection.get() {
            opened
        } else {
            let db = self.file.connect(Role::Read).map_err(|error| self.health.unavailable(&error))?;
            let opened = Readers::new(vec![db], Arc::clone(&self.health));
            let opened = opened.map_err(|error| Unavailable(error.to_string()))?;
            self.inspection.get_or_init(|| opened)
        };
        connection.run(move |db| query(db)).await
    }

    /// Runs a query of a task, given its row id. Returns `None` if the task does not exist.
    async fn read_task<T: Send + 'static>(
        &self,
        key: &TaskKey,
        query: impl FnOnce(&Connection, i64) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<Option<T>, Unavailable> {
        let key = key.clone();
        self.readers.run(move |db| read::row_id(db, &key)?.map(|task| query(db, task)).transpose()).await
    }

    /// Canonical path of the database.
    pub fn path(&self) -> &Path {
        &self.file.path
    }
}

/// Rejects a database that is larger than the configured maximum: SQLite would silently ignore such a maximum.
fn check_size(db: &Connection, options: &Options) -> Result<(), Error> {
    let Some(max_bytes) = options.max_bytes else { return Ok(()) };
    let value = |name| db.pragma_query_value(None, name, |row| row.get(0)).map(unsigned);
    let bytes = value("page_count")?.saturating_mul(value("page_size")?);
    if bytes > max_bytes { Err(Problem::TooLarge { bytes, max_bytes }.into()) } else { Ok(()) }
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

    async fn load(&self, key: &TaskKey) -> Result<Option<StoredTask>, Unavailable> {
        let key = key.clone();
        self.readers.run(move |db| read::load(db, &key)).await
    }

    async fn events(
        &self,
        key: &TaskKey,
        after: Seq,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Event>, Unavailable> {
        let events = self.read_task(key, move |db, task| read::events(db, task, after, limit, max_bytes));
        Ok(events.await?.unwrap_or_default())
    }

    async fn find_send(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable> {
        let (scope, key) = (Arc::clone(scope), key.to_owned());
        self.readers.run(move |db| read::find_send(db, &scope, &key)).await
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable> {
        let query = query.clone();
        self.readers.run(move |db| list::list(db, &query)).await
    }

    async fn log_summary(&self, key: &TaskKey) -> Result<LogSummary, Unavailable> {
        Ok(self.read_task(key, read::log_summary).await?.unwrap_or_default())
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

    async fn diagnose(&self, key: &TaskKey) -> Result<Option<Damaged>, Unavailable> {
        Ok(self.read_task(key, inspect::check_task).await?.flatten().map(Damaged))
    }

    async fn idle_tasks(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<TaskKey>, Unavailable> {
        let found = self.readers.run(move |db| sweep::candidates(db, sweep::IDLE, (before, -1), skip, limit)).await?;
        Ok(found.into_iter().map(|candidate| candidate.key).collect())
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

    async fn usage(&self) -> Result<StoreUsage, Unavailable> {
        let max_tasks = u64::try_from(self.quota.lock().max_tasks).ok();
        let (path, max) = (file::wal_path(self.path()), self.max_bytes);
        let usage = self.readers.run(move |db| {
            let files = usage::files(db, &path, max)?;
            Ok(StoreUsage { tasks: usage::tasks(db)?, max_tasks, files: Some(files), connections: None })
        });
        usage.await
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    fn fault(&self) -> Option<watch::Receiver<Option<Unavailable>>> {
        Some(self.health.fault.subscribe())
    }
}

debug_fields!(Sqlite { file, fence });
