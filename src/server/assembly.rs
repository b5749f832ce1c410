//! Assembly of a server from its settings: the service with its wrappers, the card, the transport, and the layers around it.

use std::{collections::HashSet, mem, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    Console, Options, Server,
    agents::{AgentRouter, MountedAgent},
    catalog::{ListedAgent, TemplateSource, catalog},
    lifecycle::Handle,
};
#[cfg(feature = "signing")]
use crate::base::jws::SigningKey;
#[cfg(feature = "push")]
use crate::service::push::SigningKeys;
use crate::{
    base::{metric, network::is_public, sources::Sources, stderr},
    engine::{agent::DynAgent, journal::FailureReports},
    protocol::pb::v1::{
        AgentCard, SecurityScheme, a2a_service_server::A2aService, bindings::ValidatedService, security_scheme::Scheme,
    },
    service::{
        ExtendedCardSource, Service,
        auth::{AuthorizedService, FailureLimit},
        card::{CardTemplate, ExtendedCardSettings},
        operator::{OperatedAgent, Operator},
        wrappers::{
            extended::{self, ExtendedService, Extension},
            observed::ObservedService,
        },
    },
    store::memory::Memory,
    transport::{
        BaseUrlSource, HttpService, OriginPolicy, Paths, PeerLimit, ProtectedResource, Settings,
        pipeline::{LayeredService, MountedHttp, PipelineSettings, wire_log::WireLogService},
    },
};
#[cfg(feature = "openapi")]
use crate::{
    protocol::version::Protocols, server::documents::PublishedDocuments, service::card::JSON_RPC,
    transport::DocumentSource,
};

/// Default interval of probes of what an agent needs.
pub(crate) const HEALTH_INTERVAL: Duration = Duration::from_secs(30);

/// Newer cards of an agent.
#[derive(Clone)]
pub(crate) struct CardUpdates {
    updates: watch::Receiver<AgentCard>,
    /// Card of the agent that the template has.
    current: AgentCard,
}

impl CardUpdates {
    pub(crate) fn new(updates: watch::Receiver<AgentCard>) -> Self {
        let current = updates.borrow().clone();
        Self { updates, current }
    }

    /// Returns the source of the template with the latest card.
    fn source(self, template: Arc<CardTemplate>) -> TemplateSource {
        let state = Mutex::new((self, template));
        Arc::new(move || {
            let mut state = state.lock();
            let (Self { updates, current }, template) = &mut *state;
            let new = updates.borrow();
            if *new != *current {
                *template = Arc::new(CardTemplate::clone(template).replace_agent_card(current, &new));
                current.clone_from(&new);
            }
            Arc::clone(template)
        })
    }
}

/// Parts of a server without its listeners.
pub(crate) struct Assembled {
    /// Service with its extensions and checks, as callers see it.
    pub(crate) service: Arc<dyn A2aService>,
    pub(crate) http: HttpService,
    pub(crate) handle: Handle,
    /// This agent in a catalog.
    pub(crate) listed: ListedAgent,
    /// Agents below paths of their own.
    pub(crate) mounted: Arc<[MountedHttp]>,
    pub(crate) operated: OperatedAgent,
}

impl Server {
    /// Returns true if the catalog of agents requires authentication: it depends on the caller.
    fn protects_catalog(&self) -> bool {
        self.settings.protects_card
            || !self.options.scopes.is_empty()
            || self.options.agents.iter().any(|agent| agent.is_private)
    }

    pub(crate) fn layers(&self) -> PipelineSettings {
        let base = self.options.base_path.as_deref().or_else(|| self.card.address().path()).unwrap_or_default();
        PipelineSettings {
            authenticator: self.options.authenticator.clone(),
            failures: Arc::new(FailureLimit::new(self.failed_authentications)),
            insecure: self.options.insecure,
            log_wire: self.options.log_wire,
            is_metered: self.options.is_metered(),
            origins: OriginPolicy::new(
                &self.card,
                self.options.allowed_hosts.clone(),
                self.options.cors_origins.clone(),
            ),
            peers: PeerLimit::new(
                self.connections_per_peer,
                self.options.request_rate_per_peer,
                self.card.address().trusted.clone(),
            ),
            header_bytes: self.options.connections.header_bytes,
            paths: Paths {
                agent: self.card.address().agent.clone(),
                protects_card: self.settings.protects_card,
                protects_catalog: self.protects_catalog(),
                ..Paths::new(base, self.settings.protocols)
            },
            ids: self.settings.sources.ids.clone(),
            tracing: self.options.tracing.clone(),
            added: self.options.layers.clone(),
        }
    }

    /// Assembles the service and its transport for a listen address, or for a router whose address is unknown.
    pub(crate) fn assemble(mut self, bound: Option<SocketAddr>, layers: Option<&PipelineSettings>) -> Assembled {
        let protects_catalog = self.protects_catalog();
        let budgets = self.options.budgets.get_or_insert_with(|| self.settings.budgets()).clone();
        let mounted = self.mount_agents(bound, layers);
        let Self { agent, mut card, mut settings, grace, mut options, .. } = self;
        settings.sources.tracing = options.tracing.clone();
        card = card.protocols(settings.protocols.iter());
        if let Some(addr) = bound {
            card = card.bound(addr);
        }
        #[cfg(feature = "signing")]
        let key_set = options.key_set(&card);
        let stream_max_age = options.limits.stream_max_age;
        if options.is_metered() {
            metric::set_agents(mounted.len() + 1);
        }
        let is_named = !options.catalog_name.is_empty() || !mounted.is_empty();
        let label = options.agent_label.take().or_else(|| is_named.then(|| options.name().into()));
        options.agent_label.clone_from(&label);
        let engine = Arc::new(options.build_service(agent, &card, settings.sources.clone()));
        let kind = options.agent_kind.unwrap_or("rust");
        let operated = OperatedAgent { name: options.name().into(), kind, service: Arc::clone(&engine) };
        let handles = mounted.iter().map(|agent| agent.handle.clone()).collect();
        let handle = Handle::new(Arc::clone(&engine), grace, label.clone(), handles, options.ready_with_agents);
        let (card, extensions) = options.build_card(card);
        let has_extended_card = options.extended_card.is_offered();
        let card_changes = options.card_updates.is_some();
        let current = options.card_source(&card);
        engine.set_extended_card(extended_card(mem::take(&mut options.extended_card), &card, &current));
        // The router removes those of other agents.
        let own_headers = Arc::clone(&settings.forward_headers);
        let all_headers = own_headers.iter().chain(mounted.iter().flat_map(|agent| &*agent.forward_headers));
        let forward_headers = all_headers.cloned().collect::<HashSet<_>>().into_iter().collect();
        let scopes: Arc<[_]> = mem::take(&mut options.scopes).into();
        let service = options.wrap_service(engine, extensions, Arc::clone(&scopes));
        let mut service: Arc<dyn A2aService> = Arc::new(ObservedService::new(service, label, options.is_metered()));
        if is_named {
            service = Arc::new(AgentRouter::new(service, own_headers, &options.catalog_name, &mounted));
        }
        let listed = ListedAgent {
            name: options.name().into(),
            // The root is listed with its own path, at which it stays if another agent becomes the root.
            path: (&*card.address().agent).into(),
            card: Arc::clone(&current),
            scopes,
            is_protected: settings.protects_card,
        };
        let all = std::iter::once(&listed).chain(mounted.iter().map(|agent| &agent.listed)).cloned();
        let all_operated = || std::iter::once(&operated).chain(mounted.iter().map(|agent| &agent.operated));
        let needs = |agent: &OperatedAgent| (agent.name.clone(), Arc::clone(agent.service.dependencies()));
        let settings = Settings {
            console: options.console(&card, bound),
            #[cfg(feature = "openapi")]
            documents: Some(options.documents(&card, settings.protocols, bound)),
            // Agents below a path are listed at the root only.
            catalog: (!card.is_mounted()).then(|| catalog(Arc::clone(&card), all.collect())),
            protects_catalog,
            #[cfg(feature = "signing")]
            key_set,
            protected_resource: options.protected_resource(&card),
            base_url: Some(base_url_source(&card)),
            has_extended_card,
            metrics: options.metrics.map(|render| handle.metrics(render, budgets.clone())),
            card_changes,
            card: Arc::new(move |request| current().json(request)),
            stream_max_age,
            forward_headers,
            drain: handle.draining(),
            readiness: handle.readiness(),
            is_replica: handle.is_replica(),
            agents: all_operated().map(needs).collect(),
            ..settings
        };
        // Agents below a path have the operator API of the root.
        let operator = (!card.is_mounted()).then(|| {
            let all = all_operated().cloned().collect();
            Arc::new(Operator::new(all, options.operator_token.take(), settings.sources.clock))
        });
        let http = HttpService::with_parts(Arc::clone(&service), settings, budgets, operator);
        let mounted = mounted.into_iter().map(|agent| agent.http).collect();
        Assembled { service, http, handle, listed, mounted, operated }
    }

    /// Assembles the agents below paths of their own.
    fn mount_agents(&mut self, bound: Option<SocketAddr>, layers: Option<&PipelineSettings>) -> Vec<MountedAgent> {
        let agents = mem::take(&mut self.options.agents).into_iter();
        agents.map(|agent| agent.server.assemble_mounted(agent.name, self, bound, layers)).collect()
    }

    /// Assembles this server below the path `/NAME` of a host. `shared` are the layers of the host, if it has a transport.
    fn assemble_mounted(
        mut self,
        name: Box<str>,
        host: &Self,
        bound: Option<SocketAddr>,
        shared: Option<&PipelineSettings>,
    ) -> MountedAgent {
        self.options.base_path = Some(format!("/{name}"));
        self.options.agent_label = Some((&*name).into());
        self.card = self.card.mounted(&name);
        if let (Some(url), None) = (&host.card.address().public, &self.card.address().public) {
            self = self.url(format!("{url}/{name}"));
        }
        if host.card.address().is_tls {
            self = self.with_card(CardTemplate::over_tls);
        }
        let is_routed = self.options.authenticator.is_none();
        self.options.authenticator = self.options.authenticator.or_else(|| host.options.authenticator.clone());
        self.options.is_metered |= host.options.is_metered();
        self.options.tracing.clone_from(&host.options.tracing);
        self.options.budgets.clone_from(&host.options.budgets);
        self.options.limits.live_memory.clone_from(&host.options.limits.live_memory);
        let forward_headers = Arc::clone(&self.settings.forward_headers);
        let mut layers = self.layers();
        if let Some(shared) = shared {
            layers.peers = shared.peers.clone();
            if is_routed {
                layers.failures = Arc::clone(&shared.failures);
            }
        }
        let layers = Arc::new(layers);
        let Assembled { service, http, handle, listed, operated, .. } = self.assemble(bound, None);
        let http = LayeredService::new(http, layers, bound, Arc::default());
        let path: Box<str> = format!("/{name}").into();
        let operated = OperatedAgent { name: name.clone(), ..operated };
        let listed = ListedAgent { name, path: path.clone(), ..listed };
        let http = MountedHttp { path, http };
        MountedAgent { listed, service, is_routed, forward_headers, handle, http, operated }
    }
}

impl Options {
    fn is_metered(&self) -> bool {
        self.metrics.is_some() || self.is_metered
    }

    /// Name of the agent in the catalog.
    fn name(&self) -> &str {
        if self.catalog_name.is_empty() { "default" } else { &self.catalog_name }
    }

    /// Returns the public keys of the card and of notifications. `None` if there are none.
    #[cfg(feature = "signing")]
    fn key_set(&self, card: &CardTemplate) -> Option<Bytes> {
        #[cfg_attr(not(feature = "push"), expect(unused_mut, reason = "only notifications have further keys"))]
        let mut keys: Vec<_> = card.signing_key().map(SigningKey::public_jwk).into_iter().collect();
        #[cfg(feature = "push")]
        let published = self.push.keys.iter().filter(|_| card.offers().push || card.signing_key().is_some());
        #[cfg(feature = "push")]
        for key in published.flat_map(SigningKeys::all).map(SigningKey::public_jwk) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        (!keys.is_empty()).then(|| serde_json::json!({ "keys": keys }).to_string().into())
    }

    /// Builds the service, and starts the delivery of notifications and the retention of tasks.
    fn build_service(&mut self, agent: Arc<dyn DynAgent>, card: &CardTemplate, sources: Sources) -> Service {
        let store = self.store.take().unwrap_or_else(|| Arc::new(Memory::default()));
        let service = Service::with_sources(agent, store, mem::take(&mut self.limits), sources).offering(card.offers());
        let label = self.agent_label.clone();
        let service = service.needing(self.authenticator.iter().flat_map(|needs| needs.dependencies()).collect());
        for dependency in &**service.dependencies() {
            dependency.start_probes(label.clone(), self.health_interval.unwrap_or(HEALTH_INTERVAL));
        }
        let service = service.report_failures(FailureReports { agent: label, exposes_causes: self.expose_causes });
        let service = service.modes(self.modes, card.declared()).idempotency_default_key(self.default_key);
        #[cfg(feature = "signing")]
        let service = match self.cluster_key.take() {
            Some(key) => service.cluster_key(&key),
            None => service,
        };
        #[cfg(feature = "push")]
        let service = if card.offers().push {
            let mut push = mem::take(&mut self.push);
            push.issuer = push.issuer.or_else(|| card.address().origin());
            service.delivering(push)
        } else {
            service
        };
        service.start_retention(self.retention);
        service
    }

    /// Completes the card by extensions and authentication, and warns of what is wrong with it. Returns the extensions too.
    fn build_card(&mut self, mut card: CardTemplate) -> (Arc<CardTemplate>, Vec<Arc<dyn Extension>>) {
        card = card.extended(self.extended_card.is_offered());
        if self.resume {
            card = card.declare(|card| card.with_extension(extended::resume::declaration()));
        }
        if self.secret_parts {
            card = card.declare(|card| card.with_extension(extended::secret::declaration()));
        }
        let extensions = extended::all(mem::take(&mut self.extensions), card.extensions_mut());
        let declared = card.declared().security_schemes.clone();
        let is_unchecked = self.authenticator.is_none() && card.declares_security();
        if let Some(authenticator) = &self.authenticator {
            card = card.declare(|card| authenticator.describe(card));
        }
        let mut warnings = card.warnings();
        if is_unchecked {
            warnings.push("agent card declares credentials, but no authenticator checks them".into());
        }
        if self.extended_card.is_empty() {
            let why = "the card declares no extended card, because it would have no content";
            warnings.push(format!("card.extended: {why}; mark skills in card.skills with `extended = true`"));
        }
        let own = &card.declared().security_schemes;
        let is_checked = |scheme| self.authenticator.is_some() && own.values().any(|own| covers(own, scheme));
        let unchecked = declared.iter().filter(|(_, scheme)| !is_checked(scheme));
        warnings.extend(unchecked.map(|(name, _)| format!("security scheme {name} of the agent card: not checked")));
        for warning in warnings {
            tracing::warn!("{warning}");
            stderr::report(format_args!("warning: {warning}"));
        }
        (Arc::new(card), extensions)
    }

    /// Wraps a service, the innermost first: extensions, validation, wire log, authorization. Metrics and routes to other agents follow.
    fn wrap_service(
        &mut self,
        engine: Arc<Service>,
        extensions: Vec<Arc<dyn Extension>>,
        scopes: Arc<[String]>,
    ) -> Arc<dyn A2aService> {
        let mut service: Arc<dyn A2aService> = engine;
        if !extensions.is_empty() {
            service = Arc::new(ExtendedService::new(service, extensions).strict(self.strict_extensions));
        }
        service = Arc::new(ValidatedService(service));
        if self.log_wire {
            service = Arc::new(WireLogService(service));
        }
        Arc::new(AuthorizedService::new(service, self.policy.take(), scopes))
    }

    /// Returns the source of the template of the card with the latest card of the agent.
    fn card_source(&mut self, card: &Arc<CardTemplate>) -> TemplateSource {
        let template = Arc::clone(card);
        match self.card_updates.take() {
            Some(updates) => updates.source(template),
            None => Arc::new(move || Arc::clone(&template)),
        }
    }

    /// Returns the issuers of tokens. `None` if the authenticator has none.
    fn protected_resource(&self, card: &Arc<CardTemplate>) -> Option<ProtectedResource> {
        let issuers = self.authenticator.as_ref().map(|authenticator| authenticator.issuers()).unwrap_or_default();
        (!issuers.is_empty()).then(|| ProtectedResource { issuers, base_url: base_url_source(card) })
    }

    /// Returns true if Swagger UI is enabled or the address is a loopback address.
    fn has_docs(&self, bound: Option<SocketAddr>) -> bool {
        cfg!(feature = "docs") && self.docs.unwrap_or_else(|| is_loopback(bound))
    }

    /// Returns the module with the facts about this server that the console needs. `None` if there is no console.
    fn console(&self, card: &CardTemplate, bound: Option<SocketAddr>) -> Option<Bytes> {
        let default = if is_loopback(bound) { Console::Full } else { Console::Developer };
        let views = self.console.unwrap_or(default);
        let facts = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "operator": views == Console::Full,
            "docs": self.has_docs(bound),
            "agents": !card.is_mounted(),
        });
        (cfg!(feature = "console") && views != Console::Off).then(|| format!("export default {facts};\n").into())
    }

    /// Returns the source of the API documents, and of their pages if they are enabled or the address is a loopback address.
    #[cfg(feature = "openapi")]
    fn documents(&self, card: &Arc<CardTemplate>, protocols: Protocols, bound: Option<SocketAddr>) -> DocumentSource {
        let published = PublishedDocuments::new(card.v03(), JSON_RPC, protocols, self.has_docs(bound));
        let card = Arc::clone(card);
        Arc::new(move |request| published.get(request.path, card.address().of(request).as_deref()))
    }
}

/// Returns true for a listen address that only this machine can reach. That of a router is unknown.
fn is_loopback(bound: Option<SocketAddr>) -> bool {
    bound.is_some_and(|addr| !is_public(addr))
}

/// Returns true if a server that checks credentials of one scheme also checks those of another.
fn covers(checked: &SecurityScheme, declared: &SecurityScheme) -> bool {
    use Scheme::{
        ApiKeySecurityScheme as ApiKey, HttpAuthSecurityScheme as Http, MtlsSecurityScheme as Mtls,
        Oauth2SecurityScheme as OAuth2, OpenIdConnectSecurityScheme as OpenIdConnect,
    };
    let (Some(checked), Some(declared)) = (&checked.scheme, &declared.scheme) else { return false };
    match (checked, declared) {
        (ApiKey(one), ApiKey(other)) => one.location == other.location && one.name.eq_ignore_ascii_case(&other.name),
        (Http(one), Http(other)) => one.scheme.eq_ignore_ascii_case(&other.scheme),
        (Mtls(_), Mtls(_)) | (OpenIdConnect(_), OpenIdConnect(_) | OAuth2(_)) => true,
        // Access tokens of an issuer are bearer tokens.
        (Http(one), OpenIdConnect(_) | OAuth2(_)) => one.bearer_format == "JWT",
        (OpenIdConnect(_), Http(other)) => other.scheme.eq_ignore_ascii_case("bearer"),
        _ => false,
    }
}

/// Returns the source of the base URL of a server.
fn base_url_source(card: &Arc<CardTemplate>) -> BaseUrlSource {
    let card = Arc::clone(card);
    Arc::new(move |request| card.address().of(request))
}

/// Returns the source of the extended card, and of the card for gRPC of 0.3. `current` is the source of the public card.
fn extended_card(
    settings: ExtendedCardSettings,
    card: &Arc<CardTemplate>,
    current: &TemplateSource,
) -> ExtendedCardSource {
    let (card, current, settings) = (Arc::clone(card), Arc::clone(current), Arc::new(settings));
    Arc::new(move |call| {
        let is_public = !settings.is_offered();
        let (card, settings) = (if is_public { current() } else { Arc::clone(&card) }, Arc::clone(&settings));
        Box::pin(async move { settings.card(&card, &call).await })
    })
}
