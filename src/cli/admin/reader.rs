//! Reads of a task database: of a file, or of one that servers share.

use std::io::{BufRead, Write};

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};

use super::{NotFound, Target, Usage};
use crate::{
    cli::config::StorePath,
    protocol::event::Seq,
    store::{
        DeliveryPage, DeliveryToken, Inspect, InspectedTask, LoggedEvent, PushQueue as _, TaskFilter, TaskPage,
        postgres::{Options, Postgres},
        sqlite::Inspector,
    },
};

fn options(target: &Target) -> Options {
    Options::default().prepared(target.config.store.prepared)
}

/// Creates or migrates the tables of a database that servers share.
pub(super) fn migrate(target: &Target) -> anyhow::Result<()> {
    let StorePath::Postgres(url) = &target.config.store.path else { return Ok(()) };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let migrated = runtime.block_on(Postgres::migrate(url.expose(), &options(target)));
    migrated.with_context(|| format!("can't migrate the store {url}"))
}

/// Imports tasks into a database that servers share, which gets its tables if it has none.
pub(super) fn import(target: &Target, lines: impl BufRead) -> anyhow::Result<u64> {
    migrate(target)?;
    Reader::open(target)?.run(async |store| store.import(lines).await)
}

/// Read access to a database, and more to one that servers share, which has the runtime of its connections.
pub(super) enum Reader {
    File(Inspector),
    Shared(Runtime, Box<Postgres>),
}

impl Reader {
    /// Opens an existing database, without becoming one of its servers.
    pub(super) fn open(target: &Target) -> anyhow::Result<Self> {
        let StorePath::Postgres(url) = &target.config.store.path else {
            return Ok(Self::File(Inspector::open(&target.path)?));
        };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let store = runtime.block_on(Postgres::open_for_operator(url.expose(), &options(target)));
        let store = store.with_context(|| format!("can't open the store {url}"))?;
        Ok(Self::Shared(runtime, store.into()))
    }

    /// Runs statements in a database that servers share.
    pub(super) fn run<T, E>(&self, run: impl AsyncFnOnce(&Postgres) -> Result<T, E>) -> anyhow::Result<T>
    where
        anyhow::Error: From<E>,
    {
        match self {
            Self::File(_) => Err(Usage("the store is a file".to_owned()).into()),
            Self::Shared(runtime, store) => Ok(runtime.block_on(run(store))?),
        }
    }

    /// Exports tasks. Returns their number. A failure of `out` is an [`io::Error`](std::io::Error).
    pub(super) fn export(
        &self,
        owner: Option<&str>,
        include_secrets: bool,
        out: &mut dyn Write,
    ) -> anyhow::Result<u64> {
        match self {
            Self::File(file) => Ok(file.export(owner, include_secrets, out)??),
            Self::Shared(..) => Ok(self.run(async |store| store.export(owner, include_secrets, out).await)??),
        }
    }

    pub(super) fn tasks(&self, filter: &TaskFilter, limit: usize) -> anyhow::Result<TaskPage> {
        match self {
            Self::File(file) => Ok(file.tasks(filter, limit)?),
            Self::Shared(..) => self.run(async |store| store.tasks(filter, limit).await),
        }
    }

    pub(super) fn task(&self, number: u64) -> anyhow::Result<InspectedTask> {
        let found = match self {
            Self::File(file) => file.task(number)?,
            Self::Shared(..) => self.run(async |store| store.task(number).await)?,
        };
        found.ok_or_else(|| NotFound("the task was deleted".to_owned()).into())
    }

    pub(super) fn events(&self, number: u64, after: Seq, limit: usize) -> anyhow::Result<Vec<LoggedEvent>> {
        match self {
            Self::File(file) => Ok(file.events(number, after, limit)?),
            Self::Shared(..) => self.run(async |store| Inspect::events(store, number, after, limit).await),
        }
    }

    pub(super) fn deliveries(&self, dead: bool, after: DeliveryToken, limit: usize) -> anyhow::Result<DeliveryPage> {
        match self {
            Self::File(file) => Ok(file.deliveries(dead, after, limit)?),
            Self::Shared(..) => self.run(async |store| store.deliveries(dead, after, limit).await),
        }
    }
}
