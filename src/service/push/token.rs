//! JSON Web Tokens (RFC 7519) that bind a push notification to the server that sent it, and their verification.
//!
//! A token of a notification has the claims `iss`, `aud` (the origin of the webhook), `iat`, `exp`, `jti` (the delivery id) and
//! `request_body_sha256` (the SHA-256 digest of the body in hexadecimal).

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Serialize};
use serde_json::json;
use url::Url;

use crate::base::{
    clock::Millis,
    jwks::TokenError,
    jws::{Jws, KeyError, MAX_TOKEN, PublicKeys, SignatureError, SigningKeys, sha256_hex},
};

/// Validity of a token. Long enough for a slow receiver, and short enough to limit a replay.
pub(crate) const LIFETIME: Duration = Duration::from_mins(5);

impl SigningKeys {
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
            "request_body_sha256": sha256_hex(body),
        });
        let Jws { protected, payload, signature } = self.first().sign("JWT", claims.to_string().as_bytes())?;
        Ok(format!("{protected}.{payload}.{signature}"))
    }
}

impl PublicKeys {
    /// Verifies the signature of a token and returns its claims, which are not checked yet.
    pub(crate) fn verify_token(&self, token: &str) -> Result<Claims, TokenError> {
        let malformed = || TokenError::Invalid("the token is not a JSON Web Token");
        if token.len() > MAX_TOKEN {
            return Err(malformed());
        }
        let (input, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let (header, claims) = input.split_once('.').ok_or_else(malformed)?;
        let decoded = URL_SAFE_NO_PAD.decode(claims).map_err(|_| malformed())?;
        self.verify(header, claims, signature).map_err(|error| match error {
            SignatureError::Malformed => malformed(),
            SignatureError::Critical => TokenError::Invalid("the token has a critical header parameter"),
            SignatureError::UnknownKey => TokenError::UnknownKey,
            SignatureError::Wrong => TokenError::Invalid("the signature of the token is wrong"),
        })?;
        serde_json::from_slice(&decoded)
            .map_err(|_| TokenError::Invalid("the token lacks `iat` or has malformed claims"))
    }
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
            Some(digest) if digest.eq_ignore_ascii_case(&sha256_hex(expected.body)) => Ok(()),
            Some(_) => reject("the token belongs to another body"),
            None => reject("the token lacks `request_body_sha256`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use jsonwebtoken::{DecodingKey, Validation, decode, decode_header, errors::ErrorKind, jwk::JwkSet};
    use serde_json::Value;

    use super::*;
    use crate::base::jws::{Algorithm, SigningKey};

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
            let digest = sha256_hex(BODY);
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
        let claims = json!({ "iat": 1_700_000_000.5, "aud": ["a", "b"], "request_body_sha256": sha256_hex(BODY) });
        let header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::ES256);
        let token = jsonwebtoken::encode(&header, &claims, &key).unwrap();
        let claims = PublicKeys::from(&keys).verify_token(&token).unwrap();
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
        let result = keys.verify_token(&format!("{input}.{signature}")).unwrap_err();
        assert_eq!(result, TokenError::Invalid("the token lacks `iat` or has malformed claims"));
        let result = keys.verify_token(&format!("{input}.{}", signature.replace("cC4h", "cC4i"))).unwrap_err();
        assert_eq!(result, TokenError::Invalid("the signature of the token is wrong"));
    }

    #[test]
    fn keys_survive_storage_and_rotation() {
        for algorithm in [Algorithm::Es256, Algorithm::EdDsa] {
            let old = SigningKeys::generate(algorithm).unwrap();
            let signed_before = token(&old);
            let new = SigningKey::generate(Algorithm::Es256).unwrap();
            let id = new.id().to_owned();
            let rotated = SigningKeys::from_pem(&old.clone().rotated(new).to_pem().unwrap()).unwrap();
            assert_eq!(rotated.all().map(SigningKey::id).collect::<Vec<_>>(), [&*id, old.first().id()]);
            assert_eq!(decode_header(token(&rotated)).unwrap().kid, Some(id));
            let public = PublicKeys::from(&rotated);
            public.verify_token(&signed_before).unwrap().check(&expected()).unwrap();
            public.verify_token(&token(&rotated)).unwrap().check(&expected()).unwrap();
            assert_eq!(PublicKeys::from(&old).verify_token(&token(&rotated)).unwrap_err(), TokenError::UnknownKey);
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
        let id = keys.first().id();
        let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let with_header = |value: Value| format!("{}.{claims}.{signature}", encode(value));
        // HMAC with the public key as its secret.
        let confused = {
            let secret = keys.jwks()["keys"][0]["x"].as_str().unwrap().to_owned();
            let header = jsonwebtoken::Header {
                kid: Some(id.to_owned()),
                ..jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256)
            };
            let claims = json!({ "iat": 1_700_000_000, "request_body_sha256": sha256_hex(BODY) });
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
            assert!(matches!(public.verify_token(&forged), Err(TokenError::Invalid(_))), "{forged}");
        }
        assert_eq!(public.verify_token(&token(&other)).unwrap_err(), TokenError::UnknownKey);
        public.verify_token(&good).unwrap().check(&expected()).unwrap();
    }

    #[test]
    fn claims_are_checked() {
        let keys = SigningKeys::generate(Algorithm::EdDsa).unwrap();
        let claims = PublicKeys::from(&keys).verify_token(&token(&keys)).unwrap();
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
}
