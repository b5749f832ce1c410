//! Skill that a message is for, as its metadata names it.

use super::{Kind, Struct};
use crate::protocol::messages::v1::SendMessageRequest;

/// Member of the metadata of a message or of its request that names the skill to which it is sent.
pub(crate) const SKILL_ID: &str = "skillId";

/// Returns the skills that a send names in the metadata of its message and of the request: the agent may read either. A value
/// that is no text is the skill `?`, which no scope has.
pub(crate) fn skill_ids(request: &SendMessageRequest) -> Vec<&str> {
    let message = request.message.as_ref().and_then(|message| message.metadata.as_ref());
    let named = [message, request.metadata.as_ref()].into_iter().flatten().filter_map(|metadata: &Struct| {
        let value = metadata.fields.get(SKILL_ID)?;
        Some(if let Some(Kind::StringValue(id)) = &value.kind { id.as_str() } else { "?" })
    });
    named.collect()
}
