//! The digest that identifies a component: SHA-256 of its bytes.

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

const PREFIX: &str = "sha256:";

/// The SHA-256 of a component's bytes, written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Digest(Sha256::digest(bytes).into())
    }

    /// The 64 digits alone.
    pub fn hex(&self) -> String {
        HEXLOWER.encode(&self.0)
    }

    /// The 32 bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Parses 64 hexadecimal digits. Refuses upper case, so that each digest has one textual form.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let bytes = HEXLOWER.decode(hex.as_bytes()).ok()?;
        Some(Digest(bytes.try_into().ok()?))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The text is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{}' is not the digest of a component; write sha256: and 64 lower-case hexadecimal digits", .0.escape_debug())]
pub struct DigestError(String);

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix(PREFIX)
            .and_then(Digest::from_hex)
            .ok_or_else(|| DigestError(text.chars().take(100).collect()))
    }
}

corral_runtime::serde_as_text!(Digest);

#[cfg(test)]
impl schemars::JsonSchema for Digest {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Digest".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_has_one_textual_form() {
        // FIPS 180-2, appendix B.1.
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let digest = Digest::of(b"abc");
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse(), Ok(digest));
        let hex = digest.hex();
        for bad in [&hex, "sha256:", &text.to_uppercase(), &text[..70], ""] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
        let upper = format!("sha256:{}", hex.to_uppercase());
        assert!(upper.parse::<Digest>().is_err());
    }
}
