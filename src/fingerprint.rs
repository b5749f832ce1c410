//! Fingerprint of bytes, for entity tags and for recognizing repeated requests.

/// Returns the 128-bit FNV-1a hash. It is not cryptographic: a client that creates a collision affects only itself.
pub(crate) fn fingerprint(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}
