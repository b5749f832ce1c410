//! Cancellation: races with completion, every task state, the grace period of the agent, and durability of the request.

use std::{sync::Arc, time::Duration};

use a2a_service::{
    agent::{self, End, Turn, Updates},
    error::ErrorKind,
    event::{Ends, Event, Position},
    pb::v1::{ListTasksRequest, Message, Task, TaskState, TaskStatus},
    store::{
        Commit, Committed, Expect, Scope, Store, TaskHead, TaskKey, TaskStore as _, memory::Memory, sqlite::Options,
    },
};
use futures::FutureExt as _;
use tokio::{task::yield_now, time::Instant};

use super::support::*;
use crate::{
    gate::{CommitOutcome, Gate},
    store::opened::OpenedStore,
};

async fn cancelable_countdown(turn: Turn, out: Updates) -> Result<End, agent::Error> {
    out.working().await?;
    for _ in 0..turn.text().parse()? {
        yield_now().await;
        if turn.canceled().now_or_never().is_some() {
            return Err(agent::Stopped.into());
        }
    }
    Ok(End::Completed(None))
}

/// A second cancel returns the same outcome as the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_racing_with_completion_yields_one_terminal_state() {
    let file = OpenedStore::sqlite(Options::default());
    let stores: [Arc<dyn Store>; 3] = [Arc::new(Memory::default()), Gate::opened(), Arc::clone(&file.store)];
    for store in stores {
        let bench = bench(Arc::clone(&store), cancelable_countdown);
        let (mut canceled, mut completed) = (0, 0);
        for n in 0..1000 {
            let mut events = bench.stream(Message::user((n % 16 * 40).to_string())).await.unwrap();
            let id = task_id(&next_event(&mut events).await);
            (0..n % 5 * 500).for_each(|_| std::hint::spin_loop());
            let canceling = bench.cancel(&id).await;
            let seen = remaining_events(&mut events).await;
            let log = bench.log(&*store, &id).await;
            assert_dense(&log);
            let ends: Vec<_> = log.iter().filter(|event| event.ends() == Ends::Task).filter_map(state_in).collect();
            let [end] = ends[..] else { panic!("{ends:?}") };
            assert_eq!(states(&seen).last(), Some(&end));
            assert_eq!(bench.state(&id).await, end);
            let newest = ListTasksRequest { page_size: Some(1), ..Default::default() };
            let newest = &bench.list(newest).await.unwrap().tasks[0];
            assert!(newest.id != id || newest.state() == end);
            for canceling in [canceling, bench.cancel(&id).await] {
                match canceling {
                    Ok(task) => assert_eq!((task.state(), end), (TaskState::Canceled, TaskState::Canceled)),
                    Err(error) => assert_eq!((error.kind(), end), (ErrorKind::TaskNotCancelable, TaskState::Completed)),
                }
            }
            if end == TaskState::Canceled { canceled += 1 } else { completed += 1 }
        }
        assert!(canceled > 20 && completed > 20, "canceled {canceled}, completed {completed}");
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn canceled_agent_may_finish_within_the_grace_period() {
    let stores: [Arc<dyn Store>; 2] = [Arc::new(Memory::default()), Gate::opened()];
    for store in stores {
        let bench = bench(store, |turn: Turn, out: Updates| async move {
            out.working().await?;
            turn.canceled().await;
            match turn.text() {
                "polite" => Ok(End::completed("just done")),
                "rejects" => Ok(End::rejected("never")),
                "stops" => out.working().await.map(|()| End::Completed(None)).map_err(agent::Error::from),
                "asks" => Ok(End::input_required("really?")),
                "signs" => Ok(End::auth_required("really?")),
                "fails" => Err(agent::Error::public("that hurt")),
                "slow" => {
                    sleep_ms(2900).await;
                    Ok(End::Completed(None))
                }
                _ => std::future::pending().await,
            }
        });
        for (text, after, outcome) in [
            ("polite", 0, Err(ErrorKind::TaskNotCancelable)),
            ("rejects", 0, Err(ErrorKind::TaskNotCancelable)),
            ("fails", 0, Err(ErrorKind::TaskNotCancelable)),
            ("stops", 0, Ok(TaskState::Canceled)),
            ("asks", 0, Ok(TaskState::Canceled)),
            ("signs", 0, Ok(TaskState::Canceled)),
            ("slow", 2900, Err(ErrorKind::TaskNotCancelable)),
            ("deaf", 3000, Ok(TaskState::Canceled)),
        ] {
            let mut events = bench.stream(Message::user(text)).await.unwrap();
            let id = task_id(&next_event(&mut events).await);
            while state_in(&next_event(&mut events).await) != Some(TaskState::Working) {}
            let started = Instant::now();
            let (canceled, repeated) = tokio::join!(bench.cancel(&id), bench.cancel(&id));
            for canceled in [canceled, repeated] {
                assert_eq!(canceled.map(|task| task.state()).map_err(|error| error.kind()), outcome, "{text}");
            }
            assert_eq!(started.elapsed(), Duration::from_millis(after), "{text}");
            assert_eq!(states(&remaining_events(&mut events).await).len(), 1, "{text}");
        }
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn task_in_any_nonterminal_state_can_be_canceled() {
    let stores: [Arc<dyn Store>; 2] = [Arc::new(Memory::default()), Gate::opened()];
    for store in stores {
        let bench = bench(store, scripted);
        for (text, state) in [
            ("hang", TaskState::Submitted),
            ("work hang", TaskState::Working),
            ("auth:in hang", TaskState::AuthRequired),
            ("ask:what", TaskState::InputRequired),
            ("sign:in", TaskState::AuthRequired),
        ] {
            for watched in [false, true] {
                let id = bench.non_blocking().send(Message::user(text)).await.unwrap().id;
                run_ready_tasks().await;
                assert_eq!(bench.state(&id).await, state);
                let subscribed = if watched { Some(bench.subscribe(&id).await.unwrap()) } else { None };
                for _ in 0..2 {
                    assert_eq!(bench.cancel(&id).await.unwrap().state(), TaskState::Canceled, "{text}");
                }
                assert_eq!(bench.state(&id).await, TaskState::Canceled);
                assert_eq!(error_kind(bench.send(follow_up(&id, "done")).await), ErrorKind::TaskEnded);
                if let Some(mut events) = subscribed {
                    assert_eq!(states(&remaining_events(&mut events).await), [state, TaskState::Canceled]);
                }
            }
        }
        for text in ["done", "reject:no", "fail"] {
            let id = bench.send(Message::user(text)).await.unwrap().id;
            assert_eq!(error_kind(bench.cancel(&id).await), ErrorKind::TaskNotCancelable, "{text}");
        }
        bench.wait_until_evicted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pending_messages_of_a_canceled_task_return_the_canceled_task() {
    let bench = bench(Arc::new(Memory::default()), scripted);
    let id = bench.non_blocking().send(Message::user("work hang")).await.unwrap().id;
    let waiting = bench.spawn_send(follow_up(&id, "also"));
    run_ready_tasks().await;
    let mut streamed = bench.stream(follow_up(&id, "this")).await.unwrap();
    assert_eq!(bench.cancel(&id).await.unwrap().state(), TaskState::Canceled);
    let task = waiting.await.unwrap().unwrap();
    assert_eq!(
        (task.state(), history_texts(&task)),
        (TaskState::Canceled, ["work hang", "also", "this"].map(Into::into).into())
    );
    assert_eq!(states(&remaining_events(&mut streamed).await), [TaskState::Working, TaskState::Canceled]);
    drop(streamed);
    bench.wait_until_evicted().await;
}

/// The request is durable before the agent ends, and is not visible as a task state.
#[tokio::test(start_paused = true)]
async fn cancel_request_is_durable_before_the_reply() {
    let gate = Gate::memory();
    let bench = bench(gate.store(), scripted);
    gate.queue(CommitOutcome::Pass);
    let id = bench.non_blocking().send(Message::user("work hang")).await.unwrap().id;
    gate.queue(CommitOutcome::Pass);
    run_ready_tasks().await;
    let canceling = tokio::spawn({
        let (client, id) = (bench.client.clone(), id.clone());
        async move { client.cancel(&id).await }
    });
    gate.wait_for_commit().await;
    let key = TaskKey::new(&Arc::new(Scope { owner: "ada".into(), tenant: "".into() }), &id);
    assert!(!gate.load(&key).await.unwrap().unwrap().row.cancel_requested);
    // The acknowledgement of the first attempt is lost.
    gate.queue(CommitOutcome::LoseReply);
    gate.queue(CommitOutcome::Pass);
    sleep_ms(20).await;
    assert!(gate.load(&key).await.unwrap().unwrap().row.cancel_requested);
    assert_eq!(bench.state(&id).await, TaskState::Working);
    gate.open();
    assert_eq!(canceling.await.unwrap().unwrap().state(), TaskState::Canceled);
    assert_dense(&bench.log(&*gate, &id).await);
    bench.wait_until_evicted().await;
}

/// The process ended after the cancel request was recorded and before the agent stopped.
#[tokio::test(start_paused = true)]
async fn recorded_cancel_request_is_completed_after_a_restart() {
    let store = Arc::new(Memory::default());
    let key = TaskKey::new(&Arc::new(Scope { owner: "ada".into(), tenant: "".into() }), "t-1");
    let status = TaskStatus { state: TaskState::Working.into(), ..Default::default() };
    let task = Task { id: "t-1".into(), context_id: "c-1".into(), status: Some(status), ..Default::default() };
    let first = Event::from_task(Position { fence: 1, seq: 1 }, Ends::Nothing, task.clone().into());
    let row = TaskHead {
        context: "c-1".into(),
        seq: 1,
        state: TaskState::Working,
        time: 0,
        open: true,
        delivered_seq: 1,
        cancel_requested: true,
        attempt: 1,
        drained: 0,
    };
    let expect = Expect::New;
    let commit = Commit {
        key,
        expect,
        fence: 1,
        row,
        events: vec![first],
        checkpoint: None,
        agent_state: None,
        turn_contexts: None,
        sends: Vec::new(),
        push: None,
        time: 0,
        turns: None,
        mail_read: 0,
    };
    assert_eq!(store.commit([commit].into()).await.unwrap(), [Ok(Committed::default())]);
    let bench = bench(store, scripted);
    let started = Instant::now();
    assert_eq!(bench.cancel("t-1").await.unwrap().state(), TaskState::Canceled);
    assert_eq!(started.elapsed(), Duration::ZERO);
    bench.wait_until_evicted().await;
}
