//! How many tasks there are: of each owner in each state, and the same within contexts that have many.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
};

use rusqlite::Row;

use super::writer::Transaction;
use crate::ids::mix;

/// A context of so many tasks is a crowd, whose totals are kept. To count fewer takes no longer than to look for those.
const CROWD: i64 = 1024;

/// So many new tasks are made until one is asked whether its context has become a crowd.
const ASKED: u64 = 256;

/// What changes until the end of a transaction.
#[derive(Default)]
pub(super) struct Counters {
    /// By scope and state.
    of_all: HashMap<(i64, i32), i64>,
    /// By scope, context and state.
    of_crowds: HashMap<(i64, Arc<str>, i32), i64>,
}

/// The crowds that there are; nothing where that has to be read again.
pub(super) type LargeContexts = Option<HashSet<(i64, Arc<str>)>>;

/// Which tasks: those of a context.
pub(super) type ContextRef<'a> = (i64, &'a Arc<str>);

impl Transaction<'_> {
    /// Says that a task is in another state, or is there, or not any more.
    pub(super) fn moved(
        &mut self,
        (scope, context): ContextRef<'_>,
        from: Option<i32>,
        to: Option<i32>,
    ) -> rusqlite::Result<()> {
        let among = (scope, Arc::clone(context));
        let crowds = self.crowds()?;
        let in_crowd = !crowds.is_empty() && crowds.contains(&among);
        for (state, by) in [(from, -1), (to, 1)] {
            if let Some(state) = state {
                *self.totals.of_all.entry((scope, state)).or_default() += by;
                if in_crowd {
                    *self.totals.of_crowds.entry((scope, Arc::clone(context), state)).or_default() += by;
                }
            }
        }
        Ok(())
    }

    /// A task has come to a context. Now and then it is seen whether that has become a crowd: by tasks that nobody can
    /// choose, so that however they come, none stays unseen for long.
    pub(super) fn joined(&mut self, (scope, context): ContextRef<'_>, task: i64) -> rusqlite::Result<()> {
        let among = (scope, Arc::clone(context));
        if !mix(task.unsigned_abs()).is_multiple_of(ASKED) || self.crowds()?.contains(&among) {
            return Ok(());
        }
        let sql = "SELECT count(*) FROM (SELECT 1 FROM task WHERE scope = ? AND context = ? LIMIT ?)";
        let there: i64 = self.db.prepare_cached(sql)?.query_row((scope, &**context, CROWD), |it| it.get(0))?;
        if there == CROWD {
            // With all that this transaction has done so far.
            let sql = "INSERT INTO crowd SELECT scope, context, state, count(*) FROM task
                WHERE scope = ? AND context = ? GROUP BY state";
            self.db.prepare_cached(sql)?.execute((scope, &**context))?;
            self.crowds()?.insert(among);
        }
        Ok(())
    }

    fn crowds(&mut self) -> rusqlite::Result<&mut HashSet<(i64, Arc<str>)>> {
        if self.crowds.is_none() {
            let mut all = self.db.prepare_cached("SELECT DISTINCT scope, context FROM crowd")?;
            let crowd = |it: &Row<'_>| Ok((it.get(0)?, Arc::from(it.get_ref(1)?.as_str()?)));
            *self.crowds = Some(all.query_map([], crowd)?.collect::<rusqlite::Result<_>>()?);
        }
        Ok(self.crowds.get_or_insert_default())
    }

    /// Writes what has changed.
    pub(super) fn count(&mut self) -> rusqlite::Result<()> {
        let Counters { of_all, of_crowds } = mem::take(&mut self.totals);
        let sql = "INSERT INTO total VALUES(?1, ?2, ?3) ON CONFLICT DO UPDATE SET tasks = tasks + ?3";
        let mut count = self.db.prepare_cached(sql)?;
        for ((scope, state), by) in of_all.into_iter().filter(|it| it.1 != 0) {
            count.execute((scope, state, by))?;
        }
        let sql = "INSERT INTO crowd VALUES(?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET tasks = tasks + ?4";
        for ((scope, context, state), by) in of_crowds.into_iter().filter(|it| it.1 != 0) {
            self.db.prepare_cached(sql)?.execute((scope, &*context, state, by))?;
            if by < 0 {
                // One that nobody is left of is none.
                let sql = "DELETE FROM crowd WHERE scope = ? AND context = ? AND state = ? AND tasks = 0";
                self.db.prepare_cached(sql)?.execute((scope, &*context, state))?;
            }
        }
        Ok(())
    }

    /// Deletes what is known of an owner, of whom nothing is there any more.
    pub(super) fn uncount(&mut self, scope: i64) -> rusqlite::Result<()> {
        for table in ["total", "crowd"] {
            self.db.prepare_cached(&format!("DELETE FROM {table} WHERE scope = ?"))?.execute([scope])?;
        }
        // What has been counted since is of tasks that are gone.
        self.totals.of_all.retain(|it, _| it.0 != scope);
        self.totals.of_crowds.retain(|it, _| it.0 != scope);
        self.crowds()?.retain(|it| it.0 != scope);
        Ok(())
    }
}
