//! Commits: a batch is one statement, which is a transaction of its own. It takes one round trip and one flush.
//!
//! The statement gets the changes as arrays. No two of its parts are joined, except with rows found in an index: everything after the
//! update of the tasks reads the columns that it returns, which include those of the change. PostgreSQL does not know how many changes
//! there are, so it would join them in quadratic time.
//!
//! If one of the values can't be stored, the statement has no effect. The batch is then committed in parts, so that only that change
//! is rejected.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    sync::{Arc, LazyLock},
};

use bytes::Bytes;
use prost::Message as _;
use uuid::Uuid;

use super::{
    Commit, Committed, Event, Position, Postgres, Refused, Unavailable,
    connection::{Connection, Failure, Parameter},
    values::{is_unstorable, position, scope_row, signed, signed_int, task_row},
};
use crate::store::{
    Expect, IdempotencyRecord, PushQueue as _, Rejected,
    log_codec::TaskIds,
    log_rows::{MAX_INLINE_BYTES, encode_events, encode_whole, single_row_task, split_task},
};

/// Maximum number of changes in a statement.
const MAX_BATCH: usize = 512;

/// Maximum number of repetitions after a conflict with another transaction.
const MAX_CONFLICTS: usize = 3;

/// Condition for tasks with mail that is neither read nor rejected.
pub(super) const UNREAD: &str = "t.mail - t.read > coalesce(cardinality(t.rejected), 0)";

/// Defines a set of columns of equal length, which are parameters of a statement, and a row of it.
macro_rules! columns {
    ($(#[$attribute:meta])* $name:ident of $row:ident { $($field:ident: $type:ty = $sql:literal,)+ }) => {
        struct $row { $($field: $type,)+ }

        $(#[$attribute])*
        #[derive(Default)]
        struct $name { $($field: Vec<$type>,)+ }

        impl $name {
            /// Names and types of the columns.
            const COLUMNS: &[(&str, &str)] = &[$((stringify!($field), $sql)),+];

            fn push(&mut self, row: $row) {
                $(self.$field.push(row.$field);)+
            }

            fn parameters(&self) -> impl Iterator<Item = &dyn Parameter> {
                let all: Vec<&dyn Parameter> = vec![$(&self.$field),+];
                all.into_iter()
            }
        }
    };
}

columns! {
    /// Changes. Updates have no columns that only new tasks need.
    Changes of Change {
        tid: Uuid = "uuid",
        xfence: i64 = "int8",
        xseq: i64 = "int8",
        fence: i64 = "int8",
        seq: i64 = "int8",
        state: i16 = "int2",
        time: i64 = "int8",
        open: bool = "bool",
        taken: i64 = "int8",
        cancel: bool = "bool",
        attempt: i32 = "int4",
        drained: i32 = "int4",
        mail_read: i64 = "int8",
        at: i64 = "int8",
        first: i64 = "int8",
        scope: Option<Uuid> = "uuid",
        owner: Option<String> = "text",
        tenant: Option<String> = "text",
        id: Option<String> = "text",
        context: Option<String> = "text",
        asked: Option<Vec<u8>> = "bytea",
        saved: Option<Vec<u8>> = "bytea",
        turn: Option<Vec<u8>> = "bytea",
        log_turn: Option<Vec<u8>> = "bytea",
        events: Option<Vec<u8>> = "bytea",
        head: Option<Vec<u8>> = "bytea",
        artifacts: Option<Vec<u8>> = "bytea",
        whole: Option<Vec<u8>> = "bytea",
        sends: Option<String> = "text",
        push: Option<String> = "text",
        version: Option<String> = "text",
        config: Option<Vec<u8>> = "bytea",
        extra: Option<Vec<u8>> = "bytea",
    }
}

/// Returns a part of the statement: the changes as a table of numbered rows, if the replica `me` is alive.
fn source(name: &str, parameter: &mut usize) -> String {
    let (mut arrays, mut names) = (String::new(), String::new());
    for (name, sql_type) in Changes::COLUMNS {
        *parameter += 1;
        _ = write!(arrays, "{}${parameter}::{sql_type}[]", if arrays.is_empty() { "" } else { ", " });
        _ = write!(names, "\"{name}\", ");
    }
    format!(", {name} AS MATERIALIZED (SELECT u.* FROM me, unnest({arrays}) WITH ORDINALITY AS u({names}n))")
}

/// Parts of the statement that write other tables. Everything is in the table of the changes.
fn details(source: &str) -> String {
    format!(
        r#", {source}_log AS (
            INSERT INTO @log(tid, last, first, at, events, turn)
            SELECT tid, seq, first, at, events, log_turn FROM {source} WHERE events IS NOT NULL
        ),
        {source}_checkpoint AS (
            INSERT INTO @checkpoint(tid, seq, head, artifacts)
            SELECT tid, seq, head, artifacts FROM {source} WHERE head IS NOT NULL
            ON CONFLICT (tid) DO UPDATE SET seq = excluded.seq, head = excluded.head, artifacts = excluded.artifacts
        ),
        {source}_send AS (
            INSERT INTO @send(scope, key, hash, "time", tid, id, seq)
            SELECT c.scope, j.key, decode(j.hash, 'hex'), j."time", c.tid, c.id, j.seq
            FROM {source} c, json_to_recordset(c.sends::json) j(key text, hash text, "time" int8, seq int8)
            WHERE c.sends IS NOT NULL
        ),
        {source}_push AS (
            INSERT INTO @push AS p (tid, id, scope, owner, version, config, extra, cursor, due, pending)
            SELECT tid, push, scope, owner, version, config, extra, xseq, CASE WHEN seq > xseq THEN at END,
                CASE WHEN seq > xseq THEN at END FROM {source} WHERE push IS NOT NULL
            ON CONFLICT (tid, id) DO UPDATE SET version = excluded.version, config = excluded.config, extra = excluded.extra,
                due = CASE WHEN p.runner IS NOT NULL THEN p.due WHEN p.dead IS NOT NULL THEN excluded.due
                    ELSE coalesce(p.pending, p.due, excluded.due) END,
                pending = CASE WHEN p.dead IS NOT NULL THEN excluded.due ELSE coalesce(p.pending, excluded.due) END,
                attempts = CASE WHEN p.runner IS NOT NULL THEN p.attempts ELSE 0 END, dead = NULL, reason = NULL
        )"#
    )
}

/// Parts of the statement that update tasks.
fn update_parts(parameter: &mut usize) -> String {
    let (source, details) = (source("c", parameter), details("ok"));
    format!(
        r#"{source},
        ok AS (
            UPDATE @task t SET fence = c.fence, seq = c.seq, state = c.state, "time" = c."time", open = c.open, taken = c.taken,
                cancel = t.cancel OR c.cancel, attempt = c.attempt, drained = c.drained,
                bytes = t.bytes + coalesce(length(c.events), 0), read = greatest(t.read, least(c.mail_read, t.mail)),
                rejected = CASE WHEN t.rejected IS NOT NULL
                    THEN ARRAY(SELECT r FROM unnest(t.rejected) r WHERE r > c.mail_read) END,
                runner = CASE WHEN c.open OR t.mail - greatest(t.read, least(c.mail_read, t.mail))
                    > (SELECT count(*) FROM unnest(t.rejected) r WHERE r > c.mail_read) THEN t.runner END,
                pushes = t.pushes + (c.push IS NOT NULL)::int, asked = coalesce(c.asked, t.asked),
                turn = coalesce(c.turn, t.turn),
                saved = CASE WHEN c.state NOT IN (3, 4, 5, 7) THEN coalesce(c.saved, t.saved) END
            -- Without an operator that the index of runners has: a replica may run many tasks.
            FROM c WHERE t.tid = c.tid AND t.fence = c.xfence AND t.seq = c.xseq AND t.runner IS NOT DISTINCT FROM $1
            RETURNING c.n, t.tid, t.scope, t.owner, t.id, t.seq, t.pushes, {UNREAD} AS unread, c.xseq, c.at, c.first, c.events,
                c.log_turn, c.head, c.artifacts, c.sends, c.mail_read, c.push, c.version, c.config, c.extra,
                -- As in the snapshot of the statement, which may be older than the row that it has updated.
                CASE WHEN t.pushes > 0 THEN (SELECT o.pushes FROM @task o WHERE o.tid = t.tid) END AS seen
        ){details},
        mail AS (
            DELETE FROM @inbox i USING ok WHERE ok.mail_read > 0 AND i.tid = ok.tid AND i.n <= ok.mail_read AND i.error IS NULL
        ),
        -- Rows that are due or dead are written too. A condition would be met by the row in the snapshot, and an outcome that is
        -- recorded at the same time would not be seen.
        mark AS (
            UPDATE @push p SET due = CASE WHEN p.dead IS NULL THEN coalesce(p.due, ok.at) END,
                pending = CASE WHEN p.dead IS NULL THEN coalesce(p.pending, ok.at) ELSE p.pending END
            FROM ok WHERE ok.pushes > 0 AND p.tid = ok.tid AND p.id IS DISTINCT FROM ok.push AND p.cursor < ok.seq
        )"#
    )
}

/// Parts of the statement that create tasks. A task that exists makes it fail, which is rare.
fn create_parts(parameter: &mut usize) -> String {
    let (source, details) = (source("d", parameter), details("d"));
    format!(
        r#"{source},
        new AS (
            INSERT INTO @task(tid, scope, owner, tenant, id, context, state, "time", fence, seq, open, taken, cancel, attempt,
                drained, bytes, pushes, asked, saved, turn, whole, runner)
            SELECT tid, scope, owner, tenant, id, context, state, "time", fence, seq, open, taken, cancel, attempt, drained,
                coalesce(length(events), 0) + coalesce(length(whole), 0), (push IS NOT NULL)::int, asked,
                CASE WHEN state NOT IN (3, 4, 5, 7) THEN saved END, turn, whole, CASE WHEN open THEN $1 END FROM d
        ){details}"#
    )
}

/// Statements for updates, for new tasks, and for both. Each returns a row with number 0 if this replica has not been declared dead,
/// and one per updated task.
static STATEMENTS: LazyLock<[String; 3]> = LazyLock::new(|| {
    [(true, false), (false, true), (true, true)].map(|(updates, creates)| {
        let mut parameter = 1;
        let mut sql = "WITH me AS MATERIALIZED (SELECT id FROM @replica WHERE id = $1 AND NOT dead)".to_owned();
        if updates {
            sql += &update_parts(&mut parameter);
        }
        if creates {
            sql += &create_parts(&mut parameter);
        }
        sql += " SELECT 0::int8 AS n, false AS unread, false AS has_push, false AS is_unmarked FROM me";
        if updates {
            sql += " UNION ALL SELECT n, unread, pushes > 0, seen IS DISTINCT FROM pushes AND pushes > 0 FROM ok";
        }
        sql
    })
});

/// Returns the records as a JSON array.
fn sends_to_json(sends: &[IdempotencyRecord]) -> String {
    let sends = sends.iter().map(|IdempotencyRecord { key, hash, seq, time }| {
        let hash = format!("{:032x}", u128::from_be_bytes(*hash));
        serde_json::json!({"key": key, "hash": hash, "time": time, "seq": seq})
    });
    serde_json::Value::Array(sends.collect()).to_string()
}

/// Changes as parameters of a statement.
#[derive(Default)]
struct Batch {
    updates: Changes,
    creates: Changes,
    /// Index of the commit of each update.
    updated: Vec<usize>,
    created: Vec<usize>,
}

impl Batch {
    /// Encodes some of the commits, which are of different tasks.
    fn new(commits: &[Commit], selected: &[usize]) -> Self {
        let mut sorted: Vec<_> = selected.iter().map(|n| (task_row(&commits[*n].key), *n)).collect();
        // All transactions lock tasks in the same order.
        sorted.sort_unstable();
        let mut batch = Self::default();
        for (tid, n) in sorted {
            let (changes, numbers) = match commits[n].expect {
                Expect::At(_) => (&mut batch.updates, &mut batch.updated),
                Expect::New => (&mut batch.creates, &mut batch.created),
            };
            changes.push(change(tid, &commits[n]));
            numbers.push(n);
        }
        batch
    }

    /// Runs the statement. Returns whether the replica is alive, and the outcome of each update that was made, with whether its
    /// deliveries have yet to be marked.
    async fn run(&self, lane: &Connection, replica: i64) -> Result<(bool, Vec<(usize, Committed, bool)>), Failure> {
        let mut parameters: Vec<&dyn Parameter> = vec![&replica];
        let (has_updates, has_creates) = (!self.updated.is_empty(), !self.created.is_empty());
        if has_updates {
            parameters.extend(self.updates.parameters());
        }
        if has_creates {
            parameters.extend(self.creates.parameters());
        }
        let statement = &STATEMENTS[usize::from(has_creates) + usize::from(has_updates && has_creates)];
        let (mut is_alive, mut committed) = (false, Vec::new());
        for row in lane.query(statement, &parameters).await? {
            let number = usize::try_from(row.try_get::<_, i64>("n")?).unwrap_or(0);
            match number.checked_sub(1).and_then(|n| self.updated.get(n)) {
                Some(n) => {
                    let outcome = Committed { unread_mail: row.try_get("unread")?, has_push: row.try_get("has_push")? };
                    committed.push((*n, outcome, row.try_get("is_unmarked")?));
                }
                None => is_alive = true,
            }
        }
        Ok((is_alive, committed))
    }
}

/// Encodes a commit.
fn change(tid: Uuid, commit: &Commit) -> Change {
    let Commit { key, row, events, .. } = commit;
    let ids = TaskIds { id: key.id(), context: &row.context };
    let (is_new, expected) = (commit.expect == Expect::New, commit.expected_position().unwrap_or_default());
    let whole = single_row_task(commit).and_then(|task| encode_whole(task, events, ids));
    let encoded = (!events.is_empty() && whole.is_none()).then(|| encode_events(events, ids));
    let is_short = is_new && encoded.as_ref().is_some_and(|events| events.len() <= MAX_INLINE_BYTES);
    let checkpoint = commit.checkpoint.as_ref().filter(|_| whole.is_none() && !is_short);
    let (head, artifacts) = checkpoint.map(|task| split_task(task).into()).unzip();
    let bytes = |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| bytes.to_vec());
    let (turn, log_turn) =
        if row.state.is_terminal() { (bytes(&commit.turns), None) } else { (None, bytes(&commit.turns)) };
    let push = commit.push.as_deref();
    let text = |text: &str| is_new.then(|| text.to_owned());
    Change {
        tid,
        xfence: signed(expected.fence),
        xseq: signed(expected.seq),
        fence: signed(commit.fence),
        seq: signed(row.seq),
        state: i16::try_from(i32::from(row.state)).unwrap_or(0),
        time: row.time,
        open: row.open,
        taken: signed(row.delivered_seq),
        cancel: row.cancel_requested,
        attempt: signed_int(row.attempt),
        drained: signed_int(row.drained),
        mail_read: signed(commit.mail_read),
        at: commit.time,
        first: signed(events.first().map_or(0, Event::seq)),
        scope: is_new.then(|| scope_row(key.scope())),
        owner: text(&key.scope().owner),
        tenant: text(&key.scope().tenant),
        id: text(key.id()),
        context: text(&row.context),
        asked: bytes(&commit.turn_contexts).filter(|_| whole.is_none()),
        saved: bytes(&commit.agent_state),
        turn,
        log_turn,
        events: encoded,
        head,
        artifacts,
        whole,
        sends: (!commit.sends.is_empty()).then(|| sends_to_json(&commit.sends)),
        push: push.map(|push| push.config.id.clone()),
        version: push.map(|push| push.version.as_str().to_owned()),
        config: push.map(|push| push.config.encode_to_vec()),
        extra: push.map(|push| push.extra.to_vec()),
    }
}

/// Returns the name of a text that can't be stored.
fn unstorable_text(commit: &Commit) -> Option<&'static str> {
    let Commit { key, row, sends, push, .. } = commit;
    let texts = [
        ("owner", &*key.scope().owner),
        ("tenant", &*key.scope().tenant),
        ("task id", key.id()),
        ("context id", &*row.context),
        ("id of the push configuration", push.as_deref().map_or("", |push| &push.config.id)),
    ];
    let keys = sends.iter().map(|send| ("idempotency key", &*send.key));
    texts.into_iter().chain(keys).find(|(_, text)| is_unstorable(text)).map(|(name, _)| name)
}

/// Outcomes of the changes, `None` for those that are still to be committed.
type Outcomes = Vec<Option<Result<Committed, Refused>>>;

impl Postgres {
    /// Commits changes on a lane, whose statements do not wait for those of other lanes.
    pub(super) async fn commit_batch(
        &self,
        commits: Arc<[Commit]>,
    ) -> Result<Vec<Result<Committed, Refused>>, Unavailable> {
        let Some(first) = commits.first() else { return Ok(Vec::new()) };
        let lane = &self.lanes[first.key.lane(self.lanes.len())];
        let mut outcomes: Outcomes = vec![None; commits.len()];
        for (outcome, commit) in outcomes.iter_mut().zip(&*commits) {
            if let Some(name) = unstorable_text(commit) {
                *outcome = Some(Err(Refused::Rejected(Rejected::Invalid(format!("{name}: has U+0000").into()))));
            }
        }
        self.refuse_push_over_limit(&commits, &mut outcomes).await?;
        // Successive changes of a task are in different statements.
        let (mut part, mut keys) = (Vec::new(), HashSet::new());
        for (n, commit) in commits.iter().enumerate() {
            if outcomes[n].is_some() {
                continue;
            }
            if part.len() >= MAX_BATCH || !keys.insert(&commit.key) {
                self.commit_part(lane, &commits, std::mem::take(&mut part), &mut outcomes).await?;
                keys = HashSet::from([&commit.key]);
            }
            part.push(n);
        }
        self.commit_part(lane, &commits, part, &mut outcomes).await?;
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(Err(Refused::Stale(None)))).collect())
    }

    /// Commits changes of different tasks.
    async fn commit_part(
        &self,
        lane: &Connection,
        commits: &[Commit],
        part: Vec<usize>,
        outcomes: &mut Outcomes,
    ) -> Result<(), Failure> {
        let (mut parts, mut conflicts) = (vec![part], 0);
        while let Some(part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let batch = Batch::new(commits, &part);
            match batch.run(lane, self.replica_row()).await {
                Ok((is_alive, committed)) => {
                    let mut unmarked = Vec::new();
                    for (n, outcome, is_unmarked) in committed {
                        outcomes[n] = Some(Ok(outcome));
                        if is_unmarked {
                            unmarked.push(n);
                        }
                    }
                    for n in batch.created.iter().filter(|_| is_alive) {
                        let has_push = commits[*n].push.is_some();
                        outcomes[*n] = Some(Ok(Committed { unread_mail: false, has_push }));
                    }
                    let refused: Vec<_> = part.into_iter().filter(|n| outcomes[*n].is_none()).collect();
                    let positions = positions(lane, commits, &refused).await?;
                    for n in refused {
                        let at = positions.get(&task_row(&commits[n].key)).copied().flatten();
                        outcomes[n] = Some(Err(Refused::Stale(at)));
                    }
                    for n in unmarked {
                        let key = std::slice::from_ref(&commits[n].key);
                        super::delivery::mark_due(lane, key, commits[n].time).await?;
                    }
                }
                Err(failure) if failure.is_conflict() && conflicts < MAX_CONFLICTS => {
                    conflicts += 1;
                    parts.push(part);
                }
                Err(failure) if failure.is_caused_by_values() => {
                    let rest = refuse_known(lane, commits, part.clone(), outcomes).await?;
                    if rest.len() < part.len() {
                        parts.push(rest);
                    } else if let [only] = &*rest {
                        let reason = failure.to_string().into();
                        outcomes[*only] = Some(Err(Refused::Rejected(Rejected::Invalid(reason))));
                    } else {
                        let (first, second) = rest.split_at(rest.len() / 2);
                        parts.extend([second.to_vec(), first.to_vec()]);
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Refuses new push configurations of owners that have the maximum number of them.
    async fn refuse_push_over_limit(&self, commits: &[Commit], outcomes: &mut Outcomes) -> Result<(), Unavailable> {
        for (n, commit) in commits.iter().enumerate().filter(|(_, commit)| commit.push.is_some()) {
            if outcomes[n].is_none()
                && let Err(full) = self.check_push_capacity(commit.key.scope()).await?
            {
                let positions = positions(&self.lanes[0], commits, &[n]).await?;
                let at = positions.get(&task_row(&commit.key)).copied().flatten();
                if at == commit.expected_position() {
                    outcomes[n] = Some(Err(Refused::Rejected(Rejected::Full(full))));
                }
            }
        }
        Ok(())
    }
}

/// Returns the positions of the tasks of some of the commits. `None` for an id that must not be used.
async fn positions(
    lane: &Connection,
    commits: &[Commit],
    selected: &[usize],
) -> Result<HashMap<Uuid, Option<Position>>, Failure> {
    if selected.is_empty() {
        return Ok(HashMap::new());
    }
    let rows: Vec<Uuid> = selected.iter().map(|n| task_row(&commits[*n].key)).collect();
    let sql = "SELECT tid, fence, seq, state >= 0 AS is_task FROM @task WHERE tid = ANY($1)";
    let found = lane.query(sql, &[&rows]).await?.into_iter().map(|row| {
        let is_task: bool = row.try_get("is_task")?;
        Ok((row.try_get("tid")?, Some(position(&row)?).filter(|_| is_task)))
    });
    found.collect()
}

/// After a statement that failed: refuses those of its changes whose tasks are at other positions, or whose idempotency keys are
/// recorded. Returns the others.
async fn refuse_known(
    lane: &Connection,
    commits: &[Commit],
    part: Vec<usize>,
    outcomes: &mut Outcomes,
) -> Result<Vec<usize>, Failure> {
    let positions = positions(lane, commits, &part).await?;
    let (mut scopes, mut keys) = (Vec::new(), Vec::new());
    for n in &part {
        for send in &commits[*n].sends {
            scopes.push(scope_row(commits[*n].key.scope()));
            keys.push(&*send.key);
        }
    }
    let sql = "SELECT s.scope, s.key, s.id FROM unnest($1::uuid[], $2::text[]) u(scope, key)
        JOIN @send s ON s.scope = u.scope AND s.key = u.key";
    let rows = if keys.is_empty() { Vec::new() } else { lane.query(sql, &[&scopes, &keys]).await? };
    let mut recorded = HashMap::new();
    for row in &rows {
        let key: (Uuid, &str) = (row.try_get("scope")?, row.try_get("key")?);
        recorded.insert(key, row.try_get::<_, &str>("id")?);
    }
    let mut rest = Vec::new();
    for n in part {
        let Commit { key, sends, .. } = &commits[n];
        let scope = scope_row(key.scope());
        let found = positions.get(&task_row(key));
        let duplicate = sends.iter().find_map(|send| recorded.get(&(scope, &*send.key)));
        let refused = match (found, commits[n].expected_position()) {
            // Also for an id that must not be used.
            (Some(at), None) => Some(Refused::Stale(*at)),
            (at, Some(expected)) if at.copied().flatten() != Some(expected) => {
                Some(Refused::Stale(at.copied().flatten()))
            }
            _ => duplicate.map(|id| Refused::Rejected(Rejected::Duplicate { task_id: (*id).into() })),
        };
        match refused {
            Some(refused) => outcomes[n] = Some(Err(refused)),
            None => rest.push(n),
        }
    }
    Ok(rest)
}
