//! Creates a database file with many tasks, in the form in which a server writes them.

use std::{path::Path, sync::Arc};

use a2a_service::{
    event::{Ends, Event, EventFlags, Position},
    pb::v1::{
        Artifact, Message, Part, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus, TaskStatusUpdateEvent,
        stream_response::Payload,
    },
    store::{
        Commit, Expect, Scope, TaskHead, TaskKey, TaskStore as _,
        sqlite::{Options, Sqlite},
    },
    task,
};
use tokio::runtime::Builder;

use crate::work::PING;

/// Number of tasks per commit.
const BATCH: u64 = 500;

/// Number of tasks per context.
const CONTEXT: u64 = 100;

/// Context of the list requests.
pub(crate) const SOME_CONTEXT: &str = "c-7";

/// Writes this many tasks, the last `running` of which have an unfinished turn.
pub(crate) fn fill(path: &Path, tasks: u64, running: u64) {
    let mut options = Options::default();
    options.max_tasks = usize::MAX;
    let store = Sqlite::open(path, options).unwrap();
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for first in (0..tasks).step_by(usize::try_from(BATCH).unwrap()) {
            let batch: Vec<Commit> = (first..tasks.min(first + BATCH))
                .map(|n| commit(n, n >= tasks - running, store.first_fence()))
                .collect();
            let outcomes = store.commit(batch.into()).await.unwrap();
            assert!(outcomes.iter().all(Result::is_ok));
        }
    });
}

fn commit(n: u64, is_running: bool, fence: u64) -> Commit {
    let (id, context) = (format!("01a10000-0000-7000-8000-{n:012}"), format!("c-{}", n / CONTEXT));
    let time = 1_700_000_000_000 + i64::try_from(n).unwrap();
    let state = match n {
        _ if is_running => TaskState::Working,
        // The oldest tasks, which a list reaches last.
        0..10 => TaskState::Failed,
        _ => TaskState::Completed,
    };
    let status = |state: TaskState| {
        Some(TaskStatus { state: state.into(), message: None, timestamp: Some(a2a_service::pb::wkt::timestamp(time)) })
    };
    let message = Message { task_id: id.clone(), context_id: context.clone(), ..Message::user(PING) };
    let mut task = Task {
        id: id.clone(),
        context_id: context.clone(),
        status: status(TaskState::Submitted),
        history: vec![message],
        ..Task::default()
    };
    let at = |seq| Position { fence, seq };
    let first = Event::from_task(at(1), Ends::Nothing, Arc::new(task.clone()));
    let artifact = Artifact { artifact_id: "a".into(), parts: vec![Part::text(PING)], ..Artifact::default() };
    let (task_id, context_id) = (id.clone(), context.clone());
    let chunk = Payload::ArtifactUpdate(TaskArtifactUpdateEvent {
        task_id,
        context_id,
        artifact: Some(artifact),
        last_chunk: true,
        ..TaskArtifactUpdateEvent::default()
    });
    let update = TaskStatusUpdateEvent {
        task_id: id.clone(),
        context_id: context.clone(),
        status: status(state),
        ..TaskStatusUpdateEvent::default()
    };
    let update = Payload::StatusUpdate(update);
    task::apply(&mut task, &chunk);
    task::apply(&mut task, &update);
    let mark = if is_running { EventFlags::NOTHING } else { EventFlags::ending(Ends::Task) };
    let events = vec![first, Event::new(at(2), EventFlags::NOTHING, chunk), Event::new(at(3), mark, update)];
    let row = TaskHead {
        context: context.into(),
        seq: 3,
        state,
        time,
        open: is_running,
        delivered_seq: 1,
        cancel_requested: false,
        attempt: 1,
        drained: 0,
    };
    let key = TaskKey::new(&Arc::<Scope>::default(), &id);
    let (checkpoint, sends) = (Some(Arc::new(task)), Vec::new());
    Commit {
        key,
        expect: Expect::New,
        fence,
        row,
        events,
        checkpoint,
        agent_state: None,
        turn_contexts: None,
        sends,
        push: None,
        time: 0,
        turns: None,
        mail_read: 0,
    }
}
