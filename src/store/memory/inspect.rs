//! Reads of the store in memory for its operators.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use async_trait::async_trait;

use super::{EntryLog, Inspect, ListQuery, Memory, TaskEntry, TaskKey, Unavailable, listed_task};
use crate::{
    protocol::pb::v1::{Task, TaskState},
    store::{Counts, MAX_OWNERS, PushConfig, TaskFilter, TaskPage, TaskSummary, log_codec::to_u64},
};

#[async_trait]
impl Inspect for Memory {
    async fn tasks(&self, filter: &TaskFilter, limit: usize) -> Result<TaskPage, Unavailable> {
        // One task more than the limit shows whether there is a next page.
        let (mut found, before) = (BTreeMap::new(), filter.before.unwrap_or(u64::MAX));
        for shard in &self.shards {
            for (key, entry) in &*shard.lock() {
                if entry.number < before && is_selected(filter, key, entry) {
                    found.insert(Reverse(entry.number), summary(key, entry));
                    if found.len() > limit.saturating_add(1) {
                        found.pop_last();
                    }
                }
            }
        }
        Ok(TaskPage::new(found.into_values().collect(), limit))
    }

    async fn task(&self, number: u64) -> Result<Option<(Task, Vec<Arc<PushConfig>>)>, Unavailable> {
        let query = ListQuery { include_artifacts: true, ..ListQuery::default() };
        Ok(self.shards.iter().find_map(|shard| {
            let shard = shard.lock();
            let (key, entry) = shard.iter().find(|(_, entry)| entry.number == number)?;
            let configs = entry.push.as_ref().map(|push| push.page(0, usize::MAX).configs);
            Some((listed_task(entry, key, &query), configs.unwrap_or_default()))
        }))
    }

    async fn counts(&self) -> Result<Counts, Unavailable> {
        let (mut counts, mut states) = (Counts::default(), BTreeMap::<i32, u64>::new());
        for (scope, index) in &*self.index.lock() {
            for state in (0..).map_while(|number| TaskState::try_from(number).ok()) {
                *states.entry(state.into()).or_default() += to_u64(index.count(Some(state)));
            }
            counts.owners.push((scope.owner.to_string(), scope.tenant.to_string(), to_u64(index.count(None))));
            counts.idempotency_keys += to_u64(index.sends.len());
        }
        let states = states.into_iter().filter_map(|(state, tasks)| Some((TaskState::try_from(state).ok()?, tasks)));
        counts.tasks = states.filter(|(_, tasks)| *tasks > 0).collect();
        counts.owners.retain(|(.., tasks)| *tasks > 0);
        counts.owner_count = to_u64(counts.owners.len());
        counts.owners.sort_unstable_by(|a, b| (b.2, &a.0, &a.1).cmp(&(a.2, &b.0, &b.1)));
        counts.owners.truncate(MAX_OWNERS);
        counts.push_configs = to_u64(self.deliveries.lock().len());
        Ok(counts)
    }
}

fn is_selected(filter: &TaskFilter, key: &TaskKey, entry: &TaskEntry) -> bool {
    let is = |wanted: &Option<String>, actual: &str| wanted.as_deref().is_none_or(|wanted| wanted == actual);
    is(&filter.id, key.id())
        && is(&filter.owner, &key.scope().owner)
        && is(&filter.tenant, &key.scope().tenant)
        && filter.state.is_none_or(|state| state == entry.row.state)
}

fn summary(key: &TaskKey, entry: &TaskEntry) -> TaskSummary {
    let bytes = match &entry.log {
        EntryLog::Open(log) => log.len(),
        EntryLog::Sealed(log) => log.bytes().len(),
    };
    TaskSummary {
        number: entry.number,
        id: key.id().to_owned(),
        owner: key.scope().owner.to_string(),
        tenant: key.scope().tenant.to_string(),
        context: entry.row.context.to_string(),
        state: entry.row.state,
        time: entry.row.time,
        events: entry.row.seq,
        has_log: true,
        bytes: to_u64(bytes),
    }
}
