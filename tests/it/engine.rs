//! What the engine promises: by which way a call came in does not matter to any of it.

mod cancel;
mod drain;
mod readers;
mod shown;
mod support;
mod turns;
mod waits;
