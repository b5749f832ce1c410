//! What must be true of a message before a service sees it. `build/message.rs` writes an `impl Check` for each.

use std::fmt;

use crate::{error::Error, json::Enum};

/// A message with fields that must be set, or that have only so many values.
pub trait Check {
    /// Adds what is wrong with this message, which stands at `at`, to `found`.
    fn check(&self, at: &At<'_>, found: &mut Vec<Violation>);
}

/// What is wrong with a field: a row of `google.rpc.BadRequest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its path in ProtoJSON: `message.parts[0].mediaType`.
    pub field: String,
    /// A sentence without its subject: `is required`.
    pub description: String,
}

impl Violation {
    /// A REQUIRED field that is not set.
    pub fn unset(at: &At<'_>) -> Self {
        Self { field: at.to_string(), description: "is required".to_owned() }
    }

    /// A message that has none of the members of which it must have one.
    pub fn unchosen(at: &At<'_>, members: &str) -> Self {
        Self { field: at.to_string(), description: format!("must have one of {members}") }
    }
}

/// A place in a message. Nothing is allocated until it is printed, which is when something is wrong.
#[derive(Debug)]
pub enum At<'a> {
    /// The message itself.
    Top,
    /// A field of a message.
    Field(&'a Self, &'a str),
    /// An item of a list.
    Index(&'a Self, usize),
    /// A value of a map.
    Key(&'a Self, &'a str),
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top => Ok(()),
            Self::Field(Self::Top, name) => f.write_str(name),
            Self::Field(at, name) | Self::Key(at, name) => write!(f, "{at}.{name}"),
            Self::Index(at, n) => write!(f, "{at}[{n}]"),
        }
    }
}

/// Finds a number that is none of its enum's.
pub fn check_enum<E: Enum>(number: i32, at: &At<'_>, found: &mut Vec<Violation>) {
    if E::name(number).is_none() {
        found.push(Violation { field: at.to_string(), description: format!("{number} is not a value of {}", E::NAME) });
    }
}

/// Refuses a request that a service could not rely on.
pub fn check(request: &impl Check) -> Result<(), Error> {
    let mut found = Vec::new();
    request.check(&At::Top, &mut found);
    // A message of a million empty parts is refused without a reply of a million rows.
    found.truncate(MAX_VIOLATIONS);
    if found.is_empty() { Ok(()) } else { Err(Error::invalid(found)) }
}

/// How many of the fields that are wrong are named.
const MAX_VIOLATIONS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::v1::{AgentCard, ApiKeySecurityScheme, SecurityScheme, security_scheme::Scheme};

    #[test]
    fn a_place_is_said_as_in_json() {
        let key = ApiKeySecurityScheme { location: "header".to_owned(), ..ApiKeySecurityScheme::default() };
        let scheme = SecurityScheme { scheme: Some(Scheme::ApiKeySecurityScheme(key)) };
        let card = AgentCard { security_schemes: [("k".to_owned(), scheme)].into(), ..AgentCard::default() };
        let mut found = Vec::new();
        card.check(&At::Top, &mut found);
        let places: Vec<_> = found.iter().map(|it| it.field.as_str()).collect();
        assert!(places.contains(&"securitySchemes.k.apiKeySecurityScheme.name"), "{places:?}");
        assert!(!places.contains(&"securitySchemes.k.apiKeySecurityScheme.location"), "{places:?}");
        let place = At::Field(&At::Index(&At::Field(&At::Top, "parts"), 3), "url");
        assert_eq!(place.to_string(), "parts[3].url");
    }
}
