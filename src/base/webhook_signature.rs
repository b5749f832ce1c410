//! Signatures of [Standard Webhooks](https://www.standardwebhooks.com), with which receivers verify sender and content of
//! push notifications: headers, and HMAC-SHA256 over id, timestamp and body.
//!
//! The key is the token of the configuration: decoded from base64 if it begins with `whsec_`, else its UTF-8 bytes.

use aws_lc_rs::hmac;
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};
use http::HeaderName;
use subtle::ConstantTimeEq as _;

pub(crate) const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
pub(crate) const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
pub(crate) const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Prefix of a token that is a secret of Standard Webhooks in base64.
pub(crate) const SECRET_PREFIX: &str = "whsec_";

/// Prefix of a signature with a symmetric key.
const VERSION: &str = "v1,";

/// Returns the value of `webhook-signature` for a token.
pub(crate) fn sign(token: &str, id: &str, timestamp: &str, body: &[u8]) -> String {
    format!("{VERSION}{}", STANDARD.encode(hmac(token, id, timestamp, body)))
}

/// Returns true if a value of `webhook-signature` has a signature that was made with one of the tokens. Several signatures
/// are separated by spaces, so that a sender can change its secret.
pub(crate) fn is_signed(value: &str, tokens: &[&String], id: &str, timestamp: &str, body: &[u8]) -> bool {
    let signatures = value.split(' ').filter_map(|one| STANDARD.decode(one.strip_prefix(VERSION)?).ok());
    let signatures: Vec<Vec<u8>> = signatures.collect();
    tokens.iter().any(|token| {
        let expected = hmac(token, id, timestamp, body);
        signatures.iter().any(|signature| signature.ct_eq(&expected).into())
    })
}

fn hmac(token: &str, id: &str, timestamp: &str, body: &[u8]) -> Vec<u8> {
    let decode = |text: &str| STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text)).ok();
    let key = token.strip_prefix(SECRET_PREFIX).and_then(decode);
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_deref().unwrap_or(token.as_bytes()));
    let mut context = hmac::Context::with_key(&key);
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        context.update(part);
    }
    context.sign().as_ref().to_vec()
}
