//! Positions in a text, and messages of `llguidance` prepared for users.

use std::any::Any;

/// A position in a text: line and column, both from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPosition {
    line: usize,
    column: usize,
}

impl TextPosition {
    /// The position of a byte offset on a character boundary.
    pub fn of(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line,
            column: before[start..].chars().count() + 1,
        }
    }

    /// A position by its line and column.
    pub fn at(line: usize, column: usize) -> Self {
        Self { line, column }
    }
}

impl std::fmt::Display for TextPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Bytes of a message of `llguidance` that a user sees.
const MAX_MESSAGE_BYTES: usize = 300;

/// The first line of a message of `llguidance`; a picture of the position, state or a backtrace
/// follows it.
pub fn first_line(message: &str) -> &str {
    let line = message.lines().next().unwrap_or_default().trim();
    &line[..line.floor_char_boundary(MAX_MESSAGE_BYTES)]
}

/// The text of a panic inside `llguidance` that a message reports.
pub fn panic_of(message: &str) -> Option<&str> {
    first_line(message).strip_prefix("panic: ")
}

/// Whether a thread was stopped by its limit on work.
pub fn is_exceeded(payload: &(dyn Any + Send)) -> bool {
    payload.downcast_ref::<&str>() == Some(&work_limit::EXCEEDED)
}

/// Splits a message of the form `at 3(7): text` or `3(7): text` into its position and text.
pub fn split_position(message: &str) -> (Option<TextPosition>, &str) {
    let line = first_line(message);
    let rest = line.strip_prefix("at ").unwrap_or(line);
    let found = rest.split_once("): ").and_then(|(position, what)| {
        let (line, column) = position.split_once('(')?;
        let (line, column) = (line.parse::<usize>().ok()?, column.parse::<usize>().ok()?);
        // Line 0 stands for the end of the text.
        (line > 0).then_some((TextPosition::at(line, column), what))
    });
    match found {
        Some((position, what)) => (Some(position), what),
        None => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters_from_one() {
        let text = "ab\ncédé\n";
        for (offset, line, column) in [
            (0, 1, 1),
            (2, 1, 3),
            (3, 2, 1),
            (6, 2, 3),
            (text.len(), 3, 1),
        ] {
            let expected = TextPosition::at(line, column);
            assert_eq!(TextPosition::of(text, offset), expected, "{offset}");
        }
    }

    #[test]
    fn messages_split_into_position_and_text() {
        for (message, position, text) in [
            (
                "at 3(7): unknown name: \"x\"\n  3 | start: x\n",
                Some(TextPosition::at(3, 7)),
                "unknown name: \"x\"",
            ),
            (
                "2(1): lexer error\n",
                Some(TextPosition::at(2, 1)),
                "lexer error",
            ),
            ("too big (limit: 3): no", None, "too big (limit: 3): no"),
        ] {
            assert_eq!(split_position(message), (position, text));
        }
        assert_eq!(first_line(&"é".repeat(400)).len(), MAX_MESSAGE_BYTES);
    }
}
