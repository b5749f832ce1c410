//! A card as the protobuf of 0.3 has it.

use prost::Message;

use super::{Interface, interfaces, main, provider};
use crate::pb::{v1, v03};

/// A card as gRPC has it at 0.3.
pub fn proto(card: &v1::AgentCard) -> v03::AgentCard {
    let additional_interfaces: Vec<Interface> = interfaces(card).map(Interface::from).collect();
    let main = main(&additional_interfaces).cloned().unwrap_or_default();
    let interface = |it: Interface| v03::AgentInterface { url: it.url, transport: it.transport };
    let capabilities = card.capabilities.as_ref();
    v03::AgentCard {
        protocol_version: super::CLASSIC.to_owned(),
        name: card.name.clone(),
        description: card.description.clone(),
        url: main.url,
        preferred_transport: main.transport,
        additional_interfaces: additional_interfaces.into_iter().map(interface).collect(),
        provider: provider(card).as_ref().map(same),
        version: card.version.clone(),
        documentation_url: card.documentation_url.clone().unwrap_or_default(),
        capabilities: capabilities.map(same),
        security_schemes: card.security_schemes.iter().map(|(name, it)| (name.clone(), same(it))).collect(),
        security: card.security_requirements.iter().map(same).collect(),
        default_input_modes: card.default_input_modes.clone(),
        default_output_modes: card.default_output_modes.clone(),
        skills: card.skills.iter().map(same).collect(),
        supports_authenticated_extended_card: capabilities.and_then(|it| it.extended_agent_card).unwrap_or_default(),
        signatures: card.signatures.iter().map(same).collect(),
        icon_url: card.icon_url.clone().unwrap_or_default(),
    }
}

impl From<v1::AgentCard> for v03::AgentCard {
    fn from(card: v1::AgentCard) -> Self {
        proto(&card)
    }
}

/// What a card is made of has the same numbers in both generations, under other names where it has any; a test reads
/// the descriptors for that. What 1.0 has more of is left out.
fn same<A: Message, B: Message + Default>(it: &A) -> B {
    B::decode(it.encode_to_vec().as_slice()).unwrap_or_default()
}
