//! Servers are killed and stopped, PostgreSQL is restarted, cut off and replaced by its standby, while clients of all bindings work.
//! The database has everything that they have seen, once and in order, and everything ends.

use std::{
    env, fs,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{Router, http::StatusCode};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{
    Cluster, SERVERS, Server, TIMEOUT,
    judge::{TABLES, check_rows, check_seen, check_tasks, takeovers},
};
use crate::{
    bindings::program,
    crash::seed,
    history::{self, History, StoreContents},
    workload::{Clients, Disturbed, Rng, Unfinished, finish_all_at},
};

/// Kill, stop or restart of a server or of the database, with its time.
pub(super) struct Disturbance {
    /// Number of the server. `None`: the database.
    pub(super) server: Option<usize>,
    pub(super) kind: &'static str,
    pub(super) begin: SystemTime,
    pub(super) end: Option<SystemTime>,
}

/// Disturbances in their order, also as lines of the output.
pub(super) struct Timeline {
    start: Instant,
    pub(super) all: Mutex<Vec<Disturbance>>,
}

impl Timeline {
    /// Waits for a disturbance, and records it.
    #[expect(clippy::print_stdout, reason = "the output helps to understand a failure")]
    async fn record(&self, server: Option<usize>, kind: &'static str, disturbance: impl Future<Output = ()>) {
        let name = server.map_or("PostgreSQL".to_owned(), |server| format!("server {server}"));
        println!("{:7.2} s  {name}: {kind}", self.start.elapsed().as_secs_f64());
        let number = {
            let mut all = self.all.lock();
            all.push(Disturbance { server, kind, begin: SystemTime::now(), end: None });
            all.len() - 1
        };
        disturbance.await;
        self.all.lock()[number].end = Some(SystemTime::now());
    }

    pub(super) fn count(&self, kind: &str) -> usize {
        self.all.lock().iter().filter(|disturbance| disturbance.kind == kind).count()
    }
}

/// Connections to a port that can be cut: nothing passes until they are repaired, and then everything does.
struct Link {
    port: u16,
    is_cut: watch::Sender<bool>,
}

impl Link {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (is_cut, cut) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let cut = cut.clone();
                tokio::spawn(carry(client, port, cut));
            }
        });
        Self { port: own, is_cut }
    }
}

async fn carry(mut client: TcpStream, port: u16, mut cut: watch::Receiver<bool>) {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let mut copy = pin!(copy_bidirectional(&mut client, &mut server));
    loop {
        tokio::select! {
            _ = &mut copy => return,
            is_open = async { cut.wait_for(|cut| *cut).await.is_ok() } => if !is_open { return },
        }
        if cut.wait_for(|cut| !cut).await.is_err() {
            return;
        }
    }
}

/// Restarts PostgreSQL, or replaces it: an operation of `scripts/cluster-test`.
async fn database(operation: &str) {
    let ended = Command::new("scripts/cluster-test").args(["database", operation]).output();
    let output = timeout(TIMEOUT, ended).await.unwrap().unwrap();
    assert!(output.status.success(), "{operation}: {output:?}");
}

/// Disturbs a server so many times. At most two servers at a time are disturbed.
async fn disturb(
    mut server: Server,
    (count, longest): (usize, usize),
    mut rng: Rng,
    links: Arc<Vec<Link>>,
    timeline: Arc<Timeline>,
    permits: Arc<Semaphore>,
) -> Server {
    let millis = |rng: &mut Rng, from: usize, to: usize| {
        Duration::from_millis(u64::try_from(from + rng.below(to - from)).unwrap())
    };
    // A lease of the cut server ends.
    let cut_at = if links.is_empty() { count } else { count / 2 };
    for n in 0..count {
        sleep(millis(&mut rng, 500, longest * 600)).await;
        let _permit = permits.acquire().await.unwrap();
        let number = Some(server.number);
        if n == cut_at {
            let cut = |is_cut| links.iter().for_each(|link: &Link| _ = link.is_cut.send_replace(is_cut));
            let cut_off = async {
                cut(true);
                sleep(Duration::from_secs(15)).await;
                cut(false);
            };
            timeline.record(number, "cut off", cut_off).await;
        }
        if rng.below(2) == 0 {
            let pause = millis(&mut rng, 0, 1000);
            let kill = async {
                server.signal("-KILL");
                server.ended().await;
                sleep(pause).await;
                server.start().await;
            };
            timeline.record(number, "killed", kill).await;
        } else {
            server.signal("-STOP");
            timeline.record(number, "stopped", sleep(millis(&mut rng, 1000, longest * 1000))).await;
            server.signal("-CONT");
        }
    }
    server
}

#[expect(clippy::print_stdout, reason = "the output has the figures")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_servers_and_the_database_fail() {
    let is_short = env::var_os("QUICK").is_some();
    // Kills and stops of each server, the longest stop and the lease in seconds, and restarts of PostgreSQL.
    let (counts, longest, lease, restarts) = if is_short { ([3, 3, 2], 8, 4, 1) } else { ([17, 17, 16], 20, 10, 3) };
    let lease = Duration::from_secs(lease);
    let Some(mut cluster) = Cluster::find("chaos", lease).await else { return };
    let mut rng = seed();
    let is_resumable = rng.below(2) == 0;
    if is_resumable {
        cluster.use_resumable_agent().await;
    }
    println!("the turns of a dead server {}", if is_resumable { "run again" } else { "fail" });
    // An Ed25519 key in PKCS#8.
    let key = BASE64_STANDARD
        .encode([b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20", &[7; 32][..]].concat());
    let keys = cluster.directory.join("keys.pem");
    fs::write(&keys, format!("-----BEGIN PRIVATE KEY-----\n{key}\n-----END PRIVATE KEY-----\n")).unwrap();
    let push = ["--signing-keys", keys.to_str().unwrap(), "--push-enabled=true", "--push-allow", "http://127.0.0.1"];
    cluster.arguments.extend(push.map(str::to_owned));
    let timeline = Arc::new(Timeline { start: Instant::now(), all: Mutex::default() });
    let receiver = program(Router::new().fallback(async || StatusCode::NO_CONTENT)).await;
    cluster.sql(TABLES).await;

    // The first server reaches the database over links.
    let links = join_all(cluster.database.iter().map(|port| Link::to(*port))).await;
    let linked: Vec<u16> = links.iter().map(|link| link.port).collect();
    let mut servers = Vec::new();
    for number in 0..SERVERS {
        let mut server = cluster.server(number, if number == 0 { &linked } else { &cluster.database });
        server.start().await;
        server.wait_until_ready().await;
        servers.push(server);
    }

    let balancer = &cluster.balancers[0];
    let urls = (&*balancer.url, &*balancer.grpc);
    println!("clients call {}", balancer.name);
    let path = cluster.directory.join("history.jsonl");
    let (history, unfinished) = (Arc::new(History::new(&path)), Arc::<Unfinished>::default());
    let disturbed = Arc::new(Disturbed { push_url: receiver, ..Disturbed::default() });
    let clients = Clients::start_at(urls, &history, &unfinished, &mut rng, Some(&disturbed));

    let (permits, links) = (Arc::new(Semaphore::new(SERVERS - 1)), Arc::new(links));
    let mut disturbances = JoinSet::new();
    for server in servers {
        let rng = Rng(u64::try_from(rng.below(usize::MAX)).unwrap());
        let links = if server.number == 0 && !is_short { Arc::clone(&links) } else { Arc::default() };
        let count = (counts[server.number], longest);
        disturbances.spawn(disturb(server, count, rng, links, Arc::clone(&timeline), Arc::clone(&permits)));
    }
    for _ in 0..restarts {
        sleep(Duration::from_millis(u64::try_from(5000 + rng.below(20_000)).unwrap())).await;
        timeline.record(None, "restarted", database("restart")).await;
    }
    let mut servers = disturbances.join_all().await;
    if !is_short {
        database("standby").await;
        sleep(Duration::from_secs(3)).await;
        timeline.record(None, "replaced by its standby", database("failover")).await;
        sleep(Duration::from_secs(5)).await;
    }

    clients.expect_stop();
    // The last server may have been killed when none had renewed its lease, and the longest turn takes 5 s.
    let (rest, limit) = (Instant::now(), lease * 2 + Duration::from_secs(15));
    println!("{:7.2} s  no more disturbances", timeline.start.elapsed().as_secs_f64());
    let at_rest = async {
        while cluster.count("SELECT count(*) FROM @task WHERE open OR runner IS NOT NULL").await > 0 {
            sleep(Duration::from_millis(200)).await;
        }
    };
    let mut errors = Vec::new();
    if timeout(limit, at_rest).await.is_err() {
        let sql = "SELECT t.id, state, open, runner, mail, read, attempt, dead FROM @task t
            LEFT JOIN @replica r ON r.id = t.runner WHERE open OR runner IS NOT NULL LIMIT 9";
        let rows = cluster.sql(sql).await;
        errors.push(format!("after {limit:?}, tasks are still open or have a runner: {rows:?}"));
    }
    let rest = rest.elapsed();
    clients.join().await;
    if errors.is_empty() {
        finish_all_at(urls, &history, &unfinished, &mut rng, Some(&disturbed)).await;
    }
    check_rows(&cluster, &timeline, &mut errors).await;
    for server in &mut servers {
        server.signal("-TERM");
        let code = server.ended().await;
        if code != Some(0) {
            errors.push(format!("server {} ends with {code:?}", server.number));
        }
    }

    let contents = StoreContents::read_store(&cluster.open().await).await;
    errors.extend(contents.check(&history::read(&path)));
    errors.extend(contents.unfinished().iter().map(|task| format!("the turn of a task has no end: {task:?}")));
    check_tasks(&contents, is_resumable, &mut errors);
    check_seen(&contents, &disturbed.seen.lock(), &mut errors);
    errors.append(&mut disturbed.anomalies.lock());
    for cut in &*disturbed.cut.lock() {
        if !timeline.is_disturbed(*cut) {
            errors.push(format!("a stream ended too early at {cut:?}, when no server was disturbed"));
        }
    }

    let count = |counter: &std::sync::atomic::AtomicUsize| counter.load(Ordering::Relaxed).to_string();
    let mut rows = vec![
        ("tasks", contents.len().to_string()),
        ("sends", count(&disturbed.sends)),
        ("streams", count(&disturbed.streams)),
        ("reads", count(&disturbed.reads)),
        ("unavailable", count(&disturbed.unavailable)),
        ("streams cut", disturbed.cut.lock().len().to_string()),
        ("kills", timeline.count("killed").to_string()),
        ("stops", timeline.count("stopped").to_string()),
        ("cuts", timeline.count("cut off").to_string()),
        ("restarts of PostgreSQL", timeline.count("restarted").to_string()),
        ("failovers", timeline.count("replaced by its standby").to_string()),
    ];
    rows.extend(takeovers(&cluster, &timeline, &mut errors).await);
    rows.push(("time to rest", format!("{:.1} s", rest.as_secs_f64())));
    rows.push(("time in all", format!("{:.0} s", timeline.start.elapsed().as_secs_f64())));
    rows.push(("anomalies", errors.len().to_string()));
    for (name, value) in rows {
        println!("{name:24}{value:>10}");
    }
    let text = |error: &String| error.chars().take(2000).collect::<String>();
    assert!(errors.is_empty(), "{}", errors.iter().take(20).map(text).collect::<Vec<_>>().join("\n"));
}

/// Returns the time in seconds since 1970, as PostgreSQL has it.
pub(super) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}
