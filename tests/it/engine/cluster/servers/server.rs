//! Server of the simulation: a whole service on its link, which gets requests over channels, and its agent.

use std::{collections::VecDeque, sync::Arc};

use a2a_service::{
    agent::{self, Agent, End, Turn, Updates},
    call::Call,
    clock::Millis,
    error::Error,
    event::{Cursor, Event, Fence},
    pb::v1::{Message, SendMessageConfiguration, Task, send_message_response::Payload},
    service::Limits,
    sources::Sources,
};
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{
    super::{
        link::SimLink,
        lockstep::{LocalClock, Network},
        pause,
    },
    record::{Record, Run},
};
use crate::engine::support::{Client, Events, with_sources};

/// Request of a client.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Send { message: Message, key: Option<String>, immediately: bool },
    Stream { message: Message, key: Option<String> },
    Subscribe { task: String, after: Option<Cursor> },
    Get { task: String },
    Cancel { task: String },
}

/// Part of a response.
#[derive(Debug)]
pub(super) enum Reply {
    Task(Box<Task>),
    Failed(Error),
    Event(Event),
    /// Regular end of a stream.
    End,
}

/// Connection of a client to a server. The client notices its end if either drops its side.
pub(super) struct Connection {
    pub(super) network: Arc<Network>,
    pub(super) replies: mpsc::UnboundedSender<Reply>,
    pub(super) record: Arc<Record>,
    /// Number of the stream, if it is one.
    pub(super) stream: Option<u64>,
    /// Replies that have not arrived, in their order.
    pub(super) sent: Arc<Mutex<VecDeque<Reply>>>,
}

impl Connection {
    fn send(&self, clock: &LocalClock, reply: Reply) {
        self.sent.lock().push_back(reply);
        let (replies, record, stream) = (self.replies.clone(), Arc::clone(&self.record), self.stream);
        let sent = Arc::clone(&self.sent);
        self.network.at(clock.now() + 1 + self.network.below(5), move || {
            let Some(reply) = sent.lock().pop_front() else { return };
            match (stream, &reply) {
                (Some(stream), Reply::Event(event)) => record.advance_stream(stream, event),
                (Some(stream), _) => drop(record.lock().streams.remove(&stream)),
                (None, _) => {}
            }
            drop(replies.send(reply));
        });
        clock.interrupt();
    }
}

/// Channel to a server.
type Requests = mpsc::UnboundedSender<(Request, Connection)>;

/// Channels to the servers that run: the load balancer.
#[derive(Default)]
pub(super) struct Servers {
    requests: Mutex<Vec<Option<Requests>>>,
    /// Sides of the servers of the connections that may be open, in the order in which clients have opened them.
    connections: Mutex<Vec<mpsc::WeakUnboundedSender<Reply>>>,
}

impl Servers {
    pub(super) fn set(&self, number: usize, sender: Option<Requests>) {
        let mut servers = self.requests.lock();
        if servers.len() <= number {
            servers.resize(number + 1, None);
        }
        servers[number] = sender;
    }

    pub(super) fn get(&self, number: usize) -> Option<Requests> {
        self.requests.lock()[number].clone()
    }

    /// Records that a client has opened a connection.
    pub(super) fn open(&self, replies: &mpsc::UnboundedSender<Reply>) {
        self.connections.lock().push(replies.downgrade());
    }

    /// Returns what keeps all connections open until it is dropped, and then closes those of a killed server one after the other.
    /// A runtime drops its tasks in an order that depends on other threads.
    pub(super) fn keep_open(&self) -> Vec<mpsc::UnboundedSender<Reply>> {
        let mut connections = self.connections.lock();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.iter().filter_map(mpsc::WeakUnboundedSender::upgrade).collect()
    }
}

/// Server to start.
pub(super) struct Server {
    pub(super) link: SimLink,
    pub(super) clock: LocalClock,
    pub(super) seed: u64,
    pub(super) wall_clock: Millis,
    pub(super) worker: Worker,
    pub(super) requests: mpsc::UnboundedReceiver<(Request, Connection)>,
}

impl Server {
    /// Serves requests until its process ends.
    pub(super) async fn serve(mut self) {
        let sources = Sources::simulated(self.seed, self.wall_clock);
        let bench = with_sources(Arc::new(self.link), Limits::default(), sources, self.worker);
        while let Some((request, connection)) = self.requests.recv().await {
            let client = Client { call: Call::default(), ..bench.client.clone() };
            let clock = self.clock.clone();
            tokio::spawn(async move {
                let closed = connection.replies.clone();
                tokio::select! {
                    biased;
                    // The client has disconnected.
                    () = closed.closed() => {}
                    () = answer(client, request, &clock, &connection) => {}
                }
            });
        }
    }
}

/// Answers a request of a client.
async fn answer(client: Client, request: Request, clock: &LocalClock, connection: &Connection) {
    let with = |key: Option<String>, immediately| Client {
        call: Call { idempotency_key: key, ..Call::default() },
        config: Some(SendMessageConfiguration { return_immediately: immediately, ..Default::default() }),
        ..client.clone()
    };
    let reply = match request {
        Request::Send { message, key, immediately } => match with(key, immediately).send_payload(message).await {
            Ok(Payload::Task(task)) => Ok(task),
            Ok(Payload::Message(message)) => panic!("the agent has sent no message: {message:?}"),
            Err(error) => Err(error),
        },
        Request::Stream { message, key } => {
            return stream(with(key, false).stream(message).await, clock, connection).await;
        }
        Request::Subscribe { task, after } => {
            return stream(with(None, false).resume(&task, after.as_ref()).await, clock, connection).await;
        }
        Request::Get { task } => client.get(&task).await,
        Request::Cancel { task } => client.cancel(&task).await,
    };
    connection.send(clock, reply.map_or_else(Reply::Failed, |task| Reply::Task(Box::new(task))));
}

async fn stream(events: Result<Events, Error>, clock: &LocalClock, connection: &Connection) {
    let mut events = match events {
        Ok(events) => events,
        Err(error) => return connection.send(clock, Reply::Failed(error)),
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => connection.send(clock, Reply::Event(event)),
            Err(status) => return connection.send(clock, Reply::Failed(Error::from(status))),
        }
    }
    connection.send(clock, Reply::End);
}

/// Agent that executes the commands in its messages, and has an artifact for each message.
pub(super) struct Worker {
    pub(super) resumable: bool,
    pub(super) server: usize,
    pub(super) clock: LocalClock,
    pub(super) record: Arc<Record>,
}

/// Id of the artifact with which the agent answers a message.
pub(super) fn answer_to(message: &str) -> String {
    format!("answer-{message}")
}

impl Agent for Worker {
    fn resumable(&self) -> bool {
        self.resumable
    }

    async fn run(&self, turn: Turn, out: Updates) -> Result<End, agent::Error> {
        let messages: Vec<Message> = turn.messages().cloned().collect();
        let fence: Fence = turn.fence();
        self.record.add_run(Run {
            task: turn.task_id().to_owned(),
            message: messages.first().map(|message| message.message_id.clone()).unwrap_or_default(),
            attempt: turn.attempt(),
            fence,
            server: self.server,
            time: self.clock.now(),
        });
        let mut end = End::Completed(None);
        for message in messages {
            for word in message.text().split_whitespace() {
                match word.split_once(':').unwrap_or((word, "")) {
                    ("work", _) => out.working().await?,
                    ("pass", millis) => pause(millis.parse()?).await,
                    ("out", chunks) => {
                        let mut artifact = out.artifact("chunks");
                        for n in 0..chunks.parse::<u32>()? {
                            artifact.text(format!("{n} ")).await?;
                            pause(40).await;
                        }
                    }
                    ("ask", _) => end = End::input_required("more?"),
                    ("done", _) => end = End::completed("done"),
                    (word, _) => return Err(agent::Error::public(format!("what is {word}?"))),
                }
            }
            out.artifact("answer").id(answer_to(&message.message_id)).last().text(message.text()).await?;
        }
        Ok(end)
    }
}
