//! Size of a database.

use std::{fs, path::Path};

use rusqlite::{Connection, Row};

use super::{TaskState, values::unsigned};
use crate::store::{FileUsage, StoreUsage};

/// Reads the numbers of tasks and the sizes of the files. `log` is the path of the write-ahead log.
pub(super) fn usage(
    db: &Connection,
    log: &Path,
    max_tasks: Option<u64>,
    max: Option<u64>,
) -> rusqlite::Result<StoreUsage> {
    let pragma = |name| db.pragma_query_value(None, name, |row| row.get(0)).map(unsigned);
    let page_size = pragma("page_size")?;
    let files = FileUsage {
        database: pragma("page_count")? * page_size,
        free: pragma("freelist_count")? * page_size,
        log: fs::metadata(log).map_or(0, |metadata| metadata.len()),
        max,
    };
    let state = |row: &Row<'_>| Ok((TaskState::try_from(row.get::<_, i32>(0)?), unsigned(row.get(1)?)));
    let mut tasks = db.prepare_cached("SELECT state, sum(tasks) FROM total GROUP BY state HAVING sum(tasks) > 0")?;
    let tasks = tasks.query_map([], state)?.collect::<rusqlite::Result<Vec<_>>>()?;
    let tasks = tasks.into_iter().filter_map(|(state, count)| Some((state.ok()?, count))).collect();
    Ok(StoreUsage { tasks, max_tasks, files: Some(files) })
}
