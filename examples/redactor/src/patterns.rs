//! What personal data looks like, and its placeholders.

use regex_lite::{Captures, Regex};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Kinds of data with their patterns, tried in this order.
static PATTERNS: LazyLock<Vec<(&str, Regex)>> = LazyLock::new(|| {
    let patterns = [
        (
            "EMAIL",
            r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+",
        ),
        (
            "IBAN",
            r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b",
        ),
        ("CARD", r"\b[0-9](?:[ -]?[0-9]){12,18}\b"),
        ("SSN", r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b"),
        ("PHONE", r"\+[0-9](?:[ ().-]{0,2}[0-9]){6,14}\b"),
    ];
    let compiled = patterns.map(|(kind, pattern)| (kind, Regex::new(pattern)));
    let compiled = compiled.into_iter();
    compiled
        .map(|(kind, regex)| (kind, regex.expect("a valid pattern")))
        .collect()
});

/// The data found in one request. The same text has the same placeholder everywhere.
#[derive(Default)]
pub struct Redaction {
    placeholders: HashMap<String, String>,
    /// Texts of each kind.
    kinds: HashMap<&'static str, usize>,
}

impl Redaction {
    /// The text with placeholders; none if there is nothing to redact.
    pub fn redact(&mut self, text: &str) -> Option<String> {
        let mut redacted: Option<String> = None;
        for (kind, regex) in &*PATTERNS {
            let now = redacted.as_deref().unwrap_or(text);
            if !regex.is_match(now) {
                continue;
            }
            let replaced = regex.replace_all(now, |found: &Captures| {
                let found = &found[0];
                match *kind == "CARD" && !has_check_digit(found) {
                    true => found.to_owned(),
                    false => self.placeholder(kind, found),
                }
            });
            redacted = Some(replaced.into_owned());
        }
        redacted
    }

    /// Number of different texts that were replaced.
    pub fn count(&self) -> usize {
        self.placeholders.len()
    }

    fn placeholder(&mut self, kind: &'static str, found: &str) -> String {
        if let Some(known) = self.placeholders.get(found) {
            return known.clone();
        }
        let number = self.kinds.entry(kind).or_default();
        *number += 1;
        let placeholder = format!("[{kind}-{number}]");
        self.placeholders
            .insert(found.to_owned(), placeholder.clone());
        placeholder
    }
}

/// Whether the digits of a card number end with the check digit of Luhn's formula, ISO/IEC 7812-1.
fn has_check_digit(number: &str) -> bool {
    let digits = number.chars().rev().filter_map(|c| c.to_digit(10));
    let sum: u32 = digits
        .enumerate()
        .map(|(place, digit)| match place % 2 {
            0 => digit,
            _ if digit > 4 => 2 * digit - 9,
            _ => 2 * digit,
        })
        .sum();
    sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn personal_data_gets_placeholders() {
        for (text, redacted) in [
            ("a.b+c@mail.example.com.", "[EMAIL-1]."),
            ("pay DE89 3704 0044 0532 0130 00 now", "pay [IBAN-1] now"),
            ("GB29NWBK60161331926819", "[IBAN-1]"),
            ("card 4111 1111 1111 1111, exp", "card [CARD-1], exp"),
            ("123-45-6789", "[SSN-1]"),
            ("+1 (555) 010-9999 or +4930123456", "[PHONE-1] or [PHONE-2]"),
        ] {
            let mut redaction = Redaction::default();
            assert_eq!(redaction.redact(text).as_deref(), Some(redacted));
        }
        for text in [
            "4111 1111 1111 1112",
            "12+7=19",
            "1234567890",
            "me @ home",
            "",
        ] {
            let unchanged = Redaction::default().redact(text);
            assert!(unchanged.is_none_or(|same| same == text), "{text}");
        }
    }
}
