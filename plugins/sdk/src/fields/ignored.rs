//! Fields of a request that had no effect. The response names them in a header.
//!
//! An instance serves one request at a time, so the names are thread-local.
//! [`begin`] starts a request, also where tests run several in one thread.
//!
//! ```
//! use corral_sdk::fields::{Fields, ignored};
//!
//! let fields = |text: &str| Fields::parse(text.as_bytes()).unwrap();
//! ignored::begin(false);
//! fields(r#"{"mood": 1, "pace": null}"#).ignore_unknown(&["text"]).unwrap();
//! assert_eq!(ignored::header_value().as_deref(), Some("mood"));
//! ignored::begin(true);
//! let error = fields(r#"{"mood": 1}"#).ignore_unknown(&["text"]).unwrap_err();
//! assert_eq!((error.code(), error.field()), ("unknown-field", Some("mood")));
//! ```

use std::cell::RefCell;

/// The response header for the names. The host counts responses that have it.
pub const HEADER: &str = "x-corral-ignored";

/// Most names in the header. `...` stands for further ones.
const NAME_LIMIT: usize = 32;
/// Longest name, in bytes. `...` stands for the rest.
const NAME_BYTES: usize = 64;
const MORE: &str = "...";

struct Ignored {
    strict: bool,
    names: Vec<String>,
    /// Whether there are more names than the limit.
    more: bool,
}

thread_local! {
    static IGNORED: RefCell<Ignored> = const {
        RefCell::new(Ignored { strict: false, names: Vec::new(), more: false })
    };
}

/// Starts a request. With `strict`, fields without effect are errors.
pub fn begin(strict: bool) {
    IGNORED.replace(Ignored {
        strict,
        names: Vec::new(),
        more: false,
    });
}

/// Whether fields without effect are errors.
pub fn is_strict() -> bool {
    IGNORED.with_borrow(|ignored| ignored.strict)
}

/// Adds the path of a field, such as `messages[2].mood`. The entries of a list count as one:
/// `messages[].mood`.
pub fn add(path: &str) {
    let name = header_name(path);
    IGNORED.with_borrow_mut(|ignored| {
        if ignored.names.contains(&name) {
            return;
        }
        match ignored.names.len() < NAME_LIMIT {
            true => ignored.names.push(name),
            false => ignored.more = true,
        }
    });
}

/// The value of [`HEADER`]: the names in the order of their addition, or `None` without any.
pub fn header_value() -> Option<String> {
    IGNORED.with_borrow(|ignored| {
        let mut value = ignored.names.join(", ");
        if ignored.more {
            value += ", ";
            value += MORE;
        }
        (!value.is_empty()).then_some(value)
    })
}

/// The path without indices, in characters that a header may contain, and shortened.
fn header_name(path: &str) -> String {
    let mut name = String::new();
    let mut in_brackets = false;
    for letter in path.chars() {
        match letter {
            '[' => in_brackets = true,
            ']' => in_brackets = false,
            '0'..='9' if in_brackets => continue,
            _ => {}
        }
        name.push(match letter {
            _ if name.len() >= NAME_BYTES => return name + MORE,
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' | '.' | '[' | ']' | '/' | ':' => letter,
            _ => '?',
        });
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_list_count_as_one() {
        begin(false);
        assert_eq!(header_value(), None);
        for path in [
            "b",
            "messages[0].mood",
            "messages[12].mood",
            "tools[1].x2",
            "b",
        ] {
            add(path);
        }
        let value = header_value();
        assert_eq!(value.as_deref(), Some("b, messages[].mood, tools[].x2"));
        begin(false);
        assert_eq!(header_value(), None, "a request has its own names");
    }

    #[test]
    fn header_is_short_and_printable() {
        begin(false);
        add("a,\r\nb \u{e9}");
        add(&"x".repeat(100));
        let long = format!("{}...", "x".repeat(64));
        assert_eq!(header_value(), Some(format!("a???b??, {long}")));
        (0..NAME_LIMIT).for_each(|at| add(&format!("n{at}")));
        let value = header_value().unwrap();
        assert!(value.ends_with(", n29, ..."), "{value}");
        assert_eq!(value.split(", ").count(), NAME_LIMIT + 1);
    }
}
