//! Task quotas. One replica counts the tasks for all, every few seconds, and deletes those over the limits that ended first. The others
//! read the counts, and add what they commit themselves until the next ones.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use uuid::Uuid;

use super::{
    Commit, Committed, Full, Postgres, Refused, Scope, TaskState,
    connection::{Connection, Failure},
    sweep::delete_tasks,
    values::signed,
};
use crate::{
    base::metric,
    store::{
        Expect,
        quota::{Count, Quota},
    },
};

/// Time between two counts.
const INTERVAL: Duration = Duration::from_secs(5);

/// Time between two counts as a multiple of the time that one takes.
const SHARE: u32 = 20;

/// Time for which a replica counts before another one may.
const TERM: Duration = Duration::from_secs(15);

/// Part of the limit by which the tasks may exceed it, until those that ended are deleted. And a number, for small limits.
const EXCESS: (usize, usize) = (10, 64);

/// Maximum number of tasks per statement.
const BATCH: usize = 256;

/// Number of task states.
const STATES: usize = 9;

/// Counts of this replica.
pub(super) struct Usage {
    pub(super) quota: Quota,
    /// Numbers of tasks by state at the last count.
    pub(super) states: Vec<(TaskState, u64)>,
}

/// Numbers of tasks of an owner: its scopes, all tasks, and those in a terminal state.
#[derive(Default)]
struct Owned {
    scopes: Vec<Uuid>,
    count: Count,
}

impl Postgres {
    /// Checks whether another task is admitted, as [`Quota::check`] does. Much more tasks than the limit are not, since they would come
    /// faster than they are deleted.
    pub(super) fn check_quota(&self, scope: &Scope) -> Result<(), Full> {
        let quota = &self.usage.lock().quota;
        let is_exceeded = |tasks: usize, max: usize| tasks > max.saturating_add(max / EXCESS.0 + EXCESS.1);
        if is_exceeded(quota.total.tasks, quota.max_tasks) {
            return Err(Full::tasks(quota.max_tasks));
        }
        let owner = quota.owners.get(&*scope.owner).map_or(0, |count| count.tasks);
        match quota.max_tasks_per_owner {
            Some(max) if is_exceeded(owner, max) => Err(Full::per_owner(max)),
            _ => quota.check(&scope.owner),
        }
    }

    /// Counts what this replica has committed.
    pub(super) fn count_commits(&self, commits: &[Commit], outcomes: &[Result<Committed, Refused>]) {
        let quota = &mut self.usage.lock().quota;
        for (commit, _) in commits.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_ok()) {
            let (owner, is_terminal) = (&commit.key.scope().owner, commit.row.state.is_terminal());
            match commit.expect {
                Expect::New => quota.count(owner, None, Some(is_terminal)),
                Expect::At(_) if is_terminal => quota.count(owner, Some(false), Some(true)),
                Expect::At(_) => {}
            }
        }
    }
}

/// Keeps the counts up to date until the store is dropped.
pub(super) async fn keep(usage: Weak<Mutex<Usage>>, connection: Arc<Connection>, replica: watch::Receiver<u64>) {
    while let Some(usage) = usage.upgrade() {
        let (started, id) = (Instant::now(), signed(*replica.borrow()));
        let counted = update(&usage, &connection, id).await;
        drop(usage);
        if let Err(failure) = counted {
            tracing::debug!(error.cause = %failure, "the tasks can't be counted");
        }
        sleep_until(Instant::now() + INTERVAL.max(started.elapsed() * SHARE)).await;
    }
}

fn number(count: i64) -> usize {
    usize::try_from(count).unwrap_or(0)
}

async fn update(usage: &Mutex<Usage>, connection: &Connection, id: i64) -> Result<(), Failure> {
    if super::shared::lead(connection, "usage", id, TERM).await? {
        let (max, max_per_owner) = {
            let quota = &usage.lock().quota;
            (quota.max_tasks, quota.max_tasks_per_owner)
        };
        count(connection, max, max_per_owner).await?;
    }
    let row = connection.query_row("SELECT states, owners, tasks, ended FROM @usage", &[]).await?;
    let Some(row) = row else { return Ok(()) };
    let numbers = |column| row.try_get::<_, Vec<i64>>(column);
    let states = numbers("states")?
        .into_iter()
        .zip(0..)
        .map(|(count, state)| (TaskState::try_from(state).unwrap_or_default(), u64::try_from(count).unwrap_or(0)));
    let states: Vec<_> = states.filter(|(_, count)| *count > 0).collect();
    let sum = |counts: &mut dyn Iterator<Item = u64>| usize::try_from(counts.sum::<u64>()).unwrap_or(usize::MAX);
    let total = Count {
        tasks: sum(&mut states.iter().map(|(_, count)| *count)),
        terminal: sum(&mut states.iter().filter(|(state, _)| state.is_terminal()).map(|(_, count)| *count)),
    };
    let counts = numbers("tasks")?.into_iter().zip(numbers("ended")?);
    let counts = counts.map(|(tasks, ended)| Count { tasks: number(tasks), terminal: number(ended) });
    let owners = row.try_get::<_, Vec<String>>("owners")?.into_iter().map(Arc::from).zip(counts).collect();
    let usage = &mut *usage.lock();
    (usage.quota.total, usage.quota.owners, usage.states) = (total, owners, states);
    Ok(())
}

/// Counts all tasks, deletes some if there are too many, and stores the counts. Those of owners with at least half of their limit.
async fn count(connection: &Connection, max: usize, max_per_owner: Option<usize>) -> Result<(), Failure> {
    // Reads only an index.
    let sql = "SELECT scope, state, count(*) AS tasks FROM @task WHERE state >= 0 GROUP BY scope, state";
    let (mut states, mut scopes) = ([0_i64; STATES], HashMap::<Uuid, Count>::new());
    for row in connection.query(sql, &[]).await? {
        let (state, tasks) = (row.try_get::<_, i16>("state")?, row.try_get::<_, i64>("tasks")?);
        if let Some(count) = usize::try_from(state).ok().and_then(|state| states.get_mut(state)) {
            *count += tasks;
        }
        let (scope, tasks) = (scopes.entry(row.try_get("scope")?).or_default(), number(tasks));
        scope.tasks += tasks;
        if TaskState::try_from(i32::from(state)).is_ok_and(TaskState::is_terminal) {
            scope.terminal += tasks;
        }
    }
    let mut owners = BTreeMap::<String, Owned>::new();
    if let Some(max) = max_per_owner {
        let ids: Vec<Uuid> = scopes.keys().copied().collect();
        let sql = "SELECT u.scope, t.owner FROM unnest($1::uuid[]) u(scope),
            LATERAL (SELECT owner FROM @task t WHERE t.scope = u.scope LIMIT 1) t";
        for row in connection.query(sql, &[&ids]).await? {
            let (owner, scope) = (owners.entry(row.try_get("owner")?).or_default(), row.try_get("scope")?);
            let count = scopes.get(&scope).copied().unwrap_or_default();
            owner.scopes.push(scope);
            owner.count.tasks += count.tasks;
            owner.count.terminal += count.terminal;
        }
        owners.retain(|_, owner| owner.count.tasks >= max / 2);
        for owner in owners.values_mut() {
            let evicted = evict(connection, owner.count.tasks.saturating_sub(max), Some(&owner.scopes)).await?;
            owner.count =
                Count { tasks: owner.count.tasks - evicted, terminal: owner.count.terminal.saturating_sub(evicted) };
        }
    }
    let total: i64 = states.iter().sum();
    evict(connection, usize::try_from(total).unwrap_or(0).saturating_sub(max), None).await?;
    let names: Vec<&str> = owners.keys().map(String::as_str).collect();
    let numbers =
        |number: fn(&Count) -> usize| owners.values().map(|owner| signed(number(&owner.count))).collect::<Vec<_>>();
    let (tasks, ended, states) = (numbers(|count| count.tasks), numbers(|count| count.terminal), states.to_vec());
    let sql = "INSERT INTO @usage(states, owners, tasks, ended) VALUES($1, $2, $3, $4) ON CONFLICT (one) DO UPDATE
        SET states = excluded.states, owners = excluded.owners, tasks = excluded.tasks, ended = excluded.ended";
    connection.query(sql, &[&states, &names, &tasks, &ended]).await?;
    Ok(())
}

/// Deletes tasks that ended first: of scopes, or of all. Returns how many.
async fn evict(connection: &Connection, excess: usize, scopes: Option<&Vec<Uuid>>) -> Result<usize, Failure> {
    // Along the index for each value of `folded`.
    let all = ["folded", "NOT folded"].map(|condition| {
        format!(
            r#"(SELECT tid, "time" FROM @task WHERE {condition} AND state IN (3, 4, 5, 7) AND runner IS NULL
            ORDER BY "time" LIMIT $1)"#
        )
    });
    let all = format!(r#"SELECT tid FROM ({}) t ORDER BY "time" LIMIT $1"#, all.join(" UNION ALL "));
    let owned = r#"SELECT tid FROM @task WHERE scope = ANY($2) AND state IN (3, 4, 5, 7) AND runner IS NULL ORDER BY "time" LIMIT $1"#;
    let mut evicted = 0;
    while evicted < excess {
        let limit = signed(BATCH.min(excess - evicted));
        let rows = match scopes {
            Some(scopes) => connection.query(owned, &[&limit, scopes]).await?,
            None => connection.query(&all, &[&limit]).await?,
        };
        let tids = rows.iter().map(|row| row.try_get("tid")).collect::<Result<Vec<Uuid>, _>>()?;
        let deleted = delete_tasks(connection, &tids, "t.state IN (3, 4, 5, 7) AND t.runner IS NULL", &[]).await?;
        evicted += deleted;
        let limit = if scopes.is_some() { "tasks_per_owner" } else { "tasks" };
        metric::STORE_EVICTED.add(None, &[limit], u64::try_from(deleted).unwrap_or(0));
        if deleted == 0 {
            break;
        }
    }
    Ok(evicted)
}
