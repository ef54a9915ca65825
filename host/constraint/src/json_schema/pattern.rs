//! Patterns rewritten without look-ahead, and patterns for all texts but some.

use crate::regex::{self, Anchors};
use regex_syntax::hir::{Class, Hir, HirKind, Look};
use std::collections::{BTreeMap, BTreeSet};

/// Texts that a negative look-ahead may list.
const MAX_WORDS: usize = 64;
/// Bytes of a pattern for all texts but some.
const MAX_PATTERN_BYTES: usize = 8 << 10;

/// A pattern for every text that is none of `words` and begins with none of `prefixes`; `None` if it
/// is too long, or a text has a quotation mark or backslash.
pub fn other_than(words: &[&str], prefixes: &[&str]) -> Option<String> {
    #[derive(Default)]
    struct Node {
        next: BTreeSet<char>,
        is_word: bool,
        is_prefix: bool,
    }
    // A tree by the beginnings of the texts.
    let mut tree: BTreeMap<&str, Node> = BTreeMap::new();
    tree.entry("").or_default();
    let mut bytes = 0;
    for (text, is_prefix) in words
        .iter()
        .map(|word| (*word, false))
        .chain(prefixes.iter().map(|prefix| (*prefix, true)))
    {
        // llguidance reads a class without these as one with them, since JSON escapes them.
        if text.contains(['"', '\\']) {
            return None;
        }
        for (at, next) in text.char_indices() {
            bytes += at + 16;
            if bytes > MAX_PATTERN_BYTES {
                return None;
            }
            tree.entry(&text[..at]).or_default().next.insert(next);
        }
        let end = tree.entry(text).or_default();
        end.is_word |= !is_prefix;
        end.is_prefix |= is_prefix;
    }
    let mut options = Vec::new();
    for (start, node) in &tree {
        let mut starts = start.char_indices().map(|(at, _)| at).chain([start.len()]);
        if starts.any(|end| tree.get(&start[..end]).is_some_and(|node| node.is_prefix)) {
            continue;
        }
        let next: String = node
            .next
            .iter()
            .map(|next| regex_syntax::escape(&next.to_string()))
            .collect();
        let other = match next.as_str() {
            "" => "(?s:.)".to_owned(),
            next => format!("[^{next}]"),
        };
        let start = regex_syntax::escape(start);
        options.push(match node.is_word {
            true => format!("{start}{other}(?s:.)*"),
            false => format!("{start}(?:{other}(?s:.)*)?"),
        });
    }
    let pattern = format!("^(?:{})$", options.join("|"));
    (!options.is_empty() && pattern.len() <= MAX_PATTERN_BYTES).then_some(pattern)
}

/// Patterns that together match what a pattern with look-ahead at its beginning matches; `None` if it
/// has look-ahead elsewhere, or a negative one with more than a list of texts.
pub fn without_look_ahead(pattern: &str) -> Option<Vec<String>> {
    let mut rest = pattern.strip_prefix('^')?;
    let mut found = Vec::new();
    while let Some(inner) = rest.strip_prefix("(?=").or(rest.strip_prefix("(?!")) {
        let end = group_end(inner)?;
        let body = &inner[..end];
        if rest.starts_with("(?=") {
            found.push(format!("^(?:{body})"));
        } else {
            let (words, prefixes) = listed_texts(body)?;
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let prefixes: Vec<_> = prefixes.iter().map(String::as_str).collect();
            found.push(other_than(&words, &prefixes)?);
        }
        rest = &inner[end + 1..];
    }
    if found.is_empty() || group_end(&format!("{rest})"))? != rest.len() || has_alternatives(rest) {
        return None;
    }
    found.push(format!("^{rest}"));
    let is_supported = |pattern: &String| regex::check(pattern, Anchors::Allowed).is_ok();
    found.iter().all(is_supported).then_some(found)
}

/// The characters of an expression that are not escaped and in no character class, with the number of
/// groups around them.
fn syntax(text: &str) -> impl Iterator<Item = (usize, char, i32)> {
    let (mut is_escaped, mut in_class, mut depth) = (false, false, 0);
    text.char_indices().filter_map(move |(at, char)| {
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' => {
                depth -= 1;
                return Some((at, char, depth));
            }
            _ => return Some((at, char, depth)),
        }
        None
    })
}

/// Where the group ends whose inside a text begins with.
fn group_end(text: &str) -> Option<usize> {
    let end = syntax(text).find(|&(_, char, depth)| char == ')' && depth < 0);
    end.map(|(at, ..)| at)
}

fn has_alternatives(text: &str) -> bool {
    syntax(text).any(|(_, char, depth)| char == '|' && depth == 0)
}

/// The texts that an expression matches, and those that it only matches the beginning of: its
/// alternatives with and without `$`.
fn listed_texts(expression: &str) -> Option<(Vec<String>, Vec<String>)> {
    let hir = regex_syntax::parse(expression).ok()?;
    let (mut words, mut prefixes) = (Vec::new(), Vec::new());
    let mut alternatives = vec![&hir];
    while let Some(one) = alternatives.pop() {
        match one.kind() {
            HirKind::Alternation(more) => alternatives.extend(more),
            HirKind::Capture(inner) => alternatives.push(&inner.sub),
            HirKind::Concat(parts) => match parts.split_last() {
                Some((last, parts)) if matches!(last.kind(), HirKind::Look(Look::End)) => {
                    words.extend(sequences(parts)?);
                }
                _ => prefixes.extend(sequences(parts)?),
            },
            HirKind::Look(Look::End) => words.push(String::new()),
            _ => prefixes.extend(sequences(std::slice::from_ref(one))?),
        }
        if words.len() + prefixes.len() > MAX_WORDS {
            return None;
        }
    }
    Some((words, prefixes))
}

/// The texts that a sequence of expressions matches, if they are few.
fn sequences(parts: &[Hir]) -> Option<Vec<String>> {
    let mut texts = vec![String::new()];
    for part in parts {
        let next = match part.kind() {
            HirKind::Empty => vec![String::new()],
            HirKind::Literal(literal) => vec![String::from_utf8(literal.0.to_vec()).ok()?],
            HirKind::Class(Class::Unicode(class)) => {
                let chars = class.iter().flat_map(|range| range.start()..=range.end());
                chars.take(MAX_WORDS + 1).map(String::from).collect()
            }
            HirKind::Capture(inner) => sequences(std::slice::from_ref(&*inner.sub))?,
            HirKind::Concat(parts) => sequences(parts)?,
            HirKind::Alternation(options) => {
                let options = options.iter().map(std::slice::from_ref).map(sequences);
                options.collect::<Option<Vec<_>>>()?.concat()
            }
            _ => return None,
        };
        if texts.len() * next.len() > MAX_WORDS {
            return None;
        }
        let joined = texts
            .iter()
            .flat_map(|text| next.iter().map(move |next| format!("{text}{next}")));
        texts = joined.collect();
    }
    Some(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex_lite::Regex;

    #[test]
    fn other_texts_match() {
        let pattern = other_than(&["ab", "a.c", "", "é"], &["xy", "]"]).unwrap();
        let regex = Regex::new(&pattern).unwrap();
        for text in ["ab", "a.c", "", "é", "xy", "xyz", "]", "]a"] {
            assert!(!regex.is_match(text), "{text:?} {pattern}");
        }
        for text in [
            "a", "abc", "abb", "a.", "a.d", "\n", "éé", "x", "yx", "x]", "b\nab",
        ] {
            assert!(regex.is_match(text), "{text:?} {pattern}");
        }
        assert_eq!(other_than(&["a".repeat(500).as_str()], &[]), None);
        assert_eq!(other_than(&[], &[""]), None, "no text is left");
        assert_eq!(other_than(&["a\"b"], &[]), None);
    }

    #[test]
    fn look_ahead_at_the_beginning_is_rewritten() {
        let cases: [(&str, &[&str], &[&str]); 4] = [
            (
                r"^(?=.*[0-9])(?=.*[a-z)]).{3,5}$",
                &["a1b", "1)2", "12ab5"],
                &["abc", "123", "a1", "a12345"],
            ),
            (
                "^(?!(?:foo|bar)$)[a-z]+$",
                &["fo", "food", "x"],
                &["foo", "bar", "1"],
            ),
            (
                "^(?!-|x[12])(?:[a-z0-9-]|y)+$",
                &["x", "x3", "a-"],
                &["-a", "x1", "x23"],
            ),
            ("^(?=(a|b)\\))", &["a)", "b)c"], &["a", "xb)"]),
        ];
        for (pattern, right, wrong) in cases {
            let parts = without_look_ahead(pattern).unwrap_or_else(|| panic!("{pattern}"));
            let parts: Vec<_> = parts.iter().map(|part| Regex::new(part).unwrap()).collect();
            let matches = |text: &&str| parts.iter().all(|part| part.is_match(text));
            for text in right {
                assert!(matches(text), "{pattern} must match {text}");
            }
            for text in wrong {
                assert!(!matches(text), "{pattern} must not match {text}");
            }
        }
    }

    #[test]
    fn other_look_around_is_not_rewritten() {
        for pattern in [
            "(?=a)b",
            "a(?=b)",
            "^(?=a)b|c",
            "^(?<=a)b",
            "^(?!a*)b",
            "^(?=(?=a)b)c",
            "^(?=a",
            "^ab",
        ] {
            assert_eq!(without_look_ahead(pattern), None, "{pattern}");
        }
    }
}
