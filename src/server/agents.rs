//! Several agents in one server: each has its own service, tasks and card below a path, and a tenant for gRPC. `catalog` lists
//! them.

use std::{collections::BTreeMap, fmt, net::SocketAddr, sync::Arc};

use tonic::{Request, Response, Status};

use super::{Server, assembly::Assembled, catalog::ListedAgent, layers::LayeredService, lifecycle::Handle};
use crate::{
    agent::Agent,
    auth::Authenticator,
    card::CardTemplate,
    contract::{BoxStream, ServiceFuture},
    event::Event,
    pb::{
        v1::{
            AgentCard, ListTaskPushNotificationConfigsResponse, ListTasksResponse, SendMessageResponse,
            TaskPushNotificationConfig, a2a_service_server::A2aService, bindings::each_rpc,
        },
        wkt::Empty,
    },
    snapshot::Snapshot,
    transport::{PeerLimit, below},
};

/// Maximum length of the name of an agent in bytes.
const NAME_BYTES: usize = 64;

/// Returns true for the name of an agent: lower-case letters, digits, `-` and `_`, and not the name of another resource.
pub(crate) fn is_agent_name(name: &str) -> bool {
    const RESERVED: [&str; 13] = [
        "a2a",
        "agent",
        "agent-card",
        "agents",
        "docs",
        "extendedagentcard",
        "healthz",
        "message",
        "metrics",
        "openapi",
        "readyz",
        "rpc",
        "tasks",
    ];
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let is_version = |name: &str| name.strip_prefix('v').is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
    (1..=NAME_BYTES).contains(&name.len())
        && name.bytes().all(is_allowed)
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && !RESERVED.contains(&name)
        && !is_version(name)
}

/// Settings of the server that mounted agents share.
pub(super) struct MountContext<'a> {
    pub(super) bound: Option<SocketAddr>,
    pub(super) public_url: Option<String>,
    pub(super) is_tls: bool,
    pub(super) is_metered: bool,
    pub(super) authenticator: Option<Arc<dyn Authenticator>>,
    /// Limits of clients, if the server has a transport.
    pub(super) peers: Option<&'a PeerLimit>,
}

/// Agent that is mounted when the server is assembled.
pub(super) struct PendingAgent {
    pub(super) name: Box<str>,
    /// Callers need scopes to use the agent.
    pub(super) has_scopes: bool,
    assemble: Box<dyn FnOnce(&MountContext<'_>) -> MountedAgent + Send + Sync>,
}

impl PendingAgent {
    pub(super) fn new<B: Agent>(name: &str, server: Server<B>) -> Self {
        let owned: Box<str> = name.into();
        let name = owned.clone();
        let has_scopes = !server.scopes.is_empty();
        Self { name: owned, has_scopes, assemble: Box::new(move |context| server.assemble_mounted(name, context)) }
    }

    pub(super) fn assemble(self, context: &MountContext<'_>) -> MountedAgent {
        (self.assemble)(context)
    }
}

/// Agent below a path of a server.
#[derive(Clone)]
pub(super) struct MountedAgent {
    /// Path with a slash at the beginning, and without one at the end.
    path: Box<str>,
    pub(super) listed: ListedAgent,
    pub(super) service: Arc<dyn A2aService>,
    pub(super) handle: Handle,
    pub(super) http: LayeredService,
}

impl MountedAgent {
    /// Returns true for a path of this agent.
    pub(super) fn serves(&self, path: &str) -> bool {
        below(path, &self.path).is_some()
    }
}

impl<A: Agent> Server<A> {
    /// Assembles this server below the path `/NAME` of another one.
    fn assemble_mounted(mut self, name: Box<str>, context: &MountContext<'_>) -> MountedAgent {
        self.base_path = Some(format!("/{name}"));
        self.card = self.card.mounted(&name);
        if let (Some(url), None) = (&context.public_url, &self.card.address().public) {
            self = self.url(format!("{url}/{name}"));
        }
        if context.is_tls {
            self = self.with_card(CardTemplate::over_tls);
        }
        self.authenticator = self.authenticator.or_else(|| context.authenticator.clone());
        self.is_metered |= context.is_metered;
        let mut layers = self.layers();
        if let Some(peers) = context.peers {
            layers.peers = peers.clone();
        }
        let layers = Arc::new(layers);
        let Assembled { service, http, handle, listed, .. } = self.assemble(context.bound, None);
        let http = LayeredService::new(http, layers, context.bound, Arc::default());
        let path: Box<str> = format!("/{name}").into();
        let listed = ListedAgent { name, path: path.clone(), ..listed };
        MountedAgent { path, listed, service, handle, http }
    }
}

/// Service that passes calls to the agent that their tenant names, for bindings without a path, such as gRPC. The tenant is
/// then empty for the agent.
pub(super) struct AgentRouter {
    root: Arc<dyn A2aService>,
    agents: BTreeMap<Box<str>, Arc<dyn A2aService>>,
}

impl AgentRouter {
    /// Creates the router of a server, whose agent may have a name too, and of the agents that are mounted on it.
    pub(super) fn new(root: Arc<dyn A2aService>, name: &str, agents: &[MountedAgent]) -> Self {
        let services = agents.iter().map(|agent| (agent.listed.name.clone(), Arc::clone(&agent.service)));
        let mut agents: BTreeMap<_, _> = services.collect();
        if !name.is_empty() {
            agents.insert(name.into(), Arc::clone(&root));
        }
        Self { root, agents }
    }
}

/// Response of a call, which may name the tenant of its request.
trait OfTenant {
    fn set_tenant(&mut self, _: &str) {}
}

impl OfTenant for SendMessageResponse {}
impl OfTenant for BoxStream<Event> {}
impl OfTenant for Snapshot {}
impl OfTenant for ListTasksResponse {}
impl OfTenant for AgentCard {}
impl OfTenant for Empty {}

impl OfTenant for TaskPushNotificationConfig {
    fn set_tenant(&mut self, tenant: &str) {
        tenant.clone_into(&mut self.tenant);
    }
}

impl OfTenant for ListTaskPushNotificationConfigsResponse {
    fn set_tenant(&mut self, tenant: &str) {
        for config in &mut self.configs {
            config.set_tenant(tenant);
        }
    }
}

async fn with_tenant<T: OfTenant>(call: ServiceFuture<'_, T>, tenant: String) -> Result<Response<T>, Status> {
    let mut response = call.await?;
    response.get_mut().set_tenant(&tenant);
    Ok(response)
}

macro_rules! routed {
    ($($by:ident $method:ident $rpc:ident: $request:ty => $response:ty;)*) => {
        impl A2aService for AgentRouter { $(
            fn $method<'a, 'b>(&'a self, mut request: Request<$request>) -> ServiceFuture<'b, $response>
            where
                'a: 'b,
                Self: 'b,
            {
                match self.agents.get(&*request.get_ref().tenant) {
                    None => self.root.$method(request),
                    Some(service) => {
                        let tenant = std::mem::take(&mut request.get_mut().tenant);
                        Box::pin(with_tenant(service.$method(request), tenant))
                    }
                }
            }
        )* }
    };
}

each_rpc!(routed);

impl fmt::Debug for AgentRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentRouter").field("agents", &self.agents.keys()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_path_segments_that_no_other_resource_has() {
        for name in ["geo", "a", "geo-2", "my_agent", "2geo", "vision", &"x".repeat(64)] {
            assert!(is_agent_name(name), "{name}");
        }
        for name in ["", "Geo", "a/b", "a.b", "-a", "tasks", "agents", "v1", "v", "rpc", "geo ", "ü", &"x".repeat(65)]
        {
            assert!(!is_agent_name(name), "{name}");
        }
    }
}
