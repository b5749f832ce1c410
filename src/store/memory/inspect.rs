//! Reads of the store in memory for its operators.

use std::{cmp::Reverse, collections::BTreeMap};

use async_trait::async_trait;

use super::{EntryLog, Inspect, ListQuery, Memory, Seq, TaskEntry, TaskKey, Unavailable, listed_task, logged_events};
use crate::{
    protocol::{event::Event, pb::v1::TaskState},
    store::{
        Counts, InspectedTask, LoggedEvent, MAX_OWNERS, READ_BYTES, TaskFilter, TaskPage, TaskSummary,
        inspect::status_text, log_codec::to_u64, turn_record::time_of,
    },
};

#[async_trait]
impl Inspect for Memory {
    async fn tasks(&self, filter: &TaskFilter, limit: usize) -> Result<TaskPage, Unavailable> {
        // One task more than the limit shows whether there is a next page.
        let (mut found, before) = (BTreeMap::new(), filter.before.unwrap_or(u64::MAX));
        for shard in &self.shards {
            for (key, entry) in &*shard.lock() {
                if entry.number < before && is_selected(filter, key, entry) {
                    found.insert(Reverse(entry.number), key.clone());
                    if found.len() > limit.saturating_add(1) {
                        found.pop_last();
                    }
                }
            }
        }
        let summaries = found.values().filter_map(|key| self.with(key, |entry| summary(key, entry)));
        Ok(TaskPage::new(summaries.collect(), limit))
    }

    async fn task(&self, number: u64) -> Result<Option<InspectedTask>, Unavailable> {
        let query = ListQuery { include_artifacts: true, ..ListQuery::default() };
        Ok(self.with_number(number, |key, entry| {
            let configs = entry.push.as_ref().map(|push| push.page(0, usize::MAX).configs);
            InspectedTask {
                summary: summary(key, entry),
                task: listed_task(entry, key, &query),
                push_configs: configs.unwrap_or_default(),
                turns: entry.commits.turns(key.id()),
            }
        }))
    }

    async fn events(&self, number: u64, after: Seq, limit: usize) -> Result<Vec<LoggedEvent>, Unavailable> {
        let events = self.with_number(number, |key, entry| {
            let ended = entry.row.state.is_terminal().then_some(entry.row.time);
            let logged = |event: Event| {
                let (commit, time) = entry.commits.commit(event.seq()).or(ended.map(|time| (0, time))).unzip();
                LoggedEvent { event, time, commit }
            };
            logged_events(entry, key, after, limit, READ_BYTES).into_iter().map(logged).collect()
        });
        Ok(events.unwrap_or_default())
    }

    async fn counts(&self) -> Result<Counts, Unavailable> {
        let (mut counts, scopes) = (Counts::default(), self.index.lock());
        for (scope, index) in &*scopes {
            counts.owners.push((scope.owner.to_string(), scope.tenant.to_string(), to_u64(index.count(None))));
            counts.idempotency_keys += to_u64(index.sends.len());
        }
        let count = |state| scopes.values().map(|index| to_u64(index.count(Some(state)))).sum();
        let states = (0..).map_while(|number| TaskState::try_from(number).ok()).map(|state| (state, count(state)));
        counts.tasks = states.filter(|(_, tasks)| *tasks > 0).collect();
        drop(scopes);
        counts.owners.retain(|(.., tasks)| *tasks > 0);
        counts.owner_count = to_u64(counts.owners.len());
        counts.owners.sort_unstable_by(|a, b| (b.2, &a.0, &a.1).cmp(&(a.2, &b.0, &b.1)));
        counts.owners.truncate(MAX_OWNERS);
        counts.push_configs = to_u64(self.deliveries.lock().len());
        Ok(counts)
    }
}

impl Memory {
    /// Reads the task with a number.
    fn with_number<T>(&self, number: u64, read: impl Fn(&TaskKey, &TaskEntry) -> T) -> Option<T> {
        self.shards.iter().find_map(|shard| {
            let shard = shard.lock();
            shard.iter().find(|(_, entry)| entry.number == number).map(|(key, entry)| read(key, entry))
        })
    }
}

fn is_selected(filter: &TaskFilter, key: &TaskKey, entry: &TaskEntry) -> bool {
    let is = |wanted: &Option<String>, actual: &str| wanted.as_deref().is_none_or(|wanted| wanted == actual);
    is(&filter.id, key.id())
        && is(&filter.owner, &key.scope().owner)
        && is(&filter.tenant, &key.scope().tenant)
        && is(&filter.context, &entry.row.context)
        && filter.id_prefix.as_deref().is_none_or(|prefix| key.id().starts_with(prefix))
        && (filter.states.is_empty() || filter.states.contains(&entry.row.state))
        && filter.error_id.as_deref().is_none_or(|id| entry.commits.error_id().as_deref() == Some(id))
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
        created: time_of(key.id()),
        time: entry.row.time,
        attempt: entry.row.attempt,
        error_id: entry.commits.error_id(),
        status_text: status_text(listed_task(entry, key, &ListQuery::default()).status.as_ref()),
        push_configs: entry.push.as_ref().map_or(0, |push| to_u64(push.page(0, usize::MAX).configs.len())),
        events: entry.row.seq,
        has_log: true,
        bytes: to_u64(bytes),
    }
}
