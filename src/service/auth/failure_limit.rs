//! Limit on failed authentications per client address.
//!
//! `governor` limits requests before they are known to fail; here only failures count, and valid credentials always pass.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{CREDENTIALS, MISSING};
use crate::{
    base::network::network_of,
    protocol::error::{Error, ErrorKind},
};

/// Default number of failures of an address within [`WINDOW`] after which further ones get 429.
pub(crate) const FAILURES: usize = 20;

/// Period in which failures are counted.
const WINDOW: Duration = Duration::from_mins(1);

/// Maximum number of addresses that are counted at a time.
const MAX_ADDRESSES: usize = 10_000;

/// Failed authentications by client address. An IPv6 /64 network counts as one address.
#[derive(Debug)]
pub(crate) struct FailureLimit {
    max: usize,
    failures: Mutex<HashMap<IpAddr, Failures>>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    since: Instant,
    count: usize,
}

impl FailureLimit {
    /// Creates a limit of `max` failures per minute and address. Zero: no limit.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, failures: Mutex::default() }
    }

    /// Counts a failure, and returns the error to answer it with: the same, or that there were too many. Requests without
    /// credentials are not counted, nor are failures of the server.
    pub(crate) fn count(&self, error: Error, peer: Option<IpAddr>) -> Error {
        let is_guess = error.kind() == ErrorKind::Unauthenticated && error.metadata(CREDENTIALS) != Some(MISSING);
        let Some(addr) = peer.filter(|_| is_guess && self.max > 0) else { return error };
        let addr = network_of(addr);
        let now = Instant::now();
        let is_current = |failures: &Failures| now.duration_since(failures.since) < WINDOW;
        let mut all = self.failures.lock();
        if all.len() >= MAX_ADDRESSES && !all.contains_key(&addr) {
            all.retain(|_, failures| is_current(failures));
            // So many addresses at once are an attack. Only the oldest one begins anew.
            if all.len() >= MAX_ADDRESSES
                && let Some(oldest) = all.iter().min_by_key(|(_, failures)| failures.since).map(|(addr, _)| *addr)
            {
                all.remove(&oldest);
            }
        }
        let failures = all.entry(addr).or_insert(Failures { since: now, count: 0 });
        if !is_current(failures) {
            *failures = Failures { since: now, count: 0 };
        }
        failures.count = failures.count.saturating_add(1);
        if failures.count <= self.max {
            return error;
        }
        let left = WINDOW.saturating_sub(now.duration_since(failures.since));
        let why = format!("more than {} failed authentications per minute from one client address", self.max);
        ErrorKind::ResourceExhausted.because(why).limit("failed_authentications").retry_after(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(limit: &FailureLimit, addr: &str) -> ErrorKind {
        limit.count(ErrorKind::Unauthenticated.error(), Some(addr.parse().unwrap())).kind()
    }

    #[tokio::test(start_paused = true)]
    async fn failures_beyond_the_limit_get_429_until_the_window_ends() {
        let limit = FailureLimit::new(FAILURES);
        for _ in 0..FAILURES {
            assert_eq!(fail(&limit, "192.0.2.1"), ErrorKind::Unauthenticated);
        }
        let missing = ErrorKind::Unauthenticated.error().with(CREDENTIALS, MISSING);
        let peer = Some("192.0.2.1".parse().unwrap());
        assert_eq!(limit.count(missing, peer).kind(), ErrorKind::Unauthenticated, "not a guess");
        let error = limit.count(ErrorKind::Unauthenticated.error(), peer);
        assert_eq!((error.kind(), error.retry_after_seconds()), (ErrorKind::ResourceExhausted, Some(60)));
        assert_eq!(fail(&limit, "192.0.2.2"), ErrorKind::Unauthenticated, "another address");
        tokio::time::advance(WINDOW).await;
        assert_eq!(fail(&limit, "192.0.2.1"), ErrorKind::Unauthenticated);
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_addresses_is_bounded_and_networks_of_ipv6_are_one() {
        let limit = FailureLimit::new(FAILURES);
        for n in 0..2 * MAX_ADDRESSES {
            let n = u32::try_from(n).unwrap();
            fail(&limit, &std::net::Ipv4Addr::from_bits(n).to_string());
            assert!(limit.failures.lock().len() <= MAX_ADDRESSES);
            if n % 100 == 0 {
                tokio::time::advance(Duration::from_millis(1)).await;
            }
        }
        let newest = u32::try_from(2 * MAX_ADDRESSES - 1).unwrap();
        assert!(limit.failures.lock().contains_key(&std::net::Ipv4Addr::from_bits(newest - 5000).into()));
        assert!(!limit.failures.lock().contains_key(&std::net::Ipv4Addr::from_bits(1).into()));
        let limit = FailureLimit::new(FAILURES);
        for n in 0..FAILURES {
            fail(&limit, &format!("2001:db8::{n:x}"));
        }
        assert_eq!(fail(&limit, "2001:db8::ffff"), ErrorKind::ResourceExhausted);
    }
}
