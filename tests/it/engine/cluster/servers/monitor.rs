//! Checks of a simulated cluster while it runs, and at rest: nothing waits longer than the intervals of polls and leases allow.

use std::{collections::BTreeMap, sync::Arc};

use a2a_service::{
    event::{Event, Position, Seq},
    store::{
        Advance, ListQuery, Mail, MailKind, ReplicaId, Scope, SharedStore as _, TaskKey, TaskStore as _,
        memory::Replica,
    },
};
use futures::FutureExt as _;

use super::{
    super::lockstep::Time,
    record::{Record, Seen},
    schedule::Schedule,
};

/// Interval between checks.
pub(super) const INTERVAL: Time = 100;

/// Maximum time until a lost note is replaced by a poll: two intervals of 500 ms, with the delays of the link.
const POLLED: Time = 1500;

/// Time for which a server must be undisturbed before it has to be in time.
const CALM: Time = 5000;

/// Time in which an undisturbed server has renewed its lease. It may have been started meanwhile.
const RENEWED: Time = 3500;

/// Maximum time until a task with a dead runner has another one, without times in which no server could renew its lease. It consists of
/// the lease, the interval between looks for dead replicas, and delays: those of the last renewal, of two requests and their responses,
/// and the interval between checks.
const TAKEOVER: Time = 10_000 + 2_000 + 500;

/// Observer of the store.
pub(super) struct Monitor {
    store: Replica,
    tasks: BTreeMap<String, Watched>,
    /// Streams that lack an event: the last one that they have, and since when.
    behind: BTreeMap<u64, (Seq, Time)>,
    /// Last time at which perhaps no server had renewed its lease shortly before.
    silent: Time,
    /// Longest time until a task with a dead runner had another one.
    pub(super) takeover: Time,
}

#[derive(Default)]
struct Watched {
    seq: Seq,
    /// First unread mail, and since when it is the first one.
    unread: Option<(u64, Time)>,
    /// Time since which the runner is dead.
    orphaned: Option<Time>,
    /// Time at which the end was seen.
    ended: Option<Time>,
}

/// Processes of the cluster as the monitor sees them.
pub(super) struct Processes<'a> {
    pub(super) schedule: &'a Schedule,
    /// Replica of each server that runs.
    pub(super) replicas: &'a [Option<ReplicaId>],
    pub(super) now: Time,
}

impl Processes<'_> {
    fn server(&self, replica: ReplicaId) -> Option<usize> {
        self.replicas.iter().position(|known| *known == Some(replica))
    }

    fn is_any_calm(&self, time: Time) -> bool {
        (0..self.replicas.len()).any(|server| self.is_calm(server, time))
    }

    fn is_calm(&self, server: usize, time: Time) -> bool {
        self.replicas[server].is_some() && self.schedule.is_calm(server, self.now.saturating_sub(time), self.now)
    }
}

fn key(task: &str) -> TaskKey {
    TaskKey::new(&Arc::<Scope>::default(), task)
}

impl Monitor {
    pub(super) fn new(store: Replica) -> Self {
        Self { store, tasks: BTreeMap::new(), behind: BTreeMap::new(), silent: 0, takeover: 0 }
    }

    pub(super) fn store(&self) -> &Replica {
        &self.store
    }

    /// Returns the time at which the end of a task was seen.
    pub(super) fn ended(&self, task: &str) -> Option<Time> {
        self.tasks.get(task)?.ended
    }

    fn advance(&self, task: &str, seq: Seq) -> Option<Advance> {
        // No task has this fence.
        let at = [(key(task), Position { fence: 0, seq })];
        let changed = self.store.follow(&at).now_or_never().unwrap().unwrap();
        changed.into_iter().next()?.1
    }

    fn unread(&self, task: &str) -> Vec<(u64, Mail)> {
        self.store.mail(&key(task), 0).now_or_never().unwrap().unwrap()
    }

    /// Checks that nothing waits too long.
    pub(super) fn check(&mut self, record: &Record, processes: &Processes<'_>) {
        if !processes.is_any_calm(RENEWED) {
            self.silent = processes.now;
        }
        let mut seen = record.lock();
        for id in &seen.tasks {
            if !self.tasks.contains_key(id) {
                self.tasks.insert(id.clone(), Watched::default());
            }
        }
        let open: Vec<String> =
            self.tasks.iter().filter(|(_, task)| task.ended.is_none()).map(|(id, _)| id.clone()).collect();
        for id in open {
            self.check_task(&id, &mut seen, processes);
        }
        self.check_streams(&mut seen, processes);
    }

    fn check_task(&mut self, id: &str, seen: &mut Seen, processes: &Processes<'_>) {
        let now = processes.now;
        let Some(watched) = self.tasks.get(id) else { return };
        let Some(Advance { position, row, runner, .. }) = self.advance(id, watched.seq) else { return };
        let unread = self.unread(id);
        let is_ended = row.state.is_terminal();
        if !is_ended && !row.cancel_requested && unread.iter().any(|(_, mail)| mail.kind == MailKind::Cancel) {
            seen.errors.push(format!("{now}: the cancel of {id} is not in its row"));
        }
        let server = runner.and_then(|runner| processes.server(runner));
        let is_read_soon = !is_ended && server.is_some_and(|server| processes.is_calm(server, CALM));
        let first = unread.first().map(|(number, _)| *number);
        let Some(watched) = self.tasks.get_mut(id) else { return };
        watched.seq = position.seq;
        watched.unread = first.map(|number| match watched.unread {
            Some((known, since)) if known == number && is_read_soon => (number, since),
            _ => (number, now),
        });
        if let Some((number, since)) = watched.unread
            && now - since > POLLED
        {
            seen.errors.push(format!("{now}: mail {number} of {id} is unread since {since}"));
            watched.unread = None;
        }
        let is_orphaned = (row.open || !unread.is_empty()) && server.is_none();
        let Some(since) = watched.orphaned.filter(|_| is_orphaned) else {
            if let Some(since) = watched.orphaned.filter(|since| *since > self.silent)
                && server.is_some_and(|server| processes.is_calm(server, CALM))
            {
                self.takeover = self.takeover.max(now - since);
            }
            watched.orphaned = is_orphaned.then_some(now);
            watched.ended = is_ended.then_some(now).filter(|_| unread.is_empty());
            return;
        };
        if now - since.max(self.silent) > TAKEOVER && processes.is_any_calm(CALM) {
            seen.errors.push(format!("{now}: {id} has no runner since {since}: {runner:?}, open {}", row.open));
            watched.ended = Some(now);
        }
    }

    fn check_streams(&mut self, seen: &mut Seen, processes: &Processes<'_>) {
        let now = processes.now;
        self.behind.retain(|stream, _| seen.streams.contains_key(stream));
        let mut errors = Vec::new();
        for (stream, open) in &seen.streams {
            let Some((task, seq)) = &open.at else { continue };
            let is_visible = |event: &Event| event.seq() > *seq && !event.mark().hidden;
            let lacks = self.advance(task, *seq).is_some_and(|change| change.events.iter().any(is_visible));
            if !lacks || !processes.is_calm(open.server, CALM) {
                self.behind.remove(stream);
                continue;
            }
            match self.behind.get(stream) {
                Some((known, since)) if known == seq => {
                    if now - since > POLLED {
                        let server = open.server;
                        errors.push(format!(
                            "{now}: stream {stream} of {task} at server {server} has only {seq} since {since}"
                        ));
                        self.behind.remove(stream);
                    }
                }
                _ => drop(self.behind.insert(*stream, (*seq, now))),
            }
        }
        seen.errors.append(&mut errors);
    }

    /// Returns the tasks that are not at rest, each with the reason.
    pub(super) fn unrested(&self) -> Vec<String> {
        let mut query = ListQuery { limit: 100, ..ListQuery::default() };
        let mut found = Vec::new();
        loop {
            let page = self.store.list(&query).now_or_never().unwrap().unwrap();
            for task in page.tasks {
                let Some(Advance { row, runner, .. }) = self.advance(&task.id, Seq::MAX) else { continue };
                let unread = self.unread(&task.id).len();
                let is_idle = row.state.is_terminal() || row.state.is_interrupted();
                if !is_idle || row.open || runner.is_some() || unread > 0 {
                    let (id, state, open) = (task.id, row.state, row.open);
                    found.push(format!("{id}: {state:?}, open {open}, runner {runner:?}, unread mail {unread}"));
                }
            }
            query.after = page.next;
            if query.after.is_none() {
                return found;
            }
        }
    }
}
