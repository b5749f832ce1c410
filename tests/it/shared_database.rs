//! Programs that share a PostgreSQL database: commands of their operators, and the checks of a server whose database is away.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    sync::watch,
    time::{Instant, interval, sleep_until, timeout},
};

use crate::{
    admin::filled,
    bindings::{fetch, http},
    program::{a2a, message, output, post, signal, started},
    store::postgres::Database,
};

/// Maximum time for which a test waits for a condition.
const TIMEOUT: Duration = Duration::from_secs(40);

/// Starts a server on a database. Turns of its agent take long, and may run again.
async fn serve(store: &str, lease: &str) -> (Child, String) {
    started(server(store, &["--exec", "sleep 600", "--idempotent", "--cluster-lease", lease])).await
}

/// Command for a server on a database, by default one of the demo agent.
fn server(store: &str, arguments: &[&str]) -> Command {
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "error", "--store", store]);
    command.args(arguments).env("PATH", "/usr/bin:/bin");
    command
}

/// Runs a command of an operator. Returns its exit code, standard output and standard error.
async fn admin(store: &str, arguments: &[&str]) -> (i32, String, String) {
    let output = output(a2a(&[&["admin", "--store", store], arguments].concat())).await;
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Runs a command of an operator that prints JSON.
async fn json_of(store: &str, arguments: &[&str]) -> Value {
    let (code, text, errors) = admin(store, &[arguments, &["-o", "json"]].concat()).await;
    assert_eq!(code, 0, "{text}{errors}");
    serde_json::from_str(&text).unwrap()
}

/// Runs `check` until it returns a value.
async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let mut ticks = interval(Duration::from_millis(100));
    let found = async {
        loop {
            ticks.tick().await;
            if let Some(found) = check().await {
                return found;
            }
        }
    };
    timeout(TIMEOUT, found).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Returns the replicas that are in this state, with the number of tasks that each runs.
fn replicas(overview: &Value, state: &str) -> Vec<(u64, u64)> {
    let all = overview["replicas"].as_array().unwrap().iter().filter(|replica| replica["state"] == state);
    all.map(|replica| (replica["id"].as_u64().unwrap(), replica["tasks"].as_u64().unwrap())).collect()
}

/// Returns the value of a metric.
async fn metric(url: &str, name: &str) -> f64 {
    let text = fetch(format!("{url}/metrics")).await.unwrap().text().await.unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("{name} is missing in {text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_lists_buries_and_releases() {
    let Some(database) = Database::find() else { return };
    let store = &*database.url("store");
    let (code, _, errors) = admin(store, &["cluster"]).await;
    assert!(code == 1 && errors.contains(".meta\" does not exist"), "{errors}");

    let (one, url) = serve(store, "12s").await;
    let send = json!({"message": message("hello")["message"], "configuration": {"returnImmediately": true}});
    let task = post(&format!("{url}/message:send"), &send).await["task"].clone();
    let id = task["id"].as_str().unwrap();
    let (_other, other_url) = serve(store, "12s").await;
    let overview = eventually("two replicas", async || {
        let overview = json_of(store, &["cluster"]).await;
        (replicas(&overview, "alive").iter().map(|(_, tasks)| tasks).eq(&[1, 0])).then_some(overview)
    })
    .await;
    let [(first, _), (second, _)] = replicas(&overview, "alive")[..] else { unreachable!() };
    let replica = &overview["replicas"][0];
    assert!(replica["version"] == 1 && replica["seen_seconds"].as_u64().unwrap() < 12, "{overview}");
    assert!(!replica["name"].as_str().unwrap().is_empty() && replica["started"].as_str().unwrap().ends_with('Z'));
    assert_eq!((&overview["free_tasks"], &overview["unread_mail"]), (&json!(0), &json!(0)));
    assert_eq!((&overview["push_lag_seconds"], &overview["oldest_free_seconds"]), (&Value::Null, &Value::Null));
    let (_, text, _) = admin(store, &["cluster"]).await;
    assert!(text.starts_with("free_tasks 0, unread_mail 0\n\nID  NAME"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    // Reads, as of a file.
    assert_eq!(json_of(store, &["list"]).await["tasks"][0]["id"], id);
    assert_eq!(json_of(store, &["show", id]).await["task"]["id"], id);
    assert!(admin(store, &["show", id, "--timeline"]).await.1.contains("attempt 1"));
    let (code, text, errors) = admin(store, &["push", "list"]).await;
    assert_eq!((code, &*text, &*errors), (0, "", "no deliveries\n"));
    let (code, _, errors) = admin(store, &["error", "01a21a26-6242-7000-8b5e-93d1b6f0c2aa"]).await;
    assert!(code == 1 && errors.contains("no task has the error id"), "{errors}");

    // The second server passes a message on to the first one.
    let mut next = send.clone();
    (next["message"]["messageId"], next["message"]["taskId"]) = ("m-2".into(), id.into());
    post(&format!("{other_url}/message:send"), &next).await;
    assert!(metric(&other_url, "a2a_mail_wait_seconds_count").await >= 1.0);
    assert!(metric(&other_url, "a2a_wake_notes_count").await >= 1.0);

    // The first server does not respond. It comes back as another replica.
    signal(&one, "-STOP");
    assert_eq!(json_of(store, &["bury", &first.to_string()]).await, json!({"replica": first}));
    let (code, _, errors) = admin(store, &["bury", &first.to_string()]).await;
    assert!(code == 1 && errors.contains("there is no replica"), "{errors}");
    let runs_at = async |expected: Option<u64>| {
        let overview = json_of(store, &["cluster"]).await;
        let (runner, _) = *replicas(&overview, "alive").iter().find(|(_, tasks)| *tasks == 1)?;
        expected.is_none_or(|expected| runner == expected).then_some(overview)
    };
    eventually("the other server has taken over", async || runs_at(Some(second)).await).await;
    assert!(metric(&other_url, "a2a_claimed_tasks_total").await >= 1.0);
    signal(&one, "-CONT");
    eventually("the first server has joined again", async || {
        let alive = replicas(&json_of(store, &["cluster"]).await, "alive");
        (alive.len() == 2 && alive[1].0 > second).then_some(())
    })
    .await;

    assert_eq!(
        json_of(store, &["release", id]).await,
        json!({"task": id, "owner": "", "tenant": "", "replica": second})
    );
    let overview = eventually("the task has a runner again", async || runs_at(None).await).await;
    let is_second = replicas(&overview, "alive")[0] == (second, 1);
    let [runner, follower] = if is_second { [&other_url, &url] } else { [&url, &other_url] };
    let stream = fetch(format!("{follower}/tasks/{id}:subscribe")).await.unwrap();
    let canceled = post(&format!("{runner}/tasks/{id}:cancel"), &json!({})).await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    let events = stream.text().await.unwrap();
    assert!(events.contains("TASK_STATE_CANCELED"), "{events}");
    assert!(metric(follower, "a2a_follow_lag_seconds_count").await >= 1.0);
    let (code, _, errors) = admin(store, &["release", id]).await;
    assert!(code == 1 && errors.contains("no replica runs such a task"), "{errors}");

    // Commands for the other kind of store.
    let (code, _, errors) = admin(store, &["stats"]).await;
    assert!(code == 2 && errors.contains("pg_dump"), "{errors}");
    for other in ["memory", "sqlite:missing.db"] {
        let (code, _, errors) = admin(other, &["cluster"]).await;
        assert!(code == 2 && errors.contains("are for PostgreSQL databases"), "{errors}");
    }
    database.remove().await;
}

/// Sends a message to a server of the demo agent on a database, and stops it when no task waits for a turn.
async fn run_demo(store: &str) {
    let (mut server, url) = started(server(store, &[])).await;
    post(&format!("{url}/message:send"), &message("hello")).await;
    eventually("no open turn", async || (!succeed(store, &["export"]).await.contains("\"open\":true")).then_some(()))
        .await;
    signal(&server, "-TERM");
    assert!(server.wait().await.unwrap().success());
}

/// Runs a command of an operator that succeeds. Returns its standard output.
async fn succeed(store: &str, arguments: &[&str]) -> String {
    let (code, text, errors) = admin(store, arguments).await;
    assert_eq!(code, 0, "{text}{errors}");
    text
}

/// Exports move from a file to PostgreSQL and back without a difference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exports_are_the_same_for_files_and_databases() {
    const EXPORT: [&str; 2] = ["export", "--include-secrets"];
    let Some(database) = Database::find() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let write = |text: &str| {
        std::fs::write(path("tasks.jsonl"), text).unwrap();
        path("tasks.jsonl")
    };
    // Tasks with push configurations, idempotency keys and saved states, one without its log, and one that ended with its first commit.
    filled(directory.path()).await;
    let file = format!("sqlite:{}", path("a2a.db"));
    let short = format!("sqlite:{}", path("short.db"));
    run_demo(&short).await;
    let (filled, short) = (succeed(&file, &EXPORT).await, succeed(&short, &EXPORT).await);
    let text = filled.clone() + short.split_once('\n').unwrap().1;
    assert_eq!(text.lines().count(), 10, "{text}");

    // A rejected import leaves no task.
    let (store, other) = (&*database.url("store"), &*database.url("other"));
    let first = filled.lines().nth(1).unwrap();
    for (last, reason) in [
        (first.to_owned(), "line 11: task old: the task exists already, of owner \"ada\" in tenant \"blue\""),
        (
            first.replacen("\"id\":\"old\"", "\"id\":\"two\"", 1),
            "line 11: task two: the ids of the row differ from the task",
        ),
        (
            first.replacen("\"tenant\":\"blue\"", "\"tenant\":\"red\\u0000\"", 1),
            "line 11: task old: invalid byte sequence for encoding",
        ),
        ("{}".to_owned(), "line 11: missing field"),
    ] {
        let (code, _, errors) = admin(store, &["import", &write(&format!("{text}{last}\n"))]).await;
        assert!(code == 1 && errors.contains(reason) && errors.contains("nothing was imported into"), "{errors}");
        assert_eq!(json_of(store, &["list"]).await["tasks"], json!([]));
    }

    // From a file to a database, and back.
    let imported = succeed(store, &["import", &write(&text)]).await;
    assert!(imported.starts_with("imported 9 tasks into postgres://"), "{imported}");
    let exported = succeed(store, &EXPORT).await;
    assert_eq!(exported, text);
    let (code, _, errors) = admin(store, &["import", &path("tasks.jsonl")]).await;
    assert!(code == 1 && errors.contains("line 2: task old: the task exists already"), "{errors}");
    let back = format!("sqlite:{}", path("back.db"));
    succeed(&back, &["import", &write(&exported)]).await;
    assert_eq!(succeed(&back, &EXPORT).await, text);
    assert_eq!(
        succeed(&back, &["check"]).await,
        format!("checked 9 tasks in {}, no problems found\n", path("back.db"))
    );
    let ada = succeed(store, &["export", "--owner", "ada"]).await;
    assert!(ada.lines().count() == 5 && !ada.contains("secret"), "{ada}");
    let to_file = succeed(store, &["export", &path("all.jsonl"), "-o", "json"]).await;
    assert!(to_file.contains("\"tasks\": 9"), "{to_file}");

    // Servers use imported tasks. What they write can be moved too.
    run_demo(store).await;
    let exported = succeed(store, &EXPORT).await;
    let tasks = exported.lines().count() - 1;
    assert!(tasks > 2, "{exported}");
    let file = format!("sqlite:{}", path("new.db"));
    succeed(&file, &["import", &write(&exported)]).await;
    assert_eq!(succeed(&file, &EXPORT).await, exported);
    assert!(succeed(&file, &["check"]).await.starts_with(&format!("checked {tasks} tasks")));
    succeed(other, &["import", &write(&succeed(&file, &EXPORT).await)]).await;
    assert_eq!(succeed(other, &EXPORT).await, exported);
    database.remove().await;
}

/// State of a [`Gate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passage {
    Open,
    /// Closes all connections.
    Closed,
    /// Passes nothing on.
    Stalled,
}

/// TCP proxy before the database.
struct Gate {
    url: String,
    passage: watch::Sender<Passage>,
}

impl Gate {
    async fn before(database: &Database) -> Self {
        let store = database.url("store");
        let (user, rest) = store.split_once('@').unwrap();
        let (target, path) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, (sender, passage)) = (listener.local_addr().unwrap().port(), watch::channel(Passage::Open));
        let gate = Self { url: format!("{user}@127.0.0.1:{port}/{path}"), passage: sender };
        let target = target.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, target.clone(), passage.clone()));
            }
        });
        gate
    }
}

async fn pass(mut client: TcpStream, target: String, mut passage: watch::Receiver<Passage>) {
    let mut copy = Box::pin(async {
        let mut server = TcpStream::connect(target).await?;
        copy_bidirectional(&mut client, &mut server).await
    });
    loop {
        let changed = tokio::select! {
            biased;
            changed = passage.wait_for(|passage| *passage != Passage::Open) => changed.ok().map(|passage| *passage),
            _ = &mut copy => return,
        };
        if changed != Some(Passage::Stalled) || passage.wait_for(|passage| *passage != Passage::Stalled).await.is_err()
        {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_is_ready_only_with_its_database() {
    let Some(database) = Database::find() else { return };
    let gate = Gate::before(&database).await;
    let (_server, url) = serve(&gate.url, "3s").await;
    let checks = async || {
        let reply = fetch(format!("{url}/readyz?verbose")).await.unwrap();
        (reply.status().as_u16(), reply.text().await.unwrap())
    };
    let ready = "drain ok\nrecovery ok\nstore ok\nlease ok\ncommits ok\nagents ok\nok\n";
    assert_eq!(checks().await, (200, ready.to_owned()));

    _ = gate.passage.send_replace(Passage::Closed);
    let text = eventually("not ready", async || Some(checks().await).filter(|(code, _)| *code == 503)).await.1;
    assert!(text.starts_with("drain ok\nrecovery ok\nstore failed\nlease not checked\n"), "{text}");
    assert_eq!(fetch(format!("{url}/healthz")).await.unwrap().status(), 200);
    let metric = async |name: &str| metric(&url, name).await;
    eventually("the lease has expired", async || (metric("a2a_lease_age_seconds").await > 3.0).then_some(())).await;

    _ = gate.passage.send_replace(Passage::Open);
    let text = eventually("ready again", async || Some(checks().await).filter(|(code, _)| *code == 200)).await.1;
    assert_eq!(text, ready);
    assert!(metric("a2a_lease_age_seconds").await < 3.0 && metric("a2a_statement_seconds_count").await > 0.0);
    assert_eq!((metric("a2a_claimed_tasks_total").await, metric("a2a_dead_replicas_total").await), (0.0, 0.0));

    database.run("UPDATE @meta SET min_version = 99").await;
    let (code, text) = checks().await;
    assert!(code == 503 && text.contains("store failed"), "{text}");
    database.remove().await;
}

/// Call of a client.
struct Called {
    started: Instant,
    ended: Instant,
    status: u16,
    /// Response, if it is a task.
    task: Value,
    has_retry_after: bool,
}

/// Sends messages, follow-ups and reads one after the other until a time.
async fn call_until(url: &str, end: Instant) -> Vec<Called> {
    let (client, mut called) = (http(), Vec::<Called>::new());
    let send = |text: &str| {
        let request = client.post(format!("{url}/message:send")).header("content-type", "application/json");
        request.body(message(text).to_string())
    };
    while Instant::now() < end {
        let known = called.iter().rev().find_map(|call| call.task["id"].as_str()).unwrap_or("none");
        let request = match called.len() % 4 {
            0 => send("hello"),
            1 => send("/ask Which one?"),
            2 => client.get(format!("{url}/tasks/{known}")),
            _ => client.get(format!("{url}/tasks?pageSize=5")),
        };
        let started = Instant::now();
        let reply = request.timeout(TIMEOUT).send().await.unwrap();
        let (status, has_retry_after) = (reply.status().as_u16(), reply.headers().contains_key("retry-after"));
        let mut body: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap();
        let task = if status == 200 { body["task"].take() } else { Value::Null };
        called.push(Called { started, ended: Instant::now(), status, task, has_retry_after });
    }
    called
}

/// The database closes its connections, or does not respond. Each call ends soon, what was acknowledged is there afterwards, and a
/// stream continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_fail_soon_without_the_database() {
    // Two seconds, and time for a busy machine.
    const LONGEST: Duration = Duration::from_secs(4);
    let Some(database) = Database::find() else { return };
    let gate = Gate::before(&database).await;
    let (_server, url) = started(server(&gate.url, &["--cluster-lease", "3s"])).await;
    let (_other, other_url) = started(server(&gate.url, &["--cluster-lease", "3s"])).await;
    for passage in [Passage::Closed, Passage::Stalled] {
        let stream = http().post(format!("{url}/message:stream")).header("content-type", "application/json");
        let stream = stream.body(message("/stream 14 1000").to_string()).send();
        let stream = tokio::spawn(async { stream.await.unwrap().text().await.unwrap() });
        let end = Instant::now() + Duration::from_secs(10);
        let clients: Vec<_> = (0..16)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move { call_until(&url, end).await })
            })
            .collect();
        sleep_until(end - Duration::from_secs(9)).await;
        let cut = Instant::now();
        _ = gate.passage.send_replace(passage);
        sleep_until(end - Duration::from_secs(4)).await;
        _ = gate.passage.send_replace(Passage::Open);
        let mut called = Vec::new();
        for client in clients {
            called.append(&mut client.await.unwrap());
        }
        let failed: Vec<_> = called.iter().filter(|call| call.status != 200).collect();
        let times = failed.iter().map(|call| call.ended - call.started.max(cut));
        let longest = times.max().unwrap();
        assert!(longest < LONGEST, "{passage:?}: {longest:?}");
        assert!(called.iter().all(|call| call.ended - call.started < LONGEST), "{passage:?}");
        // A read of no task may be one.
        let is_retried = |call: &&&Called| call.status == 404 || call.status == 503 && call.has_retry_after;
        assert_eq!(failed.iter().filter(is_retried).count(), failed.len(), "{passage:?}");
        assert!(failed.len() >= 16 && called.last().unwrap().status == 200, "{passage:?}");

        for task in called.iter().filter_map(|call| call.task["id"].as_str()) {
            assert_eq!(fetch(format!("{url}/tasks/{task}")).await.unwrap().status(), 200, "{task}");
        }
        let events = stream.await.unwrap();
        assert!(events.contains("chunk 14 of 14") && events.contains("TASK_STATE_COMPLETED"), "{events}");
    }
    // Without other calls, which would have noticed the outage.
    let sent = post(&format!("{url}/message:send"), &message("/ask Which one?")).await;
    let task = sent["task"]["id"].as_str().unwrap();
    _ = gate.passage.send_replace(Passage::Stalled);
    let asked = Instant::now();
    assert_eq!(fetch(format!("{other_url}/tasks/{task}")).await.unwrap().status(), 503);
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    _ = gate.passage.send_replace(Passage::Open);
    // The outages were longer than the lease.
    for url in [&url, &other_url] {
        assert!(metric(url, "a2a_dead_replicas_total").await < 1.0);
        let is_connected = async || (metric(url, "a2a_store_connections").await >= 7.0).then_some(());
        eventually("all connections", is_connected).await;
    }
    database.remove().await;
}

/// Servers that get no notifications, or are behind a pool of connections, run the tasks of each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_share_tasks_by_polls_and_behind_a_pool() {
    let (Some(direct), Some(pooled)) = (Database::find(), Database::at("A2A_TEST_PGBOUNCER")) else { return };
    let (store, listened) = (direct.url("store"), direct.url("listen"));
    let behind = pooled.url_of(&direct, "listen");
    for (store, settings) in
        [(&store, &["--cluster-wake=poll"][..]), (&behind, &["--store-prepared=false", "--store-listen", &listened])]
    {
        let (_one, url) = started(server(store, settings)).await;
        let (_other, other_url) = started(server(store, settings)).await;
        let send = json!({"message": message("/slow 60")["message"], "configuration": {"returnImmediately": true}});
        let id = post(&format!("{url}/message:send"), &send).await["task"]["id"].take();
        let id = id.as_str().unwrap();
        let stream = fetch(format!("{other_url}/tasks/{id}:subscribe")).await.unwrap();
        let canceled = post(&format!("{other_url}/tasks/{id}:cancel"), &json!({})).await;
        assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED", "{settings:?}");
        assert!(stream.text().await.unwrap().contains("TASK_STATE_CANCELED"), "{settings:?}");
    }
    direct.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_made_on_demand_and_not_used_by_an_older_program() {
    let Some(database) = Database::find() else { return };
    let store = &*database.url("store");
    let start = async || {
        let output = output(server(store, &["--migrate", "never"])).await;
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = start().await;
    assert!(
        code == Some(1) && errors.contains("schema version 0") && errors.contains("`a2a admin migrate`"),
        "{errors}"
    );
    assert_eq!(succeed(store, &["migrate"]).await, "the tables are those of this version\n");
    let (_server, url) = started(server(store, &["--migrate", "never"])).await;
    assert_eq!(fetch(format!("{url}/readyz")).await.unwrap().status(), 200);
    database.run("UPDATE @meta SET version = 99, min_version = 99").await;
    let (code, errors) = start().await;
    assert!(code == Some(1) && errors.contains("schema version 99") && errors.contains("newer program"), "{errors}");
    database.remove().await;
}
