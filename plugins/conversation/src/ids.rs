//! Ids and times of responses.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{SystemTime, UNIX_EPOCH};

/// A unique id: the prefix and 24 letters and digits.
pub fn unique_id(prefix: &str) -> String {
    format!("{prefix}{}", random_letters(24))
}

/// Random letters and digits.
pub fn random_letters(count: usize) -> String {
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut text = String::with_capacity(count);
    while text.len() < count {
        // Each `RandomState` has fresh random keys.
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
    now_micros() / 1_000_000
}

/// Microseconds since 1970.
pub fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique() {
        let (one, other) = (unique_id("call_"), unique_id("call_"));
        assert_ne!(one, other);
        assert_eq!((one.len(), random_letters(9).len()), (29, 9));
        assert!(
            random_letters(9)
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric())
        );
    }
}
