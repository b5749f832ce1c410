//! JSON Web Signatures (RFC 7515): private and public keys, their forms (PEM, JSON Web Key), signing and verification.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use aws_lc_rs::{
    digest,
    encoding::{AsDer, Pkcs8V1Der},
    rand::SystemRandom,
    rsa,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair,
        ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, VerificationAlgorithm,
    },
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use jsonwebtoken::{
    self as jwt, DecodingKey, EncodingKey, crypto,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse, ThumbprintHash},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[cfg(feature = "signing")]
use super::secret_file::create_secret;
use super::{secret_file::read_secret, trace::hex};

/// Maximum number of keys of a key set.
pub(crate) const MAX_KEYS: usize = 100;

/// Maximum length of a token that is verified, in bytes.
pub(crate) const MAX_TOKEN: usize = 16 << 10;

/// Maximum size of a file with keys, in bytes.
pub(crate) const MAX_KEY_FILE: u64 = 1 << 20;

const PRIVATE_BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
const PRIVATE_END: &str = "-----END PRIVATE KEY-----";
const PUBLIC_BEGIN: &str = "-----BEGIN PUBLIC KEY-----";
const PUBLIC_END: &str = "-----END PUBLIC KEY-----";

/// Algorithm with which a key of ours signs (RFC 7518, 3.1; RFC 8037, 3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Algorithm {
    /// ECDSA with P-256 and SHA-256.
    #[default]
    Es256,
    /// `EdDSA` with Ed25519.
    EdDsa,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
}

impl Algorithm {
    const fn jwt(self) -> jwt::Algorithm {
        match self {
            Self::Es256 => jwt::Algorithm::ES256,
            Self::EdDsa => jwt::Algorithm::EdDSA,
            Self::Rs256 => jwt::Algorithm::RS256,
        }
    }
}

/// Returns the algorithm with a name. RFC 9864 names `EdDSA` after its curve.
fn algorithm_named(name: &str) -> jwt::errors::Result<jwt::Algorithm> {
    if name == "Ed25519" { Ok(jwt::Algorithm::EdDSA) } else { name.parse() }
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
#[derive(Clone)]
pub struct SigningKey {
    algorithm: Algorithm,
    key: EncodingKey,
    public: Jwk,
    id: String,
}

/// Signature with what it covers, each in base64url: the parts of a JSON Web Signature (RFC 7515, 3.1).
pub(crate) struct Jws {
    pub(crate) protected: String,
    pub(crate) payload: String,
    pub(crate) signature: String,
}

/// Length of what precedes the private key in PKCS#1 in an RSA key of PKCS#8 (RFC 5208, 5) with at least 2048 bits.
const RSA_PREFIX: usize = 26;

impl SigningKey {
    /// Generates a key. For [`Algorithm::Rs256`], it has 2048 bits, and takes some tenths of a second.
    ///
    /// # Errors
    /// [`KeyError::Generation`].
    pub fn generate(algorithm: Algorithm) -> Result<Self, KeyError> {
        // `jsonwebtoken` generates no keys.
        let random = SystemRandom::new();
        let key = match algorithm {
            Algorithm::Es256 => EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
                .map(|pkcs8| EncodingKey::from_ec_der(pkcs8.as_ref())),
            Algorithm::EdDsa => {
                Ed25519KeyPair::generate_pkcs8v1(&random).map(|pkcs8| EncodingKey::from_ed_der(pkcs8.as_ref()))
            }
            Algorithm::Rs256 => rsa::KeyPair::generate(rsa::KeySize::Rsa2048).and_then(|pair| rsa_key(&pair)),
        };
        Self::of(algorithm, key.map_err(|_| KeyError::Generation)?)
    }

    /// Decodes the first private key in PKCS#8 PEM. Text around it is ignored.
    ///
    /// # Errors
    /// [`KeyError::NotPem`], [`KeyError::Unsupported`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        Self::all_from_pem(pem)?.into_iter().next().ok_or(KeyError::NotPem)
    }

    /// Reads the first private key of a file as [`SigningKeys::read`].
    ///
    /// # Errors
    /// Those of [`SigningKeys::read`].
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        Ok(SigningKeys::read(path)?.first().clone())
    }

    /// Decodes private keys in PKCS#8 PEM, one after another.
    fn all_from_pem(pem: &str) -> Result<Vec<Self>, KeyError> {
        let keys = pem_blocks(pem, PRIVATE_BEGIN, PRIVATE_END).map(|der| Self::from_der(&der.ok_or(KeyError::NotPem)?));
        keys.collect()
    }

    /// Decodes a private key in PKCS#8 DER.
    fn from_der(der: &[u8]) -> Result<Self, KeyError> {
        if let Ok(key) = Self::of(Algorithm::Es256, EncodingKey::from_ec_der(der)) {
            return Ok(key);
        }
        // `jsonwebtoken` needs version 1 of PKCS#8 for Ed25519, and PKCS#1 for RSA.
        if let Ok(pkcs8) = Ed25519KeyPair::from_pkcs8(der).map(|pair| pair.to_pkcs8v1()) {
            let pkcs8 = pkcs8.map_err(|_| KeyError::Unsupported)?;
            return Self::of(Algorithm::EdDsa, EncodingKey::from_ed_der(pkcs8.as_ref()));
        }
        let pair = rsa::KeyPair::from_pkcs8(der).map_err(|_| KeyError::Unsupported)?;
        Self::of(Algorithm::Rs256, rsa_key(&pair).map_err(|_| KeyError::Unsupported)?)
    }

    fn of(algorithm: Algorithm, key: EncodingKey) -> Result<Self, KeyError> {
        let public = Jwk::from_encoding_key(&key, algorithm.jwt()).map_err(|_| KeyError::Unsupported)?;
        let id = public.thumbprint(ThumbprintHash::SHA256).map_err(|_| KeyError::Unsupported)?;
        Ok(Self { algorithm, key, public, id })
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
        self.algorithm
    }

    /// Returns the public key as a JSON Web Key (RFC 7517).
    pub fn public_jwk(&self) -> Value {
        let mut jwk = json!(self.public);
        (jwk["kid"], jwk["use"]) = (self.id.as_str().into(), "sig".into());
        jwk
    }

    /// Returns the private key in PKCS#8 PEM. It is a secret.
    ///
    /// # Errors
    /// [`KeyError::Unsupported`].
    pub fn to_pem(&self) -> Result<String, KeyError> {
        let text = if self.algorithm == Algorithm::Rs256 {
            let pair = rsa::KeyPair::from_der(self.key.as_bytes()).map_err(|_| KeyError::Unsupported)?;
            let pkcs8: Pkcs8V1Der<'_> = pair.as_der().map_err(|_| KeyError::Unsupported)?;
            STANDARD.encode(pkcs8.as_ref())
        } else {
            STANDARD.encode(self.key.as_bytes())
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
        let header = json!({ "alg": self.algorithm.jwt(), "kid": self.id, "typ": media_type });
        let protected = URL_SAFE_NO_PAD.encode(header.to_string());
        let payload = URL_SAFE_NO_PAD.encode(payload);
        let signature = self.sign_input(&format!("{protected}.{payload}"))?;
        Ok(Jws { protected, payload, signature })
    }

    fn sign_input(&self, input: &str) -> Result<String, KeyError> {
        crypto::sign(input.as_bytes(), &self.key, self.algorithm.jwt()).map_err(|_| KeyError::Generation)
    }
}

fn rsa_key(pair: &rsa::KeyPair) -> Result<EncodingKey, aws_lc_rs::error::Unspecified> {
    let pkcs8: Pkcs8V1Der<'_> = pair.as_der()?;
    Ok(EncodingKey::from_rsa_der(pkcs8.as_ref().get(RSA_PREFIX..).unwrap_or_default()))
}

debug_fields!(SigningKey { id, algorithm });

/// Keys of a server. The first one signs, and all are published: a receiver verifies notifications that were signed before a
/// rotation, and knows the next key before it is used.
///
/// ```
/// use a2a_service::jose::{Algorithm, SigningKey, SigningKeys};
///
/// let keys = SigningKeys::generate(Algorithm::Es256)?;
/// let stored = keys.to_pem()?;
/// let rotated = SigningKeys::from_pem(&stored)?.rotated(SigningKey::generate(Algorithm::EdDsa)?);
/// assert_eq!(rotated.jwks()["keys"].as_array().map(Vec::len), Some(2));
/// # Ok::<(), a2a_service::jose::KeyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SigningKeys {
    first: Arc<SigningKey>,
    others: Vec<Arc<SigningKey>>,
}

/// Reason why the signing keys of a file can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct KeyFileError {
    path: PathBuf,
    source: io::Error,
}

impl SigningKeys {
    /// Generates a key.
    ///
    /// # Errors
    /// Those of [`SigningKey::generate`].
    pub fn generate(algorithm: Algorithm) -> Result<Self, KeyError> {
        Ok(SigningKey::generate(algorithm)?.into())
    }

    /// Decodes private keys in PKCS#8 PEM, one after another. The first one signs. Text around the keys is ignored.
    ///
    /// # Errors
    /// [`KeyError::NotPem`], [`KeyError::Unsupported`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let mut keys = SigningKey::all_from_pem(pem)?.into_iter().map(Arc::new);
        Ok(Self { first: keys.next().ok_or(KeyError::NotPem)?, others: keys.collect() })
    }

    /// Reads private keys from a file in PKCS#8 PEM; the first one signs. Logs a warning if other users of the system can
    /// read the file. Blocks.
    ///
    /// # Errors
    /// The file can't be read, is larger than 1 MiB, or [`from_pem`](Self::from_pem) fails.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        read(path).map_err(|source| KeyFileError { path: path.to_owned(), source })
    }

    /// Reads private keys from a file as [`read`](Self::read), or generates a key for ES256 and creates the file if there is
    /// none. Only the user of the process can read the new file. An existing file is never changed. Blocks.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and failures to generate the key or to write the file.
    #[cfg(feature = "signing")]
    pub fn read_or_generate(path: &Path) -> Result<Self, KeyFileError> {
        let keys = match read(path) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => match generate(path) {
                // Another process was faster.
                Err(exists) if exists.kind() == io::ErrorKind::AlreadyExists => read(path),
                result => result,
            },
            result => result,
        };
        keys.map_err(|source| KeyFileError { path: path.to_owned(), source })
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

    /// Returns the key that signs.
    pub fn first(&self) -> &SigningKey {
        &self.first
    }

    /// Returns the keys, the signing one first.
    pub fn all(&self) -> impl Iterator<Item = &SigningKey> {
        std::iter::once(&self.first).chain(&self.others).map(|key| &**key)
    }
}

conversions! { SigningKeys: key: SigningKey => Self { first: Arc::new(key), others: Vec::new() }; }

fn read(path: &Path) -> io::Result<SigningKeys> {
    SigningKeys::from_pem(&read_secret(path, MAX_KEY_FILE)?).map_err(invalid)
}

/// Generates a key and writes it to a new file.
#[cfg(feature = "signing")]
fn generate(path: &Path) -> io::Result<SigningKeys> {
    let keys = SigningKeys::generate(Algorithm::Es256).map_err(invalid)?;
    create_secret(path, keys.to_pem().map_err(invalid)?.as_bytes())?;
    tracing::info!(path = %path.display(), key.id = keys.first.id(), "signing key generated");
    Ok(keys)
}

fn invalid(error: KeyError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Decodes the PEM blocks of a kind (RFC 7468). `None` for a malformed one.
fn pem_blocks<'a>(pem: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = Option<Vec<u8>>> + 'a {
    pem.split(begin).skip(1).map(move |block| {
        let (text, _) = block.split_once(end)?;
        STANDARD.decode(text.split_ascii_whitespace().collect::<String>()).ok()
    })
}

/// Returns the SHA-256 digest of bytes in hexadecimal.
pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref()).to_string()
}

/// Public keys with which signatures are verified: RS256 to RS512 and PS256 to PS512 with at least 2048 bits, ES256, ES384,
/// and `EdDSA` (Ed25519). Shared secrets are never accepted.
#[derive(Clone, Debug, Default)]
pub struct PublicKeys(Arc<[PublicKey]>);

/// Public key of a key set.
#[derive(Debug)]
pub(crate) struct PublicKey {
    id: Option<String>,
    /// The only algorithm for which the key is meant (RFC 7517, 4.4).
    algorithm: Option<jwt::Algorithm>,
    pub(crate) key: DecodingKey,
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
        Ok(Self(keys.into_iter().filter_map(PublicKey::from_jwk).collect()))
    }

    /// Decodes public keys in PEM (`BEGIN PUBLIC KEY`) for ES256, `EdDSA` and RS256, one after another. They have no key id:
    /// each is tried for every signature.
    ///
    /// # Errors
    /// [`KeyError::NotPublicPem`] without a key or with more than 100, [`KeyError::Unsupported`].
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        type Form = (Algorithm, &'static dyn VerificationAlgorithm, fn(&[u8]) -> DecodingKey);
        let mut keys = Vec::new();
        for der in pem_blocks(pem, PUBLIC_BEGIN, PUBLIC_END) {
            let der = der.filter(|_| keys.len() < MAX_KEYS).ok_or(KeyError::NotPublicPem)?;
            // AWS-LC reads `SubjectPublicKeyInfo` (RFC 5280, 4.1), which such a block has, as well as the key in it.
            let forms: [Form; 3] = [
                (Algorithm::Es256, &ECDSA_P256_SHA256_FIXED, DecodingKey::from_ec_der),
                (Algorithm::EdDsa, &ED25519, DecodingKey::from_ed_der),
                (Algorithm::Rs256, &RSA_PKCS1_2048_8192_SHA256, DecodingKey::from_rsa_der),
            ];
            let found = forms.into_iter().find(|(_, form, _)| ParsedPublicKey::new(*form, &der).is_ok());
            let (algorithm, _, key) = found.ok_or(KeyError::Unsupported)?;
            keys.push(PublicKey { id: None, algorithm: Some(algorithm.jwt()), key: key(&der) });
        }
        if keys.is_empty() { Err(KeyError::NotPublicPem) } else { Ok(Self(keys.into())) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the keys that a signature with this key id may be of. A key without an id may be of any signature, and a
    /// signature without one of any key.
    pub(crate) fn candidates(&self, id: Option<&str>) -> impl Iterator<Item = &PublicKey> {
        self.0.iter().filter(move |key| key.id.as_deref().zip(id).is_none_or(|(own, id)| own == id))
    }

    /// Verifies a signature in base64url over a protected header and a payload, both in base64url.
    pub(crate) fn verify(&self, protected: &str, payload: &str, signature: &str) -> Result<(), SignatureError> {
        #[derive(Deserialize)]
        struct Header {
            alg: String,
            kid: Option<String>,
            crit: Option<Value>,
        }
        let decode = |text: &str| URL_SAFE_NO_PAD.decode(text).map_err(|_| SignatureError::Malformed);
        let header: Header = serde_json::from_slice(&decode(protected)?).map_err(|_| SignatureError::Malformed)?;
        decode(signature)?;
        if header.crit.is_some() {
            return Err(SignatureError::Critical);
        }
        let mut candidates = self.candidates(header.kid.as_deref()).peekable();
        if candidates.peek().is_none() {
            return Err(SignatureError::UnknownKey);
        }
        let algorithm = algorithm_named(&header.alg).map_err(|_| SignatureError::Wrong)?;
        let input = format!("{protected}.{payload}");
        let verifies = |key: &PublicKey| crypto::verify(signature, input.as_bytes(), &key.key, algorithm);
        let is_verified = candidates.any(|key| key.is_for(algorithm) && matches!(verifies(key), Ok(true)));
        if is_verified { Ok(()) } else { Err(SignatureError::Wrong) }
    }
}

impl<'a> FromIterator<&'a SigningKey> for PublicKeys {
    fn from_iter<T: IntoIterator<Item = &'a SigningKey>>(keys: T) -> Self {
        Self(keys.into_iter().filter_map(|key| PublicKey::from_jwk(key.public_jwk())).collect())
    }
}

conversions! { PublicKeys: keys: &SigningKeys => keys.all().collect(); }

impl PublicKey {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the other kinds are of no use here")]
    fn from_jwk(jwk: Value) -> Option<Self> {
        let algorithm = jwk["alg"].as_str().map(algorithm_named).transpose().ok()?;
        let jwk: Jwk = serde_json::from_value(jwk).ok()?;
        let is_for_signatures =
            jwk.common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature)
                && jwk.common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
        // `jsonwebtoken` checks no lengths, and accepts shared secrets.
        let expected_len = match &jwk.algorithm {
            AlgorithmParameters::EllipticCurve(point) if point.curve == EllipticCurve::P256 => Some(65),
            AlgorithmParameters::EllipticCurve(point) if point.curve == EllipticCurve::P384 => Some(97),
            AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => Some(32),
            AlgorithmParameters::RSA(_) => None,
            _ => return None,
        };
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        let is_usable = is_for_signatures
            && key.try_get_as_bytes().ok().map(<[u8]>::len) == expected_len
            && algorithm.is_none_or(|algorithm| algorithm.family() == key.family());
        is_usable.then_some(Self { id: jwk.common.key_id, algorithm, key })
    }

    pub(crate) fn has_id(&self) -> bool {
        self.id.is_some()
    }

    /// Returns true if the key is not meant for other algorithms.
    pub(crate) fn is_for(&self, algorithm: jwt::Algorithm) -> bool {
        self.algorithm.is_none_or(|own| own == algorithm)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ALGORITHMS: [Algorithm; 3] = [Algorithm::Es256, Algorithm::EdDsa, Algorithm::Rs256];

    fn set_of(keys: &[Value]) -> PublicKeys {
        PublicKeys::from_jwks(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
    }

    /// Example of RFC 8037, A.1 to A.5.
    #[test]
    fn key_id_is_the_thumbprint_and_ed25519_signs_as_specified() {
        let pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----";
        let key = SigningKey::from_pem(pem).unwrap();
        assert_eq!(key.id(), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
        assert_eq!(key.public_jwk()["x"], "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
        let (protected, payload) = ("eyJhbGciOiJFZERTQSJ9", "RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc");
        let signature = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
        assert_eq!(key.sign_input(&format!("{protected}.{payload}")).unwrap(), signature);
        assert_eq!(PublicKeys::from_iter([&key]).verify(protected, payload, signature), Ok(()));
    }

    #[test]
    fn ed25519_of_either_version_of_pkcs8_is_read() {
        let pair = Ed25519KeyPair::generate().unwrap();
        let ids =
            [pair.to_pkcs8v1(), pair.to_pkcs8()].map(|der| SigningKey::from_der(der.unwrap().as_ref()).unwrap().id);
        assert_eq!(ids[0], ids[1]);
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
                .filter(|name| *name != json!(algorithm.jwt()))
            {
                let header = URL_SAFE_NO_PAD.encode(json!({ "alg": name, "kid": key.id() }).to_string());
                let input = format!("{header}.{}", jws.payload);
                let signature = key.sign_input(&input).unwrap();
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

    #[test]
    fn keys_are_generated_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a2a.db.keys.pem");
        assert!(SigningKeys::read(&path).unwrap_err().to_string().contains("a2a.db.keys.pem"));
        let generated = SigningKeys::read_or_generate(&path).unwrap();
        let content = fs::read(&path).unwrap();
        for read in [SigningKeys::read_or_generate(&path).unwrap(), SigningKeys::read(&path).unwrap()] {
            assert_eq!(read.jwks(), generated.jwks());
        }
        assert_eq!(fs::read(&path).unwrap(), content);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
        assert!(generate(&path).is_err(), "an existing file is not replaced");
        assert_eq!(fs::read(&path).unwrap(), content);
    }

    #[test]
    fn several_servers_that_start_together_have_one_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.pem");
        let start = || {
            std::thread::spawn({
                let path = path.clone();
                move || SigningKeys::read_or_generate(&path).unwrap().jwks()
            })
        };
        let started: Vec<_> = (0..8).map(|_| start()).collect();
        let keys: Vec<_> = started.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(keys.iter().all(|one| *one == keys[0]), "{keys:?}");
    }

    #[test]
    fn unusable_files_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        for content in ["", "no key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"] {
            let path = directory.path().join("keys.pem");
            fs::write(&path, content).unwrap();
            assert!(SigningKeys::read_or_generate(&path).is_err(), "{content}");
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        let missing = directory.path().join("missing/keys.pem");
        assert!(SigningKeys::read_or_generate(&missing).unwrap_err().to_string().contains("missing"));
    }

    #[cfg(unix)]
    #[test]
    fn only_the_user_of_the_process_can_read_a_new_file() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.pem");
        SigningKeys::read_or_generate(&path).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        for shared in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(shared)).unwrap();
            SigningKeys::read(&path).unwrap();
        }
    }
}
