//! What the engine promises: by which way a call came in does not matter to any of it.

mod agent;
mod away;
mod cancel;
mod chaos;
mod contexts;
mod drain;
mod flat;
mod keeping;
mod list;
mod once;
mod readers;
mod rejected;
mod shown;
pub(crate) mod support;
mod turns;
mod waits;
