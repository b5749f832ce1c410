//! Turns of a task, reconstructed from its log: which messages the newest turn was given, which wait, and how far the
//! turn of a message has progressed. Used by recovery, resumed streams and repeated sends.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::turn_context::TurnContext;
use crate::protocol::{
    event::{Ends, Event, EventFlags, Seq},
    pb::v1::{TaskState, TaskStatus, stream_response::Payload},
};

/// Maximum number of waiting messages given to a turn.
pub(super) const MAX_MESSAGES_PER_TURN: usize = 16;

/// Interrupted status (`INPUT_REQUIRED`, `AUTH_REQUIRED`) that WORKING replaced, because a turn took the message that
/// answers it.
#[derive(Clone, Debug)]
pub(crate) struct AnsweredInterruption {
    /// Interrupted status. Its message is in the history by then.
    pub(crate) status: TaskStatus,
    /// Number of the WORKING event that replaced it.
    pub(crate) seq: Seq,
}

/// A message that waits for a turn, with the context of its call.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub(crate) event: Event,
    pub(crate) context: Box<TurnContext>,
    /// Time of its acceptance, or of the recovery.
    pub(crate) accepted: Instant,
}

/// Newest turn of a task and the messages that wait for the next one, folded from the log. The size does not grow with
/// the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    /// Set while the newest turn is running.
    running: bool,
    /// Set while the newest turn continues and waits for an authorization by the client (`AUTH_REQUIRED`).
    interrupted: bool,
    /// First and last event of the messages that the newest turn was given.
    given: (Seq, Seq),
    /// Messages that were not given to a turn yet.
    waiting: VecDeque<Seq>,
}

impl Turns {
    /// Creates the turns of a loaded task whose log was not read. A running turn counts as having all messages.
    pub(crate) fn loaded(running: bool) -> Self {
        Self { running, given: (0, Seq::MAX), ..Self::default() }
    }

    /// Processes the next event of the log, from the first one on. `interrupts` returns whether an event that ends
    /// nothing requests something from the client.
    pub(crate) fn apply(&mut self, event: &Event, interrupts: impl FnOnce(&Event) -> bool) {
        let seq = event.seq();
        match event.mark() {
            _ if seq == 1 => self.begin(1, 1),
            EventFlags { hidden: true, .. } if self.running => self.waiting.push_back(seq),
            EventFlags { hidden: true, .. } => self.begin(seq, seq),
            EventFlags { ends: Ends::Turn, .. } => {
                self.running = false;
                let next = self.waiting.len().min(MAX_MESSAGES_PER_TURN);
                let given = self.waiting.iter().take(next).copied();
                if let (Some(first), Some(last)) = (given.clone().min(), given.max()) {
                    self.begin(first, last);
                    self.waiting.drain(..next);
                }
            }
            EventFlags { ends: Ends::Task, .. } => {
                self.running = false;
                self.waiting.clear();
            }
            EventFlags { ends: Ends::Nothing, .. } => self.interrupted |= self.running && interrupts(event),
        }
    }

    fn begin(&mut self, first: Seq, last: Seq) {
        (self.running, self.interrupted, self.given) = (true, false, (first, last));
    }

    /// Returns the stage of the message with this event number.
    pub(crate) fn stage(&self, seq: Seq) -> MessageStage {
        let (first, last) = self.given;
        if !self.running || seq < first {
            MessageStage::Ended
        } else if self.interrupted && seq <= last {
            MessageStage::Interrupted
        } else {
            MessageStage::Active
        }
    }
}

/// Messages that the newest turn was given, and those that wait for the next one, read from the log of a task.
#[derive(Debug, Default)]
pub(crate) struct LogReplay {
    turns: Turns,
    messages: VecDeque<Event>,
    /// Interruption that the newest turn answers.
    pub(crate) answered: Option<AnsweredInterruption>,
    /// Newest status if it is an interruption, without its message.
    interrupted: Option<TaskStatus>,
    /// Number of the event with which the newest turn began.
    began: Seq,
}

impl LogReplay {
    /// Processes the next event of the log, from the first one on.
    pub(crate) fn apply(&mut self, event: Event) {
        self.observe_status(&event);
        let was_running = self.turns.running;
        // Interruptions are ignored: the turn runs again, and repeats its requests.
        self.turns.apply(&event, |_| false);
        if self.turns.running && (!was_running || event.ends() == Ends::Turn) {
            (self.began, self.answered) = (event.seq(), None);
        }
        if event.mark().hidden {
            self.messages.push_back(event);
        }
        while self.messages.front().is_some_and(|message| message.seq() < self.turns.given.0) {
            self.messages.pop_front();
        }
    }

    /// Returns whether the newest turn is running.
    pub(crate) fn is_running(&self) -> bool {
        self.turns.running
    }

    /// Returns the messages of the newest turn (none for the first turn, whose message the task contains), the waiting
    /// messages, and the turns.
    pub(crate) fn into_parts(self) -> (Vec<Event>, VecDeque<Event>, Turns) {
        let Self { turns, mut messages, .. } = self;
        let given = messages.partition_point(|message| message.seq() <= turns.given.1);
        let waiting = messages.split_off(given);
        (messages.into(), waiting, turns)
    }

    /// Follows the status, to distinguish the WORKING that starts a turn on an interrupted task from those of its
    /// agent.
    fn observe_status(&mut self, event: &Event) {
        let Some(Payload::StatusUpdate(update)) = event.payload() else { return };
        let Some(status) = &update.status else { return };
        if let Some(interrupted) = self.interrupted.take()
            && event.seq() == self.began + 1
            && is_plain_working(status)
        {
            self.answered = Some(AnsweredInterruption { status: interrupted, seq: event.seq() });
        }
        if status.state().is_interrupted() {
            self.interrupted = Some(TaskStatus { message: None, ..status.clone() });
        }
    }
}

/// Progress of the turn that answers a message.
#[derive(Debug)]
pub(crate) struct TurnProgress {
    message: MessageRef,
    /// Number of the message's event, or zero until it is found.
    seq: Seq,
    /// Last event processed.
    seen: Seq,
    turns: Turns,
    /// Event after which the message is answered in any case, because no turn was running when it was the last one.
    idle_after: Option<Seq>,
}

/// Identifies a message.
#[derive(Clone, Debug)]
pub(crate) enum MessageRef {
    /// Message id. The last message counts if a client used the id twice.
    Id(Box<str>),
    /// Number of the message's event, or of the first event for the message that started the task.
    Event(Seq),
}

/// Stage of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MessageStage {
    /// The message is not in the log, as far as that was read.
    #[default]
    Unknown,
    /// The message waits for a turn, or its turn is running.
    Active,
    /// Its turn continues while the client authorizes something (`AUTH_REQUIRED`).
    Interrupted,
    /// Its turn has ended.
    Ended,
}

impl TurnProgress {
    /// Starts at the beginning of the log.
    pub(crate) fn new(message: MessageRef) -> Self {
        Self { message, seq: 0, seen: 0, turns: Turns::default(), idle_after: None }
    }

    /// Creates the progress of the message at event `seq`, given the turns after event `seen`.
    pub(crate) fn known(seq: Seq, seen: Seq, turns: Turns) -> Self {
        Self { message: MessageRef::Event(seq), seq, seen, turns, idle_after: None }
    }

    /// Returns true if the message was found.
    pub(crate) fn is_found(&self) -> bool {
        self.seq > 0
    }

    /// Looks for the message in an event that is not processed yet, unless it was found.
    pub(crate) fn find(&mut self, event: &Event) {
        if self.seq == 0 && self.is_message(event) {
            self.seq = event.seq();
        }
    }

    /// Marks the end of the log as read: a later message with this id is a different one. A message that was not found
    /// was in a part of the log that has expired, so its turn has ended.
    pub(crate) fn finish_replay(&mut self, idle_after: Option<Seq>) {
        self.idle_after = if self.seq == 0 { Some(0) } else { idle_after };
        self.message = MessageRef::Event(self.seq);
    }

    /// Returns the stage of the message, as far as the log was processed.
    pub(crate) fn stage(&self) -> MessageStage {
        if self.idle_after.is_some_and(|settled| settled <= self.seen) {
            MessageStage::Ended
        } else if self.seq == 0 {
            MessageStage::Unknown
        } else if self.seq > self.seen {
            MessageStage::Active
        } else {
            self.turns.stage(self.seq)
        }
    }

    /// Processes the next event of the log, from the first one on. Ignores events that were processed before.
    pub(crate) fn apply(&mut self, event: &Event) {
        if event.seq() <= self.seen {
            return;
        }
        self.seen = event.seq();
        if self.is_message(event) {
            self.seq = event.seq();
        }
        // Events before the message may be large, and are not decoded.
        let is_known = self.seq > 0;
        self.turns.apply(event, |event| is_known && interrupts(event));
    }

    fn is_message(&self, event: &Event) -> bool {
        match &self.message {
            MessageRef::Event(seq) => *seq == event.seq(),
            MessageRef::Id(_) if event.seq() > 1 && !event.mark().hidden => false,
            MessageRef::Id(id) => match event.payload() {
                Some(Payload::Task(task)) => task.history.first().is_some_and(|message| *message.message_id == **id),
                Some(Payload::Message(message)) => *message.message_id == **id,
                Some(Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_)) | None => false,
            },
        }
    }
}

/// Returns whether an event requests something from the client while the turn continues.
fn interrupts(event: &Event) -> bool {
    event.ends() == Ends::Nothing && is_interrupted(event.payload())
}

/// Returns whether a payload is a status that requests something from the client.
pub(super) fn is_interrupted(payload: Option<&Payload>) -> bool {
    let Some(Payload::StatusUpdate(update)) = payload else { return false };
    update.status.as_ref().is_some_and(|status| status.state().is_interrupted())
}

/// Returns whether a status is WORKING without a message.
pub(super) fn is_plain_working(status: &TaskStatus) -> bool {
    status.state() == TaskState::Working && status.message.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{
        event::Position,
        pb::v1::{Message, TaskStatusUpdateEvent},
    };

    /// Creates a log from a string. `m`: message, `.`: other output of the agent, `a`: `AUTH_REQUIRED`, `w`: WORKING,
    /// `?`: end of a turn, `q`: end of a turn with `INPUT_REQUIRED`, `!`: end of the task.
    fn events(log: &str) -> impl Iterator<Item = Event> {
        (1..).zip(log.chars()).map(|(seq, symbol)| {
            let mark = match symbol {
                'm' => EventFlags::HIDDEN,
                '?' | 'q' => EventFlags::ending(Ends::Turn),
                '!' => EventFlags::ending(Ends::Task),
                _ => EventFlags::NOTHING,
            };
            let state = match symbol {
                'w' => TaskState::Working,
                'q' => TaskState::InputRequired,
                _ => TaskState::AuthRequired,
            };
            let status = TaskStatus { state: state.into(), ..TaskStatus::default() };
            let payload = match symbol {
                'a' | 'w' | 'q' => {
                    Payload::StatusUpdate(TaskStatusUpdateEvent { status: Some(status), ..Default::default() })
                }
                _ => Payload::Message(Message { message_id: seq.to_string(), ..Message::default() }),
            };
            Event::new(Position { fence: 1, seq }, mark, payload)
        })
    }

    fn replay(log: &str) -> (bool, Vec<u64>, Vec<u64>) {
        let mut replay = LogReplay::default();
        events(log).for_each(|event| replay.apply(event));
        let running = replay.is_running();
        let (turn, waiting, _) = replay.into_parts();
        let seqs = |events: &mut dyn Iterator<Item = &Event>| events.map(Event::seq).collect::<Vec<_>>();
        (running, seqs(&mut turn.iter()), seqs(&mut waiting.iter()))
    }

    #[test]
    fn replay_finds_the_messages_of_the_newest_turn() {
        for (log, expected) in [
            ("t", (true, vec![], vec![])),
            ("t..", (true, vec![], vec![])),
            ("t.m.", (true, vec![], vec![3])),
            ("t.?", (false, vec![], vec![])),
            ("t.?m.", (true, vec![4], vec![])),
            ("t.?m.m", (true, vec![4], vec![6])),
            ("tm.m.?.", (true, vec![2, 4], vec![])),
            ("tm.m.?m?", (true, vec![7], vec![])),
            ("t.!", (false, vec![], vec![])),
        ] {
            assert_eq!(replay(log), expected, "{log}");
        }
        let (running, turn, waiting) = replay(&format!("t{}?.", "m".repeat(20)));
        assert_eq!((running, turn.len(), waiting), (true, MAX_MESSAGES_PER_TURN, (18..22).collect()));
    }

    #[test]
    fn replay_finds_the_interruption_that_a_turn_answers() {
        for (log, expected) in [
            ("tq", None),
            ("tqm", None),
            ("tqmw.", Some((TaskState::InputRequired, 4))),
            ("tqmw.a.w", Some((TaskState::InputRequired, 4))),
            // A WORKING of the agent, or a log from before the server wrote such events.
            ("tqm.w", None),
            ("taw", None),
            ("tmqw", Some((TaskState::InputRequired, 4))),
            ("tqmwqm.", None),
            ("tqmwqmw", Some((TaskState::InputRequired, 7))),
        ] {
            let mut replay = LogReplay::default();
            events(log).for_each(|event| replay.apply(event));
            let found = replay.answered.map(|found| (found.status.state(), found.seq));
            assert_eq!(found, expected, "{log}");
        }
    }

    /// Returns the stage after each event.
    fn stages_of(log: &str, message: MessageRef) -> String {
        let mut progress = TurnProgress::new(message);
        let stage = |event: Event| {
            progress.apply(&event);
            match progress.stage() {
                MessageStage::Unknown => '-',
                MessageStage::Active => 'o',
                MessageStage::Interrupted => 'i',
                MessageStage::Ended => 'x',
            }
        };
        events(log).map(stage).collect()
    }

    #[test]
    fn stage_of_a_message_follows_the_log() {
        for (log, seq, stages) in [
            ("t..?m.?", 1, "oooxxxx"),
            ("t..?m.?", 5, "----oox"),
            ("tm.?m.?.!", 2, "-oooooxxx"),
            ("tm.?m.?.!", 5, "----oooox"),
            ("ta.?", 1, "oiix"),
            ("tma?a?", 2, "-oooix"),
            ("tm!", 2, "-ox"),
        ] {
            assert_eq!(stages_of(log, MessageRef::Event(seq)), stages, "{log}");
            if seq > 1 {
                assert_eq!(stages_of(log, MessageRef::Id(seq.to_string().into())), stages, "{log}");
            }
        }
        let mut settled = TurnProgress::new(MessageRef::Event(1));
        let mut stages = events("t..").map(|event| {
            settled.apply(&event);
            settled.finish_replay(Some(3));
            settled.stage()
        });
        assert!(stages.by_ref().eq([MessageStage::Active, MessageStage::Active, MessageStage::Ended]));
    }
}
