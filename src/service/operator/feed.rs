//! Live feed of the tasks of all owners: the tasks that change, as they are when the reader takes them. A feed has no queue of its
//! own: one that lags behind the commits gets a reset, and reads the list again.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use futures_util::stream;
use serde_json::Value;
use tokio::{
    sync::{
        OwnedSemaphorePermit,
        broadcast::{
            self,
            error::{RecvError, TryRecvError},
        },
    },
    time::sleep,
};
use tokio_stream::Stream;

use super::{Operator, Reader, TaskQuery, tasks::task_json};
use crate::{
    engine::{
        execution::{RETRY_AFTER, limit_error},
        journal::CommitObserver,
    },
    protocol::error::Error,
    store::{TaskFilter, TaskKey},
};

/// Maximum number of open feeds.
pub(super) const MAX_FEEDS: usize = 16;

/// Number of commits by which a feed may lag behind.
const MAX_LAG: usize = 4096;

/// Time for which the commits of tasks are gathered, so that a task that streams is read a few times a second.
const INTERVAL: Duration = Duration::from_millis(200);

/// Event of a feed.
pub(crate) enum FeedEvent {
    /// Task that has changed.
    Task(Value),
    /// Changes may be missing: the reader reads the list again.
    Reset,
}

/// Passes the commits of an agent on to the feeds.
struct Changes {
    /// Position of the agent.
    agent: usize,
    sender: broadcast::Sender<(usize, TaskKey)>,
}

impl CommitObserver for Changes {
    fn on_committed(&self, key: &TaskKey, _: bool) {
        if self.sender.receiver_count() > 0 {
            // Fails only without receivers.
            _ = self.sender.send((self.agent, key.clone()));
        }
    }

    fn on_push_deleted(&self, _: &TaskKey) {}
}

struct Feed {
    operator: Arc<Operator>,
    filter: TaskFilter,
    /// Positions of the selected agents.
    agents: Vec<usize>,
    changes: broadcast::Receiver<(usize, TaskKey)>,
    changed: VecDeque<(usize, TaskKey)>,
    _permit: OwnedSemaphorePermit,
}

impl Operator {
    /// Returns a feed of the tasks that the query selects. It never ends by itself.
    ///
    /// # Errors
    /// `ResourceExhausted` if there are too many feeds.
    pub(crate) fn feed(
        self: Arc<Self>,
        query: &TaskQuery,
        reader: &Reader<'_>,
    ) -> Result<impl Stream<Item = FeedEvent> + Send + use<>, Error> {
        reader.access.require_full()?;
        let (filter, agents) = (query.filter()?, self.agents(query.agent())?.into_iter().map(|(at, _)| at).collect());
        let permit = Arc::clone(&self.feeds).try_acquire_owned().map_err(|_| {
            let why = format!("{MAX_FEEDS} feeds of operator/tasks are open; close some or retry later");
            limit_error("operator_feeds", why).retry_after(RETRY_AFTER)
        })?;
        let sender = self.changes.get_or_init(|| {
            let sender = broadcast::Sender::new(MAX_LAG);
            for (position, agent) in self.agents.iter().enumerate() {
                agent.service.journal().observe(Arc::new(Changes { agent: position, sender: sender.clone() }));
            }
            sender
        });
        reader.audit("operator/tasks feed", 1);
        let changes = sender.subscribe();
        let feed = Feed { operator: self, filter, agents, changes, changed: VecDeque::new(), _permit: permit };
        Ok(stream::unfold(feed, |mut feed| async move { feed.next().await.map(|event| (event, feed)) }))
    }
}

impl Feed {
    /// Waits for the next event. `None` once the server ends.
    async fn next(&mut self) -> Option<FeedEvent> {
        loop {
            while let Some((agent, key)) = self.changed.pop_front() {
                if let Some(event) = self.read(agent, &key).await {
                    return Some(event);
                }
            }
            let mut changed = match self.changes.recv().await {
                Ok(first) => BTreeSet::from([first]),
                Err(RecvError::Lagged(_)) => return Some(self.reset()),
                Err(RecvError::Closed) => return None,
            };
            sleep(INTERVAL).await;
            loop {
                match self.changes.try_recv() {
                    Ok(change) => _ = changed.insert(change),
                    Err(TryRecvError::Lagged(_)) => return Some(self.reset()),
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
            self.changed.extend(changed);
        }
    }

    /// Forgets the changes up to now.
    fn reset(&mut self) -> FeedEvent {
        self.changes = self.changes.resubscribe();
        FeedEvent::Reset
    }

    /// Reads a task. `None` if the filter does not select it, or it was deleted. If the store is unavailable, the change is missing.
    async fn read(&self, position: usize, key: &TaskKey) -> Option<FeedEvent> {
        let agent = self.operator.agents.get(position).filter(|_| self.agents.contains(&position))?;
        let (scope, filter) = (key.scope(), &self.filter);
        let is = |wanted: &Option<String>, actual: &str| wanted.as_deref().is_none_or(|wanted| wanted == actual);
        let is_selected = is(&filter.owner, &scope.owner)
            && is(&filter.tenant, &scope.tenant)
            && filter.id_prefix.as_deref().is_none_or(|prefix| key.id().starts_with(prefix));
        if !is_selected {
            return None;
        }
        let filter = TaskFilter {
            id: Some(key.id().to_owned()),
            owner: Some(scope.owner.to_string()),
            tenant: Some(scope.tenant.to_string()),
            ..filter.clone()
        };
        let Ok(page) = agent.inspect().ok()?.tasks(&filter, 1).await else { return Some(FeedEvent::Reset) };
        page.tasks.first().map(|task| FeedEvent::Task(task_json(agent, task)))
    }
}
