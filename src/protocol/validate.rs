//! Validation of requests: REQUIRED fields, known enum numbers, lengths of ids and URIs. `build/check.rs` generates
//! [`Validate`] for each message.

use std::fmt;

use crate::protocol::json::{Enum, not_one_of};

/// A message that can be validated.
pub trait Validate {
    /// Adds the violations of this message, which is at path `at`, to `found`.
    fn validate(&self, at: &At<'_>, found: &mut Violations);
}

/// Maximum length of an identifier in bytes: of tasks, contexts, messages, artifacts, tenants and push notification
/// configurations. Identifiers are stored, and repeated with every event.
pub const MAX_ID_BYTES: usize = 256;

/// Maximum length of the URI of an extension in bytes.
pub const MAX_URI_BYTES: usize = 2048;

/// Names that no tenant has: the server has documents and pages at these paths, or may have them in a later version.
pub const RESERVED_TENANTS: [&str; 6] = ["agents", "console", "docs", "metrics", "openapi", "operator"];

/// Maximum number of violations reported for a request. Checks stop there.
pub const MAX_VIOLATIONS: usize = 32;

/// Violations found in a request so far.
#[derive(Debug, Default)]
pub struct Violations {
    rows: Vec<Violation>,
    /// Name of the first limit that was exceeded.
    limit: Option<&'static str>,
}

impl Violations {
    /// Adds a violation, unless there are [`MAX_VIOLATIONS`].
    pub fn push(&mut self, violation: Violation) {
        if !self.is_full() {
            self.rows.push(violation);
        }
    }

    /// Returns the violations, and the name of the first limit that was exceeded.
    pub(crate) fn into_parts(self) -> (Vec<Violation>, Option<&'static str>) {
        (self.rows, self.limit)
    }

    /// Returns whether the maximum number of violations is reached.
    pub fn is_full(&self) -> bool {
        self.rows.len() >= MAX_VIOLATIONS
    }
}

/// An invalid field, sent as a row of `google.rpc.BadRequest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path in ProtoJSON, such as `message.parts[0].mediaType`.
    pub field: String,
    /// Predicate without a subject, such as `is required`.
    pub description: String,
}

impl Violation {
    /// Creates the violation of a REQUIRED field that is unset.
    pub fn unset(at: &At<'_>) -> Self {
        Self { field: at.to_string(), description: "is required".to_owned() }
    }

    /// Creates the violation of a oneof that must have one of `members`.
    pub fn unchosen(at: &At<'_>, members: &str) -> Self {
        Self { field: at.to_string(), description: format!("must have one of {members}") }
    }
}

/// Path to a value in a message, linked to its parents. Nothing is allocated until it is displayed.
#[derive(Debug)]
pub enum At<'a> {
    /// The request itself.
    Top,
    /// A field of a message.
    Field(&'a Self, &'a str),
    /// An element of a list.
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

/// Reports a number that the enum does not define.
pub fn check_enum<E: Enum>(number: i32, at: &At<'_>, found: &mut Violations) {
    if E::name(number).is_none() {
        found.push(Violation { field: at.to_string(), description: not_one_of(number, E::VALUES) });
    }
}

/// Reports an identifier longer than [`MAX_ID_BYTES`].
pub fn check_id(id: &str, at: &At<'_>, found: &mut Violations) {
    check_length(id, at, (MAX_ID_BYTES, "id_bytes"), found);
}

/// Reports a tenant with a reserved name, or with one longer than [`MAX_ID_BYTES`].
pub fn check_tenant(tenant: &str, at: &At<'_>, found: &mut Violations) {
    if RESERVED_TENANTS.contains(&tenant) {
        found.push(Violation { field: at.to_string(), description: format!("`{tenant}` is a reserved name") });
    }
    check_id(tenant, at, found);
}

/// Reports a URI longer than [`MAX_URI_BYTES`].
pub fn check_uri(uri: &str, at: &At<'_>, found: &mut Violations) {
    check_length(uri, at, (MAX_URI_BYTES, "uri_bytes"), found);
}

fn check_length(text: &str, at: &At<'_>, (max, limit): (usize, &'static str), found: &mut Violations) {
    if text.len() > max {
        let description =
            format!("has {} bytes, which exceeds the limit of {max} ({limit}); send a shorter one", text.len());
        found.push(Violation { field: at.to_string(), description });
        found.limit.get_or_insert(limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::pb::v1::{
        AgentCard, ApiKeySecurityScheme, Message, Part, SecurityScheme, SendMessageRequest, security_scheme::Scheme,
    };

    #[test]
    fn paths_are_those_of_json() {
        let key = ApiKeySecurityScheme { location: "header".to_owned(), ..ApiKeySecurityScheme::default() };
        let scheme = SecurityScheme { scheme: Some(Scheme::ApiKeySecurityScheme(key)) };
        let card = AgentCard { security_schemes: [("k".to_owned(), scheme)].into(), ..AgentCard::default() };
        let mut found = Violations::default();
        card.validate(&At::Top, &mut found);
        let fields: Vec<_> = found.rows.iter().map(|violation| violation.field.as_str()).collect();
        assert!(fields.contains(&"securitySchemes.k.apiKeySecurityScheme.name"), "{fields:?}");
        assert!(!fields.contains(&"securitySchemes.k.apiKeySecurityScheme.location"), "{fields:?}");
        let path = At::Field(&At::Index(&At::Field(&At::Top, "parts"), 3), "url");
        assert_eq!(path.to_string(), "parts[3].url");
    }

    #[test]
    fn reserved_names_are_no_tenants() {
        let found = |tenant: &str| {
            let mut request = SendMessageRequest { tenant: tenant.to_owned(), ..Default::default() };
            request.message = Some(Message { role: 1, message_id: "m".to_owned(), ..Message::user("hi") });
            let mut found = Violations::default();
            request.validate(&At::Top, &mut found);
            found.rows.into_iter().map(|violation| (violation.field, violation.description)).collect::<Vec<_>>()
        };
        for tenant in RESERVED_TENANTS {
            assert_eq!(found(tenant), [("tenant".to_owned(), format!("`{tenant}` is a reserved name"))]);
        }
        assert!(found("").is_empty() && found("open").is_empty());
    }

    #[test]
    fn checks_stop_at_the_maximum_number_of_violations() {
        let message = Message { parts: Vec::new(), ..Message::user("") };
        let mut request = SendMessageRequest { message: Some(message), ..Default::default() };
        let check = |request: &mut SendMessageRequest, n: usize| {
            let message = request.message.as_mut().unwrap();
            message.parts.resize(n, Part::default());
            message.reference_task_ids.resize(n, "t".repeat(MAX_ID_BYTES + 1));
            let mut found = Violations::default();
            request.validate(&At::Top, &mut found);
            found
        };
        assert_eq!(check(&mut request, 3).rows.len(), 6);
        let found = check(&mut request, 100_000);
        assert_eq!((found.rows.len(), found.rows.capacity()), (MAX_VIOLATIONS, MAX_VIOLATIONS));
    }
}
