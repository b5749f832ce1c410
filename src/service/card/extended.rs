//! Extended agent card (3.1.11): the card for authenticated callers, whose content depends on the caller.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use super::{CardTemplate, SkillConfig};
use crate::{
    protocol::{
        call::{Binding, CARD_EXTENDED, Call, Principal},
        error::{BEARER, Error, ErrorKind},
        pb::v1::{AgentCard, AgentSkill},
        version::Version,
    },
    service::auth::require_scope,
};

/// Callers who get the extended agent card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExtendedCardAccess {
    /// Nobody: the card declares that there is none.
    #[default]
    Off,
    /// Callers with credentials that have the scope `card:extended`, also if nothing else is protected.
    Guarded,
    /// All callers, also without credentials.
    Open,
}

/// Source of the extended agent card.
///
/// ```
/// use a2a_service::{
///     agent::demo::Demo, auth::Principal, card::ExtendedCard, error::Error, pb::v1::AgentCard, server::Server,
/// };
///
/// struct Greeting;
///
/// #[async_trait::async_trait]
/// impl ExtendedCard for Greeting {
///     async fn extended_card(&self, caller: Option<&Principal>, card: AgentCard) -> Result<AgentCard, Error> {
///         let name = caller.map_or("", |caller| &*caller.id);
///         Ok(card.describe(format!("The agent of {name}")))
///     }
/// }
///
/// let server = Server::new(Demo).extended_card(Greeting);
/// ```
#[async_trait]
pub trait ExtendedCard: Send + Sync + 'static {
    /// Returns the extended card for a caller, which is `None` for one without credentials. `card` is the public card, without
    /// signatures.
    ///
    /// # Errors
    /// The call fails with this error.
    async fn extended_card(&self, caller: Option<&Principal>, card: AgentCard) -> Result<AgentCard, Error>;
}

/// Extended card with additional skills, some of which only callers with a scope see.
#[derive(Clone, Debug, Default)]
pub struct ScopedSkills(Vec<(Option<String>, AgentSkill)>);

impl FromIterator<SkillConfig> for ScopedSkills {
    /// Creates the card with those skills that are [extended](SkillConfig::is_extended).
    fn from_iter<I: IntoIterator<Item = SkillConfig>>(skills: I) -> Self {
        let extended = skills.into_iter().filter(SkillConfig::is_extended);
        Self(extended.map(|mut skill| (skill.scope.take(), skill.into())).collect())
    }
}

impl ScopedSkills {
    /// Creates the card with these skills, each with the scope that it requires, if any.
    pub fn new(skills: impl IntoIterator<Item = (Option<String>, AgentSkill)>) -> Self {
        Self(skills.into_iter().collect())
    }
}

#[async_trait]
impl ExtendedCard for ScopedSkills {
    async fn extended_card(&self, caller: Option<&Principal>, mut card: AgentCard) -> Result<AgentCard, Error> {
        let is_permitted = |scope: &str| caller.is_some_and(|caller| caller.scopes.contains(scope));
        let skills = self.0.iter().filter(|(scope, _)| scope.as_deref().is_none_or(is_permitted));
        card.skills.extend(skills.map(|(_, skill)| skill.clone()));
        Ok(card)
    }
}

/// Returns the error of an agent without an extended card.
pub(crate) fn not_supported() -> Error {
    ErrorKind::ExtendedCardNotSupported.because("this agent has only its public card, at /.well-known/agent-card.json")
}

/// Settings of the extended card.
#[derive(Clone, Default)]
pub(crate) struct ExtendedCardSettings {
    pub(crate) access: ExtendedCardAccess,
    pub(crate) provider: Option<Arc<dyn ExtendedCard>>,
}

debug_fields!(ExtendedCardSettings { access });

impl ExtendedCardSettings {
    /// Returns true if there is an extended card: some callers get it, and it has a source.
    pub(crate) fn is_offered(&self) -> bool {
        self.access != ExtendedCardAccess::Off && self.provider.is_some()
    }

    /// Returns true if callers would get an extended card that has no source.
    pub(crate) fn is_empty(&self) -> bool {
        self.access != ExtendedCardAccess::Off && self.provider.is_none()
    }

    /// Returns the extended card for a call. A guarded one requires the scope `card:extended`.
    ///
    /// # Errors
    /// `ExtendedCardNotSupported` if it is off or has no provider, `Unauthenticated` without credentials, `PermissionDenied` without
    /// the scope, or those of the provider.
    pub(crate) async fn card(&self, template: &CardTemplate, call: &Call) -> Result<AgentCard, Error> {
        let Some(provider) = self.provider.as_ref().filter(|_| self.is_offered()) else {
            // The only card over gRPC of 0.3, which has no other name for the extended one.
            let is_agent_card = (call.binding, call.version) == (Binding::Grpc, Version::V0_3);
            let card = is_agent_card.then(|| template.for_base(call.base_url.as_deref()));
            return Ok(template.signed_message(card.ok_or_else(not_supported)?, call.version));
        };
        // Callers in this process are trusted.
        let is_guarded = self.access == ExtendedCardAccess::Guarded && call.binding != Binding::InProcess;
        if is_guarded && call.principal.is_none() {
            let error = ErrorKind::Unauthenticated.because("the extended agent card requires credentials");
            return Err(error.challenge(BEARER));
        }
        if let Some(principal) = call.principal.as_deref().filter(|_| self.access == ExtendedCardAccess::Guarded) {
            require_scope(principal, CARD_EXTENDED)?;
        }
        let public = template.for_base(call.base_url.as_deref());
        let card = provider.extended_card(call.principal.as_deref(), public).await?;
        Ok(template.signed_message(card, call.version))
    }
}
