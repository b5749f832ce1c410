//! Who has which message, as the log tells it: what recovery asks of a task, and whoever comes back for a message.

use std::collections::VecDeque;

use super::live::{AnsweredInterruption, is_plain_working};
use crate::{
    event::{Ends, Event, Mark, Seq},
    pb::v1::{TaskStatus, stream_response::Payload},
};

/// How many waiting messages a turn is given at most.
pub(crate) const INBOX: usize = 16;

/// Turns of a task as its log tells them: which messages the newest turn has, and which wait for the next one. As large
/// for a long log as for a short one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    /// The newest turn runs.
    running: bool,
    /// The newest turn goes on while the caller authorises something elsewhere.
    interrupted: bool,
    /// The newest turn was given the messages from the first to the second event.
    given: (Seq, Seq),
    /// Messages that no turn was given yet.
    waiting: VecDeque<Seq>,
}

impl Turns {
    /// Turns of a task that was loaded, and whose log has not been read. A turn that runs was given all messages.
    pub(crate) fn loaded(running: bool) -> Self {
        Self { running, given: (0, Seq::MAX), ..Self::default() }
    }

    /// Processes each event of the log, starting with the first. `interrupts` tells whether the event asks the caller
    /// for something while the turn goes on.
    pub(crate) fn see(&mut self, event: &Event, interrupts: impl FnOnce(&Event) -> bool) {
        let seq = event.seq();
        match event.mark() {
            _ if seq == 1 => self.begin(1, 1),
            Mark { hidden: true, .. } if self.running => self.waiting.push_back(seq),
            Mark { hidden: true, .. } => self.begin(seq, seq),
            Mark { ends: Ends::Turn, .. } => {
                self.running = false;
                let next = self.waiting.len().min(INBOX);
                let given = self.waiting.iter().take(next).copied();
                if let (Some(first), Some(last)) = (given.clone().min(), given.max()) {
                    self.begin(first, last);
                    self.waiting.drain(..next);
                }
            }
            Mark { ends: Ends::Task, .. } => {
                self.running = false;
                self.waiting.clear();
            }
            Mark { ends: Ends::Nothing, .. } => self.interrupted |= self.running && interrupts(event),
        }
    }

    fn begin(&mut self, first: Seq, last: Seq) {
        (self.running, self.interrupted, self.given) = (true, false, (first, last));
    }

    /// Returns the stage of the message that is this event.
    pub(crate) fn stage(&self, seq: Seq) -> MessageStage {
        let (first, last) = self.given;
        if !self.running {
            MessageStage::Over
        } else if (first..=last).contains(&seq) {
            if self.interrupted { MessageStage::Interrupted } else { MessageStage::Open }
        } else if seq > last {
            MessageStage::Open
        } else {
            MessageStage::Over
        }
    }
}

/// The messages that the newest turn was given, and those that wait for the next one.
#[derive(Debug, Default)]
pub(crate) struct LogReplay {
    turns: Turns,
    messages: VecDeque<Event>,
    /// Interruption that the newest turn answers, if it answers one.
    pub(crate) superseded: Option<AnsweredInterruption>,
    /// Status of the newest event that had one, without its message, if it interrupts.
    interrupted: Option<TaskStatus>,
    /// Number of the event with which the newest turn began.
    began: Seq,
}

impl LogReplay {
    /// Processes each event of the log, starting with the first.
    pub(crate) fn see(&mut self, event: Event) {
        self.see_status(&event);
        let was_running = self.turns.running;
        // The turn is run again, and asks again.
        self.turns.see(&event, |_| false);
        if self.turns.running && (!was_running || event.ends() == Ends::Turn) {
            (self.began, self.superseded) = (event.seq(), None);
        }
        if event.mark().hidden {
            self.messages.push_back(event);
        }
        while self.messages.front().is_some_and(|message| message.seq() < self.turns.given.0) {
            self.messages.pop_front();
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.turns.running
    }

    /// Returns what the newest turn was given, nothing for the first one, which has the message that the task began with;
    /// then what waits for the next one; and the turns.
    pub(crate) fn into_parts(self) -> (Vec<Event>, VecDeque<Event>, Turns) {
        let Self { turns, mut messages, .. } = self;
        let given = messages.partition_point(|message| message.seq() <= turns.given.1);
        let waiting = messages.split_off(given);
        (messages.into(), waiting, turns)
    }

    /// Follows the status, to tell the WORKING with which a turn began on an interrupted task from those of its agent.
    fn see_status(&mut self, event: &Event) {
        let Some(Payload::StatusUpdate(update)) = event.payload() else { return };
        let Some(status) = &update.status else { return };
        if let Some(interrupted) = self.interrupted.take()
            && event.seq() == self.began + 1
            && is_plain_working(status)
        {
            self.superseded = Some(AnsweredInterruption { status: interrupted, seq: event.seq() });
        }
        if status.state().is_interrupted() {
            self.interrupted = Some(TaskStatus { message: None, ..status.clone() });
        }
    }
}

/// How far the turn that answers a message has come.
#[derive(Debug)]
pub(crate) struct TurnProgress {
    of: MessageRef,
    /// The event that it is, once that was seen.
    seq: Seq,
    /// The last event that was seen.
    seen: Seq,
    turns: Turns,
    /// With this event at the latest all is over: when it was the last one, no turn ran.
    settled: Option<Seq>,
}

/// Which message it is.
#[derive(Clone, Debug)]
pub(crate) enum MessageRef {
    /// The one with this id; the last one, where a caller has used it twice.
    Id(Box<str>),
    /// The one that is this event, or that the task began with.
    Event(Seq),
}

/// Where a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MessageStage {
    /// The log, as far as it was read, does not have it.
    #[default]
    Unknown,
    /// It waits for a turn, or a turn is at work on it.
    Open,
    /// Its turn goes on while the caller authorises something elsewhere.
    Interrupted,
    /// Its turn has ended.
    Over,
}

impl TurnProgress {
    pub(crate) fn new(of: MessageRef) -> Self {
        Self { of, seq: 0, seen: 0, turns: Turns::default(), settled: None }
    }

    /// The course of the message that is event `seq`, where the turns after event `seen` are known.
    pub(crate) fn known(seq: Seq, seen: Seq, turns: Turns) -> Self {
        Self { of: MessageRef::Event(seq), seq, seen, turns, settled: None }
    }

    /// What follows is news, and a message of this id that comes now is another one. One that was not seen is of a part
    /// of the log that is kept no more, and its turn is long over.
    pub(crate) fn begin(&mut self, settled: Option<Seq>) {
        self.settled = if self.seq == 0 { Some(0) } else { settled };
        self.of = MessageRef::Event(self.seq);
    }

    /// Where the message is, as far as the log was seen.
    pub(crate) fn stage(&self) -> MessageStage {
        if self.settled.is_some_and(|it| it <= self.seen) {
            MessageStage::Over
        } else if self.seq == 0 {
            MessageStage::Unknown
        } else if self.seq > self.seen {
            MessageStage::Open
        } else {
            self.turns.stage(self.seq)
        }
    }

    /// Sees each event of the log, from the first one on. What was seen already makes no difference.
    pub(crate) fn see(&mut self, event: &Event) {
        if event.seq() <= self.seen {
            return;
        }
        self.seen = event.seq();
        if self.is_it(event) {
            self.seq = event.seq();
        }
        // What the agent said before the message was sent may be long, and is not decoded.
        let is_known = self.seq > 0;
        self.turns.see(event, |event| is_known && interrupts(event));
    }

    fn is_it(&self, event: &Event) -> bool {
        match &self.of {
            MessageRef::Event(it) => *it == event.seq(),
            MessageRef::Id(_) if event.seq() > 1 && !event.mark().hidden => false,
            MessageRef::Id(id) => match event.payload() {
                Some(Payload::Task(it)) => it.history.first().is_some_and(|it| *it.message_id == **id),
                Some(Payload::Message(it)) => *it.message_id == **id,
                Some(Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_)) | None => false,
            },
        }
    }
}

fn interrupts(event: &Event) -> bool {
    event.ends() == Ends::Nothing && is_interrupted(event.payload())
}

/// Returns whether an event requests something from the caller.
pub(super) fn is_interrupted(payload: Option<&Payload>) -> bool {
    let Some(Payload::StatusUpdate(update)) = payload else { return false };
    update.status.as_ref().is_some_and(|status| status.state().is_interrupted())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::Position,
        pb::v1::{Message, TaskState, TaskStatus, TaskStatusUpdateEvent},
    };

    /// `m` is a message, `.` something that the agent says, `a` that it needs an authorisation, `w` that it works, `?` the end
    /// of a turn, `q` one that asks for input, and `!` that of the task.
    fn events(log: &str) -> impl Iterator<Item = Event> {
        (1..).zip(log.chars()).map(|(seq, it)| {
            let mark = match it {
                'm' => Mark::HIDDEN,
                '?' | 'q' => Mark::ending(Ends::Turn),
                '!' => Mark::ending(Ends::Task),
                _ => Mark::NOTHING,
            };
            let state = match it {
                'w' => TaskState::Working,
                'q' => TaskState::InputRequired,
                _ => TaskState::AuthRequired,
            };
            let status = TaskStatus { state: state.into(), ..TaskStatus::default() };
            let payload = match it {
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
        events(log).for_each(|it| replay.see(it));
        let running = replay.is_running();
        let (turn, waiting, _) = replay.into_parts();
        let seqs = |it: &mut dyn Iterator<Item = &Event>| it.map(Event::seq).collect::<Vec<_>>();
        (running, seqs(&mut turn.iter()), seqs(&mut waiting.iter()))
    }

    #[test]
    fn the_log_tells_who_has_which_message() {
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
        assert_eq!((running, turn.len(), waiting), (true, INBOX, (18..22).collect()));
    }

    #[test]
    fn log_tells_which_interruption_a_turn_answers() {
        for (log, expected) in [
            ("tq", None),
            ("tqm", None),
            ("tqmw.", Some((TaskState::InputRequired, 4))),
            ("tqmw.a.w", Some((TaskState::InputRequired, 4))),
            // Of the agent's own, and of a log that was written before such events were.
            ("tqm.w", None),
            ("taw", None),
            ("tmqw", Some((TaskState::InputRequired, 4))),
            ("tqmwqm.", None),
            ("tqmwqmw", Some((TaskState::InputRequired, 7))),
        ] {
            let mut replay = LogReplay::default();
            events(log).for_each(|event| replay.see(event));
            let found = replay.superseded.map(|found| (found.status.state(), found.seq));
            assert_eq!(found, expected, "{log}");
        }
    }

    /// The stages after each event.
    fn course(log: &str, of: MessageRef) -> String {
        let mut course = TurnProgress::new(of);
        let stage = |event: Event| {
            course.see(&event);
            match course.stage() {
                MessageStage::Unknown => '-',
                MessageStage::Open => 'o',
                MessageStage::Interrupted => 'i',
                MessageStage::Over => 'x',
            }
        };
        events(log).map(stage).collect()
    }

    #[test]
    fn the_log_tells_how_far_a_message_has_come() {
        for (log, seq, stages) in [
            ("t..?m.?", 1, "oooxxxx"),
            ("t..?m.?", 5, "----oox"),
            ("tm.?m.?.!", 2, "-oooooxxx"),
            ("tm.?m.?.!", 5, "----oooox"),
            ("ta.?", 1, "oiix"),
            ("tma?a?", 2, "-oooix"),
            ("tm!", 2, "-ox"),
        ] {
            assert_eq!(course(log, MessageRef::Event(seq)), stages, "{log}");
            if seq > 1 {
                assert_eq!(course(log, MessageRef::Id(seq.to_string().into())), stages, "{log}");
            }
        }
        let mut settled = TurnProgress::new(MessageRef::Event(1));
        let mut stages = events("t..").map(|it| {
            settled.see(&it);
            settled.begin(Some(3));
            settled.stage()
        });
        assert!(stages.by_ref().eq([MessageStage::Open, MessageStage::Open, MessageStage::Over]));
    }
}
