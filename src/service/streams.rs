//! The streams of the service: where one begins for somebody who comes back, and what is marked in it for those who ask.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use futures_core::Stream;
use tokio::{
    task::coop::has_budget_remaining,
    time::{Instant, Sleep, sleep_until},
};
use tonic::{Request, Response, Status};

use super::{Service, history};
use crate::{
    agent::Agent,
    call::Call,
    contract::BoxStream,
    error::{Error, ErrorKind},
    event::{Event, Position},
    execution::{self, StreamStart},
    extension::{Negotiated, resume},
    journal::{Cut, Reader, live::CommitFailure},
    pb::v1::SendMessageRequest,
    store::Key,
};

impl<A: Agent> Service<A> {
    /// The stream of a message that was sent before: clients come back in this way that do not know of subscriptions, such
    /// as one that reads server-sent events and repeats the request that it was given. What does not look like that is
    /// refused, for it might be a message that nobody has yet.
    pub(super) async fn stream_again(&self, request: Request<SendMessageRequest>) -> Result<Reader, Error> {
        const CURSOR: &str = "Last-Event-ID";
        let call = Call::of(&request)?;
        call.in_time()?;
        let place = call.cursor.as_ref().and_then(|it| it.parts());
        let why = "is no place in a stream of this server; send the message without it";
        let (id, place) = place.ok_or_else(|| Error::invalid_field(CURSOR, why))?;
        let SendMessageRequest { tenant, message, configuration, .. } = request.get_ref();
        let message = message.as_ref().ok_or_else(|| Error::invalid_field("message", "is required"))?;
        if !message.task_id.is_empty() && message.task_id != id {
            let why = format!("is a place in task {id}, and the message is for task {}", message.task_id);
            return Err(Error::invalid_field(CURSOR, why));
        }
        let length = configuration.as_ref().and_then(|it| it.history_length);
        let length = history("configuration.historyLength", length)?;
        let key = Key::new(&self.scope(call, tenant), id);
        let found = self.execution.get(&key).await?;
        if !found.task()?.history.iter().any(|it| it.message_id == message.message_id) {
            let why = format!("is a place in task {id}, which does not have this message; send it without");
            return Err(Error::invalid_field(CURSOR, why));
        }
        self.execution.stream_again(&key, &message.message_id, place, length).await
    }

    /// What this reads, for as long as a stream may last.
    pub(super) fn streamed(&self, reader: Reader, marks: bool) -> Response<BoxStream<Event>> {
        let age = self.execution.limits().stream_age;
        let until = Instant::now().checked_add(age).filter(|_| !age.is_zero());
        Response::new(Box::pin(Events { reader, marks, until, timer: None, armed: None, over: false }))
    }
}

/// Where a subscription to this task begins.
pub(super) fn place<T>(request: &Request<T>, id: &str) -> Result<StreamStart, Error> {
    /// A cursor of another task, or of another server, fits no log; it is answered with a snapshot.
    const NOWHERE: Position = Position { fence: 0, seq: u64::MAX };
    let cursor = Call::of(request)?.cursor.as_ref();
    let place = cursor.map(|it| it.parts().filter(|it| it.0 == id).map_or(NOWHERE, |it| it.1));
    Ok(place.map_or(StreamStart::Now, StreamStart::After))
}

/// Whether the caller has asked for marks in the streams of a server that offers them.
pub(super) fn marks<T>(request: &Request<T>) -> Result<bool, Error> {
    let extensions = &Call::of(request)?.extensions;
    Ok(request.extensions().get::<Negotiated>().is_some() && extensions.iter().any(|it| it == resume::URI))
}

/// A reader as the contract's streams have it.
struct Events {
    reader: Reader,
    /// Each event says where it stands, and the first one whether something is missing before it.
    marks: bool,
    /// Then it ends, and its client comes back if it wants more.
    until: Option<Instant>,
    /// Made when there is first something to wait for: a stream that is soon over needs none.
    timer: Option<Pin<Box<Sleep>>>,
    /// Who is woken by it.
    armed: Option<Waker>,
    over: bool,
}

impl Stream for Events {
    type Item = Result<Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let item = match Pin::new(&mut self.reader).poll_next(cx) {
            // A stream that always has something to send never waits for its timer.
            Poll::Ready(Some(_)) if self.until.is_some_and(|until| until <= Instant::now()) => Some(Err(Cut)),
            Poll::Ready(it) => it,
            Poll::Pending => {
                let Some(until) = self.until else { return Poll::Pending };
                let it = &mut *self;
                let timer = it.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
                if !timer.is_elapsed() && it.armed.as_ref().is_some_and(|it| it.will_wake(cx.waker())) {
                    return Poll::Pending;
                }
                if timer.as_mut().poll(cx).is_pending() {
                    // With its share of the thread used up, nothing has been looked at.
                    it.armed = has_budget_remaining().then(|| cx.waker().clone());
                    return Poll::Pending;
                }
                Some(Err(Cut))
            }
        };
        Poll::Ready(item.map(|it| match it {
            Ok(event) if self.marks => Ok(resume::mark(event, self.reader.take_gap())),
            Ok(event) => Ok(event),
            Err(Cut) => {
                self.over = true;
                Err(cut(self.reader.untaken()))
            }
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.reader.size_hint()
    }
}

/// Why a stream ends that has more to come.
fn cut(untaken: Option<CommitFailure>) -> Status {
    match untaken {
        Some(it) => execution::untaken(it).into(),
        None => ErrorKind::Unavailable.because("the stream was cut; subscribe to the task again").into(),
    }
}
