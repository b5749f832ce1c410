//! JSON Web Tokens that bind a push notification to the server that sent it: signing keys, their publication as a JSON Web
//! Key Set (RFC 7517), and verification.
//!
//! A token of a notification has the claims `iss`, `aud` (the origin of the webhook), `iat`, `exp`, `jti` (the delivery id) and
//! `request_body_sha256` (the SHA-256 digest of the body in hexadecimal).

use std::{fmt, fmt::Write as _, sync::Arc, time::Duration};

use aws_lc_rs::{
    digest,
    rand::SystemRandom,
    rsa,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
        RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey,
    },
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use crate::clock::Millis;

/// Validity of a token. Long enough for a slow receiver, and short enough to limit a replay.
pub(crate) const LIFETIME: Duration = Duration::from_mins(5);

/// Maximum length of a token that is verified, in bytes.
const MAX_TOKEN: usize = 16 << 10;

/// Maximum number of keys of a key set.
const MAX_KEYS: usize = 100;

const PEM_BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const PEM_END: &str = "-----END PRIVATE KEY-----";

/// Signature algorithm of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// ECDSA with the curve P-256 and SHA-256.
    #[default]
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }
}

/// Reason why a key or a key set can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text has no private key in PKCS#8 PEM, or something else than private keys.
    #[error("expected private keys in PKCS#8 PEM (`{PEM_BEGIN}`)")]
    NotPem,
    /// The key is malformed, or neither P-256 nor Ed25519.
    #[error("a private key is malformed, or neither of P-256 (ES256) nor of Ed25519 (EdDSA)")]
    Unsupported,
    /// The random number generator of the system failed.
    #[error("the random number generator of the system failed")]
    Generation,
    /// The text is not a JSON Web Key Set, or has more than 100 keys.
    #[error("expected a JSON Web Key Set with at most {MAX_KEYS} keys")]
    NotKeySet,
}

enum Pair {
    Es256(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
}

/// Key with which a server signs push notifications.
pub struct SigningKey {
    pair: Pair,
    id: String,
    /// Encoded header of a token.
    header: String,
}

impl SigningKey {
    /// Generates a key.
    ///
    /// # Errors
    /// [`KeyError::Generation`].
    pub fn generate(algorithm: Algorithm) -> Result<Self, KeyError> {
        let pair = match algorithm {
            Algorithm::Es256 => EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map(Pair::Es256),
            Algorithm::EdDsa => Ed25519KeyPair::generate().map(Pair::EdDsa),
        };
        pair.map(Self::of).map_err(|_| KeyError::Generation)
    }

    /// Decodes a private key in PKCS#8 DER.
    fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        if let Ok(pair) = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der) {
            return Ok(Self::of(Pair::Es256(pair)));
        }
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| KeyError::Unsupported)?;
        Ok(Self::of(Pair::EdDsa(pair)))
    }

    fn of(pair: Pair) -> Self {
        let algorithm = algorithm(&pair);
        let id = URL_SAFE_NO_PAD.encode(sha256(thumbprint_input(&public_members(&pair)).as_bytes()));
        let header = json!({ "alg": algorithm.name(), "kid": id, "typ": "JWT" });
        Self { pair, id, header: URL_SAFE_NO_PAD.encode(header.to_string()) }
    }

    /// Returns the key id: the thumbprint of the public key (RFC 7638).
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        algorithm(&self.pair)
    }

    /// Returns the public key as a JSON Web Key.
    pub fn public_jwk(&self) -> Value {
        let mut jwk = json!({ "alg": self.algorithm().name(), "kid": self.id, "use": "sig" });
        for (name, value) in public_members(&self.pair) {
            jwk[name] = value.into();
        }
        jwk
    }

    /// Returns the private key in PKCS#8 PEM. It is a secret.
    ///
    /// # Errors
    /// [`KeyError::Unsupported`].
    pub fn to_pem(&self) -> Result<String, KeyError> {
        let der = match &self.pair {
            Pair::Es256(pair) => pair.to_pkcs8v1(),
            Pair::EdDsa(pair) => pair.to_pkcs8v1(),
        };
        let text = STANDARD.encode(der.map_err(|_| KeyError::Unsupported)?);
        let mut pem = format!("{PEM_BEGIN}\n");
        for line in text.as_bytes().chunks(64) {
            pem.extend(line.iter().copied().map(char::from));
            pem.push('\n');
        }
        Ok(pem + PEM_END + "\n")
    }

    fn sign(&self, input: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = match &self.pair {
            Pair::Es256(pair) => pair.sign(&SystemRandom::new(), input),
            Pair::EdDsa(pair) => pair.try_sign(input),
        };
        Ok(signature.map_err(|_| KeyError::Generation)?.as_ref().to_vec())
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).field("algorithm", &self.algorithm()).finish_non_exhaustive()
    }
}

fn algorithm(pair: &Pair) -> Algorithm {
    match pair {
        Pair::Es256(_) => Algorithm::Es256,
        Pair::EdDsa(_) => Algorithm::EdDsa,
    }
}

/// Returns the required members of a public key, in the order of a thumbprint.
fn public_members(pair: &Pair) -> Vec<(&'static str, String)> {
    match pair {
        Pair::Es256(pair) => {
            // An uncompressed point: 4, x and y (SEC 1, 2.3.3).
            let point = pair.public_key().as_ref();
            let (x, y) = point.get(1..).unwrap_or_default().split_at(point.len() / 2);
            let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
            vec![("crv", "P-256".to_owned()), ("kty", "EC".to_owned()), ("x", x), ("y", y)]
        }
        Pair::EdDsa(pair) => {
            let x = URL_SAFE_NO_PAD.encode(pair.public_key());
            vec![("crv", "Ed25519".to_owned()), ("kty", "OKP".to_owned()), ("x", x)]
        }
    }
}

fn thumbprint_input(members: &[(&'static str, String)]) -> String {
    let members: Vec<String> = members.iter().map(|(name, value)| format!(r#""{name}":"{value}""#)).collect();
    format!("{{{}}}", members.join(","))
}

fn sha256(bytes: &[u8]) -> digest::Digest {
    digest::digest(&digest::SHA256, bytes)
}

/// Returns the digest of a body for the claim `request_body_sha256`.
fn body_digest(body: &[u8]) -> String {
    sha256(body).as_ref().iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a string does not fail.
        write!(text, "{byte:02x}").unwrap_or_default();
        text
    })
}

/// Keys of a server. The first one signs, and all are published: a receiver verifies notifications that were signed before a
/// rotation, and knows the next key before it is used.
///
/// ```
/// use a2a_service::push::{Algorithm, SigningKey, SigningKeys};
///
/// let keys = SigningKeys::generate(Algorithm::Es256)?;
/// let stored = keys.to_pem()?;
/// let rotated = SigningKeys::from_pem(&stored)?.rotated(SigningKey::generate(Algorithm::EdDsa)?);
/// assert_eq!(rotated.jwks()["keys"].as_array().map(Vec::len), Some(2));
/// # Ok::<(), a2a_service::push::KeyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SigningKeys {
    first: Arc<SigningKey>,
    others: Vec<Arc<SigningKey>>,
}

impl SigningKeys {
    /// Generates a key.
    ///
    /// # Errors
    /// [`KeyError::Generation`].
    pub fn generate(algorithm: Algorithm) -> Result<Self, KeyError> {
        Ok(SigningKey::generate(algorithm)?.into())
    }

    /// Decodes private keys in PKCS#8 PEM, one after another. The first one signs. Text around the keys is ignored.
    ///
    /// # Errors
    /// [`KeyError::NotPem`], [`KeyError::Unsupported`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for block in pem.split(PEM_BEGIN).skip(1) {
            let (text, _) = block.split_once(PEM_END).ok_or(KeyError::NotPem)?;
            let text: String = text.split_ascii_whitespace().collect();
            let der = STANDARD.decode(text).map_err(|_| KeyError::NotPem)?;
            keys.push(Arc::new(SigningKey::from_der(&der)?));
        }
        let mut keys = keys.into_iter();
        Ok(Self { first: keys.next().ok_or(KeyError::NotPem)?, others: keys.collect() })
    }

    /// Returns the private keys in PKCS#8 PEM, the signing one first. They are secrets.
    ///
    /// # Errors
    /// [`KeyError::Unsupported`].
    pub fn to_pem(&self) -> Result<String, KeyError> {
        self.all().map(SigningKey::to_pem).collect()
    }

    /// Signs with another key from now on, and keeps publishing the earlier ones.
    #[must_use]
    pub fn rotated(mut self, key: SigningKey) -> Self {
        self.others.insert(0, std::mem::replace(&mut self.first, Arc::new(key)));
        self
    }

    /// Returns the public keys as a JSON Web Key Set, the document at `/.well-known/jwks.json`.
    pub fn jwks(&self) -> Value {
        json!({ "keys": self.all().map(SigningKey::public_jwk).collect::<Vec<_>>() })
    }

    /// Returns the keys, the signing one first.
    pub fn all(&self) -> impl Iterator<Item = &SigningKey> {
        std::iter::once(&self.first).chain(&self.others).map(|key| &**key)
    }

    /// Returns the token of a notification: a JSON Web Token (RFC 7519), valid for 5 minutes from `now`.
    ///
    /// # Errors
    /// [`KeyError::Generation`] if the key can't sign.
    pub fn token(
        &self,
        issuer: &str,
        webhook: &Url,
        delivery_id: &str,
        body: &[u8],
        now: Millis,
    ) -> Result<String, KeyError> {
        let seconds = now.div_euclid(1000);
        let claims = json!({
            "iss": issuer,
            "aud": webhook.origin().ascii_serialization(),
            "iat": seconds,
            "exp": seconds.saturating_add_unsigned(LIFETIME.as_secs()),
            "jti": delivery_id,
            "request_body_sha256": body_digest(body),
        });
        let input = format!("{}.{}", self.first.header, URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.first.sign(input.as_bytes())?;
        Ok(format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

impl From<SigningKey> for SigningKeys {
    fn from(key: SigningKey) -> Self {
        Self { first: Arc::new(key), others: Vec::new() }
    }
}

/// Public keys of a server, with which a receiver verifies its tokens: `ES256`, `EdDSA` (Ed25519) and `RS256` with at
/// least 2048 bits.
#[derive(Clone, Debug, Default)]
pub struct PublicKeys(Arc<[PublicKey]>);

#[derive(Debug)]
struct PublicKey {
    id: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Es256(Vec<u8>),
    EdDsa(Vec<u8>),
    Rs256 { n: Vec<u8>, e: Vec<u8> },
}

/// Members of a JSON Web Key that verification needs.
#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
    n: Option<String>,
    e: Option<String>,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
}

impl PublicKeys {
    /// Decodes a JSON Web Key Set. Keys for other purposes and of other algorithms are ignored.
    ///
    /// # Errors
    /// [`KeyError::NotKeySet`].
    pub fn from_jwks(json: &[u8]) -> Result<Self, KeyError> {
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<Value>,
        }
        let Set { keys } = serde_json::from_slice(json).map_err(|_| KeyError::NotKeySet)?;
        if keys.len() > MAX_KEYS {
            return Err(KeyError::NotKeySet);
        }
        let keys = keys.into_iter().filter_map(|key| public_key(serde_json::from_value(key).ok()?));
        Ok(Self(keys.collect()))
    }

    /// Verifies the signature of a token and returns its claims, which are not checked yet.
    pub(crate) fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        #[derive(Deserialize)]
        struct Header {
            alg: String,
            kid: Option<String>,
            crit: Option<Value>,
        }
        let malformed = || TokenError::Invalid("the token is not a JSON Web Token");
        if token.len() > MAX_TOKEN {
            return Err(malformed());
        }
        let (input, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let (header, claims) = input.split_once('.').ok_or_else(malformed)?;
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| malformed());
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| malformed())?;
        let (claims, signature) = (decode(claims)?, decode(signature)?);
        if header.crit.is_some() {
            return Err(TokenError::Invalid("the token has a critical header parameter"));
        }
        let candidates: Vec<&PublicKey> = self.0.iter().filter(|key| key.matches(header.kid.as_deref())).collect();
        if candidates.is_empty() {
            return Err(TokenError::UnknownKey);
        }
        if !candidates.iter().any(|key| key.verify(&header.alg, input.as_bytes(), &signature)) {
            return Err(TokenError::Invalid("the signature of the token is wrong"));
        }
        serde_json::from_slice(&claims)
            .map_err(|_| TokenError::Invalid("the token lacks `iat` or has malformed claims"))
    }
}

impl From<&SigningKeys> for PublicKeys {
    fn from(keys: &SigningKeys) -> Self {
        Self::from_jwks(keys.jwks().to_string().as_bytes()).unwrap_or_default()
    }
}

fn public_key(jwk: Jwk) -> Option<PublicKey> {
    if jwk.usage.is_some_and(|usage| usage != "sig") {
        return None;
    }
    let decode = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
    let (algorithm, material) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("EC", Some("P-256")) => {
            let (x, y) = (decode(jwk.x)?, decode(jwk.y)?);
            ("ES256", Material::Es256((x.len() == 32 && y.len() == 32).then(|| [&[4], &x[..], &y].concat())?))
        }
        ("OKP", Some("Ed25519")) => ("EdDSA", Material::EdDsa(decode(jwk.x)?)),
        ("RSA", _) => ("RS256", Material::Rs256 { n: decode(jwk.n)?, e: decode(jwk.e)? }),
        _ => return None,
    };
    // RFC 9864 names EdDSA after its curve.
    let is_expected = |name: String| name == algorithm || (algorithm == "EdDSA" && name == "Ed25519");
    jwk.alg.is_none_or(is_expected).then_some(PublicKey { id: jwk.kid, material })
}

impl PublicKey {
    /// Returns true for the key that a token names. A token without a key id, or a key without one, is tried.
    fn matches(&self, id: Option<&str>) -> bool {
        match (&self.id, id) {
            (Some(own), Some(id)) => own == id,
            _ => true,
        }
    }

    /// Verifies a signature. The algorithm is that of the key, whatever the token says.
    fn verify(&self, algorithm: &str, input: &[u8], signature: &[u8]) -> bool {
        match (&self.material, algorithm) {
            (Material::Es256(point), "ES256") => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(input, signature).is_ok()
            }
            (Material::EdDsa(key), "EdDSA" | "Ed25519") => {
                UnparsedPublicKey::new(&ED25519, key).verify(input, signature).is_ok()
            }
            (Material::Rs256 { n, e }, "RS256") => {
                rsa::PublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, input, signature).is_ok()
            }
            _ => false,
        }
    }
}

/// Reason why a token is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// No key has the id of the token; a newer key set may have it.
    UnknownKey,
    /// Malformed, wrongly signed, expired, or for something else.
    Invalid(&'static str),
}

/// Claims of a verified token. Times are in seconds since the Unix epoch.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Claims {
    pub(crate) iss: Option<String>,
    aud: Option<Audience>,
    iat: f64,
    exp: Option<f64>,
    nbf: Option<f64>,
    pub(crate) jti: Option<String>,
    request_body_sha256: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

/// Requirements for the claims of a token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected<'a> {
    /// Required value of `iss`, if any.
    pub(crate) issuer: Option<&'a str>,
    /// Required member of `aud`, if any.
    pub(crate) audience: Option<&'a str>,
    /// Body of the notification.
    pub(crate) body: &'a [u8],
    /// Current time.
    pub(crate) now: Millis,
    /// Maximum age of a token, and maximum difference between the clocks.
    pub(crate) tolerance: Duration,
}

impl Claims {
    /// Checks the claims.
    pub(crate) fn check(&self, expected: &Expected<'_>) -> Result<(), TokenError> {
        let reject = |why| Err(TokenError::Invalid(why));
        // The times of tokens are floating-point numbers in some libraries.
        let now = Duration::from_millis(u64::try_from(expected.now).unwrap_or_default()).as_secs_f64();
        let tolerance = expected.tolerance.as_secs_f64();
        let is_recent = (now - self.iat).abs() <= tolerance;
        if !is_recent || self.nbf.is_some_and(|from| from > now + tolerance) {
            return reject("the token was issued too long ago, or in the future");
        }
        if self.exp.is_some_and(|end| end + tolerance < now) {
            return reject("the token has expired");
        }
        if expected.issuer.is_some_and(|issuer| self.iss.as_deref() != Some(issuer)) {
            return reject("the token has another issuer");
        }
        let is_for = |audience: &str| match &self.aud {
            Some(Audience::One(one)) => one == audience,
            Some(Audience::Several(several)) => several.iter().any(|one| one == audience),
            None => false,
        };
        if expected.audience.is_some_and(|audience| !is_for(audience)) {
            return reject("the token has another audience");
        }
        match &self.request_body_sha256 {
            Some(digest) if digest.eq_ignore_ascii_case(&body_digest(expected.body)) => Ok(()),
            Some(_) => reject("the token belongs to another body"),
            None => reject("the token lacks `request_body_sha256`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{DecodingKey, Validation, decode, decode_header, errors::ErrorKind, jwk::JwkSet};

    use super::*;

    const NOW: Millis = 1_700_000_000_000;
    const BODY: &[u8] = br#"{"task":{"id":"t"}}"#;
    const ISSUER: &str = "https://agent.example";

    fn token(keys: &SigningKeys) -> String {
        let webhook = Url::parse("https://Hooks.Example:443/path?secret=1").unwrap();
        keys.token(ISSUER, &webhook, "t~hook~7", BODY, NOW).unwrap()
    }

    fn expected() -> Expected<'static> {
        let audience = Some("https://hooks.example");
        Expected { issuer: Some(ISSUER), audience, body: BODY, now: NOW, tolerance: Duration::from_mins(5) }
    }

    #[test]
    fn independent_library_verifies_a_token_by_the_key_set() {
        for algorithm in [Algorithm::Es256, Algorithm::EdDsa] {
            let keys = SigningKeys::generate(algorithm).unwrap();
            let set: JwkSet = serde_json::from_str(&keys.jwks().to_string()).unwrap();
            let token = token(&keys);
            let header = decode_header(&token).unwrap();
            let jwk = set.find(header.kid.as_deref().unwrap()).unwrap();
            let mut validation = Validation::new(header.alg);
            validation.set_audience(&["https://hooks.example"]);
            validation.set_issuer(&[ISSUER]);
            // The token is of 2023.
            validation.validate_exp = false;
            let key = DecodingKey::from_jwk(jwk).unwrap();
            let claims = decode::<Value>(&token, &key, &validation).unwrap().claims;
            let digest = body_digest(BODY);
            assert_eq!(
                claims,
                json!({
                    "iss": ISSUER, "aud": "https://hooks.example", "iat": 1_700_000_000, "exp": 1_700_000_300,
                    "jti": "t~hook~7", "request_body_sha256": digest,
                })
            );
            validation.validate_exp = true;
            let error = decode::<Value>(&token, &key, &validation).unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::ExpiredSignature);
        }
    }

    #[test]
    fn tokens_of_an_independent_library_are_verified() {
        let keys = SigningKeys::generate(Algorithm::Es256).unwrap();
        let pem = keys.to_pem().unwrap();
        let der: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let key = jsonwebtoken::EncodingKey::from_ec_der(&STANDARD.decode(der).unwrap());
        let claims = json!({ "iat": 1_700_000_000.5, "aud": ["a", "b"], "request_body_sha256": body_digest(BODY) });
        let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::ES256);
        let token = jsonwebtoken::encode(&header, &claims, &key).unwrap();
        let claims = PublicKeys::from(&keys).verify(&token).unwrap();
        claims.check(&Expected { issuer: None, audience: Some("b"), ..expected() }).unwrap();
        assert!(claims.check(&Expected { issuer: None, audience: Some("c"), ..expected() }).is_err());
    }

    /// Example of RFC 7515, A.2.
    #[test]
    fn rs256_is_verified() {
        let jwk = json!({
            "kty": "RSA",
            "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
            "e": "AQAB",
        });
        let keys = PublicKeys::from_jwks(json!({ "keys": [jwk] }).to_string().as_bytes()).unwrap();
        let input = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
        let signature = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
        // The example has no `iat`: its signature is right, and its claims are not enough.
        let result = keys.verify(&format!("{input}.{signature}")).unwrap_err();
        assert_eq!(result, TokenError::Invalid("the token lacks `iat` or has malformed claims"));
        let result = keys.verify(&format!("{input}.{}", signature.replace("cC4h", "cC4i"))).unwrap_err();
        assert_eq!(result, TokenError::Invalid("the signature of the token is wrong"));
    }

    /// Example of RFC 8037, A.3.
    #[test]
    fn key_id_is_the_thumbprint() {
        let members = [
            ("crv", "Ed25519".to_owned()),
            ("kty", "OKP".to_owned()),
            ("x", "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo".to_owned()),
        ];
        let id = URL_SAFE_NO_PAD.encode(sha256(thumbprint_input(&members).as_bytes()));
        assert_eq!(id, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    #[test]
    fn keys_survive_storage_and_rotation() {
        for algorithm in [Algorithm::Es256, Algorithm::EdDsa] {
            let old = SigningKeys::generate(algorithm).unwrap();
            let signed_before = token(&old);
            let new = SigningKey::generate(Algorithm::Es256).unwrap();
            let id = new.id().to_owned();
            let rotated = SigningKeys::from_pem(&old.clone().rotated(new).to_pem().unwrap()).unwrap();
            assert_eq!(rotated.all().map(SigningKey::id).collect::<Vec<_>>(), [&*id, old.first.id()]);
            assert_eq!(decode_header(token(&rotated)).unwrap().kid, Some(id));
            let public = PublicKeys::from(&rotated);
            public.verify(&signed_before).unwrap().check(&expected()).unwrap();
            public.verify(&token(&rotated)).unwrap().check(&expected()).unwrap();
            assert_eq!(PublicKeys::from(&old).verify(&token(&rotated)).unwrap_err(), TokenError::UnknownKey);
        }
        for (pem, error) in [
            ("", KeyError::NotPem),
            ("-----BEGIN PRIVATE KEY-----\nAAAA", KeyError::NotPem),
            ("-----BEGIN PRIVATE KEY-----\n*\n-----END PRIVATE KEY-----", KeyError::NotPem),
            ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", KeyError::Unsupported),
        ] {
            assert_eq!(SigningKeys::from_pem(pem).unwrap_err(), error, "{pem}");
        }
    }

    #[test]
    fn published_keys_and_debug_output_have_no_secret() {
        for algorithm in [Algorithm::Es256, Algorithm::EdDsa] {
            let keys = SigningKeys::generate(algorithm).unwrap();
            let jwks = keys.jwks();
            assert!(jwks["keys"][0].as_object().unwrap().keys().all(|name| name != "d"), "{jwks}");
            assert!(!format!("{keys:?}").contains("PRIVATE"));
        }
    }

    #[test]
    fn forged_tokens_are_rejected() {
        let keys = SigningKeys::generate(Algorithm::Es256).unwrap();
        let public = PublicKeys::from(&keys);
        let good = token(&keys);
        let parts: Vec<&str> = good.split('.').collect();
        let [header, claims, signature] = parts[..] else { panic!("{good}") };
        let id = keys.first.id();
        let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let with_header = |value: Value| format!("{}.{claims}.{signature}", encode(value));
        // HMAC with the public key as its secret.
        let confused = {
            let secret = keys.jwks()["keys"][0]["x"].as_str().unwrap().to_owned();
            let header = jsonwebtoken::Header {
                kid: Some(id.to_owned()),
                ..jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256)
            };
            let claims = json!({ "iat": 1_700_000_000, "request_body_sha256": body_digest(BODY) });
            jsonwebtoken::encode(&header, &claims, &jsonwebtoken::EncodingKey::from_secret(secret.as_bytes())).unwrap()
        };
        let other = SigningKeys::generate(Algorithm::Es256).unwrap();
        let other_signature = token(&other).rsplit_once('.').unwrap().1.to_owned();
        for forged in [
            String::new(),
            "..".to_owned(),
            format!("{header}.{claims}"),
            format!("{header}.{claims}."),
            format!("{header}.{claims}.{signature}="),
            format!("{header}.{claims}.{signature}.{signature}"),
            format!("{header}.{claims}.{other_signature}"),
            format!("{header}.{}.{signature}", encode(json!({ "iat": 1_700_000_000 }))),
            with_header(json!({ "alg": "none", "kid": id })),
            with_header(json!({ "alg": "HS256", "kid": id })),
            with_header(json!({ "alg": "EdDSA", "kid": id })),
            with_header(json!({ "alg": "ES256", "kid": id, "crit": ["exp"] })),
            confused,
            "a".repeat(MAX_TOKEN + 1),
        ] {
            assert!(matches!(public.verify(&forged), Err(TokenError::Invalid(_))), "{forged}");
        }
        assert_eq!(public.verify(&token(&other)).unwrap_err(), TokenError::UnknownKey);
        public.verify(&good).unwrap().check(&expected()).unwrap();
    }

    #[test]
    fn claims_are_checked() {
        let keys = SigningKeys::generate(Algorithm::EdDsa).unwrap();
        let claims = PublicKeys::from(&keys).verify(&token(&keys)).unwrap();
        let minutes = |n: i64| NOW + n * 60_000;
        for accepted in [
            expected(),
            Expected { now: minutes(5), ..expected() },
            Expected { now: minutes(-5), ..expected() },
            Expected { issuer: None, audience: None, ..expected() },
        ] {
            claims.check(&accepted).unwrap();
        }
        for rejected in [
            Expected { now: minutes(6), ..expected() },
            Expected { now: minutes(-6), ..expected() },
            Expected { issuer: Some("https://other.example"), ..expected() },
            Expected { audience: Some("https://other.example"), ..expected() },
            Expected { audience: Some("https://hooks.example/"), ..expected() },
            Expected { body: br#"{"task":{"id":"u"}}"#, ..expected() },
        ] {
            assert!(claims.check(&rejected).is_err(), "{rejected:?}");
        }
        let expired = Claims { exp: Some(1_699_999_000.0), ..claims.clone() };
        let not_yet_valid = Claims { nbf: Some(1_700_000_400.0), ..claims.clone() };
        let without_audience = Claims { aud: None, ..claims.clone() };
        for rejected in [expired, not_yet_valid, without_audience] {
            assert!(rejected.check(&expected()).is_err(), "{rejected:?}");
        }
        let without_digest = Claims { request_body_sha256: None, ..claims };
        assert!(without_digest.check(&expected()).is_err());
    }

    #[test]
    fn key_sets_are_bounded_and_other_keys_ignored() {
        let keys = SigningKeys::generate(Algorithm::Es256).unwrap();
        let own = keys.jwks()["keys"][0].clone();
        let with = |name: &str, value: &str| {
            let mut key = own.clone();
            key[name] = value.into();
            key
        };
        let set = json!({ "keys": [
            { "kty": "oct", "k": "AAAA" }, 7, with("use", "enc"), with("alg", "RS256"), with("crv", "P-384"), with("x", "AA"), own,
        ] });
        let public = PublicKeys::from_jwks(set.to_string().as_bytes()).unwrap();
        assert_eq!(public.0.len(), 1);
        public.verify(&token(&keys)).unwrap();
        let many = json!({ "keys": vec![&own; MAX_KEYS + 1] });
        for bad in [many.to_string(), "[]".to_owned(), "{}".to_owned(), String::new()] {
            assert_eq!(PublicKeys::from_jwks(bad.as_bytes()).unwrap_err(), KeyError::NotKeySet);
        }
    }
}
