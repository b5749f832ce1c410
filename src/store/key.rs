//! Whose task it is, and which: the key of everything that a store keeps.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
    sync::{Arc, LazyLock},
};

/// Whose tasks: one owner's, in one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// What the policy derives from the principal; empty for callers without a name.
    pub owner: Arc<str>,
    /// Empty where none is named.
    pub tenant: Box<str>,
}

/// A task of an owner in a tenant. Cheap to copy, and hashed once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(Arc<Parts>);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Parts {
    // In this order: keys of a scope are sorted by their ids.
    id: Box<str>,
    hash: u64,
    scope: Arc<Scope>,
}

impl Key {
    /// The key of a task.
    pub fn new(scope: &Arc<Scope>, id: &str) -> Self {
        static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let hash = SEED.hash_one((scope, id));
        Self(Arc::new(Parts { id: id.into(), hash, scope: Arc::clone(scope) }))
    }

    /// The id of the task.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Whose it is.
    pub fn scope(&self) -> &Arc<Scope> {
        &self.0.scope
    }

    /// Which of `n` shares it falls to, the same one as long as this process lives.
    pub fn share(&self, n: usize) -> usize {
        usize::try_from(self.0.hash >> 33).unwrap_or(0) % n
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.id)
    }
}

/// For keys, which are hashed already, with a seed that callers can't know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // A key writes its hash whole; anything else is mixed in so that it works, if slowly.
        self.0 = bytes.iter().fold(self.0, |hash, it| hash.wrapping_mul(31).wrapping_add(u64::from(*it)));
    }

    fn write_u64(&mut self, it: u64) {
        self.0 = it;
    }
}

/// A map of tasks.
pub type KeyMap<V> = HashMap<Key, V, BuildHasherDefault<Hashed>>;
