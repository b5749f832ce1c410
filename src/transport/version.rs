//! Version rules: which protocol version a request is in, and which versions are accepted.

use http::Extensions;

use crate::protocol::Protocols;

/// Stores on a request which protocol versions are served, for errors before its body is read. All versions are the
/// default, and are not stored.
pub(super) fn store_protocols(protocols: Protocols, extensions: &mut Extensions) {
    if protocols != Protocols::default() {
        extensions.insert(protocols);
    }
}

/// Returns the protocol versions stored on a request.
pub(super) fn stored_protocols(extensions: &Extensions) -> Protocols {
    extensions.get().copied().unwrap_or_default()
}
