//! Published contract of the HTTP bindings: OpenAPI documents of HTTP+JSON, an OpenRPC document of JSON-RPC, and JSON Schemas
//! of all messages.
//!
//! The files in `openapi/` describe a server with default settings; `tools/openapi` generates them. A running server replaces
//! the name, the security schemes, the protocol versions, and the URL, which is the one that the client knows.

use std::{collections::BTreeMap, sync::OnceLock};

use bytes::Bytes;

#[cfg(feature = "docs")]
mod pages;
mod patch;

use crate::protocol::{
    Protocols, Version,
    v03::card::{Scheme, V03Card},
};

/// OpenRPC document of the methods of both protocol versions.
pub(crate) const OPENRPC: &str = include_str!("../../openapi/a2a-jsonrpc.json");

/// JSON Schemas of the messages, by the names of their files without the suffix `.json`.
pub(crate) const SCHEMAS: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/schemas.rs"));

/// Proto files by their path below `/openapi/proto/`.
const PROTO: [(&str, &str); 6] = [
    ("lf/a2a/v1/a2a.proto", include_str!("../../proto/lf/a2a/v1/a2a.proto")),
    ("a2a/v1/a2a.proto", include_str!("../../proto/a2a/v1/a2a.proto")),
    ("google/api/annotations.proto", include_str!("../../proto/google/api/annotations.proto")),
    ("google/api/client.proto", include_str!("../../proto/google/api/client.proto")),
    ("google/api/field_behavior.proto", include_str!("../../proto/google/api/field_behavior.proto")),
    ("google/api/http.proto", include_str!("../../proto/google/api/http.proto")),
];

/// URL in the prepared documents, which is replaced by that of a request.
const BASE: &str = "https://base.invalid";

/// Returns the OpenAPI document of a protocol version.
pub(crate) const fn openapi(version: Version) -> &'static str {
    match version {
        Version::V1_0 => include_str!("../../openapi/a2a-v1.json"),
        Version::V0_3 => include_str!("../../openapi/a2a-v0.3.json"),
    }
}

/// Content type and content of a document.
pub type PublishedDocument = (&'static str, Bytes);

/// Documents of a server. All are prepared when the first one is requested.
pub struct PublishedDocuments {
    /// Card of the server that the documents describe.
    card: V03Card,
    /// URL of JSON-RPC, below [`BASE`].
    json_rpc_url: String,
    protocols: Protocols,
    /// The server has Swagger UI.
    #[cfg_attr(not(feature = "docs"), expect(dead_code, reason = "only with the feature `docs`"))]
    has_docs: bool,
    /// Documents by path.
    prepared: OnceLock<BTreeMap<String, PublishedDocument>>,
}

impl PublishedDocuments {
    /// Prepares the documents of a server with a card and a path of JSON-RPC, for the protocol versions that it serves.
    /// `has_docs` adds Swagger UI.
    pub fn new(mut card: V03Card, rpc_path: &str, protocols: Protocols, has_docs: bool) -> Self {
        card.security_schemes.retain(|_, scheme| *scheme != Scheme::Unknown);
        for scheme in card.security_schemes.values_mut() {
            // A member of OpenAPI 3.2.
            if let Scheme::OAuth2 { metadata_url, .. } = scheme {
                metadata_url.clear();
            }
        }
        Self { card, json_rpc_url: format!("{BASE}{rpc_path}"), protocols, has_docs, prepared: OnceLock::new() }
    }

    /// Returns the document at a path for a client that reaches the server at this base URL. Blocks while the documents are
    /// prepared, on the first call.
    pub fn get(&self, path: &str, base: Option<&str>) -> Option<PublishedDocument> {
        let (media_type, content) =
            self.prepared.get_or_init(|| self.prepare()).get(if path == "/docs" { "/docs/" } else { path })?.clone();
        let Some(text) = std::str::from_utf8(&content).ok().filter(|text| text.contains(BASE)) else {
            return Some((media_type, content));
        };
        // Without a host, URLs are relative to the document.
        let depth = path.matches('/').count();
        let relative = if depth > 1 { ".." } else { "." };
        Some((media_type, text.replace(BASE, base.unwrap_or(relative)).into()))
    }

    fn prepare(&self) -> BTreeMap<String, PublishedDocument> {
        const JSON: &str = "application/json";
        let mut documents = BTreeMap::new();
        // The files are those of the build, so that patching them can't fail.
        let patched = |version| Bytes::from(patch::openapi(openapi(version), self).unwrap_or_default());
        if let Some(newest) = self.protocols.iter().next() {
            let document = patched(newest);
            // Every JSON document is a YAML document.
            documents.insert("/openapi.yaml".to_owned(), ("application/yaml", document.clone()));
            documents.insert("/openapi.json".to_owned(), (JSON, document));
        }
        if self.protocols.has(Version::V0_3) {
            documents.insert("/openapi/v0.3.json".to_owned(), (JSON, patched(Version::V0_3)));
        }
        let openrpc = patch::openrpc(OPENRPC, self).unwrap_or_default();
        documents.insert("/openapi/openrpc.json".to_owned(), (JSON, openrpc.into()));
        for (name, text) in SCHEMAS {
            let path = format!("/openapi/schemas/{name}.json");
            documents.insert(path, ("application/schema+json", Bytes::from_static(text.as_bytes())));
        }
        for (path, text) in PROTO {
            let path = format!("/openapi/proto/{path}");
            documents.insert(path, ("text/plain; charset=utf-8", Bytes::from_static(text.as_bytes())));
        }
        #[cfg(feature = "docs")]
        if self.has_docs {
            pages::add(&mut documents, self);
        }
        documents
    }
}

debug_fields!(PublishedDocuments { title: card.name });
