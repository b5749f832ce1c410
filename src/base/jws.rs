//! JSON Web Signatures (RFC 7515): private and public keys, their forms (PEM, JSON Web Key), signing and verification.

use std::{fmt, path::Path, sync::Arc};

use aws_lc_rs::{
    digest,
    encoding::{AsDer, Pkcs8V1Der},
    rand::SystemRandom,
    rsa,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
        ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, UnparsedPublicKey,
    },
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::secret_file::read_secret;

/// Maximum number of keys of a key set.
pub(crate) const MAX_KEYS: usize = 100;

/// Maximum size of a file with keys, in bytes.
pub(crate) const MAX_KEY_FILE: u64 = 1 << 20;

const PRIVATE_BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const PRIVATE_END: &str = "-----END PRIVATE KEY-----";
const PUBLIC_BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const PUBLIC_END: &str = "-----END PUBLIC KEY-----";

/// Signature algorithm of a key (RFC 7518, 3.1; RFC 8037, 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// ECDSA with the curve P-256 and SHA-256.
    #[default]
    Es256,
    /// Ed25519.
    EdDsa,
    /// RSASSA-PKCS1-v1_5 with SHA-256 and at least 2048 bits.
    Rs256,
}

impl Algorithm {
    /// Returns the name in the header parameter `alg`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
            Self::Rs256 => "RS256",
        }
    }

    /// Returns true for a name of this algorithm. RFC 9864 names `EdDSA` after its curve.
    fn is_named(self, name: &str) -> bool {
        name == self.name() || (self == Self::EdDsa && name == "Ed25519")
    }
}

/// Reason why a key, a key set or a file with keys can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The text has no private key in PKCS#8 PEM, or something else than private keys.
    #[error("expected private keys in PKCS#8 PEM (`{PRIVATE_BEGIN}`)")]
    NotPem,
    /// The text has no public key in PEM.
    #[error("expected public keys in PEM (`{PUBLIC_BEGIN}`)")]
    NotPublicPem,
    /// The key is malformed, or has another algorithm.
    #[error(
        "a key is malformed, or neither of P-256 (ES256), nor of Ed25519 (EdDSA), nor of RSA with 2048 to 8192 bits (RS256)"
    )]
    Unsupported,
    /// The random number generator of the system failed.
    #[error("the random number generator of the system failed")]
    Generation,
    /// The text is not a JSON Web Key Set, or has more than 100 keys.
    #[error("expected a JSON Web Key Set with at most {MAX_KEYS} keys")]
    NotKeySet,
}

/// Reason why a signature is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// The protected header or the signature is malformed.
    #[error("the signature is malformed")]
    Malformed,
    /// The protected header has a critical parameter, and none is supported.
    #[error("the signature has a critical header parameter")]
    Critical,
    /// No key has the key id of the protected header.
    #[error("the key of the signature is unknown")]
    UnknownKey,
    /// The signature does not belong to this content and key.
    #[error("the signature is wrong")]
    Wrong,
}

enum Pair {
    Es256(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
    Rs256(rsa::KeyPair),
}

/// Private key that signs.
///
/// ```
/// use a2a_service::jose::{Algorithm, SigningKey};
///
/// let key = SigningKey::generate(Algorithm::Es256)?;
/// let stored = key.to_pem()?;
/// assert_eq!(SigningKey::from_pem(&stored)?.id(), key.id());
/// # Ok::<(), a2a_service::jose::KeyError>(())
/// ```
pub struct SigningKey {
    pair: Pair,
    id: String,
}

/// Signature with what it covers, each in base64url: the parts of a JSON Web Signature (RFC 7515, 3.1).
pub(crate) struct Jws {
    pub(crate) protected: String,
    pub(crate) payload: String,
    pub(crate) signature: String,
}

impl SigningKey {
    /// Generates a key. For [`Algorithm::Rs256`] it has 2048 bits, and takes some tenths of a second.
    ///
    /// # Errors
    /// [`KeyError::Generation`].
    pub fn generate(algorithm: Algorithm) -> Result<Self, KeyError> {
        let pair = match algorithm {
            Algorithm::Es256 => EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map(Pair::Es256),
            Algorithm::EdDsa => Ed25519KeyPair::generate().map(Pair::EdDsa),
            Algorithm::Rs256 => rsa::KeyPair::generate(rsa::KeySize::Rsa2048).map(Pair::Rs256),
        };
        pair.map(Self::of).map_err(|_| KeyError::Generation)
    }

    /// Decodes the first private key in PKCS#8 PEM. Text around it is ignored.
    ///
    /// # Errors
    /// [`KeyError::NotPem`], [`KeyError::Unsupported`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        Self::all_from_pem(pem)?.into_iter().next().ok_or(KeyError::NotPem)
    }

    /// Reads the first private key of a file in PKCS#8 PEM. Logs a warning if other users of the system can read the file.
    /// Blocks.
    ///
    /// # Errors
    /// The file can't be read or is larger than 1 MiB, or [`from_pem`](Self::from_pem) fails.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let pem = read_secret(path, MAX_KEY_FILE)?;
        Self::from_pem(&pem).map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
    }

    /// Decodes private keys in PKCS#8 PEM, one after another.
    pub(crate) fn all_from_pem(pem: &str) -> Result<Vec<Self>, KeyError> {
        let keys = pem_blocks(pem, PRIVATE_BEGIN, PRIVATE_END).map(|der| Self::from_der(&der.ok_or(KeyError::NotPem)?));
        keys.collect()
    }

    /// Decodes a private key in PKCS#8 DER.
    fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        if let Ok(pair) = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der) {
            return Ok(Self::of(Pair::Es256(pair)));
        }
        if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
            return Ok(Self::of(Pair::EdDsa(pair)));
        }
        let pair = rsa::KeyPair::from_pkcs8(der).map_err(|_| KeyError::Unsupported)?;
        Ok(Self::of(Pair::Rs256(pair)))
    }

    fn of(pair: Pair) -> Self {
        let id = URL_SAFE_NO_PAD.encode(sha256(thumbprint_input(&public_members(&pair)).as_bytes()));
        Self { pair, id }
    }

    /// Sets the key id, which verifiers find the public key by.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Returns the key id. By default, it is the thumbprint of the public key (RFC 7638).
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        match &self.pair {
            Pair::Es256(_) => Algorithm::Es256,
            Pair::EdDsa(_) => Algorithm::EdDsa,
            Pair::Rs256(_) => Algorithm::Rs256,
        }
    }

    /// Returns the public key as a JSON Web Key (RFC 7517).
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
        let unsupported = |_| KeyError::Unsupported;
        let text = match &self.pair {
            Pair::Es256(pair) => STANDARD.encode(pair.to_pkcs8v1().map_err(unsupported)?),
            Pair::EdDsa(pair) => STANDARD.encode(pair.to_pkcs8v1().map_err(unsupported)?),
            Pair::Rs256(pair) => STANDARD.encode(AsDer::<Pkcs8V1Der<'_>>::as_der(pair).map_err(unsupported)?.as_ref()),
        };
        let mut pem = format!("{PRIVATE_BEGIN}\n");
        for line in text.as_bytes().chunks(64) {
            pem.extend(line.iter().copied().map(char::from));
            pem.push('\n');
        }
        Ok(pem + PRIVATE_END + "\n")
    }

    /// Signs a payload. `media_type` is the header parameter `typ`.
    pub(crate) fn sign(&self, media_type: &str, payload: &[u8]) -> Result<Jws, KeyError> {
        let header = json!({ "alg": self.algorithm().name(), "kid": self.id, "typ": media_type });
        let protected = URL_SAFE_NO_PAD.encode(header.to_string());
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let input = format!("{protected}.{payload}");
        let signature = URL_SAFE_NO_PAD.encode(self.sign_input(input.as_bytes())?);
        Ok(Jws { protected, payload, signature })
    }

    fn sign_input(&self, input: &[u8]) -> Result<Vec<u8>, KeyError> {
        let random = SystemRandom::new();
        let signature = match &self.pair {
            Pair::Es256(pair) => pair.sign(&random, input),
            Pair::EdDsa(pair) => pair.try_sign(input),
            Pair::Rs256(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                let signed = pair.sign(&RSA_PKCS1_SHA256, &random, input, &mut signature);
                return signed.map(|()| signature).map_err(|_| KeyError::Generation);
            }
        };
        Ok(signature.map_err(|_| KeyError::Generation)?.as_ref().to_vec())
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).field("algorithm", &self.algorithm()).finish_non_exhaustive()
    }
}

/// Decodes the PEM blocks of a kind (RFC 7468). `None` for a malformed one.
fn pem_blocks<'a>(pem: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = Option<Vec<u8>>> + 'a {
    pem.split(begin).skip(1).map(move |block| {
        let (text, _) = block.split_once(end)?;
        STANDARD.decode(text.split_ascii_whitespace().collect::<String>()).ok()
    })
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
        Pair::Rs256(pair) => {
            let key = pair.public_key();
            let n = URL_SAFE_NO_PAD.encode(key.modulus().big_endian_without_leading_zero());
            let e = URL_SAFE_NO_PAD.encode(key.exponent().big_endian_without_leading_zero());
            vec![("e", e), ("kty", "RSA".to_owned()), ("n", n)]
        }
    }
}

fn thumbprint_input(members: &[(&'static str, String)]) -> String {
    let members: Vec<String> = members.iter().map(|(name, value)| format!(r#""{name}":"{value}""#)).collect();
    format!("{{{}}}", members.join(","))
}

/// Encodes bytes in base64url without padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes base64url without padding.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Returns the SHA-256 digest of bytes.
pub(crate) fn sha256(bytes: &[u8]) -> digest::Digest {
    digest::digest(&digest::SHA256, bytes)
}

/// Public keys with which signatures are verified: `ES256`, `EdDSA` (Ed25519) and `RS256` with at least 2048 bits.
#[derive(Clone, Debug, Default)]
pub struct PublicKeys(Arc<[PublicKey]>);

#[derive(Debug)]
struct PublicKey {
    id: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    /// Key as the algorithm defines it: a point, or the bytes of Ed25519.
    Raw(Algorithm, Vec<u8>),
    /// RSA key by modulus and exponent.
    Rsa { n: Vec<u8>, e: Vec<u8> },
    /// `SubjectPublicKeyInfo` (RFC 5280, 4.1) in DER.
    Spki(Algorithm, Vec<u8>),
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

    /// Decodes public keys in PEM (`BEGIN PUBLIC KEY`), one after another. They have no key id: each is tried for every
    /// signature.
    ///
    /// # Errors
    /// [`KeyError::NotPublicPem`] without a key or with more than 100, [`KeyError::Unsupported`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        for der in pem_blocks(pem, PUBLIC_BEGIN, PUBLIC_END) {
            let der = der.filter(|_| keys.len() < MAX_KEYS).ok_or(KeyError::NotPublicPem)?;
            let is_readable = |algorithm| match algorithm {
                Algorithm::Es256 => ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &der).is_ok(),
                Algorithm::EdDsa => ParsedPublicKey::new(&ED25519, &der).is_ok(),
                Algorithm::Rs256 => ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &der).is_ok(),
            };
            let mut algorithms = [Algorithm::Es256, Algorithm::EdDsa, Algorithm::Rs256].into_iter();
            let algorithm = algorithms.find(|algorithm| is_readable(*algorithm)).ok_or(KeyError::Unsupported)?;
            keys.push(PublicKey { id: None, material: Material::Spki(algorithm, der) });
        }
        if keys.is_empty() { Err(KeyError::NotPublicPem) } else { Ok(Self(keys.into())) }
    }

    /// Verifies a signature in base64url over a protected header and a payload, both in base64url. The algorithm is that of
    /// the key, whatever the header says.
    pub(crate) fn verify(&self, protected: &str, payload: &str, signature: &str) -> Result<(), SignatureError> {
        #[derive(Deserialize)]
        struct Header {
            alg: String,
            kid: Option<String>,
            crit: Option<Value>,
        }
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| SignatureError::Malformed);
        let header: Header = serde_json::from_slice(&decode(protected)?).map_err(|_| SignatureError::Malformed)?;
        let signature = decode(signature)?;
        if header.crit.is_some() {
            return Err(SignatureError::Critical);
        }
        let mut candidates = self.0.iter().filter(|key| key.matches(header.kid.as_deref())).peekable();
        if candidates.peek().is_none() {
            return Err(SignatureError::UnknownKey);
        }
        let input = format!("{protected}.{payload}");
        let is_verified = candidates.any(|key| key.verify(&header.alg, input.as_bytes(), &signature));
        if is_verified { Ok(()) } else { Err(SignatureError::Wrong) }
    }
}

impl<'a> FromIterator<&'a SigningKey> for PublicKeys {
    fn from_iter<T: IntoIterator<Item = &'a SigningKey>>(keys: T) -> Self {
        Self(keys.into_iter().filter_map(|key| public_key(serde_json::from_value(key.public_jwk()).ok()?)).collect())
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
            let point = (x.len() == 32 && y.len() == 32).then(|| [&[4], &x[..], &y].concat())?;
            (Algorithm::Es256, Material::Raw(Algorithm::Es256, point))
        }
        ("OKP", Some("Ed25519")) => (Algorithm::EdDsa, Material::Raw(Algorithm::EdDsa, decode(jwk.x)?)),
        ("RSA", _) => (Algorithm::Rs256, Material::Rsa { n: decode(jwk.n)?, e: decode(jwk.e)? }),
        _ => return None,
    };
    let is_expected = |name: String| algorithm.is_named(&name);
    jwk.alg.is_none_or(is_expected).then_some(PublicKey { id: jwk.kid, material })
}

impl PublicKey {
    /// Returns true for the key that a signature names. A signature without a key id, or a key without one, is tried.
    fn matches(&self, id: Option<&str>) -> bool {
        match (&self.id, id) {
            (Some(own), Some(id)) => own == id,
            _ => true,
        }
    }

    fn verify(&self, algorithm: &str, input: &[u8], signature: &[u8]) -> bool {
        let (own, bytes) = match &self.material {
            Material::Raw(own, bytes) | Material::Spki(own, bytes) => (*own, bytes),
            Material::Rsa { n, e } => {
                let key = rsa::PublicKeyComponents { n, e };
                return Algorithm::Rs256.is_named(algorithm)
                    && key.verify(&RSA_PKCS1_2048_8192_SHA256, input, signature).is_ok();
            }
        };
        let verified = match own {
            Algorithm::Es256 => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, bytes).verify(input, signature),
            Algorithm::EdDsa => UnparsedPublicKey::new(&ED25519, bytes).verify(input, signature),
            Algorithm::Rs256 => UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, bytes).verify(input, signature),
        };
        own.is_named(algorithm) && verified.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALGORITHMS: [Algorithm; 3] = [Algorithm::Es256, Algorithm::EdDsa, Algorithm::Rs256];

    fn set_of(keys: &[Value]) -> PublicKeys {
        PublicKeys::from_jwks(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
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
    fn each_algorithm_signs_and_verifies() {
        for algorithm in ALGORITHMS {
            let generated = SigningKey::generate(algorithm).unwrap();
            let key = SigningKey::from_pem(&generated.to_pem().unwrap()).unwrap();
            assert_eq!((key.algorithm(), key.id()), (algorithm, generated.id()));
            let keys = set_of(&[generated.public_jwk()]);
            let jws = key.sign("JOSE", b"payload").unwrap();
            assert_eq!(keys.verify(&jws.protected, &jws.payload, &jws.signature), Ok(()), "{algorithm:?}");
            let other = URL_SAFE_NO_PAD.encode("payloae");
            assert_eq!(keys.verify(&jws.protected, &other, &jws.signature), Err(SignatureError::Wrong));
            let named = key.with_id("other").sign("JOSE", b"payload").unwrap();
            let unknown = keys.verify(&named.protected, &named.payload, &named.signature);
            assert_eq!(unknown, Err(SignatureError::UnknownKey));
        }
    }

    #[test]
    fn algorithm_of_the_key_decides() {
        for algorithm in ALGORITHMS {
            let key = SigningKey::generate(algorithm).unwrap();
            let keys: PublicKeys = [&key].into_iter().collect();
            let jws = key.sign("JOSE", b"payload").unwrap();
            for name in ["none", "HS256", "ES256", "EdDSA", "RS256", "PS256"]
                .into_iter()
                .filter(|name| *name != algorithm.name())
            {
                let header = URL_SAFE_NO_PAD.encode(json!({ "alg": name, "kid": key.id() }).to_string());
                let input = format!("{header}.{}", jws.payload);
                let signature = URL_SAFE_NO_PAD.encode(key.sign_input(input.as_bytes()).unwrap());
                assert_eq!(keys.verify(&header, &jws.payload, &signature), Err(SignatureError::Wrong), "{name}");
            }
        }
    }

    #[test]
    fn malformed_signatures_are_rejected() {
        let key = SigningKey::generate(Algorithm::Es256).unwrap();
        let keys: PublicKeys = [&key].into_iter().collect();
        let jws = key.sign("JOSE", b"payload").unwrap();
        let header = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        for (protected, signature, error) in [
            ("*".to_owned(), &*jws.signature, SignatureError::Malformed),
            (jws.protected.clone(), "=", SignatureError::Malformed),
            (header(json!({ "kid": key.id() })), &jws.signature, SignatureError::Malformed),
            (header(json!({ "alg": "ES256", "crit": ["b64"] })), &jws.signature, SignatureError::Critical),
            (jws.protected.clone(), "", SignatureError::Wrong),
        ] {
            assert_eq!(keys.verify(&protected, &jws.payload, signature), Err(error), "{protected}");
        }
    }

    #[test]
    fn key_sets_are_bounded_and_other_keys_ignored() {
        let key = SigningKey::generate(Algorithm::Es256).unwrap();
        let own = key.public_jwk();
        let with = |name: &str, value: &str| {
            let mut key = own.clone();
            key[name] = value.into();
            key
        };
        let others = [json!({ "kty": "oct", "k": "AAAA" }), json!(7), with("use", "enc"), with("alg", "RS256")];
        let malformed = [with("crv", "P-384"), with("x", "AA")];
        let public = set_of(&[&others[..], &malformed, std::slice::from_ref(&own)].concat());
        assert_eq!(public.0.len(), 1);
        let jws = key.sign("JOSE", b"payload").unwrap();
        assert_eq!(public.verify(&jws.protected, &jws.payload, &jws.signature), Ok(()));
        let many = json!({ "keys": vec![&own; MAX_KEYS + 1] });
        for bad in [many.to_string(), "[]".to_owned(), "{}".to_owned(), String::new()] {
            assert_eq!(PublicKeys::from_jwks(bad.as_bytes()).unwrap_err(), KeyError::NotKeySet);
        }
        let pem = key.to_pem().unwrap();
        for bad in ["", "-----BEGIN PUBLIC KEY-----\n*\n-----END PUBLIC KEY-----", &pem] {
            assert_eq!(PublicKeys::from_pem(bad).unwrap_err(), KeyError::NotPublicPem, "{bad}");
        }
    }
}
