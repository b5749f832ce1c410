//! Agent cards of 0.3 (0.3, 5.5): conversion to and from 1.0 cards, and a merged document that clients of both can read.
//!
//! Members that 1.0 lacks are in [`V03CardFields`]. A 0.3 card does not have the tenant of an interface, the OAuth device
//! code flow and `pkceRequired`.

use std::collections::BTreeMap;

use prost::Message;
use serde::{Deserialize, Serialize, de::Error as _};
use serde_json::{Value, json};

pub use self::scheme::{Flow, Flows, Scheme};
pub(crate) use self::scheme::{all_flows, to_v1, to_v03};
/// URL of an agent and the transport that it supports (0.3, 5.5.5).
pub use crate::protocol::pb::v03::AgentInterface as Interface;
use crate::{
    base::surrogates::repaired,
    protocol::{
        call::Call,
        error::{Error, ErrorKind},
        json::{check_json, wkt::check_unique},
        pb::{
            v1::{
                AgentCapabilities, AgentCard, AgentCardSignature, AgentExtension, AgentInterface, AgentProvider,
                AgentSkill, GetExtendedAgentCardRequest, SecurityRequirement, StringList,
                a2a_service_server::A2aService,
            },
            v03,
        },
        version::Version,
    },
};

mod scheme;
#[cfg(test)]
mod tests;

/// `protocolVersion` of a 0.3 card. Only the card has a patch number.
pub(crate) const PROTOCOL_VERSION: &str = "0.3.0";

/// Transport of a 0.3 card without `preferredTransport` (0.3, 5.6.1).
pub(crate) const DEFAULT_TRANSPORT: &str = "JSONRPC";

/// Members that a served card has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum CardVersion {
    /// Members of 1.0 and of 0.3, for clients that ignore unknown members.
    #[default]
    #[serde(rename = "merged")]
    Merged,
    /// Members of 1.0 only, for clients that reject unknown members.
    #[serde(rename = "1.0")]
    V1_0,
    /// Members of 0.3 only.
    #[serde(rename = "0.3")]
    V0_3,
}

/// Members of a 0.3 card that 1.0 lacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct V03CardFields {
    /// Security schemes in their 0.3 form, by name. An OAuth scheme may have several flows; in 1.0 it has one.
    pub schemes: BTreeMap<String, Scheme>,
    /// The agent provides the history of task states.
    pub state_transition_history: bool,
}

/// Agent card of 0.3, with the members of its JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the members are documented in 0.3, 5.5")]
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

/// Optional features of the protocol that an agent supports (0.3, 5.5.2).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "the members are documented in 0.3, 5.5.2")]
pub struct Capabilities {
    pub streaming: bool,
    pub push_notifications: bool,
    pub state_transition_history: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<AgentExtension>,
}

/// Skill of an agent (0.3, 5.5.4).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Skill {
    /// Members that 1.0 has too, without security requirements.
    #[serde(flatten)]
    pub skill: AgentSkill,
    /// Security requirements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub security: Vec<Requirement>,
}

/// Names of security schemes that are required together, with the scopes of each.
pub type Requirement = BTreeMap<String, Vec<String>>;

/// Converts a 1.0 card to a 0.3 card, without members that 1.0 lacks.
///
/// ```
/// use a2a_service::{pb::v1::AgentCard, v03::card};
///
/// let card = card::v03_card(&AgentCard::new("Geo"));
/// assert_eq!((card.protocol_version.as_str(), card.name.as_str()), ("0.3.0", "Geo"));
/// ```
pub fn v03_card(card: &AgentCard) -> V03Card {
    v03_card_with(card, &V03CardFields::default())
}

/// Converts a 1.0 card to a 0.3 card, with the members in `fields`.
pub fn v03_card_with(card: &AgentCard, fields: &V03CardFields) -> V03Card {
    let capabilities = card.capabilities.clone().unwrap_or_default();
    let additional_interfaces: Vec<_> = v03_interfaces(card).map(Interface::from).collect();
    // JSON-RPC, which all 0.3 clients support, else the first.
    let preferred = additional_interfaces.iter().find(|interface| interface.transport == DEFAULT_TRANSPORT);
    let preferred = preferred.or(additional_interfaces.first()).cloned().unwrap_or_default();
    V03Card {
        protocol_version: PROTOCOL_VERSION.to_owned(),
        name: card.name.clone(),
        description: card.description.clone(),
        url: preferred.url,
        preferred_transport: preferred.transport,
        additional_interfaces,
        icon_url: card.icon_url.clone(),
        provider: complete_provider(card),
        version: card.version.clone(),
        documentation_url: card.documentation_url.clone(),
        capabilities: Capabilities {
            streaming: capabilities.streaming.unwrap_or_default(),
            push_notifications: capabilities.push_notifications.unwrap_or_default(),
            state_transition_history: fields.state_transition_history,
            extensions: capabilities.extensions,
        },
        security_schemes: to_v03(&card.security_schemes, &fields.schemes),
        security: card.security_requirements.iter().map(from_requirement).collect(),
        default_input_modes: card.default_input_modes.clone(),
        default_output_modes: card.default_output_modes.clone(),
        skills: card.skills.iter().map(Skill::from).collect(),
        supports_authenticated_extended_card: capabilities.extended_agent_card.unwrap_or_default(),
        signatures: card.signatures.clone(),
    }
}

/// Converts a 1.0 card to the card of 0.3 gRPC.
impl From<AgentCard> for v03::AgentCard {
    fn from(card: AgentCard) -> Self {
        let V03Card { protocol_version, url, preferred_transport, additional_interfaces, .. } = v03_card(&card);
        let capabilities = card.capabilities.as_ref();
        Self {
            protocol_version,
            url,
            preferred_transport,
            additional_interfaces,
            supports_authenticated_extended_card: capabilities
                .and_then(|capabilities| capabilities.extended_agent_card)
                .unwrap_or_default(),
            signatures: card.signatures.iter().map(reencode).collect(),
            icon_url: card.icon_url.clone().unwrap_or_default(),
            ..reencode(&AgentCard {
                provider: complete_provider(&card),
                supported_interfaces: Vec::new(),
                signatures: Vec::new(),
                ..card
            })
        }
    }
}

/// Converts the card of 0.3 gRPC to a 1.0 card.
impl From<v03::AgentCard> for AgentCard {
    fn from(card: v03::AgentCard) -> Self {
        // Interfaces and their version are as in the JSON card.
        let interfaces = Self::from(V03Card {
            protocol_version: card.protocol_version.clone(),
            url: card.url.clone(),
            preferred_transport: card.preferred_transport.clone(),
            additional_interfaces: card.additional_interfaces.clone(),
            ..V03Card::default()
        });
        let mut capabilities: AgentCapabilities = card.capabilities.as_ref().map(reencode).unwrap_or_default();
        capabilities.extended_agent_card = Some(card.supports_authenticated_extended_card);
        Self {
            supported_interfaces: interfaces.supported_interfaces,
            capabilities: Some(capabilities),
            signatures: card.signatures.iter().map(reencode).collect(),
            icon_url: Some(card.icon_url.clone()).filter(|url| !url.is_empty()),
            ..reencode(&v03::AgentCard { url: String::new(), supports_authenticated_extended_card: false, ..card })
        }
    }
}

/// Converts a message by encoding and decoding it. The messages in a card have equal field numbers in both versions, and so
/// have the common fields of the card up to 12 (a test compares the descriptors). Fields that only 1.0 has are dropped.
fn reencode<A: Message, B: Message + Default>(message: &A) -> B {
    B::decode(message.encode_to_vec().as_slice()).unwrap_or_default()
}

/// Serializes a card. A card without a 0.3 interface has the members of 1.0 only, whatever `version` is: a 0.3 client cannot
/// use it.
pub fn to_json(card: &AgentCard, fields: &V03CardFields, version: CardVersion) -> serde_json::Result<Vec<u8>> {
    let version = if v03_interfaces(card).next().is_none() { CardVersion::V1_0 } else { version };
    match version {
        CardVersion::V1_0 => serde_json::to_vec(card),
        CardVersion::V0_3 => serde_json::to_vec(&v03_card_with(card, fields)),
        CardVersion::Merged => {
            let mut merged = serde_json::to_value(card)?;
            merge(&mut merged, serde_json::to_value(v03_card_with(card, fields))?);
            serde_json::to_vec(&merged)
        }
    }
}

/// Deserializes a card of 1.0 or 0.3.
///
/// A card with `supportedInterfaces` is read as 1.0 and its 0.3 members are ignored. An interface without a version has that of the
/// card, else 1.0. Every member of a 0.3 card may be missing, since cards of 0.2 have fewer. Their `authentication` becomes security
/// schemes.
pub fn from_json(json: &[u8]) -> serde_json::Result<AgentCard> {
    check_json(json).map_err(serde_json::Error::custom)?;
    let repaired = repaired(json);
    let json = repaired.as_deref().unwrap_or(json);
    check_unique(json)?;
    serde_json::from_slice(json).and_then(from_any)
}

/// Reads a card of 1.0 or 0.3, as [`from_json`].
pub(crate) fn from_any(mut card: Value) -> serde_json::Result<AgentCard> {
    let has_url = card["url"].as_str().is_some_and(|url| !url.is_empty());
    let interfaces = card.get("supportedInterfaces").or_else(|| card.get("supported_interfaces"));
    // Some cards of 0.3 have an empty list.
    if interfaces.and_then(Value::as_array).is_some_and(|interfaces| !interfaces.is_empty() || !has_url) {
        read_versions(&mut card);
        let version = card.get("protocolVersion").or_else(|| card.get("protocol_version")).and_then(Value::as_str);
        let version = version.filter(|version| !version.is_empty()).unwrap_or(Version::V1_0.as_str()).to_owned();
        scheme::reduce_flows(&mut card);
        let mut card: AgentCard = serde_json::from_value(card)?;
        for interface in &mut card.supported_interfaces {
            if interface.protocol_version.is_empty() {
                interface.protocol_version.clone_from(&version);
            }
        }
        return Ok(card);
    }
    read_versions(&mut card);
    read_authentication(&mut card);
    from_value(card).map(AgentCard::from)
}

/// Converts the versions of a card and of its interfaces in other forms to that of the protocol: `1.0` from `v1.0`, or from a number.
fn read_versions(card: &mut Value) {
    let Some(members) = card.as_object_mut() else { return };
    for (name, value) in members {
        match (name.as_str(), &mut *value) {
            ("protocolVersion" | "protocol_version", Value::Number(version)) => {
                let text = version.to_string();
                *value = if text.contains('.') { text } else { format!("{text}.0") }.into();
            }
            ("protocolVersion" | "protocol_version", Value::String(version)) => {
                *version = version.trim_start_matches(['v', 'V']).to_owned();
            }
            ("supportedInterfaces" | "supported_interfaces", Value::Array(interfaces)) => {
                interfaces.iter_mut().for_each(read_versions);
            }
            _ => {}
        }
    }
}

/// Converts the `authentication` of a card before 0.2.2 to HTTP schemes, one of which is required. Its `credentials` are not
/// read.
fn read_authentication(card: &mut Value) {
    let names = card["authentication"]["schemes"].as_array();
    let names: Vec<String> = names.into_iter().flatten().filter_map(Value::as_str).map(str::to_lowercase).collect();
    let Some(members) = card.as_object_mut().filter(|members| !members.contains_key("securitySchemes")) else { return };
    if !names.is_empty() {
        let schemes = names.iter().map(|name| (name.clone(), json!({"type": "http", "scheme": name})));
        members.insert("securitySchemes".to_owned(), schemes.collect());
        members.insert("security".to_owned(), names.iter().map(|name| json!({name: []})).collect());
    }
}

/// Reads the members of 0.3 of a card, each of which may be missing.
pub(crate) fn from_value(mut card: Value) -> serde_json::Result<V03Card> {
    drop_nulls(&mut card);
    serde_json::from_value(card)
}

/// Adds the members of `from` to `into`, recursively. Arrays in both are merged item by item.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (name, value) in from {
                match into.get_mut(&name) {
                    Some(existing) => merge(existing, value),
                    None => _ = into.insert(name, value),
                }
            }
        }
        (Value::Array(into), Value::Array(from)) => {
            into.iter_mut().zip(from).for_each(|(into, from)| merge(into, from));
        }
        _ => {}
    }
}

/// Removes members that are null, except in the free-form members of extensions (`params`) and signatures (`header`).
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, value| !value.is_null());
            members
                .iter_mut()
                .filter(|(name, _)| !matches!(name.as_str(), "params" | "header"))
                .for_each(|(_, value)| drop_nulls(value));
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Returns the interfaces for 0.3 or earlier. An interface without a version precedes the introduction of versions.
fn v03_interfaces(card: &AgentCard) -> impl Iterator<Item = &AgentInterface> {
    card.supported_interfaces
        .iter()
        .filter(|interface| interface.protocol_version.is_empty() || interface.protocol_version.starts_with("0."))
}

/// Returns the provider if it has both members, which both versions require.
fn complete_provider(card: &AgentCard) -> Option<AgentProvider> {
    card.provider.clone().filter(|provider| !provider.organization.is_empty() && !provider.url.is_empty())
}

conversions! {
    Interface:
    /// The URL of a gRPC interface is `host:port` in both versions: clients pass it to gRPC unchanged.
    interface: &AgentInterface => Self { url: interface.url.clone(), transport: interface.protocol_binding.clone() };
}

impl From<&AgentSkill> for Skill {
    fn from(skill: &AgentSkill) -> Self {
        let security = skill.security_requirements.iter().map(from_requirement).collect();
        Self { skill: AgentSkill { security_requirements: Vec::new(), ..skill.clone() }, security }
    }
}

fn from_requirement(requirement: &SecurityRequirement) -> Requirement {
    requirement.schemes.iter().map(|(name, scopes)| (name.clone(), scopes.list.clone())).collect()
}

/// Converts a security requirement to 1.0.
pub(crate) fn to_requirement(requirement: Requirement) -> SecurityRequirement {
    SecurityRequirement { schemes: requirement.into_iter().map(|(name, list)| (name, StringList { list })).collect() }
}

impl From<Skill> for AgentSkill {
    fn from(skill: Skill) -> Self {
        let Skill { skill, security } = skill;
        Self { security_requirements: security.into_iter().map(to_requirement).collect(), ..skill }
    }
}

impl From<V03Card> for AgentCard {
    fn from(card: V03Card) -> Self {
        // The interfaces have the version of the card, without its patch number. A card without a version is taken as 0.3.
        let mut numbers = card.protocol_version.split('.');
        let version = match (numbers.next(), numbers.next()) {
            (Some(major), Some(minor)) => format!("{major}.{minor}"),
            _ => Version::V0_3.as_str().to_owned(),
        };
        let transport =
            if card.preferred_transport.is_empty() { DEFAULT_TRANSPORT.to_owned() } else { card.preferred_transport };
        let mut interfaces = vec![Interface { url: card.url, transport }];
        interfaces.retain(|interface| !interface.url.is_empty());
        for interface in card.additional_interfaces {
            if !interfaces.contains(&interface) {
                interfaces.push(interface);
            }
        }
        let to_interface = |interface: Interface| AgentInterface {
            url: interface.url,
            protocol_binding: interface.transport,
            tenant: String::new(),
            protocol_version: version.clone(),
        };
        let Capabilities { streaming, push_notifications, extensions, .. } = card.capabilities;
        let mut converted = Self {
            name: card.name,
            description: card.description,
            supported_interfaces: interfaces.into_iter().map(to_interface).collect(),
            provider: card.provider,
            version: card.version,
            documentation_url: card.documentation_url,
            capabilities: Some(AgentCapabilities {
                streaming: Some(streaming),
                push_notifications: Some(push_notifications),
                extensions,
                extended_agent_card: Some(card.supports_authenticated_extended_card),
            }),
            security_schemes: to_v1(card.security_schemes),
            security_requirements: card.security.into_iter().map(to_requirement).collect(),
            default_input_modes: card.default_input_modes,
            default_output_modes: card.default_output_modes,
            skills: card.skills.into_iter().map(AgentSkill::from).collect(),
            signatures: card.signatures,
            icon_url: card.icon_url,
        };
        converted.provider = complete_provider(&converted);
        converted
    }
}

// Authenticated extended card of 0.2: a GET request that is answered with HTTP status codes (0.2, 7.10).

/// Returns the extended agent card as 0.3 JSON.
///
/// # Errors
/// `MethodNotFound` if the agent has no extended card, otherwise the error of the service.
pub(crate) async fn extended(service: &dyn A2aService, call: Call) -> Result<Vec<u8>, Error> {
    use ErrorKind::{ExtendedAgentCardNotConfigured, ExtendedCardNotSupported, UnsupportedOperation};
    let call = Call { version: Version::V0_3, ..call };
    let error: Error = match service.get_extended_agent_card(call.request(GetExtendedAgentCardRequest::default())).await
    {
        Ok(card) => return serde_json::to_vec(&v03_card(card.get_ref())).map_err(Error::internal),
        Err(status) => status.into(),
    };
    // Versions before 0.3 have no error code for a missing card.
    let is_missing =
        matches!(error.kind(), ExtendedCardNotSupported | ExtendedAgentCardNotConfigured | UnsupportedOperation);
    Err(if is_missing {
        ErrorKind::MethodNotFound.because("this agent has no authenticated extended card")
    } else {
        error
    })
}
