//! Constructors of agent cards.

use crate::protocol::pb::v1::{
    AgentCard, AgentExtension, AgentProvider, AgentSkill, HttpAuthSecurityScheme, SecurityRequirement, SecurityScheme,
    StringList, security_scheme::Scheme,
};

setters! {
    AgentCard:
    /// Sets the description, in a sentence or two.
    #[must_use]
    pub describe => description: impl Into<String>;

    /// Sets the version of the agent, not of the protocol.
    #[must_use]
    pub version => version: impl Into<String>;
}

/// Constructors of the card of an agent, which [`Agent::card`](crate::engine::agent::Agent::card) returns.
///
/// ```
/// use a2a_service::pb::v1::AgentCard;
///
/// let card = AgentCard::new("Geo").describe("Plans routes").version("2.1.0").skill("route", "Plans a route", ["map"]);
/// assert_eq!(card.skills[0].id, "route");
/// ```
impl AgentCard {
    /// Creates the card of an agent with a name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Sets the media types that the agent accepts and produces, unless a skill has its own. `text/plain` by default.
    #[must_use]
    pub fn modes<I: Into<String>, O: Into<String>>(
        mut self,
        input: impl IntoIterator<Item = I>,
        output: impl IntoIterator<Item = O>,
    ) -> Self {
        self.default_input_modes = input.into_iter().map(Into::into).collect();
        self.default_output_modes = output.into_iter().map(Into::into).collect();
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

    /// Adds a protocol extension that the agent supports. Calls that do not request a required extension are rejected.
    #[must_use]
    pub fn with_extension(mut self, extension: AgentExtension) -> Self {
        self.capabilities.get_or_insert_default().extensions.push(extension);
        self
    }

    /// Sets the security schemes by name, and the requirements of a call (4.5). The card only declares them; an
    /// [authenticator](crate::service::auth::Authenticator) has to enforce them.
    #[must_use]
    pub fn security(
        mut self,
        schemes: impl IntoIterator<Item = (String, SecurityScheme)>,
        requirements: impl IntoIterator<Item = SecurityRequirement>,
    ) -> Self {
        self.security_schemes = schemes.into_iter().collect();
        self.security_requirements = requirements.into_iter().collect();
        self
    }

    /// Declares a bearer token as the security scheme that calls require.
    #[must_use]
    pub fn bearer(self) -> Self {
        let http = HttpAuthSecurityScheme { scheme: "bearer".to_owned(), ..HttpAuthSecurityScheme::default() };
        self.any_scheme([("bearer", Scheme::HttpAuthSecurityScheme(http))])
    }

    /// Declares security schemes, each of which is sufficient.
    pub(crate) fn any_scheme<N: Into<String>>(self, schemes: impl IntoIterator<Item = (N, Scheme)>) -> Self {
        let declare = |(name, scheme): (N, Scheme)| {
            let (name, scheme) = (name.into(), SecurityScheme { scheme: Some(scheme) });
            let schemes = [(name.clone(), StringList::default())].into();
            ((name, scheme), SecurityRequirement { schemes })
        };
        let (schemes, requirements): (Vec<_>, Vec<_>) = schemes.into_iter().map(declare).unzip();
        self.security(schemes, requirements)
    }
}
