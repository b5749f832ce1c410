//! How often the events of a task were encoded, by form; in tests only.

use super::Event;

#[derive(Clone, Copy)]
pub(crate) enum Form {
    Proto,
    Json,
}

#[cfg(test)]
static ENCODINGS: parking_lot::Mutex<std::collections::BTreeMap<String, [usize; 2]>> =
    parking_lot::Mutex::new(std::collections::BTreeMap::new());

#[cfg(test)]
pub(super) fn encoding(event: &Event, form: Form) {
    use crate::pb::v1::stream_response::Payload;
    if let Some(Payload::ArtifactUpdate(it)) = event.payload() {
        let mut all = ENCODINGS.lock();
        let counts = all.entry(it.task_id.clone()).or_default();
        match form {
            Form::Proto => counts[0] += 1,
            Form::Json => counts[1] += 1,
        }
    }
}

/// How often artifact events of a task were encoded in protobuf, and in JSON.
#[cfg(test)]
pub(crate) fn encodings(task_id: &str) -> [usize; 2] {
    ENCODINGS.lock().get(task_id).copied().unwrap_or_default()
}

#[cfg(not(test))]
pub(super) const fn encoding(_: &Event, _: Form) {}
