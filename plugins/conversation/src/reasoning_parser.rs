//! Separates reasoning from content: `<think>` … `</think>` at the start of an answer.

use super::partial_tag;

pub const OPENING_TAG: &str = "<think>";
pub const CLOSING_TAG: &str = "</think>";

/// Separates the reasoning of one answer.
#[derive(Debug)]
pub struct ReasoningParser {
    state: ReasoningState,
    /// Text that can't be classified yet.
    pending: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReasoningState {
    /// At the start, after white space only.
    AnswerStart,
    /// Inside the tags, after white space only.
    ReasoningStart,
    Reasoning,
    /// After the closing tag, after white space only.
    ContentStart,
    Content,
}

/// The separated parts of a chunk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SplitText {
    pub reasoning: String,
    pub content: String,
}

impl ReasoningParser {
    /// For a model that may reason. `open`: the prompt contains the opening tag.
    pub fn new(open: bool) -> Self {
        ReasoningParser {
            state: if open {
                ReasoningState::ReasoningStart
            } else {
                ReasoningState::AnswerStart
            },
            pending: String::new(),
        }
    }

    /// For a model that does not reason.
    pub fn disabled() -> Self {
        ReasoningParser {
            state: ReasoningState::Content,
            pending: String::new(),
        }
    }

    /// Whether all further text is content.
    pub fn is_past_reasoning(&self) -> bool {
        self.state == ReasoningState::Content && self.pending.is_empty()
    }

    /// Parses a chunk.
    pub fn parse(&mut self, text: &str) -> SplitText {
        self.pending += text;
        let mut split = SplitText::default();
        loop {
            let trimmed = self.pending.trim_start();
            match self.state {
                ReasoningState::AnswerStart => {
                    if trimmed.is_empty()
                        || OPENING_TAG.starts_with(trimmed) && trimmed != OPENING_TAG
                    {
                        return split;
                    }
                    match trimmed.strip_prefix(OPENING_TAG) {
                        Some(rest) => self.enter(ReasoningState::ReasoningStart, rest.to_owned()),
                        None => self.state = ReasoningState::Content,
                    }
                }
                ReasoningState::ReasoningStart | ReasoningState::ContentStart
                    if trimmed.is_empty() =>
                {
                    return split;
                }
                ReasoningState::ReasoningStart => {
                    self.enter(ReasoningState::Reasoning, trimmed.to_owned())
                }
                ReasoningState::ContentStart => {
                    self.enter(ReasoningState::Content, trimmed.to_owned())
                }
                ReasoningState::Reasoning => match self.pending.split_once(CLOSING_TAG) {
                    Some((thought, rest)) => {
                        split.reasoning += thought.trim_end();
                        self.enter(ReasoningState::ContentStart, rest.to_owned());
                    }
                    None => {
                        let until = self.pending.len() - partial_tag(&self.pending, CLOSING_TAG);
                        let until = self.pending[..until].trim_end().len();
                        split.reasoning.extend(self.pending.drain(..until));
                        return split;
                    }
                },
                ReasoningState::Content => {
                    split.content += &std::mem::take(&mut self.pending);
                    return split;
                }
            }
        }
    }

    fn enter(&mut self, state: ReasoningState, pending: String) {
        self.state = state;
        self.pending = pending;
    }

    /// Returns the remaining text at the end.
    pub fn end(&mut self) -> SplitText {
        let pending = std::mem::take(&mut self.pending);
        match self.state {
            ReasoningState::AnswerStart | ReasoningState::Content => SplitText {
                content: pending,
                ..SplitText::default()
            },
            ReasoningState::Reasoning => SplitText {
                reasoning: pending,
                ..SplitText::default()
            },
            ReasoningState::ReasoningStart | ReasoningState::ContentStart => SplitText::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(mut parser: ReasoningParser, pieces: &[&str]) -> (String, String) {
        let (mut reasoning, mut content) = (String::new(), String::new());
        for piece in pieces {
            let split = parser.parse(piece);
            reasoning += &split.reasoning;
            content += &split.content;
        }
        let split = parser.end();
        (reasoning + &split.reasoning, content + &split.content)
    }

    #[test]
    fn chunking_does_not_change_the_result() {
        for (open, text, reasoning, content) in [
            (false, "Hi <think>", "", "Hi <think>"),
            (false, " \nHi", "", " \nHi"),
            (
                false,
                "<think>\na\n\nb\n</think>\n\nHi </think>",
                "a\n\nb",
                "Hi </think>",
            ),
            (false, "<think>\n\n</think>\n\nHi", "", "Hi"),
            (false, "<think> a < b </thin", "a < b </thin", ""),
            (false, "<thin", "", "<thin"),
            (true, "\na</think>b", "a", "b"),
            (true, "<b> a", "<b> a", ""),
            (true, "é</think>é", "é", "é"),
        ] {
            let expected = (reasoning.to_owned(), content.to_owned());
            let found = parse(ReasoningParser::new(open), &[text]);
            assert_eq!(found, expected, "{text}");
            let characters: Vec<_> = text.chars().map(String::from).collect();
            let characters: Vec<_> = characters.iter().map(String::as_str).collect();
            let found = parse(ReasoningParser::new(open), &characters);
            assert_eq!(found, expected, "{text} by characters");
        }
        let plain = parse(ReasoningParser::disabled(), &["<think>", "a</think>"]);
        assert_eq!(plain, (String::new(), "<think>a</think>".to_owned()));
    }
}
