//! Description of an agent for its agent card.

use crate::pb::v1::{AgentExtension, AgentProvider, AgentSkill};

/// Description of an agent for its agent card. The server fills in required fields that are not set.
///
/// ```
/// use a2a_service::agent::About;
///
/// let about = About::new("Geo").describe("Plans routes").version("2.1.0").skill("route", "Plans a route", ["map"]);
/// assert_eq!(about.skills[0].id, "route");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct About {
    /// Name of the agent.
    pub name: Option<String>,
    /// Description of the agent, in a sentence or two.
    pub description: Option<String>,
    /// Version of the agent, not of the protocol.
    pub version: Option<String>,
    /// Provider of the agent.
    pub provider: Option<AgentProvider>,
    /// URL of the agent's documentation.
    pub documentation_url: Option<String>,
    /// URL of the agent's icon.
    pub icon_url: Option<String>,
    /// Media types that the agent accepts, unless a skill has its own. Empty: `text/plain`.
    pub input_modes: Vec<String>,
    /// Media types that the agent produces, unless a skill has its own. Empty: `text/plain`.
    pub output_modes: Vec<String>,
    /// Skills of the agent.
    pub skills: Vec<AgentSkill>,
    /// Protocol extensions that the agent supports. Calls that do not request a required extension are rejected.
    pub extensions: Vec<AgentExtension>,
}

impl About {
    /// Creates the description of an agent with a name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..Self::default() }
    }

    /// Sets the description.
    #[must_use]
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Sets the version of the agent.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Sets the media types that the agent accepts and produces.
    #[must_use]
    pub fn modes<I: Into<String>, O: Into<String>>(
        mut self,
        input: impl IntoIterator<Item = I>,
        output: impl IntoIterator<Item = O>,
    ) -> Self {
        self.input_modes = input.into_iter().map(Into::into).collect();
        self.output_modes = output.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a skill with an id, which is also its name, a description of one sentence, and keywords.
    #[must_use]
    pub fn skill<T: Into<String>>(
        self,
        id: impl Into<String>,
        description: impl Into<String>,
        tags: impl IntoIterator<Item = T>,
    ) -> Self {
        let (id, description) = (id.into(), description.into());
        let tags = tags.into_iter().map(Into::into).collect();
        self.with_skill(AgentSkill { name: id.clone(), id, description, tags, ..AgentSkill::default() })
    }

    /// Adds a skill with all its fields.
    #[must_use]
    pub fn with_skill(mut self, skill: AgentSkill) -> Self {
        self.skills.push(skill);
        self
    }

    /// Sets the organization that provides the agent, and its website.
    #[must_use]
    pub fn provider(mut self, organization: impl Into<String>, url: impl Into<String>) -> Self {
        self.provider = Some(AgentProvider { organization: organization.into(), url: url.into() });
        self
    }

    /// Adds a protocol extension.
    #[must_use]
    pub fn with_extension(mut self, extension: AgentExtension) -> Self {
        self.extensions.push(extension);
        self
    }
}
