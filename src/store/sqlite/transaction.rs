//! Running write transaction, with the caches of the writer.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use rusqlite::Connection;

use super::{Millis, Quota, Scope};

/// Running write transaction, with the writer's caches and the pending changes of the counters.
pub(super) struct WriteTransaction<'a> {
    pub(super) db: &'a Connection,
    /// Row ids of scopes.
    pub(super) scopes: &'a mut HashMap<Arc<Scope>, i64>,
    /// Includes the changes of this transaction, which are undone if it is rolled back.
    pub(super) quota: &'a Mutex<Quota>,
    pub(super) quota_changes: Vec<QuotaChange>,
    pub(super) large_contexts: &'a mut LargeContexts,
    pub(super) unreadable: &'a mut UnreadableTasks,
    pub(super) eviction_starts: &'a mut EvictionStarts,
    pub(super) counters: Counters,
}

/// Change of the quota: the owner, and whether the state of the task was and is terminal.
pub(super) type QuotaChange = (Arc<str>, Option<bool>, Option<bool>);

/// Changes of the counters within a transaction.
#[derive(Default)]
pub(super) struct Counters {
    /// By scope and state.
    pub(super) totals: HashMap<(i64, i32), i64>,
    /// By scope, context and state.
    pub(super) large_contexts: HashMap<(i64, Arc<str>, i32), i64>,
}

/// Contexts with stored counts. `None` if they must be loaded again.
pub(super) type LargeContexts = Option<HashSet<(i64, Arc<str>)>>;

/// Times at which evictions begin to search, because all older tasks in a terminal state have undelivered push notifications
/// or can't be read. Otherwise each eviction would read all of those again.
#[derive(Debug)]
pub(super) struct EvictionStarts {
    all: Millis,
    /// For evictions because of the limit per owner.
    owners: HashMap<Arc<str>, Millis>,
}

impl EvictionStarts {
    /// Maximum number of owners.
    const MAX_OWNERS: usize = 16_384;

    /// Records that a task in a terminal state since this time may be evicted.
    pub(super) fn lower(&mut self, owner: &str, time: Millis) {
        self.all = self.all.min(time);
        if let Some(start) = self.owners.get_mut(owner) {
            *start = time.min(*start);
        }
    }

    /// Returns the time for all tasks, or for those of an owner.
    pub(super) fn of(&self, owner: Option<&str>) -> Millis {
        owner.map_or(self.all, |owner| self.owners.get(owner).copied().unwrap_or(Millis::MIN))
    }

    /// Sets the time for an owner.
    pub(super) fn raise(&mut self, owner: Option<&str>, time: Millis) {
        let Some(owner) = owner else {
            self.all = time;
            return;
        };
        if self.owners.len() >= Self::MAX_OWNERS {
            self.owners.clear();
        }
        self.owners.insert(owner.into(), time);
    }
}

impl Default for EvictionStarts {
    fn default() -> Self {
        Self { all: Millis::MIN, owners: HashMap::new() }
    }
}

/// Maximum number of unreadable tasks that evictions skip. With more of them, a full store rejects new tasks.
pub(super) const MAX_UNREADABLE: usize = 1000;

/// Tasks in a terminal state that can't be read, by row id. They are not deleted, and each is reported once.
#[derive(Debug, Default)]
pub(super) struct UnreadableTasks(pub(super) BTreeSet<i64>);

impl UnreadableTasks {
    /// Adds a row, and reports it, unless there are too many to remember it.
    pub(super) fn add(&mut self, db: &Connection, id: i64, cause: &rusqlite::Error) -> rusqlite::Result<()> {
        if self.0.len() >= MAX_UNREADABLE || !self.0.insert(id) {
            return Ok(());
        }
        // The key may be unreadable too.
        let sql = "SELECT CAST(key AS BLOB) FROM task WHERE id = ?";
        let key = db.prepare_cached(sql)?.query_row([id], |row| row.get::<_, Vec<u8>>(0))?;
        tracing::error!(
            task.row = id, task.id = %String::from_utf8_lossy(&key), error.cause = %cause,
            "terminal task can't be read: it is not deleted, and skipped by evictions and sweeps; see `a2a admin check`"
        );
        Ok(())
    }

    /// Row ids as a JSON array.
    pub(super) fn to_json(&self) -> String {
        let rows: Vec<_> = self.0.iter().map(i64::to_string).collect();
        format!("[{}]", rows.join(","))
    }
}
