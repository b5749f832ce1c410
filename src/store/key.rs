//! Task keys: the owner, the tenant and the id of a task, with a precomputed hash for maps and shards.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::{Arc, LazyLock},
};

/// Owner and tenant of tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// Owner that the authorization policy derives from the principal. Empty for anonymous callers.
    pub owner: Arc<str>,
    /// Tenant. Empty if the request names none.
    pub tenant: Box<str>,
}

/// Key of a task: its scope and its id. Cheap to clone, and hashed once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskKey(Arc<Parts>);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Parts {
    // First, because the derived order must sort the keys of a scope by id.
    id: Box<str>,
    scope: Arc<Scope>,
    /// Random from process to process, so that clients can't choose ids with equal hashes.
    hash: u64,
}

impl TaskKey {
    /// Creates the key of a task.
    pub fn new(scope: &Arc<Scope>, id: &str) -> Self {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let hash = SEED.hash_one((scope, id));
        Self(Arc::new(Parts { id: id.into(), hash, scope: Arc::clone(scope) }))
    }

    /// Id of the task.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Owner and tenant of the task.
    pub fn scope(&self) -> &Arc<Scope> {
        &self.0.scope
    }

    /// Returns the lane of this key, out of `n`. Depends only on the id: the lane decides which tasks are committed together.
    pub(crate) fn lane(&self, n: usize) -> usize {
        self.id().bytes().fold(0, |hash: usize, byte| hash.wrapping_mul(31).wrapping_add(byte.into())) % n
    }

    /// Returns the shard of this key, out of `n`. Stable only within the process, so it must not decide an order.
    pub fn shard(&self, n: usize) -> usize {
        usize::try_from(self.0.hash >> 33).unwrap_or(0) % n
    }
}

impl Hash for TaskKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Debug for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.id)
    }
}

/// Map from task keys to values. Its order is random.
pub type KeyMap<V> = foldhash::HashMap<TaskKey, V>;
