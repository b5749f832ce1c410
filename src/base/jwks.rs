//! JSON Web Key Sets (RFC 7517, 5) with the public keys of others: given, or requested and cached.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{StatusCode, Uri};
use parking_lot::Mutex;
use reqwest::{Client, redirect};
use serde::Deserialize;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    bounded_body::ResponseBody,
    dependency::{Dependency, OutboundResult},
    jws::{MAX_KEY_FILE, PublicKeys},
    name_lookup::http_client,
    network,
    secret_file::read_file,
};

/// Path of the discovery document below an issuer (OpenID Connect Discovery 1.0, 4).
const DISCOVERY: &str = "/.well-known/openid-configuration";

/// Maximum size of a key set or a discovery document, in bytes.
const MAX_DOCUMENT: usize = 256 << 10;

/// Timeout of a request for a document.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Minimum interval between two requests of the keys.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// Age after which the keys are requested again, so that withdrawn ones are no longer accepted.
const MAX_AGE: Duration = Duration::from_hours(1);

/// Age up to which keys are used that could not be requested again.
const MAX_STALE_AGE: Duration = Duration::from_hours(24);

/// Reason why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// No key has signed the token; a newer key set may have it.
    UnknownKey,
    /// No key has signed the token, and the keys were requested too recently to request them again.
    UnknownForNow,
    /// The keys can't be requested.
    Unavailable,
    /// Malformed, wrongly signed, expired, or for something else.
    Invalid(&'static str),
}

/// Public keys of somebody else.
pub(crate) struct KeySet {
    source: Option<(Client, KeySource)>,
    /// Server of the keys, as far as requests show its state.
    dependency: Dependency,
    /// Age up to which keys are used without waiting for new ones.
    max_age: Duration,
    cache: Mutex<Cache>,
    /// Admits one request at a time.
    request: Semaphore,
}

/// Source of keys that are requested.
#[derive(Clone, Debug)]
pub(crate) enum KeySource {
    /// URL of the key set.
    Url(String),
    /// Issuer whose discovery document names the URL.
    Issuer(String),
    /// Path of a file with the key set.
    File(String),
}

#[derive(Default)]
struct Cache {
    keys: PublicKeys,
    /// Time of the last successful request.
    updated: Option<Instant>,
    /// Time of the last request.
    requested: Option<Instant>,
}

impl Cache {
    fn is_younger_than(&self, age: Duration) -> bool {
        self.updated.is_some_and(|at| at.elapsed() <= age)
    }

    fn may_request(&self) -> bool {
        self.requested.is_none_or(|at| at.elapsed() >= MIN_INTERVAL)
    }
}

impl KeySet {
    /// Uses these keys, and makes no requests.
    pub(crate) fn fixed(keys: PublicKeys) -> Self {
        Self::new(None, Cache { keys, ..Cache::default() })
    }

    /// Requests the keys when they are needed first, after an hour, and for a token with an unknown key, but at most every 30 s.
    ///
    /// # Errors
    /// The HTTP client can't be created.
    pub(crate) fn remote(source: KeySource) -> reqwest::Result<Self> {
        Ok(Self::new(Some((client()?, source)), Cache::default()))
    }

    fn new(source: Option<(Client, KeySource)>, cache: Cache) -> Self {
        let url = if let Some((_, KeySource::Url(url) | KeySource::Issuer(url))) = &source { url.as_str() } else { "" };
        let dependency = Dependency::new("jwks", "the server of the public keys").at(url);
        // Work is accepted with the keys that are known.
        dependency.set_optional(true);
        Self { source, dependency, max_age: MAX_AGE, cache: Mutex::new(cache), request: Semaphore::new(1) }
    }

    /// Uses old keys while new ones are requested, so that callers do not wait for a server that was available not long ago.
    pub(crate) fn without_waiting(self) -> Self {
        Self { max_age: MAX_STALE_AGE, ..self }
    }

    /// Returns the server of the keys, if they are requested.
    pub(crate) fn dependency(&self) -> Option<&Dependency> {
        self.source.as_ref().map(|_| &self.dependency)
    }

    /// Returns true if the keys could be requested once.
    pub(crate) fn has_succeeded(&self) -> bool {
        self.cache.lock().updated.is_some()
    }

    /// Verifies a token with the keys, and with new ones if that can help.
    pub(crate) async fn verify<T>(
        self: &Arc<Self>,
        verify: impl Fn(&PublicKeys) -> Result<T, TokenError>,
    ) -> Result<T, TokenError> {
        let started = Instant::now();
        let (keys, is_old) = {
            let cache = self.cache.lock();
            let is_usable = self.source.is_none() || cache.is_younger_than(self.max_age);
            let is_old = !cache.is_younger_than(MAX_AGE) && cache.may_request();
            (is_usable.then(|| cache.keys.clone()), is_old)
        };
        if let Some(keys) = keys {
            if is_old && self.source.is_some() {
                let set = Arc::clone(self);
                tokio::spawn(async move { set.refresh(started).await });
            }
            match verify(&keys) {
                Err(TokenError::UnknownKey) if self.source.is_some() => {}
                result => return result,
            }
        }
        let unknown = match self.refresh(started).await {
            Ok(()) => TokenError::UnknownKey,
            Err(error) => error,
        };
        let keys = {
            let cache = self.cache.lock();
            if !cache.is_younger_than(MAX_STALE_AGE) {
                return Err(TokenError::Unavailable);
            }
            cache.keys.clone()
        };
        verify(&keys).map_err(|error| if error == TokenError::UnknownKey { unknown } else { error })
    }

    /// Requests the keys, unless they are newer than `since`, or that was attempted a short time ago.
    async fn refresh(&self, since: Instant) -> Result<(), TokenError> {
        let Some((http, source)) = &self.source else { return Ok(()) };
        // Those who waited for a request use its result. The semaphore is never closed.
        let _permit = self.request.acquire().await.map_err(|_| TokenError::Unavailable)?;
        {
            let mut cache = self.cache.lock();
            if cache.updated.is_some_and(|at| at >= since) {
                return Ok(());
            }
            if !cache.may_request() {
                let has_failed = cache.updated < cache.requested;
                return Err(if has_failed { TokenError::Unavailable } else { TokenError::UnknownForNow });
            }
            cache.requested = Some(Instant::now());
        }
        let call = self.dependency.begin();
        match source.request(http).await {
            Ok(keys) => {
                call.end(OutboundResult::Ok);
                let mut cache = self.cache.lock();
                (cache.keys, cache.updated) = (keys, Some(Instant::now()));
                Ok(())
            }
            Err(cause) => {
                let (KeySource::Url(url) | KeySource::Issuer(url) | KeySource::File(url)) = source;
                call.fail(OutboundResult::Connect, &format_args!("{url}: {cause}"));
                Err(TokenError::Unavailable)
            }
        }
    }
}

impl KeySource {
    /// Requests the keys: of an issuer, first the document that names their URL.
    async fn request(&self, http: &Client) -> Result<PublicKeys, String> {
        let url = match self {
            Self::File(path) => return read_keys(path),
            Self::Url(url) => url.clone(),
            Self::Issuer(issuer) => {
                #[derive(Deserialize)]
                struct Configuration {
                    issuer: String,
                    jwks_uri: String,
                }
                let document = get(http, &discovery_url(issuer)).await?;
                let malformed = |_| "the discovery document is malformed".to_owned();
                let configuration: Configuration = serde_json::from_slice(&document).map_err(malformed)?;
                if configuration.issuer != *issuer {
                    return Err(format!("the discovery document is of another issuer, {:?}", configuration.issuer));
                }
                if !is_secure(&configuration.jwks_uri) {
                    return Err("jwks_uri of the discovery document is not https".to_owned());
                }
                configuration.jwks_uri
            }
        };
        usable_keys(&get(http, &url).await?)
    }
}

/// Reads the keys in a file. Blocks.
pub(crate) fn read_keys(path: &str) -> Result<PublicKeys, String> {
    let set = read_file(path.as_ref(), MAX_KEY_FILE).map_err(|error| format!("{path}: {error}"))?;
    usable_keys(&set.0).map_err(|error| format!("{path}: {error}"))
}

fn usable_keys(set: &[u8]) -> Result<PublicKeys, String> {
    let keys = PublicKeys::from_jwks(set).map_err(|error| error.to_string())?;
    if keys.is_empty() { Err("the key set has no usable key".to_owned()) } else { Ok(keys) }
}

/// Returns the URL of the discovery document of an issuer.
pub(crate) fn discovery_url(issuer: &str) -> String {
    format!("{}{DISCOVERY}", issuer.trim_end_matches('/'))
}

/// Returns true for https, and for http to a loopback address.
pub(crate) fn is_secure(url: &str) -> bool {
    let is_secure = |url: Uri| network::is_secure(url.scheme_str().unwrap_or_default(), url.host().unwrap_or_default());
    url.parse().is_ok_and(is_secure)
}

fn client() -> reqwest::Result<Client> {
    http_client().timeout(TIMEOUT).redirect(redirect::Policy::none()).build()
}

/// Requests a document with a limited size. Redirects are errors.
#[cfg(feature = "cli")]
pub(crate) async fn request(url: &str) -> Result<Bytes, String> {
    get(&client().map_err(|error| error.to_string())?, url).await
}

async fn get(http: &Client, url: &str) -> Result<Bytes, String> {
    let response = http.get(url).send().await.map_err(|error| error.without_url().to_string())?;
    if response.status() != StatusCode::OK {
        return Err(format!("{url} returned {}", response.status().as_u16()));
    }
    ResponseBody::of(response, MAX_DOCUMENT).all().await.map_err(|error| format!("{url}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::{Router, response::IntoResponse as _};

    use super::*;
    use crate::base::jws::{Algorithm, SigningKeys};

    #[tokio::test]
    async fn old_keys_are_used_while_new_ones_are_requested() {
        const AVAILABLE: usize = 0;
        const HANGING: usize = 1;
        const BROKEN: usize = 2;
        let keys = SigningKeys::generate(Algorithm::Es256).unwrap().jwks().to_string();
        let state = Arc::new(AtomicUsize::new(AVAILABLE));
        let (requested, mut requests) = tokio::sync::mpsc::unbounded_channel();
        let handler = {
            let state = Arc::clone(&state);
            async move || {
                requested.send(()).unwrap();
                match state.load(Ordering::SeqCst) {
                    AVAILABLE => keys.into_response(),
                    HANGING => std::future::pending().await,
                    _ => StatusCode::BAD_GATEWAY.into_response(),
                }
            }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/keys", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await });
        let advance = async |hours| {
            tokio::time::pause();
            tokio::time::advance(Duration::from_hours(hours)).await;
            tokio::time::resume();
        };
        let set = Arc::new(KeySet::remote(KeySource::Url(url)).unwrap().without_waiting());
        let verify =
            async || set.verify(|keys| if keys.is_empty() { Err(TokenError::UnknownKey) } else { Ok(()) }).await;
        let state_of_server = || set.dependency().unwrap().state().name();
        assert_eq!(state_of_server(), "unknown");
        assert_eq!(verify().await, Ok(()));
        requests.recv().await.unwrap();
        assert_eq!((verify().await, state_of_server()), (Ok(()), "up"));
        assert!(requests.try_recv().is_err(), "young keys are not requested again");
        state.store(HANGING, Ordering::SeqCst);
        advance(2).await;
        let waited = Instant::now();
        assert_eq!(verify().await, Ok(()));
        assert!(waited.elapsed() < TIMEOUT);
        requests.recv().await.unwrap();
        state.store(BROKEN, Ordering::SeqCst);
        advance(25).await;
        assert_eq!((verify().await, state_of_server()), (Err(TokenError::Unavailable), "down"));
    }
}
