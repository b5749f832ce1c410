//! Record of the newest turn of a live task, from the acceptance of its message to its end. The end is logged and counted once, from
//! the record that is stored.

use std::{mem, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::{LiveState, turn_span::TurnSpan};
use crate::{
    base::{
        clock::{Millis, whole_millis},
        metric,
        trace::TraceContext,
    },
    engine::journal::{LiveRef, turn_context::TurnContext},
    protocol::pb::v1::TaskState,
    store::TurnRecord,
};

/// Newest turn of a task, with what is recorded of it.
#[derive(Default)]
pub(in crate::engine::journal) struct OpenTurn {
    /// Number 0: there was no turn since the task was loaded.
    record: TurnRecord,
    accepted: Option<Instant>,
    begun: Option<Instant>,
    /// Parts of the record that are in a commit: the beginning, the call of the agent, and the end.
    stored: [bool; 3],
    pub(super) span: Option<Box<TurnSpan>>,
}

/// Failure of a turn.
pub(in crate::engine::journal) struct TurnFailure {
    /// Id of the line in the log.
    pub(in crate::engine::journal) id: String,
    /// Reason, one of [`REASONS`](crate::store::turn_record::REASONS).
    pub(in crate::engine::journal) reason: &'static str,
    /// Cause for the log.
    pub(in crate::engine::journal) cause: String,
}

/// Last turn that failed.
#[derive(Clone, Debug)]
pub(crate) struct LastError {
    pub(crate) reason: &'static str,
    pub(crate) error_id: Box<str>,
    pub(crate) time: Millis,
}

impl LiveRef {
    /// Begins the record of the newest turn, with the context of its last message, which was accepted at this time. `kind` is
    /// `new`, `follow_up` or `recovered`.
    pub(in crate::engine::journal) fn open_turn(
        &self,
        state: &mut LiveState,
        kind: &'static str,
        at: Instant,
        context: &mut TurnContext,
    ) {
        state.keep_ended_turn();
        metric::TURNS_STARTED.add(self.journal().agent(), &[kind], 1);
        let span = self.begin_span(state, kind == "recovered", at, context);
        let owner = &self.key.scope().owner;
        let caller = context.principal.as_deref().map(|principal| &*principal.id).filter(|id| **id != **owner);
        // The time of a new task is that of its status.
        let accepted = match kind {
            "new" => state.accepted.status_time,
            _ => self.journal().sources().clock.millis() - whole_millis(at.elapsed()),
        };
        let record = TurnRecord {
            number: state.turn.earlier + state.turn.number,
            attempt: state.turn.attempt,
            fence: state.fence(),
            message: state.turn.delivered_seq,
            accepted,
            caller: caller.map(Box::from),
            binding: context.binding,
            version: context.version,
            trace: context.trace.as_deref().and_then(TraceContext::parse).map(|trace| trace.0),
            request_id: context.request_id.take().map(String::into_boxed_str),
            ..TurnRecord::default()
        };
        state.turn.open = Some(Box::new(OpenTurn { record, accepted: Some(at), span, ..OpenTurn::default() }));
    }

    /// Records the end of the newest turn, which is then logged and counted.
    pub(in crate::engine::journal) fn close_record(
        &self,
        state: &mut LiveState,
        outcome: &'static str,
        failure: Option<&TurnFailure>,
    ) {
        let attempt = state.turn.attempt;
        let OpenTurn { record, accepted, begun, span, .. } = &mut **state.turn.open.get_or_insert_default();
        // A second end is that of a turn whose first one the store has refused.
        let is_first = record.number > 0 && record.outcome.is_none();
        if !is_first && failure.is_none() {
            return;
        }
        let now = Instant::now();
        let since = |start: Option<Instant>| start.map_or(Duration::ZERO, |start| now.saturating_duration_since(start));
        let duration = since(*begun);
        let has_failed_command = record.exit_code.is_some_and(|code| code != 0);
        let reason = match failure.map_or("none", |failure| failure.reason) {
            "agent" | "error" if has_failed_command => "exit_code",
            reason => reason,
        };
        (record.attempt, record.outcome, record.reason) = (attempt, Some(outcome), Some(reason));
        record.ended = Some(record.accepted.saturating_add(whole_millis(since(*accepted))));
        let journal = self.journal();
        if let Some(TurnFailure { id, .. }) = failure {
            record.error_id = Some(id.as_str().into());
            let time = record.ended.unwrap_or_default();
            *journal.last_error.lock() = Some(LastError { reason, error_id: id.as_str().into(), time });
        }
        if is_first {
            metric::TURNS_ENDED.add(journal.agent(), &[outcome, reason], 1);
            metric::TURN_DURATION.observe(journal.agent(), &[outcome], duration);
        }
        // The end is part of a commit, too.
        let commits = record.commits + 1;
        self.log_end(record, commits, duration, failure);
        if let Some(span) = span.take() {
            span.end(record, commits);
        }
        if record.number == 0 {
            *record = TurnRecord::default();
        }
    }

    /// Logs the end of a turn.
    fn log_end(&self, record: &TurnRecord, commits: u32, duration: Duration, failure: Option<&TurnFailure>) {
        let (duration_ms, outcome) = (whole_millis(duration), record.outcome);
        let reason = record.reason.filter(|_| failure.is_some());
        let queue_ms = record.begun.map(|begun| begun - record.accepted);
        let tokens = |count: u64| Some(count).filter(|count| *count > 0);
        let trace = record.trace.map(TraceContext);
        let span = trace.as_ref().filter(|_| self.journal().sources().tracing.is_on());
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    target: "a2a_service::turn",
                    agent = self.journal().agent().map(|agent| &**agent),
                    task.id = self.key.id(),
                    turn = record.number,
                    attempt = record.attempt,
                    outcome,
                    reason,
                    duration_ms,
                    queue_ms,
                    commits,
                    tokens.input = tokens(record.tokens_in),
                    tokens.output = tokens(record.tokens_out),
                    exit_code = record.exit_code,
                    request.id = record.request_id.as_deref(),
                    trace.id = trace.as_ref().map(|trace| tracing::field::display(trace.trace_id())),
                    span.id = span.map(|span| tracing::field::display(span.span_id())),
                    error.id = failure.map(|failure| failure.id.as_str()),
                    error.cause = failure.map(|failure| failure.cause.as_str()),
                    "turn {}",
                    outcome.unwrap_or_default()
                )
            };
        }
        if failure.is_some() { log!(warn) } else { log!(info) }
    }

    /// Changes the record of turn number `turn`, unless it has ended.
    pub(crate) fn record(&self, turn: u32, change: impl FnOnce(&mut TurnRecord)) {
        let mut state = self.lock();
        let is_newest = state.turn.number == turn;
        if let Some(open) = state.turn.open.as_mut().filter(|open| is_newest && open.record.outcome.is_none()) {
            change(&mut open.record);
        }
    }
}

impl LiveState {
    /// Records that the agent is called now. Returns that time.
    pub(in crate::engine::journal) fn record_begin(&mut self) -> Instant {
        let attempt = self.turn.attempt;
        let OpenTurn { record, accepted, begun, .. } = &mut **self.turn.open.get_or_insert_default();
        let now = Instant::now();
        let waited = accepted.map_or(Duration::ZERO, |accepted| now - accepted);
        (record.attempt, record.begun, *begun) = (attempt, Some(record.accepted + whole_millis(waited)), Some(now));
        now
    }

    /// Adds a commit, with its duration and the kind of its failure, if it has failed. `spans`: number of its tasks, and of its spans.
    pub(in crate::engine::journal) fn record_commit(
        &mut self,
        duration: Duration,
        failure: Option<&str>,
        spans: (usize, &mut u32),
    ) {
        let Some(open) = &mut self.turn.open else { return };
        open.record.commit_wait += duration;
        if let Some(span) = &open.span {
            span.record_commit(duration, failure, spans);
        }
    }

    /// Returns the span of the log lines of the newest turn.
    pub(in crate::engine::journal) fn log_span(&mut self, task: &LiveRef) -> tracing::Span {
        let OpenTurn { record, span, .. } = &**self.turn.open.get_or_insert_default();
        let trace = record.trace.map(TraceContext);
        let span = trace.as_ref().filter(|_| span.is_some());
        tracing::info_span!(
            target: "a2a_service::turn",
            "turn",
            agent = task.journal().agent().map(|agent| &**agent),
            task.id = task.key.id(),
            turn = record.number,
            request.id = record.request_id.as_deref(),
            trace.id = trace.as_ref().map(|trace| tracing::field::display(trace.trace_id())),
            span.id = span.map(|span| tracing::field::display(span.span_id())),
        )
    }

    /// Lets the next commit have the whole record again, because the last one was refused.
    pub(in crate::engine::journal) fn forget_stored_turn(&mut self) {
        if let Some(open) = &mut self.turn.open {
            open.stored = [false; 3];
        }
    }

    /// Keeps the record of a turn whose end is not committed yet, before the next one begins.
    fn keep_ended_turn(&mut self) {
        let Some(open) = &mut self.turn.open else { return };
        let OpenTurn { record, stored: [is_begin_stored, _, is_end_stored], .. } = &mut **open;
        if record.outcome.is_some() && !*is_end_stored {
            record.commits += 1;
            self.accepted.ended_turns.push((mem::take(record), *is_begin_stored));
        }
    }

    /// Returns the records for a commit that has events: of turns that have ended, and the beginning of the newest one.
    /// `is_whole`: the task begins and ends with the commit. Its record is omitted unless there is something to tell.
    pub(in crate::engine::journal) fn take_turn_records(&mut self, task_id: &str, is_whole: bool) -> Option<Bytes> {
        let OpenTurn { record, stored, .. } = &mut **self.turn.open.as_mut()?;
        let ended = mem::take(&mut self.accepted.ended_turns);
        let [is_begin_stored, _, is_end_stored] = *stored;
        record.commits += u32::from(!is_end_stored);
        let has_begun = record.number > 0 && record.attempt > 0;
        let known = [has_begun, has_begun && record.begun.is_some(), record.outcome.is_some()];
        let is_due = mem::replace(stored, known) != known && (!is_whole || record.is_notable());
        let ended = ended.iter().map(|(record, is_begin_stored)| (record, *is_begin_stored));
        let all: Vec<_> = ended.chain(is_due.then_some((&*record, is_begin_stored))).collect();
        (!all.is_empty()).then(|| TurnRecord::encode(task_id, &all).into())
    }
}

/// Returns the outcome of a turn that leaves its task in a state.
pub(in crate::engine::journal) fn outcome_of(state: TaskState) -> &'static str {
    match state {
        TaskState::Completed => "completed",
        TaskState::Canceled => "canceled",
        TaskState::Rejected => "rejected",
        TaskState::InputRequired => "input_required",
        TaskState::AuthRequired => "auth_required",
        TaskState::Failed | TaskState::Working | TaskState::Submitted | TaskState::Unspecified => "failed",
    }
}
