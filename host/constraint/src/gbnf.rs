//! Translates GBNF, the notation of llama.cpp, into Lark.
//!
//! Accepts what llama.cpp's parser accepts (`llama-grammar.cpp`): rules `name ::= …`, alternatives,
//! literals, character classes, `.`, groups, `? * + {m} {m,} {m,n}`, tokens `<name>` and `<[7]>` with
//! `!` for all others, comments, and line breaks inside groups and after `::=` and `|`. In contrast to
//! llama.cpp, left recursion works, and an empty character class is an error.
//!
//! Lark has terminals, which a lexer reads, and rules above them. A rule that cannot reach itself and
//! contains no token is a regular language, so it becomes a terminal; a grammar of such rules alone is
//! one terminal. In the other rules, adjacent regular parts become one terminal.

mod parse;
mod write;

/// The byte at which an error begins, and a message.
pub type GbnfError = (usize, String);

/// Translates a GBNF grammar into a Lark grammar. `token` finds tokens by name.
pub fn to_lark(
    text: &str,
    token: &dyn Fn(&str) -> Option<crate::Token>,
) -> Result<String, GbnfError> {
    let grammar = parse::parse(text, token)?;
    Ok(write::write(&grammar))
}

/// A grammar whose rules are all defined.
struct ParsedGrammar {
    /// The bodies of the rules.
    rules: Vec<Node>,
    root: usize,
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Literal(String),
    /// Ranges of characters, or all other characters if `negated`.
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
        min: u64,
        max: Option<u64>,
    },
}

#[cfg(test)]
mod tests;
