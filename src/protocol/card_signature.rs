//! Signatures of agent cards (8.4): JSON Web Signatures over a canonical form of the card without its signatures.
//!
//! The specification defines one form: the JSON of 1.0 without default values, canonicalized as in RFC 8785. The SDKs of 1.0
//! also remove empty required members, and 0.3 has no definition, so that the Python SDK of 0.3 has a form of its own. A card
//! gets one signature for each form that differs, since a verifier accepts a card of which one signature is valid.
//!
//! ```
//! use a2a_service::{
//!     card::signature::{VerifyError, sign, verify},
//!     jose::{Algorithm, PublicKeys, SigningKey},
//! };
//!
//! let key = SigningKey::generate(Algorithm::Es256)?;
//! let card = br#"{"name": "Geo", "supportedInterfaces": [], "version": "1.0.0"}"#;
//! let signed = sign(card, &key)?;
//! let keys: PublicKeys = [&key].into_iter().collect();
//! assert!(verify(&signed, &keys).is_ok());
//! assert!(matches!(verify(card, &keys), Err(VerifyError::Unsigned)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::{
    collections::{BTreeMap, HashSet, VecDeque},
    fmt::Write as _,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    base::jws::{Jws, KeyError, PublicKeys, SignatureError, SigningKey, sha256_hex},
    protocol::{
        json::is_empty,
        pb::v1::{AgentCard, AgentCardSignature},
        v03::card as v03,
        version::Version,
    },
};

/// Header parameter `typ` of signatures, as the specification recommends (8.4.2).
const MEDIA_TYPE: &str = "JOSE";

/// Maximum number of signatures of a card that are verified.
const MAX_SIGNATURES: usize = 32;

/// Maximum number of signed cards that a server caches. Cards differ by the URLs at which clients reach the server.
const MAX_CACHED: usize = 64;

/// Maximum total size of cached cards, in bytes.
const MAX_CACHED_BYTES: usize = 4 << 20;

/// Reason why a card can't be signed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The document is not the JSON of an agent card.
    #[error("expected an agent card in JSON: {0}")]
    NotCard(#[from] serde_json::Error),
    /// The key can't sign.
    #[error("{0}")]
    Key(#[from] KeyError),
}

/// Reason why a card is not verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The document is not the JSON of an agent card.
    #[error("expected an agent card in JSON: {0}")]
    NotCard(#[from] serde_json::Error),
    /// The card has no signatures.
    #[error("the card is not signed")]
    Unsigned,
    /// None of the signatures is valid for this content and these keys.
    #[error("none of the signatures of the card is valid: {0}")]
    Invalid(SignatureError),
}

/// Members of a card that valid signatures cover. Members of neither version are covered only if all are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The members of 1.0, such as `supportedInterfaces`.
    pub v1: bool,
    /// The members of 0.3, such as `url`. A card of both versions may have signatures for 1.0 only.
    pub v03: bool,
}

/// Signs the JSON of a card of 1.0, of 0.3, or of both merged. Replaces signatures with the same key id, and keeps others.
///
/// # Errors
/// [`SignError`].
pub fn sign(card: &[u8], key: &SigningKey) -> Result<Vec<u8>, SignError> {
    let mut card: Map<String, Value> = serde_json::from_slice(card)?;
    let existing = card.remove("signatures");
    let mut signatures = match existing {
        Some(Value::Array(signatures)) => signatures,
        _ => Vec::new(),
    };
    signatures.retain(|signature| key_id(signature).as_deref() != Some(key.id()));
    let card = Value::Object(card);
    for (form, _) in forms_to_sign(&card)? {
        let Jws { protected, signature, .. } = key.sign(MEDIA_TYPE, &form)?;
        signatures.push(json!({ "protected": protected, "signature": signature }));
    }
    let mut card = card;
    card["signatures"] = signatures.into();
    Ok(serde_json::to_vec(&card)?)
}

/// Verifies the JSON of a card of 1.0, of 0.3, or of both merged: one of its first 32 signatures has to be valid for one of the
/// given keys and one of the known canonical forms. Keys that the card itself names (`jku`) are never fetched.
/// Returns the versions whose members are covered by valid signatures: at least one.
///
/// # Errors
/// [`VerifyError`].
pub fn verify(card: &[u8], keys: &PublicKeys) -> Result<Verified, VerifyError> {
    let mut card: Map<String, Value> = serde_json::from_slice(card)?;
    let signatures = match card.remove("signatures") {
        Some(Value::Array(signatures)) if !signatures.is_empty() => signatures,
        _ => return Err(VerifyError::Unsigned),
    };
    let card = Value::Object(card);
    let forms: Vec<(String, Verified)> =
        known_forms(&card)?.iter().map(|(form, covered)| (URL_SAFE_NO_PAD.encode(form), *covered)).collect();
    let mut verified = Verified::default();
    let mut reason = SignatureError::Malformed;
    for signature in signatures.into_iter().take(MAX_SIGNATURES) {
        // The member `header` is not protected and has no meaning here.
        let Ok(AgentCardSignature { protected, signature, .. }) = serde_json::from_value(signature) else { continue };
        for (form, covered) in &forms {
            match keys.verify(&protected, form, &signature) {
                Ok(()) => {
                    verified.v1 |= covered.v1;
                    verified.v03 |= covered.v03;
                }
                Err(error) => reason = error,
            }
        }
    }
    if verified.v1 || verified.v03 { Ok(verified) } else { Err(VerifyError::Invalid(reason)) }
}

/// Returns the key id in the protected header of a signature.
fn key_id(signature: &Value) -> Option<String> {
    let protected = URL_SAFE_NO_PAD.decode(signature.get("protected")?.as_str()?).ok()?;
    let header: Value = serde_json::from_slice(&protected).ok()?;
    header["kid"].as_str().map(str::to_owned)
}

fn is_v1(card: &Value) -> bool {
    card.get("supportedInterfaces").is_some_and(Value::is_array)
}

fn is_v03(card: &Value) -> bool {
    card.get("url").is_some()
}

/// Canonical form, and what it covers.
type Form = (Vec<u8>, Verified);

/// Returns the canonical forms that a card is signed in, each once.
fn forms_to_sign(card: &Value) -> serde_json::Result<Vec<Form>> {
    const V1: Verified = Verified { v1: true, v03: false };
    const V03: Verified = Verified { v1: false, v03: true };
    let mut forms = Vec::new();
    if is_v1(card) {
        let card = v1_members(card)?;
        forms.push((canonical(&card)?, V1));
        forms.push((canonical(&without_empty(card))?, V1));
    } else {
        forms.push((canonical(card)?, V03));
    }
    if is_v03(card) {
        forms.push((python_v03(card)?, V03));
    }
    Ok(distinct(forms))
}

/// Returns the canonical forms that a signature may cover, each once: those that a card is signed in, and those of the document
/// as it was received, which may have members that are unknown here.
fn known_forms(card: &Value) -> serde_json::Result<Vec<Form>> {
    let all = Verified { v1: is_v1(card), v03: is_v03(card) || !is_v1(card) };
    let cleaned = without_empty(card.clone());
    let mut forms = vec![(canonical(card)?, all), (canonical(&cleaned)?, all), (ascii(&cleaned).into_bytes(), all)];
    forms.extend(forms_to_sign(card)?);
    Ok(distinct(forms))
}

/// Keeps the first of equal forms.
fn distinct(mut forms: Vec<Form>) -> Vec<Form> {
    let mut known = HashSet::new();
    forms.retain(|(form, _)| known.insert(form.clone()));
    forms
}

/// Returns the members of 1.0: required ones also if they are empty, and optional ones if they are set (8.4.1).
fn v1_members(card: &Value) -> serde_json::Result<Value> {
    let mut card: AgentCard = AgentCard::deserialize(card)?;
    card.signatures.clear();
    serde_json::to_value(card)
}

/// Returns canonical JSON (RFC 8785).
fn canonical(value: &Value) -> serde_json::Result<Vec<u8>> {
    serde_json_canonicalizer::to_vec(value)
}

/// Removes empty strings, lists and objects, and null, recursively.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Array(items) => {
            items.into_iter().map(without_empty).filter(|item| !is_empty(item)).collect::<Vec<_>>().into()
        }
        Value::Object(members) => {
            let members = members.into_iter().map(|(name, value)| (name, without_empty(value)));
            let sorted: BTreeMap<String, Value> = members.filter(|(_, value)| !is_empty(value)).collect();
            Value::Object(sorted.into_iter().collect())
        }
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}

/// Returns the form of the Python SDK of 0.3: the members of 0.3 without empty ones and without those that have the default
/// value of the SDK, sorted, in ASCII.
fn python_v03(card: &Value) -> serde_json::Result<Vec<u8>> {
    let mut known = serde_json::to_value(v03::from_value(card.clone())?)?;
    retain_common(&mut known, card);
    if let Some(members) = known.as_object_mut() {
        members.remove("signatures");
        for (name, default) in
            [("protocolVersion", v03::PROTOCOL_VERSION), ("preferredTransport", v03::DEFAULT_TRANSPORT)]
        {
            if members.get(name).and_then(Value::as_str) == Some(default) {
                members.remove(name);
            }
        }
    }
    for scheme in known.get_mut("securitySchemes").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut)
    {
        scheme.as_object_mut().and_then(|scheme| scheme.remove("type"));
    }
    Ok(ascii(&without_empty(known)).into_bytes())
}

/// Removes the members that another document lacks, and takes the values of the others from it.
fn retain_common(value: &mut Value, other: &Value) {
    match (value, other) {
        (Value::Object(members), Value::Object(others)) => {
            members.retain(|name, _| others.contains_key(name));
            for (name, value) in members {
                retain_common(value, others.get(name).unwrap_or(&Value::Null));
            }
        }
        (Value::Array(items), Value::Array(others)) => {
            items.iter_mut().zip(others).for_each(|(item, other)| retain_common(item, other));
        }
        (value, other) => other.clone_into(value),
    }
}

/// Returns the JSON of a value in ASCII, without spaces.
fn ascii(value: &Value) -> String {
    let json = value.to_string();
    let mut escaped = String::with_capacity(json.len());
    // All escapes of JSON, and those of DEL and of other characters than ASCII.
    for character in json.chars() {
        if character.is_ascii() && character != '\u{7f}' {
            escaped.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                _ = write!(escaped, "\\u{unit:04x}");
            }
        }
    }
    escaped
}

/// Signs the cards of a server, and caches them.
#[derive(Clone, Debug)]
pub(crate) struct CardSigner {
    key: Arc<SigningKey>,
    cache: Arc<Mutex<Cache>>,
}

/// Signed cards with the SHA-256 digests of their unsigned JSON. The oldest is evicted first.
#[derive(Debug, Default)]
struct Cache(VecDeque<(String, Bytes)>);

impl CardSigner {
    pub(crate) fn new(key: SigningKey) -> Self {
        Self { key: Arc::new(key), cache: Arc::default() }
    }

    pub(crate) fn key(&self) -> &SigningKey {
        &self.key
    }

    /// Signs the JSON of a card that has no signatures.
    pub(crate) fn sign(&self, card: &[u8]) -> Result<Bytes, SignError> {
        let digest = sha256_hex(card);
        if let Some((_, signed)) = self.cache.lock().0.iter().find(|(known, _)| *known == digest) {
            return Ok(signed.clone());
        }
        let signed = Bytes::from(sign(card, &self.key)?);
        self.cache.lock().insert(digest, signed.clone());
        Ok(signed)
    }

    /// Signs a card that is sent in the form of a protocol version.
    pub(crate) fn sign_message(&self, mut card: AgentCard, version: Version) -> AgentCard {
        let signatures = || -> Result<_, SignError> {
            let unsigned = match version {
                Version::V1_0 => serde_json::to_vec(&card)?,
                Version::V0_3 => serde_json::to_vec(&v03::v03_card(&card))?,
            };
            let mut signed: Value = serde_json::from_slice(&self.sign(&unsigned)?)?;
            Ok(serde_json::from_value(signed["signatures"].take())?)
        };
        match signatures() {
            Ok(signatures) => card.signatures = signatures,
            Err(error) => tracing::error!(error.cause = %error, "extended agent card not signed"),
        }
        card
    }
}

impl Cache {
    fn insert(&mut self, digest: String, card: Bytes) {
        let is_known = self.0.iter().any(|(known, _)| *known == digest);
        if card.len() <= MAX_CACHED_BYTES && !is_known {
            self.0.push_back((digest, card));
        }
        while self.0.len() > MAX_CACHED || self.bytes() > MAX_CACHED_BYTES {
            self.0.pop_front();
        }
    }

    fn bytes(&self) -> usize {
        self.0.iter().map(|(_, card)| card.len()).sum()
    }
}

#[cfg(test)]
mod tests;
