//! Published contract of the HTTP bindings: OpenAPI documents of HTTP+JSON, an OpenRPC document of JSON-RPC, and JSON Schemas
//! of all messages.
//!
//! The documents are built from the descriptors of the proto files, with their comments as descriptions. The directory
//! `openapi/` has them for a server with default settings.

use std::fmt;

use prost_reflect::DescriptorPool;
use serde::Serialize;
use utoipa::openapi::{
    RefOr, SecurityRequirement,
    schema::Schema,
    security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};

mod classic;
mod comments;
mod errors;
mod examples;
#[path = "../build/extra_bindings.rs"]
mod extra_bindings;
mod json;
mod links;
mod openrpc;
#[cfg(feature = "docs")]
mod pages;
mod published;
mod rest;
mod schema;
#[path = "../build/v03_json.rs"]
mod v03_json;

use self::{
    classic::Classic,
    comments::Comments,
    schema::{Location, Schemas},
};
pub use self::{
    json::Json,
    published::{PublishedDocument, PublishedDocuments},
};
use crate::{
    card::JSON_RPC,
    pb::DESCRIPTORS,
    protocol::{Protocols, Version},
    v03::card::{Requirement, Scheme, V03Card},
};

/// Dialect of the schema files.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Server that documents describe.
#[derive(Clone)]
pub struct Publisher {
    title: String,
    description: String,
    /// Base URL of HTTP+JSON.
    url: String,
    json_rpc_url: String,
    schemes: Vec<(String, SecurityScheme)>,
    security: Vec<SecurityRequirement>,
}

impl Default for Publisher {
    /// Server with default settings. A bearer token is optional.
    fn default() -> Self {
        const URL: &str = "http://127.0.0.1:8080";
        const BEARER: &str = "bearer";
        let http =
            HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("Token, if the server requires one."));
        Self {
            title: "A2A agent".to_owned(),
            description: "Agent that other agents and programs can call.".to_owned(),
            url: URL.to_owned(),
            json_rpc_url: format!("{URL}{JSON_RPC}"),
            schemes: vec![(BEARER.to_owned(), SecurityScheme::Http(http.build()))],
            security: vec![SecurityRequirement::new(BEARER, [""; 0]), SecurityRequirement::default()],
        }
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher").field("title", &self.title).field("url", &self.url).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Server with an agent card, a base URL and a path of JSON-RPC below it.
    pub(crate) fn of_card(card: V03Card, url: &str, rpc_path: &str) -> Self {
        let scheme = |(name, scheme): (String, Scheme)| {
            let mut scheme = serde_json::to_value(scheme).ok()?;
            // A member of OpenAPI 3.2.
            scheme.as_object_mut()?.remove("oauth2MetadataUrl");
            Some((name, serde_json::from_value(scheme).ok()?))
        };
        let requirement = |requirement: Requirement| {
            requirement.into_iter().fold(SecurityRequirement::default(), |all, (name, scopes)| all.add(name, scopes))
        };
        Self {
            title: card.name,
            description: card.description,
            url: url.to_owned(),
            json_rpc_url: format!("{url}{rpc_path}"),
            schemes: card.security_schemes.into_iter().filter_map(scheme).collect(),
            security: card.security.into_iter().map(requirement).collect(),
        }
    }

    fn security_schemes(&self) -> impl Iterator<Item = (String, SecurityScheme)> {
        self.schemes.iter().cloned()
    }
}

/// Builder of the documents of a set of proto files.
pub struct Documents {
    pool: DescriptorPool,
    comments: Comments,
}

/// Schema file.
#[derive(Serialize)]
struct SchemaFile<'a> {
    #[serde(rename = "$schema")]
    dialect: &'static str,
    #[serde(flatten)]
    schema: &'a RefOr<Schema>,
}

impl fmt::Debug for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents").finish_non_exhaustive()
    }
}

impl Default for Documents {
    /// Documents of the protocol.
    fn default() -> Self {
        // The descriptors are those of the build, so that decoding them can't fail.
        Self::new(DescriptorPool::decode(DESCRIPTORS).unwrap_or_default())
    }
}

impl Documents {
    /// Creates the builder for the descriptors of proto files.
    pub fn new(pool: DescriptorPool) -> Self {
        let comments = Comments::new(&pool);
        Self { pool, comments }
    }

    fn schemas(&self, location: Location) -> Schemas<'_> {
        Schemas::new(&self.pool, &self.comments, location)
    }

    /// Builds the OpenAPI document of a protocol version.
    pub fn openapi(&self, version: Version, publisher: &Publisher) -> Json {
        let name = match version {
            Version::V1_0 => "lf.a2a.v1.A2AService",
            Version::V0_3 => "a2a.v1.A2AService",
        };
        self.of_service(name, version, publisher)
    }

    /// Builds the OpenAPI document of a service, given its full name. Null if there is no such service.
    pub fn of_service(&self, name: &str, version: Version, publisher: &Publisher) -> Json {
        let Some(service) = self.pool.get_service_by_name(name) else { return Json::Null };
        let mut schemas = self.schemas(Location::Components);
        let mut document = Json::of(&rest::document(&service, version, &mut schemas, publisher));
        document.json_first();
        document
    }

    /// Builds the OpenRPC document with the methods of some protocol versions.
    pub fn openrpc(&self, publisher: &Publisher, protocols: Protocols) -> Json {
        Json::of(&openrpc::document(&self.pool, &mut self.schemas(Location::Components), publisher, protocols))
    }

    /// Builds the JSON Schema of each message, with the name of its file without the suffix `.json`. References are relative
    /// URLs.
    pub fn schema_files(&self) -> Vec<(String, Json)> {
        let mut schemas = self.schemas(Location::Files);
        let packages: Vec<_> = self.pool.services().map(|service| service.package_name().to_owned()).collect();
        for message in self.pool.all_messages() {
            if packages.iter().any(|package| package == message.package_name()) && !message.is_map_entry() {
                schemas.message(&message);
            }
        }
        let mut classic = Classic::new(&self.pool, &mut schemas, "");
        for name in Classic::names() {
            classic.named(name);
        }
        let file = |schema| Json::of(&SchemaFile { dialect: DIALECT, schema });
        schemas.all.iter().map(|(name, schema)| (name.clone(), file(schema))).collect()
    }
}
