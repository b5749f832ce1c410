//! Who has which message, as the log tells it: what recovery asks of a task, and whoever comes back for a message.

use std::collections::VecDeque;

use crate::{
    event::{Ends, Event, Mark, Seq},
    pb::v1::stream_response::Payload,
};

/// How many waiting messages a turn is given at most.
pub(crate) const INBOX: usize = 16;

/// Turns take messages in this way while they are begun and ended.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    pub(crate) running: bool,
    /// What the turn was given; nothing for the first one, which has the message that the task began with.
    pub(crate) turn: Vec<Event>,
    pub(crate) waiting: VecDeque<Event>,
}

impl Replay {
    pub(crate) fn see(&mut self, event: Event) {
        match event.mark() {
            _ if event.seq() == 1 => self.running = true,
            Mark { hidden: true, .. } if self.running => self.waiting.push_back(event),
            Mark { hidden: true, .. } => (self.running, self.turn) = (true, vec![event]),
            Mark { ends: Ends::Turn, .. } => {
                let next = self.waiting.len().min(INBOX);
                self.turn = self.waiting.drain(..next).collect();
                self.running = !self.turn.is_empty();
            }
            Mark { ends: Ends::Task, .. } => self.running = false,
            Mark { ends: Ends::Nothing, .. } => {}
        }
    }
}

/// How far the turn that answers a message has come.
#[derive(Debug)]
pub(crate) struct Course {
    of: Of,
    /// The event that it is, once that was seen.
    seq: Seq,
    stage: Stage,
    /// The last event that was seen.
    seen: Seq,
    replay: Replay,
    /// With this event at the latest all is over: when it was the last one, no turn ran.
    settled: Option<Seq>,
}

/// Which message it is.
#[derive(Clone, Debug)]
pub(crate) enum Of {
    /// The one with this id; the last one, where a caller has used it twice.
    Id(Box<str>),
    /// The one that is this event, or that the task began with.
    Event(Seq),
}

/// Where a message is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
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

impl Course {
    pub(crate) fn new(of: Of) -> Self {
        Self { of, seq: 0, stage: Stage::default(), seen: 0, replay: Replay::default(), settled: None }
    }

    /// What follows is news, and a message of this id that comes now is another one. One that was not seen is of a part
    /// of the log that is kept no more, and its turn is long over.
    pub(crate) fn begin(&mut self, settled: Option<Seq>) {
        (self.of, self.settled) = (Of::Event(self.seq), settled);
        if self.stage == Stage::Unknown {
            self.stage = Stage::Over;
        }
    }

    /// Where the message is, as far as the log was seen.
    pub(crate) fn stage(&self) -> Stage {
        if self.settled.is_some_and(|it| it <= self.seen) { Stage::Over } else { self.stage }
    }

    /// Sees each event of the log, from the first one on. What was seen already makes no difference.
    pub(crate) fn see(&mut self, event: &Event) {
        if event.seq() <= self.seen {
            return;
        }
        self.seen = event.seq();
        // What an agent says before may be long, and is not looked at.
        let interrupts = self.stage == Stage::Open && interrupts(event);
        let is_it = self.is_it(event);
        self.replay.see(event.clone());
        match event.ends() {
            _ if is_it => (self.seq, self.stage) = (event.seq(), Stage::Open),
            _ if self.stage == Stage::Unknown => {}
            Ends::Task => self.stage = Stage::Over,
            Ends::Turn if !self.is_open() => self.stage = Stage::Over,
            Ends::Nothing if interrupts && self.is_at_work() => self.stage = Stage::Interrupted,
            Ends::Turn | Ends::Nothing => {}
        }
    }

    fn is_it(&self, event: &Event) -> bool {
        match &self.of {
            Of::Event(it) => *it == event.seq(),
            Of::Id(_) if event.seq() > 1 && !event.mark().hidden => false,
            Of::Id(id) => match event.payload() {
                Some(Payload::Task(it)) => it.history.first().is_some_and(|it| *it.message_id == **id),
                Some(Payload::Message(it)) => *it.message_id == **id,
                Some(Payload::StatusUpdate(_) | Payload::ArtifactUpdate(_)) | None => false,
            },
        }
    }

    /// A turn has it, or will have.
    fn is_open(&self) -> bool {
        self.is_at_work() || self.replay.waiting.iter().any(|it| it.seq() == self.seq)
    }

    fn is_at_work(&self) -> bool {
        let Replay { running, turn, .. } = &self.replay;
        *running && if turn.is_empty() { self.seq == 1 } else { turn.iter().any(|it| it.seq() == self.seq) }
    }
}

fn interrupts(event: &Event) -> bool {
    let Some(Payload::StatusUpdate(it)) = event.payload() else { return false };
    event.ends() == Ends::Nothing && it.status.as_ref().is_some_and(|it| it.state().is_interrupted())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::Position,
        pb::v1::{Message, TaskState, TaskStatus, TaskStatusUpdateEvent},
    };

    /// `m` is a message, `.` something that the agent says, `a` that it needs an authorisation, `?` the end of a turn, and
    /// `!` that of the task.
    fn events(log: &str) -> impl Iterator<Item = Event> {
        (1..).zip(log.chars()).map(|(seq, it)| {
            let mark = match it {
                'm' => Mark::HIDDEN,
                '?' => Mark::ending(Ends::Turn),
                '!' => Mark::ending(Ends::Task),
                _ => Mark::NOTHING,
            };
            let status = TaskStatus { state: TaskState::AuthRequired.into(), ..TaskStatus::default() };
            let payload = match it {
                'a' => Payload::StatusUpdate(TaskStatusUpdateEvent { status: Some(status), ..Default::default() }),
                _ => Payload::Message(Message { message_id: seq.to_string(), ..Message::default() }),
            };
            Event::new(Position { fence: 1, seq }, mark, payload)
        })
    }

    fn replay(log: &str) -> (bool, Vec<u64>, Vec<u64>) {
        let mut replay = Replay::default();
        events(log).for_each(|it| replay.see(it));
        let seqs = |it: &mut dyn Iterator<Item = &Event>| it.map(Event::seq).collect::<Vec<_>>();
        (replay.running, seqs(&mut replay.turn.iter()), seqs(&mut replay.waiting.iter()))
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

    /// The stages after each event.
    fn course(log: &str, of: Of) -> String {
        let mut course = Course::new(of);
        let stage = |event: Event| {
            course.see(&event);
            match course.stage() {
                Stage::Unknown => '-',
                Stage::Open => 'o',
                Stage::Interrupted => 'i',
                Stage::Over => 'x',
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
            assert_eq!(course(log, Of::Event(seq)), stages, "{log}");
            if seq > 1 {
                assert_eq!(course(log, Of::Id(seq.to_string().into())), stages, "{log}");
            }
        }
        let mut settled = Course::new(Of::Event(1));
        let mut stages = events("t..").map(|it| {
            settled.see(&it);
            settled.begin(Some(3));
            settled.stage()
        });
        assert!(stages.by_ref().eq([Stage::Open, Stage::Open, Stage::Over]));
    }
}
