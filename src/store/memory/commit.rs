//! How what is said of a task is written in memory, together with what came with it.

use std::{collections::hash_map::Entry, sync::Arc};

use super::{Kind, Memory, SHARDS, TaskEntry};
use crate::{
    clock::Millis,
    event::Position,
    pb::v1::TaskState,
    store::{
        Commit, CompletedTask, Expect, IdempotencyRecord, Immediate, Key, Refused, Row, SendOutcome,
        log_codec::{OpenLog, SealedLog, TaskIds},
    },
};

impl Immediate for Memory {
    fn commit_now(&self, commit: &Commit) -> Result<(), Refused> {
        let is_new = commit.expect == Expect::New;
        // What was there before must not cost another task its place.
        if is_new && let Some(at) = self.with(&commit.key, |it| it.at) {
            return Err(Refused::Stale(Some(at)));
        }
        if !commit.sends.is_empty() {
            // One that was written before and whose answer was lost has its sends entered.
            if let Expect::At(then) = commit.expect
                && let at = self.with(&commit.key, |it| it.at)
                && at != Some(then)
            {
                return Err(Refused::Stale(at));
            }
            self.enter(commit)?;
        }
        let written = if is_new {
            self.make_room(&commit.key).and_then(|()| {
                let written = self.write(commit);
                if written.is_err() {
                    self.free(&commit.key);
                }
                written
            })
        } else {
            self.write(commit)
        };
        if written.is_err() && !commit.sends.is_empty() {
            self.leave(commit);
        }
        written
    }

    fn commit_completed(&self, whole: &CompletedTask) -> Result<(), Refused> {
        // What was there before must not cost another task its place.
        if let Some(at) = self.with(&whole.key, |it| it.at) {
            return Err(Refused::Stale(Some(at)));
        }
        self.make_room(&whole.key)?;
        let kept = self.keep(whole);
        if kept.is_err() {
            self.free(&whole.key);
        }
        kept
    }
}

impl Memory {
    /// Keeps a task that has ended and is not there.
    fn keep(&self, whole: &CompletedTask) -> Result<(), Refused> {
        let CompletedTask { key, fence, row, .. } = whole;
        let at = Position { fence: *fence, seq: row.seq };
        let log = Kind::SealedLog(SealedLog::from_completed(whole));
        {
            let mut shard = self.shards[key.shard(SHARDS)].lock();
            let Entry::Vacant(free) = shard.entry(key.clone()) else {
                return Err(Refused::Stale(shard.get(key).map(|it| it.at)));
            };
            let (kept, sends) = (row.clone(), Box::default());
            let ended = Some(self.room.lock().end(key));
            free.insert(Box::new(TaskEntry { at, row: kept, saved: None, asked: None, sends, push: None, ended, log }));
            self.index(key, row, None);
        }
        Ok(())
    }

    /// Puts a task where lists find it. Under the lock of its shard, so that the index is never behind what a sweep sees
    /// of the row.
    fn index(&self, key: &Key, row: &Row, old: Option<(Millis, TaskState)>) {
        let mut index = self.index.lock();
        match index.get_mut(key.scope()) {
            Some(it) => it.place(key, row, old),
            None => index.entry(Arc::clone(key.scope())).or_default().place(key, row, old),
        }
    }

    fn write(&self, commit: &Commit) -> Result<(), Refused> {
        let Commit { key, expect, row, agent_state: saved, turn_contexts: asked, .. } = commit;
        let at = Position { fence: commit.fence, seq: row.seq };
        let mut shard = self.shards[key.shard(SHARDS)].lock();
        let old = match (shard.entry(key.clone()), expect) {
            (Entry::Vacant(free), Expect::New) => {
                let log = Kind::Open(OpenLog::default());
                let (saved, asked, sends) = (saved.clone(), asked.clone(), Box::default());
                let kept = TaskEntry { at, row: row.clone(), saved, asked, sends, push: None, ended: None, log };
                let kept = free.insert(Box::new(kept));
                note(kept, commit);
                register(kept, commit);
                write_log(kept, commit);
                None
            }
            (Entry::Occupied(it), Expect::At(then)) if it.get().at == *then => {
                let kept = it.into_mut();
                let old = (kept.row.time, kept.row.state);
                let head = row.status_event.clone().or_else(|| kept.row.status_event.take());
                (kept.at, kept.row) = (at, Row { status_event: head, ..row.clone() });
                if saved.is_some() {
                    kept.saved.clone_from(saved);
                }
                if asked.is_some() {
                    kept.asked.clone_from(asked);
                }
                note(kept, commit);
                register(kept, commit);
                write_log(kept, commit);
                Some(old)
            }
            (Entry::Occupied(it), _) => return Err(Refused::Stale(Some(it.get().at))),
            (Entry::Vacant(_), Expect::At(_)) => return Err(Refused::Stale(None)),
        };
        if old != Some((row.time, row.state)) {
            self.index(key, row, old);
        }
        if row.state.is_terminal()
            && row.previous_state != Some(row.state)
            && let Some(kept) = shard.get_mut(key)
        {
            kept.ended = Some(self.room.lock().end(key));
        }
        Ok(())
    }

    /// Enters the sends of a commit, unless one of them is there.
    fn enter(&self, commit: &Commit) -> Result<(), Refused> {
        let key = &commit.key;
        let mut all = self.index.lock();
        let there = all.get(key.scope()).and_then(|it| commit.sends.iter().find_map(|send| it.sends.get(&send.key)));
        if let Some(made) = there {
            return Err(Refused::Duplicate { task_id: made.task_id.clone() });
        }
        let index = all.entry(Arc::clone(key.scope())).or_default();
        for IdempotencyRecord { key: send, hash, seq, .. } in &commit.sends {
            let made = SendOutcome { task_id: key.id().into(), seq: *seq, hash: Box::new(*hash) };
            index.sends.insert(send.clone(), made);
        }
        Ok(())
    }

    /// Takes sends back of which nothing came.
    fn leave(&self, commit: &Commit) {
        let mut all = self.index.lock();
        if let Some(index) = all.get_mut(commit.key.scope()) {
            for it in &commit.sends {
                index.sends.remove(&it.key);
            }
            if index.is_empty() {
                all.remove(commit.key.scope());
            }
        }
    }
}

/// Notes the sends that came with what is committed, to forget them with the task.
fn note(kept: &mut TaskEntry, commit: &Commit) {
    if !commit.sends.is_empty() {
        let new = commit.sends.iter().map(|it| it.key.clone());
        kept.sends = kept.sends.iter().cloned().chain(new).collect();
    }
}

/// A configuration that came with what is committed. Who sent it has counted those that there are.
fn register(kept: &mut TaskEntry, commit: &Commit) {
    if let Some(it) = &commit.push {
        _ = kept.push.get_or_insert_default().put(Arc::clone(it), usize::MAX);
    }
}

/// What is said is written behind what was said; what has ended has its task before that.
fn write_log(kept: &mut TaskEntry, commit: &Commit) {
    let Kind::Open(log) = &mut kept.log else { return };
    let (names, events) = (TaskIds { id: commit.key.id(), context: &kept.row.context }, &commit.events);
    match (&commit.checkpoint, kept.row.state.is_terminal()) {
        (Some(task), true) => {
            kept.log = Kind::SealedLog(SealedLog::seal(task, log, events, names));
            (kept.row.status_event, kept.saved, kept.asked) = (None, None, None);
        }
        _ => log.append(events, names),
    }
}
