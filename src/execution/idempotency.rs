//! Sends that have a key: each is taken once, however often and wherever it comes (3.3.1), and who comes again gets what
//! came of it.
//!
//! The key is written together with the message, and before the agent hears of it. So there is a task for each, and what an
//! agent answers in place of one is the message that its task ends with.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{OwnedMutexGuard, oneshot},
    time::timeout,
};

use super::{Execution, PATIENCE, SendRequest, StartMode, away, limits::TurnPermit, start::signaled};
use crate::{
    agent::Agent,
    clock::Millis,
    error::{Error, ErrorKind},
    event::{Event, Seq},
    journal::{
        LiveRef, TurnContext,
        live::Inner,
        waiters::{TurnReply, WaitCondition},
    },
    store::{IdempotencyRecord, Key, Scope, SendOutcome},
};

/// What a send is known by.
#[derive(Debug)]
pub(crate) struct IdempotencyKey {
    key: Box<str>,
    hash: [u8; 16],
    /// That nobody else takes it in meanwhile.
    pass: Option<KeyGuard>,
}

/// Where sends of the same name come one after the other, until the first of them is written.
#[derive(Debug, Default)]
pub(super) struct KeyLocks(Mutex<HashMap<KeyId, Arc<tokio::sync::Mutex<()>>>>);

/// Whose send, and its key.
type KeyId = (Arc<Scope>, Box<str>);

/// The only one of its name who is let through.
#[derive(Debug)]
struct KeyGuard {
    turnstile: Arc<KeyLocks>,
    place: KeyId,
    mutex: Arc<tokio::sync::Mutex<()>>,
    let_in: Option<OwnedMutexGuard<()>>,
}

impl IdempotencyKey {
    pub(crate) fn new(key: Box<str>, hash: [u8; 16]) -> Self {
        Self { key, hash, pass: None }
    }
}

impl KeyLocks {
    /// Returns when nobody else of this name is being taken in.
    async fn enter(self: &Arc<Self>, place: KeyId) -> KeyGuard {
        let mutex = Arc::clone(self.0.lock().entry(place.clone()).or_default());
        // Who gives up while they wait leaves nothing behind either.
        let mut pass = KeyGuard { turnstile: Arc::clone(self), place, mutex: Arc::clone(&mutex), let_in: None };
        pass.let_in = Some(mutex.lock_owned().await);
        pass
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        drop(self.let_in.take());
        let mut all = self.turnstile.0.lock();
        // Whoever waits has it too, besides the map and this.
        if Arc::strong_count(&self.mutex) == 2 {
            all.remove(&self.place);
        }
    }
}

impl<A: Agent> Execution<A> {
    /// What came of the same send before; or nothing, and then the send may be taken in, and nobody else's of its name until
    /// it is written.
    pub(super) async fn before(
        &self,
        sent: &mut SendRequest,
        left: Option<Duration>,
    ) -> Result<Option<(Key, Seq)>, Error> {
        let Some(name) = &mut sent.name else { return Ok(None) };
        self.0.recovered().await?;
        let enter = self.0.turnstile.enter((Arc::clone(&sent.scope), name.key.clone()));
        let wait = left.map_or(PATIENCE, |it| it.min(PATIENCE));
        let pass = timeout(wait, enter).await.map_err(|_| away("the same message is being taken in; ask again"))?;
        match self.0.journal.store().find_send(&sent.scope, &name.key).await? {
            None => {
                name.pass = Some(pass);
                Ok(None)
            }
            Some(made) if made.matches(&name.hash) => Ok(Some((Key::new(&sent.scope, &made.task_id), made.seq))),
            Some(SendOutcome { task_id, .. }) => {
                let why = format!("the key is of another message, in task {task_id}");
                Err(ErrorKind::IdempotencyConflict.because(why).with("taskId", &*task_id))
            }
        }
    }

    /// Runs a turn once its message is written, which is on its way to the store.
    pub(super) fn run_once(
        &self,
        held: LiveRef,
        (messages, asked): (Vec<Event>, TurnContext),
        permit: TurnPermit,
        begin: StartMode,
        taken: Option<PendingSend>,
    ) {
        let Some(PendingSend { written, pass }) = taken else {
            return self.run(held, (messages, asked), permit, begin);
        };
        if self.0.journal.store().immediate().is_some() {
            drop(pass);
            return self.run(held, (messages, asked), permit, begin);
        }
        let parts = Arc::clone(&self.0);
        drop(self.0.running.spawn(async move {
            let written = written.await;
            drop(pass);
            if written.is_err() {
                return parts.note_stop(&held);
            }
            let turns = Box::pin(parts.turns(held, messages, asked, permit));
            match begin {
                StartMode::Signaled(polled) => signaled(turns, polled).await,
                StartMode::Apart | StartMode::Here => turns.await,
            }
        }));
    }

    /// Lets the next of its name in once the message is written, which is on its way to the store.
    pub(super) fn pass_once(&self, taken: Option<PendingSend>) {
        if let Some(PendingSend { written, pass }) = taken.filter(|_| self.0.journal.store().immediate().is_none()) {
            drop(self.0.running.spawn(async move {
                drop(written.await);
                drop(pass);
            }));
        }
    }
}

/// A send that has a name, and that was taken in.
pub(super) struct PendingSend {
    written: oneshot::Receiver<TurnReply>,
    pass: Option<KeyGuard>,
}

impl PendingSend {
    /// Writes the name down with the message, which is the event of this number.
    pub(super) fn new(name: IdempotencyKey, inner: &mut Inner, seq: Seq, time: Millis) -> Self {
        let IdempotencyKey { key, hash, pass } = name;
        inner.sends.push(IdempotencyRecord { key, hash, seq, time });
        inner.real = true;
        Self { written: inner.wait(WaitCondition::Written(seq)), pass }
    }
}
