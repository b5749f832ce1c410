//! Event streams of the service: cursors (`Last-Event-ID`) of resumed streams, the maximum stream age, and the `resume`
//! extension.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::{Stream, future::BoxFuture};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::{Request, Response, Status};

use super::Service;
use crate::{
    engine::{
        execution::{self, StreamStart},
        journal::{Interrupted, Reader},
    },
    protocol::{
        call::Call,
        error::{Error, ErrorKind},
        event::{Event, Position, resume},
        pb::v1::SendMessageRequest,
        response_budget::ResponseBudget,
        rpc::BoxStream,
    },
    service::wrappers::extended::Negotiated,
    store::TaskKey,
};

/// Name of the limit of the age of a stream.
pub(super) const STREAM_MAX_AGE: &str = "stream_max_age";

impl Service {
    /// Resumes the stream of an earlier send after a cursor, and sends nothing. Clients that only repeat their request
    /// reconnect in this way, such as readers of server-sent events.
    ///
    /// # Errors
    /// The cursor does not belong to a task with this message: the message may never have been sent.
    pub(super) async fn resume_stream(&self, request: Request<SendMessageRequest>) -> Result<Reader, Error> {
        const CURSOR: &str = "Last-Event-ID";
        let call = Call::of(&request)?;
        call.check_deadline()?;
        let cursor = call.cursor.as_ref().and_then(|cursor| cursor.parts());
        let why = "not a cursor of this server; send the message without it";
        let (id, position) = cursor.ok_or_else(|| Error::invalid_field(CURSOR, why))?;
        let SendMessageRequest { tenant, message, configuration, .. } = request.get_ref();
        let message = message.as_ref().ok_or_else(|| Error::invalid_field("message", "is required"))?;
        if !message.task_id.is_empty() && message.task_id != id {
            let why = format!("cursor of task {id}, but the message is for task {}", message.task_id);
            return Err(Error::invalid_field(CURSOR, why));
        }
        let length = configuration.as_ref().and_then(|configuration| configuration.history_length);
        let history = self.history("configuration.historyLength", length)?;
        let key = TaskKey::new(&self.scope(call, tenant), id);
        let found = self.execution.get(&key, None).await?;
        if !found.task()?.history.iter().any(|known| known.message_id == message.message_id) {
            let why = format!("cursor of task {id}, which does not have this message; send it without the cursor");
            return Err(Error::invalid_field(CURSOR, why));
        }
        self.execution.resume_stream(&key, &message.message_id, position, history).await
    }

    /// Returns the stream of a reader, with the maximum age and the memory budget of its call.
    pub(super) fn streamed(
        &self,
        mut reader: Reader,
        has_cursors: bool,
        budget: Option<ResponseBudget>,
    ) -> Response<BoxStream<Event>> {
        reader.budget = budget;
        let age = self.execution.limits().stream_max_age;
        let until = Instant::now().checked_add(age).filter(|_| !age.is_zero());
        Response::new(Box::pin(Events {
            reader,
            held: None,
            has_cursors,
            until,
            timer: None,
            is_too_old: false,
            ended: false,
        }))
    }
}

/// Returns the start of a subscription: the caller's cursor, or the current task.
pub(super) fn start<T>(request: &Request<T>, id: &str) -> Result<StreamStart, Error> {
    /// Position that no log has, for the cursor of another task or server: the stream begins with a snapshot.
    const UNKNOWN: Position = Position { fence: 0, seq: u64::MAX };
    let cursor = Call::of(request)?.cursor.as_ref();
    let position = cursor.map(|cursor| match cursor.parts() {
        Some((task_id, position)) if task_id == id => position,
        _ => UNKNOWN,
    });
    Ok(position.map_or(StreamStart::Now, StreamStart::After))
}

/// Returns true if the `resume` extension is active: the server supports it, and the caller requests it.
pub(super) fn is_resume_active<T>(request: &Request<T>) -> Result<bool, Error> {
    let extensions = &Call::of(request)?.extensions;
    Ok(request.extensions().get::<Negotiated>().is_some() && extensions.iter().any(|uri| uri == resume::URI))
}

/// Event stream of a reader.
struct Events {
    reader: Reader,
    /// Event that waits for memory. `None` for a snapshot, which is made again.
    held: Option<(Option<Event>, BoxFuture<'static, ()>)>,
    /// Adds the metadata of the `resume` extension to each event: its cursor, and a mark after a gap.
    has_cursors: bool,
    /// End of the stream by its maximum age. The client can resume it.
    until: Option<Instant>,
    /// Created when the stream waits for the first time: short streams need none.
    timer: Option<Pin<Box<Sleep>>>,
    /// The stream has its maximum age.
    is_too_old: bool,
    ended: bool,
}

impl Stream for Events {
    type Item = Result<Event, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let item = match self.poll_reader(cx) {
            // A stream that always has events never polls its timer.
            Poll::Ready(Some(_)) if self.until.is_some_and(|until| until <= Instant::now()) => {
                self.is_too_old = true;
                Some(Err(Interrupted))
            }
            Poll::Ready(item) => item,
            Poll::Pending => {
                let Some(until) = self.until else { return Poll::Pending };
                ready!(self.timer.get_or_insert_with(|| Box::pin(sleep_until(until))).as_mut().poll(cx));
                self.is_too_old = true;
                Some(Err(Interrupted))
            }
        };
        Poll::Ready(item.map(|result| match result {
            Ok(event) if self.has_cursors => Ok(resume::with_cursor(event, mem::take(&mut self.reader.gap))),
            Ok(event) => Ok(event),
            Err(Interrupted) => {
                self.ended = true;
                match self.reader.take_refusal() {
                    Some(refusal) => Err(refusal.into()),
                    None if self.is_too_old => Err(interrupted().limit(STREAM_MAX_AGE).into()),
                    None => Err(self.reader.commit_failure().map_or_else(interrupted, execution::commit_error).into()),
                }
            }
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.held.is_some() { (0, None) } else { self.reader.size_hint() }
    }
}

impl Events {
    /// Returns the next event of the reader, once the budget has room for its encoding.
    fn poll_reader(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Interrupted>>> {
        loop {
            if let Some((_, room)) = &mut self.held {
                ready!(room.as_mut().poll(cx));
                let event = self.held.take().and_then(|(event, _)| event).or_else(|| self.reader.renewed_snapshot());
                return Poll::Ready(event.map(Ok));
            }
            let item = ready!(Pin::new(&mut self.reader).poll_next(cx));
            match (item, self.reader.unreserved_budget()) {
                (Some(Ok(event)), Some(budget)) if !budget.has_room(event.approximate_size()) => {
                    let (budget, size) = (budget.clone(), event.approximate_size());
                    let event = Some(event).filter(|event| !self.reader.is_renewable(event));
                    self.held = Some((event, Box::pin(async move { budget.wait_for_room(size).await })));
                }
                (item, _) => return Poll::Ready(item),
            }
        }
    }
}

/// Returns the error of a stream that the client can resume.
fn interrupted() -> Error {
    ErrorKind::Unavailable.because("stream interrupted; subscribe to the task to resume it")
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use futures_util::{FutureExt as _, StreamExt as _};
    use tokio::sync::Notify;

    use super::*;
    use crate::{
        engine::{
            agent::{self, End},
            journal::pause,
        },
        protocol::pb::v1::{
            Message, SendMessageConfiguration, SubscribeToTaskRequest, a2a_service_server::A2aService as _,
            send_message_response::Payload,
        },
        service::Limits,
        store::memory::Memory,
    };

    #[tokio::test(start_paused = true)]
    async fn subscription_that_waits_for_memory_begins_with_the_newest_task() {
        let go = Arc::new(Notify::new());
        let notified = Arc::clone(&go);
        let agent = agent::from_fn(move |_, out| {
            let go = Arc::clone(&notified);
            async move {
                out.progress("x".repeat(2000)).await?;
                go.notified().await;
                out.progress("later").await?;
                std::future::pending::<Result<End, agent::Error>>().await
            }
        });
        let service = Service::new(agent, Arc::new(Memory::default()), Limits::default());
        let configuration = SendMessageConfiguration { return_immediately: true, ..Default::default() };
        let (message, configuration) = (Some(Message::user("go")), Some(configuration));
        let sent = Call::default().request(SendMessageRequest { message, configuration, ..Default::default() });
        let reply = service.send_message(sent).await.unwrap().into_inner().payload;
        let Some(Payload::Task(task)) = reply else { panic!("{reply:?}") };

        let budget = ResponseBudget::new(8192);
        let held = budget.reservation();
        held.resize(8192).unwrap();
        let call = Call { responses: Some(budget), ..Call::default() };
        let subscription = call.request(SubscribeToTaskRequest { id: task.id, ..Default::default() });
        let mut stream = service.subscribe_to_task(subscription).await.unwrap().into_inner();
        assert!(stream.next().now_or_never().is_none());
        go.notify_one();
        pause(Duration::from_millis(10)).await;
        drop(held);
        let first = stream.next().await.unwrap().unwrap();
        assert_eq!((first.seq(), first.task().unwrap().history.len()), (3, 2));
        assert!(stream.next().now_or_never().is_none());
        service.drain(Duration::ZERO).await;
    }
}
