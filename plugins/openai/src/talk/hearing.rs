//! One text, heard as it comes: tags, then thoughts, then calls.

use corral_sdk::{Error, Model, Token};

use super::markers::Markers;
use super::reasoning::{Reasoning, Told};
use super::tools::Calls;
use super::{Part, push};

/// How far one text has been heard.
pub struct Hearing {
    pub markers: Markers,
    pub reasoning: Reasoning,
    pub calls: Calls,
}

impl Hearing {
    /// Whether every piece is content as it stands.
    pub fn is_plain(&self) -> bool {
        self.markers.are_none() && self.reasoning.is_over() && self.calls.are_none()
    }

    /// The parts that a piece brings.
    pub fn hear(
        &mut self,
        model: &Model,
        tokens: &[Token],
        text: String,
    ) -> Result<Vec<Part>, Error> {
        let text = self.markers.weave(model, tokens, text)?;
        let told = self.reasoning.hear(&text);
        Ok(self.parts(told))
    }

    /// What is left at the end.
    pub fn end(&mut self) -> Vec<Part> {
        let told = self.reasoning.end();
        let mut parts = self.parts(told);
        let mut rest = Vec::new();
        self.calls.end(&mut rest);
        rest.into_iter().for_each(|part| push(&mut parts, part));
        parts
    }

    fn parts(&mut self, told: Told) -> Vec<Part> {
        let mut parts = Vec::new();
        push(&mut parts, Part::Reasoning(told.thought));
        self.calls.hear(&told.speech, &mut parts);
        parts
    }
}
