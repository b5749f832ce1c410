//! Signed agent cards: served by a server, published keys, and the commands `a2a card`.

use std::fs;

use a2a_service::{
    agent::demo::Demo,
    card::signature::{self, VerifyError},
    jose::{Algorithm, PublicKeys, SigningKey},
    push::{PushOptions, SigningKeys},
    server::Server,
};
use serde_json::{Value, json};

use crate::{
    bindings::serve,
    program::{a2a, output, started},
};

const CARD: &str = "/.well-known/agent-card.json";
const JWKS: &str = "/.well-known/jwks.json";

fn key() -> SigningKey {
    SigningKey::generate(Algorithm::Es256).unwrap()
}

async fn get(url: &str, headers: &[(&str, &str)]) -> (u16, Vec<u8>) {
    let mut request = crate::bindings::http().get(url);
    for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
        request = request.header(*name, *value);
    }
    let reply = request.send().await.unwrap();
    (reply.status().as_u16(), reply.bytes().await.unwrap().to_vec())
}

#[tokio::test]
async fn every_form_of_the_card_is_signed_with_the_published_key() {
    let base = serve(Server::new(Demo).sign_card(key())).await;
    let (status, keys) = get(&format!("{base}{JWKS}"), &[]).await;
    assert_eq!(status, 200);
    let keys = PublicKeys::from_jwks(&keys).unwrap();
    for (version, v1, v03) in [("", true, true), ("1.0", true, false), ("0.3", false, true)] {
        for path in [CARD, "/.well-known/agent.json"] {
            let (_, card) = get(&format!("{base}{path}"), &[("a2a-version", version)]).await;
            let verified = signature::verify(&card, &keys).unwrap();
            assert_eq!((verified.v1, verified.v03), (v1, v03), "{version} {path}");
            let (_, again) = get(&format!("{base}{path}"), &[("a2a-version", version)]).await;
            assert_eq!(card, again, "signatures are cached");
        }
    }
    let other = PublicKeys::from_iter([&key()]);
    let (_, card) = get(&format!("{base}{CARD}"), &[]).await;
    assert!(matches!(signature::verify(&card, &other), Err(VerifyError::Invalid(_))));
}

#[tokio::test]
async fn key_set_has_the_keys_of_the_card_and_of_notifications() {
    let (card, push) = (key(), SigningKeys::generate(Algorithm::EdDsa).unwrap());
    let expected = [card.public_jwk(), push.jwks()["keys"][0].clone()];
    let shared = SigningKey::from_pem(&push.to_pem().unwrap()).unwrap();
    let options = || PushOptions::default().keys(Some(push.clone()));
    for (key, expected) in [(card, &expected[..]), (shared, &expected[1..])] {
        let base = serve(Server::new(Demo).push(true).push_options(options()).sign_card(key)).await;
        let (_, keys) = get(&format!("{base}{JWKS}"), &[]).await;
        assert_eq!(serde_json::from_slice::<Value>(&keys).unwrap(), json!({ "keys": expected }));
    }
}

#[tokio::test]
async fn card_without_a_key_is_not_signed() {
    let base = serve(Server::new(Demo)).await;
    let (_, card) = get(&format!("{base}{CARD}"), &[]).await;
    assert!(matches!(signature::verify(&card, &PublicKeys::default()), Err(VerifyError::Unsigned)));
    assert_eq!(get(&format!("{base}{JWKS}"), &[]).await.0, 404);
}

#[tokio::test]
async fn program_signs_and_verifies_cards() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (pem, card, signed, jwks) = (path("key.pem"), path("card.json"), path("signed.json"), path("jwks.json"));
    let key = key();
    fs::write(&pem, key.to_pem().unwrap()).unwrap();
    fs::write(&jwks, json!({ "keys": [key.public_jwk()] }).to_string()).unwrap();
    fs::write(&card, json!({ "name": "Geo", "supportedInterfaces": [], "version": "1.0.0" }).to_string()).unwrap();
    let done = output(a2a(&["card", "sign", &card, "--key", &pem])).await;
    assert!(done.status.success(), "{done:?}");
    fs::write(&signed, &done.stdout).unwrap();
    let changed = String::from_utf8(done.stdout).unwrap().replace("Geo", "Neo");
    fs::write(path("changed.json"), changed).unwrap();
    let named = output(a2a(&["card", "sign", &card, "--key", &pem, "--kid", "other"])).await;
    fs::write(path("named.json"), &named.stdout).unwrap();
    for (file, code, text) in [
        ("signed.json", 0, "verified"),
        ("changed.json", 1, "wrong"),
        ("named.json", 1, "unknown"),
        ("card.json", 1, "not signed"),
        ("missing.json", 1, "missing.json"),
        ("key.pem", 1, "expected an agent card"),
    ] {
        let done = output(a2a(&["card", "verify", &path(file), "--jwks", &jwks])).await;
        let printed = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert_eq!(done.status.code(), Some(code), "{file}: {printed}");
        assert!(printed.contains(text) && !printed.contains("PRIVATE"), "{file}: {printed}");
    }
    for arguments in [&["card", "verify", &signed][..], &["card", "sign", &card], &["card"]] {
        assert_eq!(output(a2a(arguments)).await.status.code(), Some(2), "{arguments:?}");
    }
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "warn"]);
    command.env("A2A_SIGNING_KEYS", &pem);
    let (_server, url) = started(command).await;
    let verify = output(a2a(&["card", "verify", &url, "--jwks", &format!("{url}{JWKS}")])).await;
    assert!(verify.status.success() && verify.stderr.is_empty(), "{verify:?}");
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("A2A_SIGNING_KEYS", &card);
    let refused = output(command).await;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("signing_keys"), "{text}");
}
