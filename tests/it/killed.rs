//! A server that is killed again and again, while clients of every binding are at work: what they saw is there, once
//! and in its order, and nothing is left at work.

use std::{
    collections::HashMap,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use a2a_service::{
    call::Call,
    client,
    event::{Ends, Event},
    pb::v1::{
        GetTaskRequest, SubscribeToTaskRequest, Task, a2a_service_server::A2aService,
        send_message_response::Payload as Answer, stream_response::Payload,
    },
    store::{
        Key, Store,
        sqlite::{Options, Sqlite},
    },
};
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_stream::StreamExt as _;

use crate::{
    program::{a2a, signal, started},
    scenarios::{request, task_of, text},
    store::place::copy,
};

const PATIENCE: Duration = Duration::from_secs(30);

/// What clients saw.
#[derive(Default)]
struct History {
    /// Tasks as they were answered with, which nobody touched after that.
    answers: Mutex<Vec<Task>>,
    /// What streams began with and had, by task.
    streams: Mutex<HashMap<String, Vec<Event>>>,
    /// How many answers and events.
    seen: watch::Sender<usize>,
}

impl History {
    fn answer(&self, task: Task) {
        self.answers.lock().push(task);
        self.seen.send_modify(|it| *it += 1);
    }

    fn event(&self, task_id: &str, event: Event) {
        self.streams.lock().entry(task_id.to_owned()).or_default().push(event);
        self.seen.send_modify(|it| *it += 1);
    }

    /// Calls until nobody answers.
    async fn make(self: Arc<Self>, agent: Arc<dyn A2aService>) {
        loop {
            for said in ["hello", "/ask what?", "/fail"] {
                let Ok(reply) = agent.send_message(request(text("", said))).await else { return };
                if let Some(Answer::Task(it)) = reply.into_inner().payload {
                    self.answer(it);
                }
            }
            let Ok(reply) = agent.send_streaming_message(request(text("", "/stream 40 1"))).await else { return };
            let mut events = reply.into_inner();
            let Some(Ok(first)) = events.next().await else { return };
            let id = task_of(&first).id.clone();
            self.event(&id, first);
            while let Some(event) = events.next().await {
                let Ok(event) = event else { return };
                self.event(&id, event);
            }
        }
    }

    /// Holds what was seen against the file that was left.
    async fn check(&self, directory: &Path) {
        let left = tempfile::tempdir().unwrap();
        copy(directory, left.path());
        let store = Sqlite::open(&left.path().join("a2a.db"), Options::default()).unwrap();
        let answers = self.answers.lock().clone();
        for task in answers {
            let key = key(&task.id);
            let mut stored = store.load(&key).await.unwrap().unwrap();
            assert_eq!(stored.task(&store, &key).await.unwrap(), task);
        }
        let streams = self.streams.lock().clone();
        for (id, seen) in streams {
            let log = store.events(&key(&id), 0, usize::MAX).await.unwrap().events;
            let seqs: Vec<_> = log.iter().map(Event::seq).collect();
            assert_eq!(seqs, (1..=u64::try_from(log.len()).unwrap()).collect::<Vec<_>>(), "{id}");
            let ends = log.iter().position(|it| it.ends() == Ends::Task);
            assert!(ends.is_none_or(|it| it + 1 == log.len()), "{id}");
            let (snapshot, seen) = seen.split_first().unwrap();
            assert!(matches!(snapshot.payload(), Some(Payload::Task(_))), "{snapshot:?}");
            assert!(log.iter().skip(1).take(seen.len()).eq(seen), "{id}: {seen:?} is not what {log:?} begins with");
        }
    }

    /// Asks the server that came after: everything is over or can be answered, and streams go on where they broke.
    async fn ask(&self, agent: &dyn A2aService, resumed: &dyn A2aService) {
        let streams = self.streams.lock().clone();
        for (id, seen) in streams {
            let settled = async {
                loop {
                    let get = GetTaskRequest { id: id.clone(), ..GetTaskRequest::default() };
                    let task = agent.get_task(request(get)).await.unwrap().into_inner();
                    if task.state().is_terminal() {
                        break;
                    }
                }
            };
            timeout(PATIENCE, settled).await.unwrap();
            let Some(cursor) = seen[seen.len() / 2].cursor().cloned() else { continue };
            let call = Call { cursor: Some(cursor), ..Call::default() };
            let subscribe = SubscribeToTaskRequest { id: id.clone(), ..SubscribeToTaskRequest::default() };
            let rest = resumed.subscribe_to_task(call.request(subscribe)).await.unwrap().into_inner();
            let rest: Vec<Event> = timeout(PATIENCE, rest.map(|it| it.unwrap()).collect()).await.unwrap();
            let seen = &seen[seen.len() / 2 + 1..];
            assert!(rest.iter().take(seen.len()).eq(seen), "{id}: {rest:?} does not begin with {seen:?}");
            assert_eq!(rest.last().map_or(Ends::Task, Event::ends), Ends::Task);
        }
    }
}

fn key(id: &str) -> Key {
    Key::new(&Arc::default(), id)
}

/// `KILLS=50` kills it more often, and `SEED` says when.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::print_stdout, reason = "a run that fails is to be had again")]
async fn what_clients_saw_outlives_every_kill() {
    let number = |name: &str| std::env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let (kills, seed) = (number("KILLS").unwrap_or(5), number("SEED").unwrap_or(now));
    println!("SEED={seed}");
    let directory = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", directory.path().join("a2a.db").display());
    let start = || started(a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "error", "--store", &store]));
    let mut random = seed;
    for _ in 0..kills {
        let (mut child, url) = start().await;
        let history = Arc::new(History::default());
        let rest = || client::rest(&url).unwrap();
        let rpc = || client::json_rpc(&format!("{url}/rpc")).unwrap();
        let mut clients = JoinSet::new();
        for agent in [rest(), rpc(), client::grpc(&url).unwrap(), rest(), rpc()] {
            clients.spawn(Arc::clone(&history).make(agent));
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let enough = usize::try_from(random >> 33).unwrap() % 700;
        timeout(PATIENCE, history.seen.subscribe().wait_for(|it| *it > enough)).await.unwrap().unwrap();
        signal(&child, "-KILL");
        timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
        timeout(PATIENCE, clients.join_all()).await.unwrap();
        history.check(directory.path()).await;
        let (mut child, url) = start().await;
        history.ask(&*client::grpc(&url).unwrap(), &*client::rest(&url).unwrap()).await;
        signal(&child, "-TERM");
        assert_eq!(timeout(PATIENCE, child.wait()).await.unwrap().unwrap().code(), Some(0));
    }
}
