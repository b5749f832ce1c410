//! Coming back: streams that are taken up again, and sends whose senders do not know what became of them.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_stream::StreamExt as _;

use super::{
    Execution, gone, has_ended,
    limits::{SOON, limit},
};
use crate::{
    agent::Agent,
    error::Error,
    event::{Event, Position, Seq},
    journal::{
        Held, Reader,
        replay::{Course, Of, Stage},
        wait::Answer,
    },
    store::Key,
};

/// How many events are read at a time.
const STEP: usize = 256;

/// Where a stream begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Since {
    /// With the task as it is.
    Now,
    /// Strictly after this event, where the log has it; else with the task as it is.
    After(Position),
}

impl<A: Agent> Execution<A> {
    /// The task as it is and all that follows; or, of a task that may have ended, all that followed an event.
    pub(crate) async fn subscribe(&self, key: &Key, from: Since) -> Result<Reader, Error> {
        let held = self.hold(key).await?;
        if matches!(from, Since::Now) && held.lock().has_ended() {
            return Err(has_ended(key.id()));
        }
        self.reader(held, from).await
    }

    /// The stream of a message that was sent before: from there on, until its turn ends.
    pub(crate) async fn stream_again(
        &self,
        key: &Key,
        of: Of,
        from: Since,
        history: Option<usize>,
    ) -> Result<Reader, Error> {
        let held = self.hold(key).await?;
        let reader = self.reader(held.clone(), from).await?;
        let course = self.course(&held, of, reader.seen()).await?;
        Ok(reader.until_end_of(course).with_history(history))
    }

    /// What a message that was sent before is answered with, as if it were sent now: when its turn has ended or needs
    /// something, or its caller has waited for long enough.
    pub(crate) async fn answer_again(&self, key: &Key, seq: Seq, wait: Duration) -> Result<Answer, Error> {
        let held = self.hold(key).await?;
        let (task, from) = held.lock().attach_at_watermark().ok_or_else(|| gone(&held))?;
        let reader = Reader::new(held.clone(), Arc::clone(&self.0.journal), from + 1, None, None);
        let course = self.course(&held, Of::Event(seq), from).await?;
        let mut reader = reader.until_end_of(course).folding(task);
        let over = async {
            while !matches!(reader.stage(), Stage::Over | Stage::Interrupted) {
                // A server that stops answers with the task as it is, as it does whoever sent the message first.
                if !matches!(reader.next().await, Some(Ok(_))) {
                    break;
                }
            }
        };
        drop(timeout(wait, over).await);
        reader.into_task().map(Answer::Task).ok_or_else(|| gone(&held))
    }

    /// A stream of a task, from there on.
    async fn reader(&self, held: Held, from: Since) -> Result<Reader, Error> {
        let (key, permit) = (held.key.clone(), self.0.permits.stream()?);
        let at = {
            let inner = held.lock();
            let most = self.0.limits.subscribers;
            if inner.readers() >= most {
                let why = format!("task {} has {most} streams, of at most so many; try again", key.id());
                return Err(limit("subscribers", why).with("taskId", key.id()).retry_after(SOON));
            }
            inner.shown().map(|it| it.1)
        };
        let reader = |next| {
            held.lock().attach();
            Reader::new(held.clone(), Arc::clone(&self.0.journal), next, None, permit)
        };
        let Since::After(from) = from else { return Ok(reader(1).and_snapshot(false)) };
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
    async fn course(&self, held: &Held, of: Of, to: Seq) -> Result<Course, Error> {
        let (mut course, mut seq) = (Course::new(of), 0);
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
