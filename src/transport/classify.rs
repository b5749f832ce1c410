//! What a request is for, which is told by its content type and its path.

use http::{HeaderMap, Method, request::Parts};
use tonic::server::NamedService;

use super::{V03Server, card, context, health, media_type};
use crate::{
    card::{AGENT_CARD, JSON_RPC, WELL_KNOWN, WELL_KNOWN_BEFORE},
    pb::v1::{a2a_service_server::A2aServiceServer, bindings::ServiceHandle},
    protocol::Version,
};

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// A POST of `application/grpc`, whatever the path.
    Grpc,
    /// The well-known paths, and what they were called before 0.3.
    Card,
    /// Where 0.2 has the card for authenticated callers.
    ExtendedCard,
    /// The path that the card names, the one that others take for granted, and the root.
    JsonRpc,
    /// Whether the server is there, and ready.
    Health,
    /// All else.
    Rest,
}

/// The name of the service in gRPC, at a version.
pub(super) const fn name(version: Version) -> &'static str {
    match version {
        Version::V1_0 => <A2aServiceServer<ServiceHandle> as NamedService>::NAME,
        Version::V0_3 => <V03Server as NamedService>::NAME,
    }
}

/// What every path of HTTP+JSON at 0.3 begins with.
const CLASSIC: &str = "/v1/";

impl RequestKind {
    pub(super) fn of(parts: &Parts) -> Self {
        Self::at(&parts.method, parts.uri.path(), &parts.headers)
    }

    pub(super) fn at(method: &Method, path: &str, headers: &HeaderMap) -> Self {
        // What a GET says of the body that it doesn't have is of no account.
        if *method == Method::POST {
            let grpc = media_type(headers).and_then(|it| it.strip_prefix("application/grpc"));
            if grpc.is_some_and(|it| it.is_empty() || it.starts_with('+')) {
                return Self::Grpc;
            }
        }
        match path.strip_suffix('/').unwrap_or(path) {
            WELL_KNOWN | WELL_KNOWN_BEFORE | AGENT_CARD => Self::Card,
            path if card::card_below_json_rpc(path).is_some() => Self::Card,
            JSON_RPC | "" | "/a2a" => Self::JsonRpc,
            health::LIVE | health::READY => Self::Health,
            path if card::is_extended(path) => Self::ExtendedCard,
            _ => Self::Rest,
        }
    }

    /// The version that a request has the form of. That of JSON-RPC is said in its body.
    pub(super) fn version(self, parts: &Parts) -> Version {
        let path = parts.uri.path();
        let classic = match self {
            Self::Grpc => is_of(path, Version::V0_3),
            // Where 0.3 is not served, that is a tenant.
            Self::Rest => {
                let served = super::version::stored_protocols(&parts.extensions).has(Version::V0_3);
                path.starts_with(CLASSIC) && served && !context::asks_for_1(&parts.uri, &parts.headers)
            }
            Self::ExtendedCard => true,
            Self::JsonRpc | Self::Card | Self::Health => false,
        };
        if classic { Version::V0_3 } else { Version::V1_0 }
    }

    /// Returns true for public resources: the agent card and health. Decides by the kind of request and not by a path
    /// prefix, which may be a tenant: the path `/.well-known/tasks` then names tasks.
    pub(super) fn is_public(self, path: &str) -> bool {
        self == Self::Card || self.is_health(path)
    }

    /// Health over HTTP or gRPC.
    pub(super) fn is_health(self, path: &str) -> bool {
        match self {
            Self::Health => true,
            Self::Grpc => path.starts_with("/grpc.health.v1.Health/"),
            Self::Card | Self::ExtendedCard | Self::JsonRpc | Self::Rest => false,
        }
    }

    /// The verbs that come in here, where they are not for a binding to say.
    pub(super) fn verbs(self) -> Option<&'static str> {
        match self {
            Self::Card | Self::ExtendedCard | Self::Health => Some("GET, HEAD"),
            Self::JsonRpc => Some("POST"),
            Self::Grpc | Self::Rest => None,
        }
    }
}

/// A path of the service itself.
pub(super) fn is_of(path: &str, version: Version) -> bool {
    let rest = path.strip_prefix('/').and_then(|it| it.strip_prefix(name(version)));
    rest.is_some_and(|it| it.starts_with('/'))
}
