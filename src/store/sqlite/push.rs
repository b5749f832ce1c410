//! Push configurations of a task. Their numbers only rise, so that a page can continue after the last number of the page
//! before it.

use std::sync::Arc;

use prost::Message as _;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::{
    delivery, read, unsigned,
    write::{damaged, signed},
};
use crate::{
    event::Seq,
    pb::v1::TaskPushNotificationConfig,
    protocol::Version,
    store::{Full, Key, PushConfig, PushPage, PutResult, page::cut_page},
};

/// Limits of the number of configurations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Max {
    pub(super) per_task: usize,
    pub(super) per_owner: usize,
}

impl Max {
    /// For configurations that are already admitted.
    pub(super) const NONE: Self = Self { per_task: usize::MAX, per_owner: usize::MAX };
}

/// Returns the limit if the tasks of an owner have as many configurations, over all tenants.
pub(super) fn is_full_for(db: &Connection, owner: &str, max: usize) -> rusqlite::Result<Option<Full>> {
    if max == usize::MAX {
        return Ok(None);
    }
    let sql = "SELECT ifnull(sum(push_count), 0) FROM scope WHERE owner = ?";
    let count = db.prepare_cached(sql)?.query_row([owner], |row| row.get(0)).map(unsigned)?;
    Ok(usize::try_from(count).is_ok_and(|count| count >= max).then(|| Full::push_configs_per_owner(max)))
}

/// Stores a configuration of a task of this owner. Replaces the one of the same id; adds one only while there are less than
/// `max`. A new one gets the events after `cursor`, or after the last one of the task.
pub(super) fn put(
    db: &Connection,
    (task, owner): (i64, &str),
    push: &PushConfig,
    cursor: Option<Seq>,
    max: Max,
) -> rusqlite::Result<PutResult> {
    let PushConfig { config, version, extra } = push;
    let (bytes, version) = (config.encode_to_vec(), version.as_str());
    let sql = "UPDATE push SET version = ?, config = ?, beside = ? WHERE task = ? AND id = ?";
    if db.prepare_cached(sql)?.execute((version, &bytes, &**extra, task, &config.id))? > 0 {
        delivery::replace(db, task, &config.id)?;
        return Ok(PutResult::Replaced);
    }
    let sql = "SELECT count(*) FROM push WHERE task = ?";
    let count: i64 = db.prepare_cached(sql)?.query_row([task], |row| row.get(0))?;
    if usize::try_from(count).is_ok_and(|count| count >= max.per_task) {
        return Ok(PutResult::Full);
    }
    if let Some(full) = is_full_for(db, owner, max.per_owner)? {
        return Ok(PutResult::OwnerFull(full));
    }
    db.prepare_cached("UPDATE task SET pushes = pushes + 1 WHERE id = ?")?.execute([task])?;
    let sql = "INSERT INTO push(task, scope, number, id, version, config, beside, cursor)
        SELECT id, scope, pushes, ?, ?, ?, ?, ifnull(?, seq) FROM task WHERE id = ?";
    let cursor = cursor.map(signed).transpose()?;
    db.prepare_cached(sql)?.execute((&config.id, version, &bytes, &**extra, cursor, task))?;
    Ok(PutResult::Created)
}

/// Deletes a configuration, if it exists.
pub(super) fn delete(db: &Connection, task: i64, id: &str) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM push WHERE task = ? AND id = ?")?.execute((task, id)).map(drop)
}

/// Returns a configuration, or `None` if it or its task does not exist.
pub(super) fn get(db: &Connection, key: &Key, id: &str) -> rusqlite::Result<Option<Arc<PushConfig>>> {
    let Some(task) = read::row_id(db, key)? else { return Ok(None) };
    let sql = "SELECT version, config, beside FROM push WHERE task = ? AND id = ?";
    db.prepare_cached(sql)?.query_row((task, id), config).optional()
}

/// Returns the configurations after the number `after`, or `None` if the task does not exist.
pub(super) fn page(db: &Connection, key: &Key, after: u64, limit: usize) -> rusqlite::Result<Option<PushPage>> {
    let Some(task) = read::row_id(db, key)? else { return Ok(None) };
    let sql = "SELECT version, config, beside, number FROM push WHERE task = ? AND number > ? ORDER BY number LIMIT ?";
    let mut query = db.prepare_cached(sql)?;
    // No number exceeds `i64::MAX`.
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    // One row more than the limit shows whether there is a next page.
    let sql_limit = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
    let rows = query.query_map((task, after, sql_limit), |row| Ok((unsigned(row.get(3)?), config(row)?)))?;
    let (configs, next) = cut_page(rows.collect::<rusqlite::Result<_>>()?, limit);
    Ok(Some(PushPage { configs, next }))
}

/// Decodes the columns `version`, `config` and `beside`.
pub(super) fn config(row: &Row<'_>) -> rusqlite::Result<Arc<PushConfig>> {
    let version = row.get_ref(0)?.as_str()?;
    let version = Version::from_text(version).ok_or_else(|| damaged("unknown protocol version"))?;
    let config = TaskPushNotificationConfig::decode(row.get_ref(1)?.as_blob()?);
    let config = config.map_err(|_| damaged("a push configuration can't be decoded"))?;
    Ok(Arc::new(PushConfig { config, version, extra: row.get::<_, Vec<u8>>(2)?.into() }))
}
