//! What a model says in answer to a chat: thoughts, content, calls of tools.
//!
//! `ask` turns a chat into generations and `answers` what they bring into parts, piece by piece. An answer
//! that is told at once is the same parts put together, so both ways of telling it say the same.

mod answers;
mod arguments;
mod ask;
mod hearing;
mod markers;
mod prompt;
mod reasoning;
pub mod tools;

pub use answers::{Answer, Answers, Finish, Said};
pub use arguments::{Argument, Arguments};
pub use ask::{Ask, Format};
pub use tools::Tools;

/// A part of what is said. Several of one kind in a row belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// What the model thinks before it answers.
    Reasoning(String),
    /// What it answers.
    Content(String),
    /// A tool is called, by its name.
    Call(String),
    /// More of that call's arguments, JSON text as a whole.
    Arguments(String),
}

/// Adds a part to others, together with the last one if it only goes on with it.
fn push(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), &part) {
        (_, Part::Reasoning(text) | Part::Content(text) | Part::Arguments(text))
            if text.is_empty() => {}
        (Some(Part::Reasoning(last)), Part::Reasoning(text))
        | (Some(Part::Content(last)), Part::Content(text))
        | (Some(Part::Arguments(last)), Part::Arguments(text)) => *last += text,
        _ => parts.push(part),
    }
}

/// How many bytes at the end of a text may be the beginning of a tag, not all of it.
fn begun(text: &str, tag: &str) -> usize {
    let lengths = (1..tag.len()).rev();
    let mut lengths = lengths.filter(|&length| tag.is_char_boundary(length));
    lengths
        .find(|&length| text.ends_with(&tag[..length]))
        .unwrap_or(0)
}
