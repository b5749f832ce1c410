//! Base path of a server: requests are rewritten to the paths that the bindings serve, before any other processing.

use axum::extract::OriginalUri;
use http::{HeaderMap, Method, Request, Uri, request::Parts, uri::PathAndQuery};

use crate::{
    protocol::version::{Protocols, Version},
    transport::{RequestClass, RequestKind, version},
};

/// Path prefix that was removed from a request.
#[derive(Clone, Debug)]
pub(in crate::transport) struct PathPrefix {
    /// The prefix, for the URLs of the card.
    pub(in crate::transport) path: Box<str>,
    /// The prefix ends with the name of the agent at the root.
    pub(in crate::transport) names_agent: bool,
}

/// Paths of a server. In addition, everything is served at the root.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) base: String,
    /// Path below the base path at which everything is served too: that of the agent at the root, among several.
    pub(crate) agent: String,
    pub(crate) protocols: Protocols,
    /// The agent card requires authentication.
    pub(crate) protects_card: bool,
    /// The catalog of agents requires authentication.
    pub(crate) protects_catalog: bool,
}

impl Paths {
    /// Creates the paths from a base path, which may be empty.
    pub(crate) fn new(base: &str, protocols: Protocols) -> Self {
        Self {
            agent: String::new(),
            base: base.trim_end_matches('/').to_owned(),
            protocols,
            protects_card: false,
            protects_catalog: false,
        }
    }

    /// Rewrites the path of a request to one that the bindings serve.
    pub(crate) fn apply<B>(&self, request: &mut Request<B>) {
        let path = request.uri().path();
        let rewritten = self.rewrite(request.method(), request.uri(), request.headers());
        let Some((prefix, served, names_agent)) = rewritten else { return };
        // Prefix that an outer router has already stripped.
        let outer = request.extensions().get::<OriginalUri>().and_then(|uri| uri.path().strip_suffix(path));
        let prefix = format!("{}{prefix}", outer.unwrap_or_default());
        let whole = match request.uri().query() {
            Some(query) => format!("{served}?{query}"),
            None => served,
        };
        let Ok(whole) = whole.parse::<PathAndQuery>() else { return };
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(whole);
        let Ok(uri) = Uri::from_parts(parts) else { return };
        let original = std::mem::replace(request.uri_mut(), uri);
        let extensions = request.extensions_mut();
        extensions.insert(PathPrefix { path: prefix.into(), names_agent });
        if extensions.get::<OriginalUri>().is_none() {
            extensions.insert(OriginalUri(original));
        }
    }

    /// Classifies a request with a rewritten path.
    pub(crate) fn classify(&self, parts: &Parts) -> RequestClass {
        let &Self { protocols, protects_card, protects_catalog, .. } = self;
        RequestClass { protects_card, protects_catalog, ..RequestClass::new(parts, protocols) }
    }

    /// Returns the removed prefix, the rewritten path, and whether the prefix names the agent. `None` if the path is unchanged.
    fn rewrite(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<(String, String, bool)> {
        if self.base.is_empty() && self.agent.is_empty() {
            return None;
        }
        let path = uri.path();
        let rest = below(path, &self.base).filter(|rest| !self.is_v03_rest(rest, method, uri, headers));
        let (base, rest) = rest.map_or(("", path), |rest| (&*self.base, rest));
        let (agent, rest) = below(rest, &self.agent).map_or(("", rest), |rest| (&*self.agent, rest));
        let prefix = format!("{base}{agent}");
        let rest = if rest.is_empty() { "/" } else { rest };
        (!prefix.is_empty()).then(|| (prefix, rest.to_owned(), !agent.is_empty()))
    }

    /// Returns true for an HTTP+JSON path of 0.3, which begins with `/v1`, if `/v1` is also the base path. Requests of 1.0 then
    /// have to name their version.
    fn is_v03_rest(&self, rest: &str, method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
        self.base == "/v1"
            && self.protocols.has(Version::V0_3)
            && !rest.starts_with("/v1/")
            && !version::requests_1_x(uri, headers)
            && RequestKind::at(method, rest, headers) == RequestKind::Rest
    }
}

/// Returns the rest of a path after a prefix: empty, or a slash and more. `None` for an empty prefix.
pub(crate) fn below<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(prefix).filter(|_| !prefix.is_empty())?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rewritten URI of a request, and the removed prefix.
    fn rewritten(paths: &Paths, method: Method, uri: &str, version: &'static str) -> (String, Option<String>) {
        let request = Request::builder().method(method).uri(uri).header("a2a-version", version);
        let mut request = request.body(()).unwrap();
        paths.apply(&mut request);
        let prefix = request.extensions().get::<PathPrefix>().map(|prefix| prefix.path.to_string());
        (request.uri().to_string(), prefix)
    }

    #[test]
    fn requests_are_served_below_the_base_path_and_at_the_root() {
        let paths = Paths::new("/a2a/v1/", Protocols::default());
        for (uri, known) in [
            ("/a2a/v1/tasks?pageSize=5", "/tasks?pageSize=5"),
            ("/a2a/v1", "/"),
            ("/a2a/v1/", "/"),
            ("/a2a/v1?A2A-Version=1.0", "/?A2A-Version=1.0"),
            ("/a2a/v1/rpc", "/rpc"),
            ("/a2a/v1/v1/message:send", "/v1/message:send"),
            ("/a2a/v1/.well-known/agent-card.json", "/.well-known/agent-card.json"),
            ("/a2a/v1/tasks/a%2Fb", "/tasks/a%2Fb"),
        ] {
            assert_eq!(
                rewritten(&paths, Method::GET, uri, ""),
                (known.to_owned(), Some("/a2a/v1".to_owned())),
                "{uri}"
            );
        }
        for uri in ["/tasks", "/a2a", "/a2a/v10/tasks", "/a2a/tasks", "/a2a%2Fv1/tasks", "/v1/message:send", "/"] {
            assert_eq!(rewritten(&paths, Method::GET, uri, ""), (uri.to_owned(), None), "{uri}");
        }
    }

    #[test]
    fn base_path_v1_does_not_hide_rest_paths_of_v03() {
        let both = Paths::new("/v1", Protocols::default());
        let only_1_0 = Paths::new("/v1", [Version::V1_0].into_iter().collect());
        let path = |paths, uri, version| rewritten(paths, Method::POST, uri, version).0;
        assert_eq!(path(&both, "/v1/message:send", ""), "/v1/message:send");
        assert_eq!(path(&both, "/v1/message:send", "1.0"), "/message:send");
        assert_eq!(path(&both, "/v1/v1/message:send", ""), "/v1/message:send");
        assert_eq!(path(&both, "/v1/rpc", ""), "/rpc");
        assert_eq!(path(&only_1_0, "/v1/message:send", ""), "/message:send");
    }
}
