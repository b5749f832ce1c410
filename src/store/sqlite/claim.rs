//! Claims of unfinished turns that an earlier opening of the database left behind.

use std::sync::Arc;

use super::{failpoint, is_damage, read, write::signed, writer::WriteTransaction};
use crate::{
    event::Fence,
    store::{Claim, Damaged, Key, Scope, StoredTask},
};

/// Selects rows of unfinished turns of earlier openings, after a row.
pub(super) const OPEN: &str = "SELECT id FROM task WHERE open = 1 AND fence < ?1 AND id > ?2 ORDER BY id LIMIT ?3";

impl WriteTransaction<'_> {
    /// Claims at most `limit` rows after a row for the opening with this fence. No other process has the file open,
    /// so that no other process runs these turns. Also returns the last row that was examined.
    ///
    /// A row that can't be read does not fail the claims of others. It is returned unchanged, and not counted as an
    /// attempt.
    pub(super) fn claim(&mut self, fence: Fence, after: i64, limit: usize) -> rusqlite::Result<(Vec<Claim>, i64)> {
        let (mut claims, mut last) = (Vec::new(), after);
        // Skipped rows do not count against the limit.
        while claims.len() < limit {
            let ids = self.open_rows(fence, last, limit - claims.len())?;
            if ids.is_empty() {
                break;
            }
            for id in ids {
                last = id;
                let key = match self.key_of(id) {
                    Ok(key) => key,
                    Err(error) if is_damage(&error) || error == rusqlite::Error::QueryReturnedNoRows => {
                        tracing::error!(
                            task.row = id, error.cause = %error,
                            "unfinished task without a readable key skipped; see `a2a admin check`"
                        );
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let claimed = match self.claim_row(fence, id) {
                    Ok(stored) => Ok(stored),
                    Err(error) if is_damage(&error) => Err(Damaged(error.to_string())),
                    Err(error) => return Err(error),
                };
                failpoint::at("claim")?;
                claims.push((key, claimed));
            }
        }
        Ok((claims, last))
    }

    fn open_rows(&self, fence: Fence, after: i64, limit: usize) -> rusqlite::Result<Vec<i64>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut query = self.db.prepare_cached(OPEN)?;
        query.query_map((signed(fence)?, after, limit), |row| row.get(0))?.collect()
    }

    fn key_of(&self, id: i64) -> rusqlite::Result<Key> {
        let sql = "SELECT o.owner, o.tenant, t.key FROM task t JOIN scope o ON o.id = t.scope WHERE t.id = ?";
        self.db.prepare_cached(sql)?.query_row([id], |row| {
            let scope = Scope { owner: row.get_ref(0)?.as_str()?.into(), tenant: row.get_ref(1)?.as_str()?.into() };
            Ok(Key::new(&Arc::new(scope), row.get_ref(2)?.as_str()?))
        })
    }

    fn claim_row(&self, fence: Fence, id: i64) -> rusqlite::Result<StoredTask> {
        let mut stored = read::load_row(self.db, id)?;
        (stored.position.fence, stored.row.attempt) = (fence, stored.row.attempt.saturating_add(1));
        let sql = "UPDATE task SET fence = ?, attempt = ? WHERE id = ?";
        self.db.prepare_cached(sql)?.execute((signed(fence)?, stored.row.attempt, id))?;
        Ok(stored)
    }
}
