//! Three servers with one PostgreSQL database, behind a proxy that sends each request to the next one. `scripts/cluster-test` starts
//! the database and the proxies, and runs these tests. Without it they pass, and say so.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "tests wait between disturbances, and say that they are skipped"
)]

mod cases;
mod chaos;
mod handover;
mod judge;

use std::{
    env,
    fs::{self, OpenOptions},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use a2a_service::store::postgres::{Options, Postgres};
use tokio::{
    process::Child,
    time::{sleep, timeout},
};
use tokio_postgres::{NoTls, SimpleQueryMessage};

use crate::{
    agent_kinds::http_endpoint,
    bindings::fetch,
    program::{a2a, a2a_at, signal, try_started},
    proxy::Proxy,
};

/// Number of servers.
const SERVERS: usize = 3;

/// Version of the schema.
const VERSION: &str = "2";

const TIMEOUT: Duration = Duration::from_mins(1);

/// Database, the servers that use it, and what is in front of them.
struct Cluster {
    /// Ports of the database and of its standby.
    database: Vec<u16>,
    schema: String,
    ports: Vec<u16>,
    balancers: Vec<Balancer>,
    /// Logs of the servers, and the history of their clients.
    directory: PathBuf,
    lease: Duration,
    /// Further arguments of the servers.
    arguments: Vec<String>,
}

/// Proxy in front of all servers. It may have another URL for gRPC.
struct Balancer {
    name: String,
    url: String,
    grpc: String,
}

/// Process of a cluster, which can be started again.
struct Server {
    number: usize,
    url: String,
    arguments: Vec<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Cluster {
    /// Creates the schema. `None` without a script that has started one.
    async fn find(schema: &str, lease: Duration) -> Option<Self> {
        let (Ok(database), Ok(ports), Ok(directory)) =
            (env::var("CLUSTER_DATABASE"), env::var("CLUSTER_PORTS"), env::var("CLUSTER_DIRECTORY"))
        else {
            eprintln!("skipped: CLUSTER_PORTS is not set; scripts/cluster-test runs this test");
            return None;
        };
        let numbers = |ports: String| ports.split(' ').map(|port| port.parse().unwrap()).collect();
        let (database, ports): (_, Vec<u16>) = (numbers(database), numbers(ports));
        assert_eq!(ports.len(), SERVERS);
        let directory = PathBuf::from(directory).join(schema);
        fs::create_dir_all(&directory).unwrap();
        let balancer = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let [name, url, grpc] = words.try_into().unwrap();
            Balancer { name, url, grpc }
        };
        let mut balancers: Vec<_> =
            env::var("CLUSTER_PROXIES").iter().flat_map(|all| all.lines()).map(balancer).collect();
        if balancers.is_empty() {
            let urls: Vec<_> = ports.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
            let url = Proxy::before_all(&urls).await.url;
            balancers.push(Balancer { name: "proxy of the tests".into(), grpc: url.clone(), url });
        }
        let (schema, arguments) = (schema.to_owned(), Vec::new());
        let cluster = Self { database, schema, ports, balancers, directory, lease, arguments };
        if previous().is_some() {
            let mut server = cluster.server(0, &cluster.database);
            server.start().await;
            server.signal("-KILL");
            server.ended().await;
            assert_ne!(
                cluster.sql("SELECT version FROM @meta").await,
                [[VERSION]],
                "the program is not a previous one"
            );
        } else {
            drop(cluster.open().await);
            assert_eq!(cluster.sql("SELECT version FROM @meta").await, [[VERSION]]);
        }
        Some(cluster)
    }

    async fn open(&self) -> Postgres {
        let url = format!("{}?schema={}", database_url(&self.database), self.schema);
        Postgres::open(&url, &Options::default()).await.unwrap()
    }

    /// Runs the agent of the tests in the servers. Its turns run again after a takeover.
    async fn use_resumable_agent(&mut self) {
        self.arguments.extend(["--http".into(), http_endpoint().await, "--idempotent=true".into()]);
    }

    /// Returns a server that is not started yet, and reaches the database over these ports.
    fn server(&self, number: usize, database: &[u16]) -> Server {
        let (listen, database) = (format!("127.0.0.1:{}", self.ports[number]), database_url(database));
        let store = format!("{database}?schema={}&application_name=server-{number}", self.schema);
        let lease = format!("{}s", self.lease.as_secs());
        let mut arguments: Vec<String> = ["serve", "--listen", &listen, "--store", &store, "--cluster-lease", &lease]
            .iter()
            .map(|&argument| argument.to_owned())
            .collect();
        arguments.extend(self.arguments.iter().cloned());
        let log = self.directory.join(format!("server-{number}.log"));
        Server { number, url: format!("http://{listen}"), arguments, log, child: None }
    }

    /// Runs statements, in which `@` stands for the schema. Connects again until the database answers.
    async fn sql(&self, sql: &str) -> Vec<Vec<String>> {
        let sql = sql.replace('@', &format!("{}.", self.schema));
        let query = async {
            loop {
                match try_query(&self.database, &sql).await {
                    Ok(rows) => return rows,
                    Err(error) if error.as_db_error().is_some_and(|error| !error.code().code().starts_with("57P")) => {
                        panic!("{sql}: {error:?}")
                    }
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            }
        };
        timeout(TIMEOUT, query).await.unwrap()
    }

    async fn count(&self, sql: &str) -> u64 {
        self.sql(sql).await[0][0].parse().unwrap()
    }
}

/// Returns the program of the first server, if it is one that has the schema before this version.
fn previous() -> Option<PathBuf> {
    env::var_os("CLUSTER_PREVIOUS").map(PathBuf::from)
}

/// Returns the URL of a database with these ports.
fn database_url(ports: &[u16]) -> String {
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("postgres://a2a@{}/a2a", hosts.join(","))
}

async fn try_query(database: &[u16], sql: &str) -> Result<Vec<Vec<String>>, tokio_postgres::Error> {
    let url = format!("{}?target_session_attrs=read-write&connect_timeout=2", database_url(database));
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let rows = client.simple_query(sql).await?;
    let rows = rows.iter().filter_map(|row| {
        let SimpleQueryMessage::Row(row) = row else { return None };
        Some((0..row.len()).map(|n| row.get(n).unwrap_or_default().to_owned()).collect())
    });
    Ok(rows.collect())
}

impl Server {
    /// Starts the process, again if it can't reach the database, and waits until it accepts work.
    async fn start(&mut self) {
        let start = async {
            loop {
                let log = OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
                let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
                let mut command = match previous().filter(|_| self.number == 0) {
                    Some(path) => a2a_at(&path, &arguments),
                    None => a2a(&arguments),
                };
                command.stderr(Stdio::from(log)).env("A2A_LOG_FILTER", "info");
                if let Ok((child, _)) = try_started(command).await {
                    return child;
                }
                sleep(Duration::from_millis(200)).await;
            }
        };
        self.child = Some(timeout(TIMEOUT, start).await.unwrap());
    }

    async fn wait_until_ready(&self) {
        let ready = async {
            while !fetch(format!("{}/readyz", self.url)).await.is_ok_and(|reply| reply.status().is_success()) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(TIMEOUT, ready).await.unwrap();
    }

    fn signal(&self, name: &str) {
        signal(self.child.as_ref().unwrap(), name);
    }

    /// Waits for the end of the process, and returns its exit code.
    async fn ended(&mut self) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        timeout(TIMEOUT, child.wait()).await.unwrap().unwrap().code()
    }
}
