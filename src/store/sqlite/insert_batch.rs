//! A batch: the rows of tasks that end with their first commit are made by few statements, each of which looks for the
//! place of one where it has put the one before.

use std::{
    collections::HashSet,
    ops::Range,
    sync::{Arc, LazyLock},
};

use rusqlite::ToSql;

use super::{
    failpoint,
    write::{SHORT, signed},
    writer::Transaction,
};
use crate::store::{Change, CompletedTask, Refused, log_codec};

/// How many rows a statement makes.
const ROWS: [usize; 5] = [16, 8, 4, 2, 1];

/// Where one of them fails, all of the transaction does: so SQLite need not remember what was there before the statement,
/// as it else would for several rows.
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

/// Changes, and of each task that is to stand in its row the bytes: they are made by who has what they are made of at
/// hand, and not by the thread that all others wait for.
pub(super) struct InsertBatch {
    all: Arc<[Change]>,
    bytes: Vec<u8>,
    wholes: Vec<Option<Range<usize>>>,
}

impl InsertBatch {
    pub(super) fn new(all: Arc<[Change]>) -> Self {
        let (mut bytes, mut wholes) = (Vec::new(), Vec::with_capacity(all.len()));
        for it in &*all {
            let before = bytes.len();
            let whole = match it {
                Change::CompletedTask(it) => log_codec::encode_completed(it, SHORT, &mut bytes),
                Change::Commit(_) => false,
            };
            wholes.push(whole.then_some(before..bytes.len()));
        }
        Self { all, bytes, wholes }
    }

    /// Number of changes.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// A row that is to be made.
struct NewRow<'a> {
    scope: i64,
    task: &'a CompletedTask,
    whole: &'a [u8],
}

impl Transaction<'_> {
    /// Writes these changes of a batch, in their order. A change that is refused has changed nothing.
    pub(super) fn change(
        &mut self,
        batch: &InsertBatch,
        which: Range<usize>,
    ) -> rusqlite::Result<Vec<Result<(), Refused>>> {
        let InsertBatch { all, bytes, wholes } = batch;
        let (mut outcomes, mut rows) = (Vec::with_capacity(which.len()), Vec::with_capacity(which.len()));
        for (change, whole) in all[which.clone()].iter().zip(&wholes[which]) {
            let short = match (change, whole) {
                (Change::CompletedTask(it), Some(at)) => Some((it, &bytes[at.clone()])),
                _ => None,
            };
            // Each takes its place before the next one asks for one.
            if short.as_ref().is_none_or(|(it, _)| !self.room.has(&it.key.scope().owner, rows.len() + 1)) {
                self.make(&mut rows, &mut outcomes)?;
            }
            match (short, change) {
                (Some((task, whole)), _) => match self.admit(&task.key, &[])? {
                    Ok(scope) => rows.push(NewRow { scope, task, whole }),
                    Err(why) => {
                        self.make(&mut rows, &mut outcomes)?;
                        outcomes.push(Err(why));
                    }
                },
                (None, Change::Commit(it)) => outcomes.push(self.commit(it)?),
                (None, Change::CompletedTask(it)) => outcomes.push(self.commit(&it.to_commit())?),
            }
        }
        self.make(&mut rows, &mut outcomes)?;
        Ok(outcomes)
    }

    /// Makes these rows.
    fn make(&mut self, rows: &mut Vec<NewRow<'_>>, outcomes: &mut Vec<Result<(), Refused>>) -> rusqlite::Result<()> {
        let mut rest = rows.as_slice();
        for (size, sql) in ROWS.iter().zip(&*SQL) {
            while let Some((some, left)) = rest.split_at_checked(*size) {
                outcomes.extend(self.insert(sql, some)?);
                rest = left;
            }
        }
        rows.clear();
        Ok(())
    }

    fn insert(&mut self, sql: &str, rows: &[NewRow<'_>]) -> rusqlite::Result<Vec<Result<(), Refused>>> {
        let made = {
            let mut statement = self.db.prepare_cached(sql)?;
            let mut at = 0;
            for NewRow { scope, task, whole } in rows {
                let CompletedTask { key, row, fence, .. } = task;
                let (seq, fence, taken) = (signed(row.seq)?, signed(*fence)?, signed(row.delivered_seq)?);
                let values: [&dyn ToSql; 12] = [
                    scope,
                    &key.id(),
                    &&*row.context,
                    &i32::from(row.state),
                    &row.time,
                    &seq,
                    &fence,
                    &row.open,
                    &taken,
                    &row.cancel_requested,
                    &row.attempt,
                    whole,
                ];
                for it in values {
                    at += 1;
                    statement.raw_bind_parameter(at, it)?;
                }
            }
            statement.raw_execute()?
        };
        let last = self.db.last_insert_rowid();
        let first = last + 1 - i64::try_from(made).unwrap_or(i64::MAX);
        let mut outcomes = Vec::with_capacity(rows.len());
        if made == rows.len() {
            for (id, NewRow { scope, task, .. }) in (first..).zip(rows) {
                self.came(*scope, id, &task.key, &task.row)?;
                outcomes.push(Ok(()));
            }
        } else {
            // Some were there before: those that were made have the last numbers.
            let mut ours: HashSet<_> = (first..=last).collect();
            for NewRow { scope, task, .. } in rows {
                let found = self.find(*scope, &task.key)?;
                let id = found.as_ref().map(|it| it.id).filter(|it| ours.remove(it));
                outcomes.push(match id {
                    Some(id) => self.came(*scope, id, &task.key, &task.row).map(Ok)?,
                    None => Err(Refused::Stale(found.map(|it| it.at))),
                });
            }
        }
        failpoint::at("batch.task").map(|()| outcomes)
    }
}
