//! Scans one tool call, a JSON object, character by character, and returns its arguments as they
//! arrive.

use crate::{OutputPart, push};

/// The result of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanResult {
    /// The object continues.
    Incomplete,
    /// The object is complete.
    Complete,
    /// The text is not an object, or not a call.
    NotACall,
}

/// The position in the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanPosition {
    Before,
    /// Before a key or the end.
    Key,
    InKey,
    /// Before the colon.
    Colon,
    /// Before a value.
    Value,
    InValue,
    /// Before a comma or the end.
    Comma,
}

/// Scans one object.
#[derive(Debug)]
pub struct CallScanner {
    position: ScanPosition,
    /// All text so far.
    raw: String,
    /// JSON text of the current key or value.
    token: String,
    key: String,
    /// Within a value: depth of brackets, whether in a string, whether after a backslash.
    depth: u32,
    in_string: bool,
    escaped: bool,
    name: Option<String>,
    /// Arguments that precede the name.
    arguments: Option<String>,
    /// Whether arguments were read, under either name; later ones are ignored.
    has_arguments: bool,
    reported: bool,
    /// If set, only a call of one of these names with arguments is a call.
    known_names: Option<Vec<String>>,
}

impl CallScanner {
    /// Starts before an object. With `known`, only a call of one of these names is a call.
    pub fn new(known: Option<Vec<String>>) -> Self {
        CallScanner {
            position: ScanPosition::Before,
            raw: String::new(),
            token: String::new(),
            key: String::new(),
            depth: 0,
            in_string: false,
            escaped: false,
            name: None,
            arguments: None,
            has_arguments: false,
            reported: false,
            known_names: known,
        }
    }

    /// Whether the call was reported. It then is a call, whatever follows.
    pub fn is_reported(&self) -> bool {
        self.reported
    }

    /// All text so far.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// Scans a character.
    pub fn scan(&mut self, character: char, parts: &mut Vec<OutputPart>) -> ScanResult {
        self.raw.push(character);
        let blank = matches!(character, ' ' | '\n' | '\t' | '\r');
        match (self.position, character) {
            (ScanPosition::InKey, _) => {
                self.token.push(character);
                if self.string_ends(character) {
                    let Ok(key) = serde_json::from_str(&self.token) else {
                        return ScanResult::NotACall;
                    };
                    self.key = key;
                    self.position = ScanPosition::Colon;
                    if self.known_names.is_some() && !is_call_field(&self.key) {
                        return ScanResult::NotACall;
                    }
                }
            }
            (ScanPosition::InValue, _) => return self.scan_value(character, blank, parts),
            _ if blank => {}
            (ScanPosition::Before, '{') => self.position = ScanPosition::Key,
            (ScanPosition::Key, '"') => {
                self.token = "\"".to_owned();
                self.in_string = true;
                self.position = ScanPosition::InKey;
            }
            (ScanPosition::Key | ScanPosition::Comma, '}') => return self.end_object(parts),
            (ScanPosition::Colon, ':') => self.position = ScanPosition::Value,
            (ScanPosition::Value, _) => {
                self.position = ScanPosition::InValue;
                self.token.clear();
                (self.depth, self.in_string, self.escaped) = (0, false, false);
                return self.scan_value(character, blank, parts);
            }
            (ScanPosition::Comma, ',') => self.position = ScanPosition::Key,
            _ => return ScanResult::NotACall,
        }
        ScanResult::Incomplete
    }

    /// Whether a character ends the current string.
    fn string_ends(&mut self, character: char) -> bool {
        let ends = character == '"' && !self.escaped;
        self.escaped = character == '\\' && !self.escaped;
        self.in_string &= !ends;
        ends
    }

    fn scan_value(
        &mut self,
        character: char,
        blank: bool,
        parts: &mut Vec<OutputPart>,
    ) -> ScanResult {
        let bare = !self.in_string && self.depth == 0;
        if bare && !self.token.is_empty() && (blank || matches!(character, ',' | '}')) {
            // A number or a word ends at the next character.
            return match self.end_value(parts) {
                ScanResult::Incomplete if character == ',' => {
                    self.position = ScanPosition::Key;
                    ScanResult::Incomplete
                }
                ScanResult::Incomplete if character == '}' => self.end_object(parts),
                result => result,
            };
        }
        self.token.push(character);
        let mut ended = false;
        match character {
            _ if self.in_string => ended = self.string_ends(character) && self.depth == 0,
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                ended = self.depth == 0;
            }
            _ => {}
        }
        let streamed = self.name.is_some() && is_arguments(&self.key) && !self.has_arguments;
        if streamed && self.token.starts_with('{') {
            self.report(parts);
            push(parts, OutputPart::Arguments(character.to_string()));
        }
        match ended {
            true => self.end_value(parts),
            false => ScanResult::Incomplete,
        }
    }

    /// Handles a complete value.
    fn end_value(&mut self, parts: &mut Vec<OutputPart>) -> ScanResult {
        self.position = ScanPosition::Comma;
        if self.key == "name" && self.name.is_none() {
            let Ok(name) = serde_json::from_str::<String>(&self.token) else {
                return ScanResult::NotACall;
            };
            if self
                .known_names
                .as_ref()
                .is_some_and(|known| !known.contains(&name))
            {
                return ScanResult::NotACall;
            }
            self.name = Some(name);
            if let Some(arguments) = self.arguments.take() {
                self.report(parts);
                push(parts, OutputPart::Arguments(arguments));
            }
        } else if is_arguments(&self.key) && !self.has_arguments {
            self.has_arguments = true;
            if self.reported {
                return ScanResult::Incomplete;
            }
            let arguments = match self.token.as_str() {
                "null" => "{}".to_owned(),
                // Some models write the object as a string.
                token => serde_json::from_str(token).unwrap_or_else(|_| token.to_owned()),
            };
            match self.name {
                Some(_) => {
                    self.report(parts);
                    push(parts, OutputPart::Arguments(arguments));
                }
                None => self.arguments = Some(arguments),
            }
        }
        ScanResult::Incomplete
    }

    /// Reports the call once.
    fn report(&mut self, parts: &mut Vec<OutputPart>) {
        if let (Some(name), false) = (&self.name, self.reported) {
            parts.push(OutputPart::ToolCall(name.clone()));
            self.reported = true;
        }
    }

    fn end_object(&mut self, parts: &mut Vec<OutputPart>) -> ScanResult {
        if self.name.is_none() || self.known_names.is_some() && !self.reported {
            return ScanResult::NotACall;
        }
        if !self.reported {
            self.report(parts);
            push(parts, OutputPart::Arguments("{}".to_owned()));
        }
        ScanResult::Complete
    }
}

fn is_arguments(key: &str) -> bool {
    matches!(key, "arguments" | "parameters")
}

fn is_call_field(key: &str) -> bool {
    is_arguments(key) || matches!(key, "name" | "type" | "id")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, known: Option<&[&str]>) -> (ScanResult, Vec<OutputPart>) {
        let known = known.map(|known| known.iter().map(|&name| name.to_owned()).collect());
        let mut scanner = CallScanner::new(known);
        let (mut parts, mut last) = (Vec::new(), ScanResult::Incomplete);
        for character in text.chars() {
            assert_eq!(last, ScanResult::Incomplete, "{text}");
            last = scanner.scan(character, &mut parts);
        }
        assert_eq!(scanner.raw(), text);
        (last, parts)
    }

    fn call(name: &str, arguments: &str) -> Vec<OutputPart> {
        vec![
            OutputPart::ToolCall(name.to_owned()),
            OutputPart::Arguments(arguments.to_owned()),
        ]
    }

    /// Calls of `f`, and their arguments.
    const CALLS: &str = r#"
{"name": "f", "arguments": {"a": "}\"{"}} => {"a": "}\"{"}
{"parameters":{"a":[1,{"b":"\\"}]},"name":"f"} => {"a":[1,{"b":"\\"}]}
{"id": 7, "name": "\u0066" , "arguments": "{\"a\": 1}"} => {"a": 1}
{"name": "f", "arguments": null} => {}
{"name": "f", "arguments": null } => {}
{"name": "f"} => {}
{"name": "f", "arguments": {"a": 1}, "parameters": {"b": 2}} => {"a": 1}
{"parameters": {"b": 2}, "arguments": {"a": 1}, "name": "f"} => {"b": 2}
{"arguments": {"a": 1}, "name": "f", "parameters": {"b": 2}} => {"a": 1}
"#;

    #[test]
    fn calls_are_read_in_every_order() {
        let lines = CALLS.trim().lines();
        let lines = lines.map(|line| line.split_once(" => ").unwrap());
        let spaced = [
            (" {\"name\": \"f\"}", "{}"),
            ("{\"name\":\"f\",\n\"arguments\":{}\n}", "{}"),
        ];
        for (text, arguments) in lines.chain(spaced) {
            let found = read(text, None);
            let expected = (ScanResult::Complete, call("f", arguments));
            assert_eq!(found, expected, "{text}");
        }
        let known = read(
            r#"{"type": "function", "name": "f", "parameters": {}}"#,
            Some(&["f"]),
        );
        assert_eq!(known, (ScanResult::Complete, call("f", "{}")));
    }

    #[test]
    fn text_without_a_call_is_detected_early() {
        for (text, known) in [
            ("[", None),
            ("{1", None),
            (r#"{"a" 1"#, None),
            (r#"{"a": 1}"#, None),
            (r#"{"name": 1}"#, None),
            (r#"{"name": "g""#, Some(&["f"][..])),
            (r#"{"city""#, Some(&["f"])),
            (r#"{"name": "f"}"#, Some(&["f"])),
        ] {
            let found = read(text, known);
            assert_eq!(found, (ScanResult::NotACall, Vec::new()), "{text}");
        }
    }

    #[test]
    fn arguments_arrive_incrementally() {
        let (step, parts) = read(r#"{"name": "f", "arguments": {"a": "b"#, None);
        assert_eq!(
            (step, parts),
            (ScanResult::Incomplete, call("f", r#"{"a": "b"#))
        );
    }
}
