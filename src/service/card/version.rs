//! Choice of the agent card's form for a request: by the protocol version that it names, or else by those that are served.

use super::WELL_KNOWN;
use crate::{
    protocol::{call, v03::card::CardVersion, version::Version},
    service::card::RequestOrigin,
};

/// Returns the form of the card for a request to a server of these versions.
pub(crate) fn card_version(request: &RequestOrigin<'_>, served: &[Version]) -> CardVersion {
    if let Some(version) = requested_version(request) {
        return version;
    }
    // Only clients of 0.2 and 0.3 use the other paths: they get a card that they can read.
    let is_legacy_path = request.path.strip_suffix('/').unwrap_or(request.path) != WELL_KNOWN;
    match served {
        [Version::V1_0] if !is_legacy_path => CardVersion::V1_0,
        [Version::V0_3] => CardVersion::V0_3,
        _ => CardVersion::Merged,
    }
}

/// Returns the form for the protocol version that a request names in `A2A-Version` (3.6.1), as a header or in the query. All
/// versions 1.x have the card of 1.0, and those that 0.3 serves the card of 0.3. Other versions have the form of a request
/// without a version.
fn requested_version(request: &RequestOrigin<'_>) -> Option<CardVersion> {
    let version = call::requested_version(request.query, request.headers)?;
    match Version::serving(&version) {
        Some(Version::V0_3) => Some(CardVersion::V0_3),
        Some(Version::V1_0) => Some(CardVersion::V1_0),
        None => version.trim().starts_with("1.").then_some(CardVersion::V1_0),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::protocol::call::VERSION;

    #[test]
    fn requested_version_is_read_from_header_or_query() {
        let shape = |header: Option<&'static str>, query: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.extend(header.map(|value| (VERSION, HeaderValue::from_static(value))));
            requested_version(&RequestOrigin { query, ..RequestOrigin::at(WELL_KNOWN, &headers) })
        };
        for (text, expected) in [
            ("1.0", Some(CardVersion::V1_0)),
            (" 1.0.1", Some(CardVersion::V1_0)),
            ("1.5", Some(CardVersion::V1_0)),
            ("0.3", Some(CardVersion::V0_3)),
            ("0.2.6", Some(CardVersion::V0_3)),
            ("0.5", None),
            ("2.0", None),
            ("1", None),
            ("", None),
        ] {
            assert_eq!(shape(Some(text), None), expected, "{text}");
            assert_eq!(shape(None, Some(&format!("x=1&a2a-VERSION={text}"))), expected, "{text}");
        }
        assert_eq!(shape(Some("1.0"), Some("A2A-Version=0.3")), Some(CardVersion::V1_0));
        assert_eq!(shape(Some(""), Some("A2A-Version=0%2E3")), Some(CardVersion::V0_3));
    }

    #[test]
    fn form_of_the_card_depends_on_served_versions_and_path() {
        let headers = HeaderMap::new();
        let form = |path, served: &[Version]| card_version(&RequestOrigin::at(path, &headers), served);
        let both = [Version::V1_0, Version::V0_3];
        for path in [WELL_KNOWN, "/.well-known/agent-card.json/"] {
            assert_eq!(form(path, &both), CardVersion::Merged);
            assert_eq!(form(path, &[Version::V1_0]), CardVersion::V1_0);
            assert_eq!(form(path, &[Version::V0_3]), CardVersion::V0_3);
        }
        for path in ["/.well-known/agent.json", "/agent-card"] {
            assert_eq!(form(path, &[Version::V1_0]), CardVersion::Merged);
            assert_eq!(form(path, &[Version::V0_3]), CardVersion::V0_3);
        }
    }
}
