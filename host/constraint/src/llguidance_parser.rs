//! Builds the parser of llguidance from the text of a grammar.

use crate::grammar_memory::GrammarBytes;
use crate::json_schema::JsonSchema;
use crate::lark_schemas::LarkSchemas;
use crate::llguidance_message::{TextPosition, panic_of, split_position};
use crate::matcher::Constraint;
use crate::vocabulary::VocabularyIndex;
use crate::watchdog::Watchdog;
use crate::{Error, Grammar, gbnf, json_schema, limits, regex};
use llguidance::api::TopLevelGrammar;
use std::sync::Arc;

/// A compiled grammar and its estimated size in bytes.
pub struct SizedConstraint {
    pub constraint: Constraint,
    pub bytes: usize,
}

/// Compiles a grammar; `memory` counts its bytes. Recursive: needs a deep stack and a text of limited length.
pub fn compile(
    grammar: &Grammar,
    index: &Arc<VocabularyIndex>,
    watchdog: &Arc<Watchdog>,
    memory: &dyn Fn() -> GrammarBytes,
) -> Result<SizedConstraint, Error> {
    let (kind, ..) = grammar.parts();
    let invalid = |what: String| Error::Invalid(format!("the {kind} is invalid: {what}"));
    let invalid_at = |text: &str, (offset, what): (usize, String)| {
        invalid(format!("{}: {what}", TextPosition::of(text, offset)))
    };
    let without_position = |message: String| invalid(split_position(&message).1.into());
    let build = |grammar, ignored| build(grammar, ignored, index, watchdog, memory());
    match grammar {
        Grammar::JsonSchema(text) | Grammar::LenientJsonSchema(text) => {
            let is_lenient = matches!(grammar, Grammar::LenientJsonSchema(_));
            let mut schema = JsonSchema::parse(text, is_lenient).map_err(invalid)?;
            loop {
                let top = TopLevelGrammar::from_json_schema(schema.compilable());
                match build(top, some(schema.ignored(""))) {
                    Ok(compiled) => return Ok(compiled),
                    Err(message) => schema.relax(&message).map_err(invalid)?,
                }
            }
        }
        Grammar::JsonObject => {
            let top = TopLevelGrammar::from_json_schema(json_schema::any_object());
            build(top, Vec::new()).map_err(without_position)
        }
        Grammar::Regex(text) => {
            regex::check(text, regex::Anchors::Refused).map_err(|error| invalid_at(text, error))?;
            build(TopLevelGrammar::from_regex(text), Vec::new()).map_err(without_position)
        }
        Grammar::Lark(text) => {
            let mut schemas = LarkSchemas::parse(text).map_err(Error::Invalid)?;
            loop {
                let lark = schemas.rewritten().map_err(Error::Invalid)?;
                let top = TopLevelGrammar::from_lark(lark);
                let message = match build(top, some(schemas.ignored())) {
                    Ok(compiled) => return Ok(compiled),
                    Err(message) => message,
                };
                if !schemas.relax(&message).map_err(Error::Invalid)? {
                    return Err(invalid(match split_position(&message) {
                        (Some(position), what) => format!("{position}: {what}"),
                        (None, what) => what.into(),
                    }));
                }
            }
        }
        Grammar::Gbnf(text) => {
            let lark = gbnf::to_lark(text, &|name| index.token(name))
                .map_err(|error| invalid_at(text, error))?;
            // Positions in the generated Lark mean nothing to the author.
            build(TopLevelGrammar::from_lark(lark), Vec::new()).map_err(without_position)
        }
    }
}

/// The first names of ignored keywords, and how many more there are.
fn some(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names = Vec::from_iter(names);
    let more = names.len().saturating_sub(limits::MAX_IGNORED);
    if more > 0 {
        names.truncate(limits::MAX_IGNORED);
        names.push(format!("{more} more"));
    }
    names
}

/// Builds the parser; the error is the message of `llguidance`, which catches its own panics.
fn build(
    grammar: TopLevelGrammar,
    ignored: Vec<String>,
    index: &Arc<VocabularyIndex>,
    watchdog: &Arc<Watchdog>,
    mut memory: GrammarBytes,
) -> Result<SizedConstraint, String> {
    let parser = index.factory.create_parser(grammar);
    let mut parser = parser.map_err(|error| {
        let message = error.to_string();
        match panic_of(&message) {
            Some(work_limit::EXCEEDED) => limits::TOO_MUCH_WORK.into(),
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
    // Whether the tenant may compile was checked before. It may exceed its share by the compilations that run.
    memory.set(bytes).ok();
    let (index, watchdog) = (Arc::clone(index), Arc::clone(watchdog));
    Ok(SizedConstraint {
        constraint: Constraint::new(parser, index, watchdog, memory, ignored),
        bytes,
    })
}
