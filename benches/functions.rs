//! Micro-benchmarks of functions on the path of every call: `cargo bench --bench functions`.
//!
//! They use the small echo task of the load benchmark: a text of 64 bytes, its history and its artifact.

#![expect(clippy::unwrap_used, reason = "a benchmark may panic")]

use std::{hint::black_box, sync::Arc};

use a2a_service::{
    event::{Cursor, Ends, Event, EventFlags, Position, Seq},
    pb::v1::{
        Artifact, Message, Part, Role, SendMessageRequest, Task, TaskArtifactUpdateEvent, TaskState, TaskStatus,
        TaskStatusUpdateEvent, part::Content, stream_response::Payload,
    },
    pb::wkt::Timestamp,
    store::{Commit, Expect, Scope, SyncStore as _, TaskHead, TaskKey, memory::Memory},
    task,
};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use prost::Message as _;

const ID: &str = "01a1fdbd-709e-7551-9206-19b2814645fa";
const TEXT: &str = "ping 00000000 opqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijkl";
const REQUEST: &str = r#"{"message":{"messageId":"b0000000-0000-4000-8000-000000000000","role":"ROLE_USER","parts":[{"text":"ping 00000000 opqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijkl"}]}}"#;

fn message() -> Message {
    Message {
        message_id: "b0000000-0000-4000-8000-000000000000".to_owned(),
        context_id: ID.to_owned(),
        task_id: ID.to_owned(),
        role: Role::User.into(),
        parts: vec![Part::text(TEXT)],
        ..Message::default()
    }
}

fn status(state: TaskState) -> TaskStatus {
    let timestamp = Some(Timestamp { seconds: 1_790_000_000, nanos: 123_000_000 });
    TaskStatus { state: state.into(), timestamp, ..TaskStatus::default() }
}

/// Task as created.
fn submitted() -> Task {
    let status = Some(status(TaskState::Submitted));
    Task { id: ID.to_owned(), context_id: ID.to_owned(), status, history: vec![message()], ..Task::default() }
}

/// Updates of the task: working, an artifact, completed.
fn updates() -> [Payload; 3] {
    let status = |state| {
        Payload::StatusUpdate(TaskStatusUpdateEvent {
            task_id: ID.to_owned(),
            context_id: ID.to_owned(),
            status: Some(status(state)),
            ..TaskStatusUpdateEvent::default()
        })
    };
    [status(TaskState::Working), Payload::ArtifactUpdate(update()), status(TaskState::Completed)]
}

fn update() -> TaskArtifactUpdateEvent {
    let artifact = Artifact { artifact_id: ID.to_owned(), parts: vec![Part::text(TEXT)], ..Artifact::default() };
    TaskArtifactUpdateEvent {
        task_id: ID.to_owned(),
        context_id: ID.to_owned(),
        artifact: Some(artifact),
        ..TaskArtifactUpdateEvent::default()
    }
}

fn finished() -> Task {
    let mut task = submitted();
    for update in &updates() {
        task::apply(&mut task, update);
    }
    task
}

fn event(seq: Seq, payload: Payload) -> Event {
    Event::new(Position { fence: 1, seq }, EventFlags::ending(Ends::Nothing), payload)
}

fn messages(c: &mut Criterion) {
    let (task, mut group) = (finished(), c.benchmark_group("message"));
    group.bench_function("read a send request in JSON", |b| {
        b.iter(|| serde_json::from_str::<SendMessageRequest>(black_box(REQUEST)).unwrap());
    });
    let request = serde_json::from_str::<SendMessageRequest>(REQUEST).unwrap();
    let bytes = request.encode_to_vec();
    group.bench_function("read a send request in protobuf", |b| {
        b.iter(|| SendMessageRequest::decode(black_box(&*bytes)).unwrap());
    });
    group.bench_function("write a task in JSON", |b| b.iter(|| serde_json::to_vec(black_box(&task)).unwrap()));
    group.bench_function("write a task in protobuf", |b| b.iter(|| black_box(&task).encode_to_vec()));
    let (json, bytes) = (serde_json::to_vec(&task).unwrap(), task.encode_to_vec());
    group.bench_function("read a task in JSON", |b| {
        b.iter(|| serde_json::from_slice::<Task>(black_box(&json)).unwrap());
    });
    group.bench_function("read a task in protobuf", |b| b.iter(|| Task::decode(black_box(&*bytes)).unwrap()));
    group.finish();
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("event");
    let fresh = || event(3, Payload::ArtifactUpdate(update()));
    group.bench_function("write in JSON", |b| {
        b.iter_batched(fresh, |event| event.json().len(), BatchSize::SmallInput);
    });
    group.bench_function("write in protobuf", |b| {
        b.iter_batched(fresh, |event| event.proto().len(), BatchSize::SmallInput);
    });
    let event = fresh();
    event.json();
    group.bench_function("write cached JSON", |b| b.iter(|| black_box(&event).json().len()));
    group.bench_function("make a cursor", |b| b.iter(|| Cursor::new(black_box(ID), Position { fence: 1, seq: 3 })));
    let cursor = Cursor::new(ID, Position { fence: 1, seq: 3 }).to_string();
    group.bench_function("read a cursor", |b| {
        b.iter(|| Cursor::from_text(black_box(&cursor)).unwrap().parts().unwrap().1);
    });
    group.finish();
}

fn tasks(c: &mut Criterion) {
    let (updates, chunk, mut group) = (updates(), update(), c.benchmark_group("task"));
    group.bench_function("apply three events", |b| {
        let fold = |mut task: Task| {
            for update in &updates {
                task::apply(&mut task, update);
            }
            task
        };
        b.iter_batched(submitted, fold, BatchSize::SmallInput);
    });
    // The cost of an event is independent of the size of its task.
    for before in [10, 10_000] {
        let append = Payload::ArtifactUpdate(TaskArtifactUpdateEvent { append: true, ..chunk.clone() });
        let mut task = submitted();
        (0..before).for_each(|_| task::apply(&mut task, &append));
        let length = before * TEXT.len();
        group.bench_function(format!("append a chunk to {before}"), |b| {
            b.iter(|| {
                task::apply(&mut task, black_box(&append));
                if let Some(Content::Text(text)) = &mut task.artifacts[0].parts[0].content {
                    text.truncate(length);
                }
            });
        });
    }
    group.finish();
}

fn store(c: &mut Criterion) {
    let (scope, mut group) = (Arc::new(Scope::default()), c.benchmark_group("store"));
    group.bench_function("make a key", |b| b.iter(|| TaskKey::new(&scope, black_box(ID))));
    let task = Arc::new(finished());
    let log = || {
        let mut all = vec![Event::from_task(Position { fence: 1, seq: 1 }, Ends::Nothing, submitted().into())];
        all.extend((2..).zip(updates()).map(|(seq, payload)| event(seq, payload)));
        all
    };
    let commit = |n: u64| Commit {
        key: TaskKey::new(&scope, &format!("{n:036}")),
        expect: Expect::New,
        fence: 1,
        row: TaskHead {
            context: ID.into(),
            seq: 4,
            state: TaskState::Completed,
            time: 1_790_000_000_123,
            open: false,
            delivered_seq: 1,
            cancel_requested: false,
            attempt: 1,
            drained: 0,
        },
        events: log(),
        checkpoint: Some(Arc::clone(&task)),
        agent_state: None,
        turn_contexts: None,
        sends: Vec::new(),
        push: None,
        time: 0,
        turns: None,
        mail_read: 0,
    };
    // The store is full, as in a server that has run for a while: each commit evicts a task.
    let (memory, mut n) = (Memory::default(), 0);
    let mut next = || {
        n += 1;
        commit(n)
    };
    group.bench_function("commit a whole task to memory", |b| {
        b.iter_batched(&mut next, |commit| memory.commit_sync(&commit).unwrap(), BatchSize::SmallInput);
    });
    group.finish();
}

criterion_group!(benches, messages, events, tasks, store);
criterion_main!(benches);
