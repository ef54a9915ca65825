//! Parses GBNF.

use super::{GbnfError, Node, ParsedGrammar};
use crate::{Token, limits};
use std::collections::HashMap;

/// Parses a grammar and resolves the names of its rules.
pub fn parse(
    text: &str,
    token: &dyn Fn(&str) -> Option<Token>,
) -> Result<ParsedGrammar, GbnfError> {
    let mut parser = Parser {
        text,
        at: 0,
        token,
        names: HashMap::new(),
        uses: Vec::new(),
        rules: Vec::new(),
        depth: 0,
        count: 1,
    };
    parser.space(true);
    while !parser.done() {
        parser.rule()?;
    }
    let Parser {
        names, uses, rules, ..
    } = parser;
    for (name, offset) in uses {
        if rules[names[name]].is_none() {
            return Err((offset, format!("there is no rule {name:?}")));
        }
    }
    let defined = names.get("root").filter(|&&root| rules[root].is_some());
    let Some(&root) = defined else {
        return Err((
            text.len(),
            "there is no rule \"root\", the start rule".into(),
        ));
    };
    Ok(ParsedGrammar {
        // All used rules are defined, so no number is lost.
        rules: rules.into_iter().flatten().collect(),
        root,
    })
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    token: &'a dyn Fn(&str) -> Option<Token>,
    names: HashMap<&'a str, usize>,
    /// The uses of names, with their offsets.
    uses: Vec<(&'a str, usize)>,
    rules: Vec<Option<Node>>,
    /// Number of groups around the current position.
    depth: u32,
    /// The highest product of nested counts in the item just parsed.
    count: u64,
}

fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn done(&self) -> bool {
        self.at == self.text.len()
    }

    fn wrong<T>(&self, what: impl Into<String>) -> Result<T, GbnfError> {
        Err((self.at, what.into()))
    }

    /// Describes the next character, for an error.
    fn here(&self) -> String {
        match self.rest().chars().next() {
            Some('\n' | '\r') => "the end of the line".into(),
            Some(found) => format!("{found:?}"),
            None => "the end".into(),
        }
    }

    fn expected<T>(&self, what: &str) -> Result<T, GbnfError> {
        self.wrong(format!("{what} is expected, not {}", self.here()))
    }

    fn eat(&mut self, wanted: &str) -> bool {
        let found = self.rest().starts_with(wanted);
        if found {
            self.at += wanted.len();
        }
        found
    }

    /// Skips blanks and comments, and line breaks if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' => self.at += 1,
                b'\r' | b'\n' if lines => self.at += 1,
                b'#' => {
                    let comment = self.rest();
                    self.at += comment.find(['\r', '\n']).unwrap_or(comment.len());
                }
                _ => return,
            }
        }
    }

    fn take_while(&mut self, wanted: impl Fn(u8) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.bytes().position(|byte| !wanted(byte));
        let taken = &rest[..end.unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    fn name(&mut self) -> Result<&'a str, GbnfError> {
        let name = self.take_while(in_name);
        if name.is_empty() {
            return self.expected("a name of letters, digits and -");
        }
        Ok(name)
    }

    fn number_of(&mut self, name: &'a str) -> usize {
        let next = self.rules.len();
        let number = *self.names.entry(name).or_insert(next);
        if number == next {
            self.rules.push(None);
        }
        number
    }

    fn rule(&mut self) -> Result<(), GbnfError> {
        let name = self.name()?;
        let number = self.number_of(name);
        self.space(false);
        if !self.eat("::=") {
            return self.expected("::=");
        }
        self.space(true);
        let body = self.alternatives()?;
        if !self.done() && !matches!(self.peek(), Some(b'\r' | b'\n')) {
            return self.expected("another item, | or the end of the line");
        }
        // As in llama.cpp, a later definition replaces an earlier one.
        self.rules[number] = Some(body);
        self.space(true);
        Ok(())
    }

    fn alternatives(&mut self) -> Result<Node, GbnfError> {
        let mut max = 1;
        let mut choices = vec![self.sequence()?];
        max = self.count.max(max);
        while self.eat("|") {
            self.space(true);
            choices.push(self.sequence()?);
            max = self.count.max(max);
        }
        self.count = max;
        Ok(match choices.len() {
            1 => choices.swap_remove(0),
            _ => Node::Choice(choices),
        })
    }

    /// Sets `count` to the highest product of nested counts in it.
    fn sequence(&mut self) -> Result<Node, GbnfError> {
        let mut items: Vec<Node> = Vec::new();
        let mut max = 1;
        // The product of the last item's counts.
        let mut last = 1;
        while let Some(byte) = self.peek() {
            let begin = self.at;
            if matches!(byte, b'*' | b'+' | b'?' | b'{') {
                let (min, limit) = self.repetition(byte)?;
                last *= limit.unwrap_or(min).max(1);
                if last > limits::MAX_COUNT {
                    return Err((
                        begin,
                        format!(
                            "repeats something {last} times; the maximum is {}",
                            limits::MAX_COUNT
                        ),
                    ));
                }
                let Some(item) = items.pop() else {
                    return Err((begin, "nothing precedes it to repeat".into()));
                };
                items.push(Node::Repeat {
                    of: Box::new(item),
                    min,
                    max: limit,
                });
            } else {
                self.count = 1;
                match self.item(byte)? {
                    Some(item) => items.push(item),
                    None => break,
                }
                last = self.count;
            }
            max = max.max(last);
            self.space(self.depth > 0);
        }
        self.count = max;
        Ok(match items.len() {
            1 => items.swap_remove(0),
            _ => Node::Sequence(items),
        })
    }

    fn item(&mut self, byte: u8) -> Result<Option<Node>, GbnfError> {
        Ok(Some(match byte {
            b'"' => self.literal()?,
            b'[' => self.class()?,
            b'<' | b'!' => self.token()?,
            b'(' => self.group()?,
            b'.' => {
                self.at += 1;
                Node::AnyCharacter
            }
            _ if in_name(byte) => {
                let offset = self.at;
                let name = self.name()?;
                self.uses.push((name, offset));
                Node::Rule(self.number_of(name))
            }
            _ => return Ok(None),
        }))
    }

    fn group(&mut self) -> Result<Node, GbnfError> {
        let begin = self.at;
        self.at += 1;
        self.depth += 1;
        if self.depth > limits::MAX_NESTING {
            return Err((
                begin,
                format!("groups nest deeper than {}", limits::MAX_NESTING),
            ));
        }
        self.space(true);
        let inner = self.alternatives()?;
        if !self.eat(")") {
            return self.expected("another item, | or )");
        }
        self.depth -= 1;
        Ok(inner)
    }

    fn literal(&mut self) -> Result<Node, GbnfError> {
        let begin = self.at;
        self.at += 1;
        let mut text = String::new();
        while !self.eat("\"") {
            if self.done() {
                return Err((begin, "the literal is not closed".into()));
            }
            text.push(self.character()?);
        }
        Ok(Node::Literal(text))
    }

    fn class(&mut self) -> Result<Node, GbnfError> {
        let begin = self.at;
        self.at += 1;
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        while !self.eat("]") {
            if self.done() {
                return Err((begin, "the character class is not closed".into()));
            }
            let start = self.at;
            let first = self.character()?;
            let range = self.peek() == Some(b'-') && !self.rest().starts_with("-]");
            let last = if range {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err((
                    start,
                    format!("the range from {first:?} to {last:?} is reversed"),
                ));
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() {
            return Err((begin, "the character class is empty".into()));
        }
        Ok(Node::Class { ranges, negated })
    }

    fn character(&mut self) -> Result<char, GbnfError> {
        let begin = self.at;
        let Some(first) = self.rest().chars().next() else {
            return self.expected("a character");
        };
        self.at += first.len_utf8();
        if first != '\\' {
            return Ok(first);
        }
        let escape = self.rest().chars().next();
        self.at += escape.map_or(0, char::len_utf8);
        match escape {
            Some('x') => self.hexadecimal(begin, 2),
            Some('u') => self.hexadecimal(begin, 4),
            Some('U') => self.hexadecimal(begin, 8),
            Some('t') => Ok('\t'),
            Some('r') => Ok('\r'),
            Some('n') => Ok('\n'),
            Some(plain @ ('\\' | '"' | '[' | ']' | '-')) => Ok(plain),
            _ => Err((
                begin,
                "unknown escape; valid are \\x \\u \\U \\t \\r \\n \\\\ \\\" \\[ \\] and \\-"
                    .into(),
            )),
        }
    }

    fn hexadecimal(&mut self, begin: usize, digits: usize) -> Result<char, GbnfError> {
        let found = self.rest().get(..digits);
        let found = found.filter(|found| found.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = found.and_then(|found| u32::from_str_radix(found, 16).ok());
        let Some(code) = code else {
            return Err((begin, format!("{digits} hexadecimal digits are expected")));
        };
        self.at += digits;
        char::from_u32(code).ok_or((begin, format!("U+{code:04X} is not a character")))
    }

    fn token(&mut self) -> Result<Node, GbnfError> {
        let begin = self.at;
        let negated = self.eat("!");
        if !self.eat("<") {
            return self.expected("<");
        }
        if self.eat("[") {
            let token = self.count("a token's number")?;
            if !self.eat("]>") {
                return self.expected("]>");
            }
            return match Token::try_from(token) {
                Ok(token) => Ok(Node::Token { token, negated }),
                Err(_) => Err((begin, format!("there is no token {token}"))),
            };
        }
        self.take_while(|byte| byte != b'>');
        if !self.eat(">") {
            return Err((begin, "the token's name is not closed".into()));
        }
        let name = self.text[begin..self.at].trim_start_matches('!');
        match (self.token)(name) {
            Some(token) => Ok(Node::Token { token, negated }),
            None => Err((begin, format!("the model has no token {name:?}"))),
        }
    }

    fn count(&mut self, what: &str) -> Result<u64, GbnfError> {
        let begin = self.at;
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if digits.is_empty() {
            return self.expected(what);
        }
        digits
            .parse()
            .map_err(|_| (begin, format!("{digits} is too large")))
    }

    /// The minimum count, and the maximum if there is one.
    fn repetition(&mut self, sign: u8) -> Result<(u64, Option<u64>), GbnfError> {
        let begin = self.at;
        self.at += 1;
        match sign {
            b'*' => return Ok((0, None)),
            b'+' => return Ok((1, None)),
            b'?' => return Ok((0, Some(1))),
            _ => {}
        }
        let lines = self.depth > 0;
        self.space(lines);
        let min = self.count("a count")?;
        self.space(lines);
        let mut max = Some(min);
        if self.eat(",") {
            self.space(lines);
            max = match self.peek() {
                Some(b'0'..=b'9') => Some(self.count("a count")?),
                _ => None,
            };
            self.space(lines);
        }
        if !self.eat("}") {
            return self.expected(", or }");
        }
        if min > limits::MAX_COUNT || max.is_some_and(|max| max > limits::MAX_COUNT) {
            return Err((
                begin,
                format!(
                    "repeats something {} times; the maximum is {}",
                    max.unwrap_or(min),
                    limits::MAX_COUNT
                ),
            ));
        }
        if max.is_some_and(|max| max < min) {
            return Err((begin, "the maximum is less than the minimum".into()));
        }
        Ok((min, max))
    }
}
