//! Times and turns of the commits of a task, which its log does not have.

use prost::encoding::{decode_varint, encode_varint};

use super::{Commit, Millis, Seq, TurnRecord};
use crate::store::{
    log_codec::to_u64,
    turn_record::{created, error_id},
};

/// Commits of a task. For each: its number of events, its time since the creation of the task in milliseconds, the length of its
/// records, and the records. Empty for a task that ended with its first commit, unless that has records.
#[derive(Default)]
pub(super) struct CommitLog(Vec<u8>);

impl CommitLog {
    /// Adds a commit.
    pub(super) fn add(&mut self, commit: &Commit) {
        let (turns, ends) = (commit.turns.as_deref().unwrap_or_default(), commit.row.state.is_terminal());
        if commit.expected_position().is_none() && ends && turns.is_empty() {
            return;
        }
        let at = commit.time.saturating_sub(created(commit.key.id()));
        encode_varint(to_u64(commit.events.len()), &mut self.0);
        encode_varint(u64::try_from(at).unwrap_or(0), &mut self.0);
        encode_varint(to_u64(turns.len()), &mut self.0);
        self.0.extend_from_slice(turns);
        if ends {
            self.0.shrink_to_fit();
        }
    }

    /// Iterates over the last event of each commit, its time since the creation of the task, and its records.
    fn commits(&self) -> impl Iterator<Item = (Seq, Millis, &[u8])> {
        let (mut rest, mut seq) = (&*self.0, 0);
        std::iter::from_fn(move || {
            seq += decode_varint(&mut rest).ok()?;
            let at = Millis::try_from(decode_varint(&mut rest).ok()?).ok()?;
            let length = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
            let (turns, after) = rest.split_at_checked(length)?;
            rest = after;
            Some((seq, at, turns))
        })
    }

    /// Returns the records of the turns.
    pub(super) fn turns(&self, task_id: &str) -> Vec<TurnRecord> {
        let stored = self.commits().map(|(.., turns)| turns).filter(|turns| !turns.is_empty());
        TurnRecord::decode(task_id, stored).unwrap_or_default()
    }

    /// Returns the last event of each commit, and its time.
    pub(super) fn times(&self, task_id: &str) -> Vec<(Seq, Millis)> {
        let created = created(task_id);
        self.commits().map(|(last, at, _)| (last, created.saturating_add(at))).collect()
    }

    /// Returns the error id of a failed turn, which is the last one.
    pub(super) fn error_id(&self) -> Option<String> {
        self.commits().find_map(|(.., turns)| error_id(turns))
    }
}
