//! A remote agent whose calls are retried where that is safe, over the first of its interfaces that can be reached.
//!
//! Decides for all bindings and versions which calls are idempotent. A send of unknown outcome is retried only if the
//! agent supports `Idempotency-Key`.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, header};
use tonic::{Code, Request, Response, Status, metadata::MetadataMap};

use super::{
    A2aService, Call, Error, ErrorKind,
    credentials::AgentCredentials,
    retry_policy::{Retries, Retry, RetryBudget, is_transient},
};
#[cfg(feature = "server")]
use crate::base::dependency::OutboundResult;
use crate::{
    base::sources::Ids,
    protocol::{
        call::{IDEMPOTENCY_KEY, within},
        pb::v1::{GetTaskRequest, bindings::Rpc},
        rpc::ServiceFuture,
    },
};

/// A remote agent with its retry policy.
#[derive(Clone)]
pub(super) struct Retrying {
    /// Interfaces of the agent, in the order of preference. A call is sent to the next one if the connection to one cannot be established.
    pub(super) interfaces: Arc<[Arc<dyn A2aService>]>,
    /// Number of changes to the next interface.
    pub(super) changes: Arc<AtomicUsize>,
    pub(super) retry: Retry,
    pub(super) budget: Arc<RetryBudget>,
    pub(super) credentials: Arc<AgentCredentials>,
    /// The agent supports `Idempotency-Key`, once that is known.
    pub(super) keys: Arc<OnceLock<bool>>,
    /// Requests the extension `resume`, for a binding without event ids: cursors then arrive in the metadata of events.
    pub(super) requests_cursors: bool,
    /// Subscriptions last until the task is terminal (3.1.6). In 0.3 they end with a turn.
    pub(super) outlasts_turns: bool,
}

/// Calls that are idempotent if the agent supports their `Idempotency-Key`.
const KEYED: [Rpc; 2] = [Rpc::SendMessage, Rpc::SendStreamingMessage];

/// Calls that are never idempotent: retried only if nothing was sent. The others are read-only or idempotent.
const NOT_IDEMPOTENT: [Rpc; 2] = [Rpc::CancelTask, Rpc::CreateTaskPushNotificationConfig];

impl Retrying {
    /// Calls until a response or a permanent error arrives, or the attempts are exhausted. `tenant` returns that of a request.
    pub(super) async fn unary<Req: Clone + Send, Res>(
        &self,
        operation: Rpc,
        request: Request<Req>,
        tenant: fn(&Req) -> &str,
        rpc: impl for<'a> Fn(&'a dyn A2aService, Request<Req>) -> ServiceFuture<'a, Res> + Send + Sync,
    ) -> Result<Response<Res>, Status> {
        let (call, message) = self.keyed_parts(operation, request);
        let mut retries = Retries::new(&self.retry).with_budget(&self.budget);
        loop {
            match self.attempt(&call, &message, &rpc).await {
                Ok(response) => return Ok(response),
                Err(status) => self.wait_to_retry(&mut retries, &call, (operation, tenant(&message)), status).await?,
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
        #[cfg(feature = "server")]
        let outbound = call.attempts.as_ref().and_then(|attempts| Some((attempts, attempts.begin()?)));
        let (authorized, token) = self.authorize(call.clone()).await?;
        let mut result = self.attempt_with(&authorized, message, rpc).await;
        let is_rejected = matches!(&result, Err(status) if status.code() == Code::Unauthenticated);
        if let (true, Some(token), Some(tokens)) = (is_rejected, token, &self.credentials.tokens) {
            tokens.reject(&token);
            let (authorized, _) = self.authorize(call.clone()).await?;
            result = self.attempt_with(&authorized, message, rpc).await;
        }
        #[cfg(feature = "server")]
        if let Some((attempts, outbound)) = outbound {
            let error = result.as_ref().err().map(|status| Error::from(status.clone()));
            let outcome = error.as_ref().map_or(OutboundResult::Ok, outbound_result);
            attempts.end(outbound, outcome, &error.map(|error| error.to_string()).unwrap_or_default());
        }
        match result {
            Ok(response) => {
                self.budget.earn();
                if echoes_key(response.metadata(), call) {
                    self.keys.get_or_init(|| true);
                }
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
            let changes = self.changes.load(Ordering::Relaxed);
            let agent = changes.checked_rem(self.interfaces.len()).and_then(|index| self.interfaces.get(index));
            let agent = agent.ok_or_else(|| Error::internal("a remote agent has no interface"))?;
            let result = rpc(&**agent, call.clone().request(message.clone())).await;
            tried += 1;
            match result {
                Err(status) if tried < self.interfaces.len() && Error::from(status.clone()).is_unsent() => {
                    // Unless another call already has.
                    let next = changes.wrapping_add(1);
                    _ = self.changes.compare_exchange(changes, next, Ordering::Relaxed, Ordering::Relaxed);
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
        (operation, tenant): (Rpc, &str),
        status: Status,
    ) -> Result<(), Status> {
        let error = Error::from(status.clone());
        let is_keyed = KEYED.contains(&operation);
        let has_key = !is_keyed || call.idempotency_key.is_some();
        let may_retry = error.is_unsent() || (has_key && !NOT_IDEMPOTENT.contains(&operation));
        if !is_transient(&error) || !may_retry || !retries.wait(&error, call).await {
            return Err(status);
        }
        if !is_keyed || error.is_unsent() {
            return Ok(());
        }
        if echoes_key(status.metadata(), call) {
            self.keys.get_or_init(|| true);
        }
        loop {
            match self.supports_keys(call, tenant).await {
                Ok(true) => {
                    warn_of_retry(&error);
                    return Ok(());
                }
                Err(unsent) if retries.wait(&unsent, call).await => {}
                Ok(false) | Err(_) => return Err(status),
            }
        }
    }

    /// Returns true if the agent supports `Idempotency-Key`. The protocol has no way to declare that, so this probes it once: an
    /// agent that returns the key in the response to `GetTask` of a random id has read it.
    ///
    /// # Errors
    /// The agent was not asked, because no connection could be established.
    pub(super) async fn supports_keys(&self, call: &Call, tenant: &str) -> Result<bool, Error> {
        if call.idempotency_key.is_none() {
            return Ok(false);
        }
        if let Some(known) = self.keys.get() {
            return Ok(*known);
        }
        let unknown_task =
            GetTaskRequest { tenant: tenant.to_owned(), id: Ids::default().random(), history_length: None };
        let probe = Call { cursor: None, ..call.clone() };
        let (supported, error) =
            match self.attempt(&probe, &unknown_task, &|agent, request| agent.get_task(request)).await {
                Ok(response) => (echoes_key(response.metadata(), call), None),
                Err(status) => (echoes_key(status.metadata(), call), Some(Error::from(status))),
            };
        match error {
            Some(error) if error.is_unsent() => return Err(error),
            // The agent did not answer. It is not asked again for this call.
            Some(error) if !supported && error.kind() != ErrorKind::TaskNotFound => {}
            Some(_) | None => _ = self.keys.set(supported),
        }
        Ok(supported)
    }

    /// Splits a request. Adds an idempotency key to a send that has none, if the retry policy says so.
    pub(super) fn keyed_parts<Req>(&self, operation: Rpc, request: Request<Req>) -> (Call, Req) {
        let (_, mut extensions, message) = request.into_parts();
        let mut call = extensions.remove::<Call>().unwrap_or_default();
        if self.retry.keys && KEYED.contains(&operation) {
            call.idempotency_key.get_or_insert_with(|| Ids::default().random());
        }
        (call, message)
    }
}

/// Returns the result of an attempt for the state of the agent, which is called by another agent.
#[cfg(feature = "server")]
pub(crate) fn outbound_result(error: &Error) -> OutboundResult {
    let wait = error.retry_after_seconds().map(Duration::from_secs);
    match (error.kind(), wait) {
        _ if error.is_unsent() => OutboundResult::Connect,
        (ErrorKind::DeadlineExceeded, _) => OutboundResult::Timeout,
        (ErrorKind::InvalidAgentResponse, _) => OutboundResult::Protocol,
        // An agent that asks to wait is there.
        (_, Some(wait)) => OutboundResult::RateLimited(wait),
        (kind, None) => OutboundResult::of_status(kind.wire().http, None),
    }
}

/// Says that a send is repeated, which may take a while.
pub(super) fn warn_of_retry(error: &Error) {
    tracing::warn!("the send failed ({error}); it is repeated with its idempotency key, so that it runs once");
}

/// Returns true if the metadata of a response contains the idempotency key of its call.
pub(super) fn echoes_key(metadata: &MetadataMap, call: &Call) -> bool {
    let key = metadata.get(IDEMPOTENCY_KEY.as_str()).and_then(|value| value.to_str().ok());
    key.is_some() && key == call.idempotency_key.as_deref()
}
