//! Authorization of calls: scopes and tenants of principals, the [`Policy`] of a program, and the end of calls and streams whose
//! credentials have become invalid.

use std::{any::Any, mem, sync::Arc};

use async_trait::async_trait;
use futures_util::stream::unfold;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status};

use crate::{
    protocol::{
        call::{CARD_EXTENDED, Call, PUSH_WRITE, Principal, SKILL_PREFIX, TASKS_READ, TASKS_WRITE, Validity},
        error::{BEARER, Error, ErrorKind, INVALID_TOKEN},
        event::Event,
        message::{
            skill::{SKILL_ID, skill_ids},
            task_id::OfTask,
        },
        pb::v1::{
            SendMessageRequest,
            a2a_service_server::A2aService,
            bindings::{Rpc, each_rpc},
        },
        rpc::{BoxStream, ServiceFuture},
    },
    service::auth::audit,
};

/// Operation that is to be authorized.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Operation<'a> {
    /// Name of the RPC, such as `SendMessage`.
    pub name: &'static str,
    /// Scope that the operation requires.
    pub scope: &'static str,
    /// Tenant of the call. Empty if there is none.
    pub tenant: &'a str,
    /// Id of the task that the request names. Empty if it names none. The task may not exist, or belong to another owner.
    pub task_id: &'a str,
    /// Skill to which a message is sent, if its metadata names one.
    pub skill: Option<&'a str>,
}

/// Authorization policy of a program, in addition to the scopes of principals. It decides about calls of every binding, and
/// about those in process.
///
/// ```
/// use a2a_service::{
///     agent::demo::Demo,
///     auth::{Operation, Policy},
///     call::Call,
///     error::{Error, ErrorKind},
///     server::Server,
/// };
///
/// /// Guests may only read.
/// struct ReadOnlyGuests;
///
/// #[async_trait::async_trait]
/// impl Policy for ReadOnlyGuests {
///     async fn authorize(&self, call: &Call, operation: &Operation<'_>) -> Result<(), Error> {
///         let is_guest = call.principal.as_ref().is_none_or(|principal| &*principal.id == "guest");
///         if is_guest && operation.scope != "tasks:read" {
///             return Err(ErrorKind::PermissionDenied.because("guests may only read"));
///         }
///         Ok(())
///     }
/// }
///
/// let server = Server::new(Demo).policy(ReadOnlyGuests);
/// ```
#[async_trait]
pub trait Policy: Send + Sync + 'static {
    /// Decides whether a call is permitted.
    ///
    /// # Errors
    /// The call is rejected with this error. [`ErrorKind::PermissionDenied`] is logged in the audit log.
    async fn authorize(&self, call: &Call, operation: &Operation<'_>) -> Result<(), Error>;
}

/// Returns the scope that an RPC requires.
fn scope_of(rpc: Rpc) -> &'static str {
    match rpc {
        Rpc::SendMessage | Rpc::SendStreamingMessage | Rpc::CancelTask => TASKS_WRITE,
        Rpc::GetTask
        | Rpc::ListTasks
        | Rpc::SubscribeToTask
        | Rpc::GetTaskPushNotificationConfig
        | Rpc::ListTaskPushNotificationConfigs => TASKS_READ,
        Rpc::CreateTaskPushNotificationConfig | Rpc::DeleteTaskPushNotificationConfig => PUSH_WRITE,
        Rpc::GetExtendedAgentCard => CARD_EXTENDED,
    }
}

/// Checks that a principal has a scope.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] with the name of the scope.
pub(crate) fn require_scope(principal: &Principal, scope: &str) -> Result<(), Error> {
    if principal.scopes.contains(scope) {
        return Ok(());
    }
    Err(insufficient_scope(scope, format!("the credentials lack the scope {scope}")))
}

fn insufficient_scope(scope: &str, why: String) -> Error {
    // RFC 6750, 3.1.
    let challenge = format!("{BEARER}, error=\"insufficient_scope\", scope=\"{scope}\"");
    ErrorKind::PermissionDenied.because(why).with("scope", scope).challenge(challenge)
}

/// Accesses the tenant of a request.
type Tenant<T> = fn(&mut T) -> &mut String;

/// Checks scope, tenant and skill of a call, and binds it to the tenant of the principal.
fn check<T: Any>(principal: &Principal, scope: &str, request: &mut T, tenant: Tenant<T>) -> Result<(), Error> {
    // The extended card has a guard of its own, which may be off.
    if scope != CARD_EXTENDED {
        require_scope(principal, scope)?;
    }
    if registers_push(request) {
        require_scope(principal, PUSH_WRITE)?;
    }
    if let Some(own) = &principal.tenant {
        let tenant = tenant(request);
        if tenant.is_empty() {
            (**own).clone_into(tenant);
        } else if **tenant != **own {
            let why = "tenant: the credentials are for another tenant; leave it out";
            return Err(ErrorKind::PermissionDenied.because(why).with("field", "tenant"));
        }
    }
    let Some(permitted) = principal.scopes.skills() else { return Ok(()) };
    for skill in skills(request) {
        if !permitted.contains(&skill) {
            let why = format!("metadata.{SKILL_ID}: the credentials lack the scope {SKILL_PREFIX}{skill}");
            return Err(insufficient_scope(&format!("{SKILL_PREFIX}{skill}"), why));
        }
    }
    Ok(())
}

/// Service wrapper that authorizes each call.
pub(crate) struct AuthorizedService {
    service: Arc<dyn A2aService>,
    policy: Option<Arc<dyn Policy>>,
    /// Scopes that each call requires in addition to its own.
    scopes: Arc<[String]>,
}

impl AuthorizedService {
    pub(crate) fn new(service: Arc<dyn A2aService>, policy: Option<Arc<dyn Policy>>, scopes: Arc<[String]>) -> Self {
        Self { service, policy, scopes }
    }

    /// Checks the scopes of a call. Calls without a principal have none, and are rejected if the agent requires some.
    fn check<T: Any>(&self, rpc: Rpc, scope: &str, request: &mut Request<T>, tenant: Tenant<T>) -> Result<(), Error> {
        let Some(principal) = Call::of(request).ok().and_then(|call| call.principal.clone()) else {
            if self.scopes.is_empty() {
                return Ok(());
            }
            let why = format!("the agent requires credentials with the scope {}", self.scopes.join(" "));
            return Err(ErrorKind::Unauthenticated.because(why).challenge(BEARER));
        };
        let permitted = self.scopes.iter().try_for_each(|scope| require_scope(&principal, scope));
        let checked = permitted.and_then(|()| check(&principal, scope, request.get_mut(), tenant));
        if let Err(error) = &checked {
            audit::permission_denied(Some(&principal), Call::of(request).ok(), rpc.name(), error);
        }
        checked
    }

    async fn forward<'a, T: OfTask + Send + 'static, R: 'static>(
        &'a self,
        rpc: Rpc,
        mut request: Request<T>,
        tenant: Tenant<T>,
        call: impl FnOnce(&'a dyn A2aService, Request<T>) -> ServiceFuture<'a, R>,
    ) -> Result<Response<R>, Status> {
        let scope = Call::of(&request)?.required_scope.unwrap_or_else(|| scope_of(rpc));
        self.check(rpc, scope, &mut request, tenant)?;
        if let Some(policy) = &self.policy {
            let tenant = tenant(request.get_mut()).clone();
            let (context, subject) = (Call::of(&request)?, request.get_ref());
            let (task_id, skill) = (subject.task_id().unwrap_or_default(), skills(subject).into_iter().next());
            let operation = Operation { name: rpc.name(), scope, tenant: &tenant, task_id, skill };
            if let Err(error) = policy.authorize(context, &operation).await {
                if error.kind() == ErrorKind::PermissionDenied {
                    audit::permission_denied(context.principal.as_deref(), Some(context), rpc.name(), &error);
                }
                return Err(error.into());
            }
        }
        let registrant =
            (scope_of(rpc) == PUSH_WRITE || registers_push(request.get_ref())).then(|| Call::of(&request).cloned());
        let validity = Call::of(&request)?.principal.as_ref().map(|principal| principal.validity.clone());
        let response = match validity.filter(Validity::is_limited) {
            None => call(&*self.service, request).await?,
            Some(validity) => {
                // They were valid before the body was received.
                if validity.has_ended() {
                    return Err(invalid_credentials(&validity).into());
                }
                if let (Rpc::SendMessage, Some(context)) = (rpc, request.extensions_mut().get_mut::<Call>()) {
                    // A send that waits until then returns the task as it is.
                    context.deadline = [context.deadline, validity.expires()].into_iter().flatten().min();
                }
                let mut response = tokio::select! {
                    biased;
                    response = call(&*self.service, request) => response?,
                    () = validity.revoked() => return Err(invalid_credentials(&validity).into()),
                };
                let body: &mut dyn Any = response.get_mut();
                if let Some(stream) = body.downcast_mut::<BoxStream<Event>>() {
                    let events = mem::replace(stream, Box::pin(tokio_stream::empty()));
                    *stream = expiring(events, validity);
                }
                response
            }
        };
        if let Some(Ok(context)) = registrant {
            audit::push_changed(&context, rpc.name());
        }
        Ok(response)
    }
}

/// Returns the error of a call whose credentials have become invalid.
fn invalid_credentials(validity: &Validity) -> Error {
    let why = if validity.is_revoked() { "were revoked" } else { "have expired" };
    let why = format!("the credentials {why}; the work goes on, repeat the request with others");
    ErrorKind::Unauthenticated.because(why).challenge(INVALID_TOKEN)
}

/// Returns a stream that ends with an error when the credentials of its caller become invalid.
fn expiring(events: BoxStream<Event>, validity: Validity) -> BoxStream<Event> {
    Box::pin(unfold(Some((events, validity)), async |state| {
        let (mut events, validity) = state?;
        let item = tokio::select! {
            // A stream that always has events never waits for its end.
            biased;
            () = validity.ended() => return Some((Err(invalid_credentials(&validity).into()), None)),
            item = events.next() => item?,
        };
        Some((item, Some((events, validity))))
    }))
}

/// Returns the request if it is a send.
fn as_send<T: Any>(request: &T) -> Option<&SendMessageRequest> {
    let request: &dyn Any = request;
    request.downcast_ref()
}

/// Returns true for a send that also registers a push configuration.
fn registers_push<T: Any>(request: &T) -> bool {
    let configuration = as_send(request).and_then(|send| send.configuration.as_ref());
    configuration.is_some_and(|configuration| configuration.task_push_notification_config.is_some())
}

fn skills<T: Any>(request: &T) -> Vec<&str> {
    as_send(request).map(skill_ids).unwrap_or_default()
}

macro_rules! authorized {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        impl A2aService for AuthorizedService { $(
            fn $method<'a, 'b>(&'a self, request: Request<$request>) -> ServiceFuture<'b, $response>
            where
                'a: 'b,
                Self: 'b,
            {
                let is_anonymous = Call::of(&request).is_ok_and(|call| call.principal.is_none());
                let is_audited = scope_of(Rpc::$rpc) == PUSH_WRITE || registers_push(request.get_ref());
                if is_anonymous && self.policy.is_none() && self.scopes.is_empty() && !is_audited {
                    return self.service.$method(request);
                }
                let tenant: Tenant<$request> = |request| &mut request.tenant;
                Box::pin(self.forward(Rpc::$rpc, request, tenant, |service, request| service.$method(request)))
            }
        )* }
    };
}

each_rpc!(authorized);

debug_fields!(AuthorizedService { scopes });
