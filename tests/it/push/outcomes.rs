//! Outcomes of attempts whose configuration or server changes meanwhile.

use tokio::sync::Notify;

use super::*;

/// A receiver that answers 410 loses the configuration that it was sent for, and not the one that replaced it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gone_receiver_does_not_delete_a_replaced_configuration() {
    let store = Arc::new(Memory::default());
    let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
    let agent = Server::new(Writer).store(shared).push(true).push_options(options()).into_service();
    let good = Receiver::accepting().await;
    let (arrived, replaced) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", gone.local_addr().unwrap());
    let shared = (Arc::clone(&arrived), Arc::clone(&replaced));
    let answer = move || {
        let (arrived, replaced) = shared.clone();
        async move {
            arrived.notify_one();
            replaced.notified().await;
            StatusCode::GONE
        }
    };
    tokio::spawn(async move { axum::serve(gone, axum::Router::new().fallback(answer)).await.unwrap() });
    let task = send(&*agent, "3", hook(&url)).await.unwrap();
    timeout(SOON, arrived.notified()).await.unwrap();
    let other = TaskPushNotificationConfig { task_id: task.id.clone(), ..hook(&good.url()) };
    agent.create_task_push_notification_config(Call::default().request(other)).await.unwrap();
    replaced.notify_one();
    let requests = good.wait_for_end().await;
    assert!(requests[0].body["task"].is_object(), "nothing was delivered before: {requests:#?}");
    let list = ListTaskPushNotificationConfigsRequest { task_id: task.id, ..Default::default() };
    let list = agent.list_task_push_notification_configs(Call::default().request(list)).await.unwrap();
    assert_eq!(list.get_ref().configs.len(), 1);
}

/// A server that is stopped during an attempt leaves no lease behind: the next one delivers at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_server_releases_its_deliveries() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a2a.db");
    let hangs = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let arrived = Arc::new(Notify::new());
    let seen: Arc<Mutex<Vec<Value>>> = Arc::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let shared = (Arc::clone(&hangs), Arc::clone(&arrived), Arc::clone(&seen));
    let receive = move |bytes: Bytes| {
        let (hangs, arrived, seen) = shared.clone();
        async move {
            arrived.notify_one();
            if hangs.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            seen.lock().push(serde_json::from_slice(&bytes).unwrap());
        }
    };
    tokio::spawn(async move { axum::serve(listener, axum::Router::new().fallback(receive)).await.unwrap() });
    let start = || {
        let store: Arc<dyn Store> = Arc::new(sqlite::Sqlite::open(&path, sqlite::Options::default()).unwrap());
        // The lease is 50 s, and longer than the test may take.
        let options = options().timeout(Duration::from_secs(20));
        Server::new(Writer).store(store).push(true).push_options(options)
    };
    let bound = start().bind("127.0.0.1:0").await.unwrap();
    let (address, handle) = (format!("http://{}", bound.addr()), bound.handle());
    let serving = tokio::spawn(bound.run_until(std::future::pending()));
    let agent = client::rest(&address).unwrap();
    send(&*agent, "3", hook(&url)).await.unwrap();
    timeout(SOON, arrived.notified()).await.unwrap();
    handle.drain().await;
    timeout(SOON, serving).await.unwrap().unwrap();
    drop((agent, handle));
    hangs.store(false, Ordering::SeqCst);
    let started = Instant::now();
    let bound = start().bind("127.0.0.1:0").await.unwrap();
    let handle = bound.handle();
    let serving = tokio::spawn(bound.run_until(std::future::pending()));
    let is_complete = async {
        while !seen.lock().iter().any(|body| state(body).is_some_and(|state| state.ends_with("COMPLETED"))) {
            pause().await;
        }
    };
    timeout(SOON, is_complete).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert!(seen.lock()[0]["task"].is_object());
    handle.drain().await;
    serving.await.unwrap();
}
