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

/// An operator sees the last attempt of a delivery, and retries it while the server runs: one that waits, although the circuit
/// breaker of its host is open, and dead letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_retries_deliveries_of_a_running_server() {
    let directory = tempfile::tempdir().unwrap();
    let file = sqlite::Sqlite::open(&directory.path().join("a2a.db"), sqlite::Options::default()).unwrap();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(Memory::default()), Arc::new(file)];
    for store in stores {
        let answer = Arc::new(AtomicUsize::new(503));
        let shared = Arc::clone(&answer);
        let code = move |_| status(StatusCode::from_u16(shared.load(Ordering::SeqCst).try_into().unwrap()).unwrap());
        let receiver = Receiver::start(code).await;
        let token = a2a_service::auth::Token::new("root").unwrap();
        let server = Server::new(Writer).store(store).push(true).push_options(options()).operator_token(token);
        let bound = server.bind("127.0.0.1:0").await.unwrap();
        let url = bound.url();
        tokio::spawn(bound.run_until(std::future::pending()));
        let agent = client::rest(&url).unwrap();
        let request = async |request: reqwest::RequestBuilder| -> Value {
            let response = request.bearer_auth("root").send().await.unwrap();
            let body = response.text().await.unwrap();
            assert!(!body.contains(SECRET) && !body.contains("hunter2"), "{body}");
            serde_json::from_str(&body).unwrap()
        };
        let http = crate::bindings::http();
        let read = async |query: &str| request(http.get(format!("{url}/operator/deliveries?{query}"))).await;
        let retry = async |body: Value| {
            let post = http.post(format!("{url}/operator/deliveries:retry")).header("content-type", "application/json");
            request(post.body(body.to_string())).await
        };
        let until = async |query: &str, is_met: &dyn Fn(&Value) -> bool| {
            let met = async {
                loop {
                    let delivery = read(query).await["deliveries"][0].take();
                    if is_met(&delivery) {
                        return delivery;
                    }
                    pause().await;
                }
            };
            timeout(SOON, met).await.unwrap()
        };
        // The failures of all open the circuit breaker of the host.
        let hook_url = receiver.url() + "?key=hunter2";
        let mut tasks = Vec::new();
        for _ in 0..6 {
            tasks.push(send(&*agent, "1", hook(&hook_url)).await.unwrap().id);
        }
        let query = format!("task={}", tasks[0]);
        let waiting = until(&query, &|delivery| delivery["last"]["status"] == 503).await;
        assert_eq!((&waiting["state"], &waiting["url"]), (&"waiting".into(), &receiver.url().into()), "{waiting}");
        assert_eq!(waiting["last"]["error"], "the receiver returned 503", "{waiting}");
        assert!(waiting["attempts"].as_u64() > Some(0) && waiting["last"]["at"].is_string(), "{waiting}");
        receiver.wait(|all| all.len() >= 5).await;
        // Each failed probe opens it for longer: without a retry, nothing would be delivered for 40 s.
        for _ in 0..3 {
            let before = receiver.requests.lock().len();
            retry(serde_json::json!({"task": tasks[0], "config": "hook"})).await;
            receiver.wait(|all| all.len() > before).await;
            until(&query, &|delivery| delivery["state"] == "waiting").await;
        }
        answer.store(204, Ordering::SeqCst);
        assert_eq!(retry(serde_json::json!({"task": tasks[0]})).await["retried"], 1);
        let delivered = until(&query, &|delivery| delivery["last"]["status"] == 204);
        let delivered = timeout(Duration::from_secs(15), delivered).await.unwrap();
        assert_eq!((&delivered["state"], &delivered["last"]["error"]), (&"idle".into(), &Value::Null), "{delivered}");
        assert_eq!(delivered["delivered"], delivered["events"], "{delivered}");

        answer.store(400, Ordering::SeqCst);
        let rejected = send(&*agent, "1", hook(&hook_url)).await.unwrap().id;
        let query = format!("task={rejected}");
        let dead = until(&query, &|delivery| delivery["state"] == "dead").await;
        assert_eq!(
            (&dead["reason"], &dead["last"]["status"]),
            (&"the receiver returned 400".into(), &400.into()),
            "{dead}"
        );
        let counts: Value = request(http.get(format!("{url}/operator/status"))).await;
        assert!(counts["push"]["dead"].as_u64() >= Some(1), "{counts}");
        let listed = read("state=dead").await;
        assert!(listed["deliveries"].as_array().unwrap().iter().any(|one| one["task"] == *rejected), "{listed}");
        answer.store(204, Ordering::SeqCst);
        assert!(retry(serde_json::json!({"dead": true})).await["retried"].as_u64() >= Some(1));
        until(&query, &|delivery| delivery["state"] == "idle").await;
        assert_eq!(read("state=dead").await["deliveries"], serde_json::json!([]));
        assert!(retry(serde_json::json!({})).await["error"]["message"].as_str().unwrap().contains("task"));
    }
}
