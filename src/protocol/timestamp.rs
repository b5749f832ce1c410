//! Timestamps of the protocol, and their conversions.

use crate::{base::clock::Millis, protocol::json::wkt::Timestamp};

/// Converts to a protobuf timestamp.
pub fn timestamp(millis: Millis) -> Timestamp {
    let nanos = i32::try_from(millis.rem_euclid(1000) * 1_000_000).unwrap_or(0);
    Timestamp { seconds: millis.div_euclid(1000), nanos }
}

/// Converts a protobuf timestamp to milliseconds. Truncates finer fractions.
pub fn millis(time: &Timestamp) -> Millis {
    time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos / 1_000_000))
}

/// Raises a time to `last` if it is earlier, and returns it: timestamps of a task do not go back when the system clock is set back.
pub(crate) fn raise(time: &mut Timestamp, last: Millis) -> Millis {
    let given = millis(time);
    if given < last {
        *time = timestamp(last);
    }
    given.max(last)
}
