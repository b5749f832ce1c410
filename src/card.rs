//! The agent card: what a client reads before it calls. It says only what is so.

use http::Uri;

use crate::{
    agent::About,
    call::Version,
    pb::v1::{AgentCapabilities, AgentCard, AgentInterface},
};

/// Where the public card is (8.2).
pub const WELL_KNOWN: &str = "/.well-known/agent-card.json";

/// Where callers of 0.2 look for it.
pub const WELL_KNOWN_BEFORE: &str = "/.well-known/agent.json";

/// The path of JSON-RPC that the card names.
pub const JSON_RPC: &str = "/rpc";

/// The media type of an agent that says nothing else.
const TEXT: &str = "text/plain";

/// What a card is made of. Its URLs are those at which it was asked for, or those that the operator named.
#[derive(Clone, Debug)]
pub struct Card {
    about: About,
    url: Option<String>,
}

impl Card {
    /// The card of an agent.
    pub fn new(about: About) -> Self {
        Self { about, url: None }
    }

    /// With the URL at which clients reach the server, whatever it is bound to.
    #[must_use]
    pub fn url(self, url: impl Into<String>) -> Self {
        Self { url: Some(url.into().trim_end_matches('/').to_owned()), ..self }
    }

    /// The card of a server that is reached at this URL, unless it was named another.
    ///
    /// ```
    /// use a2a_service::{agent::About, card::Card};
    ///
    /// let card = Card::new(About::new("Geo")).at("http://127.0.0.1:8080");
    /// assert_eq!(card.supported_interfaces[0].url, "http://127.0.0.1:8080/rpc");
    /// ```
    pub fn at(&self, url: &str) -> AgentCard {
        let About {
            name,
            description,
            version,
            provider,
            documentation_url,
            icon_url,
            input_modes,
            output_modes,
            skills,
        } = self.about.clone();
        let modes = |it: Vec<String>| if it.is_empty() { vec![TEXT.to_owned()] } else { it };
        AgentCard {
            name: name.unwrap_or_else(|| "Agent".to_owned()),
            description: description.unwrap_or_else(|| "An A2A agent.".to_owned()),
            supported_interfaces: interfaces(self.url.as_deref().unwrap_or(url)),
            provider,
            version: version.unwrap_or_else(|| "0.0.0".to_owned()),
            documentation_url,
            capabilities: Some(AgentCapabilities {
                streaming: Some(true),
                push_notifications: Some(false),
                extensions: Vec::new(),
                extended_agent_card: Some(false),
            }),
            default_input_modes: modes(input_modes),
            default_output_modes: modes(output_modes),
            skills,
            icon_url,
            ..AgentCard::default()
        }
    }
}

/// Every way to reach a server, in the order in which clients should try them (8.3).
fn interfaces(url: &str) -> Vec<AgentInterface> {
    let interface = |url: String, binding: &str| AgentInterface {
        url,
        protocol_binding: binding.to_owned(),
        tenant: String::new(),
        protocol_version: Version::V1_0.as_str().to_owned(),
    };
    let json_rpc = interface(format!("{url}{JSON_RPC}"), "JSONRPC");
    let rest = interface(url.to_owned(), "HTTP+JSON");
    let grpc = grpc(url).map(|it| interface(it, "GRPC"));
    [json_rpc, rest].into_iter().chain(grpc).collect()
}

/// The target of gRPC, `host:port`. It has no path: below a prefix, gRPC can't be reached, and is not listed.
fn grpc(url: &str) -> Option<String> {
    let url: Uri = url.parse().ok()?;
    if !matches!(url.path(), "" | "/") {
        return None;
    }
    let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
    Some(format!("{}:{port}", url.host()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_urls_are_those_of_the_server() {
        let urls = |card: &Card, at: &str| {
            let interfaces = card.at(at).supported_interfaces.into_iter();
            interfaces.map(|it| format!("{} {}", it.protocol_binding, it.url)).collect::<Vec<_>>()
        };
        let card = Card::new(About::default());
        let local = ["JSONRPC http://[::1]:81/rpc", "HTTP+JSON http://[::1]:81", "GRPC [::1]:81"];
        assert_eq!(urls(&card, "http://[::1]:81"), local);
        let public = ["JSONRPC https://a.example/rpc", "HTTP+JSON https://a.example", "GRPC a.example:443"];
        assert_eq!(urls(&card.clone().url("https://a.example/"), "http://127.0.0.1:1"), public);
        let below = ["JSONRPC https://a.example/echo/rpc", "HTTP+JSON https://a.example/echo"];
        assert_eq!(urls(&card.url("https://a.example/echo"), ""), below);
    }

    #[test]
    fn required_members_are_there_and_nothing_is_promised() {
        let json = serde_json::to_value(Card::new(About::default()).at("http://h")).unwrap();
        for member in ["name", "description", "version", "defaultInputModes", "defaultOutputModes", "skills"] {
            assert!(json.get(member).is_some(), "{member}");
        }
        let capabilities =
            serde_json::json!({"streaming": true, "pushNotifications": false, "extendedAgentCard": false});
        assert_eq!(json["capabilities"], capabilities);
    }
}
