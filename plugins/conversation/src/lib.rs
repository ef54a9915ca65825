//! What plugins for chat APIs share: from a chat to the model's reasoning, content and tool calls.
//!
//! `chat_request` turns a chat into generations; `answer_stream` parses their output part by part. Whole
//! responses are built from the same parts as streamed ones, so both have the same content.
//! `generation` runs generations: settings, several choices, log probabilities. The formats of
//! requests, responses and errors belong to the plugins.

mod answer_stream;
pub mod audio;
mod chat_request;
pub mod context_limit;
mod control_tags;
pub mod generation;
pub mod ids;
pub mod images;
pub mod infill;
pub mod message;
mod output_parser;
mod prompt;
mod reasoning_parser;
mod roles;
pub mod silently_ignored;
mod template_kwargs;
pub mod tools;

pub use answer_stream::{Answer, AnswerDelta, AnswerStream, FinishReason};
pub use chat_request::{ChatRequest, Format, check_unconstrained};
pub use prompt::take_final_text;
pub use reasoning_parser::ReasoningParser;
pub use template_kwargs::{TemplateKwarg, TemplateKwargs};
pub use tools::{CallFormat, CallParser, Tools};

use corral_sdk::fields::ignored;
use corral_sdk::{Error, Response};

/// A part of an answer. Adjacent parts of one kind belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputPart {
    /// The model's reasoning before the answer.
    Reasoning(String),
    /// The answer.
    Content(String),
    /// The start of a tool call, with the tool's name.
    ToolCall(String),
    /// A part of that call's arguments, which together are JSON text.
    Arguments(String),
}

/// Adds a part and merges it with the last one if both are of one kind.
fn push(parts: &mut Vec<OutputPart>, part: OutputPart) {
    match (parts.last_mut(), &part) {
        (
            _,
            OutputPart::Reasoning(text) | OutputPart::Content(text) | OutputPart::Arguments(text),
        ) if text.is_empty() => {}
        (Some(OutputPart::Reasoning(last)), OutputPart::Reasoning(text))
        | (Some(OutputPart::Content(last)), OutputPart::Content(text))
        | (Some(OutputPart::Arguments(last)), OutputPart::Arguments(text)) => *last += text,
        _ => parts.push(part),
    }
}

/// The number of bytes at the end of `text` that are a proper prefix of `tag`.
fn partial_tag(text: &str, tag: &str) -> usize {
    let lengths = (1..tag.len()).rev();
    let mut lengths = lengths.filter(|&length| tag.is_char_boundary(length));
    lengths
        .find(|&length| text.ends_with(&tag[..length]))
        .unwrap_or(0)
}

/// Creates the error for a feature of the API that is not supported.
pub fn unsupported(field: &str, why: &str) -> Error {
    Error::bad_request("unsupported", format!("`{field}` is not supported: {why}"))
        .with_field(field)
}

/// Ignores a field that has no effect on the answer: the response names it. An error if the request
/// is strict.
pub fn without_effect(field: &str, why: &str) -> Result<(), Error> {
    if ignored::is_strict() {
        return Err(unsupported(field, why));
    }
    ignored::add(field);
    Ok(())
}

/// Adds the header that names ignored fields, if there are any.
pub fn with_ignored(response: Response) -> Response {
    match ignored::header_value() {
        Some(names) => response.with_header(ignored::HEADER, &names),
        None => response,
    }
}
