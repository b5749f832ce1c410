//! A stream that goes on behind the event it gave last, where its connection ended and its task did not.
//!
//! An end alone says nothing: a proxy that gives up closes a stream as gracefully as an agent that is done. So what was last
//! seen of the task decides. What can't be had any more is said: an event before which others may be missing is
//! [marked](crate::extension::resume::is_gap), and is mostly the task as it is; a stream that can't go on ends with an error.

use futures_util::stream::unfold;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tonic::Status;

use super::{
    retry::{Backoff, passes},
    retrying::Retrying,
};
use crate::{
    call::Call,
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::{Cursor, Ends, Event},
    extension::resume,
    pb::v1::{
        GetTaskRequest, SendMessageRequest, StreamResponse, SubscribeToTaskRequest, TaskState, TaskStatus,
        stream_response::Payload,
    },
};

/// What a stream is the answer to.
pub(super) enum StreamRequest {
    Send(Box<SendMessageRequest>),
    Subscribe(SubscribeToTaskRequest),
    /// What is left of a send, which ends with its turn.
    Rest(SubscribeToTaskRequest),
}

/// What is known of who is asked, and who asks.
#[derive(Clone, Copy)]
pub(super) struct StreamContext {
    /// The agent knows the key of this send, and goes on with its stream where the send comes again.
    pub(super) keyed: bool,
    /// The caller has not asked for marks, and gets none.
    pub(super) unmarks: bool,
}

pub(super) struct ResumingStream {
    again: Retrying,
    ask: StreamRequest,
    call: Call,
    known: StreamContext,
    backoff: Backoff,
    events: BoxStream<Event>,
    phase: Phase,
    /// Since when it is connected.
    since: Instant,
    seen: LastSeen,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Going,
    /// It was taken up again, and nothing came yet.
    Resumed,
    /// What comes is all that is to be had.
    Last,
    Over,
}

/// What was given of a task.
#[derive(Default)]
struct LastSeen {
    any: bool,
    task: Option<String>,
    /// Behind the last event; none where that one had none.
    cursor: Option<Cursor>,
    state: TaskState,
    ends: Ends,
    /// It may not be the end that it looks like.
    doubtful: bool,
}

impl ResumingStream {
    pub(super) fn new(
        again: Retrying,
        ask: StreamRequest,
        call: Call,
        events: BoxStream<Event>,
        known: StreamContext,
    ) -> Self {
        let task = match &ask {
            StreamRequest::Send(_) => None,
            StreamRequest::Subscribe(it) | StreamRequest::Rest(it) => Some(it.id.clone()),
        };
        let seen = LastSeen { task, any: call.cursor.is_some(), cursor: call.cursor.clone(), ..LastSeen::default() };
        let backoff = Backoff::new(&again.retry);
        Self { again, ask, call, known, backoff, events, phase: Phase::Going, since: Instant::now(), seen }
    }

    pub(super) fn into_stream(self) -> BoxStream<Event> {
        Box::pin(unfold(self, async |mut it| it.next().await.map(|item| (item, it))))
    }

    async fn next(&mut self) -> Option<Result<Event, Status>> {
        while self.phase != Phase::Over {
            let cut = match self.events.next().await {
                Some(Ok(event)) => return Some(Ok(self.give(event))),
                Some(Err(status)) => Some(status),
                None => None,
            };
            let error = cut.clone().map(Error::from);
            if self.is_done(error.as_ref()) {
                break;
            }
            let resumed = match (cut, error) {
                (Some(status), Some(error)) if !passes(&error) => Err(status),
                (_, Some(error)) => self.resume(error).await,
                (_, None) => self.resume(ErrorKind::Unavailable.because("the stream ended before its task did")).await,
            };
            if let Err(status) = resumed {
                self.phase = Phase::Over;
                return Some(Err(status));
            }
        }
        self.phase = Phase::Over;
        None
    }

    /// Whether there is nothing more to come, after what was seen, where a stream ends like this.
    fn is_done(&self, error: Option<&Error>) -> bool {
        match self.seen.ends {
            Ends::Nothing => false,
            Ends::Task => true,
            // Asked for what follows, the agent had nothing.
            Ends::Turn if self.seen.doubtful => error.is_none() && self.phase == Phase::Resumed,
            Ends::Turn => error.map_or_else(|| !self.was_cut(), |it| passes(it) && !self.goes_on()),
        }
    }

    /// A server that stops, or lets no stream become older, ends it as if all were well. One of ours ends no subscription
    /// otherwise while its task waits.
    fn was_cut(&self) -> bool {
        self.again.lasts && self.seen.is_exact() && matches!(self.ask, StreamRequest::Subscribe(_))
    }

    /// A turn that looks as if it were over, and more comes: a subscription lasts until its task ends (3.1.6), and an agent
    /// may go on while its caller authorises something (7.6.1).
    fn goes_on(&self) -> bool {
        match self.ask {
            StreamRequest::Subscribe(_) => true,
            StreamRequest::Send(_) => self.known.keyed && self.seen.state == TaskState::AuthRequired,
            StreamRequest::Rest(_) => false,
        }
    }

    /// Takes in what came, and gives it on.
    fn give(&mut self, event: Event) -> Event {
        let is_whole = event.whole().is_some();
        let resumed = matches!(self.phase, Phase::Resumed | Phase::Last);
        let gap = resumed && self.seen.any && (is_whole || !self.seen.is_exact());
        // An agent that has a snapshot and nothing else is no further.
        if !(resumed && is_whole) {
            self.backoff.reset();
        }
        self.seen.take(&event);
        let waits = self.seen.ends == Ends::Turn;
        let is_last = self.phase == Phase::Last || (waits && matches!(self.ask, StreamRequest::Rest(_)));
        self.phase = if is_last { Phase::Over } else { Phase::Going };
        // The stream of an answer begins with the task that asked for it, which still looks as if it waited.
        let answers = match &self.ask {
            StreamRequest::Send(it) => it.message.as_ref().is_some_and(|it| !it.task_id.is_empty()),
            StreamRequest::Subscribe(_) | StreamRequest::Rest(_) => false,
        };
        // Nor does it tell whether the agent goes on while its caller authorises something.
        let authorises =
            self.goes_on() && self.seen.is_exact() && self.again.lasts && matches!(self.ask, StreamRequest::Send(_));
        self.seen.doubtful = waits && (is_whole && answers || authorises);
        let event = if self.known.unmarks { resume::unmarked(event) } else { event };
        if gap { resume::after_gap(event) } else { event }
    }

    /// Connects again, behind the last event; or says why that can't be.
    async fn resume(&mut self, cut: Error) -> Result<(), Status> {
        if self.since.elapsed() >= self.backoff.longest() {
            self.backoff.reset();
        }
        let mut why = cut;
        loop {
            self.call.in_time()?;
            if !self.backoff.wait(&why, &self.call).await {
                return Err(why.into());
            }
            let call = Call { cursor: self.seen.cursor.clone(), ..self.call.clone() };
            if let (StreamRequest::Send(it), false) = (&self.ask, self.known.keyed) {
                let tenant = it.tenant.clone();
                match self.seen.task.clone() {
                    Some(id) => self.ask = StreamRequest::Rest(SubscribeToTaskRequest { tenant, id }),
                    // Nobody knows what became of it, and sent again it may be another one.
                    None => match self.again.knows_keys(&self.call, &tenant).await {
                        Ok(true) => self.known.keyed = true,
                        Ok(false) => return Err(why.into()),
                        Err(away) => {
                            why = away;
                            continue;
                        }
                    },
                }
            }
            let opened = match &self.ask {
                StreamRequest::Send(it) => {
                    self.again.agent.send_streaming_message(call.request(SendMessageRequest::clone(it))).await
                }
                StreamRequest::Subscribe(it) | StreamRequest::Rest(it) => {
                    self.again.agent.subscribe_to_task(call.request(it.clone())).await
                }
            };
            let status = match opened {
                Ok(it) => {
                    (self.events, self.since, self.phase) = (it.into_inner(), Instant::now(), Phase::Resumed);
                    return Ok(());
                }
                Err(status) => status,
            };
            let error = Error::from(status.clone());
            why = if passes(&error) {
                error
            } else {
                match self.ended().await {
                    Ok(true) => return Ok(()),
                    Ok(false) => return Err(status),
                    Err(away) => away,
                }
            };
        }
    }

    /// An agent has no stream of a task that has ended meanwhile (3.1.6), and some have none of one that waits: then the task
    /// as it is stands for the rest.
    async fn ended(&mut self) -> Result<bool, Error> {
        let Some(id) = &self.seen.task else { return Ok(false) };
        let tenant = match &self.ask {
            StreamRequest::Send(it) => &it.tenant,
            StreamRequest::Subscribe(it) | StreamRequest::Rest(it) => &it.tenant,
        };
        let get = GetTaskRequest { tenant: tenant.clone(), id: id.clone(), history_length: None };
        let call = Call { cursor: None, ..self.call.clone() };
        let task = match self.again.agent.get_task(call.request(get)).await.map_err(Error::from) {
            Ok(it) => it.into_inner().into_task()?,
            Err(error) if passes(&error) => return Err(error),
            Err(_) => return Ok(false),
        };
        if !task.state().is_terminal() && !task.state().is_interrupted() {
            return Ok(false);
        }
        let event = Event::elsewhere(None, StreamResponse { payload: Some(Payload::Task(task)) });
        self.events = Box::pin(tokio_stream::once(Ok(event)));
        self.phase = Phase::Last;
        Ok(true)
    }
}

impl LastSeen {
    fn take(&mut self, event: &Event) {
        self.any = true;
        self.cursor = event.cursor().cloned();
        self.ends = event.ends();
        let (id, state) = match event.payload() {
            Some(Payload::Task(it)) => (&it.id, Some(it.state())),
            Some(Payload::StatusUpdate(it)) => (&it.task_id, it.status.as_ref().map(TaskStatus::state)),
            Some(Payload::ArtifactUpdate(it)) => (&it.task_id, None),
            Some(Payload::Message(it)) => (&it.task_id, None),
            None => return,
        };
        self.state = state.unwrap_or(self.state);
        if !id.is_empty() && self.task.as_ref() != Some(id) {
            self.task = Some(id.clone());
        }
    }

    /// What is behind the cursor is known to be what follows: it is one of ours. Others send ids of events that are no place
    /// in anything.
    fn is_exact(&self) -> bool {
        let of = self.cursor.as_ref().and_then(Cursor::parts).map(|it| it.0);
        of.is_some() && of == self.task.as_deref()
    }
}
