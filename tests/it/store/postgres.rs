//! Conformance suite and further tests of the PostgreSQL store. They need a server, whose URL is in `A2A_TEST_POSTGRES`:
//! `scripts/postgres` starts one and runs them. Without it they pass, and say so.

#![expect(clippy::print_stderr, reason = "tests print what they measure, and say that they are skipped")]

use std::{
    env, fs, iter,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    base::faults::{Fault, Faults},
    pb::v1::{TaskPushNotificationConfig, TaskState},
    protocol::Version,
    store::{
        Commit, Committed, DeliveryOutcome, Full, Lease, Load, Maintenance as _, Note, PushConfig, PushQueue as _,
        Refused, Rejected, Renewal, ReplicaInfo, SharedStore as _, TaskKey, TaskStore as _,
        postgres::{Error, Options, Postgres},
    },
};
use a2a_store_suite::{Setup, StoreSuite, writer::TaskWriter};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_postgres::{Client, NoTls};

use crate::{
    bindings, program,
    scenarios::{get, send, text},
};

use super::writer::{chunk, message, scope, status};

/// Test database, with schemas that are deleted when it is dropped.
#[derive(Clone)]
pub(crate) struct Database {
    url: String,
    /// Beginning of the names of its schemas.
    prefix: String,
}

impl Database {
    /// Returns the database, if a server is configured.
    pub(crate) fn find() -> Option<Self> {
        Self::at("A2A_TEST_POSTGRES")
    }

    /// Returns the database whose URL is in a variable.
    pub(crate) fn at(variable: &str) -> Option<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let Ok(url) = env::var(variable) else {
            eprintln!("skipped: {variable} is not set; scripts/postgres runs this test");
            return None;
        };
        let prefix = format!("test_{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Some(Self { url, prefix })
    }

    /// Returns the URL of a schema.
    pub(crate) fn url(&self, name: &str) -> String {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        format!("{}{separator}schema={}_{}", self.url, self.prefix, name.replace('-', "_"))
    }

    /// Returns the URL of a schema of another database, which is the same behind a pool.
    pub(crate) fn url_of(&self, other: &Self, name: &str) -> String {
        Self { url: self.url.clone(), ..other.clone() }.url(name)
    }

    pub(super) async fn open(&self, name: &str, options: &Options) -> Postgres {
        Postgres::open(&self.url(name), options).await.unwrap()
    }

    /// Opens two replicas.
    async fn replicas(&self) -> (Postgres, Postgres) {
        let options = Options::default();
        (self.open("store", &options).await, self.open("store", &options).await)
    }

    /// Runs statements on a connection of their own.
    pub(crate) async fn run(&self, sql: &str) -> Vec<Vec<String>> {
        self.run_on(&self.connect().await, sql).await
    }

    async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    /// Runs statements, in which `@` stands for the schema of [`replicas`](Self::replicas).
    async fn run_on(&self, client: &Client, sql: &str) -> Vec<Vec<String>> {
        let rows = client.simple_query(&sql.replace('@', &format!("{}_store.", self.prefix))).await.unwrap();
        let rows = rows.iter().filter_map(|row| {
            let tokio_postgres::SimpleQueryMessage::Row(row) = row else { return None };
            Some((0..row.len()).map(|n| row.get(n).unwrap_or_default().to_owned()).collect())
        });
        rows.collect()
    }

    /// Deletes the schemas.
    pub(crate) async fn remove(&self) {
        let sql =
            format!("SELECT nspname FROM pg_namespace WHERE nspname LIKE '{}\\_%'", self.prefix.replace('_', "\\_"));
        for schema in self.run(&sql).await {
            self.run(&format!("SET client_min_messages = warning; DROP SCHEMA {} CASCADE", schema[0])).await;
        }
    }
}

fn suite(database: &Database, options: &Options) -> StoreSuite {
    let (database, options) = (database.clone(), options.clone());
    let open = move |setup: Setup| {
        let (database, mut options) = (database.clone(), options.clone());
        options.max_push_configs_per_owner = setup.max_push_configs_per_owner;
        async move { database.open(&setup.database, &options).await }
    };
    StoreSuite::new::<Postgres, _>(open).with_separate_retention().with_inspection().shared()
}

async fn conforms(database: &Database, options: &Options) {
    let (suite, mut failures) = (suite(database, options), Vec::new());
    for case in suite.cases() {
        if let Err(failure) = suite.run_case(case).await {
            failures.push(failure.to_string());
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_store_conforms() {
    let Some(database) = Database::find() else { return };
    conforms(&database, &Options::default()).await;
    database.remove().await;
}

/// The server is behind PgBouncer in transaction mode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_store_behind_a_pool_conforms() {
    let Some(pool) = Database::at("A2A_TEST_PGBOUNCER") else { return };
    conforms(&pool, &Options::default().prepared(false)).await;
    pool.remove().await;
}

/// A case of the stores with quotas that applies to this one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn push_configurations_per_owner_are_limited() {
    let Some(database) = Database::find() else { return };
    let case = "push_configurations_per_owner_are_limited_over_all_tenants";
    suite(&database, &Options::default()).with_quotas().run_case(case).await.unwrap();
    database.remove().await;
}

/// The suite finds a planted bug with the case that is named here, and a test of this module the last one.
#[cfg_attr(not(debug_assertions), ignore = "bugs are planted only with debug assertions")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_bugs_are_found() {
    let Some(database) = Database::find() else { return };
    for (fault, case) in [
        (Fault::CompareOnlySeq, "fenced_runner_is_refused"),
        (Fault::KeepFence, "fenced_runner_is_refused"),
        (Fault::IgnoreDuplicates, "key_of_two_replicas_is_recorded_once"),
    ] {
        let options = Options::default().faults(Faults::only(fault));
        let failure = suite(&database, &options).run_case(case).await.unwrap_err();
        assert_eq!(failure.case(), case, "{fault:?}");
        database.remove().await;
    }
    let options = Options::default().faults(Faults::only(Fault::MarkBySnapshot));
    assert_eq!(due_after_blocked_commit(&database, &options, false).await, [["a", ""]], "the event is never delivered");
    database.remove().await;
}

/// Certificates are verified against the root and the host, and bound to the proof of the password. An error has no password. A host
/// that is away is skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_passwords_are_verified() {
    let (Some(database), Ok(root)) = (Database::find(), env::var("A2A_TEST_POSTGRES_ROOT")) else { return };
    let address = database.url.split(['@', '/']).nth(3).unwrap();
    let (_, port) = address.split_once(':').unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let wrong = directory.path().join("other.pem");
    fs::write(&wrong, other.cert.pem()).unwrap();
    let open = async |host: &str, root: &str, password: &str, mode: &str| {
        let schema = format!("{}_tls", database.prefix);
        let url = format!(
            "postgres://secret@{host}/a2a?schema={schema}&sslmode={mode}&sslrootcert={root}&channel_binding=require"
        );
        Postgres::open(&url, &Options::default().password(Some(password.to_owned()))).await
    };
    let named = format!("localhost:{port}");
    open(&named, &root, "sesame", "verify-full").await.unwrap();
    open(&format!("localhost:1,localhost:{port}"), &root, "sesame", "verify-full").await.unwrap();
    open(address, &root, "sesame", "verify-ca").await.unwrap();
    for (host, root, password, cause) in [
        (address, &*root, "sesame", "certificate"),
        (&named, wrong.to_str().unwrap(), "sesame", "certificate"),
        (&named, &root, "mellon", "password authentication failed"),
    ] {
        let error = open(host, root, password, "verify-full").await.unwrap_err().to_string();
        assert!(error.contains(cause) && !error.contains(password), "{error}");
    }
    // The password of another host is not used.
    let file = directory.path().join("passwords");
    fs::write(&file, format!("other:*:*:*:mellon\nlocalhost:{port}:a2a:secret:sesame\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let url = format!("postgres://secret@{named}/a2a?schema={}_tls&sslmode=require", database.prefix);
    Postgres::open(&format!("{url}&passfile={}", file.display()), &Options::default()).await.unwrap();
    for (password, is_right) in [("sesame", true), ("mellon", false)] {
        let mut command = program::a2a(&["admin", "cluster", "--store", &url]);
        command.env("PGPASSWORD", password);
        let output = program::output(command).await;
        assert_eq!(output.status.success(), is_right, "{output:?}");
        assert!(!format!("{output:?}").contains(password), "{output:?}");
    }
    database.remove().await;
}

fn committed(outcomes: &[Result<Committed, Refused>]) -> usize {
    outcomes.iter().filter(|outcome| outcome.is_ok()).count()
}

/// Values that can't be stored are the error of their task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_that_cannot_be_stored_is_rejected_alone() {
    let Some(database) = Database::find() else { return };
    let (store, _) = database.replicas().await;
    let ada = scope("ada", "");
    let mut tasks: Vec<_> = (0..40).map(|n| TaskWriter::new(&ada, &format!("t-{n}"))).collect();
    // An id that PostgreSQL can't store, and one that is too long for its index.
    tasks[7] = TaskWriter::new(&ada, "t\0");
    let mut random = 1_u64;
    let mut letter = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'0' + u8::try_from(random >> 58).unwrap())
    };
    let long: String = (0..9000).map(|_| letter()).collect();
    tasks[23] = TaskWriter::new(&ada, &long);
    let commits: Vec<_> = tasks.iter().map(|task| task.next(&store, [])).collect();
    let outcomes = store.commit(commits.clone().into()).await.unwrap();
    assert_eq!(committed(&outcomes), 38, "{outcomes:?}");
    for n in [7, 23] {
        assert!(matches!(&outcomes[n], Err(Refused::Rejected(Rejected::Invalid(_)))), "{:?}", outcomes[n]);
    }
    assert!(store.load(&tasks[7].key).await.unwrap().is_none());
    assert!(store.find_send(&ada, "k\0").await.unwrap().is_none());
    // Among updates too.
    for (task, commit) in tasks.iter_mut().zip(commits) {
        task.record(commit);
    }
    let mut updates: Vec<_> = tasks
        .iter()
        .take(20)
        .filter(|task| task.key.id() != "t\0")
        .map(|task| task.next(&store, [message("hi")]))
        .collect();
    updates[4].sends = super::keyed(&long, 1, 2);
    let outcomes = store.commit(updates.into()).await.unwrap();
    assert_eq!(committed(&outcomes), 18, "{outcomes:?}");
    database.remove().await;
}

/// Plans of the commits of a store, with what each of their steps did.
struct Plans {
    store: Postgres,
    /// Name of the schema of the store, which its plans have.
    schema: String,
    /// Log of the server.
    log: PathBuf,
}

impl Plans {
    async fn open(database: &Database, log: PathBuf) -> Self {
        let settings = "session_preload_libraries=auto_explain auto_explain.log_min_duration=0 auto_explain.log_analyze=on \
                        auto_explain.log_timing=off auto_explain.log_level=log auto_explain.log_format=json";
        let settings = format!("-c {}", settings.replace(' ', " -c ")).replace(' ', "%20").replace('=', "%3D");
        let url = format!("{}&options={settings}", database.url("store"));
        let store = Postgres::open(&url, &Options::default()).await.unwrap();
        Self { store, schema: format!("{}_store", database.prefix), log }
    }

    /// Commits changes of so many tasks, first new ones. Returns the plan of the third commit.
    async fn of_a_commit(&self, count: usize) -> Value {
        let scope = scope("ada", "");
        let mut tasks: Vec<_> = (0..count).map(|n| TaskWriter::new(&scope, &format!("{count}-{n:04}"))).collect();
        for _ in 0..3 {
            let commits = tasks.iter().map(|task| task.next(&self.store, [chunk("a", &"x".repeat(200), true)]));
            let commits: Vec<_> = commits.collect();
            let outcomes = self.store.commit(commits.clone().into()).await.unwrap();
            assert_eq!(committed(&outcomes), count);
            tasks.iter_mut().zip(commits).for_each(|(task, commit)| task.record(commit));
        }
        self.last_commit()
    }

    /// Reads the newest plan of a commit with updates in the log of the server.
    fn last_commit(&self) -> Value {
        let log = fs::read_to_string(&self.log).unwrap();
        // The lines of an entry after its first begin with a tab.
        let entries = log.split("plan:\n").skip(1).map(|entry| entry.lines().map_while(|line| line.strip_prefix('\t')));
        let is_update = |entry: &String| entry.contains(&self.schema) && entry.contains("task t SET fence");
        let newest = entries.map(Iterator::collect::<String>).filter(is_update).last();
        serde_json::from_str::<Value>(&newest.unwrap()).unwrap()["Plan"].take()
    }
}

/// Returns the steps of a plan.
fn steps(plan: &Value) -> Vec<&Value> {
    let below = plan["Plans"].as_array().into_iter().flatten().flat_map(steps);
    iter::once(plan).chain(below).collect()
}

/// Returns the number of rows that the steps of a plan have looked at.
fn rows(plan: &Value) -> f64 {
    let counts =
        ["Actual Rows", "Rows Removed by Join Filter", "Rows Removed by Filter", "Rows Removed by Index Recheck"];
    let rows = |step: &&Value| counts.iter().filter_map(|name| step[name].as_f64()).sum::<f64>();
    steps(plan).iter().map(|step| rows(step) * step["Actual Loops"].as_f64().unwrap()).sum()
}

/// The plan of the statement has no join of changes, whose time would be quadratic: the work for a change does not rise with their
/// number. Tasks are found by their keys, although the table was empty when the plan was made, and although this replica runs them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_of_a_batch_is_linear() {
    let (Some(database), Ok(directory)) = (Database::find(), env::var("A2A_POSTGRES_WORK")) else { return };
    let plans = Plans::open(&database, Path::new(&directory).join("data/server.log")).await;
    let (few, many) = (plans.of_a_commit(32).await, plans.of_a_commit(512).await);
    let counts = [rows(&few), rows(&many)];
    eprintln!("32 changes look at {} rows, 512 at {}", counts[0], counts[1]);
    assert!(counts[0] >= 32.0 && counts[1] <= counts[0] * 16.0, "{counts:?} rows\n{many:#}");
    let of_tasks =
        steps(&many).into_iter().filter(|step| step["Relation Name"] == "task" && step["Node Type"] != "ModifyTable");
    let indexes: Vec<_> = of_tasks.map(|step| step["Index Name"].as_str()).collect();
    assert!(!indexes.is_empty() && indexes.iter().all(|index| *index == Some("task_pkey")), "{indexes:?}\n{many:#}");
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_opened_again() {
    let Some(database) = Database::find() else { return };
    let (store, other) = database.replicas().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    task.commit(&store, [status(TaskState::Working, 5)]).await.unwrap().unwrap();
    database.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'a2a'").await;
    // A statement may meet the lost connection.
    let commit = task.next(&store, [chunk("a", "x", false)]);
    let mut outcome = store.commit([commit.clone()].into()).await;
    if outcome.is_err() {
        outcome = store.commit([commit.clone()].into()).await;
    }
    assert_eq!(outcome, Ok(vec![Ok(Committed::default())]));
    task.record(commit);
    task.check(&store).await.unwrap();
    assert!(other.renew(Load::default()).await.is_ok());
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notes_arrive_at_their_replica() {
    let Some(database) = Database::find() else { return };
    let (one, other) = database.replicas().await;
    let key = TaskKey::new(&scope("ada", "blue"), "t-1");
    let mut notes = other.notes();
    // A note is lost until the connection listens.
    let note = async {
        loop {
            one.wake(Some(other.replica()), Note::Mail(key.clone()));
            if let Ok(note) = timeout(Duration::from_millis(100), notes.recv()).await {
                return note;
            }
        }
    };
    assert_eq!(timeout(Duration::from_secs(10), note).await.unwrap(), Some(Note::Mail(key)));
    one.wake(None, Note::Free);
    let free = async { while notes.recv().await != Some(Note::Free) {} };
    timeout(Duration::from_secs(10), free).await.unwrap();
    other.leave().await.unwrap();
    let ended = async { while notes.recv().await.is_some() {} };
    timeout(Duration::from_secs(10), ended).await.unwrap();
    database.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_do_not_contain_the_password() {
    let Some(database) = Database::find() else { return };
    let options = Options::default().password(Some("geheim".to_owned()));
    for url in [
        "postgres://a2a@127.0.0.1:1/a2a".to_owned(),
        "postgres://a2a:geheim@127.0.0.1:1/a2a?connect_timeout=geheim".to_owned(),
        format!("{}_missing", database.url),
    ] {
        let error: Error = Postgres::open(&url, &options).await.unwrap_err();
        let text = format!("{error} {error:?} {options:?}");
        assert!(!text.contains("geheim"), "{text}");
    }
}

/// Creates the configuration `a`.
fn push() -> Arc<PushConfig> {
    let config = TaskPushNotificationConfig { id: "a".into(), ..Default::default() };
    Arc::new(PushConfig { config, version: Version::V1_0, extra: "".into() })
}

fn delivered(cursor: u64) -> DeliveryOutcome {
    DeliveryOutcome::Delivered { cursor, now: 1, attempt: None }
}

/// The statement of a commit waits for another task. What happens to the deliveries meanwhile is not in its snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_marks_deliveries_that_have_changed_since_its_snapshot() {
    for adds_config in [false, true] {
        let Some(database) = Database::find() else { return };
        let due = due_after_blocked_commit(&database, &Options::default(), adds_config).await;
        let expected = [["a", "0"], ["b", "0"]];
        assert_eq!(due, expected[..if adds_config { 2 } else { 1 }]);
        database.remove().await;
    }
}

/// Returns the configurations of a task and when they are due, after a commit that was blocked while they changed.
async fn due_after_blocked_commit(database: &Database, options: &Options, adds_config: bool) -> Vec<Vec<String>> {
    let (store, other) = (database.open("store", options).await, database.open("store", options).await);
    let mut tasks = ["t-1", "t-2"].map(|id| TaskWriter::new(&scope("ada", ""), id));
    for task in &mut tasks {
        let begin = Commit { push: Some(push()), time: 1, ..task.next(&store, []) };
        task.write(&store, begin).await.unwrap().unwrap();
    }
    // The statement updates this one first.
    let first = database.run("SELECT id FROM @task ORDER BY tid LIMIT 1").await.swap_remove(0).swap_remove(0);
    let second = if first == "t-1" { "t-2" } else { "t-1" };
    let (lease, blocker) = (Lease::new("r", 2, Duration::from_secs(1)), database.connect().await);
    let claims = other.claim_due(&lease, 9).await.unwrap();
    let claim = claims.iter().find(|claim| claim.key.id() == second).unwrap();
    database.run_on(&blocker, &format!("BEGIN; SELECT 1 FROM @task WHERE id = '{first}' FOR UPDATE")).await;
    let commits: Vec<_> = tasks.iter().map(|task| task.next(&store, [message("hi")])).collect();
    let commit = store.commit(commits.into());
    let change = async {
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
            database.prefix
        );
        while database.run(&waits).await[0][0] == "0" {}
        // Nothing is left to deliver.
        assert!(other.end_claim(claim, delivered(1)).await.unwrap());
        if adds_config {
            let mut config = PushConfig::clone(&push());
            config.config.id = "b".into();
            other.put_push(&claim.key, Arc::new(config), 9).await.unwrap();
        }
        database.run_on(&blocker, "COMMIT").await;
    };
    let both = async { tokio::join!(commit, change) };
    let (outcomes, ()) = timeout(Duration::from_secs(5), both).await.unwrap();
    assert_eq!(committed(&outcomes.unwrap()), 2);
    let due = format!("SELECT p.id, due FROM @push p JOIN @task t USING (tid) WHERE t.id = '{second}' ORDER BY 1");
    database.run(&due).await
}

/// Commits, claims and outcomes at the same time leave no event unmarked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_delivery_is_lost_between_commits_and_outcomes() {
    const COMMITS: usize = 150;
    let Some(database) = Database::find() else { return };
    let (store, other) = database.replicas().await;
    let store = Arc::new(store);
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..4 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            let mut task = TaskWriter::new(&scope("ada", ""), &format!("t-{n}"));
            let begin = Commit { push: Some(push()), time: 1, ..task.next(&*store, []) };
            task.write(&*store, begin).await.unwrap().unwrap();
            for _ in 0..COMMITS {
                let commit = Commit { time: 1, ..task.next(&*store, [chunk("a", "x", true)]) };
                task.write(&*store, commit).await.unwrap().unwrap();
            }
        });
    }
    let (lease, mut count) = (Lease::new("r", 2, Duration::from_secs(1)), 0);
    let deliver = async {
        while count < 4 * (COMMITS + 1) {
            for claim in other.claim_due(&lease, 9).await.unwrap() {
                count += usize::try_from(claim.end - claim.cursor).unwrap();
                // Fails if commits of the task change the delivery all the time.
                let ended = loop {
                    if let Ok(ended) = other.end_claim(&claim, delivered(claim.end)).await {
                        break ended;
                    }
                };
                assert!(ended);
            }
        }
    };
    let done = timeout(Duration::from_mins(1), deliver).await;
    let unmarked = "SELECT count(*) FROM @push p JOIN @task t USING (tid) WHERE due IS NULL AND cursor < t.seq";
    assert_eq!((done, database.run(unmarked).await[0][0].as_str()), (Ok(()), "0"), "{count} events delivered");
    writers.join_all().await;
    database.remove().await;
}

/// Waits until a condition holds.
async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let mut tick = tokio::time::interval(Duration::from_millis(50));
    let waited = timeout(Duration::from_secs(20), async {
        while !holds().await {
            tick.tick().await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}"));
}

/// Two replicas have the counts of one of them, which deletes the tasks that ended first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_over_the_limits_are_evicted_or_rejected() {
    let Some(database) = Database::find() else { return };
    let options = Options::default().max_tasks(8).max_tasks_per_owner(Some(4));
    let (a, b) = (database.open("store", &options).await, database.open("store", &options).await);
    let [ada, bob, cat, dan] = ["ada", "bob", "cat", "dan"].map(|owner| scope(owner, "blue"));
    let create = async |owner, count: usize, state| {
        for n in 0..count {
            let task = TaskWriter::new(owner, &format!("t-{n:03}"));
            let outcome = a.commit(vec![task.next(&a, [status(state, 1)])].into()).await.unwrap();
            assert_eq!(committed(&outcome), 1);
        }
    };
    let count = async || database.run("SELECT count(*) FROM @task").await[0][0].parse::<usize>().unwrap();
    create(&ada, 6, TaskState::Completed).await;
    until("the owner has four tasks", async || count().await == 4).await;
    assert!(a.check_capacity(&ada).is_ok());
    create(&bob, 4, TaskState::Submitted).await;
    assert_eq!(a.check_capacity(&bob), Err(Full::per_owner(4)), "its own tasks count at once");
    until("the other replica knows the tasks of bob", async || b.check_capacity(&bob).is_err()).await;
    assert!(b.check_capacity(&ada).is_ok());
    create(&cat, 4, TaskState::Submitted).await;
    until("those of ada are evicted", async || count().await == 8).await;
    until("nothing can be evicted", async || b.check_capacity(&dan) == Err(Full::tasks(8))).await;
    let usage = b.usage().await.unwrap();
    assert_eq!((usage.max_tasks, usage.tasks), (Some(8), vec![(TaskState::Submitted, 8)]));
    database.remove().await;
}

/// Proxy in front of the database, which counts the messages after which the server answers.
async fn counting_proxy(target: String) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, trips) = (listener.local_addr().unwrap(), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&trips);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (server, trips) = (TcpStream::connect(&target).await.unwrap(), Arc::clone(&counted));
            let ((mut requests, mut responses), (mut from, mut to)) = (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut from, &mut responses).await });
            tokio::spawn(async move {
                // The first message has no type.
                let mut head = vec![0; 4];
                while requests.read_exact(&mut head).await.is_ok() {
                    let length = u32::from_be_bytes(*head.last_chunk().unwrap());
                    let mut body = vec![0; usize::try_from(length).unwrap() - 4];
                    requests.read_exact(&mut body).await.unwrap();
                    // Sync.
                    trips.fetch_add(usize::from(head.len() == 5 && head[0] == b'S'), Ordering::Relaxed);
                    to.write_all(&[&*head, &*body].concat()).await.unwrap();
                    head.resize(5, 0);
                }
            });
        }
    });
    (address, trips)
}

/// Returns the number of round trips of a call.
async fn trips_per_call(trips: &AtomicUsize, call: impl AsyncFn()) -> f64 {
    const CALLS: u32 = 60;
    // Prepares the statements on both readers.
    call().await;
    call().await;
    let before = trips.load(Ordering::Relaxed);
    for _ in 0..CALLS {
        call().await;
    }
    f64::from(u32::try_from(trips.load(Ordering::Relaxed) - before).unwrap()) / f64::from(CALLS)
}

/// The lease, claims and polls of the replica come in addition: some per second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_take_few_round_trips() {
    let Some(mut database) = Database::find() else { return };
    let direct = database.clone();
    let target = database.url.split(['@', '/']).nth(3).unwrap().to_owned();
    let (proxy, trips) = counting_proxy(target.clone()).await;
    database.url = database.url.replace(&target, &proxy.to_string()) + "?sslmode=disable";
    let store = Arc::new(database.open("store", &Options::default()).await);
    let agent = bindings::in_process(bindings::server().store(store)).await;
    let idle = async || send(&*agent, text("", "/ask what?")).await;
    let first = trips_per_call(&trips, async || drop(send(&*agent, text("", "hello")).await)).await;
    let task = idle().await.id;
    let follow_up = trips_per_call(&trips, async || drop(send(&*agent, text(&task, "again")).await)).await;
    let read = trips_per_call(&trips, async || drop(get(&*agent, &task).await.unwrap())).await;
    eprintln!("round trips: send {first:.2}, follow-up {follow_up:.2}, get {read:.2}");
    assert!((1.0..1.5).contains(&first), "{first}");
    assert!((2.0..2.7).contains(&follow_up), "{follow_up}");
    assert!((1.0..1.5).contains(&read), "{read}");
    direct.remove().await;
}

/// A replica is declared dead by its own lease, whatever that of the others is, and by theirs if it is of the version that had none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn longer_lease_is_waited_for() {
    let Some(database) = Database::find() else { return };
    let open = async |seconds| database.open("store", &Options::default().lease(Duration::from_secs(seconds))).await;
    let (short, long, earlier) = (open(3).await, open(60).await, open(60).await);
    for store in [&short, &long, &earlier] {
        store.join(&ReplicaInfo::default()).await.unwrap();
    }
    database.run(&format!("UPDATE @replica SET lease = NULL WHERE id = {}", earlier.replica())).await;
    let others = format!("id IN ({}, {})", long.replica(), earlier.replica());
    database.run(&format!("UPDATE @replica SET seen = clock_timestamp() - interval '5 s' WHERE {others}")).await;
    assert_eq!(short.renew(Load::default()).await, Ok(Renewal::Alive));
    assert_eq!(short.bury(short.lease()).await, Ok(vec![earlier.replica()]));
    database.run(&format!("UPDATE @replica SET seen = seen - interval '60 s' WHERE id = {}", long.replica())).await;
    assert_eq!(short.bury(short.lease()).await, Ok(vec![long.replica()]));
    database.remove().await;
}

/// The time of an outage counts for no replica: before the first renewal, and after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_without_renewals_does_not_count() {
    let Some(database) = Database::find() else { return };
    let open = async || database.open("store", &Options::default().lease(Duration::from_secs(10))).await;
    let (one, other) = (open().await, open().await);
    for store in [&one, &other] {
        store.join(&ReplicaInfo::default()).await.unwrap();
    }
    let age = async |time: &str, replicas: &str| {
        database.run(&format!("UPDATE @replica SET seen = seen - interval '{time}' WHERE {replicas}")).await;
    };
    let is_other = format!("id = {}", other.replica());
    let bury = async || one.bury(one.lease()).await.unwrap();
    for starts in [true, false] {
        age("1 h", "true").await;
        age("4 s", &is_other).await;
        assert_eq!(bury().await, [], "the database was paused, and a request was late");
        if starts {
            assert_eq!(open().await.leave().await, Ok(()));
            assert_eq!(bury().await, []);
        }
        assert_eq!(one.renew(Load::default()).await, Ok(Renewal::Alive));
        assert_eq!(bury().await, []);
    }
    // Twice 4 s, and the time of this test.
    assert_eq!(one.renew(Load::default()).await, Ok(Renewal::Alive));
    age("2 s", &is_other).await;
    assert_eq!(bury().await, [other.replica()]);
    database.remove().await;
}
