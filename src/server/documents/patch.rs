//! Changes a file in `openapi/` to the document of a server. Members that are equal for all servers stay text, so that their
//! order and their layout are those of the file.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{BASE, PublishedDocuments};
use crate::protocol::{
    Version,
    v03::card::{Requirement, Scheme},
};

/// Prefix of the names of 0.3 schemas and errors in the OpenRPC document.
const V03: &str = "V03";

/// Schema in the OpenRPC document that both protocol versions use.
const SHARED: &str = "Struct";

/// OpenAPI document.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct OpenApi<'a> {
    #[serde(borrow)]
    openapi: &'a RawValue,
    info: Info<'a>,
    servers: Vec<Server<'a>>,
    paths: &'a RawValue,
    components: Components<'a>,
    security: Vec<Requirement>,
    tags: &'a RawValue,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Components<'a> {
    #[serde(borrow)]
    schemas: &'a RawValue,
    responses: &'a RawValue,
    parameters: &'a RawValue,
    examples: &'a RawValue,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    security_schemes: BTreeMap<String, Scheme>,
}

/// OpenRPC document.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct OpenRpc<'a> {
    #[serde(borrow)]
    openrpc: &'a RawValue,
    info: Info<'a>,
    servers: Vec<Server<'a>>,
    methods: Vec<&'a RawValue>,
    components: RpcComponents<'a>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RpcComponents<'a> {
    #[serde(borrow)]
    schemas: BTreeMap<&'a str, &'a RawValue>,
    errors: BTreeMap<&'a str, &'a RawValue>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Info<'a> {
    title: String,
    description: String,
    #[serde(borrow)]
    license: &'a RawValue,
    version: &'a RawValue,
}

/// Server with its URL and, in OpenRPC, its name.
type Server<'a> = BTreeMap<&'a str, Cow<'a, str>>;

impl Info<'_> {
    /// Replaces the title, and the first paragraph of the description.
    fn describe(&mut self, publisher: &PublishedDocuments) {
        self.title.clone_from(&publisher.card.name);
        let binding = self.description.split_once("\n\n").map_or("", |(_, binding)| binding);
        self.description = format!("{}\n\n{binding}", publisher.card.description);
    }
}

/// Returns the OpenAPI document of a server.
pub(super) fn openapi(file: &str, publisher: &PublishedDocuments) -> serde_json::Result<String> {
    let mut document: OpenApi<'_> = serde_json::from_str(file)?;
    document.info.describe(publisher);
    document.servers = vec![BTreeMap::from([("url", BASE.into())])];
    document.components.security_schemes.clone_from(&publisher.card.security_schemes);
    document.security.clone_from(&publisher.card.security);
    pretty(&document)
}

/// Returns an OpenAPI document of a server for people: each route once, without its form for a tenant in the path, in a group with
/// the name of the protocol version.
#[cfg(feature = "docs")]
pub(super) fn for_people(document: &str, version: Version) -> serde_json::Result<String> {
    let mut document: OpenApi<'_> = serde_json::from_str(document)?;
    let mut paths: BTreeMap<&str, &RawValue> = serde_json::from_str(document.paths.get())?;
    paths.retain(|path, _| !path.starts_with("/{tenant}/"));
    let paths = serde_json::value::to_raw_value(&paths)?;
    document.paths = &paths;
    Ok(pretty(&document)?.replace("\"A2AService\"", &format!("\"Protocol {}\"", version.as_str())))
}

/// Returns the OpenRPC document of a server, with the methods of the protocol versions that it serves.
pub(super) fn openrpc(file: &str, publisher: &PublishedDocuments) -> serde_json::Result<String> {
    let mut document: OpenRpc<'_> = serde_json::from_str(file)?;
    document.info.describe(publisher);
    for server in &mut document.servers {
        server.insert("url", publisher.json_rpc_url.as_str().into());
    }
    let is_served = |is_v03| publisher.protocols.has(if is_v03 { Version::V0_3 } else { Version::V1_0 });
    // Names of 0.3 have a slash, names of 1.0 have none.
    document.methods.retain(|method| {
        let members = serde_json::from_str::<BTreeMap<&str, &RawValue>>(method.get()).unwrap_or_default();
        members.get("name").is_some_and(|name| is_served(name.get().contains('/')))
    });
    let RpcComponents { schemas, errors } = &mut document.components;
    schemas.retain(|name, _| *name == SHARED || is_served(name.starts_with(V03)));
    errors.retain(|name, _| is_served(name.starts_with(V03)));
    pretty(&document)
}

fn pretty(document: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}
