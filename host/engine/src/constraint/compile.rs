//! From a grammar's text to something that matches.

use super::dictionary::Lexicon;
use super::matcher::Constraint;
use super::place::{Place, is_panic, split};
use super::watch::Watcher;
use super::{Grammar, gbnf, json, limits, regex};
use crate::Error;
use llguidance::api::TopLevelGrammar;
use std::sync::Arc;

/// A compiled grammar and an estimate of its size in bytes.
pub struct Compiled {
    pub constraint: Constraint,
    pub bytes: usize,
}

/// Compiles a grammar. Recursive, so to be called with a deep stack, and with a text of bounded length.
pub fn compile(
    grammar: &Grammar,
    lexicon: &Arc<Lexicon>,
    watcher: &Arc<Watcher>,
) -> Result<Compiled, Error> {
    let (kind, ..) = grammar.parts();
    let wrong = |what: String| Error::Invalid(format!("the {kind} is wrong: {what}"));
    match grammar {
        Grammar::JsonSchema(text) => {
            let schema = json::read(text).map_err(wrong)?;
            let top = TopLevelGrammar::from_json_schema(json::prepare(&schema));
            build(top, lexicon, watcher).map_err(|message| wrong(json::explain(&schema, &message)))
        }
        Grammar::JsonObject => {
            let top = TopLevelGrammar::from_json_schema(json::any_object());
            build(top, lexicon, watcher).map_err(|message| wrong(split(&message).1.into()))
        }
        Grammar::Regex(text) => {
            regex::check(text, regex::Anchors::Refused)
                .map_err(|(offset, what)| wrong(format!("{}: {what}", Place::of(text, offset))))?;
            build(TopLevelGrammar::from_regex(text), lexicon, watcher)
                .map_err(|message| wrong(split(&message).1.into()))
        }
        Grammar::Lark(text) => build(TopLevelGrammar::from_lark(text.clone()), lexicon, watcher)
            .map_err(|message| {
                wrong(match split(&message) {
                    (Some(place), what) => format!("{place}: {what}"),
                    (None, what) => what.into(),
                })
            }),
        Grammar::Gbnf(text) => {
            let lark = gbnf::to_lark(text, &|name| lexicon.token(name))
                .map_err(|(offset, what)| wrong(format!("{}: {what}", Place::of(text, offset))))?;
            // Places in what it was turned into say nothing to the reader.
            build(TopLevelGrammar::from_lark(lark), lexicon, watcher)
                .map_err(|message| wrong(split(&message).1.into()))
        }
    }
}

/// Builds the parser; the error is what `llguidance` said, which catches panics itself.
fn build(
    grammar: TopLevelGrammar,
    lexicon: &Arc<Lexicon>,
    watcher: &Arc<Watcher>,
) -> Result<Compiled, String> {
    let parser = lexicon.factory.create_parser(grammar);
    let mut parser = parser.map_err(|error| {
        let message = error.to_string();
        if is_panic(&message) {
            tracing::warn!(message, "llguidance panicked over a grammar");
        }
        message
    })?;
    let lexer = parser.parser.lexer_stats();
    let bytes = 4096
        + lexer.num_bytes
        + lexer.num_ast_nodes * 64
        + lexer.num_states * (lexer.alphabet_size * 4 + 256);
    if bytes > limits::MAX_COMPILED_BYTES {
        return Err(format!(
            "it takes {} MiB once compiled; at most {} are given to it",
            bytes >> 20,
            limits::MAX_COMPILED_BYTES >> 20
        ));
    }
    parser.start_without_prompt();
    Ok(Compiled {
        constraint: Constraint::new(parser, Arc::clone(lexicon), Arc::clone(watcher)),
        bytes,
    })
}
