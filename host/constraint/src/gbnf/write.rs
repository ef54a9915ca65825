//! Writes Lark.

use super::{Node, ParsedGrammar};
use std::fmt::Write as _;

/// The equivalent Lark grammar.
pub fn write(grammar: &ParsedGrammar) -> String {
    let regular = regular(grammar);
    let mut writer = Writer {
        regular: &regular,
        lines: String::new(),
        parts: 0,
    };
    writer.line(
        "start",
        if regular[grammar.root] { "T" } else { "r" },
        grammar.root,
    );
    for (number, body) in grammar.rules.iter().enumerate() {
        if regular[number] {
            writer.terminal(&format!("T{number}"), body);
        } else {
            writer.rule(&format!("r{number}"), body);
        }
    }
    writer.lines
}

/// Which rules are regular: they reach neither a token nor themselves. Works from the bottom up: a rule
/// is regular if all rules it uses are.
fn regular(grammar: &ParsedGrammar) -> Vec<bool> {
    let mut uses: Vec<Vec<usize>> = Vec::new();
    let mut used_by: Vec<Vec<usize>> = vec![Vec::new(); grammar.rules.len()];
    let mut tokens = Vec::new();
    for (number, body) in grammar.rules.iter().enumerate() {
        let mut found = Vec::new();
        tokens.push(collect(body, &mut found));
        found.sort_unstable();
        found.dedup();
        for &name in &found {
            used_by[name].push(number);
        }
        uses.push(found);
    }
    let mut unresolved: Vec<usize> = uses.iter().map(Vec::len).collect();
    let mut regular = vec![false; grammar.rules.len()];
    let mut ready: Vec<usize> = (0..unresolved.len())
        .filter(|&rule| unresolved[rule] == 0)
        .collect();
    while let Some(rule) = ready.pop() {
        if tokens[rule] {
            continue;
        }
        regular[rule] = true;
        for &user in &used_by[rule] {
            unresolved[user] -= 1;
            if unresolved[user] == 0 {
                ready.push(user);
            }
        }
    }
    regular
}

/// Collects the rules that a body uses; returns whether it uses tokens.
fn collect(node: &Node, uses: &mut Vec<usize>) -> bool {
    match node {
        Node::Rule(rule) => {
            uses.push(*rule);
            false
        }
        Node::Token { .. } => true,
        Node::Sequence(nodes) | Node::Choice(nodes) => nodes
            .iter()
            .fold(false, |found, node| collect(node, uses) | found),
        Node::Repeat { of, .. } => collect(of, uses),
        Node::Literal(_) | Node::Class { .. } | Node::AnyCharacter => false,
    }
}

struct Writer<'a> {
    regular: &'a [bool],
    lines: String,
    /// Number of terminals and rules generated for parts.
    parts: usize,
}

impl Writer<'_> {
    fn line(&mut self, name: &str, kind: &str, number: usize) {
        self.define(name, &format!("{kind}{number}"));
    }

    fn define(&mut self, name: &str, body: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "{name}: {body}");
    }

    fn is_regular(&self, node: &Node) -> bool {
        let mut uses = Vec::new();
        !collect(node, &mut uses) && uses.iter().all(|&rule| self.regular[rule])
    }

    fn part(&mut self, kind: &str) -> String {
        self.parts += 1;
        format!("{kind}{}", self.parts)
    }

    fn terminal(&mut self, name: &str, body: &Node) {
        let body = self.expression(body, true);
        self.define(name, &body);
    }

    fn rule(&mut self, name: &str, body: &Node) {
        let body = self.expression(body, false);
        self.define(name, &body);
    }

    /// A node as the body of a terminal or rule.
    fn expression(&mut self, node: &Node, terminal: bool) -> String {
        match node {
            Node::Choice(choices) => {
                let choices: Vec<String> = choices
                    .iter()
                    .map(|choice| self.expression(choice, terminal))
                    .collect();
                choices.join(" | ")
            }
            Node::Sequence(items) if items.is_empty() => "\"\"".into(),
            Node::Sequence(items) if terminal => {
                let items: Vec<String> = items.iter().map(|item| self.atom(item, true)).collect();
                items.join(" ")
            }
            Node::Sequence(items) => self.join_regular(items),
            other => self.atom(other, terminal),
        }
    }

    /// The items of a rule that is not regular, with adjacent regular items joined.
    fn join_regular(&mut self, items: &[Node]) -> String {
        let mut written = Vec::new();
        let mut begin = 0;
        while begin < items.len() {
            let regular = items[begin..]
                .iter()
                .take_while(|item| self.is_regular(item))
                .count();
            if regular > 1 {
                let name = self.part("PART");
                self.terminal(
                    &name,
                    &Node::Sequence(items[begin..begin + regular].to_vec()),
                );
                written.push(name);
                begin += regular;
            } else {
                let item = self.atom(&items[begin], regular == 1);
                written.push(item);
                begin += 1;
            }
        }
        written.join(" ")
    }

    /// A node as one item of a sequence. Groups become named parts, since Lark limits the nesting of
    /// brackets.
    fn atom(&mut self, node: &Node, terminal: bool) -> String {
        match node {
            Node::Literal(text) => literal(text),
            Node::Class { ranges, negated } => class(ranges, *negated),
            Node::AnyCharacter => "/(?s:.)/".into(),
            Node::Token { token, negated } => {
                format!("<[{}{token}]>", if *negated { "^" } else { "" })
            }
            Node::Rule(rule) => {
                format!("{}{rule}", if self.regular[*rule] { "T" } else { "r" })
            }
            Node::Sequence(_) | Node::Choice(_) => {
                if terminal || self.is_regular(node) {
                    let name = self.part("PART");
                    self.terminal(&name, node);
                    name
                } else {
                    let name = self.part("part");
                    self.rule(&name, node);
                    name
                }
            }
            Node::Repeat { max: Some(0), .. } => "\"\"".into(),
            Node::Repeat { of, min, max } => {
                // A regular repetition in a rule is one terminal, not a series.
                if !terminal && self.is_regular(node) {
                    let name = self.part("PART");
                    self.terminal(&name, node);
                    return name;
                }
                let mut of_name = self.atom(of, terminal);
                if matches!(**of, Node::Repeat { .. } | Node::Literal(_)) {
                    let name = self.part(if terminal { "PART" } else { "part" });
                    self.define(&name, &of_name);
                    of_name = name;
                }
                match (min, max) {
                    (0, None) => format!("{of_name}*"),
                    (1, None) => format!("{of_name}+"),
                    (0, Some(1)) => format!("{of_name}?"),
                    (min, None) => format!("{of_name}{{{min},}}"),
                    (min, Some(max)) => format!("{of_name}{{{min},{max}}}"),
                }
            }
        }
    }
}

fn literal(text: &str) -> String {
    let mut written = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                written.push('\\');
                written.push(character);
            }
            '\0'..=' ' | '\x7f' => {
                let _ = write!(written, "\\u{:04x}", u32::from(character));
            }
            plain => written.push(plain),
        }
    }
    written.push('"');
    written
}

fn class(ranges: &[(char, char)], negated: bool) -> String {
    let mut written = String::from(if negated { "/[^" } else { "/[" });
    for &(first, last) in ranges {
        let _ = write!(written, "\\x{{{:X}}}", u32::from(first));
        if last != first {
            let _ = write!(written, "-\\x{{{:X}}}", u32::from(last));
        }
    }
    written.push_str("]/");
    written
}
