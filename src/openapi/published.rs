//! Documents of a running server, with its name, its security schemes, and its URL as the client knows it.

use std::{collections::BTreeMap, fmt, sync::OnceLock};

use bytes::Bytes;

use super::{Documents, Json, Publisher};
use crate::{
    protocol::{Protocols, Version},
    v03::card::V03Card,
};

/// URL in the built documents, which is replaced by that of a request.
pub(super) const BASE: &str = "https://base.invalid";

/// Host and port of [`BASE`] in commands, replaced by those of the URL.
#[cfg(feature = "docs")]
pub(super) const AUTHORITY: &str = "authority.invalid";

/// Proto files by their path below `/openapi/proto/`.
const PROTO: [(&str, &str); 6] = [
    ("lf/a2a/v1/a2a.proto", include_str!("../../proto/lf/a2a/v1/a2a.proto")),
    ("a2a/v1/a2a.proto", include_str!("../../proto/a2a/v1/a2a.proto")),
    ("google/api/annotations.proto", include_str!("../../proto/google/api/annotations.proto")),
    ("google/api/client.proto", include_str!("../../proto/google/api/client.proto")),
    ("google/api/field_behavior.proto", include_str!("../../proto/google/api/field_behavior.proto")),
    ("google/api/http.proto", include_str!("../../proto/google/api/http.proto")),
];

/// Content type and content of a document.
pub type PublishedDocument = (&'static str, Bytes);

/// Documents of a server. All are built when the first one is requested.
pub struct PublishedDocuments {
    publisher: Publisher,
    protocols: Protocols,
    /// The server has Swagger UI.
    #[cfg_attr(not(feature = "docs"), expect(dead_code, reason = "only with the feature `docs`"))]
    has_docs: bool,
    /// Documents by path.
    built: OnceLock<BTreeMap<String, PublishedDocument>>,
}

impl PublishedDocuments {
    /// Prepares the documents of a server with a card and a path of JSON-RPC, for the protocol versions that it serves.
    /// `has_docs` adds Swagger UI.
    pub fn new(card: V03Card, rpc_path: &str, protocols: Protocols, has_docs: bool) -> Self {
        Self { publisher: Publisher::of_card(card, BASE, rpc_path), protocols, has_docs, built: OnceLock::new() }
    }

    /// Returns the document at a path for a client that reaches the server at this base URL. Blocks while the documents are
    /// built, on the first call.
    pub fn get(&self, path: &str, base: Option<&str>) -> Option<PublishedDocument> {
        let (media_type, content) =
            self.built.get_or_init(|| self.build()).get(if path == "/docs" { "/docs/" } else { path })?.clone();
        let Some(text) = std::str::from_utf8(&content).ok().filter(|text| text.contains(BASE)) else {
            return Some((media_type, content));
        };
        // Without a host, URLs are relative to the document.
        let depth = path.matches('/').count();
        let relative = if depth > 1 { ".." } else { "." };
        let base = base.unwrap_or(relative);
        #[cfg(feature = "docs")]
        if media_type == super::pages::HTML {
            return Some((media_type, super::pages::with_base(text, base).into()));
        }
        Some((media_type, text.replace(BASE, base).into()))
    }

    fn build(&self) -> BTreeMap<String, PublishedDocument> {
        const JSON: &str = "application/json";
        let (documents, publisher, mut built) = (Documents::default(), &self.publisher, BTreeMap::new());
        let mut add = |path: String, media_type, text: String| {
            built.insert(path, (media_type, Bytes::from(text)));
        };
        if let Some(newest) = self.protocols.iter().next() {
            let document = documents.openapi(newest, publisher);
            add("/openapi.json".to_owned(), JSON, document.pretty());
            add("/openapi.yaml".to_owned(), "application/yaml", document.yaml());
        }
        if self.protocols.has(Version::V0_3) {
            add("/openapi/v0.3.json".to_owned(), JSON, documents.openapi(Version::V0_3, publisher).pretty());
        }
        add("/openapi/openrpc.json".to_owned(), JSON, documents.openrpc(publisher, self.protocols).pretty());
        let schemas = documents.schema_files().into_iter().map(|(name, schema): (_, Json)| (name, schema.pretty()));
        for (name, text) in schemas {
            add(format!("/openapi/schemas/{name}.json"), "application/schema+json", text);
        }
        for (path, text) in PROTO {
            add(format!("/openapi/proto/{path}"), "text/plain; charset=utf-8", text.to_owned());
        }
        #[cfg(feature = "docs")]
        super::pages::add(&mut built, publisher, self.protocols, self.has_docs);
        built
    }
}

impl fmt::Debug for PublishedDocuments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishedDocuments").field("publisher", &self.publisher).finish_non_exhaustive()
    }
}
