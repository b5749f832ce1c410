//! Turns that nobody runs any more: those of an earlier opening.

use std::sync::Arc;

use super::{failpoint, is_damage, read, write::signed, writer::Transaction};
use crate::{
    event::Fence,
    store::{Claim, Damaged, Key, Scope, StoredTask},
};

/// Rows of unfinished turns that an earlier opening had, after one.
pub(super) const OPEN: &str = "SELECT id FROM task WHERE open = 1 AND fence < ?1 AND id > ?2 ORDER BY id LIMIT ?3";

impl Transaction<'_> {
    /// Claims some of the rows after this one for the opening that has this fence. No other process has the file open,
    /// so that no other process runs these turns. Also returns the last row that was examined.
    ///
    /// A row that can't be read does not fail the claims of others. It is claimed unchanged, and not counted as an
    /// attempt.
    pub(super) fn claim(&mut self, fence: Fence, after: i64, limit: usize) -> rusqlite::Result<(Vec<Claim>, i64)> {
        let (mut all, mut last) = (Vec::new(), after);
        // Skipped rows do not count against the limit.
        while all.len() < limit {
            let ids = self.open_rows(fence, last, limit - all.len())?;
            if ids.is_empty() {
                break;
            }
            for id in ids {
                last = id;
                let key = match self.key_of(id) {
                    Ok(key) => key,
                    Err(error) if is_damage(&error) || error == rusqlite::Error::QueryReturnedNoRows => {
                        tracing::error!(task.row = id, error.cause = %error, "a task without a readable name is left as it is");
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let claimed = match self.take_row(fence, id) {
                    Ok(stored) => Ok(stored),
                    Err(error) if is_damage(&error) => Err(Damaged(error.to_string())),
                    Err(error) => return Err(error),
                };
                failpoint::at("claim")?;
                all.push((key, claimed));
            }
        }
        Ok((all, last))
    }

    fn open_rows(&self, fence: Fence, after: i64, limit: usize) -> rusqlite::Result<Vec<i64>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut find = self.db.prepare_cached(OPEN)?;
        find.query_map((signed(fence)?, after, limit), |row| row.get(0))?.collect()
    }

    fn key_of(&self, id: i64) -> rusqlite::Result<Key> {
        let sql = "SELECT o.owner, o.tenant, t.key FROM task t JOIN scope o ON o.id = t.scope WHERE t.id = ?";
        self.db.prepare_cached(sql)?.query_row([id], |row| {
            let scope = Scope { owner: row.get_ref(0)?.as_str()?.into(), tenant: row.get_ref(1)?.as_str()?.into() };
            Ok(Key::new(&Arc::new(scope), row.get_ref(2)?.as_str()?))
        })
    }

    fn take_row(&self, fence: Fence, id: i64) -> rusqlite::Result<StoredTask> {
        let mut found = read::row(self.db, id)?;
        (found.position.fence, found.row.attempt) = (fence, found.row.attempt.saturating_add(1));
        let sql = "UPDATE task SET fence = ?, attempt = ? WHERE id = ?";
        self.db.prepare_cached(sql)?.execute((signed(fence)?, found.row.attempt, id))?;
        Ok(found)
    }
}
