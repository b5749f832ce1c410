//! Concurrent clients of every binding and both versions that record in a history what they observe, until the server
//! stops.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use a2a_service::{
    call::Call,
    client,
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::{Cursor, Ends, Event},
    pb::v1::{
        CancelTaskRequest, GetTaskRequest, ListTasksRequest, SendMessageConfiguration, SendMessageRequest,
        SubscribeToTaskRequest, Task, TaskState, a2a_service_server::A2aService,
        send_message_response::Payload as Answer, stream_response::Payload,
    },
};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::timeout};
use tokio_stream::StreamExt as _;
use tonic::Status;

use crate::{
    history::{History, Line},
    scenarios::{configured, request, text},
    v03_client,
};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Number of bindings, one client each.
const BINDINGS: usize = 6;

/// Deterministic pseudo-random numbers (`SplitMix64`).
#[derive(Clone)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// Returns a number in `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((bits ^ (bits >> 31)) % u64::try_from(n).unwrap()).unwrap()
    }
}

#[derive(Clone)]
struct Binding(&'static str, Arc<dyn A2aService>);

fn bindings(url: &str) -> [Binding; BINDINGS] {
    [
        Binding("REST", client::rest(url).unwrap()),
        Binding("JSON-RPC", client::json_rpc(&format!("{url}/rpc")).unwrap()),
        Binding("gRPC", client::grpc(url).unwrap()),
        Binding("REST 0.3", v03_client::rest(url)),
        Binding("JSON-RPC 0.3", v03_client::json_rpc(url)),
        Binding("gRPC 0.3", v03_client::grpc(url)),
    ]
}

/// Unfinished work that is passed to the clients of the next server run.
#[derive(Default)]
pub(crate) struct Unfinished {
    /// Interrupted streams: task id and last cursor.
    interrupted: Mutex<Vec<(String, Option<Cursor>)>>,
    /// Tasks that wait for input.
    waiting: Mutex<Vec<String>>,
}

/// Running clients.
pub(crate) struct Clients {
    all: JoinSet<()>,
    stopping: Arc<AtomicBool>,
}

struct Client {
    history: Arc<History>,
    unfinished: Arc<Unfinished>,
    bindings: [Binding; BINDINGS],
    own: usize,
    rng: Rng,
    /// Set before the server is stopped; connection errors are expected from then on.
    stopping: Arc<AtomicBool>,
}

/// The server has stopped.
struct ServerStopped;

impl Clients {
    /// Starts the clients, which first finish the unfinished work.
    pub(crate) fn start(url: &str, history: &Arc<History>, unfinished: &Arc<Unfinished>, rng: &mut Rng) -> Self {
        let (mut all, stopping) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        // Created before the first one runs: a client with TLS takes time, and the server may stop soon.
        let clients: Vec<Client> = (0..BINDINGS)
            .map(|own| Client {
                history: Arc::clone(history),
                unfinished: Arc::clone(unfinished),
                bindings: bindings(url),
                own,
                rng: Rng(u64::try_from(rng.below(usize::MAX)).unwrap()),
                stopping: Arc::clone(&stopping),
            })
            .collect();
        for client in clients {
            all.spawn(client.run());
        }
        Self { all, stopping }
    }

    /// Allows connection errors from now on, because the server is about to stop.
    pub(crate) fn expect_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Waits until every client has noticed that the server stopped.
    pub(crate) async fn join(self) {
        timeout(TIMEOUT, self.all.join_all()).await.unwrap();
    }
}

/// Finishes all unfinished work and waits until no task is running. No other client may be active.
pub(crate) async fn finish_all(url: &str, history: &Arc<History>, unfinished: &Arc<Unfinished>, rng: &mut Rng) {
    let bindings = bindings(url);
    let stopping = Arc::new(AtomicBool::new(false));
    let rng = rng.clone();
    let mut client =
        Client { history: Arc::clone(history), unfinished: Arc::clone(unfinished), bindings, own: 0, rng, stopping };
    let finished = async {
        while client.finish_one().await.ok().unwrap() {}
        // Includes tasks that no client knows and that the restart resumed.
        let agent = client::grpc(url).unwrap();
        let mut beat = tokio::time::interval(Duration::from_millis(20));
        for state in [TaskState::Submitted, TaskState::Working] {
            let list = || request(ListTasksRequest { status: state.into(), ..ListTasksRequest::default() });
            while agent.list_tasks(list()).await.unwrap().get_ref().total_size > 0 {
                beat.tick().await;
            }
        }
    };
    timeout(TIMEOUT, finished).await.unwrap();
}

impl Client {
    async fn run(mut self) {
        while self.act().await.is_ok() {}
    }

    fn binding(&mut self, any: bool) -> Binding {
        let n = if any { self.rng.below(BINDINGS) } else { self.own };
        self.bindings[n].clone()
    }

    /// Converts a failed call; panics unless the server is stopping.
    fn unless_stopped<T>(&self, outcome: Result<T, Status>) -> Result<T, ServerStopped> {
        outcome.map_err(|status| {
            assert!(self.stopping.load(Ordering::SeqCst), "a running server rejected the call: {status:?}");
            ServerStopped
        })
    }

    /// Performs one random client operation.
    async fn act(&mut self) -> Result<(), ServerStopped> {
        while self.finish_one().await? {}
        let chunks = 5 + self.rng.below(40);
        let chunks = format!("/stream {chunks} 1");
        match self.rng.below(7) {
            0 => drop(self.send(text("", "hello")).await?),
            1 => drop(self.send(text("", "/fail")).await?),
            2 => {
                let id = self.send(text("", "/ask what?")).await?;
                self.unfinished.waiting.lock().push(id);
            }
            3 => self.stream(None, &chunks).await?,
            4 => {
                let events = 1 + self.rng.below(20);
                self.stream(Some(events), &chunks).await?;
            }
            5 => {
                let at_once = SendMessageConfiguration { return_immediately: true, ..Default::default() };
                self.send(configured(text("", &chunks), at_once)).await?;
            }
            _ => {
                let at_once = SendMessageConfiguration { return_immediately: true, ..Default::default() };
                let id = self.send(configured(text("", "/slow 30"), at_once)).await?;
                let Binding(binding, agent) = self.binding(true);
                let cancel = CancelTaskRequest { id, ..CancelTaskRequest::default() };
                let canceled = self.unless_stopped(agent.cancel_task(request(cancel)).await)?;
                self.record_task(binding, canceled.into_inner().into_task().unwrap());
            }
        }
        Ok(())
    }

    fn record_task(&self, binding: &str, task: Task) {
        self.history.record(&Line::Reply { binding: binding.to_owned(), task: Box::new(task) });
    }

    async fn send(&mut self, sent: SendMessageRequest) -> Result<String, ServerStopped> {
        let Binding(binding, agent) = self.binding(false);
        let reply = self.unless_stopped(agent.send_message(request(sent)).await)?.into_inner();
        let Some(Answer::Task(task)) = reply.payload else {
            panic!("{binding}: unexpected reply to a send: {reply:?}")
        };
        let (id, state) = (task.id.clone(), task.state());
        self.record_task(binding, task);
        if !state.is_terminal() && !state.is_interrupted() {
            self.unfinished.interrupted.lock().push((id.clone(), None));
        }
        Ok(id)
    }

    /// Sends a streaming request, and disconnects after `max_events` events if given.
    async fn stream(&mut self, max_events: Option<usize>, content: &str) -> Result<(), ServerStopped> {
        let Binding(binding, agent) = self.binding(false);
        let stream = self.history.stream(binding, None);
        let events = self.unless_stopped(agent.send_streaming_message(request(text("", content))).await)?.into_inner();
        self.follow(stream, String::new(), None, events, max_events).await
    }

    /// Records a stream until it ends, is cut or has `max_events` events; an incomplete one is left as unfinished work.
    async fn follow(
        &self,
        stream: u64,
        mut id: String,
        mut last: Option<Cursor>,
        mut events: BoxStream<Event>,
        mut max_events: Option<usize>,
    ) -> Result<(), ServerStopped> {
        let mut ended = false;
        while max_events != Some(0) {
            match events.next().await {
                Some(Ok(event)) => {
                    if let Some(Payload::Task(task)) = event.payload() {
                        id.clone_from(&task.id);
                    }
                    if event.cursor().is_some() {
                        last = event.cursor().cloned();
                    }
                    ended = event.ends() == Ends::Task;
                    let cursor = event.cursor().map(|cursor| cursor.as_str().to_owned());
                    let event = Box::new(event.into_response());
                    self.history.record(&Line::Event { stream, cursor, event });
                    max_events = max_events.map(|left| left - 1);
                }
                Some(Err(status)) => {
                    if !ended && !id.is_empty() {
                        self.unfinished.interrupted.lock().push((id, last));
                    }
                    return self.unless_stopped(Err(status));
                }
                None => {
                    self.history.record(&Line::End { stream });
                    return Ok(());
                }
            }
        }
        if !ended {
            self.unfinished.interrupted.lock().push((id, last));
        }
        Ok(())
    }

    /// Finishes one piece of unfinished work. Returns whether there was any.
    async fn finish_one(&mut self) -> Result<bool, ServerStopped> {
        // Replies first: a stream of a task that waits for input does not end.
        let waiting = self.unfinished.waiting.lock().pop();
        if let Some(id) = waiting {
            let answered = self.reply(&id).await;
            if answered.is_err() {
                self.unfinished.waiting.lock().push(id);
            }
            return answered.map(|()| true);
        }
        let interrupted = self.unfinished.interrupted.lock().pop();
        match interrupted {
            Some((id, cursor)) => self.resume(&id, cursor).await.map(|()| true),
            None => Ok(false),
        }
    }

    async fn resume(&mut self, id: &str, cursor: Option<Cursor>) -> Result<(), ServerStopped> {
        let Binding(binding, agent) = self.binding(true);
        let call = Call { cursor: cursor.clone(), ..Call::default() };
        let subscribe = SubscribeToTaskRequest { id: id.to_owned(), ..SubscribeToTaskRequest::default() };
        match agent.subscribe_to_task(call.request(subscribe)).await {
            Ok(events) => {
                let stream = self.history.stream(binding, cursor.as_ref());
                self.follow(stream, id.to_owned(), cursor, events.into_inner(), None).await
            }
            // The task is terminal, and there is no cursor to resume from.
            Err(status) if cursor.is_none() && is_task_ended(&status) => {
                let get = GetTaskRequest { id: id.to_owned(), ..GetTaskRequest::default() };
                match agent.get_task(request(get)).await {
                    Ok(task) => {
                        let task = task.into_inner().into_task().unwrap();
                        assert!(task.state().is_terminal(), "{binding}: {task:?} cannot be subscribed to: {status:?}");
                        self.record_task(binding, task);
                        Ok(())
                    }
                    Err(status) => {
                        self.unfinished.interrupted.lock().push((id.to_owned(), cursor));
                        self.unless_stopped(Err(status))
                    }
                }
            }
            Err(status) => {
                self.unfinished.interrupted.lock().push((id.to_owned(), cursor));
                self.unless_stopped(Err(status))
            }
        }
    }

    async fn reply(&mut self, id: &str) -> Result<(), ServerStopped> {
        let Binding(binding, agent) = self.binding(true);
        match agent.send_message(request(text(id, "this"))).await {
            Ok(reply) => {
                if let Some(Answer::Task(task)) = reply.into_inner().payload {
                    self.record_task(binding, task);
                }
                // The reply may precede the end of the turn.
                self.unfinished.interrupted.lock().push((id.to_owned(), None));
                Ok(())
            }
            // The task got its reply before the restart, and the client did not learn of it.
            Err(status) if is_task_ended(&status) => Ok(()),
            Err(status) => self.unless_stopped(Err(status)),
        }
    }
}

/// Returns whether the task is terminal; 0.3 has no error of its own for that.
fn is_task_ended(status: &Status) -> bool {
    Error::from(status.clone()).kind() == ErrorKind::UnsupportedOperation
        || status.message().ends_with("is in a terminal state")
}
