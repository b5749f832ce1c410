//! Task lists: pages of an owner's tasks, read along an index from the page token on, without sorting or scanning.

use std::{collections::HashMap, sync::LazyLock, time::Duration};

use parking_lot::Mutex;
use prost::Message as _;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    ListPage, ListQuery, Millis, Postgres, Task,
    connection::{Failure, Parameter},
    read,
    values::{comparable, scope_row, signed, unsigned},
};
use crate::store::{PageToken, page::read_page};

/// Codes of all task states.
const STATES: [i16; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

/// Conditions: all tasks of a scope, and those of a context. Each has all parameters.
const FILTERS: [&str; 2] = ["scope = $1 AND ($2::text IS NULL OR true)", "scope = $1 AND context = $2"];

/// Selects the rows of a page, for each element of [`FILTERS`]. The index is sorted within each state.
static PAGES: LazyLock<[String; 2]> = LazyLock::new(|| {
    FILTERS.map(|filter| {
        let branches = STATES.map(|state| {
            format!(
                r#"(SELECT tid, id, "time" FROM @task WHERE {filter} AND state = {state} AND {state} = ANY($3::int2[])
                AND "time" >= $4 AND ("time", id) < ($5, $6) ORDER BY "time" DESC, id DESC LIMIT $7)"#
            )
        });
        format!(r#"{} ORDER BY "time" DESC, id DESC LIMIT $7"#, branches.join(" UNION ALL "))
    })
});

/// Counts the tasks, for each element of [`FILTERS`].
static COUNTS: LazyLock<[String; 2]> = LazyLock::new(|| {
    FILTERS.map(|filter| {
        format!(r#"SELECT count(*) AS total FROM @task WHERE {filter} AND state = ANY($3::int2[]) AND "time" >= $4"#)
    })
});

/// Number of tasks from which on a count may be kept: a smaller one is slow only while the database is busy.
const MANY: u64 = 10_000;

/// Time of a count above which it is kept.
const SLOW_COUNT: Duration = Duration::from_millis(50);

/// Time for which a count is kept.
const COUNT_KEPT: Duration = Duration::from_secs(30);

/// Maximum number of kept counts.
const MAX_COUNTS: usize = 1024;

/// Filters of a list: scope, context, states and first time.
type Filters = (Uuid, Option<Box<str>>, Vec<i16>, Millis);

/// Numbers of tasks that took long to count.
#[derive(Default)]
pub(super) struct Totals(Mutex<HashMap<Filters, (u64, Instant)>>);

impl Totals {
    /// Returns a count that has taken long, and when it was made.
    fn get(&self, filters: &Filters) -> Option<(u64, Instant)> {
        self.0.lock().get(filters).copied()
    }

    fn keep(&self, filters: Filters, total: u64) {
        let mut counts = self.0.lock();
        if counts.len() >= MAX_COUNTS {
            counts.clear();
        }
        counts.insert(filters, (total, Instant::now()));
    }
}

impl Postgres {
    /// Returns a page of tasks. Damaged tasks are omitted.
    pub(super) async fn list_tasks(&self, query: &ListQuery) -> Result<ListPage, Failure> {
        let (scope, context) = (scope_row(&query.scope), query.context.as_deref().and_then(comparable));
        let states: Vec<i16> = match query.state {
            Some(state) => vec![i16::try_from(i32::from(state)).unwrap_or(-1)],
            None => STATES.to_vec(),
        };
        let since = query.since.unwrap_or(Millis::MIN);
        let (time, after) = query.after.as_ref().map_or((Millis::MAX, ""), |token| (token.time, &*token.id));
        // One row more than the limit shows whether there is a next page.
        let limit = signed(query.limit.saturating_add(1));
        let n = usize::from(query.context.is_some());
        let common: [&dyn Parameter; 4] = [&scope, &context, &states, &since];
        let rest: [&dyn Parameter; 3] = [&time, &after, &limit];
        let page: Vec<_> = common.into_iter().chain(rest).collect();
        let filters = (scope, query.context.clone(), states.clone(), since);
        let count = async {
            let (start, known) = (Instant::now(), self.totals.get(&filters));
            let connection = match known {
                Some((total, since)) if since.elapsed() < COUNT_KEPT => return Ok(total),
                Some(_) => &self.background,
                None => self.reader(),
            };
            let row = connection.query_row(&COUNTS[n], &common).await?;
            let total = row.map(|row| unsigned(&row, "total")).transpose()?.unwrap_or(0);
            if start.elapsed() > SLOW_COUNT && total >= MANY {
                self.totals.keep(filters.clone(), total);
            }
            Ok(total)
        };
        let (rows, total) = tokio::try_join!(self.reader().query(&PAGES[n], &page), count)?;
        let mut tokens = Vec::with_capacity(rows.len());
        for row in rows {
            let token = PageToken { time: row.try_get("time")?, id: row.try_get::<_, &str>("id")?.into() };
            tokens.push((token, row.try_get::<_, Uuid>("tid")?));
        }
        let rows = self.read_rows(query, tokens).await?;
        let (tasks, next) = read_page(query, rows, |_, task| Ok::<_, Failure>(task))?;
        Ok(ListPage { tasks, total, next })
    }

    /// Reads the tasks of rows, until they exceed the size of the page.
    async fn read_rows(
        &self,
        query: &ListQuery,
        rows: Vec<(PageToken, Uuid)>,
    ) -> Result<Vec<(PageToken, Option<Task>)>, Failure> {
        let (mut tasks, mut bytes, mut count) = (Vec::new(), 0_usize, 0);
        let mut rest = &rows[..];
        // A page has at least one task, and ends before the one that exceeds its size.
        while !rest.is_empty() && (count < 2 || query.max_bytes.is_none_or(|max| bytes <= max)) {
            let tids: Vec<Uuid> = rest.iter().map(|(_, tid)| *tid).collect();
            let (mut found, read_count) = read::tasks(self.reader(), &tids, query.include_artifacts).await?;
            let (read, later) = rest.split_at(read_count.clamp(1, rest.len()));
            for (token, tid) in read {
                let task = match found.remove(tid) {
                    Some(Err(failure)) => {
                        tracing::warn!(task.id = &*token.id, error.cause = %failure, "damaged task omitted from a list");
                        None
                    }
                    found => found.transpose()?,
                };
                let task = task.map(|mut task| {
                    query.history_limit().truncate(&mut task.history);
                    task
                });
                bytes = bytes.saturating_add(task.as_ref().map_or(0, Task::encoded_len));
                count += usize::from(task.is_some());
                tasks.push((token.clone(), task));
            }
            rest = later;
        }
        // The page ends before these.
        tasks.extend(rest.iter().map(|(token, _)| (token.clone(), None)));
        Ok(tasks)
    }
}
