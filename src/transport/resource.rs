//! Resources beside the bindings: card, catalog, keys, documents, health and metrics.

pub(crate) mod card;
pub(crate) mod catalog;
pub(crate) mod documents;
pub(crate) mod health;
pub(crate) mod key_set;
pub(crate) mod metrics;
pub(crate) mod protected_resource;
