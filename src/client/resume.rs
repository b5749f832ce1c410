//! Client-side stream resumption: reconnects an interrupted stream after its last event (`Last-Event-ID`).
//!
//! The end of a stream alone is ambiguous: a proxy that times out closes it as gracefully as an agent that has finished. The
//! last state seen of the task therefore decides if the stream is complete. If events may be missing, the next one is
//! [marked](crate::protocol::event::resume::is_gap); it is usually a snapshot of the task. A stream that can't be resumed ends
//! with an error.

use std::sync::Once;

use futures_util::stream::unfold;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status};

use super::{
    A2aService, BoxStream, Call, Cursor, Error, ErrorKind, Event, SendMessageRequest, StreamResponse, Task, TaskState,
    retry_policy::{Retries, Retry, is_interruption, is_transient},
    retrying::{Retrying, echoes_key, warn_of_retry},
    unknown_state,
};
use crate::protocol::{
    event::{Ends, resume},
    pb::v1::{
        GetTaskRequest, SubscribeToTaskRequest, TaskStatus,
        bindings::{Rpc, each_rpc},
        stream_response::Payload,
    },
    rpc::ServiceFuture,
};

/// Request that opens, or reopens, the stream.
pub(super) enum StreamRequest {
    Send(Box<SendMessageRequest>),
    Subscribe(SubscribeToTaskRequest),
    /// Subscription to the rest of a send whose idempotency key is not supported. Ends with its turn.
    Rest(SubscribeToTaskRequest),
}

conversions! {
    StreamRequest:
    request: SendMessageRequest => Self::Send(Box::new(request));
    request: SubscribeToTaskRequest => Self::Subscribe(request);
}

impl Retrying {
    /// Opens a stream that is resumed until its task or turn ends.
    async fn streaming<Req: Clone + Send + Into<StreamRequest>>(
        &self,
        operation: Rpc,
        request: Request<Req>,
        tenant: fn(&Req) -> &str,
        rpc: impl for<'a> Fn(&'a dyn A2aService, Request<Req>) -> ServiceFuture<'a, BoxStream<Event>> + Send + Sync,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let (mut call, message) = self.keyed_parts(operation, request);
        let resumes = self.retry != Retry::never();
        let adds_cursors = resumes && self.requests_cursors && !call.extensions.iter().any(|uri| uri == resume::URI);
        if adds_cursors {
            call.extensions.push(resume::URI.to_owned());
        }
        let opened = self.unary(operation, call.clone().request(message.clone()), tenant, rpc).await?;
        if !resumes {
            return Ok(opened);
        }
        let (metadata, events, extensions) = opened.into_parts();
        let request = message.into();
        let task_id = match &request {
            StreamRequest::Send(_) => None,
            StreamRequest::Subscribe(request) | StreamRequest::Rest(request) => Some(request.id.clone()),
        };
        let seen = LastSeen { task_id, any: call.cursor.is_some(), cursor: call.cursor.clone(), ..LastSeen::default() };
        let stream = ResumingStream {
            retrying: self.clone(),
            request,
            is_keyed: echoes_key(&metadata, &call),
            strips_cursors: adds_cursors,
            call,
            retries: Retries::new(&self.retry),
            events,
            phase: Phase::Streaming,
            connected_at: Instant::now(),
            is_replayed: false,
            seen,
        };
        let events = unfold(stream, async |mut stream| stream.next().await.map(|event| (event, stream)));
        Ok(Response::from_parts(metadata, Box::pin(events), extensions))
    }
}

macro_rules! retrying {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for Retrying { $(
            async fn $method(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                self.$by(Rpc::$rpc, request, |request| &request.tenant, |agent, request| agent.$method(request)).await
            }
        )* }
    };
}

each_rpc!(retrying);

/// A stream of events that is resumed when its connection is lost.
struct ResumingStream {
    retrying: Retrying,
    request: StreamRequest,
    call: Call,
    /// The agent supports the idempotency key of this send: repeating the send resumes its stream.
    is_keyed: bool,
    /// The caller has not requested the extension `resume`: its metadata is removed from the events.
    strips_cursors: bool,
    retries: Retries,
    events: BoxStream<Event>,
    phase: Phase,
    connected_at: Instant,
    /// The stream was resumed without a cursor of the agent, which may have begun from the start.
    is_replayed: bool,
    seen: LastSeen,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Streaming,
    /// Reconnected, and no event has been received since.
    Resumed,
    /// The next event is the final snapshot of the task.
    FinalSnapshot,
    Ended,
}

/// Last known state of the task, from the events that were delivered to the caller.
#[derive(Default)]
struct LastSeen {
    any: bool,
    task_id: Option<String>,
    /// Cursor of the last event, if it had one.
    cursor: Option<Cursor>,
    state: Option<TaskState>,
    ends: Ends,
    /// There were events, and none of a kind that this version of the protocol has.
    is_unrecognized: bool,
    /// The last event looks like the end of the turn, but may describe the state before it.
    is_end_uncertain: bool,
}

impl ResumingStream {
    async fn next(&mut self) -> Option<Result<Event, Status>> {
        while self.phase != Phase::Ended {
            let interruption = match self.events.next().await {
                Some(Ok(event)) => return Some(Ok(self.deliver(event))),
                Some(Err(status)) => Some(status),
                None => None,
            };
            let error = interruption.clone().map(Error::from);
            if self.is_complete(error.as_ref()) {
                break;
            }
            let resumed = match (interruption, error) {
                (Some(status), Some(error)) if !is_transient(&error) && !self.has_expired(&error) => Err(status),
                (_, Some(error)) => self.resume(error).await,
                (_, None) if self.seen.is_unrecognized => {
                    let reason = "the stream has neither a task nor a message";
                    Err(ErrorKind::InvalidAgentResponse.because(reason).into())
                }
                (_, None) if self.seen.state == Some(TaskState::Unspecified) => {
                    if matches!(self.fetch_final_snapshot().await, Ok(true)) {
                        Ok(())
                    } else {
                        Err(unknown_state(self.seen.task_id.as_deref().unwrap_or_default()).into())
                    }
                }
                (_, None) => {
                    self.resume(ErrorKind::Unavailable.because("the stream ended before its task or turn")).await
                }
            };
            if let Err(status) = resumed {
                self.phase = Phase::Ended;
                return Some(Err(status));
            }
        }
        self.phase = Phase::Ended;
        None
    }

    /// Returns true for the end of a stream whose access token has expired or was revoked, if there may be another one.
    fn has_expired(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Unauthenticated
            && self.phase == Phase::Streaming
            && self.retrying.credentials.tokens.is_some()
    }

    /// Returns true if no more events are expected after a stream that ended with `error`, or gracefully.
    fn is_complete(&self, error: Option<&Error>) -> bool {
        match self.seen.ends {
            Ends::Nothing => false,
            Ends::Task => error.is_none_or(|error| is_interruption(error) || self.has_expired(error)),
            // The stream was resumed, and the agent had no further events.
            Ends::Turn if self.seen.is_end_uncertain => error.is_none() && self.phase == Phase::Resumed,
            Ends::Turn => error
                .map_or_else(|| !self.was_interrupted(), |error| is_transient(error) && !self.continues_after_turn()),
        }
    }

    /// Returns true if a graceful end was an interruption. A server that stops or limits the age of streams closes them
    /// gracefully. A server of this crate closes no subscription for another reason while its task waits.
    fn was_interrupted(&self) -> bool {
        self.retrying.outlasts_turns
            && self.seen.has_own_cursor()
            && matches!(self.request, StreamRequest::Subscribe(_))
    }

    /// Returns true if the stream may continue after the end of a turn: a subscription lasts until its task is terminal
    /// (3.1.6), and an agent may continue while the caller authorizes something (7.6.1).
    fn continues_after_turn(&self) -> bool {
        match self.request {
            StreamRequest::Subscribe(_) => true,
            StreamRequest::Send(_) => self.is_keyed && self.seen.state == Some(TaskState::AuthRequired),
            StreamRequest::Rest(_) => false,
        }
    }

    /// Records an event and returns it as the caller receives it.
    fn deliver(&mut self, event: Event) -> Event {
        let is_snapshot = event.task().is_some();
        let resumed = matches!(self.phase, Phase::Resumed | Phase::FinalSnapshot);
        let gap = resumed && self.seen.any && (is_snapshot || !self.seen.has_own_cursor());
        // A snapshot after a reconnect is no progress: each reconnect may return the same one, and without a cursor also the same
        // events.
        if !(self.is_replayed || resumed && is_snapshot) {
            self.retries.reset();
        }
        self.seen.record(&event);
        let ends_turn = self.seen.ends == Ends::Turn;
        let is_last =
            self.phase == Phase::FinalSnapshot || (ends_turn && matches!(self.request, StreamRequest::Rest(_)));
        self.phase = if is_last { Phase::Ended } else { Phase::Streaming };
        // The stream of a message to an existing task begins with a snapshot from before the message, in which the task still
        // waits for input.
        let continues_task = match &self.request {
            StreamRequest::Send(request) => request.message.as_ref().is_some_and(|message| !message.task_id.is_empty()),
            StreamRequest::Subscribe(_) | StreamRequest::Rest(_) => false,
        };
        // `AUTH_REQUIRED` does not tell if the agent continues while the caller authorizes something (7.6.1).
        let may_continue = self.continues_after_turn()
            && self.seen.has_own_cursor()
            && self.retrying.outlasts_turns
            && matches!(self.request, StreamRequest::Send(_));
        self.seen.is_end_uncertain = ends_turn && (is_snapshot && continues_task || may_continue);
        let event = if self.strips_cursors { resume::without_cursor(event) } else { event };
        if gap { resume::with_gap(event) } else { event }
    }

    /// Reconnects after the last event. Returns an error if the stream can't be resumed.
    async fn resume(&mut self, interruption: Error) -> Result<(), Status> {
        // A connection that lasted at least as long as the maximum backoff counts as progress.
        if self.connected_at.elapsed() >= self.retrying.retry.longest {
            self.retries.reset();
        }
        // Some agents break the stream of a task that has ended, or that they have lost, instead of rejecting the subscription.
        if self.phase == Phase::Resumed || self.is_replayed {
            match self.read_task().await {
                Some(Ok(task)) if self.is_replayed => {
                    if self.end_with(task) {
                        return Ok(());
                    }
                }
                Some(Err(error)) if self.phase == Phase::Resumed && error.kind() == ErrorKind::TaskNotFound => {
                    return Err(error.into());
                }
                Some(Ok(_) | Err(_)) | None => {}
            }
        }
        self.is_replayed = !self.seen.has_own_cursor();
        let (mut last_error, lost) = (interruption, Once::new());
        loop {
            self.call.check_deadline()?;
            if !self.retries.wait(&last_error, &self.call).await {
                return Err(last_error.into());
            }
            let call = Call { cursor: self.seen.cursor.clone(), ..self.call.clone() };
            if let (StreamRequest::Send(request), false) = (&self.request, self.is_keyed) {
                let tenant = request.tenant.clone();
                match self.seen.task_id.clone() {
                    Some(id) => self.request = StreamRequest::Rest(SubscribeToTaskRequest { tenant, id }),
                    // The outcome of the send is unknown; without a supported key, a retry could be executed twice.
                    None => match self.retrying.supports_keys(&self.call, &tenant).await {
                        Ok(true) => {
                            warn_of_retry(&last_error);
                            self.is_keyed = true;
                        }
                        Ok(false) => return Err(last_error.into()),
                        Err(transient) => {
                            last_error = transient;
                            continue;
                        }
                    },
                }
            }
            let opened = match &self.request {
                StreamRequest::Send(request) => {
                    let request = SendMessageRequest::clone(request);
                    self.retrying
                        .attempt(&call, &request, &|agent, request| agent.send_streaming_message(request))
                        .await
                }
                StreamRequest::Subscribe(request) | StreamRequest::Rest(request) => {
                    self.retrying.attempt(&call, request, &|agent, request| agent.subscribe_to_task(request)).await
                }
            };
            let status = match opened {
                Ok(response) => {
                    self.events = response.into_inner();
                    (self.connected_at, self.phase) = (Instant::now(), Phase::Resumed);
                    return Ok(());
                }
                Err(status) => status,
            };
            let error = Error::from(status.clone());
            last_error = if is_transient(&error) {
                lost.call_once(|| tracing::warn!("connection lost; trying again"));
                error
            } else {
                match self.fetch_final_snapshot().await {
                    Ok(true) => return Ok(()),
                    Err(error) if is_transient(&error) => error,
                    Ok(false) | Err(_) => return Err(status),
                }
            };
        }
    }

    /// Reads the task of the stream. `None` if its id is unknown.
    async fn read_task(&mut self) -> Option<Result<Task, Error>> {
        let id = self.seen.task_id.clone()?;
        let tenant = match &self.request {
            StreamRequest::Send(request) => &request.tenant,
            StreamRequest::Subscribe(request) | StreamRequest::Rest(request) => &request.tenant,
        };
        let get = GetTaskRequest { tenant: tenant.clone(), id, history_length: None };
        let call = Call { cursor: None, ..self.call.clone() };
        let got = self.retrying.attempt(&call, &get, &|agent, request| agent.get_task(request)).await;
        Some(got.map_err(Error::from).and_then(|response| response.into_inner().into_task()))
    }

    /// Replaces the rest of the stream by a snapshot of the task if it is terminal or waits for the client. Agents reject
    /// subscriptions to terminal tasks (3.1.6), and some also to waiting ones. Returns false if there is no such snapshot.
    ///
    /// # Errors
    /// `GetTask` failed.
    async fn fetch_final_snapshot(&mut self) -> Result<bool, Error> {
        Ok(self.read_task().await.transpose()?.is_some_and(|task| self.end_with(task)))
    }

    /// Replaces the rest of the stream by a snapshot, if its task is terminal or waits for the client.
    fn end_with(&mut self, task: Task) -> bool {
        let is_settled = task.state().is_settled();
        if is_settled {
            let event = Event::from_remote(None, StreamResponse { payload: Some(Payload::Task(task)) });
            self.events = Box::pin(tokio_stream::once(Ok(event)));
            self.phase = Phase::FinalSnapshot;
        }
        is_settled
    }
}

impl LastSeen {
    fn record(&mut self, event: &Event) {
        self.any = true;
        self.cursor = event.cursor().cloned();
        if self.ends != Ends::Task {
            self.ends = event.ends();
        }
        let Some(payload) = event.payload() else {
            self.is_unrecognized |= self.task_id.is_none();
            return;
        };
        self.is_unrecognized = false;
        self.state = payload.status().map(TaskStatus::state).or(self.state);
        let id = payload.task_id();
        // An event of another task must not redirect the stream.
        if !id.is_empty() && self.task_id.is_none() {
            self.task_id = Some(id.to_owned());
        }
    }

    /// Returns true if the cursor has the format of this crate and names this task, so that resuming after it leaves no gap.
    /// Event ids of other servers need not be positions in a log.
    fn has_own_cursor(&self) -> bool {
        let cursor_task = self.cursor.as_ref().and_then(Cursor::parts).map(|(task_id, _)| task_id);
        cursor_task.is_some() && cursor_task == self.task_id.as_deref()
    }
}
