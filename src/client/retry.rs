//! Retries of calls to a remote agent: the policy (attempts, exponential backoff with jitter, `Retry-After`), and the service
//! that retries calls where that is safe.
//!
//! Decides for all bindings and versions which calls are idempotent. A send of unknown outcome is retried only if the
//! agent supports `Idempotency-Key`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, header};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Request, Response, Status, metadata::MetadataMap};

use super::{
    credentials::AgentCredentials,
    resume::{ResumingStream, StreamContext, StreamRequest},
};
use crate::{
    base::retry::Backoff,
    call::{Call, IDEMPOTENCY_KEY, within},
    clock,
    contract::{BoxStream, ServiceFuture},
    env::{Ids, Rng},
    error::{Error, ErrorKind},
    event::{Event, resume},
    pb::v1::{
        CancelTaskRequest, DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
        GetTaskPushNotificationConfigRequest, GetTaskRequest, ListTaskPushNotificationConfigsRequest, ListTasksRequest,
        SendMessageRequest, SubscribeToTaskRequest, TaskPushNotificationConfig, a2a_service_server::A2aService,
        bindings::each_rpc,
    },
};

/// Longest `Retry-After` that is honored, unless [`Retry::longest`] is longer. Beyond it the error is returned.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);

options! {
    /// Retry policy: exponential backoff with jitter.
    ///
    /// ```
    /// use a2a_service::client::Retry;
    /// use std::time::Duration;
    ///
    /// let retry = Retry::default().attempts(3).longest(Duration::from_secs(1));
    /// # assert_eq!(retry.attempts, 3);
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Retry {
        /// Maximum number of consecutive retries. A stream that made progress after a reconnect starts at 0 again. 8 by
        /// default.
        pub attempts: u32,
        /// Backoff before the first retry; it doubles with each further one. The actual delay is a random share of it
        /// between one half and the whole. 100 ms by default.
        pub first: Duration,
        /// Maximum backoff. 10 s by default. A longer `Retry-After` of the server is honored up to 1 min, or up to this
        /// value if it is longer.
        pub longest: Duration,
        /// Adds an `Idempotency-Key` to sends that have none. A server that supports keys then creates a task for each
        /// send, even if the agent responds with a message. On by default.
        pub keys: bool,
        /// Retry budget: maximum number of retries of all calls of a client together, until successful calls earn further
        /// ones. Without budget, a call returns its error. This limits the load on a server that fails many calls. Streams
        /// that reconnect do not use it. 100 by default.
        pub budget: u32,
        /// Retries that 100 successful calls earn, up to the budget. 10 by default.
        pub budget_percent: u32,
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 8,
            first: Duration::from_millis(100),
            longest: Duration::from_secs(10),
            keys: true,
            budget: 100,
            budget_percent: 10,
        }
    }
}

impl Retry {
    /// Disables retries and generated idempotency keys.
    pub fn never() -> Self {
        Self { attempts: 0, keys: false, ..Self::default() }
    }
}

/// Retries that the calls of a client have left together: a token bucket.
#[derive(Debug)]
pub(super) struct RetryBudget {
    /// In hundredths of a retry.
    left: AtomicU64,
    full: u64,
    /// Earned by a successful call.
    earned: u64,
}

impl RetryBudget {
    pub(super) fn new(retry: &Retry) -> Self {
        let full = u64::from(retry.budget) * 100;
        Self { left: AtomicU64::new(full), full, earned: retry.budget_percent.into() }
    }

    /// Takes a retry. Returns false if there is none.
    fn take(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(100)).is_ok()
    }

    /// Records a successful call.
    fn earn(&self) {
        let earn = |left: u64| (left < self.full).then(|| self.full.min(left.saturating_add(self.earned)));
        _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earn);
    }
}

/// Consecutive retries of one call or stream, and the delay before the next one.
#[derive(Clone, Debug)]
pub(super) struct Retries {
    retry: Retry,
    count: u32,
    budget: Option<Arc<RetryBudget>>,
}

impl Retries {
    pub(super) fn new(retry: &Retry) -> Self {
        Self { retry: retry.clone(), count: 0, budget: None }
    }

    /// Takes retries from a budget.
    fn with_budget(self, budget: &Arc<RetryBudget>) -> Self {
        Self { budget: Some(Arc::clone(budget)), ..self }
    }

    /// Starts over after progress.
    pub(super) fn reset(&mut self) {
        self.count = 0;
    }

    /// Maximum backoff. A connection that lasted at least this long counts as progress.
    pub(super) fn longest(&self) -> Duration {
        self.retry.longest
    }

    /// Waits before the next retry. Returns false at once if the attempts or the budget are exhausted, `Retry-After` is too
    /// long, or the deadline of the call would pass.
    pub(super) async fn wait(&mut self, error: &Error, call: &Call) -> bool {
        let Some(delay) = self.delay(error, Rng::default().next_u64()) else { return false };
        if call.time_left().is_some_and(|left| left <= delay) {
            return false;
        }
        if self.budget.as_ref().is_some_and(|budget| !budget.take()) {
            return false;
        }
        self.count += 1;
        sleep_until(clock::after(Instant::now(), delay)).await;
        true
    }

    fn delay(&self, error: &Error, random: u64) -> Option<Duration> {
        let Retry { attempts, first, longest, .. } = self.retry;
        let retry_after = error.retry_after_seconds().map(Duration::from_secs);
        let backoff = Backoff { first, longest };
        if self.count < attempts {
            backoff.delay_after(retry_after, MAX_RETRY_AFTER.max(longest), self.count, random)
        } else {
            None
        }
    }
}

/// Returns true for a transient error: `Unavailable`, or `ResourceExhausted` with a retry delay.
pub(super) fn is_transient(error: &Error) -> bool {
    let has_delay = error.kind() == ErrorKind::ResourceExhausted && error.retry_after_seconds().is_some();
    has_delay || error.kind() == ErrorKind::Unavailable
}

/// A remote agent with its retry policy.
#[derive(Clone)]
pub(super) struct Retrying {
    /// Interfaces of the agent. A call is sent to the next one if the connection to one cannot be established.
    pub(super) interfaces: Arc<Interfaces>,
    pub(super) retry: Retry,
    pub(super) budget: Arc<RetryBudget>,
    pub(super) credentials: Arc<AgentCredentials>,
    /// Requests the extension `resume`, for a binding without event ids: cursors then arrive in the metadata of events.
    pub(super) requests_cursors: bool,
    /// Subscriptions last until the task is terminal (3.1.6). In 0.3 they end with a turn.
    pub(super) outlasts_turns: bool,
}

/// Interfaces of a remote agent, in the order of preference.
pub(super) struct Interfaces {
    all: Vec<Arc<dyn A2aService>>,
    /// Number of changes to the next interface.
    changes: AtomicUsize,
}

impl Interfaces {
    pub(super) fn new(all: Vec<Arc<dyn A2aService>>) -> Self {
        Self { all, changes: AtomicUsize::new(0) }
    }

    /// Number of interfaces.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of changes so far, and the interface that is in use.
    pub(super) fn current(&self) -> Result<(usize, &dyn A2aService), Error> {
        let changes = self.changes.load(Ordering::Relaxed);
        let index = changes.checked_rem(self.all.len()).unwrap_or_default();
        let agent = self.all.get(index).ok_or_else(|| Error::internal("a remote agent has no interface"))?;
        Ok((changes, &**agent))
    }

    /// Changes to the next interface, unless another call already has.
    pub(super) fn change(&self, changes: usize) {
        let next = changes.wrapping_add(1);
        _ = self.changes.compare_exchange(changes, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Idempotency of a call: decides if it may be retried when its outcome is unknown.
#[derive(Clone, Copy)]
enum Idempotency<'a> {
    /// Read-only or idempotent.
    Always,
    /// A send for this tenant: idempotent if the agent supports its `Idempotency-Key`.
    Keyed(&'a str),
    /// Retried only if nothing was sent.
    Never,
}

/// Request of a call that is retried.
trait Retried: Clone + Send {
    fn idempotency(&self) -> Idempotency<'_> {
        Idempotency::Always
    }
}

impl Retried for SendMessageRequest {
    fn idempotency(&self) -> Idempotency<'_> {
        Idempotency::Keyed(&self.tenant)
    }
}

impl Retried for CancelTaskRequest {
    fn idempotency(&self) -> Idempotency<'_> {
        Idempotency::Never
    }
}

/// The request that creates one.
impl Retried for TaskPushNotificationConfig {
    fn idempotency(&self) -> Idempotency<'_> {
        Idempotency::Never
    }
}

impl Retried for GetTaskRequest {}
impl Retried for ListTasksRequest {}
impl Retried for SubscribeToTaskRequest {}
impl Retried for GetTaskPushNotificationConfigRequest {}
impl Retried for ListTaskPushNotificationConfigsRequest {}
impl Retried for DeleteTaskPushNotificationConfigRequest {}
impl Retried for GetExtendedAgentCardRequest {}

impl Retrying {
    /// Calls until a response or a permanent error arrives, or the attempts are exhausted.
    async fn unary<Req: Retried, Res>(
        &self,
        request: Request<Req>,
        rpc: impl for<'a> Fn(&'a dyn A2aService, Request<Req>) -> ServiceFuture<'a, Res> + Send + Sync,
    ) -> Result<Response<Res>, Status> {
        let (call, message) = self.into_parts(request);
        let mut retries = Retries::new(&self.retry).with_budget(&self.budget);
        loop {
            match self.attempt(&call, &message, &rpc).await {
                Ok(response) => return Ok(response),
                Err(status) => self.wait_to_retry(&mut retries, &call, message.idempotency(), status).await?,
            }
        }
    }

    /// Calls once. If the agent rejects an access token, calls once more with a new one.
    pub(super) async fn attempt<Req: Clone + Send, Res>(
        &self,
        call: &Call,
        message: &Req,
        rpc: &(impl for<'a> Fn(&'a dyn A2aService, Request<Req>) -> ServiceFuture<'a, Res> + Send + Sync),
    ) -> Result<Response<Res>, Status> {
        let (authorized, token) = self.authorize(call.clone()).await?;
        let mut result = self.attempt_with(&authorized, message, rpc).await;
        let is_rejected = matches!(&result, Err(status) if status.code() == Code::Unauthenticated);
        if let (true, Some(token), Some(tokens)) = (is_rejected, token, &self.credentials.tokens) {
            tokens.reject(&token);
            let (authorized, _) = self.authorize(call.clone()).await?;
            result = self.attempt_with(&authorized, message, rpc).await;
        }
        match result {
            Ok(response) => {
                self.budget.earn();
                Ok(response)
            }
            Err(status) => Err(self.explain(status)),
        }
    }

    /// Calls once, over the first interface to which a connection can be established.
    async fn attempt_with<Req: Clone + Send, Res>(
        &self,
        call: &Call,
        message: &Req,
        rpc: &(impl for<'a> Fn(&'a dyn A2aService, Request<Req>) -> ServiceFuture<'a, Res> + Send + Sync),
    ) -> Result<Response<Res>, Status> {
        let mut tried = 0;
        loop {
            let (changes, agent) = self.interfaces.current()?;
            let result = rpc(agent, call.clone().request(message.clone())).await;
            tried += 1;
            match result {
                Err(status) if tried < self.interfaces.count() && Error::from(status.clone()).is_unsent() => {
                    self.interfaces.change(changes);
                }
                result => return result,
            }
        }
    }

    /// Adds the credentials to a call. Returns the access token among them.
    async fn authorize(&self, mut call: Call) -> Result<(Call, Option<HeaderValue>), Error> {
        let has_authorization =
            call.headers.as_deref().is_some_and(|headers| headers.contains_key(header::AUTHORIZATION));
        let token = match &self.credentials.tokens {
            Some(tokens) if !has_authorization => Some(within(call.deadline, tokens.authorization()).await??),
            _ => None,
        };
        if !self.credentials.headers.is_empty() || token.is_some() {
            let mut headers = self.credentials.headers.clone();
            headers.extend(token.clone().map(|token| (header::AUTHORIZATION, token)));
            headers.extend(call.headers.as_deref().cloned().unwrap_or_default());
            call.headers = Some(Arc::new(headers));
        }
        Ok((call, token))
    }

    /// Adds the security schemes without credentials to the error of a call that needs credentials.
    fn explain(&self, status: Status) -> Status {
        match &self.credentials.missing {
            Some(missing) if status.code() == Code::Unauthenticated => {
                let message = format!("{}; {missing}", status.message());
                let (details, metadata) = (status.details().to_vec().into(), status.metadata().clone());
                Status::with_details_and_metadata(status.code(), message, details, metadata)
            }
            _ => status,
        }
    }

    /// Waits until the call can be retried. Returns its error if it can't.
    async fn wait_to_retry(
        &self,
        retries: &mut Retries,
        call: &Call,
        idempotency: Idempotency<'_>,
        status: Status,
    ) -> Result<(), Status> {
        let error = Error::from(status.clone());
        let may_retry = match idempotency {
            Idempotency::Always => true,
            Idempotency::Keyed(_) => error.is_unsent() || call.idempotency_key.is_some(),
            Idempotency::Never => error.is_unsent(),
        };
        if !is_transient(&error) || !may_retry || !retries.wait(&error, call).await {
            return Err(status);
        }
        let (Idempotency::Keyed(tenant), false) = (idempotency, error.is_unsent()) else { return Ok(()) };
        loop {
            let may_probe_again = match self.supports_keys(call, tenant).await {
                Ok(supported) => return if supported { Ok(()) } else { Err(status) },
                Err(transient) => retries.wait(&transient, call).await,
            };
            if !may_probe_again {
                return Err(status);
            }
        }
    }

    /// Returns true if the agent supports `Idempotency-Key`. The protocol has no way to declare that, so this probes it: an
    /// agent that returns the key in the response to `GetTask` of a random id has read it.
    ///
    /// # Errors
    /// The probe failed with a transient error.
    pub(super) async fn supports_keys(&self, call: &Call, tenant: &str) -> Result<bool, Error> {
        if call.idempotency_key.is_none() {
            return Ok(false);
        }
        let unknown_task =
            GetTaskRequest { tenant: tenant.to_owned(), id: Ids::default().random(), history_length: None };
        let probe = Call { cursor: None, ..call.clone() };
        match self.attempt(&probe, &unknown_task, &|agent, request| agent.get_task(request)).await {
            Ok(response) => Ok(echoes_key(response.metadata(), call)),
            Err(status) if echoes_key(status.metadata(), call) => Ok(true),
            Err(status) => {
                let error = Error::from(status);
                if is_transient(&error) { Err(error) } else { Ok(false) }
            }
        }
    }

    /// Splits a request. Adds an idempotency key to a send that has none, if the retry policy says so.
    fn into_parts<Req: Retried>(&self, request: Request<Req>) -> (Call, Req) {
        let (_, mut extensions, message) = request.into_parts();
        let mut call = extensions.remove::<Call>().unwrap_or_default();
        if self.retry.keys && matches!(message.idempotency(), Idempotency::Keyed(_)) {
            call.idempotency_key.get_or_insert_with(|| Ids::default().random());
        }
        (call, message)
    }

    /// Opens a stream that is resumed until its task or turn ends.
    async fn streaming<Req: Retried + Into<StreamRequest>>(
        &self,
        request: Request<Req>,
        rpc: impl for<'a> Fn(&'a dyn A2aService, Request<Req>) -> ServiceFuture<'a, BoxStream<Event>> + Send + Sync,
    ) -> Result<Response<BoxStream<Event>>, Status> {
        let (mut call, message) = self.into_parts(request);
        let resumes = self.retry != Retry::never();
        let adds_cursors = resumes && self.requests_cursors && !call.extensions.iter().any(|uri| uri == resume::URI);
        if adds_cursors {
            call.extensions.push(resume::URI.to_owned());
        }
        let opened = self.unary(call.clone().request(message.clone()), rpc).await?;
        if !resumes {
            return Ok(opened);
        }
        let (metadata, events, extensions) = opened.into_parts();
        let known = StreamContext { keyed: echoes_key(&metadata, &call), strips_cursors: adds_cursors };
        let stream = ResumingStream::new(self.clone(), message.into(), call, events, known);
        Ok(Response::from_parts(metadata, stream.into_stream(), extensions))
    }
}

/// Returns true if the metadata of a response contains the idempotency key of its call.
fn echoes_key(metadata: &MetadataMap, call: &Call) -> bool {
    let key = metadata.get(IDEMPOTENCY_KEY.as_str()).and_then(|value| value.to_str().ok());
    key.is_some() && key == call.idempotency_key.as_deref()
}

macro_rules! retrying {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        #[tonic::async_trait]
        impl A2aService for Retrying { $(
            async fn $method(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                self.$by(request, |agent, request| agent.$method(request)).await
            }
        )* }
    };
}

each_rpc!(retrying);

#[cfg(test)]
mod tests {
    use super::*;

    fn unavailable() -> Error {
        ErrorKind::Unavailable.error()
    }

    #[test]
    fn attempts_are_counted_until_progress() {
        let mut retries = Retries::new(&Retry::default());
        for millis in [100, 200, 400, 800, 1600, 3200, 6400, 10_000] {
            assert_eq!(retries.delay(&unavailable(), 0), Some(Duration::from_millis(millis) / 2));
            retries.count += 1;
        }
        assert_eq!(retries.delay(&unavailable(), 0), None);
        retries.reset();
        assert!(retries.delay(&unavailable(), 0).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn budget_is_shared_and_earned_by_successes() {
        let retry = Retry::default().budget(2).budget_percent(50);
        let budget = Arc::new(RetryBudget::new(&retry));
        let wait = async || {
            let mut retries = Retries::new(&retry).with_budget(&budget);
            retries.wait(&unavailable(), &Call::default()).await
        };
        assert_eq!([wait().await, wait().await, wait().await], [true, true, false]);
        budget.earn();
        assert!(!wait().await, "half a retry");
        (0..10).for_each(|_| budget.earn());
        assert_eq!([wait().await, wait().await, wait().await], [true, true, false]);
        assert!(Retries::new(&retry).wait(&unavailable(), &Call::default()).await, "reconnects have no budget");
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_is_honored_up_to_the_limit_and_the_deadline() {
        let mut retries = Retries::new(&Retry::default());
        let after = |seconds| unavailable().retry_after(Duration::from_secs(seconds));
        let start = Instant::now();
        assert!(retries.wait(&after(30), &Call::default()).await);
        assert!((30..31).contains(&start.elapsed().as_secs()));
        assert!(!retries.wait(&after(3600), &Call::default()).await, "an hour exceeds the limit");
        let with_deadline = Call { deadline: Some(Instant::now() + Duration::from_secs(10)), ..Call::default() };
        assert!(!retries.wait(&after(30), &with_deadline).await, "the deadline would pass");
        assert!(retries.wait(&after(5), &with_deadline).await);
        assert!(!Retries::new(&Retry::never()).wait(&unavailable(), &Call::default()).await);
    }

    #[test]
    fn only_transient_errors_are_retried() {
        for kind in ErrorKind::ALL {
            assert_eq!(is_transient(&kind.error()), kind == ErrorKind::Unavailable, "{kind:?}");
        }
        assert!(is_transient(&ErrorKind::ResourceExhausted.error().retry_after(Duration::from_secs(1))));
    }
}
