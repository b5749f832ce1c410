//! A reader: a place in the log, and a wake. It is never late, and nobody waits for it.

use std::{
    collections::VecDeque,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::{sync::OwnedSemaphorePermit, task::coop::poll_proceed};

use super::{
    Journal, LiveRef, Phase,
    live::CommitFailure,
    turns::{MessageStage, TurnProgress},
    waiters::WakerSlot,
};
use crate::{
    event::{Ends, Event, Mark, Position, Seq},
    pb::v1::{Task, stream_response::Payload},
    task::{apply, shorten},
};

/// How many events are taken out of the log at a time.
const BATCH: usize = 64;

/// Approximate bytes that a reader takes out of the log at a time, exceeded by one event at most. A client that does not read
/// keeps no more than that in memory.
const AHEAD: usize = 64 << 10;

/// Number of events in the first read from the store, before their size is known.
const FIRST: usize = 8;

/// After this a store that was away is asked again.
const AWAY: Duration = Duration::from_millis(50);

/// None where the store is away.
type Fetch = Pin<Box<dyn Future<Output = Option<Vec<Event>>> + Send>>;

/// The events of a task, from somewhere on, as they become durable.
pub struct Reader {
    held: LiveRef,
    journal: Arc<Journal>,
    next: Seq,
    /// The task as it was shown, which becomes a snapshot once the event of this number is.
    snapshot: Option<(Arc<Task>, Seq)>,
    /// How many turns must end until this stream does; none for one that stays to the end of the task.
    turns: Option<u32>,
    /// The message with whose turn this stream ends, where somebody comes back for it.
    course: Option<Box<TurnProgress>>,
    /// The task as it was with the last event that was read, for who wants to know.
    folded: Option<Arc<Task>>,
    /// So many messages of a task's history are shown.
    history: Option<usize>,
    /// The cursor did not fit the log, and a snapshot stands in for what is missing.
    gap: bool,
    ready: VecDeque<Event>,
    fetch: Option<Fetch>,
    /// Number of events in the next read from the store: as many as fit into [`AHEAD`], by the size of those read last.
    fetches: usize,
    place: Option<WakerSlot>,
    done: bool,
    /// There may be only so many streams.
    _permit: Option<OwnedSemaphorePermit>,
}

/// The stream was cut, and can be taken up again at its last cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream was cut")]
pub struct Cut;

impl Reader {
    /// Of a task that has been told of it ([`attach`](super::live::Inner::attach)).
    pub(crate) fn new(
        held: LiveRef,
        journal: Arc<Journal>,
        next: Seq,
        turns: Option<u32>,
        permit: impl Into<Option<OwnedSemaphorePermit>>,
    ) -> Self {
        Self {
            held,
            journal,
            next,
            snapshot: None,
            turns,
            course: None,
            folded: None,
            history: None,
            gap: false,
            ready: VecDeque::new(),
            fetch: None,
            fetches: FIRST,
            place: None,
            done: false,
            _permit: permit.into(),
        }
    }

    /// With the task as it is shown, then all that comes after that.
    pub(crate) fn and_snapshot(mut self, gap: bool) -> Self {
        if let Some(event) = self.stand_in() {
            (self.next, self.gap) = (event.seq() + 1, gap);
            self.ready.push_back(event);
        }
        self
    }

    /// With the task as it is after the event before the first one that is read.
    pub(crate) fn after_snapshot(mut self, task: Arc<Task>, at: Position) -> Self {
        self.ready.push_back(snapshot(task, at));
        self
    }

    /// The task as it is shown, for all that was before.
    fn stand_in(&self) -> Option<Event> {
        let (task, at) = self.held.lock().shown().map(|(task, at)| (Arc::clone(task), at))?;
        Some(snapshot(task, at))
    }

    /// With the task as it will be with the event of this number, then all that comes after that: the stream of a
    /// follow-up begins with its task too (3.1.2), and shows what its turn does.
    pub(crate) fn and_snapshot_at(mut self, shown: Arc<Task>, seq: Seq) -> Self {
        self.snapshot = Some((shown, seq));
        self
    }

    /// To the end of the turn that answers this message, of whose log all that comes before was seen.
    pub(crate) fn until_end_of(mut self, course: TurnProgress) -> Self {
        self.done = self.ready.is_empty() && course.stage() == MessageStage::Over;
        self.course = Some(Box::new(course));
        self
    }

    /// And with the task, to which what is read happens.
    pub(crate) fn folding(mut self, task: Arc<Task>) -> Self {
        self.folded = Some(task);
        self
    }

    /// How far that turn has come.
    pub(crate) fn stage(&self) -> MessageStage {
        self.course.as_ref().map_or(MessageStage::Unknown, |it| it.stage())
    }

    /// The task as it is with what was read.
    pub(crate) fn into_task(mut self) -> Option<Arc<Task>> {
        self.folded.take()
    }

    /// With so many messages of a task's history (3.2.4).
    pub(crate) fn with_history(mut self, length: Option<usize>) -> Self {
        self.history = length;
        self
    }

    /// All events up to this one are not for it, or are in its snapshot.
    pub(crate) fn seen(&self) -> Seq {
        self.next - 1
    }

    /// Whether a snapshot stands in for events that the cursor's reader has missed. Says so once.
    pub(crate) fn take_gap(&mut self) -> bool {
        mem::take(&mut self.gap)
    }

    /// Why the store has nothing of this task, or of what was sent to it last, where that is so.
    pub(crate) fn untaken(&self) -> Option<CommitFailure> {
        self.held.lock().untaken
    }

    /// The task.
    pub fn task_id(&self) -> &str {
        self.held.key.id()
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.held.lock().kept()
    }

    /// The next event, and behind it in `ready` those that came with it; none where there is nothing more.
    fn poll_log(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Event>, Cut>> {
        loop {
            if let Some(fetch) = &mut self.fetch {
                let events = ready!(fetch.as_mut().poll(cx));
                self.fetch = None;
                match events {
                    // What is not there any more has gone into the task, or with it.
                    Some(events) if events.first().is_none_or(|it| it.seq() > self.next) => {
                        self.gap = true;
                        return Poll::Ready(self.stand_in().ok_or(Cut).map(Some));
                    }
                    Some(events) => {
                        self.take(events);
                        return Poll::Ready(Ok(self.ready.pop_front()));
                    }
                    // A store that is away makes a reader late, and not wrong.
                    None if self.journal.phase() == Phase::Stopped => return Poll::Ready(Err(Cut)),
                    None => {}
                }
            }
            let mut inner = self.held.lock();
            let watermark = inner.watermark();
            if self.next > watermark {
                if let Some(it) = inner.take_reply() {
                    let payload = Payload::Message(*it);
                    let event = Event::new(Position::default(), Mark::ending(Ends::Task), payload);
                    return Poll::Ready(Ok(Some(event)));
                }
                let cut = match self.journal.phase() {
                    Phase::Open => inner.lost,
                    Phase::Draining => inner.lost || inner.is_idle(),
                    Phase::Stopped => true,
                };
                if inner.has_ended() {
                    return Poll::Ready(Ok(None));
                }
                if cut {
                    return Poll::Ready(Err(Cut));
                }
                inner.wakers.register(&mut self.place, cx);
                return Poll::Pending;
            }
            if let Some(event) = inner.newest(self.next, (BATCH, AHEAD), &mut self.ready) {
                return Poll::Ready(Ok(Some(event)));
            }
            drop(inner);
            self.fetch = Some(fetch(&self.held, &self.journal, self.next - 1, (self.fetches, watermark)));
        }
    }

    /// Accepts events read from the store, and drops those that exceed the budget: they are read again.
    fn take(&mut self, events: Vec<Event>) {
        let (mut bytes, mut count) = (0, 0);
        for event in &events {
            if bytes > AHEAD {
                break;
            }
            bytes += event.approximate_size();
            count += 1;
        }
        self.fetches = if bytes > AHEAD { count } else { self.fetches.saturating_mul(2) }.clamp(1, BATCH);
        self.ready.extend(events.into_iter().take(count));
    }

    /// What becomes of an event for this reader: folded into a snapshot, hidden, or shown.
    fn pass(&mut self, event: Event) -> Option<Event> {
        self.next = self.next.max(event.seq() + 1);
        if let (Some(task), Some(payload)) = (&mut self.folded, event.payload()) {
            apply(Arc::make_mut(task), payload);
        }
        if let Some((task, until)) = &mut self.snapshot {
            if let Some(payload) = event.payload() {
                apply(Arc::make_mut(task), payload);
            }
            // A task may end without the message that its store could not take.
            if event.seq() < *until && event.ends() != Ends::Task {
                return None;
            }
            let (task, _) = self.snapshot.take()?;
            return Some(self.shortened(Event::task(event.position(), Ends::Nothing, task)));
        }
        self.done = match (&mut self.course, event.ends()) {
            (_, Ends::Task) => true,
            (Some(course), _) => {
                course.see(&event);
                course.stage() == MessageStage::Over
            }
            (None, Ends::Nothing) => false,
            (None, Ends::Turn) => {
                self.turns = self.turns.map(|it| it.saturating_sub(1));
                self.turns == Some(0)
            }
        };
        (!event.mark().hidden).then(|| self.shortened(event))
    }

    fn shortened(&self, event: Event) -> Event {
        let Some(length) = self.history else { return event };
        if event.whole().is_none_or(|it| it.history.len() <= length) {
            return event;
        }
        let (position, ends) = (event.position(), event.ends());
        let Some(Payload::Task(mut task)) = event.into_message().payload else { return Event::default() };
        shorten(&mut task.history, Some(length));
        Event::task(position, ends, Arc::new(task))
    }
}

/// A task in place of the events up to this one.
fn snapshot(task: Arc<Task>, at: Position) -> Event {
    let ends = if task.state().is_terminal() { Ends::Task } else { Ends::Nothing };
    Event::task(at, ends, task)
}

/// Events that memory has no more.
fn fetch(held: &LiveRef, journal: &Arc<Journal>, after: Seq, (limit, watermark): (usize, Seq)) -> Fetch {
    let (key, journal) = (held.key.clone(), Arc::clone(journal));
    Box::pin(async move {
        if let Ok(mut log) = journal.store().events(&key, after, limit).await {
            log.events.retain(|it| it.seq() <= watermark);
            return Some(log.events);
        }
        super::pause(AWAY).await;
        None
    })
}

impl Stream for Reader {
    type Item = Result<Event, Cut>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let it = &mut *self;
        // A log that is all there must not keep its thread for ever.
        let budget = ready!(poll_proceed(cx));
        while !it.done {
            let event = match it.ready.pop_front() {
                Some(event) => Ok(Some(event)),
                None => ready!(it.poll_log(cx)),
            };
            let event = match event {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(cut) => {
                    it.done = true;
                    return Poll::Ready(Some(Err(cut)));
                }
            };
            if let Some(event) = it.pass(event) {
                budget.made_progress();
                return Poll::Ready(Some(Ok(event)));
            }
        }
        it.done = true;
        Poll::Ready(None)
    }

    /// Whether there is more that need not be waited for.
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.ready.iter().any(|it| !it.mark().hidden).into(), None)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let waker = self.held.lock().detach(self.place);
        drop(waker);
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("task", &self.held.key).field("next", &self.next).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::{
        agent::{self, End, TurnContext},
        execution::{Execution, Limits, SendRequest, StreamStart},
        journal::live::{NEWEST, NEWEST_BYTES},
        pb::v1::Message,
        store::memory::Memory,
    };

    #[tokio::test(start_paused = true)]
    async fn only_the_newest_events_are_kept_for_a_reader_that_has_stopped() {
        let agent = agent::from_fn(|_, out| async move {
            let mut answer = out.artifact("a");
            for n in 0..10_000 {
                // A KiB each, so that each is an event.
                answer.text(format!("{n:01024}")).await?;
            }
            Ok(End::Completed(None))
        });
        let execution = Execution::new(agent, Arc::new(Memory::default()), Limits::default());
        let sent = SendRequest {
            scope: Arc::default(),
            message: Message::user("go"),
            asked: TurnContext::default(),
            push: None,
            name: None,
        };
        let mut slow = execution.stream(sent, None).await.unwrap();
        let first = slow.next().await.unwrap().unwrap();
        let mut fast = execution.subscribe(&slow.held.key, StreamStart::After(first.position())).await.unwrap();
        let mut seen = 1;
        while let Some(it) = fast.next().await {
            seen += 1;
            assert_eq!(it.unwrap().seq(), seen);
            assert!(slow.kept() <= NEWEST);
        }
        assert_eq!(seen, 10_002);
        assert!(slow.kept() > 0);
        let mut late = 1;
        while let Some(it) = slow.next().await {
            late += 1;
            assert_eq!(it.unwrap().seq(), late);
        }
        assert_eq!(late, seen);
    }

    #[tokio::test(start_paused = true)]
    async fn large_events_are_not_held_for_a_reader_that_has_stopped() {
        const SIZE: usize = 100 << 10;
        let agent = agent::from_fn(|_, out| async move {
            let mut answer = out.artifact("a");
            for _ in 0..200 {
                answer.text("x".repeat(SIZE)).await?;
            }
            Ok(End::Completed(None))
        });
        let execution = Execution::new(agent, Arc::new(Memory::default()), Limits::default());
        let sent = SendRequest {
            scope: Arc::default(),
            message: Message::user("go"),
            asked: TurnContext::default(),
            push: None,
            name: None,
        };
        let mut slow = execution.stream(sent, None).await.unwrap();
        let first = slow.next().await.unwrap().unwrap();
        let mut fast = execution.subscribe(&slow.held.key, StreamStart::After(first.position())).await.unwrap();
        for reader in [&mut slow, &mut fast] {
            let mut seen = 1;
            while let Some(event) = reader.next().await {
                seen += 1;
                assert_eq!(event.unwrap().seq(), seen);
                assert!(reader.ready.len() <= 1, "{}", reader.ready.len());
                assert!(reader.kept() <= 1 + NEWEST_BYTES / SIZE, "{}", reader.kept());
            }
            assert_eq!(seen, 202);
        }
    }
}
