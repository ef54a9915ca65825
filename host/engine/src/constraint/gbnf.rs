//! GBNF, the notation of llama.cpp, turned into Lark.
//!
//! Accepts what llama.cpp's parser accepts (`llama-grammar.cpp`): rules `name ::= …`, alternatives,
//! literals, character classes, `.`, groups, `? * + {m} {m,} {m,n}`, tokens `<name>` and `<[7]>` with
//! `!` for all others, comments, and line breaks inside of groups and after `::=` and `|`. Unlike it,
//! left recursion works, and an empty character class is an error.
//!
//! Lark has terminals, which a lexer reads, and rules above them. A rule that can't reach itself and
//! names no token is a regular language, so it becomes a terminal; a grammar of such rules alone is
//! one terminal. In the other rules, neighbours that are regular are joined to one terminal.

mod parse;
mod write;

/// What is wrong, and the byte it begins at.
pub type Wrong = (usize, String);

/// Turns a GBNF grammar into a Lark grammar. `token` finds tokens by name.
pub fn to_lark(text: &str, token: &dyn Fn(&str) -> Option<crate::Token>) -> Result<String, Wrong> {
    let grammar = parse::parse(text, token)?;
    Ok(write::write(&grammar))
}

/// A grammar whose names are all defined.
struct Grammar {
    /// Bodies of the rules.
    rules: Vec<Node>,
    root: usize,
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Literal(String),
    /// Ranges of characters, or all characters but those.
    Class {
        ranges: Vec<(char, char)>,
        negated: bool,
    },
    AnyCharacter,
    Token {
        token: crate::Token,
        negated: bool,
    },
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat {
        of: Box<Node>,
        least: u64,
        most: Option<u64>,
    },
}

#[cfg(test)]
mod tests;
