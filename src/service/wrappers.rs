//! Services that wrap another [`A2aService`](crate::A2aService).

pub(crate) mod authorized;
pub mod extended;
pub(crate) mod observed;
pub mod v03;
