//! Several agents in one server: each has its own service, tasks and card below a path, and a tenant for gRPC. `catalog` lists
//! them.

use std::{any::Any, collections::BTreeMap, future::ready, sync::Arc};

use http::HeaderName;
use tonic::{Request, Response, Status};

use super::{Server, catalog::ListedAgent, lifecycle::Handle};
use crate::{
    protocol::{
        call::{Call, forwarded_headers},
        error::{Error, ErrorKind},
        pb::v1::{
            ListTaskPushNotificationConfigsResponse, TaskPushNotificationConfig, a2a_service_server::A2aService,
            bindings::each_rpc,
        },
        rpc::ServiceFuture,
        validate::RESERVED_TENANTS,
    },
    service::operator::OperatedAgent,
    transport::pipeline::MountedHttp,
};

/// Maximum length of the name of an agent in bytes.
const NAME_BYTES: usize = 64;

/// Returns true for the name of an agent: lower-case letters, digits, `-` and `_`, and not the name of another resource.
pub(crate) fn is_agent_name(name: &str) -> bool {
    /// Reserved names besides those that no tenant may have.
    const RESERVED: [&str; 9] =
        ["a2a", "agent", "agent-card", "extendedagentcard", "healthz", "message", "readyz", "rpc", "tasks"];
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let is_version = |name: &str| name.strip_prefix('v').is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
    (1..=NAME_BYTES).contains(&name.len())
        && name.bytes().all(is_allowed)
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && !RESERVED.contains(&name)
        && !RESERVED_TENANTS.contains(&name)
        && !is_version(name)
}

/// Agent that is mounted when the server is assembled.
#[derive(Clone)]
pub(crate) struct PendingAgent {
    pub(crate) name: Box<str>,
    /// The catalog lists the agent for some callers only.
    pub(crate) is_private: bool,
    pub(super) server: Server,
}

impl PendingAgent {
    pub(crate) fn new(name: &str, server: Server) -> Self {
        let is_private = !server.options.scopes.is_empty() || server.settings.protects_card;
        Self { name: name.into(), is_private, server }
    }
}

/// Agent below a path of a server.
#[derive(Clone)]
pub(crate) struct MountedAgent {
    pub(crate) listed: ListedAgent,
    pub(crate) service: Arc<dyn A2aService>,
    /// Calls of the server's address may reach the agent by its tenant: they are authenticated as those of its path are.
    pub(super) is_routed: bool,
    /// Headers that the agent may pass on.
    pub(crate) forward_headers: Arc<[HeaderName]>,
    pub(crate) handle: Handle,
    pub(crate) http: MountedHttp,
    pub(crate) operated: OperatedAgent,
}

/// Routes calls to the agent whose name is the tenant, for bindings without a path, such as gRPC. The tenant is removed before
/// the call. A tenant that names no agent is rejected, since the agent may have been removed: calls for it must not reach another
/// one.
pub(crate) struct AgentRouter {
    root: Route,
    agents: BTreeMap<Box<str>, Route>,
}

/// Agent to which calls are passed.
#[derive(Clone)]
struct Route {
    service: Arc<dyn A2aService>,
    /// Headers that the agent may pass on.
    forward_headers: Arc<[HeaderName]>,
}

impl Route {
    /// Removes the forwarded headers that are for other agents.
    fn filter_headers<T>(&self, request: &mut Request<T>) {
        let Some(call) = request.extensions_mut().get_mut::<Call>() else { return };
        let Some(forwarded) = call.forwarded.take() else { return };
        call.forwarded = forwarded_headers(&forwarded, &self.forward_headers);
    }
}

impl AgentRouter {
    /// Creates the router of a server, whose agent may have a name too, and of the agents that are mounted on it.
    /// Agents with an authenticator of their own are reached by their paths only.
    pub(crate) fn new(
        root: Arc<dyn A2aService>,
        forward_headers: Arc<[HeaderName]>,
        name: &str,
        agents: &[MountedAgent],
    ) -> Self {
        let root = Route { service: root, forward_headers };
        let route = |agent: &MountedAgent| {
            let forward_headers = Arc::clone(&agent.forward_headers);
            (agent.listed.name.clone(), Route { service: Arc::clone(&agent.service), forward_headers })
        };
        let mut agents: BTreeMap<_, _> = agents.iter().filter(|agent| agent.is_routed).map(route).collect();
        if !name.is_empty() {
            agents.insert(name.into(), root.clone());
        }
        Self { root, agents }
    }

    /// Returns the agent that the tenant of a call names. `None`: the agent at the root, whose tenants are in paths that name it
    /// and in credentials.
    ///
    /// # Errors
    /// `MethodNotFound` if the tenant names no agent.
    fn agent<T>(&self, request: &Request<T>, tenant: &str) -> Result<Option<&Route>, Error> {
        let call = Call::of(request).ok();
        if tenant.is_empty() || call.is_some_and(|call| call.names_agent) {
            return Ok(None);
        }
        let caller = call.and_then(|call| call.principal.as_deref());
        let is_own = caller.is_some_and(|caller| caller.tenant.as_deref() == Some(tenant));
        match self.agents.get(tenant) {
            None if !is_own => {
                Err(ErrorKind::MethodNotFound
                    .because("tenant: the server has no agent with this name; /agents lists them"))
            }
            agent => Ok(agent),
        }
    }
}

/// Sets the tenant of the push notification configurations in the response of a call to that of its request.
async fn restore_tenant<T: Any>(call: ServiceFuture<'_, T>, tenant: String) -> Result<Response<T>, Status> {
    let mut response = call.await?;
    let body: &mut dyn Any = response.get_mut();
    if let Some(config) = body.downcast_mut::<TaskPushNotificationConfig>() {
        config.tenant = tenant;
    } else if let Some(list) = body.downcast_mut::<ListTaskPushNotificationConfigsResponse>() {
        list.configs.iter_mut().for_each(|config| config.tenant.clone_from(&tenant));
    }
    Ok(response)
}

macro_rules! impl_router {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        impl A2aService for AgentRouter { $(
            fn $method<'a, 'b>(&'a self, mut request: Request<$request>) -> ServiceFuture<'b, $response>
            where
                'a: 'b,
                Self: 'b,
            {
                let agent = match self.agent(&request, &request.get_ref().tenant) {
                    Ok(agent) => agent,
                    Err(error) => return Box::pin(ready(Err(error.into()))),
                };
                agent.unwrap_or(&self.root).filter_headers(&mut request);
                match agent {
                    None => self.root.service.$method(request),
                    Some(agent) => {
                        let tenant = std::mem::take(&mut request.get_mut().tenant);
                        Box::pin(restore_tenant(agent.service.$method(request), tenant))
                    }
                }
            }
        )* }
    };
}

each_rpc!(impl_router);

debug_fields!(AgentRouter {});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_path_segments_that_no_other_resource_has() {
        for name in ["geo", "a", "geo-2", "my_agent", "2geo", "vision", &"x".repeat(64)] {
            assert!(is_agent_name(name), "{name}");
        }
        for name in [
            "",
            "Geo",
            "a/b",
            "a.b",
            "-a",
            "tasks",
            "agents",
            "operator",
            "v1",
            "v",
            "rpc",
            "geo ",
            "ü",
            &"x".repeat(65),
        ] {
            assert!(!is_agent_name(name), "{name}");
        }
    }
}
