//! Idempotent sends: a retried send is recognised by its idempotency key, and gets the result of the first one (3.3.1).
//!
//! The key is committed together with the message, before the agent gets it, so each message is given to the agent once.
//! Requests with the same key are serialized until the first message is durable; the later ones then find its record.
//!
//! An agent that replies with a plain message still gets a task, which ends with that message.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prost::Message as _;
use tokio::{
    sync::{OwnedMutexGuard, oneshot},
    time::timeout,
};

use super::{
    ACCEPT_TIMEOUT, Execution, SendRequest,
    concurrency::TurnSlot,
    turn::{FirstPoll, signal_first_poll},
    unavailable,
};
use crate::{
    engine::journal::{KeyDigest, LiveRef, TurnContext, TurnReply},
    protocol::{
        call::{Call, IDEMPOTENCY_KEY, MAX_IDEMPOTENCY_KEY_BYTES},
        error::{Error, ErrorKind},
        event::{Event, Seq},
        pb::v1::{SendMessageConfiguration, SendMessageRequest},
        rpc::fingerprint,
    },
    store::{Scope, SendOutcome, TaskKey},
};

/// Idempotency key of sends without an `Idempotency-Key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdempotencySource {
    /// No key: the header alone counts. The default, because hand-written clients may reuse message ids.
    #[default]
    Header,
    /// The message id (3.3.1).
    MessageId,
}

/// Idempotency key of a send, with a digest of the message. A key with another digest is a conflict.
#[derive(Debug)]
pub(crate) struct IdempotencyKey {
    key: Box<str>,
    hash: [u8; 16],
    /// Lock of the key, from the lookup until the record is durable.
    guard: Option<KeyGuard>,
}

/// Locks of the keys whose sends are being processed.
#[derive(Debug, Default)]
pub(super) struct KeyLocks(Mutex<HashMap<ScopedKey, Arc<tokio::sync::Mutex<()>>>>);

/// Owner of the send, and its key.
type ScopedKey = (Arc<Scope>, Box<str>);

/// Exclusive right to process a key. Removes its lock from the table with the last holder or waiter.
#[derive(Debug)]
pub(super) struct KeyGuard {
    locks: Arc<KeyLocks>,
    key: ScopedKey,
    mutex: Arc<tokio::sync::Mutex<()>>,
    locked: Option<OwnedMutexGuard<()>>,
}

impl IdempotencySource {
    /// Returns the idempotency key of a send, if it has one.
    pub(crate) fn key(self, call: &Call, send: &SendMessageRequest) -> Result<Option<Box<IdempotencyKey>>, Error> {
        // The prefixes separate keys from message ids.
        let key = match (&call.idempotency_key, &send.message) {
            (Some(key), _) if key.len() > MAX_IDEMPOTENCY_KEY_BYTES => {
                let why = format!("{} bytes exceed the limit of {MAX_IDEMPOTENCY_KEY_BYTES}", key.len());
                return Err(Error::invalid_field(IDEMPOTENCY_KEY.as_str(), why));
            }
            (Some(key), _) => format!("key:{key}"),
            (None, Some(message)) if self == Self::MessageId => {
                if message.message_id.contains('\0') {
                    let why = "has U+0000, which an idempotency key must not have";
                    return Err(Error::invalid_field("message.messageId", why));
                }
                format!("message:{}", message.message_id)
            }
            (None, _) => return Ok(None),
        };
        Ok(Some(Box::new(IdempotencyKey { key: key.into(), hash: digest(send), guard: None })))
    }
}

impl KeyLocks {
    /// Waits until no other send with this key is being processed. Cancel-safe.
    async fn acquire(self: &Arc<Self>, key: ScopedKey) -> KeyGuard {
        let mutex = Arc::clone(self.0.lock().entry(key.clone()).or_default());
        // Created before waiting, so that its `Drop` cleans up after a canceled waiter.
        let mut guard = KeyGuard { locks: Arc::clone(self), key, mutex: Arc::clone(&mutex), locked: None };
        guard.locked = Some(mutex.lock_owned().await);
        guard
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        drop(self.locked.take());
        let mut table = self.locks.0.lock();
        // The table and this guard hold one reference each; every waiter holds one more.
        if Arc::strong_count(&self.mutex) == 2 {
            table.remove(&self.key);
        }
    }
}

impl Execution {
    /// Returns the task and the event number of the message if it was sent before with this key. Otherwise returns `None`,
    /// and `request` holds the lock of the key until its record is durable.
    ///
    /// # Errors
    /// `IdempotencyConflict` if the key was used for another message; UNAVAILABLE if the lock is not free within
    /// [`ACCEPT_TIMEOUT`], or the store does not answer.
    pub(super) async fn find_earlier_send(
        &self,
        request: &mut SendRequest,
        left: Option<Duration>,
    ) -> Result<Option<(TaskKey, Seq)>, Error> {
        let Some(key) = &mut request.idempotency_key else { return Ok(None) };
        self.0.wait_for_recovery().await?;
        let acquire = self.0.key_locks.acquire((Arc::clone(&request.scope), key.key.clone()));
        let wait = left.map_or(ACCEPT_TIMEOUT, |left| left.min(ACCEPT_TIMEOUT));
        let guard = timeout(wait, acquire)
            .await
            .map_err(|_| unavailable("a request with the same idempotency key is in progress; retry later"))?;
        match self.0.journal.store().find_send(&request.scope, &key.key).await? {
            None => {
                key.guard = Some(guard);
                Ok(None)
            }
            Some(outcome) if outcome.hash == key.hash => {
                Ok(Some((TaskKey::new(&request.scope, &outcome.task_id), outcome.seq)))
            }
            Some(SendOutcome { task_id, .. }) => Err(conflict(&task_id)),
        }
    }

    /// Returns true if the message was sent before with its idempotency key, and is durable.
    pub(crate) async fn is_repeated(&self, request: &SendRequest) -> Result<bool, Error> {
        let Some(key) = &request.idempotency_key else { return Ok(false) };
        let earlier = self.0.journal.store().find_send(&request.scope, &key.key).await?;
        Ok(earlier.is_some_and(|outcome| outcome.hash == key.hash))
    }

    /// Runs a turn, and those of the messages that wait for it, once its message is durable if it has an idempotency key. The
    /// caller does not wait for that: the turn continues if the caller disconnects.
    pub(super) fn run_after_commit(
        &self,
        live: LiveRef,
        (messages, context): (Vec<Event>, Box<TurnContext>),
        slot: TurnSlot,
        first_poll: Option<FirstPoll>,
        send: Option<PendingSend>,
    ) {
        let parts = Arc::clone(&self.0);
        let Some(PendingSend { recorded, guard }) = self.unrecorded(send) else {
            // Boxed, because the runtime moves a spawned future several times, and this one is large.
            let turns = Box::pin(parts.turns(live, messages, context, slot));
            return drop(self.0.running.spawn(signal_first_poll(turns, first_poll)));
        };
        drop(self.0.running.spawn(async move {
            let recorded = recorded.await;
            drop(guard);
            if recorded.is_err() {
                return live.record_drain();
            }
            let turns = Box::pin(parts.turns(live, messages, context, slot));
            signal_first_poll(turns, first_poll).await;
        }));
    }

    /// Returns a send whose message is not durable yet. A synchronous store has committed it already.
    fn unrecorded(&self, send: Option<PendingSend>) -> Option<PendingSend> {
        send.filter(|_| self.0.journal.store().as_sync().is_none())
    }

    /// Releases the lock of the key once the message is durable.
    pub(super) fn release_after_commit(&self, send: Option<PendingSend>) {
        if let Some(PendingSend { recorded, guard }) = self.unrecorded(send) {
            drop(self.0.running.spawn(async move {
                drop(recorded.await);
                drop(guard);
            }));
        }
    }
}

/// Accepted send with an idempotency key, whose message is not durable yet.
pub(super) struct PendingSend {
    recorded: oneshot::Receiver<TurnReply>,
    guard: Option<KeyGuard>,
}

impl PendingSend {
    /// Creates the pending send of a message with an idempotency key; `None` without a key.
    pub(super) fn new(recorded: Option<oneshot::Receiver<TurnReply>>, guard: Option<KeyGuard>) -> Option<Self> {
        Some(Self { recorded: recorded?, guard })
    }
}

impl IdempotencyKey {
    /// Creates the key of a message that another process has received.
    pub(super) fn new(key: Box<str>, hash: [u8; 16]) -> Self {
        Self { key, hash, guard: None }
    }

    /// Returns the key with its digest.
    pub(super) fn digest(&self) -> KeyDigest {
        (self.key.clone(), self.hash)
    }

    /// Returns the key with its digest, and its lock.
    pub(super) fn into_parts(self) -> (KeyDigest, Option<KeyGuard>) {
        ((self.key, self.hash), self.guard)
    }
}

/// Returns the error for a key that was used for another message.
pub(super) fn conflict(task_id: &str) -> Error {
    let why = format!("the idempotency key was used for another message (task {task_id}); use a new key");
    ErrorKind::IdempotencyConflict.because(why).with("taskId", task_id)
}

/// Returns the digest of a send, which distinguishes a retry from another message with the same key. It excludes the tenant,
/// and options that affect only the reply (`historyLength`, `returnImmediately`).
fn digest(send: &SendMessageRequest) -> [u8; 16] {
    let configuration = send.configuration.as_ref().map(|configuration| SendMessageConfiguration {
        accepted_output_modes: configuration.accepted_output_modes.clone(),
        task_push_notification_config: configuration.task_push_notification_config.clone(),
        ..SendMessageConfiguration::default()
    });
    // An empty configuration equals a missing one.
    let configuration = configuration.filter(|configuration| *configuration != SendMessageConfiguration::default());
    let (message, metadata) = (send.message.clone(), send.metadata.clone());
    let canonical = SendMessageRequest { tenant: String::new(), message, configuration, metadata };
    fingerprint(&canonical.encode_to_vec()).to_be_bytes()
}
