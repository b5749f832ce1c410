//! Conversion of a 1.0 card to the `AgentCard` message of `a2a.v1`.

use prost::Message;

use super::{Interface, PROTOCOL_VERSION, complete_provider, preferred_interface, v03_interfaces};
use crate::pb::{v1, v03};

/// Converts a 1.0 card to the protobuf card of 0.3 gRPC.
pub fn proto(card: &v1::AgentCard) -> v03::AgentCard {
    let additional_interfaces: Vec<Interface> = v03_interfaces(card).map(Interface::from).collect();
    let preferred = preferred_interface(&additional_interfaces).cloned().unwrap_or_default();
    let to_proto = |interface: Interface| v03::AgentInterface { url: interface.url, transport: interface.transport };
    let capabilities = card.capabilities.as_ref();
    v03::AgentCard {
        protocol_version: PROTOCOL_VERSION.to_owned(),
        name: card.name.clone(),
        description: card.description.clone(),
        url: preferred.url,
        preferred_transport: preferred.transport,
        additional_interfaces: additional_interfaces.into_iter().map(to_proto).collect(),
        provider: complete_provider(card).as_ref().map(reencode),
        version: card.version.clone(),
        documentation_url: card.documentation_url.clone().unwrap_or_default(),
        capabilities: capabilities.map(reencode),
        security_schemes: card.security_schemes.iter().map(|(name, scheme)| (name.clone(), reencode(scheme))).collect(),
        security: card.security_requirements.iter().map(reencode).collect(),
        default_input_modes: card.default_input_modes.clone(),
        default_output_modes: card.default_output_modes.clone(),
        skills: card.skills.iter().map(reencode).collect(),
        supports_authenticated_extended_card: capabilities.and_then(|it| it.extended_agent_card).unwrap_or_default(),
        signatures: card.signatures.iter().map(reencode).collect(),
        icon_url: card.icon_url.clone().unwrap_or_default(),
    }
}

impl From<v1::AgentCard> for v03::AgentCard {
    fn from(card: v1::AgentCard) -> Self {
        proto(&card)
    }
}

/// Converts a message by encoding and decoding it. The messages in a card have equal field numbers in both versions (a test
/// compares the descriptors). Fields that only 1.0 has are dropped.
fn reencode<A: Message, B: Message + Default>(message: &A) -> B {
    B::decode(message.encode_to_vec().as_slice()).unwrap_or_default()
}
