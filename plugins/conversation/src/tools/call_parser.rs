//! Separates tool calls from content, while the text arrives in chunks.
//!
//! *Invariant*: text becomes content once it cannot be part of a call, and if only one call is allowed, nothing follows it.
//! The formats of calls are in `call_format.rs`.

use super::CallFormat;
use super::call_scanner::{CallScanner, ScanResult};
use crate::{OutputPart, partial_tag, push};

/// Separates the tool calls of one answer.
#[derive(Debug)]
pub struct CallParser {
    /// The format of calls; `None` without tools.
    format: Option<CallFormat>,
    names: Vec<String>,
    /// Whether to return more than one call.
    parallel: bool,
    state: CallState,
    /// Text that can't be classified yet.
    pending: String,
    /// Text candidate for the start of a call, with the white space before it, until the call is
    /// certain.
    candidate: String,
    /// Number of calls so far.
    count: usize,
    /// Whether a call is complete.
    complete: bool,
    /// Whether output after the only call was dropped.
    dropped: bool,
}

#[derive(Debug)]
enum CallState {
    /// At the start, after white space only.
    AnswerStart,
    /// In content, which may contain a call.
    Content,
    /// Before a call.
    BeforeCall,
    InCall(Box<CallScanner>),
    /// After a call.
    AfterCall,
    /// In content that can't contain a call.
    PlainContent,
}

impl CallParser {
    /// For a request with these tools.
    pub fn new(format: CallFormat, names: Vec<String>, parallel: bool) -> Self {
        CallParser {
            format: Some(format),
            names,
            parallel,
            state: CallState::AnswerStart,
            ..Self::disabled()
        }
    }

    /// For a request without tools.
    pub fn disabled() -> Self {
        CallParser {
            format: None,
            names: Vec::new(),
            parallel: true,
            state: CallState::PlainContent,
            pending: String::new(),
            candidate: String::new(),
            count: 0,
            complete: false,
            dropped: false,
        }
    }

    /// Whether all text is content.
    pub fn is_disabled(&self) -> bool {
        matches!(self.state, CallState::PlainContent) && self.pending.is_empty()
    }

    /// Whether the model continues after the only call that is returned.
    pub fn may_stop_generation(&self) -> bool {
        let another = matches!(self.state, CallState::BeforeCall | CallState::InCall(_));
        self.dropped || !self.parallel && self.complete && another
    }

    /// Parses a chunk.
    pub fn parse(&mut self, text: &str, parts: &mut Vec<OutputPart>) {
        self.pending += text;
        let mut parsed = Vec::new();
        while self.advance(&mut parsed) {}
        self.emit(parsed, parts);
    }

    /// Returns the remaining text at the end.
    pub fn end(&mut self, parts: &mut Vec<OutputPart>) {
        let pending = std::mem::take(&mut self.pending);
        let rest = match &self.state {
            // White space around calls is not content.
            CallState::Content if self.count > 0 => pending.trim_end().to_owned(),
            CallState::AnswerStart | CallState::Content | CallState::PlainContent => pending,
            CallState::InCall(scanner) if !scanner.is_reported() => {
                std::mem::take(&mut self.candidate) + scanner.raw()
            }
            CallState::BeforeCall if !self.candidate.is_empty() => {
                std::mem::take(&mut self.candidate) + &pending
            }
            CallState::BeforeCall | CallState::InCall(_) | CallState::AfterCall => String::new(),
        };
        self.emit(vec![OutputPart::Content(rest)], parts);
    }

    /// Passes on parts. With one call at most, nothing after it.
    fn emit(&mut self, parsed: Vec<OutputPart>, parts: &mut Vec<OutputPart>) {
        for part in parsed {
            self.count += usize::from(matches!(part, OutputPart::ToolCall(_)));
            if self.parallel
                || self.count == 0
                || self.count == 1 && !matches!(part, OutputPart::Content(_))
            {
                push(parts, part);
            } else {
                self.dropped |= part != OutputPart::Content(String::new());
            }
        }
    }

    /// Moves the first bytes of the pending text to the possible start of a call.
    fn move_to_candidate(&mut self, until: usize) {
        self.candidate.extend(self.pending.drain(..until));
    }

    /// Returns text that turned out not to be a call as content.
    fn reject_candidate(&mut self, raw: &str, parts: &mut Vec<OutputPart>) {
        let candidate = std::mem::take(&mut self.candidate);
        push(parts, OutputPart::Content(candidate + raw));
    }

    /// Advances by one state; false if more text is needed.
    fn advance(&mut self, parts: &mut Vec<OutputPart>) -> bool {
        let Some(format) = self.format else {
            return self.content(self.pending.len(), parts);
        };
        match &mut self.state {
            CallState::PlainContent => self.content(self.pending.len(), parts),
            CallState::AnswerStart => self.parse_start(format),
            CallState::Content => self.find_call(format, parts),
            CallState::BeforeCall => self.parse_before_call(format, parts),
            CallState::InCall(_) => self.parse_call(parts),
            CallState::AfterCall => self.parse_after_call(format),
        }
    }

    fn content(&mut self, until: usize, parts: &mut Vec<OutputPart>) -> bool {
        let text: String = self.pending.drain(..until).collect();
        push(parts, OutputPart::Content(text));
        false
    }

    /// Llama writes a call at the start of the answer or not at all.
    fn parse_start(&mut self, format: CallFormat) -> bool {
        if format != CallFormat::Llama {
            self.state = CallState::Content;
            return true;
        }
        let opening = format.opening();
        let trimmed = self.pending.trim_start();
        if trimmed.is_empty() || trimmed != opening && opening.starts_with(trimmed) {
            return false;
        }
        let call = trimmed.strip_prefix(opening).unwrap_or(trimmed);
        if call.trim_start().is_empty() {
            return false;
        }
        let before = self.pending.len() - call.len();
        match call.trim_start().starts_with('{') {
            true => {
                self.move_to_candidate(before);
                self.state = CallState::BeforeCall;
            }
            false => self.state = CallState::PlainContent,
        }
        true
    }

    fn find_call(&mut self, format: CallFormat, parts: &mut Vec<OutputPart>) -> bool {
        let opening = format.opening();
        if let Some((content, rest)) = self.pending.split_once(opening) {
            let (length, rest) = (content.trim_end().len(), rest.len());
            self.content(length, parts);
            self.move_to_candidate(self.pending.len() - rest);
            self.state = CallState::BeforeCall;
            return true;
        }
        let until = self.pending.len() - partial_tag(&self.pending, opening);
        self.content(self.pending[..until].trim_end().len(), parts)
    }

    fn parse_before_call(&mut self, format: CallFormat, parts: &mut Vec<OutputPart>) -> bool {
        let separators: &[char] = match format {
            CallFormat::Hermes => &[],
            CallFormat::Mistral => &['[', ','],
            CallFormat::Llama => &[';'],
        };
        let is_separator =
            |character: char| character.is_whitespace() || separators.contains(&character);
        let rest = self.pending.trim_start_matches(is_separator);
        let skipped = self.pending.len() - rest.len();
        match rest.chars().next() {
            None => false,
            Some('{') => {
                self.move_to_candidate(skipped);
                let known = (format == CallFormat::Llama).then(|| self.names.clone());
                self.state = CallState::InCall(Box::new(CallScanner::new(known)));
                true
            }
            Some(']') if format == CallFormat::Mistral => {
                self.pending = rest[1..].to_owned();
                self.candidate.clear();
                self.state = CallState::Content;
                true
            }
            Some(_) => {
                self.move_to_candidate(skipped);
                self.reject_candidate("", parts);
                self.state = CallState::Content;
                true
            }
        }
    }

    fn parse_call(&mut self, parts: &mut Vec<OutputPart>) -> bool {
        let CallState::InCall(scanner) = &mut self.state else {
            return false;
        };
        let mut used = 0;
        for character in self.pending.chars() {
            used += character.len_utf8();
            match scanner.scan(character, parts) {
                ScanResult::Incomplete => {}
                ScanResult::Complete => {
                    self.pending.drain(..used);
                    self.candidate.clear();
                    self.complete = true;
                    self.state = CallState::AfterCall;
                    return true;
                }
                ScanResult::NotACall => {
                    let (reported, raw) = (scanner.is_reported(), scanner.raw().to_owned());
                    self.pending.drain(..used);
                    self.state = match self.format {
                        _ if reported => CallState::AfterCall,
                        Some(CallFormat::Llama) => CallState::PlainContent,
                        _ => CallState::Content,
                    };
                    self.complete |= reported;
                    match reported {
                        true => self.candidate.clear(),
                        false => self.reject_candidate(&raw, parts),
                    }
                    return true;
                }
            }
        }
        self.pending.clear();
        false
    }

    fn parse_after_call(&mut self, format: CallFormat) -> bool {
        let rest = self.pending.trim_start();
        if rest.is_empty() {
            return false;
        }
        match (format, format.closing()) {
            (_, Some(closing)) => {
                if let Some(rest) = rest.strip_prefix(closing) {
                    self.pending = rest.to_owned();
                } else if closing.starts_with(rest) {
                    return false;
                }
                self.state = CallState::Content;
            }
            (CallFormat::Llama, None) => {
                self.state = match rest.starts_with([';', '{']) {
                    true => CallState::BeforeCall,
                    false => CallState::PlainContent,
                };
            }
            (_, None) => self.state = CallState::BeforeCall,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CallFormat::{Hermes, Llama, Mistral};

    fn parse_all(
        mut calls: CallParser,
        pieces: impl Iterator<Item = impl AsRef<str>>,
    ) -> Vec<OutputPart> {
        let mut all = Vec::new();
        for piece in pieces {
            let mut parts = Vec::new();
            calls.parse(piece.as_ref(), &mut parts);
            parts.into_iter().for_each(|part| push(&mut all, part));
        }
        let mut parts = Vec::new();
        calls.end(&mut parts);
        parts.into_iter().for_each(|part| push(&mut all, part));
        all
    }

    fn content(text: &str) -> OutputPart {
        OutputPart::Content(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> [OutputPart; 2] {
        [
            OutputPart::ToolCall(name.to_owned()),
            OutputPart::Arguments(arguments.to_owned()),
        ]
    }

    fn check(format: CallFormat, parallel: bool, text: &str, expected: &[OutputPart]) {
        let calls = || CallParser::new(format, vec!["f".to_owned(), "g".to_owned()], parallel);
        assert_eq!(parse_all(calls(), [text].iter()), expected, "{text}");
        let characters = text.chars().map(String::from);
        let found = parse_all(calls(), characters);
        assert_eq!(found, expected, "{text} by characters");
    }

    #[test]
    fn hermes_calls_are_in_tags() {
        let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        let other =
            "<tool_call>{\"arguments\": {\"b\": \"</tool_call>\"}, \"name\": \"g\"}</tool_call>";
        let [f, a] = call("f", "{\"a\": 1}");
        let [g, b] = call("g", "{\"b\": \"</tool_call>\"}");
        let both = format!("Well.\n{one}\n{other}\n");
        let all = [content("Well."), f.clone(), a.clone(), g, b];
        check(Hermes, true, &both, &all);
        check(Hermes, false, &both, &all[..3]);
        let text = format!("{one} Done. ");
        check(Hermes, true, &text, &[f, a, content(" Done.")]);
        for none in [
            "a <tool",
            "<tool_call>\n{\"nam\": 1}\n</tool_call>",
            "<tool_call>f(1)",
            "<tool_call>{\"name\": ",
            " a \n\n<tool_call>\n {\"nam\": 1} b",
            "a\n<tool_call>\n f(1)",
            "<tool_call>\n",
            "a <tool_call>\n{\"name\": ",
        ] {
            check(Hermes, true, none, &[content(none)]);
        }
        let again = format!("<tool_call> f <tool_call>f {one}");
        let [f2, a2] = call("f", "{\"a\": 1}");
        check(
            Hermes,
            true,
            &again,
            &[content("<tool_call> f <tool_call>f"), f2, a2],
        );
        check(
            Hermes,
            true,
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"",
            &call("f", "{\"a\""),
        );
        let unclosed = "<tool_call>{\"name\": \"h\", \"arguments\": {}} and";
        let [h, none] = call("h", "{}");
        check(Hermes, true, unclosed, &[h, none, content(" and")]);
    }

    #[test]
    fn llama_call_is_the_whole_answer() {
        let one = "{\"name\": \"f\", \"parameters\": {\"a\": 1}}";
        let expected = call("f", "{\"a\": 1}");
        check(Llama, true, one, &expected);
        check(Llama, true, &format!("<|python_tag|>{one}"), &expected);
        let [g, b] = call("g", "{}");
        let two = format!("{one}; {{\"name\": \"g\", \"parameters\": {{}}}}");
        let [f, a] = expected;
        check(Llama, true, &two, &[f.clone(), a.clone(), g, b]);
        check(Llama, false, &two, &[f, a]);
        for text in [
            "Hi",
            "{\"name\": \"Ada\", \"age\": 36}",
            "{\"city\": {}}; {\"name\": \"f\", \"parameters\": {}}",
            "<|pyth",
            " <|python_tag|> {\"city\": 1}",
            "\n{\"name\": \"Ada\"} ",
            " {\"name",
        ] {
            check(Llama, true, text, &[content(text)]);
        }
    }

    #[test]
    fn mistral_calls_are_a_list() {
        let text = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, {\"name\": \"g\", \"arguments\": {}}]";
        let ([f, a], [g, b]) = (call("f", "{\"a\": [1]}"), call("g", "{}"));
        check(Mistral, true, text, &[f.clone(), a.clone(), g, b]);
        check(Mistral, false, text, &[f, a]);
        check(Mistral, true, "[1] [TOOL", &[content("[1] [TOOL")]);
        let none = "a [TOOL_CALLS] [{\"nam\": 1}] b";
        check(Mistral, true, none, &[content(none)]);
        check(Mistral, true, "[TOOL_CALLS] []", &[]);
        let text = "[TOOL_CALLS][{\"name\": \"f\"}, {\"nam\": 1}]";
        let [f, none] = call("f", "{}");
        let rest = content(", {\"nam\": 1}]");
        check(Mistral, true, text, &[f, none, rest]);
    }

    #[test]
    fn parsing_ends_after_the_only_call() {
        let hermes = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n";
        let llama = "{\"name\": \"f\", \"parameters\": {}}";
        let mistral = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}";
        for (format, text, over) in [
            (Hermes, hermes.to_owned(), false),
            (Hermes, format!("{hermes}<tool_call>"), true),
            (Hermes, format!("{hermes}Done"), true),
            (Llama, llama.to_owned(), false),
            (Llama, format!("{llama};"), true),
            (Llama, format!("{llama} x"), true),
            (Mistral, format!("{mistral}]"), false),
            (Mistral, format!("{mistral},"), true),
        ] {
            for parallel in [true, false] {
                let mut calls = CallParser::new(format, vec!["f".to_owned()], parallel);
                let mut parts = Vec::new();
                calls.parse(&text, &mut parts);
                assert_eq!(calls.may_stop_generation(), over && !parallel, "{text}");
            }
        }
    }

    #[test]
    fn text_without_tools_is_content() {
        let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
        let found = parse_all(CallParser::disabled(), [text].iter());
        assert_eq!(found, [content(text)]);
    }
}
