//! Reader of a task's events: a cursor into the log. It reads recent events from memory and older ones
//! from the store.
//!
//! A slow reader loses no events, and slows neither the agent nor other readers.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::{sync::futures::OwnedNotified, task::coop::poll_proceed};

use super::{
    LiveRef, Phase,
    failure::CommitFailure,
    turns::{MessageStage, TurnProgress},
    waiters::TurnReply,
};
use crate::{
    base::metric,
    protocol::{
        call::OwnerPermit,
        error::Error,
        event::{Ends, Event, EventFlags, Position, Seq},
        history::HistoryLimit,
        pb::v1::{Task, stream_response::Payload},
        response_budget::{Reservation, ResponseBudget},
        task::apply,
    },
};

/// Maximum number of events taken from the log at a time.
const BATCH: usize = 64;

/// Approximate maximum of bytes taken from the log at a time, exceeded by one event at most. This limits the memory of
/// a client that does not read.
const BATCH_BYTES: usize = 64 << 10;

/// Delay before an unavailable store is read again.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Read from the store, with the memory that is reserved for its events. Its result is `None` if the store is unavailable.
type Fetch = Pin<Box<dyn Future<Output = Option<(Vec<Event>, Option<Reservation>)>> + Send>>;

/// Stream of the durable events of a task, from some position on.
pub struct Reader {
    live: LiveRef,
    next: Seq,
    /// Committed task before the event with this number. Events are folded into it up to that event, and it is then
    /// sent as a snapshot: the stream of a follow-up begins with its task (3.1.2), and shows what its turn does.
    pub(crate) snapshot: Option<(Arc<Task>, Seq)>,
    /// Number of turns that end before the stream does; `None` to read to the end of the task.
    turns: Option<u32>,
    /// Progress of the message with whose turn this stream ends.
    progress: Option<Box<TurnProgress>>,
    /// Task at the last event that was read, if it was given at first.
    pub(crate) folded: Option<Arc<Task>>,
    /// Limit of the history of tasks in the stream.
    history: HistoryLimit,
    /// Set if the log lacks events after the cursor, and a snapshot is sent instead. Reset by the consumer.
    pub(crate) gap: bool,
    /// Set if the stream begins with a snapshot of any moment.
    begins_with_snapshot: bool,
    ready: VecDeque<Event>,
    fetch: Option<Fetch>,
    /// Memory budget of the events that are read from the store: none is read while it has no room. Events in memory are shared by
    /// all readers.
    pub(crate) budget: Option<ResponseBudget>,
    /// Memory reserved for `ready`, if its events were read from the store.
    reserved: Option<Reservation>,
    /// Wake-up by the next change of the task, from the first wait on.
    changed: Option<Pin<Box<OwnedNotified>>>,
    done: bool,
    /// Error with which the call failed.
    refusal: Option<Error>,
    /// Counts against the limit on open streams.
    _permit: Option<OwnerPermit>,
}

/// Error: the stream was interrupted. It can be resumed after its last cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stream interrupted")]
pub struct Interrupted;

impl Reader {
    /// Creates a reader of a task to which it is already [attached](super::live::LiveState::attach).
    pub(crate) fn new(live: LiveRef, next: Seq, turns: Option<u32>, permit: impl Into<Option<OwnerPermit>>) -> Self {
        Self {
            live,
            next,
            snapshot: None,
            turns,
            progress: None,
            folded: None,
            history: HistoryLimit::default(),
            gap: false,
            begins_with_snapshot: false,
            ready: VecDeque::new(),
            fetch: None,
            budget: None,
            reserved: None,
            changed: None,
            done: false,
            refusal: None,
            _permit: permit.into(),
        }
    }

    /// Starts with a snapshot of the committed task, followed by later events. `gap` says that
    /// it replaces events.
    pub(crate) fn starting_with_snapshot(mut self, gap: bool) -> Self {
        if let Some(event) = self.committed_snapshot() {
            (self.next, self.gap, self.begins_with_snapshot) = (event.seq() + 1, gap, true);
            self.ready.push_back(event);
        }
        self
    }

    /// Starts with this snapshot of the task at position `at`, which precedes the first event to be read.
    pub(crate) fn with_first_snapshot(mut self, task: Arc<Task>, at: Position) -> Self {
        self.ready.push_back(snapshot(task, at));
        self
    }

    /// Returns whether an event that was read is a snapshot that a [later one](Self::renewed_snapshot) can replace.
    pub(crate) fn is_renewable(&self, event: &Event) -> bool {
        let is_snapshot = event.shared_task().is_some() && event.seq() == self.position();
        self.begins_with_snapshot && is_snapshot && self.progress.is_none()
    }

    /// Returns the current task, in place of the snapshot that was read. A stream that waits does not keep an old one in memory.
    pub(crate) fn renewed_snapshot(&mut self) -> Option<Event> {
        let event = self.committed_snapshot()?;
        self.advance(event)
    }

    /// Returns a snapshot of the committed task, in place of events that the log lacks.
    fn committed_snapshot(&self) -> Option<Event> {
        let (task, at) = self.live.lock().committed().map(|(task, at)| (Arc::clone(task), at))?;
        Some(snapshot(task, at))
    }

    /// Ends with the turn that answers a message, given its progress before the first event to be read.
    pub(crate) fn until_turn_end(mut self, progress: TurnProgress) -> Self {
        self.done = self.ready.is_empty() && progress.stage() == MessageStage::Ended;
        self.progress = Some(Box::new(progress));
        self
    }

    /// Returns the stage of the message given to [`until_turn_end`](Self::until_turn_end).
    pub(crate) fn stage(&self) -> MessageStage {
        self.progress.as_ref().map_or(MessageStage::Unknown, |progress| progress.stage())
    }

    /// Returns the memory budget, unless memory for the last event is reserved.
    pub(crate) fn unreserved_budget(&self) -> Option<&ResponseBudget> {
        self.budget.as_ref().filter(|_| self.reserved.is_none())
    }

    /// Limits the history of tasks in the stream (3.2.4).
    pub(crate) fn with_history(mut self, limit: HistoryLimit) -> Self {
        self.history = limit;
        self
    }

    /// Returns the last event that was read, or that precedes the start of the stream.
    pub(crate) fn position(&self) -> Seq {
        self.next - 1
    }

    /// Returns why the last change of this task was not committed, if that is so.
    pub(crate) fn commit_failure(&self) -> Option<CommitFailure> {
        self.live.lock().commit_failure
    }

    /// Takes the error with which the call failed, if that is why the stream is interrupted.
    pub(crate) fn take_refusal(&mut self) -> Option<Error> {
        self.refusal.take()
    }

    /// Returns the task id.
    pub fn task_id(&self) -> &str {
        self.live.key.id()
    }

    #[cfg(test)]
    pub(crate) fn cached_events(&self) -> usize {
        self.live.lock().cached_events()
    }

    /// Returns the next event, and buffers events read with it in `ready`. Returns `None` at the end of the log.
    fn poll_log(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Event>, Interrupted>> {
        self.reserved = None;
        loop {
            if let Some(fetch) = &mut self.fetch {
                let events = ready!(fetch.as_mut().poll(cx));
                self.fetch = None;
                match events {
                    // The log has expired, and was folded into the task or deleted with it.
                    Some((events, _)) if events.first().is_none_or(|event| event.seq() > self.next) => {
                        self.gap = true;
                        return Poll::Ready(self.committed_snapshot().ok_or(Interrupted).map(Some));
                    }
                    Some((events, reserved)) => {
                        self.ready.extend(events);
                        self.reserved = reserved;
                        return Poll::Ready(Ok(self.ready.pop_front()));
                    }
                    // While the store is unavailable, the reader retries.
                    None if self.live.journal().phase() == Phase::Stopped => return Poll::Ready(Err(Interrupted)),
                    None => {}
                }
            }
            let mut inner = self.live.lock();
            let watermark = inner.watermark();
            if self.next > watermark {
                match inner.waiters.reply.take() {
                    Some(TurnReply::Message(reply)) => {
                        let payload = Payload::Message(*reply);
                        let event = Event::new(Position::default(), EventFlags::ending(Ends::Task), payload);
                        return Poll::Ready(Ok(Some(event)));
                    }
                    Some(TurnReply::Refused(refusal)) => {
                        drop(inner);
                        self.refusal = Some(refusal);
                        return Poll::Ready(Err(Interrupted));
                    }
                    Some(TurnReply::Task(_)) | None => {}
                }
                let is_cut = match self.live.journal().phase() {
                    Phase::Open => inner.is_lost,
                    Phase::Draining => inner.is_lost || inner.is_idle(),
                    Phase::Stopped => true,
                };
                if inner.has_ended() {
                    return Poll::Ready(Ok(None));
                }
                if is_cut {
                    return Poll::Ready(Err(Interrupted));
                }
                let next = || Arc::clone(self.live.changed()).notified_owned();
                let changed = self.changed.get_or_insert_with(|| Box::pin(next()));
                // A later change wakes this reader: it needs the lock, which is still held.
                while changed.as_mut().poll(cx).is_ready() {
                    changed.set(next());
                }
                return Poll::Pending;
            }
            metric::READER_LAG.observe(None, &[], metric::number(watermark - self.next));
            if let Some(event) = inner.read_cache(self.next, (BATCH, BATCH_BYTES), &mut self.ready) {
                return Poll::Ready(Ok(Some(event)));
            }
            drop(inner);
            self.fetch = Some(self.fetch(watermark));
        }
    }

    /// Reads the next events from the store, and ignores those beyond the watermark.
    fn fetch(&self, watermark: Seq) -> Fetch {
        let (key, journal, budget) = (self.live.key.clone(), Arc::clone(self.live.journal()), self.budget.clone());
        let after = self.next - 1;
        Box::pin(async move {
            let _permit = match &budget {
                Some(budget) => journal.permit_to_read(budget, BATCH_BYTES).await,
                None => None,
            };
            if let Ok(mut events) = journal.store().events(&key, after, BATCH, BATCH_BYTES).await {
                events.retain(|event| event.seq() <= watermark);
                let reserved = budget.map(|budget| budget.reservation());
                if let Some(reserved) = &reserved {
                    reserved.add_unchecked(events.iter().map(Event::approximate_size).sum());
                }
                return Some((events, reserved));
            }
            super::pause(RETRY_DELAY).await;
            None
        })
    }

    /// Advances past an event, and returns the event to be sent, if any: the event itself, or a snapshot that includes
    /// it.
    fn advance(&mut self, event: Event) -> Option<Event> {
        self.next = self.next.max(event.seq() + 1);
        // The payload of an event may have to be decoded, or copied from a task.
        if let Some(task) = &mut self.folded
            && let Some(payload) = event.payload()
        {
            apply(Arc::make_mut(task), payload);
        }
        if let Some((task, until)) = &mut self.snapshot {
            if let Some(payload) = event.payload() {
                apply(Arc::make_mut(task), payload);
            }
            // A task may end without the message, if its store rejected that.
            if event.seq() < *until && event.ends() != Ends::Task {
                return None;
            }
            let (task, _) = self.snapshot.take()?;
            return Some(self.shortened(Event::from_task(event.position(), Ends::Nothing, task)));
        }
        self.done = match (&mut self.progress, event.ends()) {
            (_, Ends::Task) => true,
            (Some(progress), _) => {
                progress.apply(&event);
                progress.stage() == MessageStage::Ended
            }
            (None, Ends::Nothing) => false,
            (None, Ends::Turn) => {
                self.turns = self.turns.map(|turns| turns.saturating_sub(1));
                self.turns == Some(0)
            }
        };
        (!event.mark().hidden).then(|| self.shortened(event))
    }

    /// Applies the limit on the history to an event with a whole task.
    fn shortened(&self, event: Event) -> Event {
        // The first event of a log is a task with one message, which no byte limit removes: it is not decoded for that.
        let task = if self.history.messages.is_some() { event.task() } else { event.shared_task() };
        if task.is_none_or(|task| self.history.surplus(&task.history) == 0) {
            return event;
        }
        let (position, ends) = (event.position(), event.ends());
        let Some(Payload::Task(mut task)) = event.into_response().payload else { return Event::default() };
        self.history.truncate(&mut task.history);
        Event::from_task(position, ends, Arc::new(task))
    }
}

/// Creates the event that replaces all events up to `at` by the task.
fn snapshot(task: Arc<Task>, at: Position) -> Event {
    let ends = if task.state().is_terminal() { Ends::Task } else { Ends::Nothing };
    Event::from_task(at, ends, task)
}

impl Stream for Reader {
    type Item = Result<Event, Interrupted>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let reader = &mut *self;
        // Yields to other futures of the thread, even if the whole log is in memory.
        let budget = ready!(poll_proceed(cx));
        while !reader.done {
            let event = match reader.ready.pop_front() {
                Some(event) => Ok(Some(event)),
                None => ready!(reader.poll_log(cx)),
            };
            let event = match event {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(cut) => {
                    reader.done = true;
                    return Poll::Ready(Some(Err(cut)));
                }
            };
            if let Some(event) = reader.advance(event) {
                budget.made_progress();
                return Poll::Ready(Some(Ok(event)));
            }
        }
        reader.done = true;
        Poll::Ready(None)
    }

    /// Returns a lower bound of 1 if an event can be read without waiting.
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.ready.iter().any(|event| !event.mark().hidden).into(), None)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.live.lock().waiters.readers -= 1;
    }
}

debug_fields!(Reader { task: live.key, next });

#[cfg(test)]
mod tests {
    use std::{
        array,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Wake, Waker},
    };

    use tokio::sync::Notify;
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::{
        base::sources::Sources,
        engine::{
            agent::{self, End},
            execution::{Execution, Limits, SendRequest, StreamStart},
            journal::{
                live::{MAX_CACHED_BYTES, MAX_CACHED_EVENTS},
                pause,
            },
        },
        protocol::pb::v1::Message,
        store::memory::Memory,
    };

    fn request() -> SendRequest {
        SendRequest {
            scope: Arc::default(),
            message: Message::user("go"),
            context: Box::default(),
            push: None,
            cleared: crate::protocol::rpc::ClearedSecrets::default(),
            idempotency_key: None,
            responses: None,
        }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn reader_polled_repeatedly_is_woken_once_and_a_dropped_one_leaves_no_waker() {
        let go = Arc::new(Notify::new());
        let agent = agent::from_fn({
            let go = Arc::clone(&go);
            move |_, out| {
                let go = Arc::clone(&go);
                async move {
                    for _ in 0..2 {
                        out.working().await?;
                        go.notified().await;
                    }
                    Ok(End::Completed(None))
                }
            }
        });
        let execution =
            Execution::new(Arc::new(agent), Arc::new(Memory::default()), Limits::default(), Sources::default());
        let mut first = execution.stream(request(), HistoryLimit::default()).await.unwrap();
        let start = StreamStart::After(first.next().await.unwrap().unwrap().position());
        let key = first.live.key.clone();
        let mut readers = vec![first];
        for _ in 0..3 {
            readers.push(execution.subscribe(&key, start, HistoryLimit::default()).await.unwrap());
        }
        let wakers: [Arc<Wakes>; 4] = array::from_fn(|_| Arc::default());
        let count = || wakers.each_ref().map(|wakes| wakes.0.load(Ordering::SeqCst));
        let read = |readers: &mut [Reader]| {
            for (reader, wakes) in readers.iter_mut().zip(&wakers) {
                let own = Waker::from(Arc::clone(wakes));
                let mut poll = || Pin::new(&mut *reader).poll_next(&mut Context::from_waker(&own));
                while let Poll::Ready(Some(event)) = poll() {
                    event.unwrap();
                }
                (0..5).for_each(|_| drop(poll()));
            }
        };
        pause(Duration::from_millis(10)).await;
        read(&mut readers);
        assert_eq!(count(), [0; 4]);
        for n in 1..=2 {
            go.notify_one();
            pause(Duration::from_millis(10)).await;
            assert_eq!(count(), [n, n, n, 1]);
            read(&mut readers);
            // Dropped while it waits: not woken again.
            readers.truncate(3);
            assert_eq!(Arc::strong_count(&wakers[3]), 1);
        }
    }

    /// Starts a task of the agent, and returns two readers of it after its first event.
    async fn two_readers(agent: impl agent::Agent) -> (Reader, Reader) {
        let execution =
            Execution::new(Arc::new(agent), Arc::new(Memory::default()), Limits::default(), Sources::default());
        let mut slow = execution.stream(request(), HistoryLimit::default()).await.unwrap();
        let first = slow.next().await.unwrap().unwrap();
        let fast = execution
            .subscribe(&slow.live.key, StreamStart::After(first.position()), HistoryLimit::default())
            .await
            .unwrap();
        (slow, fast)
    }

    #[tokio::test(start_paused = true)]
    async fn memory_holds_only_the_newest_events_for_a_stalled_reader() {
        let agent = agent::from_fn(|_, out| async move {
            let mut artifact = out.artifact("a");
            for n in 0..10_000 {
                // 1 KiB each, so that chunks are not joined.
                artifact.text(format!("{n:01024}")).await?;
            }
            Ok(End::Completed(None))
        });
        let (mut slow, mut fast) = two_readers(agent).await;
        let mut last = 1;
        while let Some(event) = fast.next().await {
            last += 1;
            assert_eq!(event.unwrap().seq(), last);
            assert!(slow.cached_events() <= MAX_CACHED_EVENTS);
        }
        assert_eq!(last, 10_002);
        assert!(slow.cached_events() > 0);
        let mut slow_last = 1;
        while let Some(event) = slow.next().await {
            slow_last += 1;
            assert_eq!(event.unwrap().seq(), slow_last);
        }
        assert_eq!(slow_last, last);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_holds_few_large_events_for_a_stalled_reader() {
        const SIZE: usize = 100 << 10;
        let agent = agent::from_fn(|_, out| async move {
            let mut artifact = out.artifact("a");
            for _ in 0..200 {
                artifact.text("x".repeat(SIZE)).await?;
            }
            Ok(End::Completed(None))
        });
        let (mut slow, mut fast) = two_readers(agent).await;
        for reader in [&mut slow, &mut fast] {
            let mut last = 1;
            while let Some(event) = reader.next().await {
                last += 1;
                assert_eq!(event.unwrap().seq(), last);
                assert!(reader.ready.len() <= 1, "{}", reader.ready.len());
                assert!(reader.cached_events() <= 1 + MAX_CACHED_BYTES / SIZE, "{}", reader.cached_events());
            }
            assert_eq!(last, 202);
        }
    }
}
