//! Token file: named tokens and API keys with owner, tenant, scopes and expiry. The file has their hashes only.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    fs::File,
    io, mem,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD},
};
use http::{HeaderMap, HeaderName, header};
use jiff::Timestamp;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{
    AuthRequest, Authenticator, CREDENTIALS, MISSING, Principal, SCHEME, Scopes,
    audit::{self, AUDIT},
    bearer::bearer_token,
};
use crate::{
    base::{
        clock::Clock,
        jws::sha256_hex,
        secret_file::{read_file, replace_secret},
        watched_file::WatchedFiles,
    },
    protocol::{
        call::Validity,
        error::{BEARER, Error, ErrorKind, INVALID_TOKEN},
        pb::v1::{AgentCard, ApiKeySecurityScheme, HttpAuthSecurityScheme, security_scheme::Scheme},
    },
};

/// Beginning of generated tokens, by which scanners of leaked secrets find them.
const PREFIX: &str = "a2a_";

/// Random bytes of a token. A hash without a salt suffices for so many.
const SECRET_BYTES: usize = 32;

/// Maximum length of a secret in a request, in bytes.
const MAX_SECRET: usize = 4096;

/// Maximum size of the file in bytes, and maximum number of its tokens.
const MAX_FILE: u64 = 8 << 20;
const MAX_TOKENS: usize = 10_000;

/// Place of a token in a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TokenSource {
    /// `Authorization: Bearer`.
    Bearer,
    /// `Authorization: Basic`, with the name of the token as the user and the secret as the password.
    Basic,
    /// API key in a header with this name, in lower case.
    Header(String),
    /// API key in a query parameter with this name.
    Query(String),
    /// API key in a cookie with this name.
    Cookie(String),
}

impl TokenSource {
    /// Returns the secret at this place, and for [`Basic`](Self::Basic) the user.
    fn read(&self, request: &AuthRequest<'_>) -> Option<(Option<String>, Vec<u8>)> {
        let headers = request.headers;
        let secret = match self {
            Self::Bearer => bearer_token(headers)?.to_vec(),
            Self::Basic => {
                let (user, secret) = basic_credentials(headers)?;
                return Some((Some(user), secret.into_bytes()));
            }
            Self::Header(name) => headers.get(name.as_str())?.as_bytes().to_vec(),
            Self::Query(name) => {
                let pairs = request.uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
                let (_, value) = pairs.into_iter().find(|(key, _)| percent_decode_str(key).eq(name.bytes()))?;
                percent_decode_str(value).collect()
            }
            Self::Cookie(name) => {
                let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
                let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
                pairs.find(|(key, _)| key == name)?.1.as_bytes().to_vec()
            }
        };
        (!secret.is_empty()).then_some((None, secret))
    }

    /// Returns the location and the name of an API key.
    fn api_key(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Bearer | Self::Basic => None,
            Self::Header(name) => Some(("header", name)),
            Self::Query(name) => Some(("query", name)),
            Self::Cookie(name) => Some(("cookie", name)),
        }
    }

    /// Name of the security scheme on the card, which is that of an API key.
    fn scheme_name(&self) -> &str {
        let of_http = if *self == Self::Basic { "basic" } else { "bearer" };
        self.api_key().map_or(of_http, |(_, name)| name)
    }

    fn scheme(&self) -> Scheme {
        let name = self.scheme_name().to_owned();
        match self.api_key() {
            Some((location, _)) => Scheme::ApiKeySecurityScheme(ApiKeySecurityScheme {
                location: location.to_owned(),
                name,
                ..ApiKeySecurityScheme::default()
            }),
            None => Scheme::HttpAuthSecurityScheme(HttpAuthSecurityScheme { scheme: name, ..Default::default() }),
        }
    }

    /// Challenge for `WWW-Authenticate`. API keys have no registered scheme.
    fn challenge(&self, is_invalid: bool) -> String {
        match self.api_key() {
            Some((location, name)) => format!("ApiKey realm=\"a2a\", {location}=\"{name}\""),
            None if *self == Self::Basic => "Basic realm=\"a2a\", charset=\"UTF-8\"".to_owned(),
            None => if is_invalid { INVALID_TOKEN } else { BEARER }.to_owned(),
        }
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.api_key() {
            Some(("query", name)) => write!(f, "API key in the query parameter {name}"),
            Some((location, name)) => write!(f, "API key in the {location} {name}"),
            None => f.write_str(if *self == Self::Basic { "user and password" } else { "bearer token" }),
        }
    }
}

/// Returns user and password of `Authorization: Basic` (RFC 7617).
fn basic_credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    let decoded = BASE64_STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let (user, password) = str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// Token of a file, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct TokenEntry {
    /// Name, unique in the file. It is the id of the principal.
    pub name: String,
    /// SHA-256 of the secret, in hexadecimal digits.
    #[serde(deserialize_with = "read_digest")]
    sha256: String,
    /// Place of the token in requests.
    pub source: TokenSource,
    /// Owner of the tasks. Not set: the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Tenant to which the token is bound. Not set: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Permitted scopes. Not set: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<BTreeSet<String>>,
    /// Time at which the token was made.
    pub created: Timestamp,
    /// Time from which the token is rejected. Not set: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// Secret before the last rotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<PreviousSecret>,
}

/// Secret that was replaced, and is still accepted for some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PreviousSecret {
    /// SHA-256 of the secret, in hexadecimal digits.
    #[serde(deserialize_with = "read_digest")]
    sha256: String,
    /// Time from which it is rejected.
    pub expires: Timestamp,
}

fn read_digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?.to_ascii_lowercase();
    let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_digest { Ok(text) } else { Err(D::Error::custom("sha256 must have 64 hexadecimal digits")) }
}

/// New token to be added to a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NewToken {
    /// Name, 1 to 128 visible ASCII characters without `:`.
    pub name: String,
    /// Place of the token in requests.
    pub source: TokenSource,
    /// Owner of the tasks. Not set: the name.
    pub owner: Option<String>,
    /// Tenant to which the token is bound. Not set: any.
    pub tenant: Option<String>,
    /// Permitted scopes. Not set: all.
    pub scopes: Option<BTreeSet<String>>,
    /// Time from which the token is rejected. Not set: never.
    pub expires: Option<Timestamp>,
}

impl NewToken {
    /// Creates a bearer token with all scopes that does not expire.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { name, source: TokenSource::Bearer, owner: None, tenant: None, scopes: None, expires: None }
    }
}

/// Reason why a token file can't be used or changed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {cause}", path.display())]
pub struct TokenFileError {
    path: PathBuf,
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("not a token file: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Invalid(String),
}

/// Content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    tokens: Vec<TokenEntry>,
}

impl Document {
    fn read(path: &Path) -> Result<Self, Cause> {
        let document: Self = serde_json::from_slice(&read_file(path, MAX_FILE)?.0)?;
        let mut names = BTreeSet::new();
        for entry in &document.tokens {
            check_name(&entry.name).map_err(Cause::Invalid)?;
            check_source(&entry.source).map_err(Cause::Invalid)?;
            if !names.insert(&entry.name) {
                return Err(Cause::Invalid(format!("two tokens have the name {}", entry.name)));
            }
        }
        if document.tokens.len() > MAX_TOKENS {
            return Err(Cause::Invalid(format!("the file has more than {MAX_TOKENS} tokens")));
        }
        Ok(document)
    }

    fn write(&self, path: &Path) -> Result<(), Cause> {
        let mut content = serde_json::to_vec_pretty(self)?;
        content.push(b'\n');
        Ok(replace_secret(path, &content)?)
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_valid = (1..=128).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
    if is_valid { Ok(()) } else { Err("the name must be 1 to 128 visible ASCII characters without `:`".to_owned()) }
}

fn check_source(source: &TokenSource) -> Result<(), String> {
    use TokenSource::{Basic, Bearer, Cookie, Header, Query};
    let has = |name: &str, parts: &[&str]| parts.iter().any(|part| name.contains(part));
    // The ends of names by which logs recognize secrets.
    let is_secret_header = |name: &str| ["-key", "-token", "-secret"].iter().any(|end| name.ends_with(end));
    let is_header = |name: &str| HeaderName::from_bytes(name.as_bytes()).is_ok_and(|parsed| parsed.as_str() == name);
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    Err(match source {
        Header(name) if !is_header(name) || !is_secret_header(name) => {
            format!("{name} is not the name of a header in lower case that ends with -key, -token or -secret")
        }
        Query(name) if !has(name, &["token", "secret", "api_key", "apikey"]) => format!(
            "{name:?} does not contain token, secret, api_key or apikey, by which logs recognize it as a secret"
        ),
        Query(name) if name.eq_ignore_ascii_case("pageToken") || name.eq_ignore_ascii_case("page_token") => {
            format!("{name} is a parameter of the protocol")
        }
        Query(name) | Cookie(name) if !is_name(name) => {
            format!("{name:?} is not a name: use letters, digits, `-`, `_` and `.`")
        }
        Bearer | Basic | Header(_) | Query(_) | Cookie(_) => return Ok(()),
    })
}

/// Changes the document of a file under a lock, which other processes respect.
fn edit<T>(path: &Path, change: impl FnOnce(&mut Document) -> Result<T, Cause>) -> Result<T, TokenFileError> {
    let edit = || {
        let lock = path.with_added_extension("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(lock)?;
        lock.lock()?;
        let mut document = match Document::read(path) {
            Err(Cause::Io(error)) if error.kind() == io::ErrorKind::NotFound => Document::default(),
            result => result?,
        };
        let changed = change(&mut document)?;
        document.write(path)?;
        Ok(changed)
    };
    edit().map_err(|cause| TokenFileError { path: path.to_owned(), cause })
}

/// Adds a token to a file, which is created if it does not exist, and returns its secret. It is stored nowhere. Blocks.
///
/// # Errors
/// The name or the source is not valid, the name exists, or the file can't be read or written.
pub fn add_token(path: &Path, new: NewToken, now: SystemTime) -> Result<String, TokenFileError> {
    edit(path, |document| {
        let NewToken { name, source, owner, tenant, scopes, expires } = new;
        check_name(&name).map_err(Cause::Invalid)?;
        check_source(&source).map_err(Cause::Invalid)?;
        if document.tokens.iter().any(|entry| entry.name == name) {
            return Err(Cause::Invalid(format!("a token has the name {name}; revoke it, or choose another name")));
        }
        let secret = new_secret()?;
        let created = Timestamp::try_from(now).and_then(|now| now.round(jiff::Unit::Second));
        let created = created.unwrap_or(Timestamp::UNIX_EPOCH);
        let sha256 = sha256_hex(secret.as_bytes());
        let previous = None;
        document.tokens.push(TokenEntry { name, sha256, source, owner, tenant, scopes, created, expires, previous });
        Ok(secret)
    })
}

/// Replaces the secret of a token, and returns the new one. It is stored nowhere. The old one is rejected from `expires`. Blocks.
///
/// # Errors
/// There is no such token, the secret before the last rotation would be rejected before its time, or the file can't be read or written.
/// With an `expires` that has passed, both old secrets are rejected.
pub fn rotate_token(path: &Path, name: &str, expires: Timestamp) -> Result<String, TokenFileError> {
    edit(path, |document| {
        let entry = document.tokens.iter_mut().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| Cause::Invalid(format!("no token has the name {name}")))?;
        let is_ahead = |time: &Timestamp| time.as_millisecond() > Clock::default().millis();
        let first_end = entry.previous.as_ref().map(|first| first.expires);
        if let Some(end) = first_end.filter(|end| is_ahead(end) && is_ahead(&expires)) {
            let accepted = format!("the secret of {name} before the last rotation is accepted until {end}");
            return Err(Cause::Invalid(format!("{accepted}; rotate then, or with --grace 0s, which rejects both")));
        }
        let secret = new_secret()?;
        let sha256 = mem::replace(&mut entry.sha256, sha256_hex(secret.as_bytes()));
        entry.previous = Some(PreviousSecret { sha256, expires });
        Ok(secret)
    })
}

/// Generates a secret.
fn new_secret() -> Result<String, Cause> {
    let mut random = [0; SECRET_BYTES];
    let failed = |_| Cause::Invalid("the system has no random numbers".to_owned());
    SystemRandom::new().fill(&mut random).map_err(failed)?;
    Ok(format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(random)))
}

/// Removes a token from a file. Blocks.
///
/// # Errors
/// There is no such token, or the file can't be read or written.
pub fn revoke_token(path: &Path, name: &str) -> Result<(), TokenFileError> {
    edit(path, |document| {
        let count = document.tokens.len();
        document.tokens.retain(|entry| entry.name != name);
        if document.tokens.len() == count {
            return Err(Cause::Invalid(format!("no token has the name {name}")));
        }
        Ok(())
    })
}

/// Returns the tokens of a file, without their secrets. Blocks.
///
/// # Errors
/// The file can't be read.
pub fn list_tokens(path: &Path) -> Result<Vec<TokenEntry>, TokenFileError> {
    let document = Document::read(path).map_err(|cause| TokenFileError { path: path.to_owned(), cause })?;
    Ok(document.tokens)
}

/// Tokens by the hashes of their secrets, in hexadecimal.
type TokensByHash = HashMap<String, ActiveToken>;

/// Token that is accepted.
#[derive(Debug)]
struct ActiveToken {
    entry: TokenEntry,
    /// Has `true` once the token is revoked, changed, or expired.
    revoked: Arc<watch::Sender<bool>>,
}

/// Tokens of a file.
#[derive(Debug)]
struct Tokens {
    by_hash: Arc<TokensByHash>,
    sources: BTreeSet<TokenSource>,
}

impl Tokens {
    /// Creates the tokens of a document, which replace the `known` ones. Those that are missing or different are revoked.
    fn new(document: Document, known: &mut Arc<TokensByHash>) -> Self {
        let sources = document.tokens.iter().map(|entry| entry.source.clone()).collect();
        let active = |entry: TokenEntry| {
            let hash = entry.sha256.clone();
            // A rotation limits the time of the old secret, until which its streams go on.
            let is_same = |known: &&ActiveToken| {
                !*known.revoked.borrow() && TokenEntry { expires: entry.expires, ..known.entry.clone() } == entry
            };
            let unchanged = known.get(&hash).filter(is_same);
            let revoked =
                unchanged.map_or_else(|| Arc::new(watch::Sender::new(false)), |known| Arc::clone(&known.revoked));
            (hash, ActiveToken { entry, revoked })
        };
        let entries = document.tokens.into_iter().flat_map(TokenEntry::secrets);
        let by_hash: Arc<TokensByHash> = Arc::new(entries.map(active).collect());
        for (hash, token) in known.iter() {
            if by_hash.get(hash).is_none_or(|kept| !Arc::ptr_eq(&kept.revoked, &token.revoked)) {
                token.revoked.send_replace(true);
            }
        }
        *known = Arc::clone(&by_hash);
        Self { by_hash, sources }
    }

    /// Ends the streams of tokens that have expired for a while. A stream does not notice an end that is set after its start.
    fn revoke_expired(&self, now: i64) {
        let has_ended = |end: Timestamp| now.saturating_sub(end.as_millisecond()) > 1000;
        for token in self.by_hash.values().filter(|token| token.entry.expires.is_some_and(has_ended)) {
            token.revoked.send_if_modified(|is_revoked| !mem::replace(is_revoked, true));
        }
    }

    /// Authenticates a request at this time.
    fn authenticate(&self, request: &AuthRequest<'_>, now: Timestamp) -> Result<Option<Principal>, Error> {
        let mut rejected = None;
        for source in &self.sources {
            let Some((user, secret)) = source.read(request) else { continue };
            // An attacker can't choose the hash of a secret, so the time of the lookup tells nothing about it.
            let token = if secret.len() <= MAX_SECRET { self.by_hash.get(&sha256_hex(&secret)) } else { None };
            let is_named = |token: &&ActiveToken| user.as_ref().is_none_or(|user| *user == token.entry.name);
            match token.filter(|token| token.entry.source == *source).filter(is_named) {
                Some(token) if token.entry.expires.is_none_or(|end| now < end) => {
                    let (expires, revoked) =
                        (token.entry.expires.map(Timestamp::as_millisecond), token.revoked.subscribe());
                    let validity = Validity::new(expires, now.as_millisecond(), Some(revoked));
                    return Ok(Some(Principal { validity, ..token.entry.principal() }));
                }
                Some(_) => rejected = Some((source, "the token has expired")),
                None => rejected = rejected.or(Some((source, "the token is not valid"))),
            }
        }
        Err(if let Some((source, why)) = rejected {
            let error =
                ErrorKind::Unauthenticated.because(format!("{source}: {why}")).challenge(source.challenge(true));
            error.with(SCHEME, source.scheme_name())
        } else {
            let sources: Vec<_> = self.sources.iter().map(ToString::to_string).collect();
            let challenges: Vec<_> = self.sources.iter().map(|source| source.challenge(false)).collect();
            let why = format!("credentials are required: {}", sources.join(", or "));
            ErrorKind::Unauthenticated.because(why).with(CREDENTIALS, MISSING).challenge(challenges.join(", "))
        })
    }
}

impl TokenEntry {
    /// Returns the token with each of its secrets.
    fn secrets(mut self) -> impl Iterator<Item = Self> {
        let previous = self.previous.take().map(|PreviousSecret { sha256, expires }| {
            let expires = self.expires.map_or(expires, |end| end.min(expires));
            Self { sha256, expires: Some(expires), ..self.clone() }
        });
        previous.into_iter().chain([self])
    }

    fn principal(&self) -> Principal {
        let principal = Principal::new(self.name.as_str()).owner(self.owner.as_deref().unwrap_or(&self.name));
        let principal = match &self.tenant {
            Some(tenant) => principal.tenant(tenant.as_str()),
            None => principal,
        };
        principal.scopes(self.scopes.clone().map_or(Scopes::All, Scopes::Only))
    }
}

/// Interval at which the file is checked while there are no requests, for the streams that are open.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Authentication with the tokens of a file. Changes of the file take effect within seconds, also for streams that are open.
///
/// ```
/// use std::time::SystemTime;
///
/// use a2a_service::{
///     agent::demo::Demo,
///     auth::{NewToken, TokenFile, add_token},
///     server::Server,
/// };
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("tokens.json");
/// let secret = add_token(&path, NewToken::new("ada"), SystemTime::now())?;
/// let server = Server::new(Demo).authenticator(TokenFile::open(&path)?);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TokenFile {
    clock: Clock,
    tokens: WatchedFiles<Tokens>,
    /// Task that checks the file at intervals.
    checks: Arc<OnceLock<AbortOnDropHandle<()>>>,
}

impl TokenFile {
    /// Reads the tokens of a file. Blocks.
    ///
    /// # Errors
    /// The file can't be read, is larger than 8 MiB, has more than 10,000 tokens, or is not a token file.
    pub fn open(path: &Path) -> Result<Self, TokenFileError> {
        let (read, logged) = (path.to_owned(), path.to_owned());
        let known = Mutex::default();
        let read = move || Document::read(&read).map(|document| Tokens::new(document, &mut known.lock()));
        let log = move |result: Result<&Tokens, &str>| match result {
            Ok(tokens) => audit::tokens_changed(&logged, tokens.by_hash.len()),
            Err(reason) => {
                let path = logged.display();
                tracing::error!(target: AUDIT, event = "token_file_unusable", %path, reason, "the tokens read before stay valid");
            }
        };
        let tokens = WatchedFiles::open(vec![path.to_owned()], read, log);
        let tokens = tokens.map_err(|cause| TokenFileError { path: path.to_owned(), cause })?;
        Ok(Self { clock: Clock::default(), tokens, checks: Arc::default() })
    }
}

#[async_trait]
impl Authenticator for TokenFile {
    async fn authenticate(&self, request: &AuthRequest<'_>) -> Result<Option<Principal>, Error> {
        self.checks.get_or_init(|| {
            let (tokens, clock) = (self.tokens.clone(), self.clock);
            AbortOnDropHandle::new(tokio::spawn(async move {
                let mut interval = tokio::time::interval(CHECK_INTERVAL);
                loop {
                    interval.tick().await;
                    tokens.value().await.revoke_expired(clock.millis());
                }
            }))
        });
        let now = Timestamp::from_millisecond(self.clock.millis()).unwrap_or(Timestamp::MAX);
        self.tokens.value().await.authenticate(request, now)
    }

    /// Declares a scheme for each place in which a token is accepted when the server starts.
    fn describe(&self, card: AgentCard) -> AgentCard {
        let tokens = self.tokens.current();
        card.any_scheme(tokens.sources.iter().map(|source| (source.scheme_name().to_owned(), source.scheme())))
    }
}
