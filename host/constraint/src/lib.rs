//! Constraints: grammars that limit what a generation may contain.
//!
//! A model's [`GrammarCompiler`] compiles a [`Grammar`] (a JSON schema, a regular expression, a Lark
//! or GBNF grammar) once and caches the result, a [`Constraint`]. The constraint gives each request a
//! [`Matcher`] of its own: which tokens may come next, which must, and when the text may end. The
//! crate `llguidance` does the work: derivatives of regular expressions for the lexer, Earley's
//! algorithm above it, and a trie of the vocabulary.
//!
//! Grammars come from strangers, so no grammar fails another request, and each takes a bounded part of
//! the machine:
//! - Texts, counts, nesting, compiled sizes and the work per mask have [`limits`]. A grammar that
//!   exceeds one is an error of its request, which says where. Tenants share the memory of a model's grammars.
//! - Grammars compile on threads with a deep stack, a few at a time; callers wait a bounded time. Compilations and
//!   calls of matchers count their work through `host/constraint/hasher`, and end above a limit.
//! - Matchers share no mutable state. A panic inside `llguidance` becomes an error.
//!
//! This crate knows no model: it sees the vocabulary through [`Vocabulary`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cache;
mod compiler;
mod gbnf;
mod grammar_memory;
mod json_schema;
mod lark_schemas;
pub mod limits;
mod llguidance_message;
mod llguidance_parser;
mod matcher;
mod regex;
mod vocabulary;
mod watchdog;

pub use compiler::{GrammarCompiler, GrammarCounters};
pub use matcher::{Constraint, Matcher};
pub use vocabulary::Vocabulary;

use std::time::Duration;

/// Index into a model's vocabulary.
pub type Token = u32;

/// Why a grammar cannot be compiled or followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The grammar or a token is invalid; the text says why, and where in the grammar.
    #[error("{0}")]
    Invalid(String),
    /// Too many grammars are being compiled, or the grammars of a model take too much memory.
    #[error("{reason}; try again in {} s", retry_after.as_secs_f32().ceil())]
    Busy {
        /// What is full.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// Grammars cannot use the model's vocabulary.
    #[error("{0}")]
    Unsupported(String),
    /// An internal failure.
    #[error("{0}")]
    Failed(String),
}

/// What a text must look like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Grammar {
    /// A value of this JSON schema. Properties come in the order of the schema. Between the parts
    /// stands at most a space, or a line break with its indentation. A keyword that cannot be enforced
    /// is an error.
    JsonSchema(String),
    /// The same, but keywords that cannot be enforced are ignored; [`Constraint::ignored`] names them.
    LenientJsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// A text that this regular expression matches as a whole (the syntax of Rust's crate `regex`,
    /// without anchors, word boundaries and look-around).
    Regex(String),
    /// A Lark grammar with the extensions of `llguidance`; its start rule is `start`. Temperatures and
    /// captures in it have no effect. Its JSON schemas are treated as [`Self::JsonSchema`], or with
    /// `"x-guidance": {"lenient": true}` as [`Self::LenientJsonSchema`].
    Lark(String),
    /// A grammar in llama.cpp's notation; its start rule is `root`.
    ///
    /// A grammar without recursion means exactly what it means to llama.cpp. In one with recursion,
    /// parts without recursion become terminals, and terminals match as much as they can:
    /// `[a-z]* "end"` in one rule is one terminal, but over two rules that call each other the word
    /// `end` is part of the letters. Every text that results still matches the grammar.
    Gbnf(String),
}

impl Grammar {
    /// The kind in words, the text, and the maximum length of the text in bytes.
    fn parts(&self) -> (&'static str, &str, usize) {
        match self {
            Self::JsonSchema(text) | Self::LenientJsonSchema(text) => {
                ("JSON schema", text, limits::MAX_SCHEMA_BYTES)
            }
            Self::JsonObject => ("JSON object", "", 0),
            Self::Regex(text) => ("regular expression", text, limits::MAX_REGEX_BYTES),
            // Its rules alone may have less: see `LarkSchemas`.
            Self::Lark(text) => ("Lark grammar", text, limits::MAX_SCHEMA_BYTES),
            Self::Gbnf(text) => ("GBNF grammar", text, limits::MAX_GRAMMAR_BYTES),
        }
    }
}
