//! What an agent says of itself: the part of its card that it knows.

use crate::pb::v1::{AgentExtension, AgentProvider, AgentSkill};

/// What the agent card says of an agent. What is left out here, the server fills in.
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
    /// What people call it.
    pub name: Option<String>,
    /// What it is for, in a sentence or two.
    pub description: Option<String>,
    /// Its own version, not that of the protocol.
    pub version: Option<String>,
    /// Who runs it.
    pub provider: Option<AgentProvider>,
    /// Where people read more about it.
    pub documentation_url: Option<String>,
    /// What it looks like.
    pub icon_url: Option<String>,
    /// The media types that it takes, where a skill says nothing else; `text/plain` where this says nothing.
    pub input_modes: Vec<String>,
    /// The media types that it gives, where a skill says nothing else; `text/plain` where this says nothing.
    pub output_modes: Vec<String>,
    /// What it can do.
    pub skills: Vec<AgentSkill>,
    /// The extensions of the protocol that it knows. Calls of clients that do not name one that is required are refused.
    pub extensions: Vec<AgentExtension>,
}

impl About {
    /// An agent of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..Self::default() }
    }

    /// With a description.
    #[must_use]
    pub fn describe(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// With a version of its own.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// With the media types that it takes and gives.
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

    /// With one skill more, whose description is a sentence and whose tags are for those who search.
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

    /// With one skill more, member by member.
    #[must_use]
    pub fn with_skill(mut self, skill: AgentSkill) -> Self {
        self.skills.push(skill);
        self
    }

    /// With the organization that runs it, and its website.
    #[must_use]
    pub fn provider(mut self, organization: impl Into<String>, url: impl Into<String>) -> Self {
        self.provider = Some(AgentProvider { organization: organization.into(), url: url.into() });
        self
    }

    /// With one extension of the protocol more.
    #[must_use]
    pub fn with_extension(mut self, extension: AgentExtension) -> Self {
        self.extensions.push(extension);
        self
    }
}
