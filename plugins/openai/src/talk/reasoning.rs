//! Thoughts apart from what is said: `<think>` … `</think>` at the beginning of an answer.

use super::begun;

pub const OPEN: &str = "<think>";
pub const CLOSE: &str = "</think>";

/// Takes an answer apart as it comes.
#[derive(Debug)]
pub struct Reasoning {
    state: State,
    /// What can't be told yet.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far.
    Beginning,
    /// Within the tags; nothing but white space so far.
    ThoughtBeginning,
    Thinking,
    /// After the second tag; nothing but white space so far.
    SpeechBeginning,
    Speaking,
}

/// What became of a piece.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Told {
    pub thought: String,
    pub speech: String,
}

impl Reasoning {
    /// For a model that may think; `open` if the prompt has the first tag already.
    pub fn new(open: bool) -> Self {
        Reasoning {
            state: if open {
                State::ThoughtBeginning
            } else {
                State::Beginning
            },
            held: String::new(),
        }
    }

    /// For a model that does not.
    pub fn none() -> Self {
        Reasoning {
            state: State::Speaking,
            held: String::new(),
        }
    }

    /// Whether all that is to come is speech, as it stands.
    pub fn is_over(&self) -> bool {
        self.state == State::Speaking && self.held.is_empty()
    }

    /// Goes on by a piece.
    pub fn hear(&mut self, text: &str) -> Told {
        self.held += text;
        let mut told = Told::default();
        loop {
            let trimmed = self.held.trim_start();
            match self.state {
                State::Beginning => {
                    if trimmed.is_empty() || OPEN.starts_with(trimmed) && trimmed != OPEN {
                        return told;
                    }
                    match trimmed.strip_prefix(OPEN) {
                        Some(rest) => self.goes_on(State::ThoughtBeginning, rest.to_owned()),
                        None => self.state = State::Speaking,
                    }
                }
                State::ThoughtBeginning | State::SpeechBeginning if trimmed.is_empty() => {
                    return told;
                }
                State::ThoughtBeginning => self.goes_on(State::Thinking, trimmed.to_owned()),
                State::SpeechBeginning => self.goes_on(State::Speaking, trimmed.to_owned()),
                State::Thinking => match self.held.split_once(CLOSE) {
                    Some((thought, rest)) => {
                        told.thought += thought.trim_end();
                        self.goes_on(State::SpeechBeginning, rest.to_owned());
                    }
                    None => {
                        let until = self.held.len() - begun(&self.held, CLOSE);
                        let until = self.held[..until].trim_end().len();
                        told.thought.extend(self.held.drain(..until));
                        return told;
                    }
                },
                State::Speaking => {
                    told.speech += &std::mem::take(&mut self.held);
                    return told;
                }
            }
        }
    }

    fn goes_on(&mut self, state: State, held: String) {
        self.state = state;
        self.held = held;
    }

    /// What is left at the end.
    pub fn end(&mut self) -> Told {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Beginning | State::Speaking => Told {
                speech: held,
                ..Told::default()
            },
            State::Thinking => Told {
                thought: held,
                ..Told::default()
            },
            State::ThoughtBeginning | State::SpeechBeginning => Told::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(mut reasoning: Reasoning, pieces: &[&str]) -> (String, String) {
        let (mut thought, mut speech) = (String::new(), String::new());
        for piece in pieces {
            let told = reasoning.hear(piece);
            thought += &told.thought;
            speech += &told.speech;
        }
        let told = reasoning.end();
        (thought + &told.thought, speech + &told.speech)
    }

    #[test]
    fn thoughts_are_told_apart_however_they_come() {
        for (open, text, thought, speech) in [
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
            let expected = (thought.to_owned(), speech.to_owned());
            assert_eq!(heard(Reasoning::new(open), &[text]), expected, "{text}");
            let letters: Vec<_> = text.chars().map(String::from).collect();
            let letters: Vec<_> = letters.iter().map(String::as_str).collect();
            assert_eq!(
                heard(Reasoning::new(open), &letters),
                expected,
                "{text} in letters"
            );
        }
        let plain = heard(Reasoning::none(), &["<think>", "a</think>"]);
        assert_eq!(plain, (String::new(), "<think>a</think>".to_owned()));
    }
}
