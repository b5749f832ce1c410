//! Writer of one task together with its store, which the test can replace by the reopened one.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use a2a_service::{
    clock::Millis,
    pb::v1::stream_response::Payload,
    store::{Commit, Refused, Scope, Store, memory::Memory},
};
use a2a_store_suite::writer::TaskWriter;
pub(crate) use a2a_store_suite::writer::{chunk, message, scope, status};

use super::opened::OpenedStore;

pub(crate) struct Writer {
    store: Arc<dyn Store>,
    task: TaskWriter,
}

impl Writer {
    /// Writer of a task that does not exist yet.
    pub(crate) fn new(store: &OpenedStore, scope: &Arc<Scope>, id: &str) -> Self {
        Self { store: Arc::clone(&store.store), task: TaskWriter::new(scope, id) }
    }

    pub(crate) fn within(store: &OpenedStore, scope: &Arc<Scope>, id: &str, context: &str, time: Millis) -> Self {
        Self { store: Arc::clone(&store.store), task: TaskWriter::within(scope, id, context, time) }
    }

    pub(crate) fn next(&self, payloads: impl IntoIterator<Item = Payload>) -> Commit {
        self.task.next(&*self.store, payloads)
    }

    pub(crate) async fn write(&mut self, commit: Commit) -> Result<(), Refused> {
        self.task.write(&*self.store, commit).await.unwrap()
    }

    pub(crate) async fn commit(&mut self, payloads: impl IntoIterator<Item = Payload>) -> Result<(), Refused> {
        self.task.commit(&*self.store, payloads).await.unwrap()
    }

    /// Asserts that the store has what was written.
    pub(crate) async fn check(&self) {
        self.task.check(&*self.store).await.unwrap();
    }

    /// Releases the reference to the store.
    pub(crate) fn release_store(&mut self) {
        self.store = Arc::new(Memory::default());
    }

    /// Uses the reopened store.
    pub(crate) fn use_store(&mut self, store: &OpenedStore) {
        self.store = Arc::clone(&store.store);
    }
}

impl Deref for Writer {
    type Target = TaskWriter;

    fn deref(&self) -> &TaskWriter {
        &self.task
    }
}

impl DerefMut for Writer {
    fn deref_mut(&mut self) -> &mut TaskWriter {
        &mut self.task
    }
}
