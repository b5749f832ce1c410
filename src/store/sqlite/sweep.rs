//! What goes: tasks that have ended long ago, or whose place is needed.

use std::collections::HashSet;

use rusqlite::{Row, params};

use super::{fault, write::piece, writer::Pass};
use crate::seam::Millis;

/// So many tasks go in one transaction: commits wait for no more than that.
const BATCH: usize = 64;

/// The states that are ends. The index has these words, and is used by who has them too.
pub(super) const ENDED: &str = "state IN (3, 4, 5, 7)";

struct Ended {
    id: i64,
    scope: i64,
    state: i32,
}

impl Pass<'_> {
    /// Deletes some of those that ended before this, and says how many: fewer than there may be once there are no more.
    pub(super) fn sweep(&mut self, before: Millis) -> rusqlite::Result<(u64, bool)> {
        let old = self.ended(before, BATCH)?;
        let mut scopes = HashSet::new();
        for it in &old {
            self.forget(it)?;
            scopes.insert(it.scope);
        }
        if !old.is_empty() {
            // Of the owners too, once there is nothing of theirs.
            for it in scopes {
                self.forget_scope(it)?;
            }
        }
        Ok((u64::try_from(old.len()).unwrap_or(u64::MAX), old.len() == BATCH))
    }

    /// Deletes the task that ended first, if any has ended.
    pub(super) fn forget_oldest(&mut self) -> rusqlite::Result<bool> {
        let oldest = self.ended(Millis::MAX, 1)?;
        oldest.iter().try_for_each(|it| self.forget(it))?;
        Ok(!oldest.is_empty())
    }

    fn ended(&self, before: Millis, limit: usize) -> rusqlite::Result<Vec<Ended>> {
        let sql = format!("SELECT id, scope, state FROM task WHERE {ENDED} AND time < ? ORDER BY time LIMIT {limit}");
        let ended = |it: &Row<'_>| Ok(Ended { id: it.get(0)?, scope: it.get(1)?, state: it.get(2)? });
        self.db.prepare_cached(&sql)?.query_map([before], ended)?.collect()
    }

    fn forget(&mut self, ended: &Ended) -> rusqlite::Result<()> {
        let id = ended.id;
        self.db
            .prepare_cached("DELETE FROM log WHERE id >= ? AND id < ?")?
            .execute((piece(id, 0)?, piece(id + 1, 0)?))?;
        for table in ["checkpoint", "saved", "task"] {
            self.db.prepare_cached(&format!("DELETE FROM {table} WHERE id = ?"))?.execute([id])?;
        }
        self.db.prepare_cached("DELETE FROM push WHERE task = ?")?.execute([id])?;
        fault::at("sweep")?;
        self.moved(ended.scope, Some(ended.state), None);
        (self.room.tasks, self.room.ended) = (self.room.tasks - 1, self.room.ended - 1);
        Ok(())
    }

    fn forget_scope(&mut self, scope: i64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM scope WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM task WHERE scope = ?1)";
        if self.db.prepare_cached(sql)?.execute(params![scope])? > 0 {
            self.db.prepare_cached("DELETE FROM total WHERE scope = ?")?.execute([scope])?;
            self.scopes.retain(|_, it| *it != scope);
            // What has been counted since is of tasks that are gone.
            self.totals.retain(|it, _| it.0 != scope);
        }
        Ok(())
    }
}
