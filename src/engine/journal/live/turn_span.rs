//! Span of the newest turn of a live task, from the acceptance of its message to its end, and spans of its slow commits.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::LiveState;
use crate::{
    base::trace::{Parent, Span, SpanKind, TraceContext, TraceScope},
    engine::journal::{
        Journal, LiveRef,
        turn_context::{MessageContexts, TurnContext},
    },
    protocol::pb::v1::TaskState,
    store::{TaskKey, TurnRecord},
};

/// Duration from which a commit has a span.
const SLOW_COMMIT: Duration = Duration::from_millis(100);

/// Maximum number of spans of a commit of many tasks.
const MAX_COMMIT_SPANS: u32 = 8;

/// Span of a turn.
pub(super) struct TurnSpan {
    span: Span,
    scope: TraceScope,
}

impl LiveRef {
    /// Begins the span of the newest turn, if there is a tracer: a child of the call that sent its message, with links to the turn
    /// or the attempt before. The agent, and notifications of the turn, continue its trace.
    pub(super) fn begin_span(
        &self,
        state: &mut LiveState,
        is_recovered: bool,
        accepted: Instant,
        context: &mut TurnContext,
    ) -> Option<Box<TurnSpan>> {
        let tracing = &self.journal().sources().tracing;
        if !tracing.is_on() {
            return None;
        }
        let mut trace = context.traced.take().unwrap_or_default();
        let parent = Parent::parse(context.trace.as_deref(), trace.state.as_deref());
        let started = SystemTime::now().checked_sub(accepted.elapsed());
        let mut span = tracing.start(SpanKind::Internal, "invoke_agent", parent, started);
        let (relation, before) = if is_recovered {
            ("previous_attempt", trace.span.as_deref().and_then(TraceContext::parse))
        } else {
            ("previous_turn", state.accepted.contexts.last_span())
        };
        if let Some(before) = before {
            span.link(relation, before);
        }
        trace.others.drain(..).for_each(|other| span.link("message", other));
        let agent = self.journal().agent().map(|agent| &**agent);
        if let Some(agent) = agent {
            span.rename(format!("invoke_agent {agent}"));
        }
        span.set("gen_ai.operation.name", "invoke_agent");
        span.set_some("gen_ai.agent.name", agent);
        span.set("gen_ai.conversation.id", &*self.context);
        span.set("a2a.task.id", self.key.id());
        span.set("a2a_service.turn.number", state.turn.earlier + state.turn.number);
        let (own, tracestate) = (span.context(), span.state());
        if let Some(own) = own {
            let header = own.to_header();
            state.accepted.contexts.set_span(state.turn.delivered_seq, &header);
            (context.trace, trace.span) = (Some(header.clone()), Some(header));
        }
        let scope = TraceScope { tracing: tracing.clone(), context: own, state: tracestate.as_deref().map(Into::into) };
        (trace.scope, trace.state) = (scope.clone(), tracestate);
        context.traced = Some(trace);
        Some(Box::new(TurnSpan { span, scope }))
    }
}

impl Journal {
    /// Returns the state of a task, and the span of its running or last turn, if it has one.
    pub(crate) async fn traced_task(&self, key: &TaskKey) -> Option<(TaskState, Option<TraceContext>)> {
        if let Some(live) = self.get(key) {
            let state = live.lock();
            return Some((state.committed()?.0.state(), state.accepted.contexts.last_span()));
        }
        let stored = self.store().load(key).await.ok()??;
        Some((stored.row.state, MessageContexts::loaded(stored.turn_contexts.as_deref()).last_span()))
    }
}

impl LiveState {
    /// Adds an event to the span of the newest turn.
    pub(in crate::engine::journal) fn note_in_span(&mut self, event: &'static str) {
        if let Some(turn) = self.turn.open.as_mut().and_then(|open| open.span.as_mut()) {
            turn.span.event(event);
        }
    }
}

impl TurnSpan {
    /// Ends the span with the record of the turn.
    pub(super) fn end(mut self, record: &TurnRecord, commits: u32) {
        let span = &mut self.span;
        let outcome = record.outcome.unwrap_or_default();
        span.set("a2a_service.turn.outcome", outcome);
        let state = TaskState::from_str_name(&format!("TASK_STATE_{}", outcome.to_ascii_uppercase()));
        span.set_some("a2a.task.state", state.map(|state| state.as_str_name()));
        span.set("a2a_service.turn.attempt", record.attempt);
        let seconds = |millis: i64| Duration::from_millis(millis.max(0).unsigned_abs()).as_secs_f64();
        span.set_some("a2a_service.turn.queue_time", record.begun.map(|begun| seconds(begun - record.accepted)));
        span.set("a2a_service.commit.count", commits);
        span.set("a2a_service.commit.wait", record.commit_wait.as_secs_f64());
        if record.tokens_in > 0 || record.tokens_out > 0 {
            span.set("gen_ai.usage.input_tokens", record.tokens_in);
            span.set("gen_ai.usage.output_tokens", record.tokens_out);
        }
        span.set_some("process.exit.code", record.exit_code.map(i64::from));
        span.set_some("a2a_service.error.id", record.error_id.as_deref());
        if outcome == "failed" {
            span.fail(record.reason.unwrap_or("error"));
        }
    }

    /// Adds the span of a commit of this many tasks that was slow, or has failed. `spans`: number of those that it has.
    pub(super) fn record_commit(&self, duration: Duration, failure: Option<&str>, (batch, spans): (usize, &mut u32)) {
        if (duration >= SLOW_COMMIT || failure.is_some()) && *spans < MAX_COMMIT_SPANS {
            *spans += 1;
            let started = SystemTime::now().checked_sub(duration);
            let mut span = self.scope.tracing.start(SpanKind::Internal, "commit", self.scope.parent(), started);
            span.set("db.system.name", "sqlite");
            span.set("db.operation.name", "COMMIT");
            span.set("db.operation.batch.size", batch);
            if let Some(failure) = failure {
                span.fail(failure);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_of_many_tasks_has_few_spans() {
        let turn = TurnSpan { span: Span::default(), scope: TraceScope::default() };
        let mut spans = 0;
        (0..20).for_each(|_| turn.record_commit(Duration::from_millis(99), None, (20, &mut spans)));
        assert_eq!(spans, 0, "fast ones have none");
        (0..20).for_each(|_| turn.record_commit(SLOW_COMMIT, None, (20, &mut spans)));
        assert_eq!(spans, MAX_COMMIT_SPANS);
    }
}
