//! Limits on the calls of a service: how many are in progress, and how many an owner may make per second.

use std::sync::Arc;

use super::Limits;
use crate::{
    base::metric::LimitUse,
    engine::execution::{RETRY_AFTER, limit_error},
    protocol::{
        call::{Call, OwnerCounts, OwnerPermit, RateLimit, Reached},
        error::Error,
    },
};

/// Number of calls in progress and rate of calls, by owner.
pub(super) struct CallLimits {
    calls: Arc<OwnerCounts>,
    rate: RateLimit<Arc<str>>,
    per_second: u32,
}

impl CallLimits {
    pub(super) fn new(limits: &Limits) -> Self {
        let per_second = limits.call_rate_per_owner;
        let calls = OwnerCounts::new(limits.calls, limits.calls_per_owner);
        Self { calls, rate: RateLimit::new(per_second), per_second }
    }

    /// Returns the use of the limit of calls in progress.
    pub(super) fn in_use(&self) -> LimitUse {
        let (used, max) = self.calls.in_use();
        LimitUse::new("calls", used, max)
    }

    /// Counts a unary call. It is in progress until the permit is dropped.
    ///
    /// # Errors
    /// `ResourceExhausted` if its owner has too many calls in progress or within this second, or if all have.
    pub(super) fn unary(&self, call: &Call) -> Result<OwnerPermit, Error> {
        self.streaming(call)?;
        self.calls.acquire(&call.owner).map_err(|reached| {
            let (name, why) = match reached {
                Reached::Total(max) => ("calls", format!("{max} calls are in progress")),
                Reached::Owner(max) => ("calls_per_owner", format!("{max} of your calls are in progress")),
            };
            limit_error(name, format!("{why}; retry later (limits.streams)")).retry_after(RETRY_AFTER)
        })
    }

    /// Counts a streaming call, which has a limit of its own while it is open.
    ///
    /// # Errors
    /// `ResourceExhausted` if its owner has made too many calls within this second.
    pub(super) fn streaming(&self, call: &Call) -> Result<(), Error> {
        // Callers without a name share one owner: they are limited by address.
        if call.owner.is_empty() || call.is_counted {
            return Ok(());
        }
        self.rate.count(&call.owner).map_err(|wait| {
            let why = format!("more than {} calls of yours per second (limits.call_rate_per_owner)", self.per_second);
            limit_error("call_rate_per_owner", why).retry_after(wait)
        })
    }
}
