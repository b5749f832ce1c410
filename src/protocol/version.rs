//! Versions of the A2A protocol, and sets of them.

use std::fmt;

/// Protocol version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 0.3, including the parts of 0.2 that are identical.
    V0_3,
    /// 1.0.
    #[default]
    V1_0,
}

impl Version {
    /// Parses `A2A-Version`. A patch number is ignored (3.6). Returns `None` for unknown versions.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut numbers = text.trim().split('.');
        let (major, minor) = (numbers.next()?, numbers.next()?);
        if !numbers.all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())) {
            return None;
        }
        [Self::V0_3, Self::V1_0].into_iter().find(|version| version.as_str().split_once('.') == Some((major, minor)))
    }

    /// Returns the version that serves a client of the version in `A2A-Version`: 0.3 serves clients of 0.1 and 0.2 too.
    /// Returns `None` for unknown versions.
    pub(crate) fn serving(text: &str) -> Option<Self> {
        match text.trim().split('.').take(2).collect::<Vec<_>>()[..] {
            ["0", "1" | "2"] => Some(Self::V0_3),
            _ => Self::from_text(text),
        }
    }

    /// Value of `A2A-Version`: major and minor number.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_3 => "0.3",
            Self::V1_0 => "1.0",
        }
    }
}

/// Set of protocol versions that a server supports.
///
/// ```
/// use a2a_service::protocol::{Protocols, Version};
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
    /// All versions.
    fn default() -> Self {
        Self::NEWEST_FIRST.into_iter().collect()
    }
}

impl Protocols {
    const NEWEST_FIRST: [Version; 2] = [Version::V1_0, Version::V0_3];

    /// Returns true if the set has this version.
    pub const fn has(self, version: Version) -> bool {
        match version {
            Version::V1_0 => self.v1_0,
            Version::V0_3 => self.v0_3,
        }
    }

    /// Iterates over the versions, the newest first.
    pub fn iter(self) -> impl Iterator<Item = Version> {
        Self::NEWEST_FIRST.into_iter().filter(move |version| self.has(*version))
    }
}

impl FromIterator<Version> for Protocols {
    fn from_iter<I: IntoIterator<Item = Version>>(versions: I) -> Self {
        versions.into_iter().fold(Self { v1_0: false, v0_3: false }, |all, version| match version {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_major_and_minor_with_an_ignored_patch() {
        for text in ["1.0", "1.0.3", "1.0.0.7", " 1.0 "] {
            assert_eq!(Version::from_text(text), Some(Version::V1_0), "{text}");
        }
        assert_eq!(Version::from_text("0.3.0"), Some(Version::V0_3));
        for text in ["", "1", "1.", "1.1", "2.0", "1.0.", "1.0.x", "v1.0", "1.00", "1.0, 1.0", "é"] {
            assert_eq!(Version::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn earlier_versions_are_served_by_0_3() {
        for text in ["0.1", "0.2", "0.2.6", " 0.3.0 "] {
            assert_eq!(Version::serving(text), Some(Version::V0_3), "{text}");
        }
        assert_eq!(Version::serving("1.0"), Some(Version::V1_0));
        for text in ["0.0", "0.4", "0.5", "0.20", "0", "2.0", ""] {
            assert_eq!(Version::serving(text), None, "{text}");
        }
    }
}
