//! Swagger UI with the OpenAPI documents. It requests nothing from other hosts.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::json;

use super::{PublishedDocument, PublishedDocuments, openapi, patch};
use crate::protocol::version::Version;

const HTML: &str = "text/html; charset=utf-8";
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

/// Adds Swagger UI to the documents of a server.
pub(super) fn add(documents: &mut BTreeMap<String, PublishedDocument>, publisher: &PublishedDocuments) {
    documents.extend(
        FILES.map(|(name, media_type, content)| (format!("/docs/{name}"), (media_type, Bytes::from_static(content)))),
    );
    documents.insert("/docs/swagger-initializer.js".to_owned(), (SCRIPT, initializer(publisher).into()));
    for version in publisher.protocols.iter() {
        let complete = patch::openapi(openapi(version), publisher);
        let document = complete.and_then(|document| patch::for_people(&document, version)).unwrap_or_default();
        documents.insert(format!("/docs/v{}.json", version.as_str()), ("application/json", document.into()));
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
