//! Catalogs of agents: download, the forms that are in use, and clients of their entries.

use bytes::Bytes;
use reqwest::Url;
use serde::Serialize;
use serde_json::Value;

use super::{
    AgentCard, Client, Error, ErrorKind,
    builder::ClientBuilder,
    card::{documents_of, first_document, none_at},
    http::complete_url,
};
use crate::protocol::{
    json::{check_json, wkt::check_unique},
    v03::card,
};

/// Paths of a catalog below a URL: of AI Catalog, and of registries of A2A agents.
const PATHS: [&str; 3] = ["/.well-known/ai-catalog.json", "/.well-known/agents.json", "/agents"];

/// Maximum number of entries of a catalog.
const MAX_ENTRIES: usize = 10_000;

/// Members of a catalog with its entries.
const LISTS: [&str; 5] = ["agents", "entries", "items", "cards", "data"];

/// Members of an entry with a card.
const CARDS: [&str; 6] = ["card", "agentCard", "agent_card", "inline", "data", "content"];

/// Members of an entry with the URL of its card.
const URLS: [&str; 9] = [
    "cardUrl",
    "card_url",
    "agentCardUrl",
    "agent_card_url",
    "agentCardURL",
    "wellKnownURI",
    "well_known_uri",
    "url",
    "href",
];

/// Agent in a [catalog](ClientBuilder::catalog): its card, or the URL at which the card is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CatalogEntry {
    /// Name of the agent. Empty if the catalog has none.
    pub name: String,
    /// Description of the agent. Empty if the catalog has none.
    pub description: String,
    /// URL of the card, or the base URL of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card_url: Option<String>,
    /// Card, if the catalog contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<AgentCard>,
    /// Card as it was received, for its signatures.
    #[serde(skip)]
    json: Option<Bytes>,
    /// URL of the catalog.
    #[serde(skip)]
    catalog: Url,
}

impl ClientBuilder {
    /// Reads a catalog of agents: a list of cards or of links to cards.
    ///
    /// `url` is the URL of a `.json` document, or a base URL. Then the catalog is looked for at
    /// `/.well-known/ai-catalog.json`, `/.well-known/agents.json` and `/agents` below it, and at the URL itself. Entries that
    /// are no agents, such as MCP servers, are left out, and so are entries without a card and a URL. A catalog has up to
    /// 10,000 entries, and [`SizeLimits::card`](super::SizeLimits::card) bytes.
    ///
    /// ```no_run
    /// use a2a_service::client::Client;
    ///
    /// # async fn example() -> Result<(), a2a_service::error::Error> {
    /// let options = Client::builder();
    /// for entry in options.catalog("https://registry.example.com").await? {
    ///     println!("{}: {}", entry.name, entry.description);
    ///     let agent = options.connect_entry(&entry).await?;
    ///     println!("{}", agent.send("Hello").await?.text());
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `Unavailable` if no connection can be established, `InvalidAgentResponse` if there is no catalog.
    pub async fn catalog(&self, url: &str) -> Result<Vec<CatalogEntry>, Error> {
        let url = complete_url(url)?;
        Ok(first_document(self, "catalog", documents_of(&url, &PATHS), read).await?.content)
    }

    /// Downloads a JSON document that has this name in errors.
    ///
    /// # Errors
    /// As [`catalog`](Self::catalog).
    #[cfg(feature = "cli")]
    pub(crate) async fn json_document(&self, name: &'static str, url: &Url) -> Result<Value, Error> {
        let read = |json: &Bytes, _: &Url| serde_json::from_slice(json).map_err(|error| error.to_string());
        Ok(first_document(self, name, vec![url.clone()], read).await?.content)
    }

    /// Returns a client of an agent in a catalog.
    ///
    /// Credentials are for the origin of the catalog and for [trusted ones](Self::trust_origin). If the client has credentials,
    /// agents of other origins are rejected: [`connect`](Self::connect) with the URL of such an agent sends them to it.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and `Unauthenticated` for an agent of another origin.
    pub async fn connect_entry(&self, entry: &CatalogEntry) -> Result<Client, Error> {
        if let (Some(card), Some(json)) = (&entry.card, &entry.json) {
            #[cfg(feature = "signing")]
            self.check_signatures(json)?;
            return self.connected(card.clone(), json, &entry.catalog).await;
        }
        let Some(url) = &entry.card_url else {
            return Err(none_at(&entry.catalog, "agent card", "the entry has neither a card nor a URL"));
        };
        let parsed = complete_url(url)?;
        if self.has_credentials() && !self.trusts(&parsed, &entry.catalog) {
            let origin = entry.catalog.origin().ascii_serialization();
            let reason = format!(
                "credentials are for {origin}, but the catalog names `{parsed}`; connect to that URL, or allow its origin (trust_origin)"
            );
            return Err(ErrorKind::Unauthenticated.because(reason));
        }
        self.connect(url).await
    }
}

/// Reads a catalog.
fn read(json: &Bytes, url: &Url) -> Result<Vec<CatalogEntry>, String> {
    check_json(json).map_err(|error| format!("the document {error}"))?;
    check_unique(json).map_err(|error| error.to_string())?;
    let document: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let list = document.as_array().or_else(|| LISTS.into_iter().find_map(|name| document[name].as_array()));
    let list = list.ok_or("the document has no list of agents")?;
    if list.len() > MAX_ENTRIES {
        return Err(format!("{} entries exceed the limit of {MAX_ENTRIES}", list.len()));
    }
    Ok(list.iter().filter_map(|entry| read_entry(entry, url)).collect())
}

/// Reads an entry. `None` if it is not an agent.
fn read_entry(entry: &Value, catalog: &Url) -> Option<CatalogEntry> {
    let text = |names: &[&str]| {
        let mut found = names.iter().filter_map(|name| entry[*name].as_str()).filter(|text| !text.is_empty());
        found.next().map(str::to_owned)
    };
    let link = |url: String| catalog.join(&url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    let with = |name: String, description: String, card_url: Option<String>, card: Option<(AgentCard, Bytes)>| {
        let (card, json) = card.unzip();
        CatalogEntry { name, description, card_url, card, json, catalog: catalog.clone() }
    };
    if let Some(url) = entry.as_str() {
        return Some(with(String::new(), String::new(), Some(link(url.to_owned())?.to_string()), None));
    }
    // `type` of AI Catalog 0.9 was `mediaType` before. Entries of other kinds have one that names no agent card.
    let mut kinds = ["type", "mediaType"].into_iter().filter_map(|name| entry[name].as_str());
    let kind = kinds.find(|kind| kind.contains('/'));
    if kind.is_some_and(|kind| !kind.to_ascii_lowercase().contains("agent-card")) {
        return None;
    }
    let card = read_card(entry).or_else(|| CARDS.into_iter().find_map(|name| read_card(&entry[name])));
    let card_url = text(&URLS).filter(|_| card.is_none()).and_then(link).map(String::from);
    if card.is_none() && card_url.is_none() {
        return None;
    }
    let of_card = card.as_ref().map(|(card, _)| (card.name.clone(), card.description.clone()));
    let (name, description) = of_card.unwrap_or_default();
    let name = text(&["displayName", "display_name", "name", "title"]).unwrap_or(name);
    Some(with(name, text(&["description"]).unwrap_or(description), card_url, card))
}

/// Reads a card in a catalog. An object with a name and a URL alone is a link.
fn read_card(value: &Value) -> Option<(AgentCard, Bytes)> {
    const MEMBERS: [&str; 6] = [
        "skills",
        "capabilities",
        "supportedInterfaces",
        "supported_interfaces",
        "protocolVersion",
        "preferredTransport",
    ];
    let members = value.as_object()?;
    if !MEMBERS.iter().any(|name| members.contains_key(*name)) {
        return None;
    }
    let json = Bytes::from(serde_json::to_vec(value).ok()?);
    let card = card::from_json(&json).ok()?;
    (!card.name.is_empty() && !card.supported_interfaces.is_empty()).then_some((card, json))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entries(document: &Value) -> Vec<(String, Option<String>, bool)> {
        let url = Url::parse("https://registry.example/x/agents.json").unwrap();
        let found = read(&document.to_string().into(), &url).unwrap();
        found.into_iter().map(|entry| (entry.name, entry.card_url, entry.card.is_some())).collect()
    }

    #[test]
    fn catalogs_of_all_forms_are_read() {
        let old = json!({"name": "Old", "url": "https://a.example", "skills": [], "capabilities": {}});
        let new = json!({"name": "New", "supportedInterfaces": [
            {"url": "https://a.example", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}]});
        let card = |name: &str| (name.to_owned(), None, true);
        let link = |name: &str, url: &str| (name.to_owned(), Some(url.to_owned()), false);
        let all = [card("Old"), card("New")];
        assert_eq!(entries(&json!([old, new])), all);
        assert_eq!(entries(&json!({"agents": [{"card": old}, {"agentCard": new}]})), all);
        for (given, expected) in [
            (json!("https://b.example/card.json"), link("", "https://b.example/card.json")),
            (json!({"name": "B", "url": "https://b.example"}), link("B", "https://b.example/")),
            (
                json!({"name": "B", "card_url": "/b.json", "url": "https://b.example"}),
                link("B", "https://registry.example/b.json"),
            ),
            (json!({"agentCardUrl": "b.json"}), link("", "https://registry.example/x/b.json")),
            (json!({"id": "b", "name": "B", "cardUrl": "https://b.example/c"}), link("B", "https://b.example/c")),
            (
                json!({"identifier": "urn:b", "displayName": "B", "mediaType": "application/a2a-agent-card+json", "url": "https://b.example/c"}),
                link("B", "https://b.example/c"),
            ),
            (json!({"displayName": "B", "type": "application/a2a-agent-card+json", "data": old}), card("B")),
            (json!({"displayName": "B", "mediaType": "application/a2a-agent-card+json", "inline": new}), card("B")),
        ] {
            assert_eq!(entries(&json!({"specVersion": "1.0", "entries": [given]})), [expected], "{given}");
        }
        let others = json!({"entries": [
            {"displayName": "Tools", "mediaType": "application/mcp-server-card+json", "url": "https://m.example"},
            {"displayName": "More", "type": "application/ai-catalog+json", "url": "https://m.example"},
            {"name": "Nothing"}, 5, null, {"url": "ftp://b.example"}, {"url": ""},
        ]});
        assert_eq!(entries(&others), []);
    }

    #[test]
    fn other_documents_are_no_catalog() {
        let url = Url::parse("https://registry.example/agents").unwrap();
        for document in ["{}", "<html>", r#"{"agents": {}}"#, "5"] {
            assert!(read(&Bytes::from(document), &url).is_err(), "{document}");
        }
        let long = Value::from(vec![Value::from("https://a.example"); MAX_ENTRIES + 1]).to_string();
        assert!(read(&long.into(), &url).unwrap_err().contains("10001 entries exceed the limit of 10000"));
    }
}
