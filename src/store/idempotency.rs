//! Sends that have a key, so that they can be repeated: what is kept of one.

use crate::{event::Seq, seam::Millis};

/// A send that has a key, as its commit brings it along. It is kept with the task that has its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// One of the owner's.
    pub key: Box<str>,
    /// Tells what was sent from anything else.
    pub hash: [u8; 16],
    /// The event that is its message, or whose task begins with it.
    pub seq: Seq,
    /// When it was taken.
    pub time: Millis,
}

/// What came of a send that had a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendOutcome {
    /// The task that has its message.
    pub task_id: Box<str>,
    /// The event that is its message, or whose task begins with it.
    pub seq: Seq,
    /// What was sent. Empty where that is not known.
    pub hash: Box<[u8]>,
}

impl SendOutcome {
    /// Whether it was this that was sent.
    pub fn is_of(&self, hash: &[u8; 16]) -> bool {
        self.hash.is_empty() || *self.hash == *hash
    }
}
