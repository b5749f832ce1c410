//! Follow-up messages: one for a task that is idle starts its next turn, one for a busy task waits for that turn.

use super::{
    COMMIT_WAIT, Execution, PUSH_IN_SEND, SendRequest,
    cluster::Ownership,
    concurrency::TurnSlot,
    idempotency::{IdempotencyKey, PendingSend},
    limits::{RETRY_AFTER, limit_error, memory_full},
    mail::ATTEMPTS,
    not_accepting, ownership_changed, task_ended,
    turn::FirstPoll,
};
use crate::{
    engine::journal::{AcceptedMessage, LiveRef, MessageRefusal, NewMessage, TurnContext, Watch},
    protocol::{error::Error, pb::v1::Message},
    store::TaskKey,
};

impl Execution {
    /// Accepts a message for an existing task.
    pub(super) async fn follow_up<T: Send + Sync>(
        &self,
        request: SendRequest,
        first_poll: Option<FirstPoll>,
        watch: Watch<T>,
    ) -> Result<(LiveRef, T), Error> {
        self.check_accepting()?;
        let SendRequest { scope, mut message, context: turn_context, push, cleared, idempotency_key, .. } = request;
        let key = TaskKey::new(&scope, &message.task_id);
        let Ownership::Here(live) = self.own(&key).await? else { return Err(ownership_changed()) };
        if !message.context_id.is_empty() && *message.context_id != *live.context {
            let why = format!("task {} is in context {}; send that or none", key.id(), live.context);
            return Err(Error::invalid_field("message.contextId", why));
        }
        message.context_id = (*live.context).to_owned();
        if !live.has_ended() {
            self.0.enter_context(&live, prost::Message::encoded_len(&message)).await;
        }
        // Stored before the message, so that no event of its turn is missed.
        let created = match push.filter(|_| !live.has_ended()) {
            Some(push) => self.put_push(&key, *push, cleared, PUSH_IN_SEND).await?.1,
            None => None,
        };
        let accepted = self.add_message(live, (message, turn_context, idempotency_key, 0), first_poll, watch).await;
        if let (Err(_), Some(id)) = (&accepted, created) {
            self.delete_push(&key, &id).await?;
        }
        accepted
    }

    /// Adds a message to an existing task: starts a turn, or queues the message for the next one.
    pub(super) async fn add_message<T>(
        &self,
        mut live: LiveRef,
        (message, context, idempotency_key, mail): (Message, Box<TurnContext>, Option<Box<IdempotencyKey>>, u64),
        first_poll: Option<FirstPoll>,
        watch: Watch<T>,
    ) -> Result<(LiveRef, T), Error> {
        let key = &live.key.clone();
        let (idempotency, guard) = idempotency_key.map(|key| key.into_parts()).unzip();
        let mut new = NewMessage { message, context, idempotency, mail };
        let (mut slot, mut attempts) = (None, 0);
        let refusal = loop {
            if slot.is_none() && live.needs_turn() {
                slot = Some(self.0.permits.turn(&key.scope().owner)?);
            }
            let is_queued = slot.as_ref().map(TurnSlot::is_queued);
            match live.add_message(new, is_queued, self.0.limits.queued_messages, watch) {
                Ok(AcceptedMessage { watched, first, recorded }) => {
                    let send = PendingSend::new(recorded, guard.flatten());
                    if let (Some(first), Some(slot)) = (first, slot) {
                        self.run_after_commit(live.clone(), first, slot, first_poll, send);
                    } else {
                        self.release_after_commit(send);
                    }
                    return Ok((live, watched));
                }
                // The turn has ended in the meantime.
                Err(MessageRefusal::NeedsTurn(message)) => new = *message,
                // Its ownership has ended in the meantime.
                Err(MessageRefusal::NotRunner(message)) if attempts < ATTEMPTS => {
                    (new, attempts) = (*message, attempts + 1);
                    let Ownership::Here(owned) = Box::pin(self.own(key)).await? else {
                        return Err(ownership_changed());
                    };
                    live = owned;
                }
                Err(refusal) => break refusal,
            }
        };
        match refusal {
            MessageRefusal::Draining => Err(not_accepting()),
            MessageRefusal::MemoryFull => Err(memory_full(self.0.journal.memory())),
            MessageRefusal::Lost | MessageRefusal::NeedsTurn(_) | MessageRefusal::NotRunner(_) => {
                Err(ownership_changed())
            }
            MessageRefusal::QueueFull(waiting) => {
                let why = format!("{waiting} messages wait for task {}; retry once it has answered", key.id());
                Err(limit_error("queued_messages", why).retry_after(RETRY_AFTER))
            }
            MessageRefusal::Limit(violation) => {
                let name = violation.limit().unwrap_or_default();
                let why = format!("task {} accepts no more messages: {violation}", key.id());
                Err(limit_error(name, why).with("taskId", key.id()))
            }
            MessageRefusal::Ended(ended) => {
                if let Some(ended) = ended {
                    self.wait_for_commit(&live, ended, COMMIT_WAIT).await?;
                }
                Err(task_ended(key.id()))
            }
        }
    }
}
