//! Resources beside the bindings: card, catalog, keys, documents, health, metrics and the operator API.

pub(crate) mod card;
pub(crate) mod catalog;
pub(crate) mod console;
pub(crate) mod documents;
pub(crate) mod health;
pub(crate) mod metrics;
pub(crate) mod operator;
pub(crate) mod protected_resource;
