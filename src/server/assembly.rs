//! Assembly of a server from its settings: the service with its wrappers, the card, the transport, and the layers around it.

use std::{collections::HashSet, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    Server,
    agents::{AgentRouter, MountContext},
    catalog::{ListedAgent, TemplateSource, catalog},
    lifecycle::Handle,
};
#[cfg(feature = "signing")]
use crate::base::jws::SigningKey;
#[cfg(feature = "openapi")]
use crate::{
    base::network::is_public, server::documents::PublishedDocuments, service::card::JSON_RPC, transport::DocumentSource,
};
use crate::{
    base::stderr,
    protocol::pb::v1::{AgentCard, a2a_service_server::A2aService, bindings::ValidatedService},
    service::{
        Service,
        auth::{AuthorizedService, FailureLimit},
        card::{CardRequest, CardTemplate, ExtendedCardAccess},
        wrappers::{
            extended::{self, ExtendedService},
            observed::ObservedService,
        },
    },
    store::memory::Memory,
    transport::{
        BaseUrlSource, HttpService, OriginPolicy, Paths, PeerLimit, ProtectedResource, Settings,
        pipeline::{MountedHttp, PipelineSettings, wire_log::WireLogService},
    },
};
#[cfg(feature = "push")]
use crate::{protocol::v03::json::push_payload, service::push::SigningKeys};

/// Newer cards of an agent.
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
}

impl Server {
    fn is_metered(&self) -> bool {
        self.options.metrics.is_some() || self.options.is_metered
    }

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
            is_metered: self.is_metered(),
            origins: OriginPolicy::new(
                &self.card,
                self.options.allowed_hosts.clone(),
                self.options.cors_origins.clone(),
            ),
            peers: PeerLimit::new(
                self.connections_per_peer,
                self.options.request_rate_per_peer,
                self.card.trusted().to_vec(),
            ),
            header_bytes: self.options.connections.header_bytes,
            paths: Paths::new(base, self.settings.protocols)
                .also_at(&self.card.address().agent)
                .protecting_card(self.settings.protects_card)
                .protecting_catalog(self.protects_catalog()),
            ids: self.settings.env.ids.clone(),
            added: self.options.layers.clone(),
        }
    }

    /// Assembles the service and its transport for a listen address, or for a router whose address is unknown.
    pub(crate) fn assemble(self, bound: Option<SocketAddr>, layers: Option<&PipelineSettings>) -> Assembled {
        let is_metered = self.is_metered();
        let protects_catalog = self.protects_catalog();
        let Self { agent, card, mut settings, grace, mut options, .. } = self;
        let budgets = options.budgets.take().unwrap_or_else(|| settings.budgets());
        let context = MountContext {
            bound,
            public_url: card.address().public.clone(),
            is_tls: card.address().is_tls,
            is_metered,
            authenticator: options.authenticator.clone(),
            budgets: budgets.clone(),
            layers,
        };
        let agents = std::mem::take(&mut options.agents);
        let name: Arc<str> = if options.catalog_name.is_empty() { "default" } else { &*options.catalog_name }.into();
        let agent_label = options.agent_label.or_else(|| (!agents.is_empty()).then(|| Arc::clone(&name)));
        let mounted: Vec<_> = agents.into_iter().map(|agent| agent.assemble(&context)).collect();
        let store = options.store.unwrap_or_else(|| Arc::new(Memory::default()));
        let mut card = card.protocols(settings.protocols.iter());
        if let Some(addr) = bound {
            card = card.bound(addr);
        }
        let stream_max_age = options.limits.stream_max_age;
        let forward_headers = Arc::clone(&settings.forward_headers);
        // The router removes those of other agents.
        let all_names = forward_headers.iter().chain(mounted.iter().flat_map(|agent| &*agent.forward_headers));
        settings.forward_headers = all_names.cloned().collect::<HashSet<_>>().into_iter().collect();
        let service = Service::with_env(agent, store, options.limits, settings.env.clone());
        let service = service.offering(card.offers());
        let service = service.modes(options.modes, card.declared()).idempotency_default_key(options.default_key);
        #[cfg(feature = "signing")]
        #[cfg_attr(not(feature = "push"), expect(unused_mut, reason = "only notifications have further keys"))]
        let mut keys: Vec<_> = card.signing_key().map(SigningKey::public_jwk).into_iter().collect();
        #[cfg(feature = "push")]
        let published = options.push.keys.iter().filter(|_| card.offers().push || card.signing_key().is_some());
        #[cfg(feature = "push")]
        for key in published.flat_map(SigningKeys::all).map(SigningKey::public_jwk) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        #[cfg(feature = "push")]
        let service = if card.offers().push {
            let mut push = options.push;
            push.issuer = push.issuer.or_else(|| card.address().origin());
            service.delivering(push, push_payload)
        } else {
            service
        };
        #[cfg(feature = "signing")]
        let key_set = (!keys.is_empty()).then(|| serde_json::json!({ "keys": keys }).to_string().into());
        #[cfg(not(feature = "signing"))]
        let key_set = None;
        service.start_retention(options.retention);
        let service = Arc::new(service);
        let handles = mounted.iter().map(|agent| agent.handle.clone()).collect();
        let handle = Handle::new(Arc::clone(&service), grace, handles);
        let engine = Arc::clone(&service);
        let has_extended_card = options.extended_card.access != ExtendedCardAccess::Off;
        card = card.extended(has_extended_card);
        let mut inner: Arc<dyn A2aService> = service;
        if options.resume {
            card = card.declare(|card| card.with_extension(extended::resume::declaration()));
        }
        if options.secret_parts {
            card = card.declare(|card| card.with_extension(extended::secret::declaration()));
        }
        let extensions = extended::all(options.extensions, card.extensions_mut());
        if !extensions.is_empty() {
            inner = Arc::new(ExtendedService::new(inner, extensions).strict(options.strict_extensions));
        }
        let mut service: Arc<dyn A2aService> = Arc::new(ValidatedService(inner));
        if options.log_wire {
            service = Arc::new(WireLogService(service));
        }
        let scopes: Arc<[_]> = options.scopes.into();
        let service: Arc<dyn A2aService> =
            Arc::new(AuthorizedService::new(service, options.policy, Arc::clone(&scopes)));
        let mut service: Arc<dyn A2aService> = Arc::new(ObservedService::new(service, agent_label, is_metered));
        if !mounted.is_empty() || !options.catalog_name.is_empty() {
            service = Arc::new(AgentRouter::new(service, forward_headers, &options.catalog_name, &mounted));
        }
        let is_unchecked = options.authenticator.is_none() && card.declares_security();
        if let Some(authenticator) = &options.authenticator {
            card = card.declare(|card| authenticator.describe(card));
        }
        let mut warnings = card.warnings();
        if is_unchecked {
            warnings.push("agent card declares credentials, but no authenticator checks them".into());
        }
        for warning in warnings {
            tracing::warn!("{warning}");
            stderr::report(format_args!("warning: {warning}"));
        }
        let issuers = options.authenticator.as_ref().map(|authenticator| authenticator.issuers()).unwrap_or_default();
        let card = Arc::new(card);
        let base_url_source = || -> BaseUrlSource {
            let card = Arc::clone(&card);
            Arc::new(move |request: &CardRequest<'_>| card.base_url(request))
        };
        let protected_resource =
            (!issuers.is_empty()).then(|| ProtectedResource { issuers, base_url: base_url_source() });
        let base_url = has_extended_card.then(base_url_source);
        if has_extended_card {
            let (card, settings) = (Arc::clone(&card), Arc::new(options.extended_card));
            engine.set_extended_card(Arc::new(move |call| {
                let (card, settings) = (Arc::clone(&card), Arc::clone(&settings));
                Box::pin(async move { settings.card(&card, &call).await })
            }));
        }
        #[cfg(feature = "openapi")]
        let documents = {
            let is_loopback = bound.is_some_and(|addr| !is_public(addr));
            let has_docs = options.docs.unwrap_or(is_loopback);
            let protocols = settings.protocols;
            let (published, card) =
                (PublishedDocuments::new(card.v03(), JSON_RPC, protocols, has_docs), Arc::clone(&card));
            let get = move |request: &CardRequest<'_>| published.get(request.path, card.base_url(request).as_deref());
            let source: DocumentSource = Arc::new(get);
            Some(source)
        };
        #[cfg(not(feature = "openapi"))]
        let documents = None;
        // The root is listed with its own path, at which it stays if another agent becomes the root.
        let path = &*card.address().agent;
        let card_changes = options.card_updates.is_some();
        let template = Arc::clone(&card);
        let current: TemplateSource = match options.card_updates {
            Some(updates) => updates.source(template),
            None => Arc::new(move || Arc::clone(&template)),
        };
        let is_protected = settings.protects_card;
        let listed =
            ListedAgent { name: (&*name).into(), path: path.into(), card: Arc::clone(&current), scopes, is_protected };
        let all = std::iter::once(&listed).chain(mounted.iter().map(|agent| &agent.listed)).cloned();
        // Agents below a path are listed at the root only.
        let catalog = (!card.is_mounted()).then(|| catalog(Arc::clone(&card), all.collect()));
        let settings = Settings {
            documents,
            catalog,
            protects_catalog,
            metrics: options.metrics.map(|render| handle.metrics(render)),
            key_set,
            protected_resource,
            base_url,
            card_changes,
            card: Arc::new(move |request| current().json(request)),
            stream_max_age,
            drain: handle.draining(),
            readiness: handle.readiness(),
            ..settings
        };
        let http = HttpService::with_budgets(Arc::clone(&service), settings, budgets);
        let mounted = mounted.into_iter().map(|agent| agent.http).collect();
        Assembled { service, http, handle, listed, mounted }
    }
}
