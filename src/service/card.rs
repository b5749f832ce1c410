//! Agent card (8): the document in which clients find the agent's identity, capabilities and interfaces.
//!
//! The agent declares its own fields ([`Agent::card`](crate::engine::agent::Agent::card)), and the configuration may override them
//! ([`CardConfig`]). The server adds what it serves: interfaces with their URLs, protocol versions and capabilities.

pub(crate) mod config;
pub(crate) mod extended;
pub(crate) mod review;
pub(crate) mod version;

#[cfg(feature = "signing")]
pub use crate::protocol::card_signature as signature;
use std::net::SocketAddr;

use bytes::Bytes;
use http::Uri;

pub(crate) use self::extended::ExtendedCardSettings;
pub use self::{
    config::{
        CapabilitiesConfig, CardConfig, ExtensionConfig, InterfaceConfig, ProviderConfig, SchemesConfig, SkillConfig,
    },
    extended::{ExtendedCard, ExtendedCardAccess, ScopedSkills},
};
pub(crate) use crate::base::forwarded::{
    Address, Authority, FORWARDED_HOST, FORWARDED_PORT, FORWARDED_PREFIX, FORWARDED_PROTO, Forwarded, node,
};
pub use crate::base::{forwarded::RequestOrigin, network::Network};
use serde::Deserialize;

#[cfg(feature = "signing")]
use crate::base::jws::SigningKey;
use crate::{
    protocol::{
        pb::v1::{AgentCapabilities, AgentCard, AgentExtension, AgentInterface},
        v03::{card as v03, card::V03CardFields},
        version::Version,
    },
    service::Capabilities,
};

/// Path of the public agent card (8.2).
pub const WELL_KNOWN: &str = "/.well-known/agent-card.json";

/// Path of the agent card in protocol 0.2.
pub const WELL_KNOWN_BEFORE: &str = "/.well-known/agent.json";

/// Alternative path of the agent card, used by some clients of 0.2.
pub const AGENT_CARD: &str = "/agent-card";

/// Default path of JSON-RPC on the card.
pub const JSON_RPC: &str = "/rpc";

/// Default input and output media type of an agent.
const DEFAULT_MODE: &str = "text/plain";

/// Agent card of a server, without the URLs that are derived from each request for the card.
#[derive(Clone, Debug, Default)]
#[must_use]
pub(crate) struct CardTemplate {
    /// Fields that the agent, its configuration and the authenticator declare. Its interfaces are listed after those of the
    /// server.
    declared: AgentCard,
    push: bool,
    has_extended: bool,
    grpc: Option<String>,
    bindings: Vec<ProtocolBinding>,
    /// Name of the agent in a server with several: the path of its other bindings, and the tenant of gRPC.
    mounted: Option<String>,
    protocols: Vec<Version>,
    v03_fields: V03CardFields,
    address: Address,
    #[cfg(feature = "signing")]
    signer: Option<crate::protocol::card_signature::CardSigner>,
}

setters! {
    CardTemplate:
    /// Sets the path below the URL of the server at which the agent is served too.
    pub(crate) also_at => address.agent: &str;

    /// Declares whether the server accepts push notification configurations. False by default.
    pub(crate) push => push: bool;

    /// Declares whether the server has an extended card. False by default.
    pub(crate) extended => has_extended: bool;

    /// Sets the listen address, which is used for requests without a host.
    pub(crate) bound => address.bound: SocketAddr;
}

impl CardTemplate {
    /// Creates the template for the card of an agent, for protocol 1.0.
    pub(crate) fn new(declared: AgentCard) -> Self {
        Self { declared, bindings: ProtocolBinding::ALL.to_vec(), protocols: vec![Version::V1_0], ..Self::default() }
    }

    /// Fields that the agent, its configuration and the authenticator declare.
    pub(crate) fn declared(&self) -> &AgentCard {
        &self.declared
    }

    /// Extensions that the card declares.
    pub(crate) fn extensions_mut(&mut self) -> &mut Vec<AgentExtension> {
        &mut self.declared.capabilities.get_or_insert_default().extensions
    }

    /// Changes the declared fields.
    pub(crate) fn declare(mut self, change: impl FnOnce(AgentCard) -> AgentCard) -> Self {
        let schemes = self.declared.security_schemes.clone();
        self.declared = change(self.declared);
        if schemes != self.declared.security_schemes {
            self.v03_fields.schemes.clear();
        }
        self
    }

    /// Replaces the fields of the agent's card that the template has by those of a newer one. Fields that the configuration
    /// overrides remain.
    pub(crate) fn replace_agent_card(mut self, old: &AgentCard, new: &AgentCard) -> Self {
        fn replace<T: PartialEq + Clone>(field: &mut T, old: &T, new: &T) {
            if field == old {
                field.clone_from(new);
            }
        }
        let card = &mut self.declared;
        replace(&mut card.name, &old.name, &new.name);
        replace(&mut card.description, &old.description, &new.description);
        replace(&mut card.version, &old.version, &new.version);
        replace(&mut card.provider, &old.provider, &new.provider);
        replace(&mut card.icon_url, &old.icon_url, &new.icon_url);
        replace(&mut card.documentation_url, &old.documentation_url, &new.documentation_url);
        replace(&mut card.default_input_modes, &old.default_input_modes, &new.default_input_modes);
        replace(&mut card.default_output_modes, &old.default_output_modes, &new.default_output_modes);
        replace(&mut card.skills, &old.skills, &new.skills);
        self
    }

    /// Sets the base URL at which clients reach the server. By default, it is derived from the request for the card.
    pub(crate) fn url(mut self, url: impl Into<String>) -> Self {
        self.address.public = Some(url.into().trim_end_matches('/').to_owned());
        self
    }

    /// Sets the name of the agent in a server with several. Over gRPC, it is the tenant.
    pub(crate) fn mounted(mut self, name: &str) -> Self {
        self.mounted = Some(name.to_owned());
        self
    }

    /// Returns true for an agent below a path of a server with several.
    pub(crate) fn is_mounted(&self) -> bool {
        self.mounted.is_some()
    }

    /// Sets the key that signs the card. It is not signed by default.
    #[cfg(feature = "signing")]
    pub(crate) fn sign(mut self, key: SigningKey) -> Self {
        self.signer = Some(crate::protocol::card_signature::CardSigner::new(key));
        self
    }

    /// Key that signs the card.
    #[cfg(feature = "signing")]
    pub(crate) fn signing_key(&self) -> Option<&SigningKey> {
        self.signer.as_ref().map(crate::protocol::card_signature::CardSigner::key)
    }

    /// Declares that the server is served over TLS only.
    pub(crate) fn over_tls(mut self) -> Self {
        self.address.is_tls = true;
        self
    }

    /// Sets the proxies whose `X-Forwarded-Proto`, `-Host`, `-Port` and `-Prefix` or `Forwarded` headers are trusted for the
    /// URL that the client requested. These headers are ignored from other peers.
    pub(crate) fn trusted_proxies(mut self, proxies: impl IntoIterator<Item = Network>) -> Self {
        self.address.trusted = proxies.into_iter().collect();
        self
    }

    /// Sets the protocol versions that are served, each over every binding.
    pub(crate) fn protocols(mut self, protocols: impl IntoIterator<Item = Version>) -> Self {
        self.protocols = protocols.into_iter().collect();
        // Newest first: some clients use the first interface of their binding.
        self.protocols.sort_by(|a, b| b.cmp(a));
        self
    }

    /// Configuration of the server's public address.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Capabilities that the card declares. The service rejects calls that need others.
    pub(crate) fn offers(&self) -> Capabilities {
        let declared = self.declared.capabilities.as_ref();
        Capabilities { streaming: declared.and_then(|declared| declared.streaming).unwrap_or(true), push: self.push }
    }

    /// Returns the card for a request, with the URLs at which its client reaches the server.
    pub(crate) fn of(&self, request: &RequestOrigin<'_>) -> AgentCard {
        self.build(self.address.of(request).as_deref())
    }

    /// Returns the card in the form of 0.3, without URLs. It has the name and the security schemes in the form of OpenAPI.
    #[cfg(feature = "openapi")]
    pub(crate) fn v03(&self) -> v03::V03Card {
        v03::v03_card_with(&self.build(None), &self.v03_fields)
    }

    /// Returns the card of a server at a base URL. Without one, at the configured URL or else at the listen address.
    fn for_base(&self, url: Option<&str>) -> AgentCard {
        let own = || {
            self.address
                .public
                .clone()
                .or_else(|| self.address.bound.map(|addr| format!("http://{}", Authority::from(addr))))
        };
        self.build(url.map(str::to_owned).or_else(own).as_deref())
    }

    /// Signs a card, if there is a key, in the form of a protocol version.
    #[cfg_attr(not(feature = "signing"), expect(clippy::unused_self, unused_variables, reason = "there is no key"))]
    fn signed_message(&self, card: AgentCard, version: Version) -> AgentCard {
        #[cfg(feature = "signing")]
        if let Some(signer) = &self.signer {
            return signer.sign_message(card, version);
        }
        card
    }

    /// Returns the card for a request in JSON, in the form for its protocol version, and signed if there is a key.
    pub(crate) fn json(&self, request: &RequestOrigin<'_>) -> Bytes {
        let format = version::card_version(request, &self.protocols);
        // Serialization can't fail: all keys are strings, and the output is in memory.
        let card = v03::to_json(&self.of(request), &self.v03_fields, format).unwrap_or_default();
        #[cfg(feature = "signing")]
        if let Some(signer) = &self.signer {
            return signer.sign(&card).unwrap_or_else(|error| {
                tracing::error!(error.cause = %error, "agent card not signed");
                card.into()
            });
        }
        card.into()
    }

    /// Returns true if the card declares that callers have to authenticate.
    pub(crate) fn declares_security(&self) -> bool {
        !self.declared.security_schemes.is_empty() || !self.declared.security_requirements.is_empty()
    }

    /// Returns warnings about the card for the operator, which name the configuration keys.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.grpc.as_ref().is_some_and(|address| !is_grpc_address(address)) {
            let why = "not a gRPC address, and left off the agent card; write agent.example:443";
            warnings.push(format!("card.grpc_url: {why}"));
        }
        let lists_grpc = self.bindings.contains(&ProtocolBinding::Grpc);
        let needs_address = self.mounted.is_none() && lists_grpc && self.grpc.is_none();
        if needs_address && self.address.public.as_deref().is_some_and(|url| grpc_authority(url).is_none()) {
            let why = "public_url: gRPC does not support a path, and is left off the agent card; set card.grpc_url";
            warnings.push(why.to_owned());
        }
        warnings
    }

    /// Returns the declared fields, with the defaults of those that a card must have.
    pub(crate) fn description(&self) -> AgentCard {
        let mut card = self.declared.clone();
        let set_default = |text: &mut String, default: &str| {
            if text.is_empty() {
                default.clone_into(text);
            }
        };
        set_default(&mut card.name, "Agent");
        set_default(&mut card.description, "An A2A agent.");
        set_default(&mut card.version, "0.0.0");
        for modes in [&mut card.default_input_modes, &mut card.default_output_modes] {
            if modes.is_empty() {
                modes.push(DEFAULT_MODE.to_owned());
            }
        }
        card
    }

    /// Builds the card. Without a URL, it lists only the declared interfaces.
    fn build(&self, url: Option<&str>) -> AgentCard {
        let mut card = self.description();
        let Capabilities { streaming, push } = self.offers();
        card.capabilities = Some(AgentCapabilities {
            streaming: Some(streaming),
            push_notifications: Some(push),
            extensions: card.capabilities.unwrap_or_default().extensions,
            extended_agent_card: Some(self.has_extended),
        });
        card.supported_interfaces = self.supported_interfaces(url);
        // Signatures of the declared card do not cover the fields of the server.
        card.signatures.clear();
        card
    }

    /// Returns all interfaces, in the order in which clients should try them (8.3).
    fn supported_interfaces(&self, url: Option<&str>) -> Vec<AgentInterface> {
        let json_rpc = url.map(|url| format!("{url}{JSON_RPC}"));
        // gRPC has no path.
        let of_agent = self.mounted.as_deref().or_else(|| self.address.agent.strip_prefix('/'));
        let root_and_agent = url.zip(of_agent).and_then(|(url, name)| {
            let root = url.strip_suffix(name)?.strip_suffix('/')?;
            Some((root, name))
        });
        let (root, agent) = root_and_agent.map_or((url, None), |(root, name)| (Some(root), Some(name)));
        let derived_grpc = root.and_then(grpc_authority);
        let interfaces_of = |version: &Version| {
            let grpc = self.grpc.as_deref().filter(|address| is_grpc_address(address));
            let address = |binding| match binding {
                ProtocolBinding::JsonRpc => json_rpc.clone(),
                ProtocolBinding::HttpJson => url.map(str::to_owned),
                // There are no tenants in 0.3.
                ProtocolBinding::Grpc if self.mounted.is_some() && *version == Version::V0_3 => None,
                ProtocolBinding::Grpc => grpc.map(str::to_owned).or_else(|| derived_grpc.clone()),
            };
            let listed = ProtocolBinding::ALL.into_iter().filter(|binding| self.bindings.contains(binding));
            let interface = |binding: ProtocolBinding| {
                let tenant = agent.filter(|_| binding == ProtocolBinding::Grpc && *version == Version::V1_0);
                Some(AgentInterface {
                    url: address(binding)?,
                    protocol_binding: binding.as_str().to_owned(),
                    tenant: tenant.unwrap_or_default().to_owned(),
                    protocol_version: version.as_str().to_owned(),
                })
            };
            listed.filter_map(interface).collect::<Vec<_>>()
        };
        self.protocols
            .iter()
            .flat_map(interfaces_of)
            .chain(self.declared.supported_interfaces.iter().cloned())
            .collect()
    }
}

/// Protocol binding of an interface on the agent card (5.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
pub enum ProtocolBinding {
    /// `JSONRPC`
    #[serde(rename = "JSONRPC")]
    JsonRpc,
    /// `HTTP+JSON`
    #[serde(rename = "HTTP+JSON")]
    HttpJson,
    /// `GRPC`
    #[serde(rename = "GRPC")]
    Grpc,
}

impl ProtocolBinding {
    /// All bindings, in the order of the card.
    pub const ALL: [Self; 3] = [Self::JsonRpc, Self::HttpJson, Self::Grpc];

    /// Returns the name of the binding on the card (5.8).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::JsonRpc => "JSONRPC",
            Self::HttpJson => "HTTP+JSON",
            Self::Grpc => "GRPC",
        }
    }
}

/// Returns true if gRPC clients can connect to an address: `host:port`, optionally after `dns:///`, or a URL without a
/// path.
pub(crate) fn is_grpc_address(text: &str) -> bool {
    let (authority, has_default_port) = match text.split_once("://") {
        None => (text, false),
        Some(("dns", rest)) => match rest.strip_prefix('/') {
            Some(authority) => (authority, false),
            None => return false,
        },
        Some(("http" | "https" | "grpc" | "grpcs", authority)) => (authority, true),
        Some(_) => return false,
    };
    Authority::parse(authority).is_some_and(|authority| has_default_port || authority.has_port())
}

/// Returns the `host:port` of a URL. `None` if it has a path, below which gRPC can't be reached.
fn grpc_authority(url: &str) -> Option<String> {
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

    impl CardTemplate {
        /// Returns the card of a server at this base URL, unless [`url`](Self::url) set another.
        fn at(&self, url: &str) -> AgentCard {
            self.build(Some(self.address.public.as_deref().unwrap_or(url)))
        }
    }

    fn config() -> CardConfig {
        CardConfig::default()
    }

    fn grpc(address: &str) -> CardConfig {
        config().grpc_url(Some(address.to_owned()))
    }

    #[test]
    fn interfaces_have_the_urls_of_the_server() {
        let urls = |card: &CardTemplate, at: &str| {
            let interfaces = card.at(at).supported_interfaces.into_iter();
            interfaces.map(|interface| format!("{} {}", interface.protocol_binding, interface.url)).collect::<Vec<_>>()
        };
        let card = CardTemplate::new(AgentCard::default());
        let local = ["JSONRPC http://[::1]:81/rpc", "HTTP+JSON http://[::1]:81", "GRPC [::1]:81"];
        assert_eq!(urls(&card, "http://[::1]:81"), local);
        let public = ["JSONRPC https://a.example/rpc", "HTTP+JSON https://a.example", "GRPC a.example:443"];
        assert_eq!(urls(&card.clone().url("https://a.example/"), "http://127.0.0.1:1"), public);
        let below = ["JSONRPC https://a.example/echo/rpc", "HTTP+JSON https://a.example/echo"];
        let card = card.url("https://a.example/echo");
        assert_eq!(urls(&card, ""), below);
        let [json_rpc, rest] = below;
        assert_eq!(urls(&card.configure(grpc("grpc.a.example:443")), ""), [json_rpc, rest, "GRPC grpc.a.example:443"]);
    }

    #[test]
    fn grpc_addresses_have_a_host_and_a_port() {
        for text in [
            "a.example:443",
            "[::1]:1",
            "127.0.0.1:8080",
            "dns:///a.example:443",
            "https://a.example",
            "grpc://a.example:1",
            "http://127.0.0.1:8080",
        ] {
            assert!(is_grpc_address(text), "{text}");
        }
        for text in
            ["", "x", "a.example", ":443", "a:0", "a.example:443/x", "https://a.example/x", "ftp://a:1", "dns://a:1"]
        {
            assert!(!is_grpc_address(text), "{text}");
            let card = CardTemplate::new(AgentCard::default()).configure(grpc(text)).at("https://a.example/x");
            assert!(card.supported_interfaces.iter().all(|interface| interface.protocol_binding != "GRPC"), "{text}");
        }
    }

    #[test]
    fn each_version_has_the_configured_bindings_and_grpc() {
        let both = [Version::V1_0, Version::V0_3];
        let card = CardTemplate::new(AgentCard::default())
            .protocols(both)
            .url("https://a.example")
            .configure(grpc("g.example:1"));
        let interfaces = |card: &CardTemplate| {
            let all = card.at("").supported_interfaces.into_iter();
            all.map(|interface| {
                format!("{} {} {}", interface.protocol_version, interface.protocol_binding, interface.url)
            })
            .collect::<Vec<_>>()
        };
        assert_eq!(interfaces(&card)[5], "0.3 GRPC g.example:1");
        let only = card.configure(config().bindings(Some(vec![ProtocolBinding::Grpc])));
        assert_eq!(interfaces(&only), ["1.0 GRPC g.example:1", "0.3 GRPC g.example:1"]);
    }

    #[test]
    fn warnings_name_the_configuration_key() {
        let card = || CardTemplate::new(AgentCard::default()).protocols([Version::V1_0, Version::V0_3]);
        let warns_of = |card: CardTemplate, key: &str| {
            let warnings = card.warnings();
            assert!(warnings.len() == 1 && warnings[0].contains(key), "{key}: {warnings:?}");
        };
        assert_eq!(card().url("https://a.example").warnings(), [""; 0]);
        let below = || card().url("https://a.example/a2a/v1");
        warns_of(below(), "card.grpc_url");
        assert_eq!(below().configure(grpc("a.example:443")).warnings(), [""; 0]);
        let rest = Some(vec![ProtocolBinding::HttpJson]);
        assert_eq!(below().configure(config().bindings(rest)).warnings(), [""; 0]);
        assert_eq!(card().push(true).warnings(), [""; 0]);
        warns_of(card().configure(grpc("x")), "card.grpc_url");
    }

    #[test]
    fn card_without_a_known_url_has_no_interfaces() {
        let headers = http::HeaderMap::new();
        let request = RequestOrigin::at("", &headers);
        assert_eq!(CardTemplate::new(AgentCard::default()).of(&request).supported_interfaces, []);
    }

    #[test]
    fn bearer_token_is_declared() {
        let json = serde_json::to_value(CardTemplate::new(AgentCard::default().bearer()).at("http://h")).unwrap();
        let scheme = serde_json::json!({"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}});
        assert_eq!(json["securitySchemes"], scheme);
        assert_eq!(json["securityRequirements"], serde_json::json!([{"schemes": {"bearer": {}}}]));
    }

    #[test]
    fn required_members_are_present_and_capabilities_are_off_by_default() {
        let json = serde_json::to_value(CardTemplate::new(AgentCard::default()).at("http://h")).unwrap();
        for member in ["name", "description", "version", "defaultInputModes", "defaultOutputModes", "skills"] {
            assert!(json.get(member).is_some(), "{member}");
        }
        let capabilities =
            serde_json::json!({"streaming": true, "pushNotifications": false, "extendedAgentCard": false});
        assert_eq!(json["capabilities"], capabilities);
    }
}
