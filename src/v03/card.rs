//! The agent card in both generations: 1.0's, 0.3's (0.3, 5.5), and one document that readers of either understand.
//!
//! What 0.3 says and 1.0 has no place for is [`V03CardFields`] beside the card. What is lost to 0.3 is the tenant of an interface,
//! and of OAuth the flow of devices and `pkceRequired`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::{extended::extended, scheme::to_v1};
pub use self::{
    proto::proto,
    scheme::{Flow, Flows, Scheme},
};
use crate::{
    call::Version,
    pb::v1::{
        AgentCapabilities, AgentCard, AgentCardSignature, AgentExtension, AgentInterface, AgentProvider, AgentSkill,
        SecurityRequirement, StringList,
    },
};

mod extended;
mod proto;
mod scheme;
#[cfg(test)]
mod tests;

/// The `protocolVersion` of a card of 0.3, which has a patch there and nowhere else.
const CLASSIC: &str = "0.3.0";

/// What a card of 0.3 calls the binding that it has in mind where it says nothing (0.3, 5.6.1).
const USUAL: &str = "JSONRPC";

/// Which document a reader gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum CardVersion {
    /// 1.0's members, and beside them those of 0.3: for readers that do not mind members of others.
    #[default]
    #[serde(rename = "merged")]
    Merged,
    /// 1.0's members alone: some of its readers refuse any other.
    #[serde(rename = "1.0")]
    V1_0,
    /// 0.3's members alone.
    #[serde(rename = "0.3")]
    V0_3,
}

/// What a card of 0.3 says and 1.0 has no place for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct V03CardFields {
    /// Schemes as they were said, by name: one of OAuth may have several flows.
    pub schemes: BTreeMap<String, Scheme>,
    /// The agent tells the history of a task's states.
    pub state_transition_history: bool,
}

/// A card of 0.3, member by member as its JSON has them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the members are 0.3's (5.5), whose text says what they are")]
pub struct V03Card {
    pub protocol_version: String,
    pub name: String,
    pub description: String,
    pub url: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub preferred_transport: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icon_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<AgentProvider>,
    pub version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documentation_url: Option<String>,
    pub capabilities: Capabilities,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub security_schemes: BTreeMap<String, Scheme>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security: Vec<Requirement>,
    pub default_input_modes: Vec<String>,
    pub default_output_modes: Vec<String>,
    pub skills: Vec<Skill>,
    pub supports_authenticated_extended_card: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signatures: Vec<AgentCardSignature>,
}

/// A way to reach an agent (0.3, 5.5.5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "as of the card")]
pub struct Interface {
    pub url: String,
    pub transport: String,
}

/// What an agent offers of what the protocol leaves to it (0.3, 5.5.2).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "as of the card")]
pub struct Capabilities {
    pub streaming: bool,
    pub push_notifications: bool,
    pub state_transition_history: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<AgentExtension>,
}

/// What an agent can do (0.3, 5.5.4).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "as of the card")]
pub struct Skill {
    pub id: String,
    pub name: String,
    pub description: String,
    pub tags: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input_modes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output_modes: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security: Vec<Requirement>,
}

/// Schemes that are to be used together, and the scopes of each.
pub type Requirement = BTreeMap<String, Vec<String>>;

/// A card as 0.3 has it, with what 1.0 says of it and nothing else.
///
/// ```
/// use a2a_service::{agent::About, card::Card, v03::card};
///
/// let card = card::classic(&Card::new(About::new("Geo")).at("http://127.0.0.1:8080"));
/// assert_eq!((card.protocol_version.as_str(), card.name.as_str()), ("0.3.0", "Geo"));
/// ```
pub fn v03_card(card: &AgentCard) -> V03Card {
    v03_card_with(card, &V03CardFields::default())
}

/// The same, with what is kept beside it.
pub fn v03_card_with(card: &AgentCard, kept: &V03CardFields) -> V03Card {
    let offered = card.capabilities.clone().unwrap_or_default();
    let additional_interfaces: Vec<_> = interfaces(card).map(Interface::from).collect();
    let main = main(&additional_interfaces).cloned().unwrap_or_default();
    V03Card {
        protocol_version: CLASSIC.to_owned(),
        name: card.name.clone(),
        description: card.description.clone(),
        url: main.url,
        preferred_transport: main.transport,
        additional_interfaces,
        icon_url: card.icon_url.clone(),
        provider: provider(card),
        version: card.version.clone(),
        documentation_url: card.documentation_url.clone(),
        capabilities: Capabilities {
            streaming: offered.streaming.unwrap_or_default(),
            push_notifications: offered.push_notifications.unwrap_or_default(),
            state_transition_history: kept.state_transition_history,
            extensions: offered.extensions,
        },
        security_schemes: scheme::v03_card(&card.security_schemes, &kept.schemes),
        security: card.security_requirements.iter().map(requirement).collect(),
        default_input_modes: card.default_input_modes.clone(),
        default_output_modes: card.default_output_modes.clone(),
        skills: card.skills.iter().map(Skill::from).collect(),
        supports_authenticated_extended_card: offered.extended_agent_card.unwrap_or_default(),
        signatures: card.signatures.clone(),
    }
}

/// A card in JSON. One that names no interface of 0.3 is nothing for a client of 0.3: it has 1.0's shape alone.
pub fn to_json(card: &AgentCard, kept: &V03CardFields, shape: CardVersion) -> serde_json::Result<Vec<u8>> {
    let shape = if interfaces(card).next().is_none() { CardVersion::V1_0 } else { shape };
    match shape {
        CardVersion::V1_0 => serde_json::to_vec(card),
        CardVersion::V0_3 => serde_json::to_vec(&v03_card_with(card, kept)),
        CardVersion::Merged => {
            let mut whole = serde_json::to_value(card)?;
            merge(&mut whole, serde_json::to_value(v03_card_with(card, kept))?);
            serde_json::to_vec(&whole)
        }
    }
}

/// Reads a card of either generation. Where it has the interfaces of 1.0, the rest is 1.0's too, and members of 0.3
/// beside it say nothing new. Of a card of 0.3 every member may be missing: those of 0.2 have fewer.
pub fn from_json(json: &[u8]) -> serde_json::Result<AgentCard> {
    let mut card: Value = serde_json::from_slice(json)?;
    if card.get("supportedInterfaces").or_else(|| card.get("supported_interfaces")).is_some_and(Value::is_array) {
        return serde_json::from_value(card);
    }
    drop_nulls(&mut card);
    serde_json::from_value::<V03Card>(card).map(AgentCard::from)
}

/// Adds the members of one document to another. Lists in both are of the same things.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                match into.get_mut(&name) {
                    Some(it) => merge(it, value),
                    None => _ = into.insert(name, value),
                }
            }
        }
        (Value::Array(into), Value::Array(from)) => into.iter_mut().zip(from).for_each(|it| merge(it.0, it.1)),
        _ => {}
    }
}

/// A member that is null is one that is not there; except in what only an extension or a signature can read.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, it| !it.is_null());
            members
                .iter_mut()
                .filter(|it| !matches!(it.0.as_str(), "params" | "header"))
                .for_each(|it| drop_nulls(it.1));
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The interfaces that speak 0.3, or what was before it. One that does not say its version is from before there were.
fn interfaces(card: &AgentCard) -> impl Iterator<Item = &AgentInterface> {
    let before = |it: &&AgentInterface| it.protocol_version.is_empty() || it.protocol_version.starts_with("0.");
    card.supported_interfaces.iter().filter(before)
}

/// Where 0.3 is to be called first: JSON-RPC, which all its clients speak.
fn main(interfaces: &[Interface]) -> Option<&Interface> {
    interfaces.iter().find(|it| it.transport == USUAL).or_else(|| interfaces.first())
}

/// Both of its members are required, in either generation.
fn provider(card: &AgentCard) -> Option<AgentProvider> {
    card.provider.clone().filter(|it| !it.organization.is_empty() && !it.url.is_empty())
}

/// gRPC is `host:port` in both generations: it is what their clients give to gRPC as it is.
impl From<&AgentInterface> for Interface {
    fn from(it: &AgentInterface) -> Self {
        Self { url: it.url.clone(), transport: it.protocol_binding.clone() }
    }
}

impl From<&AgentSkill> for Skill {
    fn from(it: &AgentSkill) -> Self {
        let AgentSkill { id, name, description, tags, examples, input_modes, output_modes, security_requirements } =
            it.clone();
        let security = security_requirements.iter().map(requirement).collect();
        Self { id, name, description, tags, examples, input_modes, output_modes, security }
    }
}

fn requirement(it: &SecurityRequirement) -> Requirement {
    it.schemes.iter().map(|(name, scopes)| (name.clone(), scopes.list.clone())).collect()
}

/// The same, the other way round.
pub(crate) fn to_requirement(it: Requirement) -> SecurityRequirement {
    SecurityRequirement { schemes: it.into_iter().map(|(name, list)| (name, StringList { list })).collect() }
}

impl From<Skill> for AgentSkill {
    fn from(it: Skill) -> Self {
        let Skill { id, name, description, tags, examples, input_modes, output_modes, security } = it;
        let security_requirements = security.into_iter().map(to_requirement).collect();
        Self { id, name, description, tags, examples, input_modes, output_modes, security_requirements }
    }
}

impl From<V03Card> for AgentCard {
    fn from(it: V03Card) -> Self {
        // An interface has the version of its card, and 0.3 where that says none; of it, 1.0 has major and minor.
        let mut numbers = it.protocol_version.split('.');
        let version = match (numbers.next(), numbers.next()) {
            (Some(major), Some(minor)) => format!("{major}.{minor}"),
            _ => Version::V0_3.as_str().to_owned(),
        };
        let usual = |it: String| if it.is_empty() { USUAL.to_owned() } else { it };
        let main = Interface { url: it.url, transport: usual(it.preferred_transport) };
        let mut all = vec![main];
        all.retain(|it| !it.url.is_empty());
        for it in it.additional_interfaces {
            if !all.contains(&it) {
                all.push(it);
            }
        }
        let interface = |it: Interface| AgentInterface {
            url: it.url,
            protocol_binding: it.transport,
            tenant: String::new(),
            protocol_version: version.clone(),
        };
        let Capabilities { streaming, push_notifications, extensions, .. } = it.capabilities;
        let mut card = Self {
            name: it.name,
            description: it.description,
            supported_interfaces: all.into_iter().map(interface).collect(),
            provider: it.provider,
            version: it.version,
            documentation_url: it.documentation_url,
            capabilities: Some(AgentCapabilities {
                streaming: Some(streaming),
                push_notifications: Some(push_notifications),
                extensions,
                extended_agent_card: Some(it.supports_authenticated_extended_card),
            }),
            security_schemes: to_v1(it.security_schemes),
            security_requirements: it.security.into_iter().map(to_requirement).collect(),
            default_input_modes: it.default_input_modes,
            default_output_modes: it.default_output_modes,
            skills: it.skills.into_iter().map(AgentSkill::from).collect(),
            signatures: it.signatures,
            icon_url: it.icon_url,
        };
        card.provider = provider(&card);
        card
    }
}
