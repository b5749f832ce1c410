//! The agent card: what a client reads before it calls. It says only what is so.
//!
//! What the agent is, it says itself, and its operator may say it better; what is offered and where, the server knows.

mod address;
mod config;
mod network;
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
};
use crate::{
    agent::About,
    call::Version,
    pb::v1::{
        AgentCapabilities, AgentCard, AgentInterface, HttpAuthSecurityScheme, SecurityRequirement, SecurityScheme,
        StringList, security_scheme::Scheme,
    },
    service::Capabilities,
    transport::CardRequest,
    v03::card::{self as v03, CardVersion, Requirement, Scheme as ClassicScheme, V03CardFields},
};

/// Where the public card is (8.2).
pub const WELL_KNOWN: &str = "/.well-known/agent-card.json";

/// Where callers of 0.2 look for it.
pub const WELL_KNOWN_BEFORE: &str = "/.well-known/agent.json";

/// Where some callers of 0.2 look for it.
pub const AGENT_CARD: &str = "/agent-card";

/// The path of JSON-RPC that the card names.
pub const JSON_RPC: &str = "/rpc";

/// The media type of an agent that says nothing else.
const TEXT: &str = "text/plain";

/// What a card is made of. Its URLs are those that the operator named, or those at which it was asked for.
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
    kept: V03CardFields,
    shapes: version::CardVersions,
    address: Address,
}

impl Card {
    /// The card of an agent.
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
            kept: V03CardFields::default(),
            shapes: version::CardVersions::default(),
            address: Address::default(),
        }
    }

    /// With the URL at which clients reach the server, whatever it is bound to and whatever they asked for.
    #[must_use]
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.address.public = Some(url.into().trim_end_matches('/').to_owned());
        self
    }

    /// With the address at which clients reach gRPC, if it differs from that of the other bindings: `host:port`, which
    /// may follow `dns:///`, or a URL without a path. gRPC has no path: a server below a base path, or behind a proxy
    /// that supports only HTTP/1.1, needs this address. An invalid address is left off the card.
    #[must_use]
    pub fn grpc(mut self, addr: impl Into<String>) -> Self {
        self.grpc = Some(addr.into());
        self
    }

    /// With another address of gRPC for clients of 0.3, in the form of [`grpc`](Self::grpc). By default it is the same.
    #[must_use]
    pub fn grpc_v03(mut self, addr: impl Into<String>) -> Self {
        self.grpc_v03 = Some(addr.into());
        self
    }

    /// With these bindings among the server's own interfaces of a version, in place of all three. Bindings that are
    /// left off the card are still served.
    #[must_use]
    pub fn bindings(mut self, version: Version, bindings: impl IntoIterator<Item = ProtocolBinding>) -> Self {
        let listed = bindings.into_iter().collect();
        match version {
            Version::V1_0 => self.bindings = listed,
            Version::V0_3 => self.bindings_v03 = listed,
        }
        self
    }

    /// With the path of JSON-RPC below the URL of the server. The server sets this itself.
    #[must_use]
    pub(crate) fn rpc_path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.rpc_path);
        self
    }

    /// With push notification configurations, or without: they are not offered where nobody says so.
    #[must_use]
    pub fn push(mut self, offered: bool) -> Self {
        self.push = offered;
        self
    }

    /// With what the server listens on, for requests that name no host.
    #[must_use]
    pub fn bound(mut self, addr: SocketAddr) -> Self {
        self.address.bound = Some(addr);
        self
    }

    /// With proxies that are believed what they say of the URL that their clients asked for: in `X-Forwarded-Proto`,
    /// `-Host`, `-Port` and `-Prefix`, or in `Forwarded`. From anybody else these headers are nothing.
    #[must_use]
    pub fn trusted_proxies(mut self, proxies: impl IntoIterator<Item = Network>) -> Self {
        self.address.trusted = proxies.into_iter().collect();
        self
    }

    /// The proxies whose forwarded headers are trusted.
    pub(crate) fn trusted(&self) -> &[Network] {
        &self.address.trusted
    }

    /// With the ways to authenticate, by name, and which of them a call takes (4.5). A card only tells: something else
    /// has to ask.
    #[must_use]
    pub fn security(
        mut self,
        schemes: impl IntoIterator<Item = (String, SecurityScheme)>,
        requirements: impl IntoIterator<Item = SecurityRequirement>,
    ) -> Self {
        self.schemes = schemes.into_iter().collect();
        self.requirements = requirements.into_iter().collect();
        self.kept.schemes = BTreeMap::new();
        self
    }

    /// The same, as OpenAPI and 0.3 have it. Of several flows of OAuth a card of 1.0 has one, and one of 0.3 all (0.3,
    /// 5.5.3).
    #[must_use]
    pub fn classic_security(
        mut self,
        schemes: impl IntoIterator<Item = (String, ClassicScheme)>,
        requirements: impl IntoIterator<Item = Requirement>,
    ) -> Self {
        let schemes: BTreeMap<_, _> = schemes.into_iter().collect();
        let requirements = requirements.into_iter().map(v03::to_requirement);
        self = self.security(v03::to_v1(schemes.clone()), requirements);
        self.kept.schemes = schemes;
        self
    }

    /// With the versions of the protocol that are spoken, each over every binding. A server knows which those are.
    #[must_use]
    pub(crate) fn protocols(mut self, protocols: impl IntoIterator<Item = Version>) -> Self {
        self.protocols = protocols.into_iter().collect();
        // Clients that take the first interface of their binding are to get the newest version of it.
        self.protocols.sort_by(|a, b| b.cmp(a));
        self
    }

    /// With the shape that readers get who do not name a version. What they can read both of, where nothing is said.
    #[must_use]
    pub fn shape(mut self, shape: CardVersion) -> Self {
        self.shapes.usual = shape;
        self
    }

    /// The same for those who ask for this host, `host` or `host:port`.
    #[must_use]
    pub fn shape_at(mut self, host: impl AsRef<str>, shape: CardVersion) -> Self {
        self.shapes.hosts.insert(host.as_ref().to_ascii_lowercase(), shape);
        self
    }

    /// The same, for a server that takes a bearer token.
    #[must_use]
    pub fn bearer(self) -> Self {
        const NAME: &str = "bearer";
        let http = HttpAuthSecurityScheme { scheme: "bearer".to_owned(), ..HttpAuthSecurityScheme::default() };
        let scheme = SecurityScheme { scheme: Some(Scheme::HttpAuthSecurityScheme(http)) };
        let schemes = BTreeMap::from([(NAME.to_owned(), StringList::default())]);
        self.security([(NAME.to_owned(), scheme)], [SecurityRequirement { schemes }])
    }

    /// Configured parts of the public address of the server.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// The hosts that have a [shape](Self::shape_at) of their own.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.shapes.hosts.keys().map(String::as_str)
    }

    /// What the service has to keep to, so that the card is true.
    pub fn offers(&self) -> Capabilities {
        Capabilities { streaming: self.streaming, push: self.push }
    }

    /// The card for the sender of a request.
    pub fn of(&self, request: &CardRequest<'_>) -> AgentCard {
        self.reached(self.address.of(request).as_deref())
    }

    /// The same in JSON, in the shape that its sender can read.
    pub fn json(&self, request: &CardRequest<'_>) -> Bytes {
        let shape = self.shapes.of(request, self.address.host(request).as_ref());
        // Members have names, and writing to memory does not fail.
        v03::to_json(&self.of(request), &self.kept, shape).unwrap_or_default().into()
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
        self.reached(Some(self.address.public.as_deref().unwrap_or(url)))
    }

    fn bindings_of(&self, version: Version) -> &[ProtocolBinding] {
        match version {
            Version::V1_0 => &self.bindings,
            Version::V0_3 => &self.bindings_v03,
        }
    }

    /// The configured address of gRPC for clients of a version.
    fn grpc_of(&self, version: Version) -> Option<&str> {
        let own = if version == Version::V0_3 { self.grpc_v03.as_deref() } else { None };
        own.or(self.grpc.as_deref())
    }

    /// Returns true if the card declares that callers have to authenticate.
    pub(crate) fn declares_security(&self) -> bool {
        !self.schemes.is_empty() || !self.requirements.is_empty()
    }

    /// Warnings about the card for the operator, logged before it is served. They name settings.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (key, address) in [("card.grpc", &self.grpc), ("card.grpc_v03", &self.grpc_v03)] {
            if address.as_ref().is_some_and(|it| !is_grpc_address(it)) {
                warnings
                    .push(format!("{key}: not an address such as agent.example:443; the agent card does not have it"));
            }
        }
        let lists_grpc = |it: &Version| self.bindings_of(*it).contains(&ProtocolBinding::Grpc);
        let left_off = self.protocols.iter().any(|it| lists_grpc(it) && self.grpc_of(*it).is_none());
        if left_off && self.address.public.as_deref().is_some_and(|it| grpc(it).is_none()) {
            let why = "public_url has a path, which gRPC has not; gRPC is left off the agent card (set card.grpc)";
            warnings.push(why.to_owned());
        }
        if self.push {
            let why = "push.enabled: push notification configurations are kept, and nothing is delivered to them yet";
            warnings.push(why.to_owned());
        }
        warnings
    }

    /// Where nobody knows the URL, the card does not make one up: it has the interfaces that the operator named.
    fn reached(&self, url: Option<&str>) -> AgentCard {
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
        let modes = |it: Vec<String>| if it.is_empty() { vec![TEXT.to_owned()] } else { it };
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
            default_input_modes: modes(input_modes),
            default_output_modes: modes(output_modes),
            skills,
            signatures: Vec::new(),
            icon_url,
        }
    }

    /// Every way to reach the server, in the order in which clients should try them (8.3).
    fn supported_interfaces(&self, url: Option<&str>) -> Vec<AgentInterface> {
        let json_rpc = url.map(|it| format!("{it}{}", self.rpc_path));
        let derived = url.and_then(grpc);
        let of = |version: &Version| {
            let bindings = self.bindings_of(*version);
            let grpc = self.grpc_of(*version).filter(|it| is_grpc_address(it));
            let address = |binding| match binding {
                ProtocolBinding::JsonRpc => json_rpc.clone(),
                ProtocolBinding::HttpJson => url.map(str::to_owned),
                ProtocolBinding::Grpc => grpc.map(str::to_owned).or_else(|| derived.clone()),
            };
            let named = ProtocolBinding::ALL.into_iter().filter(|it| bindings.contains(it));
            let interface = |binding: ProtocolBinding| {
                Some(AgentInterface {
                    url: address(binding)?,
                    protocol_binding: binding.as_str().to_owned(),
                    tenant: String::new(),
                    protocol_version: version.as_str().to_owned(),
                })
            };
            named.filter_map(interface).collect::<Vec<_>>()
        };
        self.protocols.iter().flat_map(of).chain(self.interfaces.iter().cloned()).collect()
    }
}

/// Binding of the server's own interfaces, by the name that cards have for it.
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

    /// The name of the binding (5.8).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::JsonRpc => "JSONRPC",
            Self::HttpJson => "HTTP+JSON",
            Self::Grpc => "GRPC",
        }
    }
}

/// Returns true if gRPC clients can connect to an address: `host:port`, which may follow `dns:///`, or a URL without a
/// path.
pub(crate) fn is_grpc_address(text: &str) -> bool {
    let (authority, has_usual_port) = match text.split_once("://") {
        None => (text, false),
        Some(("dns", rest)) => match rest.strip_prefix('/') {
            Some(authority) => (authority, false),
            None => return false,
        },
        Some(("http" | "https" | "grpc" | "grpcs", authority)) => (authority, true),
        Some(_) => return false,
    };
    Authority::parse(authority).is_some_and(|it| has_usual_port || it.has_port())
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
            assert!(card.supported_interfaces.iter().all(|it| it.protocol_binding != "GRPC"), "{text}");
        }
    }

    #[test]
    fn each_version_has_its_own_bindings_and_grpc() {
        let both = [Version::V1_0, Version::V0_3];
        let card = Card::new(About::default()).protocols(both).url("https://a.example").grpc("g.example:1");
        let interfaces = |card: &Card| {
            let all = card.at("").supported_interfaces.into_iter();
            all.map(|it| format!("{} {} {}", it.protocol_version, it.protocol_binding, it.url)).collect::<Vec<_>>()
        };
        let apart = card.clone().grpc_v03("https://old.example").bindings(Version::V1_0, [ProtocolBinding::Grpc]);
        let [json_rpc, rest] = ["0.3 JSONRPC https://a.example/rpc", "0.3 HTTP+JSON https://a.example"];
        assert_eq!(interfaces(&apart), ["1.0 GRPC g.example:1", json_rpc, rest, "0.3 GRPC https://old.example"]);
        let off = apart.bindings(Version::V0_3, [ProtocolBinding::HttpJson]);
        assert_eq!(interfaces(&off), ["1.0 GRPC g.example:1", rest]);
        assert_eq!(interfaces(&card)[5], "0.3 GRPC g.example:1");
    }

    #[test]
    fn warnings_name_what_a_card_leaves_off_or_promises() {
        let card = || Card::new(About::default()).protocols([Version::V1_0, Version::V0_3]);
        let warned = |card: Card, setting: &str| {
            let warnings = card.warnings();
            assert!(warnings.len() == 1 && warnings[0].contains(setting), "{setting}: {warnings:?}");
        };
        assert_eq!(card().url("https://a.example").warnings(), [""; 0]);
        let below = || card().url("https://a.example/a2a/v1");
        warned(below(), "card.grpc");
        assert_eq!(below().grpc("a.example:443").warnings(), [""; 0]);
        let rest = [ProtocolBinding::HttpJson];
        assert_eq!(below().bindings(Version::V1_0, rest).bindings(Version::V0_3, rest).warnings(), [""; 0]);
        warned(card().push(true), "push.enabled");
        warned(card().grpc("x"), "card.grpc");
        warned(card().grpc_v03(""), "card.grpc_v03");
    }

    #[test]
    fn nobody_knows_the_url() {
        let headers = http::HeaderMap::new();
        let request =
            CardRequest { path: "", prefix: "", host: None, target: None, peer: None, query: None, headers: &headers };
        assert_eq!(Card::new(About::default()).of(&request).supported_interfaces, []);
    }

    #[test]
    fn a_token_is_told() {
        let json = serde_json::to_value(Card::new(About::default()).bearer().at("http://h")).unwrap();
        let scheme = serde_json::json!({"bearer": {"httpAuthSecurityScheme": {"scheme": "bearer"}}});
        assert_eq!(json["securitySchemes"], scheme);
        assert_eq!(json["securityRequirements"], serde_json::json!([{"schemes": {"bearer": {}}}]));
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
