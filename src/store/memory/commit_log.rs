//! Times and turns of the commits of a task, which its log does not have.

use bytes::Bytes;

use super::{Commit, Millis, Seq, TurnRecord};
use crate::store::turn_record::error_id;

/// Commits of a task: the last event of each, its time, and its records. Empty for a task that ended with its first commit, unless
/// that has records.
#[derive(Default)]
pub(super) struct CommitLog(Vec<(Seq, Millis, Bytes)>);

impl CommitLog {
    /// Adds a commit.
    pub(super) fn add(&mut self, commit: &Commit) {
        let (turns, ends) = (commit.turns.clone().unwrap_or_default(), commit.row.state.is_terminal());
        if commit.expected_position().is_none() && ends && turns.is_empty() {
            return;
        }
        self.0.push((commit.row.seq, commit.time, turns));
        if ends {
            self.0.shrink_to_fit();
        }
    }

    /// Returns the records of the turns.
    pub(super) fn turns(&self, task_id: &str) -> Vec<TurnRecord> {
        let stored = self.0.iter().map(|(.., turns)| &**turns).filter(|turns| !turns.is_empty());
        TurnRecord::decode(task_id, stored).unwrap_or_default()
    }

    /// Returns the last event of the commit with this event, and its time.
    pub(super) fn commit(&self, seq: Seq) -> Option<(Seq, Millis)> {
        self.0.get(self.0.partition_point(|(last, ..)| *last < seq)).map(|(last, time, _)| (*last, *time))
    }

    /// Returns the error id of a failed turn, which is the last one.
    pub(super) fn error_id(&self) -> Option<String> {
        self.0.iter().find_map(|(.., turns)| error_id(turns))
    }
}
