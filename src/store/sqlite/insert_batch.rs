//! Batched inserts of completed tasks: one statement inserts several rows, which is faster than a statement per row.

use std::{
    collections::HashSet,
    ops::Range,
    sync::{Arc, LazyLock},
};

use rusqlite::ToSql;

use super::{
    failpoint,
    write::{MAX_INLINE_BYTES, signed},
    writer::WriteTransaction,
};
use crate::store::{Change, CompletedTask, Refused, log_codec};

/// Numbers of rows per statement.
const ROWS: [usize; 5] = [16, 8, 4, 2, 1];

/// Insert statements, one per element of [`ROWS`]. `OR FAIL` spares SQLite a statement journal for several rows: after an
/// error, the whole transaction is rolled back anyway.
static SQL: LazyLock<[String; 5]> = LazyLock::new(|| {
    ROWS.map(|rows| {
        let row = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)";
        format!(
            "INSERT OR FAIL INTO task(scope, key, context, state, time, seq, fence, open, taken, cancel, attempt, whole, pushes)
             VALUES{} ON CONFLICT(scope, key) DO NOTHING",
            vec![row; rows].join(", ")
        )
    })
});

/// Batch of changes. Short completed tasks are encoded in advance, by the caller instead of the writer thread.
pub(super) struct InsertBatch {
    changes: Arc<[Change]>,
    bytes: Vec<u8>,
    /// Ranges of the encoded tasks in `bytes`, one entry per change.
    encoded: Vec<Option<Range<usize>>>,
}

impl InsertBatch {
    pub(super) fn new(changes: Arc<[Change]>) -> Self {
        let (mut bytes, mut encoded) = (Vec::new(), Vec::with_capacity(changes.len()));
        for change in &*changes {
            let start = bytes.len();
            let is_encoded = match change {
                Change::CompletedTask(completed) => {
                    log_codec::encode_completed(completed, MAX_INLINE_BYTES, &mut bytes)
                }
                Change::Commit(_) => false,
            };
            encoded.push(is_encoded.then_some(start..bytes.len()));
        }
        Self { changes, bytes, encoded }
    }

    /// Number of changes.
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }
}

/// Row to be inserted.
struct NewRow<'a> {
    scope: i64,
    completed: &'a CompletedTask,
    encoded: &'a [u8],
}

impl WriteTransaction<'_> {
    /// Writes a range of the changes of a batch, in order. A change that is refused has no effect.
    pub(super) fn commit_batch(
        &mut self,
        batch: &InsertBatch,
        range: Range<usize>,
    ) -> rusqlite::Result<Vec<Result<(), Refused>>> {
        let InsertBatch { changes, bytes, encoded } = batch;
        let (mut outcomes, mut rows) = (Vec::with_capacity(range.len()), Vec::with_capacity(range.len()));
        for (change, encoded) in changes[range.clone()].iter().zip(&encoded[range]) {
            let short = match (change, encoded) {
                (Change::CompletedTask(completed), Some(range)) => Some((completed, &bytes[range.clone()])),
                _ => None,
            };
            // Collected rows must be counted before a task that may not fit into the quota.
            let fits = short
                .as_ref()
                .is_some_and(|(completed, _)| self.quota.admits(&completed.key.scope().owner, rows.len() + 1));
            if !fits {
                self.insert_rows(&mut rows, &mut outcomes)?;
            }
            match (short, change) {
                (Some((completed, encoded)), _) => match self.admit(&completed.key, &[])? {
                    Ok(scope) => rows.push(NewRow { scope, completed, encoded }),
                    Err(refused) => {
                        self.insert_rows(&mut rows, &mut outcomes)?;
                        outcomes.push(Err(refused));
                    }
                },
                (None, Change::Commit(commit)) => outcomes.push(self.commit(commit)?),
                (None, Change::CompletedTask(completed)) => outcomes.push(self.commit(&completed.to_commit())?),
            }
        }
        self.insert_rows(&mut rows, &mut outcomes)?;
        Ok(outcomes)
    }

    /// Inserts all collected rows.
    fn insert_rows(
        &mut self,
        rows: &mut Vec<NewRow<'_>>,
        outcomes: &mut Vec<Result<(), Refused>>,
    ) -> rusqlite::Result<()> {
        let mut rest = rows.as_slice();
        for (size, sql) in ROWS.iter().zip(&*SQL) {
            while let Some((chunk, left)) = rest.split_at_checked(*size) {
                outcomes.extend(self.insert_chunk(sql, chunk)?);
                rest = left;
            }
        }
        rows.clear();
        Ok(())
    }

    fn insert_chunk(&mut self, sql: &str, rows: &[NewRow<'_>]) -> rusqlite::Result<Vec<Result<(), Refused>>> {
        let inserted = {
            let mut statement = self.db.prepare_cached(sql)?;
            let mut parameter = 0;
            for NewRow { scope, completed, encoded } in rows {
                let CompletedTask { key, row, fence, .. } = completed;
                let (seq, fence, delivered_seq) = (signed(row.seq)?, signed(*fence)?, signed(row.delivered_seq)?);
                let values: [&dyn ToSql; 12] = [
                    scope,
                    &key.id(),
                    &&*row.context,
                    &i32::from(row.state),
                    &row.time,
                    &seq,
                    &fence,
                    &row.open,
                    &delivered_seq,
                    &row.cancel_requested,
                    &row.attempt,
                    encoded,
                ];
                for value in values {
                    parameter += 1;
                    statement.raw_bind_parameter(parameter, value)?;
                }
            }
            statement.raw_execute()?
        };
        let last = self.db.last_insert_rowid();
        let first = last + 1 - i64::try_from(inserted).unwrap_or(i64::MAX);
        let mut outcomes = Vec::with_capacity(rows.len());
        if inserted == rows.len() {
            for (id, NewRow { scope, completed, .. }) in (first..).zip(rows) {
                self.count_new_task(*scope, id, &completed.key, &completed.row)?;
                outcomes.push(Ok(()));
            }
        } else {
            // Some tasks existed before. The inserted rows have the highest ids.
            let mut new_ids: HashSet<_> = (first..=last).collect();
            for NewRow { scope, completed, .. } in rows {
                let found = self.find(*scope, &completed.key)?;
                let id = found.as_ref().map(|row| row.id).filter(|id| new_ids.remove(id));
                outcomes.push(match id {
                    Some(id) => self.count_new_task(*scope, id, &completed.key, &completed.row).map(Ok)?,
                    None => Err(Refused::Stale(found.map(|row| row.position))),
                });
            }
        }
        failpoint::at("batch.task").map(|()| outcomes)
    }
}
