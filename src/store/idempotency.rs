//! Idempotency records: the stored keys by which a retried send is recognised.

use crate::{clock::Millis, event::Seq};

/// Idempotency key of a message, committed together with the message. Stored with the task of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyRecord {
    /// Key chosen by the client, unique per owner.
    pub key: Box<str>,
    /// Digest of the request. A request with the same key and another digest is a conflict.
    pub hash: [u8; 16],
    /// Event of the message, or of the task that the message created.
    pub seq: Seq,
    /// Time at which the message was accepted.
    pub time: Millis,
}

/// Outcome of an earlier send with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendOutcome {
    /// Task that contains the message.
    pub task_id: Box<str>,
    /// Event of the message, or of the task that the message created.
    pub seq: Seq,
    /// Digest of the request. Empty in data of older versions, which did not store it.
    pub hash: Box<[u8]>,
}

impl SendOutcome {
    /// Returns whether the earlier request had this digest. A missing digest matches every request.
    pub fn matches(&self, hash: &[u8; 16]) -> bool {
        self.hash.is_empty() || *self.hash == *hash
    }
}
