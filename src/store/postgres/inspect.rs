//! Reads of operators: tasks of all owners, their logs, and counts. They have a connection of their own, because they may take long.

use async_trait::async_trait;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    Event, Inspect, Postgres, Seq, TaskState, Unavailable,
    connection::{Connection, Failure, Parameter},
    delivery, read,
    values::{comparable, row_range, signed, unsigned, unsigned_int},
};
use crate::store::{
    Counts, InspectedTask, LoggedEvent, MAX_OWNERS, Millis, READ_BYTES, TaskFilter, TaskPage, TaskSummary,
    inspect::status_text,
    turn_record::{error_id, error_key, time_of},
};

/// Columns of a task `t` that [`summary`] decodes.
const COLUMNS: &str = r#"t.tid, t.number, t.owner, t.tenant, t.id, t.context, t.state, t."time", t.seq, t.folded, t.bytes
    + CASE WHEN t.folded THEN 0 ELSE coalesce((SELECT octet_length(c.head) + octet_length(c.artifacts) FROM @checkpoint c
        WHERE c.tid = t.tid), 0) END AS bytes, t.attempt, substr(t.turn, 1, 17) AS error,
    (SELECT count(*) FROM @push p WHERE p.tid = t.tid) AS push_configs"#;

/// Decodes [`COLUMNS`], and reads the text of the status.
async fn summary(connection: &Connection, row: &Row) -> Result<TaskSummary, Failure> {
    let (tid, seq, folded): (Uuid, _, bool) = (row.try_get("tid")?, unsigned(row, "seq")?, row.try_get("folded")?);
    let text = |column| row.try_get::<_, String>(column);
    // Not the whole log.
    let status = if folded {
        let (mut tasks, _) = read::tasks(connection, &[tid], false).await?;
        tasks.remove(&tid).transpose().map(|task| task.and_then(|task| task.status))
    } else {
        let last = read::events(connection, tid, seq.saturating_sub(1), 1, usize::MAX).await;
        last.map(|last| last.first().and_then(|event| event.payload()?.status().cloned()))
    };
    let status_text = match status {
        Err(Failure::Damaged(_)) => None,
        status => status_text(status?.as_ref()),
    };
    let id = text("id")?;
    Ok(TaskSummary {
        number: unsigned(row, "number")?,
        created: time_of(&id),
        id,
        owner: text("owner")?,
        tenant: text("tenant")?,
        context: text("context")?,
        state: TaskState::try_from(i32::from(row.try_get::<_, i16>("state")?)).unwrap_or_default(),
        time: row.try_get("time")?,
        attempt: unsigned_int(row, "attempt")?,
        error_id: row.try_get::<_, Option<&[u8]>>("error")?.and_then(error_id),
        status_text,
        push_configs: unsigned(row, "push_configs")?,
        events: seq,
        has_log: !folded,
        bytes: unsigned(row, "bytes")?,
    })
}

/// Returns the tasks that meet a condition, the latest created first, and their rows.
async fn summaries(
    connection: &Connection,
    condition: &str,
    parameters: &[&dyn Parameter],
) -> Result<Vec<(Uuid, TaskSummary)>, Failure> {
    let sql = format!("SELECT {COLUMNS} FROM @task t WHERE t.state >= 0 AND {condition}");
    let mut tasks = Vec::new();
    for row in connection.query(&sql, parameters).await? {
        tasks.push((row.try_get("tid")?, summary(connection, &row).await?));
    }
    Ok(tasks)
}

#[async_trait]
impl Inspect for Postgres {
    async fn tasks(&self, filter: &TaskFilter, limit: usize) -> Result<TaskPage, Unavailable> {
        let TaskFilter { id, id_prefix, owner, tenant, context, states, error_id, before } = filter;
        let texts = [
            (id, "t.id = ${}"),
            (id_prefix, "starts_with(t.id, ${})"),
            (owner, "t.owner = ${}"),
            (tenant, "t.tenant = ${}"),
            (context, "t.context = ${}"),
        ]
        .map(|(text, condition)| (text.as_deref().map(comparable), condition));
        let before = before.map_or(i64::MAX, signed);
        let states: Vec<i16> = states.iter().map(|state| i16::try_from(i32::from(*state)).unwrap_or(-1)).collect();
        let error = error_id.as_deref().map(|id| error_key(id).unwrap_or_default().to_vec());
        let (range, limit_with_next) = (id.as_deref().map(row_range), signed(limit.saturating_add(1)));
        let mut parameters: Vec<&dyn Parameter> = vec![&before, &limit_with_next];
        let mut conditions = vec!["t.number < $1".to_owned()];
        // Only the conditions that apply, so that PostgreSQL finds the index for each.
        let mut add = |condition: &str, value| {
            parameters.push(value);
            conditions.push(condition.replace("{}", &parameters.len().to_string()));
        };
        for (text, condition) in &texts {
            if let Some(text) = text {
                add(condition, text);
            }
        }
        if let Some((first, last)) = &range {
            add("t.tid >= ${}", first);
            add("t.tid <= ${}", last);
        }
        if !states.is_empty() {
            add("t.state = ANY(${})", &states);
        }
        if let Some(error) = &error {
            add("substr(t.turn, 1, 1) = '\\x01' AND substr(t.turn, 2, 16) = ${}", error);
        }
        let condition = format!("{} ORDER BY t.number DESC LIMIT $2", conditions.join(" AND "));
        let tasks = summaries(&self.background, &condition, &parameters).await?;
        Ok(TaskPage::new(tasks.into_iter().map(|(_, task)| task).collect(), limit))
    }

    async fn task(&self, number: u64) -> Result<Option<InspectedTask>, Unavailable> {
        let found = summaries(&self.background, "t.number = $1", &[&signed(number)]).await?.pop();
        let Some((tid, summary)) = found else { return Ok(None) };
        let Some(task) = read::task(&self.background, tid).await? else { return Ok(None) };
        let sql = "SELECT version, config, extra FROM @push WHERE tid = $1 ORDER BY number";
        let rows = self.background.query(sql, &[&tid]).await?;
        let push_configs = rows.iter().map(delivery::config).collect::<Result<_, _>>()?;
        Ok(Some(InspectedTask { summary, task, push_configs, turns: read::turns(&self.background, tid).await? }))
    }

    async fn events(&self, number: u64, after: Seq, limit: usize) -> Result<Vec<LoggedEvent>, Unavailable> {
        let sql = r#"SELECT tid, CASE WHEN whole IS NOT NULL THEN "time" END AS ended FROM @task
            WHERE number = $1 AND NOT folded AND state >= 0"#;
        let Some(row) = self.background.query_row(sql, &[&signed(number)]).await? else { return Ok(Vec::new()) };
        let (tid, ended): (Uuid, Option<Millis>) = (row.try_get("tid")?, row.try_get("ended")?);
        let events = read::events(&self.background, tid, after, limit, READ_BYTES).await?;
        let last = events.last().map_or(after, Event::seq);
        // The first row that ends at or after an event is that of its commit.
        let sql = "SELECT last, first, at FROM @log WHERE tid = $1 AND last > $2 AND first <= $3 ORDER BY last";
        let rows = self.background.query(sql, &[&tid, &signed(after), &signed(last)]).await?;
        let mut commits = Vec::with_capacity(rows.len());
        for row in rows {
            commits.push((unsigned(&row, "last")?, unsigned(&row, "first")?, row.try_get::<_, Millis>("at")?));
        }
        let mut commits = commits.into_iter().peekable();
        let logged = events.into_iter().map(|event| {
            while commits.next_if(|(last, ..)| *last < event.seq()).is_some() {}
            let (commit, time) = commits.peek().map(|(_, first, at)| (*first, *at)).unzip();
            LoggedEvent { event, time: ended.or(time), commit: commit.or(ended.and(Some(0))) }
        });
        Ok(logged.collect())
    }

    async fn counts(&self) -> Result<Counts, Unavailable> {
        let sql = "SELECT state, count(*) AS tasks FROM @task WHERE state >= 0 GROUP BY state ORDER BY state";
        let mut tasks = Vec::new();
        for row in self.background.query(sql, &[]).await? {
            let state = TaskState::try_from(i32::from(row.try_get::<_, i16>("state")?)).unwrap_or_default();
            tasks.push((state, unsigned(&row, "tasks")?));
        }
        let sql = "SELECT owner, tenant, count(*) AS tasks FROM @task WHERE state >= 0 GROUP BY owner, tenant
            ORDER BY 3 DESC, 1, 2 LIMIT $1";
        let mut owners = Vec::new();
        for row in self.background.query(sql, &[&signed(MAX_OWNERS)]).await? {
            let text = |column| row.try_get::<_, String>(column).map_err(Failure::from);
            owners.push((text("owner")?, text("tenant")?, unsigned(&row, "tasks")?));
        }
        let sql = "SELECT (SELECT count(DISTINCT scope) FROM @task WHERE state >= 0) AS owners,
            (SELECT count(*) FROM @task WHERE state IN (3, 4, 5, 7) AND folded) AS without_log,
            (SELECT count(*) FROM @push) AS push_configs, (SELECT count(*) FROM @send) AS sends";
        let Some(row) = self.background.query_row(sql, &[]).await? else { return Ok(Counts::default()) };
        Ok(Counts {
            tasks,
            owners,
            owner_count: unsigned(&row, "owners")?,
            without_log: unsigned(&row, "without_log")?,
            push_configs: unsigned(&row, "push_configs")?,
            idempotency_keys: unsigned(&row, "sends")?,
        })
    }
}
