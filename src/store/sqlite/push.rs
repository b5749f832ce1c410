//! The push configurations of a task. Their numbers only rise, so that a page goes on where the last one ended.

use std::sync::Arc;

use prost::Message as _;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::{number, read, write::damaged};
use crate::{
    pb::v1::TaskPushNotificationConfig,
    protocol::Version,
    store::{Key, PushConfig, PushPage, PutResult},
};

/// Keeps one, in place of the one of its id, unless there are `most` others.
pub(super) fn keep(db: &Connection, task: i64, push: &PushConfig, most: usize) -> rusqlite::Result<PutResult> {
    let PushConfig { config, version, extra: beside } = push;
    let (bytes, version) = (config.encode_to_vec(), version.as_str());
    let sql = "UPDATE push SET version = ?, config = ?, beside = ? WHERE task = ? AND id = ?";
    if db.prepare_cached(sql)?.execute((version, &bytes, &**beside, task, &config.id))? > 0 {
        return Ok(PutResult::Replaced);
    }
    let sql = "SELECT count(*) FROM push WHERE task = ?";
    let there: i64 = db.prepare_cached(sql)?.query_row([task], |it| it.get(0))?;
    if usize::try_from(there).is_ok_and(|it| it >= most) {
        return Ok(PutResult::Full);
    }
    db.prepare_cached("UPDATE task SET pushes = pushes + 1 WHERE id = ?")?.execute([task])?;
    let sql = "INSERT INTO push SELECT id, pushes, ?, ?, ?, ? FROM task WHERE id = ?";
    db.prepare_cached(sql)?.execute((&config.id, version, &bytes, &**beside, task))?;
    Ok(PutResult::Created)
}

/// Deletes one, if it is there.
pub(super) fn delete(db: &Connection, task: i64, id: &str) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM push WHERE task = ? AND id = ?")?.execute((task, id)).map(drop)
}

/// One of a task's.
pub(super) fn get(db: &Connection, key: &Key, id: &str) -> rusqlite::Result<Option<Arc<PushConfig>>> {
    let Some(task) = read::id(db, key)? else { return Ok(None) };
    let sql = "SELECT version, config, beside FROM push WHERE task = ? AND id = ?";
    db.prepare_cached(sql)?.query_row((task, id), config).optional()
}

/// Those after one.
pub(super) fn page(db: &Connection, key: &Key, after: u64, limit: usize) -> rusqlite::Result<Option<PushPage>> {
    let Some(task) = read::id(db, key)? else { return Ok(None) };
    let sql = "SELECT version, config, beside, number FROM push WHERE task = ? AND number > ? ORDER BY number LIMIT ?";
    let mut found = db.prepare_cached(sql)?;
    // Behind a number that is larger than any there is nothing. One more than fits on the page tells whether there is a
    // next one.
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let more = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
    let found = found.query_map((task, after, more), |it| Ok((config(it)?, it.get(3)?)))?;
    let mut found = found.collect::<rusqlite::Result<Vec<(_, i64)>>>()?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|it| number(it.1));
    Ok(Some(PushPage { configs: found.into_iter().map(|it| it.0).collect(), next }))
}

pub(super) fn config(row: &Row<'_>) -> rusqlite::Result<Arc<PushConfig>> {
    let version = row.get_ref(0)?.as_str()?;
    let version = Version::from_text(version).ok_or_else(|| damaged("a version that there is not"))?;
    let config = TaskPushNotificationConfig::decode(row.get_ref(1)?.as_blob()?);
    let config = config.map_err(|_| damaged("a push configuration can't be read"))?;
    Ok(Arc::new(PushConfig { config, version, extra: row.get::<_, Vec<u8>>(2)?.into() }))
}
