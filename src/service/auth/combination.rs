//! Combinations of authentication schemes: any of them, or all of them.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;

use super::{AuthRequest, Authenticator, CREDENTIALS, Dependency, MISSING, Principal, Scopes};
use crate::protocol::{
    call::{SKILL_PREFIX, TASKS_WRITE},
    error::{BEARER, Error, ErrorKind},
    pb::v1::{AgentCard, SecurityRequirement},
};

/// Accepts a request that any of these schemes accepts. The first that does decides who the caller is.
///
/// ```
/// use a2a_service::{agent::demo::Demo, auth::{self, Bearer, Token}, server::Server};
///
/// let (old, new) = (Bearer::new(Token::new("old-secret")?), Bearer::new(Token::new("new-secret")?));
/// let server = Server::new(Demo).authenticator(auth::any().or(old).or(new));
/// # Ok::<_, &str>(())
/// ```
pub fn any() -> AnyOf {
    AnyOf(Vec::new())
}

/// Accepts a request that all of these schemes accept: the first one decides who the caller is, and each may restrict the
/// scopes. Without a scheme, every request is rejected.
pub fn all() -> AllOf {
    AllOf(Vec::new())
}

/// Any of several schemes: see [`any`].
#[derive(Clone, Default)]
pub struct AnyOf(Vec<Arc<dyn Authenticator>>);

impl AnyOf {
    /// Adds a scheme.
    #[must_use]
    pub fn or(mut self, scheme: impl Authenticator) -> Self {
        self.0.push(Arc::new(scheme));
        self
    }

    /// Returns true without a scheme, when every request is rejected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// All of several schemes: see [`all`].
#[derive(Clone, Default)]
pub struct AllOf(Vec<Arc<dyn Authenticator>>);

impl AllOf {
    /// Adds a scheme.
    #[must_use]
    pub fn and(mut self, scheme: impl Authenticator) -> Self {
        self.0.push(Arc::new(scheme));
        self
    }
}

conversions! {
    AllOf:
    /// Requires all of the schemes.
    any: AnyOf => Self(any.0);
}

/// Joins the errors of several schemes: the first one about credentials that were sent, or else that none were, with the
/// challenges of all.
fn joined(errors: Vec<Error>) -> Error {
    // A scheme that can't check credentials may accept them later.
    let mut challenges = Vec::new();
    for challenge in errors.iter().filter_map(Error::challenge_text) {
        if !challenges.contains(&challenge) {
            challenges.push(challenge);
        }
    }
    let challenge = if challenges.is_empty() { BEARER.to_owned() } else { challenges.join(", ") };
    let sent = |error: &Error| error.metadata(CREDENTIALS) != Some(MISSING);
    let position = errors.iter().position(|error| error.kind() != ErrorKind::Unauthenticated);
    let position = position.or_else(|| errors.iter().position(sent)).unwrap_or_default();
    let error = errors.into_iter().nth(position);
    let error = error.unwrap_or_else(|| ErrorKind::Unauthenticated.because("no authentication scheme is configured"));
    error.challenge(challenge)
}

#[async_trait]
impl Authenticator for AnyOf {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let mut errors = Vec::new();
        for scheme in &self.0 {
            match scheme.authenticate(request).await {
                Ok(principal) => return Ok(principal),
                Err(error) => errors.push(error),
            }
        }
        Err(joined(errors))
    }

    fn issuers(&self) -> Vec<String> {
        self.0.iter().flat_map(|scheme| scheme.issuers()).collect()
    }

    fn dependencies(&self) -> Vec<Dependency> {
        self.0.iter().flat_map(|scheme| scheme.dependencies()).collect()
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        let described = described(&self.0);
        let requirements = described.iter().flat_map(|described| described.security_requirements.clone()).collect();
        declare(card, described, requirements)
    }
}

#[async_trait]
impl Authenticator for AllOf {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        let mut accepted: Option<Principal> = None;
        let mut errors = Vec::new();
        for scheme in &self.0 {
            match (scheme.authenticate(request).await, &mut accepted) {
                (Ok(Some(principal)), Some(first)) => {
                    first.scopes = common(&first.scopes, &principal.scopes);
                    first.validity.restrict(principal.validity);
                    match (&first.tenant, principal.tenant) {
                        (None, tenant) => first.tenant = tenant,
                        (Some(one), Some(other)) if *one != other => {
                            errors
                                .push(ErrorKind::Unauthenticated.because("the credentials are for different tenants"));
                        }
                        (Some(_), _) => {}
                    }
                }
                (Ok(principal), first) => *first = first.take().or(principal),
                (Err(error), _) => errors.push(error),
            }
        }
        if errors.is_empty() && !self.0.is_empty() { Ok(accepted) } else { Err(joined(errors)) }
    }

    fn issuers(&self) -> Vec<String> {
        self.0.iter().flat_map(|scheme| scheme.issuers()).collect()
    }

    fn dependencies(&self) -> Vec<Dependency> {
        self.0.iter().flat_map(|scheme| scheme.dependencies()).collect()
    }

    fn describe(&self, card: AgentCard) -> AgentCard {
        let (described, mut requirements) = (described(&self.0), vec![SecurityRequirement::default()]);
        for described in &described {
            let joined = requirements.iter().flat_map(|one| {
                described.security_requirements.iter().map(|other| {
                    let schemes = one.schemes.clone().into_iter().chain(other.schemes.clone());
                    SecurityRequirement { schemes: schemes.collect() }
                })
            });
            requirements = joined.collect();
        }
        declare(card, described, requirements)
    }
}

/// Returns the scopes that both have.
fn common(one: &Scopes, other: &Scopes) -> Scopes {
    match (one, other) {
        (Scopes::All, scopes) | (scopes, Scopes::All) => scopes.clone(),
        (Scopes::Only(first), Scopes::Only(second)) => {
            let mut scopes: BTreeSet<String> = first.intersection(second).cloned().collect();
            // Scopes without a skill permit all skills, so that the intersection must not lose the last one.
            match (one.skills(), other.skills()) {
                (Some(skills), None) | (None, Some(skills)) => {
                    scopes.extend(skills.into_iter().map(|skill| format!("{SKILL_PREFIX}{skill}")));
                }
                (Some(one), Some(other)) if !one.iter().any(|skill| other.contains(skill)) => {
                    scopes.remove(TASKS_WRITE);
                }
                (Some(_), Some(_)) | (None, None) => {}
            }
            Scopes::Only(scopes)
        }
    }
}

/// Returns the cards on which each of these schemes declares itself.
fn described(schemes: &[Arc<dyn Authenticator>]) -> Vec<AgentCard> {
    schemes.iter().map(|scheme| scheme.describe(AgentCard::default())).collect()
}

/// Declares the schemes of these cards, and each of the requirements once.
fn declare(card: AgentCard, described: Vec<AgentCard>, requirements: Vec<SecurityRequirement>) -> AgentCard {
    let mut distinct = Vec::new();
    for requirement in requirements {
        if !distinct.contains(&requirement) {
            distinct.push(requirement);
        }
    }
    card.security(described.into_iter().flat_map(|described| described.security_schemes), distinct)
}

debug_fields!(AnyOf {});
debug_fields!(AllOf {});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_scopes_permit_no_more_than_either() {
        let only = |text: &str| Scopes::only(text.split(' '));
        for (one, other, both) in [
            ("tasks:read admin", "tasks:read", "tasks:read"),
            ("tasks:write skill:a", "tasks:write", "tasks:write skill:a"),
            ("tasks:write skill:a skill:b", "tasks:write skill:b", "tasks:write skill:b"),
            ("tasks:read tasks:write skill:a", "tasks:read tasks:write skill:b", "tasks:read"),
        ] {
            assert_eq!(common(&only(one), &only(other)), only(both), "{one} and {other}");
            assert_eq!(common(&only(other), &only(one)), only(both), "{other} and {one}");
        }
        assert_eq!(common(&Scopes::All, &only("admin")), only("admin"));
    }
}
