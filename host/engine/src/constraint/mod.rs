//! Constraints: what a generation may say, as a grammar.
//!
//! A [`Grammar`] (a JSON schema, a regular expression, a Lark or GBNF grammar) is compiled once by the
//! model's [`Constraints`], which keeps what was compiled lately. The [`Constraint`] that comes of it
//! gives each sequence a [`Matcher`] of its own: which tokens may come next, which must, and when the
//! text may end. The work is done by the crate `llguidance`: derivatives of regular expressions for
//! the lexer, Earley's algorithm above it, and a trie of the vocabulary that both are walked over.
//!
//! What a stranger writes into a grammar fails nobody else, and takes a bounded part of everyone's time:
//! - Texts, counts, nesting, the size of what is compiled and the work for one mask have bounds
//!   ([`limits`]); what passes one is an error of the request, which says where.
//! - Compiling runs on a thread of its own with a deep stack, a few at a time, and whoever waits for
//!   it waits a bounded time.
//! - Matchers share nothing that changes, so one that fails takes no other along. A panic inside of
//!   `llguidance` ends in an error.

mod cache;
mod compile;
mod constraints;
mod dictionary;
mod gbnf;
mod json;
pub mod limits;
mod matcher;
mod place;
mod regex;
mod watch;

pub use constraints::{Constraints, Counts};
pub use dictionary::Dictionary;
pub use matcher::{Constraint, Matcher};

/// What a text must look like, in one of the ways to say so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grammar {
    /// A value of this JSON schema. Properties come in the order of the schema; between the parts
    /// stands at most a space or a line break with its indentation.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// A text that the whole of this regular expression matches (the syntax of Rust's crate `regex`,
    /// without anchors, word boundaries and look-around).
    Regex(String),
    /// A grammar as Lark writes them, with the additions of `llguidance`; it begins with `start`.
    /// Temperatures and captures that it names have no effect.
    Lark(String),
    /// A grammar as llama.cpp writes them; it begins with `root`.
    ///
    /// A grammar without recursion means exactly what it means to llama.cpp. In one with recursion,
    /// the parts without recursion are read as terminals, and a terminal goes on as long as it can:
    /// `[a-z]* "end"` in one rule is one terminal, but over two rules that call each other the word
    /// `end` is part of the letters. Every text that comes of it fits the grammar all the same.
    Gbnf(String),
}

impl Grammar {
    /// The kind in words, the text, and how many bytes it may have.
    fn parts(&self) -> (&'static str, &str, usize) {
        match self {
            Self::JsonSchema(text) => ("JSON schema", text, limits::MAX_SCHEMA),
            Self::JsonObject => ("JSON object", "", 0),
            Self::Regex(text) => ("regular expression", text, limits::MAX_REGEX),
            Self::Lark(text) => ("Lark grammar", text, limits::MAX_GRAMMAR),
            Self::Gbnf(text) => ("GBNF grammar", text, limits::MAX_GRAMMAR),
        }
    }
}
