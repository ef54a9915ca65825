//! Names and times of answers.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{SystemTime, UNIX_EPOCH};

/// A name that no other answer has: the prefix and 24 letters and digits.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}{}", letters(24))
}

/// So many random letters and digits.
pub fn letters(count: usize) -> String {
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut text = String::with_capacity(count);
    while text.len() < count {
        // Each has fresh random keys, from the system on the first use in an instance.
        let mut bits = RandomState::new().build_hasher().finish();
        for _ in 0..8.min(count - text.len()) {
            text.push(char::from(LETTERS[(bits % 36) as usize]));
            bits /= 36;
        }
    }
    text
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ() {
        let (one, other) = (unique("call_"), unique("call_"));
        assert_ne!(one, other);
        assert_eq!((one.len(), letters(9).len()), (29, 9));
        assert!(letters(9).bytes().all(|byte| byte.is_ascii_alphanumeric()));
    }
}
