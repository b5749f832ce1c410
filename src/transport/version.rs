//! Which versions of the protocol a server speaks.

use std::fmt;

use http::Extensions;

use crate::call::Version;

/// A set of versions.
///
/// ```
/// use a2a_service::{call::Version, transport::Protocols};
///
/// let protocols: Protocols = [Version::V1_0].into_iter().collect();
/// assert!(protocols.has(Version::V1_0) && !protocols.has(Version::V0_3));
/// assert_eq!(Protocols::default().to_string(), "1.0, 0.3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocols {
    v1_0: bool,
    v0_3: bool,
}

impl Default for Protocols {
    /// All that there are.
    fn default() -> Self {
        Self::NEWEST_FIRST.into_iter().collect()
    }
}

impl Protocols {
    const NEWEST_FIRST: [Version; 2] = [Version::V1_0, Version::V0_3];

    /// Whether this one is spoken.
    pub const fn has(self, version: Version) -> bool {
        match version {
            Version::V1_0 => self.v1_0,
            Version::V0_3 => self.v0_3,
        }
    }

    /// Stores on a request which protocol versions are served, for errors before its body is read. All versions are the
    /// default, and are not stored.
    pub(super) fn note(self, extensions: &mut Extensions) {
        if self != Self::default() {
            extensions.insert(self);
        }
    }

    /// Returns the protocol versions stored on a request.
    pub(super) fn noted(extensions: &Extensions) -> Self {
        extensions.get().copied().unwrap_or_default()
    }

    /// Those that are spoken, the newest first.
    pub fn iter(self) -> impl Iterator<Item = Version> {
        Self::NEWEST_FIRST.into_iter().filter(move |it| self.has(*it))
    }
}

impl FromIterator<Version> for Protocols {
    fn from_iter<I: IntoIterator<Item = Version>>(versions: I) -> Self {
        versions.into_iter().fold(Self { v1_0: false, v0_3: false }, |all, it| match it {
            Version::V1_0 => Self { v1_0: true, ..all },
            Version::V0_3 => Self { v0_3: true, ..all },
        })
    }
}

impl fmt::Display for Protocols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Version::as_str).collect();
        f.write_str(&names.join(", "))
    }
}
