//! Pages of an owner's tasks: along an index, from where the last page ended, whatever there is before and behind it.

use std::sync::LazyLock;

use rusqlite::{
    Connection, OptionalExtension as _, Row, ToSql,
    types::{ToSqlOutput, Value},
};

use super::{is_damage, number, read::TaskRows};
use crate::{
    clock::Millis,
    event::Seq,
    history,
    store::{ListPage, ListQuery, PageToken, page::PageTasks},
};

/// Every state that there is.
const STATES: [i32; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

/// All of an owner's, and those in a context.
const AMONG: [&str; 2] = ["scope = :scope", "scope = :scope AND context = :context"];

/// The part of a query that all forms of it share. What comes behind a place is before it in the index.
const RANGE: &str = "time >= :since AND (time, key) < (:time, :after)";

const ORDER: &str = "ORDER BY time DESC, key DESC LIMIT :limit";

/// How many there are in a state, of all and of a context.
const COUNT: [&str; 2] = [
    "SELECT count(*) FROM task WHERE scope = ?1 AND state = ?2 AND time >= ?3",
    "SELECT count(*) FROM task WHERE scope = ?1 AND state = ?2 AND time >= ?3 AND context = ?4",
];

/// Those in one state, of all or of a context.
static OF_STATE: LazyLock<[String; 2]> = LazyLock::new(|| {
    AMONG.map(|among| {
        format!("SELECT id, key, time, seq FROM task WHERE {among} AND state = :state AND {RANGE} {ORDER}")
    })
});

/// Those in all states: each has its own order, and they are merged as they are read.
static OF_ALL: LazyLock<[String; 2]> = LazyLock::new(|| {
    AMONG.map(|among| {
        let each =
            STATES.map(|it| format!("SELECT id, key, time, seq FROM task WHERE {among} AND state = {it} AND {RANGE}"));
        format!("{} {ORDER}", each.join(" UNION ALL "))
    })
});

/// Each form of a query.
#[cfg(test)]
pub(super) static ALL: [&LazyLock<[String; 2]>; 2] = [&OF_STATE, &OF_ALL];

/// A place among an owner's tasks.
struct ListPosition {
    id: i64,
    key: String,
    time: Millis,
    seq: Seq,
}

/// What a key comes before where there is none: in SQLite's order, bytes are behind all text.
enum After<'a> {
    Key(&'a str),
    All,
}

impl ToSql for After<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Key(it) => it.to_sql(),
            Self::All => Ok(ToSqlOutput::Owned(Value::Blob(Vec::new()))),
        }
    }
}

/// A page of tasks.
pub(super) fn list(db: &Connection, query: &ListQuery) -> rusqlite::Result<ListPage> {
    let sql = "SELECT id FROM scope WHERE owner = ? AND tenant = ?";
    let (owner, tenant) = (&*query.scope.owner, &*query.scope.tenant);
    let Some(scope) = db.prepare_cached(sql)?.query_row((owner, tenant), |it| it.get(0)).optional()? else {
        return Ok(ListPage::default());
    };
    let places = places(db, scope, query)?;
    let mut all = TaskRows::new(db, query.include_artifacts)?;
    let mut page = PageTasks::new(query);
    let (mut last, mut next) = (None, None);
    for (at, place) in places.iter().enumerate() {
        let fits = at < query.limit && {
            match all.at(place.id, place.seq) {
                Ok(mut task) => {
                    history::shorten(&mut task.history, query.history_limit());
                    page.push(task)
                }
                Err(error) if is_damage(&error) => {
                    tracing::warn!(task.id = place.key, error.cause = %error, "a damaged task is left out of a list");
                    true
                }
                Err(error) => return Err(error),
            }
        };
        if !fits {
            next = last.map(|it: &ListPosition| PageToken { time: it.time, id: it.key.as_str().into() });
            break;
        }
        last = Some(place);
    }
    Ok(ListPage { tasks: page.into_tasks(), total: total(db, scope, query)?, next })
}

fn places(db: &Connection, scope: i64, query: &ListQuery) -> rusqlite::Result<Vec<ListPosition>> {
    let place =
        |it: &Row<'_>| Ok(ListPosition { id: it.get(0)?, key: it.get(1)?, time: it.get(2)?, seq: number(it.get(3)?) });
    let (time, after) = match &query.after {
        Some(it) => (it.time, After::Key(&it.id)),
        None => (Millis::MAX, After::All),
    };
    let since = query.since.unwrap_or(Millis::MIN);
    // One more than fits on the page tells whether there is a next one.
    let limit = i64::try_from(query.limit.saturating_add(1)).unwrap_or(i64::MAX);
    let state = query.state.map(i32::from);
    let form = usize::from(query.context.is_some());
    let mut find = db.prepare_cached(&(if state.is_some() { &OF_STATE } else { &OF_ALL })[form])?;
    let all: [(&str, &dyn ToSql); 7] = [
        (":scope", &scope),
        (":since", &since),
        (":time", &time),
        (":after", &after),
        (":limit", &limit),
        (":context", &query.context),
        (":state", &state),
    ];
    // Those that this form has.
    for (name, value) in all {
        if let Some(it) = find.parameter_index(name)? {
            find.raw_bind_parameter(it, value)?;
        }
    }
    find.raw_query().mapped(place).collect()
}

/// How many tasks there are on all pages: a number that is kept, where one is, and else the length of a piece of an
/// index.
fn total(db: &Connection, scope: i64, query: &ListQuery) -> rusqlite::Result<u64> {
    let (state, context) = (query.state.map(i32::from), query.context.as_deref());
    let kept: Option<i64> = match (query.since, context) {
        (Some(_), _) => None,
        (None, None) => {
            let sql = "SELECT ifnull(sum(tasks), 0) FROM total WHERE scope = ? AND (?2 IS NULL OR state = ?2)";
            db.prepare_cached(sql)?.query_row((scope, state), |it| it.get(0))?
        }
        // Nothing where it is no crowd.
        (None, Some(context)) => {
            let sql =
                "SELECT sum(iif(?3 IS NULL OR state = ?3, tasks, 0)) FROM crowd WHERE scope = ?1 AND context = ?2";
            db.prepare_cached(sql)?.query_row((scope, context, state), |it| it.get(0))?
        }
    };
    let total = if let Some(it) = kept {
        it
    } else {
        let sql = COUNT[usize::from(context.is_some())];
        let (mut count, since) = (db.prepare_cached(sql)?, query.since.unwrap_or(Millis::MIN));
        let states = STATES.iter().filter(|it| state.is_none_or(|state| state == **it));
        let counts = states.map(|it| match context {
            Some(context) => count.query_row((scope, it, since, context), |it| it.get::<_, i64>(0)),
            None => count.query_row((scope, it, since), |it| it.get(0)),
        });
        counts.sum::<rusqlite::Result<_>>()?
    };
    Ok(number(total))
}
