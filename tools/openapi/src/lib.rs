//! Generator of the documents in `openapi/`: OpenAPI documents of HTTP+JSON, an OpenRPC document of JSON-RPC, and JSON Schemas
//! of all messages.
//!
//! The documents are built from the descriptors of the proto files, with their comments as descriptions. They describe a
//! server with default settings. A server embeds the files, and replaces its name, its URL and its security schemes.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use a2a_service::{pb::DESCRIPTORS, protocol::Version};
use prost_reflect::DescriptorPool;
use serde::Serialize;
use utoipa::openapi::{RefOr, schema::Schema};

mod comments;
mod errors;
mod examples;
#[path = "../../../build/extra_bindings.rs"]
mod extra_bindings;
mod json;
mod links;
mod openrpc;
mod rest;
mod schema;
#[path = "../../../build/v03_json.rs"]
mod v03_json;
mod v03_schema;

pub use self::json::Json;
use self::{
    comments::Comments,
    schema::{Location, Schemas},
    v03_schema::V03Schemas,
};

/// Dialect of the schema files.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Name of the described server.
const TITLE: &str = "A2A agent";

/// Description of the described server, in front of the description of the binding. A server replaces this paragraph.
const DESCRIPTION: &str = "Agent that other agents and programs can call.";

/// Base URL of the described server.
const URL: &str = "http://127.0.0.1:8080";

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

    /// Builds all documents, by their path below `openapi/`.
    pub fn files(&self) -> BTreeMap<PathBuf, Json> {
        let schemas = self.schema_files().into_iter();
        let schemas = schemas.map(|(name, schema)| (format!("schemas/{name}.json").into(), schema));
        let documents = [
            ("a2a-v1.json".into(), self.openapi(Version::V1_0)),
            ("a2a-v0.3.json".into(), self.openapi(Version::V0_3)),
            ("a2a-jsonrpc.json".into(), self.openrpc()),
        ];
        documents.into_iter().chain(schemas).collect()
    }

    /// Builds the OpenAPI document of a protocol version.
    pub fn openapi(&self, version: Version) -> Json {
        let name = match version {
            Version::V1_0 => "lf.a2a.v1.A2AService",
            Version::V0_3 => "a2a.v1.A2AService",
        };
        self.of_service(name, version)
    }

    /// Builds the OpenAPI document of a service, given its full name. Null if there is no such service.
    pub fn of_service(&self, name: &str, version: Version) -> Json {
        let Some(service) = self.pool.get_service_by_name(name) else { return Json::Null };
        let mut schemas = self.schemas(Location::Components);
        let mut document = Json::of(&rest::document(&service, version, &mut schemas));
        document.json_first();
        document
    }

    /// Builds the OpenRPC document, with the methods of both protocol versions.
    pub fn openrpc(&self) -> Json {
        Json::of(&openrpc::document(&self.pool, &mut self.schemas(Location::Components)))
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
        let mut v03 = V03Schemas::new(&self.pool, &mut schemas, "");
        for name in V03Schemas::names() {
            v03.named(name);
        }
        let file = |schema| Json::of(&SchemaFile { dialect: DIALECT, schema });
        schemas.all.iter().map(|(name, schema)| (name.clone(), file(schema))).collect()
    }
}
