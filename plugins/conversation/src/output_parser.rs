//! Parses one answer in stages: control tags, reasoning, tool calls.

use corral_sdk::{Error, Model, Token};

use super::control_tags::ControlTags;
use super::reasoning_parser::{ReasoningParser, SplitText};
use super::tools::CallParser;
use super::{OutputPart, push};

/// The parsers of one answer.
pub struct OutputParser {
    pub control_tags: ControlTags,
    pub reasoning: ReasoningParser,
    pub calls: CallParser,
}

impl OutputParser {
    /// For an answer of which all text is content.
    pub fn plain() -> Self {
        OutputParser {
            control_tags: ControlTags::default(),
            reasoning: ReasoningParser::disabled(),
            calls: CallParser::disabled(),
        }
    }

    /// Whether all text is content.
    pub fn is_plain(&self) -> bool {
        self.control_tags.is_empty()
            && self.reasoning.is_past_reasoning()
            && self.calls.is_disabled()
    }

    /// Parses a chunk and returns its parts.
    pub fn parse(
        &mut self,
        model: &Model,
        tokens: &[Token],
        text: String,
    ) -> Result<Vec<OutputPart>, Error> {
        let text = self.control_tags.insert(model, tokens, text)?;
        let split = self.reasoning.parse(&text);
        Ok(self.parts(split))
    }

    /// Returns the remaining parts at the end.
    pub fn end(&mut self) -> Vec<OutputPart> {
        let split = self.reasoning.end();
        let mut parts = self.parts(split);
        let mut rest = Vec::new();
        self.calls.end(&mut rest);
        rest.into_iter().for_each(|part| push(&mut parts, part));
        parts
    }

    fn parts(&mut self, split: SplitText) -> Vec<OutputPart> {
        let mut parts = Vec::new();
        push(&mut parts, OutputPart::Reasoning(split.reasoning));
        self.calls.parse(&split.content, &mut parts);
        parts
    }
}
