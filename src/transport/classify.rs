//! Request classification: gRPC, gRPC-Web, JSON-RPC, REST, agent card, key set, API document, console, operator API, metrics or
//! health, by content type and path, and the protocol version.
//!
//! A request is classified once, and the result is passed on with it.

use http::{HeaderMap, Method, request::Parts};

use super::{media_type, version};
use crate::{
    protocol::{
        Protocols, Version, pb::v1::bindings::ServiceHandle, rpc::Dispatch,
        v03::pb::bindings::ServiceHandle as V03ServiceHandle,
    },
    service::card::{AGENT_CARD, JSON_RPC, WELL_KNOWN, WELL_KNOWN_BEFORE},
    transport::binding::{grpc_web::GrpcWebFormat, rest, v03::rest::V03Rest},
};

/// Path of the review of the agent card.
const CARD_REVIEW: &str = "/console/review.json";

/// Path of the AI Catalog.
pub(crate) const AI_CATALOG: &str = "/.well-known/ai-catalog.json";

/// Path of the plain list of agents.
pub(super) const AGENTS: &str = "/agents";

/// Path of the metadata about the issuers of tokens.
pub(super) const PROTECTED_RESOURCE: &str = "/.well-known/oauth-protected-resource";

/// Path of the readiness check: the server accepts work. It fails while the server drains.
pub(super) const READY: &str = "/readyz";

/// Classification of a request: its kind, and its protocol version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestClass {
    pub(super) kind: RequestKind,
    pub(super) version: Version,
    /// The agent card requires authentication.
    pub(super) protects_card: bool,
    /// The catalog of agents requires authentication.
    pub(super) protects_catalog: bool,
}

impl RequestClass {
    /// Classifies a request to a server of these protocol versions.
    pub(super) fn new(parts: &Parts, served: Protocols) -> Self {
        let kind = RequestKind::at(&parts.method, parts.uri.path(), &parts.headers);
        Self { kind, version: kind.version(parts, served), protects_card: false, protects_catalog: false }
    }

    /// Returns the name of an agent card or a catalog that requires authentication.
    pub(crate) fn protected_document(self) -> Option<&'static str> {
        if matches!(self.kind, RequestKind::Card | RequestKind::CardReview) && self.protects_card {
            return Some("agent card");
        }
        (self.kind == RequestKind::Catalog && self.protects_catalog).then_some("catalog of agents")
    }

    /// Returns the binding for the request log: `grpc`, `jsonrpc` or `http`.
    pub(crate) fn system(self) -> &'static str {
        if self.kind.is_grpc() {
            "grpc"
        } else if self.kind == RequestKind::JsonRpc {
            "jsonrpc"
        } else {
            "http"
        }
    }

    /// Returns true for gRPC, except gRPC-Web.
    pub(crate) fn is_grpc(self) -> bool {
        self.kind == RequestKind::Grpc
    }

    /// Returns true for the operator API, which no page of another origin may use.
    pub(crate) fn is_operator(self) -> bool {
        matches!(self.kind, RequestKind::Operator { .. })
    }

    /// Returns true for requests that may be calls, which have spans. Documents, pages and health checks have none.
    pub(crate) fn is_traced(self, parts: &Parts) -> bool {
        use RequestKind::{ExtendedCard, Grpc, GrpcWeb, JsonRpc, Rest};
        matches!(self.kind, Grpc | GrpcWeb(_) | JsonRpc | Rest | ExtendedCard) && !self.kind.is_health(parts.uri.path())
    }

    /// Returns the name of the RPC, if it is known before the body is read.
    pub(crate) fn operation(self, parts: &Parts) -> Option<&'static str> {
        fn grpc<T: Dispatch>(path: &str) -> Option<&'static str> {
            T::rpc(path.rsplit('/').next()?).map(T::name)
        }
        let path = parts.uri.path();
        match (self.kind, self.version) {
            (RequestKind::Grpc | RequestKind::GrpcWeb(_), Version::V1_0) => grpc::<ServiceHandle>(path),
            (RequestKind::Grpc | RequestKind::GrpcWeb(_), Version::V0_3) => grpc::<V03ServiceHandle>(path),
            (RequestKind::Rest, Version::V1_0) => rest::operation::<ServiceHandle>(&parts.method, path),
            (RequestKind::Rest, Version::V0_3) => rest::operation::<V03Rest>(&parts.method, path),
            (RequestKind::ExtendedCard, _) => rest::operation::<ServiceHandle>(&Method::GET, "/extendedAgentCard"),
            _ => None,
        }
    }

    /// Returns true for public resources, which need no authentication: public documents, the files of the console and health.
    /// Decides by the kind of request and not by a path prefix, which may be a tenant: the path `/.well-known/tasks` then names tasks.
    pub(crate) fn is_public(self, parts: &Parts) -> bool {
        self.is_public_document() || self.kind == RequestKind::Console || self.kind.is_health(parts.uri.path())
    }

    /// Returns true for public documents, which pages of every origin may read: the agent card and the catalog unless they are
    /// protected, the key set, issuers of tokens and API documents.
    pub(super) fn is_public_document(self) -> bool {
        use RequestKind::{Card, CardReview, Catalog, Document, KeySet, ProtectedResource};
        matches!(self.kind, Card | CardReview | Catalog | KeySet | ProtectedResource | Document)
            && self.protected_document().is_none()
    }
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// POST with the content type `application/grpc`, on any path.
    Grpc,
    /// POST with a content type of gRPC-Web with protobuf, on any path.
    GrpcWeb(GrpcWebFormat),
    /// Agent card: the well-known path, and those of earlier protocol versions.
    Card,
    /// Agents of the server: `/agents` and `/.well-known/ai-catalog.json`.
    Catalog,
    /// Public keys of the server: `/.well-known/jwks.json`.
    KeySet,
    /// Issuers of tokens: `/.well-known/oauth-protected-resource`.
    ProtectedResource,
    /// Problems of the agent card: `/console/review.json`.
    CardReview,
    /// API document, or page that shows it: `/openapi.json`, `/docs/` and others.
    Document,
    /// Page at the root for browsers, and its files below `/console/`.
    Console,
    /// Card for authenticated callers, on its path of 0.2.
    ExtendedCard,
    /// JSON-RPC: `/rpc`, which the card names; `/a2a`, which some clients assume; and the root.
    JsonRpc,
    /// Metrics: `/metrics`.
    Metrics,
    /// Operator API: the paths below `/operator`. `changes`: that of a change.
    Operator { changes: bool },
    /// Liveness or readiness over HTTP.
    Health,
    /// HTTP+JSON: every other path.
    Rest,
}

impl RequestKind {
    pub(super) fn at(method: &Method, path: &str, headers: &HeaderMap) -> Self {
        // A GET has no body, so its content type is ignored.
        if *method == Method::POST {
            let media_type = media_type::of(headers).unwrap_or_default();
            if let Some((prefix, suffix)) = media_type.split_at_checked("application/grpc".len())
                && prefix.eq_ignore_ascii_case("application/grpc")
            {
                if suffix.is_empty() || suffix.starts_with('+') {
                    return Self::Grpc;
                }
                if let Some(format) = GrpcWebFormat::of(media_type, headers) {
                    return Self::GrpcWeb(format);
                }
            }
        }
        match path.strip_suffix('/').unwrap_or(path) {
            WELL_KNOWN | WELL_KNOWN_BEFORE | AGENT_CARD => Self::Card,
            AI_CATALOG | AGENTS => Self::Catalog,
            "/.well-known/jwks.json" => Self::KeySet,
            PROTECTED_RESOURCE => Self::ProtectedResource,
            path if card_below_json_rpc(path).is_some() => Self::Card,
            "" if cfg!(feature = "console") && wants_page(method, headers) => Self::Console,
            CARD_REVIEW => Self::CardReview,
            path if is_below(path, "/console") => Self::Console,
            JSON_RPC | "" | "/a2a" => Self::JsonRpc,
            "/healthz" | READY => Self::Health,
            "/metrics" => Self::Metrics,
            path if is_below(path, "/operator") => Self::Operator { changes: path.ends_with("/deliveries:retry") },
            path if is_document(path) => Self::Document,
            path if is_extended(path) => Self::ExtendedCard,
            _ => Self::Rest,
        }
    }

    /// Returns the version of a request by its form. For JSON-RPC, whose method is in the body, returns the presumed version.
    fn version(self, parts: &Parts, served: Protocols) -> Version {
        if self == Self::JsonRpc {
            return version::presumed_of(parts, served);
        }
        let path = parts.uri.path();
        let is_v03_method = self.is_grpc() && version::grpc_method(path, Version::V0_3).is_some();
        // If 0.3 is not served, `v1` is the name of a tenant.
        let is_v03_path = self == Self::Rest
            && path.starts_with("/v1/")
            && served.has(Version::V0_3)
            && !version::requests_1_x(&parts.uri, &parts.headers);
        if is_v03_method || is_v03_path || self == Self::ExtendedCard { Version::V0_3 } else { Version::V1_0 }
    }

    /// Returns true for health checks over HTTP or gRPC.
    pub(super) fn is_health(self, path: &str) -> bool {
        self == Self::Health || self.is_grpc() && path.starts_with("/grpc.health.v1.Health/")
    }

    /// Returns true for gRPC and gRPC-Web.
    fn is_grpc(self) -> bool {
        matches!(self, Self::Grpc | Self::GrpcWeb(_))
    }

    /// Allowed HTTP methods, in the form of the `Allow` header. `None` if the binding decides.
    pub(super) fn allowed_methods(self) -> Option<&'static str> {
        if self.is_grpc() || self == Self::Rest {
            return None;
        }
        let is_post = matches!(self, Self::JsonRpc | Self::Operator { changes: true });
        Some(if is_post { "POST" } else { "GET, HEAD" })
    }
}

/// Returns the path of a card without the prefix of JSON-RPC. Some clients request the card below the URL of the interface.
pub(super) fn card_below_json_rpc(path: &str) -> Option<&str> {
    let below = [JSON_RPC, "/a2a"].iter().find_map(|base| path.strip_prefix(base))?;
    let known = matches!(below.strip_suffix('/').unwrap_or(below), WELL_KNOWN | WELL_KNOWN_BEFORE | AGENT_CARD);
    known.then_some(below)
}

/// Returns true for the paths of the extended card of 0.2: `{url}/../agent/authenticatedExtendedCard` for every URL of
/// JSON-RPC (0.2, 7.10), with or without dot segments (RFC 3986, 5.2.4), which some clients do not resolve.
fn is_extended(path: &str) -> bool {
    let Some(base) = path.strip_suffix("/agent/authenticatedExtendedCard") else { return false };
    matches!(base.strip_suffix("/..").unwrap_or(base).trim_end_matches('/'), "" | JSON_RPC | "/a2a")
}

/// Returns true for the paths of documents, without a slash at the end.
fn is_document(path: &str) -> bool {
    let is_api =
        cfg!(feature = "openapi") && (is_below(path, "/openapi") || matches!(path, "/openapi.json" | "/openapi.yaml"));
    is_api || (cfg!(feature = "docs") && is_below(path, "/docs"))
}

/// Returns true for a path and those below it.
fn is_below(path: &str, base: &str) -> bool {
    path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns true for requests of a browser for a page: other clients do not accept HTML.
fn wants_page(method: &Method, headers: &HeaderMap) -> bool {
    let accepts_page = || media_type::accepted(headers).any(|name| name.eq_ignore_ascii_case("text/html"));
    method.is_safe() && *method != Method::OPTIONS && accepts_page()
}

#[cfg(test)]
mod tests {
    use http::{Request, header};

    use super::*;

    #[test]
    fn only_agent_card_key_set_and_health_are_public() {
        let public = |method: &str, path: &str, content_type: &str| {
            let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, content_type);
            let (parts, ()) = request.body(()).unwrap().into_parts();
            RequestClass::new(&parts, Protocols::default()).is_public(&parts)
        };
        for path in [
            "/.well-known/agent-card.json",
            "/.well-known/jwks.json",
            PROTECTED_RESOURCE,
            "/healthz",
            "/readyz",
            "/healthz/",
        ] {
            assert!(public("GET", path, "") && public("HEAD", path, ""), "{path}");
        }
        let health = "/grpc.health.v1.Health/Check";
        assert!(public("POST", health, "application/grpc") && !public("POST", health, "application/json"));
        assert!(public("POST", health, "application/grpc-web") && !public("POST", health, "application/grpc-web+json"));
        for path in [
            "/.well-known/tasks",
            "/healthz/tasks",
            "/tasks",
            "/rpc",
            "/.well-known/agent-card.json/tasks",
            "/operator/status",
        ] {
            assert!(!public("GET", path, ""), "{path}");
        }
    }

    #[test]
    fn extended_card_is_next_to_json_rpc() {
        for base in ["", "/", "/..", "//..", "/rpc", "/rpc/", "/rpc/..", "/rpc//..", "/a2a/.."] {
            assert!(is_extended(&format!("{base}/agent/authenticatedExtendedCard")), "{base}");
        }
        for path in [
            "/agent",
            "/authenticatedExtendedCard",
            "/acme/agent/authenticatedExtendedCard",
            "/agent/authenticatedExtendedCard/x",
        ] {
            assert!(!is_extended(path), "{path}");
        }
    }

    #[test]
    fn card_is_served_below_the_url_of_json_rpc() {
        for base in ["/rpc", "/a2a"] {
            for path in [WELL_KNOWN, WELL_KNOWN_BEFORE, AGENT_CARD] {
                assert_eq!(card_below_json_rpc(&format!("{base}{path}")), Some(path));
            }
        }
        for path in [WELL_KNOWN, "/rpc", "/rpc/.well-known", "/rpcs/.well-known/agent-card.json", "/acme/agent-card"] {
            assert_eq!(card_below_json_rpc(path), None, "{path}");
        }
    }
}
