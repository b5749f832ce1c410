//! Signatures of push notifications, with which receivers verify sender and content.

use aws_lc_rs::hmac;
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD},
};

/// Prefix of a token that is a secret of Standard Webhooks in base64.
pub(super) const SECRET_PREFIX: &str = "whsec_";

/// Returns the signature of [Standard Webhooks](https://www.standardwebhooks.com): HMAC-SHA256 over id, timestamp and body.
///
/// The key is the token of the configuration: decoded from base64 if it begins with `whsec_`, else its UTF-8 bytes.
pub(crate) fn webhook_signature(token: &str, id: &str, timestamp: &str, body: &[u8]) -> Vec<u8> {
    let decode = |text: &str| STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text)).ok();
    let key = token.strip_prefix(SECRET_PREFIX).and_then(decode);
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_deref().unwrap_or(token.as_bytes()));
    let mut context = hmac::Context::with_key(&key);
    for part in [id.as_bytes(), b".", timestamp.as_bytes(), b".", body] {
        context.update(part);
    }
    context.sign().as_ref().to_vec()
}
