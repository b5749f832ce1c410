//! An owner's tasks in the order of lists, and how many there are in each state.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound::{Excluded, Included},
    sync::Arc,
};

use crate::{
    clock::Millis,
    pb::v1::TaskState,
    store::{Key, ListQuery, Row, SendOutcome},
};

/// An owner's tasks, in the order of lists: what is newest is first, which is also where a tree looks first. Its lock is
/// taken under that of a shard, never the other way round.
#[derive(Default)]
pub(super) struct Index {
    /// By state, so that those that few tasks are in are found without a look at the others.
    pub(super) by_state: [BTreeSet<Reverse<(Millis, Key)>>; STATES],
    pub(super) by_context: BTreeMap<Reverse<(Arc<str>, Millis, Key)>, TaskState>,
    /// The sends that have a key, and what came of them.
    pub(super) sends: HashMap<Box<str>, SendOutcome>,
}

/// How many states there are.
const STATES: usize = 9;

/// The place of a state.
pub(super) fn place(state: TaskState) -> usize {
    usize::try_from(i32::from(state)).unwrap_or(0)
}

impl Index {
    /// Puts a task where it belongs, which was at this time and in this state, if it was there.
    pub(super) fn place(&mut self, key: &Key, row: &Row, old: Option<(Millis, TaskState)>) {
        if let Some((time, state)) = old {
            self.leave_state(key, time, state);
            if time != row.time {
                self.leave_context(key, &row.context, time);
            }
        }
        self.by_state[place(row.state)].insert(Reverse((row.time, key.clone())));
        self.by_context.insert(Reverse((Arc::clone(&row.context), row.time, key.clone())), row.state);
    }

    pub(super) fn remove(&mut self, key: &Key, row: &Row) {
        self.leave_state(key, row.time, row.state);
        self.leave_context(key, &row.context, row.time);
    }

    /// The oldest, which mostly is the one that goes, need not be looked for. So it is below.
    fn leave_state(&mut self, key: &Key, time: Millis, state: TaskState) {
        let all = &mut self.by_state[place(state)];
        if all.last().is_some_and(|it| it.0.1 == *key) {
            all.pop_last();
        } else {
            all.remove(&Reverse((time, key.clone())));
        }
    }

    fn leave_context(&mut self, key: &Key, context: &Arc<str>, time: Millis) {
        let all = &mut self.by_context;
        if all.last_key_value().is_some_and(|it| it.0.0.2 == *key) {
            all.pop_last();
        } else {
            all.remove(&Reverse((Arc::clone(context), time, key.clone())));
        }
    }

    /// The tasks that ended before a time.
    pub(super) fn ended(&self, before: Millis) -> impl Iterator<Item = &Key> {
        use TaskState::{Canceled, Completed, Failed, Rejected};
        let states = [Completed, Failed, Canceled, Rejected].into_iter();
        states.flat_map(move |it| self.before(it, before)).map(|it| &it.1)
    }

    /// The tasks that asked their clients for something before a time. One whose agent goes on all the same is among
    /// them.
    pub(super) fn asked(&self, before: Millis) -> impl Iterator<Item = &(Millis, Key)> {
        let states = [TaskState::InputRequired, TaskState::AuthRequired].into_iter();
        states.flat_map(move |it| self.before(it, before))
    }

    /// The tasks that came to a state before a time, the oldest first.
    fn before(&self, state: TaskState, time: Millis) -> impl Iterator<Item = &(Millis, Key)> {
        self.by_state[place(state)].iter().rev().map(|it| &it.0).take_while(move |it| it.0 < time)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_context.is_empty() && self.sends.is_empty()
    }

    /// How many tasks there are, in a state if one is named.
    pub(super) fn total(&self, state: Option<TaskState>) -> usize {
        state.map_or(self.by_context.len(), |it| self.by_state[place(it)].len())
    }

    /// What fits a query, the newest first, from its token on.
    pub(super) fn find<'a>(&'a self, query: &'a ListQuery) -> Box<dyn Iterator<Item = (Millis, &'a Key)> + 'a> {
        let (first, last) = query.range();
        let bottom = || Key::new(&Arc::default(), "");
        let all: Box<dyn Iterator<Item = (Millis, &Key)>> = match &query.context {
            None => {
                let (newest, oldest) = (Reverse((last, bottom())), Reverse((first, bottom())));
                let range = (Excluded(newest), Included(oldest));
                let in_state = |it: &'a BTreeSet<_>| it.range(range.clone()).map(|it: &Reverse<_>| &it.0).peekable();
                let mut states: Vec<_> = match query.state {
                    Some(it) => vec![in_state(&self.by_state[place(it)])],
                    None => self.by_state.iter().filter(|it| !it.is_empty()).map(in_state).collect(),
                };
                // Each is in order, so the newest of all is the first of one of them.
                Box::new(std::iter::from_fn(move || {
                    let heads = states.iter_mut().enumerate().filter_map(|(n, it)| Some((*it.peek()?, n)));
                    let (_, n) = heads.max()?;
                    states[n].next().map(|(time, key)| (*time, key))
                }))
            }
            Some(context) => {
                let context: Arc<str> = context.as_ref().into();
                let newest = Reverse((Arc::clone(&context), last, bottom()));
                let range = (Excluded(newest), Included(Reverse((context, first, bottom()))));
                let fits = |it: &(_, &TaskState)| query.state.is_none_or(|state| state == *it.1);
                let found = self.by_context.range(range).filter(fits);
                Box::new(found.map(|(Reverse((_, time, key)), _)| (*time, key)))
            }
        };
        let behind = |it: &(Millis, &Key)| query.after.as_ref().is_none_or(|at| (it.0, it.1.id()) < (at.time, &*at.id));
        Box::new(all.filter(behind))
    }
}

impl ListQuery {
    /// The times that it can find, from the first to before the last.
    fn range(&self) -> (Millis, Millis) {
        let last = self.after.as_ref().map_or(Millis::MAX, |it| it.time.saturating_add(1));
        let first = self.since.unwrap_or(Millis::MIN);
        (first.min(last), last)
    }
}
