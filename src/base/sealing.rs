//! Encryption of data that one process stores for another: AES-256-GCM with random nonces.

#[cfg(feature = "signing")]
use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};

/// Secret key of the processes that share a store.
#[cfg(feature = "signing")]
pub(crate) struct SealingKey(RandomizedNonceKey);

#[cfg(feature = "signing")]
impl SealingKey {
    /// Creates a key. `None` if the cryptographic library fails.
    pub(crate) fn new(key: &[u8; 32]) -> Option<Self> {
        RandomizedNonceKey::new(&AES_256_GCM, key).ok().map(Self)
    }

    /// Encrypts data. It can be decrypted only for the same `purpose`.
    pub(crate) fn seal(&self, purpose: &str, mut data: Vec<u8>) -> Option<Vec<u8>> {
        let nonce = self.0.seal_in_place_append_tag(Aad::from(purpose.as_bytes()), &mut data).ok()?;
        data.extend_from_slice(nonce.as_ref());
        Some(data)
    }

    /// Decrypts data. `None` if it was encrypted with another key, or for another purpose.
    pub(crate) fn open(&self, purpose: &str, mut sealed: Vec<u8>) -> Option<Vec<u8>> {
        let nonce = sealed.split_off(sealed.len().checked_sub(NONCE_LEN)?);
        let nonce = Nonce::try_assume_unique_for_key(&nonce).ok()?;
        let data = self.0.open_in_place(nonce, Aad::from(purpose.as_bytes()), &mut sealed).ok()?;
        Some(data.to_vec())
    }
}

/// Without the feature `signing`, there are no keys.
#[cfg(not(feature = "signing"))]
pub(crate) enum SealingKey {}

#[cfg(not(feature = "signing"))]
impl SealingKey {
    pub(crate) fn seal(&self, _: &str, _: Vec<u8>) -> Option<Vec<u8>> {
        match *self {}
    }

    pub(crate) fn open(&self, _: &str, _: Vec<u8>) -> Option<Vec<u8>> {
        match *self {}
    }
}

#[cfg(all(test, feature = "signing"))]
mod tests {
    use super::*;

    #[test]
    fn sealed_data_is_opened_with_its_key_for_its_purpose() {
        let [key, other] = [1, 2].map(|byte| SealingKey::new(&[byte; 32]).unwrap());
        let sealed = key.seal("mail", b"hunter2".to_vec()).unwrap();
        assert!(!sealed.windows(7).any(|part| part == b"hunter2"));
        assert_eq!(key.open("mail", sealed.clone()).unwrap(), b"hunter2");
        assert_eq!((key.open("other", sealed.clone()), other.open("mail", sealed.clone())), (None, None));
        assert_eq!((key.open("mail", sealed[1..].to_vec()), key.open("mail", Vec::new())), (None, None));
    }
}
