//! Protocol 0.3 beside 1.0.

mod semantics;
