//! An owner's tasks in the order of lists, and how many there are in each state.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    pb::v1::TaskState,
    seam::Millis,
    store::{Key, ListQuery, Row},
};

/// An owner's tasks, in the order of lists. Its lock is taken under that of a shard, never the other way round.
#[derive(Default)]
pub(super) struct Index {
    pub(super) by_time: BTreeMap<(Millis, Key), TaskState>,
    pub(super) by_context: BTreeMap<(Arc<str>, Millis, Key), TaskState>,
    pub(super) totals: [u64; 9],
    /// The sends that have a key, and the tasks they made.
    pub(super) sends: HashMap<Box<str>, Key>,
}

/// The counter of a state.
pub(super) fn place(state: TaskState) -> usize {
    usize::try_from(i32::from(state)).unwrap_or(0)
}

impl Index {
    pub(super) fn count(&mut self, key: &Key, row: &Row, old_time: Option<Millis>) {
        if let Some(old) = old_time.filter(|it| *it != row.time) {
            self.remove(key, &row.context, old);
        }
        if old_time != Some(row.time) || row.was != Some(row.state) {
            self.by_time.insert((row.time, key.clone()), row.state);
            self.by_context.insert((Arc::clone(&row.context), row.time, key.clone()), row.state);
        }
        if let Some(it) = row.was {
            self.totals[place(it)] -= 1;
        }
        self.totals[place(row.state)] += 1;
    }

    pub(super) fn remove(&mut self, key: &Key, context: &Arc<str>, time: Millis) {
        self.by_time.remove(&(time, key.clone()));
        self.by_context.remove(&(Arc::clone(context), time, key.clone()));
    }

    /// What fits a query, the newest first, from its token on.
    pub(super) fn find<'a>(&'a self, query: &'a ListQuery) -> Box<dyn Iterator<Item = (Millis, &'a Key)> + 'a> {
        let (first, last) = query.range();
        let bottom = || Key::new(&Arc::default(), "");
        let all: Box<dyn Iterator<Item = (Millis, &Key, TaskState)>> = match &query.context {
            None => {
                let range = self.by_time.range((first, bottom())..(last, bottom()));
                Box::new(range.rev().map(|((time, key), state)| (*time, key, *state)))
            }
            Some(context) => {
                let context: Arc<str> = context.as_ref().into();
                let range = (Arc::clone(&context), first, bottom())..(context, last, bottom());
                Box::new(self.by_context.range(range).rev().map(|((_, time, key), state)| (*time, key, *state)))
            }
        };
        let fits = move |(time, key, state): (Millis, &'a Key, TaskState)| {
            let behind = query.after.as_ref().is_none_or(|it| (time, key.id()) < (it.time, &*it.id));
            (behind && query.state.is_none_or(|it| it == state)).then_some((time, key))
        };
        Box::new(all.filter_map(fits))
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
