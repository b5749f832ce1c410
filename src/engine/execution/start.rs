//! Acceptance of messages and start of turns: a message without a task id creates a task with its first turn.
//! `follow_up.rs` has messages for existing tasks.

use std::{future::ready, time::Duration};

use futures_util::future::Either;

use super::{
    Execution, SendRequest,
    contexts::ChosenContext,
    idempotency::PendingSend,
    limits::{limit_error, memory_full, store_full},
    not_accepting,
    turn::FirstPoll,
};
use crate::{
    base::metric,
    engine::journal::{LiveRef, LiveTask, Phase, Watch},
    protocol::{
        error::{Error, ErrorKind},
        pb::v1::{Task, TaskState, TaskStatus},
        task::LimitViolation,
    },
    store::TaskKey,
};

impl Execution {
    /// Accepts a message for a new turn or the next one, and begins to watch that turn before it runs. A new task is created
    /// before this returns, since values moved into a future are moved twice.
    pub(super) fn accept<'a, T: Send + Sync + 'a>(
        &'a self,
        mut request: SendRequest,
        first_poll: Option<FirstPoll>,
        watch: Watch<T>,
    ) -> impl Future<Output = Result<(LiveRef, T), Error>> + Send + 'a {
        // Before anything is stored or visible. The idempotency key has been made of the whole message.
        request.context.secrets.take_from(&mut request.message);
        if !request.message.task_id.is_empty() {
            return Either::Right(Box::pin(Either::Left(self.follow_up(request, first_poll, watch))));
        }
        match self.0.chosen_context(&request.scope, &request.message) {
            Some(context) if !self.0.fits_context(&context, &request.message) => {
                Either::Right(Box::pin(Either::Right(async move {
                    self.0.read_context_size(&context).await;
                    self.create_task(request, Some(context), first_poll, watch)
                })))
            }
            context => Either::Left(ready(self.create_task(request, context, first_poll, watch))),
        }
    }

    /// Creates a task and starts its first turn.
    fn create_task<T>(
        &self,
        request: SendRequest,
        context: Option<ChosenContext>,
        first_poll: Option<FirstPoll>,
        watch: Watch<T>,
    ) -> Result<(LiveRef, T), Error> {
        self.check_accepting()?;
        let journal = &self.0.journal;
        let SendRequest { scope, mut message, context: mut turn_context, push, idempotency_key, .. } = request;
        let sources = journal.sources();
        let id = sources.ids.time_ordered();
        if message.context_id.is_empty() {
            message.context_id = sources.ids.time_ordered();
        }
        message.task_id.clone_from(&id);
        // Checked before the agent runs, whose work would be lost.
        journal.store().check_capacity(&scope).map_err(store_full)?;
        let slot = self.0.permits.turn(&scope.owner)?;
        let (key, now) = (TaskKey::new(&scope, &id), sources.clock.millis());
        let status = TaskStatus {
            state: TaskState::Submitted.into(),
            message: None,
            timestamp: Some(crate::protocol::pb::wkt::timestamp(now)),
        };
        let context_id = message.context_id.clone();
        let task = Task { id, context_id, status: Some(status), history: vec![message], ..Task::default() };
        let push = push.map(|push| (*push).for_task(&key));
        let limits = self.0.limits.task_limits();
        let mut live = LiveTask::new(key, journal.store().first_fence(), task, now, limits);
        let is_chosen = context.is_some();
        let context = context.map(|context| {
            self.0.start_size_read(&context);
            context.size
        });
        live.check_first(context).map_err(|violation| {
            let name = violation.limit().unwrap_or_default();
            let is_context_full = is_chosen && matches!(violation, LimitViolation::ContextBytes(_));
            let why = if is_context_full {
                format!("context {} accepts no more messages: {violation} (limit {name})", live.context)
            } else {
                format!("message: too large: {violation} (limit {name})")
            };
            limit_error(name, why)
        })?;
        if !live.try_count_in(journal.memory()) {
            return Err(memory_full(journal.memory()));
        }
        live.set_push_config(push);
        let live = journal.insert(live);
        let (key, guard) = idempotency_key.map(|key| key.into_parts()).unzip();
        let begun = live.begin_task(&mut turn_context, key, slot.is_queued(), watch);
        let (watched, recorded) = begun.ok_or_else(not_accepting)?;
        self.run_after_commit(
            live.clone(),
            (Vec::new(), turn_context),
            slot,
            first_poll,
            PendingSend::new(recorded, guard.flatten()),
        );
        Ok((live, watched))
    }

    /// Rejects work while the store or something that the agent needs is unavailable, and from the start of a drain.
    pub(super) fn check_accepting(&self) -> Result<(), Error> {
        let journal = &self.0.journal;
        let has_lease = journal.shared().is_none_or(|(_, replica)| replica.has_lease());
        if journal.is_store_unavailable() || journal.phase() > Phase::Open || !has_lease {
            return Err(not_accepting());
        }
        for dependency in &*self.0.dependencies {
            if let Some(retry_after) = dependency.refusal() {
                metric::outbound(dependency.agent(), dependency.peer(), "rejected", Duration::ZERO, 0);
                let why = format!("{} can't be reached; nothing was recorded, retry later", dependency.subject());
                return Err(ErrorKind::Unavailable.because(why).retry_after(retry_after));
            }
        }
        Ok(())
    }
}
