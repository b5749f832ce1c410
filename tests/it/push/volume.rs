//! Many deliveries to many hosts, some of which fail at first: all arrive.

use std::collections::HashMap;

use a2a_service::{pb::v1::TaskState, protocol::Version, store::PushConfig};
use a2a_store_suite::writer::{TaskWriter, scope, status as state_update};
use async_trait::async_trait;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::crash::number;

const CONFIGS: usize = 25;
const HOSTS: usize = 100;

/// Resolver of the names below `hooks.invalid`, which are all on loopback.
struct Loopback;

#[async_trait]
impl Resolver for Loopback {
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        assert!(name.ends_with(".hooks.invalid"), "{name}");
        Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))])
    }
}

/// What the hosts have received.
#[derive(Default)]
struct Seen {
    /// Numbers of requests by delivery id.
    attempts: HashMap<String, usize>,
    hosts: HashMap<String, usize>,
    accepted: usize,
}

/// Reads a request and returns its host and delivery id. `None` at the end of the connection.
async fn request(connection: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut host, mut id, mut length, mut line) = (String::new(), String::new(), 0, String::new());
    loop {
        line.clear();
        if connection.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) = line.trim_end().split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "host" => value.clone_into(&mut host),
                "webhook-id" => value.clone_into(&mut id),
                "content-length" => length = value.parse().unwrap(),
                _ => {}
            }
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await.ok()?;
    Some((host, id))
}

/// Answers requests. The first attempt of a tenth of the deliveries fails: with 500, with 503, by a closed connection, or
/// without an answer.
async fn answer(connection: TcpStream, seen: Arc<Mutex<Seen>>) {
    let mut connection = BufReader::new(connection);
    while let Some((host, id)) = request(&mut connection).await {
        let mut numbers = id.split('~').take(2).map(|part| part.rsplit('-').next().unwrap().parse::<usize>().unwrap());
        let (task, config) = (numbers.next().unwrap(), numbers.next().unwrap());
        let is_first = {
            let mut seen = seen.lock();
            *seen.hosts.entry(host).or_default() += 1;
            let attempts = seen.attempts.entry(id).or_default();
            *attempts += 1;
            *attempts == 1
        };
        // Each host gets every fourth task: a tenth of its deliveries fail, and not in succession.
        let (place, fault) = (task / 4 + config, task / 40 + config);
        let fault = if is_first && place.is_multiple_of(10) { fault % 8 } else { usize::MAX };
        let reply = match fault {
            0 => return std::future::pending().await,
            1..=3 => return,
            4 | 5 => "500 Internal Server Error",
            6 | 7 => "503 Service Unavailable",
            _ => {
                seen.lock().accepted += 1;
                "204 No Content"
            }
        };
        let reply = format!("HTTP/1.1 {reply}\r\ncontent-length: 0\r\n\r\n");
        if connection.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// `TASKS` sets the number of tasks with 25 deliveries each, a multiple of 40.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_to_a_hundred_hosts_arrive() {
    let tasks = usize::try_from(number("TASKS").unwrap_or(80)).unwrap();
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let shared = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            tokio::spawn(answer(connection, Arc::clone(&shared)));
        }
    });
    let store = Memory::default();
    let owner = scope("", "");
    for task in 0..tasks {
        let mut writer = TaskWriter::new(&owner, &format!("t-{task}"));
        writer.commit(&store, []).await.unwrap().unwrap();
        for config in 0..CONFIGS {
            let host = (task * CONFIGS + config) % HOSTS;
            let url = format!("http://host-{host}.hooks.invalid:{port}/");
            let config = TaskPushNotificationConfig { id: format!("c-{config:02}"), url, ..Default::default() };
            let config = Arc::new(PushConfig { config, version: Version::V1_0, extra: Bytes::new() });
            store.put_push(&writer.key, config, CONFIGS).await.unwrap();
        }
        writer.commit(&store, [state_update(TaskState::Completed, 5)]).await.unwrap().unwrap();
    }
    let store = Arc::new(store);
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let options = PushOptions::default()
        .allow(vec!["http://*.hooks.invalid".parse().unwrap()])
        .resolver(Some(Arc::new(Loopback)))
        .timeout(Duration::from_secs(2));
    let bound = Server::new(Writer).store(shared).push(true).push_options(options).bind("127.0.0.1:0").await.unwrap();
    let handle = bound.handle();
    let serving = tokio::spawn(bound.run_until(std::future::pending()));
    let is_complete = async {
        while store.oldest_pending().await.unwrap().is_some() || seen.lock().accepted < tasks * CONFIGS {
            for _ in 0..10 {
                pause().await;
            }
        }
    };
    let result = timeout(Duration::from_mins(5), is_complete).await;
    let stats = handle.push_stats().await.unwrap().unwrap();
    assert!(result.is_ok(), "{stats:?}");
    handle.drain().await;
    serving.await.unwrap();
    let seen = seen.lock();
    assert_eq!((seen.attempts.len(), seen.hosts.len()), (tasks * CONFIGS, HOSTS));
    // Timeouts of a busy machine may add failures.
    let failures = u64::try_from(tasks * CONFIGS / 10).unwrap();
    assert_eq!((stats.successes, stats.dead_letters), (u64::try_from(tasks * CONFIGS).unwrap(), 0), "{stats:?}");
    assert!(stats.failures >= failures && stats.failures < 2 * failures, "{stats:?}");
    assert_eq!((stats.attempts, stats.lag), (stats.successes + stats.failures, Duration::ZERO));
}
