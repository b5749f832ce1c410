//! Servers are replaced one after the other, as by an upgrade: no request fails, and running turns continue elsewhere.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use a2a_service::pb::v1::Message;
use futures::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{Cluster, SERVERS, TIMEOUT};
use crate::bindings::http;

const LEASE: Duration = Duration::from_secs(10);

/// Number of clients.
const CLIENTS: usize = 8;

/// Time after which the proxy has found that a server is ready.
const CHECK: Duration = Duration::from_millis(1500);

/// Sends a message with an idempotency key of its own.
async fn send(client: &reqwest::Client, url: &str, text: &str, returns_immediately: bool) -> (StatusCode, Value) {
    let id = Message::user("").message_id;
    let message = json!({"messageId": id, "role": "ROLE_USER", "parts": [{"text": text}]});
    let body = json!({"message": message, "configuration": {"returnImmediately": returns_immediately}});
    let request = client.post(format!("{url}/message:send")).header("content-type", "application/json");
    let reply = request.header("idempotency-key", id).body(body.to_string()).send().await.unwrap();
    let status = reply.status();
    (status, serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap_or_default())
}

#[expect(clippy::print_stdout, reason = "the output has the figures")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_when_servers_are_replaced() {
    let Some(mut cluster) = Cluster::find("handover", LEASE).await else { return };
    cluster.use_resumable_agent().await;
    cluster.arguments.extend(["--shutdown-grace", "1s"].map(str::to_owned));
    let Some(balancer) = cluster.balancers.iter().find(|balancer| balancer.name == "haproxy") else {
        eprintln!("skipped: only HAProxy repeats a send with an idempotency key after a 503");
        return;
    };
    let mut servers: Vec<_> = (0..SERVERS).map(|number| cluster.server(number, &cluster.database)).collect();
    for server in &mut servers {
        server.start().await;
        server.wait_until_ready().await;
    }
    let url = &*balancer.url;
    sleep(CHECK).await;
    let client = http();
    let long = join_all((0..CLIENTS).map(|_| send(&client, url, "/stream 40 400", true))).await;
    let long: Vec<_> = long.iter().map(|(_, sent)| sent["task"]["id"].as_str().unwrap()).collect();

    let (is_over, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let calls = (0..CLIENTS).map(|_| {
        let (url, is_over, requests) = (url.to_owned(), Arc::clone(&is_over), Arc::clone(&requests));
        tokio::spawn(async move {
            let (client, mut failed) = (http(), Vec::new());
            while !is_over.load(Ordering::Relaxed) {
                let (status, sent) = send(&client, &url, "/stream 3 20", false).await;
                let get = client.get(format!("{url}/tasks/{}", sent["task"]["id"].as_str().unwrap_or("none")));
                let found = get.send().await.unwrap().status();
                requests.fetch_add(2, Ordering::Relaxed);
                if status != StatusCode::OK || found != StatusCode::OK {
                    failed.push((status, sent, found));
                }
            }
            failed
        })
    });
    let calls: Vec<_> = calls.collect();
    for server in &mut servers {
        sleep(Duration::from_millis(500)).await;
        server.signal("-TERM");
        assert_eq!(server.ended().await, Some(0));
        server.start().await;
        server.wait_until_ready().await;
        sleep(CHECK).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let failed: Vec<_> = join_all(calls).await.into_iter().flat_map(Result::unwrap).collect();

    let ended = async {
        while cluster.count("SELECT count(*) FROM @task WHERE open OR state <> 3").await > 0 {
            sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(TIMEOUT, ended).await.unwrap();
    // An attempt is counted by the claim of a turn whose server died, and not by that of one which was handed over.
    let handed = cluster.count("SELECT coalesce(sum(drained), 0) FROM @task").await;
    let repeated = cluster.count("SELECT count(*) FROM @task WHERE attempt - drained > 1").await;
    let requests = requests.load(Ordering::Relaxed);
    println!("{requests} requests, {} of them failed; {handed} turns were handed over", failed.len());
    assert!(failed.is_empty(), "{failed:?}");
    assert!(requests > 100 && handed >= u64::try_from(long.len()).unwrap(), "{requests} {handed}");
    assert_eq!(repeated, 0);
    for server in &mut servers {
        server.signal("-TERM");
        assert_eq!(server.ended().await, Some(0));
    }
}
