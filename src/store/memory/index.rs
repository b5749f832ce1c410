//! Index of an owner's tasks in list order, with counts by state and the idempotency keys.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound::{Excluded, Included},
    sync::Arc,
};

use super::{ListQuery, SendOutcome, TaskHead, TaskKey};
use crate::{base::clock::Millis, protocol::pb::v1::TaskState};

/// Index of the tasks of a scope. Sets are in list order, newest first, because searching the start of a B-tree is fastest.
#[derive(Default)]
pub(super) struct Index {
    /// Tasks by state, in a set each, so that a state with few tasks is found quickly.
    pub(super) by_state: [BTreeSet<Reverse<(Millis, TaskKey)>>; STATES],
    pub(super) by_context: BTreeMap<Reverse<(Arc<str>, Millis, TaskKey)>, TaskState>,
    /// Outcomes of sends by idempotency key.
    pub(super) sends: HashMap<Box<str>, SendOutcome>,
}

/// Number of task states.
const STATES: usize = 9;

/// Index of a state in [`Index::by_state`].
fn slot(state: TaskState) -> usize {
    usize::try_from(i32::from(state)).unwrap_or(0)
}

impl Index {
    /// Inserts a task, or moves it from its previous time and state.
    pub(super) fn insert(&mut self, key: &TaskKey, row: &TaskHead, old: Option<(Millis, TaskState)>) {
        if let Some((time, state)) = old {
            self.by_state[slot(state)].remove(&Reverse((time, key.clone())));
            if time != row.time {
                self.by_context.remove(&Reverse((Arc::clone(&row.context), time, key.clone())));
            }
        }
        self.by_state[slot(row.state)].insert(Reverse((row.time, key.clone())));
        self.by_context.insert(Reverse((Arc::clone(&row.context), row.time, key.clone())), row.state);
    }

    pub(super) fn remove(&mut self, key: &TaskKey, row: &TaskHead) {
        // Usually the oldest task is removed, which needs no search.
        let keys = &mut self.by_state[slot(row.state)];
        match keys.last() {
            Some(Reverse((_, oldest))) if oldest == key => _ = keys.pop_last(),
            _ => _ = keys.remove(&Reverse((row.time, key.clone()))),
        }
        match self.by_context.last_key_value() {
            Some((Reverse((_, _, oldest)), _)) if oldest == key => _ = self.by_context.pop_last(),
            _ => _ = self.by_context.remove(&Reverse((Arc::clone(&row.context), row.time, key.clone()))),
        }
    }

    /// Tasks that reached a terminal state before a time.
    pub(super) fn terminal(&self, before: Millis) -> impl Iterator<Item = &TaskKey> {
        use TaskState::{Canceled, Completed, Failed, Rejected};
        let states = [Completed, Failed, Canceled, Rejected].into_iter();
        states.flat_map(move |state| self.older(state, before)).map(|(_, key)| key)
    }

    /// Tasks that have required input or authorization since before a time, including those with a running turn.
    pub(super) fn interrupted(&self, before: Millis) -> impl Iterator<Item = &(Millis, TaskKey)> {
        let states = [TaskState::InputRequired, TaskState::AuthRequired].into_iter();
        states.flat_map(move |state| self.older(state, before))
    }

    /// Tasks that entered a state before a time, oldest first.
    fn older(&self, state: TaskState, before: Millis) -> impl Iterator<Item = &(Millis, TaskKey)> {
        let oldest_first = self.by_state[slot(state)].iter().rev().map(|Reverse(entry)| entry);
        oldest_first.take_while(move |(time, _)| *time < before)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_context.is_empty() && self.sends.is_empty()
    }

    /// Number of tasks, in one state or in all.
    pub(super) fn count(&self, state: Option<TaskState>) -> usize {
        state.map_or(self.by_context.len(), |state| self.by_state[slot(state)].len())
    }

    /// Tasks that match a query, newest first, after the query's page token.
    pub(super) fn find<'a>(&'a self, query: &'a ListQuery) -> Box<dyn Iterator<Item = (Millis, &'a TaskKey)> + 'a> {
        let (first, end) = query.time_range();
        let least_key = || TaskKey::new(&Arc::default(), "");
        let matches: Box<dyn Iterator<Item = (Millis, &TaskKey)>> = match &query.context {
            None => {
                let (newest, oldest) = (Reverse((end, least_key())), Reverse((first, least_key())));
                let range = (Excluded(newest), Included(oldest));
                let in_range = |keys: &'a BTreeSet<_>| {
                    keys.range(range.clone()).map(|Reverse(entry): &Reverse<(Millis, TaskKey)>| entry).peekable()
                };
                let mut states: Vec<_> = match query.state {
                    Some(state) => vec![in_range(&self.by_state[slot(state)])],
                    None => self.by_state.iter().filter(|keys| !keys.is_empty()).map(in_range).collect(),
                };
                // Merge of the sorted states.
                Box::new(std::iter::from_fn(move || {
                    let heads = states.iter_mut().enumerate().filter_map(|(n, keys)| Some((*keys.peek()?, n)));
                    let (_, n) = heads.max()?;
                    states[n].next().map(|(time, key)| (*time, key))
                }))
            }
            Some(context) => {
                let context: Arc<str> = context.as_ref().into();
                let newest = Reverse((Arc::clone(&context), end, least_key()));
                let range = (Excluded(newest), Included(Reverse((context, first, least_key()))));
                let in_range = self.by_context.range(range);
                let in_state = in_range.filter(|(_, state)| query.state.is_none_or(|wanted| wanted == **state));
                Box::new(in_state.map(|(Reverse((_, time, key)), _)| (*time, key)))
            }
        };
        let is_after_token = |(time, key): &(Millis, &TaskKey)| {
            query.after.as_ref().is_none_or(|token| (*time, key.id()) < (token.time, &*token.id))
        };
        Box::new(matches.filter(is_after_token))
    }
}

impl ListQuery {
    /// Range of status times that can match: inclusive start and exclusive end.
    fn time_range(&self) -> (Millis, Millis) {
        let end = self.after.as_ref().map_or(Millis::MAX, |token| token.time.saturating_add(1));
        let first = self.since.unwrap_or(Millis::MIN);
        (first.min(end), end)
    }
}
