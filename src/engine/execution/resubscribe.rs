//! Resubscription: subscriptions to tasks, streams resumed after a cursor, and results of retried sends.

use std::{sync::Arc, time::Duration};

use tokio_stream::StreamExt as _;

use super::{
    Execution,
    limits::{RETRY_AFTER, limit_error},
    task_ended, wait_error, within,
};
use crate::{
    engine::journal::{LiveRef, MessageRef, MessageStage, Reader, TurnProgress, TurnReply, Turns},
    protocol::{
        call::OwnerPermit,
        error::Error,
        event::{Event, Position, Seq},
        history::HistoryLimit,
        pb::v1::Task,
    },
    store::{READ_BATCH, READ_BYTES, TaskKey},
};

/// Start of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamStart {
    /// Starts with a snapshot of the task.
    Now,
    /// Starts after this event. If the log lacks it, starts with a snapshot of the task.
    After(Position),
}

impl Execution {
    /// Subscribes to a task (3.1.6). A task in a terminal state can only be read from a position in its log.
    pub(crate) async fn subscribe(
        &self,
        key: &TaskKey,
        from: StreamStart,
        history: HistoryLimit,
    ) -> Result<Reader, Error> {
        let live = self.load(key).await?;
        if matches!(from, StreamStart::Now) && live.has_ended() {
            return Err(task_ended(key.id()));
        }
        Ok(self.reader(live, from).await?.with_history(history))
    }

    /// Resumes the stream of a sent message, identified by its id: events after `after`, until its turn ends.
    pub(crate) async fn resume_stream(
        &self,
        key: &TaskKey,
        message_id: &str,
        after: Position,
        history: HistoryLimit,
    ) -> Result<Reader, Error> {
        let live = self.load(key).await?;
        let reader = self.reader(live.clone(), StreamStart::After(after)).await?;
        let progress = self.progress(&live, MessageRef::Id(message_id.into()), reader.position()).await?;
        Ok(reader.until_turn_end(progress).with_history(history))
    }

    /// Returns the stream of a retried send whose message is event `seq`: a snapshot of the task, and later events until
    /// the turn of the message ends. Does not read the log.
    pub(super) async fn stream_earlier_send(
        &self,
        key: &TaskKey,
        seq: Seq,
        history: HistoryLimit,
    ) -> Result<Reader, Error> {
        let live = self.load(key).await?;
        let permit = self.reader_permit(&live)?;
        let (task, at, turns) = attach(&live)?;
        let reader = Reader::new(live.clone(), at.seq + 1, None, permit);
        let progress = self.progress_of_send(&live, seq, at.seq, turns).await?;
        Ok(reader.with_first_snapshot(task, at).until_turn_end(progress).with_history(history))
    }

    /// Waits for the result of a retried send whose message is event `seq`: until its turn has ended or is interrupted, or
    /// for `send_timeout`. Does not read the log.
    pub(crate) async fn wait_for_earlier_send(
        &self,
        key: &TaskKey,
        seq: Seq,
        wait: Option<Duration>,
    ) -> Result<TurnReply, Error> {
        let live = self.load(key).await?;
        let (task, at, turns) = attach(&live)?;
        let reader = Reader::new(live.clone(), at.seq + 1, None, None);
        let mut reader = reader.until_turn_end(self.progress_of_send(&live, seq, at.seq, turns).await?);
        reader.folded = Some(task);
        // A reader retries while the store is unavailable; a sender gets the error.
        let ended = live.wait_for_end();
        let read = async {
            while !matches!(reader.stage(), MessageStage::Ended | MessageStage::Interrupted) {
                // A server that stops replies with the current task, as to the first sender.
                if !matches!(reader.next().await, Some(Ok(_))) {
                    break;
                }
            }
        };
        let unavailable = async {
            tokio::select! {
                biased;
                () = read => false,
                Err(_) = ended => true,
            }
        };
        if within(wait, unavailable).await == Some(true) {
            return Err(wait_error(&live));
        }
        reader.folded.take().map(TurnReply::Task).ok_or_else(|| wait_error(&live))
    }

    /// Acquires the permit for one more stream of a task.
    fn reader_permit(&self, live: &LiveRef) -> Result<OwnerPermit, Error> {
        let (permit, max) = (self.0.permits.stream(&live.key.scope().owner)?, self.0.limits.streams_per_task);
        if live.readers() >= max {
            let why = format!("task {} has {max} streams; close some or retry later (limits.streams)", live.key.id());
            return Err(limit_error("streams_per_task", why).with("taskId", live.key.id()).retry_after(RETRY_AFTER));
        }
        Ok(permit)
    }

    /// Returns a stream of a task from this start.
    async fn reader(&self, live: LiveRef, start: StreamStart) -> Result<Reader, Error> {
        let (key, permit) = (live.key.clone(), self.reader_permit(&live)?);
        let watermark = live.committed().map(|(_, at)| at);
        let reader = |next| {
            live.attach();
            Reader::new(live.clone(), next, None, permit)
        };
        let StreamStart::After(after) = start else { return Ok(reader(1).starting_with_snapshot(false)) };
        // An equal number with another fencing token is another event. But a snapshot has the token of the process that
        // sent it, which may be newer than that of the event: the position is valid if no other process wrote an event in
        // between. If the log has expired, only the watermark is known.
        let is_known = match watermark {
            Some(watermark) if 0 < after.seq && after.seq <= watermark.seq => {
                let events = self.0.journal.store().events(&key, after.seq - 1, 2, usize::MAX).await?;
                let mut positions = events.iter().map(Event::position);
                match positions.next() {
                    Some(at) if at.seq == after.seq => {
                        at.fence <= after.fence && positions.next().is_none_or(|next| after.fence <= next.fence)
                    }
                    Some(_) | None => after.seq == watermark.seq && watermark.fence <= after.fence,
                }
            }
            Some(_) | None => after.seq == 0,
        };
        Ok(if is_known { reader(after.seq + 1) } else { reader(1).starting_with_snapshot(true) })
    }

    /// Returns the progress of the message at event `seq` after event `seen`, given the turns in memory. Those of a follower may be
    /// incomplete while a turn is open: then it reads the log.
    async fn progress_of_send(&self, live: &LiveRef, seq: Seq, seen: Seq, turns: Turns) -> Result<TurnProgress, Error> {
        if live.follows_turn() {
            return Box::pin(self.progress(live, MessageRef::Event(seq), seen)).await;
        }
        Ok(TurnProgress::known(seq, seen, turns))
    }

    /// Reads the progress of a message from the log, up to event `end`. The message may be a later one.
    async fn progress(&self, live: &LiveRef, message: MessageRef, end: Seq) -> Result<TurnProgress, Error> {
        let (mut progress, mut seq) = (TurnProgress::new(message), 0);
        while seq < end || !progress.is_found() {
            let events = self.0.journal.store().events(&live.key, seq, READ_BATCH, READ_BYTES).await?;
            let Some(last) = events.last().map(Event::seq) else { break };
            seq = last;
            for event in &events {
                if event.seq() <= end {
                    progress.apply(event);
                } else {
                    progress.find(event);
                }
            }
        }
        progress.finish_replay(live.idle_position());
        Ok(progress)
    }
}

/// Attaches a reader at the watermark of a task.
fn attach(live: &LiveRef) -> Result<(Arc<Task>, Position, Turns), Error> {
    live.attach_at_watermark().ok_or_else(|| wait_error(live))
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::{
        base::sources::Sources,
        engine::journal::{Journal, LiveMemory, LiveTask},
        protocol::{error::ErrorKind, task::TaskLimits},
        store::memory::Memory,
    };

    /// The error path for a task without committed events locks the task, which can't be locked twice.
    #[test]
    fn uncommitted_task_can_not_be_read() {
        let (done, outcome) = mpsc::channel();
        thread::spawn(move || {
            let journal = Journal::new(Arc::new(Memory::default()), Sources::default(), LiveMemory::default());
            let limits = TaskLimits::default();
            let live = journal.insert(LiveTask::new(TaskKey::new(&Arc::default(), "t"), 1, Task::default(), 0, limits));
            _ = done.send(attach(&live).map(|(_, at, _)| at).map_err(|error| error.kind()));
        });
        let outcome = outcome.recv_timeout(Duration::from_secs(30)).expect("the lock was taken twice");
        assert_eq!(outcome, Err(ErrorKind::Unavailable));
    }
}
