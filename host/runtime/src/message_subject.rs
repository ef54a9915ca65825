//! Subjects of messages, and patterns that select some of them, as in NATS.
//!
//! A subject is tokens with dots between them. In a pattern `*` stands for one token, and `>` at the end for one or more.
//! Tokens consist of letters, digits, `-` and `_`.

use std::fmt;
use std::str::FromStr;

/// Longest subject and longest pattern, in bytes.
const MAX_BYTES: usize = 256;

/// The subject of a message, such as `orders.new`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject(String);

/// Selects subjects, such as `orders.*` or `audit.>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubjectPattern(String);

/// Why a text is no subject or pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Not a subject.
    #[error(
        "'{0}' is not a subject; write tokens of letters, digits, '-' and '_' with dots between them, such as 'orders.new', \
         at most {MAX_BYTES} bytes"
    )]
    Subject(String),
    /// Not a pattern.
    #[error(
        "'{0}' does not select subjects; write tokens of letters, digits, '-' and '_' with dots between them, '*' for any \
         token, and '>' at the end for all that follow, such as 'orders.*', at most {MAX_BYTES} bytes"
    )]
    Pattern(String),
}

impl Subject {
    /// The subject as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl SubjectPattern {
    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it selects a subject.
    pub fn matches(&self, subject: &Subject) -> bool {
        let (mut pattern, mut tokens) = (self.0.split('.'), subject.0.split('.'));
        loop {
            match (pattern.next(), tokens.next()) {
                (Some(">"), Some(_)) | (None, None) => return true,
                (Some(wanted), Some(token)) if wanted == "*" || wanted == token => {}
                _ => return false,
            }
        }
    }
}

/// Whether a text is a token of a subject.
fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !text.is_empty() && text.bytes().all(fits)
}

/// The start of a text, for an error.
fn shown(text: &str) -> String {
    let start = text.floor_char_boundary(MAX_BYTES);
    text[..start].escape_debug().to_string()
}

impl FromStr for Subject {
    type Err = SubjectError;

    fn from_str(text: &str) -> Result<Self, SubjectError> {
        match text.len() <= MAX_BYTES && text.split('.').all(is_token) {
            true => Ok(Self(text.to_owned())),
            false => Err(SubjectError::Subject(shown(text))),
        }
    }
}

impl FromStr for SubjectPattern {
    type Err = SubjectError;

    fn from_str(text: &str) -> Result<Self, SubjectError> {
        let tokens = match text.strip_suffix('>') {
            // `>` alone, or after a dot.
            Some("") => Some("*"),
            Some(before) => before.strip_suffix('.'),
            None => Some(text),
        };
        let is_valid = |tokens: &str| {
            let mut tokens = tokens.split('.');
            tokens.all(|token| token == "*" || is_token(token))
        };
        match text.len() <= MAX_BYTES && tokens.is_some_and(is_valid) {
            true => Ok(Self(text.to_owned())),
            false => Err(SubjectError::Pattern(shown(text))),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for SubjectPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

crate::serde_as_text!(Subject);
crate::serde_as_text!(SubjectPattern);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn matches(pattern: &str, subject: &str) -> bool {
        let pattern: SubjectPattern = pattern.parse().expect(pattern);
        pattern.matches(&subject.parse().expect(subject))
    }

    #[test]
    fn patterns_select_whole_tokens() {
        for (pattern, subject, expected) in [
            ("orders.new", "orders.new", true),
            ("orders.new", "orders.newer", false),
            ("orders", "orders.new", false),
            ("orders.*", "orders.new", true),
            ("orders.*", "orders", false),
            ("orders.*", "orders.new.eu", false),
            ("*.new", "orders.new", true),
            ("audit.>", "audit.a", true),
            ("audit.>", "audit.a.b.c", true),
            ("audit.>", "audit", false),
            (">", "a.b", true),
            ("*.>", "a", false),
            ("*.>", "a.b", true),
        ] {
            assert_eq!(matches(pattern, subject), expected, "{pattern} {subject}");
        }
    }

    #[test]
    fn malformed_subjects_and_patterns_are_refused() {
        let long = "a".repeat(MAX_BYTES + 1);
        for text in [
            "", ".", "a.", ".a", "a..b", "a b", "a/b", "é", "a\n", &long, "a*", "a>",
        ] {
            text.parse::<Subject>().expect_err(text);
            text.parse::<SubjectPattern>().expect_err(text);
        }
        for text in ["*", ">", "a.*", "a.>"] {
            text.parse::<Subject>().expect_err(text);
            text.parse::<SubjectPattern>().expect(text);
        }
        for text in [">.a", "a.>.b", "a.>>", ".>", "a.*.>x"] {
            text.parse::<SubjectPattern>().expect_err(text);
        }
        let error = "a\"b".parse::<Subject>().expect_err("a quote");
        assert!(error.to_string().contains(r#"'a\"b' is not"#), "{error}");
    }

    /// The rules again, as a recursion over lists of tokens.
    fn selects(pattern: &[String], subject: &[String]) -> bool {
        match (pattern, subject) {
            ([], []) => true,
            ([last], [_, ..]) if last == ">" => true,
            ([wanted, pattern @ ..], [token, subject @ ..]) => {
                (wanted == "*" || wanted == token) && selects(pattern, subject)
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_the_rules_say(
            subject in vec("[ab]", 1..6),
            mut pattern in vec("[ab*]", 0..6),
            ends_open in any::<bool>(),
        ) {
            if ends_open || pattern.is_empty() {
                pattern.push(">".to_owned());
            }
            prop_assert_eq!(
                matches(&pattern.join("."), &subject.join(".")),
                selects(&pattern, &subject)
            );
        }

        #[test]
        fn every_subject_is_a_pattern_of_itself(text in "[a-zA-Z0-9_.-]{1,40}") {
            let subject = text.parse::<Subject>();
            prop_assert_eq!(subject.is_ok(), text.parse::<SubjectPattern>().is_ok());
            if let Ok(subject) = subject {
                prop_assert!(matches(&text, subject.as_str()));
            }
        }
    }
}
