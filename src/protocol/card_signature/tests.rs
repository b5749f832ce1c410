//! Tests of the signatures of agent cards: against cards that SDKs have signed, and against their canonical forms.

use super::*;
use crate::base::jws::Algorithm;

/// Public keys of the vectors, in PEM.
const KEYS: &str = include_str!("../../../tests/it/card/vectors/keys.pem");

/// Cards that SDKs have signed: by `--sign` of the programs in `tests/interop`.
const VECTORS: [(&str, &str); 3] = [
    ("Python", include_str!("../../../tests/it/card/vectors/python.json")),
    ("Python of 0.3", include_str!("../../../tests/it/card/vectors/python03.json")),
    ("JavaScript", include_str!("../../../tests/it/card/vectors/javascript.json")),
];

fn merged() -> Value {
    json!({
        "name": "Ω", "description": "", "version": "1.0.0", "url": "https://agent.example/rpc",
        "protocolVersion": "0.3.0", "preferredTransport": "JSONRPC",
        "supportedInterfaces": [
            { "url": "https://agent.example/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0" },
        ],
        "capabilities": { "streaming": true, "pushNotifications": false, "extendedAgentCard": false },
        "securitySchemes": { "bearer": {
            "httpAuthSecurityScheme": { "scheme": "bearer" }, "type": "http", "scheme": "bearer",
        } },
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"], "skills": [],
        "supportsAuthenticatedExtendedCard": false,
    })
}

fn texts(card: &Value) -> Vec<String> {
    let forms = forms_to_sign(card).unwrap().into_iter();
    forms.map(|(form, _)| String::from_utf8(form).unwrap()).collect()
}

#[test]
fn cards_that_sdks_have_signed_are_verified() {
    let keys = PublicKeys::from_pem(KEYS).unwrap();
    let other = PublicKeys::from_iter([&SigningKey::generate(Algorithm::Es256).unwrap().with_id("k")]);
    for (sdk, card) in VECTORS {
        verify(card.as_bytes(), &keys).unwrap_or_else(|error| panic!("{sdk}: {error}"));
        let changed = card.replace("1.0.0", "1.0.1");
        assert!(matches!(verify(changed.as_bytes(), &keys), Err(VerifyError::Invalid(_))), "{sdk}");
        assert!(matches!(verify(card.as_bytes(), &other), Err(VerifyError::Invalid(_))), "{sdk}");
    }
}

#[test]
fn each_distinct_form_is_signed() {
    let common = r#""capabilities":{"extendedAgentCard":false,"pushNotifications":false,"streaming":true},"defaultInputModes":["text/plain"],"defaultOutputModes":["text/plain"],"#;
    let schemes = r#""securitySchemes":{"bearer":{"httpAuthSecurityScheme":{"scheme":"bearer"}}},"#;
    let interfaces = r#""supportedInterfaces":[{"protocolBinding":"JSONRPC","protocolVersion":"1.0","url":"https://agent.example/rpc"}],"version":"1.0.0"}"#;
    let specified = format!(r#"{{{common}"description":"","name":"Ω",{schemes}"skills":[],{interfaces}"#);
    let sdk = format!(r#"{{{common}"name":"Ω",{schemes}{interfaces}"#);
    let python_v03 = concat!(
        r#"{"capabilities":{"pushNotifications":false,"streaming":true},"defaultInputModes":["text/plain"],"#,
        r#""defaultOutputModes":["text/plain"],"name":"\u03a9","securitySchemes":{"bearer":{"scheme":"bearer"}},"#,
        r#""supportsAuthenticatedExtendedCard":false,"url":"https://agent.example/rpc","version":"1.0.0"}"#,
    );
    assert_eq!(texts(&merged()), [specified, sdk, python_v03.to_owned()]);
    let mut full = merged();
    full["description"] = "Description".into();
    full["skills"] = json!([{ "id": "s", "name": "S", "description": "d", "tags": ["t"] }]);
    assert_eq!(texts(&full).len(), 2, "without empty members, both forms of 1.0 are equal");
}

#[test]
fn signed_cards_are_verified_until_they_change() {
    for algorithm in [Algorithm::Es256, Algorithm::EdDsa] {
        let (old, new) = (SigningKey::generate(algorithm).unwrap(), SigningKey::generate(algorithm).unwrap());
        let signed = sign(merged().to_string().as_bytes(), &old).unwrap();
        let rotated = sign(&signed, &new).unwrap();
        let again = sign(&rotated, &new).unwrap();
        let count =
            |card: &[u8]| serde_json::from_slice::<Value>(card).unwrap()["signatures"].as_array().unwrap().len();
        assert_eq!([count(&signed), count(&rotated), count(&again)], [3, 6, 6]);
        for key in [&old, &new] {
            assert_eq!(verify(&rotated, &PublicKeys::from_iter([key])).unwrap(), Verified { v1: true, v03: true });
        }
        for (member, value) in
            [("name", json!("Other")), ("url", json!("https://b.example")), ("skills", json!([{ "id": "s" }]))]
        {
            let mut card: Value = serde_json::from_slice(&signed).unwrap();
            card[member] = value;
            let result = verify(card.to_string().as_bytes(), &PublicKeys::from_iter([&old]));
            if member == "url" {
                assert_eq!(result.unwrap(), Verified { v1: true, v03: false }, "not a member of 1.0");
            } else {
                assert!(matches!(result, Err(VerifyError::Invalid(SignatureError::Wrong))), "{member}");
            }
        }
    }
}

#[test]
fn documents_without_a_valid_signature_are_rejected() {
    let keys = PublicKeys::from_pem(KEYS).unwrap();
    let with = |signatures: Value| {
        let mut card = merged();
        card["signatures"] = signatures;
        verify(card.to_string().as_bytes(), &keys)
    };
    for signatures in [json!([]), json!({}), Value::Null] {
        assert!(matches!(with(signatures.clone()), Err(VerifyError::Unsigned)), "{signatures}");
    }
    for signatures in [json!([7]), json!([{ "protected": "", "signature": "" }]), json!([{ "signature": "AAAA" }])] {
        assert!(
            matches!(with(signatures.clone()), Err(VerifyError::Invalid(SignatureError::Malformed))),
            "{signatures}"
        );
    }
    // A valid signature beyond the bound is not reached.
    let (_, vector) = VECTORS[0];
    let mut card: Value = serde_json::from_str(vector).unwrap();
    let valid = card["signatures"][0].clone();
    card["signatures"] = vec![json!({}); MAX_SIGNATURES - 1].into();
    card["signatures"].as_array_mut().unwrap().push(valid);
    verify(card.to_string().as_bytes(), &keys).unwrap();
    card["signatures"].as_array_mut().unwrap().insert(0, json!({}));
    assert!(verify(card.to_string().as_bytes(), &keys).is_err());
    for text in ["", "[]", "7"] {
        assert!(matches!(verify(text.as_bytes(), &keys), Err(VerifyError::NotCard(_))), "{text}");
    }
}

#[test]
fn signed_cards_are_cached_within_bounds() {
    let signer = CardSigner::new(SigningKey::generate(Algorithm::Es256).unwrap());
    let card = |n: usize| json!({ "name": n.to_string(), "supportedInterfaces": [] }).to_string();
    // Signatures of ES256 are random.
    let first = signer.sign(card(0).as_bytes()).unwrap();
    assert_eq!(signer.sign(card(0).as_bytes()).unwrap(), first);
    for n in 1..=MAX_CACHED {
        signer.sign(card(n).as_bytes()).unwrap();
    }
    assert_ne!(signer.sign(card(0).as_bytes()).unwrap(), first, "the oldest is evicted");
    assert_eq!(signer.cache.lock().0.len(), MAX_CACHED);
    let mut cache = Cache::default();
    for n in 0..5_u8 {
        cache.insert(n.to_string(), Bytes::from(vec![0; MAX_CACHED_BYTES / 2]));
    }
    cache.insert("9".to_owned(), Bytes::from(vec![0; MAX_CACHED_BYTES + 1]));
    assert_eq!((cache.0.len(), cache.bytes()), (2, MAX_CACHED_BYTES));
}
