//! Admission of events to a task: state transitions, size limits and sequence numbers.

use std::sync::Arc;

use prost::{Message as _, encoding::string};

use crate::protocol::{
    event::Seq,
    memory,
    messages::v1::{Artifact, Part, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, stream_response::Payload},
    task::ContextBytes,
    validate::MAX_ID_BYTES,
};

/// Admission state of a task, after all events accepted so far. Its size depends only on the number of artifacts.
#[derive(Debug)]
pub struct Admission {
    state: TaskState,
    seq: Seq,
    limits: TaskLimits,
    /// Size of all events so far.
    bytes: usize,
    /// Memory of their parts and values, of which `bytes` has what exceeds [`FREE_MEMORY`].
    memory: usize,
    /// Size of the events that are committed, or not going to be stored.
    committed: usize,
    /// Size of the context, which includes this task. `None` while the task is the only one of its context.
    context: Option<Arc<ContextBytes>>,
    artifacts: Vec<ArtifactSize>,
}

/// An artifact of the task.
#[derive(Debug)]
struct ArtifactSize {
    id: Box<str>,
    /// Size so far.
    bytes: usize,
}

/// Memory of the parts and values of a task that is not counted, in bytes: a task occupies some kilobytes anyway, and the size of one
/// with few parts is that of its texts.
const FREE_MEMORY: usize = 64 << 10;

/// Size limits of a task. Sizes are in bytes of protobuf, plus the memory that the parts and values of a task occupy beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskLimits {
    /// Maximum number of events. Events that end a turn are accepted beyond it.
    pub events: Seq,
    /// Maximum number of artifacts.
    pub artifacts: usize,
    /// Maximum size of an event, and of the message that starts a task.
    pub event_bytes: usize,
    /// Maximum size of an artifact.
    pub artifact_bytes: usize,
    /// Maximum size of all events of a task. Events that end a turn are accepted beyond it.
    pub task_bytes: usize,
    /// Maximum size of all events of all tasks of the context. Events that end a turn are accepted beyond it.
    pub context_bytes: usize,
}

/// Reason why an event is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitViolation {
    /// The task is in a terminal state; the first one is final.
    #[error("the task is in a terminal state")]
    Terminal,
    /// The state transition is not permitted.
    #[error("invalid state transition from {0:?} to {1:?}")]
    Transition(TaskState, TaskState),
    /// The task has the maximum number of events.
    #[error("a task has at most {0} events")]
    Events(Seq),
    /// The task has the maximum number of artifacts.
    #[error("a task has at most {0} artifacts")]
    Artifacts(usize),
    /// The event exceeds the maximum size.
    #[error("an event has at most {0} bytes (limits.task_bytes)")]
    EventBytes(usize),
    /// The artifact would exceed the maximum size.
    #[error("an artifact has at most {0} bytes (limits.task_bytes)")]
    ArtifactBytes(usize),
    /// The events of the task would exceed the maximum total size.
    #[error("a task has at most {0} bytes (limits.task_bytes)")]
    TaskBytes(usize),
    /// The events of all tasks of the context would exceed the maximum total size.
    #[error("a context has at most {0} bytes (limits.task_bytes)")]
    ContextBytes(usize),
    /// The id of an artifact or message exceeds the maximum length.
    #[error("an identifier has at most {0} bytes")]
    IdBytes(usize),
}

impl LimitViolation {
    /// Returns the name of the exceeded limit, or `None` for other reasons.
    pub fn limit(self) -> Option<&'static str> {
        match self {
            Self::Terminal | Self::Transition(..) => None,
            Self::Events(_) => Some("events"),
            Self::Artifacts(_) => Some("artifacts"),
            Self::EventBytes(_) => Some("event_bytes"),
            Self::ArtifactBytes(_) => Some("artifact_bytes"),
            Self::TaskBytes(_) => Some("task_bytes"),
            Self::ContextBytes(_) => Some("context_bytes"),
            Self::IdBytes(_) => Some("id_bytes"),
        }
    }
}

impl Admission {
    /// Creates the admission state of a task whose last event is `seq`.
    pub fn new(task: &Task, seq: Seq, limits: TaskLimits) -> Self {
        let artifacts = task.artifacts.iter();
        let size = |artifact: &Artifact| ArtifactSize {
            id: artifact.artifact_id.as_str().into(),
            bytes: artifact.encoded_len() + memory::of_artifact(artifact).saturating_sub(FREE_MEMORY),
        };
        let artifacts = artifacts.map(size).collect();
        let memory = memory::of_task(task);
        let bytes = task.encoded_len() + memory.saturating_sub(FREE_MEMORY);
        Self { state: task.state(), seq, limits, bytes, memory, committed: 0, context: None, artifacts }
    }

    /// Resets to the state after event `seq`, with which the task was `task`. Keeps the limits and the context.
    pub fn reset_to(&mut self, task: &Task, seq: Seq) {
        self.drop_events();
        let mut reset = Self::new(task, seq, self.limits);
        (reset.committed, reset.context) = (reset.bytes, self.context.take());
        *self = reset;
    }

    /// Counts the events in the size of this context, unless they are counted in one already: those that are not committed,
    /// and later ones. With `is_first`, the size is that of a new context, and does not include the committed ones either.
    pub fn enter_context(&mut self, context: Arc<ContextBytes>, is_first: bool) {
        if self.context.is_none() {
            context.add(if is_first { self.bytes } else { self.bytes.saturating_sub(self.committed) });
            context.commit(if is_first { self.committed } else { 0 });
            self.context = Some(context);
        }
    }

    /// Returns the context in which events are counted.
    pub fn context(&self) -> Option<&Arc<ContextBytes>> {
        self.context.as_ref()
    }

    /// Records that all events up to a total size of `bytes` are committed.
    pub fn set_committed(&mut self, bytes: usize) {
        if let Some(context) = &self.context {
            context.commit(bytes.saturating_sub(self.committed));
        }
        self.committed = self.committed.max(bytes);
    }

    /// Records that accepted events are not going to be stored.
    pub fn drop_events(&mut self) {
        if let Some(context) = &self.context {
            context.invalidate();
        }
        self.set_committed(self.bytes);
    }

    /// Records that none of the events is going to be stored.
    pub fn drop_task(&mut self) {
        if let Some(context) = self.context.take() {
            context.subtract(self.bytes);
        }
    }

    /// Checks the size of the first event of a task, which [`admit`](Self::admit) does not see, and counts it in the context
    /// if that may have other tasks.
    pub fn check_first(&mut self, context: Option<Arc<ContextBytes>>) -> Result<(), LimitViolation> {
        self.check_bytes(self.bytes, 0, false)?;
        self.context = context;
        self.count_in_context(self.bytes, 0, false).inspect_err(|_| self.context = None)
    }

    /// Sets the size of the log of a loaded task. It may exceed that of the task, because artifacts were replaced.
    pub fn set_log_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.max(bytes);
        self.committed = self.bytes;
    }

    /// Returns the size of all events so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the maximum size of an event in bytes.
    pub fn max_event_bytes(&self) -> usize {
        self.limits.event_bytes
    }

    /// Returns the current state of the task.
    pub fn state(&self) -> TaskState {
        self.state
    }

    /// Returns the sequence number of the last event.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Admits an event and returns its sequence number. An event that `ends` the turn is accepted beyond the limits on
    /// the number and total size of events, so that every turn can end.
    ///
    /// Clears `append` of a chunk for an unknown artifact, which creates it. So all readers of the event do the same.
    ///
    /// # Errors
    /// The reason for the rejection, in which case nothing changes.
    pub fn admit(&mut self, payload: &mut Payload, ends: bool) -> Result<Seq, LimitViolation> {
        if self.state.is_terminal() {
            return Err(LimitViolation::Terminal);
        }
        if !ends && self.seq >= self.limits.events {
            return Err(LimitViolation::Events(self.limits.events));
        }
        check_ids(payload)?;
        let memory = memory::of_event(payload);
        let bytes = self.counted(event_bytes(payload), memory);
        self.check_bytes(bytes, self.bytes, ends)?;
        self.count_in_context(bytes, self.bytes, ends)?;
        if let Err(violation) = self.update(payload, bytes) {
            if let Some(context) = &self.context {
                context.subtract(bytes);
            }
            return Err(violation);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.memory = self.memory.saturating_add(memory);
        self.seq += 1;
        Ok(self.seq)
    }

    /// Records event `seq`, which another process has admitted and committed. Sizes of artifacts are not followed.
    pub fn follow(&mut self, payload: &Payload, seq: Seq) {
        let memory = memory::of_event(payload);
        self.bytes = self.bytes.saturating_add(self.counted(event_bytes(payload), memory));
        self.memory = self.memory.saturating_add(memory);
        (self.seq, self.committed) = (seq, self.bytes);
        if let Payload::StatusUpdate(update) = payload {
            self.state = update.status.as_ref().map_or(self.state, TaskStatus::state);
        }
    }

    /// Returns the size of what has so many encoded bytes, and parts and values of so much memory.
    fn counted(&self, bytes: usize, memory: usize) -> usize {
        let total = self.memory.saturating_add(memory);
        bytes.saturating_add(total.saturating_sub(FREE_MEMORY.max(self.memory)))
    }

    /// Updates the state or an artifact by an event of so many bytes. Changes nothing if that is rejected.
    fn update(&mut self, payload: &mut Payload, bytes: usize) -> Result<(), LimitViolation> {
        match payload {
            Payload::StatusUpdate(update) => {
                let next = update.status.as_ref().map_or(TaskState::Unspecified, TaskStatus::state);
                if !self.state.can_become(next) {
                    return Err(LimitViolation::Transition(self.state, next));
                }
                self.state = next;
            }
            Payload::ArtifactUpdate(TaskArtifactUpdateEvent { artifact: Some(artifact), append, .. }) => {
                let max = self.limits.artifact_bytes;
                let fits = |bytes| if bytes > max { Err(LimitViolation::ArtifactBytes(max)) } else { Ok(bytes) };
                if let Some(old) = find(&mut self.artifacts, &artifact.artifact_id) {
                    let added = added_bytes(artifact, bytes);
                    old.bytes = fits(if *append { old.bytes.saturating_add(added) } else { bytes })?;
                } else {
                    if self.artifacts.len() >= self.limits.artifacts {
                        return Err(LimitViolation::Artifacts(self.limits.artifacts));
                    }
                    let size = ArtifactSize { id: artifact.artifact_id.as_str().into(), bytes: fits(bytes)? };
                    self.artifacts.push(size);
                    *append = false;
                }
            }
            Payload::ArtifactUpdate(_) | Payload::Message(_) | Payload::Task(_) => {}
        }
        Ok(())
    }

    /// Counts bytes in the context, or rejects them if it would exceed its limit. Bytes that end a turn always count.
    fn count_in_context(&self, bytes: usize, before: usize, ends: bool) -> Result<(), LimitViolation> {
        let most = self.limits.context_bytes;
        let fits = match &self.context {
            Some(context) if ends => {
                context.add(bytes);
                true
            }
            Some(context) => context.try_add(bytes, most),
            None => ends || before.saturating_add(bytes) <= most,
        };
        if fits { Ok(()) } else { Err(LimitViolation::ContextBytes(most)) }
    }

    fn check_bytes(&self, bytes: usize, before: usize, ends: bool) -> Result<(), LimitViolation> {
        let TaskLimits { event_bytes, task_bytes, .. } = self.limits;
        if bytes > event_bytes {
            Err(LimitViolation::EventBytes(event_bytes))
        } else if !ends && before.saturating_add(bytes) > task_bytes {
            Err(LimitViolation::TaskBytes(task_bytes))
        } else {
            Ok(())
        }
    }

    /// Counts `bytes` of parts that are joined to the last event, a chunk of this artifact. Returns `false` and counts
    /// nothing if a limit would be exceeded.
    pub fn admit_joined(&mut self, artifact: &str, parts: &[Part], bytes: usize) -> bool {
        let memory = memory::of_parts(parts);
        let bytes = self.counted(bytes, memory);
        let TaskLimits { artifact_bytes, task_bytes, .. } = self.limits;
        let total = self.bytes.saturating_add(bytes);
        let Some(index) = self.artifacts.iter().rposition(|size| *size.id == *artifact) else { return false };
        let grown = self.artifacts[index].bytes.saturating_add(bytes);
        // The context is last, since this counts the bytes.
        let fits =
            total <= task_bytes && grown <= artifact_bytes && self.count_in_context(bytes, self.bytes, false).is_ok();
        if fits {
            (self.bytes, self.artifacts[index].bytes) = (total, grown);
            self.memory = self.memory.saturating_add(memory);
        }
        fits
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.set_committed(self.bytes);
    }
}

/// Finds an artifact, from the newest: agents mostly write to that one.
fn find<'a>(all: &'a mut [ArtifactSize], id: &str) -> Option<&'a mut ArtifactSize> {
    all.iter_mut().rev().find(|artifact| *artifact.id == *id)
}

/// Returns the encoded size of an event, without the ids of task and context, which stores need not repeat.
fn event_bytes(payload: &Payload) -> usize {
    match payload {
        Payload::Task(task) => task.encoded_len(),
        Payload::Message(message) => message.encoded_len(),
        Payload::StatusUpdate(update) => optional_len(update.status.as_ref()) + optional_len(update.metadata.as_ref()),
        Payload::ArtifactUpdate(update) => {
            optional_len(update.artifact.as_ref()) + optional_len(update.metadata.as_ref())
        }
    }
}

fn optional_len(message: Option<&impl prost::Message>) -> usize {
    message.map_or(0, prost::Message::encoded_len)
}

/// Returns the size by which a chunk of `bytes` grows its artifact: without the id, which the artifact already has.
fn added_bytes(chunk: &Artifact, bytes: usize) -> usize {
    const ARTIFACT_ID: u32 = 1;
    bytes.saturating_sub(string::encoded_len(ARTIFACT_ID, &chunk.artifact_id))
}

/// Checks the length of the ids that an agent chooses.
fn check_ids(payload: &Payload) -> Result<(), LimitViolation> {
    let id = match payload {
        Payload::ArtifactUpdate(update) => update.artifact.as_ref().map(|artifact| &artifact.artifact_id),
        Payload::StatusUpdate(update) => {
            let message = update.status.as_ref().and_then(|status| status.message.as_ref());
            message.map(|message| &message.message_id)
        }
        Payload::Message(message) => Some(&message.message_id),
        Payload::Task(_) => None,
    };
    match id {
        Some(id) if id.len() > MAX_ID_BYTES => Err(LimitViolation::IdBytes(MAX_ID_BYTES)),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::task::tests::{STATES, chunk, status, task_in};

    impl Default for TaskLimits {
        /// Returns no limits.
        fn default() -> Self {
            const MAX: usize = usize::MAX;
            Self {
                events: Seq::MAX,
                artifacts: MAX,
                event_bytes: MAX,
                artifact_bytes: MAX,
                task_bytes: MAX,
                context_bytes: MAX,
            }
        }
    }

    /// Permitted transitions: a row for each state, with a column for each next state.
    #[test]
    fn permitted_transitions_are_admitted() {
        #[rustfmt::skip]
        let transitions = [
            //                            Uns    Sub    Wor   Inp   Aut   Com   Fai   Can   Rej
            (TaskState::Unspecified,   [false, false, true,  true,  true,  true,  true,  true,  true ]),
            (TaskState::Submitted,     [false, false, true,  true,  true,  true,  true,  true,  true ]),
            (TaskState::Working,       [false, false, true,  true,  true,  true,  true,  true,  true ]),
            (TaskState::InputRequired, [false, false, true,  true,  true,  true,  true,  true,  true ]),
            (TaskState::AuthRequired,  [false, false, true,  true,  true,  true,  true,  true,  true ]),
            (TaskState::Completed,     [false; 9]),
            (TaskState::Failed,        [false; 9]),
            (TaskState::Canceled,      [false; 9]),
            (TaskState::Rejected,      [false; 9]),
        ];
        for (from, row) in transitions {
            for (to, legal) in STATES.into_iter().zip(row) {
                assert_eq!(from.can_become(to), legal, "{from:?} to {to:?}");
                let mut admission = Admission::new(&task_in(from), 1, TaskLimits::default());
                assert_eq!(admission.admit(&mut status(to, None), false).is_ok(), legal, "{from:?} to {to:?}");
                assert_eq!((admission.state(), admission.seq()), if legal { (to, 2) } else { (from, 1) });
            }
        }
    }

    #[test]
    fn full_task_accepts_only_events_that_end_a_turn() {
        let limits = TaskLimits { events: 4, artifacts: 2, ..TaskLimits::default() };
        let mut admission = Admission::new(&task_in(TaskState::Working), 1, limits);
        let mut begin = |id: &str, ends| admission.admit(&mut Payload::ArtifactUpdate(chunk(id, "x", true)), ends);
        assert_eq!((begin("a", false), begin("b", false)), (Ok(2), Ok(3)));
        assert_eq!(begin("c", false), Err(LimitViolation::Artifacts(2)));
        assert_eq!(begin("a", false), Ok(4), "existing artifacts can grow");
        assert_eq!(begin("a", false), Err(LimitViolation::Events(4)));
        assert_eq!(admission.admit(&mut status(TaskState::InputRequired, None), true), Ok(5));
        assert_eq!(admission.admit(&mut status(TaskState::Working, None), false), Err(LimitViolation::Events(4)));
        assert_eq!(admission.admit(&mut status(TaskState::Failed, None), true), Ok(6));
    }

    #[test]
    fn parts_and_values_count_what_they_occupy() {
        let with_parts = |parts: Vec<Part>| {
            let mut update = chunk("a", "", true);
            update.artifact.as_mut().unwrap().parts = parts;
            Payload::ArtifactUpdate(update)
        };
        let limits = TaskLimits { event_bytes: 1 << 20, task_bytes: 3 << 20, ..TaskLimits::default() };
        let mut admission = Admission::new(&task_in(TaskState::Working), 1, limits);
        let many = 2 * (1 << 20) / size_of::<Part>();
        let admitted = admission.admit(&mut with_parts(vec![Part::default(); many]), false);
        assert_eq!(admitted, Err(LimitViolation::EventBytes(1 << 20)));
        let numbers = Part::data(&vec![0; 40_000]).unwrap();
        assert_eq!(admission.admit(&mut with_parts(vec![numbers]), false), Err(LimitViolation::EventBytes(1 << 20)));
        assert_eq!(admission.bytes(), task_in(TaskState::Working).encoded_len(), "a rejection counts nothing");
        let mut accepted = 0;
        while admission.admit(&mut with_parts(vec![Part::default(); many / 4]), false).is_ok() {
            accepted += 1;
        }
        assert_eq!(accepted, 6, "events of half a megabyte");
        // Few parts count as their texts.
        let mut admission = Admission::new(&task_in(TaskState::Working), 1, limits);
        let (before, mut text) = (admission.bytes(), with_parts(vec![Part::text("x"); 100]));
        admission.admit(&mut text, false).unwrap();
        assert_eq!(admission.bytes() - before, event_bytes(&text));
        assert!(admission.admit_joined("a", &vec![Part::default(); many / 4], 2));
        assert!(admission.bytes() - before > 400_000);
    }

    #[test]
    fn bytes_are_counted_by_event_artifact_and_task() {
        let text = |id: &str, bytes: usize, append| Payload::ArtifactUpdate(chunk(id, &"x".repeat(bytes), append));
        let limits = TaskLimits { event_bytes: 100, artifact_bytes: 150, task_bytes: 360, ..TaskLimits::default() };
        let mut admission = Admission::new(&task_in(TaskState::Working), 1, limits);
        assert_eq!(admission.admit(&mut text("a", 100, false), false), Err(LimitViolation::EventBytes(100)));
        assert_eq!(admission.admit(&mut text("a", 80, false), false), Ok(2));
        assert_eq!(admission.admit(&mut text("a", 80, true), false), Err(LimitViolation::ArtifactBytes(150)));
        // A replaced artifact counts once for the artifact, and twice for the log.
        assert_eq!(admission.admit(&mut text("a", 80, false), false), Ok(3));
        assert_eq!(admission.admit(&mut text("a", 40, true), false), Ok(4));
        assert!(!admission.admit_joined("a", &[], 40) && admission.admit_joined("a", &[], 4));
        assert_eq!(admission.admit(&mut text("b", 80, false), false), Ok(5));
        let text = "x".repeat(80);
        assert_eq!(
            admission.admit(&mut status(TaskState::Working, Some(&text)), false),
            Err(LimitViolation::TaskBytes(360))
        );
        assert_eq!((admission.state(), admission.seq()), (TaskState::Working, 5), "a rejection changes nothing");
        assert!(!admission.admit_joined("b", &[], 60), "exceeds the size of the task");
        // An event that ends the turn is exempt from the size of the task, but not from that of an event.
        let too_long = "x".repeat(100);
        let mut end = |text: &str| admission.admit(&mut status(TaskState::Failed, Some(text)), true);
        assert_eq!((end(&too_long), end(&text)), (Err(LimitViolation::EventBytes(100)), Ok(6)));
    }

    #[test]
    fn bytes_are_counted_by_context() {
        let text = |bytes: usize| Payload::ArtifactUpdate(chunk("a", &"x".repeat(bytes), true));
        let limits = TaskLimits { context_bytes: 300, artifacts: 1, ..TaskLimits::default() };
        let context = Arc::new(ContextBytes::default());
        let mut tasks = [(); 2].map(|()| {
            let mut admission = Admission::new(&task_in(TaskState::Working), 1, limits);
            admission.check_first(Some(Arc::clone(&context))).unwrap();
            admission
        });
        let first = tasks[0].bytes();
        assert_eq!(context.get(), 2 * first);
        let [one, two] = &mut tasks;
        assert_eq!(one.admit(&mut text(100), false), Ok(2));
        assert!(one.admit_joined("a", &[], 50));
        assert_eq!(context.get(), one.bytes() + two.bytes());
        assert_eq!(two.admit(&mut text(150), false), Err(LimitViolation::ContextBytes(300)));
        assert_eq!(two.admit(&mut text(80), false), Ok(2));
        assert!(!two.admit_joined("a", &[], 80) && !one.admit_joined("a", &[], 80));
        // What is refused for another reason is not counted.
        let full = context.get();
        let mut other = Payload::ArtifactUpdate(chunk("b", "", false));
        assert_eq!(two.admit(&mut other, false), Err(LimitViolation::Artifacts(1)));
        assert_eq!((context.get(), full), (full, one.bytes() + two.bytes()));
        // The end of a turn always fits.
        let said = "x".repeat(200);
        assert_eq!(
            one.admit(&mut status(TaskState::Working, Some(&said)), false),
            Err(LimitViolation::ContextBytes(300))
        );
        assert_eq!(one.admit(&mut status(TaskState::Failed, Some(&said)), true), Ok(3));
        assert_eq!(context.get(), one.bytes() + two.bytes());
        two.drop_task();
        assert_eq!(context.get(), one.bytes());
        // A task that has its context to itself counts alone.
        let mut alone = Admission::new(&task_in(TaskState::Working), 1, limits);
        assert_eq!(alone.admit(&mut text(250), false), Ok(2));
        assert_eq!(alone.admit(&mut text(80), false), Err(LimitViolation::ContextBytes(300)));
        alone.limits = TaskLimits { context_bytes: 0, ..limits };
        assert_eq!(alone.check_first(None), Err(LimitViolation::ContextBytes(0)));
    }

    #[test]
    fn loaded_task_has_the_artifact_sizes_without_the_joined_parts() {
        let mut task = task_in(TaskState::Working);
        let mut admission = Admission::new(&task, 1, TaskLimits::default());
        for (id, append) in [("a", false), ("a", true), ("b", false), ("a", false), ("b", true)] {
            let mut payload = Payload::ArtifactUpdate(chunk(id, "text of a chunk", append));
            admission.admit(&mut payload, false).unwrap();
            crate::protocol::task::apply(&mut task, &payload);
        }
        let loaded = Admission::new(&task, admission.seq(), TaskLimits::default());
        let sizes = |admission: &Admission| {
            admission.artifacts.iter().map(|artifact| (artifact.id.to_string(), artifact.bytes)).collect::<Vec<_>>()
        };
        // Key and length of the part that was appended to `b`, and of its text.
        let joined = ("b".to_owned(), sizes(&admission)[1].1 - 4);
        assert_eq!(sizes(&loaded), [sizes(&admission)[0].clone(), joined]);
        assert!(loaded.bytes() < admission.bytes(), "the log exceeds the task; stores record its size");
    }

    #[test]
    fn ids_that_agents_choose_have_a_maximum_length() {
        let id = "i".repeat(MAX_ID_BYTES + 1);
        let mut admission = Admission::new(&task_in(TaskState::Working), 1, TaskLimits::default());
        let named =
            crate::protocol::pb::v1::Message { message_id: id.clone(), ..crate::protocol::pb::v1::Message::agent("x") };
        let mut update = status(TaskState::Working, Some("x"));
        if let Payload::StatusUpdate(status_update) = &mut update {
            status_update.status.as_mut().unwrap().message = Some(named.clone());
        }
        for mut payload in [Payload::ArtifactUpdate(chunk(&id, "x", false)), update, Payload::Message(named)] {
            assert_eq!(admission.admit(&mut payload, false), Err(LimitViolation::IdBytes(MAX_ID_BYTES)));
        }
        assert_eq!(admission.admit(&mut Payload::ArtifactUpdate(chunk(&id[1..], "x", false)), false), Ok(2));
    }

    proptest! {
        /// Terminal states are final, and every accepted event has the next sequence number.
        #[test]
        fn terminal_states_are_final(states in proptest::collection::vec(0..9_usize, 0..30)) {
            let mut admission = Admission::new(&task_in(TaskState::Submitted), 1, TaskLimits::default());
            let (mut ended, mut accepted) = (None, 1);
            for state in states.into_iter().map(|index| STATES[index]) {
                if admission.admit(&mut status(state, None), false).is_ok() {
                    accepted += 1;
                    prop_assert_eq!(ended, None);
                    ended = state.is_terminal().then_some(state);
                }
                prop_assert_eq!(admission.seq(), accepted);
            }
        }
    }
}
