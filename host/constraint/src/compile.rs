//! Compiles the text of a grammar.

use crate::llguidance_message::{TextPosition, panic_of, split_position};
use crate::matcher::Constraint;
use crate::vocabulary::VocabularyIndex;
use crate::watchdog::Watchdog;
use crate::{Error, Grammar, gbnf, json, limits, regex};
use llguidance::api::TopLevelGrammar;
use std::sync::Arc;

/// Why a grammar above the limits of a compilation is refused.
pub const TOO_MUCH_WORK: &str = "it takes too much work to compile; make it smaller";

/// A compiled grammar and its estimated size in bytes.
pub struct Compiled {
    pub constraint: Constraint,
    pub bytes: usize,
}

/// Compiles a grammar. Recursive: needs a deep stack and a text of limited length.
pub fn compile(
    grammar: &Grammar,
    index: &Arc<VocabularyIndex>,
    watchdog: &Arc<Watchdog>,
) -> Result<Compiled, Error> {
    let (kind, ..) = grammar.parts();
    let invalid = |what: String| Error::Invalid(format!("the {kind} is invalid: {what}"));
    let invalid_at = |text: &str, (offset, what): (usize, String)| {
        invalid(format!("{}: {what}", TextPosition::of(text, offset)))
    };
    let without_position = |message: String| invalid(split_position(&message).1.into());
    match grammar {
        Grammar::JsonSchema(text) => {
            let schema = json::parse(text).map_err(invalid)?;
            let top = TopLevelGrammar::from_json_schema(json::prepare(&schema));
            build(top, index, watchdog).map_err(|message| invalid(json::explain(&schema, &message)))
        }
        Grammar::JsonObject => {
            let top = TopLevelGrammar::from_json_schema(json::any_object());
            build(top, index, watchdog).map_err(without_position)
        }
        Grammar::Regex(text) => {
            regex::check(text, regex::Anchors::Refused).map_err(|error| invalid_at(text, error))?;
            build(TopLevelGrammar::from_regex(text), index, watchdog).map_err(without_position)
        }
        Grammar::Lark(text) => build(TopLevelGrammar::from_lark(text.clone()), index, watchdog)
            .map_err(|message| {
                invalid(match split_position(&message) {
                    (Some(position), what) => format!("{position}: {what}"),
                    (None, what) => what.into(),
                })
            }),
        Grammar::Gbnf(text) => {
            let lark = gbnf::to_lark(text, &|name| index.token(name))
                .map_err(|error| invalid_at(text, error))?;
            // Positions in the generated Lark mean nothing to the author.
            build(TopLevelGrammar::from_lark(lark), index, watchdog).map_err(without_position)
        }
    }
}

/// Builds the parser; the error is the message of `llguidance`, which catches its own panics.
fn build(
    grammar: TopLevelGrammar,
    index: &Arc<VocabularyIndex>,
    watchdog: &Arc<Watchdog>,
) -> Result<Compiled, String> {
    let parser = index.factory.create_parser(grammar);
    let mut parser = parser.map_err(|error| {
        let message = error.to_string();
        match panic_of(&message) {
            Some(work_limit::EXCEEDED) => TOO_MUCH_WORK.into(),
            Some(what) => {
                tracing::warn!(what, "llguidance panicked while compiling a grammar");
                format!("llguidance cannot compile it ({what}); simplify it")
            }
            None => message,
        }
    })?;
    let lexer = parser.parser.lexer_stats();
    let bytes = 4096
        + lexer.num_bytes
        + lexer.num_ast_nodes * 64
        + lexer.num_states * (lexer.alphabet_size * 4 + 256);
    if bytes > limits::MAX_COMPILED_BYTES {
        return Err(format!(
            "it takes {} MiB compiled; it may take at most {}",
            bytes >> 20,
            limits::MAX_COMPILED_BYTES >> 20
        ));
    }
    parser.start_without_prompt();
    Ok(Compiled {
        constraint: Constraint::new(parser, Arc::clone(index), Arc::clone(watchdog)),
        bytes,
    })
}
