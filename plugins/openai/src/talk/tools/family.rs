//! How models write a call, by the family that their template shows.

use corral_sdk::{Error, Model};

use crate::error::unsupported;

/// A way to write calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, one after the other: Hermes, Qwen, and the
    /// demo model.
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole answer: Llama 3.
    Llama,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}, …]`: Mistral.
    Mistral,
}

/// All of them, as their templates are told apart.
const SIGNS: [(&str, Family); 4] = [
    ("<tool_call>", Family::Hermes),
    ("[TOOL_CALLS]", Family::Mistral),
    ("<|python_tag|>", Family::Llama),
    ("\"parameters\"", Family::Llama),
];

impl Family {
    /// The family of a model that is offered tools.
    pub fn of(model: &Model) -> Result<Self, Error> {
        let template = model.info().chat_template.as_deref().unwrap_or_default();
        if !template.contains("tools") {
            let why = format!(
                "the chat template of the model {} shows it none",
                model.name()
            );
            return Err(unsupported("tools", &why));
        }
        let mut signs = SIGNS.iter();
        match signs.find(|(sign, _)| template.contains(sign)) {
            Some((_, family)) => Ok(*family),
            None => {
                let why = format!(
                    "the chat template of the model {} has calls written in a way that is not known; \
                     known are those of Hermes and Qwen, of Llama 3 and of Mistral",
                    model.name()
                );
                Err(unsupported("tools", &why))
            }
        }
    }

    /// What a call, or a list of them, begins with.
    pub fn opening(self) -> &'static str {
        match self {
            Family::Hermes => "<tool_call>",
            Family::Llama => "<|python_tag|>",
            Family::Mistral => "[TOOL_CALLS]",
        }
    }

    /// What a call ends with.
    pub fn closing(self) -> Option<&'static str> {
        match self {
            Family::Hermes => Some("</tool_call>"),
            Family::Llama | Family::Mistral => None,
        }
    }

    /// What the arguments are called.
    pub fn arguments(self) -> &'static str {
        match self {
            Family::Llama => "parameters",
            Family::Hermes | Family::Mistral => "arguments",
        }
    }

    /// A name for a call: Mistral's templates take no other than nine letters and digits.
    pub fn name_for_call(self) -> String {
        match self {
            Family::Mistral => crate::identity::letters(9),
            Family::Hermes | Family::Llama => crate::identity::unique("call_"),
        }
    }
}
