//! Credentials of a client by the security schemes of the agent card (4.5): API keys, access tokens of OAuth 2.0, and the schemes
//! for which there are none.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use reqwest::Url;
use serde::Deserialize;

use super::{
    AgentCard, Call, Error, ErrorKind,
    builder::ClientBuilder,
    http::{Http, read_body},
};
use crate::{
    base::oauth::{self, OAuthClient, TokenError, TokenSource, sensitive},
    protocol::{
        pb::v1::{
            ApiKeySecurityScheme, OAuth2SecurityScheme, OpenIdConnectSecurityScheme, SecurityRequirement,
            security_scheme::Scheme,
        },
        v03::card::Flows,
    },
};

/// Header of an API key if the card declares none.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Credentials of all requests to an agent.
#[derive(Default)]
pub(super) struct AgentCredentials {
    /// Headers. Those of a call take precedence.
    pub(super) headers: HeaderMap,
    /// Query parameters, encoded. Only for the JSON bindings.
    pub(super) query: Arc<str>,
    /// Source of `Authorization`, unless the headers have it.
    pub(super) tokens: Option<AgentTokens>,
    /// Schemes that the card requires, and for which there are no credentials. Added to errors.
    pub(super) missing: Option<String>,
}

impl AgentCredentials {
    /// Returns the credentials of a client for an agent. `base` is the URL of its card, if that is known, and `flows` has its OAuth
    /// flows.
    ///
    /// # Errors
    /// `Unauthenticated` if the card names a token endpoint of an origin that is not trusted, `InvalidParams` if a card or a key
    /// can't be sent.
    pub(super) fn new(
        builder: &ClientBuilder,
        card: Option<&AgentCard>,
        base: Option<&Url>,
        flows: &BTreeMap<String, Flows>,
    ) -> Result<Self, Error> {
        let credentials = &builder.credentials;
        let (mut headers, mut query, mut cookies) = (builder.headers.clone(), Vec::new(), Vec::new());
        let mut has_scheme = false;
        for (name, scheme) in schemes(card) {
            let Scheme::ApiKeySecurityScheme(ApiKeySecurityScheme { location, name: key, .. }) = scheme else {
                continue;
            };
            has_scheme = true;
            let Some(value) = credentials.api_key(name) else { continue };
            match location.to_ascii_lowercase().as_str() {
                "query" => query.push((key.as_str(), value)),
                "cookie" => cookies.push(format!("{key}={value}")),
                _ => {
                    let header = HeaderName::try_from(key).map_err(|_| invalid_key(name, "a valid header name"))?;
                    // A header that the program has set is more specific.
                    if !headers.contains_key(&header) {
                        headers.insert(header, key_value(name, value)?);
                    }
                }
            }
        }
        if let (Some(value), false) = (&credentials.api_key, has_scheme || headers.contains_key(&API_KEY)) {
            headers.insert(API_KEY, key_value("", value)?);
        }
        if !cookies.is_empty() {
            let existing = headers.get(header::COOKIE).and_then(|value| value.to_str().ok()).map(str::to_owned);
            let all: Vec<_> = existing.into_iter().chain(cookies).collect();
            headers.insert(header::COOKIE, key_value("cookie", &all.join("; "))?);
        }
        let has_authorization = headers.contains_key(header::AUTHORIZATION);
        let tokens = match &credentials.client {
            Some(client) if !has_authorization => AgentTokens::new(builder, client, card, base, flows)?,
            _ => None,
        };
        let mut found = Self { headers, query: oauth::form(&query).into(), tokens, missing: None };
        found.missing = card.and_then(|card| found.missing_schemes(card, builder));
        Ok(found)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.tokens.is_none() && self.missing.is_none()
    }

    /// Describes the schemes that the card requires and for which there are no credentials. `None` if there are credentials
    /// for one of its requirements.
    fn missing_schemes(&self, card: &AgentCard, builder: &ClientBuilder) -> Option<String> {
        let names = |requirement: &SecurityRequirement| requirement.schemes.keys().cloned().collect::<Vec<_>>();
        let mut alternatives: Vec<Vec<String>> = card.security_requirements.iter().map(names).collect();
        if alternatives.is_empty() {
            // Some cards list schemes, but no requirements.
            alternatives = card.security_schemes.keys().map(|name| vec![name.clone()]).collect();
        }
        let mut missing = Vec::new();
        for alternative in alternatives {
            let lacks = |name: &String| !self.covers(name, card, builder);
            let lacking: Vec<_> =
                alternative.iter().filter(|name| lacks(name)).map(|name| describe(name, card)).collect();
            if lacking.is_empty() {
                return None;
            }
            missing.push(lacking.join(" and "));
        }
        (!missing.is_empty()).then(|| format!("the agent's card requires {}", missing.join(", or ")))
    }

    /// Returns true if there are credentials for a scheme, as far as that is known.
    fn covers(&self, name: &str, card: &AgentCard, builder: &ClientBuilder) -> bool {
        let Some(scheme) = card.security_schemes.get(name).and_then(|scheme| scheme.scheme.as_ref()) else {
            // Nothing is known of a scheme that the card does not describe.
            return !self.headers.is_empty();
        };
        match scheme {
            Scheme::ApiKeySecurityScheme(scheme) => {
                builder.credentials.api_key(name).is_some() || self.headers.contains_key(scheme.name.as_str())
            }
            Scheme::MtlsSecurityScheme(_) => builder.has_certificate(),
            Scheme::HttpAuthSecurityScheme(_)
            | Scheme::Oauth2SecurityScheme(_)
            | Scheme::OpenIdConnectSecurityScheme(_) => {
                self.tokens.is_some() || self.headers.contains_key(header::AUTHORIZATION)
            }
        }
    }
}

debug_fields!(AgentCredentials { missing });

/// Security schemes of a card by name: first those that are required.
fn schemes(card: Option<&AgentCard>) -> Vec<(&str, &Scheme)> {
    let Some(card) = card else { return Vec::new() };
    let required = |name: &str| card.security_requirements.iter().any(|needed| needed.schemes.contains_key(name));
    let all = card.security_schemes.iter().filter_map(|(name, scheme)| Some((name.as_str(), scheme.scheme.as_ref()?)));
    let (mut first, rest): (Vec<_>, Vec<_>) = all.partition(|(name, _)| required(name));
    first.extend(rest);
    first
}

fn invalid_key(scheme: &str, expected: &str) -> Error {
    Error::invalid_field("api_key", format!("of the scheme `{scheme}` must be {expected}"))
}

fn key_value(scheme: &str, value: &str) -> Result<HeaderValue, Error> {
    sensitive(value).map_err(|_| invalid_key(scheme, "a valid header value"))
}

/// Describes a scheme, and the option of the client for it.
fn describe(name: &str, card: &AgentCard) -> String {
    let scheme = card.security_schemes.get(name).and_then(|scheme| scheme.scheme.as_ref());
    let text = match scheme {
        Some(Scheme::ApiKeySecurityScheme(scheme)) => {
            format!("API key in {} `{}`: api_key", scheme.location, scheme.name)
        }
        Some(Scheme::HttpAuthSecurityScheme(scheme)) if scheme.scheme.eq_ignore_ascii_case("basic") => {
            "HTTP Basic: basic".to_owned()
        }
        Some(Scheme::HttpAuthSecurityScheme(scheme)) => format!("HTTP {}: bearer or authorization", scheme.scheme),
        Some(Scheme::Oauth2SecurityScheme(_)) => "OAuth 2.0: client_credentials or bearer".to_owned(),
        Some(Scheme::OpenIdConnectSecurityScheme(_)) => "OpenID Connect: client_credentials or bearer".to_owned(),
        Some(Scheme::MtlsSecurityScheme(_)) => "mutual TLS: client_certificate".to_owned(),
        None => "not described".to_owned(),
    };
    format!("`{name}` ({text})")
}

/// Access tokens of a token endpoint for one agent.
pub(super) struct AgentTokens {
    http: Http,
    endpoint: Endpoint,
    source: TokenSource,
}

enum Endpoint {
    Token(Url),
    /// Document that names the token endpoint (OpenID Connect Discovery, RFC 8414). The URLs are the trusted origins.
    Discovery {
        url: Url,
        origins: Option<Vec<Url>>,
        found: Mutex<Option<Url>>,
    },
}

impl AgentTokens {
    /// Returns the source of tokens for an agent. `None` if neither the program nor the card name a token endpoint.
    fn new(
        builder: &ClientBuilder,
        client: &OAuthClient,
        card: Option<&AgentCard>,
        base: Option<&Url>,
        flows: &BTreeMap<String, Flows>,
    ) -> Result<Option<Self>, Error> {
        let located = |(name, scheme)| Some((name, token_location(scheme, flows.get(name))?));
        let scheme = schemes(card).into_iter().find_map(located);
        let endpoint = match (&builder.credentials.token_url, &scheme) {
            (Some(url), _) => Endpoint::Token(url.clone()),
            (None, None) => return Ok(None),
            (None, Some((name, location))) => {
                let (text, is_discovery) = *location;
                let parsed = Url::parse(text).ok().or_else(|| base?.join(text).ok()).filter(oauth::is_token_endpoint);
                let url = parsed.ok_or_else(|| {
                    let reason = format!("the scheme `{name}` of the card names `{text}`, which is no URL with https");
                    ErrorKind::Unauthenticated.because(format!("{reason}; set the token endpoint (token_url)"))
                })?;
                let origins = builder.trusted_origins(base);
                check_origin(&url, origins.as_deref())
                    .map_err(|reason| ErrorKind::Unauthenticated.because(reason).unsent())?;
                if is_discovery {
                    Endpoint::Discovery { url, origins, found: Mutex::default() }
                } else {
                    Endpoint::Token(url)
                }
            }
        };
        let (Endpoint::Token(url) | Endpoint::Discovery { url, .. }) = &endpoint;
        let is_trusted = builder.trusted_origins(base).is_none_or(|origins| is_one_of(url, &origins));
        let http = builder.http(url.as_str(), is_trusted)?;
        let required = || {
            let (name, _) = scheme.as_ref()?;
            let requirement = card?.security_requirements.iter().find_map(|needed| needed.schemes.get(*name))?;
            Some(requirement.list.join(" "))
        };
        let scopes = builder.credentials.scopes.clone().or_else(required).filter(|scopes| !scopes.is_empty());
        let source = TokenSource::new(client.clone());
        let source = scopes.into_iter().fold(source, |source, scopes| source.parameter("scope", scopes));
        Ok(Some(Self { http, endpoint, source }))
    }

    /// Returns the value of `Authorization`.
    ///
    /// # Errors
    /// `Unavailable` if the token endpoint can't be reached, else `Unauthenticated`.
    pub(super) async fn authorization(&self) -> Result<HeaderValue, Error> {
        let send = |request| async move { self.send(&self.endpoint().await?, request).await };
        self.source.authorization(send).await.map_err(|error| {
            let kind = if error.is_transient { ErrorKind::Unavailable } else { ErrorKind::Unauthenticated };
            kind.because(error.to_string()).unsent()
        })
    }

    /// Removes a token that the agent has rejected.
    pub(super) fn reject(&self, authorization: &HeaderValue) {
        self.source.reject(authorization);
    }

    /// Returns the URL of the token endpoint.
    async fn endpoint(&self) -> Result<Url, TokenError> {
        #[derive(Deserialize)]
        struct Metadata {
            token_endpoint: String,
        }
        let (url, origins, found) = match &self.endpoint {
            Endpoint::Token(url) => return Ok(url.clone()),
            Endpoint::Discovery { url, origins, found } => (url, origins, found),
        };
        if let Some(known) = found.lock().clone() {
            return Ok(known);
        }
        let mut request = http::Request::new(Bytes::new());
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let (status, body) = self.send(url, request).await?;
        let metadata = serde_json::from_slice::<Metadata>(&body).ok().filter(|_| status.is_success());
        let endpoint = metadata.and_then(|metadata| Url::parse(&metadata.token_endpoint).ok());
        let endpoint = endpoint.filter(oauth::is_token_endpoint).ok_or_else(|| {
            let reason = format!("the document at {url} names no token endpoint with https (HTTP {status})");
            TokenError::of_response(status, reason)
        })?;
        check_origin(&endpoint, origins.as_deref()).map_err(TokenError::permanent)?;
        *found.lock() = Some(endpoint.clone());
        Ok(endpoint)
    }

    async fn send(&self, url: &Url, mut request: http::Request<Bytes>) -> Result<(StatusCode, Bytes), TokenError> {
        *request.uri_mut() =
            url.as_str().parse().map_err(|_| TokenError::permanent("token_url: must be a valid URL"))?;
        let received = async {
            let (head, body) = self.http.send(&Call::default(), request).await?.into_parts();
            Ok((head.status, read_body(body, oauth::MAX_RESPONSE, None).await?))
        };
        received.await.map_err(|error: Error| {
            let is_too_large = error.kind() == ErrorKind::InvalidAgentResponse;
            if is_too_large { TokenError::too_large() } else { TokenError::transient(error.to_string()) }
        })
    }
}

fn is_one_of(url: &Url, origins: &[Url]) -> bool {
    origins.iter().any(|trusted| trusted.origin() == url.origin())
}

/// Rejects a token endpoint that a document names if its origin is not trusted: it would receive the client's secret.
fn check_origin(url: &Url, trusted: Option<&[Url]>) -> Result<(), String> {
    if trusted.is_none_or(|trusted| is_one_of(url, trusted)) {
        return Ok(());
    }
    let origin = url.origin().ascii_serialization();
    let reason = "the card names a token endpoint of another origin";
    Err(format!("{reason}, `{url}`; set it (token_url), or trust {origin} (trust_origin)"))
}

/// Returns the URL of the token endpoint for the client credentials grant, or that of a document that names it, and then true.
/// Endpoints of other flows may belong to another server.
fn token_location<'a>(scheme: &'a Scheme, flows: Option<&'a Flows>) -> Option<(&'a str, bool)> {
    match scheme {
        Scheme::Oauth2SecurityScheme(OAuth2SecurityScheme { oauth2_metadata_url, .. }) => {
            let flow = flows.and_then(|flows| flows.client_credentials.as_ref());
            let endpoint = flow.map(|flow| flow.token_url.as_str()).filter(|url| !url.is_empty());
            let metadata = Some(oauth2_metadata_url.as_str()).filter(|url| !url.is_empty());
            endpoint.map(|url| (url, false)).or(metadata.map(|url| (url, true)))
        }
        Scheme::OpenIdConnectSecurityScheme(OpenIdConnectSecurityScheme { open_id_connect_url, .. }) => {
            Some((open_id_connect_url.as_str(), true)).filter(|(url, _)| !url.is_empty())
        }
        Scheme::ApiKeySecurityScheme(_) | Scheme::HttpAuthSecurityScheme(_) | Scheme::MtlsSecurityScheme(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::v03::card::{all_flows, from_json};

    const BASE: &str = "https://agent.example/card.json";

    fn applied(builder: &ClientBuilder, card: &str) -> Result<AgentCredentials, Error> {
        let base = Url::parse(BASE).unwrap();
        let flows = all_flows(&serde_json::from_str(card).unwrap());
        AgentCredentials::new(builder, Some(&from_json(card.as_bytes()).unwrap()), Some(&base), &flows)
    }

    const KEYS: &str = r#"{"name": "A", "url": "https://agent.example/", "securitySchemes": {
        "h": {"type": "apiKey", "in": "header", "name": "X-Key"}, "q": {"type": "apiKey", "in": "query", "name": "k y"},
        "c": {"type": "apiKey", "in": "cookie", "name": "session"}}, "security": [{"h": [], "q": []}, {"c": []}]}"#;

    #[test]
    fn api_keys_are_sent_where_their_schemes_say() {
        let builder = ClientBuilder::new().api_key("all").api_key_for("q", "a&b");
        let found = applied(&builder, KEYS).unwrap();
        assert_eq!(
            (&found.headers["x-key"], &found.headers["cookie"]),
            (&"all".parse().unwrap(), &"session=all".parse().unwrap())
        );
        assert!(found.headers.values().all(HeaderValue::is_sensitive));
        assert_eq!((&*found.query, found.missing.as_deref()), ("k+y=a%26b", None));
        let named = applied(&ClientBuilder::new().api_key_for("h", "1"), KEYS).unwrap();
        assert_eq!((named.headers.len(), &*named.query), (1, ""));
        assert!(named.missing.unwrap().contains("`q` (API key in query `k y`: api_key), or `c` (API key in cookie"));
        let explicit = ClientBuilder::new().api_key("1").header("X-Key", "2").unwrap();
        assert_eq!(applied(&explicit, KEYS).unwrap().headers["x-key"], "2");
        let undeclared = applied(&ClientBuilder::new().api_key("1"), r#"{"name": "A"}"#).unwrap();
        assert_eq!(undeclared.headers["x-api-key"], "1");
    }

    #[test]
    fn missing_schemes_are_named() {
        let missing = |builder: &ClientBuilder, card: &str| applied(builder, card).unwrap().missing;
        let none = ClientBuilder::new();
        let bearer = none.clone().bearer("t").unwrap();
        let old =
            r#"{"name": "A", "url": "/", "authentication": {"schemes": ["Bearer", "basic"], "credentials": null}}"#;
        let text = missing(&none, old).unwrap();
        assert!(
            text.contains("(HTTP bearer: bearer or authorization)") && text.contains("(HTTP Basic: basic)"),
            "{text}"
        );
        assert_eq!((missing(&bearer, old), missing(&none, r#"{"name": "A"}"#)), (None, None));
        let mtls =
            r#"{"name": "A", "securitySchemes": {"m": {"type": "mutualTLS"}}, "security": [{"m": []}, {"x": []}]}"#;
        assert!(missing(&none, mtls).unwrap().contains("`m` (mutual TLS: client_certificate), or `x` (not described)"));
        let optional = r#"{"name": "A", "securitySchemes": {"m": {"type": "mutualTLS"}}, "security": [{"m": []}, {}]}"#;
        assert_eq!(missing(&none, optional), None);
    }

    /// Each flow has a token endpoint of its own, in cards of both versions.
    #[test]
    fn secret_is_for_the_endpoint_of_its_flow() {
        let flow = |name: &str| {
            let urls = format!(r#""tokenUrl": "/{name}", "authorizationUrl": "/a", "deviceAuthorizationUrl": "/d""#);
            format!(r#""{name}": {{{urls}, "scopes": {{}}}}"#)
        };
        let client = ClientBuilder::new().client_credentials("id", "hunter2").unwrap();
        let all = ["authorizationCode", "clientCredentials", "password"].map(flow).join(", ");
        let others = ["authorizationCode", "password"].map(flow).join(", ");
        for (flows, expected) in [(all, Some("https://agent.example/clientCredentials")), (others, None)] {
            let interface =
                r#"{"url": "https://agent.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}"#;
            for card in [
                format!(
                    r#"{{"name": "A", "url": "/", "securitySchemes": {{"o": {{"type": "oauth2", "flows": {{{flows}}}}}}}}}"#
                ),
                format!(
                    r#"{{"name": "A", "supportedInterfaces": [{interface}],
                    "securitySchemes": {{"o": {{"oauth2SecurityScheme": {{"flows": {{{flows}}}}}}}}}}}"#
                ),
            ] {
                let tokens = applied(&client, &card).unwrap().tokens;
                let found = tokens.map(|tokens| match tokens.endpoint {
                    Endpoint::Token(url) => url.to_string(),
                    Endpoint::Discovery { .. } => panic!("the card names no metadata"),
                });
                assert_eq!(found.as_deref(), expected, "{card}");
            }
        }
    }

    #[tokio::test]
    async fn token_endpoint_of_another_origin_is_refused() {
        let card = |url: &str| {
            format!(
                r#"{{"name": "A", "url": "/", "securitySchemes": {{"o": {{"type": "oauth2", "flows": {{
                "clientCredentials": {{"tokenUrl": "{url}", "scopes": {{}}}}}}}}}}, "security": [{{"o": ["a", "b"]}}]}}"#
            )
        };
        let client = ClientBuilder::new().client_credentials("id", "hunter2").unwrap();
        let own = applied(&client, &card("/token")).unwrap().tokens.unwrap();
        assert_eq!(own.source.parameters, [("scope", "a b".to_owned())]);
        assert!(matches!(own.endpoint, Endpoint::Token(url) if url.as_str() == "https://agent.example/token"));
        let foreign = card("https://login.example/token");
        let error = applied(&client, &foreign).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        assert!(error.to_string().contains("trust https://login.example (trust_origin)"), "{error}");
        for trusting in [
            client.clone().trust_origin("https://login.example").unwrap(),
            client.clone().token_url("https://login.example/t").unwrap(),
        ] {
            assert!(applied(&trusting, &foreign).unwrap().tokens.is_some());
            assert!(!format!("{trusting:?} {:?}", applied(&trusting, &foreign).unwrap()).contains("hunter2"));
        }
        assert!(applied(&client, &card("http://agent.example/token")).is_err(), "not encrypted");
        assert!(applied(&client, r#"{"name": "A"}"#).unwrap().tokens.is_none());
        assert!(client.token_url("http://login.example/t").is_err());
    }
}
