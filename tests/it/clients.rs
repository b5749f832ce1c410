//! Clients of every binding and both versions, at work with one server until it is no more; what they see they write down.

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
    classic_client, classic_rpc_client,
    history::{History, Line},
    scenarios::{configured, request, text},
};

const PATIENCE: Duration = Duration::from_secs(30);

/// The ways in to a server.
const DOORS: usize = 6;

/// Numbers that look random and are the same in each run.
#[derive(Clone)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// One of `0..n`.
    pub(crate) fn roll(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let it = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((it ^ (it >> 31)) % u64::try_from(n).unwrap()).unwrap()
    }
}

#[derive(Clone)]
struct Door(&'static str, Arc<dyn A2aService>);

fn doors(url: &str) -> [Door; DOORS] {
    [
        Door("REST", client::rest(url).unwrap()),
        Door("JSON-RPC", client::json_rpc(&format!("{url}/rpc")).unwrap()),
        Door("gRPC", client::grpc(url).unwrap()),
        Door("REST 0.3", classic_client::rest(url)),
        Door("JSON-RPC 0.3", classic_rpc_client::json_rpc(url)),
        Door("gRPC 0.3", classic_client::grpc(url)),
    ]
}

/// What was begun and has not come to its end, for whoever comes after the next start.
#[derive(Default)]
pub(crate) struct Open {
    /// Streams that broke, and where.
    broken: Mutex<Vec<(String, Option<Cursor>)>>,
    /// Tasks that wait for an answer.
    asked: Mutex<Vec<String>>,
}

/// Clients at work.
pub(crate) struct Clients {
    all: JoinSet<()>,
    ends: Arc<AtomicBool>,
}

struct Client {
    history: Arc<History>,
    open: Arc<Open>,
    doors: [Door; DOORS],
    mine: usize,
    dice: Dice,
    /// Whoever loses a connection from here on need not wonder.
    ends: Arc<AtomicBool>,
}

/// The server is gone.
struct Gone;

impl Clients {
    /// They take up what was left open, and go on from there.
    pub(crate) fn begin(url: &str, history: &Arc<History>, open: &Arc<Open>, dice: &mut Dice) -> Self {
        let (mut all, ends) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
        for mine in 0..DOORS {
            let client = Client {
                history: Arc::clone(history),
                open: Arc::clone(open),
                doors: doors(url),
                mine,
                dice: Dice(u64::try_from(dice.roll(usize::MAX)).unwrap()),
                ends: Arc::clone(&ends),
            };
            all.spawn(client.work());
        }
        Self { all, ends }
    }

    /// From here on the server may end.
    pub(crate) fn expect_the_end(&self) {
        self.ends.store(true, Ordering::SeqCst);
    }

    /// Waits until they have noticed.
    pub(crate) async fn leave(self) {
        timeout(PATIENCE, self.all.join_all()).await.unwrap();
    }
}

/// Sees to it that all is over that was begun: nothing else is at work.
pub(crate) async fn settle(url: &str, history: &Arc<History>, open: &Arc<Open>, dice: &mut Dice) {
    let doors = doors(url);
    let ends = Arc::new(AtomicBool::new(false));
    let dice = dice.clone();
    let mut client = Client { history: Arc::clone(history), open: Arc::clone(open), doors, mine: 0, dice, ends };
    let settled = async {
        while client.take_up().await.ok().unwrap() {}
        // Also what no client has heard of, and a restart goes on with.
        let agent = client::grpc(url).unwrap();
        let mut beat = tokio::time::interval(Duration::from_millis(20));
        for state in [TaskState::Submitted, TaskState::Working] {
            let list = || request(ListTasksRequest { status: state.into(), ..ListTasksRequest::default() });
            while agent.list_tasks(list()).await.unwrap().get_ref().total_size > 0 {
                beat.tick().await;
            }
        }
    };
    timeout(PATIENCE, settled).await.unwrap();
}

impl Client {
    async fn work(mut self) {
        while self.one().await.is_ok() {}
    }

    fn door(&mut self, any: bool) -> Door {
        let n = if any { self.dice.roll(DOORS) } else { self.mine };
        self.doors[n].clone()
    }

    /// What a call that fails tells.
    fn gone<T>(&self, outcome: Result<T, Status>) -> Result<T, Gone> {
        outcome.map_err(|status| {
            assert!(self.ends.load(Ordering::SeqCst), "the server is there, and refuses: {status:?}");
            Gone
        })
    }

    /// A thing that clients do.
    async fn one(&mut self) -> Result<(), Gone> {
        while self.take_up().await? {}
        let chunks = 5 + self.dice.roll(40);
        let chunks = format!("/stream {chunks} 1");
        match self.dice.roll(7) {
            0 => drop(self.send(text("", "hello")).await?),
            1 => drop(self.send(text("", "/fail")).await?),
            2 => {
                let id = self.send(text("", "/ask what?")).await?;
                self.open.asked.lock().push(id);
            }
            3 => self.stream(None, &chunks).await?,
            4 => {
                let leaves = 1 + self.dice.roll(20);
                self.stream(Some(leaves), &chunks).await?;
            }
            5 => {
                let at_once = SendMessageConfiguration { return_immediately: true, ..Default::default() };
                self.send(configured(text("", &chunks), at_once)).await?;
            }
            _ => {
                let at_once = SendMessageConfiguration { return_immediately: true, ..Default::default() };
                let id = self.send(configured(text("", "/slow 30"), at_once)).await?;
                let Door(door, agent) = self.door(true);
                let cancel = CancelTaskRequest { id, ..CancelTaskRequest::default() };
                let canceled = self.gone(agent.cancel_task(request(cancel)).await)?;
                self.answer(door, canceled.into_inner().into_task().unwrap());
            }
        }
        Ok(())
    }

    fn answer(&self, door: &str, task: Task) {
        self.history.see(&Line::Answer { door: door.to_owned(), task: Box::new(task) });
    }

    async fn send(&mut self, sent: SendMessageRequest) -> Result<String, Gone> {
        let Door(door, agent) = self.door(false);
        let reply = self.gone(agent.send_message(request(sent)).await)?.into_inner();
        let Some(Answer::Task(task)) = reply.payload else { panic!("{door}: a send was answered with {reply:?}") };
        let (id, state) = (task.id.clone(), task.state());
        self.answer(door, task);
        if !state.is_terminal() && !state.is_interrupted() {
            self.open.broken.lock().push((id.clone(), None));
        }
        Ok(id)
    }

    /// Streams, and hangs up after so many events.
    async fn stream(&mut self, leaves: Option<usize>, said: &str) -> Result<(), Gone> {
        let Door(door, agent) = self.door(false);
        let stream = self.history.stream(door, None);
        let events = self.gone(agent.send_streaming_message(request(text("", said))).await)?.into_inner();
        self.follow(stream, String::new(), None, events, leaves).await
    }

    /// Reads a stream to its end, or until it breaks, and remembers where.
    async fn follow(
        &self,
        stream: u64,
        mut id: String,
        mut last: Option<Cursor>,
        mut events: BoxStream<Event>,
        mut leaves: Option<usize>,
    ) -> Result<(), Gone> {
        let mut ended = false;
        while leaves != Some(0) {
            match events.next().await {
                Some(Ok(event)) => {
                    if let Some(Payload::Task(it)) = event.payload() {
                        id.clone_from(&it.id);
                    }
                    if event.cursor().is_some() {
                        last = event.cursor().cloned();
                    }
                    ended = event.ends() == Ends::Task;
                    let cursor = event.cursor().map(|it| it.as_str().to_owned());
                    let event = Box::new(event.into_message());
                    self.history.see(&Line::Event { stream, cursor, event });
                    leaves = leaves.map(|it| it - 1);
                }
                Some(Err(status)) => {
                    if !ended && !id.is_empty() {
                        self.open.broken.lock().push((id, last));
                    }
                    return self.gone(Err(status));
                }
                None => {
                    self.history.see(&Line::End { stream });
                    return Ok(());
                }
            }
        }
        if !ended {
            self.open.broken.lock().push((id, last));
        }
        Ok(())
    }

    /// Takes up one thing that was left open. Says whether there was any.
    async fn take_up(&mut self) -> Result<bool, Gone> {
        // The answer first: who subscribes to a task that waits for one waits too.
        let asked = self.open.asked.lock().pop();
        if let Some(id) = asked {
            let answered = self.reply(&id).await;
            if answered.is_err() {
                self.open.asked.lock().push(id);
            }
            return answered.map(|()| true);
        }
        let broken = self.open.broken.lock().pop();
        match broken {
            Some((id, cursor)) => self.resume(&id, cursor).await.map(|()| true),
            None => Ok(false),
        }
    }

    async fn resume(&mut self, id: &str, cursor: Option<Cursor>) -> Result<(), Gone> {
        let Door(door, agent) = self.door(true);
        let call = Call { cursor: cursor.clone(), ..Call::default() };
        let subscribe = SubscribeToTaskRequest { id: id.to_owned(), ..SubscribeToTaskRequest::default() };
        match agent.subscribe_to_task(call.request(subscribe)).await {
            Ok(events) => {
                let stream = self.history.stream(door, cursor.as_ref());
                self.follow(stream, id.to_owned(), cursor, events.into_inner(), None).await
            }
            // It is over, and there is nothing to be taken up after.
            Err(status) if cursor.is_none() && over(&status) => {
                let get = GetTaskRequest { id: id.to_owned(), ..GetTaskRequest::default() };
                match agent.get_task(request(get)).await {
                    Ok(task) => {
                        let task = task.into_inner().into_task().unwrap();
                        assert!(task.state().is_terminal(), "{door}: {task:?} can't be subscribed to: {status:?}");
                        self.answer(door, task);
                        Ok(())
                    }
                    Err(status) => {
                        self.open.broken.lock().push((id.to_owned(), cursor));
                        self.gone(Err(status))
                    }
                }
            }
            Err(status) => {
                self.open.broken.lock().push((id.to_owned(), cursor));
                self.gone(Err(status))
            }
        }
    }

    async fn reply(&mut self, id: &str) -> Result<(), Gone> {
        let Door(door, agent) = self.door(true);
        match agent.send_message(request(text(id, "this"))).await {
            Ok(reply) => {
                if let Some(Answer::Task(it)) = reply.into_inner().payload {
                    self.answer(door, it);
                }
                // It may have been answered before it was at work.
                self.open.broken.lock().push((id.to_owned(), None));
                Ok(())
            }
            // An answer that was given before the end, and of which nothing was heard.
            Err(status) if over(&status) => Ok(()),
            Err(status) => self.gone(Err(status)),
        }
    }
}

/// Nothing can be done with a task that has ended, for which 0.3 has no error of its own.
fn over(status: &Status) -> bool {
    Error::from(status.clone()).kind() == ErrorKind::UnsupportedOperation || status.message().ends_with("has ended")
}
