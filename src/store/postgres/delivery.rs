//! Push configurations, and the delivery queue of push notifications. The state of a delivery is in the row of its configuration.
//!
//! A commit marks the deliveries of its task. An outcome that leaves nothing to deliver therefore locks the task: the commit of an
//! event waits for it, or it sees the event.

use std::sync::Arc;

use async_trait::async_trait;
use prost::Message as _;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    Full, Millis, Postgres, PushConfig, Scope, TaskKey, Unavailable,
    connection::{Connection, Failure, Parameter},
    values::{comparable, is_unstorable, key, signed, signed_int, task_row, unsigned, unsigned_int},
};
use crate::{
    protocol::{pb::v1::TaskPushNotificationConfig, version::Version},
    store::{
        Attempt, DeadLetter, Delivery, DeliveryClaim, DeliveryCounts, DeliveryOutcome, DeliveryPage, DeliveryState,
        DeliveryToken, EVENTS_PER_CLAIM, Lease, PushPage, PushQueue, PushTaskPage, PutResult, delivery::Effect,
        page::cut_page,
    },
};

/// Number of repetitions of a change that another transaction interferes with.
const MAX_RACES: usize = 20;

/// Columns of a configuration `p` with its task `t` that [`delivery`] decodes.
const COLUMNS: &str =
    "t.owner, t.tenant, t.id, t.seq, p.version, p.config, p.extra, p.number, p.cursor, p.last, p.due, p.attempts,
    p.pending, p.runner, p.claim, p.dead, p.reason, p.tried, p.status, p.error";

/// Condition for configurations `p` whose task `t` may still get events for them.
const MAY_GET_EVENTS: &str = "p.dead IS NULL AND (p.due IS NOT NULL OR t.state NOT IN (3, 4, 5, 7))";

/// Decodes the columns `version`, `config` and `extra`.
pub(super) fn config(row: &Row) -> Result<Arc<PushConfig>, Failure> {
    let version =
        Version::from_text(row.try_get("version")?).ok_or_else(|| Failure::damaged("unknown protocol version"))?;
    let config = TaskPushNotificationConfig::decode(row.try_get::<_, &[u8]>("config")?);
    let config = config.map_err(|_| Failure::damaged("a push configuration can't be decoded"))?;
    Ok(Arc::new(PushConfig { config, version, extra: row.try_get::<_, Vec<u8>>("extra")?.into() }))
}

/// Decodes [`COLUMNS`].
fn delivery(row: &Row) -> Result<Delivery, Failure> {
    let text = |column| Ok::<_, Failure>(row.try_get::<_, Option<&str>>(column)?.map(Box::from));
    let time = |column| row.try_get::<_, Option<Millis>>(column);
    let (reason, error) = (text("reason")?.unwrap_or_default(), text("error")?);
    let status = row.try_get::<_, Option<i32>>("status")?.and_then(|status| status.try_into().ok());
    let state = DeliveryState {
        cursor: unsigned(row, "cursor")?,
        end: row.try_get::<_, Option<i64>>("last")?.and_then(|last| last.try_into().ok()),
        due: time("due")?,
        attempts: unsigned_int(row, "attempts")?,
        pending_since: time("pending")?,
        runner: text("runner")?,
        claim: unsigned(row, "claim")?,
        dead: time("dead")?.map(|time| DeadLetter { time, reason }),
        last: time("tried")?.map(|time| Attempt { time, status, error }),
    };
    Ok(Delivery { key: key(row)?, config: config(row)?, seq: unsigned(row, "seq")?, state })
}

/// Removes what can't be stored from a text for operators.
fn storable(text: &str) -> String {
    text.replace('\0', "")
}

/// Marks the deliveries of tasks. Returns how many became due.
pub(super) async fn mark_due(connection: &Connection, keys: &[TaskKey], now: Millis) -> Result<usize, Failure> {
    let tids: Vec<Uuid> = keys.iter().map(task_row).collect();
    let sql = "UPDATE @push p SET due = $2, pending = coalesce(p.pending, $2) FROM @task t
        WHERE t.tid = ANY($1) AND p.tid = t.tid AND p.due IS NULL AND p.dead IS NULL AND p.cursor < t.seq RETURNING p.id";
    Ok(connection.query(sql, &[&tids, &now]).await?.len())
}

impl Postgres {
    /// Returns whether a task exists.
    async fn exists(&self, key: &TaskKey) -> Result<bool, Failure> {
        let sql = "SELECT 1 FROM @task WHERE tid = $1 AND state >= 0";
        Ok(self.control.query_row(sql, &[&task_row(key)]).await?.is_some())
    }

    /// Changes the state of a delivery, or its configuration. `change` may run several times. Returns its last result, or `None` if there
    /// is no such delivery.
    async fn change_delivery(
        &self,
        key: &TaskKey,
        id: &str,
        mut change: impl FnMut(&mut Delivery) -> Effect + Send,
    ) -> Result<Option<Effect>, Failure> {
        let (tid, id) = (task_row(key), comparable(id));
        let read = format!(
            "SELECT {COLUMNS}, p.xmin::text AS revision FROM @push p JOIN @task t ON t.tid = p.tid WHERE p.tid = $1 AND p.id = $2"
        );
        for _ in 0..MAX_RACES {
            let Some(row) = self.control.query_row(&read, &[&tid, &id]).await? else { return Ok(None) };
            let revision: &str = row.try_get("revision")?;
            let mut delivery = delivery(&row)?;
            let changed = change(&mut delivery);
            let written = match changed {
                Effect::Stale => return Ok(Some(changed)),
                Effect::Deleted => {
                    let sql = "DELETE FROM @push WHERE tid = $1 AND id = $2 AND xmin::text = $3 RETURNING id";
                    self.control.query_row(sql, &[&tid, &id, &revision]).await
                }
                Effect::Recorded => self.write_delivery((tid, id, revision), &delivery).await,
            };
            match written {
                Ok(Some(_)) => return Ok(Some(changed)),
                Ok(None) => {}
                Err(failure) if failure.is_conflict() => {}
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::NotConnected("a delivery changes too often".into()))
    }

    /// Writes a delivery, unless it or the position of its task has changed.
    async fn write_delivery(
        &self,
        (tid, id, revision): (Uuid, Option<&str>, &str),
        Delivery { config, seq, state, .. }: &Delivery,
    ) -> Result<Option<Row>, Failure> {
        let DeliveryState { cursor, end, due, attempts, pending_since: pending, runner, claim, dead, last } = state;
        let (died, reason) = dead.as_ref().map(|dead| (dead.time, storable(&dead.reason))).unzip();
        let (tried, status) = last.as_ref().map(|last| (last.time, last.status.map(i32::from))).unzip();
        let error = last.as_ref().and_then(|last| last.error.as_deref().map(storable));
        let (cursor, end, claim, seq) = (signed(*cursor), end.map(signed), signed(*claim), signed(*seq));
        let (attempts, runner, status) = (signed_int(*attempts), runner.as_deref().map(storable), status.flatten());
        let (version, encoded, extra) = (config.version.as_str(), config.config.encode_to_vec(), &*config.extra);
        let sql = "WITH t AS MATERIALIZED (SELECT tid, seq FROM @task WHERE tid = $1 FOR SHARE)
            UPDATE @push p SET cursor = $4, last = $5, due = $6, attempts = $7, pending = $8, runner = $9, claim = $10, dead = $11,
                reason = $12, tried = $13, status = $14, error = $15, version = $16, config = $17, extra = $18
            FROM t WHERE p.tid = t.tid AND p.id = $2 AND p.xmin::text = $3 AND t.seq = $19 RETURNING p.id";
        let parameters: [&dyn Parameter; 19] = [
            &tid, &id, &revision, &cursor, &end, due, &attempts, pending, &runner, &claim, &died, &reason, &tried,
            &status, &error, &version, &encoded, &extra, &seq,
        ];
        self.control.query_row(sql, &parameters).await
    }

    /// Adds a configuration, which gets the events after the last one of the task.
    async fn add_push(&self, key: &TaskKey, push: &PushConfig, max: usize) -> Result<Option<PutResult>, Unavailable> {
        let PushConfig { config, version, extra } = push;
        let sql = "SELECT count(*) AS configs FROM @push WHERE tid = $1";
        let count =
            self.control.query_row(sql, &[&task_row(key)]).await?.map(|row| unsigned(&row, "configs")).transpose()?;
        let refused = if usize::try_from(count.unwrap_or(0)).is_ok_and(|count| count >= max) {
            Some(PutResult::Full)
        } else {
            self.check_push_capacity(key.scope()).await?.err().map(PutResult::OwnerFull)
        };
        if let Some(refused) = refused {
            return Ok(Some(if self.exists(key).await? { refused } else { PutResult::TaskNotFound }));
        }
        let sql = "WITH t AS (
                UPDATE @task SET pushes = pushes + 1 WHERE tid = $1 AND state >= 0 RETURNING tid, scope, owner, seq
            )
            INSERT INTO @push(tid, id, scope, owner, version, config, extra, cursor)
            SELECT tid, $2::text, scope, owner, $3::text, $4::bytea, $5::bytea, seq FROM t RETURNING id";
        let (version, encoded, extra) = (version.as_str(), config.encode_to_vec(), &**extra);
        match self.control.query_row(sql, &[&task_row(key), &config.id, &version, &encoded, &extra]).await {
            Ok(Some(_)) => Ok(Some(PutResult::Created)),
            Ok(None) => Ok(Some(PutResult::TaskNotFound)),
            // It was added at the same time.
            Err(failure) if failure.is_caused_by_values() => Ok(None),
            Err(failure) => Err(failure.into()),
        }
    }

    async fn page_of(
        &self,
        condition: &str,
        parameters: &[&dyn Parameter],
    ) -> Result<Vec<(DeliveryToken, Delivery)>, Failure> {
        let sql = format!("SELECT {COLUMNS} FROM @push p JOIN @task t ON t.tid = p.tid WHERE {condition}");
        let rows = self.background.query(&sql, parameters).await?;
        rows.iter().map(|row| Ok((DeliveryToken(unsigned(row, "number")?, 0), delivery(row)?))).collect()
    }
}

/// Reads the only column of a row, a number that may be missing.
fn number(row: Option<Row>, column: &str) -> Result<Option<i64>, Failure> {
    Ok(row.map(|row| row.try_get(column)).transpose()?.flatten())
}

#[async_trait]
impl PushQueue for Postgres {
    fn marks_in_commit(&self) -> bool {
        true
    }

    async fn put_push(&self, key: &TaskKey, push: Arc<PushConfig>, max: usize) -> Result<PutResult, Unavailable> {
        let id = &push.config.id;
        if is_unstorable(id) {
            return Err(Unavailable("the id of the push configuration has U+0000".into()));
        }
        for _ in 0..MAX_RACES {
            let replaced = self.change_delivery(key, id, |delivery| {
                delivery.config = Arc::clone(&push);
                delivery.state.replace();
                Effect::Recorded
            });
            if replaced.await?.is_some() {
                return Ok(PutResult::Replaced);
            }
            if let Some(result) = self.add_push(key, &push, max).await? {
                return Ok(result);
            }
        }
        Err(Unavailable("a push configuration changes too often".into()))
    }

    async fn check_push_capacity(&self, scope: &Scope) -> Result<Result<(), Full>, Unavailable> {
        let max = self.max_push_configs_per_owner;
        let sql = "SELECT count(*) AS configs FROM (SELECT 1 FROM @push WHERE owner = $1 LIMIT $2) configs";
        let row = self.control.query_row(sql, &[&comparable(&scope.owner), &signed(max)]).await?;
        let count = row.map(|row| unsigned(&row, "configs")).transpose()?.unwrap_or(0);
        let is_full = usize::try_from(count).is_ok_and(|count| count >= max);
        Ok(if is_full { Err(Full::push_configs_per_owner(max)) } else { Ok(()) })
    }

    async fn get_push(&self, key: &TaskKey, id: &str) -> Result<Option<Arc<PushConfig>>, Unavailable> {
        let sql = "SELECT version, config, extra FROM @push WHERE tid = $1 AND id = $2";
        let row = self.reader().query_row(sql, &[&task_row(key), &comparable(id)]).await?;
        Ok(row.map(|row| config(&row)).transpose()?)
    }

    async fn list_push(&self, key: &TaskKey, after: u64, limit: usize) -> Result<Option<PushPage>, Unavailable> {
        // One row more than the limit shows whether there is a next page. The row without a configuration shows that the task exists.
        let sql = "SELECT p.number, p.version, p.config, p.extra FROM @task t LEFT JOIN LATERAL (
                SELECT * FROM @push WHERE tid = t.tid AND number > $2 ORDER BY number LIMIT $3
            ) p ON true WHERE t.tid = $1 AND t.state >= 0 ORDER BY p.number";
        let rows =
            self.reader().query(sql, &[&task_row(key), &signed(after), &signed(limit.saturating_add(1))]).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        let configs = rows.iter().filter(|row| matches!(row.try_get::<_, Option<i64>>("number"), Ok(Some(_))));
        let configs =
            configs.map(|row| Ok((unsigned(row, "number")?, config(row)?))).collect::<Result<_, Failure>>()?;
        let (configs, next) = cut_page(configs, limit);
        Ok(Some(PushPage { configs, next }))
    }

    async fn delete_push(&self, key: &TaskKey, id: &str) -> Result<bool, Unavailable> {
        let sql = "DELETE FROM @push WHERE tid = $1 AND id = $2";
        self.control.query(sql, &[&task_row(key), &comparable(id)]).await?;
        Ok(self.exists(key).await?)
    }

    async fn mark_due(&self, keys: &[TaskKey], now: Millis) -> Result<usize, Unavailable> {
        Ok(mark_due(&self.control, keys, now).await?)
    }

    async fn mark_all_due(&self, now: Millis, after: DeliveryToken, limit: usize) -> Result<PushTaskPage, Unavailable> {
        // The token is the id of a row.
        let after = Uuid::from_u64_pair(after.0, after.1);
        let sql = format!(
            "SELECT t.tid, t.owner, t.tenant, t.id, (SELECT bool_or({MAY_GET_EVENTS}) FROM @push p WHERE p.tid = t.tid) AS is_open
            FROM (SELECT DISTINCT tid FROM @push WHERE tid > $1 ORDER BY tid LIMIT $2) page JOIN @task t ON t.tid = page.tid
            ORDER BY t.tid"
        );
        let (limit, mut page) = (limit.clamp(1, 256), PushTaskPage::default());
        let mark = "UPDATE @push p SET due = $2, pending = coalesce(p.pending, $2) FROM @task t
            WHERE p.tid IN (SELECT DISTINCT tid FROM @push WHERE tid > $1 ORDER BY tid LIMIT $3) AND t.tid = p.tid
            AND p.due IS NULL AND p.dead IS NULL AND p.cursor < t.seq";
        self.control.query(mark, &[&after, &now, &signed(limit)]).await?;
        let rows = self.control.query(&sql, &[&after, &signed(limit)]).await?;
        for row in &rows {
            if row.try_get::<_, Option<bool>>("is_open")? == Some(true) {
                page.keys.push(key(row)?);
            }
        }
        let last = rows.last().filter(|_| rows.len() == limit).map(|row| row.try_get::<_, Uuid>("tid"));
        page.next = last.transpose()?.map(|tid| {
            let (high, low) = tid.as_u64_pair();
            DeliveryToken(high, low)
        });
        Ok(page)
    }

    async fn next_due(&self) -> Result<Option<Millis>, Unavailable> {
        let sql = "SELECT due FROM @push WHERE due IS NOT NULL ORDER BY due LIMIT 1";
        Ok(number(self.control.query_row(sql, &[]).await?, "due")?)
    }

    async fn oldest_pending(&self) -> Result<Option<Millis>, Unavailable> {
        let sql = "SELECT min(pending) AS pending FROM @push WHERE due IS NOT NULL";
        Ok(number(self.background.query_row(sql, &[]).await?, "pending")?)
    }

    async fn claim_due(&self, lease: &Lease, limit: usize) -> Result<Vec<DeliveryClaim>, Unavailable> {
        let sql = format!(
            "WITH d AS (
                SELECT tid, id, due AS since FROM @push WHERE due <= $2 ORDER BY due, number LIMIT $4 FOR UPDATE SKIP LOCKED
            )
            UPDATE @push p SET runner = $1, due = $3, claim = nextval('@push_claim'),
                last = CASE WHEN p.last > p.cursor THEN p.last ELSE least(t.seq, p.cursor + {EVENTS_PER_CLAIM}) END
            FROM d JOIN @task t ON t.tid = d.tid WHERE p.tid = d.tid AND p.id = d.id RETURNING {COLUMNS}, t.asked, d.since"
        );
        let parameters: [&dyn Parameter; 4] = [&storable(&lease.runner), &lease.now, &lease.until, &signed(limit)];
        let rows = self.reader().query(&sql, &parameters).await?;
        let mut claims = Vec::new();
        for row in &rows {
            let Delivery { key, config, state, .. } = delivery(row)?;
            let turn_contexts: Option<Vec<u8>> = row.try_get("asked")?;
            let (end, pending_since) = (state.end.unwrap_or(state.cursor), state.pending_since.unwrap_or(lease.now));
            let DeliveryState { cursor, attempts, claim, .. } = state;
            let turn_contexts = turn_contexts.map(Into::into);
            let since: Millis = row.try_get("since")?;
            let claimed = DeliveryClaim { key, config, cursor, end, attempts, pending_since, turn_contexts, claim };
            claims.push(((since, unsigned(row, "number")?), claimed));
        }
        claims.sort_by_key(|(order, _)| *order);
        Ok(claims.into_iter().map(|(_, claim)| claim).collect())
    }

    async fn end_claim(&self, claim: &DeliveryClaim, outcome: DeliveryOutcome) -> Result<bool, Unavailable> {
        let DeliveryClaim { key, config, claim, .. } = claim;
        let changed = self.change_delivery(key, &config.config.id, |delivery| {
            let is_replaced = delivery.config != *config;
            delivery.state.end_claim(*claim, is_replaced, delivery.seq, &outcome)
        });
        let is_recorded = changed.await?.is_some_and(|effect| effect != Effect::Stale);
        if let Some(max) = outcome.max_dead() {
            let sql = "DELETE FROM @push WHERE (tid, id) IN (
                SELECT tid, id FROM @push WHERE dead IS NOT NULL ORDER BY dead DESC, number DESC OFFSET $1)";
            self.control.query(sql, &[&signed(max)]).await?;
        }
        Ok(is_recorded)
    }

    async fn release_deliveries(&self, runner: &str, now: Millis) -> Result<usize, Unavailable> {
        let sql = "UPDATE @push SET runner = NULL, due = $2 WHERE due IS NOT NULL AND runner = $1 RETURNING id";
        Ok(self.control.query(sql, &[&storable(runner), &now]).await?.len())
    }

    async fn undelivered_tasks(&self, keys: &[TaskKey]) -> Result<Vec<TaskKey>, Unavailable> {
        let tids: Vec<Uuid> = keys.iter().map(task_row).collect();
        let sql = format!(
            "SELECT DISTINCT t.tid FROM @task t JOIN @push p ON p.tid = t.tid WHERE t.tid = ANY($1) AND {MAY_GET_EVENTS}"
        );
        let rows = self.reader().query(&sql, &[&tids]).await?;
        let open = rows.iter().map(|row| row.try_get("tid")).collect::<Result<Vec<Uuid>, _>>()?;
        Ok(keys.iter().zip(tids).filter(|(_, tid)| open.contains(tid)).map(|(key, _)| key.clone()).collect())
    }

    async fn deliveries(
        &self,
        dead_only: bool,
        after: DeliveryToken,
        limit: usize,
    ) -> Result<DeliveryPage, Unavailable> {
        let condition = if dead_only { "p.number > $1 AND p.dead IS NOT NULL" } else { "p.number > $1" };
        let condition = format!("{condition} ORDER BY p.number LIMIT $2");
        // One row more than the limit shows whether there is a next page.
        let rows = self.page_of(&condition, &[&signed(after.0), &signed(limit.saturating_add(1))]).await?;
        let (deliveries, next) = cut_page(rows, limit);
        Ok(DeliveryPage { deliveries, next })
    }

    async fn task_deliveries(&self, key: &TaskKey) -> Result<Vec<Delivery>, Unavailable> {
        let rows = self.page_of("p.tid = $1 ORDER BY p.number", &[&task_row(key)]).await?;
        Ok(rows.into_iter().map(|(_, delivery)| delivery).collect())
    }

    async fn delivery_counts(&self) -> Result<DeliveryCounts, Unavailable> {
        // Each from its index.
        let sql = "SELECT (SELECT count(*) FROM @push WHERE due IS NOT NULL) AS due,
            (SELECT count(*) FROM @push WHERE dead IS NOT NULL) AS dead";
        let row = self.background.query_row(sql, &[]).await?;
        let counts = row
            .map(|row| Ok::<_, Failure>(DeliveryCounts { due: unsigned(&row, "due")?, dead: unsigned(&row, "dead")? }));
        Ok(counts.transpose()?.unwrap_or_default())
    }

    async fn retry_delivery(&self, key: &TaskKey, id: &str, now: Millis) -> Result<bool, Unavailable> {
        let changed = self.change_delivery(key, id, |delivery| {
            if delivery.state.retry(delivery.seq, now) { Effect::Recorded } else { Effect::Stale }
        });
        Ok(changed.await? == Some(Effect::Recorded))
    }
}
