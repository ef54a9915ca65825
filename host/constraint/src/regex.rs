//! Checks regular expressions before they are compiled, for errors with a position.

use crate::limits;
use regex_syntax::ast::{
    Assertion, AssertionKind, Ast, ErrorKind, RepetitionKind, RepetitionRange, Visitor, parse,
    visit,
};

/// Whether an expression may contain anchors (`^`, `$`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchors {
    /// The expression is searched for in a text, so anchors have a meaning.
    Allowed,
    /// The expression matches the whole text anyway.
    Refused,
}

const WORD_BOUNDARIES: &str = "word boundaries are not supported";

/// The byte at which an error begins, and a message.
pub type RegexError = (usize, String);

/// Checks the syntax, and that the expression needs nothing unsupported or too expensive.
pub fn check(text: &str, anchors: Anchors) -> Result<(), RegexError> {
    if text.len() > limits::MAX_REGEX_BYTES {
        let what = format!(
            "it has {} bytes; it may have at most {}",
            text.len(),
            limits::MAX_REGEX_BYTES
        );
        return Err((0, what));
    }
    let ast = parse::ParserBuilder::new()
        .nest_limit(limits::MAX_NESTING)
        .build()
        .parse(text)
        .map_err(|error| (error.span().start.offset, error.kind().to_string()))?;
    visit(
        &ast,
        Check {
            anchors,
            counts: Vec::new(),
        },
    )
}

/// Whether an expression that [`check`] refuses is valid where look-around, back-references and word
/// boundaries are supported, as in JavaScript.
pub fn is_valid_elsewhere(text: &str) -> bool {
    if text.len() > limits::MAX_REGEX_BYTES {
        return false;
    }
    let parsed = parse::ParserBuilder::new()
        .nest_limit(limits::MAX_NESTING)
        .build()
        .parse(text);
    match parsed {
        Err(error) => matches!(
            error.kind(),
            ErrorKind::UnsupportedLookAround
                | ErrorKind::UnsupportedBackreference
                | ErrorKind::EscapeUnrecognized
        ),
        Ok(_) => check(text, Anchors::Allowed).is_err_and(|(_, what)| what == WORD_BOUNDARIES),
    }
}

struct Check {
    anchors: Anchors,
    /// The products of the repetition counts around the current node, outermost first.
    counts: Vec<u64>,
}

impl Visitor for Check {
    type Output = ();
    type Err = RegexError;

    fn finish(self) -> Result<(), RegexError> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), RegexError> {
        match ast {
            Ast::Assertion(assertion) => self.assertion(assertion),
            Ast::Repetition(repetition) => {
                let count = match repetition.op.kind {
                    RepetitionKind::Range(
                        RepetitionRange::Exactly(count)
                        | RepetitionRange::AtLeast(count)
                        | RepetitionRange::Bounded(_, count),
                    ) => u64::from(count).max(1),
                    _ => 1,
                };
                let around = self.counts.last().copied().unwrap_or(1);
                let together = around.saturating_mul(count);
                if together > limits::MAX_COUNT {
                    return Err((
                        repetition.op.span.start.offset,
                        format!(
                            "repeats something {together} times; the maximum is {}",
                            limits::MAX_COUNT
                        ),
                    ));
                }
                self.counts.push(together);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn visit_post(&mut self, ast: &Ast) -> Result<(), RegexError> {
        if matches!(ast, Ast::Repetition(_)) {
            self.counts.pop();
        }
        Ok(())
    }
}

impl Check {
    fn assertion(&self, assertion: &Assertion) -> Result<(), RegexError> {
        let anchor = matches!(
            assertion.kind,
            AssertionKind::StartLine
                | AssertionKind::EndLine
                | AssertionKind::StartText
                | AssertionKind::EndText
        );
        let wrong = if !anchor {
            WORD_BOUNDARIES
        } else if self.anchors == Anchors::Refused {
            "anchors are not supported: remove them, since the whole text must match anyway"
        } else {
            return Ok(());
        };
        Err((assertion.span.start.offset, wrong.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_position() {
        for (text, offset, words) in [
            ("a(b", 1, "unclosed group"),
            ("ab[c", 2, "unclosed character class"),
            ("a**b{2,1}", 4, "invalid repetition count range"),
            ("x(?=y)", 1, "look-around"),
            ("^ab", 0, "anchors are not supported"),
            ("ab\\b", 2, "word boundaries"),
            ("(a{1000}){1000}", 2, "1000000 times"),
            ("é{200000}", 2, "200000 times"),
        ] {
            let (at, what) = check(text, Anchors::Refused).expect_err(text);
            assert_eq!(at, offset, "{text}: {what}");
            assert!(what.contains(words), "{text}: {what}");
        }
        let deep = "(".repeat(200) + &")".repeat(200);
        assert!(check(&deep, Anchors::Refused).is_err());
    }

    #[test]
    fn valid_expressions_pass() {
        for text in [
            "",
            "a|b",
            "(a{10}){10}x{0,100000}",
            r"\d+(\.\d{1,3})?",
            "[^a-z]*",
        ] {
            assert_eq!(check(text, Anchors::Refused), Ok(()), "{text}");
        }
        assert_eq!(check("^a$", Anchors::Allowed), Ok(()));
    }
}
