//! Coming back: streams that are taken up again, and sends whose senders do not know what became of them.

use std::{sync::Arc, time::Duration};

use tokio::sync::OwnedSemaphorePermit;
use tokio_stream::StreamExt as _;

use super::{
    Execution, gone, has_ended,
    limits::{SOON, limit},
    within,
};
use crate::{
    agent::Agent,
    error::Error,
    event::{Event, Position, Seq},
    history::HistoryLimit,
    journal::{
        LiveRef, Reader,
        turns::{MessageRef, MessageStage, TurnProgress, Turns},
        waiters::{TurnReply, WaitCondition},
    },
    pb::v1::Task,
    store::Key,
};

/// How many events are read at a time.
const STEP: usize = 256;

/// Where a stream begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamStart {
    /// With the task as it is.
    Now,
    /// Strictly after this event, where the log has it; else with the task as it is.
    After(Position),
}

impl<A: Agent> Execution<A> {
    /// The task as it is and all that follows; or, of a task that may have ended, all that followed an event.
    pub(crate) async fn subscribe(&self, key: &Key, from: StreamStart, history: HistoryLimit) -> Result<Reader, Error> {
        let held = self.hold(key).await?;
        if matches!(from, StreamStart::Now) && held.lock().has_ended() {
            return Err(has_ended(key.id()));
        }
        Ok(self.reader(held, from).await?.with_history(history))
    }

    /// The stream of the message with this id that was sent before: what came after this event, until its turn ends.
    pub(crate) async fn stream_again(
        &self,
        key: &Key,
        message_id: &str,
        after: Position,
        history: HistoryLimit,
    ) -> Result<Reader, Error> {
        let held = self.hold(key).await?;
        let reader = self.reader(held.clone(), StreamStart::After(after)).await?;
        let course = self.course(&held, MessageRef::Id(message_id.into()), reader.seen()).await?;
        Ok(reader.until_end_of(course).with_history(history))
    }

    /// The stream of the message that is event `seq` and was sent before: the task as it is, and what follows until the
    /// turn of the message ends. Reads nothing of the log.
    pub(super) async fn stream_of(&self, key: &Key, seq: Seq, history: HistoryLimit) -> Result<Reader, Error> {
        let held = self.hold(key).await?;
        let permit = self.reader_permit(&held)?;
        let (task, at, turns) = attach(&held)?;
        let reader = Reader::new(held, Arc::clone(&self.0.journal), at.seq + 1, None, permit);
        let course = TurnProgress::known(seq, at.seq, turns);
        Ok(reader.after_snapshot(task, at).until_end_of(course).with_history(history))
    }

    /// What a message that was sent before is answered with, as if it were sent now: when its turn has ended or needs
    /// something, or its caller has waited for long enough. Reads nothing of the log.
    pub(crate) async fn answer_again(&self, key: &Key, seq: Seq, wait: Option<Duration>) -> Result<TurnReply, Error> {
        let held = self.hold(key).await?;
        let (task, at, turns) = attach(&held)?;
        let reader = Reader::new(held.clone(), Arc::clone(&self.0.journal), at.seq + 1, None, None);
        let mut reader = reader.until_end_of(TurnProgress::known(seq, at.seq, turns)).folding(task);
        // A reader retries while the store is unavailable; a sender gets the error.
        let told = held.lock().wait(WaitCondition::End);
        let read = async {
            while !matches!(reader.stage(), MessageStage::Over | MessageStage::Interrupted) {
                // A server that stops answers with the task as it is, as it does whoever sent the message first.
                if !matches!(reader.next().await, Some(Ok(_))) {
                    break;
                }
            }
        };
        let unavailable = async {
            tokio::select! {
                biased;
                () = read => false,
                Err(_) = told => true,
            }
        };
        if within(wait, unavailable).await == Some(true) {
            return Err(gone(&held));
        }
        reader.into_task().map(TurnReply::Task).ok_or_else(|| gone(&held))
    }

    /// Acquires the permit for one more stream of a task.
    fn reader_permit(&self, held: &LiveRef) -> Result<OwnedSemaphorePermit, Error> {
        let (permit, most) = (self.0.permits.stream()?, self.0.limits.subscribers);
        if held.lock().readers() >= most {
            let why = format!("task {} has {most} streams, of at most so many; try again", held.key.id());
            return Err(limit("subscribers", why).with("taskId", held.key.id()).retry_after(SOON));
        }
        Ok(permit)
    }

    /// A stream of a task, from there on.
    async fn reader(&self, held: LiveRef, from: StreamStart) -> Result<Reader, Error> {
        let (key, permit) = (held.key.clone(), self.reader_permit(&held)?);
        let at = held.lock().shown().map(|it| it.1);
        let reader = |next| {
            held.lock().attach();
            Reader::new(held.clone(), Arc::clone(&self.0.journal), next, None, permit)
        };
        let StreamStart::After(from) = from else { return Ok(reader(1).and_snapshot(false)) };
        // The same number under another fence is another event. But a later opening may have shown the task before it
        // wrote more of it: that is the same place, as long as no other opening wrote in between. Of the last one the row
        // knows, where the log has gone.
        let known = match at {
            Some(at) if 0 < from.seq && from.seq <= at.seq => {
                let there = self.0.journal.store().events(&key, from.seq - 1, 2).await?.events;
                let mut there = there.iter().map(Event::position);
                match there.next() {
                    Some(it) if it.seq == from.seq => {
                        it.fence <= from.fence && there.next().is_none_or(|next| from.fence <= next.fence)
                    }
                    Some(_) | None => from.seq == at.seq && at.fence <= from.fence,
                }
            }
            Some(_) | None => from.seq == 0,
        };
        Ok(if known { reader(from.seq + 1) } else { reader(1).and_snapshot(true) })
    }

    /// How far a message has come with the events up to this one.
    async fn course(&self, held: &LiveRef, of: MessageRef, to: Seq) -> Result<TurnProgress, Error> {
        let (mut course, mut seq) = (TurnProgress::new(of), 0);
        while seq < to {
            let log = self.0.journal.store().events(&held.key, seq, STEP).await?;
            let Some(last) = log.events.last().map(Event::seq) else { break };
            seq = last;
            log.events.iter().filter(|it| it.seq() <= to).for_each(|it| course.see(it));
        }
        course.begin(held.lock().idle_at());
        Ok(course)
    }
}

/// Begins to read a task at the watermark. The lock is released before the error path reads the task.
fn attach(held: &LiveRef) -> Result<(Arc<Task>, Position, Turns), Error> {
    let attached = held.lock().attach_at_watermark();
    attached.ok_or_else(|| gone(held))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::{
        error::ErrorKind,
        journal::{Journal, live::Live},
        store::memory::Memory,
    };

    /// The error path for a task without committed events locks the task, which can't be locked twice.
    #[test]
    fn task_that_is_not_shown_can_not_be_read() {
        let (done, outcome) = mpsc::channel();
        thread::spawn(move || {
            let journal = Journal::new(Arc::new(Memory::default()));
            let held = journal.insert(Live::new(Key::new(&Arc::default(), "t"), 1, Task::default(), 0));
            _ = done.send(attach(&held).map(|(_, at, _)| at).map_err(|error| error.kind()));
        });
        let outcome = outcome.recv_timeout(Duration::from_secs(30)).expect("the lock was taken twice");
        assert_eq!(outcome, Err(ErrorKind::Unavailable));
    }
}
