//! Tests of the engine through the service trait in process, independent of any transport binding.

mod agent;
mod allocations;
mod cancel;
mod chaos;
mod cluster;
mod contexts;
mod drain;
mod durability;
mod fairness;
mod idempotency;
mod list;
mod outage;
mod readers;
mod rejected_commits;
mod replicas;
mod retention;
mod simulation;
pub(crate) mod support;
mod turns;
mod waiting;
