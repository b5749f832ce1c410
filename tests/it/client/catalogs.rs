//! Catalogs of agents, and clients of their entries.

use super::*;

#[tokio::test]
async fn agents_of_a_catalog_are_called() {
    let agent = demo().await;
    let card =
        crate::bindings::fetch(format!("{agent}/.well-known/agent-card.json")).await.unwrap().text().await.unwrap();
    let card: serde_json::Value = serde_json::from_str(&card).unwrap();
    let kind = "application/a2a-agent-card+json";
    let standard = json!({"specVersion": "0.9", "entries": [
        {"identifier": "urn:a", "displayName": "Linked", "type": kind, "url": agent},
        {"identifier": "urn:b", "displayName": "Inline", "mediaType": kind, "data": card},
        {"identifier": "urn:c", "displayName": "Tools", "type": "application/mcp-server-card+json", "url": agent},
    ]});
    let list = json!([card, {"name": "Linked", "card_url": format!("{agent}/.well-known/agent-card.json")}]);
    for (path, document) in [
        ("/.well-known/ai-catalog.json", &standard),
        ("/.well-known/agents.json", &json!({"agents": list})),
        ("/agents", &list),
        ("/other.json", &list),
    ] {
        let (registry, _) = documents(vec![(path, document.to_string())]).await;
        let url = if path == "/other.json" { format!("{registry}{path}") } else { registry.clone() };
        let entries = quick().catalog(&url).await.unwrap();
        assert_eq!(entries.len(), 2, "{path}: {entries:?}");
        for entry in &entries {
            let client = quick().connect_entry(entry).await.unwrap();
            assert_eq!(client.send("Hello").await.unwrap().text(), "Hello", "{entry:?}");
            // The catalog is of another origin.
            let secret = quick().bearer("sesame").unwrap();
            let error = secret.connect_entry(entry).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{entry:?}");
            let trusted = secret.trust_origin(&agent).unwrap().connect_entry(entry).await.unwrap();
            assert_eq!(trusted.send("Hello").await.unwrap().text(), "Hello");
        }
    }
    let (empty, _) = documents(vec![]).await;
    let error = Client::catalog(&empty).await.unwrap_err();
    assert!(error.to_string().contains("no catalog at"), "{error}");
}

#[tokio::test]
async fn catalogs_are_bounded() {
    let entries = serde_json::Value::from(vec!["https://agent.example"; 50]).to_string();
    let (registry, _) = documents(vec![("/agents", entries)]).await;
    let error = quick().limits(SizeLimits::default().card(1000)).catalog(&registry).await.unwrap_err();
    assert!(error.to_string().contains("no catalog") || error.to_string().contains("1000 bytes"), "{error}");
    let given = Given { content_type: "application/json", body: Bytes::from_static(b"[\"a\","), is_endless: true };
    let limits = SizeLimits::default().card(1000);
    let error = quick().limits(limits).transport(given).catalog("http://registry.invalid").await.unwrap_err();
    assert!(error.to_string().contains("1000 bytes"), "{error}");
}
