//! Pages for browsers: a home page, and Swagger UI with the OpenAPI documents. They request nothing from other hosts.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::json;

use super::{AUTHORITY, BASE, PublishedDocument, PublishedDocuments, openapi, patch};
use crate::protocol::version::Version;

/// Content type of pages.
pub(super) const HTML: &str = "text/html; charset=utf-8";

/// Home page with placeholders.
const HOME: &str = include_str!("home.html");

const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Files of Swagger UI. Its own are compressed.
const FILES: [(&str, &str, &[u8]); 5] = [
    ("", HTML, include_bytes!("swagger-ui/index.html")),
    ("index.css", CSS, include_bytes!("swagger-ui/index.css")),
    ("swagger-ui.css", CSS, include_bytes!("swagger-ui/swagger-ui.css.gz")),
    ("swagger-ui-bundle.js", SCRIPT, include_bytes!("swagger-ui/swagger-ui-bundle.js.gz")),
    ("swagger-ui-standalone-preset.js", SCRIPT, include_bytes!("swagger-ui/swagger-ui-standalone-preset.js.gz")),
];

/// Parts of the commands on the home page: a send in HTTP+JSON and in JSON-RPC, the path prefix of HTTP+JSON, and the gRPC
/// service.
type Commands = (&'static str, &'static str, &'static str, &'static str);

const COMMANDS_V1: Commands = (
    r#"{"message":{"messageId":"1","role":"ROLE_USER","parts":[{"text":"Hello"}]}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"1","role":"ROLE_USER","parts":[{"text":"Hello"}]}}}"#,
    "",
    "lf.a2a.v1.A2AService",
);

const COMMANDS_V03: Commands = (
    r#"{"message":{"messageId":"1","role":"ROLE_USER","content":[{"text":"Hello"}]}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"1","role":"user","parts":[{"kind":"text","text":"Hello"}]}}}"#,
    "/v1",
    "a2a.v1.A2AService",
);

/// Adds the pages of a server to its documents.
pub(super) fn add(documents: &mut BTreeMap<String, PublishedDocument>, publisher: &PublishedDocuments) {
    documents.insert("/".to_owned(), (HTML, home(publisher).into()));
    if publisher.has_docs {
        documents.extend(
            FILES.map(|(name, media_type, content)| {
                (format!("/docs/{name}"), (media_type, Bytes::from_static(content)))
            }),
        );
        documents.insert("/docs/swagger-initializer.js".to_owned(), (SCRIPT, initializer(publisher).into()));
        for version in publisher.protocols.iter() {
            let complete = patch::openapi(openapi(version), publisher);
            let document = complete.and_then(|document| patch::for_people(&document, version)).unwrap_or_default();
            documents.insert(format!("/docs/v{}.json", version.as_str()), ("application/json", document.into()));
        }
    }
}

/// Creates the script that opens Swagger UI with the documents of the versions that are served.
fn initializer(publisher: &PublishedDocuments) -> String {
    let primary = publisher.protocols.iter().next().map(Version::as_str);
    let url = |version: Version| json!({ "name": version.as_str(), "url": format!("v{}.json", version.as_str()) });
    let urls: Vec<_> = publisher.protocols.iter().map(url).collect();
    // By default, the page sends documents to a validator on another host.
    let settings = json!({
        "dom_id": "#swagger-ui",
        "urls": urls,
        "urls.primaryName": primary,
        "validatorUrl": "none",
        "layout": "StandaloneLayout",
        "deepLinking": true,
    });
    format!(
        "window.onload = () => {{\n  const {{ presets, plugins }} = SwaggerUIBundle;\n  window.ui = SwaggerUIBundle({{\n    \
         ...{settings:#},\n    presets: [presets.apis, SwaggerUIStandalonePreset],\n    plugins: [plugins.DownloadUrl],\n  }});\n}};\n"
    )
}

/// Creates the home page: links to the card and the documents, and a command for each binding.
fn home(publisher: &PublishedDocuments) -> String {
    let PublishedDocuments { card, json_rpc_url, protocols, has_docs, .. } = publisher;
    let docs = if *has_docs { "<li><a href=\"docs/\">API documentation</a></li>\n" } else { "" };
    let (send, json_rpc, prefix, service) = if protocols.has(Version::V1_0) { COMMANDS_V1 } else { COMMANDS_V03 };
    let header = if card.security.is_empty() { "" } else { "-H \"authorization: Bearer $TOKEN\" " };
    let curl = format!("curl {header}-H 'content-type: application/json' -d");
    let commands = [
        format!("{curl} '{send}' {BASE}{prefix}/message:send"),
        format!("{curl} '{json_rpc}' {json_rpc_url}"),
        format!("grpcurl {header}-plaintext -d '{send}' {AUTHORITY} {service}/SendMessage"),
    ];
    let commands = commands.map(|command| escaped(&command) + "\n").concat();
    // No value has a placeholder, because `<` is escaped.
    HOME.replace("<!--title-->", &escaped(&card.name))
        .replace("<!--description-->", &escaped(&card.description))
        .replace("<!--docs-->", docs)
        .replace("<!--commands-->", &commands)
}

/// Fills in the base URL of a request.
pub(super) fn with_base(page: &str, base: &str) -> String {
    let authority = base.split_once("://").map_or(base, |(_, rest)| rest);
    let authority = authority.split('/').next().unwrap_or(authority);
    page.replace(BASE, &escaped(base)).replace(AUTHORITY, &escaped(authority))
}

/// Escapes a text for HTML.
fn escaped(text: &str) -> String {
    let entities = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")];
    entities.iter().fold(text.to_owned(), |text, (letter, entity)| text.replace(*letter, entity))
}
