//! Task lists: pages of an owner's tasks, read along an index from the page token on, without sorting or scanning.

use std::sync::LazyLock;

use rusqlite::{Connection, OptionalExtension as _, Row, ToSql, types::Value};

use super::{
    ListPage, ListQuery, Millis, Seq,
    read::TaskReader,
    values::{is_damage, unsigned},
};
use crate::store::{PageToken, page::read_page};

/// Codes of all task states.
const STATES: [i32; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

/// Conditions: all tasks of a scope, and those of a context.
const FILTERS: [&str; 2] = ["scope = :scope", "scope = :scope AND context = :context"];

/// Condition on the order of the list, which is descending: later pages have smaller values.
const RANGE: &str = "time >= :since AND (time, key) < (:time, :after)";

const ORDER: &str = "ORDER BY time DESC, key DESC LIMIT :limit";

/// Counts the tasks in a state: all of a scope, and those of a context.
const COUNT: [&str; 2] = [
    "SELECT count(*) FROM task WHERE scope = ?1 AND state = ?2 AND time >= ?3",
    "SELECT count(*) FROM task WHERE scope = ?1 AND state = ?2 AND time >= ?3 AND context = ?4",
];

/// For each element of [`FILTERS`], selects the tasks in all states, and in one state. The index is sorted within each state; SQLite
/// merges the states while it reads them.
pub(super) static QUERIES: LazyLock<[[String; 2]; 2]> = LazyLock::new(|| {
    FILTERS.map(|filter| {
        let select =
            |state: &str| format!("SELECT id, key, time, seq FROM task WHERE {filter} AND state = {state} AND {RANGE}");
        let all = STATES.map(|state| select(&state.to_string())).join(" UNION ALL ");
        [all, select(":state")].map(|selects| format!("{selects} {ORDER}"))
    })
});

/// Listed row: the position of the task in the list, its row id and the number of its last event.
type ListRow = (PageToken, (i64, Seq));

/// Returns a page of tasks. Damaged tasks are omitted.
pub(super) fn list(db: &Connection, query: &ListQuery) -> rusqlite::Result<ListPage> {
    let sql = "SELECT id FROM scope WHERE owner = ? AND tenant = ?";
    let (owner, tenant) = (&*query.scope.owner, &*query.scope.tenant);
    let Some(scope) = db.prepare_cached(sql)?.query_row((owner, tenant), |row| row.get(0)).optional()? else {
        return Ok(ListPage::default());
    };
    let rows = list_rows(db, scope, query)?;
    let mut reader = TaskReader::new(db, query.include_artifacts)?;
    let (tasks, next) = read_page(query, rows, |token, (id, seq)| match reader.read(id, seq) {
        Ok(mut task) => {
            query.history_limit().truncate(&mut task.history);
            Ok(Some(task))
        }
        Err(error) if is_damage(&error) => {
            tracing::warn!(task.id = &*token.id, error.cause = %error, "damaged task omitted from a list");
            Ok(None)
        }
        Err(error) => Err(error),
    })?;
    Ok(ListPage { tasks, total: total(db, scope, query)?, next })
}

fn list_rows(db: &Connection, scope: i64, query: &ListQuery) -> rusqlite::Result<Vec<ListRow>> {
    let list_row =
        |row: &Row<'_>| Ok((PageToken { id: row.get(1)?, time: row.get(2)? }, (row.get(0)?, unsigned(row.get(3)?))));
    let (time, after) = match &query.after {
        Some(token) => (token.time, Value::Text(token.id.to_string())),
        // In SQLite's order, a blob is greater than all text.
        None => (Millis::MAX, Value::Blob(Vec::new())),
    };
    let since = query.since.unwrap_or(Millis::MIN);
    // One row more than the limit shows whether there is a next page.
    let limit = i64::try_from(query.limit.saturating_add(1)).unwrap_or(i64::MAX);
    let state = query.state.map(i32::from);
    let sql = &QUERIES[usize::from(query.context.is_some())][usize::from(state.is_some())];
    let mut statement = db.prepare_cached(sql)?;
    let parameters: [(&str, &dyn ToSql); 7] = [
        (":scope", &scope),
        (":since", &since),
        (":time", &time),
        (":after", &after),
        (":limit", &limit),
        (":context", &query.context),
        (":state", &state),
    ];
    // Each query has some of the parameters.
    for (name, value) in parameters {
        if let Some(index) = statement.parameter_index(name)? {
            statement.raw_bind_parameter(index, value)?;
        }
    }
    statement.raw_query().mapped(list_row).collect()
}

/// Returns the number of tasks on all pages: a stored count if there is one, and otherwise a count of index entries.
fn total(db: &Connection, scope: i64, query: &ListQuery) -> rusqlite::Result<u64> {
    let (state, context) = (query.state.map(i32::from), query.context.as_deref());
    let stored: Option<i64> = match (query.since, context) {
        (Some(_), _) => None,
        (None, None) => {
            let sql = "SELECT ifnull(sum(tasks), 0) FROM total WHERE scope = ? AND (?2 IS NULL OR state = ?2)";
            db.prepare_cached(sql)?.query_row((scope, state), |row| row.get(0))?
        }
        // NULL if the context is not large.
        (None, Some(context)) => {
            let sql =
                "SELECT sum(iif(?3 IS NULL OR state = ?3, tasks, 0)) FROM crowd WHERE scope = ?1 AND context = ?2";
            db.prepare_cached(sql)?.query_row((scope, context, state), |row| row.get(0))?
        }
    };
    let total = if let Some(stored) = stored {
        stored
    } else {
        let sql = COUNT[usize::from(context.is_some())];
        let (mut count, since) = (db.prepare_cached(sql)?, query.since.unwrap_or(Millis::MIN));
        let states = STATES.iter().filter(|code| state.is_none_or(|state| state == **code));
        let counts = states.map(|code| match context {
            Some(context) => count.query_row((scope, code, since, context), |row| row.get::<_, i64>(0)),
            None => count.query_row((scope, code, since), |row| row.get(0)),
        });
        counts.sum::<rusqlite::Result<_>>()?
    };
    Ok(unsigned(total))
}
