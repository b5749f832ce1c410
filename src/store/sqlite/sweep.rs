//! What goes: tasks that have ended long ago, or whose place is needed.

use std::{
    collections::HashSet,
    sync::{Arc, LazyLock},
};

use rusqlite::{Row, params};

use super::{number, write::piece, writer::Pass};
use crate::seam::Millis;

/// So many tasks go in one transaction: commits wait for no more than that.
const BATCH: i64 = 64;

/// The states that are ends. The index has these words, and is used by who has them too.
pub(super) const ENDED: &str = "state IN (3, 4, 5, 7)";

/// Those that ended first: of those whose log is there, and of those whose log has gone, each in their order.
pub(super) static OLDEST: LazyLock<String> = LazyLock::new(|| {
    let each = [0, 1].map(|it| {
        format!("SELECT id, scope, context, state, time FROM task WHERE {ENDED} AND folded = {it} AND time < ?1")
    });
    format!("{} ORDER BY time LIMIT ?2", each.join(" UNION ALL "))
});

struct Ended {
    id: i64,
    scope: i64,
    context: Arc<str>,
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
        let swept = i64::try_from(old.len()).unwrap_or(BATCH);
        Ok((number(swept), swept == BATCH))
    }

    /// Deletes the task that ended first, if any has ended.
    pub(super) fn forget_oldest(&mut self) -> rusqlite::Result<bool> {
        let oldest = self.ended(Millis::MAX, 1)?;
        oldest.iter().try_for_each(|it| self.forget(it))?;
        Ok(!oldest.is_empty())
    }

    fn ended(&self, before: Millis, limit: i64) -> rusqlite::Result<Vec<Ended>> {
        let ended = |it: &Row<'_>| {
            Ok(Ended {
                id: it.get(0)?,
                scope: it.get(1)?,
                context: Arc::from(it.get_ref(2)?.as_str()?),
                state: it.get(3)?,
            })
        };
        self.db.prepare_cached(&OLDEST)?.query_map((before, limit), ended)?.collect()
    }

    fn forget(&mut self, ended: &Ended) -> rusqlite::Result<()> {
        let id = ended.id;
        self.db
            .prepare_cached("DELETE FROM log WHERE id >= ? AND id < ?")?
            .execute((piece(id, 0)?, piece(id + 1, 0)?))?;
        for table in ["checkpoint", "saved", "task"] {
            self.db.prepare_cached(&format!("DELETE FROM {table} WHERE id = ?"))?.execute([id])?;
        }
        for table in ["push", "send"] {
            self.db.prepare_cached(&format!("DELETE FROM {table} WHERE task = ?"))?.execute([id])?;
        }
        self.moved((ended.scope, &ended.context), Some(ended.state), None)?;
        (self.room.tasks, self.room.ended) = (self.room.tasks - 1, self.room.ended - 1);
        Ok(())
    }

    fn forget_scope(&mut self, scope: i64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM scope WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM task WHERE scope = ?1)";
        if self.db.prepare_cached(sql)?.execute(params![scope])? > 0 {
            self.scopes.retain(|_, it| *it != scope);
            self.uncount(scope)?;
        }
        Ok(())
    }
}
