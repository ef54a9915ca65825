//! Places in a text, and errors of `llguidance` in our words.

/// A place in a text: line and column, both from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    line: usize,
    column: usize,
}

impl Place {
    /// The place of a byte offset that lies on a character's border.
    pub fn of(text: &str, offset: usize) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line = before.bytes().filter(|&byte| byte == b'\n').count() + 1;
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line,
            column: before[start..].chars().count() + 1,
        }
    }

    /// A place by its numbers.
    pub fn at(line: usize, column: usize) -> Self {
        Self { line, column }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Most bytes of a message of `llguidance` that are passed on.
const MAX_MESSAGE: usize = 300;

/// The first line of a message of `llguidance`: what follows is a picture of the place, its state
/// or a backtrace.
pub fn first_line(message: &str) -> &str {
    let line = message.lines().next().unwrap_or_default().trim();
    let mut end = line.len().min(MAX_MESSAGE);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

/// Whether a message tells of a panic inside of `llguidance`.
pub fn is_panic(message: &str) -> bool {
    message.starts_with("panic: ")
}

/// Takes the place off a message of the form `at 3(7): what is wrong` or `3(7): what is wrong`.
pub fn split(message: &str) -> (Option<Place>, &str) {
    let line = first_line(message);
    let rest = line.strip_prefix("at ").unwrap_or(line);
    let found = rest.split_once("): ").and_then(|(place, what)| {
        let (line, column) = place.split_once('(')?;
        // A place of nothing stands for the end.
        let (line, column) = (line.parse::<usize>().ok()?, column.parse::<usize>().ok()?);
        (line > 0).then_some((Place::at(line, column), what))
    });
    match found {
        Some((place, what)) => (Some(place), what),
        None => (None, line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let text = "ab\ncédé\n";
        for (offset, line, column) in [
            (0, 1, 1),
            (2, 1, 3),
            (3, 2, 1),
            (6, 2, 3),
            (text.len(), 3, 1),
        ] {
            assert_eq!(Place::of(text, offset), Place::at(line, column), "{offset}");
        }
    }

    #[test]
    fn a_message_is_taken_apart_into_place_and_words() {
        let with_place = split("at 3(7): unknown name: \"x\"\n  3 | start: x\n");
        assert_eq!(with_place, (Some(Place::at(3, 7)), "unknown name: \"x\""));
        assert_eq!(
            split("2(1): lexer error\n"),
            (Some(Place::at(2, 1)), "lexer error")
        );
        assert_eq!(
            split("too big (limit: 3): no"),
            (None, "too big (limit: 3): no")
        );
        assert_eq!(first_line(&"é".repeat(400)).len(), MAX_MESSAGE);
    }
}
