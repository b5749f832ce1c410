//! Persistent task store in a PostgreSQL database, which several servers can share: each of them is a replica.
//!
//! Each statement is a transaction of its own, so that the statements of all tasks are pipelined on a few connections. The database
//! compares the runner, the fence and the position of a task with each commit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;

pub use self::options::Options;
use self::{
    connection::{Connection, Failure, Use},
    options::Settings,
    read::{COLUMNS, LOG_SUMMARY, WITH_LOG},
    values::{comparable, digest, key, scope_row, signed, task_row, unsigned},
    wake::Wakes,
};
use super::{
    Claim, Commit, Committed, Damaged, Full, InUse, Inspect, ListPage, ListQuery, LogSummary, Maintenance, Millis,
    PushConfig, Refused, Retention, Scope, SendOutcome, SharedStore, StoreUsage, StoredTask, SweepResult, TaskKey,
    TaskStore, Unavailable, quota::Quota,
};
use crate::protocol::{
    error::chain,
    event::{Event, Fence, Position, Seq},
    pb::v1::{Task, TaskState},
};

mod archive;
mod cluster;
mod commit;
mod connection;
mod delivery;
mod inspect;
mod list;
mod options;
mod quota;
mod read;
mod schema;
mod shared;
mod sweep;
mod tls;
mod values;
mod wake;

/// Store in a PostgreSQL database.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use a2a_service::{agent::demo::Demo, server::Server, store::postgres::{Options, Postgres}};
///
/// # async fn open() -> Result<(), a2a_service::store::postgres::Error> {
/// let store = Postgres::open("postgres://a2a@db1,db2/a2a", &Options::default()).await?;
/// let server = Server::new(Demo).store(Arc::new(store));
/// # Ok(())
/// # }
/// ```
pub struct Postgres {
    /// Each of them has at most one batch of commits in flight.
    lanes: [Connection; 2],
    /// Statements with tasks, messages, or parts of them.
    readers: [Connection; 2],
    next_reader: AtomicUsize,
    /// Statements with short values, such as the renewal of the lease.
    control: Arc<Connection>,
    /// Statements that may take long: those of sweeps and operators, and counts that have taken long before.
    background: Arc<Connection>,
    /// Id of this replica.
    id: watch::Sender<u64>,
    first_fence: Fence,
    name: Box<str>,
    lease: Duration,
    wakes: Wakes,
    totals: list::Totals,
    usage: Arc<Mutex<quota::Usage>>,
    max_push_configs_per_owner: usize,
}

/// Failure of opening a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is invalid.
    #[error("the URL of the store is invalid: {0}")]
    Url(String),
    /// Root certificates can't be read.
    #[error("TLS of the store: {0}")]
    Tls(String),
    /// A newer version of this program has changed the database.
    #[error(
        "the database has schema version {version}, but this program supports versions up to {newest}; use a newer program"
    )]
    Newer {
        /// Schema version of the database.
        version: i32,
        /// Newest supported schema version.
        newest: i32,
    },
    /// The database has an older schema, or none, and must not be changed.
    #[error(
        "the database has schema version {version}, but this program needs version {newest}; run `a2a admin migrate`"
    )]
    Older {
        /// Schema version of the database. 0: it has none.
        version: i32,
        /// Schema version of this program.
        newest: i32,
    },
    /// The database can't be reached, or reports an error.
    #[error("PostgreSQL: {0}")]
    Database(String),
}

conversions! { Error: failure: Failure => Self::Database(failure.to_string()); }

/// Describes an error of PostgreSQL, or of the connection to it. Contains no password.
fn describe(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => format!("{} (SQLSTATE {})", error.message(), error.code().code()),
        None => chain(error),
    }
}

impl Postgres {
    /// Connects to a database, and creates the schema if it does not exist. The URL is one of libpq, such as
    /// `postgres://user@host1,host2/database?sslmode=verify-full`. The parameter `schema` names the schema, by default `a2a`. A password
    /// that the URL and the options do not have is that in the variable `PGPASSWORD`, or in the file `.pgpass`.
    ///
    /// Certificates of other hosts are verified, unless the URL has another `sslmode`.
    ///
    /// # Errors
    /// The URL is invalid, the database can't be reached, or a newer program has changed it.
    pub async fn open(url: &str, options: &Options) -> Result<Self, Error> {
        let settings = Settings::parse(url, options)?;
        let tls = tls::connector(&settings)?;
        let connect = |use_of| Connection::open(&settings, &tls, use_of);
        let control = Arc::new(connect(Use::Short));
        control.wait_until_open().await?;
        schema::prepare(&control, &settings.schema, options.migrates).await?;
        // A greater one than that of any earlier opening.
        let first_fence = shared::add_replica(&control, options.lease).await?;
        let (id, replica) = watch::channel(first_fence);
        let listen = match &options.listen {
            _ if !options.notifies => None,
            Some(url) => {
                let settings = Settings {
                    schema: settings.schema.clone(),
                    ..Settings::parse(url, &options.clone().prepared(true))?
                };
                Some((settings.clone(), tls::connector(&settings)?))
            }
            None => options.prepared.then(|| (settings.clone(), tls.clone())),
        };
        let wakes = Wakes::new(&settings.schema, options.notifies, listen, Arc::clone(&control), replica);
        let store = Self::new(options, id, first_fence, wakes, &control, |use_of| match use_of {
            Use::Commits => connect(use_of),
            Use::Short | Use::Long | Use::Notifications(_) => connect(use_of).with_probe(&control),
        });
        let (usage, background) = (Arc::downgrade(&store.usage), Arc::clone(&store.background));
        tokio::spawn(quota::keep(usage, background, store.id.subscribe()));
        Ok(store)
    }

    /// Creates the store of a replica, with these connections beside that of control.
    fn new(
        options: &Options,
        id: watch::Sender<u64>,
        first_fence: Fence,
        wakes: Wakes,
        control: &Arc<Connection>,
        connect: impl Fn(Use) -> Connection,
    ) -> Self {
        let Options { max_tasks, max_tasks_per_owner, .. } = *options;
        let quota = Quota { max_tasks, max_tasks_per_owner, ..Quota::default() };
        Self {
            lanes: [(); 2].map(|()| connect(Use::Commits)),
            readers: [(); 2].map(|()| connect(Use::Short)),
            next_reader: AtomicUsize::new(0),
            control: Arc::clone(control),
            background: Arc::new(connect(Use::Long)),
            id,
            first_fence,
            name: options.name.replace('\0', "").into(),
            lease: options.lease,
            wakes,
            totals: list::Totals::default(),
            usage: Arc::new(Mutex::new(quota::Usage { quota, states: Vec::new() })),
            max_push_configs_per_owner: options.max_push_configs_per_owner,
        }
    }

    /// Creates or migrates the schema, without joining the other servers.
    ///
    /// # Errors
    /// The URL is invalid, the database can't be reached, or a newer program has changed it.
    pub async fn migrate(url: &str, options: &Options) -> Result<(), Error> {
        let (settings, connection) = Self::connect(url, options).await?;
        schema::prepare(&connection, &settings.schema, true).await
    }

    /// Connects to a database for the statements of an operator.
    async fn connect(url: &str, options: &Options) -> Result<(Settings, Connection), Error> {
        let settings = Settings::parse(url, options)?;
        let connection = Connection::open(&settings, &tls::connector(&settings)?, Use::Long);
        connection.wait_until_open().await?;
        Ok((settings, connection))
    }

    fn reader(&self) -> &Connection {
        &self.readers[self.next_reader.fetch_add(1, Ordering::Relaxed) % self.readers.len()]
    }

    /// Id of this replica as a parameter.
    fn replica_row(&self) -> i64 {
        signed(*self.id.borrow())
    }
}

#[async_trait]
impl TaskStore for Postgres {
    /// While one batch is written, the other one is collected.
    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn first_fence(&self) -> Fence {
        self.first_fence
    }

    fn shared(&self) -> Option<&dyn SharedStore> {
        Some(self)
    }

    fn check_capacity(&self, scope: &Scope) -> Result<(), Full> {
        self.check_quota(scope)
    }

    async fn commit(&self, batch: Arc<[Commit]>) -> Result<Vec<Result<Committed, Refused>>, Unavailable> {
        let outcomes = self.commit_batch(Arc::clone(&batch)).await?;
        self.count_commits(&batch, &outcomes);
        Ok(outcomes)
    }

    async fn load(&self, key: &TaskKey) -> Result<Option<StoredTask>, Unavailable> {
        let sql =
            format!("SELECT {COLUMNS}, {LOG_SUMMARY} FROM @task t {} WHERE t.tid = $1 AND t.state >= 0", *WITH_LOG);
        let row = self.reader().query_row(&sql, &[&task_row(key)]).await?;
        Ok(row.map(|row| read::stored_task(&row)).transpose()?)
    }

    async fn events(
        &self,
        key: &TaskKey,
        after: Seq,
        limit: usize,
        max_bytes: usize,
    ) -> Result<Vec<Event>, Unavailable> {
        Ok(read::events(self.reader(), task_row(key), after, limit, max_bytes).await?)
    }

    async fn find_send(&self, scope: &Arc<Scope>, key: &str) -> Result<Option<SendOutcome>, Unavailable> {
        let sql = "SELECT id, seq, hash FROM @send WHERE scope = $1 AND key = $2";
        let row = self.reader().query_row(sql, &[&scope_row(scope), &comparable(key)]).await?;
        let outcome = row.map(|row| {
            let (task_id, hash) = (row.try_get::<_, &str>("id")?.into(), digest(&row)?);
            Ok::<_, Failure>(SendOutcome { task_id, seq: unsigned(&row, "seq")?, hash })
        });
        Ok(outcome.transpose()?)
    }

    async fn list(&self, query: &ListQuery) -> Result<ListPage, Unavailable> {
        Ok(self.list_tasks(query).await?)
    }

    async fn log_summary(&self, key: &TaskKey) -> Result<LogSummary, Unavailable> {
        let sql = format!("SELECT {LOG_SUMMARY} FROM @task t WHERE tid = $1 AND state >= 0");
        let row = self.reader().query_row(&sql, &[&task_row(key)]).await?;
        Ok(row.map(|row| read::log_summary(&row)).transpose()?.unwrap_or_default())
    }

    async fn context_bytes(&self, scope: &Arc<Scope>, context: &str, _max: usize) -> Result<usize, Unavailable> {
        let sql = "SELECT coalesce(sum(bytes), 0)::int8 AS bytes FROM @task WHERE scope = $1 AND context = $2";
        let row = self.reader().query_row(sql, &[&scope_row(scope), &comparable(context)]).await?;
        let bytes = row.map(|row| unsigned(&row, "bytes")).transpose()?;
        Ok(usize::try_from(bytes.unwrap_or(0)).unwrap_or(usize::MAX))
    }
}

#[async_trait]
impl Maintenance for Postgres {
    async fn claim(&self, limit: usize) -> Result<Vec<Claim>, Unavailable> {
        self.claim_tasks(limit).await
    }

    async fn diagnose(&self, key: &TaskKey) -> Result<Option<Damaged>, Unavailable> {
        let tid = task_row(key);
        let contents = async {
            read::task(self.reader(), tid).await?;
            read::turns(self.reader(), tid).await
        };
        match contents.await {
            Err(Failure::Damaged(problem)) => Ok(Some(Damaged(problem.into()))),
            read => Ok(read.map(|_| None)?),
        }
    }

    async fn idle_tasks(&self, before: Millis, skip: usize, limit: usize) -> Result<Vec<TaskKey>, Unavailable> {
        let sql = r#"SELECT owner, tenant, id FROM @task WHERE NOT open AND state IN (6, 8) AND "time" < $1
            ORDER BY "time", tid LIMIT $2 OFFSET $3"#;
        let rows = self.background.query(sql, &[&before, &signed(limit), &signed(skip)]).await?;
        Ok(rows.iter().map(key).collect::<Result<_, _>>()?)
    }

    async fn sweep(&self, policy: &Retention, now: Millis, in_use: InUse<'_>) -> Result<SweepResult, Unavailable> {
        Ok(self.delete_expired(policy, now, in_use).await?)
    }

    async fn check(&self) -> Result<(), Unavailable> {
        Ok(schema::check(&self.lanes[0]).await?)
    }

    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }

    async fn usage(&self) -> Result<StoreUsage, Unavailable> {
        let others = [&*self.control, &*self.background].into_iter().chain(self.wakes.connection());
        let connections = self.lanes.iter().chain(&self.readers).chain(others);
        let usage = self.usage.lock();
        Ok(StoreUsage {
            tasks: usage.states.clone(),
            max_tasks: u64::try_from(usage.quota.max_tasks).ok(),
            files: None,
            connections: Some(connections.filter(|connection| connection.is_open()).count()),
        })
    }
}

debug_fields!(Postgres { first_fence });
