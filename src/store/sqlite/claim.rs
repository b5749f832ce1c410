//! Turns that nobody runs any more: those of an earlier opening.

use std::sync::Arc;

use rusqlite::Row;

use super::{
    fault,
    read::{COLUMNS, TABLES, stored},
    write::signed,
    writer::Pass,
};
use crate::{
    event::Fence,
    store::{Key, Scope, Stored},
};

impl Pass<'_> {
    /// Takes some of them for the opening that has this fence. Nobody else has the file, so that nobody else runs them.
    pub(super) fn claim(&mut self, fence: Fence, limit: usize) -> rusqlite::Result<Vec<(Key, Stored)>> {
        let fence = signed(fence)?;
        let sql = "SELECT id FROM task WHERE open = 1 AND fence < ? ORDER BY id LIMIT ?";
        let mut find = self.db.prepare_cached(sql)?;
        let ids = find.query_map((fence, i64::try_from(limit).unwrap_or(i64::MAX)), |it| it.get(0))?;
        let ids = ids.collect::<rusqlite::Result<Vec<i64>>>()?;
        let mut take = self.db.prepare_cached("UPDATE task SET fence = ?, attempt = attempt + 1 WHERE id = ?")?;
        let sql = format!(
            "SELECT {COLUMNS}, t.key, o.owner, o.tenant FROM {TABLES} JOIN scope o ON o.id = t.scope WHERE t.id = ?"
        );
        let mut load = self.db.prepare_cached(&sql)?;
        let claimed = |it: &Row<'_>| {
            let scope =
                Scope { owner: it.get_ref("owner")?.as_str()?.into(), tenant: it.get_ref("tenant")?.as_str()?.into() };
            Ok((Key::new(&Arc::new(scope), it.get_ref("key")?.as_str()?), stored(it)?))
        };
        let mut all = Vec::with_capacity(ids.len());
        for id in ids {
            take.execute((fence, id))?;
            fault::at("claim")?;
            all.push(load.query_row([id], claimed)?);
        }
        Ok(all)
    }
}
