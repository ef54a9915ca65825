//! Calls of tools in what a model says, told apart from the rest as it comes.

use super::Family;
use super::scanner::{Scanner, Step};
use crate::talk::{Part, begun, push};

/// Listens for calls.
#[derive(Debug)]
pub struct Calls {
    /// How calls are written; nothing where there can be none.
    family: Option<Family>,
    names: Vec<String>,
    /// Whether more than one is told.
    parallel: bool,
    state: State,
    /// What can't be told yet.
    held: String,
    /// What was taken for the beginning of a call, and of the white space before it, until it is one.
    taken: String,
    /// Calls so far.
    count: usize,
    /// Whether one of them is complete.
    complete: bool,
    /// Whether something was said that is not told.
    dropped: bool,
}

#[derive(Debug)]
enum State {
    /// Nothing but white space so far.
    Beginning,
    /// Content, in which a call may begin.
    Content,
    /// Before a call.
    Before,
    Within(Box<Scanner>),
    /// After a call.
    After,
    /// Content to the end.
    Plain,
}

impl Calls {
    /// For a model that was offered these tools.
    pub fn new(family: Family, names: Vec<String>, parallel: bool) -> Self {
        Calls {
            family: Some(family),
            names,
            parallel,
            state: State::Beginning,
            held: String::new(),
            taken: String::new(),
            count: 0,
            complete: false,
            dropped: false,
        }
    }

    /// Whether there can be none, and all is content as it stands.
    pub fn are_none(&self) -> bool {
        matches!(self.state, State::Plain) && self.held.is_empty()
    }

    /// For one that was offered none.
    pub fn none() -> Self {
        Calls {
            family: None,
            names: Vec::new(),
            parallel: true,
            state: State::Plain,
            held: String::new(),
            taken: String::new(),
            count: 0,
            complete: false,
            dropped: false,
        }
    }

    /// Whether the model goes on after the one call that is told.
    pub fn is_over(&self) -> bool {
        let another = matches!(self.state, State::Before | State::Within(_));
        self.dropped || !self.parallel && self.complete && another
    }

    /// Goes on by a piece.
    pub fn hear(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.held += text;
        let mut heard = Vec::new();
        while self.goes_on(&mut heard) {}
        self.keep(heard, parts);
    }

    /// What is left at the end.
    pub fn end(&mut self, parts: &mut Vec<Part>) {
        let held = std::mem::take(&mut self.held);
        let left = match &self.state {
            // The white space around calls is none of the content.
            State::Content if self.count > 0 => held.trim_end().to_owned(),
            State::Beginning | State::Content | State::Plain => held,
            State::Within(scanner) if !scanner.is_told() => {
                std::mem::take(&mut self.taken) + scanner.raw()
            }
            State::Before if !self.taken.is_empty() => std::mem::take(&mut self.taken) + &held,
            State::Before | State::Within(_) | State::After => String::new(),
        };
        self.keep(vec![Part::Content(left)], parts);
    }

    /// Tells what may be told: with one call at most, nothing that follows it.
    fn keep(&mut self, heard: Vec<Part>, parts: &mut Vec<Part>) {
        for part in heard {
            self.count += usize::from(matches!(part, Part::Call(_)));
            if self.parallel
                || self.count == 0
                || self.count == 1 && !matches!(part, Part::Content(_))
            {
                push(parts, part);
            } else {
                self.dropped |= part != Part::Content(String::new());
            }
        }
    }

    /// Takes the first bytes of what is held for the beginning of a call.
    fn take(&mut self, until: usize) {
        self.taken.extend(self.held.drain(..until));
    }

    /// Tells what was taken for a call and is none.
    fn unread(&mut self, raw: &str, parts: &mut Vec<Part>) {
        let taken = std::mem::take(&mut self.taken);
        push(parts, Part::Content(taken + raw));
    }

    /// One thing at a time; false when it takes more to go on.
    fn goes_on(&mut self, parts: &mut Vec<Part>) -> bool {
        let Some(family) = self.family else {
            return self.content(self.held.len(), parts);
        };
        match &mut self.state {
            State::Plain => self.content(self.held.len(), parts),
            State::Beginning => self.begins(family),
            State::Content => self.looks_for(family, parts),
            State::Before => self.before(family, parts),
            State::Within(_) => self.within(parts),
            State::After => self.after(family),
        }
    }

    fn content(&mut self, until: usize, parts: &mut Vec<Part>) -> bool {
        let text: String = self.held.drain(..until).collect();
        push(parts, Part::Content(text));
        false
    }

    /// Llama calls with its first letters or not at all.
    fn begins(&mut self, family: Family) -> bool {
        if family != Family::Llama {
            self.state = State::Content;
            return true;
        }
        let opening = family.opening();
        let trimmed = self.held.trim_start();
        if trimmed.is_empty() || trimmed != opening && opening.starts_with(trimmed) {
            return false;
        }
        let call = trimmed.strip_prefix(opening).unwrap_or(trimmed);
        if call.trim_start().is_empty() {
            return false;
        }
        let before = self.held.len() - call.len();
        match call.trim_start().starts_with('{') {
            true => {
                self.take(before);
                self.state = State::Before;
            }
            false => self.state = State::Plain,
        }
        true
    }

    fn looks_for(&mut self, family: Family, parts: &mut Vec<Part>) -> bool {
        let opening = family.opening();
        if let Some((content, rest)) = self.held.split_once(opening) {
            let (length, rest) = (content.trim_end().len(), rest.len());
            self.content(length, parts);
            self.take(self.held.len() - rest);
            self.state = State::Before;
            return true;
        }
        let until = self.held.len() - begun(&self.held, opening);
        self.content(self.held[..until].trim_end().len(), parts)
    }

    fn before(&mut self, family: Family, parts: &mut Vec<Part>) -> bool {
        let between: &[char] = match family {
            Family::Hermes => &[],
            Family::Mistral => &['[', ','],
            Family::Llama => &[';'],
        };
        let skip = |letter: char| letter.is_whitespace() || between.contains(&letter);
        let rest = self.held.trim_start_matches(skip);
        let skipped = self.held.len() - rest.len();
        match rest.chars().next() {
            None => false,
            Some('{') => {
                self.take(skipped);
                let known = (family == Family::Llama).then(|| self.names.clone());
                self.state = State::Within(Box::new(Scanner::new(known)));
                true
            }
            Some(']') if family == Family::Mistral => {
                self.held = rest[1..].to_owned();
                self.taken.clear();
                self.state = State::Content;
                true
            }
            Some(_) => {
                self.take(skipped);
                self.unread("", parts);
                self.state = State::Content;
                true
            }
        }
    }

    fn within(&mut self, parts: &mut Vec<Part>) -> bool {
        let State::Within(scanner) = &mut self.state else {
            return false;
        };
        let mut used = 0;
        for letter in self.held.chars() {
            used += letter.len_utf8();
            match scanner.hear(letter, parts) {
                Step::On => {}
                Step::Done => {
                    self.held.drain(..used);
                    self.taken.clear();
                    self.complete = true;
                    self.state = State::After;
                    return true;
                }
                Step::Not => {
                    let (told, raw) = (scanner.is_told(), scanner.raw().to_owned());
                    self.held.drain(..used);
                    self.state = match self.family {
                        _ if told => State::After,
                        Some(Family::Llama) => State::Plain,
                        _ => State::Content,
                    };
                    self.complete |= told;
                    match told {
                        true => self.taken.clear(),
                        false => self.unread(&raw, parts),
                    }
                    return true;
                }
            }
        }
        self.held.clear();
        false
    }

    fn after(&mut self, family: Family) -> bool {
        let rest = self.held.trim_start();
        if rest.is_empty() {
            return false;
        }
        match (family, family.closing()) {
            (_, Some(closing)) => {
                if let Some(rest) = rest.strip_prefix(closing) {
                    self.held = rest.to_owned();
                } else if closing.starts_with(rest) {
                    return false;
                }
                self.state = State::Content;
            }
            (Family::Llama, None) => {
                self.state = match rest.starts_with([';', '{']) {
                    true => State::Before,
                    false => State::Plain,
                };
            }
            (_, None) => self.state = State::Before,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(mut calls: Calls, pieces: impl Iterator<Item = impl AsRef<str>>) -> Vec<Part> {
        let mut all = Vec::new();
        for piece in pieces {
            let mut parts = Vec::new();
            calls.hear(piece.as_ref(), &mut parts);
            parts.into_iter().for_each(|part| push(&mut all, part));
        }
        let mut parts = Vec::new();
        calls.end(&mut parts);
        parts.into_iter().for_each(|part| push(&mut all, part));
        all
    }

    fn content(text: &str) -> Part {
        Part::Content(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> [Part; 2] {
        [
            Part::Call(name.to_owned()),
            Part::Arguments(arguments.to_owned()),
        ]
    }

    fn check(family: Family, parallel: bool, text: &str, expected: &[Part]) {
        let calls = || Calls::new(family, vec!["f".to_owned(), "g".to_owned()], parallel);
        assert_eq!(heard(calls(), [text].iter()), expected, "{text}");
        let letters = text.chars().map(String::from);
        assert_eq!(heard(calls(), letters), expected, "{text} in letters");
    }

    #[test]
    fn hermes_writes_calls_in_tags() {
        let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        let other =
            "<tool_call>{\"arguments\": {\"b\": \"</tool_call>\"}, \"name\": \"g\"}</tool_call>";
        let [f, a] = call("f", "{\"a\": 1}");
        let [g, b] = call("g", "{\"b\": \"</tool_call>\"}");
        let both = format!("Well.\n{one}\n{other}\n");
        let all = [content("Well."), f.clone(), a.clone(), g, b];
        check(Family::Hermes, true, &both, &all);
        check(Family::Hermes, false, &both, &all[..3]);
        check(
            Family::Hermes,
            true,
            &format!("{one} Done. "),
            &[f, a, content(" Done.")],
        );
        check(Family::Hermes, true, "a <tool", &[content("a <tool")]);
        let none = "<tool_call>\n{\"nam\": 1}\n</tool_call>";
        check(Family::Hermes, true, none, &[content(none)]);
        for none in [
            " a \n\n<tool_call>\n {\"nam\": 1} b",
            "a\n<tool_call>\n f(1)",
            "<tool_call>\n",
            "a <tool_call>\n{\"name\": ",
        ] {
            check(Family::Hermes, true, none, &[content(none)]);
        }
        let again = format!("<tool_call> f <tool_call>f {one}");
        let [f2, a2] = call("f", "{\"a\": 1}");
        check(
            Family::Hermes,
            true,
            &again,
            &[content("<tool_call> f <tool_call>f"), f2, a2],
        );
        check(
            Family::Hermes,
            true,
            "<tool_call>f(1)",
            &[content("<tool_call>f(1)")],
        );
        check(
            Family::Hermes,
            true,
            "<tool_call>{\"name\": ",
            &[content("<tool_call>{\"name\": ")],
        );
        check(
            Family::Hermes,
            true,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"",
            &call("f", "{\"a\""),
        );
        let unclosed = "<tool_call>{\"name\": \"h\", \"arguments\": {}} and";
        let [h, none] = call("h", "{}");
        check(Family::Hermes, true, unclosed, &[h, none, content(" and")]);
    }

    #[test]
    fn llama_calls_with_its_whole_answer() {
        let one = "{\"name\": \"f\", \"parameters\": {\"a\": 1}}";
        let expected = call("f", "{\"a\": 1}");
        check(Family::Llama, true, one, &expected);
        check(
            Family::Llama,
            true,
            &format!("<|python_tag|>{one}"),
            &expected,
        );
        let [g, b] = call("g", "{}");
        let two = format!("{one}; {{\"name\": \"g\", \"parameters\": {{}}}}");
        let [f, a] = expected;
        check(Family::Llama, true, &two, &[f.clone(), a.clone(), g, b]);
        check(Family::Llama, false, &two, &[f, a]);
        for text in [
            "Hi",
            "{\"name\": \"Ada\", \"age\": 36}",
            "{\"city\": {}}; {\"name\": \"f\", \"parameters\": {}}",
            "<|pyth",
            " <|python_tag|> {\"city\": 1}",
            "\n{\"name\": \"Ada\"} ",
            " {\"name",
        ] {
            check(Family::Llama, true, text, &[content(text)]);
        }
    }

    #[test]
    fn mistral_writes_a_list_of_calls() {
        let text = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, {\"name\": \"g\", \"arguments\": {}}]";
        let ([f, a], [g, b]) = (call("f", "{\"a\": [1]}"), call("g", "{}"));
        check(Family::Mistral, true, text, &[f.clone(), a.clone(), g, b]);
        check(Family::Mistral, false, text, &[f, a]);
        check(Family::Mistral, true, "[1] [TOOL", &[content("[1] [TOOL")]);
        let none = "a [TOOL_CALLS] [{\"nam\": 1}] b";
        check(Family::Mistral, true, none, &[content(none)]);
        check(Family::Mistral, true, "[TOOL_CALLS] []", &[]);
        let text = "[TOOL_CALLS][{\"name\": \"f\"}, {\"nam\": 1}]";
        let [f, none] = call("f", "{}");
        let rest = content(", {\"nam\": 1}]");
        check(Family::Mistral, true, text, &[f, none, rest]);
    }

    #[test]
    fn after_the_one_call_that_is_told_it_is_over() {
        let hermes = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n";
        let llama = "{\"name\": \"f\", \"parameters\": {}}";
        let mistral = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}";
        for (family, text, over) in [
            (Family::Hermes, hermes.to_owned(), false),
            (Family::Hermes, format!("{hermes}<tool_call>"), true),
            (Family::Hermes, format!("{hermes}Done"), true),
            (Family::Llama, llama.to_owned(), false),
            (Family::Llama, format!("{llama};"), true),
            (Family::Llama, format!("{llama} x"), true),
            (Family::Mistral, format!("{mistral}]"), false),
            (Family::Mistral, format!("{mistral},"), true),
        ] {
            for parallel in [true, false] {
                let mut calls = Calls::new(family, vec!["f".to_owned()], parallel);
                let mut parts = Vec::new();
                calls.hear(&text, &mut parts);
                assert_eq!(calls.is_over(), over && !parallel, "{text}");
            }
        }
    }

    #[test]
    fn without_tools_there_are_no_calls() {
        let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        assert_eq!(heard(Calls::none(), [text].iter()), [content(text)]);
    }
}
