//! Size of a database.

use std::{fs, path::Path};

use rusqlite::{Connection, Row};

use super::{TaskState, values::unsigned};
use crate::store::FileUsage;

/// Reads the numbers of tasks by state, for states with tasks.
pub(super) fn tasks(db: &Connection) -> rusqlite::Result<Vec<(TaskState, u64)>> {
    let state =
        |row: &Row<'_>| Ok((TaskState::try_from(row.get::<_, i32>(0)?).unwrap_or_default(), unsigned(row.get(1)?)));
    let mut tasks = db.prepare_cached("SELECT state, sum(tasks) FROM total GROUP BY state HAVING sum(tasks) > 0")?;
    tasks.query_map([], state)?.collect()
}

/// Reads the sizes of the files. `log` is the path of the write-ahead log.
pub(super) fn files(db: &Connection, log: &Path, max: Option<u64>) -> rusqlite::Result<FileUsage> {
    let pragma = |name| db.pragma_query_value(None, name, |row| row.get(0)).map(unsigned);
    let page_size = pragma("page_size")?;
    Ok(FileUsage {
        database: pragma("page_count")? * page_size,
        free: pragma("freelist_count")? * page_size,
        log: fs::metadata(log).map_or(0, |metadata| metadata.len()),
        max,
    })
}
