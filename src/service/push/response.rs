//! Failures of attempts to send a notification, and responses of webhooks: which of them accept it, which ask for another
//! attempt, and when (`Retry-After`).

use std::{error::Error, time::Duration};

use http::{HeaderMap, StatusCode};

use crate::base::{clock::Millis, retry::retry_after};

/// Maximum size of a response body that is read, in bytes, so that its connection can be used again. A longer one closes it.
pub(crate) const MAX_RESPONSE: usize = 16 << 10;

/// Maximum time that a receiver can ask for before the next attempt.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Failure of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// An attempt may succeed later, not before `after`.
    Retry { reason: String, after: Option<Duration>, status: Option<u16> },
    /// No attempt was made, since too many names are being looked up. The host is not to blame.
    Busy { reason: String },
    /// No attempt can succeed.
    Rejected { reason: String, status: Option<u16> },
    /// The receiver is gone for good.
    Gone,
}

impl Failure {
    /// Creates a failure after which an attempt may succeed at any time.
    pub(crate) fn retry(reason: impl Into<String>) -> Self {
        Self::Retry { reason: reason.into(), after: None, status: None }
    }

    /// Name of the variant, for spans.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Retry { .. } => "failed",
            Self::Busy { .. } => "busy",
            Self::Rejected { .. } => "rejected",
            Self::Gone => "gone",
        }
    }
}

/// Checks whether the head of a response accepts the notification.
pub(crate) fn check_status(status: StatusCode, headers: &HeaderMap, now: Millis) -> Result<(), Failure> {
    let (reason, code) = (format!("the receiver returned {}", status.as_u16()), Some(status.as_u16()));
    Err(match status.as_u16() {
        200..300 => return Ok(()),
        410 => Failure::Gone,
        408 | 425 | 429 | 500.. => {
            let after = retry_after(headers, now).map(|after| after.min(MAX_RETRY_AFTER));
            Failure::Retry { reason, after, status: code }
        }
        300..400 => Failure::Rejected { reason: format!("{reason}; redirects are not followed"), status: code },
        _ => Failure::Rejected { reason, status: code },
    })
}

/// Describes the failure of a request to a server, without the URL, which may contain a secret.
pub(crate) fn describe(error: &reqwest::Error, server: &str) -> String {
    let what = if error.is_timeout() {
        format!("{server} did not answer in time")
    } else if error.is_connect() {
        "connecting failed".to_owned()
    } else {
        "the request failed".to_owned()
    };
    let mut cause = error.source();
    while let Some(next) = cause.and_then(Error::source) {
        cause = Some(next);
    }
    cause.map_or_else(|| what.clone(), |cause| format!("{what}: {cause}"))
}
