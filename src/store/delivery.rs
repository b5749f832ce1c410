//! Delivery queue of push notifications: the state that a store keeps for each push configuration, and the types of the
//! queue's operations.
//!
//! A delivery sends the events of a task after a cursor to one push configuration. A store marks deliveries as due when it
//! is told that their tasks changed, gives due ones to runners for the time of a lease, and records the outcome. The commit
//! of an event writes nothing for deliveries.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Millis, Seq, key::TaskKey, push_config::PushConfig};
use crate::{base::clock::whole_millis, protocol::pb::wkt::timestamp};

/// Maximum number of events of a claim.
pub const EVENTS_PER_CLAIM: u16 = 256;

/// Reason of a dead letter that a store at its maximum size made of the oldest undelivered configuration.
pub const STORE_FULL: &str = "the store is full";

/// State of the delivery to one push configuration. The methods are the transitions that every store makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryState {
    /// Last delivered event.
    pub cursor: Seq,
    /// Last event of the last claim. As long as it is not delivered, other claims end with it too: a further attempt sends the
    /// same notifications, although the task may have more events.
    pub end: Option<Seq>,
    /// Time of the next attempt, or the end of the lease while a runner has the delivery. `None` if no undelivered event is
    /// known, and for a dead letter.
    pub due: Option<Millis>,
    /// Number of failed attempts since the last success.
    pub attempts: u32,
    /// Time at which the delivery became due after its last success, from which its maximum age counts.
    pub pending_since: Option<Millis>,
    /// Runner with the lease.
    pub runner: Option<Box<str>>,
    /// Number of the last claim. Greater than that of any earlier claim in the store.
    pub claim: u64,
    /// Time and reason of the dead letter, if delivery was given up.
    pub dead: Option<DeadLetter>,
    /// Last attempt, for operators. `None` if there was none.
    pub last: Option<Attempt>,
}

/// Attempt to send a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Time at which the attempt ended.
    pub time: Millis,
    /// HTTP status, if there was a response.
    pub status: Option<u16>,
    /// Reason of the failure, `None` after a success. Contains no secrets.
    pub error: Option<Box<str>>,
}

/// Numbers of deliveries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryCounts {
    /// Deliveries that are due, leased, or wait for their next attempt.
    pub due: u64,
    /// Dead letters.
    pub dead: u64,
}

/// Time and reason for which a delivery was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Time at which delivery was given up.
    pub time: Millis,
    /// Reason, for operators. Contains no secrets.
    pub reason: Box<str>,
}

impl DeliveryState {
    /// Creates the state of a new configuration, which gets the events after `cursor`.
    pub fn new(cursor: Seq) -> Self {
        Self { cursor, ..Self::default() }
    }

    /// Returns whether events are known that are still to be delivered. Their log and task are not deleted up to the maximum
    /// age.
    pub fn is_pending(&self) -> bool {
        self.due.is_some()
    }

    /// Returns the name of the state for operators. `seq` is the last event of the task.
    pub(crate) fn name(&self, seq: Seq) -> &'static str {
        match self {
            Self { dead: Some(_), .. } => "dead",
            Self { runner: Some(_), .. } => "leased",
            Self { due: Some(_), .. } => "waiting",
            Self { cursor, .. } if *cursor < seq => "waiting",
            _ => "idle",
        }
    }

    /// Returns the time in milliseconds for which the oldest undelivered event has been due.
    pub(crate) fn lag(&self, now: Millis) -> Option<Millis> {
        self.pending_since.filter(|_| self.is_pending()).map(|since| now.saturating_sub(since).max(0))
    }

    /// Returns whether the events must be kept at this end of the maximum age: they are undelivered, and became due at or
    /// after `cutoff` (`None`: at any time).
    pub fn is_kept(&self, cutoff: Option<Millis>) -> bool {
        self.is_pending() && self.pending_since.is_none_or(|since| cutoff.is_none_or(|cutoff| since >= cutoff))
    }

    /// Makes the delivery due if the task, whose last event is `seq`, has undelivered events. Changes neither a dead letter
    /// nor a delivery that is due or leased. Returns whether it became due.
    pub fn mark_due(&mut self, seq: Seq, now: Millis) -> bool {
        let marked = self.due.is_none() && self.dead.is_none() && self.cursor < seq;
        if marked {
            self.due = Some(now);
            self.pending_since.get_or_insert(now);
        }
        marked
    }

    /// Returns whether a runner can claim the delivery: it is due, and not leased or its lease has expired.
    pub fn is_due(&self, now: Millis) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Gives the delivery to a runner. Returns the last event of the claim. `seq` is that of the task.
    pub fn lease(&mut self, lease: &Lease, claim: u64, seq: Seq) -> Seq {
        let last = seq.min(self.cursor.saturating_add(EVENTS_PER_CLAIM.into()));
        let end = self.undelivered_end().unwrap_or(last);
        (self.runner, self.due, self.claim, self.end) =
            (Some(lease.runner.clone()), Some(lease.until), claim, Some(end));
        end
    }

    fn undelivered_end(&self) -> Option<Seq> {
        self.end.filter(|end| *end > self.cursor)
    }

    /// Returns a state with the same position and last attempt that has no time, no failures and no runner.
    fn at_rest(&self) -> Self {
        let (end, last) = (self.undelivered_end(), self.last.clone());
        Self { cursor: self.cursor, end, claim: self.claim, last, ..Self::default() }
    }

    /// Applies the replacement of the configuration, which may correct what made the delivery fail: a waiting attempt is due
    /// at once. A dead letter becomes a delivery that is due once its task is marked. A lease is not affected.
    pub fn replace(&mut self) {
        if self.dead.is_some() {
            *self = self.at_rest();
        } else if self.runner.is_none() && self.due.is_some() {
            (self.due, self.attempts) = (self.pending_since.or(self.due), 0);
        }
    }

    /// Ends the lease of a runner that stops: the delivery is due at once, and no attempt is counted.
    pub fn release(&mut self, now: Millis) {
        if self.runner.take().is_some() {
            self.due = Some(now);
        }
    }

    /// Records the outcome of a claim, unless the claim is no longer the last one. `is_replaced` says that the configuration
    /// is not the one that was claimed: then a failure says nothing about the new one, which is due at once.
    pub(super) fn end_claim(&mut self, claim: u64, is_replaced: bool, seq: Seq, outcome: &DeliveryOutcome) -> Effect {
        // Expiry of the lease alone does not end a claim, but another claim does, and so does an outcome.
        if self.runner.is_none() || self.claim != claim {
            return Effect::Stale;
        }
        if let DeliveryOutcome::Delivered { attempt: Some(attempt), .. }
        | DeliveryOutcome::Failed { attempt: Some(attempt), .. }
        | DeliveryOutcome::GivenUp { attempt: Some(attempt), .. } = outcome
        {
            self.last = Some(attempt.clone());
        }
        match outcome {
            // If the task has more events, the delivery is due at once.
            DeliveryOutcome::Delivered { cursor, now, .. } => {
                self.cursor = self.cursor.max(*cursor);
                let pending = (self.cursor < seq).then_some(*now);
                *self = Self { due: pending, pending_since: pending, ..self.at_rest() };
            }
            _ if is_replaced => {
                self.runner = None;
                self.replace();
            }
            DeliveryOutcome::Failed { next_attempt, .. } => {
                (self.runner, self.due) = (None, Some(*next_attempt));
                self.attempts = self.attempts.saturating_add(1);
            }
            DeliveryOutcome::GivenUp { reason, now, .. } => {
                (self.runner, self.due) = (None, None);
                self.dead = Some(DeadLetter { time: *now, reason: reason.clone() });
            }
            DeliveryOutcome::Gone => return Effect::Deleted,
        }
        Effect::Recorded
    }

    /// Makes a dead letter, or a delivery that waits for its next attempt, due at once, with a new maximum age. Returns
    /// whether there was anything to retry.
    pub fn retry(&mut self, seq: Seq, now: Millis) -> bool {
        let waits = self.dead.is_some() || (self.due.is_some() && self.runner.is_none());
        if waits {
            *self = self.at_rest();
            self.mark_due(seq, now);
        }
        waits
    }
}

/// Outcome of a claim. If the configuration was replaced after the claim, any outcome but `Delivered` makes the new one due at
/// once instead.
#[derive(Clone, Debug)]
pub enum DeliveryOutcome {
    /// All events up to a cursor were delivered. The delivery is due again at once if the task has more by then.
    Delivered {
        /// Last delivered event.
        cursor: Seq,
        /// Current time.
        now: Millis,
        /// The last attempt that was made, if there was any.
        attempt: Option<Attempt>,
    },
    /// The attempt failed.
    Failed {
        /// Time of the next attempt.
        next_attempt: Millis,
        /// The attempt that was made, if there was any.
        attempt: Option<Attempt>,
    },
    /// Delivery is given up. The configuration stays as a dead letter. If there are more than `max_dead` dead letters in the
    /// store, the oldest are deleted together with their configurations.
    GivenUp {
        /// Reason, for operators. Must not contain secrets.
        reason: Box<str>,
        /// Current time.
        now: Millis,
        /// Maximum number of dead letters in the store.
        max_dead: usize,
        /// The attempt that was made, if there was any.
        attempt: Option<Attempt>,
    },
    /// The receiver is gone: the configuration is deleted.
    Gone,
}

impl DeliveryOutcome {
    /// Returns the maximum number of dead letters in the store, if the outcome may exceed it.
    pub(super) fn max_dead(&self) -> Option<usize> {
        if let Self::GivenUp { max_dead, .. } = self { Some(*max_dead) } else { None }
    }
}

/// Lease of the deliveries that a runner claims.
#[derive(Clone, Debug)]
pub struct Lease {
    /// Name of the runner.
    pub runner: Box<str>,
    /// Time of the claim.
    pub now: Millis,
    /// Time at which the lease expires.
    pub until: Millis,
}

impl Lease {
    /// Creates a lease that begins now.
    pub fn new(runner: &str, now: Millis, time: Duration) -> Self {
        Self { runner: runner.into(), now, until: now.saturating_add(whole_millis(time)) }
    }
}

/// Effect of an outcome, or of another change of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// None, such as that of an outcome whose claim is no longer the last one.
    Stale,
    /// The state of the delivery has changed.
    Recorded,
    /// The configuration is to be deleted.
    Deleted,
}

/// Delivery that a runner has claimed.
#[derive(Clone, Debug, PartialEq)]
pub struct DeliveryClaim {
    /// Key of the task.
    pub key: TaskKey,
    /// Push configuration, as it was at the time of the claim.
    pub config: Arc<PushConfig>,
    /// Last delivered event.
    pub cursor: Seq,
    /// Last event of the claim: the same until it is delivered. At most [`EVENTS_PER_CLAIM`] events after the cursor.
    pub end: Seq,
    /// Number of failed attempts since the last success.
    pub attempts: u32,
    /// Time at which the delivery became due after its last success.
    pub pending_since: Millis,
    /// Request contexts of the task ([`StoredTask::turn_contexts`](super::StoredTask::turn_contexts)).
    pub turn_contexts: Option<Bytes>,
    /// Number of the claim, unique in the store. The outcome of a claim that is not the last one changes nothing.
    pub claim: u64,
}

/// Push configuration with the state of its delivery.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Key of the task.
    pub key: TaskKey,
    /// Push configuration.
    pub config: Arc<PushConfig>,
    /// Sequence number of the last event of the task.
    pub seq: Seq,
    /// State of the delivery.
    pub state: DeliveryState,
}

impl Delivery {
    /// Returns the delivery as JSON, with times as texts. Without the URL, which may have secrets.
    pub(crate) fn to_json(&self, now: Millis) -> Value {
        let Self { key, config, seq, state } = self;
        json!({
            "task": key.id(), "config": config.config.id, "owner": &*key.scope().owner, "tenant": &*key.scope().tenant,
            "version": config.version.as_str(), "state": state.name(*seq), "due": state.due.map(timestamp),
            "pending_since": state.pending_since.map(timestamp), "lag_seconds": state.lag(now).map(|lag| lag / 1000),
            "runner": state.runner, "given_up": state.dead.as_ref().map(|dead| timestamp(dead.time)),
            "reason": state.dead.as_ref().map(|dead| &*dead.reason),
        })
    }
}

/// Page of deliveries, in an order of the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeliveryPage {
    /// Deliveries of the page.
    pub deliveries: Vec<Delivery>,
    /// Start of the next page, if there is one.
    pub next: Option<DeliveryToken>,
}

/// Page of tasks with push configurations, in an order of the store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PushTaskPage {
    /// Tasks with a configuration that is not a dead letter, and that are not in a terminal state or have undelivered
    /// events.
    pub keys: Vec<TaskKey>,
    /// Start of the next page, if there is one.
    pub next: Option<DeliveryToken>,
}

/// Position in the store's order of deliveries, after which a page begins. Only the store knows what the numbers mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryToken(pub u64, pub u64);
