//! What a send is known by when it comes again: the key that its sender gave it, or the id of its message.

use prost::Message as _;

use crate::{
    call::{Call, IDEMPOTENCY_KEY},
    error::Error,
    execution::IdempotencyKey,
    fingerprint::fingerprint,
    pb::v1::{SendMessageConfiguration, SendMessageRequest},
};

/// How long a key may be.
const LONGEST: usize = 255;

/// What makes two sends the same one, where their sender gives them no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dedupe {
    /// Nothing: whoever writes clients by hand uses ids twice.
    #[default]
    Off,
    /// The id of the message, as a key (3.3.1).
    MessageId,
}

impl Dedupe {
    /// The name of a send, where it has one.
    pub(super) fn name(self, call: &Call, sent: &SendMessageRequest) -> Result<Option<Box<IdempotencyKey>>, Error> {
        // Ids of messages are no keys, and a key is no id of a message.
        let key = match (&call.idempotency_key, &sent.message) {
            (Some(key), _) if key.len() > LONGEST => {
                let why = format!("has {} bytes, of at most {LONGEST}", key.len());
                return Err(Error::invalid_field(IDEMPOTENCY_KEY.as_str(), why));
            }
            (Some(key), _) => format!("key:{key}"),
            (None, Some(message)) if self == Self::MessageId => format!("message:{}", message.message_id),
            (None, _) => return Ok(None),
        };
        Ok(Some(Box::new(IdempotencyKey::new(key.into(), hash(sent)))))
    }
}

/// Tells what is sent from anything else. How its sender wants to be answered is no part of it.
fn hash(sent: &SendMessageRequest) -> [u8; 16] {
    let configuration = sent.configuration.as_ref().map(|it| SendMessageConfiguration {
        accepted_output_modes: it.accepted_output_modes.clone(),
        task_push_notification_config: it.task_push_notification_config.clone(),
        ..SendMessageConfiguration::default()
    });
    // None at all says the same as an empty one.
    let configuration = configuration.filter(|it| *it != SendMessageConfiguration::default());
    let (message, metadata) = (sent.message.clone(), sent.metadata.clone());
    let sent = SendMessageRequest { tenant: String::new(), message, configuration, metadata };
    fingerprint(&sent.encode_to_vec()).to_be_bytes()
}
