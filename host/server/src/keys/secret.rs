//! Keys themselves: how one is made, what is kept of it, and how two are compared.

use sha2::Digest as _;
use std::fmt::Write;
use std::hint::black_box;

/// What keys begin with: those who look for leaked secrets know them by it.
const PREFIX: &str = "corral_";
/// Random bytes of a key. It can't be guessed, so its plain SHA-256 gives nothing away.
const BYTES: usize = 32;

/// The SHA-256 of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(key: impl AsRef<[u8]>) -> Self {
        Digest(sha2::Sha256::digest(key).into())
    }

    /// From 64 hexadecimal digits.
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 64 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            // Two digits are a byte.
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        Some(Digest(bytes))
    }

    fn hex(self) -> String {
        hex(&self.0)
    }
}

/// Whether two digests are the same; takes as long wherever they differ.
pub(super) fn matches(one: &Digest, other: &Digest) -> bool {
    let bytes = one.0.iter().zip(&other.0);
    black_box(bytes.fold(0, |all, (one, other)| all | black_box(one ^ other))) == 0
}

/// A key that nobody has yet. It can be shown once: no more than its digest is kept of it.
pub struct NewKey(String);

impl std::fmt::Debug for NewKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NewKey")
    }
}

impl NewKey {
    /// A fresh one, of 256 random bits.
    pub fn generate() -> Self {
        NewKey(format!("{PREFIX}{}", hex(&rand::random::<[u8; BYTES]>())))
    }

    /// What its holder sends.
    pub fn key(&self) -> &str {
        &self.0
    }

    /// Its SHA-256 in hexadecimal digits, which is what a file of keys holds of it.
    pub fn sha256(&self) -> String {
        Digest::of(&self.0).hex()
    }

    /// Its entry in a file of keys, for the deployments that are named, or for all. The names must be
    /// good ones, see [`KeysError`](super::KeysError).
    pub fn entry(&self, name: &str, tenant: &str, deployments: &[String]) -> String {
        let mut text = format!(
            "[[key]]\nname = \"{name}\"\nsha256 = \"{}\"\ntenant = \"{tenant}\"\n",
            self.sha256()
        );
        if !deployments.is_empty() {
            let list: Vec<_> = deployments.iter().map(|name| format!("{name:?}")).collect();
            // Writing to a String can't fail.
            let _ = writeln!(text, "deployments = [{}]", list.join(", "));
        }
        text
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_sha_256_and_are_read_as_they_are_written() {
        let digest = Digest::of("abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.hex(), text, "FIPS 180-2, B.1");
        assert_eq!(Digest::from_hex(text), Some(digest));
        assert_eq!(Digest::from_hex(&text.to_uppercase()), Some(digest));
        for wrong in [
            &text[1..],
            &format!("{text}0"),
            &text.replace('b', "g"),
            "é",
        ] {
            assert_eq!(Digest::from_hex(wrong), None);
        }
    }

    #[test]
    fn only_equal_digests_match() {
        let one = Digest::of("one");
        assert!(matches(&one, &Digest::of("one")));
        for at in 0..32 {
            let mut other = one;
            other.0[at] ^= 1;
            assert!(!matches(&one, &other));
        }
    }

    #[test]
    fn keys_are_fresh_and_say_nothing_when_printed() {
        let (one, other) = (NewKey::generate(), NewKey::generate());
        assert_ne!(one.key(), other.key());
        assert_eq!(one.key().len(), "corral_".len() + 64);
        assert_eq!(format!("{one:?}"), "NewKey");
        assert!(
            !one.entry("a", "b", &[])
                .contains(&one.key()["corral_".len()..])
        );
    }
}
