//! Request classification: gRPC, JSON-RPC, REST, agent card or health, by content type and path.

use http::{HeaderMap, Method, request::Parts};

use super::{card, health, media_type};
use crate::card::{AGENT_CARD, JSON_RPC, WELL_KNOWN, WELL_KNOWN_BEFORE};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// POST with the content type `application/grpc`, on any path.
    Grpc,
    /// Agent card: the well-known path, and those of earlier protocol versions.
    Card,
    /// Card for authenticated callers, on its path of 0.2.
    ExtendedCard,
    /// JSON-RPC: `/rpc`, which the card names; `/a2a`, which some clients assume; and the root.
    JsonRpc,
    /// Liveness or readiness over HTTP.
    Health,
    /// HTTP+JSON: every other path.
    Rest,
}

impl RequestKind {
    pub(super) fn of(parts: &Parts) -> Self {
        Self::at(&parts.method, parts.uri.path(), &parts.headers)
    }

    pub(super) fn at(method: &Method, path: &str, headers: &HeaderMap) -> Self {
        // A GET has no body, so its content type is ignored.
        if *method == Method::POST {
            let suffix = media_type(headers).and_then(|media_type| media_type.strip_prefix("application/grpc"));
            if suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('+')) {
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

    /// Returns true for public resources: the agent card and health. Decides by the kind of request and not by a path
    /// prefix, which may be a tenant: the path `/.well-known/tasks` then names tasks.
    pub(super) fn is_public(self, path: &str) -> bool {
        self == Self::Card || self.is_health(path)
    }

    /// Returns true for health checks over HTTP or gRPC.
    pub(super) fn is_health(self, path: &str) -> bool {
        match self {
            Self::Health => true,
            Self::Grpc => path.starts_with("/grpc.health.v1.Health/"),
            Self::Card | Self::ExtendedCard | Self::JsonRpc | Self::Rest => false,
        }
    }

    /// Allowed HTTP methods, in the form of the `Allow` header. `None` if the binding decides.
    pub(super) fn allowed_methods(self) -> Option<&'static str> {
        match self {
            Self::Card | Self::ExtendedCard | Self::Health => Some("GET, HEAD"),
            Self::JsonRpc => Some("POST"),
            Self::Grpc | Self::Rest => None,
        }
    }
}
