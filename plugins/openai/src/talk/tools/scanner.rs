//! One call, as a JSON object, letter by letter: its arguments are told while they are still coming.

use crate::talk::{Part, push};

/// What a letter did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The object goes on.
    On,
    /// It is complete.
    Done,
    /// It is none, or no call.
    Not,
}

/// How far into the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
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

/// Reads one object.
#[derive(Debug)]
pub struct Scanner {
    at: At,
    /// All of it so far.
    raw: String,
    /// JSON text of the key or value that is being read.
    token: String,
    key: String,
    /// Within a value: open brackets, whether in a string, whether after a backslash.
    depth: u32,
    string: bool,
    escaped: bool,
    name: Option<String>,
    /// Arguments that were read before the name was.
    arguments: Option<String>,
    /// Whether arguments were read, by whichever of their names; others after them count for nothing.
    complete: bool,
    told: bool,
    /// Names of which it has to be one, and then it has to have arguments too.
    known: Option<Vec<String>>,
}

impl Scanner {
    /// Before an object. With `known`, only a call of one of these is one.
    pub fn new(known: Option<Vec<String>>) -> Self {
        Scanner {
            at: At::Before,
            raw: String::new(),
            token: String::new(),
            key: String::new(),
            depth: 0,
            string: false,
            escaped: false,
            name: None,
            arguments: None,
            complete: false,
            told: false,
            known,
        }
    }

    /// Whether the call was told; from then on it is one, however it goes on.
    pub fn is_told(&self) -> bool {
        self.told
    }

    /// All of the object so far.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// Goes on by a letter.
    pub fn hear(&mut self, letter: char, parts: &mut Vec<Part>) -> Step {
        self.raw.push(letter);
        let blank = matches!(letter, ' ' | '\n' | '\t' | '\r');
        match (self.at, letter) {
            (At::InKey, _) => {
                self.token.push(letter);
                if self.string_ends(letter) {
                    let Ok(key) = serde_json::from_str(&self.token) else {
                        return Step::Not;
                    };
                    self.key = key;
                    self.at = At::Colon;
                    if self.known.is_some() && !is_member(&self.key) {
                        return Step::Not;
                    }
                }
            }
            (At::InValue, _) => return self.in_value(letter, blank, parts),
            _ if blank => {}
            (At::Before, '{') => self.at = At::Key,
            (At::Key, '"') => {
                self.token = "\"".to_owned();
                self.string = true;
                self.at = At::InKey;
            }
            (At::Key | At::Comma, '}') => return self.done(parts),
            (At::Colon, ':') => self.at = At::Value,
            (At::Value, _) => {
                self.at = At::InValue;
                self.token.clear();
                (self.depth, self.string, self.escaped) = (0, false, false);
                return self.in_value(letter, blank, parts);
            }
            (At::Comma, ',') => self.at = At::Key,
            _ => return Step::Not,
        }
        Step::On
    }

    /// Whether a letter ends the string that it stands in.
    fn string_ends(&mut self, letter: char) -> bool {
        let ends = letter == '"' && !self.escaped;
        self.escaped = letter == '\\' && !self.escaped;
        self.string &= !ends;
        ends
    }

    fn in_value(&mut self, letter: char, blank: bool, parts: &mut Vec<Part>) -> Step {
        let bare = !self.string && self.depth == 0;
        if bare && !self.token.is_empty() && (blank || matches!(letter, ',' | '}')) {
            // A number or a word has no end of its own.
            return match self.value(parts) {
                Step::On if letter == ',' => {
                    self.at = At::Key;
                    Step::On
                }
                Step::On if letter == '}' => self.done(parts),
                step => step,
            };
        }
        self.token.push(letter);
        let mut ended = false;
        match letter {
            _ if self.string => ended = self.string_ends(letter) && self.depth == 0,
            '"' => self.string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                ended = self.depth == 0;
            }
            _ => {}
        }
        let told = self.name.is_some() && is_arguments(&self.key) && !self.complete;
        if told && self.token.starts_with('{') {
            self.tell(parts);
            push(parts, Part::Arguments(letter.to_string()));
        }
        match ended {
            true => self.value(parts),
            false => Step::On,
        }
    }

    /// A member is complete.
    fn value(&mut self, parts: &mut Vec<Part>) -> Step {
        self.at = At::Comma;
        if self.key == "name" && self.name.is_none() {
            let Ok(name) = serde_json::from_str::<String>(&self.token) else {
                return Step::Not;
            };
            if self
                .known
                .as_ref()
                .is_some_and(|known| !known.contains(&name))
            {
                return Step::Not;
            }
            self.name = Some(name);
            if let Some(arguments) = self.arguments.take() {
                self.tell(parts);
                push(parts, Part::Arguments(arguments));
            }
        } else if is_arguments(&self.key) && !self.complete {
            self.complete = true;
            if self.told {
                return Step::On;
            }
            let arguments = match self.token.as_str() {
                "null" => "{}".to_owned(),
                // Some models write the object as a string.
                token => serde_json::from_str(token).unwrap_or_else(|_| token.to_owned()),
            };
            match self.name {
                Some(_) => {
                    self.tell(parts);
                    push(parts, Part::Arguments(arguments));
                }
                None => self.arguments = Some(arguments),
            }
        }
        Step::On
    }

    /// Tells the call, once.
    fn tell(&mut self, parts: &mut Vec<Part>) {
        if let (Some(name), false) = (&self.name, self.told) {
            parts.push(Part::Call(name.clone()));
            self.told = true;
        }
    }

    fn done(&mut self, parts: &mut Vec<Part>) -> Step {
        if self.name.is_none() || self.known.is_some() && !self.told {
            return Step::Not;
        }
        if !self.told {
            self.tell(parts);
            push(parts, Part::Arguments("{}".to_owned()));
        }
        Step::Done
    }
}

fn is_arguments(key: &str) -> bool {
    matches!(key, "arguments" | "parameters")
}

fn is_member(key: &str) -> bool {
    is_arguments(key) || matches!(key, "name" | "type" | "id")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, known: Option<&[&str]>) -> (Step, Vec<Part>) {
        let known = known.map(|known| known.iter().map(|&name| name.to_owned()).collect());
        let mut scanner = Scanner::new(known);
        let (mut parts, mut last) = (Vec::new(), Step::On);
        for letter in text.chars() {
            assert_eq!(last, Step::On, "{text}");
            last = scanner.hear(letter, &mut parts);
        }
        assert_eq!(scanner.raw(), text);
        (last, parts)
    }

    fn call(name: &str, arguments: &str) -> Vec<Part> {
        vec![
            Part::Call(name.to_owned()),
            Part::Arguments(arguments.to_owned()),
        ]
    }

    #[test]
    fn calls_are_read_in_every_order() {
        for (text, arguments) in [
            (
                r#" {"name": "f", "arguments": {"a": "}\"{"}}"#,
                r#"{"a": "}\"{"}"#,
            ),
            (
                r#"{"parameters":{"a":[1,{"b":"\\"}]},"name":"f"}"#,
                r#"{"a":[1,{"b":"\\"}]}"#,
            ),
            (
                r#"{"id": 7, "name": "\u0066" , "arguments": "{\"a\": 1}"}"#,
                r#"{"a": 1}"#,
            ),
            (r#"{"name": "f", "arguments": null}"#, "{}"),
            (r#"{"name": "f", "arguments": null }"#, "{}"),
            (r#"{"name": "f"}"#, "{}"),
            (
                r#"{"name": "f", "arguments": {"a": 1}, "parameters": {"b": 2}}"#,
                r#"{"a": 1}"#,
            ),
            (
                r#"{"parameters": {"b": 2}, "arguments": {"a": 1}, "name": "f"}"#,
                r#"{"b": 2}"#,
            ),
            (
                r#"{"arguments": {"a": 1}, "name": "f", "parameters": {"b": 2}}"#,
                r#"{"a": 1}"#,
            ),
            ("{\"name\":\"f\",\n\"arguments\":{}\n}", "{}"),
        ] {
            assert_eq!(
                read(text, None),
                (Step::Done, call("f", arguments)),
                "{text}"
            );
        }
        let known = read(
            r#"{"type": "function", "name": "f", "parameters": {}}"#,
            Some(&["f"]),
        );
        assert_eq!(known, (Step::Done, call("f", "{}")));
    }

    #[test]
    fn what_is_no_call_is_found_out_early() {
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
            assert_eq!(read(text, known), (Step::Not, Vec::new()), "{text}");
        }
    }

    #[test]
    fn arguments_are_told_as_they_come() {
        let (step, parts) = read(r#"{"name": "f", "arguments": {"a": "b"#, None);
        assert_eq!((step, parts), (Step::On, call("f", r#"{"a": "b"#)));
    }
}
