//! Protocol 0.3 over the service of 1.0.

mod semantics;
