//! Configuration of the agent card. Each configured value overrides that of the agent.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Card;
use crate::{
    pb::{
        v1::{AgentExtension, AgentInterface, AgentProvider, AgentSkill},
        wkt::Struct,
    },
    protocol::Version,
    v03::card::{CardVersion, Requirement, Scheme},
};

/// Values of the agent card that override the agent's own. Lists are replaced as a whole.
///
/// ```
/// use a2a_service::card::CardConfig;
///
/// let config: CardConfig = serde_json::from_str(r#"{"name": "Geo", "capabilities": {"streaming": false}}"#).unwrap();
/// assert_eq!(config.name.as_deref(), Some("Geo"));
/// assert!(serde_json::from_str::<CardConfig>(r#"{"nmae": "Geo"}"#).is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
    /// Skills of the agent.
    pub skills: Option<Vec<SkillConfig>>,
    /// Protocol extensions that the agent supports.
    pub extensions: Option<Vec<ExtensionConfig>>,
    /// Additional interfaces, listed after the server's own.
    pub interfaces: Vec<InterfaceConfig>,
    /// Capabilities that differ from those of the server.
    pub capabilities: CapabilitiesConfig,
    /// Security schemes by name, in the form of OpenAPI. The card only declares them; an authenticator has to enforce them.
    pub security_schemes: SchemesConfig,
    /// Security requirements, of which a call has to meet one: scopes by the name of a scheme.
    pub security: Vec<Requirement>,
    /// Form of the card for requests that do not name a protocol version.
    pub format: Option<CardVersion>,
    /// Form of the card by the requested host. Overrides `format`.
    pub formats_by_host: BTreeMap<String, CardVersion>,
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
    #[serde(default)]
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
    #[serde(default)]
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

impl Card {
    /// Applies a configuration.
    #[must_use]
    pub fn configure(mut self, config: CardConfig) -> Self {
        let CardConfig { name, description, version, provider, icon_url, documentation_url, .. } = config;
        let CardConfig { input_modes, output_modes, skills, extensions, interfaces, capabilities, .. } = config;
        let CardConfig { security_schemes, security, format, formats_by_host, .. } = config;
        let about = &mut self.about;
        let set = |field: &mut Option<String>, value: Option<String>| {
            if value.is_some() {
                *field = value;
            }
        };
        set(&mut about.name, name);
        set(&mut about.description, description);
        set(&mut about.version, version);
        set(&mut about.icon_url, icon_url);
        set(&mut about.documentation_url, documentation_url);
        if let Some(ProviderConfig { organization, url }) = provider {
            about.provider = Some(AgentProvider { organization, url });
        }
        if let Some(modes) = input_modes {
            about.input_modes = modes;
        }
        if let Some(modes) = output_modes {
            about.output_modes = modes;
        }
        if let Some(skills) = skills {
            about.skills = skills.into_iter().map(Into::into).collect();
        }
        if let Some(extensions) = extensions {
            about.extensions = extensions.into_iter().map(Into::into).collect();
        }
        self.interfaces.extend(interfaces.into_iter().map(AgentInterface::from));
        if let Some(streaming) = capabilities.streaming {
            self.streaming = streaming;
        }
        if let Some(declared) = capabilities.state_transition_history {
            self.v03_fields.state_transition_history = declared;
        }
        if !security_schemes.0.is_empty() || !security.is_empty() {
            self = self.classic_security(security_schemes.0, security);
        }
        if let Some(format) = format {
            self = self.format(format);
        }
        for (host, format) in formats_by_host {
            self = self.format_for_host(host, format);
        }
        self
    }
}

impl From<SkillConfig> for AgentSkill {
    fn from(skill: SkillConfig) -> Self {
        let SkillConfig { id, name, description, tags, examples, input_modes, output_modes } = skill;
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
