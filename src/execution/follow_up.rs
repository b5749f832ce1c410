//! Follow-up messages: one for a task that is idle starts its next turn, one for a busy task waits for that turn.

use super::{
    COMMIT_WAIT, Execution, PUSH_IN_SEND, SendRequest,
    idempotency::{IdempotencyKey, PendingSend},
    limits::{RETRY_AFTER, limit_error},
    ownership_changed,
    start::FirstPoll,
    task_ended,
};
use crate::{
    error::Error,
    event::{Event, Mark},
    journal::{
        LiveRef, TurnContext,
        live::{LiveState, QueuedMessage},
        turns::MAX_MESSAGES_PER_TURN,
        waiters::WaitCondition,
    },
    pb::v1::{Message, TaskState, stream_response::Payload},
    store::Key,
};

impl Execution {
    /// Accepts a message for an existing task.
    pub(super) async fn follow_up<T>(
        &self,
        request: SendRequest,
        first_poll: Option<FirstPoll>,
        watch: impl FnOnce(&mut LiveState, u32) -> T,
    ) -> Result<(LiveRef, T), Error> {
        self.check_accepting()?;
        let SendRequest { scope, mut message, context: turn_context, push, cleared, idempotency_key } = request;
        let key = Key::new(&scope, &message.task_id);
        let live = self.load(&key).await?;
        if !message.context_id.is_empty() && *message.context_id != *live.context {
            let why = format!("task {} is in context {}; send that or none", key.id(), live.context);
            return Err(Error::invalid_field("message.contextId", why));
        }
        message.context_id = (*live.context).to_owned();
        if !live.lock().has_ended() {
            self.0.enter_context(&live, prost::Message::encoded_len(&message)).await;
        }
        // Stored before the message, so that no event of its turn is missed.
        let created = match push.filter(|_| !live.lock().has_ended()) {
            Some(push) => self.put_push(&key, *push, cleared, PUSH_IN_SEND).await?.1,
            None => None,
        };
        let accepted = self.add_message(live, (message, turn_context, idempotency_key), first_poll, watch).await;
        if let (Err(_), Some(id)) = (&accepted, created) {
            self.delete_push(&key, &id).await?;
        }
        accepted
    }

    /// Adds a message to an existing task: starts a turn, or queues the message for the next one.
    async fn add_message<T>(
        &self,
        live: LiveRef,
        (message, context, idempotency_key): (Message, TurnContext, Option<Box<IdempotencyKey>>),
        first_poll: Option<FirstPoll>,
        watch: impl FnOnce(&mut LiveState, u32) -> T,
    ) -> Result<(LiveRef, T), Error> {
        let key = live.key.clone();
        let ended = {
            let mut inner = live.lock();
            self.check_phase()?;
            if inner.is_lost {
                return Err(ownership_changed());
            }
            let is_busy = inner.turn.is_running && !inner.admission.state().is_terminal();
            if is_busy && inner.turn.inbox.len() >= self.0.limits.queued_messages {
                let why = format!(
                    "{} messages wait for task {}; retry once it has answered",
                    inner.turn.inbox.len(),
                    key.id()
                );
                return Err(limit_error("queued_messages", why).retry_after(RETRY_AFTER));
            }
            let slot = if inner.turn.is_running || inner.admission.state().is_terminal() {
                None
            } else {
                Some(self.0.permits.turn(&key.scope().owner)?)
            };
            match inner.accept(Event::pending(Payload::Message(message)), Mark::HIDDEN) {
                Ok(event) => {
                    inner.has_task = true;
                    let (seq, now) = (event.seq(), self.0.journal.env().clock.millis());
                    let send = idempotency_key.map(|key| PendingSend::new(*key, &mut inner, seq, now));
                    self.store_context(&mut inner, seq, &context);
                    let mut first = None;
                    if let Some(slot) = slot {
                        inner.drop_contexts(Some(seq));
                        inner.turn.number += 1;
                        (inner.turn.is_running, inner.turn.delivered_seq) = (true, seq);
                        (inner.turn.attempt, inner.turn.drained) = (u32::from(!slot.is_queued()), 0);
                        inner.mark_working(|| live.status_event(TaskState::Working, None));
                        first = Some((vec![event], context, slot));
                    } else {
                        inner.turn.inbox.push_back(QueuedMessage { event, context });
                    }
                    let turns_before =
                        u32::try_from(inner.turn.inbox.len().div_ceil(MAX_MESSAGES_PER_TURN)).unwrap_or(u32::MAX);
                    let watched = watch(&mut inner, turns_before);
                    // The message of a queued turn must not be lost if the server stops before the turn begins.
                    let is_queued = first.as_ref().is_none_or(|(.., slot)| slot.is_queued());
                    if is_queued || send.is_some() {
                        self.0.journal.flush(&live, inner);
                    } else {
                        // Committed together with the updates that the agent sends before its first pause.
                        drop(inner);
                    }
                    if let Some((messages, context, slot)) = first {
                        self.run_after_commit(live.clone(), (messages, context), slot, first_poll, send);
                    } else {
                        self.release_after_commit(send);
                    }
                    return Ok((live, watched));
                }
                Err(violation) if violation.limit().is_some() => {
                    let name = violation.limit().unwrap_or_default();
                    let why = format!("task {} accepts no more messages: {violation}", key.id());
                    return Err(limit_error(name, why).with("taskId", key.id()));
                }
                Err(_) if inner.has_ended() => None,
                // The end of the task is not durable yet, and so not visible.
                Err(_) => Some(inner.wait_for(WaitCondition::TaskEnd)),
            }
        };
        if let Some(ended) = ended {
            self.wait_for_commit(&live, ended, COMMIT_WAIT).await?;
        }
        Err(task_ended(key.id()))
    }
}
