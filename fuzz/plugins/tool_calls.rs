//! Answers of models with reasoning and tool calls: the first byte chooses the format, the rest is the answer. It has the
//! same parts whether it arrives whole or in pieces.

#![no_main]

use conversation::{CallFormat, CallParser, OutputPart, ReasoningParser};
use libfuzzer_sys::fuzz_target;

const FORMATS: [CallFormat; 3] = [CallFormat::Hermes, CallFormat::Llama, CallFormat::Mistral];

/// The parts of an answer in pieces of at most `bytes` bytes. Adjacent parts of one kind belong together.
fn parts(kind: u8, answer: &str, bytes: usize) -> Vec<OutputPart> {
    let format = FORMATS[usize::from(kind) % 3];
    let names = vec!["f".to_owned(), "add".to_owned()];
    let mut calls = CallParser::new(format, names, kind & 64 == 0);
    let mut reasoning = ReasoningParser::new(kind & 128 != 0);
    let mut all = Vec::new();
    let mut rest = answer;
    while !rest.is_empty() {
        let piece;
        (piece, rest) = rest.split_at(rest.ceil_char_boundary(bytes));
        let split = reasoning.parse(piece);
        all.push(OutputPart::Reasoning(split.reasoning));
        calls.parse(&split.content, &mut all);
    }
    let split = reasoning.end();
    all.push(OutputPart::Reasoning(split.reasoning));
    calls.parse(&split.content, &mut all);
    calls.end(&mut all);
    let mut merged = Vec::new();
    for part in all {
        match (merged.last_mut(), part) {
            (
                _,
                OutputPart::Reasoning(text)
                | OutputPart::Content(text)
                | OutputPart::Arguments(text),
            ) if text.is_empty() => {}
            (Some(OutputPart::Reasoning(last)), OutputPart::Reasoning(text))
            | (Some(OutputPart::Content(last)), OutputPart::Content(text))
            | (Some(OutputPart::Arguments(last)), OutputPart::Arguments(text)) => *last += &text,
            (_, part) => merged.push(part),
        }
    }
    merged
}

fuzz_target!(|data: &[u8]| {
    let [kind, answer @ ..] = data else {
        return;
    };
    let Ok(answer) = std::str::from_utf8(answer) else {
        return;
    };
    let whole = parts(*kind, answer, usize::MAX);
    for bytes in [1, 5] {
        assert_eq!(parts(*kind, answer, bytes), whole, "in pieces of {bytes}");
    }
});
