//! Check of a task: its log is replayed, and compared with its row and its checkpoint.

use super::{Event, Fence, Millis, Position, Seq, Task, TaskState};
use crate::protocol::{event::Ends, pb::wkt::millis, task::apply};

/// Replay of a log: applies its events to a task and checks their order.
pub(in crate::store) struct Replay {
    /// Expected sequence number of the next event.
    next: Seq,
    /// Sequence number of the first event.
    first: Seq,
    fence: Fence,
    task: Task,
    ended: bool,
}

impl Replay {
    /// Starts the replay of a log with this first event.
    pub(in crate::store) fn new(first: Seq) -> Self {
        Self { next: first, first, fence: 0, task: Task::default(), ended: false }
    }

    pub(in crate::store) fn apply(&mut self, event: &Event) -> Result<(), String> {
        let position = event.position();
        if position.seq != self.next {
            return Err(format!("the log has event {} instead of {}", position.seq, self.next));
        }
        if position.fence < self.fence {
            return Err(format!("event {} has an older fence than the one before it", position.seq));
        }
        if self.ended {
            return Err(format!("event {} is after the final event", position.seq));
        }
        let payload = event.payload().ok_or_else(|| format!("event {} can't be decoded", position.seq))?;
        apply(&mut self.task, payload);
        (self.next, self.fence, self.ended) =
            (position.seq.saturating_add(1), position.fence, event.ends() == Ends::Task);
        Ok(())
    }
}

/// Row of a task.
pub(in crate::store) struct CheckedRow<'a> {
    pub(in crate::store) id: &'a str,
    pub(in crate::store) context: &'a str,
    pub(in crate::store) state: i32,
    pub(in crate::store) time: Millis,
    pub(in crate::store) position: Position,
    /// The log was deleted.
    pub(in crate::store) without_log: bool,
    /// Position of the checkpoint.
    pub(in crate::store) checkpoint: Option<Seq>,
}

impl CheckedRow<'_> {
    /// Checks the row against the log, if there is one.
    pub(in crate::store) fn check_log(&self, replay: Option<&Replay>) -> Result<(), String> {
        let Self { position: Position { seq, fence }, without_log, .. } = *self;
        let is_terminal = TaskState::try_from(self.state).is_ok_and(TaskState::is_terminal);
        if self.checkpoint.is_some_and(|checkpoint| checkpoint > seq) {
            return Err("the checkpoint is after the position of the row".to_owned());
        }
        // With a complete checkpoint, a sweep may have deleted the log, or the start of it.
        let may_be_truncated = is_terminal && self.checkpoint == Some(seq);
        let problem = match replay {
            None if !(without_log && may_be_truncated) => "the log is missing",
            Some(_) if without_log => "there is a log although the row says that it was deleted",
            Some(replay) if replay.next.checked_sub(1) != Some(seq) => {
                return Err(format!("the log ends with event {}, but the row is at {seq}", replay.next - 1));
            }
            Some(replay) if replay.fence > fence => "the log has a newer fence than the row",
            Some(replay) if replay.first != 1 && !may_be_truncated => "the start of the log is missing",
            Some(replay) if replay.ended != is_terminal => {
                "the state of the row contradicts the final event of the log"
            }
            Some(_) | None => return Ok(()),
        };
        Err(problem.to_owned())
    }

    /// Checks the row and the log against the task, which is the checkpoint with the later events.
    pub(in crate::store) fn check_task(&self, task: &Task, replay: Option<&Replay>) -> Result<(), &'static str> {
        let status = task.status.clone().unwrap_or_default();
        let has_other_time = status.timestamp.is_some_and(|timestamp| millis(&timestamp) != self.time);
        let has_other_log = replay.is_some_and(|replay| replay.first == 1 && replay.task != *task);
        let differences = [
            (status.state != self.state, "the state of the row differs from the task"),
            (has_other_time, "the time of the row differs from the task"),
            (task.id != self.id || task.context_id != self.context, "the ids of the row differ from the task"),
            (has_other_log, "the checkpoint differs from the log"),
        ];
        differences.into_iter().find(|(differs, _)| *differs).map_or(Ok(()), |(_, problem)| Err(problem))
    }
}
