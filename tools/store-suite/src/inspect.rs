//! Cases of the reads for operators: tasks of all owners, and counts.

use std::{sync::Arc, time::Duration};

use super::{
    Checked, Failure, StoreSuite, count, keyed,
    writer::{TaskWriter, chunk, scope, status},
};
use a2a_service::{
    call::Binding,
    clock::Millis,
    pb::v1::{TaskPushNotificationConfig, TaskState},
    protocol::Version,
    store::{
        Commit, Counts, Inspect, PushConfig, PutResult, Retention, Store, TaskFilter, TaskSummary, TurnRecord,
        turn_record::MAX_TURNS,
    },
};

fn inspect(store: &dyn Store) -> Result<&dyn Inspect, Failure> {
    store.inspect().ok_or_else(|| Failure::new("the store has no read access for operators".to_owned()))
}

fn push() -> Arc<PushConfig> {
    let config = TaskPushNotificationConfig { id: "p".into(), url: "http://p".into(), ..Default::default() };
    Arc::new(PushConfig { config, version: Version::V1_0, extra: a2a_service::bytes::Bytes::new() })
}

fn ids(tasks: &[TaskSummary]) -> Vec<&str> {
    tasks.iter().map(|task| task.id.as_str()).collect()
}

/// Tasks of several owners and tenants, two of which have the same id, in the order of their creation.
async fn tasks(store: &dyn Store) -> Result<Vec<TaskWriter>, Failure> {
    let mut tasks = Vec::new();
    for (owner, tenant, id, state) in [
        ("ada", "", "t-3", Some(TaskState::Completed)),
        ("ada", "blue", "t-1", None),
        ("bob", "", "t-1", Some(TaskState::Working)),
        ("ada", "", "t-2", Some(TaskState::Completed)),
    ] {
        let mut task = TaskWriter::within(&scope(owner, tenant), id, "c-7", 5);
        task.commit(store, [chunk("a", "x", false)]).await??;
        if let Some(state) = state {
            task.commit(store, [status(state, 9)]).await??;
        }
        tasks.push(task);
    }
    Ok(tasks)
}

pub(super) async fn tasks_of_all_owners_are_listed_newest_first(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let (tasks, inspect) = (tasks(store).await?, inspect(store)?);
    let all = inspect.tasks(&TaskFilter::default(), 9).await?;
    ensure_eq!((ids(&all.tasks), all.next), (vec!["t-2", "t-1", "t-1", "t-3"], None));
    for (task, summary) in tasks.iter().rev().zip(&all.tasks) {
        let owner = task.key.scope();
        ensure_eq!((summary.owner.as_str(), summary.tenant.as_str()), (&*owner.owner, &*owner.tenant));
        ensure_eq!((summary.context.as_str(), summary.state), ("c-7", task.task.state()));
        ensure_eq!((summary.time, summary.events, summary.has_log), (task.time, task.at.seq, true));
        ensure!(summary.bytes > 0, "{summary:?}");
    }
    let text = |text: &str| Some(text.to_owned());
    for (filter, expected) in [
        (TaskFilter { id: text("t-1"), ..TaskFilter::default() }, &["t-1", "t-1"][..]),
        (TaskFilter { owner: text("ada"), ..TaskFilter::default() }, &["t-2", "t-1", "t-3"]),
        (TaskFilter { owner: text("ada"), tenant: text(""), ..TaskFilter::default() }, &["t-2", "t-3"]),
        (TaskFilter { tenant: text("blue"), ..TaskFilter::default() }, &["t-1"]),
        (TaskFilter { states: vec![TaskState::Working], ..TaskFilter::default() }, &["t-1"]),
        (TaskFilter { id: text("t-1"), owner: text("eve"), ..TaskFilter::default() }, &[]),
    ] {
        ensure_eq!(ids(&inspect.tasks(&filter, 9).await?.tasks), expected, "with {filter:?}");
    }
    // Pages have each task once, also if the last one is full.
    let (mut filter, mut paged) = (TaskFilter::default(), Vec::new());
    loop {
        let page = inspect.tasks(&filter, 2).await?;
        ensure_eq!(page.tasks.len(), 2);
        paged.extend(page.tasks);
        match page.next {
            Some(next) => filter.before = Some(next),
            None => break,
        }
    }
    ensure_eq!(paged, all.tasks);
    Ok(())
}

pub(super) async fn inspected_task_has_its_contents(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let (tasks, inspect) = (tasks(store).await?, inspect(store)?);
    ensure_eq!(store.put_push(&tasks[1].key, push(), 9).await?, PutResult::Created);
    let page = inspect.tasks(&TaskFilter::default(), 9).await?;
    for (n, (task, summary)) in tasks.iter().rev().zip(&page.tasks).enumerate() {
        let Some(found) = inspect.task(summary.number).await? else {
            return Err(Failure::new(format!("{summary:?} is missing")));
        };
        ensure_eq!(found.task, task.task);
        ensure_eq!(found.push_configs, if n == 2 { vec![push()] } else { Vec::new() });
    }
    let last = page.tasks.iter().map(|task| task.number).max();
    ensure_eq!(inspect.task(last.unwrap_or_default() + 1).await?, None);
    Ok(())
}

/// Time in the id of the tasks of the following cases.
const CREATED: Millis = 0x0193_0000_0000;

/// Id of a task that was created at [`CREATED`].
fn task_id(n: u8) -> String {
    format!("01930000-0000-7000-8000-0000000000{n:02x}")
}

const ERROR: &str = "01930000-0005-7abc-8def-0123456789ab";

/// Record of an attempt that runs.
fn running(number: u32, attempt: u32) -> TurnRecord {
    TurnRecord {
        number,
        attempt,
        fence: 7,
        message: 1,
        accepted: CREATED + 1,
        begun: Some(CREATED + 3),
        caller: Some("bot".into()),
        binding: Some(Binding::JsonRpc),
        version: Some(Version::V0_3),
        trace: Some([number.try_into().unwrap_or_default(); 25]),
        request_id: Some(if number == 1 { "01930000-0000-7000-8000-000000000001".into() } else { "my-request".into() }),
        commits: 1,
        ..TurnRecord::default()
    }
}

/// Adds the end of an attempt to its record.
fn ended(running: &TurnRecord, outcome: &'static str) -> TurnRecord {
    TurnRecord {
        ended: Some(CREATED + 400),
        outcome: Some(outcome),
        reason: Some(if outcome == "failed" { "exit_code" } else { "none" }),
        error_id: (outcome == "failed").then(|| ERROR.into()),
        tokens_in: 1000,
        tokens_out: 20,
        exit_code: Some(-3),
        commits: 3,
        commit_wait: Duration::from_millis(12),
        ..running.clone()
    }
}

fn encoded(id: &str, records: &[(&TurnRecord, bool)]) -> a2a_service::bytes::Bytes {
    TurnRecord::encode(id, records).into()
}

/// Times of the commits of the events of a task.
async fn times(inspect: &dyn Inspect, number: u64) -> Result<Vec<Option<Millis>>, Failure> {
    Ok(inspect.events(number, 0, 99).await?.iter().map(|event| event.time).collect())
}

/// Returns the only task that a filter selects.
async fn only(inspect: &dyn Inspect, filter: TaskFilter) -> Result<TaskSummary, Failure> {
    let page = inspect.tasks(&filter, 9).await?;
    let [task] = &*page.tasks else { return Err(Failure::new(format!("{filter:?} selects {:?}", ids(&page.tasks)))) };
    Ok(task.clone())
}

pub(super) async fn times_and_turns_of_commits_are_kept(suite: &StoreSuite) -> Checked {
    let mut opened = suite.open().await;
    let (id, other) = (task_id(1), task_id(2));
    let mut task = TaskWriter::within(&scope("ada", ""), &id, "c-7", CREATED);
    let [first, second] = [(1, 1), (1, 2)].map(|(number, attempt)| running(number, attempt));
    let end = ended(&second, "failed");
    for (n, turns, payloads) in [
        (5, Some(encoded(&id, &[(&first, false)])), vec![chunk("a", "1", false)]),
        (9, None, vec![chunk("a", "2", true), chunk("a", "3", true)]),
        (70_000, Some(encoded(&id, &[(&second, false)])), vec![chunk("a", "4", true)]),
        (80_000, Some(encoded(&id, &[(&end, true)])), vec![status(TaskState::Failed, CREATED + 80_000)]),
    ] {
        if n == 80_000 {
            let summary = opened.log_summary(&task.key).await?;
            ensure_eq!(summary.ended_turns, 0, "the only turn runs");
        }
        let change = Commit { time: CREATED + n, turns, ..task.next(&*opened, payloads) };
        task.write(&*opened, change).await??;
    }
    // A task that ends with its first commit.
    let mut short = TaskWriter::within(&scope("ada", ""), &other, "c-7", CREATED);
    let change = short.next(&*opened, [status(TaskState::Completed, CREATED + 2)]);
    let own = ended(&running(1, 1), "completed");
    let change = Commit { time: CREATED + 2, turns: Some(encoded(&other, &[(&own, false)])), ..change };
    short.write(&*opened, change).await??;
    // A turn that has ended without its task, and the next one, in one commit.
    let mut asked = TaskWriter::within(&scope("ada", ""), &task_id(3), "c-7", CREATED);
    let one = ended(&running(1, 1), "input_required");
    let two = running(2, 1);
    let change = asked.next(&*opened, [chunk("a", "1", false)]);
    let turns = Some(encoded(&task_id(3), &[(&one, false), (&two, false)]));
    asked.write(&*opened, Commit { time: CREATED, turns, ..change }).await??;
    ensure_eq!(opened.log_summary(&asked.key).await?.ended_turns, 1);

    opened = opened.reopen().await;
    let inspect = inspect(&*opened)?;
    let summary = only(inspect, TaskFilter { error_id: Some(ERROR.to_owned()), ..TaskFilter::default() }).await?;
    ensure_eq!((summary.id.as_str(), summary.error_id.as_deref()), (&*id, Some(ERROR)));
    ensure_eq!(summary.created, Some(CREATED));
    let found = inspect.task(summary.number).await?.ok_or_else(|| Failure::new(format!("{summary:?} is missing")))?;
    ensure_eq!(found.summary, summary);
    ensure_eq!(found.turns, [first, end]);
    let expected = [5, 5, 9, 9, 70_000, 80_000].map(|n| Some(CREATED + n));
    ensure_eq!(times(inspect, summary.number).await?, expected);
    let page = inspect.events(summary.number, 2, 2).await?;
    let positions: Vec<_> = page.iter().map(|event| (event.event.seq(), event.time)).collect();
    ensure_eq!(positions, [(3, expected[2]), (4, expected[3])]);
    let short = only(inspect, TaskFilter { id: Some(other), ..TaskFilter::default() }).await?;
    let found = inspect.task(short.number).await?.ok_or_else(|| Failure::new(format!("{short:?} is missing")))?;
    ensure_eq!((found.turns, short.error_id), (vec![own], None));
    ensure_eq!(times(inspect, short.number).await?, [Some(CREATED + 2); 2]);
    let asked = only(inspect, TaskFilter { id: Some(task_id(3)), ..TaskFilter::default() }).await?;
    let found = inspect.task(asked.number).await?.ok_or_else(|| Failure::new(format!("{asked:?} is missing")))?;
    ensure_eq!(found.turns, [one, two]);
    let unknown = TaskFilter { error_id: Some(task_id(9)), ..TaskFilter::default() };
    ensure_eq!(inspect.tasks(&unknown, 9).await?.tasks, []);
    Ok(())
}

/// The memory store keeps both together.
pub(super) async fn newest_turns_outlive_their_log(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let id = task_id(1);
    let mut task = TaskWriter::within(&scope("ada", ""), &id, "c-7", CREATED);
    let mut all = Vec::new();
    for number in 1..=40 {
        let turn = running(number, 1);
        let begin = Some(encoded(&id, &[(&turn, false)]));
        let change = Commit { time: CREATED + 1, turns: begin, ..task.next(store, [chunk("a", "1", number > 1)]) };
        task.write(store, change).await??;
        let is_last = number == 40;
        let end = ended(&turn, if is_last { "failed" } else { "input_required" });
        let state = if is_last { TaskState::Failed } else { TaskState::InputRequired };
        let change = task.next(store, [status(state, CREATED + 2)]);
        let change = Commit { time: CREATED + 2, turns: Some(encoded(&id, &[(&end, true)])), ..change };
        task.write(store, change).await??;
        all.push(end);
    }
    let inspect = inspect(store)?;
    let filter = TaskFilter { error_id: Some(ERROR.to_owned()), ..TaskFilter::default() };
    let number = only(inspect, filter.clone()).await?.number;
    let turns = async || Ok::<_, Failure>(inspect.task(number).await?.map(|found| found.turns).unwrap_or_default());
    ensure_eq!(turns().await?, all);
    let mut policy = Retention::FOREVER;
    policy.logs = Some(Duration::from_millis(10));
    store.sweep(&policy, CREATED + 1000, &|_| false).await?;
    let kept = if suite.has_separate_retention() { &all[all.len() - MAX_TURNS..] } else { &all[..] };
    ensure_eq!(turns().await?, kept);
    ensure_eq!(only(inspect, filter.clone()).await?.has_log, !suite.has_separate_retention());
    let events = inspect.events(number, 0, 99).await?;
    ensure_eq!(events.is_empty(), suite.has_separate_retention());
    // Nothing is left with the task.
    store.sweep(&Retention::FOREVER.finished(Some(Duration::ZERO)), CREATED + 1000, &|_| false).await?;
    ensure_eq!(inspect.tasks(&filter, 9).await?.tasks, []);
    Ok(())
}

pub(super) async fn tasks_are_selected_by_prefix_context_and_states(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    tasks(store).await?;
    let mut other = TaskWriter::within(&scope("ada", ""), "u-1", "c-8", 5);
    other.commit(store, [status(TaskState::InputRequired, 9)]).await??;
    let inspect = inspect(store)?;
    let text = |text: &str| Some(text.to_owned());
    let both = vec![TaskState::Working, TaskState::InputRequired];
    for (filter, expected) in [
        (TaskFilter { id_prefix: text("t-"), ..TaskFilter::default() }, &["t-2", "t-1", "t-1", "t-3"][..]),
        (TaskFilter { id_prefix: text("u"), ..TaskFilter::default() }, &["u-1"]),
        (TaskFilter { id_prefix: text("-1"), ..TaskFilter::default() }, &[]),
        (TaskFilter { context: text("c-8"), ..TaskFilter::default() }, &["u-1"]),
        (TaskFilter { states: both.clone(), ..TaskFilter::default() }, &["u-1", "t-1"]),
        (TaskFilter { states: both, owner: text("bob"), ..TaskFilter::default() }, &["t-1"]),
    ] {
        ensure_eq!(ids(&inspect.tasks(&filter, 9).await?.tasks), expected, "with {filter:?}");
    }
    let asked = only(inspect, TaskFilter { id: text("u-1"), ..TaskFilter::default() }).await?;
    ensure_eq!((asked.status_text.as_deref(), asked.attempt, asked.push_configs), (Some("what?"), 1, 0));
    ensure_eq!((asked.created, asked.error_id), (None, None));
    Ok(())
}

pub(super) async fn counts_follow_the_tasks(suite: &StoreSuite) -> Checked {
    let store = &*suite.open().await;
    let inspect = inspect(store)?;
    ensure_eq!(inspect.counts().await?, Counts::default());
    let mut tasks = tasks(store).await?;
    ensure_eq!(store.put_push(&tasks[1].key, push(), 9).await?, PutResult::Created);
    let change = Commit { sends: keyed("k-1", 1, 4), ..tasks[2].next(store, [chunk("a", "y", true)]) };
    tasks[2].write(store, change).await??;
    let owners = |owners: &[(&str, &str, u64)]| {
        owners
            .iter()
            .map(|(owner, tenant, tasks)| ((*owner).to_owned(), (*tenant).to_owned(), *tasks))
            .collect::<Vec<_>>()
    };
    let counts = inspect.counts().await?;
    let states = [(TaskState::Submitted, 1), (TaskState::Working, 1), (TaskState::Completed, 2)];
    ensure_eq!(counts.tasks, states);
    ensure_eq!(counts.owners, owners(&[("ada", "", 2), ("ada", "blue", 1), ("bob", "", 1)]));
    ensure_eq!((counts.owner_count, counts.without_log), (3, 0));
    ensure_eq!((counts.push_configs, counts.idempotency_keys), (1, 1));
    let policy = Retention::FOREVER.finished(Some(Duration::from_millis(10)));
    let swept = store.sweep(&policy, 1000, &|_| false).await?;
    ensure_eq!(swept.tasks, count(2));
    let counts = inspect.counts().await?;
    ensure_eq!(counts.tasks, states[..2]);
    ensure_eq!(counts.owners, owners(&[("ada", "blue", 1), ("bob", "", 1)]));
    ensure_eq!((counts.owner_count, counts.push_configs, counts.idempotency_keys), (2, 1, 1));
    Ok(())
}
