//! Rules for agent cards: the members that both versions of the protocol require, and their types.
//!
//! A card may have the members of several versions. Each version has a table of rules; a rule for a member of an object applies
//! wherever that object is present.

use std::collections::HashSet;

use serde::Serialize;
use serde_json::{Value, json};
use url::Url;

use crate::protocol::{v03, version::Version};

/// Maximum number of problems that are listed.
const MAX_PROBLEMS: usize = 100;

/// Type that a member must have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Text that is not empty.
    Text,
    /// Absolute URL, or `host:port` for gRPC.
    Address,
    /// URL with the scheme `http` or `https`.
    WebUrl,
    /// Array, also an empty one.
    List,
    /// Array with at least one item.
    Filled,
    Object,
}

/// Path of a required member, its type, and its meaning. `[]` stands for each item of an array, `{}` for each member of an object.
type Rule = (&'static str, Kind, &'static str);

/// Rules of both versions.
const COMMON: [Rule; 15] = [
    ("name", Kind::Text, "the name of the agent"),
    ("description", Kind::Text, "a description of what the agent does"),
    ("version", Kind::Text, "the version of the agent, such as \"1.0.0\""),
    ("capabilities", Kind::Object, "the optional features of the agent, such as {\"streaming\": true}"),
    ("capabilities.extensions[].uri", Kind::Text, "the URI of the extension"),
    ("defaultInputModes", Kind::List, "the media types that the agent accepts, such as [\"text/plain\"]"),
    ("defaultOutputModes", Kind::List, "the media types that the agent produces, such as [\"text/plain\"]"),
    ("skills", Kind::List, "the skills of the agent"),
    ("skills[].id", Kind::Text, "an id of the skill, unique on the card"),
    ("skills[].name", Kind::Text, "a name of the skill for people"),
    ("skills[].description", Kind::Text, "a description of what the skill does"),
    ("skills[].tags", Kind::List, "keywords of the skill, such as [\"maps\"]"),
    ("provider.organization", Kind::Text, "the name of the organization"),
    ("provider.url", Kind::WebUrl, "the website of the organization"),
    ("signatures[].signature", Kind::Text, "the signature in base64url, as `a2a card sign` writes it"),
];

/// Rules of 1.0 (4.4).
const V1_0: [Rule; 13] = [
    (
        "supportedInterfaces",
        Kind::Filled,
        "each URL of the agent with its binding and version, the preferred one first",
    ),
    ("supportedInterfaces[].url", Kind::Address, "the URL of the interface"),
    ("supportedInterfaces[].protocolBinding", Kind::Text, "the binding: JSONRPC, HTTP+JSON or GRPC"),
    ("supportedInterfaces[].protocolVersion", Kind::Text, "the version of the protocol, such as \"1.0\""),
    ("signatures[].protected", Kind::Text, "the protected header in base64url, as `a2a card sign` writes it"),
    ("securitySchemes{}.apiKeySecurityScheme.location", Kind::Text, "the place of the key: header, query or cookie"),
    ("securitySchemes{}.apiKeySecurityScheme.name", Kind::Text, "the name of the header, parameter or cookie"),
    ("securitySchemes{}.httpAuthSecurityScheme.scheme", Kind::Text, "the scheme of HTTP, such as \"Bearer\""),
    ("securitySchemes{}.oauth2SecurityScheme.flows", Kind::Object, "the flow by which a client gets a token"),
    (
        "securitySchemes{}.openIdConnectSecurityScheme.openIdConnectUrl",
        Kind::WebUrl,
        "the URL of the discovery document",
    ),
    ("securitySchemes{}.oauth2SecurityScheme.flows.authorizationCode.tokenUrl", Kind::WebUrl, "the URL of the token"),
    ("securitySchemes{}.oauth2SecurityScheme.flows.clientCredentials.tokenUrl", Kind::WebUrl, "the URL of the token"),
    ("securitySchemes{}.oauth2SecurityScheme.flows.deviceCode.tokenUrl", Kind::WebUrl, "the URL of the token"),
];

/// Rules of 0.3 (5.5).
const V0_3: [Rule; 6] = [
    ("url", Kind::Address, "the preferred URL of the agent"),
    ("protocolVersion", Kind::Text, "the version of the protocol, such as \"0.3.0\""),
    ("additionalInterfaces[].url", Kind::Address, "the URL of the interface"),
    ("additionalInterfaces[].transport", Kind::Text, "the transport: JSONRPC, HTTP+JSON or GRPC"),
    ("signatures[].protected", Kind::Text, "the protected header in base64url, as `a2a card sign` writes it"),
    ("securitySchemes{}.type", Kind::Text, "the kind of the scheme: apiKey, http, oauth2, openIdConnect or mutualTLS"),
];

/// Required members that clients do without, since they have defaults for them, or read as numbers.
const OPTIONAL: [&str; 3] =
    ["protocolVersion", "supportedInterfaces[].protocolVersion", "supportedInterfaces[].protocolBinding"];

/// Members of a security scheme of 1.0, exactly one of which is present.
const SCHEMES: [&str; 5] = [
    "apiKeySecurityScheme",
    "httpAuthSecurityScheme",
    "oauth2SecurityScheme",
    "openIdConnectSecurityScheme",
    "mtlsSecurityScheme",
];

/// Problem of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    /// Protocol versions that require the member.
    pub(crate) versions: Vec<&'static str>,
    /// Path of the member, such as `skills[0].tags`. Empty for the whole card.
    pub(crate) path: String,
    #[serde(rename = "problem")]
    pub(crate) reason: String,
    pub(crate) remedy: String,
}

impl Problem {
    fn new(versions: &[&'static str], path: &str, reason: &str, remedy: &str) -> Self {
        let (path, reason, remedy) = (path.to_owned(), reason.to_owned(), remedy.to_owned());
        Self { versions: versions.to_vec(), path, reason, remedy }
    }
}

/// Result of the rules.
#[derive(Debug, Serialize)]
pub(crate) struct Review {
    /// Versions whose clients the card is for.
    pub(crate) versions: Vec<&'static str>,
    pub(crate) problems: Vec<Problem>,
    /// Missing members that clients do without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<Problem>,
}

/// Applies the rules to a card. One without members of a version is reviewed as a card of 1.0.
pub(crate) fn review(card: &Value) -> Review {
    let (v1_0, v0_3) = (Version::V1_0.as_str(), Version::V0_3.as_str());
    // As clients read a card: one with interfaces is of 1.0, and may have their version at its top.
    let has_interfaces = card.get("supportedInterfaces").is_some_and(|interfaces| *interfaces != json!([]));
    let has_v0_3 = card.get("url").is_some() || (card.get("protocolVersion").is_some() && !has_interfaces);
    let has_v1_0 = has_interfaces || !has_v0_3;
    let versions: Vec<_> = has_v1_0.then_some(v1_0).into_iter().chain(has_v0_3.then_some(v0_3)).collect();
    let mut problems = Problems::default();
    if !card.is_object() {
        let remedy = "write the card as an object with the members of an agent card";
        problems.add(&versions, "", "is not a JSON object", remedy);
        return Review { versions, problems: problems.found, warnings: Vec::new() };
    }
    for rule in &COMMON {
        problems.check(&versions, card, rule);
    }
    if has_v1_0 {
        for rule in &V1_0 {
            problems.check(&[v1_0], card, rule);
        }
        problems.check_schemes(v1_0, card);
        let requirements = items(card, "securityRequirements").map(|requirement| requirement.get("schemes"));
        problems.check_requirements(v1_0, card, "securityRequirements", requirements);
    }
    if has_v0_3 {
        for rule in &V0_3 {
            problems.check(&[v0_3], card, rule);
        }
        problems.check_requirements(v0_3, card, "security", items(card, "security").map(Some));
    }
    problems.check_skill_ids(&versions, card);
    if problems.found.is_empty()
        && let Err(error) = v03::card::from_json(card.to_string().as_bytes())
    {
        let remedy = "give each member of the card the type that the specification defines";
        problems.add(&versions, "", &format!("can't be read: {error}"), remedy);
    }
    Review { versions, problems: problems.found, warnings: problems.warnings }
}

fn items<'a>(card: &'a Value, member: &str) -> impl Iterator<Item = &'a Value> {
    card.get(member).and_then(Value::as_array).into_iter().flatten()
}

#[derive(Default)]
struct Problems {
    found: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Problems {
    fn add(&mut self, versions: &[&'static str], path: &str, reason: &str, remedy: &str) {
        if self.found.len() < MAX_PROBLEMS {
            self.found.push(Problem::new(versions, path, reason, remedy));
        }
    }

    /// Checks a rule for all objects that it applies to.
    fn check(&mut self, versions: &[&'static str], card: &Value, (rule_path, kind, meaning): &Rule) {
        let segments: Vec<&str> = rule_path.split('.').collect();
        let Some((member, parents)) = segments.split_last() else { return };
        for (parent, at) in objects(card, parents) {
            let path = if at.is_empty() { (*member).to_owned() } else { format!("{at}.{member}") };
            match parent.get(member) {
                value @ (None | Some(Value::Null | Value::Number(_))) if OPTIONAL.contains(rule_path) => {
                    let is_number = value.is_some_and(Value::is_number);
                    let (reason, verb) = if is_number { ("is not a text", "set it to") } else { ("is missing", "add") };
                    if self.warnings.len() < MAX_PROBLEMS {
                        self.warnings.push(Problem::new(versions, &path, reason, &format!("{verb} {meaning}")));
                    }
                }
                None | Some(Value::Null) => {
                    self.add(versions, &path, "is missing", &format!("add {meaning}"));
                }
                Some(value) => {
                    if let Some(problem) = kind.problem(value) {
                        self.add(versions, &path, problem, &format!("set it to {meaning}"));
                    }
                }
            }
        }
    }

    fn check_schemes(&mut self, version: &'static str, card: &Value) {
        for (scheme, path) in objects(card, &["securitySchemes{}"]) {
            if SCHEMES.iter().filter(|member| scheme.get(member).is_some()).count() != 1 {
                let remedy = format!("give it one of the members {}", SCHEMES.join(", "));
                self.add(&[version], &path, "is not one security scheme", &remedy);
            }
        }
    }

    /// Checks that the schemes of security requirements are declared.
    fn check_requirements<'a>(
        &mut self,
        version: &'static str,
        card: &Value,
        member: &str,
        requirements: impl Iterator<Item = Option<&'a Value>>,
    ) {
        let is_declared = |name: &str| card.get("securitySchemes").is_some_and(|schemes| schemes.get(name).is_some());
        for (index, requirement) in requirements.enumerate() {
            for name in requirement.and_then(Value::as_object).into_iter().flat_map(|schemes| schemes.keys()) {
                if !is_declared(name) {
                    let problem = format!("names the scheme `{name}`, which is not declared");
                    let remedy = format!("declare `{name}` in securitySchemes, or correct the name");
                    self.add(&[version], &format!("{member}[{index}]"), &problem, &remedy);
                }
            }
        }
    }

    fn check_skill_ids(&mut self, versions: &[&'static str], card: &Value) {
        let mut ids = HashSet::new();
        for (index, skill) in items(card, "skills").enumerate() {
            let Some(id) = skill.get("id").and_then(Value::as_str) else { continue };
            if !ids.insert(id) {
                let problem = format!("`{id}` is the id of an earlier skill");
                self.add(versions, &format!("skills[{index}].id"), &problem, "give each skill an id of its own");
            }
        }
    }
}

/// Returns the objects at a path with their paths. Objects that are not present have none.
fn objects<'a>(card: &'a Value, segments: &[&str]) -> Vec<(&'a Value, String)> {
    let mut found = vec![(card, String::new())];
    for segment in segments {
        let name = segment.trim_end_matches("[]").trim_end_matches("{}");
        let mut next = Vec::new();
        for (object, at) in found {
            let Some(value) = object.get(name) else { continue };
            let at = if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
            // An optional member of another type has no required members.
            if segment.ends_with("[]") {
                let items = value.as_array().into_iter().flatten().enumerate();
                next.extend(items.map(|(index, item)| (item, format!("{at}[{index}]"))));
            } else if segment.ends_with("{}") {
                let members = value.as_object().into_iter().flatten();
                next.extend(members.map(|(name, member)| (member, format!("{at}.{name}"))));
            } else if value.is_object() {
                next.push((value, at));
            }
        }
        found = next;
    }
    found.truncate(MAX_PROBLEMS);
    found
}

impl Kind {
    /// Returns the problem of a value that has another type.
    fn problem(self, value: &Value) -> Option<&'static str> {
        match (self, value) {
            (Self::Text | Self::Address | Self::WebUrl, Value::String(text)) if text.trim().is_empty() => {
                Some("is empty")
            }
            (Self::Text, Value::String(_)) | (Self::List, Value::Array(_)) | (Self::Object, Value::Object(_)) => None,
            (Self::Address, Value::String(text)) => (!is_address(text)).then_some("is not an absolute URL"),
            (Self::WebUrl, Value::String(text)) => {
                let is_web = Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
                (!is_web).then_some("is not a URL with http or https")
            }
            (Self::Filled, Value::Array(items)) => items.is_empty().then_some("has no items"),
            (Self::Text | Self::Address | Self::WebUrl, _) => Some("is not a text"),
            (Self::List | Self::Filled, _) => Some("is not an array"),
            (Self::Object, _) => Some("is not an object"),
        }
    }
}

/// Returns true for an absolute URL, or `host:port`.
fn is_address(text: &str) -> bool {
    let has_port =
        |text: &str| text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    match text.split_once("://") {
        Some(("dns", _)) => true,
        Some(_) => Url::parse(text).is_ok_and(|url| url.has_host()),
        None => has_port(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> Value {
        json!({
            "name": "Geo", "description": "Maps", "version": "1", "capabilities": {}, "defaultInputModes": [],
            "defaultOutputModes": ["text/plain"], "protocolVersion": "0.3.0", "url": "http://a.example/rpc",
            "skills": [{"id": "a", "name": "A", "description": "A", "tags": []}],
            "supportedInterfaces": [{"url": "a.example:443", "protocolBinding": "GRPC", "protocolVersion": "1.0"}],
        })
    }

    fn problems(card: &Value) -> Vec<String> {
        let line = |problem: Problem| format!("{} {} {}", problem.versions.join(","), problem.path, problem.reason);
        review(card).problems.into_iter().map(line).collect()
    }

    #[test]
    fn card_of_both_versions_is_valid() {
        let review = review(&valid());
        assert_eq!((review.versions, review.problems), (vec!["1.0", "0.3"], vec![]));
    }

    /// Clients take such a card.
    #[test]
    fn missing_members_with_defaults_are_warnings() {
        let mut card = valid();
        card.as_object_mut().unwrap().remove("protocolVersion");
        card["supportedInterfaces"][0]["protocolVersion"] = Value::Null;
        let Review { problems, warnings, .. } = review(&card);
        let found: Vec<_> =
            warnings.iter().map(|warning| (warning.versions[0], &*warning.path, &*warning.reason)).collect();
        let interface = "supportedInterfaces[0].protocolVersion";
        assert_eq!(
            (problems, found),
            (vec![], vec![("1.0", interface, "is missing"), ("0.3", "protocolVersion", "is missing")])
        );
    }

    #[test]
    fn problems_have_paths() {
        let with = |change: &dyn Fn(&mut Value)| {
            let mut card = valid();
            change(&mut card);
            problems(&card)
        };
        assert_eq!(with(&|card| card["skills"][0]["tags"] = Value::Null), ["1.0,0.3 skills[0].tags is missing"]);
        assert_eq!(with(&|card| card["name"] = json!("")), ["1.0,0.3 name is empty"]);
        // Clients take the members of 0.3.
        assert!(with(&|card| card["supportedInterfaces"] = json!([])).is_empty());
        let without_url = |card: &mut Value| {
            card.as_object_mut().unwrap().retain(|name, _| !["url", "protocolVersion"].contains(&name.as_str()));
            card["supportedInterfaces"] = json!([]);
        };
        assert_eq!(with(&without_url), ["1.0 supportedInterfaces has no items"]);
        assert_eq!(with(&|card| card["url"] = json!("/rpc")), ["0.3 url is not an absolute URL"]);
        let twice = |card: &mut Value| card["skills"] = json!([card["skills"][0], card["skills"][0]]);
        assert_eq!(with(&twice), ["1.0,0.3 skills[1].id `a` is the id of an earlier skill"]);
        let schemes = |card: &mut Value| {
            card["securitySchemes"] =
                json!({"key": {"type": "apiKey", "apiKeySecurityScheme": {"name": "x"}}, "none": {}});
            card["securityRequirements"] = json!([{"schemes": {"other": {"list": []}}}]);
        };
        assert_eq!(
            with(&schemes),
            [
                "1.0 securitySchemes.key.apiKeySecurityScheme.location is missing",
                "1.0 securitySchemes.none is not one security scheme",
                "1.0 securityRequirements[0] names the scheme `other`, which is not declared",
                "0.3 securitySchemes.none.type is missing",
            ]
        );
        assert_eq!(with(&|card| card["iconUrl"] = json!(7)).len(), 1);
        assert_eq!(with(&|card| card["protocolVersion"] = json!("")), ["0.3 protocolVersion is empty"]);
        assert_eq!(problems(&json!([])), ["1.0  is not a JSON object"]);
        assert_eq!(problems(&json!({})).len(), 8);
    }
}
