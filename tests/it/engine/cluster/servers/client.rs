//! Clients of the simulation: each request goes to a random server, and is repeated at another one.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    error::{Error, ErrorKind},
    event::Cursor,
    pb::v1::{Message, StreamResponse, Task, stream_response::Payload},
};
use futures::future::join;
use tokio::{sync::mpsc, time::timeout};

use super::{
    super::{
        lockstep::{LocalClock, Network, Time},
        pause,
    },
    SERVERS,
    record::{OpenStream, Read, Record, Seen, task_of},
    server::{Connection, Reply, Request, Servers},
};
use crate::history::Line;

/// Client of the cluster, which does one thing after the other.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) number: usize,
    pub(super) network: Arc<Network>,
    pub(super) clock: LocalClock,
    pub(super) servers: Arc<Servers>,
    pub(super) record: Arc<Record>,
    /// Time after which the client starts nothing.
    pub(super) until: Time,
}

/// Reply to a request that is not a stream.
enum Answer {
    Task(Box<Task>),
    Failed(Error),
    /// The connection was lost, or the client has not waited any longer.
    Lost,
}

/// Form of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Blocking,
    Immediate,
    Streaming,
}

impl Client {
    pub(super) async fn run(self) {
        let mut sent = 0;
        while self.clock.now() < self.until {
            pause(20 + self.below(900)).await;
            match self.below(100) {
                0..30 => self.send(&mut sent, None).await,
                30..60 => {
                    let task = self.some_task();
                    self.send(&mut sent, task).await;
                }
                60..75 => {
                    if let Some(task) = self.some_task() {
                        self.subscribe(task, None).await;
                    }
                }
                75..88 => {
                    if let Some(task) = self.some_task() {
                        self.get(task).await;
                    }
                }
                _ => {
                    if let Some(task) = self.some_task() {
                        self.cancel(task).await;
                    }
                }
            }
        }
    }

    /// Reads the newest tasks from each server, after everything has come to rest.
    pub(super) async fn read_all(self) {
        let tasks: Vec<String> = self.record.lock().tasks.iter().rev().take(12).cloned().collect();
        for task in tasks {
            for server in 0..SERVERS {
                let started = self.record.lock().lines.len();
                let answer = self.call(server, Request::Get { task: task.clone() }, 5000).await;
                self.note_read("get at rest", server, started, &task, answer);
            }
        }
    }

    fn below(&self, end: u64) -> u64 {
        self.network.below(end)
    }

    fn some_server(&self) -> usize {
        usize::try_from(self.below(u64::try_from(SERVERS).unwrap())).unwrap()
    }

    /// Returns one of the newest tasks.
    fn some_task(&self) -> Option<String> {
        let tasks = &self.record.lock().tasks;
        let newest = &tasks[tasks.len().saturating_sub(5)..];
        let count = u64::try_from(newest.len()).unwrap();
        (count > 0).then(|| newest[usize::try_from(self.below(count)).unwrap()].clone())
    }

    fn note(&self, server: usize, what: std::fmt::Arguments<'_>) {
        self.network.note(format_args!("client {} at server {server}: {what}", self.number));
    }

    /// Sends a request to a server.
    fn request(&self, server: usize, request: Request, stream: Option<u64>) -> mpsc::UnboundedReceiver<Reply> {
        let (replies, receiver) = mpsc::unbounded_channel();
        self.servers.open(&replies);
        let (network, record) = (Arc::clone(&self.network), Arc::clone(&self.record));
        let connection = Connection { network, replies, record, stream, sent: Arc::default() };
        if let Some(sender) = self.servers.get(server) {
            let arrival = self.clock.now() + 1 + self.below(5);
            self.network.at(arrival, move || drop(sender.send((request, connection))));
            self.clock.interrupt();
        }
        receiver
    }

    async fn call(&self, server: usize, request: Request, wait: u64) -> Answer {
        let mut replies = self.request(server, request, None);
        match timeout(Duration::from_millis(wait), replies.recv()).await {
            Ok(Some(Reply::Task(task))) => Answer::Task(task),
            Ok(Some(Reply::Failed(error))) => Answer::Failed(error),
            Ok(Some(Reply::Event(_) | Reply::End) | None) | Err(_) => Answer::Lost,
        }
    }

    /// Records the reply to a request for a task. Returns whether the request has to be repeated.
    fn note_read(&self, what: &str, server: usize, started: usize, task: &str, answer: Answer) -> bool {
        match answer {
            Answer::Task(task) => {
                self.note(server, format_args!("{what}: {} {:?}", task.id, task.state()));
                let binding = format!("client {} {what} at server {server}", self.number);
                self.record.lock().read(self.number, started, binding, *task);
                false
            }
            Answer::Failed(error) => self.check_error(what, server, task, &error),
            Answer::Lost => {
                self.note(server, format_args!("{what}: lost {task}"));
                true
            }
        }
    }

    /// Records an error, which must be one of those that a correct server returns. Returns whether the request has to be repeated.
    fn check_error(&self, what: &str, server: usize, task: &str, error: &Error) -> bool {
        self.note(server, format_args!("{what}: {:?} {task}", error.kind()));
        let (kind, number) = (error.kind(), self.number);
        if !matches!(kind, ErrorKind::Unavailable | ErrorKind::TaskEnded | ErrorKind::TaskNotCancelable) {
            self.record.add_error(format!("client {number} {what} of {task} at server {server}: {kind:?}: {error}"));
        }
        kind == ErrorKind::Unavailable
    }

    async fn get(&self, task: String) {
        for _ in 0..3 {
            let (server, started) = (self.some_server(), self.record.lock().lines.len());
            let answer = self.call(server, Request::Get { task: task.clone() }, 3000).await;
            if !self.note_read("get", server, started, &task, answer) {
                return;
            }
        }
    }

    async fn cancel(&self, task: String) {
        self.record.lock().cancels.insert(task.clone());
        for _ in 0..3 {
            let (server, started) = (self.some_server(), self.record.lock().lines.len());
            self.note(server, format_args!("cancels {task}"));
            let answer = self.call(server, Request::Cancel { task: task.clone() }, 6000).await;
            if !self.note_read("cancel", server, started, &task, answer) {
                return;
            }
            pause(50 + self.below(500)).await;
        }
    }

    /// Returns the commands of a new message.
    fn script(&self) -> String {
        let work = match self.below(20) {
            0..5 => format!("out:{}", 1 + self.below(8)),
            5 => format!("out:{}", 10 + self.below(40)),
            6..9 => format!("work out:{} pass:{} out:2", self.below(4), self.below(1500)),
            9..12 => format!("work pass:{}", 500 + self.below(4000)),
            12..15 => format!("work pass:{} out:3", 4000 + self.below(14_000)),
            15 => "work".to_owned(),
            _ => format!("pass:{}", self.below(300)),
        };
        let end = if self.below(3) > 0 { "ask" } else { "done" };
        format!("{work} {end}")
    }

    /// Sends a message, for a new task or an existing one. With an idempotency key, repeats it until the outcome is known.
    async fn send(&self, sent: &mut u64, task: Option<String>) {
        *sent += 1;
        let id = format!("m{}-{sent}", self.number);
        let message = Message {
            message_id: id.clone(),
            task_id: task.clone().unwrap_or_default(),
            ..Message::user(self.script())
        };
        let form = [Form::Blocking, Form::Immediate, Form::Immediate, Form::Streaming, Form::Streaming]
            [usize::try_from(self.below(5)).unwrap()];
        let key = (self.below(4) > 0).then(|| id.clone());
        // Such a client sends nothing again after it was told that nothing was recorded.
        let (is_patient, is_hedged) = (self.below(4) > 0, key.is_some() && self.below(4) == 0);
        self.record.lock().sends.entry(id.clone()).or_default();
        for attempt in 0..30 {
            let server = self.some_server();
            self.note(
                server,
                format_args!("sends {id} {form:?} key {} to {task:?}: {}", key.is_some(), message.text()),
            );
            let repeats = if form == Form::Streaming {
                let number = self.open_stream(server);
                let request = Request::Stream { message: message.clone(), key: key.clone() };
                let replies = self.request(server, request, Some(number));
                self.follow(replies, number, server, None, Some(&id)).await
            } else {
                let wait = if self.below(5) == 0 { 50 + self.below(400) } else { 3000 + self.below(4000) };
                let immediately = form == Form::Immediate;
                let request = Request::Send { message: message.clone(), key: key.clone(), immediately };
                let started = self.record.lock().lines.len();
                if is_hedged && attempt == 0 {
                    let other = self.some_server();
                    let both = join(self.call(server, request.clone(), wait), self.call(other, request, wait)).await;
                    let first = self.note_sent(&id, server, started, both.0);
                    self.note_sent(&id, other, started, both.1) && first
                } else {
                    let answer = self.call(server, request, wait).await;
                    self.note_sent(&id, server, started, answer)
                }
            };
            let is_told = !is_patient && !self.record.lock().sends[&id].unknown;
            if !repeats || key.is_none() || is_told || self.clock.now() > self.until + 15_000 {
                return;
            }
            pause(50 + self.below(800)).await;
        }
    }

    /// Records the outcome of a send. Returns whether it has to be repeated.
    fn note_sent(&self, id: &str, server: usize, started: usize, answer: Answer) -> bool {
        self.note_outcome(id, &answer);
        self.note_read("send", server, started, id, answer)
    }

    fn note_outcome(&self, id: &str, answer: &Answer) {
        let mut seen = self.record.lock();
        let sent = seen.sends.entry(id.to_owned()).or_default();
        match answer {
            Answer::Task(_) => sent.accepted = true,
            Answer::Failed(error) if error.kind() == ErrorKind::Unavailable => {
                sent.unknown |= !error.to_string().contains("nothing was recorded");
            }
            Answer::Failed(_) => {}
            Answer::Lost => sent.unknown = true,
        }
    }

    fn open_stream(&self, server: usize) -> u64 {
        let mut seen = self.record.lock();
        seen.opened += 1;
        let number = seen.opened;
        seen.streams.insert(number, OpenStream { server, at: None });
        number
    }

    async fn subscribe(&self, task: String, mut after: Option<Cursor>) {
        for _ in 0..4 {
            let server = self.some_server();
            self.note(server, format_args!("subscribes to {task} after {after:?}"));
            let number = self.open_stream(server);
            if let Some((_, at)) = after.as_ref().and_then(Cursor::parts)
                && let Some(stream) = self.record.lock().streams.get_mut(&number)
            {
                stream.at = Some((task.clone(), at.seq));
            }
            let replies =
                self.request(server, Request::Subscribe { task: task.clone(), after: after.clone() }, Some(number));
            let mut last = after.clone();
            let repeats = Box::pin(self.read_events(replies, number, server, (&mut last, &task), None)).await;
            after = last;
            if !repeats {
                return;
            }
            pause(20 + self.below(300)).await;
        }
    }

    /// Reads a stream of a send, and resumes it. Returns whether the send has to be repeated.
    async fn follow(
        &self,
        replies: mpsc::UnboundedReceiver<Reply>,
        number: u64,
        server: usize,
        after: Option<Cursor>,
        sent: Option<&str>,
    ) -> bool {
        let mut last = after;
        let id = sent.unwrap_or_default().to_owned();
        let repeats = self.read_events(replies, number, server, (&mut last, &id), sent).await;
        match last.as_ref().and_then(Cursor::parts) {
            None => repeats,
            Some((task, _)) => {
                let task = task.to_owned();
                if repeats {
                    Box::pin(self.subscribe(task, last)).await;
                }
                false
            }
        }
    }

    /// Reads the events of a stream. Returns whether it was interrupted.
    async fn read_events(
        &self,
        mut replies: mpsc::UnboundedReceiver<Reply>,
        number: u64,
        server: usize,
        (last, task): (&mut Option<Cursor>, &str),
        sent: Option<&str>,
    ) -> bool {
        let started = {
            let mut seen = self.record.lock();
            let after = last.as_ref().map(|cursor| cursor.as_str().to_owned());
            let binding = format!("client {} stream {number} at server {server}", self.number);
            seen.lines.push(Line::Stream { stream: number, binding, after });
            seen.lines.len()
        };
        let (give_up, mut is_first) = (self.clock.now() + 2000 + self.below(12_000), true);
        let mut is_answered = false;
        let interrupted = loop {
            let wait = give_up.saturating_sub(self.clock.now());
            match timeout(Duration::from_millis(wait), replies.recv()).await {
                Ok(Some(Reply::Event(event))) => {
                    if let (true, Some(id)) = (is_first, sent) {
                        self.record.lock().sends.entry(id.to_owned()).or_default().accepted = true;
                    }
                    is_answered |= is_first && sent.is_some_and(|id| answers(event.response(), id));
                    let cursor = event.cursor().cloned();
                    self.note(server, format_args!("stream {number}: {:?}", cursor.as_ref().map(Cursor::as_str)));
                    self.add_event(
                        &mut self.record.lock(),
                        number,
                        started,
                        is_first,
                        cursor.as_ref(),
                        event.response(),
                    );
                    *last = cursor.or_else(|| last.take());
                    is_first = false;
                    if self.below(6) == 0
                        && let Some((task, _)) = last.as_ref().and_then(Cursor::parts)
                    {
                        Box::pin(self.get(task.to_owned())).await;
                    }
                }
                Ok(Some(Reply::End)) => {
                    self.note(server, format_args!("stream {number} ends"));
                    // After a snapshot, whose state is that of a later turn, if the turn of a repeated send has ended.
                    if !is_answered {
                        self.record.lock().lines.push(Line::End { stream: number });
                    }
                    break false;
                }
                Ok(Some(Reply::Failed(error))) => {
                    let interrupted = self.check_error("stream", server, task, &error);
                    if let Some(id) = sent.filter(|_| is_first) {
                        self.note_outcome(id, &Answer::Failed(error));
                    }
                    break interrupted;
                }
                Ok(None | Some(Reply::Task(_))) => {
                    self.note(server, format_args!("stream {number} is lost"));
                    if let Some(id) = sent.filter(|_| is_first) {
                        self.note_outcome(id, &Answer::Lost);
                    }
                    break true;
                }
                Err(_) => {
                    if let Some(id) = sent.filter(|_| is_first) {
                        self.note_outcome(id, &Answer::Lost);
                    }
                    break is_first;
                }
            }
        };
        self.record.lock().streams.remove(&number);
        interrupted
    }

    fn add_event(
        &self,
        seen: &mut Seen,
        stream: u64,
        started: usize,
        is_first: bool,
        cursor: Option<&Cursor>,
        event: &StreamResponse,
    ) {
        if let Some(task) = event.payload.as_ref().and_then(task_of) {
            seen.know(task);
        }
        let is_snapshot = matches!(event.payload, Some(Payload::Task(_)));
        let is_continued = !(is_first && is_snapshot);
        seen.reads.push(Read { client: self.number, started, line: seen.lines.len(), is_continued });
        let cursor = cursor.map(|cursor| cursor.as_str().to_owned());
        seen.lines.push(Line::Event { stream, cursor, event: Box::new(event.clone()) });
    }
}

/// Returns whether an event is a task in whose history something follows a message.
fn answers(event: &StreamResponse, message: &str) -> bool {
    let Some(Payload::Task(task)) = &event.payload else { return false };
    task.history.iter().rev().skip(1).any(|earlier| earlier.message_id == message)
}
