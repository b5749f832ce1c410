//! Cases of commits: positions, refusals, idempotency keys, logs, tasks that end with their first commit, and the state
//! after a restart.

use std::{sync::Arc, time::Duration};

use super::{
    Checked, Failure, MANY, Requires, StoreSuite, count, finished, keyed, load, position,
    writer::{TaskWriter, chunk, message, scope, status},
};
use a2a_service::{
    event::{Ends, Event, EventFlags, Position},
    history::HistoryLimit,
    pb::v1::TaskState,
    store::{Commit, Committed, Expect, ListQuery, Refused, Rejected, Retention, Scope, SendOutcome, TaskKey},
};

pub(super) async fn row_has_the_position_of_its_last_commit(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    ensure_eq!(position(store, &task.key).await?, None);
    task.commit(store, []).await??;
    ensure_eq!(position(store, &task.key).await?, Some(task.at));
    task.commit(store, [status(TaskState::Working, 5), chunk("a", "x", false)]).await??;
    ensure_eq!(position(store, &task.key).await?, Some(Position { fence: store.first_fence(), seq: 3 }));
    let stored = load(store, &task.key).await?;
    ensure_eq!((stored.row.state, stored.row.time, stored.row.seq), (TaskState::Working, 5, 3));
    ensure_eq!((&*stored.row.context, stored.row.open, stored.row.attempt), ("c-1", true, 1));
    Ok(())
}

pub(super) async fn refused_commit_changes_nothing(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    let begin = task.next(store, []);
    // The task does not exist.
    let at = Position { fence: store.first_fence(), seq: 1 };
    let missing = Commit { expect: Expect::At(at), ..task.next(store, []) };
    ensure_eq!(task.write(store, missing).await?, Err(Refused::Stale(None)));
    ensure_eq!(position(store, &task.key).await?, None);
    ensure_eq!(task.write(store, begin.clone()).await?, Ok(()));
    // The task exists. A retry after a lost acknowledgement finds its own position.
    ensure_eq!(task.write(store, begin).await?, Err(Refused::Stale(Some(task.at))));
    let work = task.next(store, [status(TaskState::Working, 5)]);
    for wrong in [
        Position { seq: task.at.seq - 1, ..task.at },
        Position { seq: task.at.seq + 1, ..task.at },
        Position { fence: task.at.fence + 1, ..task.at },
    ] {
        let commit = Commit { expect: Expect::At(wrong), ..work.clone() };
        ensure_eq!(task.write(store, commit).await?, Err(Refused::Stale(Some(task.at))));
    }
    task.check(store).await?;
    let before = task.at;
    ensure_eq!(task.write(store, work.clone()).await?, Ok(()));
    ensure_eq!(task.write(store, work).await?, Err(Refused::Stale(Some(task.at))));
    ensure!(task.at != before, "the position is still {before:?}");
    task.check(store).await?;
    let query = ListQuery { scope: scope("ada", ""), limit: 10, ..ListQuery::default() };
    ensure_eq!(store.list(&query).await?.total, 1);
    Ok(())
}

pub(super) async fn idempotency_key_is_recorded_once(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let ada = scope("ada", "");
    let recorded = |id: &str, hash_byte: u8, seq| Some(SendOutcome { task_id: id.into(), seq, hash: [hash_byte; 16] });
    let mut one = TaskWriter::new(&ada, "t-1");
    ensure_eq!(store.find_send(&ada, "k").await?, None);
    let first = Commit { sends: keyed("k", 7, 1), ..one.next(store, []) };
    ensure_eq!(one.write(store, first.clone()).await?, Ok(()));
    ensure_eq!(store.find_send(&ada, "k").await?, recorded("t-1", 7, 1));
    // Retry of a commit whose acknowledgement was lost.
    ensure_eq!(one.write(store, first).await?, Err(Refused::Stale(Some(one.at))));
    let mut other = TaskWriter::new(&ada, "t-2");
    let second = Commit { sends: keyed("k", 7, 1), ..other.next(store, []) };
    ensure_eq!(
        other.write(store, second.clone()).await?,
        Err(Refused::Rejected(Rejected::Duplicate { task_id: "t-1".into() }))
    );
    ensure_eq!(position(store, &other.key).await?, None);
    // Another key, or the key of another owner or tenant, is another send.
    ensure_eq!(other.write(store, Commit { sends: keyed("k2", 7, 1), ..second }).await?, Ok(()));
    for scope in [scope("bob", ""), scope("ada", "blue")] {
        let mut foreign = TaskWriter::new(&scope, "t-3");
        let commit = Commit { sends: keyed("k", 8, 1), ..foreign.next(store, []) };
        ensure_eq!(foreign.write(store, commit).await?, Ok(()));
        ensure_eq!(store.find_send(&scope, "k").await?, recorded("t-3", 8, 1));
    }
    // A follow-up, then another one.
    let follow_up = Commit { sends: keyed("f", 9, 2), ..one.next(store, [message("more")]) };
    ensure_eq!(one.write(store, follow_up.clone()).await?, Ok(()));
    ensure_eq!(one.write(store, follow_up).await?, Err(Refused::Stale(Some(one.at))));
    let mut sends = keyed("g", 1, 3);
    sends.extend(keyed("f", 9, 3));
    let refused = Commit { sends, ..one.next(store, [message("more")]) };
    ensure_eq!(one.write(store, refused).await?, Err(Refused::Rejected(Rejected::Duplicate { task_id: "t-1".into() })));
    ensure_eq!(store.find_send(&ada, "f").await?, recorded("t-1", 9, 2));
    ensure_eq!(store.find_send(&ada, "g").await?, None);
    // The key is kept after the end of the task, until the task is swept.
    one.commit(store, [status(TaskState::Completed, 5)]).await??;
    let mut repeated = TaskWriter::new(&ada, "t-4");
    let commit = Commit { sends: keyed("k", 7, 1), ..repeated.next(store, []) };
    ensure_eq!(
        repeated.write(store, commit.clone()).await?,
        Err(Refused::Rejected(Rejected::Duplicate { task_id: "t-1".into() }))
    );
    store.sweep(&finished(0), 100, &|_| false).await?;
    ensure_eq!(store.find_send(&ada, "f").await?, None);
    ensure_eq!(repeated.write(store, commit).await?, Ok(()));
    Ok(())
}

pub(super) async fn request_context_of_a_message_is_stored(suite: &StoreSuite) -> Checked {
    let opened = suite.open().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    let first = Commit { turn_contexts: Some("one".into()), ..task.next(&*opened, []) };
    task.write(&*opened, first).await??;
    task.commit(&*opened, [message("hi")]).await??;
    let store = &*opened.reopen().await;
    ensure_eq!(load(store, &task.key).await?.turn_contexts.as_deref(), Some(&b"one"[..]));
    let later = Commit { turn_contexts: Some("".into()), ..task.next(store, [message("hi")]) };
    task.write(store, later).await??;
    ensure_eq!(load(store, &task.key).await?.turn_contexts.as_deref(), Some(&b""[..]));
    Ok(())
}

pub(super) async fn batch_has_one_outcome_per_commit(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut writers: Vec<_> = (0..5).map(|n| TaskWriter::new(&scope("ada", ""), &format!("t-{n}"))).collect();
    let batch: Vec<_> = writers.iter().map(|writer| writer.next(store, [])).collect();
    for writer in &mut writers[..2] {
        writer.commit(store, []).await??;
    }
    let outcomes = store.commit(batch.into()).await?;
    let committed = || Ok(Committed::default());
    let stale = |writer: &TaskWriter| Err(Refused::Stale(Some(writer.at)));
    ensure_eq!(outcomes, [stale(&writers[0]), stale(&writers[1]), committed(), committed(), committed()]);
    ensure_eq!(store.commit(Arc::from([])).await?, []);
    Ok(())
}

pub(super) async fn row_can_change_without_an_event(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    task.commit(store, []).await??;
    let mut touch = task.next(store, []);
    (touch.row.cancel_requested, touch.row.delivered_seq, touch.row.open) = (true, 1, false);
    (touch.fence, touch.row.attempt) = (task.at.fence + 3, 2);
    ensure!(store.commit([touch.clone()].into()).await?[0].is_ok());
    let stored = load(store, &task.key).await?;
    let row = &stored.row;
    ensure_eq!((row.cancel_requested, row.delivered_seq, row.open, row.attempt), (true, 1, false, 2));
    ensure_eq!(stored.position, Position { fence: touch.fence, seq: 1 });
    // A retry after a lost acknowledgement is recognised by its fencing token.
    ensure_eq!(store.commit([touch].into()).await?, [Err(Refused::Stale(Some(stored.position)))]);
    task.check(store).await?;
    Ok(())
}

pub(super) async fn saved_state_is_kept_until_replaced(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    for (saved, expected) in [(None, None), (Some("a"), Some("a")), (None, Some("a")), (Some("b"), Some("b"))] {
        let commit = task.next(store, [message("hi")]);
        let commit = Commit { agent_state: saved.map(|text: &str| text.to_owned().into()), ..commit };
        task.write(store, commit).await??;
        let stored = load(store, &task.key).await?;
        ensure_eq!(stored.agent_state.as_deref(), expected.map(str::as_bytes));
    }
    Ok(())
}

pub(super) async fn log_can_be_read_from_every_position(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    for length in [1, 2, 63, 64, 65, 127, 128, 129, 200] {
        let mut task = TaskWriter::new(&scope("ada", ""), &format!("t-{length}"));
        task.commit(store, []).await??;
        while task.log.len() < length {
            // Commits of varying size.
            let left = (length - task.log.len()).min(1 + task.log.len() % 7);
            task.commit(store, (0..left).map(|n| chunk("a", &"x".repeat(n * 40), n > 0))).await??;
        }
        for ended in [false, true] {
            if ended {
                task.commit(store, [status(TaskState::Completed, 9)]).await??;
            }
            for after in (0..=task.log.len() + 2).filter(|n| *n < 4 || n % 64 < 3 || n % 64 > 61 || n % 29 == 0) {
                for limit in [1, 2, 63, 64, 65, 1000] {
                    let log = store.events(&task.key, count(after), limit, usize::MAX).await?;
                    let expected: Vec<_> = task.log.iter().skip(after).take(limit).collect();
                    ensure!(log.iter().eq(expected.iter().copied()), "{limit} after {after} of {length}");
                    let fields = |event: &Event| (event.position(), event.mark(), event.proto().clone());
                    ensure!(log.iter().map(fields).eq(expected.into_iter().map(fields)));
                }
                // The event that reaches the size is the last one.
                for max_bytes in [0, 1, 1000, 10_000] {
                    let log = store.events(&task.key, count(after), 1000, max_bytes).await?;
                    ensure!(log.iter().eq(task.log.iter().skip(after).take(log.len())), "{max_bytes} after {after}");
                    let bytes: usize = log.iter().map(Event::approximate_size).sum();
                    let before_last = bytes - log.last().map_or(0, Event::approximate_size);
                    let is_all = after + log.len() >= task.log.len();
                    ensure!(is_all || bytes >= max_bytes && !log.is_empty(), "{max_bytes} after {after}");
                    ensure!(before_last < max_bytes || log.len() <= 1, "{max_bytes} after {after}");
                }
            }
        }
    }
    let other = TaskKey::new(&scope("ada", ""), "t-0");
    ensure_eq!(store.events(&other, 0, 10, usize::MAX).await?, []);
    Ok(())
}

pub(super) async fn stored_task_equals_its_folded_log(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let mut task = TaskWriter::new(&scope("ada", ""), "t-1");
    let work = status(TaskState::Working, 2);
    for payloads in [
        vec![],
        vec![work, chunk("a", "1", false), chunk("a", "2", true), message("more")],
        vec![status(TaskState::InputRequired, 3)],
        vec![message("here"), chunk("b", "3", false), status(TaskState::Rejected, 4)],
    ] {
        task.commit(store, payloads).await??;
        task.check(store).await?;
    }
    // Marks are stored.
    let marks: Vec<EventFlags> = store.events(&task.key, 0, 100, usize::MAX).await?.iter().map(Event::mark).collect();
    ensure_eq!(marks.iter().filter(|mark| mark.hidden).count(), 2);
    ensure_eq!(
        marks.iter().map(|mark| mark.ends).filter(|ends| *ends != Ends::Nothing).collect::<Vec<_>>(),
        [Ends::Turn, Ends::Task]
    );
    Ok(())
}

pub(super) async fn owners_and_tenants_are_isolated(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let scopes = [scope("ada", ""), scope("ada", "blue"), scope("bob", ""), scope("", ""), scope("", "ada")];
    for (n, scope) in scopes.iter().enumerate() {
        let mut task = TaskWriter::new(scope, "t-1");
        task.commit(store, []).await??;
        task.commit(store, [message(&n.to_string())]).await??;
    }
    for (n, scope) in scopes.iter().enumerate() {
        let key = TaskKey::new(&Arc::new(Scope::clone(scope)), "t-1");
        let mut stored = load(store, &key).await?;
        let task = stored.load_task(store, &key).await?;
        ensure_eq!(task.history[0].text(), n.to_string());
        let query = ListQuery { scope: Arc::clone(scope), limit: 10, ..ListQuery::default() };
        let page = store.list(&query).await?;
        ensure_eq!((page.total, page.tasks), (1, vec![task]));
    }
    store.check().await?;
    Ok(())
}

pub(super) async fn single_commit_task_is_stored_whole(suite: &StoreSuite) -> Checked {
    let store = &*suite.open_with(2, None).await;
    let ada = scope("ada", "");
    let large = "x".repeat(5000);
    let mut tasks = ["short", "large"].map(|id| TaskWriter::new(&ada, id));
    for (task, text) in tasks.iter_mut().zip(["1", &large]) {
        // A later chunk of an artifact is another event than the first.
        let work =
            [status(TaskState::Working, 1), chunk("a", text, false), chunk("b", "2", false), chunk("a", "3", true)];
        let commit = task.next(store, work.into_iter().chain([status(TaskState::Completed, 2)]));
        ensure_eq!(task.write(store, commit.clone()).await?, Ok(()));
        task.check(store).await?;
        ensure_eq!(store.commit([commit].into()).await?, [Err(Refused::Stale(Some(task.at)))]);
        for after in 0..=task.at.seq + 1 {
            for limit in [1, 3, 9] {
                let events = store.events(&task.key, after, limit, usize::MAX).await?;
                let rest = task.log.iter().filter(|event| event.seq() > after).take(limit);
                ensure!(events.iter().eq(rest), "{events:?}");
            }
        }
        ensure!(load(store, &task.key).await?.checkpoint.is_some());
    }
    for artifacts in [true, false] {
        let query =
            ListQuery { scope: Arc::clone(&ada), limit: 9, include_artifacts: artifacts, ..ListQuery::default() };
        let listed = store.list(&query).await?.tasks;
        let expected = tasks.each_ref().map(|task| HistoryLimit::default().copy_task(&task.task, artifacts));
        ensure_eq!(listed, [expected[0].clone(), expected[1].clone()]);
    }
    // Its log can expire first, and the task is evicted at the limit of tasks.
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::from_millis(10));
    let folded = store.sweep(&policy, 20, &|_| false).await?.logs;
    ensure_eq!(folded, if suite.has_separate_retention() { 2 } else { 0 });
    for task in &mut tasks {
        task.is_log_deleted = suite.has_separate_retention();
        task.check(store).await?;
    }
    let mut next = TaskWriter::new(&ada, "next");
    next.commit(store, [chunk("a", "1", false), chunk("b", "1", false), status(TaskState::Completed, 3)]).await??;
    next.check(store).await?;
    if suite.has.contains(&Requires::Quotas) {
        let positions = [position(store, &tasks[0].key).await?, position(store, &tasks[1].key).await?];
        ensure_eq!(positions.iter().flatten().count(), 1);
    }
    Ok(())
}

pub(super) async fn batch_of_single_commit_tasks_has_one_outcome_each(suite: &StoreSuite) -> Checked {
    for max in if suite.has.contains(&Requires::Quotas) { &[MANY, 20][..] } else { &[MANY] } {
        let max = *max;
        let store = &*suite.open_with(max, None).await;
        let work = |text: &str| [chunk("a", text, false), status(TaskState::Completed, 5)];
        let mut tasks: Vec<_> =
            (0..25).map(|number| TaskWriter::new(&scope("ada", ""), &format!("t-{number:02}"))).collect();
        tasks[7].commit(store, work("before")).await??;
        let mut commits: Vec<_> = (0..25).map(|number| tasks[number].next(store, work("whole"))).collect();
        commits[3] = tasks[3].next(store, work(&"x".repeat(5000)));
        commits[7] = Commit { expect: Expect::New, ..commits[6].clone() };
        commits[7].key = tasks[7].key.clone();
        // One task that is not terminal, and one duplicate.
        commits[11] = tasks[11].next(store, []);
        let mut batch = commits.clone();
        batch.push(batch[20].clone());
        let mut outcomes = store.commit(batch.into()).await?;
        for ((task, commit), outcome) in tasks.iter_mut().zip(commits).zip(outcomes.drain(..25)) {
            match outcome {
                Ok(_) => task.record(commit),
                Err(error) => ensure_eq!((task.key.id(), error), ("t-07", Refused::Stale(Some(task.at)))),
            }
        }
        ensure_eq!(outcomes, [Err(Refused::Stale(Some(tasks[20].at)))]);
        ensure!(tasks.iter().all(|task| task.at.seq > 0));
        let query = ListQuery { scope: scope("ada", ""), limit: 100, include_artifacts: true, ..ListQuery::default() };
        let page = store.list(&query).await?;
        ensure_eq!(page.total, count(max.min(25)));
        ensure_eq!(page.tasks.len(), max.min(25));
        for task in &tasks {
            if position(store, &task.key).await?.is_some() {
                task.check(store).await?;
            } else {
                ensure!(max < 25, "{:?} is missing", task.key);
            }
        }
    }
    Ok(())
}

pub(super) async fn committed_tasks_survive_a_reopen(suite: &StoreSuite) -> Checked {
    let opened = suite.open().await;
    let (mut one, mut other) =
        (TaskWriter::new(&scope("ada", "blue"), "t-1"), TaskWriter::new(&scope("bob", ""), "t-1"));
    one.commit(&*opened, [chunk("a", "1", false), status(TaskState::Working, 5), message("hi")]).await??;
    other.commit(&*opened, [chunk("a", "1", false), status(TaskState::Completed, 5)]).await??;
    let fence = opened.first_fence();
    let store = &*opened.reopen().await;
    ensure!(store.first_fence() > fence, "the fence is {} and was {fence}", store.first_fence());
    one.check(store).await?;
    other.check(store).await?;
    one.commit(store, [chunk("a", "2", true), status(TaskState::Failed, 6)]).await??;
    one.check(store).await?;
    let is_later: Vec<_> = one.log.iter().map(|event| event.position().fence > fence).collect();
    ensure_eq!(is_later, [false, false, false, false, true, true]);
    let query = ListQuery { scope: scope("ada", "blue"), limit: 9, ..ListQuery::default() };
    ensure_eq!(store.list(&query).await?.total, 1);
    Ok(())
}

pub(super) async fn open_tasks_are_claimed_once(suite: &StoreSuite) -> Checked {
    let opened = suite.open().await;
    let mut writers = Vec::new();
    for (n, state) in
        [None, Some(TaskState::Working), Some(TaskState::Completed), Some(TaskState::Working)].iter().enumerate()
    {
        let mut task = TaskWriter::new(&scope("ada", "blue"), &format!("t-{n}"));
        task.commit(&*opened, state.map(|state| status(state, 5))).await??;
        writers.push(task);
    }
    ensure!(opened.claim(9).await?.is_empty(), "tasks opened by this instance are not claimable");
    let store = &*opened.reopen().await;
    // This task continues before it is claimed.
    writers[3].commit(store, [message("hi")]).await??;
    let mut claimed = Vec::new();
    loop {
        let some = store.claim(1).await?;
        ensure!(some.len() <= 1);
        if some.is_empty() {
            break;
        }
        claimed.extend(some);
    }
    let keys: Vec<_> = claimed.iter().map(|claim| claim.0.id()).collect();
    ensure_eq!(keys, ["t-0", "t-1"]);
    for (key, stored) in claimed {
        let Ok(mut stored) = stored else { return Err(Failure::new(format!("{stored:?}"))) };
        let Some(task) = writers.iter_mut().find(|task| task.key == key) else { continue };
        ensure_eq!(&*key.scope().tenant, "blue");
        ensure_eq!(
            (stored.row.attempt, stored.position.fence, stored.position.seq),
            (2, store.first_fence(), task.at.seq)
        );
        ensure_eq!(stored.load_task(store, &task.key).await?, task.task);
        // The previous owner is fenced out.
        let late = task.commit(store, [message("late")]).await?;
        ensure_eq!(late, Err(Refused::Stale(Some(stored.position))));
        task.at = Position { fence: store.first_fence(), ..task.at };
        task.commit(store, [status(TaskState::Failed, 9)]).await??;
        task.check(store).await?;
    }
    let owner = TaskKey::new(&scope("ada", "blue"), "t-2");
    ensure_eq!(load(store, &owner).await?.row.attempt, 1);
    Ok(())
}
