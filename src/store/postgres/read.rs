//! Reads of a task: row, checkpoint, and event log. Also the current state of several tasks.

use std::{collections::HashMap, fmt::Display, sync::LazyLock};

use bytes::Bytes;
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    Event, LogSummary, Seq, StoredTask, Task, TaskState,
    connection::{Connection, Failure, Parameter},
    values::{position, signed, unsigned, unsigned_int},
};
use crate::{
    protocol::{snapshot::Snapshot, task::apply_owned},
    store::{
        READ_BATCH, READ_BYTES, TaskHead, TurnRecord,
        log_codec::{SealedLog, TaskIds},
        log_rows::{decode_events, decode_task, is_artifact_update, join_task},
        up_to_bytes,
    },
};

/// Columns of a task `t`, its checkpoint `c` and its log rows `l` that [`stored_task`] and [`head`] decode.
pub(super) const COLUMNS: &str = r#"t.owner, t.tenant, t.id, t.fence, t.seq, t.context, t.state, t."time", t.open, t.taken, t.cancel,
    t.attempt, t.drained, t.saved, t.asked, t.whole, c.seq AS checkpoint, c.head, c.artifacts, l.firsts, l.logs"#;

/// Columns of a task `t` that [`log_summary`] decodes.
pub(super) const LOG_SUMMARY: &str = "CASE WHEN t.whole IS NULL AND NOT t.folded THEN t.bytes ELSE 0 END AS log_bytes,
    (SELECT n.turn FROM @log n WHERE n.tid = t.tid AND n.turn IS NOT NULL ORDER BY n.last DESC LIMIT 1) AS newest_turn";

/// Joins a task `t`, its checkpoint, and the log rows after it.
pub(super) static WITH_LOG: LazyLock<String> = LazyLock::new(|| {
    let tail = tail("coalesce(c.seq, 0)", READ_BATCH, TAIL_BYTES);
    format!("LEFT JOIN @checkpoint c ON c.tid = t.tid AND t.whole IS NULL {tail}")
});

/// Maximum size of the end of a log that is read together with the state of a task.
const TAIL_BYTES: i64 = 64 << 10;

/// Maximum size of the tasks that are read at once, exceeded by one task at most.
const TASKS_BYTES: i64 = 4 << 20;

/// Selects the log rows `l` of a task `t` after an event, up to a number of rows and a size: as two arrays, which are NULL if there
/// are none.
pub(super) fn tail(after: &str, rows: impl Display, bytes: impl Display) -> String {
    format!(
        "LEFT JOIN LATERAL (
            SELECT array_agg(first ORDER BY last) AS firsts, array_agg(events ORDER BY last) AS logs FROM (
                SELECT last, first, events, sum(octet_length(events)) OVER (ORDER BY last) - octet_length(events) AS before
                FROM @log WHERE tid = t.tid AND last > {after} ORDER BY last LIMIT {rows}
            ) rows WHERE before < {bytes}
        ) l ON t.whole IS NULL"
    )
}

/// Decodes the columns `fence` to `drained` of [`COLUMNS`].
pub(super) fn head(row: &Row) -> Result<TaskHead, Failure> {
    let state = TaskState::try_from(i32::from(row.try_get::<_, i16>("state")?));
    Ok(TaskHead {
        context: row.try_get::<_, &str>("context")?.into(),
        seq: unsigned(row, "seq")?,
        state: state.map_err(|_| Failure::damaged("unknown task state"))?,
        time: row.try_get("time")?,
        open: row.try_get("open")?,
        delivered_seq: unsigned(row, "taken")?,
        cancel_requested: row.try_get("cancel")?,
        attempt: unsigned_int(row, "attempt")?,
        drained: unsigned_int(row, "drained")?,
    })
}

/// Decodes [`LOG_SUMMARY`].
pub(super) fn log_summary(row: &Row) -> Result<LogSummary, Failure> {
    let newest = row.try_get::<_, Option<&[u8]>>("newest_turn")?.and_then(|turns| TurnRecord::decode("", [turns]));
    let bytes = usize::try_from(unsigned(row, "log_bytes")?).unwrap_or(usize::MAX);
    Ok(LogSummary { bytes, ended_turns: LogSummary::ended_turns(&newest.unwrap_or_default()) })
}

/// Decodes [`COLUMNS`] and [`LOG_SUMMARY`].
pub(super) fn stored_task(row: &Row) -> Result<StoredTask, Failure> {
    let position = position(row)?;
    let bytes = |column| Ok::<_, Failure>(row.try_get::<_, Option<Vec<u8>>>(column)?.map(Bytes::from));
    let checkpoint = match (bytes("whole")?, row.try_get::<_, Option<i64>>("checkpoint")?) {
        (Some(whole), _) => Some((position.seq, SealedLog::from_bytes(whole).snapshot().ok_or_else(undecodable)?)),
        (None, Some(_)) => {
            let task = join_task(row.try_get("head")?, row.try_get("artifacts")?);
            Some((unsigned(row, "checkpoint")?, Snapshot::from_proto(task)))
        }
        (None, None) => None,
    };
    let (agent_state, turn_contexts) = (bytes("saved")?, bytes("asked")?);
    let read = checkpoint.as_ref().map_or(0, |(seq, _)| *seq);
    let tail = if read < position.seq { logged_events(row, row.try_get("id")?, read)? } else { Vec::new() };
    // An earlier log than the row, whose lock the statement may have waited for, or the beginning of a large one.
    let is_whole = tail.last().map_or(read, Event::seq) == position.seq;
    let log = if is_whole { Some(log_summary(row)?) } else { None };
    Ok(StoredTask { position, row: head(row)?, checkpoint, agent_state, turn_contexts, tail, log })
}

/// Decodes the columns `whole`, `firsts` and `logs` of a task: its events after a sequence number.
pub(super) fn logged_events(row: &Row, id: &str, after: Seq) -> Result<Vec<Event>, Failure> {
    let ids = TaskIds { id, context: row.try_get("context")? };
    if let Some(whole) = row.try_get::<_, Option<Vec<u8>>>("whole")? {
        let skip = usize::try_from(after).unwrap_or(usize::MAX);
        return Ok(SealedLog::from_bytes(whole.into()).events(skip, ids).collect());
    }
    let firsts: Option<Vec<i64>> = row.try_get("firsts")?;
    let logs: Option<Vec<Vec<u8>>> = row.try_get("logs")?;
    let mut events = Vec::new();
    for (first, log) in firsts.into_iter().flatten().zip(logs.into_iter().flatten()) {
        let decoded = decode_events(u64::try_from(first).unwrap_or(0), log.into(), ids).ok_or_else(undecodable)?;
        events.extend(decoded.into_iter().filter(|event| event.seq() > after));
    }
    Ok(events)
}

pub(super) fn undecodable() -> Failure {
    Failure::damaged("a log can't be decoded")
}

/// Reads at most `limit` events of a task after a sequence number, up to the one with which they have `max_bytes`.
pub(super) async fn events(
    connection: &Connection,
    tid: Uuid,
    after: Seq,
    limit: usize,
    max_bytes: usize,
) -> Result<Vec<Event>, Failure> {
    // Each row has an event. The stored size of an event is less than twice its approximate size.
    let sql = format!(
        "SELECT t.id, t.context, t.whole, l.firsts, l.logs FROM @task t {} WHERE t.tid = $1 AND t.state >= 0",
        tail("$2", "$3", "$4")
    );
    let bytes = signed(max_bytes.saturating_mul(2)).saturating_add(1024);
    let parameters: [&dyn Parameter; 4] = [&tid, &signed(after), &signed(limit), &bytes];
    let Some(row) = connection.query_row(&sql, &parameters).await? else { return Ok(Vec::new()) };
    let events = logged_events(&row, row.try_get("id")?, after)?;
    Ok(up_to_bytes(events.into_iter().take(limit), max_bytes))
}

/// Reads the current state of tasks, with or without their artifacts: of some of them, if they are large. Also returns how many of the
/// ids that are.
pub(super) async fn tasks(
    connection: &Connection,
    tids: &[Uuid],
    include_artifacts: bool,
) -> Result<(HashMap<Uuid, Result<Task, Failure>>, usize), Failure> {
    // The artifacts of a checkpoint are not read unless they are requested.
    let sql = format!(
        "SELECT * FROM (
            SELECT u.n, t.tid, t.id, t.context, t.seq, t.whole, c.seq AS checkpoint, c.head,
                CASE WHEN $2 THEN c.artifacts ELSE ''::bytea END AS artifacts, l.firsts, l.logs,
                sum(s.size) OVER (ORDER BY u.n) - s.size AS before
            FROM unnest($1::uuid[]) WITH ORDINALITY u(tid, n) JOIN @task t ON t.tid = u.tid AND t.state >= 0 {}
            CROSS JOIN LATERAL (SELECT coalesce(octet_length(t.whole), 0) + coalesce(octet_length(c.head), 0)
                + CASE WHEN $2 THEN coalesce(octet_length(c.artifacts), 0) ELSE 0 END AS size) s
        ) tasks WHERE before < {TASKS_BYTES} ORDER BY n",
        *WITH_LOG
    );
    let (mut tasks, mut read) = (HashMap::new(), 0);
    for row in connection.query(&sql, &[&tids, &include_artifacts]).await? {
        let tid = row.try_get("tid")?;
        let task = match current_task(connection, &row, tid, include_artifacts).await {
            Err(Failure::Damaged(problem)) => Err(Failure::Damaged(problem)),
            task => Ok(task?),
        };
        read = usize::try_from(row.try_get::<_, i64>("n")?).unwrap_or(tids.len());
        tasks.insert(tid, task);
    }
    // Those after the last one may not exist.
    Ok(if tasks.is_empty() { (tasks, tids.len()) } else { (tasks, read) })
}

/// Reads one task with its artifacts.
pub(super) async fn task(connection: &Connection, tid: Uuid) -> Result<Option<Task>, Failure> {
    tasks(connection, &[tid], true).await?.0.remove(&tid).transpose()
}

/// Applies the later events to a checkpoint.
async fn current_task(connection: &Connection, row: &Row, tid: Uuid, include_artifacts: bool) -> Result<Task, Failure> {
    let (until, id) = (unsigned(row, "seq")?, row.try_get("id")?);
    let (mut seq, mut task) = (0, Task::default());
    if let Some(whole) = row.try_get::<_, Option<Vec<u8>>>("whole")? {
        task = SealedLog::from_bytes(whole.into()).task().ok_or_else(undecodable)?;
        seq = until;
    } else if row.try_get::<_, Option<i64>>("checkpoint")?.is_some() {
        seq = unsigned(row, "checkpoint")?;
        let decoded = decode_task(row.try_get("head")?, row.try_get("artifacts")?);
        task = decoded.map_err(|_| Failure::damaged("a task can't be decoded"))?;
    }
    let mut events = if seq < until { logged_events(row, id, seq)? } else { Vec::new() };
    while seq < until {
        let Some(last) = events.last() else {
            return Err(Failure::damaged("the log of a task ends before the position of its row"));
        };
        let next = last.seq();
        let selected = events.into_iter().filter(|event| event.seq() <= until);
        let selected = selected.filter(|event| include_artifacts || !is_artifact_update(event));
        let payloads = selected.filter_map(|event| event.into_response().payload);
        payloads.for_each(|payload| apply_owned(&mut task, payload));
        seq = next;
        events =
            if seq < until { self::events(connection, tid, seq, READ_BATCH, READ_BYTES).await? } else { Vec::new() };
    }
    if !include_artifacts {
        // A sealed log and the first event of a task may contain artifacts.
        task.artifacts = Vec::new();
    }
    Ok(task)
}

/// Returns the stored records of the turns of a task.
pub(super) async fn turns(connection: &Connection, tid: Uuid) -> Result<Vec<TurnRecord>, Failure> {
    let sql = "SELECT t.id, t.turn,
            (SELECT array_agg(l.turn ORDER BY l.last) FROM @log l WHERE l.tid = t.tid AND l.turn IS NOT NULL) AS logged
        FROM @task t WHERE t.tid = $1";
    let Some(row) = connection.query_row(sql, &[&tid]).await? else { return Ok(Vec::new()) };
    let mut stored: Vec<Vec<u8>> = row.try_get::<_, Option<_>>("logged")?.unwrap_or_default();
    stored.extend(row.try_get::<_, Option<Vec<u8>>>("turn")?);
    TurnRecord::decode(row.try_get("id")?, stored.iter().map(Vec::as_slice))
        .ok_or_else(|| Failure::damaged("a turn can't be decoded"))
}
