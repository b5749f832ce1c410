//! Operations of replicas: leases, ownership of tasks, mail, and the changes that followers read.

use std::{sync::LazyLock, time::Duration};

use async_trait::async_trait;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_postgres::Row;
use tonic::{Code, Status};
use uuid::Uuid;

use super::{
    Damaged, Event, Fence, Position, Postgres, TaskKey, Unavailable,
    commit::UNREAD,
    connection::{Connection, Failure, Parameter},
    read::{self, COLUMNS, LOG_SUMMARY, WITH_LOG, tail},
    values::{digest, is_unstorable, key, position, scope_row, signed, task_row, unsigned},
};
use crate::{
    base::clock::whole_millis,
    protocol::error::Error,
    store::{
        Acquired, Advance, Claim, Expect, Load, MAX_MAIL, Mail, MailKind, Note, Posted, READ_BYTES, Renewal, ReplicaId,
        ReplicaInfo, SharedStore,
    },
};

/// Greater than the fence of the task `t`, also if a failover has lost commits.
pub(super) const NEXT_FENCE: &str = "greatest(t.fence + 1, (extract(epoch FROM clock_timestamp()) * 1000)::int8)";

/// Makes the replica `me` the runner of the task `t`.
static TAKE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "UPDATE @task t SET runner = me.id, fence = {NEXT_FENCE}, attempt = t.attempt + (t.open AND t.attempt > 0)::int"
    )
});

/// Part of a renewal by the replica `$1`: a time in which none could renew its lease, such as that of an outage, does not count. It is
/// longer than 2/5 ([`freshness`](crate::store::shared::freshness)) of the lease in a parameter. Locked rows are being renewed. Another
/// replica may do the same at the same time.
fn outage(lease: &str) -> String {
    format!(
        "outage AS (UPDATE @replica SET seen = least(seen + silence, clock_timestamp()) FROM (
            SELECT r.id AS spared, silence FROM @replica r,
                (SELECT clock_timestamp() - max(seen) AS silence FROM @replica WHERE seen <= clock_timestamp()) s
            WHERE NOT r.dead AND r.id <> $1 AND silence > {lease}::int8 * interval '0.4 ms' FOR UPDATE OF r SKIP LOCKED) o
            WHERE id = spared)"
    )
}

/// Adds a replica, which has not joined yet. Returns its id.
pub(super) async fn add_replica(connection: &Connection, lease: Duration) -> Result<u64, Failure> {
    let sql = format!("WITH {} INSERT INTO @replica DEFAULT VALUES RETURNING id", outage("$2"));
    let row = connection.query_row(&sql, &[&0_i64, &whole_millis(lease)]).await?;
    row.map_or(Ok(0), |row| unsigned(&row, "id"))
}

/// The replica, unless it was declared dead.
const ME: &str = "me AS MATERIALIZED (SELECT id FROM @replica WHERE id = $1 AND NOT dead)";

/// Number of followed tasks that a statement reads.
const FOLLOWED: usize = 64;

/// Maximum number of log rows and bytes of each of them.
const FOLLOWED_ROWS: usize = 64;
const FOLLOWED_BYTES: usize = 128 << 10;

/// Number of repetitions of an operation that another transaction interferes with.
const MAX_RACES: usize = 5;

impl Postgres {
    /// Claims tasks of dead replicas, and then open ones without a runner.
    pub(super) async fn claim_tasks(&self, limit: usize) -> Result<Vec<Claim>, Unavailable> {
        let sql = "SELECT free_turns FROM @replica WHERE id = $1 AND NOT dead";
        let me = self.replica_row();
        let alive = self.control.query_row(sql, &[&me]).await?.ok_or_else(|| self.declared_dead())?;
        let free_turns = usize::try_from(unsigned(&alive, "free_turns")?).unwrap_or(usize::MAX);
        let mut claims = Vec::new();
        for (condition, max) in [
            ("runner = ANY (SELECT id FROM @replica WHERE dead) ORDER BY tid", limit),
            (r#"runner IS NULL AND open ORDER BY "time""#, free_turns),
        ] {
            let max = max.min(limit - claims.len());
            if max == 0 {
                continue;
            }
            let sql = format!(
                "WITH {ME}, pick AS (SELECT tid FROM @task WHERE {condition} LIMIT $2 FOR UPDATE SKIP LOCKED),
                t AS ({} FROM pick, me WHERE t.tid = pick.tid RETURNING t.*)
                SELECT {COLUMNS}, {LOG_SUMMARY} FROM t {}",
                *TAKE, *WITH_LOG
            );
            for row in self.reader().query(&sql, &[&me, &signed(max)]).await? {
                claims.push((key(&row)?, read::stored_task(&row).map_err(|failure| Damaged(failure.to_string()))));
            }
        }
        Ok(claims)
    }

    fn declared_dead(&self) -> Unavailable {
        Unavailable(format!("replica {} was declared dead and has to join again", self.replica()))
    }

    /// Reads why a mail was not stored. `None` if the reason is gone.
    async fn refused_post(&self, key: &TaskKey, mail: &Mail) -> Result<Option<Posted>, Failure> {
        let sql = "SELECT state IN (3, 4, 5, 7) AS ended, runner IS NULL AS is_idle,
                EXISTS (SELECT 1 FROM @send WHERE scope = $2 AND key = $3) AS sent,
                (SELECT n FROM @inbox WHERE tid = $1 AND key = $3 AND error IS NULL) AS n,
                (SELECT count(*) FROM @inbox WHERE tid = $1) AS mails
            FROM @task WHERE tid = $1 AND state >= 0";
        let parameters: [&dyn Parameter; 3] = [&task_row(key), &scope_row(key.scope()), &&*mail.key];
        let Some(row) = self.control.query_row(sql, &parameters).await? else { return Ok(Some(Posted::NoRunner)) };
        let number: Option<i64> = row.try_get("n")?;
        Ok(if row.try_get("sent")? {
            Some(Posted::Duplicate { number: None })
        } else if let Some(number) = number {
            Some(Posted::Duplicate { number: u64::try_from(number).ok() })
        } else if row.try_get("ended")? {
            Some(Posted::Ended)
        } else if row.try_get("is_idle")? {
            Some(Posted::NoRunner)
        } else {
            (row.try_get::<_, i64>("mails")? >= signed::<usize>(MAX_MAIL)).then_some(Posted::Full)
        })
    }
}

fn replica_id(id: i64) -> ReplicaId {
    ReplicaId(u64::try_from(id).unwrap_or(0))
}

/// Decodes the details of a status of gRPC.
fn decode_error(bytes: Vec<u8>) -> Option<Error> {
    let status = tonic_types::pb::Status::decode(&*bytes).ok()?;
    Some(Status::with_details(Code::from_i32(status.code), status.message, bytes.into()).into())
}

fn mail(row: &Row) -> Result<(u64, Mail), Failure> {
    let mail = Mail {
        kind: if row.try_get::<_, i16>("kind")? == 2 { MailKind::Cancel } else { MailKind::Message },
        key: row.try_get::<_, &str>("key")?.into(),
        hash: digest(row)?,
        body: row.try_get::<_, Vec<u8>>("body")?.into(),
    };
    Ok((unsigned(row, "n")?, mail))
}

/// Takes a job for some time. Returns false while another replica has it.
pub(super) async fn lead(connection: &Connection, job: &str, id: i64, time: Duration) -> Result<bool, Failure> {
    let sql =
        "INSERT INTO @job AS j (name, runner, until) VALUES($1, $2, clock_timestamp() + $3::int8 * interval '1 ms')
        ON CONFLICT (name) DO UPDATE SET runner = excluded.runner, until = excluded.until
        WHERE j.until < clock_timestamp() OR j.runner = $2 RETURNING name";
    let parameters: [&dyn Parameter; 3] = [&job, &id, &whole_millis(time)];
    Ok(connection.query_row(sql, &parameters).await?.is_some())
}

#[async_trait]
impl SharedStore for Postgres {
    fn replica(&self) -> ReplicaId {
        ReplicaId(*self.id.borrow())
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    async fn join(&self, info: &ReplicaInfo) -> Result<ReplicaId, Unavailable> {
        let name = if info.name.is_empty() { self.name.to_string() } else { info.name.replace('\0', "") };
        let (version, lease) = (i32::try_from(info.version).unwrap_or(i32::MAX), whole_millis(self.lease));
        let sql = format!(
            "WITH {} UPDATE @replica SET seen = clock_timestamp(), name = $2, version = $3, lease = $4
            WHERE id = $1 AND NOT dead RETURNING id",
            outage("$4")
        );
        if self.control.query_row(&sql, &[&self.replica_row(), &name, &version, &lease]).await?.is_none() {
            let sql = "INSERT INTO @replica(name, version, lease) VALUES($1, $2, $3) RETURNING id";
            let row = self.control.query_row(sql, &[&name, &version, &lease]).await?;
            let id = row.map_or(Ok(0), |row| unsigned(&row, "id"))?;
            self.id.send_replace(id);
            self.wakes.close();
        }
        Ok(self.replica())
    }

    async fn renew(&self, load: Load) -> Result<Renewal, Unavailable> {
        let sql = format!(
            "WITH {} UPDATE @replica SET seen = clock_timestamp(), turns = $2, free_turns = $3, draining = $4
            WHERE id = $1 AND NOT dead RETURNING id",
            outage("$5")
        );
        let lease = whole_millis(self.lease);
        let (turns, free_turns) = (i64::from(load.turns), i64::from(load.free_turns));
        let renewed =
            self.control.query_row(&sql, &[&self.replica_row(), &turns, &free_turns, &load.draining, &lease]).await?;
        if renewed.is_none() {
            self.wakes.close();
        }
        Ok(if renewed.is_some() { Renewal::Alive } else { Renewal::Lost })
    }

    async fn bury(&self, older: Duration) -> Result<Vec<ReplicaId>, Unavailable> {
        // One with a longer lease than this replica is waited for as much longer. A request that comes late, after an outage in which
        // nobody could renew, has no effect.
        let sql = "UPDATE @replica SET dead = true WHERE NOT dead
            AND seen < clock_timestamp() - ($1 + greatest(lease - $2::int8, 0)) * interval '1 ms'
            AND EXISTS (SELECT 1 FROM @replica me
                WHERE me.id = $3 AND NOT me.dead AND me.seen > clock_timestamp() - $1 * interval '0.4 ms')
            RETURNING id";
        let parameters: [&dyn Parameter; 3] = [&whole_millis(older), &whole_millis(self.lease), &self.replica_row()];
        let rows = self.control.query(sql, &parameters).await?;
        let ids = rows.iter().map(|row| Ok(replica_id(row.try_get("id")?))).collect::<Result<_, Failure>>();
        Ok(ids?)
    }

    async fn acquire(&self, key: &TaskKey) -> Result<Acquired, Unavailable> {
        let (me, tid) = (self.replica_row(), task_row(key));
        let sql = format!(
            "WITH {ME}, t AS ({} FROM me WHERE t.tid = $2 AND t.state >= 0 AND t.state NOT IN (3, 4, 5, 7)
                AND (t.runner IS NULL OR t.runner = $1
                    OR NOT EXISTS (SELECT 1 FROM @replica r WHERE r.id = t.runner AND NOT r.dead)) RETURNING t.*)
            SELECT {COLUMNS}, {LOG_SUMMARY} FROM t {}",
            *TAKE, *WITH_LOG
        );
        for _ in 0..MAX_RACES {
            if let Some(row) = self.reader().query_row(&sql, &[&me, &tid]).await? {
                return Ok(Acquired::Owned(Box::new(read::stored_task(&row)?)));
            }
            let sql = "SELECT t.state IN (3, 4, 5, 7) AS ended, t.runner, me.id IS NOT NULL AS is_alive
                FROM (VALUES (1)) one LEFT JOIN @task t ON t.tid = $2 AND t.state >= 0
                LEFT JOIN @replica me ON me.id = $1 AND NOT me.dead";
            let Some(row) = self.control.query_row(sql, &[&me, &tid]).await? else { break };
            if !row.try_get::<_, bool>("is_alive")? {
                return Err(self.declared_dead());
            }
            match row.try_get("ended")? {
                None => return Ok(Acquired::NotFound),
                Some(true) => return Ok(Acquired::Ended),
                Some(false) => {}
            }
            let runner: Option<i64> = row.try_get("runner")?;
            if let Some(runner) = runner.filter(|runner| *runner != me) {
                return Ok(Acquired::Elsewhere(replica_id(runner)));
            }
        }
        Err(Unavailable(format!("task {} changes its runner too often", key.id())))
    }

    async fn owned(&self, after: Option<&TaskKey>, limit: usize) -> Result<Vec<TaskKey>, Unavailable> {
        let sql = "SELECT owner, tenant, id FROM @task WHERE runner = $1 AND tid > $2 ORDER BY tid LIMIT $3";
        let after = after.map_or(Uuid::nil(), task_row);
        let rows = self.control.query(sql, &[&self.replica_row(), &after, &signed(limit)]).await?;
        Ok(rows.iter().map(key).collect::<Result<_, _>>()?)
    }

    async fn release(&self, tasks: &[(TaskKey, Fence)]) -> Result<(), Unavailable> {
        let sql = format!(
            "UPDATE @task t SET runner = NULL FROM unnest($2::uuid[], $3::int8[]) u(tid, fence)
            WHERE t.tid = u.tid AND t.fence = u.fence AND t.runner IS NOT DISTINCT FROM $1 AND NOT {UNREAD}"
        );
        let mut rows: Vec<_> = tasks.iter().map(|(key, fence)| (task_row(key), signed(*fence))).collect();
        rows.sort_unstable();
        let (tids, fences): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        self.control.query(&sql, &[&self.replica_row(), &tids, &fences]).await?;
        Ok(())
    }

    async fn post(&self, key: &TaskKey, mail: &Mail) -> Result<Posted, Unavailable> {
        if is_unstorable(&mail.key) {
            return Err(Unavailable("the idempotency key has U+0000".into()));
        }
        // Locks the task, so that a commit which ends the ownership sees the mail.
        let sql = "WITH t AS (
                UPDATE @task SET mail = mail + 1, cancel = cancel OR $4::int2 = 2
                WHERE tid = $1 AND runner IS NOT NULL AND state NOT IN (3, 4, 5, 7)
                AND NOT EXISTS (SELECT 1 FROM @send WHERE scope = $2 AND key = $3::text)
                AND NOT EXISTS (SELECT 1 FROM @inbox WHERE tid = $1 AND key = $3 AND error IS NULL)
                AND (SELECT count(*) FROM @inbox WHERE tid = $1) < $7 RETURNING tid, mail, runner
            )
            INSERT INTO @inbox(tid, n, kind, key, hash, body) SELECT tid, mail, $4, $3, $5::bytea, $6::bytea FROM t
            RETURNING n, (SELECT runner FROM t) AS runner";
        let kind: i16 = if mail.kind == MailKind::Cancel { 2 } else { 1 };
        let (tid, scope, max) = (task_row(key), scope_row(key.scope()), signed::<usize>(MAX_MAIL));
        let (name, hash, body) = (&*mail.key, &mail.hash[..], &*mail.body);
        let parameters: [&dyn Parameter; 7] = [&tid, &scope, &name, &kind, &hash, &body, &max];
        for _ in 0..MAX_RACES {
            match self.reader().query_row(sql, &parameters).await {
                Ok(Some(row)) => {
                    let runner = replica_id(row.try_get("runner")?);
                    return Ok(Posted::To { runner, number: unsigned(&row, "n")? });
                }
                Ok(None) => {}
                // The same mail was posted at the same time.
                Err(failure) if failure.is_caused_by_values() || failure.is_conflict() => {}
                Err(failure) => return Err(failure.into()),
            }
            if let Some(refused) = self.refused_post(key, mail).await? {
                return Ok(refused);
            }
        }
        Err(Unavailable(format!("the mail for task {} can't be stored", key.id())))
    }

    async fn mail(&self, key: &TaskKey, after: u64) -> Result<Vec<(u64, Mail)>, Unavailable> {
        let sql = "SELECT n, kind, key, hash, body FROM (
                SELECT *, sum(octet_length(body)) OVER (ORDER BY n) - octet_length(body) AS before
                FROM @inbox WHERE tid = $1 AND n > $2 AND error IS NULL
            ) mails WHERE before < $3 ORDER BY n";
        let rows = self.reader().query(sql, &[&task_row(key), &signed(after), &signed(READ_BYTES)]).await?;
        Ok(rows.iter().map(mail).collect::<Result<_, _>>()?)
    }

    async fn reject_mail(&self, key: &TaskKey, number: u64, error: &Error) -> Result<(), Unavailable> {
        let sql = "WITH t AS (
                UPDATE @task SET rejected = array_append(rejected, $3::int8) WHERE tid = $1 AND runner = $2 AND $3 > read AND $3 <= mail
                AND NOT $3 = ANY (coalesce(rejected, '{}')) RETURNING tid
            )
            UPDATE @inbox i SET error = $4::bytea, at = clock_timestamp() FROM t WHERE i.tid = t.tid AND i.n = $3";
        // The details of a status of gRPC have everything.
        let error = Status::from(error.clone());
        let parameters: [&dyn Parameter; 4] = [&task_row(key), &self.replica_row(), &signed(number), &error.details()];
        self.control.query(sql, &parameters).await?;
        Ok(())
    }

    async fn rejection(&self, key: &TaskKey, number: u64) -> Result<Option<Error>, Unavailable> {
        let sql = "SELECT error FROM @inbox WHERE tid = $1 AND n = $2 AND error IS NOT NULL";
        let row = self.control.query_row(sql, &[&task_row(key), &signed(number)]).await?;
        let bytes: Option<Vec<u8>> = row.map(|row| row.try_get("error")).transpose()?;
        Ok(bytes.and_then(decode_error))
    }

    async fn unread(&self, limit: usize) -> Result<Vec<TaskKey>, Unavailable> {
        let sql = format!("SELECT owner, tenant, id FROM @task t WHERE runner = $1 AND {UNREAD} ORDER BY tid LIMIT $2");
        let rows = self.control.query(&sql, &[&self.replica_row(), &signed(limit)]).await?;
        Ok(rows.iter().map(key).collect::<Result<_, _>>()?)
    }

    async fn follow(&self, at: &[(TaskKey, Position)]) -> Result<Vec<(TaskKey, Option<Advance>)>, Unavailable> {
        let sql = format!(
            r#"SELECT f.n, t.fence, t.seq, t.context, t.state, t."time", t.open, t.taken, t.cancel, t.attempt, t.drained, t.runner,
                t.whole, l.firsts, l.logs, t.tid IS NOT NULL AS is_task
            FROM unnest($1::uuid[], $2::int8[], $3::int8[]) WITH ORDINALITY f(tid, fence, seq, n)
            LEFT JOIN @task t ON t.tid = f.tid AND t.state >= 0 {}
            WHERE t.tid IS NULL OR (t.fence, t.seq) <> (f.fence, f.seq) ORDER BY f.n"#,
            tail("f.seq", FOLLOWED_ROWS, FOLLOWED_BYTES)
        );
        let (mut changed, mut bytes) = (Vec::new(), 0);
        for at in at.chunks(FOLLOWED) {
            let tids: Vec<Uuid> = at.iter().map(|(key, _)| task_row(key)).collect();
            let fences: Vec<i64> = at.iter().map(|(_, position)| signed(position.fence)).collect();
            let seqs: Vec<i64> = at.iter().map(|(_, position)| signed(position.seq)).collect();
            for row in self.reader().query(&sql, &[&tids, &fences, &seqs]).await? {
                let n = usize::try_from(unsigned(&row, "n")?).unwrap_or(usize::MAX);
                let Some((key, from)) = n.checked_sub(1).and_then(|n| at.get(n)) else { continue };
                let advance = if row.try_get("is_task")? {
                    let events = read::logged_events(&row, key.id(), from.seq)?;
                    bytes += events.iter().map(Event::approximate_size).sum::<usize>();
                    let runner: Option<i64> = row.try_get("runner")?;
                    let (position, row) = (position(&row)?, read::head(&row)?);
                    Some(Advance { position, row, runner: runner.map(replica_id), events })
                } else {
                    None
                };
                changed.push((key.clone(), advance));
            }
            if bytes >= READ_BYTES {
                break;
            }
        }
        Ok(changed)
    }

    async fn lead(&self, job: &'static str, time: Duration) -> Result<bool, Unavailable> {
        Ok(lead(&self.control, job, self.replica_row(), time).await?)
    }

    async fn leave(&self) -> Result<(), Unavailable> {
        self.control.query("UPDATE @replica SET dead = true WHERE id = $1", &[&self.replica_row()]).await?;
        self.wakes.close();
        Ok(())
    }

    async fn burn(&self, key: &TaskKey, expect: &Expect) -> Result<bool, Unavailable> {
        let tid = task_row(key);
        let burned = match expect {
            Expect::At(position) => {
                let sql = format!(
                    "UPDATE @task t SET fence = {NEXT_FENCE}, runner = CASE WHEN {UNREAD} THEN t.runner END
                    WHERE t.tid = $1 AND t.fence = $2 AND t.seq = $3 AND NOT t.open RETURNING t.tid"
                );
                self.control.query_row(&sql, &[&tid, &signed(position.fence), &signed(position.seq)]).await?
            }
            Expect::New => {
                let sql = r#"INSERT INTO @task AS t (tid, scope, owner, tenant, id, context, state, "time", fence, seq, open, taken,
                        cancel, attempt, drained, bytes)
                    VALUES($1, $2, '', '', '', '', -1, (extract(epoch FROM clock_timestamp()) * 1000)::int8, 0, 0, false, 0,
                        false, 0, 0, 0)
                    ON CONFLICT (tid) DO UPDATE SET "time" = excluded."time" WHERE t.state = -1 RETURNING t.tid"#;
                self.control.query_row(sql, &[&tid, &scope_row(key.scope())]).await?
            }
        };
        Ok(burned.is_some())
    }

    fn wake(&self, to: Option<ReplicaId>, note: Note) {
        self.wakes.send(to, note);
    }

    fn notes(&self) -> mpsc::Receiver<Note> {
        self.wakes.receive()
    }
}
