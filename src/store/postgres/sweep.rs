//! Retention sweeps. Each step follows a partial index that contains only candidates, and deletes a small batch per statement, so that
//! commits do not wait. A task with a runner is skipped.

use uuid::Uuid;

use super::{
    InUse, Millis, Postgres, Retention, SweepResult, TaskKey,
    connection::{Connection, Failure, Parameter, Parameters},
    read,
    values::{key, signed},
};
use crate::store::{TurnRecord, log_rows::split_task, turn_record::MAX_TURNS};

/// Maximum number of tasks per statement.
const TASK_BATCH: usize = 64;

/// Maximum number of idempotency keys per statement.
const ROW_BATCH: i64 = 1024;

/// Time for which ids of abandoned new tasks, rejected mail and dead replicas are kept.
const KEPT_FOR: &str = "interval '1 hour'";

/// Condition for tasks `t` in a terminal state since before `$1`, without push notifications that became due at `$2` or later and are
/// still to be delivered.
const EXPIRED: &str = r#"t.state IN (3, 4, 5, 7) AND t."time" < $1 AND t.runner IS NULL AND (t.pushes = 0 OR NOT EXISTS (
    SELECT 1 FROM @push p WHERE p.tid = t.tid AND p.due IS NOT NULL AND p.pending >= $2))"#;

/// Condition for tasks without dead letters from `$1` or later.
const NO_NEW_DEAD_LETTER: &str =
    "t.pushes > 0 AND NOT EXISTS (SELECT 1 FROM @push d WHERE d.tid = t.tid AND d.dead >= $1)";

/// Step of a sweep.
#[derive(Clone, Copy)]
enum Step {
    Tasks,
    Logs,
    Pushes,
}

/// Bounds of the data that can be deleted.
#[derive(Clone, Copy)]
struct Expiry {
    /// Tasks in a terminal state since before this time.
    before: Millis,
    /// Tasks are kept while push notifications that became due at this time or later are still to be delivered.
    kept_since: Millis,
}

impl Postgres {
    pub(super) async fn delete_expired(
        &self,
        policy: &Retention,
        now: Millis,
        in_use: InUse<'_>,
    ) -> Result<SweepResult, Failure> {
        let kept_since = Retention::cutoff(policy.undelivered, now).unwrap_or(Millis::MIN);
        let mut result = SweepResult::default();
        for (step, condition, retention, count) in [
            (Step::Tasks, "true", policy.finished, &mut result.tasks),
            (Step::Logs, "NOT t.folded", policy.logs, &mut result.logs),
            (Step::Pushes, NO_NEW_DEAD_LETTER, policy.push, &mut result.push_configs),
        ] {
            if let Some(before) = Retention::cutoff(retention, now) {
                *count = self.sweep_tasks((step, condition), Expiry { before, kept_since }, in_use).await?;
            }
        }
        if let Some(before) = Retention::cutoff(policy.idempotency_keys, now) {
            let sql = r#"DELETE FROM @send WHERE (scope, key) IN (
                SELECT scope, key FROM @send WHERE "time" < $1 ORDER BY "time" LIMIT $2) RETURNING 1"#;
            loop {
                let deleted = signed(self.background.query(sql, &[&before, &ROW_BATCH]).await?.len());
                result.idempotency_keys += u64::try_from(deleted).unwrap_or(0);
                if deleted < ROW_BATCH {
                    break;
                }
            }
        }
        let sql = format!(
            r#"WITH i AS (DELETE FROM @inbox WHERE error IS NOT NULL AND at < clock_timestamp() - {KEPT_FOR}),
            r AS (DELETE FROM @replica r WHERE dead AND seen < clock_timestamp() - {KEPT_FOR}
                AND NOT EXISTS (SELECT 1 FROM @task t WHERE t.runner = r.id))
            DELETE FROM @task WHERE state = -1 AND "time" < (extract(epoch FROM clock_timestamp() - {KEPT_FOR}) * 1000)::int8"#
        );
        self.background.query(&sql, &[]).await?;
        Ok(result)
    }

    /// Applies a step to all candidates with a further condition that are not in use, in batches. Returns the sum of its counts.
    async fn sweep_tasks(
        &self,
        (step, condition): (Step, &str),
        expiry: Expiry,
        in_use: InUse<'_>,
    ) -> Result<u64, Failure> {
        let sql = format!(
            r#"SELECT t.tid, t.owner, t.tenant, t.id, t."time" FROM @task t
            WHERE {EXPIRED} AND {condition} AND (t."time", t.tid) > ($3, $4) ORDER BY t."time", t.tid LIMIT $5"#
        );
        let (mut count, mut after) = (0, (Millis::MIN, Uuid::nil()));
        loop {
            let Expiry { before, kept_since } = expiry;
            let parameters: [&dyn Parameter; 5] = [&before, &kept_since, &after.0, &after.1, &signed(TASK_BATCH)];
            let rows = self.background.query(&sql, &parameters).await?;
            let Some(last) = rows.last() else { return Ok(count) };
            after = (last.try_get("time")?, last.try_get("tid")?);
            let mut expired = Vec::new();
            for row in &rows {
                let (tid, key): (Uuid, TaskKey) = (row.try_get("tid")?, key(row)?);
                if !in_use(&key) {
                    expired.push((tid, key));
                }
            }
            count += match step {
                Step::Tasks => {
                    let tids: Vec<Uuid> = expired.iter().map(|(tid, _)| *tid).collect();
                    let bounds: [&dyn Parameter; 2] = [&before, &kept_since];
                    u64::try_from(delete_tasks(&self.background, &tids, EXPIRED, &bounds).await?).unwrap_or(0)
                }
                Step::Logs => self.delete_logs(&expired, expiry).await?,
                Step::Pushes => self.delete_push_configs(&expired, expiry).await?,
            };
            if rows.len() < TASK_BATCH {
                return Ok(count);
            }
        }
    }

    /// Deletes logs. The checkpoint then is the whole task, and the row has the newest records of turns.
    async fn delete_logs(&self, expired: &[(Uuid, TaskKey)], expiry: Expiry) -> Result<u64, Failure> {
        let mut count = 0;
        for (tid, key) in expired {
            let contents = async {
                let task = read::task(&self.background, *tid).await?;
                Ok((task, read::turns(&self.background, *tid).await?))
            };
            let (task, turns) = match contents.await {
                Ok((Some(task), turns)) => (task, turns),
                Ok((None, _)) => continue,
                Err(Failure::Damaged(problem)) => {
                    tracing::warn!(task.id = key.id(), error.cause = problem, "damaged log not deleted");
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let [head, artifacts] = split_task(&task);
            let newest: Vec<_> =
                turns[turns.len().saturating_sub(MAX_TURNS)..].iter().map(|turn| (turn, false)).collect();
            let turn = (!newest.is_empty()).then(|| TurnRecord::encode(key.id(), &newest));
            // A task in a terminal state does not change.
            let sql = format!(
                "WITH t AS (
                    UPDATE @task t SET folded = true, whole = NULL, bytes = octet_length($4::bytea) + octet_length($5::bytea),
                        turn = coalesce($6::bytea, t.turn)
                    WHERE t.tid = $3 AND NOT t.folded AND {EXPIRED} RETURNING t.tid, t.seq
                ),
                l AS (DELETE FROM @log l USING t WHERE l.tid = t.tid),
                c AS (
                    INSERT INTO @checkpoint(tid, seq, head, artifacts) SELECT tid, seq, $4, $5 FROM t
                    ON CONFLICT (tid) DO UPDATE SET seq = excluded.seq, head = excluded.head, artifacts = excluded.artifacts
                )
                SELECT tid FROM t"
            );
            let parameters: [&dyn Parameter; 6] = [&expiry.before, &expiry.kept_since, tid, &head, &artifacts, &turn];
            count += u64::from(self.background.query_row(&sql, &parameters).await?.is_some());
        }
        Ok(count)
    }

    async fn delete_push_configs(&self, expired: &[(Uuid, TaskKey)], expiry: Expiry) -> Result<u64, Failure> {
        let tids: Vec<Uuid> = expired.iter().map(|(tid, _)| *tid).collect();
        let sql = format!(
            "WITH t AS (
                UPDATE @task t SET pushes = 0 WHERE t.tid = ANY($3) AND {EXPIRED} AND {NO_NEW_DEAD_LETTER} RETURNING t.tid
            ),
            p AS (DELETE FROM @push d USING t WHERE d.tid = t.tid RETURNING d.tid)
            SELECT tid FROM p"
        );
        let deleted = self.background.query(&sql, &[&expiry.before, &expiry.kept_since, &tids]).await?;
        Ok(u64::try_from(deleted.len()).unwrap_or(0))
    }
}

/// Deletes tasks `t` that meet a condition, with everything that belongs to them. Returns how many.
pub(super) async fn delete_tasks(
    connection: &Connection,
    tids: &[Uuid],
    condition: &str,
    parameters: Parameters<'_>,
) -> Result<usize, Failure> {
    let details = ["log", "checkpoint", "send", "inbox", "push"];
    let details = details.map(|table| format!("{table} AS (DELETE FROM @{table} d USING t WHERE d.tid = t.tid)"));
    let sql = format!(
        "WITH t AS (DELETE FROM @task t WHERE t.tid = ANY(${}) AND {condition} RETURNING t.tid), {} SELECT tid FROM t",
        parameters.len() + 1,
        details.join(", ")
    );
    let mut parameters: Vec<&dyn Parameter> = parameters.to_vec();
    parameters.push(&tids);
    Ok(connection.query(&sql, &parameters).await?.len())
}
