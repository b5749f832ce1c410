//! Turns of an agent, and the commits of their events.

pub mod agent;
pub(crate) mod execution;
#[doc(hidden)]
pub mod journal;
