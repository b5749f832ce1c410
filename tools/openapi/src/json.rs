//! JSON values whose members keep their order, so that a document reads in the order in which it is built.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Number;

/// JSON value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// Number.
    Number(Number),
    /// String.
    String(String),
    /// Array.
    Array(Vec<Self>),
    /// Object, with its members in order.
    Object(IndexMap<String, Self>),
}

impl Json {
    /// Converts a value that is serializable as JSON. A value that is not becomes null.
    pub(super) fn of(value: &impl Serialize) -> Self {
        let text = serde_json::to_string(value).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or(Self::Null)
    }

    /// Moves `application/json` in front of other media types, since generators of clients prefer the first one.
    pub(super) fn json_first(&mut self) {
        match self {
            Self::Object(members) => {
                if let Some(index) = members.get_index_of("application/json") {
                    members.move_index(index, 0);
                }
                members.values_mut().for_each(Self::json_first);
            }
            Self::Array(items) => items.iter_mut().for_each(Self::json_first),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) => {}
        }
    }

    /// Returns the value as JSON, indented by two spaces, with a line break at the end.
    pub fn pretty(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}
