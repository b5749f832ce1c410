//! Configuration of the agent card. Each configured value overrides that of the agent.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{CardTemplate, ProtocolBinding};
#[cfg(feature = "cli")]
use crate::protocol::pb::v1::AgentCard;
use crate::protocol::{
    pb::{
        v1::{AgentExtension, AgentInterface, AgentProvider, AgentSkill},
        wkt::Struct,
    },
    v03::{
        card as v03,
        card::{Requirement, Scheme},
    },
    version::Version,
};

options! {
/// Values of the agent card that override the agent's own. Lists are replaced as a whole.
///
/// ```
/// use a2a_service::card::CardConfig;
///
/// let config: CardConfig = serde_json::from_str(r#"{"name": "Geo", "capabilities": {"streaming": false}}"#).unwrap();
/// assert_eq!(config.name.as_deref(), Some("Geo"));
/// assert!(serde_json::from_str::<CardConfig>(r#"{"nmae": "Geo"}"#).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct CardConfig {
    /// Name of the agent.
    pub name: Option<String>,
    /// Description of the agent.
    pub description: Option<String>,
    /// Version of the agent, not of the protocol.
    pub version: Option<String>,
    /// Provider of the agent.
    pub provider: Option<ProviderConfig>,
    /// URL of the agent's icon.
    pub icon_url: Option<String>,
    /// URL of the agent's documentation.
    pub documentation_url: Option<String>,
    /// Media types that the agent accepts.
    pub input_modes: Option<Vec<String>>,
    /// Media types that the agent produces.
    pub output_modes: Option<Vec<String>>,
    /// Skills of the agent, without those that are [extended](SkillConfig::is_extended).
    pub skills: Option<Vec<SkillConfig>>,
    /// Protocol extensions that the agent supports.
    pub extensions: Option<Vec<ExtensionConfig>>,
    /// Additional interfaces, listed after the server's own.
    pub interfaces: Vec<InterfaceConfig>,
    /// Capabilities that differ from those of the server.
    pub capabilities: CapabilitiesConfig,
    /// Security schemes by name, in the form of OpenAPI. The card only declares them; an authenticator has to enforce them.
    /// A scheme with several OAuth flows keeps all of them on a card of 0.3 (0.3, 5.5.3), and one of them on a card of 1.0.
    pub security_schemes: SchemesConfig,
    /// Security requirements, of which a call has to meet one: scopes by the name of a scheme.
    pub security: Vec<Requirement>,
    /// Address of gRPC, if it differs from that of the other bindings: `host:port`, optionally after `dns:///`, or a URL
    /// without a path. gRPC has no path: a server below a base path, or behind a proxy that supports only HTTP/1.1, needs
    /// this address. An invalid address is left off the card.
    pub grpc_url: Option<String>,
    /// Bindings that the card lists among the server's own interfaces. All three by default. Bindings that the card does not
    /// list are still served.
    pub bindings: Option<Vec<ProtocolBinding>>,
}
}

/// Provider of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// Name of the organization.
    pub organization: String,
    /// Website of the organization.
    pub url: String,
}

/// Skill of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkillConfig {
    /// Unique id among the agent's skills.
    pub id: String,
    /// Name of the skill.
    pub name: String,
    /// Description of the skill.
    pub description: String,
    /// Keywords.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Example prompts.
    #[serde(default)]
    pub examples: Vec<String>,
    /// Media types that the skill accepts. Empty: those of the agent.
    #[serde(default)]
    pub input_modes: Vec<String>,
    /// Media types that the skill produces. Empty: those of the agent.
    #[serde(default)]
    pub output_modes: Vec<String>,
    /// The skill is on the extended card only.
    #[serde(default)]
    pub extended: bool,
    /// Scope of callers who see the skill, which is then on the extended card only. All who get that card, if it is not set.
    pub scope: Option<String>,
}

impl SkillConfig {
    /// Returns true for a skill on the extended card only ([`ScopedSkills`](super::ScopedSkills)).
    pub fn is_extended(&self) -> bool {
        self.extended || self.scope.is_some()
    }
}

/// Protocol extension that an agent supports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionConfig {
    /// URI of the extension in its version.
    pub uri: String,
    /// Description of how the agent uses the extension.
    #[serde(default)]
    pub description: String,
    /// Calls of clients that do not request the extension are rejected.
    #[serde(default)]
    pub required: bool,
    /// Parameters, as the extension defines them.
    pub params: Option<Struct>,
}

/// Additional interface of an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceConfig {
    /// Absolute URL, or `host:port` for gRPC.
    pub url: String,
    /// `JSONRPC`, `GRPC`, `HTTP+JSON`, or the URI of another binding.
    pub binding: String,
    /// Tenant that clients copy into every request.
    #[serde(default)]
    pub tenant: String,
    /// Protocol version. `1.0` by default.
    pub version: Option<String>,
}

/// Security schemes by name. Unknown types are rejected.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "BTreeMap<String, Scheme>")]
pub struct SchemesConfig(pub BTreeMap<String, Scheme>);

impl TryFrom<BTreeMap<String, Scheme>> for SchemesConfig {
    type Error = String;

    fn try_from(schemes: BTreeMap<String, Scheme>) -> Result<Self, String> {
        match schemes.iter().find(|(_, scheme)| **scheme == Scheme::Unknown) {
            Some((name, _)) => {
                Err(format!("{name}: unknown type; write apiKey, http, oauth2, openIdConnect or mutualTLS"))
            }
            None => Ok(Self(schemes)),
        }
    }
}

/// Capabilities on the agent card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct CapabilitiesConfig {
    /// Streaming. `false` also rejects streaming calls.
    pub streaming: Option<bool>,
    /// History of a task's states, declared on cards of 0.3 only. The server does not provide it; an agent may.
    pub state_transition_history: Option<bool>,
}

impl CardTemplate {
    /// Applies a configuration.
    pub(crate) fn configure(mut self, config: CardConfig) -> Self {
        fn set<T>(field: &mut T, value: Option<impl Into<T>>) {
            if let Some(value) = value {
                *field = value.into();
            }
        }
        fn set_all<T, U: From<T>>(field: &mut Vec<U>, values: Option<Vec<T>>) {
            if let Some(values) = values {
                *field = values.into_iter().map(U::from).collect();
            }
        }
        let CardConfig { name, description, version, provider, icon_url, documentation_url, .. } = config;
        let CardConfig { input_modes, output_modes, skills, extensions, interfaces, capabilities, .. } = config;
        let CardConfig { security_schemes, security, grpc_url, bindings, .. } = config;
        let card = &mut self.declared;
        set(&mut card.name, name);
        set(&mut card.description, description);
        set(&mut card.version, version);
        set(&mut card.icon_url, icon_url.map(Some));
        set(&mut card.documentation_url, documentation_url.map(Some));
        set(
            &mut card.provider,
            provider.map(|ProviderConfig { organization, url }| AgentProvider { organization, url }),
        );
        set(&mut card.default_input_modes, input_modes);
        set(&mut card.default_output_modes, output_modes);
        // If all are extended, those of the agent remain.
        let public = |mut skills: Vec<SkillConfig>| {
            let is_empty = skills.is_empty();
            skills.retain(|skill| !skill.is_extended());
            (is_empty || !skills.is_empty()).then_some(skills)
        };
        set_all(&mut card.skills, skills.and_then(public));
        let declared = card.capabilities.get_or_insert_default();
        set_all(&mut declared.extensions, extensions);
        set(&mut declared.streaming, capabilities.streaming);
        card.supported_interfaces.extend(interfaces.into_iter().map(AgentInterface::from));
        set(&mut self.v03_fields.state_transition_history, capabilities.state_transition_history);
        if !security_schemes.0.is_empty() || !security.is_empty() {
            card.security_requirements = security.into_iter().map(v03::to_requirement).collect();
            card.security_schemes = v03::to_v1(security_schemes.0.clone());
            self.v03_fields.schemes = security_schemes.0;
        }
        set(&mut self.grpc, grpc_url.map(Some));
        set(&mut self.bindings, bindings);
        self
    }
}

#[cfg(feature = "cli")]
impl CardConfig {
    /// Returns the values of a card, without its security requirements and signatures, which are those of its server, as are the
    /// security schemes in the end. Values that the card leaves out are not set.
    pub(crate) fn of_card(card: AgentCard) -> Self {
        fn set<T>(items: Vec<T>) -> Option<Vec<T>> {
            Some(items).filter(|items| !items.is_empty())
        }
        let text = |text: String| Some(text).filter(|text| !text.is_empty());
        let skill = |skill: AgentSkill| {
            let AgentSkill { id, name, description, tags, examples, input_modes, output_modes, .. } = skill;
            let (extended, scope) = (false, None);
            SkillConfig { id, name, description, tags, examples, input_modes, output_modes, extended, scope }
        };
        let interface = |interface: AgentInterface| {
            let AgentInterface { url, protocol_binding: binding, tenant, protocol_version } = interface;
            InterfaceConfig { url, binding, tenant, version: text(protocol_version) }
        };
        let extension = |extension: AgentExtension| {
            let AgentExtension { uri, description, required, params } = extension;
            ExtensionConfig { uri, description, required, params }
        };
        let capabilities = card.capabilities.unwrap_or_default();
        Self {
            name: text(card.name),
            description: text(card.description),
            version: text(card.version),
            provider: card.provider.map(|AgentProvider { organization, url }| ProviderConfig { organization, url }),
            icon_url: card.icon_url,
            documentation_url: card.documentation_url,
            input_modes: set(card.default_input_modes),
            output_modes: set(card.default_output_modes),
            skills: set(card.skills.into_iter().map(skill).collect()),
            interfaces: card.supported_interfaces.into_iter().map(interface).collect(),
            extensions: set(capabilities.extensions.into_iter().map(extension).collect()),
            capabilities: CapabilitiesConfig { streaming: capabilities.streaming, ..CapabilitiesConfig::default() },
            security_schemes: SchemesConfig(v03::to_v03(&card.security_schemes, &BTreeMap::new())),
            ..Self::default()
        }
    }
}

impl From<SkillConfig> for AgentSkill {
    fn from(skill: SkillConfig) -> Self {
        let SkillConfig { id, name, description, tags, examples, input_modes, output_modes, .. } = skill;
        Self { id, name, description, tags, examples, input_modes, output_modes, security_requirements: Vec::new() }
    }
}

impl From<ExtensionConfig> for AgentExtension {
    fn from(extension: ExtensionConfig) -> Self {
        let ExtensionConfig { uri, description, required, params } = extension;
        Self { uri, description, required, params }
    }
}

impl From<InterfaceConfig> for AgentInterface {
    fn from(interface: InterfaceConfig) -> Self {
        let InterfaceConfig { url, binding, tenant, version } = interface;
        let protocol_version = version.unwrap_or_else(|| Version::V1_0.as_str().to_owned());
        Self { url, protocol_binding: binding, tenant, protocol_version }
    }
}
