//! Catalog of the agents of a server, for the callers who may use them: a plain list, and an AI Catalog.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    protocol::call::Principal,
    service::card::{CardTemplate, RequestOrigin, WELL_KNOWN},
    transport::{AI_CATALOG, CatalogSource},
};

/// Version of AI Catalog, whose identifiers are `urn:air:{publisher}:{name}[:{kind}]`.
const SPEC_VERSION: &str = "0.9";

/// Returns the template of a card, as of now.
pub(crate) type TemplateSource = Arc<dyn Fn() -> Arc<CardTemplate> + Send + Sync>;

/// Agent in the catalog.
#[derive(Clone)]
pub(crate) struct ListedAgent {
    pub(crate) name: Box<str>,
    /// Path below the URL of the server. Empty at the root.
    pub(crate) path: Box<str>,
    pub(crate) card: TemplateSource,
    /// Scopes that callers need.
    pub(crate) scopes: Arc<[String]>,
    /// The card requires authentication.
    pub(crate) is_protected: bool,
}

impl ListedAgent {
    /// Returns true if a caller may use the agent.
    fn is_visible(&self, principal: Option<&Principal>) -> bool {
        match principal {
            Some(principal) => self.scopes.iter().all(|scope| principal.scopes.contains(scope)),
            None => self.scopes.is_empty() && !self.is_protected,
        }
    }

    /// Returns the entry of the AI Catalog, or that of the plain list.
    fn entry(&self, base_url: &str, is_ai_catalog: bool) -> Value {
        let Self { name, path, card, .. } = self;
        let card = card().description();
        let url = format!("{base_url}{path}");
        let card_url = format!("{url}{WELL_KNOWN}");
        if is_ai_catalog {
            let uri = base_url.parse::<http::Uri>().unwrap_or_default();
            let publisher = uri.host().unwrap_or("localhost");
            return json!({
                "identifier": format!("urn:air:{publisher}:{name}:a2a"),
                "displayName": card.name,
                "description": card.description,
                "type": "application/a2a-agent-card+json",
                "url": card_url,
            });
        }
        let skills = card.skills.iter().map(
            |skill| json!({ "id": skill.id, "name": skill.name, "description": skill.description, "tags": skill.tags }),
        );
        json!({
            "id": name,
            "name": card.name,
            "description": card.description,
            "version": card.version,
            "url": url,
            "cardUrl": card_url,
            "skills": skills.collect::<Value>(),
        })
    }
}

/// Returns the source of the catalog of these agents. `root` finds the URL of the server.
pub(crate) fn catalog(root: Arc<CardTemplate>, agents: Vec<ListedAgent>) -> CatalogSource {
    Arc::new(move |request: &RequestOrigin<'_>, principal| {
        let url = root.address().of(request).unwrap_or_default();
        // The path of the agent at the root, at which the catalog is too.
        let url = url.strip_suffix(&*root.address().agent).unwrap_or(&url);
        let is_ai_catalog = request.path.trim_end_matches('/') == AI_CATALOG;
        let visible = agents.iter().filter(|agent| agent.is_visible(principal));
        let entries = visible.map(|agent| agent.entry(url, is_ai_catalog)).collect::<Value>();
        let document = if is_ai_catalog {
            json!({ "specVersion": SPEC_VERSION, "entries": entries })
        } else {
            json!({ "agents": entries })
        };
        Bytes::from(document.to_string())
    })
}
