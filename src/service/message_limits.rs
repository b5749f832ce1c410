//! Limits of a message that a client sends: its number of parts, how deep its JSON is nested, and its hop count.

use super::Limits;
use crate::protocol::{
    call::HOPS,
    error::Error,
    json::wkt::MAX_DEPTH,
    message::hops,
    pb::{
        v1::{Message, Part, part::Content},
        wkt::Struct,
    },
};

/// Rejects a message with too many parts, and JSON in it or in the metadata of its request that is nested too deep. Over gRPC,
/// a request may have deeper values than those that can be read again as part of a task.
pub(super) fn check(message: &Message, metadata: Option<&Struct>, limits: &Limits) -> Result<(), Error> {
    let (parts, max) = (message.parts.len(), limits.parts);
    if parts > max {
        let why = format!("{parts} parts exceed the limit of {max}");
        return Err(Error::invalid_field("message.parts", why).limit("parts"));
    }
    let max = limits.json_depth.min(MAX_DEPTH);
    let is_deeper = |object: Option<&Struct>| object.is_some_and(|object| object.is_deeper_than(max));
    let part = |part: &Part| match part.content.as_ref() {
        Some(Content::Data(value)) if value.is_deeper_than(max) => Some("data"),
        _ if is_deeper(part.metadata.as_ref()) => Some("metadata"),
        _ => None,
    };
    let field = if is_deeper(metadata) {
        "metadata".to_owned()
    } else if is_deeper(message.metadata.as_ref()) {
        "message.metadata".to_owned()
    } else if let Some((index, field)) =
        message.parts.iter().enumerate().find_map(|(index, found)| Some((index, part(found)?)))
    {
        format!("message.parts[{index}].{field}")
    } else {
        return Ok(());
    };
    let why = format!("is nested more than {max} deep");
    Err(Error::invalid_field(field, why).limit("json_depth"))
}

/// Rejects a message that too many agents have passed on. `call` is the hop count of its call. The metadata of the message gets the
/// count of both, so that the turn has it after a restart too.
pub(super) fn count_hops(message: &mut Message, call: u32, limits: &Limits) -> Result<(), Error> {
    let (count, max) = (call.max(hops::of(message)), limits.hops);
    if count > max || count == hops::INVALID {
        let why = match count {
            hops::INVALID => format!("is not a whole number, and counts as more than {max} (limits.hops)"),
            _ => {
                format!("{count} exceeds the limit of {max} (limits.hops); the agents may call each other in a circle")
            }
        };
        return Err(Error::invalid_field(HOPS.as_str(), why).limit("hops"));
    }
    hops::set(message, count);
    Ok(())
}
