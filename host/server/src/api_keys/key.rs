//! One API key: generation, digest, comparison.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use sha2::Digest as _;
use std::fmt::Write;
use subtle::ConstantTimeEq;

/// Start of every key; secret scanners recognize it.
const PREFIX: &str = "corral_";
/// Random bytes of a key. With 256 bits, a plain SHA-256 reveals nothing.
const BYTES: usize = 32;

/// SHA-256 of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct KeyDigest([u8; 32]);

impl KeyDigest {
    pub(super) fn of(key: impl AsRef<[u8]>) -> Self {
        KeyDigest(sha2::Sha256::digest(key).into())
    }

    /// Parses 64 hexadecimal digits.
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
        Some(KeyDigest(bytes.try_into().ok()?))
    }

    /// Compares in constant time.
    pub(super) fn matches(&self, other: &KeyDigest) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// A newly generated key. Only its digest is stored, so this is the one time to show it.
pub struct NewApiKey(String);

impl std::fmt::Debug for NewApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NewApiKey")
    }
}

impl NewApiKey {
    /// Generates a key of 256 random bits.
    pub fn generate() -> Self {
        NewApiKey(format!(
            "{PREFIX}{}",
            HEXLOWER.encode(&rand::random::<[u8; BYTES]>())
        ))
    }

    /// The key, as clients send it.
    pub fn key(&self) -> &str {
        &self.0
    }

    /// Its SHA-256 in hexadecimal digits, as key files store it.
    pub fn sha256(&self) -> String {
        HEXLOWER.encode(&KeyDigest::of(&self.0).0)
    }

    /// Its entry in a key file, for the named deployments, or for all if `deployments` is empty. The names
    /// must be valid, see [`ApiKeysError`](super::ApiKeysError).
    pub fn toml_entry(&self, name: &str, tenant: &str, deployments: &[String]) -> String {
        let mut text = format!(
            "[[key]]\nname = \"{name}\"\nsha256 = \"{}\"\ntenant = \"{tenant}\"\n",
            self.sha256()
        );
        if !deployments.is_empty() {
            let list: Vec<_> = deployments.iter().map(|name| format!("{name:?}")).collect();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "deployments = [{}]", list.join(", "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_sha256_and_round_trips() {
        let digest = KeyDigest::of("abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(HEXLOWER.encode(&digest.0), text, "FIPS 180-2, B.1");
        assert_eq!(KeyDigest::from_hex(text), Some(digest));
        assert_eq!(KeyDigest::from_hex(&text.to_uppercase()), Some(digest));
        for wrong in [
            &text[1..],
            &format!("{text}0"),
            &text.replace('b', "g"),
            "é",
        ] {
            assert_eq!(KeyDigest::from_hex(wrong), None);
        }
    }

    #[test]
    fn only_equal_digests_match() {
        let one = KeyDigest::of("one");
        assert!(one.matches(&KeyDigest::of("one")));
        for at in 0..32 {
            let mut other = one;
            other.0[at] ^= 1;
            assert!(!one.matches(&other));
        }
    }

    #[test]
    fn keys_are_random_and_hidden_from_debug() {
        let (one, other) = (NewApiKey::generate(), NewApiKey::generate());
        assert_ne!(one.key(), other.key());
        assert_eq!(one.key().len(), "corral_".len() + 64);
        assert_eq!(format!("{one:?}"), "NewApiKey");
        assert!(
            !one.toml_entry("a", "b", &[])
                .contains(&one.key()["corral_".len()..])
        );
    }
}
