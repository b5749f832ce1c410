//! Record of a simulation: what clients have sent and seen, and the runs of the agents.

use std::collections::{BTreeMap, BTreeSet};

use a2a_service::{
    event::{Event, Fence, Seq},
    pb::v1::{Task, stream_response::Payload},
};
use parking_lot::{Mutex, MutexGuard};

use super::super::lockstep::Time;
use crate::history::Line;

/// Record of a simulation.
#[derive(Default)]
pub(super) struct Record(Mutex<Seen>);

#[derive(Default)]
pub(super) struct Seen {
    /// Observations in their order.
    pub(super) lines: Vec<Line>,
    /// Observations whose state must not be before earlier ones of the same client.
    pub(super) reads: Vec<Read>,
    /// Messages that clients have sent.
    pub(super) sends: BTreeMap<String, Sent>,
    /// Tasks for which a client has requested a cancel.
    pub(super) cancels: BTreeSet<String>,
    /// Calls of the agent.
    pub(super) runs: Vec<Run>,
    /// Tasks that clients know, in the order in which they have become known.
    pub(super) tasks: Vec<String>,
    /// Number of streams that were opened.
    pub(super) opened: u64,
    /// Streams that are open.
    pub(super) streams: BTreeMap<u64, OpenStream>,
    /// Contradictions that were found during the simulation.
    pub(super) errors: Vec<String>,
}

/// Task that a client has read.
pub(super) struct Read {
    pub(super) client: usize,
    /// Number of lines when the request was sent.
    pub(super) started: usize,
    /// Line with the task.
    pub(super) line: usize,
    /// Only later reads are compared with this one, which continues an earlier stream.
    pub(super) is_continued: bool,
}

/// Outcome of the send of a message, over all of its attempts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// Some attempt was answered with a task.
    pub(super) accepted: bool,
    /// The outcome of some attempt is unknown.
    pub(super) unknown: bool,
}

/// Call of an agent.
pub(super) struct Run {
    pub(super) task: String,
    /// First message of the turn.
    pub(super) message: String,
    pub(super) attempt: u32,
    pub(super) fence: Fence,
    pub(super) server: usize,
    pub(super) time: Time,
}

/// Stream that a client reads.
pub(super) struct OpenStream {
    pub(super) server: usize,
    /// Task and last event, once there is one.
    pub(super) at: Option<(String, Seq)>,
}

impl Record {
    pub(super) fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock()
    }

    pub(super) fn add_run(&self, run: Run) {
        self.lock().runs.push(run);
    }

    pub(super) fn add_error(&self, error: String) {
        self.lock().errors.push(error);
    }

    /// Notes that an event of a stream has reached the machine of its client.
    pub(super) fn advance_stream(&self, stream: u64, event: &Event) {
        if let (Some(open), Some(task)) = (self.lock().streams.get_mut(&stream), event.payload().and_then(task_of)) {
            open.at = Some((task.to_owned(), event.seq()));
        }
    }
}

impl Seen {
    /// Adds a task that a client has read.
    pub(super) fn read(&mut self, client: usize, started: usize, binding: String, task: Task) {
        self.know(&task.id);
        self.reads.push(Read { client, started, line: self.lines.len(), is_continued: false });
        self.lines.push(Line::Reply { binding, task: Box::new(task) });
    }

    pub(super) fn know(&mut self, task: &str) {
        if !self.tasks.iter().any(|known| known == task) {
            self.tasks.push(task.to_owned());
        }
    }
}

/// Returns the id of the task of an event.
pub(super) fn task_of(payload: &Payload) -> Option<&str> {
    match payload {
        Payload::Task(payload) => Some(&payload.id),
        Payload::StatusUpdate(payload) => Some(&payload.task_id),
        Payload::ArtifactUpdate(payload) => Some(&payload.task_id),
        Payload::Message(_) => None,
    }
}
