//! Agent card (8): the document in which clients find the agent's identity, capabilities and interfaces.
//!
//! The agent describes itself ([`About`]), and the configuration may override that ([`CardConfig`]). The server adds what it
//! serves: interfaces with their URLs, protocol versions and capabilities.

mod address;
mod config;
mod network;
mod request;
mod version;

use std::{collections::BTreeMap, net::SocketAddr};

use bytes::Bytes;
use http::Uri;

pub(crate) use self::address::{
    Address, Authority, FORWARDED_HOST, FORWARDED_PORT, FORWARDED_PREFIX, FORWARDED_PROTO, Forwarded, node,
};
pub use self::{
    config::{
        CapabilitiesConfig, CardConfig, ExtensionConfig, InterfaceConfig, ProviderConfig, SchemesConfig, SkillConfig,
    },
    network::Network,
    request::CardRequest,
};
use crate::{
    agent::About,
    pb::v1::{
        AgentCapabilities, AgentCard, AgentInterface, HttpAuthSecurityScheme, SecurityRequirement, SecurityScheme,
        StringList, security_scheme::Scheme,
    },
    protocol::Version,
    service::Capabilities,
    v03::card::{self as v03, CardVersion, Requirement, Scheme as ClassicScheme, V03CardFields},
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

/// Agent card of a server. Its URLs are configured, or derived from each request for the card.
#[derive(Clone, Debug)]
pub struct Card {
    pub(crate) about: About,
    streaming: bool,
    push: bool,
    schemes: BTreeMap<String, SecurityScheme>,
    requirements: Vec<SecurityRequirement>,
    interfaces: Vec<AgentInterface>,
    grpc: Option<String>,
    grpc_v03: Option<String>,
    bindings: Vec<ProtocolBinding>,
    bindings_v03: Vec<ProtocolBinding>,
    rpc_path: String,
    protocols: Vec<Version>,
    v03_fields: V03CardFields,
    formats: version::CardVersions,
    address: Address,
}

impl Card {
    /// Creates the card of an agent, for protocol 1.0.
    pub fn new(about: About) -> Self {
        Self {
            about,
            streaming: true,
            push: false,
            schemes: BTreeMap::new(),
            requirements: Vec::new(),
            interfaces: Vec::new(),
            grpc: None,
            grpc_v03: None,
            bindings: ProtocolBinding::ALL.to_vec(),
            bindings_v03: ProtocolBinding::ALL.to_vec(),
            rpc_path: JSON_RPC.to_owned(),
            protocols: vec![Version::V1_0],
            v03_fields: V03CardFields::default(),
            formats: version::CardVersions::default(),
            address: Address::default(),
        }
    }

    /// Sets the base URL at which clients reach the server. By default, it is derived from the request for the card.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.address.public = Some(url.into().trim_end_matches('/').to_owned());
        self
    }

    /// Sets the address of gRPC, if it differs from that of the other bindings: `host:port`, optionally after `dns:///`, or
    /// a URL without a path. gRPC has no path: a server below a base path, or behind a proxy
    /// that supports only HTTP/1.1, needs this address. An invalid address is left off the card.
    #[must_use]
    pub fn grpc(mut self, addr: impl Into<String>) -> Self {
        self.grpc = Some(addr.into());
        self
    }

    /// Sets the address of gRPC for clients of 0.3, in the form of [`grpc`](Self::grpc), which is the default.
    #[must_use]
    pub fn grpc_v03(mut self, addr: impl Into<String>) -> Self {
        self.grpc_v03 = Some(addr.into());
        self
    }

    /// Sets the bindings that the card lists among the server's own interfaces of a version. All three by default. Bindings
    /// that the card does not list are still served.
    #[must_use]
    pub fn bindings(mut self, version: Version, bindings: impl IntoIterator<Item = ProtocolBinding>) -> Self {
        let listed = bindings.into_iter().collect();
        match version {
            Version::V1_0 => self.bindings = listed,
            Version::V0_3 => self.bindings_v03 = listed,
        }
        self
    }

    /// Sets the path of JSON-RPC below the URL of the server.
    #[must_use]
    pub(crate) fn rpc_path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.rpc_path);
        self
    }

    /// Declares whether the server accepts push notification configurations. False by default.
    #[must_use]
    pub fn push(mut self, offered: bool) -> Self {
        self.push = offered;
        self
    }

    /// Sets the listen address, which is used for requests without a host.
    #[must_use]
    pub fn bound(mut self, addr: SocketAddr) -> Self {
        self.address.bound = Some(addr);
        self
    }

    /// Sets the proxies whose `X-Forwarded-Proto`, `-Host`, `-Port` and `-Prefix` or `Forwarded` headers are trusted for the
    /// URL that the client requested. These headers are ignored from other peers.
    #[must_use]
    pub fn trusted_proxies(mut self, proxies: impl IntoIterator<Item = Network>) -> Self {
        self.address.trusted = proxies.into_iter().collect();
        self
    }

    /// Proxies whose forwarded headers are trusted.
    pub(crate) fn trusted(&self) -> &[Network] {
        &self.address.trusted
    }

    /// Sets the security schemes by name, and the requirements of a call (4.5). The card only declares them; an
    /// [authenticator](crate::auth::Authenticator) has to enforce them.
    #[must_use]
    pub fn security(
        mut self,
        schemes: impl IntoIterator<Item = (String, SecurityScheme)>,
        requirements: impl IntoIterator<Item = SecurityRequirement>,
    ) -> Self {
        self.schemes = schemes.into_iter().collect();
        self.requirements = requirements.into_iter().collect();
        self.v03_fields.schemes = BTreeMap::new();
        self
    }

    /// Sets the security schemes and requirements in the form of OpenAPI and 0.3. A scheme with several OAuth flows keeps all
    /// of them on a card of 0.3 (0.3, 5.5.3), and one of them on a card of 1.0.
    #[must_use]
    pub fn classic_security(
        mut self,
        schemes: impl IntoIterator<Item = (String, ClassicScheme)>,
        requirements: impl IntoIterator<Item = Requirement>,
    ) -> Self {
        let schemes: BTreeMap<_, _> = schemes.into_iter().collect();
        let requirements = requirements.into_iter().map(v03::to_requirement);
        self = self.security(v03::to_v1(schemes.clone()), requirements);
        self.v03_fields.schemes = schemes;
        self
    }

    /// Sets the protocol versions that are served, each over every binding.
    #[must_use]
    pub(crate) fn protocols(mut self, protocols: impl IntoIterator<Item = Version>) -> Self {
        self.protocols = protocols.into_iter().collect();
        // Newest first: some clients use the first interface of their binding.
        self.protocols.sort_by(|a, b| b.cmp(a));
        self
    }

    /// Sets the form of the card for requests that do not name a protocol version. Merged by default, which clients of 1.0
    /// and 0.3 can read.
    #[must_use]
    pub fn format(mut self, format: CardVersion) -> Self {
        self.formats.usual = format;
        self
    }

    /// Sets the form of the card for requests to a host (`host` or `host:port`) that do not name a protocol version.
    #[must_use]
    pub fn format_for_host(mut self, host: impl AsRef<str>, format: CardVersion) -> Self {
        self.formats.hosts.insert(host.as_ref().to_ascii_lowercase(), format);
        self
    }

    /// Declares a bearer token as the security scheme that calls require.
    #[must_use]
    pub fn bearer(self) -> Self {
        const NAME: &str = "bearer";
        let http = HttpAuthSecurityScheme { scheme: "bearer".to_owned(), ..HttpAuthSecurityScheme::default() };
        let scheme = SecurityScheme { scheme: Some(Scheme::HttpAuthSecurityScheme(http)) };
        let schemes = BTreeMap::from([(NAME.to_owned(), StringList::default())]);
        self.security([(NAME.to_owned(), scheme)], [SecurityRequirement { schemes }])
    }

    /// Configuration of the server's public address.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Hosts with a [form of the card](Self::format_for_host) of their own.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.formats.hosts.keys().map(String::as_str)
    }

    /// Capabilities that the card declares. The service rejects calls that need others.
    pub fn offers(&self) -> Capabilities {
        Capabilities { streaming: self.streaming, push: self.push }
    }

    /// Returns the card for a request, with the URLs at which its client reaches the server.
    pub fn of(&self, request: &CardRequest<'_>) -> AgentCard {
        self.build(self.address.of(request).as_deref())
    }

    /// Returns the card for a request in JSON, in the form for its protocol version and host.
    pub fn json(&self, request: &CardRequest<'_>) -> Bytes {
        let format = self.formats.of(request, self.address.host(request).as_ref());
        // Serialization can't fail: all keys are strings, and the output is in memory.
        v03::to_json(&self.of(request), &self.v03_fields, format).unwrap_or_default().into()
    }

    /// Returns the card of a server at this base URL, unless [`url`](Self::url) set another.
    ///
    /// ```
    /// use a2a_service::{agent::About, card::Card};
    ///
    /// let card = Card::new(About::new("Geo")).at("http://127.0.0.1:8080");
    /// assert_eq!(card.supported_interfaces[0].url, "http://127.0.0.1:8080/rpc");
    /// ```
    pub fn at(&self, url: &str) -> AgentCard {
        self.build(Some(self.address.public.as_deref().unwrap_or(url)))
    }

    fn bindings_of(&self, version: Version) -> &[ProtocolBinding] {
        match version {
            Version::V1_0 => &self.bindings,
            Version::V0_3 => &self.bindings_v03,
        }
    }

    /// Returns the configured address of gRPC for a protocol version.
    fn grpc_of(&self, version: Version) -> Option<&str> {
        let own = if version == Version::V0_3 { self.grpc_v03.as_deref() } else { None };
        own.or(self.grpc.as_deref())
    }

    /// Returns true if the card declares that callers have to authenticate.
    pub(crate) fn declares_security(&self) -> bool {
        !self.schemes.is_empty() || !self.requirements.is_empty()
    }

    /// Returns warnings about the card for the operator, which name the configuration keys.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (key, address) in [("card.grpc_url", &self.grpc), ("card.grpc_url_v03", &self.grpc_v03)] {
            if address.as_ref().is_some_and(|address| !is_grpc_address(address)) {
                let why = "not a gRPC address, and left off the agent card; write agent.example:443";
                warnings.push(format!("{key}: {why}"));
            }
        }
        let lists_grpc = |version: Version| self.bindings_of(version).contains(&ProtocolBinding::Grpc);
        let needs_address =
            self.protocols.iter().any(|version| lists_grpc(*version) && self.grpc_of(*version).is_none());
        if needs_address && self.address.public.as_deref().is_some_and(|url| grpc_authority(url).is_none()) {
            let why = "public_url: gRPC does not support a path, and is left off the agent card; set card.grpc_url";
            warnings.push(why.to_owned());
        }
        if self.push {
            let why =
                "push.enabled: push notification configurations are stored, but notifications are not delivered yet";
            warnings.push(why.to_owned());
        }
        warnings
    }

    /// Builds the card. Without a URL, it lists only the configured interfaces.
    fn build(&self, url: Option<&str>) -> AgentCard {
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
            extensions,
        } = self.about.clone();
        let or_default = |modes: Vec<String>| if modes.is_empty() { vec![DEFAULT_MODE.to_owned()] } else { modes };
        AgentCard {
            name: name.unwrap_or_else(|| "Agent".to_owned()),
            description: description.unwrap_or_else(|| "An A2A agent.".to_owned()),
            supported_interfaces: self.supported_interfaces(url),
            provider,
            version: version.unwrap_or_else(|| "0.0.0".to_owned()),
            documentation_url,
            capabilities: Some(AgentCapabilities {
                streaming: Some(self.streaming),
                push_notifications: Some(self.push),
                extensions,
                extended_agent_card: Some(false),
            }),
            security_schemes: self.schemes.clone(),
            security_requirements: self.requirements.clone(),
            default_input_modes: or_default(input_modes),
            default_output_modes: or_default(output_modes),
            skills,
            signatures: Vec::new(),
            icon_url,
        }
    }

    /// Returns all interfaces, in the order in which clients should try them (8.3).
    fn supported_interfaces(&self, url: Option<&str>) -> Vec<AgentInterface> {
        let json_rpc = url.map(|url| format!("{url}{}", self.rpc_path));
        let derived_grpc = url.and_then(grpc_authority);
        let interfaces_of = |version: &Version| {
            let bindings = self.bindings_of(*version);
            let grpc = self.grpc_of(*version).filter(|address| is_grpc_address(address));
            let address = |binding| match binding {
                ProtocolBinding::JsonRpc => json_rpc.clone(),
                ProtocolBinding::HttpJson => url.map(str::to_owned),
                ProtocolBinding::Grpc => grpc.map(str::to_owned).or_else(|| derived_grpc.clone()),
            };
            let listed = ProtocolBinding::ALL.into_iter().filter(|binding| bindings.contains(binding));
            let interface = |binding: ProtocolBinding| {
                Some(AgentInterface {
                    url: address(binding)?,
                    protocol_binding: binding.as_str().to_owned(),
                    tenant: String::new(),
                    protocol_version: version.as_str().to_owned(),
                })
            };
            listed.filter_map(interface).collect::<Vec<_>>()
        };
        self.protocols.iter().flat_map(interfaces_of).chain(self.interfaces.iter().cloned()).collect()
    }
}

/// Protocol binding of an interface on the agent card (5.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProtocolBinding {
    /// `JSONRPC`
    JsonRpc,
    /// `HTTP+JSON`
    HttpJson,
    /// `GRPC`
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

    #[test]
    fn interfaces_have_the_urls_of_the_server() {
        let urls = |card: &Card, at: &str| {
            let interfaces = card.at(at).supported_interfaces.into_iter();
            interfaces.map(|interface| format!("{} {}", interface.protocol_binding, interface.url)).collect::<Vec<_>>()
        };
        let card = Card::new(About::default());
        let local = ["JSONRPC http://[::1]:81/rpc", "HTTP+JSON http://[::1]:81", "GRPC [::1]:81"];
        assert_eq!(urls(&card, "http://[::1]:81"), local);
        let public = ["JSONRPC https://a.example/rpc", "HTTP+JSON https://a.example", "GRPC a.example:443"];
        assert_eq!(urls(&card.clone().url("https://a.example/"), "http://127.0.0.1:1"), public);
        let below = ["JSONRPC https://a.example/echo/rpc", "HTTP+JSON https://a.example/echo"];
        let card = card.url("https://a.example/echo");
        assert_eq!(urls(&card, ""), below);
        let [json_rpc, rest] = below;
        assert_eq!(urls(&card.grpc("grpc.a.example:443"), ""), [json_rpc, rest, "GRPC grpc.a.example:443"]);
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
            let card = Card::new(About::default()).grpc(text).at("https://a.example/x");
            assert!(card.supported_interfaces.iter().all(|interface| interface.protocol_binding != "GRPC"), "{text}");
        }
    }

    #[test]
    fn each_version_has_its_own_bindings_and_grpc() {
        let both = [Version::V1_0, Version::V0_3];
        let card = Card::new(About::default()).protocols(both).url("https://a.example").grpc("g.example:1");
        let interfaces = |card: &Card| {
            let all = card.at("").supported_interfaces.into_iter();
            all.map(|interface| {
                format!("{} {} {}", interface.protocol_version, interface.protocol_binding, interface.url)
            })
            .collect::<Vec<_>>()
        };
        let separate = card.clone().grpc_v03("https://old.example").bindings(Version::V1_0, [ProtocolBinding::Grpc]);
        let [json_rpc, rest] = ["0.3 JSONRPC https://a.example/rpc", "0.3 HTTP+JSON https://a.example"];
        assert_eq!(interfaces(&separate), ["1.0 GRPC g.example:1", json_rpc, rest, "0.3 GRPC https://old.example"]);
        let omitted = separate.bindings(Version::V0_3, [ProtocolBinding::HttpJson]);
        assert_eq!(interfaces(&omitted), ["1.0 GRPC g.example:1", rest]);
        assert_eq!(interfaces(&card)[5], "0.3 GRPC g.example:1");
    }

    #[test]
    fn warnings_name_the_configuration_key() {
        let card = || Card::new(About::default()).protocols([Version::V1_0, Version::V0_3]);
        let warns_of = |card: Card, key: &str| {
            let warnings = card.warnings();
            assert!(warnings.len() == 1 && warnings[0].contains(key), "{key}: {warnings:?}");
        };
        assert_eq!(card().url("https://a.example").warnings(), [""; 0]);
        let below = || card().url("https://a.example/a2a/v1");
        warns_of(below(), "card.grpc_url");
        assert_eq!(below().grpc("a.example:443").warnings(), [""; 0]);
        let rest = [ProtocolBinding::HttpJson];
        assert_eq!(below().bindings(Version::V1_0, rest).bindings(Version::V0_3, rest).warnings(), [""; 0]);
        warns_of(card().push(true), "push.enabled");
        warns_of(card().grpc("x"), "card.grpc_url");
        warns_of(card().grpc_v03(""), "card.grpc_url_v03");
    }

    #[test]
    fn card_without_a_known_url_has_no_interfaces() {
        let headers = http::HeaderMap::new();
        let request =
            CardRequest { path: "", prefix: "", host: None, target: None, peer: None, query: None, headers: &headers };
        assert_eq!(Card::new(About::default()).of(&request).supported_interfaces, []);
    }

    #[test]
    fn bearer_token_is_declared() {
        let json = serde_json::to_value(Card::new(About::default()).bearer().at("http://h")).unwrap();
        let scheme = serde_json::json!({"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}});
        assert_eq!(json["securitySchemes"], scheme);
        assert_eq!(json["securityRequirements"], serde_json::json!([{"schemes": {"bearer": {}}}]));
    }

    #[test]
    fn required_members_are_present_and_capabilities_are_off_by_default() {
        let json = serde_json::to_value(Card::new(About::default()).at("http://h")).unwrap();
        for member in ["name", "description", "version", "defaultInputModes", "defaultOutputModes", "skills"] {
            assert!(json.get(member).is_some(), "{member}");
        }
        let capabilities =
            serde_json::json!({"streaming": true, "pushNotifications": false, "extendedAgentCard": false});
        assert_eq!(json["capabilities"], capabilities);
    }
}
