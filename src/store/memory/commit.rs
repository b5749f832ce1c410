//! Commits in memory: the row, the log and the index of a task.

use std::{
    collections::hash_map::Entry,
    sync::{Arc, atomic::Ordering},
};

use super::{
    Commit, CommitLog, DeliveryQueue, EntryLog, Memory, OpenLog, PushConfigs, Refused, SHARDS, SealedLog, SendOutcome,
    SyncStore, TaskEntry, TaskHead, TaskIds, TaskKey,
};
use crate::{
    protocol::event::Position,
    store::{Expect, IdempotencyRecord, Rejected},
};

impl SyncStore for Memory {
    fn commit_sync(&self, commit: &Commit) -> Result<(), Refused> {
        let is_new = commit.expect == Expect::New;
        // A retry of a committed change must not evict another task.
        if is_new && let Some(position) = self.with(&commit.key, |entry| entry.position) {
            return Err(Refused::Stale(Some(position)));
        }
        let owner = Some(&commit.key.scope().owner).filter(|_| is_new && commit.push.is_some());
        if let Some(owner) = owner {
            let reserved = self.deliveries.lock().reserve(owner, self.max_push_configs_per_owner);
            reserved.map_err(|full| Refused::Rejected(Rejected::Full(full)))?;
        }
        let committed = self.commit_admitted(commit, is_new);
        // The configuration is counted itself by now, if it was stored.
        if let Some(owner) = owner {
            self.deliveries.lock().count(owner, 1, 0);
        }
        committed
    }
}

impl Memory {
    fn commit_admitted(&self, commit: &Commit, is_new: bool) -> Result<(), Refused> {
        if !commit.sends.is_empty() {
            // Before the idempotency keys, which a committed change that is retried has registered itself.
            if let Expect::At(expected) = commit.expect
                && let position = self.with(&commit.key, |entry| entry.position)
                && position != Some(expected)
            {
                return Err(Refused::Stale(position));
            }
            self.register_sends(commit)?;
        }
        let reserved = if is_new { self.reserve(&commit.key) } else { Ok(()) };
        let write = |()| {
            self.write(commit).inspect_err(|_| {
                if is_new {
                    self.release(&commit.key);
                }
            })
        };
        reserved.and_then(write).inspect_err(|_| {
            self.remove_from_index(&commit.key, None, commit.sends.iter().map(|send| &send.key));
        })
    }

    fn write(&self, commit: &Commit) -> Result<(), Refused> {
        let Commit { key, expect, row, agent_state, turn_contexts, .. } = commit;
        let position = Position { fence: commit.fence, seq: row.seq };
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        let (entry, old) = match (shard.entry(key.clone()), expect) {
            (Entry::Vacant(vacant), Expect::New) => {
                let entry = vacant.insert(Box::new(TaskEntry {
                    number: self.created.fetch_add(1, Ordering::Relaxed) + 1,
                    position,
                    row: row.clone(),
                    agent_state: agent_state.clone(),
                    turn_contexts: turn_contexts.clone(),
                    idempotency_keys: Vec::new(),
                    push: None,
                    eviction_rank: None,
                    log: EntryLog::Open(OpenLog::default()),
                    commits: CommitLog::default(),
                }));
                (entry, None)
            }
            (Entry::Occupied(occupied), Expect::At(expected)) if occupied.get().position == *expected => {
                let entry = occupied.into_mut();
                let old = (entry.row.time, entry.row.state);
                (entry.position, entry.row) = (position, row.clone());
                if agent_state.is_some() {
                    entry.agent_state.clone_from(agent_state);
                }
                if turn_contexts.is_some() {
                    entry.turn_contexts.clone_from(turn_contexts);
                }
                (entry, Some(old))
            }
            (Entry::Occupied(occupied), _) => return Err(Refused::Stale(Some(occupied.get().position))),
            (Entry::Vacant(_), Expect::At(_)) => return Err(Refused::Stale(None)),
        };
        // They are deleted with the task.
        entry.idempotency_keys.extend(commit.sends.iter().map(|send| send.key.clone()));
        self.add_push_config(entry, commit);
        append_log(entry, commit);
        entry.commits.add(commit);
        if old != Some((row.time, row.state)) {
            // With the lock of the shard, so that the index matches the row whenever a sweep reads both.
            self.index.lock().entry(Arc::clone(key.scope())).or_default().insert(key, row, old);
        }
        if row.state.is_terminal() && old.is_none_or(|(_, state)| state != row.state) {
            let has_undelivered = entry.push.as_ref().is_some_and(|push| push.has_undelivered(row.seq));
            entry.eviction_rank = Some(self.evictions.lock().insert_terminal(key, has_undelivered));
        }
        Ok(())
    }

    /// Adds the push configuration of a commit, which gets the events of the commit too. The caller has checked the limit.
    fn add_push_config(&self, entry: &mut TaskEntry, commit: &Commit) {
        if let Some(push) = &commit.push {
            let cursor = commit.expected_position().map_or(0, |position| position.seq);
            let add = |configs: &mut PushConfigs, queue: &mut DeliveryQueue, _| {
                _ = configs.put(queue, Arc::clone(push), cursor, (usize::MAX, None));
            };
            self.change_push(&commit.key, entry, add);
        }
    }

    /// Registers the idempotency keys of a commit, unless one of them exists.
    fn register_sends(&self, commit: &Commit) -> Result<(), Refused> {
        let key = &commit.key;
        let mut indexes = self.index.lock();
        let duplicate =
            indexes.get(key.scope()).and_then(|index| commit.sends.iter().find_map(|send| index.sends.get(&send.key)));
        if let Some(earlier) = duplicate {
            return Err(Refused::Rejected(Rejected::Duplicate { task_id: earlier.task_id.clone() }));
        }
        let index = indexes.entry(Arc::clone(key.scope())).or_default();
        for IdempotencyRecord { key: idempotency_key, hash, seq, .. } in &commit.sends {
            let outcome = SendOutcome { task_id: key.id().into(), seq: *seq, hash: *hash };
            index.sends.insert(idempotency_key.clone(), outcome);
        }
        Ok(())
    }

    /// Removes idempotency keys from the index of a task, and the row of one that is deleted.
    pub(super) fn remove_from_index<'a>(
        &self,
        key: &TaskKey,
        row: Option<&TaskHead>,
        sends: impl Iterator<Item = &'a Box<str>>,
    ) {
        let mut indexes = self.index.lock();
        if let Some(index) = indexes.get_mut(key.scope()) {
            if let Some(row) = row {
                index.remove(key, row);
            }
            for send in sends {
                index.sends.remove(send);
            }
            if index.is_empty() {
                indexes.remove(key.scope());
            }
        }
    }
}

/// Appends the events of a commit. In a terminal state, the log is sealed.
fn append_log(entry: &mut TaskEntry, commit: &Commit) {
    let EntryLog::Open(log) = &mut entry.log else { return };
    let (ids, events) = (TaskIds { id: commit.key.id(), context: &entry.row.context }, &commit.events);
    match (&commit.checkpoint, entry.row.state.is_terminal()) {
        (Some(task), true) => {
            entry.log = EntryLog::Sealed(SealedLog::seal(task, log, events, ids));
            entry.agent_state = None;
        }
        _ => log.append(events, ids),
    }
}
