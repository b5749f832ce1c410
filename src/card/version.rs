//! Which shape of the card a request gets: the one of the version that it names, else the one of its host, else the usual.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

use super::{WELL_KNOWN, address::Authority};
use crate::{call::VERSION, transport::CardRequest, v03::card::CardVersion};

/// What an operator says of shapes.
#[derive(Clone, Debug, Default)]
pub(super) struct CardVersions {
    pub(super) usual: CardVersion,
    /// By the name of the host, or by `host:port`, in lower case.
    pub(super) hosts: BTreeMap<String, CardVersion>,
}

impl CardVersions {
    /// The shape for the sender of this request, who asked for this host.
    pub(super) fn of(&self, request: &CardRequest<'_>, host: Option<&Authority>) -> CardVersion {
        if let Some(shape) = asked(request) {
            return shape;
        }
        let named = |it: &str| self.hosts.get(&it.to_ascii_lowercase()).copied();
        let shape = host.and_then(|it| named(&it.to_string()).or_else(|| named(it.name())));
        let shape = shape.unwrap_or(self.usual);
        // Where only clients of 0.2 and 0.3 look, the card is one that they can read.
        let for_them = request.path.strip_suffix('/').unwrap_or(request.path) != WELL_KNOWN;
        if for_them && shape == CardVersion::V1_0 { CardVersion::Merged } else { shape }
    }
}

/// The shape of the version that a request names (3.6.1), if there is one of it. All of 1 has the card of 1.0, and what
/// came before has that of 0.3.
fn asked(request: &CardRequest<'_>) -> Option<CardVersion> {
    let lines = request.headers.get_all(VERSION).into_iter().filter_map(|it| it.to_str().ok());
    let said = lines.map(str::trim).find(|it| !it.is_empty()).map(str::to_owned);
    let parameter = || {
        let mut pairs = request.query?.split('&').filter_map(|it| it.split_once('='));
        let value = pairs.find(|it| it.0.eq_ignore_ascii_case(VERSION.as_str()))?.1;
        Some(percent_decode_str(value).decode_utf8().ok()?.trim().to_owned())
    };
    match said.or_else(parameter)?.split_once('.')? {
        ("1", _) => Some(CardVersion::V1_0),
        ("0", _) => Some(CardVersion::V0_3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    #[test]
    fn a_request_names_its_version() {
        let shape = |header: Option<&'static str>, query: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.extend(header.map(|it| (VERSION, HeaderValue::from_static(it))));
            let request = CardRequest {
                path: WELL_KNOWN,
                prefix: "",
                host: None,
                target: None,
                peer: None,
                query,
                headers: &headers,
            };
            asked(&request)
        };
        for (text, expected) in [
            ("1.0", Some(CardVersion::V1_0)),
            (" 1.0.1", Some(CardVersion::V1_0)),
            ("1.5", Some(CardVersion::V1_0)),
            ("0.3", Some(CardVersion::V0_3)),
            ("0.2.6", Some(CardVersion::V0_3)),
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
    fn a_host_has_its_shape() {
        let hosts = [("new.example".to_owned(), CardVersion::V1_0), ("new.example:81".to_owned(), CardVersion::V0_3)];
        let shapes = CardVersions { usual: CardVersion::Merged, hosts: hosts.into() };
        let headers = HeaderMap::new();
        let shape = |path, host: &str| {
            let request =
                CardRequest { path, prefix: "", host: None, target: None, peer: None, query: None, headers: &headers };
            shapes.of(&request, Authority::parse(host).as_ref())
        };
        assert_eq!(shape(WELL_KNOWN, "a.example"), CardVersion::Merged);
        assert_eq!(shape(WELL_KNOWN, "NEW.example"), CardVersion::V1_0);
        assert_eq!(shape("/.well-known/agent-card.json/", "new.example:80"), CardVersion::V1_0);
        assert_eq!(shape(WELL_KNOWN, "new.example:81"), CardVersion::V0_3);
        for path in ["/.well-known/agent.json", "/agent-card"] {
            assert_eq!(shape(path, "new.example"), CardVersion::Merged);
            assert_eq!(shape(path, "new.example:81"), CardVersion::V0_3);
        }
    }
}
