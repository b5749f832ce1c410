//! Idempotency keys of sends, by which a retried send is recognized: the `Idempotency-Key` of the call, or the message id.

use prost::Message as _;

use crate::{
    call::{Call, IDEMPOTENCY_KEY},
    error::Error,
    execution::IdempotencyKey,
    fingerprint::fingerprint,
    pb::v1::{SendMessageConfiguration, SendMessageRequest},
};

/// Maximum length of an idempotency key in bytes.
const MAX_KEY_BYTES: usize = 255;

/// Idempotency key of sends without an `Idempotency-Key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DefaultKey {
    /// No key. The default, because hand-written clients may reuse message ids.
    #[default]
    Off,
    /// The message id (3.3.1).
    MessageId,
}

impl DefaultKey {
    /// Returns the idempotency key of a send, if it has one.
    pub(super) fn key(self, call: &Call, send: &SendMessageRequest) -> Result<Option<Box<IdempotencyKey>>, Error> {
        // The prefixes separate keys from message ids.
        let key = match (&call.idempotency_key, &send.message) {
            (Some(key), _) if key.len() > MAX_KEY_BYTES => {
                let why = format!("{} bytes exceed the limit of {MAX_KEY_BYTES}", key.len());
                return Err(Error::invalid_field(IDEMPOTENCY_KEY.as_str(), why));
            }
            (Some(key), _) => format!("key:{key}"),
            (None, Some(message)) if self == Self::MessageId => format!("message:{}", message.message_id),
            (None, _) => return Ok(None),
        };
        Ok(Some(Box::new(IdempotencyKey::new(key.into(), digest(send)))))
    }
}

/// Returns the digest of a send, which distinguishes a retry from another message with the same key. It excludes the tenant,
/// and options that affect only the reply (`historyLength`, `returnImmediately`).
fn digest(send: &SendMessageRequest) -> [u8; 16] {
    let configuration = send.configuration.as_ref().map(|configuration| SendMessageConfiguration {
        accepted_output_modes: configuration.accepted_output_modes.clone(),
        task_push_notification_config: configuration.task_push_notification_config.clone(),
        ..SendMessageConfiguration::default()
    });
    // An empty configuration equals a missing one.
    let configuration = configuration.filter(|configuration| *configuration != SendMessageConfiguration::default());
    let (message, metadata) = (send.message.clone(), send.metadata.clone());
    let canonical = SendMessageRequest { tenant: String::new(), message, configuration, metadata };
    fingerprint(&canonical.encode_to_vec()).to_be_bytes()
}
