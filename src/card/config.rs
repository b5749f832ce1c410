//! A card as a configuration says it: every key is optional, and says more than the agent does of itself.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Card;
use crate::{
    call::Version,
    pb::{
        v1::{AgentExtension, AgentInterface, AgentProvider, AgentSkill},
        wkt::Struct,
    },
    v03::card::{CardVersion, Requirement, Scheme},
};

/// What an operator says of an agent. What is left out is as the agent has it, and what is there replaces that: a list
/// as a whole.
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
    /// What people call the agent.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// Its own version.
    pub version: Option<String>,
    /// Who runs it.
    pub provider: Option<ProviderConfig>,
    /// What it looks like.
    pub icon_url: Option<String>,
    /// Where people read more about it.
    pub documentation_url: Option<String>,
    /// The media types that it takes.
    pub input_modes: Option<Vec<String>>,
    /// The media types that it gives.
    pub output_modes: Option<Vec<String>>,
    /// What it can do.
    pub skills: Option<Vec<SkillConfig>>,
    /// The extensions of the protocol that it knows.
    pub extensions: Option<Vec<ExtensionConfig>>,
    /// Where else it is reached, behind the server's own interfaces.
    pub interfaces: Vec<InterfaceConfig>,
    /// What is not to be offered, though the server could.
    pub capabilities: CapabilitiesConfig,
    /// The ways to authenticate, by name, as OpenAPI has them. A card only tells: something else has to ask.
    pub security_schemes: SchemesConfig,
    /// Which of them a call takes: one of these, each with its scopes by scheme.
    pub security: Vec<Requirement>,
    /// The shape for readers who do not name a version.
    pub shape: Option<CardVersion>,
    /// The same by the host that is asked for.
    pub shapes: BTreeMap<String, CardVersion>,
}

/// Who runs an agent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// The name of the organization.
    pub organization: String,
    /// Its website.
    pub url: String,
}

/// One thing that an agent can do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkillConfig {
    /// Tells it from the others.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// What it does.
    pub description: String,
    /// By what it is found.
    #[serde(default)]
    pub tags: Vec<String>,
    /// What people might ask.
    #[serde(default)]
    pub examples: Vec<String>,
    /// The media types that it takes, where they are others than the agent's.
    #[serde(default)]
    pub input_modes: Vec<String>,
    /// The media types that it gives, where they are others than the agent's.
    #[serde(default)]
    pub output_modes: Vec<String>,
}

/// An extension of the protocol.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtensionConfig {
    /// What it is, and in which version.
    pub uri: String,
    /// What the agent does with it.
    #[serde(default)]
    pub description: String,
    /// Messages of clients that do not name it are refused.
    #[serde(default)]
    pub required: bool,
    /// What the extension defines.
    #[serde(default)]
    pub params: Option<Struct>,
}

/// Another way to reach an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterfaceConfig {
    /// Where: an absolute URL, or `host:port` for gRPC.
    pub url: String,
    /// `JSONRPC`, `GRPC`, `HTTP+JSON`, or the URI of another one.
    pub binding: String,
    /// What its clients copy into every request.
    #[serde(default)]
    pub tenant: String,
    /// The version of the protocol, `1.0` where nothing is said.
    #[serde(default)]
    pub version: Option<String>,
}

/// Ways to authenticate, by name; one of a type that nobody here knows is a mistake.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "BTreeMap<String, Scheme>")]
pub struct SchemesConfig(pub BTreeMap<String, Scheme>);

impl TryFrom<BTreeMap<String, Scheme>> for SchemesConfig {
    type Error = String;

    fn try_from(schemes: BTreeMap<String, Scheme>) -> Result<Self, String> {
        match schemes.iter().find(|it| *it.1 == Scheme::Unknown) {
            Some((name, _)) => Err(format!("`{name}` has a type that OpenAPI does not know")),
            None => Ok(Self(schemes)),
        }
    }
}

/// What of the server's capabilities is switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct CapabilitiesConfig {
    /// Answers in streams.
    pub streaming: Option<bool>,
    /// Tells the history of a task's states, which only the card of 0.3 has a word for. Nothing here does; an agent may.
    pub state_transition_history: Option<bool>,
}

impl Card {
    /// With what a configuration says.
    #[must_use]
    pub fn configure(mut self, config: CardConfig) -> Self {
        let CardConfig { name, description, version, provider, icon_url, documentation_url, .. } = config;
        let CardConfig { input_modes, output_modes, skills, extensions, interfaces, capabilities, .. } = config;
        let CardConfig { security_schemes, security, shape, shapes, .. } = config;
        let about = &mut self.about;
        let set = |to: &mut Option<String>, from: Option<String>| {
            if from.is_some() {
                *to = from;
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
        if let Some(it) = capabilities.state_transition_history {
            self.kept.state_transition_history = it;
        }
        if !security_schemes.0.is_empty() || !security.is_empty() {
            self = self.classic_security(security_schemes.0, security);
        }
        if let Some(shape) = shape {
            self = self.shape(shape);
        }
        for (host, shape) in shapes {
            self = self.shape_at(host, shape);
        }
        self
    }
}

impl From<SkillConfig> for AgentSkill {
    fn from(it: SkillConfig) -> Self {
        let SkillConfig { id, name, description, tags, examples, input_modes, output_modes } = it;
        Self { id, name, description, tags, examples, input_modes, output_modes, security_requirements: Vec::new() }
    }
}

impl From<ExtensionConfig> for AgentExtension {
    fn from(it: ExtensionConfig) -> Self {
        let ExtensionConfig { uri, description, required, params } = it;
        Self { uri, description, required, params }
    }
}

impl From<InterfaceConfig> for AgentInterface {
    fn from(it: InterfaceConfig) -> Self {
        let InterfaceConfig { url, binding, tenant, version } = it;
        let protocol_version = version.unwrap_or_else(|| Version::V1_0.as_str().to_owned());
        Self { url, protocol_binding: binding, tenant, protocol_version }
    }
}
