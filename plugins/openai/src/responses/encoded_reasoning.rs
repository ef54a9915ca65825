//! Reasoning in the form of `encrypted_content`, which clients that keep no readable reasoning send back: base64 after a
//! prefix. It is not encrypted, since `content` has the same text.

use base64::prelude::{BASE64_STANDARD, Engine};

/// Tells this server's reasoning from that of others.
const PREFIX: &str = "corral:";

pub fn encode(text: &str) -> String {
    format!("{PREFIX}{}", BASE64_STANDARD.encode(text))
}

/// The reasoning; `None` if it is that of another server.
pub fn decode(encoded: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(encoded.strip_prefix(PREFIX)?).ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_reasoning_is_decoded() {
        assert_eq!(decode(&encode("h\u{fc}m")).as_deref(), Some("h\u{fc}m"));
        for other in ["", "gAAAAABo", "corral:?", "corral:/w=="] {
            assert_eq!(decode(other), None, "{other}");
        }
    }
}
