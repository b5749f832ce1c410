//! Connections to PostgreSQL, each of which is opened again after a failure, and failures of their statements.

use std::{
    borrow::Cow,
    collections::HashMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream::poll_fn};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout, timeout_at},
};
use tokio_postgres::{
    AsyncMessage, Client, Row, Statement,
    error::SqlState,
    types::{ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Unavailable, describe, options::Settings};
use crate::base::{
    faults::{Fault, Faults},
    metric,
};

/// Maximum time that the opening of a store waits for a connection.
const FIRST_CONNECTION_WAIT: Duration = Duration::from_secs(5);

/// Time since the loss of a connection for which statements wait for the next one.
const CONNECTION_WAIT: Duration = Duration::from_secs(1);

/// Time after which a statement for a waiting caller is given up without a response, so that the caller gets an error soon.
const SHORT_RESPONSE_WAIT: Duration = Duration::from_millis(1100);

/// Time after which other statements, and a connection, are given up without a response: longer than the timeout that the server
/// applies.
const RESPONSE_WAIT: Duration = Duration::from_secs(8);

/// Time after which a statement in the transaction of an export or import is given up: it may read whole tables.
const TRANSFER_RESPONSE_WAIT: Duration = Duration::from_secs(65);

/// Time in which a server that works responds to an empty statement. Also the time after which a short statement is given up while it
/// does not.
const PROBE_WAIT: Duration = Duration::from_millis(400);

/// Delay between two attempts to connect.
const RECONNECT_DELAYS: [Duration; 4] =
    [Duration::from_millis(20), Duration::from_millis(100), Duration::from_millis(300), Duration::from_secs(1)];

/// Maximum number of prepared statements of a connection. Further ones are prepared for each use.
const MAX_STATEMENTS: usize = 256;

/// Settings of a session. One plan per statement is used for all parameters, because planning would take longer than a commit.
const SESSION: &str =
    "SET statement_timeout = '5s'; SET lock_timeout = '2s'; SET idle_in_transaction_session_timeout = '5s';
    SET plan_cache_mode = force_generic_plan; SET default_transaction_isolation = 'read committed'; SET jit = off";

/// Further settings of a session for short statements: rows are found in indexes, also before PostgreSQL knows that a table is large.
/// The plan of a statement is made once.
const SHORT: &str =
    "SET lock_timeout = '1s'; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// Failure of a statement.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// PostgreSQL reports an error, or the connection is lost.
    #[error("{}", describe(.0))]
    Sql(#[from] tokio_postgres::Error),
    /// There is no connection or no response, or the database can't be used.
    #[error("{0}")]
    NotConnected(Box<str>),
    /// Stored data can't be read.
    #[error("damaged data: {0}")]
    Damaged(Box<str>),
}

conversions! {
    Unavailable:
    failure: Failure => Self(failure.to_string());
    error: tokio_postgres::Error => Failure::from(error).into();
}

impl Failure {
    /// Data that this program can't have written.
    pub(super) fn damaged(problem: impl Into<Box<str>>) -> Self {
        Self::Damaged(problem.into())
    }

    /// Returns whether the values of a statement cause the error, so that it fails again.
    pub(super) fn is_caused_by_values(&self) -> bool {
        let Self::Sql(error) = self else { return false };
        // Classes: data, integrity constraint, program limit.
        error.code().is_some_and(|code| ["22", "23", "54"].iter().any(|class| code.code().starts_with(class)))
    }

    /// Returns the name of the constraint that the values of a statement violate.
    pub(super) fn constraint(&self) -> Option<&str> {
        let Self::Sql(error) = self else { return None };
        error.as_db_error()?.constraint()
    }

    /// Returns whether the statement succeeds if it is repeated, and has had no effect.
    pub(super) fn is_conflict(&self) -> bool {
        let Self::Sql(error) = self else { return false };
        error
            .code()
            .is_some_and(|code| [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code))
    }
}

/// Returns whether another session may succeed: the server stops, or is a standby since a failover.
fn ends_session(error: &tokio_postgres::Error) -> bool {
    let is_ending = |code: &SqlState| code.code().starts_with("57P") || *code == SqlState::READ_ONLY_SQL_TRANSACTION;
    error.is_closed() || error.code().is_some_and(is_ending)
}

/// Plants a bug in a statement.
fn with_fault(sql: &str, faults: Faults) -> Cow<'_, str> {
    let edits: [(Fault, &str, &str); 5] = [
        (Fault::CompareOnlySeq, "t.fence = c.xfence AND", ""),
        (Fault::CompareOnlySeq, "AND t.runner IS NOT DISTINCT FROM $1", ""),
        (Fault::KeepFence, "fence = greatest(", "fence = least(t.fence, "),
        (Fault::IgnoreDuplicates, "WHERE c.sends IS NOT NULL", "WHERE c.sends IS NOT NULL ON CONFLICT DO NOTHING"),
        (Fault::MarkBySnapshot, "AND p.cursor < ok.seq", "AND p.due IS NULL AND p.dead IS NULL"),
    ];
    let planted = edits.iter().filter(|(fault, ..)| faults.has(*fault));
    planted.fold(Cow::Borrowed(sql), |sql, (_, text, planted)| sql.replace(text, planted).into())
}

/// Value of a parameter with its type, for which the server need not be asked.
pub(super) trait Parameter: ToSql + Sync {
    /// Type of the parameter.
    fn sql_type(&self) -> Type;
    fn value(&self) -> &(dyn ToSql + Sync);
}

/// Parameters in the order of their numbers.
pub(super) type Parameters<'a> = &'a [&'a dyn Parameter];

macro_rules! parameters {
    ($($($type:ty),+ => $sql_type:ident;)+) => { $($(
        impl Parameter for $type {
            fn sql_type(&self) -> Type {
                Type::$sql_type
            }

            fn value(&self) -> &(dyn ToSql + Sync) {
                self
            }
        }
    )+)+ };
}

parameters! {
    bool => BOOL;
    i16 => INT2;
    i32, Option<i32> => INT4;
    i64, Option<i64> => INT8;
    Uuid, Option<Uuid> => UUID;
    &str, Option<&str>, String, Option<String> => TEXT;
    &[u8], Vec<u8>, Option<Vec<u8>> => BYTEA;
    Vec<bool> => BOOL_ARRAY;
    Vec<i16> => INT2_ARRAY;
    Vec<i32> => INT4_ARRAY;
    Vec<i64>, Vec<Option<i64>> => INT8_ARRAY;
    &[Uuid], Vec<Uuid>, Vec<Option<Uuid>> => UUID_ARRAY;
    Vec<&str>, Vec<String>, Vec<Option<String>> => TEXT_ARRAY;
    Vec<Option<Vec<u8>>> => BYTEA_ARRAY;
}

/// Session of a connection, with its prepared statements.
struct Session {
    client: Client,
    statements: Mutex<HashMap<Box<str>, Statement>>,
    /// Time at which a statement was sent that had no response in time. Others fail at once until the server responds again.
    unresponsive_since: Mutex<Option<Instant>>,
    /// A short statement of a connection whose probe this is had no response in time, nor had an empty one here.
    is_stalled: AtomicBool,
    /// Notified when one of these is set.
    probed: Notify,
    /// The server ends the session, or can't be written to.
    lost: CancellationToken,
}

impl Session {
    fn is_unresponsive(&self) -> bool {
        self.unresponsive_since.lock().is_some()
    }

    /// Waits until the server has not responded for long.
    async fn wait_until_unresponsive(&self) {
        loop {
            self.probed.notified().await;
            let waited = self.unresponsive_since.lock().map_or(Duration::ZERO, |since| since.elapsed());
            // Pipelined: it has a response once the statements before it have theirs.
            let wait = RESPONSE_WAIT.saturating_sub(waited).max(PROBE_WAIT);
            if timeout(wait, self.client.batch_execute("")).await.is_err() {
                return;
            }
            *self.unresponsive_since.lock() = None;
            self.is_stalled.store(false, Ordering::Relaxed);
        }
    }
}

fn unresponsive() -> Failure {
    Failure::NotConnected("the server does not respond".into())
}

/// Session, or the reason why there is none, and since when.
type State = Result<Arc<Session>, (Box<str>, Instant)>;

fn is_open(state: &State) -> bool {
    state.as_ref().is_ok_and(|session| !session.lost.is_cancelled() && !session.client.is_closed())
}

/// Use of a connection.
pub(super) enum Use {
    /// Statements that read or write few rows.
    Short,
    /// Batches of commits.
    Commits,
    /// Statements that may read whole tables.
    Long,
    Notifications(Listener),
}

/// Receiver of the notifications of a replica.
pub(super) struct Listener {
    /// Name of the channel without the number of the replica.
    pub(super) prefix: String,
    pub(super) replica: watch::Receiver<u64>,
    pub(super) receive: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Connection that is opened again after a failure, as long as it is not dropped. Statements of several callers are pipelined, so
/// each is a transaction of its own.
#[derive(Clone)]
pub(super) struct Connection {
    state: watch::Receiver<State>,
    /// Replaces `@` in statements.
    schema: Box<str>,
    is_prepared: bool,
    faults: Faults,
    /// The duration of its statements is that of the database.
    is_short: bool,
    response_wait: Duration,
    /// Another connection, without large rows. While the server responds there, a statement may wait longer; while it does not, a short
    /// one waits for less time.
    probe: Option<Arc<Self>>,
}

impl Connection {
    /// Starts to connect.
    pub(super) fn open(settings: &Settings, tls: &MakeRustlsConnect, use_of: Use) -> Self {
        let (sender, state) = watch::channel(Err(("not connected yet".into(), Instant::now())));
        let response_wait = if matches!(use_of, Use::Short) { SHORT_RESPONSE_WAIT } else { RESPONSE_WAIT };
        let (schema, is_short) = (format!("{}.", settings.schema).into(), matches!(use_of, Use::Short | Use::Commits));
        tokio::spawn(keep_open(sender, settings.clone(), tls.clone(), use_of));
        let (is_prepared, faults) = (settings.is_prepared, settings.faults);
        Self { state, schema, is_prepared, faults, is_short, response_wait, probe: None }
    }

    /// Returns this connection, whose statements wait for long only while the server responds on another one.
    pub(super) fn with_probe(self, probe: &Arc<Self>) -> Self {
        Self { response_wait: SHORT_RESPONSE_WAIT, probe: Some(Arc::clone(probe)), ..self }
    }

    /// Ends the present session, so that another one begins.
    pub(super) fn reconnect(&self) {
        if let Ok(session) = &*self.state.borrow() {
            session.lost.cancel();
        }
    }

    /// Returns whether the server responds.
    async fn is_responsive(&self) -> bool {
        let session = self.state.borrow().clone().ok().filter(|session| !session.is_unresponsive());
        let Some(session) = session else { return false };
        let response = timeout(PROBE_WAIT, session.client.batch_execute("")).await;
        response.is_ok_and(|response| response.is_ok())
    }

    /// Lets the statements of connections with this probe wait for less time, until the server responds here.
    fn set_stalled(&self) {
        if let Ok(session) = &*self.state.borrow() {
            session.is_stalled.store(true, Ordering::Relaxed);
            session.probed.notify_one();
        }
    }

    fn is_stalled(&self) -> bool {
        self.state.borrow().as_ref().is_ok_and(|session| session.is_stalled.load(Ordering::Relaxed))
    }

    /// Returns whether there is a session that is not lost.
    pub(super) fn is_open(&self) -> bool {
        is_open(&self.state.borrow())
    }

    /// Runs a statement, in which `@` stands for the schema. Returns its rows.
    pub(super) async fn query(&self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, Failure> {
        let (session, sql) = (self.session().await?, &*with_fault(sql, self.faults));
        let run = async {
            if self.is_prepared {
                let types: Vec<Type> = parameters.iter().map(|parameter| parameter.sql_type()).collect();
                let statement = self.prepare(&session, sql, &types).await?;
                let values: Vec<_> = parameters.iter().map(|parameter| parameter.value()).collect();
                session.client.query(&statement, &values).await
            } else {
                let values: Vec<_> =
                    parameters.iter().map(|parameter| (parameter.value(), parameter.sql_type())).collect();
                session.client.query_typed(&sql.replace('@', &self.schema), &values).await
            }
        };
        if session.is_unresponsive() {
            return Err(unresponsive());
        }
        let sent = Instant::now();
        let is_stalled = self.is_short && self.probe.as_ref().is_some_and(|probe| probe.is_stalled());
        let mut run = pin!(run);
        let mut rows = timeout(if is_stalled { PROBE_WAIT } else { self.response_wait }, &mut run).await;
        if let (true, Some(probe)) = (rows.is_err() && !is_stalled, &self.probe) {
            if probe.is_responsive().await {
                rows = timeout(RESPONSE_WAIT, run).await;
            } else if self.is_short {
                probe.set_stalled();
            }
        }
        if self.is_short {
            metric::STATEMENT_DURATION.observe(None, &[], sent.elapsed());
        }
        let Ok(rows) = rows else {
            session.unresponsive_since.lock().get_or_insert(sent);
            session.probed.notify_one();
            return Err(unresponsive());
        };
        if rows.as_ref().is_err_and(ends_session) {
            session.lost.cancel();
        }
        Ok(rows?)
    }

    /// Runs a statement that returns at most one row.
    pub(super) async fn query_row(&self, sql: &str, parameters: Parameters<'_>) -> Result<Option<Row>, Failure> {
        Ok(self.query(sql, parameters).await?.pop())
    }

    /// Runs statements without parameters, in one transaction.
    pub(super) async fn execute_script(&self, sql: &str) -> Result<(), Failure> {
        Ok(self.session().await?.client.batch_execute(&sql.replace('@', &self.schema)).await?)
    }

    /// Waits for the first session, or the failure of several attempts.
    pub(super) async fn wait_until_open(&self) -> Result<(), Failure> {
        self.session_within(FIRST_CONNECTION_WAIT).await.map(drop)
    }

    /// Returns this connection with its present session only. Statements fail after a failure of that, so that those of a
    /// transaction have no effect outside of it.
    pub(super) async fn pinned(&self) -> Result<Self, Failure> {
        let (_, state) = watch::channel(Ok(self.session().await?));
        Ok(Self { state, response_wait: TRANSFER_RESPONSE_WAIT, ..self.clone() })
    }

    async fn session(&self) -> Result<Arc<Session>, Failure> {
        self.session_within(CONNECTION_WAIT).await
    }

    async fn session_within(&self, time: Duration) -> Result<Arc<Session>, Failure> {
        let mut state = self.state.clone();
        let since = state.borrow().as_ref().map_or_else(|(_, since)| *since, |_| Instant::now());
        // Also ends when the sender is dropped, at the end of the runtime.
        _ = timeout_at(since + time, state.wait_for(is_open)).await;
        let session = state.borrow().clone();
        session.map_err(|(reason, _)| Failure::NotConnected(reason))
    }

    async fn prepare(&self, session: &Session, sql: &str, types: &[Type]) -> Result<Statement, tokio_postgres::Error> {
        let known = session.statements.lock().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = session.client.prepare_typed(&sql.replace('@', &self.schema), types).await?;
        let mut statements = session.statements.lock();
        if statements.len() < MAX_STATEMENTS {
            statements.insert(sql.into(), statement.clone());
        }
        Ok(statement)
    }
}

/// Connects, and connects again after each failure, until the receivers are dropped.
async fn keep_open(state: watch::Sender<State>, settings: Settings, tls: MakeRustlsConnect, mut use_of: Use) {
    let (mut failures, mut since) = (0, Instant::now());
    while !state.is_closed() {
        let ended = run_session(&state, &settings, &tls, &mut use_of).await;
        let reason = match &ended {
            Ended::Failed(reason) | Ended::Lost(reason) => reason.clone(),
            Ended::OtherChannel => "the channel has changed".to_owned(),
        };
        (failures, since) = if matches!(ended, Ended::Failed(_)) { (failures + 1, since) } else { (0, Instant::now()) };
        let is_failure = !state.is_closed() && !matches!(ended, Ended::OtherChannel);
        if is_failure && !settings.is_outage_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(error.cause = reason, "no connection to PostgreSQL");
        }
        drop(state.send_replace(Err((reason.into(), since))));
        let delay = RECONNECT_DELAYS[failures.min(RECONNECT_DELAYS.len() - 1)];
        // Ends early when the receivers are dropped.
        _ = timeout(delay, state.closed()).await;
    }
}

/// Reason why there is no session any more.
enum Ended {
    /// The session could not begin.
    Failed(String),
    /// The session began, and its connection was lost.
    Lost(String),
    /// The listener has another channel.
    OtherChannel,
}

async fn run_session(
    state: &watch::Sender<State>,
    settings: &Settings,
    tls: &MakeRustlsConnect,
    use_of: &mut Use,
) -> Ended {
    let (client, mut connection) = match timeout(RESPONSE_WAIT, settings.config.connect(tls.clone())).await {
        Ok(Ok(connected)) => connected,
        Ok(Err(error)) => return Ended::Failed(describe(&error)),
        Err(_) => return Ended::Failed("the server does not respond".to_owned()),
    };
    // Between this program and the database may be a pool, whose sessions are those of others too.
    let mut script = if settings.is_prepared { SESSION.to_owned() } else { String::new() };
    let mut receive = None;
    match use_of {
        Use::Short | Use::Commits if settings.is_prepared => script = format!("{script}; {SHORT}"),
        Use::Short | Use::Commits | Use::Long => {}
        Use::Notifications(listener) => {
            let replica = *listener.replica.borrow();
            script = format!("{script}; LISTEN \"{}{replica}\"", listener.prefix);
            receive = Some(Arc::clone(&listener.receive));
        }
    }
    let mut driver = tokio::spawn(async move {
        let mut messages = poll_fn(move |context| connection.poll_message(context));
        while let Some(message) = messages.next().await {
            match (message, &receive) {
                (Ok(AsyncMessage::Notification(notification)), Some(receive)) => receive(notification.payload()),
                (Ok(_), _) => {}
                (Err(error), _) => return describe(&error),
            }
        }
        "the connection was closed".to_owned()
    });
    let begun = timeout(RESPONSE_WAIT, client.batch_execute(&script)).await;
    let ended = if let Ok(Err(error)) = begun {
        Ended::Failed(describe(&error))
    } else if begun.is_err() {
        Ended::Failed("the server does not respond".to_owned())
    } else {
        let session = Arc::new(Session {
            client,
            statements: Mutex::default(),
            unresponsive_since: Mutex::default(),
            is_stalled: AtomicBool::default(),
            probed: Notify::new(),
            lost: CancellationToken::new(),
        });
        drop(state.send_replace(Ok(Arc::clone(&session))));
        if settings.is_outage_logged.swap(false, Ordering::Relaxed) {
            tracing::info!("connected to PostgreSQL again");
        }
        let other_channel = async {
            match use_of {
                Use::Notifications(listener) => _ = listener.replica.changed().await,
                Use::Short | Use::Commits | Use::Long => std::future::pending().await,
            }
        };
        tokio::select! {
            reason = &mut driver => Ended::Lost(reason.unwrap_or_else(|error| error.to_string())),
            () = session.lost.cancelled() => Ended::Lost("the server stops, or can't be written to".to_owned()),
            () = session.wait_until_unresponsive() => Ended::Lost(unresponsive().to_string()),
            () = other_channel => Ended::OtherChannel,
            () = state.closed() => Ended::Lost("the store was closed".to_owned()),
        }
    };
    driver.abort();
    ended
}
