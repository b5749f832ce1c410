//! Concurrent clients of every binding and both versions that record in a history what they observe, until the server
//! stops, or while servers are disturbed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use a2a_service::{
    call::Call,
    client,
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::{Cursor, Ends, Event},
    pb::v1::{
        CancelTaskRequest, GetTaskRequest, ListTasksRequest, SendMessageConfiguration, SendMessageRequest,
        SubscribeToTaskRequest, Task, TaskPushNotificationConfig, TaskState, a2a_service_server::A2aService,
        send_message_response::Payload as Answer, stream_response::Payload,
    },
};
use parking_lot::Mutex;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_stream::StreamExt as _;
use tonic::{Response, Status};

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
pub(crate) struct Binding(pub(crate) &'static str, pub(crate) Arc<dyn A2aService>);

/// Returns clients of a server, or of a proxy with a URL of its own for gRPC.
pub(crate) fn bindings(url: &str, grpc: &str) -> [Binding; BINDINGS] {
    [
        Binding("REST", client::rest(url).unwrap()),
        Binding("JSON-RPC", client::json_rpc(&format!("{url}/rpc")).unwrap()),
        Binding("gRPC", client::grpc(grpc).unwrap()),
        Binding("REST 0.3", v03_client::rest(url)),
        Binding("JSON-RPC 0.3", v03_client::json_rpc(url)),
        Binding("gRPC 0.3", v03_client::grpc(grpc)),
    ]
}

/// Shared state of the clients of disturbed servers, which retry calls that fail, and go on.
#[derive(Default)]
pub(crate) struct Disturbed {
    /// URL of the receiver of push notifications.
    pub(crate) push_url: String,
    pub(crate) sends: AtomicUsize,
    pub(crate) streams: AtomicUsize,
    pub(crate) reads: AtomicUsize,
    /// Number of calls that failed because of the disturbances.
    pub(crate) unavailable: AtomicUsize,
    /// Times of streams that ended regularly without an end: a proxy may do that when a server is killed, and so does a server that has
    /// lost its tasks, if the client has a cursor.
    pub(crate) cut: Mutex<Vec<SystemTime>>,
    /// Calls that failed for another reason.
    pub(crate) anomalies: Mutex<Vec<String>>,
    /// Positions of tasks that clients have seen, in their order: the number of the client, and the task.
    pub(crate) seen: Mutex<Vec<(usize, String, Position)>>,
}

/// Position of a task that a client has seen.
pub(crate) enum Position {
    /// The task was read.
    Read(Box<Task>),
    /// An event arrived.
    Event(u64),
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
    number: usize,
    own: usize,
    rng: Rng,
    /// Set before the server is stopped; connection errors are expected from then on.
    stopping: Arc<AtomicBool>,
    disturbed: Option<Arc<Disturbed>>,
    /// Tasks that the client has sent last.
    recent: Vec<String>,
}

/// The server has stopped, or is disturbed.
struct ServerStopped;

impl Clients {
    /// Starts the clients, which first finish the unfinished work.
    pub(crate) fn start(url: &str, history: &Arc<History>, unfinished: &Arc<Unfinished>, rng: &mut Rng) -> Self {
        Self::start_at((url, url), history, unfinished, rng, None)
    }

    /// Starts the clients of a proxy, which has a URL of its own for gRPC.
    pub(crate) fn start_at(
        (url, grpc): (&str, &str),
        history: &Arc<History>,
        unfinished: &Arc<Unfinished>,
        rng: &mut Rng,
        disturbed: Option<&Arc<Disturbed>>,
    ) -> Self {
        let (mut all, stopping) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        // Created before the first one runs: a client with TLS takes time, and the server may stop soon.
        let count = if disturbed.is_some() { 3 * BINDINGS } else { BINDINGS };
        let clients: Vec<Client> = (0..count)
            .map(|number| Client {
                history: Arc::clone(history),
                unfinished: Arc::clone(unfinished),
                bindings: bindings(url, grpc),
                number,
                own: number % BINDINGS,
                rng: Rng(u64::try_from(rng.below(usize::MAX)).unwrap()),
                stopping: Arc::clone(&stopping),
                disturbed: disturbed.cloned(),
                recent: Vec::new(),
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
    finish_all_at((url, url), history, unfinished, rng, None).await;
}

/// Finishes all unfinished work through a proxy.
#[expect(clippy::disallowed_methods, reason = "a server may still be about to notice that the database is there again")]
pub(crate) async fn finish_all_at(
    (url, grpc): (&str, &str),
    history: &Arc<History>,
    unfinished: &Arc<Unfinished>,
    rng: &mut Rng,
    disturbed: Option<&Arc<Disturbed>>,
) {
    let mut client = Client {
        history: Arc::clone(history),
        unfinished: Arc::clone(unfinished),
        bindings: bindings(url, grpc),
        number: 0,
        own: 0,
        rng: rng.clone(),
        stopping: Arc::default(),
        disturbed: disturbed.cloned(),
        recent: Vec::new(),
    };
    let finished = async {
        loop {
            match client.finish_one().await {
                Ok(true) => {}
                Ok(false) => break,
                // A server may still be about to notice that the database is there again.
                Err(ServerStopped) => {
                    assert!(disturbed.is_some(), "the server has stopped");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        // Includes tasks that no client knows and that the restart resumed.
        let agent = client::grpc(grpc).unwrap();
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
    #[expect(clippy::disallowed_methods, reason = "clients rest between calls")]
    async fn run(mut self) {
        loop {
            let acted = self.act().await;
            if self.disturbed.is_none() {
                if acted.is_err() {
                    return;
                }
            } else if self.stopping.load(Ordering::SeqCst) {
                return;
            } else {
                sleep(Duration::from_millis(self.rng.below(100).try_into().unwrap())).await;
            }
        }
    }

    fn binding(&mut self, any: bool) -> Binding {
        let n = if any { self.rng.below(BINDINGS) } else { self.own };
        self.bindings[n].clone()
    }

    /// Converts a failed call; panics unless the server is stopping or disturbed.
    fn unless_stopped<T>(&self, outcome: Result<T, Status>) -> Result<T, ServerStopped> {
        outcome.map_err(|status| {
            let Some(disturbed) = &self.disturbed else {
                assert!(self.stopping.load(Ordering::SeqCst), "a running server rejected the call: {status:?}");
                return ServerStopped;
            };
            if [ErrorKind::Unavailable, ErrorKind::DeadlineExceeded].contains(&Error::from(status.clone()).kind()) {
                disturbed.unavailable.fetch_add(1, Ordering::Relaxed);
            } else {
                let rejected = format!("client {}: a call was rejected: {status:?}", self.number);
                disturbed.anomalies.lock().push(rejected);
            }
            ServerStopped
        })
    }

    /// Calls a server. A client of disturbed ones does not wait for ever; each has a limit of its own.
    async fn call<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
        if self.disturbed.is_none() {
            return call.await.map(Response::into_inner);
        }
        let ended = timeout(self.patience(), call).await;
        ended.unwrap_or_else(|_| Err(Status::deadline_exceeded("no response"))).map(Response::into_inner)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(4 + 5 * u64::try_from(self.own).unwrap())
    }

    async fn next(&self, events: &mut BoxStream<Event>) -> Option<Result<Event, Status>> {
        if self.disturbed.is_none() {
            return events.next().await;
        }
        let next = timeout(self.patience(), events.next()).await;
        next.unwrap_or_else(|_| Some(Err(Status::deadline_exceeded("no event"))))
    }

    fn saw(&self, task: &str, position: Position) {
        if let Some(disturbed) = &self.disturbed {
            disturbed.seen.lock().push((self.number, task.to_owned(), position));
        }
    }

    /// Performs one random client operation.
    async fn act(&mut self) -> Result<(), ServerStopped> {
        while self.finish_one().await? {
            if self.disturbed.is_some() {
                return Ok(());
            }
        }
        let chunks = 5 + self.rng.below(40);
        let pause = if self.disturbed.is_some() { self.rng.below(60) } else { 1 };
        let chunks = format!("/stream {chunks} {pause}");
        let kinds = if self.disturbed.is_some() { 10 } else { 7 };
        match self.rng.below(kinds) {
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
            6 => {
                let at_once = SendMessageConfiguration { return_immediately: true, ..Default::default() };
                let time = if self.disturbed.is_some() { 5 } else { 30 };
                let id = self.send(configured(text("", &format!("/slow {time}")), at_once)).await?;
                let Binding(binding, agent) = self.binding(true);
                let cancel = CancelTaskRequest { id: id.clone(), ..CancelTaskRequest::default() };
                match self.call(agent.cancel_task(request(cancel))).await {
                    Ok(task) => self.record_task(binding, task.into_task().unwrap()),
                    Err(status) => {
                        self.unfinished.interrupted.lock().push((id, None));
                        // An earlier attempt may have canceled the task, or it has ended since.
                        let is_ended = Error::from(status.clone()).kind() == ErrorKind::TaskNotCancelable;
                        if !(is_ended && self.disturbed.is_some()) {
                            return self.unless_stopped(Err(status));
                        }
                    }
                }
            }
            // Messages for a turn that runs.
            7 => {
                let at_once = SendMessageConfiguration { return_immediately: true, ..Default::default() };
                let id = self.send(configured(text("", "!later 300"), at_once)).await?;
                for _ in 0..2 {
                    if self.reply(&id).await.is_err() {
                        self.unfinished.waiting.lock().push(id.clone());
                    }
                }
            }
            _ => {
                let Some(id) = self.recent.get(self.rng.below(self.recent.len().max(1))).cloned() else {
                    return Ok(());
                };
                for _ in 0..3 {
                    self.get(&id).await?;
                }
            }
        }
        Ok(())
    }

    /// Reads a task over any binding.
    async fn get(&mut self, id: &str) -> Result<(), ServerStopped> {
        let Binding(binding, agent) = self.binding(true);
        let get = GetTaskRequest { id: id.to_owned(), ..GetTaskRequest::default() };
        let task = self.unless_stopped(self.call(agent.get_task(request(get))).await)?;
        self.record_task(binding, task.into_task().unwrap());
        self.disturbed.as_ref().inspect(|disturbed| _ = disturbed.reads.fetch_add(1, Ordering::Relaxed));
        Ok(())
    }

    fn record_task(&self, binding: &str, task: Task) {
        self.saw(&task.id, Position::Read(Box::new(task.clone())));
        self.history.record(&Line::Reply { binding: binding.to_owned(), task: Box::new(task) });
    }

    async fn send(&mut self, mut sent: SendMessageRequest) -> Result<String, ServerStopped> {
        let Binding(binding, agent) = self.binding(false);
        if let Some(disturbed) = &self.disturbed {
            disturbed.sends.fetch_add(1, Ordering::Relaxed);
            if self.rng.below(4) == 0 {
                let push = TaskPushNotificationConfig { url: disturbed.push_url.clone(), ..Default::default() };
                sent.configuration.get_or_insert_default().task_push_notification_config = Some(push);
            }
        }
        let reply = self.unless_stopped(self.call(agent.send_message(request(sent))).await)?;
        let Some(Answer::Task(task)) = reply.payload else {
            panic!("{binding}: unexpected reply to a send: {reply:?}")
        };
        let (id, state) = (task.id.clone(), task.state());
        self.record_task(binding, task);
        if !state.is_terminal() && !state.is_interrupted() {
            self.unfinished.interrupted.lock().push((id.clone(), None));
        }
        self.recent.truncate(9);
        self.recent.insert(0, id.clone());
        Ok(id)
    }

    /// Sends a streaming request, and disconnects after `max_events` events if given.
    async fn stream(&mut self, max_events: Option<usize>, content: &str) -> Result<(), ServerStopped> {
        let Binding(binding, agent) = self.binding(false);
        self.disturbed.as_ref().inspect(|disturbed| _ = disturbed.streams.fetch_add(1, Ordering::Relaxed));
        let stream = self.history.stream(binding, None);
        let events = self.call(agent.send_streaming_message(request(text("", content)))).await;
        let events = self.unless_stopped(events)?;
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
        let (mut ended, mut newest, is_new) = (false, None, last.is_none());
        while max_events != Some(0) {
            match self.next(&mut events).await {
                Some(Ok(event)) => {
                    if let Some(Payload::Task(task)) = event.payload() {
                        id.clone_from(&task.id);
                        if last.is_none() {
                            self.saw(&id, Position::Read(Box::new(task.clone())));
                        }
                    }
                    if let Some(cursor) = event.cursor() {
                        last = Some(cursor.clone());
                        cursor.parts().into_iter().for_each(|(_, at)| self.saw(&id, Position::Event(at.seq)));
                    }
                    newest = Some(event.ends());
                    ended = newest == Some(Ends::Task);
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
                    let is_cut = newest == Some(Ends::Nothing) || newest.is_none() && is_new;
                    if let Some(disturbed) = self.disturbed.as_ref().filter(|_| is_cut) {
                        disturbed.cut.lock().push(SystemTime::now());
                        self.unfinished.interrupted.lock().extend((!id.is_empty()).then_some((id, last)));
                    } else {
                        self.history.record(&Line::End { stream });
                    }
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
        match self.call(agent.subscribe_to_task(call.request(subscribe))).await {
            Ok(events) => {
                let stream = self.history.stream(binding, cursor.as_ref());
                self.follow(stream, id.to_owned(), cursor, events, None).await
            }
            // The task is terminal, and there is no cursor to resume from.
            Err(status) if cursor.is_none() && is_task_ended(&status) => {
                let get = GetTaskRequest { id: id.to_owned(), ..GetTaskRequest::default() };
                match self.call(agent.get_task(request(get))).await {
                    Ok(task) => {
                        let task = task.into_task().unwrap();
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
        match self.call(agent.send_message(request(text(id, "this")))).await {
            Ok(reply) => {
                if let Some(Answer::Task(task)) = reply.payload {
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
